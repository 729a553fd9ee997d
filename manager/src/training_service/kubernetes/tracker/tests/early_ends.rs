//! Tests of workloads whose trials have ended before them.

use serde_json::json;
use trial_protocol::AttemptId;

use super::START_UP;
use super::queue::{at, created_tracker_of, ids};
use crate::training_service::VerdictCertainty::{Failed, FailedAndStopped, Final};
use crate::training_service::kubernetes::disruption::Disruption;
use crate::training_service::kubernetes::outcome::{WorkloadOutcome, WorkloadPhase};
use crate::training_service::kubernetes::tracker::finished::{DELETE_BATCH, MAX_FINISHED};
use crate::training_service::kubernetes::tracker::{Tracker, TrackerAction};
use crate::training_service::kubernetes::workload::job::Job as BatchJob;
use crate::training_service::kubernetes::workload::kubeflow::TF_JOB;

#[test]
fn workloads_of_ended_trials_are_deleted_after_a_resume() {
    let mut tracker = Tracker::new(&BatchJob, START_UP, at(30));
    tracker.begin_listing();
    let done = WorkloadPhase::Completed(WorkloadOutcome::failure("it failed".to_owned()));
    for (name, phase) in
        [("ja", WorkloadPhase::Running), ("jb", WorkloadPhase::Running), ("jc", done)]
    {
        assert_eq!(tracker.handle_phase(name, phase, at(1)), []);
    }
    tracker.complete_listing();
    assert_eq!(tracker.next_deadline(), None);
    let (trial, attempt) = ids();
    tracker.adopt("ja", &trial, &attempt, at(2));
    tracker.end_unadopted(at(10));
    // The agents deliver the rest of their reports in this time.
    assert_eq!(tracker.tick(at(99)).len(), 1, "the adopted pod's agent is silent");
    assert_eq!(tracker.next_deadline(), Some(at(10 + 30 + 60)));
    assert_eq!(tracker.tick(at(100)), [TrackerAction::DeleteLeftover("jb".to_owned())]);
    assert_eq!(tracker.tick(at(200)), []);
    assert_eq!(tracker.next_deadline(), None);
}

#[test]
fn workloads_that_ended_without_a_manager_are_deleted_like_others() {
    let mut tracker = Tracker::new(&BatchJob, START_UP, at(30));
    tracker.begin_listing();
    for number in (0..MAX_FINISHED + 2 * DELETE_BATCH).rev() {
        let name = format!("j{number}");
        let created = format!("2026-11-23T00:{:02}:{:02}Z", number / 60, number % 60);
        let labels = json!({"trialkeeper/attempt": format!("t{number}-1")});
        let metadata = json!({"name": name, "creationTimestamp": created, "labels": labels});
        let object = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let is_over = number > 0;
        let outcome = || WorkloadPhase::Completed(WorkloadOutcome::failure("it failed".to_owned()));
        let phase = if is_over { outcome() } else { WorkloadPhase::Running };
        tracker.handle_phase(&name, phase, at(1));
        tracker.observe_unadopted(&object);
    }
    tracker.complete_listing();
    tracker.end_unadopted(at(10));
    let actions = tracker.tick(at(100));
    let [TrackerAction::DeleteRemains(running), TrackerAction::DeleteRemains(old)] =
        actions.as_slice()
    else {
        panic!("{actions:?}")
    };
    let attempt = |number: usize| AttemptId::new(format!("t{number}-1")).unwrap();
    assert_eq!(*running, [attempt(0)]);
    assert_eq!((old.first(), old.last()), (Some(&attempt(1)), Some(&attempt(DELETE_BATCH))));
    // The others stay like the latest ones of a running manager.
    assert_eq!(tracker.tick(at(200)), []);
    let Some(TrackerAction::DeleteRemains(more)) = tracker.delete_old_workloads() else {
        panic!("they are known")
    };
    assert_eq!(more.first(), Some(&attempt(DELETE_BATCH + 1)));
}

#[test]
fn a_failed_pod_ends_its_trial_early_unless_the_cluster_removed_another() {
    let failed = || WorkloadPhase::Completed(WorkloadOutcome::failure("it failed".to_owned()));
    let taken = || {
        let disruption = Disruption { evidence: "e".to_owned(), why: "w".to_owned() };
        let outcome = WorkloadOutcome::failure("it failed".to_owned());
        WorkloadPhase::Completed(WorkloadOutcome { disruption: Some(disruption), ..outcome })
    };
    #[rustfmt::skip]
    let table = [
        (WorkloadPhase::Running,   false, Final,            true),
        (WorkloadPhase::Running,   true,  Final,            true),
        (WorkloadPhase::Running,   false, Failed,           true),
        (WorkloadPhase::Running,   true,  Failed,           false),
        (WorkloadPhase::Suspended, false, Failed,           false),
        // The controller has not decided that the workload fails, so another party stopped the other pods.
        (WorkloadPhase::Running,   false, FailedAndStopped, false),
        (WorkloadPhase::Ending,    false, FailedAndStopped, true),
        (failed(),            false, FailedAndStopped, true),
        (failed(),            true,  FailedAndStopped, false),
        (taken(),             false, FailedAndStopped, false),
    ];
    for (phase, is_drained, certainty, expected) in table {
        let mut tracker = created_tracker_of(&TF_JOB, false).with_pods(2);
        tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
        let disruption = || Disruption { evidence: "e".to_owned(), why: "w".to_owned() };
        tracker.observe_pod("ja-worker-1", None, is_drained.then(disruption));
        tracker.handle_phase("ja", phase.clone(), at(2));
        let (is_accepted, _) = tracker.accept_verdict_end(&ids().0, certainty, at(3));
        assert_eq!(is_accepted, expected, "{phase:?} {is_drained} {certainty:?}");
        assert_eq!(tracker.has_handed_over(), expected);
    }
}
