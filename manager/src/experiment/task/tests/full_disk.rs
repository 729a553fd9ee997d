//! Tests of the answers to users and agents while the experiment waits for the store's disk.

use super::*;

/// Returns an experiment that waits for disk space to record the end of its only trial.
async fn start_waiting_for_disk() -> (TestBed, TrialRow) {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    bed.wait_until_idle().await;
    bed.fill_disk();
    bed.end_job(&trial);
    let begun = std::time::Instant::now();
    while bed.store.database().write_error().is_none() {
        assert!(begun.elapsed() < STATE_TIMEOUT, "the end is recorded");
        tokio::task::yield_now().await;
    }
    (bed, trial)
}

impl TestBed {
    fn fill_disk(&self) {
        simulated_disk::fill(&database(&self.folder));
    }

    fn free_disk(&self) {
        simulated_disk::empty(&database(&self.folder));
    }

    async fn heartbeat(&self, trial: &TrialRow) -> Result<ReportAck, ingest::Error> {
        self.report(trial, trial.attempt.as_str(), 1, Vec::new()).await
    }

    async fn kill(&self, trial: &TrialRow) -> Result<(), CommandError> {
        self.handle.command(Command::StopTrial(trial.id.clone())).await
    }
}

/// Advances the clock until `done` completes.
async fn advance_until_done<T>(done: impl Future<Output = T>) -> T {
    let mut done = std::pin::pin!(done);
    let begun = std::time::Instant::now();
    loop {
        tokio::select! {
            biased;
            done = &mut done => return done,
            () = tokio::task::yield_now() => tokio::time::advance(Duration::from_millis(10)).await,
        }
        assert!(begun.elapsed() < STATE_TIMEOUT, "the operation is still not done");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_is_refused_while_the_task_waits_for_the_disk() {
    let (bed, trial) = start_waiting_for_disk().await;
    let refused = advance_until_done(bed.kill(&trial)).await.unwrap_err();
    assert!(matches!(refused, CommandError::WaitsForDisk(_)), "{refused:?}");
    assert!(refused.to_string().contains("no space is left on its disk"), "{refused}");
    // These are more events than the channel holds.
    for _ in 0..200 {
        let refused = advance_until_done(bed.heartbeat(&trial)).await;
        assert!(matches!(refused, Err(ingest::Error::Store(_))), "{refused:?}");
    }
    bed.free_disk();
    advance_until_done(bed.wait_for_trial(JobState::Failed)).await;
    assert_eq!(bed.task.await.unwrap().unwrap(), ExperimentState::Done);
}

#[tokio::test(start_paused = true)]
async fn a_stop_from_before_the_disk_failure_is_performed_later() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    bed.wait_until_idle().await;
    bed.fill_disk();
    let delayed = advance_until_done(bed.kill(&trial)).await.unwrap_err();
    assert!(matches!(delayed, CommandError::Delayed(_)), "{delayed:?}");
    assert_eq!(
        *bed.service.stopped.lock().unwrap(),
        [],
        "a stop that is not recorded is not performed"
    );
    bed.free_disk();
    advance_until_done(async {
        while bed.service.stopped.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let again = bed.store.trials().get(&trial.id).await.unwrap().unwrap();
    assert_eq!(again.intent, Some(StopReason::User));
}

#[tokio::test(start_paused = true)]
async fn a_command_is_refused_as_soon_as_the_store_cannot_write() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    bed.wait_until_idle().await;
    bed.fill_disk();
    bed.heartbeat(&trial).await.unwrap_err();
    let refused = bed.kill(&trial).await.unwrap_err();
    assert!(matches!(refused, CommandError::WaitsForDisk(_)), "{refused:?}");
    bed.free_disk();
    bed.kill(&trial).await.unwrap();
    assert_eq!(*bed.service.stopped.lock().unwrap(), std::slice::from_ref(&trial.id));
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_reported_while_the_store_was_slow_is_not_lost() {
    let bed = TestBed::with_concurrency((2, 2), None).await;
    let begun = std::time::Instant::now();
    let mut trials = Vec::new();
    while trials.len() < 2 {
        assert!(begun.elapsed() < STATE_TIMEOUT);
        trials = bed.store.trials().all().await.unwrap();
    }
    for trial in &trials {
        bed.send(trial, 0, vec![started_body()]).await;
    }
    // The agent is silent for almost a lease before the disk is full, and reports just in time.
    bed.pass_time(55).await;
    bed.fill_disk();
    bed.end_job(&trials[0]);
    advance_until_done(async {
        while bed.store.database().write_error().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for _ in 0..30 {
        bed.heartbeat(&trials[1]).await.unwrap_err();
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    // Disk operations take real time, in which a simulated clock could expire an agent's lease.
    tokio::time::resume();
    bed.free_disk();
    bed.wait_for_trial(JobState::Failed).await;
    tokio::time::pause();
    bed.pass_time(50).await;
    let events = bed.store.trials().events(&trials[1].id).await.unwrap();
    assert!(events.iter().all(|event| event.state != JobState::Lost), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_a_disk_failure_leaves_the_trial_to_the_next_manager() {
    let (bed, trial) = start_waiting_for_disk().await;
    bed.handle.stop();
    let TestBed { folder, store, mut task, .. } = bed;
    let error = advance_until_done(&mut task).await.unwrap().unwrap_err();
    assert_eq!(error.failure_kind(), Some(store::FailureKind::Full));
    simulated_disk::empty(&database(&folder));
    let service = FakeService { alive: true, ..FakeService::default() };
    let bed = TestBed::start(folder, store, service, (1, 1), None);
    bed.wait_until_idle().await;
    let row = bed.store.trials().get(&trial.id).await.unwrap().unwrap();
    assert_eq!((row.state, row.intent), (JobState::Running, None), "the state is unchanged");
    bed.send(&trial, 1, vec![result_body(5.0), ended_body(Cause::Succeeded)]).await;
    bed.end_job(&trial);
    bed.wait_for_trial(JobState::Succeeded).await;
    assert_eq!(bed.task.await.unwrap().unwrap(), ExperimentState::Done);
}
