//! PURE: the budget of an experiment: sufficient results, repeated failures and retries of trials. The budget counts,
//! and the state decides the consequences.

use std::collections::HashMap;

use trial_protocol::{Cause, Class, Direction, MetricValue, TrialJobId};

use crate::experiment::RESUME_REMEDY;
use crate::search::goals::is_better;

/// The number of successive attempts that hold the search if they end before their command starts. The number must also
/// exceed the concurrency. The cause may be an expired token, an agent that does not run in the image, or an
/// unreachable manager. Such a fault does not depend on the parameters, and would use up one trial after the other.
const MIN_UNSTARTED_ATTEMPTS: usize = 5;

/// The least number of first trials that must fail alike to hold a search by default. The number must also exceed
/// `concurrency`, because trials that start together count as a single observation.
const MIN_FIRST_FAILURES: usize = 5;

/// The failures that hold the search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FailureLimit {
    /// `maxConsecutiveFailures` is absent. The first trials hold the search if all of them fail alike before any trial
    /// has reported a metric.
    #[default]
    FirstTrials,
    /// `maxConsecutiveFailures: 0`. No failures hold the search.
    Unlimited,
    /// `maxConsecutiveFailures`: the number of successive failures of one class, at least 1.
    Consecutive(u32),
}

impl FailureLimit {
    /// Returns the limit in the experiment file.
    pub fn from_setting(max_consecutive_failures: Option<u32>) -> Self {
        match max_consecutive_failures {
            None => Self::FirstTrials,
            Some(0) => Self::Unlimited,
            Some(times) => Self::Consecutive(times),
        }
    }
}

/// A trial's failure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure<'a> {
    pub(super) class: Class,
    /// The cause in the agent's verdict. `None`: the agent left no verdict.
    pub(super) cause: Option<Cause>,
    /// The exit code in the form that a shell shows, if known.
    pub(super) exit_code: Option<i32>,
    /// The reason, for the user.
    pub(super) why: &'a str,
}

impl Failure<'_> {
    /// Returns whether the command could not run at all. A shell exits with 127 if the program does not exist, and with
    /// 126 if it is not executable.
    fn is_command_unrunnable(&self) -> bool {
        matches!(self.cause, Some(Cause::NotFound | Cause::NotExecutable))
            || (self.cause.is_some() && matches!(self.exit_code, Some(126 | 127)))
    }
}

/// The limits that the user sets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SearchPolicy {
    /// `targetMetric`: a result as good as this ends the search. `None`: no result does.
    pub target: Option<(Direction, f64)>,
    /// The failures that hold the search.
    pub failures: FailureLimit,
    /// `maxTrialRetries`: the number of retries of one trial after temporary failures.
    pub retries: u32,
    /// `trialRepeats`: points are tried several times, and the mean of their results is compared with the target.
    pub repeats_points: bool,
}

/// The used part of the limits. Only this run of the manager counts for successive failures, because a user who resumes
/// is assumed to have removed their cause.
#[derive(Debug, Default)]
pub(super) struct Budget {
    policy: SearchPolicy,
    /// The class of the last failures, and their number without another end between them.
    consecutive: Option<(Class, u32)>,
    /// Set if a trial of this search has reported a metric or succeeded, which proves that the command can work.
    proven: bool,
    /// The common cause and exit code of the last failures, and their number in a row. Unused once `proven` is set.
    similar: Option<((Cause, Option<i32>), usize)>,
    /// The number of attempts that failed before their command started, since the last one that started it.
    unstarted: usize,
    retried: HashMap<TrialJobId, u32>,
}

impl Budget {
    pub(super) fn with_policy(self, policy: SearchPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Sets the number of retries of a trial before this run.
    pub(super) fn set_retries(&mut self, trial: TrialJobId, times: u32) {
        if times > 0 {
            self.retried.insert(trial, times);
        }
    }

    /// Decides whether a failed trial is retried. Returns the number of the retry and the limit.
    pub(super) fn count_retry(&mut self, trial: &TrialJobId, class: Class) -> Option<(u32, u32)> {
        if class != Class::Transient {
            return None;
        }
        let times = self.retried.entry(trial.clone()).or_default();
        if *times >= self.policy.retries {
            return None;
        }
        *times += 1;
        Some((*times, self.policy.retries))
    }

    /// Records the start of a trial's command.
    pub(super) fn record_started(&mut self) {
        self.unstarted = 0;
    }

    /// Counts the failure of an attempt before its command started, with `concurrency` as the limit of concurrent
    /// trials. `Some`: there were too many, with a message for the user.
    pub(super) fn record_unstarted(&mut self, concurrency: usize, why: &str) -> Option<String> {
        self.unstarted += 1;
        let times = self.unstarted;
        (times >= MIN_UNSTARTED_ATTEMPTS && times > concurrency).then(|| {
            format!(
                "{times} times in a row a trial ended before its command was started, the last one: {why}; no more \
                 trials are started; {RESUME_REMEDY}",
                why = clause(why)
            )
        })
    }

    /// Records an end of a trial that is no failure.
    pub(super) fn record_other_end(&mut self) {
        self.consecutive = None;
    }

    /// Records that a trial has reported a metric or succeeded, which ends the default limit for this search.
    pub(super) fn set_proven(&mut self) {
        self.proven = true;
    }

    /// Counts the permanent failure of a trial, with `concurrency` as the limit of concurrent trials. The limit is
    /// `None` if no new trial would start. Returns a message for the user if there were too many failures.
    pub(super) fn record_failure(
        &mut self,
        failure: Failure<'_>,
        concurrency: Option<usize>,
    ) -> Option<String> {
        match self.policy.failures {
            FailureLimit::Unlimited => None,
            FailureLimit::FirstTrials => self.record_first_failure(failure, concurrency),
            FailureLimit::Consecutive(limit) => self.record_consecutive_failure(failure, limit),
        }
    }

    fn record_first_failure(
        &mut self,
        failure: Failure<'_>,
        concurrency: Option<usize>,
    ) -> Option<String> {
        if self.proven {
            return None;
        }
        // The loss of an agent is no evidence about the command. It neither counts nor separates the other failures. An
        // agent that is lost before the command starts counts as unstarted.
        let failure_kind = (failure.cause?, failure.exit_code);
        let times = match self.similar {
            Some((last, times)) if last == failure_kind => times + 1,
            _ => 1,
        };
        self.similar = Some((failure_kind, times));
        // A search that has nothing left to start is done, regardless of the ends of its last trials.
        let concurrency = concurrency?;
        let what = if failure.is_command_unrunnable() {
            "the command cannot be run".to_owned()
        } else if times >= MIN_FIRST_FAILURES && times > concurrency {
            format!(
                "{times} trials in a row failed in the same way, and no trial has reported a metric yet"
            )
        } else {
            return None;
        };
        Some(format!(
            "{what}: {why}; no more trials are started; {RESUME_REMEDY} (`maxConsecutiveFailures: 0` in the file \
             turns this check off)",
            why = clause(failure.why)
        ))
    }

    fn record_consecutive_failure(&mut self, failure: Failure<'_>, limit: u32) -> Option<String> {
        let Failure { class, why, .. } = failure;
        let times = match self.consecutive {
            Some((last, times)) if last == class => times + 1,
            _ => 1,
        };
        self.consecutive = Some((class, times));
        if times < limit {
            return None;
        }
        let kind = match class {
            Class::UserError => "because of the command or its parameters",
            Class::Transient => "because of their environment, perhaps temporarily",
            Class::Permanent => "because of their environment",
            Class::None | Class::Other => "for unknown reasons",
        };
        Some(format!(
            "{times} trials in a row failed {kind} (maxConsecutiveFailures), the last one: {why}; no more trials are \
             started; {RESUME_REMEDY}",
            why = clause(why)
        ))
    }

    /// Returns the sentence for the user if a single trial's result reaches the target. With repeated points, none
    /// does.
    pub(super) fn single_result_message(&self, result: &MetricValue) -> Option<String> {
        if self.policy.repeats_points { None } else { self.reached_message(result) }
    }

    /// Returns the sentence for the user if a result reaches the target.
    pub(super) fn reached_message(&self, result: &MetricValue) -> Option<String> {
        let (direction, target) = self.policy.target?;
        let number = result.number().filter(|number| !number.is_nan())?;
        // A result that equals the target reaches it.
        let worse = is_better(direction, Some(target), Some(number));
        (!worse).then(|| format!("a result of {number} reaches targetMetric {target}"))
    }
}

/// Returns a message as a part of a longer sentence.
fn clause(message: &str) -> &str {
    message.trim_end().trim_end_matches('.')
}
