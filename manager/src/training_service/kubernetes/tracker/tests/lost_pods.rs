//! Tests of trials of several pods that lose one.

use serde_json::json;
use trial_protocol::{Cause, Class};

use super::queue::{at, created_tracker_of, ids, reported_end, started_pod, watched_pod};
use crate::training_service::VerdictCertainty::FailedAndStopped;
use crate::training_service::kubernetes::client::WatchedObject;
use crate::training_service::kubernetes::outcome::{WorkloadOutcome, WorkloadPhase};
use crate::training_service::kubernetes::tracker::{PodDeparture, TrackerAction, observe_pod};
use crate::training_service::kubernetes::workload::job::Job as BatchJob;
use crate::training_service::kubernetes::workload::job_set::JobSet;
use crate::training_service::{DepartedPod, JobNews};

#[test]
fn a_pod_that_fails_after_the_cluster_removed_its_peer_is_not_the_cause() {
    let ended = |pod: &str, code: u64, finished: &str, disrupted: Option<&str>| {
        let terminated = json!({"exitCode": code, "reason": "Error", "startedAt": "2026-11-23T00:00:00Z", "finishedAt": finished});
        let container = json!({"name": "trial", "state": {"terminated": terminated}});
        let condition = disrupted.map(|at| {
            json!({
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting", "lastTransitionTime": at,
            })
        });
        let deleted = disrupted.map(|_| "2026-11-23T00:00:30Z");
        let object = json!({
            "metadata": {"name": pod, "uid": pod, "deletionTimestamp": deleted},
            "status": {"phase": "Failed", "conditions": Vec::from_iter(condition), "containerStatuses": [container]},
        });
        serde_json::from_value::<WatchedObject>(object).unwrap()
    };
    let (early, late) = ("2026-11-23T00:00:10Z", "2026-11-23T00:00:20Z");
    #[rustfmt::skip]
    let table = [
        (late,  Some(early), true),
        (early, Some(early), true),
        // The other pod failed first, and its node was drained later.
        (early, Some(late),  false),
        (late,  None,        false),
    ];
    for (failed, disrupted, expected) in table {
        let mut tracker = created_tracker_of(&JobSet, false).with_pods(2);
        tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
        observe_pod(&mut tracker, &ended("ja-worker-0-0-aaaaa", 1, failed, None), at(2));
        observe_pod(&mut tracker, &ended("ja-worker-0-1-bbbbb", 143, late, disrupted), at(2));
        let failure = WorkloadOutcome::failure("the container ended with exit code 1".to_owned());
        let actions = tracker.complete_end("ja", failure);
        let end = reported_end(&actions);
        assert_eq!(end.cause, expected.then_some(Cause::Preempted), "{failed} {disrupted:?}");
        assert_eq!(end.disruption.is_some(), expected, "{failed} {disrupted:?}");
        assert_eq!(end.class, expected.then_some(Class::Transient));
    }
}

#[test]
fn a_trial_whose_pod_was_deleted_before_another_failed_is_lost_and_not_failed() {
    let (first, second) = ("ja-worker-0-0-aaaaa", "ja-worker-0-1-bbbbb");
    let failed = || watched_pod(first, "Failed", Some(1), false);
    let deleted = || watched_pod(second, "Running", None, true);
    let killed = || watched_pod(second, "Failed", Some(143), true);
    let stopped = || watched_pod(first, "Failed", Some(143), true);
    #[rustfmt::skip]
    let table = [
        (vec![deleted(), failed()],                                                             false, true),
        (vec![deleted(), killed(), failed()],                                                   false, true),
        // The controller has deleted the other pod for the loss of the first, but too late.
        (vec![deleted(), killed(), watched_pod(first, "Failed", Some(1), true)],                false, true),
        // The controller deletes the other pod after the failure.
        (vec![failed(), deleted(), killed()],                                                   false, false),
        // Both events arrived in one listing, or as one event.
        (vec![deleted(), failed()],                                                             true,  false),
        (vec![killed(), failed()],                                                              false, false),
        // No pod failed by itself.
        (vec![deleted(), killed(), stopped()],                                                  false, false),
        (vec![deleted(), watched_pod(second, "Failed", Some(1), true), stopped()],              false, false),
        // A new pod has taken the place of the deleted one.
        (vec![deleted(), watched_pod("ja-worker-0-1-ccccc", "Running", None, false), failed()], false, false),
    ];
    for (pods, is_listed, expected) in table {
        let case = format!("{pods:?} {is_listed}");
        let mut tracker = created_tracker_of(&JobSet, false).with_pods(2);
        tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
        observe_pod(&mut tracker, &watched_pod(first, "Running", None, false), at(1));
        observe_pod(&mut tracker, &watched_pod(second, "Running", None, false), at(1));
        if is_listed {
            tracker.begin_pod_listing();
        }
        for pod in pods {
            observe_pod(&mut tracker, &pod, at(2));
        }
        tracker.complete_pod_listing(at(2));
        tracker.handle_phase("ja", WorkloadPhase::Ending, at(3));
        let (is_accepted, _) = tracker.accept_verdict_end(&ids().0, FailedAndStopped, at(3));
        assert_eq!(is_accepted, !expected, "{case}");
        let failure = WorkloadOutcome::failure("the container ended with exit code 1".to_owned());
        let actions = tracker.complete_end("ja", failure);
        let end = reported_end(&actions);
        assert_eq!(end.cause, expected.then_some(Cause::Preempted), "{case}");
        assert_eq!(end.class, expected.then_some(Class::Transient), "{case}");
        let lost = "its pod ja-worker-0-1-bbbbb was deleted, but not by the manager, and another";
        assert_eq!(end.message.as_ref().unwrap().starts_with(lost), expected, "{case}");
    }
}

#[test]
fn a_pod_that_disappears_while_the_watch_is_away_has_left() {
    let mut tracker = created_tracker_of(&BatchJob, true).with_pods(2);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
    for pod in ["ja-0-aaaaa", "ja-1-bbbbb"] {
        observe_pod(&mut tracker, &started_pod(pod, false), at(1));
    }
    tracker.observe_pod_departure("ja-1-bbbbb", Some("ja-1-bbbbb"), PodDeparture::Deleted, at(50));
    tracker.begin_pod_listing();
    observe_pod(&mut tracker, &started_pod("ja-1-ccccc", false), at(60));
    let ((trial, attempt), incarnation) = (ids(), "ja-0-aaaaa".to_owned());
    let left = TrackerAction::Report(JobNews::PodLeft(DepartedPod { trial, attempt, incarnation }));
    assert_eq!(tracker.complete_pod_listing(at(60)), [left]);
    // Neither pod counts as one on a lost node.
    let actions = tracker.tick(at(50 + 30 + 600));
    assert!(!actions.contains(&TrackerAction::DeleteLeftover("ja".to_owned())), "{actions:?}");
}
