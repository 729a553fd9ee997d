//! PURE: decides when to start, kill or abandon the probe.

use std::path::PathBuf;
use std::time::Duration;

use super::QUERY_COLUMNS;
use crate::util::backoff::DoublingBackoff;

/// The first and the longest pause before a probe is restarted.
const RESTART_PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_mins(5)];

/// The number of intervals without output after which the probe counts as hung in the driver.
const SILENT_INTERVALS: u32 = 3;

/// The minimum time until the probe counts as hung. On a machine with many GPUs, the first row takes seconds.
const MIN_SILENCE: Duration = Duration::from_secs(30);

/// Returns the time for which a reading counts as current, if one is taken every `interval`. After it, the reader of
/// the GPUs counts as hung.
pub(super) fn freshness(interval: Duration) -> Duration {
    MIN_SILENCE.max(interval.saturating_mul(SILENT_INTERVALS))
}

/// The program that reads the GPUs, and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeCommand {
    /// Name or path of `nvidia-smi`.
    pub program: PathBuf,
    /// The program's arguments.
    pub args: Vec<String>,
}

impl ProbeCommand {
    /// Returns the command of a probe that prints a row per GPU every `interval`, without end. It needs no standard
    /// input. Its standard error contains only error messages, so it shares a pipe with standard output.
    pub fn new(program: impl Into<PathBuf>, interval: Duration) -> Self {
        let args = vec![
            format!("--query-gpu={QUERY_COLUMNS}"),
            "--format=csv,noheader,nounits".to_owned(),
            // In milliseconds. The tool's minimum is 1.
            format!("--loop-ms={}", interval.as_millis().max(1)),
        ];
        Self { program: program.into(), args }
    }
}

/// An event of the probe. All times are from one monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeEvent {
    /// The probe was started.
    Started,
    /// The probe printed a reading.
    Reading,
    /// The probe ended with any exit code.
    Ended,
    /// The program does not exist or cannot be executed.
    Absent,
    /// Only the time has passed.
    Tick,
}

/// An action on the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeAction {
    /// Do nothing now. Call again at this time at the latest.
    Wait(Duration),
    /// Start the probe.
    Start,
    /// Kill the hung probe. (A process that hangs in the driver may not die. The agent does not wait for it, and starts
    /// no other probe while it lives.)
    Kill,
    /// Never start the probe again: this machine has no such tool.
    GiveUp,
}

/// The state of the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    max_silence: Duration,
    restarts: DoublingBackoff,
    state: ProbeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeState {
    /// The probe will be started at this time.
    Due(Duration),
    /// The probe is running. The time of its last output, or of its start.
    Running {
        last_reading: Duration,
    },
    /// The probe was killed and has not ended.
    Killed,
    Absent,
}

impl Probe {
    /// Creates a probe that is due at once and prints every `interval`.
    pub fn new(interval: Duration) -> Self {
        let max_silence = freshness(interval);
        let [first, longest] = RESTART_PAUSES;
        let restarts = DoublingBackoff::new(first, longest);
        Self { max_silence, restarts, state: ProbeState::Due(Duration::ZERO) }
    }

    /// Processes an event at `now`, and returns the next action.
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
            ProbeState::Running { last_reading } if last_reading + self.max_silence <= now => {
                self.state = ProbeState::Killed;
                ProbeAction::Kill
            }
            ProbeState::Running { last_reading } => {
                ProbeAction::Wait(last_reading + self.max_silence)
            }
            ProbeState::Killed => ProbeAction::Wait(now + self.max_silence),
            ProbeState::Absent => ProbeAction::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_follows_the_table() {
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
    fn the_command_queries_every_column() {
        let command = ProbeCommand::new("nvidia-smi", Duration::from_secs(5));
        assert_eq!(command.args[1..], ["--format=csv,noheader,nounits", "--loop-ms=5000"]);
        assert_eq!(command.args[0].split(',').count(), super::super::COLUMN_COUNT);
        assert!(!command.args[0].contains(' '));
    }
}
