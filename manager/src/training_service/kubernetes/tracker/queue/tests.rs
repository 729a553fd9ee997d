//! Workloads that wait, are taken back, or do not end, against tables of what is seen and when.

use trial_protocol::AttemptId;

use super::*;
use crate::training_service::kubernetes::tracker::PodGoes;
use crate::training_service::kubernetes::workload::Workload;
use crate::training_service::kubernetes::workload::job::Job as BatchJob;
use crate::training_service::kubernetes::workload::job_set::JobSet;
use crate::training_service::kubernetes::workload::kubeflow::TF_JOB;
use crate::training_service::kubernetes::workload::train_job::TrainJob;
use crate::training_service::{JobEvent, PodLeft};

const START_UP: Duration = Duration::from_mins(10);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ids() -> (TrialJobId, AttemptId) {
    (TrialJobId::new("a").unwrap(), AttemptId::new("a-1").unwrap())
}

/// A tracker with one Job `ja` that was made at 0, in a queue or in none.
fn made(queued: bool) -> Tracker {
    made_as(&BatchJob, queued)
}

/// The same with an object of another kind.
fn made_as(kind: &'static dyn Workload, queued: bool) -> Tracker {
    let mut tracker = Tracker::new(kind, START_UP, at(30)).queued(queued);
    tracker.listing();
    assert_eq!(tracker.listing_done(), []);
    let (trial, attempt) = ids();
    tracker.submit("ja", trial, attempt, at(0));
    assert_eq!(tracker.submitted("ja", Ok(()), at(0)), []);
    tracker
}

fn waits(why: &str) -> JobWaits {
    let (trial, attempt) = ids();
    JobWaits { trial, attempt, why: why.to_owned() }
}

fn room() -> QueueState {
    QueueState::Waits("no room".to_owned())
}

/// The end that was told.
fn end_of(acts: &[Act]) -> &JobEvent {
    let ends = acts.iter().filter_map(|act| {
        if let Act::Tell(JobNews::Gone(event)) = act { Some(event) } else { None }
    });
    let ends: Vec<_> = ends.collect();
    let [end] = ends.as_slice() else { panic!("{acts:?}") };
    end
}

#[test]
fn a_job_that_runs_and_is_taken_back_is_requeued_once_in_its_queue_s_words() {
    let mut tracker = made(true);
    tracker.workload("ja", JobPhase::Suspended, at(1));
    assert_eq!(
        tracker.queue("ja", Some(room()), at(1)),
        [Act::Tell(JobNews::Waits(waits("no room")))]
    );
    assert_eq!(tracker.queue("ja", Some(QueueState::Admitted), at(2)), []);
    tracker.workload("ja", JobPhase::Running, at(3));
    let words = Some(QueueState::Waits("taken back".to_owned()));
    assert_eq!(tracker.queue("ja", words, at(4)), [], "it runs still");
    let requeued = Act::Tell(JobNews::Requeued(waits("taken back")));
    assert_eq!(tracker.workload("ja", JobPhase::Suspended, at(4)), [requeued]);
    assert_eq!(tracker.workload("ja", JobPhase::Suspended, at(5)), []);
    assert_eq!(tracker.finish(&ids().0, at(6)), [], "it runs again");
}

#[test]
fn time_in_the_queue_does_not_count_and_waiting_adds_up_over_admissions() {
    let mut tracker = made(true);
    tracker.queue("ja", Some(room()), at(0));
    tracker.workload("ja", JobPhase::Suspended, at(1));
    assert_eq!(tracker.next_deadline(), None);
    // Admitted for a while, with a pod that does not start.
    tracker.workload("ja", JobPhase::Waiting, at(1000));
    tracker.pod("ja-aaaaa", None, None);
    tracker.workload("ja", JobPhase::Suspended, at(1400));
    tracker.workload("ja", JobPhase::Waiting, at(5000));
    tracker.pod("ja-bbbbb", None, None);
    assert_eq!(tracker.next_deadline(), Some(at(5000) + START_UP.checked_sub(at(400)).unwrap()));
    assert_eq!(tracker.tick(at(5199)), []);
    assert_eq!(tracker.tick(at(5200)), [Act::Stop("ja".to_owned())]);
}

#[test]
fn a_queue_that_takes_no_notice_is_said_and_not_waited_for_for_ever() {
    let mut tracker = made(true);
    tracker.workload("ja", JobPhase::Suspended, at(1));
    assert_eq!(tracker.next_deadline(), Some(at(21)));
    let told = tracker.tick(at(21));
    let [Act::Tell(JobNews::Waits(said))] = told.as_slice() else { panic!("{told:?}") };
    assert!(said.why.starts_with("Kueue has made no Workload for it"), "{}", said.why);
    assert_eq!(tracker.tick(at(22)), []);
    assert_eq!(tracker.tick(at(1) + START_UP), [Act::Stop("ja".to_owned())]);
    // One that has taken notice may keep it waiting.
    let mut tracker = made(true);
    tracker.workload("ja", JobPhase::Suspended, at(1));
    tracker.queue("ja", None, at(2));
    assert_eq!(tracker.next_deadline(), None);
}

#[test]
fn a_trial_that_never_fits_fails_after_a_while_and_is_not_tried_again() {
    let mut tracker = made(true);
    tracker.workload("ja", JobPhase::Suspended, at(1));
    let never = || Some(QueueState::NeverFits("too large".to_owned()));
    tracker.queue("ja", never(), at(2));
    tracker.queue("ja", never(), at(300));
    assert_eq!(tracker.next_deadline(), Some(at(2) + START_UP));
    assert_eq!(tracker.tick(at(2) + START_UP), [Act::Stop("ja".to_owned())]);
    assert_eq!(tracker.workload_gone("ja"), [Act::AwaitPods("ja".to_owned())]);
    let acts = tracker.pods_gone("ja");
    assert_eq!(end_of(&acts).class, Some(Class::Permanent));
    assert!(end_of(&acts).message.as_ref().unwrap().ends_with("(startUpDeadline): too large"));
    // Its queue has grown meanwhile.
    let mut tracker = made(true);
    tracker.workload("ja", JobPhase::Suspended, at(1));
    tracker.queue("ja", never(), at(2));
    tracker.queue("ja", Some(room()), at(300));
    assert_eq!(tracker.next_deadline(), None);
}

#[test]
fn a_queue_that_is_not_named_is_watched_once_it_holds_a_job() {
    let mut tracker = made(false);
    let acts = tracker.workload("ja", JobPhase::Suspended, at(1));
    assert_eq!(acts, [Act::Tell(JobNews::Waits(waits(SUSPENDED))), Act::WatchQueue]);
    assert_eq!(
        tracker.queue("ja", Some(room()), at(2)),
        [Act::Tell(JobNews::Waits(waits("no room")))]
    );
    assert_eq!(tracker.workload("ja", JobPhase::Suspended, at(3)), []);
    assert_eq!(tracker.next_deadline(), None, "a person may hold it as long as they like");
}

#[test]
fn a_pod_on_a_node_that_is_gone_is_not_waited_for_for_ever() {
    let mut tracker = made(false);
    tracker.workload("ja", JobPhase::Running, at(1));
    tracker.pod_goes("ja-aaaaa", Some("u"), PodGoes::Deleted, at(50));
    tracker.pod_goes("ja-aaaaa", Some("u"), PodGoes::Deleted, at(60));
    let limit = at(50 + 30 + 600);
    let early = tracker.tick(limit.checked_sub(at(1)).unwrap());
    assert!(!early.contains(&Act::Discard("ja".to_owned())), "{early:?}");
    let acts = tracker.tick(limit);
    assert_eq!(acts.first(), Some(&Act::Discard("ja".to_owned())));
    let end = end_of(&acts);
    assert_eq!((end.class, end.exit_code), (Some(Class::Transient), None));
    assert!(end.disruption.as_deref().is_some_and(|said| said.starts_with("NodeLost")), "{end:?}");
    // It came back.
    let mut tracker = made(false);
    tracker.workload("ja", JobPhase::Running, at(1));
    tracker.pod_goes("ja-aaaaa", Some("u"), PodGoes::Deleted, at(50));
    tracker.pod_goes("ja-aaaaa", Some("u"), PodGoes::Gone, at(90));
    assert!(!tracker.tick(limit).contains(&Act::Discard("ja".to_owned())));
}

#[test]
fn a_job_that_is_long_about_to_end_is_settled_by_its_pods() {
    let mut tracker = made(true);
    tracker.workload("ja", JobPhase::Running, at(1));
    tracker.workload("ja", JobPhase::Ending, at(40));
    tracker.workload("ja", JobPhase::Ending, at(50));
    assert_eq!(tracker.next_deadline(), Some(at(100)));
    assert_eq!(tracker.tick(at(100)), [Act::Settle("ja".to_owned())]);
    assert_eq!(tracker.tick(at(101)), [], "and looked at again only after a while");
    assert_eq!(tracker.tick(at(160)), [Act::Settle("ja".to_owned())]);
}

#[test]
fn what_follows_jobs_that_cannot_end_is_settled_by_its_pods() {
    let settles = [Act::Settle("ja".to_owned())];
    #[rustfmt::skip]
    let table: [(&'static dyn Workload, JobPhase, bool); 6] = [
        (&JobSet,   JobPhase::Running,   true),
        (&JobSet,   JobPhase::Starting,  true),
        (&TrainJob, JobPhase::Running,   true),
        // Its pods were stopped for its queue.
        (&JobSet,   JobPhase::Suspended, false),
        // Its operator says so by itself, and a Job has a word for it.
        (&TF_JOB,   JobPhase::Running,   false),
        (&BatchJob, JobPhase::Running,   false),
    ];
    for (kind, phase, is_settled) in table {
        let mut tracker = made_as(kind, false);
        tracker.workload("ja", JobPhase::Running, at(1));
        tracker.pod_over("ja-worker-0-0-aaaaa", at(40));
        tracker.workload("ja", phase.clone(), at(41));
        tracker.tick(at(99));
        let acts = tracker.tick(at(100));
        assert_eq!(acts.contains(&settles[0]), is_settled, "{kind:?} {phase:?}: {acts:?}");
        if is_settled {
            assert_eq!(tracker.tick(at(130)), [], "{kind:?}");
            assert_eq!(tracker.tick(at(160)), settles, "{kind:?}: a while later once more");
        }
    }
}

#[test]
fn a_pod_of_several_that_leaves_is_told_once_and_one_that_ends_by_itself_does_not_leave() {
    let mut tracker = made(true).with_several_pods(true);
    let mut goes = |pod: &str, goes: PodGoes| tracker.pod_goes(pod, Some(pod), goes, at(1));
    let left = |incarnation: &str| {
        let ((trial, attempt), incarnation) = (ids(), incarnation.to_owned());
        Some(Act::Tell(JobNews::PodLeft(PodLeft { trial, attempt, incarnation })))
    };
    assert_eq!(goes("ja-0-aaaaa", PodGoes::No), None);
    assert_eq!(goes("ja-0-aaaaa", PodGoes::Deleted), left("ja-0-aaaaa"));
    assert_eq!(goes("ja-0-aaaaa", PodGoes::Gone), None);
    assert_eq!(goes("ja-1-bbbbb", PodGoes::Gone), left("ja-1-bbbbb"));
    assert_eq!(goes("jb-1-bbbbb", PodGoes::Gone), None, "of another experiment");
}

#[test]
fn a_job_whose_trial_has_ended_is_stopped_if_it_does_not_end() {
    let mut tracker = made(false);
    tracker.workload("ja", JobPhase::Running, at(1));
    assert!(!tracker.has_handed_over());
    tracker.hand_over(&ids().0, at(40));
    assert!(tracker.has_handed_over());
    assert_eq!(tracker.tick(at(100)), [Act::Listen("ja".to_owned())]);
    assert_eq!(tracker.next_deadline(), Some(at(40) + at(30 + 60)));
    assert_eq!(tracker.tick(at(130)), [Act::Stop("ja".to_owned())]);
    assert_eq!(tracker.workload_gone("ja"), [Act::AwaitPods("ja".to_owned())]);
    tracker.pods_gone("ja");
    assert!(!tracker.has_handed_over());
}
