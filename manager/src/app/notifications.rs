//! Where those work who tell others of an experiment, while it runs and once it is done.

use std::path::PathBuf;
use std::sync::Arc;

use trial_protocol::ExperimentId;

use super::Finished;
use crate::clock::SystemClock;
use crate::config::ExperimentSpec;
use crate::notify::{self, NotifierConfig, OutboxWaker};
use crate::store::{self, Store};

/// Returns the configuration of the notifications. `None`: there are no notifications.
pub(super) fn config(
    id: &ExperimentId,
    spec: &ExperimentSpec,
    store: &Store,
    waker: &OutboxWaker,
    degraded: Option<PathBuf>,
) -> Option<NotifierConfig> {
    Some(NotifierConfig {
        spec: spec.notifications.clone()?,
        about: notify::event::About { id: id.clone(), name: spec.name.clone() },
        directory: spec.trial_code_directory.clone(),
        degraded,
        store: store.clone(),
        clock: Arc::new(SystemClock),
        waker: waker.clone(),
    })
}

impl Finished {
    /// Tells others what the manager that ran it could not tell any more.
    pub async fn tell_what_is_left(&self) -> Result<(), store::Error> {
        if let Some(config) =
            config(&self.id, &self.spec, &self.store, &OutboxWaker::default(), None)
        {
            let left = notify::tell_what_is_left(&config).await?;
            notify::warn_of_rest(left, &self.id);
        }
        Ok(())
    }
}
