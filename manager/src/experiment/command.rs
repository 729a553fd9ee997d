//! The commands of users to an experiment that runs, and the reasons to refuse them.

use std::time::Duration;

use serde_json::Value;
use trial_protocol::{LogLevel, TrialJobId};

use super::state::ExperimentState;
use crate::config::units;
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::store;

/// A request of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Stop one trial.
    StopTrial(TrialJobId),
    /// Run a trial that has ended once more, as a new attempt.
    Retry(TrialJobId),
    /// Run a trial with parameters of the user's; those that are left out are drawn from the space.
    Add {
        /// The id of the new trial.
        trial: TrialJobId,
        /// The parameters.
        parameters: Parameters,
    },
    /// Have a trial's agent send what it still gathers.
    Flush(TrialJobId),
    /// Have a trial's agent log from this level on.
    LogLevel(TrialJobId, LogLevel),
    /// Change what bounds the experiment; what is `None` stays.
    Limit(NewLimits),
    /// Let the tuner know results from elsewhere: a list as [`crate::search::tuner::import`] describes it.
    Import(Value),
    /// Search another space from now on, in NNI's form.
    Space(Value),
}

/// Other limits. They are kept, so that a resumed experiment has them too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewLimits {
    /// Trials at a time, at least 1.
    pub concurrency: Option<usize>,
    /// Trials in all, at least 1.
    pub trials: Option<u64>,
    /// Running time of the experiment.
    pub duration: Option<WrittenDuration>,
}

/// A duration, and the words that a user wrote it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenDuration {
    /// The length of time.
    pub length: Duration,
    /// A number of seconds or a text, as an experiment file may have it.
    pub written: Value,
}

impl WrittenDuration {
    /// Reads a duration such as `90`, `"30m"` or `"1h30m"`; an error says what is wrong with it.
    pub fn parse(written: &Value) -> Result<Self, String> {
        Ok(Self { length: units::duration(written)?, written: written.clone() })
    }
}

/// The reason that the experiment does not do it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refused {
    /// No such trial.
    #[error("there is no trial {0}")]
    UnknownTrial(TrialJobId),
    /// Only of a trial that has not ended something can be wanted.
    #[error("trial {trial} has ended already: it is {state}")]
    Ended {
        /// The trial.
        trial: TrialJobId,
        /// How.
        state: JobState,
    },
    /// Only a trial that has ended can be run again.
    #[error("trial {trial} has not ended: it is {state}; stop it first")]
    NotEnded {
        /// The trial.
        trial: TrialJobId,
        /// Where it stands.
        state: JobState,
    },
    /// A limit of nothing.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A value is not right: where, and what is allowed.
    #[error("{0}")]
    Wrong(String),
    /// The experiment starts nothing any more.
    #[error("the experiment is {0} and starts nothing any more; {way_on}", way_on = .0.way_on())]
    Over(ExperimentState),
    /// There are as many trials as there may be.
    #[error(
        "all {limit} trials that maxTrialNumber allows are there; `trial-manager experiment limit --max-trial-number` allows more"
    )]
    Full {
        /// The number of trials.
        limit: u64,
    },
    /// No trial is started any more, and the last ones run.
    #[error(
        "the search starts nothing any more, and its last trials run; raise its limits with `trial-manager experiment limit`"
    )]
    LastTrials,
    /// The experiment has no manager, and is not done.
    #[error("the experiment is not running; `trial-manager resume` goes on with it")]
    NotRunning,
    /// The experiment waits for a disk, and why: nothing can be recorded, so nothing is done.
    #[error(
        "nothing was done, since nothing can be recorded now: {0}; ask again once that is mended"
    )]
    Held(String),
    /// The command had begun when the disk failed, and why.
    #[error("it cannot be recorded now: {0}; it is done as soon as that is mended")]
    Delayed(String),
    /// The command could not be recorded.
    #[error("it could not be recorded")]
    Store(#[from] store::Error),
}

impl ExperimentState {
    /// Returns the remedy where an experiment starts nothing any more.
    fn way_on(self) -> &'static str {
        match self {
            Self::Done => {
                "once its manager has ended, `trial-manager trial retry` marks trials that `trial-manager resume` runs again"
            }
            Self::Running
            | Self::NoMoreTrial
            | Self::TunerNoMoreTrial
            | Self::Stopping
            | Self::Stopped => "`trial-manager resume` goes on with it",
        }
    }
}
