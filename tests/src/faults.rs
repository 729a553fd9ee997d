//! Injects faults between real agents and a real manager, at points that a seed determines. Afterwards the
//! test compares the output of the trials with the store: every metric once and in order, every line of
//! output, one end.
//!
//! The harness uses the programs only from outside and repairs nothing: the programs must recover from each
//! fault.

pub mod cases;
pub mod dice;
pub mod plan;
pub mod proxy;
pub mod spooled;
pub mod truth;
pub mod weather;
pub mod world;

use plan::{Act, Plan, Round};
use world::{World, pause};

/// Counts of injected faults. They reveal a harness that injects none.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The requests that met each kind of fault.
    pub faults: std::collections::BTreeMap<weather::Fault, u64>,
    /// The requests that passed unchanged.
    pub passed: u64,
    /// The compressed requests.
    pub packed: u64,
    /// The numbers of killed managers, killed agents and set clocks.
    pub acts: [u64; 3],
}

impl Seen {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        self.passed += other.passed;
        self.packed += other.packed;
        for (sum, more) in self.acts.iter_mut().zip(other.acts) {
            *sum += more;
        }
    }
}

/// Prints the plan if the test fails.
struct Blame<'a>(&'a Plan);

impl Drop for Blame<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "for the person who wants to see it again")]
            {
                eprintln!("failed with seed {}: {:?}", self.0.seed, self.0);
            }
        }
    }
}

/// Runs one seed. Panics if the store differs from the output of the trials.
pub fn run(seed: u64) -> Seen {
    let plan = Plan::of(seed);
    let _blame = Blame(&plan);
    let mut counted = Seen::default();
    let mut world = World::start(&plan);
    counted.acts[0] += u64::from(plan.early_kill_ms.is_some());
    for round in &plan.rounds {
        if world.is_over() {
            break;
        }
        play(&mut world, round, &mut counted);
    }
    let outcome = world.finish();
    (counted.faults, counted.passed) = world.proxy.met();
    counted.packed = world.proxy.packed();
    truth::compare(&world, &plan, &outcome);
    counted
}

fn play(world: &mut World, round: &Round, counted: &mut Seen) {
    world.proxy.set(round.weather);
    let before = world.open(round.steps);
    if round.awaited {
        world.wait_for_steps(before, round.steps);
    }
    pause(round.dwell_ms);
    match round.act {
        Act::Nothing => {}
        Act::KillManager { steps, away_ms, agent } => {
            if !world.end_manager() {
                return;
            }
            counted.acts[0] += 1;
            world.open(steps);
            pause(away_ms);
            if let Some(which) = agent {
                let killed = world.kill_agent(which, false);
                counted.acts[1] += u64::from(killed.is_some());
            }
            world.resume();
        }
        Act::KillAgent { which, settled } => {
            if let Some(killed) = world.kill_agent(which, settled) {
                counted.acts[1] += 1;
                world.restart(&killed);
            }
        }
        Act::SetClock { managers, seconds } => {
            counted.acts[2] += 1;
            world.set_clock(managers, seconds);
        }
    }
}
