//! Tests of `JobSet`s: against recordings of the real controller, and against the section of the experiment file.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::training_service::kubernetes::manifest::tests::{job, workload_settings};
use crate::training_service::kubernetes::workload::tests::recorded::{
    OVER_LIMIT, TRANSIENT, assert_ends, ends, news_after, news_of_recording,
};
use crate::training_service::{JobEndEvent, JobNews};

/// Returns the section with these roles: name, number of pods, and number of pods that must succeed.
fn section(roles: &[(&str, u64, i64)]) -> Value {
    let roles = roles.iter().map(|(name, pods, succeeded)| {
        json!({
            "name": name, "taskNumber": pods, "dockerImage": "i:1", "command": format!("python3 {name}.py"),
            "cpuNumber": 1, "memorySize": 512,
            "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 1, "minSucceedTaskCount": succeeded},
        })
    });
    let roles: Vec<Value> = roles.collect();
    json!({"platform": "kubernetes", "agent": "image", "taskRoles": roles, "metricsFrom": "worker"})
}

fn two_roles_section() -> Value {
    section(&[("ps", 1, -1), ("worker", 1, 1)])
}

#[test]
fn every_recorded_end_is_reported_correctly() {
    const REMOVED: &str = "its JobSet was deleted, but not by the manager";
    #[rustfmt::skip]
    let table = [
        ("exit0",                  Some(0),   "its pod succeeded", None, None),
        ("exit1",                  Some(1),   "the container ended with exit code 1", None, None),
        ("oom",                    Some(137), "out of memory", OVER_LIMIT, None),
        ("sigkill",                Some(137), "the container ended with exit code 137", None, None),
        ("pod-deleted",            Some(143), "the trial's pod was deleted", TRANSIENT, None),
        ("pod-evicted",            Some(143), "its pod was removed: ", TRANSIENT, Some("EvictionByEvictionAPI")),
        ("two-worker-succeeds",    Some(0),   "its pod succeeded", None, None),
        // The parameter server is deleted after the worker has failed, and is not the cause.
        ("two-one-fails",          Some(1),   "the container ended with exit code 1", None, None),
        ("indexed-two-one-fails",  Some(1),   "worker 1: the container ended with exit code 1", None, None),
        ("suspended-then-resumed", Some(0),   "its pod succeeded", None, None),
        ("controller-down",        Some(1),   "the container ended with exit code 1", None, None),
        // An agent that gets a signal exits with 143. This is another program.
        ("pod-deleted-exit0",      Some(0),   "its pod succeeded", None, None),
        ("delete-background",      None,      REMOVED, TRANSIENT, None),
        ("delete-foreground",      None,      REMOVED, TRANSIENT, None),
        ("delete-no-policy",       None,      REMOVED, TRANSIENT, None),
        ("badimage",               None,      REMOVED, TRANSIENT, None),
        ("toobig",                 None,      REMOVED, TRANSIENT, None),
    ];
    let spec = workload_settings(&two_roles_section()).spec;
    for (case, exit_code, message, class, taken) in table {
        let news = news_of_recording(&JobSet, &spec, &format!("jobset/{case}"));
        assert_ends(case, &news, (exit_code, message, class, taken));
    }
}

#[test]
fn a_suspended_job_set_waits_for_its_queue() {
    let news = news_of_recording(
        &JobSet,
        &workload_settings(&two_roles_section()).spec,
        "jobset/suspended-then-resumed",
    );
    let waits =
        news.iter().filter(|news| matches!(news, JobNews::Waits(_) | JobNews::Requeued(_))).count();
    assert!(waits >= 1, "{news:?}");
}

#[test]
fn a_replaced_pod_does_not_end_its_job_set() {
    let mut section = section(&[("worker", 1, 1)]);
    section["queue"] = json!("team");
    let spec = workload_settings(&section).spec;
    let cases = [
        "kueue/jobset-preempted",
        "kueue/jobset-preempted-exit1",
        "jobset/child-job-deleted",
        "jobset/suspend-pod-exits-1",
    ];
    for case in cases {
        let news = news_after(&JobSet, &spec, case, Duration::from_secs(70));
        assert_eq!(ends(&news), Vec::<&JobEndEvent>::new(), "{case}");
    }
}

#[test]
fn the_phase_of_a_job_set_follows_from_its_jobs_and_conditions() {
    let spec = workload_settings(&two_roles_section()).spec;
    let set =
        |suspend: bool, status: Value| json!({"spec": {"suspend": suspend}, "status": status});
    let jobs = |ps: &str, worker: &str| {
        let jobs =
            json!([{"name": "worker", "active": 1, worker: 1}, {"name": "ps", "active": 1, ps: 1}]);
        json!({"restarts": 0, "replicatedJobsStatus": jobs})
    };
    #[rustfmt::skip]
    let table = [
        (json!({}),                                 WorkloadPhase::Unseen),
        (set(false, json!({})),                     WorkloadPhase::Unseen),
        (set(true, json!({})),                      WorkloadPhase::Suspended),
        (set(true, jobs("suspended", "suspended")), WorkloadPhase::Suspended),
        (set(false, json!({"restarts": 0})),        WorkloadPhase::Waiting),
        (set(false, jobs("active", "active")),      WorkloadPhase::Waiting),
        (set(false, jobs("ready", "active")),       WorkloadPhase::Starting),
        (set(false, jobs("ready", "ready")),        WorkloadPhase::Running),
        // One role has completed, and the other continues.
        (set(false, jobs("ready", "succeeded")),    WorkloadPhase::Running),
        (set(false, json!({"conditions": [{"type": "Completed", "status": "False"}]})), WorkloadPhase::Waiting),
    ];
    for (object, expected) in table {
        assert_eq!(phase(&object, &spec), expected, "{object}");
    }
}

#[test]
fn the_job_that_failed_first_outranks_the_pods_of_others() {
    let pod = |name: &str, code: u64| {
        let terminated =
            json!({"exitCode": code, "reason": "Error", "startedAt": "2026-11-23T00:00:00Z"});
        json!({"metadata": {"name": name}, "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}]}})
    };
    let pods = [pod("tkx-ps-0-0-aaaaa", 5), pod("tkx-worker-0-1-bbbbb", 3)];
    let decided_by = Some(DecidingPod { role: "worker".to_owned(), index: 0, is_main: true });
    let cause = |message: &str| {
        let failure = WorkloadOutcome::failure(message.to_owned());
        let outcome = explain_failure(
            WorkloadOutcome { decided_by: decided_by.clone(), needs_pods: true, ..failure },
            &pods,
            &[],
        );
        (outcome.exit_code, outcome.message)
    };
    let of_worker = (Some(3), "worker 1: the container ended with exit code 3".to_owned());
    let of_ps = (Some(5), "ps 0: the container ended with exit code 5".to_owned());
    assert_eq!(cause("jobset failed (first failed job: tkx-worker-0)"), of_worker);
    assert_eq!(cause("jobset failed (first failed job: tkx-ps-0)"), of_ps);
    assert_eq!(cause("jobset failed"), of_ps, "the first failed pod, if the message names no Job");
}

#[test]
fn the_end_of_an_incomplete_job_set_is_read_from_its_pods() {
    let pod = |name: &str, phase: &str, code: Option<u64>| {
        let terminated = code.map(|code| {
            json!({"exitCode": code, "reason": "Error", "startedAt": "2026-11-23T00:00:00Z"})
        });
        json!({"metadata": {"name": name}, "status": {
            "phase": phase, "containerStatuses": [{"state": {"terminated": terminated}}],
        }})
    };
    let done = |name: &str| pod(name, "Succeeded", Some(0));
    let runs = |name: &str| pod(name, "Running", None);
    let failed = |name: &str| pod(name, "Failed", Some(3));
    let (ps, first, second) = ("tkx-ps-0-0-aaaaa", "tkx-worker-0-0-bbbbb", "tkx-worker-0-1-ccccc");
    let one_decides = section(&[("ps", 1, -1), ("worker", 2, 1)]);
    let both_decide = section(&[("ps", 1, -1), ("worker", 2, 2)]);
    let none_decides = section(&[("ps", 1, -1), ("worker", 2, -1)]);
    #[rustfmt::skip]
    let table = [
        (&both_decide,  vec![],                                       None),
        (&both_decide,  vec![runs(ps), done(first), runs(second)],    None),
        (&one_decides,  vec![runs(ps), done(first), runs(second)],    Some(Some(0))),
        (&both_decide,  vec![runs(ps), done(first), done(second)],    Some(Some(0))),
        // The success of another role does not count.
        (&one_decides,  vec![done(ps), runs(first), runs(second)],    None),
        (&none_decides, vec![runs(ps), done(first), done(second)],    None),
        (&none_decides, vec![done(ps), done(first), done(second)],    Some(Some(0))),
        (&both_decide,  vec![runs(ps), done(first), failed(second)],  Some(Some(3))),
    ];
    for (section, pods, expected) in table {
        let outcome = JobSet.outcome_from_pods(&workload_settings(section).spec, &pods, &[]);
        let code = outcome.map(|outcome| {
            assert_eq!(outcome.succeeded, outcome.exit_code == Some(0), "{outcome:?}");
            assert!(!outcome.needs_pods, "{outcome:?}");
            outcome.exit_code
        });
        assert_eq!(code, expected, "{pods:?}");
    }
}

#[test]
fn completion_policies_become_success_policies() {
    let policies = |roles: &[(&str, u64, i64)]| {
        let made = JobSet.manifest(&workload_settings(&section(roles)), &job());
        let jobs = made["spec"]["replicatedJobs"].as_array().unwrap().clone();
        let of_jobs: Vec<Value> =
            jobs.iter().map(|job| job["template"]["spec"]["successPolicy"].clone()).collect();
        (made["spec"]["successPolicy"].clone(), of_jobs)
    };
    let any = |roles: Value| json!({"operator": "Any", "targetReplicatedJobs": roles});
    let (of_set, of_jobs) = policies(&[("ps", 1, -1), ("worker", 2, 2)]);
    assert_eq!((of_set, of_jobs), (any(json!(["worker"])), vec![Value::Null; 2]));
    let first = json!({"rules": [{"succeededCount": 1}]});
    let (of_set, of_jobs) = policies(&[("chief", 1, 1), ("worker", 3, 1)]);
    assert_eq!((of_set, of_jobs), (any(json!(["chief", "worker"])), vec![Value::Null, first]));
    let (of_set, _) = policies(&[("ps", 1, -1), ("worker", 2, -1)]);
    assert_eq!(of_set, Value::Null, "without a policy, all roles must succeed");
}

#[test]
fn the_manifest_of_a_job_set_matches_the_reviewed_one() {
    let mut section = section(&[("ps", 1, -1), ("worker", 2, 2)]);
    (section["queue"], section["priorityClass"]) = (json!("research"), json!("low"));
    let made = JobSet.manifest(&workload_settings(&section), &job());
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/training_service/kubernetes/workload/job_set/tests/queued.json");
    let known: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(
        made,
        known,
        "the manifest has changed; it is now\n{}",
        serde_json::to_string_pretty(&made).unwrap()
    );
}

#[test]
fn the_owners_of_the_pods_are_the_jobs_and_the_job_set() {
    let spec = workload_settings(&two_roles_section()).spec;
    let owners = [("Job", "tkx-ps-0"), ("Job", "tkx-worker-0"), ("JobSet", "tkx")];
    let owners = owners.map(|(kind, name)| (kind, name.to_owned()));
    assert_eq!(JobSet.pod_owners(&spec, "tkx"), owners);
    let pods = ["tkx-ps-0-0-aaaaa".to_owned(), "tkx-worker-0-0-bbbbb".to_owned()];
    assert_eq!(JobSet.reporting_pod(&spec, "tkx", &pods).as_deref(), Some("tkx-worker-0-0-bbbbb"));
}

proptest! {
    #[test]
    fn random_statuses_never_panic(kind in "[A-Za-z]{0,10}|Failed", message in ".{0,40}", number in any::<i64>()) {
        let object = json!({"metadata": {"name": message}, "spec": {"suspend": number}, "status": {
            "conditions": [{"type": kind, "status": "True", "message": message}, 3],
            "replicatedJobsStatus": [{"ready": number}, kind],
        }});
        if let WorkloadPhase::Completed(outcome) = phase(&object, &workload_settings(&two_roles_section()).spec) {
            let outcome = explain_failure(outcome, std::slice::from_ref(&object), &[]);
            prop_assert!(!outcome.needs_pods);
        }
    }
}
