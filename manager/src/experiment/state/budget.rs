//! PURE: the budget of an experiment: a result that is good enough, failures that go on and on, and trials that are
//! worth another try. It counts and reports; the state decides what follows.

use std::collections::HashMap;

use trial_protocol::{Cause, Class, MetricValue, TrialJobId};

use crate::experiment::result::is_better;
use crate::search::tuner::OptimizeMode;

/// The number of attempts in a row that hold the search if they end before their command was started. There must also
/// be more of them than may run at a time. A token that has expired, an agent that does not run in the image or a
/// manager that pods do not reach says nothing of the parameters. Such a fault would use up the trials one after the
/// other.
const UNSTARTED: usize = 5;

/// The least number of first trials that must fail alike to hold a search by default. More than `concurrency` trials
/// are needed besides, since those that start together say no more than one.
const DOOMED: usize = 5;

/// When failures hold the search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FailureLimit {
    /// `maxConsecutiveFailures` is absent: the first trials all fail alike before any trial has reported a metric.
    #[default]
    FirstTrials,
    /// `maxConsecutiveFailures: 0`: never.
    Unlimited,
    /// `maxConsecutiveFailures`: that many failures of one class in a row. At least 1.
    Consecutive(u32),
}

impl FailureLimit {
    /// The limit that the experiment file asks for.
    pub fn of_file(max_consecutive_failures: Option<u32>) -> Self {
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
    /// The cause in the agent's verdict. `None`: the agent left none.
    pub(super) cause: Option<Cause>,
    /// Exit code as a shell shows it, where known.
    pub(super) exit_code: Option<i32>,
    /// The reason, for a person.
    pub(super) why: &'a str,
}

impl Failure<'_> {
    /// Returns whether the command could not be run at all: a shell exits with 127 where there is no such program,
    /// and with 126 where it is not executable.
    fn command_cannot_run(&self) -> bool {
        matches!(self.cause, Some(Cause::NotFound | Cause::NotExecutable))
            || (self.cause.is_some() && matches!(self.exit_code, Some(126 | 127)))
    }
}

/// The limits that the user sets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Policy {
    /// `targetMetric`: a result as good as this ends the search. `None`: none does.
    pub target: Option<(OptimizeMode, f64)>,
    /// When failures hold the search.
    pub failures: FailureLimit,
    /// `maxTrialRetries`: how often one trial is tried again after a failure that may pass.
    pub retries: u32,
    /// `trialRepeats`: points are tried several times, and the mean of their results is compared with the target.
    pub repeats_points: bool,
}

/// The used part of the limits. Failures in a row are counted in this run of the manager: who resumes has mended them.
#[derive(Debug, Default)]
pub(super) struct Budget {
    policy: Policy,
    /// The class of the last failures, and how many there were without another end between them.
    row: Option<(Class, u32)>,
    /// A trial of this search has reported a metric or succeeded: the command can do its work.
    proven: bool,
    /// The cause and the exit code of the last failures before that, and how many there were in a row.
    alike: Option<((Cause, Option<i32>), usize)>,
    /// Attempts that failed before their command was started, since the last one whose command was.
    unstarted: usize,
    retried: HashMap<TrialJobId, u32>,
}

impl Budget {
    pub(super) fn under(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// A trial was tried again so often before this run.
    pub(super) fn remember(&mut self, trial: TrialJobId, times: u32) {
        if times > 0 {
            self.retried.insert(trial, times);
        }
    }

    /// Decides whether a failed trial is tried again; returns the number of the try and of all tries.
    pub(super) fn retry(&mut self, trial: &TrialJobId, class: Class) -> Option<(u32, u32)> {
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

    /// A trial's command was started.
    pub(super) fn started(&mut self) {
        self.unstarted = 0;
    }

    /// An attempt failed before its command was started; `concurrency` trials may run at a time. `Some`: once too
    /// often, and what a person should know.
    pub(super) fn unstarted(&mut self, concurrency: usize, why: &str) -> Option<String> {
        self.unstarted += 1;
        let times = self.unstarted;
        (times >= UNSTARTED && times > concurrency).then(|| {
            format!(
                "{times} times in a row a trial ended before its command was started, the last one: {why}; nothing \
                 more is started, and `trial-manager resume` goes on once that is mended"
            )
        })
    }

    /// A trial ended otherwise than by a failure.
    pub(super) fn fine(&mut self) {
        self.row = None;
    }

    /// A trial has reported a metric or succeeded: the default limit holds this search no more.
    pub(super) fn proven(&mut self) {
        self.proven = true;
    }

    /// A trial failed for good; `concurrency` trials may run at a time, or `None` where no new trial would be started.
    /// `Some`: once too often, and what a person should know.
    pub(super) fn failed(
        &mut self,
        failure: Failure<'_>,
        concurrency: Option<usize>,
    ) -> Option<String> {
        match self.policy.failures {
            FailureLimit::Unlimited => None,
            FailureLimit::FirstTrials => self.failed_at_first(failure, concurrency),
            FailureLimit::Consecutive(limit) => self.failed_in_a_row(failure, limit),
        }
    }

    fn failed_at_first(
        &mut self,
        failure: Failure<'_>,
        concurrency: Option<usize>,
    ) -> Option<String> {
        if self.proven {
            return None;
        }
        // A lost agent says nothing of the command, for it or against it: it neither counts nor parts the others. Those that
        // are lost before the command starts are counted as unstarted.
        let way = (failure.cause?, failure.exit_code);
        let times = match self.alike {
            Some((last, times)) if last == way => times + 1,
            _ => 1,
        };
        self.alike = Some((way, times));
        // A search with nothing left to start is done, whatever its last trials did.
        let concurrency = concurrency?;
        let what = if failure.command_cannot_run() {
            "the command cannot be run".to_owned()
        } else if times >= DOOMED && times > concurrency {
            format!("{times} trials in a row failed alike, and no trial has reported a metric yet")
        } else {
            return None;
        };
        Some(format!(
            "{what}: {why}; nothing more is started, and `trial-manager resume` goes on once that is mended \
             (`maxConsecutiveFailures: 0` in the file lets failures pass)",
            why = failure.why
        ))
    }

    fn failed_in_a_row(&mut self, failure: Failure<'_>, limit: u32) -> Option<String> {
        let Failure { class, why, .. } = failure;
        let times = match self.row {
            Some((last, times)) if last == class => times + 1,
            _ => 1,
        };
        self.row = Some((class, times));
        if times < limit {
            return None;
        }
        let kind = match class {
            Class::UserError => "by the command or its parameters",
            Class::Transient => "by their surroundings, which may get better",
            Class::Permanent => "by their surroundings",
            Class::None | Class::Other => "for reasons unknown",
        };
        Some(format!(
            "{times} trials in a row failed {kind} (maxConsecutiveFailures), the last one: {why}; nothing more is \
             started, and `trial-manager resume` goes on once that is mended"
        ))
    }

    /// Returns the sentence for the user if a trial's result is good enough by itself. Where points are repeated none is.
    pub(super) fn reached_alone(&self, result: &MetricValue) -> Option<String> {
        if self.policy.repeats_points { None } else { self.reached(result) }
    }

    /// Returns the sentence for the user if a result is good enough.
    pub(super) fn reached(&self, result: &MetricValue) -> Option<String> {
        let (mode, target) = self.policy.target?;
        let number = result.number().filter(|number| !number.is_nan())?;
        // As good as the target is good enough.
        let worse = is_better(mode, Some(target), Some(number));
        (!worse).then(|| format!("targetMetric {target} is reached with {number}"))
    }
}
