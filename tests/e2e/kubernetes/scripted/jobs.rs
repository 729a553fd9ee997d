//! Trials as Jobs: searches without an operator, failures, stops and queues.

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{
    ENDLESS_TRIAL, interrupt_running_search, run, run_command, search_with_service,
    service_section, start_cluster,
};

/// Returns a search whose trials are Jobs.
fn search(bed: &TestBed, kube: &Kube, line: &str, trials: u32, changes: &Value) -> Search {
    let own = json!({"platform": "kubernetes", "dockerImage": "any"});
    search_with_service(bed, kube, line, trials, service_section(bed, own, changes))
}

#[test]
fn a_search_runs_as_jobs_without_any_operator() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.remove_framework_kind();
    let line = r#"x='{{x}}'; echo "score=$x""#;
    let outcome = run(&bed, &search(&bed, &kube, line, 4, &json!({})).with("trialConcurrency", 2));
    outcome.expect_done(4, 0);
    for trial in &outcome.trials {
        assert_eq!(trial.final_result, trial.parameters["x"], "{trial:?}");
    }
    kube.wait_until_empty();
    let requests = kube.requests();
    let count = |what: &str| requests.iter().filter(|request| *request == what).count();
    assert_eq!(count("POST jobs"), 4 + 1, "the additional one tests the controller: {requests:?}");
    assert_eq!(
        count("POST secrets"),
        4 + 1,
        "the additional one is the experiment's: {requests:?}"
    );
}

#[test]
fn a_failing_job_has_the_trial_s_exit_code_and_output() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo 'ValueError: no' >&2; exit 3";
    let outcome = run(&bed, &search(&bed, &kube, line, 1, &json!({})));
    outcome.expect_done(0, 1);
    assert!(outcome.stderr.contains("FAILED (exit code 3)"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ValueError: no"), "{}", outcome.stderr);
    let mut show = bed.manager_command();
    show.args(["trial", "show", "0", "--output", "json", "--data-dir"]).arg(bed.data_folder());
    let shown = bed.start(&mut show).finish(WAIT_TIMEOUT);
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("the output is JSON");
    let image = shown["image"].as_str().expect("the image is known");
    assert!(image.starts_with("docker.io/library/busybox@sha256:6bbe3082"), "{image}");
    kube.wait_until_empty();
}

#[test]
fn the_pods_of_a_job_find_one_another_and_the_first_one_reports() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo $TRIALKEEPER_RANK/$TRIALKEEPER_WORLD_SIZE >>\"$TEST_BED/ranks\"; echo score=$TRIALKEEPER_RANK";
    let outcome = run(&bed, &search(&bed, &kube, line, 1, &json!({"taskNumber": 3})));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(0));
    let ranks = bed.read("ranks");
    let mut ranks: Vec<&str> = ranks.lines().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["0/3", "1/3", "2/3"]);
    kube.wait_until_empty();
}

#[test]
fn a_killed_trial_ends_its_job_and_its_pods() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let search = search(&bed, &kube, ENDLESS_TRIAL, 1, &json!({}));
    interrupt_running_search(&bed, &kube, &search, 1);
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

#[test]
fn a_queued_trial_is_admitted_preempted_and_runs_again() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo score=0.25; echo up >>\"$TEST_BED/up\"; \
                until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=0.5";
    kube.create_queue("team");
    kube.create_object("workloadpriorityclasses", json!({"metadata": {"name": "low"}}));
    let queue = json!({"queue": "team", "priorityClass": "low"});
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, line, 1, &queue)));
    let job = wait_for("the Job", WAIT_TIMEOUT, || queued_job(&kube));
    assert_eq!(job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team");
    assert_eq!(job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"], "low");
    assert_eq!(job["spec"]["suspend"], true);
    let message = "couldn't assign flavors to pod set main: insufficient unused quota for cpu";
    kube.create_object(
        "workloads",
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
            "metadata": {"name": "job-1", "namespace": "lab", "ownerReferences": [{"kind": "Job", "name": job["metadata"]["name"]}]},
            "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}]},
        }),
    );
    wait_for("the queue's message", WAIT_TIMEOUT, || {
        running.stderr().contains(message).then_some(())
    });
    assert_eq!(kube.list("pods"), Vec::<Value>::new());

    let runs = |times: usize| {
        wait_for("the trial to run", WAIT_TIMEOUT, || {
            (bed.read("up").lines().count() == times).then_some(())
        });
    };
    set_suspended(&kube, false);
    runs(1);
    set_suspended(&kube, true);
    wait_for("the end of the pod", WAIT_TIMEOUT, || kube.list("pods").is_empty().then_some(()));
    set_suspended(&kube, false);
    runs(2);
    bed.write("go", "");
    let outcome = trialkeeper_tests::Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    assert_eq!(
        outcome.trial(0).intermediate,
        [json!(0.25), json!(0.5)],
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
    let line = "echo up >>\"$TEST_BED/up\"; echo score=1; exec sleep 600";
    kube.create_queue("team");
    let queue = json!({"queue": "team"});
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, line, 1, &queue)));
    wait_for("the Job", WAIT_TIMEOUT, || queued_job(&kube));
    set_suspended(&kube, false);
    wait_for("the trial to run", WAIT_TIMEOUT, || (!bed.read("up").is_empty()).then_some(()));
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
    let search = search(&bed, &kube, "true", 1, &json!({"queue": "team"}));
    let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    let message = "lacks these rights in the namespace `lab`: list, watch workloads";
    assert!(finished.stderr.contains(message), "{}", finished.stderr);
    assert_eq!(kube.list("jobs"), Vec::<Value>::new());
}

#[test]
fn a_missing_queue_or_priority_class_is_reported_before_anything_is_submitted() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let refused = |changes: &Value, message: &str| {
        let finished = bed
            .start(&mut run_command(&bed, &search(&bed, &kube, "true", 1, changes)))
            .finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(message), "{}", finished.stderr);
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
    let running =
        bed.start(&mut run_command(&bed, &search(&bed, &kube, "echo score=1", 1, &queue)));
    let job = wait_for("the Job", WAIT_TIMEOUT, || queued_job(&kube));
    let warning = "trials will wait for the LocalQueue `team`: it is stopped (`stopPolicy: Hold`)";
    assert!(running.stderr().contains(warning), "{}", running.stderr());
    kube.create_object(
        "workloads",
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
            "metadata": {"name": "job-1", "namespace": "lab", "ownerReferences": [{"kind": "Job", "name": job["metadata"]["name"]}]},
            "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Inadmissible", "message": "LocalQueue team is inactive"}]},
        }),
    );
    let words = "it waits in its queue: LocalQueue team is inactive";
    wait_for("the queue's message", WAIT_TIMEOUT, || {
        running.stderr().contains(words).then_some(())
    });
    set_suspended(&kube, false);
    trialkeeper_tests::Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
}
