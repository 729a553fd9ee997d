//! The short set of the fault harness, and the named faults. The long set is a command: `cargo run -p
//! trialkeeper-tests --bin faults -- --seeds 1..1000`.

use trialkeeper_tests::faults::cases::{self, DiskRelief};
use trialkeeper_tests::faults::{self, FaultCounts};

/// Runs the seeds that need a small disk, or the others. The harness prints a failing seed on standard error.
fn run_seeds(range: std::ops::RangeInclusive<u64>, with_small_disk: bool) {
    let mut seen = FaultCounts::default();
    for seed in range.filter(|seed| faults::needs_small_disk(*seed) == with_small_disk) {
        seen.add(&faults::run_seed(seed));
    }
    let met: u64 = seen.faults.values().sum();
    assert!(met > 0 && seen.passed > 0, "the harness injected no faults: {seen:?}");
}

#[test]
fn output_is_stored_once_under_random_faults() {
    run_seeds(1..=12, false);
}

#[test]
fn output_is_stored_once_under_further_random_faults() {
    run_seeds(13..=24, false);
}

#[test]
#[ignore = "needs root, to mount a small disk"]
fn output_is_stored_once_if_random_faults_fill_a_disk() {
    run_seeds(1..=24, true);
}

#[test]
fn an_outage_of_five_seconds_loses_no_report() {
    cases::check_outage(cases::Outage::Refused);
}

#[test]
fn five_seconds_of_503_answers_lose_no_report() {
    cases::check_outage(cases::Outage::Status503);
}

#[test]
fn a_manager_that_always_answers_503_does_not_harm_the_trial() {
    cases::check_manager_that_always_fails();
}

#[test]
fn a_clock_that_jumps_changes_only_displayed_times() {
    cases::check_clock_jumps();
}

#[test]
fn a_resumed_manager_adopts_twenty_running_trials() {
    cases::check_restart(20);
}

#[test]
#[ignore = "needs root, to mount a small disk"]
fn a_full_disk_stops_only_new_trials() {
    cases::check_full_disk(DiskRelief::SpaceFreed);
}

#[test]
#[ignore = "needs root, to mount a small disk"]
fn a_manager_stopped_on_a_full_disk_leaves_its_trials_to_the_next_one() {
    cases::check_full_disk(DiskRelief::Restart);
}
