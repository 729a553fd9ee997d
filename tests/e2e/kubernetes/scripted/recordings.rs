//! Replayed recordings of a real controller: the ends of trials, and their reasons to wait.

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT, wait_for};

use super::scenarios::{WAITING_TRIAL, wait_for_starts};
use super::{framework_section, run, run_command, search};

/// Chooses the recording by the trial's number.
fn replay_by_trial(cases: &'static [&'static str]) -> impl Fn(&Value) -> Behavior + Send + Sync {
    move |framework| {
        let env = framework.pointer("/spec/taskRoles/0/task/pod/spec/containers/0/env");
        let env = env.and_then(Value::as_array).unwrap();
        let sequence = env.iter().find(|known| known["name"] == "TRIALKEEPER_SEQUENCE").unwrap();
        let sequence: usize = sequence["value"].as_str().unwrap().parse().unwrap();
        Behavior::Recorded(cases[sequence].to_owned(), 20)
    }
}

#[test]
fn every_recorded_end_is_reported_with_its_reason() {
    const RECORDED_ENDS: [(&str, &str); 9] = [
        ("ok5", "FAILED (exit code 0): its pod succeeded, but its agent did not report it"),
        ("fail5", "FAILED (exit code 7): the container ended with exit code 7"),
        (
            "oom",
            "FAILED (exit code 137): out of memory: the pod was killed for using more than `memorySize`",
        ),
        (
            "oom-fc-without-config",
            "FAILED (exit code 137): out of memory: the pod was killed for using more than `memorySize`",
        ),
        ("badcmd", "FAILED (exit code 128): the container ended with exit code 128 (StartError)"),
        ("badpod", "FAILED: the cluster refuses the pod: "),
        ("pod-deleted-externally", "FAILED: the trial's pod was deleted, but not by the manager"),
        ("retry", "FAILED (exit code 9): the container ended with exit code 9"),
        ("delete-background", "FAILED: its Framework was deleted, but not by the manager"),
    ];
    const RECORDING_NAMES: [&str; 9] = {
        let mut names = [""; 9];
        let mut i = 0;
        while i < 9 {
            names[i] = RECORDED_ENDS[i].0;
            i += 1;
        }
        names
    };
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), replay_by_trial(&RECORDING_NAMES));
    let search = search(&bed, &kube, "true", 9).with("trialConcurrency", 9);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            // A user deletes the last Framework while it runs.
            let name = wait_for("the Framework to delete", WAIT_TIMEOUT, || {
                let made = kube.list("frameworks").into_iter();
                let mut running = made.filter(|framework| {
                    let env = framework.pointer("/spec/taskRoles/0/task/pod/spec/containers/0/env");
                    let last = env.and_then(Value::as_array).is_some_and(|env| {
                        env.contains(&json!({"name": "TRIALKEEPER_SEQUENCE", "value": "8"}))
                    });
                    last && framework.pointer("/status/state") == Some(&json!("AttemptRunning"))
                });
                running
                    .next()
                    .map(|framework| framework["metadata"]["name"].as_str().unwrap().to_owned())
            });
            kube.delete_object("frameworks", &name);
        });
        run(&bed, &search)
    });
    outcome.expect_done(0, 9);
    for (sequence, (case, reason)) in RECORDED_ENDS.iter().enumerate() {
        let id = &outcome.trial(sequence.try_into().unwrap()).id;
        let message = format!("trial {sequence} ({id}) {reason}");
        assert!(
            outcome.stderr.contains(&message),
            "{case}: {message:?} is not in\n{}",
            outcome.stderr
        );
    }
    // The pod of the deleted Framework has a grace period.
    kube.wait_until_empty();
}

#[test]
fn a_pod_killed_for_memory_has_the_cause_oom_kernel() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), replay_by_trial(&["oom", "fail5", "oomchild"]));
    let outcome = run(&bed, &search(&bed, &kube, "true", 3));
    outcome.expect_done(0, 3);
    let mut ls = bed.manager_command();
    ls.args(["trial", "ls", "--cause", "oom-kernel", "--output", "json", "--data-dir"]);
    let found = bed.start(ls.arg(bed.data_folder())).finish(WAIT_TIMEOUT);
    let found = String::from_utf8(found.stdout).unwrap();
    for (sequence, is_starved) in [(0, true), (1, false), (2, true)] {
        assert_eq!(found.contains(&outcome.trial(sequence).id), is_starved, "{found}");
    }
    kube.wait_until_empty();
}

#[test]
fn a_trial_that_cannot_start_has_a_reason_and_fails_in_time() {
    let bed = TestBed::new();
    let kube =
        Kube::start(bed.folder(), replay_by_trial(&["toobig", "badimage", "fake-gpu-too-many"]));
    let search = search(&bed, &kube, "true", 3)
        .with("trialConcurrency", 3)
        .with("trainingService", framework_section(&bed, &json!({"startUpDeadline": "4s"})));
    let outcome = run(&bed, &search);
    outcome.expect_done(0, 3);
    for reason in [
        "waits: no node can take its pod: 0/1 nodes are available: 1 Insufficient cpu",
        "waits: no node can take its pod: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu",
        "waits: the image ",
        "FAILED: the trial did not start within 4 s (startUpDeadline): no node can take its pod: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu",
        "FAILED: the trial did not start within 4 s (startUpDeadline): the image ",
    ] {
        assert!(outcome.stderr.contains(reason), "{reason:?} is not in\n{}", outcome.stderr);
    }
    kube.wait_until_empty();
}

#[test]
fn a_refused_submission_waits_and_fails_no_trial() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let search = search(&bed, &kube, WAITING_TRIAL, 3);
    let quota = "secrets \"x\" is forbidden: exceeded quota: small, requested: count/secrets=1";
    let running = bed.start(&mut run_command(&bed, &search));
    wait_for_starts(&bed, 1);
    kube.fail_requests("POST frameworks", 403, 2, quota);
    kube.fail_requests("POST secrets", 401, 2, "Unauthorized");
    // The answer to concurrent changes of a quota. The object was not created.
    kube.fail_requests("POST secrets", 409, 1, "cannot be fulfilled on resourcequotas \"small\"");
    // The first trial ends, and the second one is submitted.
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(3, 0);
    for reason in [
        "waits: the cluster does not allow the request: secrets \"x\" is forbidden: exceeded quota",
        "rejected the credentials (Unauthorized)",
    ] {
        assert!(outcome.stderr.contains(reason), "{reason:?} is not in\n{}", outcome.stderr);
    }
    assert_eq!(kube.created_objects("frameworks").len(), 3 + 1, "a Framework was created twice");
}

#[test]
fn a_lasting_refusal_ends_a_trial_in_time() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    // The first trial must start within this time, too.
    let search = search(&bed, &kube, WAITING_TRIAL, 2)
        .with("trainingService", framework_section(&bed, &json!({"startUpDeadline": "10s"})));
    let running = bed.start(&mut run_command(&bed, &search));
    wait_for_starts(&bed, 1);
    kube.fail_requests("POST frameworks", 403, 1000, "no longer yours");
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 1);
    let reason = "the trial did not start within 10 s (startUpDeadline): the cluster does not allow the request: no longer yours";
    assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
}

#[test]
fn a_stop_is_repeated_after_a_conflicting_change() {
    // The trial ends after the second request to stop.
    const STUBBORN_TRIAL: &str = r#"
trap 'until [ -e "$TEST_BED/asked" ]; do sleep 0.1; done; exit 0' TERM
while :; do sleep 0.1; done"#;
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let search = search(&bed, &kube, STUBBORN_TRIAL, 1).with("maxTrialDuration", "1s");
    kube.fail_requests("PATCH frameworks", 409, 1, "the object has been modified");
    let patches = || kube.requests().iter().filter(|done| *done == "PATCH frameworks").count();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("the second stop", WAIT_TIMEOUT, || (patches() > 1).then_some(()));
            std::fs::write(bed.path("asked"), "").expect("the bed is writable");
        });
        run(&bed, &search)
    });
    assert!(patches() >= 2, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the object has been modified; trying again"));
}
