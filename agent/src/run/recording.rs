//! The parts that record a trial's reports: the spool, and the recorder that writes to it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::SYNC_INTERVAL;
use crate::run::settings::{Identity, Settings};
use crate::spool::{self, OpenedSpool, Spool, SpoolLock};
use crate::supervise::recorder::{NniRecorder, Recorder};
use crate::util::clock::Clock;

/// Opens the spool, and logs its warnings.
pub(super) fn open_spool(
    settings: &Settings,
    dir: Option<PathBuf>,
    spool_lock: Option<SpoolLock>,
    now_ms: i64,
) -> Spool {
    let spool_lock =
        spool_lock.unwrap_or_else(|| SpoolLock::acquire(dir.as_deref(), &settings.attempt));
    let options = spool::Options {
        dir,
        attempt: settings.attempt.clone(),
        sender: (settings.identity == Identity::Trial).then(|| settings.sender.clone()),
        limit_bytes: settings.spool_bytes,
        // Without a manager, nothing relies on a synced spool, and fsync would take most of a short trial's time.
        sync_interval: settings.manager.as_ref().map_or(Duration::MAX, |_| SYNC_INTERVAL),
        now_ms,
    };
    let OpenedSpool { spool, warnings } = Spool::open_locked(options, spool_lock);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    spool
}

/// Returns the recorder of a trial's metrics and facts. It also writes NNI's messages if an NNI manager started the
/// agent.
pub(super) fn create_recorder(
    settings: &Settings,
    spool: &Spool,
    clock: Arc<dyn Clock>,
    parameter_id: Value,
) -> Recorder {
    let secrets = settings.observe.secrets.clone();
    let prints_metrics = settings.verbose >= 1;
    let mut recorder =
        Recorder::new(&settings.collect, spool.clone(), clock, prints_metrics, secrets.clone());
    if !settings.pod.reports_metrics {
        recorder = recorder.without_metrics();
    }
    let Some(legacy) = &settings.legacy else { return recorder };
    let objective = settings.collect.objective.clone();
    let sender = settings.sender.clone();
    let mut nni = NniRecorder::new(spool.clone(), sender, parameter_id, objective, secrets);
    if let Some(version) = &legacy.manager_version {
        nni.compare_versions(version, settings.nni_version.as_deref());
    }
    recorder.for_nni(nni)
}
