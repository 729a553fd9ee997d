//! Reports of senders that number nothing: NNI's Python keeper posts a line at a time and tells neither
//! its attempt nor a position. They are numbered here, in the order of arrival, as an attempt of its own,
//! and from there on they are reports like all others.
//!
//! Promises:
//! 1. What is answered with `Ok` is durable.
//! 2. A metric that says again what one before it said (same name, kind, sequence and value) is dropped:
//!    a keeper that was restarted in place repeats itself, and so do several keepers of one trial.
//! 3. Posts that arrive while another is being stored share the next batch, so that many posts for one
//!    trial cost few commits.

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
use crate::store::{self, Arrival};

/// The attempt that all of them are stored under.
const ATTEMPT: &str = "legacy";

/// How long a full queue is waited for. These senders try once and then forget (with a limit of 10 s),
/// so waiting is the only way not to lose what they say.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before a full queue is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// Numbers reports and takes them in; cheap to clone.
#[derive(Clone)]
pub struct Unnumbered(Arc<All>);

struct All {
    intake: Intake,
    /// A queue per trial and lane that has spoken since the manager was started; only of known trials.
    queues: Mutex<HashMap<(TrialJobId, Lane), Arc<Queue>>>,
    hasher: RandomState,
}

/// One lane of one trial.
struct Queue {
    /// What arrived and is not being stored yet.
    waiting: Mutex<Vec<Waiting>>,
    /// Held while a batch is being stored.
    position: tokio::sync::Mutex<Position>,
}

struct Waiting {
    bodies: Vec<ReportBody>,
    at_ms: i64,
    done: oneshot::Sender<Result<(), Error>>,
}

/// Where the numbering stands. Moves on only when a batch is stored.
#[derive(Debug, Default)]
struct Position {
    next: Next,
    /// Hashes of the metrics stored so far. They may be many: nobody copies them.
    metrics: HashSet<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Next {
    seq: u64,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

impl Intake {
    /// Takes in reports that have no numbers. One of these per intake: two would number alike.
    pub fn unnumbered(&self) -> Unnumbered {
        Unnumbered(Arc::new(All {
            intake: self.clone(),
            queues: Mutex::default(),
            hasher: RandomState::new(),
        }))
    }
}

impl Unnumbered {
    /// Takes in what one post said about a trial, in its order; nothing is a sign of life.
    pub async fn accept(
        &self,
        trial: &TrialJobId,
        lane: Lane,
        bodies: Vec<ReportBody>,
    ) -> Result<(), Error> {
        let queue = self.0.queue(trial, lane).await?;
        let (done, stored) = oneshot::channel();
        let at_ms = self.0.intake.inner.clock.now_ms();
        let first = {
            let mut waiting = lock(&queue.waiting);
            waiting.push(Waiting { bodies, at_ms, done });
            waiting.len() == 1
        };
        // Whoever waits behind another is taken along by the other's task; one for each would pile up, since they
        // come faster than commits.
        if first {
            let (all, trial) = (Arc::clone(&self.0), trial.clone());
            // A task of its own, since others' posts may be in the batch, and numbers must not be used twice
            // because this one's sender hung up.
            tokio::spawn(async move { all.store_waiting(&queue, trial, lane).await });
        }
        stored.await.unwrap_or(Err(Error::Stopping))
    }
}

impl All {
    async fn queue(&self, trial: &TrialJobId, lane: Lane) -> Result<Arc<Queue>, Error> {
        let key = (trial.clone(), lane);
        if let Some(queue) = lock(&self.queues).get(&key) {
            return Ok(Arc::clone(queue));
        }
        let position = self.stored_position(trial, lane).await?;
        let queue =
            Queue { waiting: Mutex::default(), position: tokio::sync::Mutex::new(position) };
        // Whoever was faster has put the same there, and may have moved on from it.
        Ok(Arc::clone(lock(&self.queues).entry(key).or_insert_with(|| Arc::new(queue))))
    }

    /// Where the numbering stood when the manager was stopped.
    async fn stored_position(
        &self,
        trial: &TrialJobId,
        lane: Lane,
    ) -> Result<Position, store::Error> {
        let store = &self.intake.inner.store;
        let state = store.attempt_state(trial, &attempt()).await?;
        let through = match lane {
            Lane::Facts => state.facts_through,
            Lane::Bulk => state.bulk_through,
        };
        let mut position = Position::default();
        position.next.seq = through.map_or(0, |seq| seq + 1);
        match lane {
            Lane::Facts => {
                let rows = store.metrics(trial).await?;
                let rows = rows.iter().filter(|row| row.attempt.as_str() == ATTEMPT);
                position.metrics = rows.map(|row| self.hash(&row.metric)).collect();
            }
            Lane::Bulk => {
                let next = &mut position.next;
                next.stdout_bytes = store.log_end(trial, &attempt(), Stream::Stdout).await?;
                next.stderr_bytes = store.log_end(trial, &attempt(), Stream::Stderr).await?;
            }
        }
        Ok(position)
    }

    /// Stores everything that waits.
    async fn store_waiting(&self, queue: &Queue, trial: TrialJobId, lane: Lane) {
        let mut position = queue.position.lock().await;
        let waiting = std::mem::take(&mut *lock(&queue.waiting));
        if waiting.is_empty() {
            return;
        }
        let (mut next, mut metrics) = (position.next, HashSet::new());
        let mut reports = Vec::new();
        let mut done = Vec::with_capacity(waiting.len());
        for Waiting { bodies, at_ms, done: waiter } in waiting {
            for body in bodies {
                if let ReportBody::Metric(metric) = &body {
                    let hash = self.hash(metric);
                    if position.metrics.contains(&hash) || !metrics.insert(hash) {
                        continue; // It has been said already.
                    }
                }
                reports.push(next.report(at_ms, body));
            }
            done.push(waiter);
        }
        let batch = ReportBatch {
            offer: Offer::new([]),
            experiment: self.intake.inner.experiment.clone(),
            trial,
            attempt: attempt(),
            lane,
            reports,
            obeyed: Vec::new(),
        };
        let result = self.take_in(batch).await;
        if result.is_ok() {
            position.next = next;
            position.metrics.extend(metrics);
        }
        drop(position);
        for waiter in done {
            // Its sender may have hung up.
            drop(waiter.send(result.clone()));
        }
    }

    async fn take_in(&self, batch: ReportBatch) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        // Made once, however often it is tried; and no other task is needed, since this is one already.
        let arrival = Arrival::from(batch);
        loop {
            match self.intake.inner.accept(arrival.clone()).await {
                Err(Error::Store(store::Error::Overloaded)) if Instant::now() < until => {
                    sleep(PAUSE).await;
                }
                result => return result.map(drop),
            }
        }
    }

    fn hash(&self, metric: &Metric) -> u64 {
        let value = metric.value.as_json().to_string();
        self.hasher.hash_one((&metric.name, metric.kind, metric.sequence, value))
    }
}

impl Next {
    /// Gives a report its place after those before it.
    fn report(&mut self, observed_at_ms: i64, mut body: ReportBody) -> Report {
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

fn attempt() -> AttemptId {
    AttemptId::new(ATTEMPT).expect("the constant is an id")
}

/// What panics cannot leave half done: every change under these locks is one call.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
