//! What the loop remembers of who asked for the end, and what that means when it has come.

use trial_protocol::SignalSender;

use super::{Ending, LoopState, Supervisor, trial_exit};
use crate::supervise::phase::Phase;
use crate::trial::signals::Sender;
use crate::trial::tree;
use crate::verdict::{Stop, StopBy};

impl LoopState {
    /// Remembers who asked. The manager's reason says more than a signal that comes with it.
    pub(super) fn asked(&mut self, by: StopBy) {
        match (&mut self.ending.stop, by) {
            (Some(stop), StopBy::Manager(_)) if matches!(stop.by, StopBy::Signal(_)) => {
                stop.by = by;
            }
            (Some(_), _) => {}
            (None, _) => self.ending.stop = Some(Stop { by, signal: None }),
        }
    }

    /// Remembers who sent the latest signal, until one has asked for the end: that one counts.
    pub(super) fn heard_from(&mut self, sender: Sender) {
        if self.ending.stop.is_none() {
            let name = (sender.pid > 0).then(|| tree::name(sender.pid)).flatten();
            let Sender { pid, uid, kernel } = sender;
            self.ending.sender = Some(SignalSender { pid, uid, name, kernel });
        }
    }

    pub(super) fn conclude(mut self, supervisor: &Supervisor, phase: &Phase) -> Ending {
        self.ending.terminated = self.terminated > 0;
        // A signal that we passed on is a request for the end only if the trial died of it.
        if let (None, Some(signal), Some(status)) =
            (self.ending.stop, self.forwarded, self.ending.status)
            && trial_exit(status).shell_code() == 128_u8.saturating_add(signal)
        {
            self.ending.stop = Some(Stop { by: StopBy::Signal(signal), signal: Some(signal) });
        }
        if !matches!(self.ending.stop, Some(Stop { by: StopBy::Signal(_), .. })) {
            self.ending.sender = None;
        }
        let leftovers = &mut self.ending.leftovers;
        // Where no process was left, none is there.
        if matches!(phase, Phase::Done(None)) || !leftovers.is_empty() {
            leftovers.still_there(&supervisor.trial.tree());
        }
        self.ending
    }
}
