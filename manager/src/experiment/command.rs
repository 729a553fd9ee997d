//! The commands of users to a running experiment, and the reasons to refuse them.

use std::time::Duration;

use serde_json::{Value, json};
use trial_protocol::{LogLevel, TrialJobId};

use super::state::ExperimentState;
use crate::config::{MAX_TRIAL_CONCURRENCY, units};
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::store;

/// A request of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Stops one trial.
    StopTrial(TrialJobId),
    /// Reruns an ended trial, as a new attempt.
    RerunTrial(TrialJobId),
    /// Runs a trial with the user's parameters. Missing ones are drawn from the space.
    AddTrial {
        /// The id of the new trial.
        trial: TrialJobId,
        /// The parameters.
        parameters: Parameters,
    },
    /// Makes a trial's agent send its buffered data at once.
    FlushTrial(TrialJobId),
    /// Sets the log level of a trial's agent.
    SetLogLevel(TrialJobId, LogLevel),
    /// Changes the limits of the experiment. A limit that is `None` stays unchanged.
    ChangeLimits(NewLimits),
    /// Imports results of other searches for the tuner: a list as [`crate::search::tuner::import`] describes it.
    ImportResults(Value),
    /// Changes the search space, given in NNI's form.
    ChangeSpace(Value),
}

/// New limits. They are recorded, so that a resumed experiment has them too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewLimits {
    /// The greatest number of concurrent trials, at least 1.
    pub concurrency: Option<usize>,
    /// The greatest number of trials in all, at least 1.
    pub trials: Option<u64>,
    /// The maximum run time of the experiment.
    pub duration: Option<WrittenDuration>,
}

impl NewLimits {
    /// Returns whether a limit changes that can end a search.
    pub fn has_search_bound(&self) -> bool {
        self.trials.is_some() || self.duration.is_some()
    }

    /// Checks that each limit is possible.
    pub fn check(&self) -> Result<(), CommandError> {
        let no_time = self.duration.as_ref().is_some_and(|duration| duration.length.is_zero());
        for (name, is_zero) in [
            ("trialConcurrency", self.concurrency == Some(0)),
            ("maxTrialNumber", self.trials == Some(0)),
            ("maxExperimentDuration", no_time),
        ] {
            if is_zero {
                return Err(CommandError::ZeroLimit(name));
            }
        }
        match self.concurrency.filter(|concurrency| *concurrency > MAX_TRIAL_CONCURRENCY) {
            Some(concurrency) => Err(CommandError::InvalidValue(format!(
                "trialConcurrency is {concurrency}; the maximum is {MAX_TRIAL_CONCURRENCY}"
            ))),
            None => Ok(()),
        }
    }

    /// Returns a stored specification with these limits.
    pub fn apply_to(&self, mut canonical: Value) -> Value {
        let duration = self.duration.as_ref().map(|duration| duration.written.clone());
        for (name, value) in [
            ("trialConcurrency", self.concurrency.map(|value| json!(value))),
            ("maxTrialNumber", self.trials.map(|value| json!(value))),
            ("maxExperimentDuration", duration),
        ] {
            if let (Some(members), Some(value)) = (canonical.as_object_mut(), value) {
                members.insert(name.to_owned(), value);
            }
        }
        canonical
    }
}

/// A duration, and the form in which the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenDuration {
    /// The length of time.
    pub length: Duration,
    /// A number of seconds or a text, as in an experiment file.
    pub written: Value,
}

impl WrittenDuration {
    /// Reads a duration such as `90`, `"30m"` or `"1h30m"`. An error names the problem.
    pub fn parse(written: &Value) -> Result<Self, String> {
        Ok(Self { length: units::parse_duration(written)?, written: written.clone() })
    }
}

/// A reason why the experiment refuses a command.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommandError {
    /// The trial does not exist.
    #[error("there is no trial {0}")]
    UnknownTrial(TrialJobId),
    /// The command requires a trial that has not ended.
    #[error("trial {trial} has ended already: it is {state}")]
    Ended {
        /// The trial.
        trial: TrialJobId,
        /// The final state of the trial.
        state: JobState,
    },
    /// Only an ended trial can be rerun.
    #[error("trial {trial} has not ended: it is {state}; stop it first")]
    NotEnded {
        /// The trial.
        trial: TrialJobId,
        /// The present state of the trial.
        state: JobState,
    },
    /// A limit must not be zero.
    #[error("{0} must be at least 1")]
    ZeroLimit(&'static str),
    /// A value is wrong. The text names its path and the allowed values.
    #[error("{0}")]
    InvalidValue(String),
    /// The experiment no longer starts trials.
    #[error("the experiment is {0} and starts no more trials; {remedy}", remedy = remedy(*.0))]
    NoMoreTrials(ExperimentState),
    /// The experiment has as many trials as its limit allows.
    #[error(
        "the experiment already has the {limit} trials that maxTrialNumber allows; raise it with `trial-manager experiment limit --max-trial-number`"
    )]
    TrialLimitReached {
        /// The number of trials.
        limit: u64,
    },
    /// The search starts no more trials, and its last ones run.
    #[error(
        "the search starts no more trials, and its last ones still run; raise its limits with `trial-manager experiment limit`"
    )]
    LastTrials,
    /// The experiment has no manager, and has not ended.
    #[error("the experiment is not running; `trial-manager resume` continues it")]
    NotRunning,
    /// The experiment waits for a disk, for this reason. The command cannot be recorded, so it is not carried out.
    #[error(
        "the command was not carried out, because it cannot be recorded now: {0}; repeat it after the problem is solved"
    )]
    WaitsForDisk(String),
    /// The command had begun when the disk failed for this reason.
    #[error(
        "the command cannot be recorded now: {0}; it is carried out as soon as the problem is solved"
    )]
    Delayed(String),
    /// The command could not be recorded.
    #[error("the command could not be recorded")]
    Store(#[from] store::Error),
}

/// Returns the remedy for an experiment that starts no more trials.
fn remedy(state: ExperimentState) -> &'static str {
    match state {
        ExperimentState::Done => {
            "after its manager has ended, `trial-manager resume --max-trial-number` raises its limit; to run trials again, mark them with `trial-manager trial rerun` before `trial-manager resume`"
        }
        ExperimentState::Running
        | ExperimentState::NoMoreTrial
        | ExperimentState::TunerNoMoreTrial
        | ExperimentState::Stopping
        | ExperimentState::Stopped => "`trial-manager resume` continues it",
    }
}
