//! Trials of several pods that end by the verdicts of their agents: with a controller that works, and with one that
//! died while they ran.

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT};

use super::scenarios::{ENDLESS_TRIAL, WAITING_TRIAL, wait_for_starts};
use super::{run, run_command, search_with_service, service_section};

/// Starts a cluster that serves every kind.
fn start_cluster(bed: &TestBed) -> Kube {
    Kube::start(bed.folder(), |_| Behavior::Processes)
}

/// Returns the sections of all kinds whose trials have several pods. The first pod, which decides, runs `main`, and the
/// others run `other`.
fn sections(bed: &TestBed, main: &str, other: &str) -> Vec<(&'static str, Value)> {
    let never = json!({"minFailedTaskCount": 1, "minSucceedTaskCount": -1});
    let roles = json!([
        {"name": "worker", "dockerImage": "any", "command": main},
        {"name": "ps", "dockerImage": "any", "command": other, "frameworkAttemptCompletionPolicy": never},
    ]);
    let replica = |line: &str| json!({"replicas": 1, "dockerImage": "any", "command": line});
    let table = [
        ("JobSet", json!({"platform": "kubernetes", "taskRoles": roles, "metricsFrom": "worker"})),
        ("Framework", json!({"platform": "frameworkcontroller", "taskRoles": roles})),
        (
            "TFJob",
            json!({"platform": "kubeflow", "operator": "tf-operator", "apiVersion": "v1",
                "worker": replica(main), "ps": replica(other)}),
        ),
        (
            "PyTorchJob",
            json!({"platform": "kubeflow", "operator": "pytorch-operator", "apiVersion": "v1",
                "master": replica(main), "worker": replica(other)}),
        ),
    ];
    table.into_iter().map(|(kind, own)| (kind, service_section(bed, own, &json!({})))).collect()
}

/// Returns the sections of the kinds whose pods all run the same command.
fn uniform_sections(bed: &TestBed) -> Vec<(&'static str, Value)> {
    let of = |platform: &str| json!({"platform": platform, "dockerImage": "any", "taskNumber": 2});
    let table = [("Job", of("kubernetes")), ("TrainJob", of("trainer"))];
    table.into_iter().map(|(kind, own)| (kind, service_section(bed, own, &json!({})))).collect()
}

/// Runs a search of one trial whose controller dies once both pods run.
fn search_without_controller(bed: &TestBed, kube: &Kube, line: &str, section: Value) -> Outcome {
    let running =
        bed.start(&mut run_command(bed, &search_with_service(bed, kube, line, 1, section)));
    wait_for_starts(bed, 2);
    kube.set_controllers_running(false);
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT))
}

/// Runs `check` for every section, at the same time.
fn check_each_section(
    sections: impl Fn(&TestBed) -> Vec<(&'static str, Value)> + Sync,
    check: impl Fn(&'static str, &TestBed, &Kube, Value) + Sync,
) {
    let count = sections(&TestBed::new()).len();
    std::thread::scope(|scope| {
        for at in 0..count {
            let (sections, check) = (&sections, &check);
            scope.spawn(move || {
                let bed = TestBed::new();
                let kube = start_cluster(&bed);
                let (kind, section) = sections(&bed).swap_remove(at);
                check(kind, &bed, &kube, section);
                bed.wait_until_empty();
                kube.wait_until_empty();
            });
        }
    });
}

#[test]
fn the_verdicts_of_all_pods_end_a_trial_whose_controller_is_dead() {
    let all = |bed: &TestBed| {
        let mut all = sections(bed, WAITING_TRIAL, WAITING_TRIAL);
        all.extend(uniform_sections(bed));
        all
    };
    check_each_section(all, |kind, bed, kube, section| {
        let outcome = search_without_controller(bed, kube, WAITING_TRIAL, section);
        outcome.expect_done(1, 0);
        assert_eq!(outcome.trial(0).final_result, json!(1), "{kind}");
        // The manager reads an end from pods only if no controller and no agent reports it for a minute.
        assert!(!outcome.stderr.contains("read from the pods"), "{kind}: {}", outcome.stderr);
    });
}

#[test]
fn the_failure_of_one_pod_ends_a_trial_whose_controller_is_dead() {
    let fails =
        "echo up >>\"$TEST_BED/up\"; until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; exit 5";
    let all = |bed: &TestBed| {
        let mut all = sections(bed, ENDLESS_TRIAL, fails);
        // The Framework is deleted only after it had time to stop.
        all.retain(|(kind, _)| *kind != "Framework");
        all
    };
    check_each_section(all, |kind, bed, kube, section| {
        let outcome = search_without_controller(bed, kube, "unused", section);
        outcome.expect_done(0, 1);
        let other = if kind == "PyTorchJob" { "worker 0: " } else { "ps 0: " };
        assert!(outcome.stderr.contains(other), "{kind}: {}", outcome.stderr);
    });
}

#[test]
fn the_pods_of_a_trial_end_before_the_next_trial_runs() {
    let main = "until grep -q begin-$NNI_TRIAL_SEQ_ID \"$TEST_BED/log\"; do sleep 0.02; done; echo score=1";
    // The command takes its time to end when it is asked to.
    let other = "trap 'sleep 1; echo end-'$NNI_TRIAL_SEQ_ID' >>\"$TEST_BED/log\"; exit 0' TERM; \
                 echo begin-$NNI_TRIAL_SEQ_ID >>\"$TEST_BED/log\"; while :; do sleep 0.05; done";
    for hand_over in ["verdict", "object"] {
        let all = |bed: &TestBed| sections(bed, main, other);
        check_each_section(all, |kind, bed, kube, mut section| {
            section["handOver"] = Value::from(hand_over);
            bed.write("log", "");
            let outcome = run(bed, &search_with_service(bed, kube, "unused", 3, section));
            outcome.expect_done(3, 0);
            let log = bed.read("log");
            let log: Vec<&str> = log.lines().collect();
            let expected = ["begin-0", "end-0", "begin-1", "end-1", "begin-2", "end-2"];
            assert_eq!(log, expected, "{kind}, {hand_over}");
        });
    }
}
