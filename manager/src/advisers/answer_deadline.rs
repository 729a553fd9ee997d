//! PURE: the deadlines of a program that owes an answer. At the first one the user is told; at the second one the
//! program is taken for dead. Time comes in as a value.

use std::time::Duration;

use tokio::time::Instant;

/// The latest moment at which a user is told that no answer comes.
const SLOW: Duration = Duration::from_mins(1);

/// The next action on a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SilenceAction {
    Nothing,
    /// The user is told, once for each answer that does not come.
    Tell,
    /// The program is taken for dead.
    End,
}

/// The state of a program's silence.
#[derive(Debug)]
pub(super) struct SilenceTimer {
    limit: Duration,
    /// Since when an answer is awaited: since the first question that is open, or the last answer.
    owed_since: Option<Instant>,
    /// The last word of any kind. A program that speaks is not dead, whatever it owes.
    last_word: Instant,
    told: bool,
}

impl SilenceTimer {
    pub(super) fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, owed_since: None, last_word: now, told: false }
    }

    /// Returns the time after which the user is told.
    pub(super) fn slow(&self) -> Duration {
        SLOW.min(self.limit / 2)
    }

    /// So many answers are owed now; `answered`: one has come since this was last said.
    pub(super) fn owes(&mut self, owed: usize, answered: bool, now: Instant) {
        if owed == 0 {
            self.owed_since = None;
        } else if answered || self.owed_since.is_none() {
            self.owed_since = Some(now);
        }
        self.told &= owed > 0 && !answered;
    }

    /// The program has said something.
    pub(super) fn heard(&mut self, now: Instant) {
        self.last_word = now;
    }

    /// For how long nothing was said that is awaited.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        self.owed_since.map_or(Duration::ZERO, |since| now - since.max(self.last_word))
    }

    /// Returns whether the user was told, and nothing has come since.
    pub(super) fn hangs(&self) -> bool {
        self.told
    }

    /// Returns the next action. A program that is not `ready` has a limit of its own.
    pub(super) fn look(&mut self, ready: bool, now: Instant) -> SilenceAction {
        let Some(since) = self.owed_since else { return SilenceAction::Nothing };
        if ready && self.silence(now) >= self.limit {
            return SilenceAction::End;
        }
        if now - since >= self.slow() && !self.told {
            self.told = true;
            return SilenceAction::Tell;
        }
        SilenceAction::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64, start: Instant) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_silent_program_is_reported_once_and_then_ended() {
        let start = Instant::now();
        let mut patience = SilenceTimer::new(Duration::from_mins(15), start);
        assert_eq!(
            patience.look(true, after(5_000, start)),
            SilenceAction::Nothing,
            "nothing is owed"
        );
        patience.owes(1, false, after(5_000, start));
        let table = [
            (59, SilenceAction::Nothing),
            (60, SilenceAction::Tell),
            (899, SilenceAction::Nothing),
            (900, SilenceAction::End),
        ];
        for (seconds, due) in table {
            assert_eq!(patience.look(true, after(5_000 + seconds, start)), due, "{seconds}");
        }
        assert!(patience.hangs());
    }

    #[test]
    fn another_question_buys_no_time_and_an_answer_does() {
        let start = Instant::now();
        let mut patience = SilenceTimer::new(Duration::from_secs(10), start);
        patience.owes(1, false, start);
        patience.owes(2, false, after(9, start));
        assert_eq!(
            patience.look(true, after(9, start)),
            SilenceAction::Tell,
            "half of a short limit"
        );
        patience.heard(after(9, start));
        patience.owes(1, true, after(9, start));
        assert!(!patience.hangs());
        assert_eq!(patience.look(true, after(13, start)), SilenceAction::Nothing);
        assert_eq!(patience.look(true, after(19, start)), SilenceAction::End);
        patience.owes(0, true, after(19, start));
        assert_eq!(patience.look(true, after(99, start)), SilenceAction::Nothing);
    }

    #[test]
    fn a_program_that_speaks_or_is_not_ready_is_reported_and_not_ended() {
        let start = Instant::now();
        let mut patience = SilenceTimer::new(Duration::from_secs(10), start);
        patience.owes(1, false, start);
        assert_eq!(patience.look(false, after(20, start)), SilenceAction::Tell);
        patience.heard(after(20, start));
        assert_eq!(patience.look(true, after(29, start)), SilenceAction::Nothing);
        assert_eq!(patience.look(true, after(30, start)), SilenceAction::End);
    }
}
