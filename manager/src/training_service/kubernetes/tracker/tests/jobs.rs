//! Tests of Jobs, which are stopped by their deletion, and which a queue may suspend.

use super::*;
use crate::training_service::kubernetes::kueue::QueueState;

/// Creates a tracker of Jobs with one attempt `a`, whose Job `ja` is in the cluster.
fn created_job_tracker() -> Tracker {
    created_job_tracker_with(START_UP)
}

/// Creates it with this deadline for the start.
fn created_job_tracker_with(start_up: Duration) -> Tracker {
    let mut tracker = Tracker::new(&BatchJob, start_up, at(30));
    tracker.begin_listing();
    assert_eq!(tracker.complete_listing(), []);
    tracker.add_attempt("ja", trial("a"), attempt("a"), at(0));
    assert_eq!(tracker.handle_submission("ja", Ok(()), at(0)), []);
    tracker
}

#[test]
fn a_job_that_is_deleted_on_request_ends_when_its_pods_are_gone() {
    let mut tracker = created_job_tracker();
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Running, at(1)), []);
    assert_eq!(tracker.stop_trial(&trial("a"), at(2)), [TrackerAction::Stop("ja".to_owned())]);
    assert_eq!(tracker.handle_deleted_workload("ja"), [TrackerAction::AwaitPods("ja".to_owned())]);
    assert_eq!(tracker.handle_deleted_workload("ja"), [], "the pods are awaited once");
    assert_eq!(tracker.end_deleted_workload("ja"), [end_report(None, "stopped on request")]);
    assert_eq!(tracker.end_deleted_workload("ja"), []);
}

#[test]
fn a_pod_that_is_seen_to_run_after_the_suspension_ran_before_it() {
    let mut tracker = created_job_tracker();
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1)), []);
    let suspended = [wait_report(SUSPENDED_REASON), TrackerAction::WatchQueue];
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(2)), suspended);
    let (of, attempt, why) = (trial("a"), attempt("a"), SUSPENDED_REASON.to_owned());
    let requeued = TrackerAction::Report(JobNews::Requeued(JobWait { trial: of, attempt, why }));
    assert_eq!(tracker.mark_pod_running("ja-x"), Some(requeued.clone()));
    assert_eq!(tracker.mark_pod_running("ja-x"), None, "it is reported once");
    // The next run is taken back, too.
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Waiting, at(3)), []);
    assert_eq!(tracker.mark_pod_running("ja-y"), None);
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(4)), [requeued]);
    assert_eq!(tracker.mark_pod_running("ja-y"), None);
}

#[test]
fn a_queue_takes_back_no_trial_that_has_ended() {
    let mut tracker = created_job_tracker();
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1)), []);
    assert_eq!(
        tracker.accept_verdict_end(&trial("a"), VerdictCertainty::Final, at(2)),
        (true, Vec::new())
    );
    let stop = [TrackerAction::Stop("ja".to_owned())];
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(3)), stop);
    assert_eq!(tracker.mark_pod_running("ja-x"), None);
}

#[test]
fn no_deadline_applies_while_a_queue_holds_a_job_back() {
    let mut tracker = created_job_tracker();
    let suspended = [wait_report(SUSPENDED_REASON), TrackerAction::WatchQueue];
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1)), suspended);
    let state = Some(QueueState::Waits("no room".to_owned()));
    assert_eq!(tracker.handle_queue_state("ja", state, at(1)), [wait_report("no room")]);
    assert_eq!(tracker.next_deadline(), None);
    assert_eq!(tracker.tick(START_UP * 10), []);
    // The Job is admitted and runs. Then its queue takes it back, and its agent's report of that is not the end.
    let admitted = START_UP * 20;
    assert_eq!(tracker.handle_queue_state("ja", Some(QueueState::Admitted), admitted), []);
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Waiting, admitted), []);
    assert_eq!(tracker.next_deadline(), Some(admitted + UNNOTICED_TIME));
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Running, admitted), []);
    let (of, attempt, why) = (trial("a"), attempt("a"), SUSPENDED_REASON.to_owned());
    let requeued = TrackerAction::Report(JobNews::Requeued(JobWait { trial: of, attempt, why }));
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, admitted), [requeued]);
    assert_eq!(tracker.finish(&trial("a"), admitted), []);
    // After the admission, the time limit for the start applies again.
    let again = START_UP * 30;
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Waiting, again), []);
    let actions = tracker.tick(again + START_UP);
    assert!(actions.contains(&TrackerAction::Stop("ja".to_owned())), "{actions:?}");
}

#[test]
fn a_job_that_nothing_resumes_fails_after_a_day_or_a_longer_start_up_deadline() {
    let hour = at(3600);
    #[rustfmt::skip]
    let table = [
        // The deadline for the start, a run before the suspension, the end, and the prospect of a retry.
        (START_UP,  false, hour * 24, Class::Permanent),
        (START_UP,  true,  hour * 24, Class::Transient),
        (hour * 72, false, hour * 72, Class::Permanent),
    ];
    for (start_up, ran, time, class) in table {
        let mut tracker = created_job_tracker_with(start_up);
        if ran {
            tracker.handle_phase("ja", WorkloadPhase::Running, at(0));
        }
        tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
        assert_eq!(tracker.next_deadline(), Some(at(1) + time), "{start_up:?} {ran}");
        assert_eq!(tracker.tick(time), []);
        assert_eq!(tracker.tick(at(1) + time), [TrackerAction::Stop("ja".to_owned())]);
        tracker.handle_deleted_workload("ja");
        let actions = tracker.end_deleted_workload("ja");
        let [TrackerAction::Report(JobNews::Gone(event))] = actions.as_slice() else {
            panic!("{actions:?}")
        };
        let hours = time.as_secs() / 3600;
        let message = format!("nothing resumed the trial within {hours} h: {SUSPENDED_REASON}");
        assert_eq!((event.end.message.as_ref(), event.end.class), (Some(&message), Some(class)));
    }
}

#[test]
fn no_deadline_applies_while_a_pod_has_scheduling_gates() {
    let mut tracker = created_job_tracker();
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1)), []);
    tracker.observe_pod_gates("ja-0-abcde", true, at(1));
    let held = "Kueue holds it";
    let actions = tracker.observe_pod("ja-0-abcde", Some(held.to_owned()), None);
    assert_eq!(actions, [wait_report(held)]);
    assert_eq!(tracker.next_deadline(), None);
    assert_eq!(tracker.tick(START_UP * 10), []);
    // Without gates, the pod has the whole time to start, and another reason if it does not.
    let free = START_UP * 20;
    tracker.observe_pod_gates("ja-0-abcde", false, free);
    assert_eq!(tracker.observe_pod("ja-0-abcde", None, None), []);
    assert_eq!(tracker.next_deadline(), Some(free + START_UP));
    assert_eq!(tracker.tick(free + START_UP), [TrackerAction::Stop("ja".to_owned())]);
    let why = "the trial did not start within 600 s (startUpDeadline): the cluster shows no reason";
    tracker.handle_deleted_workload("ja");
    assert_eq!(tracker.end_deleted_workload("ja"), [end_report(None, why)]);
}

#[test]
fn no_deadline_applies_to_a_trial_whose_agent_reports_that_it_runs() {
    let mut tracker = created_job_tracker();
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1)), []);
    tracker.observe_pod("ja-0-abcde", None, None);
    tracker.mark_running(&trial("a"));
    // The watch of the workloads lags behind, because the API server does not answer.
    assert_eq!(tracker.tick(START_UP * 2), []);
    // A queue takes the trial back, and its next pod must start in time.
    tracker.handle_phase("ja", WorkloadPhase::Suspended, START_UP * 3);
    tracker.handle_phase("ja", WorkloadPhase::Waiting, START_UP * 4);
    tracker.observe_pod("ja-0-fghij", None, None);
    assert_eq!(tracker.tick(START_UP * 5), [TrackerAction::Stop("ja".to_owned())]);
}

#[test]
fn a_workload_that_a_watch_has_shown_is_not_created_again() {
    let mut tracker = Tracker::new(&BatchJob, START_UP, at(30));
    tracker.add_attempt("ja", trial("a"), attempt("a"), at(0));
    assert!(!tracker.is_created("ja") && !tracker.is_stop_requested("ja"));
    // The answer to the request was lost.
    tracker.handle_phase("ja", WorkloadPhase::Unseen, at(1));
    assert!(tracker.is_created("ja"));
    assert_eq!(tracker.stop_trial(&trial("a"), at(2)), [TrackerAction::Stop("ja".to_owned())]);
    assert!(tracker.is_created("ja") && tracker.is_stop_requested("ja"));
}
