//! Tests of a trial's start and end times, and of the reports that an old keeper sends for it.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_duration_of_a_trial_is_the_one_that_its_agent_reports() {
    for stored_before in [false, true] {
        let bed = TestBed::new().await;
        let trial = bed.wait_for_trial(JobState::Waiting).await;
        let words = vec![started_body(), ended_body_after(Cause::Succeeded, Some(0))];
        let bed = if stored_before {
            // The manager dies after it stored the reports and before it handled them.
            bed.task.abort();
            bed.send(&trial, 0, words).await;
            bed.restart_manager().await
        } else {
            bed.send(&trial, 0, words).await;
            let row = bed.wait_for_trial(JobState::Running).await;
            assert_eq!(row.started_at_ms, Some(trial.created_at_ms));
            bed
        };
        bed.end_job(&trial);
        let row = bed.wait_for_trial(JobState::Succeeded).await;
        let expected = (Some(trial.created_at_ms), Some(trial.created_at_ms));
        assert_eq!((row.started_at_ms, row.ended_at_ms), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_manager_handles_a_start_that_a_dead_one_only_stored() {
    // The job itself, and a pod of the job.
    for pod in ["", "_p4c7e2b9d1f0a"] {
        let bed = TestBed::new().await;
        let trial = bed.wait_for_trial(JobState::Waiting).await;
        bed.task.abort();
        let attempt = format!("{}{pod}", trial.attempt);
        bed.report(&trial, &attempt, 0, vec![started_body()]).await.unwrap();
        let bed = bed.restart_manager().await;
        let row = bed.wait_for_trial(JobState::Running).await;
        assert_eq!(row.started_at_ms, Some(trial.created_at_ms));
        bed.wait_until_lost().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_reports_has_started_even_without_a_start_report() {
    let bed = TestBed::new().await;
    let trial = bed.wait_for_trial(JobState::Waiting).await;
    bed.send(&trial, 0, vec![result_body(7.0)]).await;
    assert!(bed.wait_for_trial(JobState::Running).await.started_at_ms.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_concurrency_is_limited_by_the_room_of_the_service() {
    let (folder, store) = TestBed::new().await.kill_manager().await;
    let service = FakeService { alive: true, room: Some(2), ..FakeService::default() };
    let bed = TestBed::start(folder, store, service, (1, 9), None);
    let limit = async |concurrency| {
        let limits = NewLimits { concurrency: Some(concurrency), ..NewLimits::default() };
        bed.handle
            .command(Command::ChangeLimits(limits))
            .await
            .map_err(|refused| refused.to_string())
    };
    let refused = limit(3).await.unwrap_err();
    assert_eq!(refused, "the training service has room for 2 of 3 trials at a time");
    limit(2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_new_time_limit_is_stored_in_its_written_form() {
    let bed = TestBed::new().await;
    for written in [serde_json::json!("30m"), serde_json::json!("1h30m"), serde_json::json!(90)] {
        let duration = Some(WrittenDuration::parse(&written).unwrap());
        let limits = NewLimits { duration, ..NewLimits::default() };
        bed.handle.command(Command::ChangeLimits(limits)).await.unwrap();
        let canonical = bed.store.experiment().row().await.unwrap().unwrap().canonical;
        assert_eq!(canonical["maxExperimentDuration"], written);
    }
}

#[tokio::test(start_paused = true)]
async fn simultaneous_starts_share_one_commit() {
    let bed = TestBed::with_concurrency((20, 60), None).await;
    let all = async |wanted: JobState| {
        let begun = std::time::Instant::now();
        loop {
            let rows = bed.store.trials().all().await.unwrap();
            if rows.len() == 20 && rows.iter().all(|row| row.state == wanted) {
                return rows;
            }
            assert!(begun.elapsed() < STATE_TIMEOUT, "{rows:?}");
            tokio::task::yield_now().await;
        }
    };
    let waiting = all(JobState::Waiting).await;
    // The store counts a commit shortly after it. The test's own write is after that commit.
    bed.store.database().probe().await.unwrap();
    let before = bed.store.database().commits();
    for row in waiting {
        let report = Report { seq: 0, observed_at_ms: row.created_at_ms, body: started_body() };
        bed.handle.send_reports(row.id, row.attempt, vec![report]).await;
    }
    let running = all(JobState::Running).await;
    assert!(running.iter().all(|row| row.started_at_ms == Some(row.created_at_ms)));
    bed.store.database().probe().await.unwrap();
    assert_eq!(
        bed.store.database().commits() - before,
        2,
        "one for twenty beginnings, one of the test's own"
    );
}

/// The attempt's own agent sees the end and no metric, because the keeper redirects the output.
#[tokio::test(start_paused = true)]
async fn reports_of_an_old_keeper_count_for_their_own_attempt() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    let keeper = crate::util::ids::legacy_attempt(&trial.attempt);
    bed.report(&trial, "before-legacy", 0, vec![result_body(9.0)]).await.unwrap();
    bed.report(&trial, keeper.as_str(), 0, vec![result_body(5.0)]).await.unwrap();
    bed.send(&trial, 1, vec![ended_body(Cause::Succeeded)]).await;
    bed.end_job(&trial);
    bed.wait_for_trial(JobState::Succeeded).await;
    bed.task.await.unwrap().unwrap();
    assert_eq!(*bed.observed.0.lock().unwrap(), [Outcome::Result(5.0.into())]);
}
