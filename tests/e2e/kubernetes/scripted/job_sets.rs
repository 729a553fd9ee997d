//! Trials with several roles as `JobSet`s, with one `Job` for each role.

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{
    ENDLESS_TRIAL, interrupt_running_search, run, run_command, search_with_service,
    service_section, start_cluster,
};

/// Returns a search whose trials have two workers and a parameter server that does not end. `changes` apply
/// to the section.
fn search(bed: &TestBed, kube: &Kube, line: &str, trials: u32, changes: &Value) -> Search {
    let serve = "echo up >>\"$TEST_BED/served\"; exec sleep 600";
    let never = json!({"minFailedTaskCount": 1, "minSucceedTaskCount": -1});
    let own = json!({
        "platform": "kubernetes",
        "metricsFrom": "worker",
        "taskRoles": [
            {"name": "ps", "dockerImage": "any", "command": serve, "frameworkAttemptCompletionPolicy": never},
            {"name": "worker", "dockerImage": "any", "taskNumber": 2, "command": line},
        ],
    });
    search_with_service(bed, kube, line, trials, service_section(bed, own, changes))
}

#[test]
fn several_roles_run_as_a_job_set_that_ends_with_its_workers() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo $TRIALKEEPER_ROLE/$TRIALKEEPER_RANK/$TRIALKEEPER_WORLD_SIZE >>\"$TEST_BED/ranks\"; \
                echo score=$TRIALKEEPER_RANK";
    let outcome = run(&bed, &search(&bed, &kube, line, 2, &json!({})));
    outcome.expect_done(2, 0);
    let results: Vec<&Value> = outcome.trials.iter().map(|trial| &trial.final_result).collect();
    assert_eq!(results, [&json!(1), &json!(1)], "the first worker's rank must follow the server's");
    let ranks = bed.read("ranks");
    let mut ranks: Vec<&str> = ranks.lines().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["worker/1/3", "worker/1/3", "worker/2/3", "worker/2/3"]);
    assert_eq!(bed.read("served").lines().count(), 2);
    kube.wait_until_empty();
}

#[test]
fn a_failing_worker_fails_its_trial_with_its_exit_code() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo 'ValueError: no' >&2; exit 3";
    let outcome = run(&bed, &search(&bed, &kube, line, 1, &json!({})));
    outcome.expect_done(0, 1);
    assert!(outcome.stderr.contains("FAILED (exit code 3)"), "{}", outcome.stderr);
    kube.wait_until_empty();
}

#[test]
fn a_killed_trial_ends_the_pods_of_every_role() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let search = search(&bed, &kube, ENDLESS_TRIAL, 1, &json!({}));
    interrupt_running_search(&bed, &kube, &search, 2);
}

/// Returns the trial's `JobSet`, and not the one that tests the controller.
fn queued_job_set(kube: &Kube) -> Option<Value> {
    let label = "/metadata/labels/kueue.x-k8s.io~1queue-name";
    kube.list("jobsets").into_iter().find(|set| set.pointer(label).is_some())
}

#[test]
fn a_queue_admits_preempts_and_readmits_a_job_set() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo up >>\"$TEST_BED/up\"; until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";
    kube.create_queue("team");
    let search = search(&bed, &kube, line, 1, &json!({"queue": "team"}));
    let running = bed.start(&mut run_command(&bed, &search));
    let set = wait_for("the JobSet", WAIT_TIMEOUT, || queued_job_set(&kube));
    let name = set["metadata"]["name"].as_str().expect("a JobSet has a name");
    assert_eq!(set["spec"]["suspend"], true);
    let suspend = |suspend: bool| {
        kube.change_object("jobsets", name, |set| set["spec"]["suspend"] = Value::Bool(suspend));
    };
    let runs = |times: usize| {
        wait_for("the workers to run", WAIT_TIMEOUT, || {
            (bed.read("up").lines().count() == times).then_some(())
        });
    };
    assert_eq!(kube.list("pods"), Vec::<Value>::new());
    suspend(false);
    runs(2);
    suspend(true);
    wait_for("the end of the pods", WAIT_TIMEOUT, || kube.list("pods").is_empty().then_some(()));
    suspend(false);
    runs(4);
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}

#[test]
fn a_cluster_without_job_sets_is_reported_before_anything_is_submitted() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.remove_kind("jobsets");
    let search = search(&bed, &kube, "true", 1, &json!({}));
    let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    for message in [
        "does not serve JobSets: a trial of several `taskRoles` needs JobSet",
        "kubectl apply --server-side -f",
    ] {
        assert!(finished.stderr.contains(message), "{}", finished.stderr);
    }
    kube.wait_until_empty();
}

#[test]
fn the_deployed_role_suffices_for_job_sets() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let mut given = crate::kubernetes::deploy::manager_rights();
    given.retain(|right| right.starts_with('/') || right.starts_with("jobset.x-k8s.io/jobsets "));
    kube.limit_rights(given);
    run(&bed, &search(&bed, &kube, "echo score=1", 1, &json!({}))).expect_done(1, 0);
    kube.wait_until_empty();
}
