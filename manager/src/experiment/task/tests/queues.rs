//! Tests of jobs that a queue evicts and other pods run again, and of jobs that outlive their trials.

use super::*;
use crate::training_service::completion::{PodPlace, RoleCompletion, RoleSuccess, TrialCompletion};
use crate::training_service::{DepartedPod, JobWait, VerdictTrust};
use crate::util::ids;

/// Returns the attempt of a pod.
fn pod(trial: &TrialRow, id: &str) -> String {
    format!("{}_p{id}", ids::submitted(&trial.attempt))
}

impl Bed {
    /// Waits until the trial waits for this reason, and returns it.
    async fn waits_for(&self, why: &str) -> TrialRow {
        let begun = std::time::Instant::now();
        loop {
            let row = self.trial(JobState::Waiting).await;
            if row.message.as_deref() == Some(why) {
                return row;
            }
            assert!(begun.elapsed() < BOUND, "the trial does not wait for {why:?}: {row:?}");
            tokio::task::yield_now().await;
        }
    }

    fn taken_back(&self, trial: &TrialRow) {
        let (trial, attempt) = (trial.id.clone(), ids::submitted(&trial.attempt));
        let why = "its queue evicted it".to_owned();
        self.jobs.send(JobNews::Requeued(JobWait { trial, attempt, why })).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_its_queue_takes_back_waits_and_only_its_last_pod_counts() {
    let bed = Bed::new().await;
    let trial = bed.trial(JobState::Waiting).await;
    let (first, second) = (pod(&trial, "zz"), pod(&trial, "aa"));
    bed.report(&trial, &first, 0, vec![started(), result(0.25)]).await.unwrap();
    let trial = bed.trial(JobState::Running).await;
    assert_eq!(trial.attempt.as_str(), first);
    bed.taken_back(&trial);
    let trial = bed.waits_for("its queue evicted it").await;
    // The pod still reports that it was stopped.
    bed.report(&trial, &first, 2, vec![result(0.3), ended(Cause::Stopped)]).await.unwrap();
    // However long the trial waits, it is not lost and its job is not stopped.
    bed.silence(200).await;
    let waiting = bed.trial(JobState::Waiting).await;
    assert_eq!(waiting.attempt.as_str(), first);
    assert_eq!(*bed.service.finished.lock().unwrap(), []);

    bed.report(&trial, &second, 0, vec![started(), result(0.5)]).await.unwrap();
    let again = bed.trial(JobState::Running).await;
    assert_eq!(again.attempt.as_str(), second);
    // A delayed report of the first pod arrives. Neither its clock nor its name shows that it is older.
    bed.report(&trial, &first, 4, vec![result(0.9)]).await.unwrap();
    bed.report(&trial, &second, 2, vec![ended(Cause::Succeeded)]).await.unwrap();
    bed.end_job(&again);
    let end = bed.trial(JobState::Succeeded).await;
    assert_eq!(end.attempt.as_str(), second);
    bed.task.await.unwrap().unwrap();
    assert_eq!(*bed.observed.0.lock().unwrap(), [Outcome::Result(0.5.into())]);
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_trial_restarts_with_its_next_pod() {
    let bed = Bed::new().await;
    let trial = bed.trial(JobState::Waiting).await;
    bed.report(&trial, &pod(&trial, "zz"), 0, vec![started()]).await.unwrap();
    let trial = bed.trial(JobState::Running).await;
    bed.taken_back(&trial);
    bed.waits_for("its queue evicted it").await;
    // `maxTrialDuration` is 900 s.
    bed.silence(1000).await;
    assert_eq!(*bed.service.stopped.lock().unwrap(), []);
    bed.report(&trial, &pod(&trial, "aa"), 0, vec![started()]).await.unwrap();
    bed.trial(JobState::Running).await;
    bed.silence(10).await;
    assert_eq!(*bed.service.stopped.lock().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_left_is_known_until_its_trial_ends() {
    let bed = Bed::new().await;
    let trial = bed.begun().await;
    let (id, attempt) = (trial.id.clone(), trial.attempt.clone());
    let left = DepartedPod { trial: id.clone(), attempt, incarnation: "u".to_owned() };
    bed.jobs.send(JobNews::PodLeft(left)).unwrap();
    bed.settled().await;
    assert!(bed.handle.departed().has(&id, "u") && !bed.handle.departed().has(&id, "v"));
    bed.end_job(&trial);
    bed.trial(JobState::Failed).await;
    bed.task.await.unwrap().unwrap();
    assert!(!bed.handle.departed().has(&id, "u"));
}

fn place(role: &str, index: u64) -> PodPlace {
    PodPlace { role: role.to_owned(), index }
}

/// Returns a search of two trials, one after the other, which end with their agents' verdicts. The first one runs.
async fn handing_over() -> Bed {
    let bed = Bed::new().await;
    bed.begun().await;
    let (folder, store) = bed.died().await;
    let completion = TrialCompletion::of_one_pod(place("worker", 0));
    let service = Service { alive: true, completion: Some(completion), ..Service::default() };
    Bed::start(folder, store, service, (1, 2), None)
}

#[tokio::test(start_paused = true)]
async fn a_trial_ends_with_its_agents_verdict_before_its_job_ends() {
    let bed = handing_over().await;
    let trial = bed.trial(JobState::Running).await;
    bed.send(&trial, 1, vec![result(0.5), ended(Cause::Succeeded)]).await;
    bed.trial(JobState::Succeeded).await;
    // The next trial does not wait for the job, and the later end of the job has no effect.
    bed.trial(JobState::Waiting).await;
    bed.end_job(&trial);
    bed.settled().await;
    assert_eq!(bed.trial(JobState::Succeeded).await.id, trial.id);
    let handed_over = (trial.id, VerdictTrust::Final);
    assert_eq!(*bed.service.handed_over.lock().unwrap(), [handed_over]);
    assert_eq!(*bed.observed.0.lock().unwrap(), [Outcome::Result(0.5.into())]);
}

/// Returns a search whose trials have a worker that decides, and a parameter server. The first trial runs.
async fn with_server(keeps: bool) -> Bed {
    let bed = Bed::new().await;
    bed.begun().await;
    let (folder, store) = bed.died().await;
    let role = |role: &str, success| RoleCompletion {
        role: role.to_owned(),
        pods: 1,
        min_failed: Some(1),
        success,
    };
    let roles = vec![role("worker", RoleSuccess::Count(1)), role("ps", RoleSuccess::Never)];
    let completion = Some(TrialCompletion { roles, main: place("worker", 0) });
    let service = Service { alive: true, completion, keeps, ..Service::default() };
    Bed::start(folder, store, service, (1, 2), None)
}

impl Bed {
    /// Reports for the parameter server.
    async fn report_server(&self, trial: &TrialRow, run: &str, seq: u64, bodies: Vec<ReportBody>) {
        let attempt = format!("{}{run}-ps-0", ids::submitted(&trial.attempt));
        self.report(trial, &attempt, seq, bodies).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_of_several_pods_ends_when_all_of_its_commands_have_ended() {
    let bed = with_server(false).await;
    let trial = bed.trial(JobState::Running).await;
    bed.report_server(&trial, "_pa", 0, vec![started()]).await;
    bed.send(&trial, 1, vec![result(0.5), ended(Cause::Succeeded)]).await;
    bed.settled().await;
    // The server still runs, so that the next trial has no room.
    assert_eq!(bed.trial(JobState::Running).await.id, trial.id);
    assert_eq!(*bed.service.handed_over.lock().unwrap(), []);
    // The server is asked to end, as its controller would do.
    let server = AttemptId::new(format!("{}_pa-ps-0", ids::submitted(&trial.attempt))).unwrap();
    let directives = bed.handle.directives(&trial.id, &server);
    let bodies: Vec<_> = directives.into_iter().map(|directive| directive.body).collect();
    assert_eq!(bodies, [DirectiveBody::Stop { reason: StopReason::Other, grace_ms: None }]);
    let of_worker = bed.handle.directives(&trial.id, &trial.attempt);
    let stops = |body: &DirectiveBody| matches!(body, DirectiveBody::Stop { .. });
    assert!(!of_worker.iter().any(|directive| stops(&directive.body)), "{of_worker:?}");
    bed.report_server(&trial, "_pa", 1, vec![ended(Cause::Stopped)]).await;
    bed.trial(JobState::Waiting).await;
    assert_eq!(bed.handle.directives(&trial.id, &server), []);
    assert_eq!(bed.trial(JobState::Succeeded).await.id, trial.id);
    let handed_over = (trial.id, VerdictTrust::Final);
    assert_eq!(*bed.service.handed_over.lock().unwrap(), [handed_over]);
    assert_eq!(*bed.service.finished.lock().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_another_pod_is_the_reason_for_the_end() {
    for keeps in [false, true] {
        let bed = with_server(keeps).await;
        let trial = bed.trial(JobState::Running).await;
        bed.report_server(&trial, "", 0, vec![started(), ended(Cause::Exit)]).await;
        bed.send(&trial, 1, vec![ended(Cause::Stopped)]).await;
        bed.settled().await;
        let handed_over = (trial.id.clone(), VerdictTrust::FailedAndStopped);
        let mut asked = bed.service.handed_over.lock().unwrap().clone();
        // A manager that resumes may see an end in the store and as news.
        asked.dedup();
        assert_eq!(asked, [handed_over], "{keeps}");
        if keeps {
            // The service knows another reason.
            bed.trial(JobState::Running).await;
            let (id, attempt) = (trial.id.clone(), trial.attempt.clone());
            let disruption = Some("EvictionByEvictionAPI".to_owned());
            let gone = JobEndEvent { disruption, ..JobEndEvent::unexplained(id, attempt) };
            bed.jobs.send(JobNews::Gone(gone)).unwrap();
            bed.trial(JobState::SysCanceled).await;
        } else {
            let end = bed.trial(JobState::Failed).await;
            assert_eq!((end.message.as_deref(), end.exit_code), (Some("ps 0: over"), Some(1)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_outlives_its_decided_trial_is_ended() {
    let bed = with_server(false).await;
    let trial = bed.trial(JobState::Running).await;
    bed.report_server(&trial, "", 0, vec![started()]).await;
    bed.send(&trial, 1, vec![result(0.5), ended(Cause::Succeeded)]).await;
    bed.silence(15).await;
    assert_eq!(*bed.service.finished.lock().unwrap(), []);
    bed.silence(60).await;
    let finished = bed.service.finished.lock().unwrap().clone();
    assert_eq!(finished, std::slice::from_ref(&trial.id), "once");
    bed.trial(JobState::Running).await;
    bed.end_job(&trial);
    assert_eq!(bed.trial(JobState::Succeeded).await.id, trial.id);
}

#[tokio::test(start_paused = true)]
async fn a_trial_does_not_end_while_another_pod_decides_it() {
    let bed = with_server(false).await;
    let trial = bed.trial(JobState::Running).await;
    // The first server has ended, and another one has its place.
    bed.report_server(&trial, "_pa", 0, vec![started(), ended(Cause::Succeeded)]).await;
    bed.report_server(&trial, "_pb", 0, vec![started()]).await;
    bed.report_server(&trial, "_pa", 2, vec![ended(Cause::Succeeded)]).await;
    bed.send(&trial, 1, vec![ended(Cause::Succeeded)]).await;
    bed.settled().await;
    assert_eq!(*bed.service.handed_over.lock().unwrap(), []);
    // The next manager reads the ends from the store.
    let (folder, store) = bed.died().await;
    let completion = with_server(false).await.service.completion.clone();
    let service = Service { alive: true, completion, ..Service::default() };
    let bed = Bed::start(folder, store, service, (1, 1), None);
    bed.settled().await;
    bed.trial(JobState::Running).await;
    bed.report_server(&trial, "_pb", 1, vec![ended(Cause::Stopped)]).await;
    bed.trial(JobState::Succeeded).await;
    assert_eq!(bed.service.handed_over.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stored_end_of_all_pods_ends_a_trial_on_resume() {
    let bed = with_server(true).await;
    let trial = bed.trial(JobState::Running).await;
    bed.report_server(&trial, "", 0, vec![started(), ended(Cause::Succeeded)]).await;
    bed.send(&trial, 1, vec![result(0.5), ended(Cause::Succeeded)]).await;
    bed.settled().await;
    bed.trial(JobState::Running).await;
    let (folder, store) = bed.died().await;
    let completion = with_server(false).await.service.completion.clone();
    let service = Service { alive: true, completion, ..Service::default() };
    let bed = Bed::start(folder, store, service, (1, 1), None);
    bed.trial(JobState::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_pod_does_not_end_its_trial_before_its_job() {
    let bed = handing_over().await;
    let trial = bed.trial(JobState::Running).await;
    bed.send(&trial, 1, vec![ended(Cause::Stopped)]).await;
    bed.settled().await;
    bed.trial(JobState::Running).await;
    assert_eq!(*bed.service.handed_over.lock().unwrap(), []);
    bed.end_job(&trial);
    bed.trial(JobState::UserCanceled).await;
}
