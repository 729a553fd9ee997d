//! The acknowledgements, and the reports that the experiment receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;
use trial_protocol::{
    AttemptId, ExperimentId, Lane, Metric, MetricKind, Offer, Report, ReportBatch, ReportBody,
    TrialJobId,
};

use super::{Error, Intake};
use crate::experiment::{ExperimentHandle, TaskEvent};
use crate::store::{self, NewTrial, Store};
use crate::util::clock::Clock;

struct FixedClock(AtomicI64);

impl Clock for FixedClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Bed {
    intake: Intake,
    store: Store,
    events: mpsc::Receiver<TaskEvent>,
    folder: TempDir,
}

async fn bed(capacity: usize) -> Bed {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("db")).unwrap();
    let new = NewTrial {
        id: TrialJobId::new("t").unwrap(),
        sequence: 0,
        parameter_id: None,
        parameters: json!({}),
        attempt: AttemptId::new("a").unwrap(),
        created_at_ms: 0,
    };
    store.trials().insert(vec![new]).await.unwrap();
    let (handle, events) = ExperimentHandle::new(capacity);
    let experiment = ExperimentId::new("e").unwrap();
    let clock = Arc::new(FixedClock(AtomicI64::new(77)));
    let intake = Intake::new(store.clone(), handle, experiment, clock);
    Bed { intake, store, events, folder }
}

impl Bed {
    /// Returns the numbers of the reports that the experiment has received, one list per event.
    fn received(&mut self) -> Vec<Vec<u64>> {
        std::iter::from_fn(|| self.events.try_recv().ok())
            .map(|event| {
                let TaskEvent::Reported { trial, attempt, fresh } = event else { unreachable!() };
                assert_eq!((trial.as_str(), attempt.as_str()), ("t", "a"));
                fresh.iter().map(|report| report.seq).collect()
            })
            .collect()
    }
}

fn metric(seq: u64) -> Report {
    let metric = Metric {
        name: "default".to_owned(),
        kind: MetricKind::Intermediate,
        sequence: seq,
        value: 0.5.into(),
        derived: false,
    };
    Report { seq, observed_at_ms: 0, body: ReportBody::Metric(metric) }
}

fn batch(lane: Lane, reports: Vec<Report>) -> ReportBatch {
    ReportBatch {
        offer: Offer::new([]),
        experiment: ExperimentId::new("e").unwrap(),
        trial: TrialJobId::new("t").unwrap(),
        attempt: AttemptId::new("a").unwrap(),
        lane,
        reports,
        obeyed: Vec::new(),
        acknowledged: None,
        forgotten: None,
    }
}

fn facts(seqs: impl IntoIterator<Item = u64>) -> ReportBatch {
    batch(Lane::Facts, seqs.into_iter().map(metric).collect())
}

#[tokio::test]
async fn only_new_reports_reach_the_experiment_and_all_are_acknowledged() {
    let mut bed = bed(16).await;
    let intake = bed.intake.clone().with_lease(Duration::from_secs(30));
    let ack = intake.accept(facts(0..3)).await.unwrap();
    assert_eq!((ack.through, ack.lease_ms), (Some(2), Some(30_000)));
    assert!(ack.offer.capabilities.contains("bulk"));
    assert_eq!(intake.accept(facts(1..5)).await.unwrap().through, Some(4));
    assert_eq!(intake.accept(facts(0..2)).await.unwrap().through, Some(4));
    assert_eq!(intake.accept(facts(0..0)).await.unwrap().through, Some(4));
    assert_eq!(bed.received(), [vec![0, 1, 2], vec![3, 4], vec![], vec![]]);
    let rows = bed.store.reports().metrics(&TrialJobId::new("t").unwrap()).await.unwrap();
    assert!(rows.iter().all(|row| row.stored_at_ms == 77));
}

#[tokio::test]
async fn a_bulk_batch_only_tells_the_experiment_that_the_agent_is_alive() {
    let mut bed = bed(16).await;
    let sample = ReportBody::Sample(Box::default());
    let report = Report { seq: 9, observed_at_ms: 0, body: sample };
    let ack = bed.intake.accept(batch(Lane::Bulk, vec![report])).await.unwrap();
    assert_eq!((ack.through, ack.lease_ms), (Some(9), None));
    assert_eq!(bed.received(), [Vec::<u64>::new()]);
}

#[tokio::test]
async fn a_batch_for_another_manager_is_refused_and_not_forwarded() {
    let mut bed = bed(16).await;
    let mut newer = facts(0..1);
    (newer.offer.oldest, newer.offer.newest) = (7, 9);
    let refused = bed.intake.accept(newer).await.unwrap_err();
    assert!(matches!(refused, Error::NoCommonVersion { .. }), "{refused}");
    let elsewhere = ReportBatch { experiment: ExperimentId::new("x").unwrap(), ..facts(0..1) };
    let refused = bed.intake.accept(elsewhere).await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no experiment x here");
    let unknown = ReportBatch { trial: TrialJobId::new("x").unwrap(), ..facts(0..1) };
    let refused = bed.intake.accept(unknown).await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no trial x");
    assert!(bed.received().is_empty());
}

#[tokio::test]
async fn the_reports_of_a_dropped_request_reach_the_experiment() {
    // There is room for one event: the second batch is stored and then waits to be forwarded.
    let mut bed = bed(1).await;
    bed.intake.accept(facts(0..1)).await.unwrap();
    let intake = bed.intake.clone();
    let request = tokio::spawn(async move { intake.accept(facts(1..3)).await });
    let (t, a) = (TrialJobId::new("t").unwrap(), AttemptId::new("a").unwrap());
    while bed.store.reports().attempt_state(&t, &a).await.unwrap().facts_through != Some(2) {
        tokio::task::yield_now().await;
    }
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    let mut received = Vec::new();
    for _ in 0..2 {
        let Some(TaskEvent::Reported { fresh, .. }) = bed.events.recv().await else {
            unreachable!()
        };
        received.push(fresh.iter().map(|report| report.seq).collect::<Vec<_>>());
    }
    assert_eq!(received, [vec![0], vec![1, 2]]);
}

#[tokio::test]
async fn an_agent_with_reports_that_cannot_be_stored_is_alive_but_not_acknowledged() {
    let mut bed = bed(16).await;
    bed.store.clone().close().await;
    let refused = bed.intake.accept(facts(0..1)).await.unwrap_err();
    assert!(matches!(refused, Error::Store(_)), "{refused}");
    assert_eq!(bed.received(), [Vec::<u64>::new()]);
}

#[tokio::test]
async fn concurrent_repeated_deliveries_reach_the_experiment_once_and_in_order() {
    let bed = bed(1).await;
    let senders: Vec<_> = (0..8_u64)
        .map(|n| {
            let intake = bed.intake.clone();
            tokio::spawn(async move {
                for from in 0..20 {
                    intake.accept(facts(from..from + 1 + n % 3)).await.unwrap();
                }
            })
        })
        .collect();
    let mut events = bed.events;
    let listener = tokio::spawn(async move {
        let mut received = Vec::new();
        while let Some(TaskEvent::Reported { fresh, .. }) = events.recv().await {
            received.extend(fresh.into_iter().map(|report| report.seq));
        }
        received
    });
    for sender in senders {
        sender.await.unwrap();
    }
    drop(bed.intake);
    assert_eq!(listener.await.unwrap(), (0..22).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_agent_is_asked_for_the_reports_that_a_restored_database_lacks() {
    let mut bed = bed(16).await;
    bed.intake.accept(facts(0..3)).await.unwrap();
    let with_position =
        |acknowledged, forgotten, batch| ReportBatch { acknowledged, forgotten, ..batch };

    for batch in [facts(0..0), facts(6..8)] {
        let ack = bed.intake.accept(with_position(Some(5), None, batch)).await.unwrap();
        assert_eq!((ack.through, ack.resend), (Some(2), true));
    }
    let ack = bed.intake.accept(with_position(Some(2), None, facts(3..8))).await.unwrap();
    assert_eq!((ack.through, ack.resend), (Some(7), false));
    let ack = bed.intake.accept(with_position(Some(7), Some(5), facts(8..9))).await.unwrap();
    assert_eq!((ack.through, ack.resend), (Some(8), false));
    assert_eq!(bed.received(), [vec![0, 1, 2], vec![], vec![], vec![3, 4, 5, 6, 7], vec![8]]);
    assert_eq!(store::check(&bed.folder.path().join("db")).unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn permanently_lost_reports_are_noted_once() {
    let bed = bed(16).await;
    let trial = TrialJobId::new("t").unwrap();
    bed.intake.accept(facts(0..3)).await.unwrap();
    let gone = |batch| ReportBatch { acknowledged: Some(5), forgotten: Some(5), ..batch };
    for batch in [facts(0..0), facts(6..8), facts(6..9)] {
        assert!(!bed.intake.accept(gone(batch)).await.unwrap().resend);
    }
    let rows = bed.store.reports().all(&trial, Lane::Facts).await.unwrap();
    let kinds: Vec<_> = rows.iter().map(|row| (row.seq, row.kind.as_str())).collect();
    let expected = [(0, "metric"), (1, "metric"), (2, "metric"), (5, "note")];
    assert_eq!(kinds[..4], expected);
    assert_eq!(kinds[4..], [(6, "metric"), (7, "metric"), (8, "metric")]);
    assert_eq!(rows[3].body["code"], "reports-lost");
    let message = rows[3].body["message"].as_str().unwrap();
    assert!(message.starts_with("Reports 3 to 5 "), "{message}");
    let wrong = store::check(&bed.folder.path().join("db")).unwrap();
    assert_eq!(wrong, [format!("trial t, attempt a: {message}")]);
}
