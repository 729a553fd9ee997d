//! The state of the supervisor's loop besides the phase: the timers and the stop request.

use nix::sys::signal::Signal;
use tokio::time::Instant;
use trial_protocol::SignalSender;

use super::{Ending, WATCH_DELAY, trial_exit};
use crate::output::metric_file::MetricFileWatcher;
use crate::supervise::phase::Phase;
use crate::trial::signals::{SignalSource, signal_byte};
use crate::trial::{Trial, tree};
use crate::verdict::{Stop, StopBy};

/// The state of the loop besides the phase.
pub(super) struct LoopState {
    pub(super) started: Instant,
    pub(super) ending: Ending,
    /// The number of SIGTERM signals that the agent has received.
    pub(super) stop_signals: u32,
    /// The time of the first of them.
    pub(super) stop_signalled_at: Option<Instant>,
    /// The last signal forwarded to the trial.
    pub(super) forwarded_signal: Option<u8>,
    /// The end of the wait for the agent's own SIGTERM, after SIGTERM from another sender ended the trial.
    pub(super) shared_term_until: Option<Instant>,
    pub(super) metric_file_watcher: Option<MetricFileWatcher>,
    pub(super) repeat_kill_at: Option<Instant>,
    pub(super) watch_at: Option<Instant>,
    pub(super) provisional_at: Option<Instant>,
    pub(super) sample_at: Option<Instant>,
    pub(super) log_at: Option<Instant>,
    pub(super) read_rest_at: Option<Instant>,
}

impl LoopState {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            started: now,
            ending: Ending::default(),
            stop_signals: 0,
            stop_signalled_at: None,
            forwarded_signal: None,
            shared_term_until: None,
            metric_file_watcher: None,
            repeat_kill_at: None,
            watch_at: Some(now + WATCH_DELAY),
            provisional_at: None,
            sample_at: None,
            log_at: None,
            read_rest_at: None,
        }
    }

    /// Records the party that requested the stop. The manager's reason replaces a signal, because both may belong to
    /// the same stop.
    pub(super) fn record_stop(&mut self, by: StopBy) {
        match (&mut self.ending.stop, by) {
            (Some(stop), StopBy::Manager(_)) if matches!(stop.by, StopBy::Signal(_)) => {
                stop.by = by;
            }
            (Some(_), _) => {}
            (None, _) => self.ending.stop = Some(Stop { by, signal: None }),
        }
    }

    /// Records a SIGTERM to the agent. One that arrives right after SIGTERM ended the trial was sent to both.
    pub(super) fn record_sigterm(&mut self) {
        let term = signal_byte(Signal::SIGTERM);
        let first = self.ending.stop.is_none();
        self.record_stop(StopBy::Signal(term));
        let shared = self.shared_term_until.is_some_and(|until| Instant::now() <= until);
        if let Some(stop) = self.ending.stop.as_mut().filter(|_| first && shared) {
            stop.signal = Some(term);
        }
    }

    /// Records the sender of the latest signal, until a stop was requested.
    pub(super) fn record_sender(&mut self, sender: SignalSource) {
        if self.ending.stop.is_none() {
            let name = (sender.pid > 0).then(|| tree::process_name(sender.pid)).flatten();
            let SignalSource { pid, uid, kernel } = sender;
            self.ending.sender = Some(SignalSender { pid, uid, name, kernel });
        }
    }

    /// Returns the end of the trial with its circumstances.
    pub(super) fn conclude(mut self, trial: &Trial, phase: &Phase) -> Ending {
        self.ending.stop_signalled = self.stop_signals > 0;
        // A forwarded signal counts as a stop request only if it ended the trial.
        if let (None, Some(signal), Some(status)) =
            (self.ending.stop, self.forwarded_signal, self.ending.status)
            && trial_exit(status).shell_code() == 128_u8.saturating_add(signal)
        {
            self.ending.stop = Some(Stop { by: StopBy::Signal(signal), signal: Some(signal) });
        }
        if !matches!(self.ending.stop, Some(Stop { by: StopBy::Signal(_), .. })) {
            self.ending.sender = None;
        }
        let leftovers = &mut self.ending.leftovers;
        // If there was no leftover process, none can have survived.
        if matches!(phase, Phase::Done(None)) || !leftovers.is_empty() {
            leftovers.record_survivors(&trial.tree());
        }
        self.ending
    }
}
