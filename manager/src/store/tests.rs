//! Tests of the store's promises, with one file for each promise.

mod durability;
mod idempotence;
mod opening;
mod records;
mod upkeep;

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;
use trial_protocol::{
    AttemptId, Cause, Class, Confidence, Evidence, ExperimentId, Lane, LogChunk, LogText, Metric,
    MetricKind, Offer, Report, ReportBatch, ReportBody, Stream, TrialExit, TrialJobId, Verdict,
};

use super::{NewTrial, ReceivedBatch, Store, simulated_disk};

/// A store in a temporary folder, which is deleted with it.
struct TestStore {
    folder: TempDir,
    store: Store,
}

impl TestStore {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = simulated_disk::open(&folder.path().join("trialkeeper.db")).unwrap();
        Self { folder, store }
    }

    /// Creates a store that contains the trial `t`.
    async fn with_trial() -> Self {
        let bed = Self::new();
        bed.store.trials().insert(vec![new_trial("t", 0)]).await.unwrap();
        bed
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("trialkeeper.db")
    }

    /// Closes and reopens the store, as a restart does.
    async fn reopen(self) -> Self {
        let path = self.path();
        self.store.close().await;
        Self { folder: self.folder, store: Store::open(&path).unwrap() }
    }
}

fn trial(id: &str) -> TrialJobId {
    TrialJobId::new(id).unwrap()
}

fn attempt(id: &str) -> AttemptId {
    AttemptId::new(id).unwrap()
}

fn new_trial(id: &str, sequence: u64) -> NewTrial {
    NewTrial {
        id: trial(id),
        sequence,
        parameter_id: Some(sequence),
        parameters: json!({"lr": 0.1}),
        attempt: attempt("a1"),
        created_at_ms: 1000,
    }
}

fn batch(attempt_id: &str, lane: Lane, reports: Vec<Report>) -> ReportBatch {
    ReportBatch {
        offer: Offer::new([]),
        experiment: ExperimentId::new("e").unwrap(),
        trial: trial("t"),
        attempt: attempt(attempt_id),
        lane,
        reports,
        obeyed: Vec::new(),
        acknowledged: None,
        forgotten: None,
    }
}

fn received_batch(attempt_id: &str, lane: Lane, reports: Vec<Report>) -> Arc<ReceivedBatch> {
    Arc::new(batch(attempt_id, lane, reports).into())
}

fn report(seq: u64, body: ReportBody) -> Report {
    Report { seq, observed_at_ms: i64::try_from(seq).unwrap() + 5000, body }
}

fn metric_body(sequence: u64, value: f64) -> ReportBody {
    ReportBody::Metric(Metric {
        name: "default".to_owned(),
        kind: MetricKind::Intermediate,
        sequence,
        value: value.into(),
        derived: false,
    })
}

fn log_chunk(offset_bytes: u64, text: &str) -> ReportBody {
    ReportBody::Log(LogChunk {
        stream: Stream::Stdout,
        offset_bytes,
        text: LogText::Text(text.to_owned()),
    })
}

fn sample_body() -> ReportBody {
    ReportBody::Sample(Box::default())
}

fn verdict(code: u8) -> Verdict {
    Verdict {
        cause: if code == 0 { Cause::Succeeded } else { Cause::Exit },
        class: Class::None,
        confidence: Confidence::Certain,
        exit: Some(TrialExit::Code(code)),
        message: format!("the command exited with {code}"),
        stop: None,
        duration_ms: Some(5),
        evidence: Evidence::default(),
    }
}

fn ended_body(code: u8) -> ReportBody {
    ReportBody::Ended(Box::new(verdict(code)))
}
