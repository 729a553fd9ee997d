//! The task that delivers, where there is a manager.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use trial_protocol::Directive;

use crate::deliver::{self, Counts};
use crate::settings::Settings;
use crate::spool::Spool;

/// The task that delivers, where there is a manager.
pub(super) struct Delivery {
    pub(super) directives: mpsc::Receiver<Directive>,
    pub(super) ended: watch::Sender<bool>,
    pub(super) task: Option<JoinHandle<deliver::Outcome>>,
    /// `None` without a manager.
    pub(super) counts: Option<Arc<Counts>>,
}

impl Delivery {
    pub(super) fn start(settings: &Settings, spool: &Spool) -> Self {
        let (order, directives) = mpsc::channel(16);
        let (ended, told) = watch::channel(false);
        let counts = settings.manager.is_some().then(Arc::<Counts>::default);
        let task = settings.manager.clone().map(|manager| {
            let settings = deliver::Settings {
                manager,
                token_file: settings.token_file.clone(),
                ca_file: settings.ca_file.clone(),
                sender: settings.sender.clone(),
                heartbeat: settings.heartbeat,
                flush: settings.flush,
                counts: counts.clone().unwrap_or_default(),
            };
            // A task, so that a panic in it is not ours. Joined in `finish`.
            tokio::spawn(deliver::run(settings, spool.clone(), order, told))
        });
        Self { directives, ended, task, counts }
    }

    /// Tells it that nothing more will come, and waits until it is done or out of time.
    pub(super) async fn finish(
        task: Option<JoinHandle<deliver::Outcome>>,
        ended: watch::Sender<bool>,
        flush: Duration,
    ) -> Option<deliver::Outcome> {
        let task = task?;
        ended.send(true).ok();
        let lost =
            |why: &str| deliver::Outcome { undelivered: 0, last_error: Some(why.to_owned()) };
        // It watches the time itself; ours is for the case that it does not.
        Some(match timeout(flush + Duration::from_secs(1), task).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => lost("delivery failed; reports wait in the spool"),
            Err(_) => lost("delivery does not end; reports wait in the spool"),
        })
    }
}
