//! Reports of senders that number nothing: NNI's Python keeper posts a line at a time and tells neither
//! its attempt nor a position. They are numbered here, in the order of arrival, as an attempt of its own,
//! and from there on they are reports like all others.
//!
//! Promises:
//! 1. What is answered with `Ok` is durable.
//! 2. A metric that says again what one before it said (same name, kind, sequence and value) is dropped:
//!    a keeper that was restarted in place repeats itself, and so do several keepers of one trial.
//! 3. Posts that arrive while others are being stored share the next commit, whichever trials they are of: one
//!    task stores them all, so a post costs neither a task nor a commit of its own.

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
    office: Mutex<Office>,
    hasher: RandomState,
}

#[derive(Default)]
struct Office {
    /// A lane of each trial that has spoken since the manager was started; only of known trials.
    facts: HashMap<TrialJobId, Arc<Place>>,
    bulk: HashMap<TrialJobId, Arc<Place>>,
    /// What arrived and is not being stored yet.
    waiting: Vec<Waiting>,
    /// Whether a task stores what waits.
    busy: bool,
}

impl Office {
    fn places(&mut self, lane: Lane) -> &mut HashMap<TrialJobId, Arc<Place>> {
        match lane {
            Lane::Facts => &mut self.facts,
            Lane::Bulk => &mut self.bulk,
        }
    }
}

/// One lane of one trial.
struct Place {
    trial: TrialJobId,
    lane: Lane,
    /// Only the task that stores moves it.
    position: Mutex<Position>,
}

/// One post.
struct Waiting {
    place: Arc<Place>,
    bodies: Vec<ReportBody>,
    at_ms: i64,
    done: oneshot::Sender<Result<(), Error>>,
}

/// Where the numbering stands.
#[derive(Debug, Default)]
struct Position {
    next: Next,
    /// Hashes of the metrics stored so far.
    metrics: HashSet<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Next {
    seq: u64,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

/// What is stored of one place together.
struct Batch {
    place: Arc<Place>,
    reports: Vec<Report>,
    done: Vec<oneshot::Sender<Result<(), Error>>>,
    /// How to take the numbers back.
    before: Next,
    metrics: Vec<u64>,
}

impl Intake {
    /// Takes in reports that have no numbers. One of these per intake: two would number alike.
    pub fn unnumbered(&self) -> Unnumbered {
        Unnumbered(Arc::new(All {
            intake: self.clone(),
            office: Mutex::default(),
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
        let place = self.0.place(trial, lane).await?;
        let (done, stored) = oneshot::channel();
        let at_ms = self.0.intake.inner.clock.now_ms();
        let first = {
            let mut office = lock(&self.0.office);
            office.waiting.push(Waiting { place, bodies, at_ms, done });
            !std::mem::replace(&mut office.busy, true)
        };
        if first {
            // A task of its own, since others' posts are in the batches, and numbers must not be used twice
            // because this one's sender hung up.
            let all = Arc::clone(&self.0);
            tokio::spawn(async move { all.store_waiting().await });
        }
        stored.await.unwrap_or(Err(Error::Stopping))
    }
}

/// Lets another task store what comes after a panic of this one; what waits is refused.
struct Busy<'a>(&'a All);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut office = lock(&self.0.office);
            office.busy = false;
            office.waiting.clear();
        }
    }
}

impl All {
    async fn place(&self, trial: &TrialJobId, lane: Lane) -> Result<Arc<Place>, Error> {
        if let Some(place) = lock(&self.office).places(lane).get(trial) {
            return Ok(Arc::clone(place));
        }
        let position = Mutex::new(self.stored_position(trial, lane).await?);
        let place = Place { trial: trial.clone(), lane, position };
        // Whoever was faster has put the same there, and may have moved on from it.
        let mut office = lock(&self.office);
        let place = office.places(lane).entry(trial.clone()).or_insert_with(|| Arc::new(place));
        Ok(Arc::clone(place))
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

    /// Stores all that waits, and what comes meanwhile, until nothing does.
    async fn store_waiting(&self) {
        let _busy = Busy(self);
        loop {
            let waiting = {
                let mut office = lock(&self.office);
                if office.waiting.is_empty() {
                    office.busy = false;
                    return;
                }
                std::mem::take(&mut office.waiting)
            };
            self.store(self.numbered(waiting)).await;
        }
    }

    /// What arrived, in its order, by place.
    fn numbered(&self, waiting: Vec<Waiting>) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        let mut of_place = HashMap::new();
        for Waiting { place, bodies, at_ms, done } in waiting {
            let index = *of_place.entry(Arc::as_ptr(&place)).or_insert(batches.len());
            let mut position = lock(&place.position);
            if index == batches.len() {
                batches.push(Batch {
                    place: Arc::clone(&place),
                    reports: Vec::new(),
                    done: Vec::new(),
                    before: position.next,
                    metrics: Vec::new(),
                });
            }
            let batch = &mut batches[index];
            for body in bodies {
                if let ReportBody::Metric(metric) = &body {
                    let hash = self.hash(metric);
                    if !position.metrics.insert(hash) {
                        continue; // It has been said already.
                    }
                    batch.metrics.push(hash);
                }
                batch.reports.push(position.next.report(at_ms, body));
            }
            batch.done.push(done);
        }
        batches
    }

    /// Stores batches, takes back the numbers of those that cannot be, and answers all.
    async fn store(&self, batches: Vec<Batch>) {
        let (mut arrivals, mut rest) = (Vec::new(), Vec::new());
        for Batch { place, reports, done, before, metrics } in batches {
            arrivals.push(Arrival::from(ReportBatch {
                offer: Offer::new([]),
                experiment: self.intake.inner.experiment.clone(),
                trial: place.trial.clone(),
                attempt: attempt(),
                lane: place.lane,
                reports,
                obeyed: Vec::new(),
            }));
            rest.push((place, done, before, metrics));
        }
        let fates = self.take_in(arrivals).await;
        for ((place, done, before, metrics), fate) in rest.into_iter().zip(fates) {
            if fate.is_err() {
                let mut position = lock(&place.position);
                position.next = before;
                for hash in metrics {
                    position.metrics.remove(&hash);
                }
            }
            for waiter in done {
                // Its sender may have hung up.
                drop(waiter.send(fate.clone()));
            }
        }
    }

    /// Stores batches in one commit, or each alone if that fails, and tells the experiment of them.
    async fn take_in(&self, arrivals: Vec<Arrival>) -> Vec<Result<(), Error>> {
        let arrivals = Arc::new(arrivals);
        let fates = match self.commit(&arrivals).await {
            Ok(fates) => fates,
            // As for writes of others: one that is too large for a nearly full disk must not fail the rest.
            Err(_) if arrivals.len() > 1 => {
                let mut fates = Vec::with_capacity(arrivals.len());
                for arrival in arrivals.iter() {
                    let alone = Arc::new(vec![arrival.clone()]);
                    match self.commit(&alone).await {
                        Ok(fate) => fates.extend(fate),
                        Err(error) => fates.push(Err(error)),
                    }
                }
                fates
            }
            Err(error) => vec![Err(error)],
        };
        let mut told = Vec::with_capacity(fates.len());
        for (Arrival { batch, .. }, fate) in Arc::unwrap_or_clone(arrivals).into_iter().zip(fates) {
            let ReportBatch { trial, attempt, lane, reports, .. } = batch;
            let (fresh, fate) = match fate {
                Ok(new) if lane == Lane::Facts => {
                    let fresh = reports.into_iter().zip(new);
                    (fresh.filter_map(|(report, new)| new.then_some(report)).collect(), Ok(()))
                }
                Ok(_) => (Vec::new(), Ok(())),
                // Whoever speaks is alive, even if what is said cannot be stored just now.
                Err(error) => (Vec::new(), Err(Error::from(error))),
            };
            if !matches!(fate, Err(Error::UnknownTrial(_))) {
                self.intake.inner.handle.reported(trial, attempt, fresh).await;
            }
            told.push(fate);
        }
        told
    }

    /// For each batch, which of its reports are new.
    async fn commit(
        &self,
        arrivals: &Arc<Vec<Arrival>>,
    ) -> Result<Vec<Result<Vec<bool>, store::Error>>, store::Error> {
        let until = Instant::now() + PATIENCE;
        let inner = &self.intake.inner;
        loop {
            match inner.store.ingest_all(arrivals, inner.clock.now_ms()).await {
                Err(store::Error::Overloaded) if Instant::now() < until => sleep(PAUSE).await,
                result => return result,
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
