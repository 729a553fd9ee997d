//! Spool -> manager, oldest first, for as long as it takes.
//!
//! Each lane has one request in flight at a time, so that its order is kept, and neither waits for the
//! other. While a request is under way, new reports gather and make the next one. An idle lane sends at once.
//! What a batch looks like on the wire is the dialect's; an NNI manager's has one lane and no heartbeat.
//!
//! Nothing here may end or delay the trial: every error is a reason to try again later. The total time is
//! not limited while the trial runs; after its end it is ([`Settings::flush`]), and what is left stays in
//! the spool. What only memory holds would be lost, so a manager that asks to wait is then waited for longer.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::backoff::backoff::Backoff as _;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};
use trial_protocol::{AttemptId, Directive, Lane, Offer, ReportAck};

use crate::delivery::dialect::{legacy, native};
use crate::spool::{Cursor, Dialect, LaneFiles, Record, Sender, Spool};

mod address;
mod backoff;
mod client_cache;
mod compression;
mod counts;
mod credentials;
pub mod dialect;
mod local;
mod long_poll;
mod older;
#[cfg(test)]
mod tests;
mod token;

pub use crate::delivery::dialect::{Error, RetryDecision};
pub use address::ManagerAddress;
pub use backoff::pause;
use client_cache::HttpClientCache;
use compression::EncodedBody;
pub use counts::Counts;
pub use credentials::Credentials;
use credentials::is_encrypted;
pub use local::{LOCAL_BASE, LocalClient};
use long_poll::{LongPoll, LongPollOutcome};
use token::Token;
pub use token::read as read_token;

/// Most JSON in a batch of facts, in bytes; a longer report travels alone.
const FACTS_BYTES: usize = 256 << 10;
/// Most JSON in a batch of logs and samples, in bytes.
const BULK_BYTES: usize = 128 << 10;
/// The time that logs gather before they are sent: they are many and not urgent.
const BULK_LINGER: Duration = Duration::from_millis(50);
/// First and longest mean time between tries; each is between nothing and twice that.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(7_500));
/// Longest time between tries once the trial has ended.
const BACKOFF_AT_END: Duration = Duration::from_millis(500);
/// The time beyond [`Settings::flush`] for a manager that asks to wait, if what it does not have is in memory only: its
/// disk may be the one that is full, and a person has to see to that.
pub const LAST_PATIENCE: Duration = Duration::from_mins(10);
/// Time between tries where only a person can help.
const OPERATOR_INTERVAL: Duration = Duration::from_mins(1);

/// Why reports are left where nothing failed.
const IN_VAIN: &str = "the manager did not take them in time";

/// The settings of delivery.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the manager is.
    pub manager: ManagerAddress,
    /// A file with the bearer token, read again when it is refused.
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificate authority that signed the manager's certificate, read again when the manager
    /// cannot be reached. `None`: the public ones.
    pub ca_file: Option<PathBuf>,
    /// The content of these files before the trial started, which may remove them.
    pub credentials: Credentials,
    /// Whose reports.
    pub sender: Sender,
    /// Longest silence towards the manager; a shorter lease in an ack shortens it.
    pub heartbeat: Duration,
    /// The time that delivery may go on after the trial's end.
    pub flush: Duration,
    /// Becomes true when delivery has to end at once.
    pub give_up: watch::Receiver<bool>,
    /// The counts of delivery.
    pub counts: Arc<Counts>,
}

/// The remainder when delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Reports that the manager has not acknowledged; they stay in the spool.
    pub undelivered: u64,
    /// Why, if any are.
    pub last_error: Option<String>,
}

/// Delivers until `ended` becomes true and everything is acknowledged, or `flush` after that is over.
/// Directives that arrive are sent on, each once.
pub async fn run(
    settings: Settings,
    spool: Spool,
    directives: mpsc::Sender<Directive>,
    ended: watch::Receiver<bool>,
) -> Outcome {
    let deliverer = Deliverer::new(settings, spool, directives, ended);
    match deliverer.settings.sender.dialect {
        Dialect::Native => {
            tokio::join!(deliverer.deliver_lane(Lane::Facts), deliverer.deliver_lane(Lane::Bulk));
        }
        Dialect::Nni => deliverer.deliver_lane(Lane::Facts).await,
    }
    deliverer.outcome(deliverer.spool.pending())
}

/// Delivers one lane of files that an earlier process left, as the attempt that wrote them. `true` when
/// everything of it was acknowledged.
pub async fn deliver_files(
    settings: Settings,
    attempt: &AttemptId,
    files: Vec<LaneFiles>,
) -> Outcome {
    let (directives, _) = mpsc::channel(1);
    let (_keep, ended) = watch::channel(true);
    let memory = crate::spool::Options {
        dir: None,
        attempt: attempt.clone(),
        sender: None,
        limit_bytes: 0,
        sync_interval: Duration::from_hours(1),
        now_ms: 0,
    };
    let spool = Spool::open(memory).spool;
    let deliverer = Deliverer::new(settings, spool, directives, ended);
    let mut undelivered = 0;
    for lane in files {
        undelivered += deliverer.deliver_older(attempt, lane).await;
    }
    deliverer.outcome(undelivered)
}

struct Deliverer {
    settings: Settings,
    spool: Spool,
    directives: mpsc::Sender<Directive>,
    ended: watch::Receiver<bool>,
    /// The manager's offer, once it has answered.
    peer: watch::Sender<Option<Offer>>,
    /// `true` if the facts of earlier attempts have been delivered.
    older_told: watch::Sender<bool>,
    shared: Mutex<ManagerSession>,
    line: LongPoll,
}

/// The outcome of a batch.
enum BatchOutcome {
    /// The manager has everything up to this seq.
    Through(u64),
    /// The manager will never take this report, the batch's first and only one.
    Refused(u64),
    /// The batch was a heartbeat, and was heard.
    Nothing,
    /// The manager has lost what it had acknowledged after this seq, and wants it again.
    Behind(Option<u64>),
    /// The time is up.
    OutOfTime,
}

/// The state of the contact with the manager, shared by both lanes.
#[derive(Default)]
struct ManagerSession {
    caller: HttpClientCache,
    /// To an NNI manager, between two uses of it.
    connection: Option<legacy::Connection>,
    /// The part of the batch at hand that was taken, where it is taken piece by piece.
    taken: Option<u64>,
    /// To a manager on this machine. Once its socket was seen, the manager is asked nowhere else.
    local: Option<LocalClient>,
    base: Option<String>,
    /// The last address that could be read.
    last_base: Option<String>,
    token: Token,
    /// `true` if compressed batches were refused.
    plain: bool,
    heartbeat: Option<Duration>,
    seen: HashSet<u64>,
    obeyed: Vec<u64>,
    last_error: Option<String>,
    /// The capability that the manager lacks, for which something was left.
    lacking: Option<&'static str>,
    /// `true` if the last answer was to come again later.
    asked_to_wait: bool,
    give_up_at: Option<Instant>,
}

impl Deliverer {
    fn new(
        settings: Settings,
        spool: Spool,
        directives: mpsc::Sender<Directive>,
        ended: watch::Receiver<bool>,
    ) -> Self {
        let (peer, _) = watch::channel(None);
        let token = Token::new(settings.token_file.clone(), settings.credentials.token().cloned());
        let caller = HttpClientCache::new(
            settings.ca_file.clone(),
            settings.credentials.authority().cloned(),
        );
        let shared = Mutex::new(ManagerSession { caller, token, ..ManagerSession::default() });
        let line = LongPoll::default();
        let (older_told, _) = watch::channel(false);
        Self { settings, spool, directives, ended, peer, older_told, shared, line }
    }

    /// Returns the outcome when `undelivered` reports are left.
    fn outcome(&self, undelivered: u64) -> Outcome {
        let why = || self.lock().why_not().unwrap_or_else(|| IN_VAIN.to_owned());
        Outcome { undelivered, last_error: (undelivered > 0).then(why) }
    }

    fn lock(&self) -> MutexGuard<'_, ManagerSession> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn deliver_lane(&self, lane: Lane) {
        for attempt in self.spool.older_attempts() {
            if let Some(files) = self.spool.older_lane(attempt, lane) {
                self.deliver_older(attempt, files).await;
            }
        }
        if lane == Lane::Facts {
            self.older_told.send_replace(true);
        } else if !self.takes_bulk().await {
            return;
        }
        let max_bytes = match lane {
            Lane::Facts => FACTS_BYTES,
            Lane::Bulk => BULK_BYTES,
        };
        let beats = lane == Lane::Facts && self.settings.sender.dialect == Dialect::Native;
        let mut ended = self.ended.clone();
        let mut spoke = Instant::now();
        loop {
            let over = *ended.borrow_and_update();
            if over && self.spool.pending_in(lane) == 0 {
                return;
            }
            let heartbeat = spoke + self.lock().heartbeat.unwrap_or(self.settings.heartbeat);
            if self.may_wait(lane)
                && let Some(LongPollOutcome { records, answer }) =
                    self.wait_on_line(heartbeat).await
            {
                if !self.settle(lane, records, answer).await {
                    return;
                }
                spoke = Instant::now();
                continue;
            }
            let records = tokio::select! {
                biased;
                () = self.spool.readable(lane) => {
                    if lane == Lane::Bulk && !over {
                        self.linger(&mut ended).await;
                    }
                    self.spool.peek(lane, max_bytes).await
                }
                () = tokio::time::sleep_until(heartbeat), if beats => Vec::new(),
                // The line is free again.
                () = self.line.wanted(false), if beats && self.line.is_wanted() => continue,
                changed = ended.changed(), if !over => match changed {
                    Ok(()) => continue,
                    Err(_) => return, // Nobody is left who could say that the trial has ended.
                },
                () = self.deadline(), if over => return,
            };
            if records.is_empty() && self.spool.pending_in(lane) > 0 {
                // The disk did not give what it has.
                if !self.wait(BACKOFF_AT_END).await {
                    return;
                }
                continue;
            }
            if records.is_empty() && lane == Lane::Bulk {
                continue;
            }
            let _held = match lane {
                Lane::Facts => None,
                Lane::Bulk => Some(self.line.take().await),
            };
            if !self.settle(lane, records, None).await {
                return;
            }
            spoke = Instant::now();
        }
    }

    /// Delivers records of our own attempt and has the spool forget them; `false` when the time is up.
    /// `answer` is what a first try came to, if there was one.
    async fn settle(
        &self,
        lane: Lane,
        records: Vec<Record>,
        answer: Option<Result<ReportAck, Error>>,
    ) -> bool {
        // Of the bulk lane nothing is asked for again: a trial's output lies in its files, too.
        let cursor = if lane == Lane::Facts { self.spool.cursor() } else { Cursor::default() };
        match self.deliver(self.spool.attempt(), lane, records, cursor, answer).await {
            BatchOutcome::Through(through) => self.spool.ack(lane, through),
            BatchOutcome::Refused(seq) => {
                if lane == Lane::Facts {
                    self.spool.give_up(seq);
                }
                self.spool.ack(lane, seq);
            }
            BatchOutcome::Nothing => {}
            BatchOutcome::Behind(stored) => self.spool.rewind(stored).await,
            BatchOutcome::OutOfTime => return false,
        }
        true
    }

    /// Sends a batch until it is taken or refused.
    async fn deliver(
        &self,
        attempt: &AttemptId,
        lane: Lane,
        mut records: Vec<Record>,
        cursor: Cursor,
        mut answer: Option<Result<ReportAck, Error>>,
    ) -> BatchOutcome {
        let mut pause = pause();
        loop {
            let sent = match answer.take() {
                Some(sent) => sent,
                None => tokio::select! {
                    sent = self.send(attempt, lane, &records, cursor) => sent,
                    () = self.deadline_after_end() => {
                        let taken = self.lock().taken.take();
                        return taken.map_or(BatchOutcome::OutOfTime, BatchOutcome::Through);
                    }
                },
            };
            let error = match sent {
                Ok(ack) => {
                    self.heard(&ack, attempt);
                    // Only if there is something to send: else a manager that asks again would be answered for ever.
                    if ack.resend && ack.through.max(cursor.forgotten) < cursor.acknowledged {
                        return BatchOutcome::Behind(ack.through);
                    }
                    let (Some(first), Some(last)) = (records.first(), records.last()) else {
                        return BatchOutcome::Nothing; // A heartbeat.
                    };
                    match ack.through {
                        // What was never sent cannot be acknowledged.
                        Some(through) if through >= first.seq => {
                            return BatchOutcome::Through(through.min(last.seq));
                        }
                        Some(_) | None => Error::NotStored,
                    }
                }
                Err(error) => error,
            };
            let decision = error.retry_decision();
            self.failed(&error);
            if matches!(error, Error::Unauthorized { .. }) {
                self.lock().token.refuse();
            }
            self.lock().asked_to_wait = matches!(error, Error::Busy { .. });
            let mut own_pause = || pause.next_backoff().unwrap_or(BACKOFF.1);
            let wait = match decision {
                // Those who are all told the same second must not come back as one, nor at once.
                RetryDecision::RetryAfter(after) => after + own_pause(),
                RetryDecision::NeedsOperator if *self.ended.borrow() => {
                    return BatchOutcome::OutOfTime;
                }
                RetryDecision::NeedsOperator => OPERATOR_INTERVAL,
                RetryDecision::Split | RetryDecision::SplitOrRetry if records.len() > 1 => {
                    records.truncate(records.len() / 2);
                    continue;
                }
                RetryDecision::Retry | RetryDecision::SplitOrRetry => own_pause(),
                // A single report that will never be taken must not hold up all others.
                RetryDecision::Split => {
                    warn!("the manager refuses a report for good; it is passed over: {error}");
                    return records
                        .first()
                        .map_or(BatchOutcome::Nothing, |record| BatchOutcome::Refused(record.seq));
                }
            };
            self.refresh();
            if !self.wait(wait).await {
                return BatchOutcome::OutOfTime;
            }
        }
    }

    async fn send(
        &self,
        attempt: &AttemptId,
        lane: Lane,
        records: &[Record],
        cursor: Cursor,
    ) -> Result<ReportAck, Error> {
        if self.settings.sender.dialect == Dialect::Nni {
            return self.post_lines(records).await;
        }
        let (client, base, token, obeyed) = self.contact()?;
        let ack = loop {
            let body = native::body(&self.settings.sender, attempt, lane, records, &obeyed, cursor);
            let EncodedBody { bytes, gzip } = self.encode_body(&base, body).await;
            match native::post(&client, &base, token.as_deref(), bytes, gzip).await {
                Err(error) if gzip && self.is_compression_refused(&error) => {
                    debug!("{error}; sent plain")
                }
                answer => break answer?,
            }
        };
        // The manager has them now; it repeats a directive until it does.
        self.lock().obeyed.retain(|id| !obeyed.contains(id));
        Ok(ack)
    }

    /// Posts lines to an NNI manager; its answers become an ack.
    async fn post_lines(&self, records: &[Record]) -> Result<ReportAck, Error> {
        let (base, mut connection) = {
            let mut contact = self.lock();
            contact.taken = None;
            (self.base(&mut contact)?, contact.connection.take())
        };
        let taken = |seq| self.lock().taken = Some(seq);
        let posted =
            legacy::post(&mut connection, &base, &self.settings.sender, records, taken).await;
        let mut contact = self.lock();
        contact.connection = connection;
        contact.taken = None;
        Ok(ReportAck {
            offer: Offer::new([]),
            through: posted?,
            directives: Vec::new(),
            lease_ms: None,
            token: None,
            resend: false,
            other: BTreeMap::new(),
        })
    }

    fn heard(&self, ack: &ReportAck, attempt: &AttemptId) {
        // Orders on the ack of an earlier attempt are not for this one.
        let own = attempt == self.spool.attempt();
        self.settings.counts.taken();
        let mut contact = self.lock();
        contact.asked_to_wait = false;
        if contact.last_error.take().is_some() {
            info!("the manager takes reports again");
        }
        contact.heartbeat = ack
            .lease_ms
            .map(|lease| Duration::from_millis((lease / 3).max(100)).min(self.settings.heartbeat));
        if let Some(token) = &ack.token {
            let proved = contact.local.is_some()
                || contact.last_base.as_ref().is_some_and(|base| is_encrypted(base));
            contact.token.renew(&token.0, proved);
        }
        for directive in &ack.directives {
            // A full queue is no loss: the manager repeats what was not obeyed.
            if own
                && !contact.seen.contains(&directive.id)
                && self.directives.try_send(directive.clone()).is_ok()
            {
                contact.seen.insert(directive.id);
                contact.obeyed.push(directive.id);
            }
        }
        drop(contact);
        self.peer.send_if_modified(|peer| {
            let changed = peer.as_ref() != Some(&ack.offer);
            *peer = Some(ack.offer.clone());
            changed
        });
    }

    /// Shows a failure once, not at every try.
    fn failed(&self, error: &Error) {
        let shown = crate::util::errors::chain(error);
        self.settings.counts.failed();
        let mut contact = self.lock();
        if contact.last_error.as_ref() == Some(&shown) {
            debug!("{shown}");
        } else {
            warn!("{shown}; reports wait in the spool");
            contact.last_error = Some(shown);
        }
    }
}
