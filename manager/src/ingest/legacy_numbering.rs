//! Accepts reports without numbers. NNI's Python keeper sends one line at a time, without its attempt or a position.
//! This module numbers these reports in the order of arrival. It stores them beside the trial's current attempt under
//! a separate identifier ([`ids::legacy_attempt`]), and they are then handled like all others.
//!
//! Promises:
//! 1. A report that was answered with `Ok` is durable.
//! 2. A metric that repeats an earlier one (same name, kind, sequence and value) is dropped. A keeper that was
//!    restarted in place repeats its metrics, and so do several keepers of one trial.
//! 3. Posts that arrive while another is being stored share the next batch, so that many posts for one trial cost few
//!    commits.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use trial_protocol::{
    AttemptId, Lane, LogText, Metric, Offer, Report, ReportBatch, ReportBody, Stream, TrialJobId,
};

use super::{Error, Intake};
use crate::store::{self, ReceivedBatch};
use crate::util::ids;

/// The time to wait for a full queue. These senders try once (with a limit of 10 s) and then discard the report, so
/// waiting is the only way to keep it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause before a full queue is tried again.
const QUEUE_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// An intake that numbers the reports itself; cheap to clone.
#[derive(Clone)]
pub struct LegacyNumbering(Arc<Shared>);

struct Shared {
    intake: Intake,
    /// A queue for each trial and lane with a report since the manager started. Only known trials have one.
    queues: Mutex<HashMap<(TrialJobId, Lane), Arc<Queue>>>,
    hasher: RandomState,
}

/// The queue of one lane of one trial.
struct Queue {
    /// The reports that have arrived and are not being stored yet.
    waiting: Mutex<Vec<WaitingPost>>,
    /// The numbering, which is locked while a batch is being stored.
    position: tokio::sync::Mutex<Position>,
}

struct WaitingPost {
    bodies: Vec<ReportBody>,
    at_ms: i64,
    reply: oneshot::Sender<Result<(), Error>>,
}

/// The present state of the numbering. It advances only when a batch is stored.
#[derive(Debug)]
struct Position {
    /// The attempt that the reports describe: the trial's current one, as far as the manager has recorded.
    about: AttemptId,
    /// The attempt under which these reports are stored.
    attempt: AttemptId,
    next: NextNumbers,
    /// The hashes of the stored metrics. The set may be large, so it is not copied.
    metrics: HashSet<u64>,
}

/// Reports with assigned numbers.
struct NumberedBatch {
    reports: Vec<Report>,
    /// Repeated metrics, each with its position in the input and its time.
    repeated: Vec<(usize, i64, ReportBody)>,
    /// The state of the numbering after the reports are stored.
    next: NextNumbers,
    /// The hashes of the metrics in the reports.
    metrics: HashSet<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct NextNumbers {
    seq: u64,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

impl LegacyNumbering {
    /// Creates the intake for reports without numbers. An intake must have only one, because two would assign the
    /// same numbers.
    pub fn new(intake: Intake) -> Self {
        Self(Arc::new(Shared { intake, queues: Mutex::default(), hasher: RandomState::new() }))
    }

    /// Accepts the reports of one post about a trial, in order. An empty post is a heartbeat.
    pub async fn accept(
        &self,
        trial: &TrialJobId,
        lane: Lane,
        bodies: Vec<ReportBody>,
    ) -> Result<(), Error> {
        let queue = self.0.queue(trial, lane).await?;
        let (reply, stored) = oneshot::channel();
        let at_ms = self.0.intake.inner.clock.now_ms();
        let first = {
            let mut waiting = lock(&queue.waiting);
            waiting.push(WaitingPost { bodies, at_ms, reply });
            waiting.len() == 1
        };
        // The task of the first post also stores the posts that wait behind it. A task per post would accumulate,
        // because posts arrive faster than commits complete.
        if first {
            let (all, trial) = (Arc::clone(&self.0), trial.clone());
            // A separate task, because the batch may contain posts of other senders. If this sender disconnects,
            // numbers must not be assigned twice.
            tokio::spawn(async move { all.store_waiting(&queue, trial, lane).await });
        }
        stored.await.unwrap_or(Err(Error::Stopping))
    }
}

impl Shared {
    async fn queue(&self, trial: &TrialJobId, lane: Lane) -> Result<Arc<Queue>, Error> {
        let key = (trial.clone(), lane);
        if let Some(queue) = lock(&self.queues).get(&key) {
            return Ok(Arc::clone(queue));
        }
        let position = self.stored_position(trial, lane).await?;
        let queue =
            Queue { waiting: Mutex::default(), position: tokio::sync::Mutex::new(position) };
        // A concurrent post may have inserted the same queue, and may have advanced it.
        Ok(Arc::clone(lock(&self.queues).entry(key).or_insert_with(|| Arc::new(queue))))
    }

    /// Returns the state of the numbering after the stored reports of the trial's current attempt.
    async fn stored_position(
        &self,
        trial: &TrialJobId,
        lane: Lane,
    ) -> Result<Position, store::Error> {
        let store = &self.intake.inner.store;
        let row = store.trials().get(trial).await?;
        let row = row.ok_or_else(|| store::Error::UnknownTrial(trial.clone()))?;
        let attempt = ids::legacy_attempt(&row.attempt);
        let state = store.reports().attempt_state(trial, &attempt).await?;
        let through = match lane {
            Lane::Facts => state.facts_through,
            Lane::Bulk => state.bulk_through,
        };
        let mut next =
            NextNumbers { seq: through.map_or(0, |seq| seq + 1), ..NextNumbers::default() };
        let mut metrics = HashSet::new();
        match lane {
            Lane::Facts => {
                let rows = store.reports().metrics(trial).await?;
                let rows = rows.iter().filter(|row| row.attempt == attempt);
                metrics.extend(rows.map(|row| self.hash_metric(&row.metric)));
            }
            Lane::Bulk => {
                next.stdout_bytes =
                    store.reports().log_end(trial, &attempt, Stream::Stdout).await?;
                next.stderr_bytes =
                    store.reports().log_end(trial, &attempt, Stream::Stderr).await?;
            }
        }
        Ok(Position { about: row.attempt, attempt, next, metrics })
    }

    /// Stores all waiting reports.
    async fn store_waiting(&self, queue: &Queue, trial: TrialJobId, lane: Lane) {
        let mut position = queue.position.lock().await;
        let waiting = std::mem::take(&mut *lock(&queue.waiting));
        if waiting.is_empty() {
            return;
        }
        let mut timed_bodies = Vec::with_capacity(waiting.len());
        let mut replies = Vec::with_capacity(waiting.len());
        for WaitingPost { bodies, at_ms, reply } in waiting {
            timed_bodies.extend(bodies.into_iter().map(|body| (at_ms, body)));
            replies.push(reply);
        }
        let result = self.store(&mut position, trial, lane, timed_bodies).await;
        drop(position);
        for reply in replies {
            // The sender may have disconnected.
            drop(reply.send(result.clone()));
        }
    }

    /// Stores reports for the attempt that is current when they are stored.
    async fn store(
        &self,
        position: &mut Position,
        trial: TrialJobId,
        lane: Lane,
        mut timed_bodies: Vec<(i64, ReportBody)>,
    ) -> Result<(), Error> {
        let until = Instant::now() + QUEUE_TIMEOUT;
        loop {
            let NumberedBatch { reports, repeated, next, metrics } =
                self.number(position, timed_bodies);
            let batch = ReportBatch {
                offer: Offer::new([]),
                experiment: self.intake.inner.experiment.clone(),
                trial: trial.clone(),
                attempt: position.attempt.clone(),
                lane,
                reports,
                obeyed: Vec::new(),
                acknowledged: None,
                forgotten: None,
            };
            let received_batch = ReceivedBatch {
                required_attempt: Some(position.about.clone()),
                ..ReceivedBatch::from(batch)
            };
            let received_batch = Arc::new(received_batch);
            let error = loop {
                match self.intake.inner.store_and_notify(Arc::clone(&received_batch)).await {
                    Err(Error::Store(store::Error::Overloaded)) if Instant::now() < until => {
                        sleep(QUEUE_RETRY_PAUSE).await;
                    }
                    Err(error) => break error,
                    Ok(_) => {
                        position.next = next;
                        position.metrics.extend(metrics);
                        return Ok(());
                    }
                }
            };
            if !matches!(error, Error::Store(store::Error::Superseded(_))) {
                return Err(error);
            }
            // The trial has a new attempt since its attempt was read. Repetitions of the previous attempt's reports
            // now count as new.
            *position = self.stored_position(&trial, lane).await?;
            let reports = Arc::unwrap_or_clone(received_batch).batch.reports;
            timed_bodies =
                reports.into_iter().map(|report| (report.observed_at_ms, report.body)).collect();
            for (place, at_ms, body) in repeated {
                timed_bodies.insert(place, (at_ms, body));
            }
        }
    }

    /// Assigns numbers to reports, after the stored ones.
    fn number(&self, position: &Position, timed_bodies: Vec<(i64, ReportBody)>) -> NumberedBatch {
        let (mut next, mut metrics) = (position.next, HashSet::new());
        let mut reports = Vec::with_capacity(timed_bodies.len());
        let mut repeated = Vec::new();
        for (place, (at_ms, body)) in timed_bodies.into_iter().enumerate() {
            if let ReportBody::Metric(metric) = &body {
                let hash = self.hash_metric(metric);
                if position.metrics.contains(&hash) || !metrics.insert(hash) {
                    repeated.push((place, at_ms, body));
                    continue;
                }
            }
            reports.push(next.number_report(at_ms, body));
        }
        NumberedBatch { reports, repeated, next, metrics }
    }

    fn hash_metric(&self, metric: &Metric) -> u64 {
        let value = metric.value.as_json().to_string();
        self.hasher.hash_one((&metric.name, metric.kind, metric.sequence, value))
    }
}

impl NextNumbers {
    /// Assigns the next number to a report.
    fn number_report(&mut self, observed_at_ms: i64, mut body: ReportBody) -> Report {
        if let ReportBody::Log(chunk) = &mut body {
            let end = match chunk.stream {
                Stream::Stdout => &mut self.stdout_bytes,
                Stream::Stderr => &mut self.stderr_bytes,
            };
            chunk.offset_bytes = *end;
            let (LogText::Text(text) | LogText::Base64(text)) = &chunk.text;
            *end += u64::try_from(text.len()).unwrap_or(u64::MAX);
        }
        let seq = self.seq;
        self.seq += 1;
        Report { seq, observed_at_ms, body }
    }
}

/// Locks a mutex. Poisoning is ignored, because every change under these locks is a single call.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
