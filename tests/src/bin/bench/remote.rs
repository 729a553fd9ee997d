//! Measures trials over SSH on this machine: their turnover compared with local trials, and the manager's
//! memory with many of them.

use std::time::Instant;

use serde_json::json;
use trialkeeper_tests::{BOUND, Gate, Machines, Outcome, Search, TestBed, wait_for};

use super::{figure, megabytes, trial, turnover_of};

/// The number of trials in the turnover benchmark.
const TRIALS: u32 = 60;
/// The numbers of machines and trials in the memory benchmark.
const MACHINES: usize = 10;
const MANY_TRIALS: u32 = 200;

pub(super) fn measure() {
    turnover();
    many_trials();
}

fn turnover() {
    let local = TestBed::new();
    let command = trial(&format!("stamp '{}'", local.path("stamps").display()));
    Search::new(&command, TRIALS).run(&local).expect_done(60, 0);
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let command = trial(&format!("stamp '{}'", bed.path("stamps").display()));
    let service = json!({"platform": "remote", "machineList": [machines.add("one")]});
    Search::new(&command, TRIALS).with("trainingService", service).run(&bed).expect_done(60, 0);
    for (place, bed) in [("local", local), ("over SSH", bed)] {
        let (middle, slow) = turnover_of(&bed.read("stamps"), 1);
        figure(
            &format!("trial turnover {place}, median (95th percentile)"),
            &format!("{middle:.1} ({slow:.1}) ms"),
            "over SSH not measured",
        );
    }
}

/// Runs many trials at once, which all wait at a gate.
fn many_trials() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let all: Vec<_> = (0..MACHINES)
        .map(|number| {
            let mut machine = machines.add(&format!("m{number}"));
            machine["maxTrialNumber"] = json!(MANY_TRIALS);
            machine
        })
        .collect();
    bed.script(
        "code/train.sh",
        "#!/bin/sh\necho x >>\"$1/started\"\nread _ <\"$1/gate\"\necho score=1\n",
    );
    let service = json!({"platform": "remote", "machineList": all});
    let began = Instant::now();
    let running = Search::new(&format!("./train.sh '{}'", bed.folder().display()), MANY_TRIALS)
        .with("trialConcurrency", MANY_TRIALS)
        .with("trainingService", service)
        .start(&bed);
    let trials = usize::try_from(MANY_TRIALS).expect("a small number");
    wait_for("all trials at once", 5 * BOUND, || {
        (bed.read("started").lines().count() >= trials).then_some(())
    });
    let pid = running.pid().as_raw();
    let what = format!("{MANY_TRIALS} trials at once on {MACHINES} machines");
    let seconds = began.elapsed().as_secs_f64();
    figure(&format!("{what}: time until the last one runs"), &format!("{seconds:.1} s"), "");
    figure(
        &format!("{what}: manager, resident memory"),
        &format!("{:.1} MB", megabytes(pid, "VmRSS")),
        "",
    );
    figure(
        &format!("{what}: manager, peak resident memory"),
        &format!("{:.1} MB", megabytes(pid, "VmHWM")),
        "",
    );
    gate.open(trials);
    Outcome::of(running.finish(5 * BOUND)).expect_done(trials, 0);
}
