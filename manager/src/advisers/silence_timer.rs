//! PURE: the deadlines of a program that owes an answer. At the first deadline, the user is notified. At the second,
//! the program is considered dead. Callers pass the time as a value.

use std::time::Duration;

use tokio::time::Instant;

/// The maximum time until the user is notified that an answer is missing.
const SLOW_ANSWER_TIME: Duration = Duration::from_mins(1);

/// The next action for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SilenceAction {
    Nothing,
    /// Notify the user, once for each missing answer.
    Notify,
    /// Treat the program as dead.
    End,
}

/// The state of a program that may owe answers.
#[derive(Debug)]
pub(super) struct SilenceTimer {
    limit: Duration,
    /// The start of the wait for an answer: the time of the first open request, or of the last answer.
    owed_since: Option<Instant>,
    /// The time of the last message of any kind. A program that sends messages is not dead, even if it owes an
    /// answer.
    last_message: Instant,
    notified: bool,
}

impl SilenceTimer {
    pub(super) fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, owed_since: None, last_message: now, notified: false }
    }

    /// Returns the time after which the user is notified.
    pub(super) fn notice_delay(&self) -> Duration {
        SLOW_ANSWER_TIME.min(self.limit / 2)
    }

    /// Updates the number of missing answers. `answered` means that an answer arrived since the last update.
    pub(super) fn set_missing(&mut self, owed: usize, answered: bool, now: Instant) {
        if owed == 0 {
            self.owed_since = None;
        } else if answered || self.owed_since.is_none() {
            self.owed_since = Some(now);
        }
        self.notified &= owed > 0 && !answered;
    }

    /// Records that the program has sent a message.
    pub(super) fn record_message(&mut self, now: Instant) {
        self.last_message = now;
    }

    /// Returns the time for which an expected message has been missing.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        self.owed_since.map_or(Duration::ZERO, |since| now - since.max(self.last_message))
    }

    /// Returns whether the user was notified and no answer has arrived since.
    pub(super) fn is_overdue(&self) -> bool {
        self.notified
    }

    /// Returns the next action. A program that is not `ready` has a separate time limit.
    pub(super) fn next_action(&mut self, ready: bool, now: Instant) -> SilenceAction {
        let Some(since) = self.owed_since else { return SilenceAction::Nothing };
        if ready && self.silence(now) >= self.limit {
            return SilenceAction::End;
        }
        if now - since >= self.notice_delay() && !self.notified {
            self.notified = true;
            return SilenceAction::Notify;
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
        let mut timer = SilenceTimer::new(Duration::from_mins(15), start);
        assert_eq!(
            timer.next_action(true, after(5_000, start)),
            SilenceAction::Nothing,
            "no answer is missing"
        );
        timer.set_missing(1, false, after(5_000, start));
        let table = [
            (59, SilenceAction::Nothing),
            (60, SilenceAction::Notify),
            (899, SilenceAction::Nothing),
            (900, SilenceAction::End),
        ];
        for (seconds, due) in table {
            assert_eq!(timer.next_action(true, after(5_000 + seconds, start)), due, "{seconds}");
        }
        assert!(timer.is_overdue());
    }

    #[test]
    fn an_answer_extends_the_deadline_and_another_request_does_not() {
        let start = Instant::now();
        let mut timer = SilenceTimer::new(Duration::from_secs(10), start);
        timer.set_missing(1, false, start);
        timer.set_missing(2, false, after(9, start));
        assert_eq!(
            timer.next_action(true, after(9, start)),
            SilenceAction::Notify,
            "at half of a short limit"
        );
        timer.record_message(after(9, start));
        timer.set_missing(1, true, after(9, start));
        assert!(!timer.is_overdue());
        assert_eq!(timer.next_action(true, after(13, start)), SilenceAction::Nothing);
        assert_eq!(timer.next_action(true, after(19, start)), SilenceAction::End);
        timer.set_missing(0, true, after(19, start));
        assert_eq!(timer.next_action(true, after(99, start)), SilenceAction::Nothing);
    }

    #[test]
    fn a_program_that_sends_messages_or_is_not_ready_is_reported_and_not_ended() {
        let start = Instant::now();
        let mut timer = SilenceTimer::new(Duration::from_secs(10), start);
        timer.set_missing(1, false, start);
        assert_eq!(timer.next_action(false, after(20, start)), SilenceAction::Notify);
        timer.record_message(after(20, start));
        assert_eq!(timer.next_action(true, after(29, start)), SilenceAction::Nothing);
        assert_eq!(timer.next_action(true, after(30, start)), SilenceAction::End);
    }
}
