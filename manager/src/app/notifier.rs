//! The delivery of notifications, during an experiment and after its end.

use std::path::PathBuf;
use std::sync::Arc;

use trial_protocol::ExperimentId;

use super::FinishedExperiment;
use crate::config::ExperimentSpec;
use crate::notifications::{self, NotifierConfig, OutboxWaker};
use crate::store::{self, Store};
use crate::util::clock::SystemClock;

/// Returns the configuration of the notifications. `None` if none are configured.
pub(super) fn config(
    id: &ExperimentId,
    spec: &ExperimentSpec,
    store: &Store,
    waker: &OutboxWaker,
    degraded: Option<PathBuf>,
) -> Option<NotifierConfig> {
    Some(NotifierConfig {
        spec: spec.notifications.clone()?,
        about: notifications::event::NotificationSubject {
            id: id.clone(),
            name: spec.name.clone(),
        },
        directory: spec.trial_code_directory.clone(),
        degraded,
        store: store.clone(),
        clock: Arc::new(SystemClock),
        waker: waker.clone(),
    })
}

/// Sends the notifications that the experiment's manager could not send.
pub async fn send_remaining(finished: &FinishedExperiment) -> Result<(), store::Error> {
    let FinishedExperiment { id, spec, store, .. } = finished;
    if let Some(config) = config(id, spec, store, &OutboxWaker::default(), None) {
        let left = notifications::send_remaining(&config).await?;
        notifications::warn_of_unsent(left, id);
    }
    Ok(())
}
