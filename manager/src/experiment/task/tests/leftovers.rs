//! Tests of a trial whose agent left its last reports behind, while the disk of the store is full.

use super::*;

/// Returns the last reports of a trial, which are too large for a nearly full disk.
fn rest(trial: &TrialRow) -> ReportBatch {
    let note = ReportBody::Note { code: "large".to_owned(), message: "x".repeat(100_000) };
    let bodies = [note, result(5.0), ended(Cause::Succeeded)];
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
async fn room_after(bed: &Bed, refusals: u32) {
    let begun = std::time::Instant::now();
    while *bed.service.refused.lock().unwrap() < refusals {
        assert_eq!(*bed.service.submitted.lock().unwrap(), [], "the trial runs again");
        assert!(begun.elapsed() < BOUND, "the delivery is not tried again");
        tokio::time::advance(Duration::from_millis(100)).await;
        bed.store.trials().await.unwrap();
    }
    bed.store.database().leave_room(1000).await.unwrap();
    while bed.service.left.lock().unwrap().is_some() {
        assert!(begun.elapsed() < BOUND, "the delivery is not tried again after space was freed");
        tokio::time::advance(Duration::from_millis(100)).await;
        bed.store.trials().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_trial_does_not_run_again_because_the_disk_was_full() {
    let bed = Bed::new().await;
    let trial = bed.begun().await;
    let (folder, store) = bed.died().await;
    store.database().leave_room(2).await.unwrap();
    let service = Service { left: Mutex::new(Some(rest(&trial))), ..Service::default() };
    let bed = Bed::start(folder, store, service, (1, 1), None);
    room_after(&bed, 3).await;
    let row = bed.trial(JobState::Succeeded).await;
    assert_eq!(row.attempt, trial.attempt);
    assert_eq!(bed.task.await.unwrap().unwrap(), ExperimentState::Done);
    assert_eq!(*bed.observed.0.lock().unwrap(), [Outcome::Result(5.0.into())]);
    assert_eq!(*bed.service.submitted.lock().unwrap(), []);
}
