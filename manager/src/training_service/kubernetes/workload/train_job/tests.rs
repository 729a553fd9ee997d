//! Tests of `TrainJob`s: against recordings of the real controller, and against the section of the experiment file.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::training_service::JobNews;
use crate::training_service::kubernetes::manifest::tests::{job, workload_settings};
use crate::training_service::kubernetes::shared_disk::SharedDisk;
use crate::training_service::kubernetes::workload::tests::recorded::{
    OVER_LIMIT, TRANSIENT, assert_ends, ends, news_after, news_of_recording,
};

/// Returns the section for trials with this number of pods.
fn section(pods: u64) -> Value {
    json!({
        "platform": "trainer", "agent": "image", "dockerImage": "i:1", "taskNumber": pods,
        "cpuNumber": 1, "memorySize": 512, "gpuNumber": 1,
    })
}

fn queued_settings(pods: u64) -> WorkloadSettings {
    let mut section = section(pods);
    (section["queue"], section["priorityClass"]) = (json!("research"), json!("low"));
    workload_settings(&section)
}

#[test]
fn a_missing_runtime_is_known_by_the_words_of_either_webhook() {
    let denied = |webhook: &str, words: &str| {
        format!(
            "the cluster at https://k refuses the object: admission webhook \"{webhook}\" denied the request: {words}"
        )
    };
    let own = "spec.runtimeRef: Invalid value: {}: TrainingRuntime.trainer.kubeflow.org \"tk\" not found: specified trainingRuntime must be created before the TrainJob is created";
    #[rustfmt::skip]
    let table = [
        (denied("validator.trainjob.trainer.kubeflow.org", own), true),
        (denied("vtrainjob.kb.io", "runtime 'tk' not found"), true),
        (denied("vtrainjob.kb.io", "metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value"), false),
        (denied("validate.kyverno.svc", "image not found"), false),
    ];
    for (refusal, expected) in table {
        assert_eq!(TrainJob.is_missing_shared_object(&refusal), expected, "{refusal}");
    }
}

#[test]
fn every_recorded_end_is_reported_correctly() {
    const REMOVED: &str = "its TrainJob was deleted, but not by the manager";
    #[rustfmt::skip]
    let table = [
        ("exit0",                        1, Some(0),   "its pod succeeded", None, None),
        ("exit1",                        1, Some(1),   "the container ended with exit code 1", None, None),
        ("oom",                          1, Some(137), "out of memory", OVER_LIMIT, None),
        ("sigkill",                      1, Some(137), "the container ended with exit code 137", None, None),
        ("pod-deleted",                  1, Some(143), "the trial's pod was deleted", TRANSIENT, None),
        ("pod-evicted",                  1, Some(143), "its pod was removed: ", TRANSIENT, Some("EvictionByEvictionAPI")),
        ("two-nodes-one-fails",          2, Some(1),   "node 1: the container ended with exit code 1", None, None),
        ("torch-env",                    2, Some(0),   "its pod succeeded", None, None),
        ("suspended-then-resumed",       1, Some(0),   "its pod succeeded", None, None),
        ("quota-refuses-pod",            1, Some(0),   "its pod succeeded", None, None),
        // The Trainer does not run when the pod ends.
        ("controller-down",              1, Some(1),   "the container ended with exit code 1", None, None),
        // Afterwards the Trainer runs the trial again: it removes the condition, and another pod starts. The end was
        // already reported.
        ("jobset-deleted-after-failed",  1, Some(1),   "the container ended with exit code 1", None, None),
        ("jobset-deleted-after-complete", 1, Some(0),  "its pod succeeded", None, None),
        // The runtime is deleted while the trial runs.
        ("runtime-in-use",               1, Some(0),   "its pod succeeded", None, None),
        ("deadline",                     1, None,      "its TrainJob ran longer than its activeDeadlineSeconds", OVER_LIMIT, Some("DeadlineExceeded")),
        ("delete-background",            1, None,      REMOVED, TRANSIENT, None),
        ("delete-foreground",            1, None,      REMOVED, TRANSIENT, None),
        ("delete-no-policy",             1, None,      REMOVED, TRANSIENT, None),
        ("badimage",                     1, None,      REMOVED, TRANSIENT, None),
    ];
    for (case, pods, exit_code, message, class, taken) in table {
        let news = news_of_recording(
            &TrainJob,
            &workload_settings(&section(pods)).spec,
            &format!("trainjob/{case}"),
        );
        assert_ends(case, &news, (exit_code, message, class, taken));
    }
}

#[test]
fn a_train_job_that_its_queue_takes_back_waits_and_has_not_ended() {
    let (spec, case) = (queued_settings(1).spec, "kueue/trainjob-preempted");
    let news = news_after(&TrainJob, &spec, case, Duration::from_secs(70));
    let back = news.iter().filter_map(|news| {
        let JobNews::Requeued(waits) = news else { return None };
        Some(waits.why.as_str())
    });
    let back: Vec<&str> = back.collect();
    assert_eq!(back.len(), 1, "{news:?}");
    assert!(back[0].contains("Preempted to accommodate a workload"), "{back:?}");
    assert_eq!(ends(&news), Vec::<&crate::training_service::JobEndEvent>::new());
}

#[test]
fn the_phase_of_a_train_job_follows_from_its_jobs_and_conditions() {
    let spec = workload_settings(&section(1)).spec;
    let at = |suspend: bool, status: Value| json!({"spec": {"suspend": suspend}, "status": status});
    let jobs = |what: &str| json!({"jobsStatus": [{"name": "node", what: 1}]});
    let ends = |kind: &str, reason: &str| {
        let end = json!({"type": kind, "status": "True", "reason": reason, "message": "M"});
        json!({"conditions": [{"type": "Suspended", "status": "False", "reason": "Resumed"}, end]})
    };
    let resumed = json!({"conditions": [{"type": "Suspended", "status": "False"}], "jobsStatus": [{"ready": 1}]});
    #[rustfmt::skip]
    let table = [
        (json!({}),                      WorkloadPhase::Unseen),
        (at(false, json!({})),           WorkloadPhase::Unseen),
        (at(true, json!({})),            WorkloadPhase::Suspended),
        (at(true, jobs("suspended")),    WorkloadPhase::Suspended),
        (at(false, jobs("active")),      WorkloadPhase::Waiting),
        (at(false, jobs("ready")),       WorkloadPhase::Running),
        (at(false, resumed),             WorkloadPhase::Running),
    ];
    for (object, expected) in table {
        assert_eq!(phase(&object, &spec), expected, "{object}");
    }
    let outcome = |object: &Value| {
        let WorkloadPhase::Completed(outcome) = phase(object, &spec) else { panic!("{object}") };
        (outcome.succeeded, outcome.needs_pods, outcome.class)
    };
    let (permanent, transient) = (Some(Class::Permanent), Some(Class::Transient));
    #[rustfmt::skip]
    let table = [
        (at(false, ends("Complete", "AllJobsCompleted")),           (true, false, None)),
        (at(false, ends("Failed", "ReachedMaxRestarts")),           (false, true, None)),
        (at(false, ends("Failed", "FailedJobs")),                   (false, true, None)),
        (at(false, ends("Failed", "TrainingRuntimeNotSupported")),  (false, false, permanent)),
        // The queue took the trial back as its pod failed.
        (at(true, ends("Failed", "ReachedMaxRestarts")),            (false, true, transient)),
    ];
    for (object, expected) in table {
        assert_eq!(outcome(&object), expected, "{object}");
    }
}

/// Compares an object with its last reviewed form.
fn assert_reviewed(made: &Value, file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/training_service/kubernetes/workload/train_job/tests")
        .join(file);
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let known: Value = serde_json::from_str(&known).unwrap_or_default();
    assert_eq!(
        *made,
        known,
        "the manifest has changed; it is now\n{}",
        serde_json::to_string_pretty(made).unwrap()
    );
}

#[test]
fn the_manifests_of_a_train_job_and_its_runtime_match_the_reviewed_ones() {
    let settings = queued_settings(2);
    assert_reviewed(&TrainJob.manifest(&settings, &job()), "queued.json");
    let [(resource, runtime)] = TrainJob.shared_objects(&settings).try_into().unwrap();
    assert_eq!(resource, TRAINING_RUNTIMES);
    assert_reviewed(&runtime, "runtime.json");
}

#[test]
fn the_runtime_contains_no_trial_and_neither_object_contains_a_secret() {
    let settings = workload_settings(&section(1));
    let job = job();
    let runtime = TrainJob.shared_objects(&settings).remove(0).1.to_string();
    for own in [job.trial.as_str(), job.attempt.as_str(), "example", "TRIALKEEPER_TOKEN"] {
        assert!(!runtime.contains(own), "{own} is in {runtime}");
    }
    let made = TrainJob.manifest(&settings, &job);
    assert!(!made.to_string().contains(&job.token.0), "{made}");
    let env = made["spec"]["trainer"]["env"].as_array().unwrap();
    let token = env.iter().find(|variable| variable["name"] == "TRIALKEEPER_TOKEN").unwrap();
    let name = workload_name(&job.experiment, &job.attempt);
    assert_eq!(token["valueFrom"]["secretKeyRef"], json!({"name": name, "key": "token"}));
}

#[test]
fn the_pods_of_an_attempt_are_found_by_their_job_set() {
    let spec = workload_settings(&section(2)).spec;
    let label = TrainJob.pod_selector("tkx", &job().attempt);
    assert_eq!(label, "jobset.sigs.k8s.io/jobset-name=tkx");
    let pods = ["tkx-node-0-1-aaaaa".to_owned(), "tkx-node-0-0-bbbbb".to_owned()];
    assert_eq!(TrainJob.reporting_pod(&spec, "tkx", &pods).as_deref(), Some("tkx-node-0-0-bbbbb"));
}

#[test]
fn each_pod_on_a_shared_disk_has_its_own_folder() {
    let mut settings = workload_settings(&section(2));
    settings.shared_disk = Some(SharedDisk::Claim { name: "data".to_owned() });
    let made = TrainJob.manifest(&settings, &job());
    let env = made["spec"]["trainer"]["env"].as_array().unwrap();
    let at = |name: &str| env.iter().position(|variable| variable["name"] == name).unwrap();
    let folder = &env[at("TRIALKEEPER_OUTPUT_DIR")]["value"];
    assert_eq!(*folder, "/tmp/mount/nni/abcd1234/k3f9a/worker-$(TRIALKEEPER_ROLE_INDEX)");
    // Kubernetes expands only variables that were defined before.
    assert!(at("TRIALKEEPER_ROLE_INDEX") < at("TRIALKEEPER_OUTPUT_DIR"));
}

#[test]
fn the_pod_of_a_template_is_used_without_its_containers_name() {
    let pod = json!({"spec": {"containers": [{"name": "mine", "image": "i", "command": ["t"], "env": [{"name": "OWN", "value": "1"}]}]}});
    let mut section = section(1);
    section["template"] = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"template": pod}});
    let settings = workload_settings(&section);
    let runtime = TrainJob.shared_objects(&settings).remove(0).1;
    let body = &runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"];
    assert_eq!(body["template"]["spec"]["containers"][0]["name"], NODE_NAME);
    let rule = body.pointer("/podFailurePolicy/rules/1/onExitCodes/containerName");
    assert_eq!(rule, Some(&json!(NODE_NAME)));
    let made = TrainJob.manifest(&settings, &job());
    assert_eq!(made["metadata"]["labels"]["a"], "b");
    let env = made["spec"]["trainer"]["env"].as_array().unwrap();
    assert!(env.contains(&json!({"name": "OWN", "value": "1"})), "{env:?}");
}

proptest! {
    #[test]
    fn random_statuses_never_panic(kind in "[A-Za-z]{0,10}|Failed", message in ".{0,40}", number in any::<i64>()) {
        let object = json!({"metadata": {"name": message}, "spec": {"suspend": number}, "status": {
            "conditions": [{"type": kind, "status": "True", "message": message}, 3],
            "jobsStatus": [{"ready": number}, kind],
        }});
        if let WorkloadPhase::Completed(outcome) = phase(&object, &workload_settings(&section(1)).spec) {
            let outcome = TrainJob.explain_outcome(outcome, std::slice::from_ref(&object), &[]);
            prop_assert!(!outcome.needs_pods);
        }
    }
}
