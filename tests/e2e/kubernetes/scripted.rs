//! Trials as Frameworks on the scripted API server: searches from the first Framework to a clean cluster,
//! with real agents as pods, and their faults.

mod admission;
mod code_fetch;
mod credentials;
mod dead_controllers;
mod deleted_pods;
mod job_sets;
mod jobs;
mod kubeflow;
mod kueue;
mod misleading_status;
mod outages;
mod proxy;
mod recordings;
mod restart;
mod scenarios;
mod trainer;
mod unreachable_manager;
mod unusable_clusters;

use std::process::Command;

use scenarios::{FRAMEWORK, test_scenarios};
use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{FinishedProgram, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

/// A trial that reports its parameter as the final result.
const TRIAL: &str = r#"x='{{x}}'; echo "score=$x""#;

/// Starts a cluster whose pods are processes of this machine.
fn start_cluster(bed: &TestBed) -> Kube {
    Kube::start(bed.folder(), |_| Behavior::Processes)
}

/// Returns a search on a cluster whose trials run `command`.
fn search(bed: &TestBed, kube: &Kube, command: &str, trials: u32) -> Search {
    search_with_service(bed, kube, command, trials, framework_section(bed, &json!({})))
}

/// Returns a search on a cluster with this section `trainingService`.
fn search_with_service(
    bed: &TestBed,
    kube: &Kube,
    command: &str,
    trials: u32,
    service: Value,
) -> Search {
    kube.write_kubeconfig(&bed.path("kubeconfig"));
    Search::new(command, trials).with("objective", "score").with("trainingService", service)
}

/// Returns the section `trainingService` for Frameworks, with changes.
fn framework_section(bed: &TestBed, changes: &Value) -> Value {
    service_section(bed, (FRAMEWORK.section)(""), changes)
}

/// Returns the section `trainingService` of a platform whose images contain the code, with changes. Null
/// removes a field.
fn service_section(bed: &TestBed, own: Value, changes: &Value) -> Value {
    let mut section = own;
    section["kubeconfig"] = Value::from(bed.path("kubeconfig").display().to_string());
    section["storage"] = Value::from("image");
    for (name, value) in changes.as_object().into_iter().flatten() {
        section[name] = value.clone();
    }
    if let Some(fields) = section.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    section
}

/// Returns `trial-manager run` on loopback, because pods are processes of this machine.
fn run_command(bed: &TestBed, search: &Search) -> Command {
    let mut command = search.command(bed);
    command.args(["--host", "127.0.0.1"]);
    command
}

fn run(bed: &TestBed, search: &Search) -> Outcome {
    Outcome::parse(bed.start(&mut run_command(bed, search)).finish(WAIT_TIMEOUT))
}

/// Runs `trial-manager trial` with these arguments.
fn run_trial_command(bed: &TestBed, arguments: &[&str]) -> FinishedProgram {
    let mut command = bed.manager_command();
    command.arg("trial").args(arguments).arg("--data-dir").arg(bed.data_folder());
    bed.start(&mut command).finish(WAIT_TIMEOUT)
}

/// Returns the first trial, as `trial show` prints it.
fn show_trial(bed: &TestBed) -> Value {
    let shown = run_trial_command(bed, &["show", "0", "--output", "json"]);
    serde_json::from_slice(&shown.stdout).expect("the output is JSON")
}

/// Returns the output of `trial why` for the first trial, without line breaks.
fn trial_why(bed: &TestBed) -> String {
    let explanation = String::from_utf8(run_trial_command(bed, &["why", "0"]).stdout).unwrap();
    explanation.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that the result of each trial is its parameter, as [`TRIAL`] reports.
fn expect_parameters_as_results(outcome: &Outcome) {
    for trial in &outcome.trials {
        assert_eq!(trial.final_result, trial.parameters["x"], "{trial:?}");
    }
}

/// Returns the lines of a file of the bed, in alphabetical order.
fn sorted_lines(bed: &TestBed, name: &str) -> Vec<String> {
    let mut lines: Vec<String> = bed.read(name).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

test_scenarios!(
    FRAMEWORK:
    a_search_runs_to_its_end_and_leaves_a_clean_cluster,
    a_failing_trial_has_its_exit_code_and_output,
    an_interrupted_search_ends_its_trial_and_all_pods,
    a_resumed_manager_adopts_the_trial_of_a_killed_one,
);

#[test]
fn pods_fetch_the_code_and_the_first_one_reports() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    bed.write_script(
        "code/work.sh",
        "#!/bin/sh\ntest -n \"$FB_PS_ADDRESSES\" && echo \"score=$1\"\n",
    );
    let roles = json!([
        {"name": "worker", "dockerImage": "any", "command": "./work.sh {{x}}"},
        {"name": "ps", "dockerImage": "any", "command": "echo score=99; exec sleep 600"},
    ]);
    let section = framework_section(&bed, &json!({"storage": "http", "taskRoles": roles}));
    let search = search(&bed, &kube, "unused", 2).with("trainingService", section);
    let search = run(&bed, &search);
    search.expect_done(2, 0);
    expect_parameters_as_results(&search);
    bed.wait_until_empty();
    kube.wait_until_empty();
}

#[test]
fn a_failing_second_pod_fails_the_trial() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let roles = json!([
        {"name": "worker", "dockerImage": "any", "command": "exec sleep 600"},
        {"name": "ps", "dockerImage": "any", "command": "exit 5"},
    ]);
    let section = framework_section(&bed, &json!({"taskRoles": roles}));
    let search = run(&bed, &search(&bed, &kube, "unused", 1).with("trainingService", section));
    search.expect_done(0, 1);
    assert!(search.stderr.contains("ps 0: The trial exited with code 5"), "{}", search.stderr);
    kube.wait_until_empty();
}

#[test]
fn a_trial_is_done_when_the_deciding_role_is_done() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let policy =
        |succeeded: i32| json!({"minFailedTaskCount": 1, "minSucceedTaskCount": succeeded});
    let roles = json!([
        {"name": "worker", "dockerImage": "any", "frameworkAttemptCompletionPolicy": policy(-1),
         "command": "echo \"score={{x}}\"; : >\"$TEST_BED/reported\"; exec sleep 600"},
        {"name": "judge", "dockerImage": "any", "frameworkAttemptCompletionPolicy": policy(1),
         "command": "until [ -e \"$TEST_BED/reported\" ]; do sleep 0.05; done"},
    ]);
    let section = framework_section(&bed, &json!({"taskRoles": roles, "metricsFrom": "worker"}));
    let search = run(&bed, &search(&bed, &kube, "unused", 1).with("trainingService", section));
    search.expect_done(1, 0);
    assert_eq!(search.trials[0].final_result, search.trials[0].parameters["x"]);
    kube.wait_until_empty();
}

/// A trial whose first pod reports and fails. Its second pod reports as much and succeeds.
const TWO_POD_TRIAL: &str = r#"
n=$(cat "$TEST_BED/tries" 2>/dev/null); n=$((n + 1)); echo $n >"$TEST_BED/tries"
for step in 1 2 3; do echo "score=$n$step"; done
[ $n = 2 ]"#;

#[test]
fn a_restarted_pod_is_a_later_attempt() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let template = json!({"kind": "Framework", "spec": {"taskRoles": [{
        "name": "worker", "taskNumber": 1,
        "task": {
            "retryPolicy": {"fancyRetryPolicy": false, "maxRetryCount": 1},
            "pod": {"spec": {"containers": [{"name": "main", "image": "any"}]}},
        },
    }]}});
    let section = framework_section(&bed, &json!({"template": template, "taskRoles": null}));
    let search = run(&bed, &search(&bed, &kube, TWO_POD_TRIAL, 1).with("trainingService", section));
    search.expect_done(1, 0);
    let trial = search.trial(0);
    assert_eq!(
        trial.intermediate,
        [21, 22, 23].map(Value::from),
        "only results of the second pod are valid"
    );
    assert_eq!(trial.final_result, 23);
    assert_eq!(bed.read("tries"), "2\n", "the manager must not retry");
    assert_eq!(kube.created_objects("frameworks").len(), 1 + 1);
    kube.wait_until_empty();
}

#[test]
fn a_faulty_cluster_loses_and_duplicates_no_trial() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let search = search(&bed, &kube, TRIAL, 10).with("trialConcurrency", 3);
    let mut running = bed.start(&mut run_command(&bed, &search));
    wait_for("the first trial", WAIT_TIMEOUT, || {
        (kube.created_objects("frameworks").len() > 1).then_some(())
    });
    // Busy, broken, disconnected before the change, and disconnected after it.
    for (what, code) in [
        ("POST frameworks", 1),
        ("POST frameworks", 500),
        ("POST secrets", 1),
        ("POST secrets", 429),
        // The answers during concurrent changes of a quota.
        ("POST secrets", 409),
        ("POST frameworks", 409),
        ("POST secrets", 0),
        ("POST frameworks", 503),
        ("POST frameworks", 0),
        ("WATCH frameworks", 500),
        ("WATCH pods", 403),
    ] {
        kube.fail_requests(what, code, 1, "scripted");
    }
    while running.is_running() {
        kube.cut_watches();
        kube.drop_history();
        std::thread::park_timeout(std::time::Duration::from_millis(150));
    }
    let search = Outcome::parse(running.finish(WAIT_TIMEOUT));
    search.expect_done(10, 0);
    expect_parameters_as_results(&search);
    let made = kube.created_objects("frameworks");
    assert_eq!(made.len(), 10 + 1, "a Framework was created twice");
    kube.wait_until_empty();
}
