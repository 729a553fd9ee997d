//! PURE: a seed -> what is done to a search, and when.

use super::dice::Dice;
use super::weather::{Fault, Weather};

/// What one run does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed it was made from.
    pub seed: u64,
    /// Trials, all at once.
    pub trials: u32,
    /// Steps of each; a step waits for the gate.
    pub steps: usize,
    /// Metrics, lines of output and lines of errors in a step.
    pub burst: usize,
    /// How long an agent goes on delivering after its trial's end.
    pub flush_ms: u64,
    /// The manager is killed so soon after its start, and started again.
    pub early_kill_ms: Option<u64>,
    /// What becomes of a killed agent's container.
    pub container: Container,
    /// All spools lie on one disk of so many KiB, which the facts find room on, and the logs do not.
    pub spool_kib: Option<u64>,
    /// The manager is called by an address that is not the loopback's, so that agents compress what is large.
    pub far: bool,
    /// One after the other.
    pub rounds: Vec<Round>,
}

/// What a platform does when an agent dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Nothing; the manager notices.
    Gone,
    /// It starts the agent again in place, as the same attempt.
    SameAttempt,
    /// Likewise, as another one.
    OtherAttempt,
}

/// A while in one weather.
#[derive(Debug, Clone)]
pub struct Round {
    /// How the network is from now on.
    pub weather: Weather,
    /// How many steps the trials may take.
    pub steps: usize,
    /// Whether the steps are waited for before `act`.
    pub awaited: bool,
    /// And how long nothing more happens.
    pub dwell_ms: u64,
    /// What is done then.
    pub act: Act,
}

/// What is done to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Nothing,
    /// The manager is killed; the trials take so many steps; perhaps an agent is killed too; it comes back.
    KillManager {
        /// Steps without it.
        steps: usize,
        /// How long it stays away at least.
        away_ms: u64,
        /// Which agent dies meanwhile.
        agent: Option<usize>,
    },
    /// An agent is killed. `settled`: once everything its trial printed is in its spool or in the store.
    KillAgent {
        /// Which, among those that live.
        which: usize,
        /// Whether nothing may be lost at all.
        settled: bool,
    },
    /// The clock of all agents, or of the manager, is this many seconds off from now on.
    SetClock {
        /// The manager's instead of the agents'.
        managers: bool,
        /// How far off.
        seconds: i64,
    },
}

impl Plan {
    /// The plan that a seed stands for.
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
    /// What stands behind each line that a trial prints: more than a small disk takes.
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
    fn a_thousand_seeds_use_everything_there_is() {
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
