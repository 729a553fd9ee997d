//! Trials as Jobs: searches without an operator, failures, stops and queues.

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT, wait_for};

use super::scenarios::{
    ENDLESS_TRIAL, JOB, WAITING_TRIAL, expect_refusal, test_scenarios, wait_for_starts,
};
use super::{run, sorted_lines, start_cluster};

test_scenarios!(
    JOB:
    a_search_runs_to_its_end_and_leaves_a_clean_cluster,
    a_failing_trial_has_its_exit_code_and_output,
    the_image_of_a_trial_is_shown,
    an_interrupted_search_ends_its_trial_and_all_pods,
    an_evicted_trial_is_tried_again,
    a_resumed_manager_adopts_the_trial_of_a_killed_one,
    a_queue_admits_preempts_and_readmits_a_trial,
);

#[test]
fn the_pods_of_a_job_find_one_another_and_the_first_one_reports() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo $TRIALKEEPER_RANK/$TRIALKEEPER_WORLD_SIZE >>\"$TEST_BED/ranks\"; echo score=$TRIALKEEPER_RANK";
    let outcome = run(&bed, &JOB.search(&bed, &kube, line, 1, &json!({"taskNumber": 3})));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(0));
    assert_eq!(sorted_lines(&bed, "ranks"), ["0/3", "1/3", "2/3"]);
    kube.wait_until_empty();
}

/// Suspends or resumes a queued Job, as Kueue does.
fn set_suspended(kube: &Kube, suspend: bool) {
    let job = queued_job(kube).expect("the Job exists");
    let name = job["metadata"]["name"].as_str().expect("a Job has a name");
    kube.change_object("jobs", name, |job| job["spec"]["suspend"] = Value::Bool(suspend));
}

/// Returns the trial's Job, and not the one that tests the controller.
fn queued_job(kube: &Kube) -> Option<Value> {
    let label = "/metadata/labels/kueue.x-k8s.io~1queue-name";
    kube.list("jobs").into_iter().find(|job| job.pointer(label).is_some())
}

/// Creates the Workload of a Job that waits in its queue, as an older Kueue does.
fn create_workload(kube: &Kube, job: &Value, reason: &str, message: &str) {
    let owner = json!({"kind": "Job", "name": job["metadata"]["name"]});
    let condition = json!({
        "type": "QuotaReserved", "status": "False", "reason": reason, "message": message,
    });
    let workload = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
        "metadata": {"name": "job-1", "namespace": "lab", "ownerReferences": [owner]},
        "status": {"conditions": [condition]},
    });
    kube.create_object("workloads", workload);
}

#[test]
fn a_queued_trial_is_admitted_preempted_and_runs_again() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = format!("echo score=0.25; {WAITING_TRIAL}");
    kube.create_queue("team");
    kube.create_object("workloadpriorityclasses", json!({"metadata": {"name": "low"}}));
    let queue = json!({"queue": "team", "priorityClass": "low"});
    let running = JOB.start(&bed, &kube, &line, &queue);
    let job = wait_for("the Job", WAIT_TIMEOUT, || queued_job(&kube));
    assert_eq!(job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team");
    assert_eq!(job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"], "low");
    assert_eq!(job["spec"]["suspend"], true);
    let message = "couldn't assign flavors to pod set main: insufficient unused quota for cpu";
    create_workload(&kube, &job, "Pending", message);
    running.wait_for_stderr(message);
    assert_eq!(kube.list("pods"), Vec::<Value>::new());
    set_suspended(&kube, false);
    wait_for_starts(&bed, 1);
    set_suspended(&kube, true);
    wait_for("the end of the pod", WAIT_TIMEOUT, || kube.list("pods").is_empty().then_some(()));
    set_suspended(&kube, false);
    wait_for_starts(&bed, 2);
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    assert_eq!(
        outcome.trial(0).intermediate,
        [json!(0.25), json!(1)],
        "only results of the last pod are valid"
    );
    kube.wait_until_empty();
}

#[test]
fn the_deployed_role_matches_the_rights_used_for_jobs_and_queues() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let mut given = crate::kubernetes::deploy::manager_rights();
    let of_jobs = |right: &String| {
        // The positions in a queue are optional, and read only while trials wait.
        let others = [
            "frameworkcontroller",
            "kubeflow.org",
            "jobset.x-k8s.io",
            "trainer.kubeflow.org",
            "visibility",
        ];
        !others.iter().any(|group| right.starts_with(group))
    };
    given.retain(of_jobs);
    given.sort();
    kube.limit_rights(given.clone());
    let line = format!("echo score=1; {ENDLESS_TRIAL}");
    kube.create_queue("team");
    let queue = json!({"queue": "team"});
    let running = JOB.start(&bed, &kube, &line, &queue);
    wait_for("the Job", WAIT_TIMEOUT, || queued_job(&kube));
    set_suspended(&kube, false);
    wait_for_starts(&bed, 1);
    let trial = wait_for("the trial's id", WAIT_TIMEOUT, || {
        let label = "/metadata/labels/trialkeeper~1trial";
        Some(queued_job(&kube)?.pointer(label)?.as_str()?.to_owned())
    });
    // A stopped trial's Job is deleted at once, and the other objects at the end of the search.
    let mut stop = bed.manager_command();
    stop.args(["trial", "stop", &trial, "--data-dir"]).arg(bed.data_folder());
    assert_eq!(bed.start(&mut stop).finish(WAIT_TIMEOUT).code, Some(0));
    running.finish(WAIT_TIMEOUT);
    kube.wait_until_empty();
    // Only a resumed manager renews a trial's token in its Secret.
    let needed = |rights: Vec<String>| {
        let is_optional = |right: &String| right == "/secrets patch" || !of_jobs(right);
        rights.into_iter().filter(|right| !is_optional(right)).collect::<Vec<_>>()
    };
    assert_eq!(needed(kube.used_rights()), needed(given.clone()));
    let mut asked = kube.checked_rights();
    asked.retain(|right| right != "/pods create" && of_jobs(right));
    assert_eq!(asked, given, "all rights must be checked before the first submission");
}

#[test]
fn a_cluster_without_kueue_is_reported_before_anything_is_submitted() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let mut rights = crate::kubernetes::deploy::manager_rights();
    rights.retain(|right| !right.starts_with("kueue"));
    kube.limit_rights(rights);
    let search = JOB.search(&bed, &kube, "true", 1, &json!({"queue": "team"}));
    let message = "lacks these rights in the namespace `lab`: list, watch workloads";
    expect_refusal(&bed, &search, &[message]);
    assert_eq!(kube.list("jobs"), Vec::<Value>::new());
}

#[test]
fn a_missing_queue_or_priority_class_is_reported_before_anything_is_submitted() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let refused = |changes: &Value, message: &str| {
        expect_refusal(&bed, &JOB.search(&bed, &kube, "true", 1, changes), &[message]);
        assert_eq!(kube.created_objects("jobs"), Vec::<Value>::new());
    };
    let queue =
        "the namespace `lab` has no LocalQueue `team`, which `queue` in the experiment file names";
    refused(&json!({"queue": "team"}), queue);
    kube.create_queue("team");
    let class = "the cluster has no WorkloadPriorityClass `low`, which `priorityClass`";
    refused(&json!({"queue": "team", "priorityClass": "low"}), class);
    for version in ["v1beta1", "v1beta2"] {
        kube.remove_kind(&format!("kueue.x-k8s.io/{version}"));
    }
    refused(&json!({"queue": "team"}), "serves neither v1beta2 nor v1beta1");
}

#[test]
fn a_stopped_queue_of_an_older_kueue_is_waited_for_with_its_message() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.remove_kind("kueue.x-k8s.io/v1beta2");
    kube.create_queue("team");
    kube.change_object("localqueues", "team", |queue| queue["spec"]["stopPolicy"] = json!("Hold"));
    let queue = json!({"queue": "team"});
    let running = JOB.start(&bed, &kube, "echo score=1", &queue);
    let job = wait_for("the Job", WAIT_TIMEOUT, || queued_job(&kube));
    let warning = "trials will wait for the LocalQueue `team`: it is stopped (`stopPolicy: Hold`)";
    running.wait_for_stderr(warning);
    create_workload(&kube, &job, "Inadmissible", "LocalQueue team is inactive");
    running.wait_for_stderr("it waits in its queue: LocalQueue team is inactive");
    set_suspended(&kube, false);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
}
