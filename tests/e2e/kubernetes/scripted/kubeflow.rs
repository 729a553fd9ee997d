//! Trials as jobs of Kubeflow's training operator: NNI's own file, failures, roles and missing parts.

use std::path::Path;

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT};

use super::scenarios::{ENDLESS_TRIAL, TF_JOB, is_of_trial, test_scenarios, wait_for_starts};
use super::{run, sorted_lines};

test_scenarios!(
    TF_JOB:
    a_search_runs_to_its_end_and_leaves_a_clean_cluster,
    a_failing_trial_has_its_exit_code_and_output,
    an_interrupted_search_ends_its_trial_and_all_pods,
    an_evicted_trial_is_tried_again,
    a_resumed_manager_adopts_the_trial_of_a_killed_one,
    a_queue_admits_preempts_and_readmits_a_trial,
);

fn start_cluster(bed: &TestBed) -> Kube {
    start_cluster_with(bed, Behavior::Processes)
}

fn start_cluster_with(bed: &TestBed, behavior: Behavior) -> Kube {
    let kube = Kube::start(bed.folder(), move |_| behavior.clone());
    kube.remove_framework_kind();
    kube
}

#[test]
fn nni_s_own_file_runs_unchanged() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../manager/fixtures/config/kubeflow_v1.yml");
    let file = std::fs::read_to_string(path).expect("the fixture can be read");
    // Only the manager's address is specific to the site.
    let file = file.replace("nniManagerIp: 10.10.10.10", "nniManagerIp: 127.0.0.1");
    bed.write("experiment.yml", &file);
    bed.write("ss.json", r#"{"x": {"_type": "uniform", "_value": [0, 1]}}"#);
    let record = r#"{"parameter_id": 0, "trial_job_id": "t", "type": "FINAL", "sequence": 0, "value": "0.75"}"#;
    bed.write("dist_mnist.py", &format!("print(\"\"\"NNISDK_MEb'{record}'\"\"\")\n"));
    let kubeconfig = bed.path("kubeconfig");
    kube.write_kubeconfig(&kubeconfig);
    let mut command = bed.manager_command();
    command.args(["run", "experiment.yml", "--host", "127.0.0.1", "--port", "0"]);
    command.args(["--output", "json", "--data-dir"]).arg(bed.data_folder());
    command.env("KUBECONFIG", kubeconfig);
    let outcome = Outcome::parse(bed.start(&mut command).finish(WAIT_TIMEOUT));
    outcome.expect_done(5, 0);
    assert_eq!(outcome.trial(0).final_result, json!(0.75));
    kube.wait_until_empty();
    let jobs = kube.created_objects("tfjobs");
    let job = jobs.iter().find(|job| job["spec"]["runPolicy"]["suspend"].is_null()).unwrap();
    assert_eq!(job["apiVersion"], "kubeflow.org/v1");
    let pod = &job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"];
    let limits = json!({"cpu": "1", "memory": "8192Mi", "nvidia.com/gpu": "1"});
    assert_eq!(pod["containers"][0]["resources"]["limits"], limits);
    let nfs = pod["volumes"].as_array().unwrap().iter().find_map(|volume| volume.get("nfs"));
    assert_eq!(nfs.unwrap()["server"], "10.10.10.11");
}

#[test]
fn the_pods_of_a_pytorchjob_find_one_another_and_the_master_reports() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo $TRIALKEEPER_ROLE:$TRIALKEEPER_ROLE_INDEX/$TRIALKEEPER_WORLD_SIZE >>\"$TEST_BED/ranks\"; echo score=$TRIALKEEPER_RANK";
    let roles = json!({
        "operator": "pytorch-operator",
        "master": {"replicas": 1, "dockerImage": "any"},
        "worker": {"replicas": 2, "dockerImage": "any"},
    });
    let outcome = run(&bed, &TF_JOB.search(&bed, &kube, line, 1, &roles));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(0));
    assert_eq!(sorted_lines(&bed, "ranks"), ["master:0/3", "worker:0/3", "worker:1/3"]);
    kube.wait_until_empty();
}

#[test]
fn a_parameter_server_ends_with_its_trial() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let roles = json!({
        "worker": {"replicas": 1, "dockerImage": "any", "command": "echo score=0.5"},
        "ps": {"replicas": 1, "dockerImage": "any", "command": "exec sleep 600"},
    });
    let outcome = run(&bed, &TF_JOB.search(&bed, &kube, "true", 1, &roles));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(0.5));
    kube.wait_until_empty();
}

#[test]
fn the_deciding_pod_settles_a_job_that_is_both_succeeded_and_failed() {
    for (master, worker, done) in [("echo score=0.5", "exit 1", true), ("exit 3", "true", false)] {
        let bed = TestBed::new();
        let kube = start_cluster_with(&bed, Behavior::ProcessesWithRacedStatus);
        let roles = json!({
            "operator": "pytorch-operator",
            "master": {"replicas": 1, "dockerImage": "any", "command": master},
            "worker": {"replicas": 1, "dockerImage": "any", "command": worker},
        });
        let outcome = run(&bed, &TF_JOB.search(&bed, &kube, "true", 1, &roles));
        outcome.expect_done(usize::from(done), usize::from(!done));
        if done {
            assert_eq!(outcome.trial(0).final_result, json!(0.5));
        } else {
            assert!(outcome.stderr.contains("FAILED (exit code 3)"), "{}", outcome.stderr);
        }
        let both = |job: &Value| {
            let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
            let kinds: Vec<_> = conditions.into_iter().flatten().map(|one| &one["type"]).collect();
            kinds.contains(&&json!("Succeeded")) && kinds.contains(&&json!("Failed"))
        };
        assert_eq!(
            kube.first_matches("pytorchjobs", both).len(),
            usize::from(done),
            "both conditions must have been set"
        );
        kube.wait_until_empty();
    }
}

#[test]
fn a_job_with_missing_and_reordered_conditions_runs_to_its_end() {
    let bed = TestBed::new();
    let kube = start_cluster_with(&bed, Behavior::ProcessesWithRacedStatus);
    let line = "echo score={{x}}; [ \"$NNI_TRIAL_SEQ_ID\" != 1 ]";
    let outcome = run(&bed, &TF_JOB.search(&bed, &kube, line, 3, &json!({})));
    outcome.expect_done(2, 1);
    let created = |job: &Value| job.to_string().contains("TFJobCreated");
    let trials = kube.first_matches("tfjobs", created);
    assert!(!trials.iter().any(|(job, _)| is_of_trial(job)), "{trials:?}");
    kube.wait_until_empty();
}

#[test]
fn the_deployed_role_matches_the_rights_used_for_tfjobs() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let mut given = crate::kubernetes::deploy::manager_rights();
    let of_tfjobs =
        |right: &String| right.starts_with('/') || right.starts_with("kubeflow.org/tfjobs ");
    given.retain(of_tfjobs);
    given.sort();
    kube.limit_rights(given.clone());
    let line = format!("echo score=1; {ENDLESS_TRIAL}");
    let running = TF_JOB.start(&bed, &kube, &line, &json!({}));
    wait_for_starts(&bed, 1);
    running.signal(nix::sys::signal::Signal::SIGINT);
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(130));
    kube.wait_until_empty();
    // Only a resumed manager renews a trial's token in its Secret.
    let needed = |rights: Vec<String>| {
        rights.into_iter().filter(|right| right != "/secrets patch").collect::<Vec<_>>()
    };
    assert_eq!(needed(kube.used_rights()), needed(given.clone()));
    let mut asked = kube.checked_rights();
    asked.retain(|right| right != "/pods create" && of_tfjobs(right));
    // Without this right, objects are deleted one by one.
    given.retain(|right| right != "kubeflow.org/tfjobs deletecollection");
    assert_eq!(asked, given, "all rights must be checked before the first submission");
}

#[test]
fn the_operator_s_own_role_suffices_to_delete_jobs() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.remove_right("deletecollection tfjobs");
    run(&bed, &TF_JOB.search(&bed, &kube, "echo score=1", 2, &json!({}))).expect_done(2, 0);
    kube.wait_until_empty();
}

#[test]
fn missing_parts_of_a_cluster_are_reported_before_anything_is_submitted() {
    #[rustfmt::skip]
    TF_JOB.expect_refusals(&[
        ("no such kind", |kube| kube.remove_kind("tfjobs"),
            &["does not serve TFJobs", "training operator (version 1) is not installed", "kubectl apply", "`platform: kubernetes`, which needs no operator"]),
        ("missing rights", |kube| kube.remove_right("create tfjobs"),
            &["lacks these rights in the namespace `lab`: create tfjobs", "deploy/"]),
        ("an operator that is not at work", |kube| kube.set_controllers_running(false),
            &["the training operator has not noticed a new TFJob", "does its pod run"]),
    ]);
}
