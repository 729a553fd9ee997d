//! Tests of the training operator's jobs: against recordings of the real operator, and against the section of the
//! experiment file.

use std::time::Duration;

use proptest::prelude::*;
use trial_protocol::Class;

use super::*;
use crate::training_service::kubernetes::manifest::tests::{job, workload_settings};
use crate::training_service::kubernetes::manifest::trial_containers;
use crate::training_service::kubernetes::pod_end;
use crate::training_service::kubernetes::workload::tests::recorded::{
    self, OVER_LIMIT, TRANSIENT, assert_ends, ends, only_end,
};
use crate::training_service::{JobEndEvent, JobNews};

/// Returns the section of `platform: kubeflow` with these roles and their numbers of pods.
fn section(operator: &str, roles: &[(&str, u64)]) -> Value {
    let mut section = json!({"platform": "kubeflow", "operator": operator, "agent": "image"});
    for (role, replicas) in roles {
        section[*role] = json!({
            "replicas": replicas, "dockerImage": "i:1", "command": format!("python3 {role}.py"),
            "cpuNumber": 1, "memorySize": 512, "gpuNumber": 1,
        });
    }
    section
}

fn kind_of(case: &str) -> (&'static TrainingJob, &'static str, &'static str) {
    match case.split_once('/') {
        Some(("tfjob", _)) => (&TF_JOB, "tf-operator", "worker"),
        _ => (&PYTORCH_JOB, "pytorch-operator", "master"),
    }
}

/// Returns the news about a recorded job with these roles.
fn news_of_recording(case: &str, roles: &[(&str, u64)]) -> Vec<JobNews> {
    let (kind, operator, _) = kind_of(case);
    recorded::news_of_recording(kind, &workload_settings(&section(operator, roles)).spec, case)
}

#[test]
fn every_recorded_end_is_reported_correctly() {
    let one: &[(&str, u64)] = &[("worker", 1)];
    let with_ps: &[(&str, u64)] = &[("worker", 1), ("ps", 1)];
    let master: &[(&str, u64)] = &[("master", 1)];
    let two: &[(&str, u64)] = &[("master", 1), ("worker", 1)];
    #[rustfmt::skip]
    let table = [
        ("tfjob/exit0",                       one,     Some(0),   "its pod succeeded", None, None),
        ("tfjob/exit1",                       one,     Some(1),   "the container ended with exit code 1", None, None),
        ("tfjob/oom",                         one,     Some(137), "out of memory", OVER_LIMIT, None),
        ("tfjob/sigkill",                     one,     Some(137), "the container ended with exit code 137", None, None),
        // The job failed 20 ms after the deletionTimestamp, while the process still runs.
        ("tfjob/pod-deleted",                 one,     None,      "the trial's pod was deleted", TRANSIENT, None),
        ("tfjob/pod-deleted-exit0",           one,     None,      "the trial's pod was deleted", TRANSIENT, None),
        ("tfjob/pod-force-deleted",           one,     None,      "the trial's pod was deleted", TRANSIENT, None),
        ("tfjob/pod-evicted",                 one,     None,      "its pod was removed: ", TRANSIENT, Some("EvictionByEvictionAPI")),
        ("tfjob/node-lost",                   one,     None,      "its pod was removed: its node got a taint", TRANSIENT, Some("DeletionByTaintManager")),
        // The operator ends the parameter server, and counts it as succeeded.
        ("tfjob/two-one-succeeds",            with_ps, Some(0),   "its pod succeeded", None, None),
        ("tfjob/two-one-fails",               with_ps, Some(1),   "the container ended with exit code 1", None, None),
        // The deciding role has succeeded 20 ms after another one failed, and the operator ends both.
        ("tfjob/chief-ok-worker-fails",       with_ps, Some(1),   "ps 0: the container ended with exit code 1", None, None),
        ("tfjob/two-workers-one-fails",       &[("worker", 2)], Some(1), "worker 1: the container ended with exit code 1", None, None),
        ("tfjob/suspended-then-resumed",      one,     Some(0),   "its pod succeeded", None, None),
        ("tfjob/quota-refuses-pod",           one,     Some(0),   "its pod succeeded", None, None),
        ("tfjob/exit0-at-once",               one,     Some(0),   "its pod succeeded", None, None),
        ("tfjob/operator-absent",             one,     Some(0),   "its pod succeeded", None, None),
        ("tfjob/operator-down-at-create",     one,     Some(0),   "its pod succeeded", None, None),
        ("tfjob/operator-down-pod-fails",     one,     Some(1),   "the container ended with exit code 1", None, None),
        ("pytorchjob/exit0",                  master,  Some(0),   "its pod succeeded", None, None),
        ("pytorchjob/exit1",                  master,  Some(1),   "the container ended with exit code 1", None, None),
        ("pytorchjob/oom",                    master,  Some(137), "out of memory", OVER_LIMIT, None),
        ("pytorchjob/sigkill",                master,  Some(137), "the container ended with exit code 137", None, None),
        ("pytorchjob/quota-refuses-pod",      master,  Some(0),   "its pod succeeded", None, None),
        ("pytorchjob/suspended-then-resumed", master,  Some(0),   "its pod succeeded", None, None),
        ("pytorchjob/operator-down-at-create", master, Some(0),   "its pod succeeded", None, None),
        ("pytorchjob/operator-down-pod-fails", master, Some(1),   "the container ended with exit code 1", None, None),
        ("pytorchjob/pod-deleted",            master,  None,      "the trial's pod was deleted", TRANSIENT, None),
        ("pytorchjob/pod-deleted-exit0",      master,  None,      "the trial's pod was deleted", TRANSIENT, None),
        ("pytorchjob/pod-force-deleted",      master,  None,      "the trial's pod was deleted", TRANSIENT, None),
        ("pytorchjob/node-lost",              master,  None,      "its pod was removed: its node got a taint", TRANSIENT, Some("DeletionByTaintManager")),
        ("pytorchjob/pod-evicted",            master,  None,      "its pod was removed: ", TRANSIENT, Some("EvictionByEvictionAPI")),
        ("pytorchjob/two-one-succeeds",       two,     Some(0),   "its pod succeeded", None, None),
        ("pytorchjob/two-one-fails",          two,     Some(1),   "worker 0: the container ended with exit code 1", None, None),
    ];
    for (case, roles, exit_code, message, class, taken) in table {
        let news = news_of_recording(case, roles);
        assert_ends(case, &news, (exit_code, message, class, taken));
    }
}

#[test]
fn a_job_that_another_client_deletes_ends_with_its_pods() {
    let cases =
        ["delete-background", "delete-foreground", "delete-no-policy", "badimage", "toobig"];
    for (kind, role) in [("tfjob", "worker"), ("pytorchjob", "master")] {
        for case in cases {
            let news = news_of_recording(&format!("{kind}/{case}"), &[(role, 1)]);
            let end = only_end(case, &news);
            assert_eq!((end.exit_code, end.class), (None, Some(Class::Transient)), "{case}");
            let message = end.message.as_deref().unwrap_or_default();
            assert!(message.ends_with("Job was deleted, but not by the manager"), "{message}");
        }
    }
}

#[test]
fn a_job_without_a_status_ends_with_its_deciding_pod() {
    // The worker is denied, and the operator writes no status although the master succeeds.
    let case = "pytorchjob/podsecurity-restricted";
    let spec =
        workload_settings(&section("pytorch-operator", &[("master", 1), ("worker", 1)])).spec;
    let news = recorded::news_of_recording(&PYTORCH_JOB, &spec, case);
    assert_eq!(ends(&news), Vec::<&JobEndEvent>::new());
    let news = recorded::news_after(&PYTORCH_JOB, &spec, case, Duration::from_secs(70));
    let end = only_end(case, &news);
    assert!(end.succeeded && end.exit_code == Some(0), "{end:?}");
}

#[test]
fn a_recreated_pod_does_not_end_its_job() {
    for (kind, role) in [("tfjob", "worker"), ("pytorchjob", "master")] {
        let case = format!("{kind}/operator-down-pod-deleted");
        let news = news_of_recording(&case, &[(role, 1)]);
        assert_eq!(ends(&news), Vec::<&JobEndEvent>::new(), "{case}");
    }
}

#[test]
fn a_job_that_its_queue_takes_back_waits_and_has_not_ended() {
    for (case, role) in
        [("kueue/tfjob-preempted", "worker"), ("kueue/pytorchjob-preempted", "master")]
    {
        let name = case.trim_start_matches("kueue/").replace('-', "/");
        let (kind, operator, _) = kind_of(&name);
        let mut section = section(operator, &[(role, 1)]);
        section["queue"] = json!("team");
        let spec = workload_settings(&section).spec;
        let news = recorded::news_of_recording(kind, &spec, case);
        let back = news.iter().filter(|news| matches!(news, JobNews::Requeued(_)));
        assert_eq!(back.count(), 1, "{news:?}");
        assert_eq!(ends(&news), Vec::<&JobEndEvent>::new());
    }
}

#[test]
fn the_end_of_a_job_is_read_from_pods_that_outlive_their_trials() {
    let pod = |name: &str, container: &str, code: Option<u8>| {
        let state = match code {
            Some(code) => {
                json!({"terminated": {"exitCode": code, "startedAt": "2026-11-23T00:00:00Z"}})
            }
            None => json!({"running": {}}),
        };
        let containers = json!([
            {"name": container, "state": state}, {"name": "istio-proxy", "state": {"running": {}}},
        ]);
        json!({
            "metadata": {"name": format!("tkx-{name}")},
            "status": {"phase": "Running", "containerStatuses": containers},
        })
    };
    let tf = |name: &str, code| pod(name, "tensorflow", code);
    let torch = |name: &str, code| pod(name, "pytorch", code);
    let workers: &[(&str, u64)] = &[("worker", 2), ("ps", 1)];
    let two: &[(&str, u64)] = &[("master", 1), ("worker", 1)];
    #[rustfmt::skip]
    let table = [
        (&TF_JOB, workers, vec![tf("worker-0", None), tf("worker-1", Some(0)), tf("ps-0", None)], None),
        (&TF_JOB, workers, vec![tf("worker-0", Some(0)), tf("worker-1", None), tf("ps-0", None)], Some((true, Some(0)))),
        (&TF_JOB, workers, vec![tf("worker-0", None), tf("worker-1", Some(3)), tf("ps-0", None)], Some((false, Some(3)))),
        (&PYTORCH_JOB, two, vec![torch("master-0", None), torch("worker-0", Some(0))], None),
        (&PYTORCH_JOB, two, vec![torch("master-0", Some(0)), torch("worker-0", None)], Some((true, Some(0)))),
        (&PYTORCH_JOB, two, vec![torch("master-0", None), torch("worker-0", Some(137))], Some((false, Some(137)))),
        (&PYTORCH_JOB, two, Vec::new(), None),
    ];
    for (kind, roles, pods, expected) in table {
        let operator =
            if kind.kind == WorkloadKind::TfJob { "tf-operator" } else { "pytorch-operator" };
        let spec = workload_settings(&section(operator, roles)).spec;
        let trial = trial_containers(&spec, kind.container_name());
        let seen: Vec<Value> =
            pods.iter().map(|pod| pod_end::without_other_containers(pod.clone(), &trial)).collect();
        let read = |pods: &[Value]| kind.outcome_from_pods(&spec, pods, &trial);
        let found = read(&seen).map(|end| (end.succeeded, end.exit_code));
        assert_eq!(found, expected, "{pods:?}");
        assert_eq!(read(&pods), None, "the pods themselves have not ended");
    }
}

#[test]
fn the_phase_of_a_job_follows_from_its_conditions_and_counts() {
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "M"});
    let created = condition("Created", "True");
    let running = condition("Running", "True");
    let at = |conditions: &[Value], counts: Value| json!({"spec": {}, "status": {"conditions": conditions, "replicaStatuses": counts}});
    let one = json!({"Worker": {"active": 1}, "PS": {}});
    let both = json!({"Worker": {"active": 1}, "PS": {"active": 1}});
    let suspend =
        |status: Value| json!({"spec": {"runPolicy": {"suspend": true}}, "status": status});
    #[rustfmt::skip]
    let table = [
        (json!({}),                                                   WorkloadPhase::Unseen),
        (json!({"status": {}}),                                       WorkloadPhase::Unseen),
        (suspend(Value::Null),                                        WorkloadPhase::Suspended),
        (at(std::slice::from_ref(&created), json!({"Worker": {}})),   WorkloadPhase::Waiting),
        (at(&[running.clone(), created.clone()], one.clone()),        WorkloadPhase::Starting),
        (at(&[running.clone(), created.clone()], both.clone()),       WorkloadPhase::Running),
        // The condition Created may never appear.
        (at(std::slice::from_ref(&running), both.clone()),            WorkloadPhase::Running),
        (at(&[condition("Suspended", "True")], json!({})),            WorkloadPhase::Suspended),
        (at(&[running, condition("Suspended", "False")], both),       WorkloadPhase::Running),
        (at(&[condition("Restarting", "True")], json!({"Worker": {}})), WorkloadPhase::Waiting),
    ];
    let spec = workload_settings(&section("tf-operator", &[("worker", 1), ("ps", 1)])).spec;
    for (object, expected) in table {
        assert_eq!(phase(&object, &spec), expected, "{object}");
    }
}

#[test]
fn the_deciding_pod_counts_if_a_job_has_both_succeeded_and_failed() {
    let spec = workload_settings(&section("tf-operator", &[("worker", 2)])).spec;
    let condition = |kind: &str| json!({"type": kind, "status": "True", "message": "TFJob lab/tkx has failed because 1 Worker replica(s) failed."});
    let object = json!({"status": {"conditions": [condition("Succeeded"), condition("Failed")]}});
    let WorkloadPhase::Completed(outcome) = phase(&object, &spec) else { panic!() };
    let pod = |index: u64, code: i32| {
        let state = json!({"terminated": {"exitCode": code, "reason": "Error", "startedAt": "t"}});
        json!({"metadata": {"name": format!("tkx-worker-{index}")}, "status": {"containerStatuses": [{"name": "tensorflow", "state": state}]}})
    };
    let good = explain_failure(outcome.clone(), &[pod(0, 0), pod(1, 1)], &[]);
    assert!(good.succeeded && good.exit_code == Some(0), "{good:?}");
    let bad = explain_failure(outcome, &[pod(0, 3), pod(1, 0)], &[]);
    assert!(!bad.succeeded && bad.exit_code == Some(3), "{bad:?}");
}

#[test]
fn the_message_names_a_failed_init_container_of_the_operator() {
    let spec =
        workload_settings(&section("pytorch-operator", &[("master", 1), ("worker", 1)])).spec;
    let condition = json!({"type": "Failed", "status": "True", "message": "PyTorchJob tkx is failed because 1 Worker replica(s) failed."});
    let WorkloadPhase::Completed(outcome) =
        phase(&json!({"status": {"conditions": [condition]}}), &spec)
    else {
        panic!()
    };
    let state = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "nslookup: can't resolve", "startedAt": "t"}});
    let worker = json!({"metadata": {"name": "tkx-worker-0"}, "status": {"phase": "Failed", "initContainerStatuses": [{"name": "init-pytorch", "state": state}]}});
    let explained = explain_failure(outcome, &[worker], &[]);
    assert_eq!(
        explained.message,
        "worker 0: the container ended with exit code 1: nslookup: can't resolve"
    );
}

#[test]
fn a_job_has_its_roles() {
    let mut wanted = section("tf-operator", &[("worker", 2), ("ps", 1)]);
    wanted["queue"] = json!("research");
    let made = TF_JOB.manifest(&workload_settings(&wanted), &job());
    assert_eq!((&made["apiVersion"], &made["kind"]), (&json!("kubeflow.org/v1"), &json!("TFJob")));
    assert_eq!(made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "research");
    assert_eq!(made["spec"]["runPolicy"], json!({"cleanPodPolicy": "Running", "suspend": true}));
    let roles = made["spec"]["tfReplicaSpecs"].as_object().unwrap();
    assert_eq!(roles.keys().collect::<Vec<_>>(), ["Worker", "PS"]);
    for (role, own, replicas) in [("Worker", "worker", 2), ("PS", "ps", 1)] {
        let replica = &roles[role];
        assert_eq!(
            (&replica["replicas"], &replica["restartPolicy"]),
            (&json!(replicas), &json!("Never"))
        );
        let pod = &replica["template"]["spec"];
        assert_eq!(pod.get("restartPolicy"), None, "the operator warns of a second policy");
        let container = &pod["containers"][0];
        assert_eq!(container["name"], "tensorflow");
        assert_eq!(
            container["command"],
            json!(["trialkeeper", "run", "--shell", format!("python3 {own}.py")])
        );
        let variable = |name: &str| {
            container["env"]
                .as_array()
                .unwrap()
                .iter()
                .find(|known| known["name"] == name)
                .cloned()
                .unwrap()
        };
        assert_eq!(variable("TRIALKEEPER_ROLE")["value"], own);
        assert_eq!(variable("TRIALKEEPER_PLATFORM")["value"], "kubeflow");
        let field =
            |name: &str| variable(name).pointer("/valueFrom/fieldRef/fieldPath").cloned().unwrap();
        assert_eq!(field("TRIALKEEPER_ROLE_INDEX"), INDEX_LABEL);
        assert_eq!(field("TRIALKEEPER_INCARNATION"), "metadata.uid");
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "1");
        assert_eq!(replica["template"]["metadata"]["labels"], job_labels(&made));
    }
    let alone =
        TF_JOB.manifest(&workload_settings(&section("tf-operator", &[("worker", 1)])), &job());
    assert_eq!(alone["spec"]["runPolicy"], json!({"cleanPodPolicy": "Running"}));
}

/// Returns the labels of a job's pods: those of the job without the queue's, and those that exclude a service mesh.
fn job_labels(made: &Value) -> Value {
    let mut labels = made["metadata"]["labels"].clone();
    labels.as_object_mut().unwrap().retain(|name, _| !name.starts_with("kueue"));
    labels["sidecar.istio.io/inject"] = json!("false");
    labels
}

#[test]
fn the_kinds_differ_only_in_names() {
    #[rustfmt::skip]
    let table = [
        (&PYTORCH_JOB, "pytorch-operator", "pytorchReplicaSpecs", "pytorch", "Master"),
        (&XGBOOST_JOB, "xgboost-operator", "xgbReplicaSpecs",     "xgboost", "Master"),
        (&PADDLE_JOB,  "paddle-operator",  "paddleReplicaSpecs",  "paddle",  "Master"),
        (&TF_JOB,      "tf-operator",      "tfReplicaSpecs",      "tensorflow", "Worker"),
    ];
    for (kind, operator, roles, container, role) in table {
        let own: &[(&str, u64)] =
            if role == "Master" { &[("master", 1), ("worker", 2)] } else { &[("worker", 2)] };
        let settings = workload_settings(&section(operator, own));
        let made = kind.manifest(&settings, &job());
        assert_eq!(made["spec"][roles].as_object().unwrap().len(), own.len(), "{operator}");
        let at = format!("/spec/{roles}/{role}/template/spec/containers/0/name");
        assert_eq!(made.pointer(&at), Some(&json!(container)), "{operator}");
        let probe = kind.probe_object(&settings.experiment, "lab");
        assert_eq!(probe.pointer(&at), Some(&json!(container)), "{operator}");
        assert_eq!(probe["spec"]["runPolicy"]["suspend"], true);
        let gate = format!("/spec/{roles}/{role}/template/spec/schedulingGates/0/name");
        assert_eq!(probe.pointer(&gate), Some(&json!("trialkeeper/probe")), "{operator}");
        assert!(kind.installation_advice().contains(kind.kind.object()), "{operator}");
        let names: Vec<String> =
            kind.example_pods(&settings).into_iter().map(|(role, _)| role).collect();
        for (role, pod) in kind.example_pods(&settings) {
            let init = pod.pointer("/spec/initContainers/0/name").and_then(Value::as_str);
            let expected =
                (operator == "pytorch-operator" && role == "worker").then_some("init-pytorch");
            assert_eq!(init, expected, "{operator} {role}: the operator's container");
        }
        assert_eq!(names, own.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn random_statuses_never_panic(kind in "[A-Za-z]{0,10}", status in "True|False|[a-z]{0,4}", number in any::<u64>(), name in "[a-z-]{0,12}[0-9]{0,30}") {
        let spec = workload_settings(&section("tf-operator", &[("worker", 1)])).spec;
        let replicas = json!({"Worker": {"active": number, "failed": number, "succeeded": kind}});
        for kind in ["Failed", "Succeeded", kind.as_str()] {
            let object = json!({"metadata": {"name": name, "deletionTimestamp": status}, "status": {
                "conditions": [{"type": kind, "status": status, "message": number}, 3],
                "replicaStatuses": replicas, "phase": kind,
            }});
            if let WorkloadPhase::Completed(outcome) = phase(&object, &spec) {
                let outcome = explain_failure(outcome, std::slice::from_ref(&object), &[]);
                prop_assert!(!outcome.needs_pods);
            }
        }
    }
}
