//! PURE: when to start the probe, when to end it, when to give it up.

use std::path::PathBuf;
use std::time::Duration;

use super::QUERY;
use crate::util::backoff::DoublingBackoff;

/// First and longest pause before a probe that ended is started again.
const RESTART_PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_mins(5)];

/// A probe that says nothing for this many intervals hangs in the driver.
const SILENT_INTERVALS: u32 = 3;

/// But it always has this long: on a machine with many GPUs the first row takes seconds.
const SILENT_LEAST: Duration = Duration::from_secs(30);

/// Returns how long a reading counts as the present one, where one is taken every `interval`: what reads the GPUs hangs
/// after that.
pub(super) fn fresh_for(interval: Duration) -> Duration {
    SILENT_LEAST.max(interval.saturating_mul(SILENT_INTERVALS))
}

/// The program that reads the GPUs, and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeCommand {
    /// Name or path of `nvidia-smi`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

impl ProbeCommand {
    /// A probe that prints a row per GPU every `interval`, for ever. It needs no standard input; its
    /// standard error says the same as its output where there is an error, and belongs in one pipe with it.
    pub fn new(program: impl Into<PathBuf>, interval: Duration) -> Self {
        let args = vec![
            format!("--query-gpu={QUERY}"),
            "--format=csv,noheader,nounits".to_owned(),
            // Milliseconds; the tool admits no less than 1.
            format!("--loop-ms={}", interval.as_millis().max(1)),
        ];
        Self { program: program.into(), args }
    }
}

/// An event of the probe. Times are of one monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeEvent {
    /// The probe was started.
    Started,
    /// The probe printed a reading.
    Reading,
    /// The probe ended, whatever its exit code.
    Ended,
    /// There is no such program, or it cannot be executed.
    Absent,
    /// Time has passed.
    Tick,
}

/// An action on the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeAction {
    /// Nothing now; ask again at this time at the latest.
    Wait(Duration),
    /// Start it.
    Start,
    /// Kill it: it hangs. (A process that hangs in the driver may not die; it is not waited for, and no
    /// other is started while it lives.)
    Kill,
    /// Never again: this machine has no such tool.
    GiveUp,
}

/// The life of the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    silence: Duration,
    restarts: DoublingBackoff,
    state: ProbeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeState {
    /// To be started at this time.
    Due(Duration),
    /// The probe runs and last spoke (or was started) at this time.
    Running {
        last_reading: Duration,
    },
    /// The probe was killed and has not ended.
    Killed,
    Absent,
}

impl Probe {
    /// A probe that is due at once and prints every `interval`.
    pub fn new(interval: Duration) -> Self {
        let silence = fresh_for(interval);
        let [first, longest] = RESTART_PAUSES;
        let restarts = DoublingBackoff::new(first, longest);
        Self { silence, restarts, state: ProbeState::Due(Duration::ZERO) }
    }

    /// Takes what happened at `now` and says what to do.
    pub fn step(&mut self, event: ProbeEvent, now: Duration) -> ProbeAction {
        self.state = match (self.state, event) {
            (ProbeState::Absent, _) | (_, ProbeEvent::Absent) => ProbeState::Absent,
            (_, ProbeEvent::Started) => ProbeState::Running { last_reading: now },
            (ProbeState::Running { .. }, ProbeEvent::Reading) => {
                self.restarts.reset();
                ProbeState::Running { last_reading: now }
            }
            (ProbeState::Running { .. } | ProbeState::Killed, ProbeEvent::Ended) => {
                ProbeState::Due(now + self.restarts.next_pause())
            }
            (state, ProbeEvent::Reading | ProbeEvent::Ended | ProbeEvent::Tick) => state,
        };
        match self.state {
            ProbeState::Due(due) if due <= now => ProbeAction::Start,
            ProbeState::Due(due) => ProbeAction::Wait(due),
            ProbeState::Running { last_reading } if last_reading + self.silence <= now => {
                self.state = ProbeState::Killed;
                ProbeAction::Kill
            }
            ProbeState::Running { last_reading } => ProbeAction::Wait(last_reading + self.silence),
            ProbeState::Killed => ProbeAction::Wait(now + self.silence),
            ProbeState::Absent => ProbeAction::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_lives_as_the_table_says() {
        use ProbeAction::{GiveUp, Kill, Start, Wait};
        use ProbeEvent::{Absent, Ended, Reading, Started, Tick};
        let at = Duration::from_secs;
        #[rustfmt::skip]
        let story = [
            // at    event     action
            (0,      Tick,     Start),
            (0,      Started,  Wait(at(30))),
            (5,      Reading,  Wait(at(35))),
            (10,     Reading,  Wait(at(40))),
            (20,     Ended,    Wait(at(25))),
            (25,     Tick,     Start),
            (25,     Started,  Wait(at(55))),
            (26,     Ended,    Wait(at(36))),
            (36,     Tick,     Start),
            (36,     Started,  Wait(at(66))),
            (66,     Tick,     Kill),
            (67,     Tick,     Wait(at(97))),
            (67,     Reading,  Wait(at(97))),
            (70,     Ended,    Wait(at(90))),
            (90,     Tick,     Start),
            (90,     Started,  Wait(at(120))),
            (91,     Reading,  Wait(at(121))),
            (92,     Ended,    Wait(at(97))),
            (97,     Tick,     Start),
            (97,     Absent,   GiveUp),
            (98,     Tick,     GiveUp),
        ];
        let mut probe = Probe::new(at(5));
        for (second, event, action) in story {
            assert_eq!(probe.step(event, at(second)), action, "{event:?} at {second}");
        }
    }

    #[test]
    fn pauses_grow_to_five_minutes() {
        let mut probe = Probe::new(Duration::from_secs(5));
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            probe.step(ProbeEvent::Started, now);
            let ProbeAction::Wait(due) = probe.step(ProbeEvent::Ended, now) else { panic!() };
            pauses.push(due.saturating_sub(now).as_secs());
            now = due;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn the_command_asks_for_every_column() {
        let command = ProbeCommand::new("nvidia-smi", Duration::from_secs(5));
        assert_eq!(command.args[1..], ["--format=csv,noheader,nounits", "--loop-ms=5000"]);
        assert_eq!(command.args[0].split(',').count(), super::super::COLUMNS);
        assert!(!command.args[0].contains(' '));
    }
}
