//! PURE: a seed -> the faults of a run, and their times.

use super::dice::Dice;
use super::weather::{Fault, Weather};

/// The plan of one run.
#[derive(Debug, Clone)]
pub struct Plan {
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
    pub container: Container,
    /// The size in KiB of a small disk for all spools. It has space for the facts, but not for the logs.
    pub spool_kib: Option<u64>,
    /// If set, agents reach the manager by an address other than loopback's, so they compress large requests.
    pub far: bool,
    /// The rounds, in order.
    pub rounds: Vec<Round>,
}

/// A platform's reaction to the end of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// No reaction. The manager notices the end.
    Gone,
    /// The agent is started again in place, as the same attempt.
    SameAttempt,
    /// The agent is started again in place, as another attempt.
    OtherAttempt,
}

/// A part of the run with one kind of network fault.
#[derive(Debug, Clone)]
pub struct Round {
    /// The state of the network.
    pub weather: Weather,
    /// The number of steps that the trials may take.
    pub steps: usize,
    /// If set, the steps are awaited before `act`.
    pub awaited: bool,
    /// The pause before `act`, in milliseconds.
    pub dwell_ms: u64,
    /// The action at the end of the round.
    pub act: Act,
}

/// An action on the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// No action.
    Nothing,
    /// Kills the manager, lets the trials take steps, optionally kills an agent, and resumes the experiment.
    KillManager {
        /// The number of steps without a manager.
        steps: usize,
        /// The minimum time without a manager, in milliseconds.
        away_ms: u64,
        /// The index of an agent to kill in this time.
        agent: Option<usize>,
    },
    /// Kills an agent.
    KillAgent {
        /// The index of the agent among the running ones.
        which: usize,
        /// If set, the kill waits until all output of the trial is in its spool or in the store.
        settled: bool,
    },
    /// Sets the clock of all agents, or of the manager.
    SetClock {
        /// If set, the manager's clock instead of the agents'.
        managers: bool,
        /// The difference to the real time, in seconds.
        seconds: i64,
    },
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let trials = u32::try_from(dice.between(1, 3)).expect("few");
        let container = match dice.below(10) {
            0..=5 => Container::Gone,
            6..=8 => Container::SameAttempt,
            _ => Container::OtherAttempt,
        };
        let steps = dice.count(3, 12);
        let manager_dies = container == Container::Gone;
        let rounds = dice.count(1, 6);
        let rounds = (0..rounds).map(|_| Round::of(&mut dice, steps, manager_dies)).collect();
        Self {
            seed,
            trials,
            steps,
            burst: dice.pick(&[1, 1, 2, 5, 20]),
            flush_ms: dice.pick(&[50, 300, 2_000]),
            early_kill_ms: (manager_dies && dice.chance(20)).then(|| dice.between(0, 200)),
            container,
            spool_kib: dice.chance(10).then(|| dice.pick(&[192, 320])),
            far: seed % 2 == 1,
            rounds,
        }
    }
}

impl Plan {
    /// Returns the padding of each printed line. It makes the output larger than a small disk.
    pub fn padding(&self) -> String {
        if self.spool_kib.is_some() { " padding".repeat(250) } else { String::new() }
    }
}

impl Round {
    fn of(dice: &mut Dice, steps: usize, manager_dies: bool) -> Self {
        let weather = match dice.below(8) {
            0 => Weather::Calm,
            1 | 2 => Weather::Storm,
            3 => Weather::Refusing,
            _ => Weather::Always(dice.pick(&Fault::ALL)),
        };
        let act = match dice.below(8) {
            0..=2 if manager_dies => Act::KillManager {
                steps: dice.count(0, steps),
                away_ms: dice.between(0, 60),
                agent: dice.chance(25).then(|| dice.count(0, 2)),
            },
            3 | 4 => Act::KillAgent { which: dice.count(0, 2), settled: dice.chance(40) },
            5 => Act::SetClock {
                managers: dice.chance(30),
                seconds: dice.pick(&[-86_400, -3_600, -30, 30, 3_600, 31_536_000]),
            },
            _ => Act::Nothing,
        };
        Self {
            weather,
            steps: dice.count(0, steps),
            awaited: dice.chance(70),
            dwell_ms: dice.between(0, 80),
            act,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_means_the_same_plan() {
        for seed in 0..50 {
            assert_eq!(format!("{:?}", Plan::of(seed)), format!("{:?}", Plan::of(seed)));
        }
    }

    #[test]
    fn a_thousand_seeds_use_every_fault() {
        let all = format!("{:?}", (0..1000).map(Plan::of).collect::<Vec<_>>());
        for word in
            ["KillManager", "settled: true", "SetClock", "Some(", "OtherAttempt", "Refusing"]
        {
            assert!(all.contains(word), "{word}");
        }
        for fault in Fault::ALL {
            assert!(all.contains(&format!("Always({fault:?})")), "{fault:?}");
        }
    }
}
