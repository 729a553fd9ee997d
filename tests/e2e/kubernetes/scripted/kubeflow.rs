//! Trials as jobs of Kubeflow's training operator: NNI's own file, failures, roles and missing parts.

use std::path::Path;

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{
    ENDLESS_TRIAL, interrupt_running_search, run, run_command, search_with_service, service_section,
};

/// Returns a search whose trials are `TFJob`s of one worker. `changes` apply to the section.
fn search(bed: &TestBed, kube: &Kube, line: &str, trials: u32, changes: &Value) -> Search {
    let own = json!({
        "platform": "kubeflow",
        "operator": "tf-operator",
        "apiVersion": "v1",
        "worker": {"replicas": 1, "dockerImage": "any"},
    });
    search_with_service(bed, kube, line, trials, service_section(bed, own, changes))
}

fn start_cluster(bed: &TestBed) -> Kube {
    start_cluster_with(bed, Behavior::Processes)
}

fn start_cluster_with(bed: &TestBed, play: Behavior) -> Kube {
    let kube = Kube::start(bed.folder(), move |_| play.clone());
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
fn a_failing_worker_fails_its_trial_with_its_exit_code_and_output() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo 'ValueError: no' >&2; exit 3";
    let outcome = run(&bed, &search(&bed, &kube, line, 1, &json!({})));
    outcome.expect_done(0, 1);
    assert!(outcome.stderr.contains("FAILED (exit code 3)"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ValueError: no"), "{}", outcome.stderr);
    kube.wait_until_empty();
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
    let outcome = run(&bed, &search(&bed, &kube, line, 1, &roles));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(0));
    let ranks = bed.read("ranks");
    let mut ranks: Vec<&str> = ranks.lines().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["master:0/3", "worker:0/3", "worker:1/3"]);
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
    let outcome = run(&bed, &search(&bed, &kube, "true", 1, &roles));
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
        let outcome = run(&bed, &search(&bed, &kube, "true", 1, &roles));
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
    let outcome = run(&bed, &search(&bed, &kube, line, 3, &json!({})));
    outcome.expect_done(2, 1);
    let created = |job: &Value| job.to_string().contains("TFJobCreated");
    let trials = kube.first_matches("tfjobs", created);
    let is_of_trial =
        |(job, _): &(Value, _)| job.pointer("/metadata/labels/trialkeeper~1trial").is_some();
    assert!(!trials.iter().any(is_of_trial), "{trials:?}");
    kube.wait_until_empty();
}

#[test]
fn an_evicted_trial_is_tried_again() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo up >>\"$TEST_BED/up\"; until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";
    let search = search(&bed, &kube, line, 1, &json!({})).with("maxTrialRetries", 1);
    let running = bed.start(&mut run_command(&bed, &search));
    let runs = |times: usize| {
        wait_for("the trial to run", WAIT_TIMEOUT, || {
            (bed.read("up").lines().count() == times).then_some(())
        });
    };
    runs(1);
    let pod = kube.list("pods")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    kube.disrupt_pod(&pod, "EvictionByEvictionAPI", "Eviction API: evicting");
    runs(2);
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(1));
    let mut why = bed.manager_command();
    why.args(["trial", "why", "0", "--data-dir"]).arg(bed.data_folder());
    let output = String::from_utf8(bed.start(&mut why).finish(WAIT_TIMEOUT).stdout).unwrap();
    let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(output.contains("EvictionByEvictionAPI"), "{output}");
    assert!(output.contains("it is tried again (1 of 1)"), "{output}");
    kube.wait_until_empty();
}

#[test]
fn a_killed_trial_ends_its_job_and_its_pods() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let search = search(&bed, &kube, ENDLESS_TRIAL, 1, &json!({}));
    interrupt_running_search(&bed, &kube, &search, 1);
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
    let line = "echo up >>\"$TEST_BED/up\"; echo score=1; exec sleep 600";
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, line, 1, &json!({}))));
    wait_for("the trial to run", WAIT_TIMEOUT, || (!bed.read("up").is_empty()).then_some(()));
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
    run(&bed, &search(&bed, &kube, "echo score=1", 2, &json!({}))).expect_done(2, 0);
    kube.wait_until_empty();
}

#[test]
fn missing_parts_of_a_cluster_are_reported_before_anything_is_submitted() {
    type BreakCluster = fn(&Kube);
    #[rustfmt::skip]
    let table: [(&str, BreakCluster, &[&str]); 3] = [
        ("no such kind", |kube| kube.remove_kind("tfjobs"),
            &["does not serve TFJobs", "training operator (version 1) is not installed", "kubectl apply", "`platform: kubernetes`, which needs no operator"]),
        ("missing rights", |kube| kube.remove_right("create tfjobs"),
            &["lacks these rights in the namespace `lab`: create tfjobs", "deploy/"]),
        ("an operator that is not at work", |kube| kube.set_controllers_running(false),
            &["the training operator has not noticed a new TFJob", "does its pod run"]),
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
