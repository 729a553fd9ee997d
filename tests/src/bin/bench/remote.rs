//! Measures trials over SSH on this machine: their turnover compared with local trials, and the manager's
//! memory with many of them.

use std::time::Instant;

use serde_json::json;
use trialkeeper_tests::{Gate, Machines, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{print_figure, status_megabytes, trial_command, turnover_percentiles};

/// The number of trials in the turnover benchmark.
const TURNOVER_TRIALS: u32 = 60;
/// The numbers of machines and trials in the memory benchmark.
const MEMORY_MACHINES: usize = 10;
const MEMORY_TRIALS: u32 = 200;

pub(super) fn print_remote_figures() {
    measure_turnover();
    measure_many_trials();
}

fn measure_turnover() {
    let local = TestBed::new();
    let command = trial_command(&format!("stamp '{}'", local.path("stamps").display()));
    Search::new(&command, TURNOVER_TRIALS).run(&local).expect_done(60, 0);
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let command = trial_command(&format!("stamp '{}'", bed.path("stamps").display()));
    let service = json!({"platform": "remote", "machineList": [machines.add("one")]});
    Search::new(&command, TURNOVER_TRIALS)
        .with("trainingService", service)
        .run(&bed)
        .expect_done(60, 0);
    for (place, bed) in [("local", local), ("over SSH", bed)] {
        let (middle, slow) = turnover_percentiles(&bed.read("stamps"), 1);
        print_figure(
            &format!("trial turnover {place}, median (95th percentile)"),
            &format!("{middle:.1} ({slow:.1}) ms"),
            "over SSH not measured",
        );
    }
}

/// Runs many trials at once, which all wait at a gate.
fn measure_many_trials() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let all: Vec<_> = (0..MEMORY_MACHINES)
        .map(|number| {
            let mut machine = machines.add(&format!("m{number}"));
            machine["maxTrialNumber"] = json!(MEMORY_TRIALS);
            machine
        })
        .collect();
    bed.write_script(
        "code/train.sh",
        "#!/bin/sh\necho x >>\"$1/started\"\nread _ <\"$1/gate\"\necho score=1\n",
    );
    let service = json!({"platform": "remote", "machineList": all});
    let began = Instant::now();
    let running = Search::new(&format!("./train.sh '{}'", bed.folder().display()), MEMORY_TRIALS)
        .with("trialConcurrency", MEMORY_TRIALS)
        .with("trainingService", service)
        .start(&bed);
    let trials = usize::try_from(MEMORY_TRIALS).expect("a small number");
    wait_for("all trials at once", 5 * WAIT_TIMEOUT, || {
        (bed.read("started").lines().count() >= trials).then_some(())
    });
    let pid = running.pid().as_raw();
    let what = format!("{MEMORY_TRIALS} trials at once on {MEMORY_MACHINES} machines");
    let seconds = began.elapsed().as_secs_f64();
    print_figure(&format!("{what}: time until the last one runs"), &format!("{seconds:.1} s"), "");
    print_figure(
        &format!("{what}: manager, resident memory"),
        &format!("{:.1} MB", status_megabytes(pid, "VmRSS")),
        "",
    );
    print_figure(
        &format!("{what}: manager, peak resident memory"),
        &format!("{:.1} MB", status_megabytes(pid, "VmHWM")),
        "",
    );
    gate.release(trials);
    Outcome::parse(running.finish(5 * WAIT_TIMEOUT)).expect_done(trials, 0);
}
