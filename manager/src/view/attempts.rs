//! PURE: the attempts of all trials, each with its waiting time and its run time, from the store's record of their
//! steps.

use std::collections::HashMap;

use trial_protocol::AttemptId;

use super::Snapshot;
use crate::job_state::JobState;
use crate::store::{AttemptHost, AttemptStep};
use crate::util::ids;

/// The times of an attempt, in milliseconds since the Unix epoch, by the manager's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptSpan {
    /// The trial's position in the experiment.
    pub sequence: u64,
    /// The number of the attempt within its trial, from 1.
    pub number: u32,
    /// The time at which it was submitted.
    pub submitted_at_ms: i64,
    /// The time at which it started to run. `None` if it has not.
    pub began_at_ms: Option<i64>,
    /// The time at which it ended, or another attempt replaced it. `None` if it continues.
    pub ended_at_ms: Option<i64>,
    /// Its last state.
    pub state: JobState,
    /// `true` if another attempt replaced it.
    pub retried: bool,
    /// The machine or pod on which it ran. `None` if none is known.
    pub host: Option<String>,
    /// The latest reason for which it waited. `None` if there was none.
    pub waited_for: Option<String>,
}

/// Returns the attempts of a search, by trial and number.
pub fn spans(
    snapshot: &Snapshot,
    steps: &[AttemptStep],
    hosts: &[AttemptHost],
) -> Vec<AttemptSpan> {
    let sequences: HashMap<i64, u64> =
        snapshot.trials.iter().map(|trial| (trial.key, trial.sequence)).collect();
    let hosts = hosts_by_attempt(hosts);
    let mut attempts: HashMap<i64, Vec<(&str, AttemptSpan)>> = HashMap::new();
    for step in steps {
        let Some(sequence) = sequences.get(&step.trial) else { continue };
        let own = attempts.entry(step.trial).or_default();
        if own.last().is_none_or(|(name, _)| *name != step.attempt) {
            if let Some((_, before)) = own.last_mut() {
                before.ended_at_ms = before.ended_at_ms.or(Some(step.at_ms));
                before.retried = true;
            }
            let number = u32::try_from(own.len() + 1).unwrap_or(u32::MAX);
            let host = hosts.get(&(step.trial, step.attempt.as_str()));
            own.push((&step.attempt, new_span(*sequence, number, step, host.cloned())));
        }
        if let Some((_, span)) = own.last_mut() {
            apply_step(span, step);
        }
    }
    let mut spans: Vec<_> = attempts.into_values().flatten().map(|(_, span)| span).collect();
    spans.sort_by_key(|span| (span.sequence, span.number));
    spans
}

fn new_span(sequence: u64, number: u32, step: &AttemptStep, host: Option<String>) -> AttemptSpan {
    AttemptSpan {
        sequence,
        number,
        submitted_at_ms: step.at_ms,
        began_at_ms: None,
        ended_at_ms: None,
        state: step.state,
        retried: false,
        host,
        waited_for: None,
    }
}

/// Applies a step of an attempt to its span.
fn apply_step(span: &mut AttemptSpan, step: &AttemptStep) {
    // A step after the end only means that a report arrived late.
    if span.ended_at_ms.is_some() {
        return;
    }
    span.state = step.state;
    match step.state {
        JobState::Waiting => span.waited_for = step.message.clone().or(span.waited_for.take()),
        JobState::Running => span.began_at_ms = span.began_at_ms.or(Some(step.at_ms)),
        JobState::Lost | JobState::Unknown => {}
        JobState::Succeeded
        | JobState::Failed
        | JobState::UserCanceled
        | JobState::SysCanceled
        | JobState::EarlyStopped => span.ended_at_ms = Some(step.at_ms),
    }
}

/// Returns the machine of each attempt, by the name under which the manager submitted it.
pub(super) fn hosts_by_attempt(hosts: &[AttemptHost]) -> HashMap<(i64, &str), String> {
    let mut named = HashMap::new();
    for one in hosts {
        let Some(host) = &one.host else { continue };
        let submitted =
            AttemptId::new(&one.attempt).map(|attempt| ids::submitted_attempt(&attempt));
        let length = submitted.map_or(one.attempt.len(), |name| name.as_str().len());
        let name = one.attempt.get(..length).unwrap_or(&one.attempt);
        named.insert((one.trial, name), host.clone());
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(trial: i64, at_ms: i64, state: JobState, attempt: &str) -> AttemptStep {
        let message = (state == JobState::Waiting).then(|| format!("waits at {at_ms}"));
        AttemptStep { trial, at_ms, state, attempt: attempt.to_owned(), message }
    }

    #[test]
    fn a_retry_ends_the_attempt_before_it() {
        use JobState::{Failed, Running, Succeeded, Waiting};
        let trial = |key, sequence| super::super::trial::tests::summary(key, sequence);
        let mut snapshot = Snapshot::default();
        snapshot.trials.extend([trial(7, 0).into(), trial(9, 1).into()]);
        let steps = [
            step(7, 10, Waiting, "t-1"),
            step(7, 12, Running, "t-1"),
            step(9, 13, Waiting, "u-1"),
            step(7, 20, Waiting, "t-2"),
            step(7, 21, Waiting, "t-2"),
            step(7, 25, Running, "t-2"),
            step(7, 30, Succeeded, "t-2"),
            step(7, 31, Succeeded, "t-2"),
            step(8, 31, Failed, "gone-1"),
        ];
        let host = |attempt: &str, host: &str| AttemptHost {
            trial: 7,
            attempt: attempt.to_owned(),
            host: Some(host.to_owned()),
        };
        // A cluster restarted the pod of the second attempt.
        let hosts = [host("t-1", "a"), host("t-2_0_1", "b")];
        let found: Vec<_> = spans(&snapshot, &steps, &hosts)
            .into_iter()
            .map(|one| {
                let times = (one.submitted_at_ms, one.began_at_ms, one.ended_at_ms);
                (one.sequence, one.number, times, one.retried, one.host, one.waited_for)
            })
            .collect();
        let text = |text: &str| Some(text.to_owned());
        let expected = [
            (0, 1, (10, Some(12), Some(20)), true, text("a"), text("waits at 10")),
            (0, 2, (20, Some(25), Some(30)), false, text("b"), text("waits at 21")),
            (1, 1, (13, None, None), false, None, text("waits at 13")),
        ];
        assert_eq!(found, expected);
    }
}
