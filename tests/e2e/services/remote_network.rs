//! Remote machines in network namespaces: disconnected cables, machines that hang or lose power, a killed
//! daemon, a full disk.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{
    Gate, Network, Outcome, RunningProgram, Search, SmallDisk, TestBed, WAIT_TIMEOUT, wait_for,
};

use super::gated_trial::expect_last_output;

/// A trial that records its machine, and reports before and after the machine's gate.
const TRAIN_SCRIPT: &str = r#"#!/bin/sh
echo "$MACHINE $NNI_TRIAL_JOB_ID" >>"$BED/started"
trap 'echo "$MACHINE $NNI_TRIAL_JOB_ID" >>"$BED/ended"; exit 143' TERM
echo score=0.25
read _ <"$BED/$MACHINE.gate"
echo score=0.5
"#;

fn search(bed: &TestBed, machines: &[Value], trials: u32, patience: &str) -> Search {
    bed.write_script("code/train.sh", TRAIN_SCRIPT);
    let command = format!("BED='{}' ./train.sh", bed.folder().display());
    let service =
        json!({"platform": "remote", "machineList": machines, "machinePatience": patience});
    Search::new(&command, trials)
        .with("trialConcurrency", machines.len())
        .with("trainingService", service)
}

fn start_search(bed: &TestBed, network: &Network<'_>, search: &Search) -> RunningProgram {
    let mut command = search.command(bed);
    bed.start(&mut network.in_manager_namespace(command.env("TRIAL_MANAGER_LOG", "info")))
}

fn wait_for_lines(bed: &TestBed, file: &str, count: usize) -> Vec<String> {
    wait_for(&format!("{count} lines in {file}"), WAIT_TIMEOUT, || {
        let lines: Vec<_> = bed.read(file).lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
}

/// Returns the trial that started on a machine as number `at`, from 0.
fn trial_on(bed: &TestBed, machine: &str, at: usize) -> String {
    wait_for(&format!("trial {at} on {machine}"), WAIT_TIMEOUT, || {
        let started = bed.read("started");
        let here = |line: &str| line.strip_prefix(&format!("{machine} ")).map(str::to_owned);
        started.lines().filter_map(here).nth(at)
    })
}

#[test]
#[ignore = "needs root, ip netns and sshd"]
fn a_disconnected_and_a_frozen_machine_lose_no_trial() {
    let bed = TestBed::new();
    let network = Network::new(&bed);
    let machines = [network.add("a"), network.add("b"), network.add("c")];
    let gates = ["a", "b", "c"].map(|name| Gate::new(&bed.path(&format!("{name}.gate"))));
    let running = start_search(&bed, &network, &search(&bed, &machines, 3, "1s"));
    wait_for_lines(&bed, "started", 3);
    let (pulled, frozen) = (trial_on(&bed, "a", 0), trial_on(&bed, "b", 0));
    network.set_link("a", false);
    network.signal("b", Signal::SIGSTOP);
    // Both trials run again on the third machine, one after the other.
    gates[2].release(1);
    trial_on(&bed, "c", 1);
    assert_eq!(bed.read("ended"), "", "an unreachable trial must keep running");
    network.set_link("a", true);
    network.signal("b", Signal::SIGCONT);
    let ended = wait_for_lines(&bed, "ended", 2);
    for old in [format!("a {pulled}"), format!("b {frozen}")] {
        assert!(ended.contains(&old), "{old}: {ended:?}");
    }
    for gate in &gates {
        gate.release(2);
    }
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_last_output(&done, 3);
    assert_eq!(
        bed.read("started").lines().count(),
        5,
        "each disconnected trial must run again once"
    );
    for machine in ["a", "b", "c"] {
        network.wait_until_idle(machine);
    }
}

#[test]
#[ignore = "needs root, ip netns and sshd"]
fn a_killed_sshd_is_harmless_and_a_dead_machine_is_replaced() {
    let bed = TestBed::new();
    let network = Network::new(&bed);
    let machines = [network.add("a"), network.add("b")];
    let gates = ["a", "b"].map(|name| Gate::new(&bed.path(&format!("{name}.gate"))));
    let running = start_search(&bed, &network, &search(&bed, &machines, 2, "20s"));
    wait_for_lines(&bed, "started", 2);
    let lost = trial_on(&bed, "b", 0);
    network.restart_sshd("a");
    wait_for("the second connection to a", WAIT_TIMEOUT, || {
        (running.stderr().matches("connected machine=a").count() >= 2).then_some(())
    });
    network.signal("b", Signal::SIGKILL);
    gates[0].release(1);
    assert_eq!(trial_on(&bed, "a", 1), lost, "the lost trial must run on the other machine");
    gates[0].release(1);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_last_output(&done, 2);
    assert_eq!(bed.read("started").lines().count(), 3, "only the lost trial may run again");
    network.wait_until_idle("a");
}

#[test]
#[ignore = "needs root, ip netns and sshd"]
fn a_machine_with_a_full_disk_is_named_and_not_used() {
    let bed = TestBed::new();
    let network = Network::new(&bed);
    let disk = SmallDisk::mount(&bed.path("a"), "size=1m");
    let machines = [network.add("a"), network.add("b")];
    let gate = Gate::new(&bed.path("b.gate"));
    let running = start_search(&bed, &network, &search(&bed, &machines, 2, "1m"));
    running.wait_for_stderr("No space left on device");
    gate.release(2);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_last_output(&done, 2);
    assert!(bed.read("started").lines().all(|line| line.starts_with("b ")));
    drop(disk);
}
