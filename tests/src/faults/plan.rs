//! PURE: a seed -> the faults of a run, and their times.

use super::network_state::{Fault, NetworkState};
use crate::rng::Rng;

/// The plan of one run.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    /// The seed that determines the plan.
    pub seed: u64,
    /// The number of trials, which run in parallel.
    pub trials: u32,
    /// The number of steps per trial. Each step waits for the gate.
    pub steps: usize,
    /// The number of metrics, of output lines and of error lines per step.
    pub burst: usize,
    /// The time that an agent has for delivery after its trial's end, in milliseconds.
    pub flush_ms: u64,
    /// The time from the manager's start to an early kill, in milliseconds. The manager is started again.
    pub early_kill_ms: Option<u64>,
    /// The platform's reaction to the end of a killed agent.
    pub agent_restart: AgentRestart,
    /// The size in KiB of a small disk for all spools. It has space for the facts, but not for the logs.
    pub spool_kib: Option<u64>,
    /// If set, agents reach the manager by an address other than loopback's, so they compress large requests.
    pub non_loopback: bool,
    /// The rounds, in order.
    pub rounds: Vec<FaultRound>,
}

/// A platform's reaction to the end of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentRestart {
    /// No reaction. The manager notices the end.
    Never,
    /// The agent is started again in place, as the same attempt.
    SameAttempt,
    /// The agent is started again in place, as another attempt.
    NewAttempt,
}

/// A part of the run with one kind of network fault.
#[derive(Debug, Clone)]
pub struct FaultRound {
    /// The state of the network.
    pub network: NetworkState,
    /// The number of steps that the trials may take.
    pub steps: usize,
    /// If set, `action` waits for the steps.
    pub waits_for_steps: bool,
    /// The pause before `action`, in milliseconds.
    pub pause_ms: u64,
    /// The action at the end of the round.
    pub action: Action,
}

/// An action on the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// No action.
    Nothing,
    /// Kills the manager, lets the trials take steps, optionally kills an agent, and resumes the experiment.
    KillManager {
        /// The number of steps without a manager.
        steps: usize,
        /// The minimum time without a manager, in milliseconds.
        downtime_ms: u64,
        /// The index of an agent to kill in this time.
        killed_agent: Option<usize>,
    },
    /// Kills an agent.
    KillAgent {
        /// The index of the agent among the running ones.
        agent_index: usize,
        /// If set, the kill waits until all output of the trial is in its spool or in the store.
        waits_for_spool: bool,
    },
    /// Sets the clock of all agents, or of the manager.
    SetClock {
        /// If set, the manager's clock instead of the agents'.
        of_manager: bool,
        /// The difference to the real time, in seconds.
        seconds: i64,
    },
}

impl FaultPlan {
    /// Returns the plan of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let trials = u32::try_from(rng.between(1, 3)).expect("a small number");
        let agent_restart = match rng.below(10) {
            0..=5 => AgentRestart::Never,
            6..=8 => AgentRestart::SameAttempt,
            _ => AgentRestart::NewAttempt,
        };
        let steps = rng.count(3, 12);
        let manager_dies = agent_restart == AgentRestart::Never;
        let rounds = rng.count(1, 6);
        let rounds =
            (0..rounds).map(|_| FaultRound::random(&mut rng, steps, manager_dies)).collect();
        Self {
            seed,
            trials,
            steps,
            burst: rng.pick(&[1, 1, 2, 5, 20]),
            flush_ms: rng.pick(&[50, 300, 2_000]),
            early_kill_ms: (manager_dies && rng.chance(20)).then(|| rng.between(0, 200)),
            agent_restart,
            spool_kib: rng.chance(10).then(|| rng.pick(&[192, 320])),
            non_loopback: seed % 2 == 1,
            rounds,
        }
    }
}

impl FaultPlan {
    /// Returns the padding of each printed line. It makes the output larger than a small disk.
    pub fn padding(&self) -> String {
        if self.spool_kib.is_some() { " padding".repeat(250) } else { String::new() }
    }
}

impl FaultRound {
    fn random(rng: &mut Rng, steps: usize, manager_dies: bool) -> Self {
        let network = match rng.below(8) {
            0 => NetworkState::Healthy,
            1 | 2 => NetworkState::RandomFaults,
            3 => NetworkState::Refusing,
            _ => NetworkState::Always(rng.pick(&Fault::ALL)),
        };
        let action = match rng.below(8) {
            0..=2 if manager_dies => Action::KillManager {
                steps: rng.count(0, steps),
                downtime_ms: rng.between(0, 60),
                killed_agent: rng.chance(25).then(|| rng.count(0, 2)),
            },
            3 | 4 => {
                Action::KillAgent { agent_index: rng.count(0, 2), waits_for_spool: rng.chance(40) }
            }
            5 => Action::SetClock {
                of_manager: rng.chance(30),
                seconds: rng.pick(&[-86_400, -3_600, -30, 30, 3_600, 31_536_000]),
            },
            _ => Action::Nothing,
        };
        Self {
            network,
            steps: rng.count(0, steps),
            waits_for_steps: rng.chance(70),
            pause_ms: rng.between(0, 80),
            action,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_means_the_same_plan() {
        for seed in 0..50 {
            assert_eq!(
                format!("{:?}", FaultPlan::from_seed(seed)),
                format!("{:?}", FaultPlan::from_seed(seed))
            );
        }
    }

    #[test]
    fn a_thousand_seeds_use_every_fault() {
        let all = format!("{:?}", (0..1000).map(FaultPlan::from_seed).collect::<Vec<_>>());
        for word in
            ["KillManager", "waits_for_spool: true", "SetClock", "Some(", "NewAttempt", "Refusing"]
        {
            assert!(all.contains(word), "{word}");
        }
        for fault in Fault::ALL {
            assert!(all.contains(&format!("Always({fault:?})")), "{fault:?}");
        }
    }
}
