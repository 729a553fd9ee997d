//! Tests of jobs that a queue evicts and other pods run again, and of jobs that outlive their trials.

use super::*;
use crate::training_service::completion::{
    ReplicaId, RoleCompletion, RoleSuccess, TrialCompletion,
};
use crate::training_service::{DepartedPod, JobEnd, JobWait, VerdictCertainty};
use crate::util::ids;

/// Returns the attempt of a pod.
fn pod_attempt(trial: &TrialRow, id: &str) -> String {
    format!("{}_p{id}", ids::submitted_attempt(&trial.attempt))
}

impl TestBed {
    /// Waits until the trial waits for this reason, and returns it.
    async fn wait_for_reason(&self, why: &str) -> TrialRow {
        let begun = std::time::Instant::now();
        loop {
            let row = self.wait_for_trial(JobState::Waiting).await;
            if row.message.as_deref() == Some(why) {
                return row;
            }
            assert!(
                begun.elapsed() < STATE_TIMEOUT,
                "the trial does not wait for {why:?}: {row:?}"
            );
            tokio::task::yield_now().await;
        }
    }

    fn evict(&self, trial: &TrialRow) {
        let (trial, attempt) = (trial.id.clone(), ids::submitted_attempt(&trial.attempt));
        let why = "its queue evicted it".to_owned();
        self.jobs.send(JobNews::Requeued(JobWait { trial, attempt, why })).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_its_queue_takes_back_waits_and_only_its_last_pod_counts() {
    let bed = TestBed::new().await;
    let trial = bed.wait_for_trial(JobState::Waiting).await;
    let (first, second) = (pod_attempt(&trial, "zz"), pod_attempt(&trial, "aa"));
    bed.report(&trial, &first, 0, vec![started_body(), result_body(0.25)]).await.unwrap();
    let trial = bed.wait_for_trial(JobState::Running).await;
    assert_eq!(trial.attempt.as_str(), first);
    bed.evict(&trial);
    let trial = bed.wait_for_reason("its queue evicted it").await;
    // The pod still reports that it was stopped.
    bed.report(&trial, &first, 2, vec![result_body(0.3), ended_body(Cause::Stopped)])
        .await
        .unwrap();
    // However long the trial waits, it is not lost and its job is not stopped.
    bed.pass_time(200).await;
    let waiting = bed.wait_for_trial(JobState::Waiting).await;
    assert_eq!(waiting.attempt.as_str(), first);
    assert_eq!(*bed.service.finished.lock().unwrap(), []);

    bed.report(&trial, &second, 0, vec![started_body(), result_body(0.5)]).await.unwrap();
    let again = bed.wait_for_trial(JobState::Running).await;
    assert_eq!(again.attempt.as_str(), second);
    // A delayed report of the first pod arrives. Neither its clock nor its name shows that it is older.
    bed.report(&trial, &first, 4, vec![result_body(0.9)]).await.unwrap();
    bed.report(&trial, &second, 2, vec![ended_body(Cause::Succeeded)]).await.unwrap();
    bed.end_job(&again);
    let end = bed.wait_for_trial(JobState::Succeeded).await;
    assert_eq!(end.attempt.as_str(), second);
    bed.task.await.unwrap().unwrap();
    assert_eq!(*bed.observed.0.lock().unwrap(), [Outcome::Result(0.5.into())]);
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_trial_restarts_with_its_next_pod() {
    let bed = TestBed::new().await;
    let trial = bed.wait_for_trial(JobState::Waiting).await;
    bed.report(&trial, &pod_attempt(&trial, "zz"), 0, vec![started_body()]).await.unwrap();
    let trial = bed.wait_for_trial(JobState::Running).await;
    bed.evict(&trial);
    bed.wait_for_reason("its queue evicted it").await;
    // `maxTrialDuration` is 900 s.
    bed.pass_time(1000).await;
    assert_eq!(*bed.service.stopped.lock().unwrap(), []);
    bed.report(&trial, &pod_attempt(&trial, "aa"), 0, vec![started_body()]).await.unwrap();
    bed.wait_for_trial(JobState::Running).await;
    bed.pass_time(10).await;
    assert_eq!(*bed.service.stopped.lock().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_left_is_known_until_its_trial_ends() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    let (id, attempt) = (trial.id.clone(), trial.attempt.clone());
    let left = DepartedPod { trial: id.clone(), attempt, incarnation: "u".to_owned() };
    bed.jobs.send(JobNews::PodLeft(left)).unwrap();
    bed.wait_until_idle().await;
    assert!(bed.handle.departed().contains(&id, "u") && !bed.handle.departed().contains(&id, "v"));
    bed.end_job(&trial);
    bed.wait_for_trial(JobState::Failed).await;
    bed.task.await.unwrap().unwrap();
    assert!(!bed.handle.departed().contains(&id, "u"));
}

fn replica(role: &str, index: u64) -> ReplicaId {
    ReplicaId { role: role.to_owned(), index }
}

/// Returns a search of two trials, one after the other, which end with their agents' verdicts. The first one runs.
async fn start_search_with_hand_over() -> TestBed {
    let bed = TestBed::new().await;
    bed.begin_trial().await;
    let (folder, store) = bed.kill_manager().await;
    let completion = TrialCompletion::of_one_pod(replica("worker", 0));
    let service =
        FakeService { alive: true, completion: Some(completion), ..FakeService::default() };
    TestBed::start(folder, store, service, (1, 2), None)
}

#[tokio::test(start_paused = true)]
async fn a_trial_ends_with_its_agents_verdict_before_its_job_ends() {
    let bed = start_search_with_hand_over().await;
    let trial = bed.wait_for_trial(JobState::Running).await;
    bed.send(&trial, 1, vec![result_body(0.5), ended_body(Cause::Succeeded)]).await;
    bed.wait_for_trial(JobState::Succeeded).await;
    // The next trial does not wait for the job, and the later end of the job has no effect.
    bed.wait_for_trial(JobState::Waiting).await;
    bed.end_job(&trial);
    bed.wait_until_idle().await;
    assert_eq!(bed.wait_for_trial(JobState::Succeeded).await.id, trial.id);
    let handed_over = (trial.id, VerdictCertainty::Final);
    assert_eq!(*bed.service.handed_over.lock().unwrap(), [handed_over]);
    assert_eq!(*bed.observed.0.lock().unwrap(), [Outcome::Result(0.5.into())]);
}

/// Returns a search whose trials have a worker that decides, and a parameter server. The first trial runs.
async fn start_search_with_server(keeps: bool) -> TestBed {
    let bed = TestBed::new().await;
    bed.begin_trial().await;
    let (folder, store) = bed.kill_manager().await;
    let role = |role: &str, success| RoleCompletion {
        role: role.to_owned(),
        pods: 1,
        min_failed: Some(1),
        success,
    };
    let roles = vec![role("worker", RoleSuccess::Count(1)), role("ps", RoleSuccess::Never)];
    let completion = Some(TrialCompletion { roles, main: replica("worker", 0) });
    let service =
        FakeService { alive: true, completion, makes_trials_wait: keeps, ..FakeService::default() };
    TestBed::start(folder, store, service, (1, 2), None)
}

impl TestBed {
    /// Reports for the parameter server.
    async fn report_for_server(
        &self,
        trial: &TrialRow,
        run: &str,
        seq: u64,
        bodies: Vec<ReportBody>,
    ) {
        let attempt = format!("{}{run}-ps-0", ids::submitted_attempt(&trial.attempt));
        self.report(trial, &attempt, seq, bodies).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_of_several_pods_ends_when_all_of_its_commands_have_ended() {
    let bed = start_search_with_server(false).await;
    let trial = bed.wait_for_trial(JobState::Running).await;
    bed.report_for_server(&trial, "_pa", 0, vec![started_body()]).await;
    bed.send(&trial, 1, vec![result_body(0.5), ended_body(Cause::Succeeded)]).await;
    bed.wait_until_idle().await;
    // The server still runs, so that the next trial has no room.
    assert_eq!(bed.wait_for_trial(JobState::Running).await.id, trial.id);
    assert_eq!(*bed.service.handed_over.lock().unwrap(), []);
    // The server is asked to end, as its controller would do.
    let server =
        AttemptId::new(format!("{}_pa-ps-0", ids::submitted_attempt(&trial.attempt))).unwrap();
    let directives = bed.handle.directives(&trial.id, &server);
    let bodies: Vec<_> = directives.into_iter().map(|directive| directive.body).collect();
    assert_eq!(bodies, [DirectiveBody::Stop { reason: StopReason::Other, grace_ms: None }]);
    let of_worker = bed.handle.directives(&trial.id, &trial.attempt);
    let stops = |body: &DirectiveBody| matches!(body, DirectiveBody::Stop { .. });
    assert!(!of_worker.iter().any(|directive| stops(&directive.body)), "{of_worker:?}");
    bed.report_for_server(&trial, "_pa", 1, vec![ended_body(Cause::Stopped)]).await;
    bed.wait_for_trial(JobState::Waiting).await;
    assert_eq!(bed.handle.directives(&trial.id, &server), []);
    assert_eq!(bed.wait_for_trial(JobState::Succeeded).await.id, trial.id);
    let handed_over = (trial.id, VerdictCertainty::Final);
    assert_eq!(*bed.service.handed_over.lock().unwrap(), [handed_over]);
    assert_eq!(*bed.service.finished.lock().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_another_pod_is_the_reason_for_the_end() {
    for keeps in [false, true] {
        let bed = start_search_with_server(keeps).await;
        let trial = bed.wait_for_trial(JobState::Running).await;
        bed.report_for_server(&trial, "", 0, vec![started_body(), ended_body(Cause::Exit)]).await;
        bed.send(&trial, 1, vec![ended_body(Cause::Stopped)]).await;
        bed.wait_until_idle().await;
        let handed_over = (trial.id.clone(), VerdictCertainty::FailedAndStopped);
        let mut asked = bed.service.handed_over.lock().unwrap().clone();
        // A manager that resumes may see an end in the store and as news.
        asked.dedup();
        assert_eq!(asked, [handed_over], "{keeps}");
        if keeps {
            // The service knows another reason.
            bed.wait_for_trial(JobState::Running).await;
            let (id, attempt) = (trial.id.clone(), trial.attempt.clone());
            let disruption = Some("EvictionByEvictionAPI".to_owned());
            let end = JobEnd { disruption, ..JobEnd::default() };
            let gone = JobEndEvent { trial: id, attempt, end };
            bed.jobs.send(JobNews::Gone(gone)).unwrap();
            bed.wait_for_trial(JobState::SysCanceled).await;
        } else {
            let end = bed.wait_for_trial(JobState::Failed).await;
            assert_eq!((end.message.as_deref(), end.exit_code), (Some("ps 0: over"), Some(1)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_outlives_its_decided_trial_is_ended() {
    let bed = start_search_with_server(false).await;
    let trial = bed.wait_for_trial(JobState::Running).await;
    bed.report_for_server(&trial, "", 0, vec![started_body()]).await;
    bed.send(&trial, 1, vec![result_body(0.5), ended_body(Cause::Succeeded)]).await;
    bed.pass_time(15).await;
    assert_eq!(*bed.service.finished.lock().unwrap(), []);
    bed.pass_time(60).await;
    let finished = bed.service.finished.lock().unwrap().clone();
    assert_eq!(finished, std::slice::from_ref(&trial.id), "once");
    bed.wait_for_trial(JobState::Running).await;
    bed.end_job(&trial);
    assert_eq!(bed.wait_for_trial(JobState::Succeeded).await.id, trial.id);
}

#[tokio::test(start_paused = true)]
async fn a_trial_does_not_end_while_another_pod_decides_it() {
    let bed = start_search_with_server(false).await;
    let trial = bed.wait_for_trial(JobState::Running).await;
    // The first server has ended, and another one has its place.
    bed.report_for_server(&trial, "_pa", 0, vec![started_body(), ended_body(Cause::Succeeded)])
        .await;
    bed.report_for_server(&trial, "_pb", 0, vec![started_body()]).await;
    bed.report_for_server(&trial, "_pa", 2, vec![ended_body(Cause::Succeeded)]).await;
    bed.send(&trial, 1, vec![ended_body(Cause::Succeeded)]).await;
    bed.wait_until_idle().await;
    assert_eq!(*bed.service.handed_over.lock().unwrap(), []);
    // The next manager reads the ends from the store.
    let (folder, store) = bed.kill_manager().await;
    let completion = start_search_with_server(false).await.service.completion.clone();
    let service = FakeService { alive: true, completion, ..FakeService::default() };
    let bed = TestBed::start(folder, store, service, (1, 1), None);
    bed.wait_until_idle().await;
    bed.wait_for_trial(JobState::Running).await;
    bed.report_for_server(&trial, "_pb", 1, vec![ended_body(Cause::Stopped)]).await;
    bed.wait_for_trial(JobState::Succeeded).await;
    assert_eq!(bed.service.handed_over.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stored_end_of_all_pods_ends_a_trial_on_resume() {
    let bed = start_search_with_server(true).await;
    let trial = bed.wait_for_trial(JobState::Running).await;
    bed.report_for_server(&trial, "", 0, vec![started_body(), ended_body(Cause::Succeeded)]).await;
    bed.send(&trial, 1, vec![result_body(0.5), ended_body(Cause::Succeeded)]).await;
    bed.wait_until_idle().await;
    bed.wait_for_trial(JobState::Running).await;
    let (folder, store) = bed.kill_manager().await;
    let completion = start_search_with_server(false).await.service.completion.clone();
    let service = FakeService { alive: true, completion, ..FakeService::default() };
    let bed = TestBed::start(folder, store, service, (1, 1), None);
    bed.wait_for_trial(JobState::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_pod_does_not_end_its_trial_before_its_job() {
    let bed = start_search_with_hand_over().await;
    let trial = bed.wait_for_trial(JobState::Running).await;
    bed.send(&trial, 1, vec![ended_body(Cause::Stopped)]).await;
    bed.wait_until_idle().await;
    bed.wait_for_trial(JobState::Running).await;
    assert_eq!(*bed.service.handed_over.lock().unwrap(), []);
    bed.end_job(&trial);
    bed.wait_for_trial(JobState::UserCanceled).await;
}
