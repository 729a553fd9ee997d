//! The task that delivers reports, if there is a manager.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use trial_protocol::Directive;

use crate::delivery::{self, Credentials, DeliveryCounts, FINAL_DELIVERY_TIMEOUT};
use crate::run::settings::Settings;
use crate::spool::Spool;

/// The time for delivery after the agent received a stop signal: its sender sends SIGKILL after a while.
const FLUSH_AFTER_SIGNAL: Duration = Duration::from_secs(5);

/// The time for delivery to notice its deadline.
const SHUTDOWN_SLACK: Duration = Duration::from_secs(1);

/// The delivery task and its channels.
pub(super) struct Delivery {
    pub(super) directives: mpsc::Receiver<Directive>,
    /// `None` without a manager.
    pub(super) counts: Option<Arc<DeliveryCounts>>,
    /// Ends the delivery after the trial.
    pub(super) shutdown: DeliveryShutdown,
}

/// The handles that end the delivery.
pub(super) struct DeliveryShutdown {
    ended: watch::Sender<bool>,
    abort: watch::Sender<bool>,
    task: Option<JoinHandle<delivery::Outcome>>,
}

impl Delivery {
    pub(super) fn start(settings: &Settings, credentials: Credentials, spool: &Spool) -> Self {
        let (directives_sender, directives) = mpsc::channel(16);
        let (ended, watch_end) = watch::channel(false);
        let (abort, watch_abort) = watch::channel(false);
        let counts = settings.manager.is_some().then(Arc::<DeliveryCounts>::default);
        let task = settings.manager.clone().map(|manager| {
            let settings = delivery::Settings {
                manager,
                token_file: settings.token_file.clone(),
                ca_file: settings.ca_file.clone(),
                credentials,
                sender: settings.sender.clone(),
                heartbeat: settings.heartbeat,
                flush: settings.flush,
                abort: watch_abort,
                counts: counts.clone().unwrap_or_default(),
            };
            // A task of its own, so that a panic in it does not end the agent. `finish` joins it.
            tokio::spawn(delivery::run(settings, spool.clone(), directives_sender, watch_end))
        });
        Self { directives, counts, shutdown: DeliveryShutdown { ended, abort, task } }
    }
}

impl DeliveryShutdown {
    /// Returns a receiver that becomes `true` when the trial has ended.
    pub(super) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Ends the delivery, and waits until it is complete or out of time. `stop_signal` completes when the agent itself
    /// receives a stop signal; only [`FLUSH_AFTER_SIGNAL`] is left then.
    pub(super) async fn finish(
        self,
        spool: &Spool,
        flush: Duration,
        stop_signal: impl Future<Output = ()>,
    ) -> Option<delivery::Outcome> {
        let mut task = self.task?;
        self.ended.send(true).ok();
        let shortened_flush = async {
            stop_signal.await;
            sleep(FLUSH_AFTER_SIGNAL).await;
        };
        // Delivery watches its own deadline; this timeout is a safeguard.
        let longest = flush.saturating_add(FINAL_DELIVERY_TIMEOUT).saturating_add(SHUTDOWN_SLACK);
        let done = tokio::select! {
            done = timeout(longest, &mut task) => done,
            () = shortened_flush => {
                self.abort.send(true).ok();
                timeout(SHUTDOWN_SLACK, task).await
            }
        };
        let failed = |why: &str| delivery::Outcome {
            undelivered: spool.pending(),
            last_error: Some(why.to_owned()),
        };
        Some(match done {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => failed("delivery failed"),
            Err(_) => failed("delivery does not end"),
        })
    }
}
