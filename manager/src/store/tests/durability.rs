//! Commits: they are shared, they are atomic, and a failed commit is never acknowledged.

use std::sync::{Arc, mpsc};

use tokio::task::JoinHandle;
use trial_protocol::{Lane, TrialJobId};

use super::{TestStore, attempt, batch, metric_body, new_trial, received_batch, report, trial};
use crate::store::database::QUEUE_CAPACITY;
use crate::store::simulated_disk::{leave_room, limit_log};
use crate::store::{self, Error, FailureKind, ReceivedBatch, Store};

const WRITE_TIMEOUT: std::time::Duration = std::time::Duration::from_mins(1);

/// Keeps the writer busy until the returned sender is dropped.
async fn block_writer(bed: &TestStore) -> (mpsc::Sender<()>, JoinHandle<Result<(), Error>>) {
    let (release, gate) = mpsc::channel::<()>();
    let (held, mut holds) = tokio::sync::mpsc::unbounded_channel();
    let store = bed.store.clone();
    let write = tokio::spawn(async move {
        store
            .database()
            .write(move |_| {
                held.send(()).ok();
                gate.recv().ok();
                Ok(())
            })
            .await
    });
    holds.recv().await.unwrap();
    (release, write)
}

/// Waits until `count` writes are queued.
async fn wait_for_queue(bed: &TestStore, count: usize) {
    while bed.store.database().queue().capacity() > QUEUE_CAPACITY - count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn writes_that_wait_share_one_commit() {
    let bed = TestStore::with_trial().await;
    let (release, held) = block_writer(&bed).await;
    let ingests: Vec<_> = (0..100)
        .map(|number| {
            let store = bed.store.clone();
            let name = format!("a{number}");
            tokio::spawn(async move {
                store
                    .reports()
                    .ingest(
                        received_batch(&name, Lane::Facts, vec![report(0, metric_body(0, 0.5))]),
                        1,
                    )
                    .await
            })
        })
        .collect();
    wait_for_queue(&bed, 100).await;
    let before = bed.store.database().commits();
    drop(release);
    held.await.unwrap().unwrap();
    for ingest in ingests {
        assert_eq!(ingest.await.unwrap().unwrap().through, Some(0));
    }
    assert_eq!(bed.store.database().commits() - before, 1);
    assert_eq!(bed.store.reports().metrics(&trial("t")).await.unwrap().len(), 100);
}

#[tokio::test]
async fn a_full_queue_refuses_batches() {
    let bed = TestStore::with_trial().await;
    let (release, held) = block_writer(&bed).await;
    let waiting: Vec<_> = (0..QUEUE_CAPACITY)
        .map(|_| {
            let store = bed.store.clone();
            tokio::spawn(async move {
                store.reports().ingest(received_batch("a", Lane::Facts, vec![]), 1).await
            })
        })
        .collect();
    wait_for_queue(&bed, QUEUE_CAPACITY).await;
    let refused =
        bed.store.reports().ingest(received_batch("a", Lane::Facts, vec![]), 1).await.unwrap_err();
    assert!(matches!(refused, Error::Overloaded), "{refused}");
    drop(release);
    held.await.unwrap().unwrap();
    for ingest in waiting {
        ingest.await.unwrap().unwrap();
    }
}

fn large_batch(attempt: &str) -> Arc<ReceivedBatch> {
    let body =
        trial_protocol::ReportBody::Note { code: "large".to_owned(), message: "x".repeat(100_000) };
    received_batch(attempt, Lane::Facts, vec![report(0, metric_body(0, 0.5)), report(1, body)])
}

#[tokio::test]
async fn a_write_to_a_full_disk_fails_and_stores_nothing() {
    let bed = TestStore::with_trial().await;
    leave_room(bed.store.database(), 2).await;
    let failed = bed.store.reports().ingest(large_batch("a"), 1).await.unwrap_err();
    assert_eq!(failed.failure_kind(), Some(FailureKind::Full), "{failed}");
    assert_eq!(
        bed.store.database().write_error().and_then(|error| error.failure_kind()),
        Some(FailureKind::Full)
    );
    assert_eq!(bed.store.reports().metrics(&trial("t")).await.unwrap(), []);

    leave_room(bed.store.database(), 1000).await;
    assert!(bed.store.database().write_error().is_some(), "nothing has been written yet");
    bed.store.database().probe().await.unwrap();
    assert!(bed.store.database().write_error().is_none());
    let stored = bed.store.reports().ingest(large_batch("a"), 1).await.unwrap();
    assert_eq!((stored.through, stored.fresh.len()), (Some(1), 2));
}

#[tokio::test]
async fn a_store_detects_without_a_write_that_the_disk_has_recovered() {
    let bed = TestStore::with_trial().await;
    let store = bed.store.clone();
    let trying = tokio::spawn(async move { store.database().retry_while_failing().await });
    let mut write_error = bed.store.database().watch_write_error();
    for _ in 0..2 {
        leave_room(bed.store.database(), 2).await;
        bed.store.reports().ingest(large_batch("a"), 1).await.unwrap_err();
        assert!(write_error.borrow_and_update().is_some());
        leave_room(bed.store.database(), 1000).await;
        tokio::time::timeout(WRITE_TIMEOUT, write_error.wait_for(Option::is_none))
            .await
            .unwrap()
            .unwrap();
    }
    trying.abort();
}

#[tokio::test]
async fn a_moved_database_refuses_writes_until_it_is_back() {
    let bed = TestStore::with_trial().await;
    let (path, away) = (bed.path(), bed.path().with_extension("away"));
    for replaced in [false, true] {
        assert!(bed.store.database().is_in_place());
        std::fs::rename(&path, &away).unwrap();
        if replaced {
            std::fs::copy(&away, &path).unwrap();
        }
        bed.store.database().check_identity().await;
        let write_error = bed.store.database().write_error();
        assert!(matches!(write_error, Some(Error::Displaced { .. })), "{write_error:?}");
        let refused = bed.store.reports().ingest(large_batch("a"), 1).await.unwrap_err();
        assert!(matches!(refused, Error::Displaced { .. }) && refused.is_temporary(), "{refused}");
        assert!(bed.store.database().write_error().is_some(), "the error remains");
        std::fs::rename(&away, &path).unwrap();
        bed.store.database().probe().await.unwrap();
        assert!(bed.store.database().write_error().is_none());
    }
    assert_eq!(bed.store.reports().metrics(&trial("t")).await.unwrap(), []);
}

#[tokio::test]
async fn a_failed_write_does_not_fail_the_writes_of_the_same_commit() {
    let bed = TestStore::with_trial().await;
    leave_room(bed.store.database(), 2).await;
    let (release, held) = block_writer(&bed).await;
    let ingest = |received_batch| {
        let store = bed.store.clone();
        tokio::spawn(async move { store.reports().ingest(received_batch, 1).await })
    };
    let unknown = trial_protocol::ReportBatch {
        trial: TrialJobId::new("unknown").unwrap(),
        ..batch("a", Lane::Facts, vec![])
    };
    let jobs = [
        ingest(received_batch("a", Lane::Facts, vec![report(0, metric_body(0, 0.5))])),
        ingest(large_batch("b")),
        ingest(Arc::new(unknown.into())),
        ingest(received_batch("c", Lane::Facts, vec![report(0, metric_body(0, 0.6))])),
    ];
    wait_for_queue(&bed, jobs.len()).await;
    drop(release);
    held.await.unwrap().unwrap();
    let [first, full, unknown, last] = jobs;
    assert_eq!(first.await.unwrap().unwrap().fresh.len(), 1);
    assert_eq!(full.await.unwrap().unwrap_err().failure_kind(), Some(FailureKind::Full));
    assert!(matches!(unknown.await.unwrap().unwrap_err(), Error::UnknownTrial(_)));
    assert_eq!(last.await.unwrap().unwrap().fresh.len(), 1);
    let stored = bed.store.reports().metrics(&trial("t")).await.unwrap();
    let stored: Vec<_> = stored.into_iter().map(|row| row.attempt).collect();
    assert_eq!(stored, [attempt("a"), attempt("c")]);
}

#[tokio::test]
async fn closing_performs_queued_writes_and_refuses_later_ones() {
    let bed = TestStore::with_trial().await;
    let other = bed.store.clone();
    let (release, held) = block_writer(&bed).await;
    let waiting = {
        let store = bed.store.clone();
        tokio::spawn(async move { store.trials().insert(vec![new_trial("late", 1)]).await })
    };
    wait_for_queue(&bed, 1).await;
    let closing = tokio::spawn(bed.store.clone().close());
    wait_for_queue(&bed, 2).await;
    drop(release);
    held.await.unwrap().unwrap();
    closing.await.unwrap();
    waiting.await.unwrap().unwrap();
    assert!(matches!(
        other.trials().insert(vec![new_trial("x", 2)]).await.unwrap_err(),
        Error::Closed
    ));
    assert!(!bed.path().with_extension("db-wal").exists(), "the log is checkpointed");
    drop(other);
    let bed = bed.reopen().await;
    assert_eq!(bed.store.trials().all().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_full_disk_is_relieved_by_a_checkpoint_before_a_write_fails() {
    let bed = TestStore::with_trial().await;
    limit_log(&bed.path(), 300_000);
    for attempt in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        bed.store.reports().ingest(large_batch(attempt), 1).await.unwrap();
        assert!(bed.store.database().write_error().is_none(), "{attempt}");
    }
}

#[tokio::test]
async fn the_file_without_its_log_contains_the_experiment_after_the_first_commit() {
    let bed = TestStore::with_trial().await;
    // The checkpoint follows the first commit and precedes the next.
    bed.store.database().probe().await.unwrap();
    let copy = bed.folder.path().join("alone.db");
    std::fs::copy(bed.path(), &copy).unwrap();
    assert!(!store::is_blank(&copy).unwrap());
    let alone = Store::open_to_read(&copy).unwrap();
    assert_eq!(alone.trials().all().await.unwrap().len(), 1);
}
