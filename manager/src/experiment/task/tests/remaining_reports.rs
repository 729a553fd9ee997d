//! Tests of a trial whose agent left its last reports behind, while the disk of the store is full.

use super::*;
use crate::store::simulated_disk::leave_room;

/// Returns the last reports of a trial, which are too large for a nearly full disk.
fn remaining_reports(trial: &TrialRow) -> ReportBatch {
    let note = ReportBody::Note { code: "large".to_owned(), message: "x".repeat(100_000) };
    let bodies = [note, result_body(5.0), ended_body(Cause::Succeeded)];
    let report = |(seq, body)| Report { seq, observed_at_ms: 0, body };
    ReportBatch {
        offer: Offer::new([]),
        experiment: ExperimentId::new("e").unwrap(),
        trial: trial.id.clone(),
        attempt: trial.attempt.clone(),
        lane: Lane::Facts,
        reports: (1..).zip(bodies).map(report).collect(),
        obeyed: Vec::new(),
        acknowledged: None,
        forgotten: None,
    }
}

/// Waits until the remaining reports have been refused `refusals` times, and then frees disk space. Checks that the
/// trial does not run again.
async fn free_disk_after_refusals(bed: &TestBed, refusals: u32) {
    let begun = std::time::Instant::now();
    while *bed.service.refused.lock().unwrap() < refusals {
        assert_eq!(*bed.service.submitted.lock().unwrap(), [], "the trial runs again");
        assert!(begun.elapsed() < STATE_TIMEOUT, "the delivery is not tried again");
        tokio::time::advance(Duration::from_millis(100)).await;
        bed.store.trials().all().await.unwrap();
    }
    leave_room(bed.store.database(), 1000).await;
    while bed.service.remaining_reports.lock().unwrap().is_some() {
        assert!(
            begun.elapsed() < STATE_TIMEOUT,
            "the delivery is not tried again after space was freed"
        );
        tokio::time::advance(Duration::from_millis(100)).await;
        bed.store.trials().all().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_trial_does_not_run_again_because_the_disk_was_full() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    let (folder, store) = bed.kill_manager().await;
    leave_room(store.database(), 2).await;
    let service = FakeService {
        remaining_reports: Mutex::new(Some(remaining_reports(&trial))),
        ..FakeService::default()
    };
    let bed = TestBed::start(folder, store, service, (1, 1), None);
    free_disk_after_refusals(&bed, 3).await;
    let row = bed.wait_for_trial(JobState::Succeeded).await;
    assert_eq!(row.attempt, trial.attempt);
    assert_eq!(bed.task.await.unwrap().unwrap(), ExperimentState::Done);
    assert_eq!(*bed.observed.0.lock().unwrap(), [Outcome::Result(5.0.into())]);
    assert_eq!(*bed.service.submitted.lock().unwrap(), []);
}
