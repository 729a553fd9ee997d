//! Trials in a queue of Kueue: it admits them, preempts them, admits them again, or deactivates them.

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::run_command;
use super::scenarios::{
    JOB, WAITING_TRIAL, preempt_once, trial_object_name, wait_for_starts, wait_for_state,
};

/// Returns a search of one trial in the queue `team`. The trial reports, waits until the file `go` exists, and reports
/// again.
fn search(bed: &TestBed, kube: &Kube, pods: usize) -> Search {
    kube.create_queue("team");
    let line = format!("echo score=0.25; {WAITING_TRIAL}");
    JOB.search(bed, kube, &line, 1, &json!({"queue": "team", "taskNumber": pods}))
}

fn start_cluster(bed: &TestBed) -> Kube {
    let kube = super::start_cluster(bed);
    kube.set_queue_quota(1);
    kube
}

#[test]
fn a_preempted_trial_runs_again_without_lost_or_duplicated_results() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, 1)));
    wait_for_starts(&bed, 1);
    wait_for_state(&bed, "RUNNING");
    kube.set_queue_quota(0);
    running.wait_for_stderr("its queue took the trial back");
    running.wait_for_stderr("Preempted to accommodate a workload");
    wait_for_state(&bed, "WAITING");
    // Back in the queue, the message contains the queue's reason.
    running
        .wait_for_stderr("its queue took the trial back (preempted once): couldn't assign flavors");
    kube.set_queue_quota(1);
    wait_for_starts(&bed, 2);
    wait_for_state(&bed, "RUNNING");
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    let trial = outcome.trial(0);
    assert_eq!(
        trial.intermediate,
        [json!(0.25), json!(1)],
        "only results of the second pod are valid"
    );
    assert_eq!(trial.final_result, json!(1));
    let queued = |job: &&Value| job.pointer("/metadata/labels/trialkeeper~1attempt").is_some();
    assert_eq!(
        kube.created_objects("jobs").iter().filter(queued).count(),
        1,
        "a second Job was created"
    );
    kube.wait_until_empty();
}

#[test]
fn a_waiting_trial_shows_its_position_if_kueue_tells_it() {
    #[rustfmt::skip]
    let table: [(&str, &[&str]); 3] = [
        ("served",            &[]),
        ("an older version",  &["visibility.kueue.x-k8s.io/v1beta2"]),
        ("not served at all", &["visibility.kueue.x-k8s.io/v1beta2", "visibility.kueue.x-k8s.io/v1beta1"]),
    ];
    for (case, unserved) in table {
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        for version in unserved {
            kube.remove_kind(version);
        }
        kube.set_queue_quota(0);
        let search = search(&bed, &kube, 1).with("trialConcurrency", 2);
        let running = bed.start(&mut run_command(&bed, &search.with("maxTrialNumber", 2)));
        running.wait_for_stderr("it waits in its queue: couldn't assign flavors");
        if unserved.len() < 2 {
            running.wait_for_stderr("1 more needed; it is the next in its queue");
            running.wait_for_stderr("1 more needed; 1 other is ahead of it");
        }
        bed.write("go", "");
        kube.set_queue_quota(2);
        let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
        outcome.expect_done(2, 0);
        let shows = outcome.stderr.contains("ahead of it");
        assert_eq!(shows, unserved.len() < 2, "{case}: {}", outcome.stderr);
        kube.wait_until_empty();
    }
}

#[test]
fn a_trial_of_a_deactivated_workload_ends_and_is_not_tried_again() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let search = search(&bed, &kube, 1).with("maxTrialRetries", 2);
    let running = bed.start(&mut run_command(&bed, &search));
    wait_for_starts(&bed, 1);
    let workload = kube.list("workloads").remove(0);
    let name = workload["metadata"]["name"].as_str().expect("a Workload has a name").to_owned();
    kube.change_object("workloads", &name, |workload| workload["spec"]["active"] = json!(false));
    let finished = running.finish(WAIT_TIMEOUT);
    assert!(finished.stderr.contains("SYS_CANCELED"), "{}", finished.stderr);
    let words = "its Workload was deactivated: The workload is deactivated";
    assert!(finished.stderr.contains(words), "{}", finished.stderr);
    assert_eq!(bed.read("up").lines().count(), 1);
    kube.wait_until_empty();
}

#[test]
fn the_pods_of_a_preempted_trial_find_one_another_again() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, 2)));
    preempt_once(&bed, &kube, &running, 2);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).intermediate, [json!(0.25), json!(1)]);
    kube.wait_until_empty();
}

#[test]
fn a_job_that_the_cluster_suspends_without_a_workload_shows_why_it_waits() {
    let bed = TestBed::new();
    let kube = super::start_cluster(&bed);
    let running = JOB.start(&bed, &kube, WAITING_TRIAL, &json!({}));
    wait_for_starts(&bed, 1);
    wait_for_state(&bed, "RUNNING");
    wait_for("the pod's phase", WAIT_TIMEOUT, || {
        kube.list("pods").iter().any(|pod| pod["status"]["phase"] == "Running").then_some(())
    });
    let name = trial_object_name(&kube, "jobs");
    kube.change_object("jobs", &name, |job| {
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = json!("default");
        job["spec"]["suspend"] = json!(true);
    });
    running.wait_for_stderr("the cluster gave it the label `kueue.x-k8s.io/queue-name: default`");
    wait_for_state(&bed, "WAITING");
    running.wait_for_stderr("but no Workload exists for it");
    kube.change_object("jobs", &name, |job| job["spec"]["suspend"] = json!(false));
    wait_for_starts(&bed, 2);
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}
