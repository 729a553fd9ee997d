//! Tests of the stop of a search with many active trials.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_reasons_of_many_stops_share_one_commit() {
    let bed = TestBed::with_concurrency((20, 60), None).await;
    let begun = std::time::Instant::now();
    while bed.store.trials().all().await.unwrap().len() < 20 {
        assert!(begun.elapsed() < STATE_TIMEOUT, "the trials do not start");
        tokio::task::yield_now().await;
    }
    bed.store.database().probe().await.unwrap();
    let before = bed.store.database().commits();
    bed.handle.stop();
    // The state of the search is recorded last.
    while bed.store.experiment().row().await.unwrap().unwrap().state
        != ExperimentState::Stopping.to_string()
    {
        assert!(begun.elapsed() < STATE_TIMEOUT, "the search does not stop");
        tokio::task::yield_now().await;
    }
    assert_eq!(bed.service.stopped.lock().unwrap().len(), 20);
    bed.store.database().probe().await.unwrap();
    let commits = bed.store.database().commits() - before;
    assert_eq!(
        commits, 3,
        "the state of the search, the reasons of twenty stops, and the test's own write"
    );
    let rows = bed.store.trials().all().await.unwrap();
    assert!(rows.iter().all(|row| row.intent == Some(StopReason::ManagerShutdown)), "{rows:?}");
}
