//! Tests of the stop of a search with many active trials.

use super::*;

#[tokio::test(start_paused = true)]
async fn why_many_trials_are_stopped_is_one_commit() {
    let bed = Bed::of((20, 60), None).await;
    let begun = std::time::Instant::now();
    while bed.store.trials().await.unwrap().len() < 20 {
        assert!(begun.elapsed() < BOUND, "they do not begin");
        tokio::task::yield_now().await;
    }
    bed.store.probe().await.unwrap();
    let before = bed.store.commits();
    bed.handle.stop();
    // The state of the search is recorded last.
    while bed.store.experiment().await.unwrap().unwrap().state
        != ExperimentState::Stopping.to_string()
    {
        assert!(begun.elapsed() < BOUND, "it is not stopped");
        tokio::task::yield_now().await;
    }
    assert_eq!(bed.service.stopped.lock().unwrap().len(), 20);
    bed.store.probe().await.unwrap();
    let commits = bed.store.commits() - before;
    assert_eq!(
        commits, 3,
        "how the search stands, why twenty trials are stopped, and one of the test's own"
    );
    let rows = bed.store.trials().await.unwrap();
    assert!(rows.iter().all(|row| row.intent == Some(StopReason::ManagerShutdown)), "{rows:?}");
}
