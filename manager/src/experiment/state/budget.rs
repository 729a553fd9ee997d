//! PURE: when enough is enough: a result that is good enough, failures that go on and on, and trials that are
//! worth another try. It counts and says; what follows is the state's to decide.

use std::collections::HashMap;

use trial_protocol::{Class, MetricValue, TrialJobId};

use crate::experiment::result::is_better;
use crate::tuner::OptimizeMode;

/// So many attempts in a row, and more than may run at a time, that ended before their command was started hold the
/// search: a token that has expired, an agent that does not run in the image or a manager that pods do not reach says
/// nothing of the parameters, and would use up the trials one after the other.
const UNSTARTED: usize = 5;

/// What a user allows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Policy {
    /// `targetMetric`: a result as good as this ends the search. `None`: none does.
    pub target: Option<(OptimizeMode, f64)>,
    /// `maxConsecutiveFailures`: so many failures of one class in a row hold the search. `None`: none do.
    pub failures: Option<u32>,
    /// `maxTrialRetries`: how often one trial is tried again after a failure that may pass.
    pub retries: u32,
}

/// What has been used of it. Failures in a row are counted in this run of the manager: who resumes has mended them.
#[derive(Debug, Default)]
pub(super) struct Budget {
    policy: Policy,
    /// The class of the last failures, and how many there were without another end between them.
    row: Option<(Class, u32)>,
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

    /// Whether a failed trial is to be tried again: which try of how many it will be.
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

    /// A trial failed for good. `Some`: once too often, and what a person should know.
    pub(super) fn failed(&mut self, class: Class, why: &str) -> Option<String> {
        let times = match self.row {
            Some((last, times)) if last == class => times + 1,
            _ => 1,
        };
        self.row = Some((class, times));
        if times < self.policy.failures? {
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

    /// Whether a result is good enough, and what a person should know.
    pub(super) fn reached(&self, result: &MetricValue) -> Option<String> {
        let (mode, target) = self.policy.target?;
        let number = result.number().filter(|number| !number.is_nan())?;
        // As good as the target is good enough.
        let worse = is_better(mode, Some(target), Some(number));
        (!worse).then(|| format!("targetMetric {target} is reached with {number}"))
    }
}
