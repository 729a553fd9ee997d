//! The short set of the fault harness, and the named faults. The long set is a command: `cargo run -p
//! trialkeeper-tests --bin faults -- --seeds 1..1000`.

use trialkeeper_tests::faults::cases::{self, Until};
use trialkeeper_tests::faults::{self, Seen};

/// Runs seeds. The harness prints a failing seed on standard error.
fn seeds(range: std::ops::RangeInclusive<u64>) {
    let mut seen = Seen::default();
    for seed in range {
        seen.add(&faults::run(seed));
    }
    let met: u64 = seen.faults.values().sum();
    assert!(met > 0 && seen.passed > 0, "the harness injected no faults: {seen:?}");
}

#[test]
fn output_is_stored_once_under_random_faults() {
    seeds(1..=12);
}

#[test]
fn output_is_stored_once_under_further_random_faults() {
    seeds(13..=24);
}

#[test]
fn an_outage_of_five_seconds_loses_nothing() {
    cases::outage(cases::Outage::Refused);
}

#[test]
fn five_seconds_of_503_lose_nothing() {
    cases::outage(cases::Outage::Status503);
}

#[test]
fn a_manager_that_answers_503_for_ever_costs_the_trial_nothing() {
    cases::never_taken();
}

#[test]
fn a_clock_that_jumps_changes_what_is_shown_and_nothing_else() {
    cases::clock_jumps();
}

#[test]
fn a_killed_manager_finds_twenty_trials_running_and_starts_none_again() {
    cases::restart(20);
}

#[test]
#[ignore = "needs root, to mount a small disk"]
fn a_full_disk_stops_new_work_and_nothing_else() {
    cases::full_disk(Until::Room);
}

#[test]
#[ignore = "needs root, to mount a small disk"]
fn a_manager_that_is_stopped_while_its_disk_is_full_leaves_its_trials_to_the_next() {
    cases::full_disk(Until::Stop);
}
