//! Notifies a server and a program of the user of events in an experiment ([`NotificationsSpec`]).
//!
//! An event is written to the store together with the change that it reports. Each channel retries a notification
//! until it is accepted or abandoned. A receiver may get it twice, and recognises the repetition by its id. The
//! notification of a store that cannot be written cannot be stored, and is lost if this process dies. An empty file
//! then records that the next manager must send the notification of the recovery. A failed notification never affects
//! the experiment: each channel has its own task, with limits on time and tries.

mod channel;
pub mod event;
mod health;
mod program;
mod retry;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::channel::{Channel, PendingNotification, Target};
use self::event::NotificationSubject;
use crate::config::NotificationsSpec;
use crate::store::{self, Store};
use crate::util::clock::Clock;

/// The name of the server's channel.
pub(crate) const WEBHOOK_CHANNEL: &str = "webhook";
/// The name of the program's channel.
pub(crate) const COMMAND_CHANNEL: &str = "command";

/// The time for which remaining notifications are retried when the manager ends.
const CLOSING_TIME: Duration = Duration::from_secs(10);

/// A signal that the store contains a new notification; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct OutboxWaker(Arc<watch::Sender<u64>>);

impl OutboxWaker {
    /// Signals a new notification in the store.
    pub fn wake(&self) {
        self.0.send_modify(|signals| *signals += 1);
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The configuration of the notification tasks.
#[derive(Clone)]
pub struct NotifierConfig {
    /// The receivers and the events.
    pub spec: NotificationsSpec,
    /// The subject of the notifications.
    pub about: NotificationSubject,
    /// The working directory of the command.
    pub directory: PathBuf,
    /// A file that exists while receivers believe that the store cannot be written, for the next manager if this one
    /// dies. `None` after the end of the experiment, when no task needs the store to recover.
    pub degraded: Option<PathBuf>,
    /// The store with the pending notifications.
    pub store: Store,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The signal of new notifications in the store.
    pub waker: OutboxWaker,
}

/// The tasks that send notifications.
pub struct Notifier {
    tasks: JoinSet<usize>,
    ending: CancellationToken,
}

impl Notifier {
    /// Starts the tasks, which also send the notifications of an earlier manager.
    pub fn start(config: &NotifierConfig) -> Self {
        let ending = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let mut queues = Vec::new();
        for target in Target::of(config) {
            let (pending, delivered) = mpsc::unbounded_channel();
            queues.push(pending);
            let channel = Channel::new(config.clone(), target);
            tasks.spawn(channel.run(delivered, ending.clone()));
        }
        tasks.spawn(watch_store(config.clone(), queues, ending.clone()));
        Self { tasks, ending }
    }

    /// Retries the remaining notifications for a while, ends the tasks, and returns the number that could not be
    /// sent.
    pub async fn finish(mut self) -> usize {
        self.ending.cancel();
        // Each task ends soon. A task that has panicked has sent what it could.
        let mut left = 0;
        while let Some(ended) = self.tasks.join_next().await {
            left += ended.unwrap_or(0);
        }
        left
    }
}

/// Retries the notifications of an earlier manager for a while, and returns the number that could not be sent.
pub async fn send_remaining(config: &NotifierConfig) -> Result<usize, store::Error> {
    for channel in [WEBHOOK_CHANNEL, COMMAND_CHANNEL] {
        if !config.store.outbox().pending(channel).await?.is_empty() {
            return Ok(Notifier::start(config).finish().await);
        }
    }
    Ok(0)
}

/// Sends notifications when the store cannot be written, and when it can be written again.
async fn watch_store(
    config: NotifierConfig,
    queues: Vec<mpsc::UnboundedSender<PendingNotification>>,
    ending: CancellationToken,
) -> usize {
    let mut write_error = config.store.database().watch_write_error();
    let mut health = health::Health::from_last_report(
        config.degraded.as_ref().is_some_and(|mark| mark.exists()),
    );
    loop {
        let now = tokio::time::Instant::now();
        let error = write_error.borrow_and_update().as_ref().map(store::Error::to_string);
        if let Some(news) = health.step(error, now) {
            let event = event::health(&config.about, &news, config.clock.now_ms());
            match news {
                event::HealthChange::Degraded(_) => {
                    // An empty file needs no disk space. If even that fails, only this process has the information.
                    if let Some(mark) = &config.degraded
                        && let Err(error) = std::fs::write(mark, "")
                    {
                        warn!("{}: {error}", mark.display());
                    }
                    if config.spec.events.contains(&event.kind) {
                        for pending in &queues {
                            // A channel that has ended needs no notifications.
                            drop(pending.send(PendingNotification::in_memory(&event)));
                        }
                    }
                }
                event::HealthChange::Recovered => {
                    if let Some(new) = event.into_stored(&config.spec)
                        && config.store.outbox().add(new).await.is_err()
                    {
                        // The store has failed again. A second notification of that is not needed.
                        health = health::Health::from_last_report(true);
                        continue;
                    }
                    config.waker.wake();
                    if let Some(mark) = &config.degraded {
                        drop(std::fs::remove_file(mark));
                    }
                }
            }
        }
        let next = health.next_check(now);
        tokio::select! {
            () = ending.cancelled() => return 0,
            changed = write_error.changed() => if changed.is_err() { return 0 },
            () = tokio::time::sleep(next) => {}
        }
    }
}

/// Logs a warning about notifications that could not be sent.
pub fn warn_of_unsent(left: usize, id: &trial_protocol::ExperimentId) {
    if left > 0 {
        warn!(
            "notifications that could not be delivered yet: {left}; `trial-manager resume {id}` tries again"
        );
    }
}

#[cfg(test)]
mod tests;
