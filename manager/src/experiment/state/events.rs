//! PURE: the states, limits, events and effects of an experiment. It decides nothing.

use std::fmt;
use std::time::Duration;

use trial_protocol::{MetricValue, StopReason, TrialJobId, Verdict};

use crate::experiment::ending::{End, Gone};
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::search::tuner::{Outcome, Proposal};

/// The state of an experiment, in NNI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExperimentState {
    /// Trials are started as there is room.
    Running,
    /// A limit is reached; the last trials run on.
    NoMoreTrial,
    /// The tuner has nothing more to propose; the last trials run on.
    TunerNoMoreTrial,
    /// All trials have ended.
    Done,
    /// Trials are being stopped.
    Stopping,
    /// Interrupted; it can be resumed.
    Stopped,
}

impl ExperimentState {
    /// The word that users, the store and the API see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::NoMoreTrial => "NO_MORE_TRIAL",
            Self::TunerNoMoreTrial => "TUNER_NO_MORE_TRIAL",
            Self::Done => "DONE",
            Self::Stopping => "STOPPING",
            Self::Stopped => "STOPPED",
        }
    }

    /// Returns whether trials may still be started, be it again.
    pub fn is_active(self) -> bool {
        match self {
            Self::Running | Self::NoMoreTrial | Self::TunerNoMoreTrial => true,
            Self::Done | Self::Stopping | Self::Stopped => false,
        }
    }
}

impl fmt::Display for ExperimentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The limits of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Trials alive at a time, at least 1.
    pub concurrency: usize,
    /// Trials in all. `None`: no limit.
    pub trials: Option<u64>,
    /// Running time of the experiment. `None`: no limit.
    pub duration: Option<Duration>,
    /// Running time of one trial. `None`: no limit.
    pub trial_duration: Option<Duration>,
}

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The experiment begins, or begins again.
    Begin,
    /// The tuner answered; `trial` is the id to use if there are parameters.
    Proposed {
        /// The proposal.
        parameter_id: u64,
        /// The answer.
        proposal: Proposal,
        /// A fresh id.
        trial: TrialJobId,
    },
    /// After [`Proposal::Wait`]: the tuner can propose now.
    TunerReady,
    /// The tuner is lost for good; the last trials run on, and the search can be resumed.
    TunerLost,
    /// A trial's agent has started the command.
    Started {
        /// The trial.
        trial: TrialJobId,
    },
    /// A trial's job that ran is to wait again.
    Requeued {
        /// Which trial.
        trial: TrialJobId,
    },
    /// A trial's job is gone from its training service, and everything its agent said is known.
    Gone {
        /// The trial.
        trial: TrialJobId,
        /// The end of its job.
        gone: Gone,
        /// The agent's conclusion, if it lived to report one.
        verdict: Option<Box<Verdict>>,
        /// The trial's final result, if it has one.
        result: Option<MetricValue>,
    },
    /// All trials of a point have succeeded, in a search that repeats its points.
    PointKnown {
        /// The mean of their results.
        mean: f64,
    },
    /// A stop of one trial is requested.
    StopRequested {
        /// The trial.
        trial: TrialJobId,
        /// The cause.
        reason: StopReason,
    },
    /// A stop of the experiment is requested.
    ExperimentStopRequested,
    /// Time has passed: deadlines are looked at.
    Tick,
}

/// An effect, to be performed in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the tuner; answer with [`Event::Proposed`].
    Propose {
        /// The proposal.
        parameter_id: u64,
    },
    /// Record a new trial, then submit it.
    Launch {
        /// Its id.
        trial: TrialJobId,
        /// Its position in the experiment, from 0.
        sequence: u64,
        /// The tuner's number for it.
        parameter_id: u64,
        /// Its parameters.
        parameters: Parameters,
    },
    /// Record new trials of the user's, all in one commit; they wait until there is room.
    Enqueue(Vec<OwnTrial>),
    /// Record that a trial failed and will be tried again. The tuner does not hear of this end.
    Retry {
        /// The trial.
        trial: TrialJobId,
        /// The reason that it failed, and how often it may.
        message: String,
    },
    /// Record that a trial's attempt is fenced and that another will replace it: the trial has not failed.
    Replace {
        /// The trial.
        trial: TrialJobId,
        /// The reason.
        message: String,
    },
    /// Tell the people who watch.
    Tell(String),
    /// Too many failures hold the search: tell everybody, and why.
    Hold(String),
    /// Submit a known trial again, as a new attempt.
    Relaunch {
        /// The trial.
        trial: TrialJobId,
    },
    /// Record that a trial runs.
    RecordRunning {
        /// The trial.
        trial: TrialJobId,
    },
    /// Record the intent, then stop the trial.
    StopTrial {
        /// The trial.
        trial: TrialJobId,
        /// The cause.
        reason: StopReason,
    },
    /// Record a trial's end.
    RecordEnd {
        /// The trial.
        trial: TrialJobId,
        /// Its end.
        end: End,
    },
    /// Tell the tuner.
    Observe {
        /// The trial.
        trial: TrialJobId,
        /// Which proposal. `None`: the parameters are a person's.
        parameter_id: Option<u64>,
        /// The final state of the trial.
        state: JobState,
        /// The outcome.
        outcome: Outcome,
    },
    /// Let the tuner know the result of a trial that it has not proposed.
    Teach {
        /// Which trial.
        trial: TrialJobId,
        /// Its result.
        result: MetricValue,
    },
    /// Record where the experiment stands. `DONE` and `STOPPED` are the last effect of all.
    RecordState(ExperimentState),
}

/// A trial with parameters of the user's.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnTrial {
    /// Its id.
    pub trial: TrialJobId,
    /// Its position in the experiment, from 0.
    pub sequence: u64,
    /// Its parameters.
    pub parameters: Parameters,
}

/// A trial as the store remembers it, for going on after a restart.
#[derive(Debug, Clone)]
pub struct Remembered {
    /// Its id.
    pub trial: TrialJobId,
    /// Its position in the experiment.
    pub sequence: u64,
    /// The tuner's number for it.
    pub parameter_id: Option<u64>,
    /// The fate of its job while no manager watched.
    pub fate: Fate,
    /// The stop that was intended.
    pub intent: Option<StopReason>,
    /// The number of times that it was tried again after a failure that may pass.
    pub retries: u32,
}

/// The fate of a remembered trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It had ended.
    Ended,
    /// Its job is still there; it has run for so long.
    Alive {
        /// Since the agent started the command. `None`: it has not.
        running_for: Option<Duration>,
    },
    /// It was recorded and never submitted, or interrupted by the manager's own end: it runs again.
    Again,
}
