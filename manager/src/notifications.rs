//! Tells others what happened to an experiment: a server and a program of the user's ([`NotificationsSpec`]).
//!
//! Events to be told lie in the store, written together with the change that they tell of. Each is told until it has
//! been taken or given up: at least once, under an id by which a second time is known. News that the store itself is
//! ill cannot lie there and dies with this process. An empty file says that the next manager owes the news that the
//! store is well again. No failure to tell reaches the experiment: each way of telling has a task of its own, which is
//! bounded in time and tries.

mod channel;
pub mod event;
mod health;
mod pace;
mod program;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::channel::{Channel, Means, PendingNotification};
use self::event::About;
use crate::config::NotificationsSpec;
use crate::store::{self, Store};
use crate::util::clock::Clock;

/// The name of the server's channel.
pub(crate) const WEBHOOK: &str = "webhook";
/// The name of the program's.
pub(crate) const COMMAND: &str = "command";

/// The time that what is left is still tried when the manager ends.
const LINGER: Duration = Duration::from_secs(10);

/// Says that something new lies in the store; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct OutboxWaker(Arc<watch::Sender<u64>>);

impl OutboxWaker {
    /// Something new lies there.
    pub fn ring(&self) {
        self.0.send_modify(|rung| *rung += 1);
    }

    fn heard(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The context of the tasks.
#[derive(Clone)]
pub struct NotifierConfig {
    /// Whom to tell.
    pub spec: NotificationsSpec,
    /// Whom it is about.
    pub about: About,
    /// Where the command is run.
    pub directory: PathBuf,
    /// A file that is there while others believe the store to be ill, for the next manager if this one dies. `None`:
    /// the experiment is over, and its store has no waiter.
    pub degraded: Option<PathBuf>,
    /// Where what is to be told lies.
    pub store: Store,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Rings when something new lies there.
    pub waker: OutboxWaker,
}

/// The tasks that tell.
pub struct Notifier {
    tasks: JoinSet<usize>,
    ending: CancellationToken,
}

impl Notifier {
    /// Begins to tell, with what an earlier manager left.
    pub fn start(config: &NotifierConfig) -> Self {
        let ending = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let mut queues = Vec::new();
        for means in Means::of(config) {
            let (pending, delivered) = mpsc::unbounded_channel();
            queues.push(pending);
            let channel = Channel::new(config.clone(), means);
            tasks.spawn(channel.run(delivered, ending.clone()));
        }
        tasks.spawn(watch_store(config.clone(), queues, ending.clone()));
        Self { tasks, ending }
    }

    /// Tries for a while what is left, then ends; how much could not be told.
    pub async fn finish(mut self) -> usize {
        self.ending.cancel();
        // Each ends by itself soon after; one that has panicked has told what it could.
        let mut left = 0;
        while let Some(ended) = self.tasks.join_next().await {
            left += ended.unwrap_or(0);
        }
        left
    }
}

/// Tells for a while what a manager has left that is gone; how much is left then.
pub async fn tell_what_is_left(config: &NotifierConfig) -> Result<usize, store::Error> {
    for channel in [WEBHOOK, COMMAND] {
        if !config.store.notifications(channel).await?.is_empty() {
            return Ok(Notifier::start(config).finish().await);
        }
    }
    Ok(0)
}

/// Tells that the store is ill, and that it is well again.
async fn watch_store(
    config: NotifierConfig,
    queues: Vec<mpsc::UnboundedSender<PendingNotification>>,
    ending: CancellationToken,
) -> usize {
    let mut write_error = config.store.watch_write_error();
    let mut health =
        health::Health::begin(config.degraded.as_ref().is_some_and(|mark| mark.exists()));
    loop {
        let now = tokio::time::Instant::now();
        let ill = write_error.borrow_and_update().as_ref().map(store::Error::to_string);
        if let Some(news) = health.step(ill, now) {
            let event = event::health(&config.about, &news, config.clock.now_ms());
            match news {
                event::Health::Degraded(_) => {
                    // An empty file needs no room; where even that fails, only this process knows.
                    if let Some(mark) = &config.degraded
                        && let Err(error) = std::fs::write(mark, "")
                    {
                        warn!("{}: {error}", mark.display());
                    }
                    if config.spec.events.contains(&event.kind) {
                        for pending in &queues {
                            // A channel that has ended needs no more news.
                            drop(pending.send(PendingNotification::unkept(&event)));
                        }
                    }
                }
                event::Health::Recovered => {
                    if let Some(new) = event.kept(&config.spec)
                        && config.store.notify(new).await.is_err()
                    {
                        // It is ill again, which need not be told a second time.
                        health = health::Health::begin(true);
                        continue;
                    }
                    config.waker.ring();
                    if let Some(mark) = &config.degraded {
                        drop(std::fs::remove_file(mark));
                    }
                }
            }
        }
        let next = health.next_look(now);
        tokio::select! {
            () = ending.cancelled() => return 0,
            changed = write_error.changed() => if changed.is_err() { return 0 },
            () = tokio::time::sleep(next) => {}
        }
    }
}

/// Warns the user of notifications that could not be sent.
pub fn warn_of_rest(left: usize, id: &trial_protocol::ExperimentId) {
    if left > 0 {
        warn!(
            "notifications that could not be delivered yet: {left}; `trial-manager resume {id}` tries again"
        );
    }
}

#[cfg(test)]
mod tests;
