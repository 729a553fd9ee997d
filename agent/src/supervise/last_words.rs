//! What is still taken in when the trial is over.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use trial_protocol::{Lane, Stream};

use super::{LAST_LOOK, LoopState, Supervisor};
use crate::output::{Outlet, PumpEvent};
use crate::spool::Dialect;
use crate::trial::LostGuard;
use crate::verdict::{Stop, StopBy};

/// The longest wait for the manager to say why it had the trial ended.
const REASON_WAIT: Duration = Duration::from_millis(500);

/// The interval of looks whether the manager has taken everything.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Supervisor {
    /// Reads to the end what the pumps cannot: the reader of our output may stand still.
    pub(super) fn read_out(&self) {
        for outlet in &self.outlets {
            if let Err(source) = outlet.read_out() {
                tracing::warn!("the end of the output may be missing: {source}");
            }
        }
    }

    /// Sees to what becomes of the trial if we are killed.
    pub(super) fn guard(&mut self) {
        let Self { trial, outlets, capture, .. } = self;
        let output = |stream| outlets.iter().find_map(|outlet: &Outlet| outlet.source_of(stream));
        trial.guard(|| [Stream::Stdout, Stream::Stderr].map(output), capture.dir());
    }

    /// Starts another guard in the place of one that has ended, and tells that.
    pub(super) fn replace_guard(&mut self) {
        let Some(LostGuard { status, replaced }) = self.trial.lost_guard() else { return };
        let what = if replaced {
            self.guard();
            "another was started"
        } else {
            "it is not replaced: if trialkeeper is killed, processes of the trial may live on"
        };
        let message = format!(
            "the process that sees to the trial's end if trialkeeper is killed has ended ({status}); {what}"
        );
        tracing::warn!("{message}");
        self.recorder.note("guard-lost", message);
    }

    /// Ships what the pumps have not: a stream may still be held open by another process.
    pub(super) fn end_logs(&self) {
        self.shippers.iter().for_each(|shipper| shipper.flush(true));
        let shed: u64 = self.shippers.iter().map(|shipper| shipper.shed_bytes()).sum();
        if shed > 0 {
            let message =
                format!("{shed} bytes of log were more than the rate allows, and not sent");
            self.recorder.note("log-shed", message);
        }
    }

    pub(super) async fn hear_last_look(&mut self) {
        let bound = Instant::now() + LAST_LOOK;
        loop {
            match timeout_at(bound, self.heard.recv()).await {
                Ok(Some(PumpEvent::FilesRead) | None) => return,
                Ok(Some(heard)) => self.hear(heard),
                Err(_) => {
                    let message = "files of metrics do not answer; their ends were not read";
                    self.recorder.note("metric-files", message.to_owned());
                    return;
                }
            }
        }
    }

    /// Returns whether a manager is there that could say why it ends the trial.
    pub(super) fn is_managed(&self) -> bool {
        self.status.counts.is_some() && self.status.sender.dialect == Dialect::Native
    }

    /// A manager stops a trial on two ways, and the signal may have been faster than the reason. That comes with
    /// the answer to the next batch of facts: at the latest to the one with the note about the signal.
    pub(super) async fn hear_the_reason(&mut self, memory: &mut LoopState) {
        let bound = Instant::now() + REASON_WAIT;
        while matches!(memory.ending.stop, Some(Stop { by: StopBy::Signal(15), .. }))
            && self.is_managed()
        {
            let over = self.status.spool.pending_in(Lane::Facts) == 0 || Instant::now() >= bound;
            let until = if over { Instant::now() } else { Instant::now() + LOOK_EVERY };
            match timeout_at(until, self.directives.recv()).await {
                Ok(Some(directive)) => drop(self.ordered(directive, memory)),
                Ok(None) => return,
                Err(_) if over => return,
                Err(_) => {}
            }
        }
    }
}
