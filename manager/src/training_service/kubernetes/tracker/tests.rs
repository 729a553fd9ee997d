//! Tests of the tracker, as tables of observations in order and of their consequences.

mod early_ends;
mod jobs;
mod lost_pods;
mod queue;

use trial_protocol::Class;

use super::finished::MIN_FINISHED;
use super::queue::SUSPENDED_REASON;
use super::rules::{AGENT_SILENCE_TIME, QUERY_INTERVAL, STOP_MARGIN, UNNOTICED_TIME};
use super::*;
use crate::training_service::kubernetes::outcome::DecidingPod;
use crate::training_service::kubernetes::workload::framework::Framework;
use crate::training_service::kubernetes::workload::job::Job as BatchJob;
use crate::training_service::{JobWait, VerdictCertainty};

const START_UP: Duration = Duration::from_mins(10);

fn trial(name: &str) -> TrialJobId {
    TrialJobId::new(name).unwrap()
}

fn attempt(name: &str) -> AttemptId {
    AttemptId::new(format!("{name}-1")).unwrap()
}

/// Returns the pods' grace period and the margin.
fn stop_limit() -> Duration {
    at(30) + STOP_MARGIN
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Creates a tracker with one attempt `a`, Framework `fa`, submitted at 0.
fn tracker() -> Tracker {
    let mut tracker = Tracker::new(&Framework, START_UP, at(30));
    tracker.begin_listing();
    assert_eq!(tracker.complete_listing(), []);
    tracker.add_attempt("fa", trial("a"), attempt("a"), at(0));
    tracker
}

fn created_tracker() -> Tracker {
    let mut tracker = tracker();
    assert_eq!(tracker.handle_submission("fa", Ok(()), at(0)), []);
    tracker
}

fn completed_phase(exit_code: Option<i32>, message: &str) -> WorkloadPhase {
    let succeeded = exit_code == Some(0);
    let outcome =
        WorkloadOutcome { succeeded, exit_code, ..WorkloadOutcome::failure(message.to_owned()) };
    WorkloadPhase::Completed(outcome)
}

fn end_report(exit_code: Option<i32>, message: &str) -> TrackerAction {
    let message = Some(message.to_owned());
    let succeeded = exit_code == Some(0);
    report_of(JobEnd { exit_code, message, succeeded, ..JobEnd::default() })
}

fn report_of(end: JobEnd) -> TrackerAction {
    let (trial, attempt) = (trial("a"), attempt("a"));
    TrackerAction::Report(JobNews::Gone(JobEndEvent { trial, attempt, end }))
}

/// Returns the end of a trial whose Framework was deleted by another client.
fn deletion_report() -> TrackerAction {
    let message = "its Framework was deleted, but not by the manager".to_owned();
    let (message, class) = (Some(message), Some(Class::Transient));
    report_of(JobEnd { message, class, ..JobEnd::default() })
}

/// Returns the end of an attempt that the cluster has never shown.
fn never_created_report() -> TrackerAction {
    let message = "the cluster has no Framework of the attempt that an earlier manager recorded";
    let (message, class) = (Some(message.to_owned()), Some(Class::Transient));
    report_of(JobEnd { message, class, replaced: true, ..JobEnd::default() })
}

pub(super) fn wait_report(why: &str) -> TrackerAction {
    let (trial, attempt) = (trial("a"), attempt("a"));
    TrackerAction::Report(JobNews::Waits(JobWait { trial, attempt, why: why.to_owned() }))
}

#[test]
fn the_end_is_reported_once() {
    let mut tracker = created_tracker();
    for phase in [
        WorkloadPhase::Unseen,
        WorkloadPhase::Waiting,
        WorkloadPhase::Running,
        WorkloadPhase::Ending,
    ] {
        assert_eq!(tracker.handle_phase("fa", phase, at(1)), []);
    }
    assert_eq!(
        tracker.handle_phase("fa", completed_phase(Some(7), "it failed"), at(1)),
        [end_report(Some(7), "it failed")]
    );
    assert_eq!(tracker.handle_phase("fa", completed_phase(Some(7), "it failed"), at(1)), []);
    assert_eq!(tracker.handle_deleted_workload("fa"), []);
    tracker.begin_listing();
    assert_eq!(tracker.complete_listing(), []);
    assert_eq!(tracker.stop_trial(&trial("a"), at(9)), []);
    assert_eq!(tracker.next_deadline(), None);
}

#[test]
fn a_workload_that_disappears_ends_unless_it_is_not_created_yet() {
    // The workload was deleted while it was watched.
    assert_eq!(created_tracker().handle_deleted_workload("fa"), [deletion_report()]);
    // The workload was deleted during a gap in the watch.
    let mut tracker = created_tracker();
    tracker.begin_listing();
    assert_eq!(tracker.complete_listing(), [deletion_report()]);
    // The workload was created after the listing began, or is not created yet, so the listing need not have it.
    let mut tracker = self::tracker();
    tracker.begin_listing();
    tracker.handle_submission("fa", Ok(()), at(1));
    assert_eq!(tracker.complete_listing(), []);
    // The listing has the workload.
    tracker.begin_listing();
    assert_eq!(tracker.handle_phase("fa", WorkloadPhase::Running, at(1)), []);
    assert_eq!(tracker.complete_listing(), []);
    // The workload disappeared between its turn in the list and the end of the list.
    tracker.begin_listing();
    assert_eq!(tracker.handle_deleted_workload("fa"), [deletion_report()]);
    assert_eq!(tracker.complete_listing(), []);
}

#[test]
fn a_refused_submission_is_an_end() {
    let refused = tracker().handle_submission("fa", Err("quota exceeded".to_owned()), at(1));
    assert_eq!(refused, [end_report(None, "quota exceeded")]);
}

#[test]
fn a_stop_is_requested_once_and_enforced_after_the_time_limit() {
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Running, at(1));
    assert_eq!(tracker.stop_trial(&trial("a"), at(5)), [TrackerAction::Stop("fa".to_owned())]);
    assert_eq!(tracker.stop_trial(&trial("a"), at(6)), []);
    assert_eq!(tracker.next_deadline(), Some(at(5) + stop_limit()));
    assert_eq!(tracker.tick(at(5)), []);
    assert_eq!(
        tracker.tick(at(5) + stop_limit()),
        [TrackerAction::DeleteUnstopped("fa".to_owned())]
    );
    assert_eq!(tracker.tick(at(500)), []);
    assert_eq!(
        tracker.handle_deleted_workload("fa"),
        [end_report(None, "the workload did not end within its time and was deleted")]
    );
}

#[test]
fn a_framework_that_outlives_its_trial_is_stopped_with_that_reason() {
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Running, at(1));
    assert_eq!(tracker.finish(&trial("a"), at(5)), [TrackerAction::Stop("fa".to_owned())]);
    assert_eq!(tracker.finish(&trial("a"), at(6)), []);
    let ended = tracker.handle_phase("fa", completed_phase(None, "stopped on request"), at(7));
    let [TrackerAction::Report(JobNews::Gone(event))] = &ended[..] else { panic!("{ended:?}") };
    assert!(
        event.end.message.as_ref().unwrap().starts_with("the trial ended, but its pod did not"),
        "{event:?}"
    );
    // After a stop by the user, the stop is the reason.
    let mut tracker = created_tracker();
    tracker.stop_trial(&trial("a"), at(5));
    assert_eq!(tracker.finish(&trial("a"), at(6)), []);
    let ended = tracker.handle_phase("fa", completed_phase(None, "stopped on request"), at(7));
    assert_eq!(ended, [end_report(None, "stopped on request")]);
}

#[test]
fn a_stop_before_the_creation_is_sent_after_it() {
    let mut tracker = tracker();
    assert!(!tracker.is_stop_requested("fa"));
    assert_eq!(tracker.stop_trial(&trial("a"), at(1)), []);
    assert!(tracker.is_stop_requested("fa"));
    assert_eq!(
        tracker.handle_submission("fa", Ok(()), at(2)),
        [TrackerAction::Stop("fa".to_owned())]
    );
}

#[test]
fn a_new_reason_to_wait_is_reported() {
    let mut tracker = created_tracker();
    assert_eq!(tracker.set_wait_reason("fa", None), []);
    assert_eq!(tracker.set_wait_reason("fa", Some("no room".to_owned())), [wait_report("no room")]);
    assert_eq!(tracker.set_wait_reason("fa", Some("no room".to_owned())), []);
    assert_eq!(tracker.set_wait_reason("fa", None), []);
    assert_eq!(
        tracker.set_wait_reason("fa", Some("no".to_owned())),
        [],
        "the known reason has more details"
    );
    assert_eq!(
        tracker.set_wait_reason("fa", Some("no image".to_owned())),
        [wait_report("no image")]
    );
    tracker.handle_phase("fa", WorkloadPhase::Running, at(1));
    assert_eq!(tracker.set_wait_reason("fa", Some("late news".to_owned())), []);
    assert_eq!(tracker.set_wait_reason("other", Some("no job".to_owned())), []);
}

#[test]
fn a_controller_that_does_not_notice_the_workload_is_a_reason() {
    let mut tracker = created_tracker();
    assert_eq!(tracker.next_deadline(), Some(UNNOTICED_TIME));
    assert_eq!(tracker.tick(at(1)), []);
    assert_eq!(tracker.tick(UNNOTICED_TIME), [TrackerAction::QueryMissingPod("fa".to_owned())]);
    let reported = tracker.handle_missing_pod("fa", None);
    assert!(
        matches!(&reported[..], [TrackerAction::Report(JobNews::Waits(waits))] if waits.why.starts_with("FrameworkController"))
    );
    assert_eq!(tracker.next_deadline(), Some(UNNOTICED_TIME + QUERY_INTERVAL));
    assert_eq!(tracker.tick(UNNOTICED_TIME + at(1)), []);
}

#[test]
fn the_cluster_is_queried_before_the_controller_counts_as_absent() {
    // An operator whose pods are refused leaves the status empty and reports an event.
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Unseen, at(1));
    assert_eq!(tracker.tick(UNNOTICED_TIME), [TrackerAction::QueryMissingPod("fa".to_owned())]);
    assert!(!tracker.is_examined("fa"));
    assert_eq!(
        tracker.handle_missing_pod("fa", Some("quota q".to_owned())),
        [wait_report("quota q")]
    );
    // The same holds if another pod of the trial was created.
    tracker.observe_pod("fa-master-0", None, None);
    assert_eq!(
        tracker.handle_missing_pod("fa", Some("quota r".to_owned())),
        [wait_report("quota r")]
    );
}

#[test]
fn a_missing_pod_is_a_reason_until_it_exists() {
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Waiting, at(1));
    assert_eq!(tracker.next_deadline(), Some(UNNOTICED_TIME));
    assert_eq!(tracker.tick(UNNOTICED_TIME), [TrackerAction::QueryMissingPod("fa".to_owned())]);
    assert_eq!(tracker.tick(UNNOTICED_TIME + at(1)), []);
    let reported = tracker.handle_missing_pod("fa", None);
    assert!(
        matches!(&reported[..], [TrackerAction::Report(JobNews::Waits(waits))] if waits.why.contains("quota")),
        "{reported:?}"
    );
    assert_eq!(
        tracker.handle_missing_pod("fa", Some("quota q".to_owned())),
        [wait_report("quota q")]
    );
    assert_eq!(tracker.handle_missing_pod("other", Some("no job".to_owned())), []);
    tracker.observe_pod("fa-worker-0", None, None);
    assert_eq!(tracker.handle_missing_pod("fa", Some("late news".to_owned())), []);
    assert_eq!(tracker.tick(START_UP), [TrackerAction::Stop("fa".to_owned())]);
    let why = "the trial did not start within 600 s (startUpDeadline): the cluster shows no reason";
    let ended = tracker.handle_phase("fa", completed_phase(None, "stopped on request"), START_UP);
    assert_eq!(ended, [end_report(None, why)]);
    // A workload with a pod reports the reason itself.
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Waiting, at(1));
    tracker.observe_pod("fa-worker-0", None, None);
    assert_eq!(tracker.tick(UNNOTICED_TIME), []);
    assert_eq!(tracker.next_deadline(), Some(START_UP));
}

#[test]
fn a_denied_pod_ends_its_trial_as_a_permanent_failure() {
    let why = "the controller cannot create its pod: violates PodSecurity";
    // One pod of two runs, or none.
    for places in 0..2 {
        let mut tracker = Tracker::new(&BatchJob, START_UP, at(30)).with_pods(2);
        tracker.begin_listing();
        tracker.complete_listing();
        tracker.add_attempt("fa", trial("a"), attempt("a"), at(0));
        tracker.handle_submission("fa", Ok(()), at(0));
        tracker.handle_phase("fa", WorkloadPhase::Waiting, at(1));
        (0..places).for_each(|_| drop(tracker.observe_pod("fa-0-aaaaa", None, None)));
        let actions = tracker.handle_denied_pod("fa", why.to_owned(), at(20));
        assert_eq!(actions, [TrackerAction::Stop("fa".to_owned())]);
        assert_eq!(tracker.handle_denied_pod("fa", "again".to_owned(), at(21)), []);
        tracker.handle_deleted_workload("fa");
        let ended = tracker.end_deleted_workload("fa");
        let [TrackerAction::Report(JobNews::Gone(event))] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!(
            (event.end.message.as_deref(), event.end.class),
            (Some(why), Some(Class::Permanent))
        );
    }
    // All pods exist by now.
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Waiting, at(1));
    tracker.observe_pod("fa-worker-0", None, None);
    assert_eq!(tracker.handle_denied_pod("fa", why.to_owned(), at(20)), []);
}

#[test]
fn queries_about_one_missing_pod_of_several_are_repeated() {
    let ask = [TrackerAction::QueryMissingPod("fa".to_owned())];
    for phase in [WorkloadPhase::Unseen, WorkloadPhase::Waiting, WorkloadPhase::Starting] {
        let mut tracker = created_tracker().with_pods(2);
        tracker.handle_phase("fa", phase.clone(), at(1));
        tracker.observe_pod("fa-worker-0", None, None);
        assert_eq!(tracker.tick(UNNOTICED_TIME), ask, "{phase:?}");
        assert_eq!(
            tracker.handle_missing_pod("fa", Some("quota q".to_owned())),
            [wait_report("quota q")]
        );
        assert_eq!(tracker.tick(QUERY_INTERVAL), []);
        assert_eq!(tracker.tick(UNNOTICED_TIME + QUERY_INTERVAL), ask, "{phase:?}");
        assert_eq!(
            tracker.handle_missing_pod("fa", Some("quota r".to_owned())),
            [wait_report("quota r")]
        );
        // The earlier message no longer suppresses the new one.
        tracker.handle_phase("fa", WorkloadPhase::Starting, at(300));
        tracker.observe_pod("fa-worker-1", None, None);
        assert_eq!(tracker.handle_missing_pod("fa", Some("late news".to_owned())), []);
        assert_eq!(tracker.next_deadline(), Some(START_UP), "{phase:?}");
        tracker.tick(START_UP);
        let ended =
            tracker.handle_phase("fa", completed_phase(None, "stopped on request"), START_UP);
        let why =
            "the trial did not start within 600 s (startUpDeadline): the cluster shows no reason";
        assert_eq!(ended, [end_report(None, why)]);
    }
    // If the cluster gives no reason, the message names the number of pods.
    let mut tracker = created_tracker().with_pods(2);
    tracker.handle_phase("fa", WorkloadPhase::Starting, at(1));
    tracker.observe_pod("fa-worker-0", None, None);
    let reported = tracker.handle_missing_pod("fa", None);
    assert!(
        matches!(&reported[..], [TrackerAction::Report(JobNews::Waits(waits))] if waits.why.contains("only 1 of 2 pods")),
        "{reported:?}"
    );
}

#[test]
fn an_unlisted_pod_lacks_its_end_until_the_watch_reports_it() {
    let pod = |name: &str| serde_json::json!({"metadata": {"name": name}});
    let mut tracker = created_tracker();
    assert!(!tracker.pods().has_unobserved_end("fa", &[]));
    tracker.observe_pod("fa-worker-0", None, None);
    tracker.observe_pod("fb-worker-0", None, None);
    assert!(tracker.pods().has_unobserved_end("fa", &[]));
    assert!(!tracker.pods().has_unobserved_end("fa", &[pod("fa-worker-0")]));
    tracker.observe_pod_end("fa-worker-0", pod("fa-worker-0"));
    assert!(!tracker.pods().has_unobserved_end("fa", &[]));
}

#[test]
fn no_listing_is_needed_if_the_only_pod_was_seen_to_end() {
    let seen = |phase: &str, deleted: Option<&str>| {
        serde_json::json!({
            "metadata": {"name": "fa-x", "deletionTimestamp": deleted}, "status": {"phase": phase},
        })
    };
    let mut whole = seen("Failed", None);
    whole["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
    #[rustfmt::skip]
    let table = [
        (whole.clone(),                     false, None,         true),
        // The container has ended, and the kubelet has not reported everything.
        (seen("Running", None),             false, None,         false),
        // The pod may be the earlier one.
        (seen("Failed", Some("2026-11-23")), false, None,        false),
        (whole.clone(),                     true,  None,         false),
        (whole,                             false, Some("fa-y"), false),
    ];
    for (pod, several, other, is_enough) in table {
        let mut tracker = created_tracker().with_pods(if several { 2 } else { 1 });
        tracker.observe_pod("fa-x", None, None);
        tracker.observe_pod_end("fa-x", pod.clone());
        if let Some(other) = other {
            tracker.observe_pod(other, None, None);
        }
        assert_eq!(tracker.only_ended_pod("fa").is_some(), is_enough, "{pod} {several} {other:?}");
    }
}

/// An observed pod, and the reason for its removal, if it is removed.
type Pod = (&'static str, Option<&'static str>);

#[test]
fn the_disruption_of_a_pod_explains_the_end_of_its_framework() {
    let taken =
        |reason: &str| Disruption { evidence: reason.to_owned(), why: format!("taken: {reason}") };
    // The message for `PodExternalDeleted`, the controller's only information about a preempted pod.
    let deleted = |role: &str| {
        let decided_by = DecidingPod { role: role.to_owned(), index: 0, is_main: role == "worker" };
        let outcome = WorkloadOutcome::failure(
            "the trial's pod was deleted, but not by the manager".to_owned(),
        );
        WorkloadPhase::Completed(WorkloadOutcome { decided_by: Some(decided_by), ..outcome })
    };
    let none = "the trial's pod was deleted, but not by the manager";
    #[rustfmt::skip]
    let table: [(&[Pod], &str, &str, bool); 6] = [
        (&[("fa-worker-0", Some("Preempted"))],                        "worker", "taken: Preempted",       true),
        (&[("fa-ps-0", Some("Evicted"))],                              "ps",     "ps 0: taken: Evicted",   true),
        // The end of another pod is no reason for this pod's end.
        (&[("fa-ps-0", Some("Evicted")), ("fa-worker-0", None)],       "worker", none,                     false),
        (&[("fb-worker-0", Some("Evicted"))],                          "worker", none,                     false),
        // The controller has started this pod again.
        (&[("fa-worker-0", Some("Evicted")), ("fa-worker-0", None)],   "worker", none,                     false),
        (&[],                                                          "worker", none,                     false),
    ];
    for (pods, role, message, is_taken) in table {
        let mut tracker = created_tracker();
        for (pod, reason) in pods {
            tracker.observe_pod(*pod, None, reason.map(taken));
        }
        let actions = tracker.handle_phase("fa", deleted(role), at(1));
        let [TrackerAction::Report(JobNews::Gone(event))] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(event.end.message.as_deref(), Some(message), "{pods:?}");
        assert_eq!(event.end.disruption.is_some(), is_taken, "{pods:?}");
        assert_eq!(event.end.class, is_taken.then_some(Class::Transient), "{pods:?}");
    }
    // The reason for the stop outranks a disruption of its pod.
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Waiting, at(1));
    tracker.tick(START_UP);
    tracker.observe_pod("fa-worker-0", None, Some(taken("Evicted")));
    let actions = tracker.handle_phase("fa", deleted("worker"), START_UP);
    let [TrackerAction::Report(JobNews::Gone(event))] = &actions[..] else { panic!("{actions:?}") };
    assert!(event.end.message.as_deref().is_some_and(|why| why.contains("startUpDeadline")));
    assert_eq!(event.end.disruption, None);
}

#[test]
fn a_workload_that_does_not_start_in_time_fails_with_its_reason() {
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Waiting, at(1));
    tracker.observe_pod("fa-worker-0", Some("the image x cannot be pulled".to_owned()), None);
    assert_eq!(tracker.next_deadline(), Some(START_UP));
    assert_eq!(tracker.tick(START_UP), [TrackerAction::Stop("fa".to_owned())]);
    let why =
        "the trial did not start within 600 s (startUpDeadline): the image x cannot be pulled";
    assert_eq!(
        tracker.handle_phase("fa", completed_phase(None, "stopped on request"), at(1)),
        [end_report(None, why)]
    );
    // A workload that has run has started.
    let mut tracker = created_tracker();
    tracker.observe_pod("fa-worker-0", None, None);
    tracker.handle_phase("fa", WorkloadPhase::Running, at(1));
    tracker.tick(at(1) + AGENT_SILENCE_TIME);
    tracker.handle_silent_agent("fa", None);
    assert_eq!(tracker.next_deadline(), None);
    assert_eq!(tracker.tick(START_UP * 2), []);
    // A retried workload waits again.
    tracker.handle_phase("fa", WorkloadPhase::Waiting, at(2000));
    assert_eq!(tracker.next_deadline(), Some(at(2000) + START_UP));
}

#[test]
fn a_pod_that_waits_while_another_runs_has_the_same_deadline() {
    let mut tracker = created_tracker();
    assert_eq!(tracker.handle_phase("fa", WorkloadPhase::Starting, at(1)), []);
    assert_eq!(tracker.set_wait_reason("fa", Some("no room".to_owned())), [wait_report("no room")]);
    assert_eq!(tracker.tick(START_UP), [TrackerAction::Stop("fa".to_owned())]);
    let why = "the trial did not start within 600 s (startUpDeadline): no room";
    let ended = tracker.handle_phase("fa", completed_phase(None, "stopped on request"), START_UP);
    assert_eq!(ended, [end_report(None, why)]);
}

#[test]
fn running_pods_with_a_silent_agent_are_reported_once() {
    let mut tracker = created_tracker();
    tracker.handle_phase("fa", WorkloadPhase::Running, at(5));
    assert_eq!(tracker.next_deadline(), Some(at(5) + AGENT_SILENCE_TIME));
    assert_eq!(
        tracker.tick(at(5) + AGENT_SILENCE_TIME),
        [TrackerAction::ReadOutput("fa".to_owned())]
    );
    assert_eq!(tracker.tick(at(6) + AGENT_SILENCE_TIME), []);
    for (last_line, expected) in [
        (None, "(`kubectl logs -l trialkeeper/attempt=a-1`"),
        (Some("no route"), "last output: no route"),
    ] {
        let reported = tracker.handle_silent_agent("fa", last_line);
        assert!(
            matches!(&reported[..], [TrackerAction::Report(JobNews::Waits(waits))] if waits.why.contains(expected)),
            "{reported:?}"
        );
    }
    tracker.handle_phase("fa", WorkloadPhase::Running, at(50));
    assert_eq!(tracker.next_deadline(), None);
}

#[test]
fn a_resumed_manager_adopts_existing_workloads() {
    let adopted = |phase: Option<WorkloadPhase>| {
        let mut tracker = Tracker::new(&Framework, START_UP, at(30));
        tracker.begin_listing();
        if let Some(phase) = phase {
            tracker.handle_phase("fa", phase, at(1));
        }
        tracker.complete_listing();
        tracker.adopt("fa", &trial("a"), &attempt("a"), at(3))
    };
    assert_eq!(adopted(None), (AdoptionResult::Unknown, vec![]));
    assert_eq!(adopted(Some(WorkloadPhase::Waiting)), (AdoptionResult::Alive, vec![]));
    assert_eq!(adopted(Some(WorkloadPhase::Running)), (AdoptionResult::Alive, vec![]));
    // The message of an adopted success mentions that its agent did not report it.
    let TrackerAction::Report(JobNews::Gone(succeeded)) = end_report(Some(0), UNREPORTED_SUCCESS)
    else {
        panic!()
    };
    let found = adopted(Some(completed_phase(Some(0), "")));
    assert_eq!(found, (AdoptionResult::Gone(succeeded), vec![]));
    let failed = adopted(Some(completed_phase(Some(7), "it failed")));
    assert_eq!(failed, (AdoptionResult::Alive, vec![end_report(Some(7), "it failed")]));
}

#[test]
fn an_attempt_that_is_adopted_before_the_first_listing_is_not_started_again() {
    #[rustfmt::skip]
    let table = [
        // The phase that the listing shows, the time of the adoption, and the consequences of the listing.
        (Some(WorkloadPhase::Running),                     false, vec![]),
        (Some(WorkloadPhase::Running),                     true,  vec![]),
        (Some(completed_phase(Some(7), "it failed")), false, vec![end_report(Some(7), "it failed")]),
        // Another attempt replaces one that was never created. This is no retry.
        (None,                                        false, vec![never_created_report()]),
        (None,                                        true,  vec![never_created_report()]),
    ];
    for (phase, is_during_listing, expected) in table {
        let mut tracker = Tracker::new(&Framework, START_UP, at(30));
        if is_during_listing {
            tracker.begin_listing();
        }
        let adopted = tracker.adopt("fa", &trial("a"), &attempt("a"), at(1));
        assert_eq!(adopted, (AdoptionResult::Alive, vec![]));
        assert_eq!(tracker.workload_count(), 1);
        tracker.end_unadopted(at(1));
        // The cluster is away for longer than any deadline.
        assert_eq!(tracker.next_deadline(), None);
        if !is_during_listing {
            tracker.begin_listing();
        }
        let mut actions = Vec::new();
        if let Some(phase) = phase.clone() {
            actions.extend(tracker.handle_phase("fa", phase, at(9000)));
        }
        actions.extend(tracker.complete_listing());
        assert_eq!(actions, expected, "{phase:?} {is_during_listing}");
        let other = tracker.adopt("fb", &trial("b"), &attempt("b"), at(9001));
        assert_eq!(other, (AdoptionResult::Unknown, vec![]));
    }
}

#[test]
fn an_adopted_attempt_that_was_seen_and_then_removed_is_not_replaced() {
    let mut tracker = Tracker::new(&Framework, START_UP, at(30));
    tracker.adopt("fa", &trial("a"), &attempt("a"), at(1));
    // Its agent reports to the new manager, and its workload is deleted in the outage.
    tracker.mark_running(&trial("a"));
    tracker.begin_listing();
    assert_eq!(tracker.complete_listing(), [deletion_report()]);
    // Its workload is deleted, and its pod is still there.
    let mut tracker = Tracker::new(&Framework, START_UP, at(30));
    tracker.adopt("fa", &trial("a"), &attempt("a"), at(1));
    tracker.observe_pod("fa-worker-0", None, None);
    tracker.begin_listing();
    assert_eq!(tracker.complete_listing(), [deletion_report()]);
}

#[test]
fn workloads_of_an_earlier_manager_stay_known_during_a_new_listing() {
    let mut tracker = Tracker::new(&Framework, START_UP, at(30));
    tracker.begin_listing();
    tracker.handle_phase("fa", WorkloadPhase::Running, at(1));
    tracker.handle_phase("fb", WorkloadPhase::Running, at(1));
    tracker.complete_listing();
    // The watch and its listing were cut in the middle of a resume.
    tracker.begin_listing();
    tracker.begin_listing();
    assert_eq!(
        tracker.adopt("fa", &trial("a"), &attempt("a"), at(3)),
        (AdoptionResult::Alive, vec![])
    );
    assert_eq!(tracker.complete_listing(), [deletion_report()]);
    let vanished = tracker.adopt("fb", &trial("b"), &attempt("b"), at(4));
    assert_eq!(vanished, (AdoptionResult::Unknown, vec![]));
}

#[test]
fn the_remains_of_old_ends_are_deleted() {
    let mut tracker = Tracker::new(&Framework, START_UP, at(30));
    let mut tidied = Vec::new();
    for i in 0..400 {
        let name = format!("t{i}");
        tracker.add_attempt(&name, trial(&name), attempt(&name), at(0));
        tracker.handle_submission(&name, Ok(()), at(0));
        let actions = tracker.handle_phase(&name, completed_phase(Some(0), ""), at(1));
        tidied.extend(actions.into_iter().filter_map(|action| match action {
            TrackerAction::DeleteRemains(attempts) => Some(attempts),
            TrackerAction::Report(_)
            | TrackerAction::Stop(_)
            | TrackerAction::ReadOutput(_)
            | TrackerAction::QueryMissingPod(_)
            | TrackerAction::DeleteUnstopped(_)
            | TrackerAction::DeleteLeftover(_)
            | TrackerAction::ConcludeFromPods(_)
            | TrackerAction::WatchQueue
            | TrackerAction::ExplainFromPods(..)
            | TrackerAction::AwaitPods(_) => None,
        }));
    }
    let tidied: Vec<AttemptId> = tidied.concat();
    assert_eq!(tidied.len(), 300, "the latest hundred are kept");
    assert_eq!(tidied[0], attempt("t0"));
    assert_eq!(tidied[299], attempt("t299"));
    // A quota is exhausted, so only the latest workloads stay.
    let Some(TrackerAction::DeleteRemains(more)) = tracker.delete_old_workloads() else {
        panic!("a hundred workloads remain")
    };
    assert_eq!((more.len(), &more[0]), (100 - MIN_FINISHED, &attempt("t300")));
    assert_eq!(tracker.delete_old_workloads(), None);
}

#[test]
fn a_refused_workload_waits_no_longer_than_a_pod() {
    let mut tracker = tracker();
    assert_eq!(
        tracker.set_wait_reason("fa", Some("exceeded quota".to_owned())),
        [wait_report("exceeded quota")]
    );
    assert_eq!(tracker.next_deadline(), Some(START_UP));
    assert_eq!(tracker.tick(START_UP), []);
    assert!(tracker.is_stop_requested("fa"));
    let why = "the trial did not start within 600 s (startUpDeadline): exceeded quota";
    let ended = tracker.handle_submission("fa", Err("it was stopped".to_owned()), START_UP);
    assert_eq!(ended, [end_report(None, why)]);
}
