//! Trials as `TrainJob`s of Kubeflow Trainer, with one runtime for all trials of an experiment.

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{
    ENDLESS_TRIAL, interrupt_running_search, run, run_command, search_with_service,
    service_section, start_cluster,
};

/// Returns a search whose trials are `TrainJob`s of one pod. `changes` apply to the section.
fn search(bed: &TestBed, kube: &Kube, line: &str, trials: u32, changes: &Value) -> Search {
    let own = json!({"platform": "trainer", "dockerImage": "any"});
    search_with_service(bed, kube, line, trials, service_section(bed, own, changes))
}

#[test]
fn a_search_has_one_runtime_that_is_deleted_after_its_trials() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = r#"x='{{x}}'; [ -z "$TRIALKEEPER_TOKEN" ] && echo "score=$x""#;
    let outcome = run(&bed, &search(&bed, &kube, line, 4, &json!({})).with("trialConcurrency", 2));
    outcome.expect_done(4, 0);
    for trial in &outcome.trials {
        assert_eq!(trial.final_result, trial.parameters["x"], "{trial:?}");
    }
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
    let outcome = run(&bed, &search(&bed, &kube, "echo score=1", 1, &json!({})));
    outcome.expect_done(1, 0);
    assert!(!outcome.stderr.contains("cannot check whether"), "{}", outcome.stderr);
    kube.wait_until_empty();
}

#[test]
fn a_failing_train_job_fails_its_trial_with_its_exit_code_and_output() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo 'ValueError: no' >&2; exit 3";
    let outcome = run(&bed, &search(&bed, &kube, line, 1, &json!({})));
    outcome.expect_done(0, 1);
    for message in ["FAILED (exit code 3)", "ValueError: no"] {
        assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
    }
    kube.wait_until_empty();
}

#[test]
fn the_nodes_of_a_train_job_find_one_another_and_the_first_one_reports() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo $TRIALKEEPER_RANK/$TRIALKEEPER_WORLD_SIZE/$PET_NNODES >>\"$TEST_BED/ranks\"; \
                echo score=$TRIALKEEPER_RANK";
    let outcome = run(&bed, &search(&bed, &kube, line, 1, &json!({"taskNumber": 2})));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(0));
    let ranks = bed.read("ranks");
    let mut ranks: Vec<&str> = ranks.lines().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["0/2/2", "1/2/2"]);
    kube.wait_until_empty();
}

#[test]
fn a_killed_search_leaves_neither_pods_nor_its_runtime() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let search = search(&bed, &kube, ENDLESS_TRIAL, 1, &json!({}));
    interrupt_running_search(&bed, &kube, &search, 1);
}

#[test]
fn train_jobs_of_a_killed_manager_are_adopted_or_cleaned_with_their_runtime() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo up >>\"$TEST_BED/up\"; until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, line, 1, &json!({}))));
    wait_for("the trial to run", WAIT_TIMEOUT, || (!bed.read("up").is_empty()).then_some(()));
    running.signal(nix::sys::signal::Signal::SIGKILL);
    drop(running.finish(WAIT_TIMEOUT));
    let id = bed.experiment_id();
    let mut resume = Outcome::resume_command(&bed, &id);
    let running = bed.start(resume.args(["--host", "127.0.0.1"]));
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    assert_eq!(bed.read("up").lines().count(), 1, "the trial must keep running");
    kube.wait_until_empty();
}

#[test]
fn a_queue_preempts_and_readmits_a_train_job() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.set_queue_quota(1);
    kube.create_queue("team");
    let line = "echo up >>\"$TEST_BED/up\"; until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";
    let search = search(&bed, &kube, line, 1, &json!({"queue": "team"}));
    let running = bed.start(&mut run_command(&bed, &search));
    let runs = |times: usize| {
        wait_for("the trial to run", WAIT_TIMEOUT, || {
            (bed.read("up").lines().count() == times).then_some(())
        });
    };
    runs(1);
    kube.set_queue_quota(0);
    wait_for("the queue's message", WAIT_TIMEOUT, || {
        running.stderr().contains("its queue took the trial back").then_some(())
    });
    wait_for("the end of the pods", WAIT_TIMEOUT, || kube.list("pods").is_empty().then_some(()));
    kube.set_queue_quota(1);
    runs(2);
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}

#[test]
fn a_deleted_runtime_is_created_again_for_the_next_trial() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, line, 2, &json!({}))));
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
    type BreakCluster = fn(&Kube);
    #[rustfmt::skip]
    let table: [(&str, BreakCluster, &[&str]); 3] = [
        ("no such kind", |kube| kube.remove_kind("trainjobs"),
            &["does not serve TrainJobs", "Kubeflow Trainer (version 2) is not installed", "kubectl apply",
              "it serves these kinds that can run trials: Framework (`platform: frameworkcontroller`), JobSet (`platform: kubernetes`), Job (`platform: kubernetes`), TFJob (`platform: kubeflow`)"]),
        ("missing rights", |kube| { kube.remove_right("create trainjobs"); kube.remove_right("patch trainingruntimes"); },
            &["lacks these rights in the namespace `lab`: create trainjobs; patch trainingruntimes; `kubectl apply -n lab -k deploy/rights`"]),
        ("a Trainer that is not at work", |kube| kube.set_controllers_running(false),
            &["Kubeflow Trainer has not noticed a new TrainJob", "do its pod and that of the JobSet controller run"]),
    ];
    for (case, change, words) in table {
        println!("{case}");
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        change(&kube);
        let search = search(&bed, &kube, "true", 1, &json!({}));
        let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        for word in words {
            assert!(finished.stderr.contains(word), "{word:?} is not in {}", finished.stderr);
        }
        kube.wait_until_empty();
    }
}

#[test]
fn the_deployed_role_suffices_for_train_jobs() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let mut given = crate::kubernetes::deploy::manager_rights();
    given.retain(|right| right.starts_with('/') || right.starts_with("trainer.kubeflow.org/"));
    kube.limit_rights(given);
    run(&bed, &search(&bed, &kube, "echo score=1", 1, &json!({}))).expect_done(1, 0);
    kube.wait_until_empty();
}
