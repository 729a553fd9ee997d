//! The end of a run: the verdict to the disk and to the manager, and what is left to either.

use std::path::PathBuf;
use std::process::ExitCode;

use tokio::time::sleep;
use trial_protocol::ReportBody;

use super::delivery::DeliveryShutdown;
use super::{DISK_WAIT, TAKEN_HURRIED, TAKEN_WAIT, summary};
use crate::output::capture::Capture;
use crate::output::{Outlet, passed_on};
use crate::run::settings::Settings;
use crate::spool::Spool;
use crate::supervise::recorder::Recorder;
use crate::trial::hand_over::disarm;
use crate::trial::signals::Signals;
use crate::verdict::{Observations, conclude};

/// The parts that outlive the trial.
pub(super) struct Finish {
    pub(super) settings: Settings,
    pub(super) dir: Option<PathBuf>,
    pub(super) spool_dir: Option<PathBuf>,
    pub(super) spool: Spool,
    pub(super) capture: Capture,
    pub(super) outlets: Vec<Outlet>,
    pub(super) last: DeliveryShutdown,
}

impl Finish {
    /// Concludes, writes and delivers, and returns the exit code. `hurried`: a stop was requested already.
    pub(super) async fn finish(
        self,
        observed: &Observations,
        recorder: Recorder,
        mut signals: Signals,
        hurried: bool,
    ) -> ExitCode {
        let Self { settings, dir, spool_dir, spool, capture, outlets, last } = self;
        let verdict = conclude(observed);
        let code = summary::exit_code(&observed.end, &verdict, settings.exit_code_map);
        disarm(code);

        capture.verdict(&verdict);
        if capture.shed_bytes() > 0 {
            let message = format!("{} bytes of output are not in the files", capture.shed_bytes());
            recorder.note("output-shed", message);
        }
        recorder.report(ReportBody::Ended(Box::new(verdict.clone())));
        let mut ended_early = hurried;
        let hurry = async {
            if !hurried {
                signals.stop_requested().await;
                ended_early = true;
            }
        };
        let delivered = last.finish(&spool, settings.flush, hurry);
        let (outcome, kept) = tokio::join!(delivered, capture.finish(DISK_WAIT));
        let safe = spool.close(DISK_WAIT).await;
        match (kept.error, kept.shed_bytes) {
            (None, _) => {}
            (Some(error), 0) => tracing::warn!("{error}"),
            (Some(error), shed) => {
                tracing::warn!("{error}; {shed} bytes of output are not in the files");
            }
        }
        see_taken(&outlets, &mut signals, ended_early).await;
        let left = outcome
            .map(|outcome| summary::Undelivered { outcome, spool: spool_dir.filter(|_| safe) });
        summary::log_summary(&settings, &verdict, recorder.tally(), dir.as_deref(), left.as_ref());
        ExitCode::from(code)
    }
}

/// Waits until the reader of the trial's output has taken all of it: what we have read the trial has written, and it
/// might have ended as well without us. Not for ever, and not once a stop is requested.
async fn see_taken(outlets: &[Outlet], signals: &mut Signals, hurried: bool) {
    let hurry = async {
        if !hurried {
            signals.stop_requested().await;
        }
        sleep(TAKEN_HURRIED).await;
    };
    tokio::select! {
        biased;
        () = passed_on(outlets) => return,
        () = hurry => {}
        () = sleep(TAKEN_WAIT) => {}
    }
    let held: usize = outlets.iter().map(Outlet::held).sum();
    tracing::warn!("the last {held} bytes of output were not taken by their reader");
}
