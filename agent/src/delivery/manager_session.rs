//! The session with the manager: the parts of a request, and the state that the answers change.
//!
//! Both lanes share it. Addresses, tokens and certificates from files are read again after a failure.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Client;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};
use trial_protocol::{AttemptId, Directive, Offer, ReportAck, capability};

use super::batch::Batch;
use super::client_cache::HttpClientCache;
use super::compression::{self, EncodedBody};
use super::dialect::native::BodySender;
use super::dialect::{legacy, native};
use super::local::{LOCAL_BASE, LocalClient};
use super::token::Token;
use super::{DeliveryCounts, Error, ManagerAddress, Settings};
use crate::spool::{Dialect, Record, Sender};
use crate::util::errors::chain;

/// The session of one sender with its manager.
pub(super) struct ManagerSession {
    sender: Sender,
    address: ManagerAddress,
    /// The base URL before the trial started.
    first_base: Option<String>,
    heartbeat_interval: Duration,
    counts: Arc<DeliveryCounts>,
    directives: mpsc::Sender<Directive>,
    /// The manager's offer, once it has answered.
    offer: watch::Sender<Option<Offer>>,
    state: Mutex<SessionState>,
}

/// The part of a session that its requests change.
#[derive(Default)]
struct SessionState {
    clients: HttpClientCache,
    /// The connection to an NNI manager, between two uses.
    connection: Option<legacy::Connection>,
    /// The last record of the current batch that an NNI manager has accepted. It accepts records one by one.
    last_posted: Option<u64>,
    /// The client for a manager on this machine. Once its socket was found, the agent uses no other address.
    local: Option<LocalClient>,
    base: Option<String>,
    /// The last address that could be read.
    last_base: Option<String>,
    token: Token,
    /// `true` if a compressed batch was refused.
    compression_refused: bool,
    /// A third of the lease in the last ack.
    heartbeat: Option<Duration>,
    /// The ids of the directives that were forwarded. Each is forwarded once.
    forwarded_directives: HashSet<u64>,
    /// The directives that must still be reported to the manager as obeyed.
    obeyed: Vec<u64>,
    last_error: Option<String>,
    /// The missing capability of the manager because of which reports were not delivered.
    missing_capability: Option<&'static str>,
    /// `true` if the last answer was to try again later.
    is_busy: bool,
}

/// The parts of one request except its body.
struct RequestContext {
    client: Client,
    base: String,
    token: Option<String>,
    obeyed: Vec<u64>,
}

impl ManagerSession {
    pub(super) fn new(settings: &Settings, directives: mpsc::Sender<Directive>) -> Self {
        let credentials = &settings.credentials;
        let token = Token::new(settings.token_file.clone(), credentials.token().cloned());
        let clients =
            HttpClientCache::new(settings.ca_file.clone(), credentials.authority().cloned());
        Self {
            sender: settings.sender.clone(),
            address: settings.manager.clone(),
            first_base: credentials.base().cloned(),
            heartbeat_interval: settings.heartbeat,
            counts: Arc::clone(&settings.counts),
            directives,
            offer: watch::Sender::default(),
            state: Mutex::new(SessionState { clients, token, ..SessionState::default() }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the protocol of the manager.
    pub(super) fn dialect(&self) -> Dialect {
        self.sender.dialect
    }

    /// Returns the maximum time between two messages to the manager.
    pub(super) fn heartbeat(&self) -> Duration {
        self.lock().heartbeat.unwrap_or(self.heartbeat_interval)
    }

    /// Returns whether the manager has offered the capability.
    pub(super) fn has_capability(&self, capability: &str) -> bool {
        self.offer.borrow().as_ref().is_some_and(|offer| offer.capabilities.contains(capability))
    }

    /// Returns a receiver of the manager's offers. Its value is `None` until the manager has answered.
    pub(super) fn subscribe_offer(&self) -> watch::Receiver<Option<Offer>> {
        self.offer.subscribe()
    }

    /// Returns whether the last request failed.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().last_error.is_some()
    }

    /// Returns whether the manager has asked the agent to try again later.
    pub(super) fn is_busy(&self) -> bool {
        self.lock().is_busy
    }

    /// Returns the reason why reports were not delivered, and clears it.
    pub(super) fn take_problem(&self) -> Option<String> {
        let mut state = self.lock();
        let lacks = |missing_capability| {
            format!("the manager does not offer the capability `{missing_capability}`")
        };
        state.last_error.take().or(state.missing_capability.map(lacks))
    }

    /// Logs a capability that the manager lacks, once.
    pub(super) fn warn_of_missing_capability(&self, capability: &'static str) {
        let before = self.lock().missing_capability.replace(capability);
        if before.is_none() {
            warn!(
                "the manager does not accept output and samples: it does not offer the capability `{capability}`; \
                 they stay in the spool"
            );
        }
    }

    /// Has addresses, certificates and tokens read again, because the manager may have moved, or the files may have
    /// been replaced.
    pub(super) fn refresh(&self) {
        let mut state = self.lock();
        state.base = None;
        state.clients.refresh();
        state.token.refresh();
    }

    fn request_context(&self) -> Result<RequestContext, Error> {
        let mut state = self.lock();
        let (client, base) = match self.local_client(&mut state)? {
            Some(client) => (client, LOCAL_BASE.to_owned()),
            None => (state.clients.get()?, self.current_base(&mut state)?),
        };
        let token = state.token.get().map(str::to_owned);
        Ok(RequestContext { client, base, token, obeyed: state.obeyed.clone() })
    }

    /// Returns the client of a manager on this machine, if its socket exists or existed during this session.
    fn local_client(&self, state: &mut SessionState) -> Result<Option<Client>, Error> {
        if state.local.is_none()
            && let Some(socket) = self.address.socket()
        {
            state.local = Some(LocalClient::new(&socket)?);
        }
        Ok(state.local.as_ref().map(|local| local.client().clone()))
    }

    fn current_base(&self, state: &mut SessionState) -> Result<String, Error> {
        if let Some(base) = &state.base {
            return Ok(base.clone());
        }
        // A missing address file does not mean that the manager has moved.
        let earlier = state.last_base.take().or_else(|| self.first_base.clone());
        let base = self.address.url().or_else(|error| earlier.ok_or(error))?;
        state.last_base = Some(base.clone());
        Ok(state.base.insert(base).clone())
    }

    /// Sends a batch once.
    pub(super) async fn send(&self, batch: &Batch<'_>) -> Result<ReportAck, Error> {
        if self.sender.dialect == Dialect::Nni {
            return self.post_lines(&batch.records).await;
        }
        let RequestContext { client, base, token, obeyed } = self.request_context()?;
        let ack = loop {
            let body = self.body(batch.attempt, batch, &obeyed);
            let compress = self.can_compress() && compression::is_worthwhile(&base, body.len());
            let EncodedBody { bytes, gzip } = compression::encode(body, compress).await;
            match native::post(&client, &base, token.as_deref(), bytes, gzip).await {
                Err(error) if gzip && compression::can_cause_refusal(&error) => {
                    self.lock().compression_refused = true;
                    debug!("{error}; sent without compression");
                }
                answer => break answer?,
            }
        };
        self.forget_obeyed(&obeyed);
        Ok(ack)
    }

    fn body(&self, attempt: &AttemptId, batch: &Batch<'_>, obeyed: &[u64]) -> Vec<u8> {
        native::batch_body(&self.sender, attempt, batch.lane, &batch.records, obeyed, batch.cursor)
    }

    fn can_compress(&self) -> bool {
        !self.lock().compression_refused && self.has_capability(capability::GZIP)
    }

    /// Opens a request whose body follows within `longest`. The future returns the answer.
    pub(super) fn open_request(
        &self,
        attempt: &AttemptId,
        longest: Duration,
    ) -> Result<(BodySender, impl Future<Output = Result<ReportAck, Error>> + use<>), Error> {
        let RequestContext { client, base, token, .. } = self.request_context()?;
        let (body_sender, body) = native::deferred_body();
        let attempt = attempt.clone();
        let answer = async move {
            native::post_deferred(&client, &base, token.as_deref(), &attempt, body, longest).await
        };
        Ok((body_sender, answer))
    }

    /// Sends the body of an open request. Returns the directives that it reports as obeyed.
    pub(super) fn fill_request(&self, body_sender: BodySender, batch: &Batch<'_>) -> Vec<u64> {
        let obeyed = self.lock().obeyed.clone();
        // The receiver is dropped if the request has ended. The answer then reports it.
        drop(body_sender.send(self.body(batch.attempt, batch, &obeyed)));
        obeyed
    }

    /// Forgets obeyed directives that were reported to the manager. It repeats a directive until then.
    pub(super) fn forget_obeyed(&self, obeyed: &[u64]) {
        self.lock().obeyed.retain(|id| !obeyed.contains(id));
    }

    /// Posts lines to an NNI manager, and converts its answers into an ack.
    async fn post_lines(&self, records: &[Record]) -> Result<ReportAck, Error> {
        let (base, mut connection) = {
            let mut state = self.lock();
            state.last_posted = None;
            (self.current_base(&mut state)?, state.connection.take())
        };
        let posted = |seq| self.lock().last_posted = Some(seq);
        let through = legacy::post(&mut connection, &base, &self.sender, records, posted).await;
        let mut state = self.lock();
        state.connection = connection;
        state.last_posted = None;
        Ok(ReportAck {
            offer: Offer::new([]),
            through: through?,
            directives: Vec::new(),
            lease_ms: None,
            token: None,
            resend: false,
            other: BTreeMap::new(),
        })
    }

    /// Returns the last record that an NNI manager accepted of an interrupted batch, and clears it.
    pub(super) fn take_posted(&self) -> Option<u64> {
        self.lock().last_posted.take()
    }

    /// Records an ack: the lease, the token, the offer and the directives. `is_own` means that the ack is for this
    /// process's attempt. Directives on an ack for an earlier attempt are not meant for this one.
    pub(super) fn record_ack(&self, ack: &ReportAck, is_own: bool) {
        self.counts.count_accepted();
        let mut state = self.lock();
        state.is_busy = false;
        if state.last_error.take().is_some() {
            info!("the manager accepts reports again");
        }
        state.heartbeat = ack
            .lease_ms
            .map(|lease| Duration::from_millis((lease / 3).max(100)).min(self.heartbeat_interval));
        if let Some(token) = &ack.token {
            let proved = state.local.is_some()
                || state.last_base.as_ref().is_some_and(|base| is_encrypted(base));
            state.token.renew(&token.0, proved);
        }
        for directive in ack.directives.iter().filter(|_| is_own) {
            // A full queue is harmless, because the manager repeats a directive until it is obeyed.
            if !state.forwarded_directives.contains(&directive.id)
                && self.directives.try_send(directive.clone()).is_ok()
            {
                state.forwarded_directives.insert(directive.id);
                state.obeyed.push(directive.id);
            }
        }
        drop(state);
        self.offer.send_if_modified(|offer| {
            let changed = offer.as_ref() != Some(&ack.offer);
            *offer = Some(ack.offer.clone());
            changed
        });
    }

    /// Records a failed request. Logs the same warning only once, not at every attempt.
    pub(super) fn record_failure(&self, error: &Error) {
        let shown = chain(error);
        self.counts.count_failed();
        let mut state = self.lock();
        if state.last_error.as_ref() == Some(&shown) {
            debug!("{shown}");
        } else {
            warn!("{shown}; reports wait in the spool");
            state.last_error = Some(shown);
        }
        if matches!(error, Error::Unauthorized { .. }) {
            state.token.handle_refusal();
        }
        state.is_busy = matches!(error, Error::Busy { .. });
    }
}

/// Returns whether the server at this base URL has proved its identity.
fn is_encrypted(base: &str) -> bool {
    base.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_proves_the_identity_of_a_server() {
        for (base, proved) in
            [("https://h", true), ("HTTPS://h", true), ("http://h", false), ("h", false)]
        {
            assert_eq!(is_encrypted(base), proved, "{base}");
        }
    }
}
