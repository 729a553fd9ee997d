//! Jobs against recordings of the real controller, and against what the section asks for.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use trial_protocol::{AttemptId, Class, TrialJobId};

use super::*;
use crate::training_service::kubernetes::manifest::tests::{common, job};
use crate::training_service::kubernetes::tracker::{Act, Tracker};
use crate::training_service::kubernetes::{disruption, pending_reason};
use crate::training_service::{JobEvent, JobNews};

/// The events of a recording, each object whole; the Job is called `tkx`.
fn recording(case: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/kubernetes/job")
        .join(format!("{case}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{case}: {error}"));
    let text = text.replace(&format!("\"{case}\""), "\"tkx\"").replace(&format!("{case}-"), "tkx-");
    let mut last: HashMap<String, Value> = HashMap::new();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .map(|mut line| {
            let name = line.pointer("/object/metadata/name").and_then(Value::as_str);
            let Some(name) = name.map(str::to_owned) else { return line };
            for part in line["same"].as_array().cloned().unwrap_or_default() {
                let at = format!("/{}", part.as_str().unwrap().replace('.', "/"));
                let (above, field) = at.rsplit_once('/').unwrap();
                let known = last.get(&name).and_then(|object| object.pointer(&at)).cloned();
                if let Some(known) = known {
                    line["object"].pointer_mut(above).unwrap()[field] = known;
                }
            }
            last.insert(name, line["object"].clone());
            line
        })
        .collect()
}

/// Returns the news about a recorded Job.
fn told(case: &str) -> Vec<JobNews> {
    let mut tracker = Tracker::new(&Job, Duration::from_mins(10), Duration::from_secs(30));
    tracker.listing();
    tracker.listing_done();
    let (trial, attempt) = (TrialJobId::new("x").unwrap(), AttemptId::new("x-1").unwrap());
    tracker.submit("tkx", trial, attempt, Duration::ZERO);
    tracker.submitted("tkx", Ok(()), Duration::ZERO);
    let mut told = Vec::new();
    for line in recording(case) {
        let (object, gone) = (&line["object"], line["type"] == "DELETED");
        let acts = match line["kind"].as_str() {
            Some("Job") if gone => tracker.workload_gone("tkx"),
            Some("Job") => tracker.workload("tkx", phase(object), Duration::ZERO),
            Some("Pod") => {
                let name = text(&object["metadata"], "name");
                if gone || pod_end::read(object).is_some() {
                    tracker.pod_ends(&name, pod_end::as_seen(&name, object));
                }
                tracker.pod(&name, pending_reason::of_pod(object), disruption::of_pod(object))
            }
            _ => Vec::new(),
        };
        for act in acts {
            match act {
                Act::Tell(news) => told.push(news),
                Act::Inspect(name, outcome) => {
                    let outcome = explain(outcome, &tracker.ended_pods(&name));
                    let acts = tracker.explained(&name, outcome);
                    let [Act::Tell(news)] = acts.as_slice() else { panic!("{case}: {acts:?}") };
                    told.push(news.clone());
                }
                Act::Stop(_)
                | Act::Listen(_)
                | Act::Ask(_)
                | Act::Delete(_)
                | Act::AwaitPods(_)
                | Act::Tidy(_) => panic!("{case}: {act:?}"),
            }
        }
    }
    told
}

#[test]
fn every_recorded_end_is_told_as_it_was() {
    const DELETED: Option<Class> = Some(Class::Transient);
    const OVER_LIMIT: Option<Class> = Some(Class::Permanent);
    #[rustfmt::skip]
    let table = [
        ("exit0",                  Some(0),   "its pod ended well", None, None),
        ("exit1",                  Some(1),   "the container ended with exit code 1", None, None),
        ("exit139-segv",           Some(139), "the container ended with exit code 139", None, None),
        ("exit143-by-itself",      Some(143), "the container ended with exit code 143", None, None),
        ("oom",                    Some(137), "out of memory", OVER_LIMIT, None),
        ("sigkill",                Some(137), "the container ended with exit code 137", None, None),
        ("badcmd",                 Some(128), "the command could not be started", OVER_LIMIT, None),
        ("emptydir-too-full",      Some(143), "the pod was evicted: Usage of EmptyDir volume", OVER_LIMIT, None),
        ("evicted-rule-failjob",   Some(143), "its pod was taken away: ", DELETED, Some("EvictionByEvictionAPI")),
        ("preempted-by-scheduler", Some(143), "its pod was taken away: a pod of higher priority", DELETED, Some("PreemptionByScheduler")),
        ("node-lost",              Some(143), "its pod was taken away: its node got a taint", DELETED, Some("DeletionByTaintManager")),
        ("pod-deleted-exit143",    Some(143), "the trial's pod was deleted", DELETED, None),
        ("pod-force-deleted",      Some(143), "the trial's pod was deleted", DELETED, None),
        ("indexed-two-ok",         Some(0),   "its pod ended well", None, None),
        ("indexed-two-one-fails",  Some(1),   "the container ended with exit code 1", None, None),
        ("suspended-then-resumed", Some(0),   "its pod ended well", None, None),
    ];
    for (case, exit_code, message, class, taken) in table {
        let told = told(case);
        let ends: Vec<&JobEvent> = told
            .iter()
            .filter_map(|news| match news {
                JobNews::Gone(event) => Some(event),
                JobNews::Waits(_) | JobNews::Image(_) => None,
            })
            .collect();
        let [end] = ends.as_slice() else { panic!("{case}: {told:?}") };
        assert_eq!((end.exit_code, end.class), (exit_code, class), "{case}: {end:?}");
        let said = end.message.as_deref().unwrap_or_default();
        assert!(said.starts_with(message), "{case}: {said}");
        let disruption = end.disruption.as_deref().and_then(|said| said.split(':').next());
        assert_eq!(disruption, taken, "{case}");
    }
}

#[test]
fn a_suspended_job_waits_and_one_that_failed_meanwhile_has_ended() {
    let waits = |case: &str| {
        let told = told(case);
        told.iter().filter(|news| matches!(news, JobNews::Waits(_))).count()
    };
    assert_eq!(waits("exit0"), 0);
    assert!(waits("suspended-then-resumed") >= 1);
    // Its controller would say no more until the Job is resumed.
    let told = told("suspend-pod-exits-1-kept");
    assert!(matches!(told.last(), Some(JobNews::Gone(_))), "{told:?}");
}

#[test]
fn a_job_stands_where_its_counts_and_conditions_say() {
    let job =
        |suspend: bool, status: Value| json!({"spec": {"suspend": suspend}, "status": status});
    let condition =
        |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "M"}]);
    #[rustfmt::skip]
    let table = [
        (json!({}),                                            JobPhase::Unseen),
        (job(false, json!({})),                                JobPhase::Unseen),
        (job(true, json!({})),                                 JobPhase::Suspended),
        (job(true, json!({"active": 1, "ready": 1})),          JobPhase::Suspended),
        (job(false, json!({"active": 1, "ready": 0})),         JobPhase::Waiting),
        (job(false, json!({"active": 2, "ready": 1})),         JobPhase::Starting),
        (job(false, json!({"active": 2, "ready": 2})),         JobPhase::Running),
        // A pod that was deleted by hand is going, and nothing else is there.
        (job(false, json!({"active": 0, "terminating": 1})),   JobPhase::Waiting),
        (job(false, json!({"conditions": condition("SuccessCriteriaMet"), "active": 1})), JobPhase::Ending),
        (job(false, json!({"conditions": condition("FailureTarget")})),                   JobPhase::Ending),
    ];
    for (object, expected) in table {
        assert_eq!(phase(&object), expected, "{object}");
    }
}

#[test]
fn a_job_is_as_it_was() {
    let section = json!({
        "platform": "kubernetes", "agent": "image", "dockerImage": "python:3.12", "taskNumber": 2,
        "cpuNumber": 0.5, "memorySize": "8gb", "queue": "research", "priorityClass": "low",
    });
    let made = manifest(&common(&section), &job());
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/training_service/kubernetes/workload/job/tests/queued.json");
    let known: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(made, known, "now it is\n{}", serde_json::to_string_pretty(&made).unwrap());
}

proptest! {
    #[test]
    fn any_status_stands_somewhere(kind in "[A-Za-z]{0,10}", status in "True|False|[a-z]{0,4}", number in any::<i64>()) {
        let object = json!({"spec": {"suspend": number}, "status": {
            "conditions": [{"type": kind, "status": status, "message": number}, 3],
            "active": number, "ready": kind,
        }});
        if let JobPhase::Completed(outcome) = phase(&object) {
            let outcome = explain(outcome, std::slice::from_ref(&object));
            prop_assert!(!outcome.needs_pods);
        }
    }
}
