//! A manager that is stopped, killed or asked to clean up, while its pods keep running.

use std::fs;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Gate, Outcome, RunningProgram, TestBed, WAIT_TIMEOUT, wait_for};

use super::{framework_section, run_command, search};

/// A trial that records its start, takes three steps through the gate, and cleans up on TERM.
const GATED_TRIAL: &str = r#"#!/bin/sh
trap 'echo cleaned >>"$BED/cleaned"; exit 143' TERM
echo started >>"$BED/started"
for step in 1 2 3; do
    read _ <"$BED/gate"
    echo "score=$step"
done
"#;

struct Scenario {
    bed: TestBed,
    kube: Kube,
    gate: Gate,
    manager: RunningProgram,
    id: String,
}

/// Starts a search whose two trials run and wait at the gate.
fn start_two_trials() -> Scenario {
    start_two_trials_with(&[], |_| ())
}

fn start_two_trials_with(flags: &[&str], prepare: impl FnOnce(&Kube)) -> Scenario {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    prepare(&kube);
    let gate = Gate::new(&bed.path("gate"));
    let script = bed.write_script("steady.sh", GATED_TRIAL);
    let line = format!("BED='{}' {}", bed.folder().display(), script.display());
    let search = search(&bed, &kube, &line, 2).with("trialConcurrency", 2);
    let manager = bed.start(run_command(&bed, &search).args(flags));
    wait_for("two trials to start", WAIT_TIMEOUT, || {
        (bed.read("started").lines().count() == 2).then_some(())
    });
    let id = bed.experiment_id();
    Scenario { bed, kube, gate, manager, id }
}

fn resume(bed: &TestBed, id: &str) -> RunningProgram {
    resume_on(bed, id, "0")
}

/// Resumes a search with a manager that listens on `port`.
fn resume_on(bed: &TestBed, id: &str, port: &str) -> RunningProgram {
    let mut command = bed.manager_command();
    command.args(["resume", id, "--host", "127.0.0.1", "--port", port, "--output", "json"]);
    bed.start(command.arg("--data-dir").arg(bed.data_folder()))
}

#[test]
fn ctrl_c_ends_the_pods_with_sigterm_and_leaves_the_cluster_clean() {
    let Scenario { bed, kube, gate, manager, id } = start_two_trials();
    manager.signal(Signal::SIGINT);
    let finished = manager.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    assert_eq!(bed.read("cleaned").lines().count(), 2, "a trial could not clean up");
    bed.wait_until_empty();
    kube.wait_until_empty();

    gate.release(6);
    let search = Outcome::parse(resume(&bed, &id).finish(WAIT_TIMEOUT));
    search.expect_done(2, 0);
    assert_eq!(bed.read("started").lines().count(), 4, "both trials must run again");
    assert!(search.trials.iter().all(|trial| trial.final_result == 3), "{search:#?}");
    kube.wait_until_empty();
}

#[test]
fn a_resumed_manager_adopts_running_trials_and_submits_none_twice() {
    for (case, steps_while_dead) in [("they run on", 2), ("they end meanwhile", 4)] {
        println!("{case}");
        let Scenario { bed, kube, gate, manager, id } = start_two_trials();
        gate.release(2);
        manager.signal(Signal::SIGKILL);
        assert_eq!(manager.finish(WAIT_TIMEOUT).code, None);
        gate.release(steps_while_dead);
        let manager = resume(&bed, &id);
        gate.release(4 - steps_while_dead);
        let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
        search.expect_done(2, 0);
        let made = kube.created_objects("frameworks").into_iter();
        let made = made.filter(|made| made["spec"]["executionType"] == "Start").count();
        assert_eq!(made, 2, "a trial was submitted twice");
        assert_eq!(bed.read("started").lines().count(), 2, "a trial ran twice");
        let all = [Value::from(1), Value::from(2), Value::from(3)];
        assert!(search.trials.iter().all(|trial| trial.intermediate == all), "{search:#?}");
        kube.wait_until_empty();
    }
}

#[test]
fn a_moved_manager_leaves_its_trials_to_the_next_one() {
    let Scenario { bed, kube, gate, manager, id } =
        start_two_trials_with(&["--on-term", "leave"], |_| ());
    gate.release(2);
    manager.signal(Signal::SIGTERM);
    let finished = manager.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(143), "{}", finished.stderr);
    let message = format!("the trials keep running; `trial-manager resume {id}` adopts them");
    assert!(finished.stderr.contains(&message), "{}", finished.stderr);
    let manager = resume(&bed, &id);
    gate.release(4);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    search.expect_done(2, 0);
    assert_eq!(bed.read("started").lines().count(), 2, "a trial ran twice");
    assert!(!bed.path("cleaned").exists(), "a trial was asked to end");
    assert_eq!(
        kube.created_objects("frameworks").len(),
        2 + 1,
        "the additional one tests the controller"
    );
    let all = [Value::from(1), Value::from(2), Value::from(3)];
    assert!(search.trials.iter().all(|trial| trial.intermediate == all), "{search:#?}");
    kube.wait_until_empty();
}

#[test]
fn a_resumed_search_needs_no_controller_and_no_quota() {
    let Scenario { bed, kube, gate, manager, id } = start_two_trials();
    manager.signal(Signal::SIGKILL);
    drop(manager.finish(WAIT_TIMEOUT));
    kube.set_controllers_running(false);
    for kind in ["frameworks", "secrets"] {
        let why = "exceeded quota: counted, requested: 1, used: 9, limited: 9";
        kube.fail_requests(&format!("POST {kind}"), 403, usize::MAX, why);
    }
    let manager = resume(&bed, &id);
    gate.release(6);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    search.expect_done(2, 0);
    assert_eq!(bed.read("started").lines().count(), 2, "a trial ran twice");
    kube.wait_until_empty();
}

/// Counts the metrics of attempts whose names match a pattern.
fn metric_count(bed: &TestBed, attempt: &str) -> Option<i64> {
    let query = "SELECT count(*) FROM report JOIN attempt ON report.attempt = attempt.key \
                 WHERE kind = 'metric' AND attempt.name LIKE ?1";
    bed.find_store()?.query_row(query, [attempt], |row| row.get(0)).ok()
}

/// A trial that fails at first. When started again, it reports, waits at the gate, and succeeds.
const RESTARTED_TRIAL: &str = r#"
n=$(cat "$TEST_BED/tries" 2>/dev/null); n=$((n + 1)); echo $n >"$TEST_BED/tries"
[ $n = 2 ] || exit 1
echo score=21; read _ <"$TEST_BED/gate"; echo score=22; : >"$TEST_BED/over""#;

#[test]
fn a_restarted_pod_may_end_while_no_manager_watches() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let gate = Gate::new(&bed.path("gate"));
    let template = json!({"kind": "Framework", "spec": {"taskRoles": [{
        "name": "worker", "taskNumber": 1,
        "task": {
            "retryPolicy": {"fancyRetryPolicy": false, "maxRetryCount": 1},
            "pod": {"spec": {"containers": [{"name": "main", "image": "any"}]}},
        },
    }]}});
    let section = framework_section(&bed, &json!({"template": template, "taskRoles": null}));
    let search = search(&bed, &kube, RESTARTED_TRIAL, 1).with("trainingService", section);
    let manager = bed.start(&mut run_command(&bed, &search));
    wait_for("the second try's report", WAIT_TIMEOUT, || {
        (metric_count(&bed, "%-1_0_1")? == 1).then_some(())
    });
    manager.signal(Signal::SIGKILL);
    drop(manager.finish(WAIT_TIMEOUT));
    gate.release(1);
    wait_for("the trial's end", WAIT_TIMEOUT, || bed.path("over").exists().then_some(()));
    let search = Outcome::parse(resume(&bed, &bed.experiment_id()).finish(WAIT_TIMEOUT));
    search.expect_done(1, 0);
    assert_eq!(search.trial(0).intermediate, [21, 22].map(Value::from));
    assert_eq!(bed.read("tries"), "2\n", "the trial ran a third time");
    kube.wait_until_empty();
}

#[test]
fn the_deployed_role_matches_the_rights_used_for_frameworks() {
    let mut given = crate::kubernetes::deploy::manager_rights();
    // The other kinds have their own tests.
    given.retain(|right| {
        !["batch/", "kueue", "visibility", "kubeflow", "jobset", "trainer"]
            .iter()
            .any(|of| right.starts_with(of))
    });
    given.sort();
    let rights = given.clone();
    let Scenario { bed, kube, gate, manager, id } =
        start_two_trials_with(&[], move |kube| kube.limit_rights(rights));
    // A resumed manager renews Secrets. An interrupted manager stops trials and deletes objects.
    manager.signal(Signal::SIGKILL);
    drop(manager.finish(WAIT_TIMEOUT));
    let manager = resume(&bed, &id);
    gate.release(2);
    wait_for("both trials to find the manager", WAIT_TIMEOUT, || {
        (metric_count(&bed, "%")? == 2).then_some(())
    });
    manager.signal(Signal::SIGINT);
    let finished = manager.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    kube.wait_until_empty();
    assert_eq!(kube.used_rights(), given);
    let mut asked = kube.checked_rights();
    // An optional right: the manager uses it to test a pod without creating it.
    asked.retain(|right| right != "/pods create");
    assert_eq!(asked, given, "all rights must be checked before the first submission");
}

#[test]
fn a_resumed_manager_uses_the_same_namespace_after_the_current_context_changed() {
    let Scenario { bed, kube, gate, manager, id } = start_two_trials();
    manager.signal(Signal::SIGKILL);
    drop(manager.finish(WAIT_TIMEOUT));
    // As after `kubectl config use-context`.
    let other =
        "contexts: [{name: other, context: {cluster: test, user: test, namespace: other}}, ";
    let changed = bed.read("kubeconfig").replace("current-context: test", "current-context: other");
    fs::write(bed.path("kubeconfig"), changed.replace("contexts: [", other)).unwrap();

    let manager = resume(&bed, &id);
    gate.release(6);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(2, 0);
    assert_eq!(bed.read("started").lines().count(), 2, "a trial was started again elsewhere");
    bed.wait_until_empty();
    kube.wait_until_empty();
}

#[test]
fn clean_deletes_the_objects_of_a_dead_manager() {
    let Scenario { bed, kube, gate: _gate, manager, id } = start_two_trials();
    manager.signal(Signal::SIGKILL);
    drop(manager.finish(WAIT_TIMEOUT));
    assert!(!kube.is_empty());
    let clean_with = |flags: &[&str], code: i32| {
        let mut clean = bed.manager_command();
        let finished = bed.start(clean.args(["clean", &id]).args(flags)).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(code), "{}", finished.stderr);
    };
    let (data, lost) =
        (bed.data_folder().display().to_string(), bed.path("lost").display().to_string());
    let kubeconfig = bed.path("kubeconfig").display().to_string();
    clean_with(&["--data-dir", &lost], 2);
    assert!(!kube.is_empty());
    // `clean` works without the data, and waits for the pods.
    clean_with(&["--data-dir", &lost, "--kubeconfig", &kubeconfig], 0);
    kube.wait_until_empty();
    bed.wait_until_empty();
    // If FrameworkController and its kind were removed, Secrets may still exist.
    let labels = json!({"trialkeeper/experiment": id});
    kube.create_object("secrets", json!({"metadata": {"name": "left", "labels": labels}}));
    kube.remove_framework_kind();
    clean_with(&["--data-dir", &data], 0);
    kube.wait_until_empty();
}

#[test]
fn a_trial_that_another_role_decided_without_a_manager_has_succeeded() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let policy =
        |succeeded: i32| json!({"minFailedTaskCount": -1, "minSucceedTaskCount": succeeded});
    let roles = json!([
        {"name": "worker", "dockerImage": "any", "frameworkAttemptCompletionPolicy": policy(-1),
         "command": "echo \"score={{x}}\"; : >\"$TEST_BED/reported\"; exec sleep 600"},
        {"name": "judge", "dockerImage": "any", "frameworkAttemptCompletionPolicy": policy(1),
         "command": "until [ -e \"$TEST_BED/reported\" ]; do sleep 0.05; done"},
        // This role delays the Framework's end until the manager is dead.
        {"name": "slow", "dockerImage": "any", "frameworkAttemptCompletionPolicy": policy(-1),
         "command": "trap '' TERM; while : slow; do sleep 0.05; done"},
    ]);
    let section = framework_section(&bed, &json!({"taskRoles": roles, "metricsFrom": "worker"}));
    let search = search(&bed, &kube, "unused", 1).with("trainingService", section);
    let manager = bed.start(&mut run_command(&bed, &search));
    wait_for("the worker's verdict", WAIT_TIMEOUT, || (stop_count(&bed)? > 0).then_some(()));
    let id = bed.experiment_id();
    wait_for("the worker's end", WAIT_TIMEOUT, || {
        let lives = bed.processes().iter().any(|(_, words)| words.contains("sleep 600"));
        (!lives).then_some(())
    });
    manager.signal(Signal::SIGKILL);
    drop(manager.finish(WAIT_TIMEOUT));
    for (pid, words) in bed.processes() {
        if words.contains(": slow") {
            // Ignored: the process may have ended together with another one.
            let _gone = kill(pid, Signal::SIGKILL);
        }
    }
    wait_for("the Framework's end", WAIT_TIMEOUT, || {
        let completed = |object: &Value| object["status"]["state"] == "Completed";
        kube.list("frameworks").iter().any(completed).then_some(())
    });
    let search = Outcome::parse(resume(&bed, &id).finish(WAIT_TIMEOUT));
    search.expect_done(1, 0);
    assert_eq!(search.trial(0).final_result, search.trial(0).parameters["x"]);
    assert_eq!(
        kube.created_objects("frameworks").len(),
        1 + 1,
        "the additional one tests the controller"
    );
}

/// Counts the agents' reports that a trial was stopped.
fn stop_count(bed: &TestBed) -> Option<i64> {
    let query = "SELECT count(*) FROM report WHERE kind = 'ended' AND body LIKE '%\"stopped\"%'";
    bed.find_store()?.query_row(query, [], |row| row.get(0)).ok()
}

#[test]
fn a_stopped_manager_does_not_wait_for_an_unreachable_cluster() {
    let Scenario { bed, kube, gate, manager, id } = start_two_trials();
    kube.set_unreachable(true);
    manager.signal(Signal::SIGTERM);
    let finished = manager.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    for message in [
        "cannot be reached".to_owned(),
        format!("2 Frameworks and their Secrets, with the label trialkeeper/experiment={id}"),
        format!("`trial-manager clean {id}` deletes them"),
    ] {
        assert!(finished.stderr.contains(&message), "{message:?} is not in {}", finished.stderr);
    }
    kube.set_unreachable(false);
    wait_for("the agents to end the trials", WAIT_TIMEOUT, || {
        (bed.read("cleaned").lines().count() == 2).then_some(())
    });
    gate.release(6);
    let search = Outcome::parse(resume(&bed, &id).finish(WAIT_TIMEOUT));
    search.expect_done(2, 0);
    kube.wait_until_empty();
}

/// Kills the manager of a search and returns the port on which it listened. The agents find the next manager there: the
/// Secret with its address cannot change while the cluster is away.
fn kill_manager(bed: &TestBed, id: &str, manager: RunningProgram) -> String {
    let url = fs::read_to_string(bed.data_folder().join(id).join("manager.url")).unwrap();
    manager.signal(Signal::SIGKILL);
    drop(manager.finish(WAIT_TIMEOUT));
    let port = url.lines().next().unwrap().trim_end_matches('/').rsplit(':').next().unwrap();
    port.to_owned()
}

/// The message of a manager that starts without its cluster.
const OUTAGE_MESSAGE: &str =
    "the manager goes on without the cluster: agents can report, trials wait";

#[test]
fn a_search_is_resumed_while_its_cluster_is_away() {
    let Scenario { bed, kube, gate, manager, id } = start_two_trials();
    let port = kill_manager(&bed, &id, manager);
    kube.set_unreachable(true);
    let manager = resume_on(&bed, &id, &port);
    gate.release(2);
    wait_for("the metrics", WAIT_TIMEOUT, || (metric_count(&bed, "%")? == 2).then_some(()));
    wait_for("the warning", WAIT_TIMEOUT, || {
        manager.stderr().contains(OUTAGE_MESSAGE).then_some(())
    });
    kube.set_unreachable(false);
    gate.release(4);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    search.expect_done(2, 0);
    assert_eq!(search.stderr.matches(OUTAGE_MESSAGE).count(), 1, "{}", search.stderr);
    assert!(search.stderr.contains("cannot be reached"), "{}", search.stderr);
    assert_eq!(bed.read("started").lines().count(), 2, "a trial ran twice");
    assert_eq!(
        kube.created_objects("frameworks").len(),
        2 + 1,
        "the additional one tests the controller"
    );
    let all = [Value::from(1), Value::from(2), Value::from(3)];
    assert!(search.trials.iter().all(|trial| trial.intermediate == all), "{search:#?}");
    kube.wait_until_empty();
}

#[test]
fn a_search_ends_while_its_cluster_is_away() {
    let Scenario { bed, kube, gate, manager, id } = start_two_trials();
    let port = kill_manager(&bed, &id, manager);
    kube.set_unreachable(true);
    let manager = resume_on(&bed, &id, &port);
    gate.release(6);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    search.expect_done(2, 0);
    let left = format!("`trial-manager clean {id}` deletes them");
    assert!(search.stderr.contains(&left), "{}", search.stderr);
    kube.set_unreachable(false);
    run_clean(&bed, &id);
    kube.wait_until_empty();
}

/// Runs `trial-manager clean`.
fn run_clean(bed: &TestBed, id: &str) {
    let mut clean = bed.manager_command();
    let cleaned = bed
        .start(clean.args(["clean", id, "--data-dir"]).arg(bed.data_folder()))
        .finish(WAIT_TIMEOUT);
    assert_eq!(cleaned.code, Some(0), "{}", cleaned.stderr);
}

#[test]
fn a_search_resumed_in_an_outage_submits_its_next_trials_later() {
    const SHORT_TRIAL: &str =
        "echo up >>\"$TEST_BED/up\"; read _ <\"$TEST_BED/gate\"; echo score=1";
    for is_webhook_down in [false, true] {
        println!("a webhook is down: {is_webhook_down}");
        let bed = TestBed::new();
        let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
        let gate = Gate::new(&bed.path("gate"));
        let manager = bed.start(&mut run_command(&bed, &search(&bed, &kube, SHORT_TRIAL, 3)));
        wait_for("the first trial", WAIT_TIMEOUT, || {
            (bed.read("up").lines().count() == 1).then_some(())
        });
        let id = bed.experiment_id();
        let port = kill_manager(&bed, &id, manager);
        if is_webhook_down {
            let why = "Internal error occurred: conversion webhook failed: connection refused";
            kube.fail_requests("GET namespaces", 500, 6, why);
        } else {
            kube.set_unreachable(true);
        }
        let manager = resume_on(&bed, &id, &port);
        gate.release(1);
        wait_for("the first end", WAIT_TIMEOUT, || {
            manager.stderr().contains("1 of 3").then_some(())
        });
        kube.set_unreachable(false);
        gate.release(2);
        let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
        search.expect_done(3, 0);
        assert_eq!(search.stderr.matches(OUTAGE_MESSAGE).count(), 1, "{}", search.stderr);
        assert_eq!(bed.read("up").lines().count(), 3, "a trial ran twice");
        kube.wait_until_empty();
    }
}

#[test]
fn a_trial_that_was_recorded_but_not_created_is_submitted_after_the_outage() {
    const SHORT_TRIAL: &str =
        "echo up >>\"$TEST_BED/up\"; read _ <\"$TEST_BED/gate\"; echo score=1";
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let gate = Gate::new(&bed.path("gate"));
    let search = search(&bed, &kube, SHORT_TRIAL, 3).with("trialConcurrency", 2);
    let manager = bed.start(&mut run_command(&bed, &search));
    wait_for("two trials", WAIT_TIMEOUT, || (bed.read("up").lines().count() == 2).then_some(()));
    kube.set_unreachable(true);
    gate.release(1);
    wait_for("the third trial", WAIT_TIMEOUT, || {
        manager.stderr().contains("waits: ").then_some(())
    });
    let id = bed.experiment_id();
    let port = kill_manager(&bed, &id, manager);
    let manager = resume_on(&bed, &id, &port);
    // The manager handles this end after it has adopted all trials.
    gate.release(1);
    wait_for("the second end", WAIT_TIMEOUT, || manager.stderr().contains("2 of 3").then_some(()));
    kube.set_unreachable(false);
    gate.release(1);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    search.expect_done(3, 0);
    let words = "the cluster has no Framework of the attempt that an earlier manager recorded";
    assert!(search.stderr.contains(words), "{}", search.stderr);
    assert_eq!(bed.read("up").lines().count(), 3, "a trial ran twice");
    assert_eq!(
        kube.created_objects("frameworks").len(),
        3 + 1,
        "the additional one tests the controller"
    );
    kube.wait_until_empty();
}

#[test]
fn a_resume_is_refused_when_waiting_does_not_help() {
    let Scenario { bed, kube, gate: _gate, manager, id } = start_two_trials();
    manager.signal(Signal::SIGKILL);
    drop(manager.finish(WAIT_TIMEOUT));
    let kubeconfig = bed.read("kubeconfig");
    let refused = |message: &str| {
        let refused = resume(&bed, &id).finish(WAIT_TIMEOUT);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(message), "{message}: {}", refused.stderr);
    };
    fs::remove_file(bed.path("kubeconfig")).unwrap();
    refused("cannot be used");
    fs::write(bed.path("kubeconfig"), kubeconfig.replace("token: ", "token: wrong-")).unwrap();
    refused("rejected the credentials");
    fs::write(bed.path("kubeconfig"), kubeconfig).unwrap();
    kube.remove_kind("frameworks");
    refused("does not serve Frameworks");
    kube.restore_kind("frameworks");
    kube.remove_right("watch frameworks");
    refused("lacks these rights");
    run_clean(&bed, &id);
    kube.wait_until_empty();
}
