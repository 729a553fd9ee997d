//! The end of a run: the verdict and the remaining reports are written to disk and delivered to the manager.

use std::path::PathBuf;
use std::process::ExitCode;

use tokio::time::sleep;
use trial_protocol::ReportBody;

use super::delivery::DeliveryShutdown;
use super::{DISK_WAIT, READER_WAIT, STOPPED_READER_WAIT, summary};
use crate::output::capture::Capture;
use crate::output::{StreamForwarder, wait_until_forwarded};
use crate::run::settings::Settings;
use crate::spool::Spool;
use crate::supervise::recorder::Recorder;
use crate::trial::end_job;
use crate::trial::reexec::disarm;
use crate::trial::signals::Signals;
use crate::verdict::{Observations, conclude};

/// The outputs of a run, which outlive the trial: its folder, its spool and its delivery.
pub(super) struct RunFinisher {
    pub(super) settings: Settings,
    pub(super) dir: Option<PathBuf>,
    pub(super) spool_dir: Option<PathBuf>,
    pub(super) spool: Spool,
    pub(super) capture: Capture,
    pub(super) forwarders: Vec<StreamForwarder>,
    pub(super) shutdown: DeliveryShutdown,
}

/// The observations of an ended trial, and the parts of the supervision that are still needed.
pub(super) struct EndedRun {
    pub(super) observations: Observations,
    pub(super) recorder: Recorder,
    pub(super) signals: Signals,
    /// `true` if the agent has already received SIGTERM.
    pub(super) stop_signalled: bool,
    /// The signal of a key that the user pressed at the trial's terminal, if it ended the trial.
    pub(super) typed_signal: Option<u8>,
}

impl RunFinisher {
    /// Concludes the run, writes and delivers its results, and returns the exit code.
    pub(super) async fn finish(self, ended: EndedRun) -> ExitCode {
        let Self { settings, dir, spool_dir, spool, capture, forwarders, shutdown } = self;
        let EndedRun { observations, recorder, mut signals, mut stop_signalled, typed_signal } =
            ended;
        let verdict = conclude(&observations);
        let code = summary::exit_code(&observations.end, &verdict, settings.exit_code_map);
        disarm(code);

        capture.queue_verdict(&verdict);
        if capture.shed_bytes() > 0 {
            let message = format!("{} bytes of output are not in the files", capture.shed_bytes());
            recorder.note("output-shed", message);
        }
        recorder.report(ReportBody::Ended(Box::new(verdict.clone())));
        let stop_signal = async {
            if !stop_signalled {
                signals.wait_for_stop_signal().await;
                stop_signalled = true;
            }
        };
        let delivered = shutdown.finish(&spool, settings.flush, stop_signal);
        let (outcome, kept) = tokio::join!(delivered, capture.finish(DISK_WAIT));
        let safe = spool.close(DISK_WAIT).await;
        match (kept.error, kept.shed_bytes) {
            (None, _) => {}
            (Some(error), 0) => tracing::warn!("{error}"),
            (Some(error), shed) => {
                tracing::warn!("{error}; {shed} bytes of output are not in the files");
            }
        }
        wait_for_readers(&forwarders, &mut signals, stop_signalled).await;
        let left = outcome
            .map(|outcome| summary::Undelivered { outcome, spool: spool_dir.filter(|_| safe) });
        summary::log_summary(
            &settings,
            &verdict,
            recorder.metric_summary(),
            dir.as_deref(),
            left.as_ref(),
        );
        if let Some(signal) = typed_signal {
            end_job(signal);
        }
        ExitCode::from(code)
    }
}

/// Waits until the reader of the trial's output has read all of it, as it could without the agent. The wait is limited,
/// and shorter if a stop is requested.
async fn wait_for_readers(
    forwarders: &[StreamForwarder],
    signals: &mut Signals,
    stop_signalled: bool,
) {
    let stop = async {
        if !stop_signalled {
            signals.wait_for_stop_signal().await;
        }
        sleep(STOPPED_READER_WAIT).await;
    };
    tokio::select! {
        biased;
        () = wait_until_forwarded(forwarders) => return,
        () = stop => {}
        () = sleep(READER_WAIT) => {}
    }
    let pending: usize = forwarders.iter().map(StreamForwarder::pending_bytes).sum();
    tracing::warn!("{pending} bytes of output were not read by the receiver");
}
