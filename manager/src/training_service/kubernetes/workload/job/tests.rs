//! Tests of Jobs: against recordings of the real controller, and against the section of the experiment file.

use std::path::Path;

use proptest::prelude::*;
use trial_protocol::Class;

use super::*;
use crate::training_service::kubernetes::manifest::tests::{job, workload_settings};
use crate::training_service::kubernetes::manifest::trial_containers;
use crate::training_service::kubernetes::workload::tests::recorded::{
    self, OVER_LIMIT, TRANSIENT, assert_ends, ends, only_end,
};
use crate::training_service::{JobEndEvent, JobNews};

/// Returns the news about a recorded Job, in a queue or in none.
fn news_of_recording(case: &str) -> Vec<JobNews> {
    let queue = case.starts_with("kueue/").then_some("team");
    let section = json!({"platform": "kubernetes", "dockerImage": "i:1", "queue": queue});
    recorded::news_of_recording(&Job, &workload_settings(&section).spec, case)
}

#[test]
fn every_recorded_end_is_reported_correctly() {
    #[rustfmt::skip]
    let table = [
        ("job/exit0",                  Some(0),   "its pod succeeded", None, None),
        ("job/quota-refuses-pod",      Some(0),   "its pod succeeded", None, None),
        ("job/apiserver-down",         Some(1),   "the container ended with exit code 1", None, None),
        ("job/controller-killed",      Some(1),   "the container ended with exit code 1", None, None),
        ("job/kubelet-restarted",      Some(3),   "the container ended with exit code 3", None, None),
        ("job/exit1",                  Some(1),   "the container ended with exit code 1", None, None),
        ("job/exit139-segv",           Some(139), "the container ended with exit code 139", None, None),
        ("job/exit143-by-itself",      Some(143), "the container ended with exit code 143", None, None),
        ("job/oom",                    Some(137), "out of memory", OVER_LIMIT, None),
        ("job/oom-child",              Some(137), "out of memory", OVER_LIMIT, None),
        ("job/sigkill",                Some(137), "the container ended with exit code 137", None, None),
        ("job/badcmd",                 Some(128), "the command could not be started", OVER_LIMIT, None),
        ("job/emptydir-too-full",      Some(143), "the pod was evicted: Usage of EmptyDir volume", OVER_LIMIT, None),
        ("job/evicted-rule-failjob",   Some(143), "its pod was removed: ", TRANSIENT, Some("EvictionByEvictionAPI")),
        ("job/drain",                  Some(143), "its pod was removed: it was evicted through the API", TRANSIENT, Some("EvictionByEvictionAPI")),
        ("job/taint-noexecute",        Some(143), "its pod was removed: its node got a taint", TRANSIENT, Some("DeletionByTaintManager")),
        ("job/evicted-exit0",          Some(0),   "its pod succeeded", None, None),
        ("job/evicted-exit1",          Some(1),   "its pod was removed: ", TRANSIENT, Some("EvictionByEvictionAPI")),
        ("job/indexed-two-one-evicted", Some(143), "its pod was removed: ", TRANSIENT, Some("EvictionByEvictionAPI")),
        // Clusters before Kubernetes 1.31 drop the failure policy.
        ("job/evicted-no-policy",      Some(143), "its pod was removed: ", TRANSIENT, Some("EvictionByEvictionAPI")),
        ("job/exit1-backoff0-no-policy", Some(1), "the container ended with exit code 1", None, None),
        ("job/preempted-by-scheduler", Some(143), "its pod was removed: a pod of higher priority", TRANSIENT, Some("PreemptionByScheduler")),
        ("job/node-lost",              Some(143), "its pod was removed: its node got a taint", TRANSIENT, Some("DeletionByTaintManager")),
        ("job/pod-deleted-exit143",    Some(143), "the trial's pod was deleted", TRANSIENT, None),
        ("job/pod-force-deleted",      Some(143), "the trial's pod was deleted", TRANSIENT, None),
        ("job/controller-down-pod-deleted", Some(143), "the trial's pod was deleted", TRANSIENT, None),
        // An agent that gets a signal exits with 143. These are other programs.
        ("job/pod-deleted-exit0",      Some(0),   "its pod succeeded", None, None),
        ("job/pod-deleted-exit1",      Some(1),   "the container ended with exit code 1", None, None),
        ("job/indexed-two-ok",         Some(0),   "its pod succeeded", None, None),
        ("job/indexed-two-one-fails",  Some(1),   "the container ended with exit code 1", None, None),
        ("job/suspended-then-resumed", Some(0),   "its pod succeeded", None, None),
        ("job/deadline",               Some(143), "its Job ran longer than its activeDeadlineSeconds", OVER_LIMIT, Some("DeadlineExceeded")),
        // The pod failed while its queue took it back: a race for which the trial is not at fault.
        ("job/suspend-pod-exits-1-under-load", Some(1), "its queue took the trial back as its pod ended, ", TRANSIENT, Some("Suspended")),
        ("job/suspend-pod-exits-1-kept", Some(1), "its queue took the trial back as its pod ended, ", TRANSIENT, Some("Suspended")),
    ];
    for (case, exit_code, message, class, taken) in table {
        let news = news_of_recording(case);
        assert_ends(case, &news, (exit_code, message, class, taken));
    }
}

#[test]
fn a_job_that_another_client_deletes_ends_with_its_pods() {
    let cases = [
        "delete-background",
        "delete-foreground",
        "delete-no-policy",
        "deletecollection",
        "badimage",
        "toobig",
    ];
    for case in cases {
        let news = news_of_recording(&format!("job/{case}"));
        let message = "its Job was deleted, but not by the manager";
        assert_ends(case, &news, (None, message, TRANSIENT, None));
    }
}

/// A recording, the number of times that its Job is taken back, and the message and the disruption of its end.
type QueueCase = (&'static str, usize, Option<(&'static str, Option<&'static str>)>);

const SUCCESS: Option<(&str, Option<&str>)> = Some(("its pod succeeded", None));
const FAILED: Option<(&str, Option<&str>)> = Some(("the container ended with exit code 1", None));
const REMOVED: Option<(&str, Option<&str>)> =
    Some(("its Job was deleted, but not by the manager", None));

#[rustfmt::skip]
const QUEUE_CASES: &[QueueCase] = &[
    ("exit0",                        0, SUCCESS),
    ("exit1",                        0, FAILED),
    ("indexed-two-one-fails",        0, FAILED),
    // The recording ends when the Job runs again.
    ("preempted",                    1, None),
    ("preempted-exit0",              1, None),
    ("preempted-exit1",              1, None),
    ("preempted-sigkilled",          1, None),
    ("cohort-reclaimed",             1, None),
    ("workload-deleted",             1, None),
    ("never-fits",                   0, None),
    ("waits-then-admitted",          0, SUCCESS),
    ("partial-admission",            0, SUCCESS),
    ("localqueue-hold-before",       0, SUCCESS),
    ("localqueue-hold-running",      0, SUCCESS),
    ("localqueue-drained",           1, SUCCESS),
    ("localqueue-missing",           0, SUCCESS),
    ("localqueue-default",           0, SUCCESS),
    ("clusterqueue-drained",         1, SUCCESS),
    ("clusterqueue-missing",         0, SUCCESS),
    ("priority-class-missing",       0, SUCCESS),
    ("no-queue-name",                0, SUCCESS),
    // No condition reports the suspension, but the pod was deleted.
    ("suspended-by-hand",            1, SUCCESS),
    ("unsuspended-by-hand",          0, None),
    ("labels-changed-while-running", 0, None),
    ("kueue-killed",                 0, SUCCESS),
    ("kueue-down-at-end",            0, SUCCESS),
    ("pod-evicted",                  0, Some(("its pod was removed: ", Some("EvictionByEvictionAPI")))),
    ("delete-background",            0, REMOVED),
    ("delete-while-waiting",         0, REMOVED),
    ("workload-deactivated",         0, Some(("its Workload was deactivated: ", Some("Deactivated")))),
    ("max-exec-time",                0, Some(("the trial ran longer than its queue allows", Some("DeactivatedDueToMaximumExecutionTimeExceeded")))),
    // Kueue deletes the Job itself.
    ("retention",                    0, Some(("the trial ran longer than its queue allows", Some("DeactivatedDueToMaximumExecutionTimeExceeded")))),
    // The image does not exist, and the pod never ran.
    ("podsready-timeout",            0, Some(("its pods were so often not ready in time", Some("DeactivatedDueToRequeuingLimitExceeded")))),
    // An admission check takes the Job back, and later rejects it.
    ("admission-check",              1, Some(("an admission check of its queue rejected it: ", None))),
];

#[test]
fn every_recorded_action_of_kueue_is_reported_correctly() {
    for &(case, requeued, end) in QUEUE_CASES {
        let news = news_of_recording(&format!("kueue/{case}"));
        let evicted = news.iter().filter(|news| matches!(news, JobNews::Requeued(_)));
        assert_eq!(evicted.count(), requeued, "{case}: {news:?}");
        let ends = ends(&news);
        let Some((message, taken)) = end else {
            assert_eq!(ends, Vec::<&JobEndEvent>::new(), "{case}");
            continue;
        };
        let end = only_end(case, &news);
        assert_ends(case, &news, (end.exit_code, message, end.class, taken));
    }
}

#[test]
fn the_end_of_a_pod_that_was_stopped_for_a_suspension_does_not_end_its_job() {
    let cases = [
        "job/suspend-pod-exits-0",
        "job/suspend-pod-exits-1",
        "job/suspend-pod-exits-143-kept",
        "job/suspend-two-pods-exit-1",
    ];
    for case in cases {
        let mut news = news_of_recording(case);
        news.retain(|news| !matches!(news, JobNews::PodLeft(_)));
        assert!(matches!(news.as_slice(), [JobNews::Requeued(_)]), "{case}: {news:?}");
    }
}

#[test]
fn a_job_whose_pod_is_denied_has_not_ended() {
    assert_eq!(news_of_recording("job/podsecurity-restricted"), []);
}

#[test]
fn a_suspended_job_waits_and_one_that_failed_meanwhile_has_ended() {
    let waits = |case: &str| {
        let news = news_of_recording(case);
        let waits = |news: &&JobNews| matches!(news, JobNews::Waits(_) | JobNews::Requeued(_));
        news.iter().filter(waits).count()
    };
    assert_eq!(waits("job/exit0"), 0);
    assert!(waits("job/suspended-then-resumed") >= 1);
    // The controller would report nothing more until the Job is resumed.
    let news = news_of_recording("job/suspend-pod-exits-1-kept");
    assert!(matches!(news.last(), Some(JobNews::Gone(_))), "{news:?}");
}

#[test]
fn the_end_of_an_incomplete_job_is_read_from_its_pods() {
    let pod = |phase: &str, code: u64, deleted: Option<&str>| {
        let terminated =
            json!({"exitCode": code, "reason": "Error", "startedAt": "2026-11-23T00:00:00Z"});
        json!({
            "metadata": {"name": "tkx-aaaaa", "deletionTimestamp": deleted},
            "status": {"phase": phase, "containerStatuses": [{"state": {"terminated": terminated}}]},
        })
    };
    let outcome_from_pods = |pods: &[Value]| outcome_from_pods(1, pods, &[]);
    assert_eq!(outcome_from_pods(&[]), None);
    assert_eq!(
        outcome_from_pods(&[pod("Succeeded", 0, None), json!({"status": {"phase": "Running"}})]),
        None
    );
    assert!(outcome_from_pods(&[pod("Succeeded", 0, None)]).is_some_and(|end| end.succeeded));
    let failed = outcome_from_pods(&[
        pod("Failed", 137, Some("2026-11-23T00:00:02Z")),
        pod("Failed", 3, None),
    ]);
    assert_eq!(failed.map(|end| (end.succeeded, end.exit_code)), Some((false, Some(3))));
    // The first failed pod decides.
    let failed =
        outcome_from_pods(&[pod("Failed", 3, None), json!({"status": {"phase": "Running"}})]);
    assert_eq!(failed.map(|end| (end.succeeded, end.exit_code)), Some((false, Some(3))));
}

#[test]
fn the_pods_that_a_controller_deletes_after_a_failure_are_not_its_cause() {
    let pod = |name: &str, code: u64, deleted: &str| {
        let terminated =
            json!({"exitCode": code, "reason": "Error", "startedAt": "2026-11-23T00:00:00Z"});
        json!({
            "metadata": {"name": name, "deletionTimestamp": deleted},
            "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}]},
        })
    };
    let outcome = WorkloadOutcome {
        needs_pods: true,
        ..WorkloadOutcome::failure("its pod failed".to_owned())
    };
    // A user deleted the second pod, and the controller deleted the first one in response.
    let pods = [
        pod("tkx-0-aaaaa", 137, "2026-11-23T00:00:09Z"),
        pod("tkx-1-bbbbb", 143, "2026-11-23T00:00:02Z"),
    ];
    assert_eq!(explain_failure(outcome, &pods, &[]).exit_code, Some(143));
}

#[test]
fn a_job_whose_pod_is_gone_still_names_its_disruption() {
    let explain = |reason: &str, message: &str| {
        let condition = json!({"reason": reason, "message": message});
        explain_failure(failed_job_outcome(&condition), &[], &[])
    };
    let evicted = explain(
        "PodFailurePolicy",
        "Pod lab/tkx-aaaaa has condition DisruptionTarget matching FailJob rule at index 0",
    );
    assert_eq!(evicted.class, Some(Class::Transient));
    let evidence = evicted.disruption.map(|disruption| disruption.evidence);
    assert!(evidence.is_some_and(|evidence| evidence.starts_with("DisruptionTarget: ")));
    let failed = explain(
        "PodFailurePolicy",
        "Container trial for pod lab/tkx-aaaaa failed with exit code 3 matching FailJob rule at index 1",
    );
    assert_eq!((failed.exit_code, failed.class, failed.disruption), (Some(3), None, None));
    // A pod that fails by itself stays.
    let gone = explain("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    assert_eq!((gone.exit_code, gone.class), (None, Some(Class::Transient)));
    assert!(gone.message.starts_with("its pod was deleted"), "{}", gone.message);
}

#[test]
fn the_trials_container_outranks_other_containers() {
    let pod = json!({"spec": {"containers": [{"name": "mine", "image": "i:1"}]}});
    let template = json!({"spec": {"template": pod}});
    let spec = workload_settings(&json!({"platform": "kubernetes", "template": template})).spec;
    let ended = |name: &str, code: u64| {
        let terminated = json!({"exitCode": code, "startedAt": "2026-11-23T00:00:00Z"});
        json!({"name": name, "state": {"terminated": terminated}})
    };
    let pod = json!({
        "metadata": {"name": "tkx-aaaaa"},
        // The other container was added during admission, as by a service mesh.
        "status": {"phase": "Failed", "containerStatuses": [ended("beside", 2), ended("mine", 3)]},
    });
    let outcome = WorkloadOutcome {
        needs_pods: true,
        ..WorkloadOutcome::failure("its pod failed".to_owned())
    };
    let (trial, pods) = (trial_containers(&spec, Job.container_name()), [pod]);
    assert_eq!(Job.explain_outcome(outcome, &pods, &trial).exit_code, Some(3));
    let read = Job.outcome_from_pods(&spec, &pods, &trial);
    assert_eq!(read.and_then(|end| end.exit_code), Some(3));
}

#[test]
fn the_phase_of_a_job_follows_from_its_counts_and_conditions() {
    let job =
        |suspend: bool, status: Value| json!({"spec": {"suspend": suspend}, "status": status});
    let condition =
        |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "M"}]);
    let several =
        |status: Value| json!({"spec": {"suspend": false, "parallelism": 2}, "status": status});
    #[rustfmt::skip]
    let table = [
        (json!({}),                                            WorkloadPhase::Unseen),
        (job(false, json!({})),                                WorkloadPhase::Unseen),
        (job(true, json!({})),                                 WorkloadPhase::Suspended),
        (job(true, json!({"active": 1, "ready": 1})),          WorkloadPhase::Suspended),
        (job(false, json!({"active": 1, "ready": 0})),         WorkloadPhase::Waiting),
        (job(false, json!({"active": 2, "ready": 1})),         WorkloadPhase::Starting),
        (job(false, json!({"active": 2, "ready": 2})),         WorkloadPhase::Running),
        // A quota admits one of the two pods.
        (several(json!({"active": 1, "ready": 1})),                      WorkloadPhase::Starting),
        (several(json!({"active": 2, "ready": 2})),                      WorkloadPhase::Running),
        (several(json!({"active": 1, "ready": 1, "succeeded": 1})),      WorkloadPhase::Running),
        (several(json!({"active": 1, "ready": 1, "terminating": 1})),    WorkloadPhase::Running),
        (several(json!({"active": 1, "ready": 1, "uncountedTerminatedPods": {"succeeded": ["u"]}})), WorkloadPhase::Running),
        // A pod that was deleted by hand is terminating, and no other exists.
        (job(false, json!({"active": 0, "terminating": 1})),   WorkloadPhase::Waiting),
        (job(false, json!({"conditions": condition("SuccessCriteriaMet"), "active": 1})), WorkloadPhase::Ending),
        (job(false, json!({"conditions": condition("FailureTarget")})),                   WorkloadPhase::Ending),
    ];
    for (object, expected) in table {
        assert_eq!(phase(&object), expected, "{object}");
    }
}

#[test]
fn the_manifest_of_a_job_matches_the_reviewed_one() {
    let section = json!({
        "platform": "kubernetes", "agent": "image", "dockerImage": "python:3.12", "taskNumber": 2,
        "cpuNumber": 0.5, "memorySize": "8gb", "queue": "research", "priorityClass": "low",
    });
    let made = job_manifest(&workload_settings(&section), &job());
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/training_service/kubernetes/workload/job/tests/queued.json");
    let known: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(
        made,
        known,
        "the manifest has changed; it is now\n{}",
        serde_json::to_string_pretty(&made).unwrap()
    );
}

#[test]
fn the_agent_may_be_mounted_from_its_image() {
    let section = json!({
        "platform": "kubernetes", "agent": "volume", "agentImage": "registry/agent:1", "dockerImage": "python:3.12",
        "imagePullPolicy": "IfNotPresent",
    });
    let made = job_manifest(&workload_settings(&section), &job());
    let pod = &made["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"], Value::Null);
    let named = |list: &Value| {
        let named = |one: &&Value| one["name"] == "trialkeeper-agent";
        list.as_array().into_iter().flatten().find(named).cloned().unwrap_or_default()
    };
    let image = json!({"reference": "registry/agent:1", "pullPolicy": "IfNotPresent"});
    assert_eq!(named(&pod["volumes"])["image"], image);
    let container = &pod["containers"][0];
    let mount =
        json!({"name": "trialkeeper-agent", "mountPath": "/trialkeeper-agent", "readOnly": true});
    assert_eq!(named(&container["volumeMounts"]), mount);
    let program = "/trialkeeper-agent/usr/local/bin/trialkeeper";
    assert_eq!(container["command"][0], program);
}

#[test]
fn the_generated_labels_of_another_job_are_left_out() {
    let mut settings =
        workload_settings(&json!({"platform": "kubernetes", "dockerImage": "python:3.12"}));
    let labels = json!({
        "team": "vision", "controller-uid": "1", "job-name": "other",
        "batch.kubernetes.io/controller-uid": "1", "batch.kubernetes.io/job-name": "other",
    });
    let pod = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "trial"}]}});
    settings.spec.template = Some(json!({"spec": {"taskRoles": [{"task": {"pod": pod}}]}}));
    let made = job_manifest(&settings, &job());
    let labels = &made["spec"]["template"]["metadata"]["labels"];
    let left: Vec<&str> = labels.as_object().unwrap().keys().map(String::as_str).collect();
    assert!(
        left.contains(&"team") && !left.iter().any(|name| GENERATED_LABELS.contains(name)),
        "{left:?}"
    );
}

proptest! {
    #[test]
    fn random_statuses_never_panic(kind in "[A-Za-z]{0,10}", status in "True|False|[a-z]{0,4}", number in any::<i64>()) {
        let object = json!({"spec": {"suspend": number}, "status": {
            "conditions": [{"type": kind, "status": status, "message": number}, 3],
            "active": number, "ready": kind,
        }});
        if let WorkloadPhase::Completed(outcome) = phase(&object) {
            let outcome = explain_failure(outcome, std::slice::from_ref(&object), &[]);
            prop_assert!(!outcome.needs_pods);
        }
    }
}
