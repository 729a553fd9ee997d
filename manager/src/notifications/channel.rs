//! A channel for notifications, either a server or a program: takes notifications from the store and from memory,
//! tries each until it is delivered or abandoned, and records the result.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::event::Notification;
use super::retry::{self, DeliveryOutcome, NextDelivery};
use super::{CLOSING_TIME, COMMAND_CHANNEL, NotifierConfig, WEBHOOK_CHANNEL, program, webhook};
use crate::config::WebhookSpec;
use crate::store::NotificationRow;

/// The pause before the result of a notification is recorded again in a store that could not be written.
const RECORD_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// The time to sleep if no notification is pending.
const IDLE_PAUSE: Duration = Duration::from_hours(1);
/// The maximum number of notifications in memory about a store that cannot be written.
const MAX_IN_MEMORY: usize = 100;

/// The receiver of a channel.
#[derive(Clone)]
pub(super) enum Target {
    Webhook(WebhookSpec),
    Program(String),
}

impl Target {
    pub(super) fn of(config: &NotifierConfig) -> Vec<Self> {
        let webhook = config.spec.webhook.clone().map(Self::Webhook);
        let program = config.spec.command.clone().map(Self::Program);
        webhook.into_iter().chain(program).collect()
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Webhook(_) => WEBHOOK_CHANNEL,
            Self::Program(_) => COMMAND_CHANNEL,
        }
    }
}

/// The state of a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DeliveryState {
    /// The notification is not yet delivered.
    Open,
    /// The notification was delivered, but the store has not yet recorded that.
    Delivered,
    /// The notification was abandoned for this reason, but the store has not yet recorded that.
    GivenUp(String),
}

/// A notification to send, and its state.
#[derive(Debug, Clone)]
pub(super) struct PendingNotification {
    id: String,
    event: Value,
    tries: u32,
    due: Instant,
    /// `true` if the notification is in the store.
    is_stored: bool,
    state: DeliveryState,
}

impl PendingNotification {
    /// Creates a notification of an event that the store cannot record.
    pub(super) fn in_memory(event: &Notification) -> Self {
        let (id, event) = (event.id.clone(), event.value.clone());
        Self {
            id,
            event,
            tries: 0,
            due: Instant::now(),
            is_stored: false,
            state: DeliveryState::Open,
        }
    }

    fn from_store(row: NotificationRow) -> Self {
        let NotificationRow { id, event, tries } = row;
        Self { id, event, tries, due: Instant::now(), is_stored: true, state: DeliveryState::Open }
    }
}

/// The task of a channel.
pub(super) struct Channel {
    config: NotifierConfig,
    target: Target,
    pending: Vec<PendingNotification>,
}

impl Channel {
    pub(super) fn new(config: NotifierConfig, target: Target) -> Self {
        Self { config, target, pending: Vec::new() }
    }

    /// Sends notifications until the end is requested, and for a while afterwards. Returns the number of remaining
    /// ones.
    pub(super) async fn run(
        mut self,
        mut delivered: mpsc::UnboundedReceiver<PendingNotification>,
        ending: CancellationToken,
    ) -> usize {
        let delivery = async {
            self.run_until_ending(&mut delivered, &ending).await;
        };
        // Once the end is requested, a hanging delivery has a time limit.
        let bound = async {
            ending.cancelled().await;
            tokio::time::sleep(CLOSING_TIME).await;
        };
        tokio::select! {
            () = delivery => {}
            () = bound => {}
        }
        self.pending.iter().filter(|notification| notification.state == DeliveryState::Open).count()
    }

    async fn run_until_ending(
        &mut self,
        delivered: &mut mpsc::UnboundedReceiver<PendingNotification>,
        ending: &CancellationToken,
    ) {
        let waker = self.config.waker.clone();
        let mut waker = waker.subscribe();
        // The deadline, once the end is requested.
        let mut last: Option<Instant> = None;
        loop {
            let closing = ending.is_cancelled();
            waker.mark_unchanged();
            self.collect(delivered).await;
            if closing && last.is_none() {
                let now = Instant::now();
                last = Some(now + CLOSING_TIME);
                // Each notification is tried once more now, regardless of its pause.
                for notification in self
                    .pending
                    .iter_mut()
                    .filter(|notification| notification.state == DeliveryState::Open)
                {
                    notification.due = now;
                }
            }
            while let Some(at) = self.due() {
                self.process(at).await;
                self.collect(delivered).await;
            }
            if last
                .is_some_and(|last| self.pending.iter().all(|notification| notification.due > last))
            {
                return;
            }
            let next = self.pending.iter().map(|notification| notification.due).min();
            let next = next.unwrap_or_else(|| Instant::now() + IDLE_PAUSE);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                _ = waker.changed() => {}
                Some(notification) = delivered.recv() => self.pending.push(notification),
                () = ending.cancelled(), if !closing => {}
            }
        }
    }

    /// Collects new notifications from memory and from the store.
    async fn collect(&mut self, delivered: &mut mpsc::UnboundedReceiver<PendingNotification>) {
        while let Ok(notification) = delivered.try_recv() {
            self.pending.push(notification);
        }
        let surplus = self.pending.iter().filter(|notification| !notification.is_stored).count();
        for _ in MAX_IN_MEMORY..surplus {
            let Some(oldest) = self.pending.iter().position(|notification| !notification.is_stored)
            else {
                break;
            };
            self.pending.remove(oldest);
        }
        match self.config.store.outbox().pending(self.target.name()).await {
            Ok(rows) => {
                for row in rows {
                    if self.pending.iter().all(|notification| notification.id != row.id) {
                        self.pending.push(PendingNotification::from_store(row));
                    }
                }
            }
            Err(error) => warn!("{error}; notifications are delayed"),
        }
    }

    /// Returns the index of the first notification that is due.
    fn due(&self) -> Option<usize> {
        let now = Instant::now();
        self.pending.iter().position(|notification| notification.due <= now)
    }

    async fn process(&mut self, at: usize) {
        let notification = self.pending[at].clone();
        if notification.state == DeliveryState::Open {
            let tries = notification.tries + 1;
            let outcome = self.deliver(&notification).await;
            let name = self.target.name();
            let event = notification.event.get("event").and_then(Value::as_str).unwrap_or_default();
            let entry = &mut self.pending[at];
            entry.tries = tries;
            match retry::next_delivery(outcome, tries) {
                NextDelivery::Done => {
                    info!(id = notification.id, "the {name} has accepted {event}");
                    entry.state = DeliveryState::Delivered;
                }
                NextDelivery::GivenUp(why) => {
                    warn!(
                        id = notification.id,
                        "the {name} did not accept {event}, which is abandoned: {why}"
                    );
                    entry.state = DeliveryState::GivenUp(why);
                }
                NextDelivery::RetryAfter(pause, why) => {
                    if tries == 1 {
                        warn!(
                            id = notification.id,
                            "the {name} did not accept {event}, which is retried: {why}"
                        );
                    }
                    entry.due = Instant::now() + pause;
                    if notification.is_stored {
                        // Ignored: the number is also kept in memory.
                        drop(
                            self.config
                                .store
                                .outbox()
                                .set_tries(&notification.id, name, tries)
                                .await,
                        );
                    }
                    return;
                }
            }
        }
        self.record_result(at).await;
    }

    /// Records the result of a notification in the store.
    async fn record_result(&mut self, at: usize) {
        let notification = &self.pending[at];
        let problem = match &notification.state {
            DeliveryState::Open => return,
            DeliveryState::Delivered => None,
            DeliveryState::GivenUp(why) => Some(why.as_str()),
        };
        if notification.is_stored {
            let (store, now) = (&self.config.store, self.config.clock.now_ms());
            let noted = store.outbox().settle(&notification.id, self.target.name(), now, problem);
            let bound = Instant::now() + RECORD_RETRY_PAUSE;
            if !matches!(timeout_at(bound, noted).await, Ok(Ok(()))) {
                self.pending[at].due = Instant::now() + RECORD_RETRY_PAUSE;
                return;
            }
        }
        self.pending.remove(at);
    }

    async fn deliver(&self, notification: &PendingNotification) -> DeliveryOutcome {
        match &self.target {
            Target::Webhook(spec) => {
                webhook::post(spec, &notification.id, &notification.event).await
            }
            Target::Program(line) => {
                program::run(line, &self.config.directory, &notification.id, &notification.event)
                    .await
            }
        }
    }
}
