//! Injects faults between real agents and a real manager, at points that a seed determines. Afterwards the
//! test compares the output of the trials with the store: every metric once and in order, every line of
//! output, one end.
//!
//! The harness uses the programs only from outside and repairs nothing: the programs must recover from each
//! fault.

pub mod cases;
pub mod harness;
pub mod network_state;
pub mod plan;
pub mod proxy;
pub mod spool_reader;
pub mod verification;

use harness::{Harness, pause};
use plan::{Action, FaultPlan, FaultRound};

/// Counts of injected faults. They reveal a harness that injects none.
#[derive(Debug, Clone, Default)]
pub struct FaultCounts {
    /// The requests that met each kind of fault.
    pub faults: std::collections::BTreeMap<network_state::Fault, u64>,
    /// The requests that passed unchanged.
    pub passed: u64,
    /// The compressed requests.
    pub compressed: u64,
    /// The numbers of killed managers, killed agents and set clocks.
    pub actions: [u64; 3],
}

impl FaultCounts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        self.passed += other.passed;
        self.compressed += other.compressed;
        for (sum, more) in self.actions.iter_mut().zip(other.actions) {
            *sum += more;
        }
    }
}

/// Prints the plan if the test fails.
struct PlanPrinter<'a>(&'a FaultPlan);

impl Drop for PlanPrinter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "the plan is needed to repeat the failure")]
            {
                eprintln!("failed with seed {}: {:?}", self.0.seed, self.0);
            }
        }
    }
}

/// Returns whether the plan of a seed fills a small disk, which only root can mount.
pub fn needs_small_disk(seed: u64) -> bool {
    FaultPlan::from_seed(seed).spool_kib.is_some()
}

/// Runs one seed. Panics if the store differs from the output of the trials.
pub fn run_seed(seed: u64) -> FaultCounts {
    let plan = FaultPlan::from_seed(seed);
    let _printer = PlanPrinter(&plan);
    let mut counted = FaultCounts::default();
    let mut harness = Harness::start(&plan);
    counted.actions[0] += u64::from(plan.early_kill_ms.is_some());
    for round in &plan.rounds {
        if harness.has_ended() {
            break;
        }
        run_round(&mut harness, round, &mut counted);
    }
    let outcome = harness.finish();
    (counted.faults, counted.passed) = harness.proxy.fault_counts();
    counted.compressed = harness.proxy.compressed_requests();
    verification::verify(&harness, &plan, &outcome);
    counted
}

fn run_round(harness: &mut Harness, round: &FaultRound, counted: &mut FaultCounts) {
    harness.proxy.set_network_state(round.network);
    let before = harness.release_steps(round.steps);
    if round.waits_for_steps {
        harness.wait_for_steps(before, round.steps);
    }
    pause(round.pause_ms);
    match round.action {
        Action::Nothing => {}
        Action::KillManager { steps, downtime_ms, killed_agent } => {
            if !harness.kill_manager() {
                return;
            }
            counted.actions[0] += 1;
            harness.release_steps(steps);
            pause(downtime_ms);
            if let Some(agent_index) = killed_agent {
                let killed = harness.kill_agent(agent_index, false);
                counted.actions[1] += u64::from(killed.is_some());
            }
            harness.resume();
        }
        Action::KillAgent { agent_index, waits_for_spool } => {
            if let Some(killed) = harness.kill_agent(agent_index, waits_for_spool) {
                counted.actions[1] += 1;
                harness.restart_agent(&killed);
            }
        }
        Action::SetClock { of_manager, seconds } => {
            counted.actions[2] += 1;
            harness.set_clock(of_manager, seconds);
        }
    }
}
