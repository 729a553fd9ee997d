//! PURE: the leases of agents. The module has no clock: the time is an argument.
//!
//! Silence counts only while the manager could receive reports. The caller must pass every interval of time to
//! [`Leases::advance`] at its end. An interval may be too long, because the process was stopped, the machine slept or
//! something delayed the manager. Only the expected length of an interval counts. After such a delay, no lease has
//! therefore expired, and all agents have time to report.

use std::collections::HashMap;
use std::time::Duration;

use trial_protocol::TrialJobId;

/// The number of check intervals in a lease.
const CHECKS_PER_LEASE: u32 = 6;

/// The agents from which reports are expected.
#[derive(Debug)]
pub struct Leases {
    lease: Duration,
    /// The time for which the manager has listened.
    elapsed: Duration,
    agents: HashMap<TrialJobId, Agent>,
}

#[derive(Debug)]
struct Agent {
    renewed_at: Duration,
    lost: bool,
}

impl Leases {
    /// Creates an empty set of leases of this length.
    pub fn new(lease: Duration) -> Self {
        Self { lease, elapsed: Duration::ZERO, agents: HashMap::new() }
    }

    /// Returns the time for which an agent may be silent.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the interval between calls of [`Leases::advance`].
    pub fn check_interval(&self) -> Duration {
        self.lease / CHECKS_PER_LEASE
    }

    /// Begins the lease of a trial's agent. `lost`: the store already lists the trial as lost.
    pub fn begin(&mut self, trial: &TrialJobId, lost: bool) {
        let agent = Agent { renewed_at: self.elapsed + self.check_interval(), lost };
        self.agents.insert(trial.clone(), agent);
    }

    /// Renews the lease of an agent that has reported. Returns `true` if the agent had a lease and was lost.
    pub fn renew(&mut self, trial: &TrialJobId) -> bool {
        let interval = self.check_interval();
        let Some(agent) = self.agents.get_mut(trial) else { return false };
        // The report may have arrived at the very end of the present interval.
        agent.renewed_at = self.elapsed + interval;
        std::mem::replace(&mut agent.lost, false)
    }

    /// Ends the lease of a trial's agent.
    pub fn end(&mut self, trial: &TrialJobId) {
        self.agents.remove(trial);
    }

    /// Adds the time since the last call. Returns the trials whose leases have expired meanwhile, sorted by id.
    pub fn advance(&mut self, time: Duration) -> Vec<TrialJobId> {
        self.elapsed += time.min(self.check_interval());
        let (now, lease) = (self.elapsed, self.lease);
        let silent = self
            .agents
            .iter_mut()
            .filter(|(_, agent)| !agent.lost && now >= agent.renewed_at + lease);
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
        leases.begin(&id("a"), false);
        leases.begin(&id("b"), false);
        assert!(!leases.renew(&id("c")), "c never had a lease");
        let mut lost = Vec::new();
        for second in 1..=13 {
            if second == 4 {
                assert!(!leases.renew(&id("b")), "it was not lost");
            }
            lost.extend(leases.advance(SECOND).into_iter().map(|trial| (second, trial)));
        }
        assert_eq!(lost, [(7, id("a")), (10, id("b"))]);
        assert!(leases.renew(&id("a")), "found again");
        assert!(!leases.renew(&id("a")), "once");
        leases.end(&id("b"));
        let lost: Vec<_> = (1..=7).flat_map(|_| leases.advance(SECOND)).collect();
        assert_eq!(lost, [id("a")], "a is lost again, and b has no lease");
    }

    #[test]
    fn a_trial_that_was_lost_before_is_found_once() {
        let mut leases = Leases::new(6 * SECOND);
        leases.begin(&id("a"), true);
        assert_eq!(
            (1..=12).flat_map(|_| leases.advance(SECOND)).count(),
            0,
            "the trial is already known to be lost"
        );
        assert!(leases.renew(&id("a")) && !leases.renew(&id("a")));
    }

    #[test]
    fn time_without_a_check_does_not_count() {
        let mut leases = Leases::new(6 * SECOND);
        leases.begin(&id("a"), false);
        assert_eq!(leases.advance(Duration::from_hours(8)), [], "the machine slept");
        let checks = (1..100).find(|_| !leases.advance(Duration::from_hours(8)).is_empty());
        assert_eq!(checks, Some(6), "a lease lasts six checks, no matter how far apart they are");
    }

    proptest! {
        #[test]
        fn a_trial_that_reports_within_the_lease_is_not_lost(
            steps in prop::collection::vec((0..20_000_u64, any::<bool>()), 1..200)
        ) {
            let mut leases = Leases::new(6 * SECOND);
            leases.begin(&id("a"), false);
            let mut silent = 0;
            for (millis, speaks) in steps {
                let lost = leases.advance(Duration::from_millis(millis));
                silent += millis.min(1000);
                prop_assert!(lost.is_empty() || silent >= 6000);
                if speaks {
                    leases.renew(&id("a"));
                    silent = 0;
                }
            }
        }
    }
}
