//! One way to notify, a server or a program: takes notifications from the store and those that are only in memory,
//! tries each until it is delivered or given up, and records that.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::event::Notification;
use super::pace::{self, DeliveryOutcome, NextDelivery};
use super::{COMMAND, LINGER, NotifierConfig, WEBHOOK, program, webhook};
use crate::config::WebhookSpec;
use crate::store::NotificationRow;

/// The time to wait before what was told is noted again in a store that could not.
const NOTE_AGAIN: Duration = Duration::from_secs(5);
/// Nothing is to be done.
const NEVER: Duration = Duration::from_hours(1);
/// The most notifications of an illness that are kept in memory.
const UNKEPT: usize = 100;

/// A means of notification.
#[derive(Clone)]
pub(super) enum Means {
    Webhook(WebhookSpec),
    Program(String),
}

impl Means {
    pub(super) fn of(config: &NotifierConfig) -> Vec<Self> {
        let webhook = config.spec.webhook.clone().map(Self::Webhook);
        let program = config.spec.command.clone().map(Self::Program);
        webhook.into_iter().chain(program).collect()
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Webhook(_) => WEBHOOK,
            Self::Program(_) => COMMAND,
        }
    }
}

/// The fate of a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DeliveryState {
    /// Nothing yet.
    Open,
    /// The notification was delivered, which the store does not know yet.
    Told,
    /// The notification was given up, and why, which the store does not know yet.
    GivenUp(String),
}

/// Something to tell, and what became of it.
#[derive(Debug, Clone)]
pub(super) struct PendingNotification {
    id: String,
    event: Value,
    tries: u32,
    due: Instant,
    /// `true` if it lies in the store.
    kept: bool,
    fate: DeliveryState,
}

impl PendingNotification {
    /// Returns the notification of an event that the store cannot hold.
    pub(super) fn unkept(event: &Notification) -> Self {
        let (id, event) = (event.id.clone(), event.value.clone());
        Self { id, event, tries: 0, due: Instant::now(), kept: false, fate: DeliveryState::Open }
    }

    fn kept(row: NotificationRow) -> Self {
        let NotificationRow { id, event, tries } = row;
        Self { id, event, tries, due: Instant::now(), kept: true, fate: DeliveryState::Open }
    }
}

/// The task of one way of telling.
pub(super) struct Channel {
    config: NotifierConfig,
    means: Means,
    pending: Vec<PendingNotification>,
}

impl Channel {
    pub(super) fn new(config: NotifierConfig, means: Means) -> Self {
        Self { config, means, pending: Vec::new() }
    }

    /// Tells until it is to end and for a while afterwards; how much is left then.
    pub(super) async fn run(
        mut self,
        mut delivered: mpsc::UnboundedReceiver<PendingNotification>,
        ending: CancellationToken,
    ) -> usize {
        let told = async {
            self.until_ending(&mut delivered, &ending).await;
        };
        // Once it is to end, what hangs has a bound.
        let bound = async {
            ending.cancelled().await;
            tokio::time::sleep(LINGER).await;
        };
        tokio::select! {
            () = told => {}
            () = bound => {}
        }
        self.pending.iter().filter(|notification| notification.fate == DeliveryState::Open).count()
    }

    async fn until_ending(
        &mut self,
        delivered: &mut mpsc::UnboundedReceiver<PendingNotification>,
        ending: &CancellationToken,
    ) {
        let waker = self.config.waker.clone();
        let mut waker = waker.heard();
        // Once it is to end: until when.
        let mut last: Option<Instant> = None;
        loop {
            let closing = ending.is_cancelled();
            waker.mark_unchanged();
            self.collect(delivered).await;
            if closing && last.is_none() {
                let now = Instant::now();
                last = Some(now + LINGER);
                // However long its pause was to be: once more, now.
                for notification in self
                    .pending
                    .iter_mut()
                    .filter(|notification| notification.fate == DeliveryState::Open)
                {
                    notification.due = now;
                }
            }
            while let Some(at) = self.due() {
                self.attend(at).await;
                self.collect(delivered).await;
            }
            if last
                .is_some_and(|last| self.pending.iter().all(|notification| notification.due > last))
            {
                return;
            }
            let next = self.pending.iter().map(|notification| notification.due).min();
            let next = next.unwrap_or_else(|| Instant::now() + NEVER);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                _ = waker.changed() => {}
                Some(notification) = delivered.recv() => self.pending.push(notification),
                () = ending.cancelled(), if !closing => {}
            }
        }
    }

    /// Takes what is new.
    async fn collect(&mut self, delivered: &mut mpsc::UnboundedReceiver<PendingNotification>) {
        while let Ok(notification) = delivered.try_recv() {
            self.pending.push(notification);
        }
        let surplus = self.pending.iter().filter(|notification| !notification.kept).count();
        for _ in UNKEPT..surplus {
            let Some(oldest) = self.pending.iter().position(|notification| !notification.kept)
            else {
                break;
            };
            self.pending.remove(oldest);
        }
        match self.config.store.notifications(self.means.name()).await {
            Ok(rows) => {
                for row in rows {
                    if self.pending.iter().all(|notification| notification.id != row.id) {
                        self.pending.push(PendingNotification::kept(row));
                    }
                }
            }
            Err(error) => warn!("{error}: what is to be told waits"),
        }
    }

    /// The first that something is to be done about.
    fn due(&self) -> Option<usize> {
        let now = Instant::now();
        self.pending.iter().position(|notification| notification.due <= now)
    }

    async fn attend(&mut self, at: usize) {
        let notification = self.pending[at].clone();
        if notification.fate == DeliveryState::Open {
            let tries = notification.tries + 1;
            let outcome = self.tell(&notification).await;
            let name = self.means.name();
            let event = notification.event.get("event").and_then(Value::as_str).unwrap_or_default();
            let entry = &mut self.pending[at];
            entry.tries = tries;
            match pace::next(outcome, tries) {
                NextDelivery::Told => {
                    info!(id = notification.id, "the {name} has taken {event}");
                    entry.fate = DeliveryState::Told;
                }
                NextDelivery::GivenUp(why) => {
                    warn!(id = notification.id, "the {name} will not be told of {event}: {why}");
                    entry.fate = DeliveryState::GivenUp(why);
                }
                NextDelivery::Again(pause, why) => {
                    if tries == 1 {
                        warn!(
                            id = notification.id,
                            "the {name} was not told of {event}, which is tried again: {why}"
                        );
                    }
                    entry.due = Instant::now() + pause;
                    if notification.kept {
                        // In memory it is known all the same.
                        drop(
                            self.config
                                .store
                                .notification_tried(&notification.id, name, tries)
                                .await,
                        );
                    }
                    return;
                }
            }
        }
        self.note(at).await;
    }

    /// Notes what became of one.
    async fn note(&mut self, at: usize) {
        let notification = &self.pending[at];
        let problem = match &notification.fate {
            DeliveryState::Open => return,
            DeliveryState::Told => None,
            DeliveryState::GivenUp(why) => Some(why.as_str()),
        };
        if notification.kept {
            let (store, now) = (&self.config.store, self.config.clock.now_ms());
            let noted =
                store.settle_notification(&notification.id, self.means.name(), now, problem);
            let bound = Instant::now() + NOTE_AGAIN;
            if !matches!(timeout_at(bound, noted).await, Ok(Ok(()))) {
                self.pending[at].due = Instant::now() + NOTE_AGAIN;
                return;
            }
        }
        self.pending.remove(at);
    }

    async fn tell(&self, notification: &PendingNotification) -> DeliveryOutcome {
        match &self.means {
            Means::Webhook(spec) => {
                webhook::post(spec, &notification.id, &notification.event).await
            }
            Means::Program(line) => {
                program::run(line, &self.config.directory, &notification.id, &notification.event)
                    .await
            }
        }
    }
}
