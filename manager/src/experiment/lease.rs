//! PURE: the leases of agents. No clock: time comes in as a value.
//!
//! Silence is measured in time in which the manager could have heard something. [`Leases::passed`] must be called with
//! every stretch of time when it is over. A stretch may be longer than it should have been, because the process was
//! stopped, the machine slept or something held the manager up. Of such a stretch only the expected part counts. So a
//! manager that comes back finds all agents as it left them, and all have time to speak.

use std::collections::HashMap;
use std::time::Duration;

use trial_protocol::TrialJobId;

/// Stretches of time that a lease is divided into.
const BEATS: u32 = 6;

/// The agents that are expected to speak.
#[derive(Debug)]
pub struct Leases {
    lease: Duration,
    /// The time that the manager has listened.
    listened: Duration,
    agents: HashMap<TrialJobId, Agent>,
}

#[derive(Debug)]
struct Agent {
    heard_at: Duration,
    lost: bool,
}

impl Leases {
    /// Agents may be silent for `lease`.
    pub fn new(lease: Duration) -> Self {
        Self { lease, listened: Duration::ZERO, agents: HashMap::new() }
    }

    /// Returns how long an agent may be silent.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns how often [`Leases::passed`] is to be called.
    pub fn beat(&self) -> Duration {
        self.lease / BEATS
    }

    /// From now on this trial's agent is expected to speak; `lost` if it is known not to have for long.
    pub fn expect(&mut self, trial: &TrialJobId, lost: bool) {
        let agent = Agent { heard_at: self.listened + self.beat(), lost };
        self.agents.insert(trial.clone(), agent);
    }

    /// An agent spoke. `true` if it was lost; one that was never expected is not.
    pub fn heard(&mut self, trial: &TrialJobId) -> bool {
        let beat = self.beat();
        let Some(agent) = self.agents.get_mut(trial) else { return false };
        // It may have spoken at the very end of the stretch that is not over yet.
        agent.heard_at = self.listened + beat;
        std::mem::replace(&mut agent.lost, false)
    }

    /// Nothing more is expected of this trial's agent.
    pub fn forget(&mut self, trial: &TrialJobId) {
        self.agents.remove(trial);
    }

    /// Time has passed since the last call: who has fallen silent meanwhile, in the order of their ids.
    pub fn passed(&mut self, time: Duration) -> Vec<TrialJobId> {
        self.listened += time.min(self.beat());
        let (now, lease) = (self.listened, self.lease);
        let silent = self
            .agents
            .iter_mut()
            .filter(|(_, agent)| !agent.lost && now >= agent.heard_at + lease);
        let mut lost: Vec<_> = silent
            .map(|(trial, agent)| {
                agent.lost = true;
                trial.clone()
            })
            .collect();
        lost.sort();
        lost
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(name: &str) -> TrialJobId {
        TrialJobId::new(name).unwrap()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_trial_that_is_silent_for_a_lease_is_lost_once_and_found_again() {
        let mut leases = Leases::new(6 * SECOND);
        leases.expect(&id("a"), false);
        leases.expect(&id("b"), false);
        assert!(!leases.heard(&id("c")), "never expected");
        let mut lost = Vec::new();
        for second in 1..=13 {
            if second == 4 {
                assert!(!leases.heard(&id("b")), "it was not lost");
            }
            lost.extend(leases.passed(SECOND).into_iter().map(|trial| (second, trial)));
        }
        assert_eq!(lost, [(7, id("a")), (10, id("b"))]);
        assert!(leases.heard(&id("a")), "found again");
        assert!(!leases.heard(&id("a")), "once");
        leases.forget(&id("b"));
        let lost: Vec<_> = (1..=7).flat_map(|_| leases.passed(SECOND)).collect();
        assert_eq!(lost, [id("a")], "and lost again; of b nothing is expected");
    }

    #[test]
    fn a_trial_that_was_lost_before_is_found_once() {
        let mut leases = Leases::new(6 * SECOND);
        leases.expect(&id("a"), true);
        assert_eq!((1..=12).flat_map(|_| leases.passed(SECOND)).count(), 0, "that is known");
        assert!(leases.heard(&id("a")) && !leases.heard(&id("a")));
    }

    #[test]
    fn time_in_which_nothing_could_be_heard_does_not_count() {
        let mut leases = Leases::new(6 * SECOND);
        leases.expect(&id("a"), false);
        assert_eq!(leases.passed(Duration::from_hours(8)), [], "the machine slept");
        let beats = (1..100).find(|_| !leases.passed(Duration::from_hours(8)).is_empty());
        assert_eq!(beats, Some(6), "a lease is so many chances to speak, however far apart");
    }

    proptest! {
        #[test]
        fn a_trial_that_reports_within_the_lease_is_not_lost(
            steps in prop::collection::vec((0..20_000_u64, any::<bool>()), 1..200)
        ) {
            let mut leases = Leases::new(6 * SECOND);
            leases.expect(&id("a"), false);
            let mut silent = 0;
            for (millis, speaks) in steps {
                let lost = leases.passed(Duration::from_millis(millis));
                silent += millis.min(1000);
                prop_assert!(lost.is_empty() || silent >= 6000);
                if speaks {
                    leases.heard(&id("a"));
                    silent = 0;
                }
            }
        }
    }
}
