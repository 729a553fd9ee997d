//! Tests of workloads that wait, are taken back, or do not end, as tables of timed observations.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use trial_protocol::{AttemptId, Class, TrialJobId};

use crate::training_service::VerdictCertainty::Final;
use crate::training_service::kubernetes::client::WatchedObject;
use crate::training_service::kubernetes::kueue::QueueState;
use crate::training_service::kubernetes::manifest::tests::workload_settings;
use crate::training_service::kubernetes::outcome::{WorkloadOutcome, WorkloadPhase};
use crate::training_service::kubernetes::tracker::queue::SUSPENDED_REASON;
use crate::training_service::kubernetes::tracker::{
    PodDeparture, Tracker, TrackerAction, UNREPORTED_SUCCESS, observe_missing_pod, observe_pod,
};
use crate::training_service::kubernetes::workload::Workload;
use crate::training_service::kubernetes::workload::framework::Framework;
use crate::training_service::kubernetes::workload::job::Job as BatchJob;
use crate::training_service::kubernetes::workload::job_set::JobSet;
use crate::training_service::kubernetes::workload::kubeflow::TF_JOB;
use crate::training_service::kubernetes::workload::train_job::TrainJob;
use crate::training_service::{DepartedPod, JobEnd};
use crate::training_service::{JobNews, JobWait};

const START_UP: Duration = Duration::from_mins(10);

pub(super) fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn ids() -> (TrialJobId, AttemptId) {
    (TrialJobId::new("a").unwrap(), AttemptId::new("a-1").unwrap())
}

/// Creates a tracker with one Job `ja`, created at 0, in a queue or in none.
fn created_tracker(queued: bool) -> Tracker {
    created_tracker_of(&BatchJob, queued)
}

/// Creates a tracker with one object `ja` of this kind.
pub(super) fn created_tracker_of(kind: &'static dyn Workload, queued: bool) -> Tracker {
    let mut tracker = Tracker::new(kind, START_UP, at(30)).with_queue(queued);
    tracker.begin_listing();
    assert_eq!(tracker.complete_listing(), []);
    let (trial, attempt) = ids();
    tracker.add_attempt("ja", trial, attempt, at(0));
    assert_eq!(tracker.handle_submission("ja", Ok(()), at(0)), []);
    tracker
}

fn job_wait(why: &str) -> JobWait {
    let (trial, attempt) = ids();
    JobWait { trial, attempt, why: why.to_owned() }
}

fn no_room_state() -> QueueState {
    QueueState::Waits("no room".to_owned())
}

/// Returns a pod as a watch reports it: its name, which is also its id, its phase, its container's exit code, and its
/// deletion.
pub(super) fn watched_pod(
    name: &str,
    phase: &str,
    code: Option<i32>,
    deleted: bool,
) -> WatchedObject {
    let ended = code.map(|code| json!({"exitCode": code, "startedAt": "2026-11-23T00:00:00Z"}));
    let moment = deleted.then_some("2026-11-23T00:00:00Z");
    let containers = json!([{"name": "trial", "state": {"terminated": ended}}]);
    let pod = json!({
        "metadata": {"name": name, "uid": name, "deletionTimestamp": moment},
        "status": {"phase": phase, "containerStatuses": containers},
    });
    serde_json::from_value(pod).unwrap()
}

/// Creates a tracker of a workload `ja` that ran, was taken back at 10 and runs again at 100. Its first pod was
/// stopped.
fn resumed_tracker(kind: &'static dyn Workload, pod: &str) -> Tracker {
    let mut tracker = created_tracker_of(kind, true);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
    observe_pod(&mut tracker, &watched_pod(pod, "Running", None, false), at(1));
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(10));
    observe_pod(&mut tracker, &watched_pod(pod, "Running", None, true), at(10));
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(11));
    observe_pod(&mut tracker, &watched_pod(pod, "Failed", Some(143), true), at(12));
    tracker.handle_phase("ja", WorkloadPhase::Waiting, at(100));
    tracker
}

/// Returns the reported end.
pub(super) fn reported_end(actions: &[TrackerAction]) -> &JobEnd {
    let ends = actions.iter().filter_map(|action| {
        if let TrackerAction::Report(JobNews::Gone(event)) = action { Some(event) } else { None }
    });
    let ends: Vec<_> = ends.collect();
    let [event] = ends.as_slice() else { panic!("{actions:?}") };
    &event.end
}

#[test]
fn a_running_job_that_is_taken_back_is_requeued_once_with_its_queues_reason() {
    let mut tracker = created_tracker(true);
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    assert_eq!(
        tracker.handle_queue_state("ja", Some(no_room_state()), at(1)),
        [TrackerAction::Report(JobNews::Waits(job_wait("no room")))]
    );
    assert_eq!(tracker.handle_queue_state("ja", Some(QueueState::Admitted), at(2)), []);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(3));
    let words = Some(QueueState::Waits("taken back".to_owned()));
    assert_eq!(tracker.handle_queue_state("ja", words, at(4)), [], "the job still runs");
    let requeued = TrackerAction::Report(JobNews::Requeued(job_wait("taken back")));
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(4)), [requeued]);
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(5)), []);
    assert_eq!(tracker.finish(&ids().0, at(6)), [], "the queue will run the job again");
}

#[test]
fn a_job_is_requeued_if_its_pod_ran_even_if_its_status_does_not_show_it() {
    for (phase, is_requeued) in [("Pending", false), ("Running", true)] {
        let mut tracker = created_tracker(true);
        tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1));
        observe_pod(&mut tracker, &watched_pod("ja-aaaaa", phase, None, false), at(1));
        tracker.handle_queue_state("ja", Some(QueueState::Waits("taken back".to_owned())), at(2));
        let reported = tracker.handle_phase("ja", WorkloadPhase::Suspended, at(2));
        let requeued = TrackerAction::Report(JobNews::Requeued(job_wait("taken back")));
        assert_eq!(reported.contains(&requeued), is_requeued, "{phase}: {reported:?}");
        // The pod still runs for its grace period, which does not count as a run.
        observe_pod(&mut tracker, &watched_pod("ja-aaaaa", phase, None, false), at(3));
        assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(3)), []);
    }
}

#[test]
fn only_waiting_after_admissions_counts_and_adds_up() {
    let mut tracker = created_tracker(true);
    tracker.handle_queue_state("ja", Some(no_room_state()), at(0));
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    assert_eq!(tracker.next_deadline(), None);
    // The trial is admitted for a while, with a pod that does not start.
    tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1000));
    tracker.observe_pod("ja-aaaaa", None, None);
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1400));
    tracker.handle_phase("ja", WorkloadPhase::Waiting, at(5000));
    tracker.observe_pod("ja-bbbbb", None, None);
    assert_eq!(tracker.next_deadline(), Some(at(5000) + START_UP.checked_sub(at(400)).unwrap()));
    assert_eq!(tracker.tick(at(5199)), []);
    assert_eq!(tracker.tick(at(5200)), [TrackerAction::Stop("ja".to_owned())]);
}

#[test]
fn a_queue_that_does_not_notice_a_job_is_reported_and_the_job_fails() {
    let mut tracker = created_tracker(true);
    tracker.observe_queue_watch(true, at(0));
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    assert_eq!(tracker.next_deadline(), Some(at(21)));
    let reported = tracker.tick(at(21));
    let [TrackerAction::Report(JobNews::Waits(wait))] = reported.as_slice() else {
        panic!("{reported:?}")
    };
    assert!(wait.why.starts_with("Kueue has created no Workload for the trial"), "{}", wait.why);
    assert_eq!(tracker.tick(at(22)), []);
    assert_eq!(tracker.tick(at(1) + START_UP), [TrackerAction::Stop("ja".to_owned())]);
    // A queue that has noticed the trial may keep it waiting.
    let mut tracker = created_tracker(true);
    tracker.observe_queue_watch(true, at(0));
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    tracker.handle_queue_state("ja", None, at(2));
    assert_eq!(tracker.next_deadline(), None);
}

#[test]
fn a_job_that_the_cluster_has_put_into_a_queue_shows_the_label_and_the_missing_workload() {
    let label =
        "it is suspended: the cluster gave it the label `kueue.x-k8s.io/queue-name: default`";
    let made_in_queue = || {
        let mut tracker = created_tracker(false);
        tracker.observe_queue_name("ja", Some("default"));
        let actions = tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
        let first = TrackerAction::Report(JobNews::Waits(job_wait(&format!(
            "{label}, so Kueue must admit it"
        ))));
        assert_eq!(actions, [first, TrackerAction::WatchQueue]);
        assert_eq!(tracker.next_deadline(), None, "the queues are not listed yet");
        tracker.observe_queue_watch(true, at(2));
        assert_eq!(tracker.next_deadline(), Some(at(22)));
        tracker
    };
    let mut tracker = made_in_queue();
    let reported = tracker.tick(at(22));
    let [TrackerAction::Report(JobNews::Waits(wait))] = reported.as_slice() else {
        panic!("{reported:?}")
    };
    let expected = format!("{label}, but no Workload exists for it. Kueue has created no Workload");
    assert!(wait.why.starts_with(&expected), "{}", wait.why);
    assert_eq!(tracker.tick(at(23)), []);
    assert_eq!(tracker.tick(at(2) + START_UP), [TrackerAction::Stop("ja".to_owned())]);

    let mut tracker = made_in_queue();
    tracker.handle_queue_state("ja", Some(no_room_state()), at(3));
    assert_eq!(tracker.next_deadline(), None);

    // A manager that resumes the search sees the label, too.
    let mut tracker = Tracker::new(&BatchJob, START_UP, at(30));
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    let labels = json!({"kueue.x-k8s.io/queue-name": "default"});
    let job = json!({"metadata": {"name": "ja", "labels": labels}});
    tracker.observe_unadopted(&serde_json::from_value(job).unwrap());
    let (trial, attempt) = ids();
    let (_, actions) = tracker.adopt("ja", &trial, &attempt, at(2));
    let shows = |action: &TrackerAction| matches!(action, TrackerAction::Report(JobNews::Requeued(wait)) if wait.why.starts_with(label));
    assert!(actions.iter().any(shows), "{actions:?}");
}

#[test]
fn a_queue_that_cannot_be_watched_fails_no_job() {
    let mut tracker = created_tracker(true);
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    assert_eq!(tracker.next_deadline(), None, "the queues are not listed yet");
    tracker.observe_queue_watch(true, at(100));
    assert_eq!(tracker.next_deadline(), Some(at(120)));
    tracker.observe_queue_watch(false, at(110));
    assert_eq!(tracker.next_deadline(), None, "Kueue does not answer");
    assert_eq!(tracker.tick(START_UP * 10), []);
    let again = START_UP * 11;
    tracker.observe_queue_watch(true, again);
    tracker.observe_queue_watch(true, again + at(10));
    assert_eq!(tracker.next_deadline(), Some(again + at(20)));
}

#[test]
fn a_trial_that_never_fits_fails_permanently_after_the_time_limit() {
    let mut tracker = created_tracker(true);
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    let never = || Some(QueueState::NeverFits("too large".to_owned()));
    tracker.handle_queue_state("ja", never(), at(2));
    tracker.handle_queue_state("ja", never(), at(300));
    assert_eq!(tracker.next_deadline(), Some(at(2) + START_UP));
    assert_eq!(tracker.tick(at(2) + START_UP), [TrackerAction::Stop("ja".to_owned())]);
    assert_eq!(tracker.handle_deleted_workload("ja"), [TrackerAction::AwaitPods("ja".to_owned())]);
    let actions = tracker.end_deleted_workload("ja");
    assert_eq!(reported_end(&actions).class, Some(Class::Permanent));
    assert!(
        reported_end(&actions).message.as_ref().unwrap().ends_with("(startUpDeadline): too large")
    );
    // The queue has grown meanwhile.
    let mut tracker = created_tracker(true);
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    tracker.handle_queue_state("ja", never(), at(2));
    tracker.handle_queue_state("ja", Some(no_room_state()), at(300));
    assert_eq!(tracker.next_deadline(), None);
}

#[test]
fn an_unnamed_queue_is_watched_as_soon_as_it_holds_a_job() {
    let mut tracker = created_tracker(false);
    let actions = tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    assert_eq!(
        actions,
        [
            TrackerAction::Report(JobNews::Waits(job_wait(SUSPENDED_REASON))),
            TrackerAction::WatchQueue
        ]
    );
    assert_eq!(
        tracker.handle_queue_state("ja", Some(no_room_state()), at(2)),
        [TrackerAction::Report(JobNews::Waits(job_wait("no room")))]
    );
    assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(3)), []);
    assert_eq!(tracker.next_deadline(), None, "a user may suspend a job without a time limit");
}

#[test]
fn the_wait_for_a_pod_on_a_lost_node_has_a_limit() {
    let mut tracker = created_tracker(false);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
    tracker.observe_pod_departure("ja-aaaaa", Some("u"), PodDeparture::Deleted, at(50));
    tracker.observe_pod_departure("ja-aaaaa", Some("u"), PodDeparture::Deleted, at(60));
    let limit = at(50 + 30 + 600);
    let early = tracker.tick(limit.checked_sub(at(1)).unwrap());
    assert!(!early.contains(&TrackerAction::DeleteLeftover("ja".to_owned())), "{early:?}");
    let actions = tracker.tick(limit);
    assert_eq!(actions.first(), Some(&TrackerAction::DeleteLeftover("ja".to_owned())));
    let end = reported_end(&actions);
    assert_eq!((end.class, end.exit_code), (Some(Class::Transient), None));
    assert!(
        end.disruption.as_deref().is_some_and(|evidence| evidence.starts_with("NodeLost")),
        "{end:?}"
    );
    // The node came back.
    let mut tracker = created_tracker(false);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
    tracker.observe_pod_departure("ja-aaaaa", Some("u"), PodDeparture::Deleted, at(50));
    tracker.observe_pod_departure("ja-aaaaa", Some("u"), PodDeparture::Gone, at(90));
    assert!(!tracker.tick(limit).contains(&TrackerAction::DeleteLeftover("ja".to_owned())));
}

#[test]
fn the_end_of_a_job_that_does_not_complete_is_read_from_its_pods() {
    let mut tracker = created_tracker(true);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
    tracker.handle_phase("ja", WorkloadPhase::Ending, at(40));
    tracker.handle_phase("ja", WorkloadPhase::Ending, at(50));
    assert_eq!(tracker.next_deadline(), Some(at(100)));
    assert_eq!(tracker.tick(at(100)), [TrackerAction::ConcludeFromPods("ja".to_owned())]);
    assert_eq!(tracker.tick(at(101)), [], "the next check is one minute later");
    assert_eq!(tracker.tick(at(160)), [TrackerAction::ConcludeFromPods("ja".to_owned())]);
}

#[test]
fn the_end_of_an_incomplete_workload_is_read_from_its_pods() {
    let settles = [TrackerAction::ConcludeFromPods("ja".to_owned())];
    #[rustfmt::skip]
    let table: [(&'static dyn Workload, WorkloadPhase, bool); 10] = [
        (&JobSet,    WorkloadPhase::Running,   true),
        (&JobSet,    WorkloadPhase::Starting,  true),
        (&TrainJob,  WorkloadPhase::Running,   true),
        (&TF_JOB,    WorkloadPhase::Running,   true),
        (&BatchJob,  WorkloadPhase::Running,   true),
        (&Framework, WorkloadPhase::Running,   true),
        // The controller created the pods and died before it wrote a status.
        (&TF_JOB,    WorkloadPhase::Unseen,    true),
        // The queue stopped the pods.
        (&JobSet,    WorkloadPhase::Suspended, false),
        (&TF_JOB,    WorkloadPhase::Suspended, false),
        (&BatchJob,  WorkloadPhase::Suspended, false),
    ];
    for (kind, phase, is_settled) in table {
        let mut tracker = created_tracker_of(kind, false);
        tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
        tracker.mark_pod_completed("ja-worker-0-0-aaaaa", at(40));
        tracker.handle_phase("ja", phase.clone(), at(41));
        tracker.tick(at(99));
        let actions = tracker.tick(at(100));
        assert_eq!(actions.contains(&settles[0]), is_settled, "{kind:?} {phase:?}: {actions:?}");
        if is_settled {
            assert_eq!(tracker.tick(at(130)), [], "{kind:?}");
            assert_eq!(tracker.tick(at(160)), settles, "{kind:?}: one minute later again");
        }
    }
}

#[test]
fn a_pod_that_its_queue_stopped_does_not_end_the_next_run() {
    let table: [(&'static dyn Workload, &str); 3] = [
        (&JobSet, "ja-worker-0-0-aaaaa"),
        (&TrainJob, "ja-node-0-0-aaaaa"),
        (&BatchJob, "ja-aaaaa"),
    ];
    for (kind, old) in table {
        let mut tracker = resumed_tracker(kind, old);
        // No other pod has the place yet, and late observations of the old pod add nothing.
        observe_missing_pod(&mut tracker, &watched_pod(old, "Failed", Some(143), true), at(101));
        observe_pod(&mut tracker, &watched_pod(old, "Failed", Some(143), true), at(101));
        let actions = tracker.tick(at(200));
        assert!(
            !actions.contains(&TrackerAction::ConcludeFromPods("ja".to_owned())),
            "{kind:?}: {actions:?}"
        );
        assert_eq!(
            tracker.pods().with_ended_pods("ja", Vec::new()),
            Vec::<Value>::new(),
            "{kind:?}"
        );
        let listed = json!({"metadata": {"name": old, "uid": old}});
        assert_eq!(
            tracker.pods().with_ended_pods("ja", vec![listed]),
            Vec::<Value>::new(),
            "{kind:?}"
        );
        assert!(!tracker.pods().has_unobserved_end("ja", &[]), "{kind:?}");
    }
}

#[test]
fn the_success_of_a_preempted_job_is_read_from_its_last_pods() {
    let section = json!({"platform": "kubernetes", "dockerImage": "i:1", "queue": "team"});
    let spec = workload_settings(&section).spec;
    let mut tracker = resumed_tracker(&BatchJob, "ja-0-aaaaa").with_pods(2);
    for pod in ["ja-0-bbbbb", "ja-1-ccccc"] {
        observe_pod(&mut tracker, &watched_pod(pod, "Succeeded", Some(0), false), at(150));
    }
    // Kueue's webhook is away, and the Job's controller cannot count the pods.
    tracker.handle_phase("ja", WorkloadPhase::Ending, at(150));
    assert_eq!(tracker.tick(at(210)), [TrackerAction::ConcludeFromPods("ja".to_owned())]);
    let pods = tracker.pods().with_ended_pods("ja", Vec::new());
    let outcome = BatchJob.outcome_from_pods(&spec, &pods, &[]).unwrap();
    assert!(outcome.succeeded, "{outcome:?}");
}

#[test]
fn a_new_pod_takes_the_place_of_a_deleted_one() {
    let running = |name: &str| watched_pod(name, "Running", None, false);
    let stopped = |name: &str| watched_pod(name, "Failed", Some(143), true);
    let failed = |name: &str| watched_pod(name, "Failed", Some(3), false);
    let (old, new, beside) = ("ja-node-0-0-aaaaa", "ja-node-0-0-bbbbb", "ja-node-0-1-ccccc");
    #[rustfmt::skip]
    let table = [
        (vec![stopped(old)],                                Some(143)),
        (vec![running(old), running(new), stopped(old)],    None),
        (vec![running(old), stopped(old), running(new)],    None),
        (vec![running(old), stopped(old), failed(new)],     Some(3)),
        // A listing has the pods in any order.
        (vec![running(new), stopped(old)],                  None),
        (vec![running(old), stopped(old), running(beside)], Some(143)),
        (vec![failed(old), running(new)],                   Some(3)),
    ];
    for (pods, expected) in table {
        let mut tracker = created_tracker_of(&TrainJob, false);
        tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
        for pod in &pods {
            observe_pod(&mut tracker, pod, at(2));
        }
        let ended = tracker.pods().with_ended_pods("ja", Vec::new());
        let codes = ended.iter().filter_map(|pod| {
            pod.pointer("/status/containerStatuses/0/state/terminated/exitCode")?.as_i64()
        });
        assert_eq!(codes.collect::<Vec<_>>(), Vec::from_iter(expected), "{pods:?}");
    }
}

#[test]
fn a_replaced_pod_on_a_lost_node_does_not_end_the_run() {
    let late = at(10 + 30 + 600);
    for (new, is_ended) in [(None, true), (Some("ja-bbbbb"), false)] {
        let mut tracker = created_tracker(true);
        tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
        observe_pod(&mut tracker, &watched_pod("ja-aaaaa", "Running", None, true), at(10));
        tracker.handle_phase("ja", WorkloadPhase::Suspended, at(10));
        tracker.handle_phase("ja", WorkloadPhase::Waiting, at(100));
        if let Some(new) = new {
            observe_pod(&mut tracker, &watched_pod(new, "Running", None, false), at(101));
        }
        let actions = tracker.tick(late);
        assert_eq!(
            actions.contains(&TrackerAction::DeleteLeftover("ja".to_owned())),
            is_ended,
            "{new:?}: {actions:?}"
        );
    }
}

#[test]
fn a_job_that_its_queue_takes_back_after_its_trial_has_ended_never_runs_again() {
    let stop = [TrackerAction::Stop("ja".to_owned())];
    for is_taken_first in [false, true] {
        let mut tracker = created_tracker(true);
        tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
        if is_taken_first {
            tracker.handle_phase("ja", WorkloadPhase::Suspended, at(10));
            assert_eq!(tracker.accept_verdict_end(&ids().0, Final, at(11)), (true, stop.to_vec()));
        } else {
            assert_eq!(tracker.accept_verdict_end(&ids().0, Final, at(10)), (true, Vec::new()));
            assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(11)), stop);
        }
        assert_eq!(tracker.handle_phase("ja", WorkloadPhase::Suspended, at(12)), []);
    }
}

#[test]
fn only_deleted_pods_are_reported_as_departed_and_only_once() {
    let mut tracker = created_tracker(true).with_pods(2);
    let mut depart = |pod: &str, departure: PodDeparture| {
        tracker.observe_pod_departure(pod, Some(pod), departure, at(1))
    };
    let left = |incarnation: &str| {
        let ((trial, attempt), incarnation) = (ids(), incarnation.to_owned());
        Some(TrackerAction::Report(JobNews::PodLeft(DepartedPod { trial, attempt, incarnation })))
    };
    assert_eq!(depart("ja-0-aaaaa", PodDeparture::NotDeleted), None);
    assert_eq!(depart("ja-0-aaaaa", PodDeparture::Deleted), left("ja-0-aaaaa"));
    assert_eq!(depart("ja-0-aaaaa", PodDeparture::Gone), None);
    assert_eq!(depart("ja-1-bbbbb", PodDeparture::Gone), left("ja-1-bbbbb"));
    assert_eq!(depart("jb-1-bbbbb", PodDeparture::Gone), None, "a pod of another experiment");
}

#[test]
fn a_job_that_another_client_deletes_ends_with_its_pods() {
    let mut tracker = created_tracker(false);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
    assert_eq!(tracker.handle_deleted_workload("ja"), [TrackerAction::AwaitPods("ja".to_owned())]);
    // The garbage collector deletes the pods, and a listing lacks the Job.
    tracker.begin_listing();
    assert_eq!(tracker.complete_listing(), []);
    assert_eq!(tracker.tick(at(5000)), []);
    let actions = tracker.end_deleted_workload("ja");
    let end = reported_end(&actions);
    assert_eq!(end.class, Some(Class::Transient));
    assert_eq!(end.message.as_deref(), Some("its Job was deleted, but not by the manager"));
}

#[test]
fn a_job_that_outlives_its_trial_is_stopped() {
    let mut tracker = created_tracker(false);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
    assert!(!tracker.has_handed_over());
    assert_eq!(tracker.accept_verdict_end(&ids().0, Final, at(40)), (true, Vec::new()));
    assert!(tracker.has_handed_over());
    assert_eq!(tracker.tick(at(100)), [TrackerAction::ReadOutput("ja".to_owned())]);
    assert_eq!(tracker.next_deadline(), Some(at(40) + at(30 + 60)));
    assert_eq!(tracker.tick(at(130)), [TrackerAction::Stop("ja".to_owned())]);
    assert_eq!(tracker.handle_deleted_workload("ja"), [TrackerAction::AwaitPods("ja".to_owned())]);
    tracker.end_deleted_workload("ja");
    assert!(!tracker.has_handed_over());
}

/// Returns a running pod whose container has started, as a watch reports it.
pub(super) fn started_pod(name: &str, deleted: bool) -> WatchedObject {
    let moment = deleted.then_some("2026-11-23T00:00:00Z");
    let containers = json!([{"name": "trial", "state": {"running": {}}}]);
    let pod = json!({
        "metadata": {"name": name, "uid": name, "deletionTimestamp": moment},
        "status": {"phase": "Running", "containerStatuses": containers},
    });
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_pod_that_runs_does_not_wait_to_start_whatever_its_job_shows() {
    // The pod is not ready, or its node is not, or it ends slowly. Its Job counts it as neither ready nor active.
    for deleted in [false, true] {
        let mut tracker = created_tracker(false);
        tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1));
        observe_pod(&mut tracker, &started_pod("ja-aaaaa", false), at(2));
        tracker.handle_phase("ja", WorkloadPhase::Running, at(3));
        observe_pod(&mut tracker, &started_pod("ja-aaaaa", deleted), at(20));
        tracker.handle_phase("ja", WorkloadPhase::Waiting, at(21));
        let late = at(21) + START_UP;
        assert!(!tracker.tick(late).contains(&TrackerAction::Stop("ja".to_owned())), "{deleted}");
        let next = tracker.next_deadline();
        assert!(next.is_none_or(|next| next > late), "{next:?}");
        // Another pod takes its place and does not start.
        observe_pod(&mut tracker, &started_pod("ja-aaaaa", true), at(700));
        observe_pod(&mut tracker, &watched_pod("ja-bbbbb", "Pending", None, false), at(700));
        assert_eq!(tracker.next_deadline(), Some(at(700) + START_UP), "{deleted}");
        assert_eq!(tracker.tick(at(700) + START_UP), [TrackerAction::Stop("ja".to_owned())]);
    }
}

#[test]
fn a_started_pod_of_two_does_not_end_the_wait_for_the_other() {
    let mut tracker = created_tracker(false).with_pods(2);
    tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1));
    observe_pod(&mut tracker, &started_pod("ja-0-aaaaa", false), at(2));
    observe_pod(&mut tracker, &watched_pod("ja-1-bbbbb", "Pending", None, false), at(2));
    tracker.handle_phase("ja", WorkloadPhase::Starting, at(3));
    assert_eq!(tracker.tick(START_UP), [TrackerAction::Stop("ja".to_owned())]);
}

#[test]
fn the_position_of_a_waiting_workload_is_part_of_its_reason() {
    let reported = |actions: Vec<TrackerAction>| -> Vec<String> {
        let whys = actions.into_iter().filter_map(|action| {
            if let TrackerAction::Report(JobNews::Waits(waits) | JobNews::Requeued(waits)) = action
            {
                Some(waits.why)
            } else {
                None
            }
        });
        whys.collect()
    };
    let at_place = |ahead: u64| HashMap::from([("ja".to_owned(), ahead)]);
    let mut tracker = created_tracker(true);
    tracker.handle_phase("ja", WorkloadPhase::Suspended, at(1));
    assert!(!tracker.is_waiting_in_queue(), "Kueue has not examined the workload");
    assert_eq!(tracker.handle_positions(&at_place(4)), []);
    let waits = |why: &str| Some(QueueState::Waits(why.to_owned()));
    assert_eq!(reported(tracker.handle_queue_state("ja", waits("no room"), at(2))), ["no room"]);
    assert!(tracker.is_waiting_in_queue());
    let ahead = "no room; 4 others are ahead of it";
    assert_eq!(reported(tracker.handle_positions(&at_place(4))), [ahead]);
    assert_eq!(tracker.handle_positions(&at_place(4)), [], "nothing has changed");
    let next = "it is the next in its queue";
    assert_eq!(reported(tracker.handle_positions(&at_place(0))), [format!("no room; {next}")]);
    let other = tracker.handle_queue_state("ja", waits("no flavor"), at(3));
    assert_eq!(reported(other), [format!("no flavor; {next}")]);
    // The positions of other trials do not matter.
    assert_eq!(reported(tracker.handle_positions(&HashMap::new())), ["no flavor"]);
    tracker.handle_positions(&at_place(0));
    tracker.handle_queue_state("ja", Some(QueueState::Admitted), at(4));
    tracker.handle_phase("ja", WorkloadPhase::Running, at(5));
    assert!(!tracker.is_waiting_in_queue());
    tracker.handle_queue_state("ja", waits("taken back"), at(6));
    let back = tracker.handle_phase("ja", WorkloadPhase::Suspended, at(6));
    assert_eq!(reported(back), ["taken back"], "the position of the earlier wait has no meaning");
}

#[test]
fn an_end_that_its_controller_cannot_write_names_the_obstacle() {
    let why = "Kueue's webhook does not answer";
    for (succeeded, start) in [(true, UNREPORTED_SUCCESS), (false, "its pod failed")] {
        let mut tracker = created_tracker(true);
        tracker.handle_phase("ja", WorkloadPhase::Ending, at(1));
        let failure = WorkloadOutcome::failure("its pod failed".to_owned());
        let outcome = WorkloadOutcome { succeeded, ..failure };
        let actions = tracker.end_from_pods("ja", outcome, why, false);
        let end = reported_end(&actions);
        assert_eq!(end.succeeded, succeeded);
        assert_eq!(end.message.as_deref(), Some(format!("{start}; {why}").as_str()));
    }
}

#[test]
fn an_end_that_was_read_from_some_pods_is_reported_when_the_others_are_gone() {
    let mut tracker = created_tracker_of(&TF_JOB, false);
    tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
    let outcome = WorkloadOutcome {
        succeeded: true,
        exit_code: Some(0),
        ..WorkloadOutcome::failure(String::new())
    };
    let actions = tracker.end_from_pods("ja", outcome, "its controller is down", true);
    assert_eq!(
        actions,
        [TrackerAction::DeleteLeftover("ja".to_owned()), TrackerAction::AwaitPods("ja".to_owned())]
    );
    assert_eq!(tracker.handle_deleted_workload("ja"), []);
    assert_eq!(tracker.tick(at(5000)), []);
    let actions = tracker.end_deleted_workload("ja");
    let end = reported_end(&actions);
    assert!(end.succeeded && end.exit_code == Some(0), "{end:?}");
}

#[test]
fn a_quota_that_refuses_a_pod_makes_room_by_deleting_old_workloads() {
    let mut tracker = created_tracker(false);
    for old in 0..30 {
        let attempt = AttemptId::new(format!("o{old}-1")).unwrap();
        let trial = TrialJobId::new(format!("o{old}")).unwrap();
        let name = format!("jo{old}");
        tracker.add_attempt(&name, trial, attempt, at(0));
        tracker.handle_submission(&name, Err("no".to_owned()), at(0));
    }
    tracker.handle_phase("ja", WorkloadPhase::Waiting, at(1));
    let why = |text: &str| Some(format!("the controller cannot create its pod: {text}"));
    let tidies = |actions: &[TrackerAction]| {
        actions
            .iter()
            .any(|action| matches!(action, TrackerAction::DeleteRemains(old) if old.len() == 20))
    };
    let actions = tracker.handle_missing_pod("ja", why("forbidden: no such account"));
    assert!(!tidies(&actions), "{actions:?}");
    let actions =
        tracker.handle_missing_pod("ja", why("forbidden: exceeded quota: q, count/pods=1"));
    assert!(tidies(&actions), "{actions:?}");
}

#[test]
fn a_workload_whose_submission_was_given_up_is_deleted_if_it_was_seen() {
    for is_seen in [false, true] {
        let mut tracker = Tracker::new(&BatchJob, START_UP, at(30));
        tracker.begin_listing();
        tracker.complete_listing();
        let (trial, attempt) = ids();
        tracker.add_attempt("ja", trial.clone(), attempt, at(0));
        assert_eq!(tracker.stop_trial(&trial, at(1)), []);
        if is_seen {
            // The answer to the request was lost.
            tracker.handle_phase("ja", WorkloadPhase::Waiting, at(2));
        }
        let actions = tracker.handle_submission("ja", Err("stopped".to_owned()), at(3));
        assert_eq!(
            actions.contains(&TrackerAction::DeleteLeftover("ja".to_owned())),
            is_seen,
            "{actions:?}"
        );
        assert!(reported_end(&actions).message.is_some());
    }
}

#[test]
fn a_pod_that_outlives_its_trial_does_not_hold_the_workload_for_ever() {
    let patience = at(30 + 60);
    let kinds: [(&'static dyn Workload, &str); 3] =
        [(&BatchJob, "ja-aaaaa"), (&TF_JOB, "ja-worker-0"), (&JobSet, "ja-worker-0-0-aaaaa")];
    for (kind, pod) in kinds {
        let read = TrackerAction::ConcludeFromPods("ja".to_owned());
        let mut tracker = created_tracker_of(kind, false);
        tracker.handle_phase("ja", WorkloadPhase::Running, at(1));
        observe_pod(&mut tracker, &started_pod(pod, false), at(1));
        tracker.observe_outliving_pod(pod, true, at(100));
        tracker.observe_outliving_pod(pod, true, at(150));
        assert!(!tracker.tick(at(189)).contains(&read), "{kind:?}");
        assert_eq!(tracker.next_deadline(), Some(at(100) + patience), "{kind:?}");
        assert!(tracker.tick(at(190)).contains(&read), "{kind:?}");
        // The other pods still run. The next check is later.
        assert!(!tracker.tick(at(191)).contains(&read), "{kind:?}");
        assert!(tracker.tick(at(190) + patience).contains(&read), "{kind:?}");
        // A queue has stopped the pod.
        tracker.handle_phase("ja", WorkloadPhase::Suspended, at(300));
        assert!(!tracker.tick(at(900)).contains(&read), "{kind:?}");
    }
}
