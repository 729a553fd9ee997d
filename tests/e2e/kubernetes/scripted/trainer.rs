//! Trials as `TrainJob`s of Kubeflow Trainer, with one runtime for all trials of an experiment.

use serde_json::{Value, json};
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT, wait_for};

use super::scenarios::{TRAIN_JOB, test_scenarios};
use super::{expect_parameters_as_results, run, run_command, sorted_lines, start_cluster};

test_scenarios!(
    TRAIN_JOB:
    a_search_runs_to_its_end_and_leaves_a_clean_cluster,
    a_failing_trial_has_its_exit_code_and_output,
    the_image_of_a_trial_is_shown,
    an_interrupted_search_ends_its_trial_and_all_pods,
    an_evicted_trial_is_tried_again,
    a_resumed_manager_adopts_the_trial_of_a_killed_one,
    a_queue_admits_preempts_and_readmits_a_trial,
    the_deployed_role_suffices,
);

#[test]
fn a_search_has_one_runtime_that_is_deleted_after_its_trials() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = r#"x='{{x}}'; [ -z "$TRIALKEEPER_TOKEN" ] && echo "score=$x""#;
    let outcome =
        run(&bed, &TRAIN_JOB.search(&bed, &kube, line, 4, &json!({})).with("trialConcurrency", 2));
    outcome.expect_done(4, 0);
    expect_parameters_as_results(&outcome);
    kube.wait_until_empty();
    let runtimes = kube.created_objects("trainingruntimes");
    let probe = |runtime: &&Value| {
        runtime["metadata"]["name"].as_str().is_some_and(|name| name.ends_with("probe"))
    };
    assert_eq!(runtimes.iter().filter(|runtime| !probe(runtime)).count(), 1, "{runtimes:?}");
    assert_eq!(runtimes.iter().filter(probe).count(), 1);
    let requests = kube.requests();
    let at = |what: &str| requests.iter().rposition(|request| request == what);
    assert!(at("DELETE trainjobs") < at("DELETE trainingruntimes"), "{requests:?}");
}

#[test]
fn a_webhook_that_does_not_know_a_new_runtime_yet_stops_no_search() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let message = "admission webhook \"validator.trainjob.trainer.kubeflow.org\" denied the request: spec.runtimeRef: \
                   Invalid value: specified trainingRuntime must be created before the TrainJob is created";
    // The first request is that of the test of the controller.
    kube.fail_requests("POST trainjobs", 403, 2, message);
    kube.fail_requests("TRY trainjobs", 403, 2, message);
    let outcome = run(&bed, &TRAIN_JOB.search(&bed, &kube, "echo score=1", 1, &json!({})));
    outcome.expect_done(1, 0);
    assert!(!outcome.stderr.contains("cannot check whether"), "{}", outcome.stderr);
    kube.wait_until_empty();
}

#[test]
fn the_nodes_of_a_train_job_find_one_another_and_the_first_one_reports() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo $TRIALKEEPER_RANK/$TRIALKEEPER_WORLD_SIZE/$PET_NNODES >>\"$TEST_BED/ranks\"; \
                echo score=$TRIALKEEPER_RANK";
    let outcome = run(&bed, &TRAIN_JOB.search(&bed, &kube, line, 1, &json!({"taskNumber": 2})));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(0));
    assert_eq!(sorted_lines(&bed, "ranks"), ["0/2/2", "1/2/2"]);
    kube.wait_until_empty();
}

#[test]
fn a_deleted_runtime_is_created_again_for_the_next_trial() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";
    let running =
        bed.start(&mut run_command(&bed, &TRAIN_JOB.search(&bed, &kube, line, 2, &json!({}))));
    let name = wait_for("the first trial", WAIT_TIMEOUT, || {
        let mut jobs = kube.list("trainjobs").into_iter();
        let job = jobs.find(|job| job.pointer("/spec/trainer/command").is_some())?;
        Some(job.pointer("/spec/runtimeRef/name")?.as_str()?.to_owned())
    });
    wait_for("the pod", WAIT_TIMEOUT, || (!kube.list("pods").is_empty()).then_some(()));
    kube.delete_object("trainingruntimes", &name);
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(2, 0);
    let is_it = |runtime: &&Value| runtime["metadata"]["name"] == name.as_str();
    assert_eq!(kube.created_objects("trainingruntimes").iter().filter(is_it).count(), 2);
    kube.wait_until_empty();
}

#[test]
fn missing_parts_of_a_cluster_are_reported_before_anything_is_submitted() {
    #[rustfmt::skip]
    TRAIN_JOB.expect_refusals(&[
        ("no such kind", |kube| kube.remove_kind("trainjobs"),
            &["does not serve TrainJobs", "Kubeflow Trainer (version 2) is not installed", "kubectl apply",
              "it serves these kinds that can run trials: Framework (`platform: frameworkcontroller`), JobSet (`platform: kubernetes`), Job (`platform: kubernetes`), TFJob (`platform: kubeflow`)"]),
        ("missing rights", |kube| { kube.remove_right("create trainjobs"); kube.remove_right("patch trainingruntimes"); },
            &["lacks these rights in the namespace `lab`: create trainjobs; patch trainingruntimes; `kubectl apply -n lab -k deploy/rights`"]),
        ("a Trainer that is not at work", |kube| kube.set_controllers_running(false),
            &["Kubeflow Trainer has not noticed a new TrainJob", "do its pod and that of the JobSet controller run"]),
    ]);
}
