//! Trials in a queue of Kueue: it admits them, preempts them, admits them again, or deactivates them.

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{run_command, search_with_service, service_section};

/// A trial that reports, waits until the file `go` exists, and reports again.
const TRIAL_COMMAND: &str = "echo score=0.25; echo up >>\"$TEST_BED/up\"; \
                    until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=0.5";

/// Returns a search of one trial in the queue `team`. `changes` apply to the section.
fn search(bed: &TestBed, kube: &Kube, changes: &Value) -> Search {
    kube.create_queue("team");
    let own = json!({"platform": "kubernetes", "dockerImage": "any", "queue": "team"});
    search_with_service(bed, kube, TRIAL_COMMAND, 1, service_section(bed, own, changes))
}

fn start_cluster(bed: &TestBed) -> Kube {
    let kube = super::start_cluster(bed);
    kube.set_queue_quota(1);
    kube
}

/// Waits until the trial's command was started `times` times, in all pods together.
fn wait_for_starts(bed: &TestBed, times: usize) {
    wait_for("the trial to run", WAIT_TIMEOUT, || {
        (bed.read("up").lines().count() == times).then_some(())
    });
}

fn wait_for_state(bed: &TestBed, state: &str) {
    wait_for("the trial's state", WAIT_TIMEOUT, || {
        (show_trial(bed)["state"] == state).then_some(())
    });
}

fn wait_for_stderr(running: &RunningProgram, words: &str) {
    wait_for(words, WAIT_TIMEOUT, || running.stderr().contains(words).then_some(()));
}

fn show_trial(bed: &TestBed) -> Value {
    let mut show = bed.manager_command();
    show.args(["trial", "show", "0", "--output", "json", "--data-dir"]).arg(bed.data_folder());
    let shown = bed.start(&mut show).finish(WAIT_TIMEOUT);
    serde_json::from_slice(&shown.stdout).expect("the output is JSON")
}

#[test]
fn a_preempted_trial_runs_again_without_lost_or_duplicated_results() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, &json!({}))));
    wait_for_starts(&bed, 1);
    wait_for_state(&bed, "RUNNING");
    kube.set_queue_quota(0);
    wait_for_stderr(&running, "its queue took the trial back");
    wait_for_stderr(&running, "Preempted to accommodate a workload");
    wait_for_state(&bed, "WAITING");
    // Back in the queue, the message contains the queue's reason.
    wait_for_stderr(
        &running,
        "its queue took the trial back (preempted once): couldn't assign flavors",
    );
    kube.set_queue_quota(1);
    wait_for_starts(&bed, 2);
    wait_for_state(&bed, "RUNNING");
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    let trial = outcome.trial(0);
    assert_eq!(
        trial.intermediate,
        [json!(0.25), json!(0.5)],
        "only results of the second pod are valid"
    );
    assert_eq!(trial.final_result, json!(0.5));
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
        let search = search(&bed, &kube, &json!({})).with("trialConcurrency", 2);
        let running = bed.start(&mut run_command(&bed, &search.with("maxTrialNumber", 2)));
        wait_for_stderr(&running, "it waits in its queue: couldn't assign flavors");
        if unserved.len() < 2 {
            wait_for_stderr(&running, "1 more needed; it is the next in its queue");
            wait_for_stderr(&running, "1 more needed; 1 other is ahead of it");
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
    let search = search(&bed, &kube, &json!({})).with("maxTrialRetries", 2);
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
    let running =
        bed.start(&mut run_command(&bed, &search(&bed, &kube, &json!({"taskNumber": 2}))));
    wait_for_starts(&bed, 2);
    wait_for_state(&bed, "RUNNING");
    kube.set_queue_quota(0);
    wait_for_stderr(&running, "its queue took the trial back");
    wait_for("the end of the pods", WAIT_TIMEOUT, || kube.list("pods").is_empty().then_some(()));
    kube.set_queue_quota(1);
    wait_for_starts(&bed, 4);
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).intermediate, [json!(0.25), json!(0.5)]);
    kube.wait_until_empty();
}

#[test]
fn a_job_of_the_training_operator_is_preempted_and_runs_again() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let worker = json!({"replicas": 1, "dockerImage": "any", "command": TRIAL_COMMAND});
    let section = json!({
        "platform": "kubeflow", "operator": "tf-operator", "worker": worker, "dockerImage": null,
    });
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, &section)));
    wait_for_starts(&bed, 1);
    wait_for_state(&bed, "RUNNING");
    kube.set_queue_quota(0);
    wait_for_stderr(&running, "its queue took the trial back");
    wait_for("the end of the pods", WAIT_TIMEOUT, || kube.list("pods").is_empty().then_some(()));
    kube.set_queue_quota(1);
    wait_for_starts(&bed, 2);
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}

#[test]
fn a_job_that_the_cluster_suspends_without_a_workload_shows_why_it_waits() {
    let bed = TestBed::new();
    let kube = super::start_cluster(&bed);
    let own = json!({"platform": "kubernetes", "dockerImage": "any"});
    let search =
        search_with_service(&bed, &kube, TRIAL_COMMAND, 1, service_section(&bed, own, &json!({})));
    let running = bed.start(&mut run_command(&bed, &search));
    wait_for_starts(&bed, 1);
    wait_for_state(&bed, "RUNNING");
    wait_for("the pod's phase", WAIT_TIMEOUT, || {
        kube.list("pods").iter().any(|pod| pod["status"]["phase"] == "Running").then_some(())
    });
    let jobs = kube.list("jobs").into_iter();
    let mut names = jobs.filter_map(|job| Some(job["metadata"]["name"].as_str()?.to_owned()));
    let name = names.find(|name| !name.ends_with("probe")).expect("the Job runs");
    kube.change_object("jobs", &name, |job| {
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = json!("default");
        job["spec"]["suspend"] = json!(true);
    });
    wait_for_stderr(&running, "the cluster gave it the label `kueue.x-k8s.io/queue-name: default`");
    wait_for_state(&bed, "WAITING");
    wait_for_stderr(&running, "but no Workload exists for it");
    kube.change_object("jobs", &name, |job| job["spec"]["suspend"] = json!(false));
    wait_for_starts(&bed, 2);
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}
