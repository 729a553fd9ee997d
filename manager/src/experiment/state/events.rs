//! PURE: the states, limits, events, changes and effects of an experiment. It makes no decisions.

use std::fmt;
use std::time::Duration;

use trial_protocol::{MetricValue, StopReason, TrialJobId, Verdict};

use crate::experiment::ending::RecordedEnd;
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::search::tuner::{Outcome, Proposal};
use crate::training_service::JobEnd;

/// The state of an experiment, in NNI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExperimentState {
    /// Trials start in free slots.
    Running,
    /// A limit is reached, and the last trials continue.
    NoMoreTrial,
    /// The tuner has no further proposals, and the last trials continue.
    TunerNoMoreTrial,
    /// All trials have ended.
    Done,
    /// The trials are being stopped.
    Stopping,
    /// The experiment is interrupted and can be resumed.
    Stopped,
}

impl ExperimentState {
    /// Returns the word that users, the store and the API see.
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

    /// Returns whether trials may still start, including retries.
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
    /// The greatest number of concurrent trials, at least 1.
    pub concurrency: usize,
    /// The greatest number of trials in all. `None`: no limit.
    pub trials: Option<u64>,
    /// The greatest running time of the experiment. `None`: no limit.
    pub duration: Option<Duration>,
    /// The greatest running time of one trial. `None`: no limit.
    pub trial_duration: Option<Duration>,
}

/// An occurrence to which the experiment reacts.
#[derive(Debug)]
pub enum Event {
    /// The experiment begins, or begins again.
    Begin,
    /// The tuner answered. `trial` is the id to use if there are parameters.
    Proposed {
        /// The number of the proposal.
        parameter_id: u64,
        /// The answer.
        proposal: Proposal,
        /// A fresh id.
        trial: TrialJobId,
    },
    /// The tuner can propose now, after a [`Proposal::Wait`].
    TunerReady,
    /// The tuner is lost permanently. The last trials continue, and the search can be resumed.
    TunerLost,
    /// A trial's agent has started the command.
    Started {
        /// The trial.
        trial: TrialJobId,
    },
    /// The running job of a trial waits again.
    Requeued {
        /// The trial.
        trial: TrialJobId,
    },
    /// A trial's job is gone from its training service, and all reports of its agent are known.
    JobGone {
        /// The trial.
        trial: TrialJobId,
        /// The end of its job.
        job_end: JobEnd,
        /// The agent's verdict, if it managed to report one.
        verdict: Option<Box<Verdict>>,
        /// The trial's final result, if it has one.
        result: Option<MetricValue>,
    },
    /// All trials of a point have succeeded, in a search that repeats its points.
    PointCompleted {
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
    /// Time has passed, and deadlines must be checked.
    Tick,
}

/// An effect. Effects are performed in their order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Requests a proposal of the tuner. The answer is an [`Event::Proposed`].
    Propose {
        /// The number of the proposal.
        parameter_id: u64,
    },
    /// Records a new trial, then submits it.
    Launch {
        /// The id of the trial.
        trial: TrialJobId,
        /// The trial's position in the experiment, from 0.
        sequence: u64,
        /// The tuner's number for the trial.
        parameter_id: u64,
        /// The trial's parameters.
        parameters: Parameters,
    },
    /// Records new trials of the user in one commit. They wait for free slots.
    Enqueue(Vec<UserTrial>),
    /// Records that a trial failed and will be retried. The tuner does not learn of this end.
    RecordRetry {
        /// The trial.
        trial: TrialJobId,
        /// The reason for the failure, and the number of retries.
        message: String,
    },
    /// Records that another attempt replaces a trial's present one. The trial has not failed.
    RecordReplacement {
        /// The trial.
        trial: TrialJobId,
        /// The reason.
        message: String,
    },
    /// Sends a message to the observers.
    Notify(String),
    /// Reports to all observers that too many failures hold the search, with the reason.
    Hold(String),
    /// Submits a known trial again, as a new attempt.
    StartNextAttempt {
        /// The trial.
        trial: TrialJobId,
    },
    /// Records that a trial runs.
    RecordRunning {
        /// The trial.
        trial: TrialJobId,
    },
    /// Records the intent, then stops the trial.
    StopTrial {
        /// The trial.
        trial: TrialJobId,
        /// The cause.
        reason: StopReason,
    },
    /// Records a trial's end.
    RecordEnd {
        /// The trial.
        trial: TrialJobId,
        /// The end of the trial.
        end: RecordedEnd,
    },
    /// Reports the end of a trial to the tuner.
    Observe {
        /// The trial.
        trial: TrialJobId,
        /// The number of the proposal. `None`: the user chose the parameters.
        parameter_id: Option<u64>,
        /// The final state of the trial.
        state: JobState,
        /// The outcome.
        outcome: Outcome,
    },
    /// Reports the result of a trial that it has not proposed to the tuner.
    ObserveUserTrial {
        /// The trial.
        trial: TrialJobId,
        /// The result of the trial.
        result: MetricValue,
    },
    /// Records the state of the experiment. `DONE` and `STOPPED` are the last effect of all.
    RecordState(ExperimentState),
}

/// A change by the user.
#[derive(Debug, Clone, PartialEq)]
pub enum UserChange {
    /// Reruns an ended trial. The tuner has already learned its first end, and does not learn the second one.
    Rerun(TrialJobId),
    /// Runs trials with the user's own parameters, before any further proposal. The caller has checked that the limit
    /// of trials leaves room for them.
    AddTrials(Vec<(TrialJobId, Parameters)>),
    /// Changes the limits of the experiment. A limit that is `None` stays unchanged.
    ChangeLimits {
        /// The greatest number of concurrent trials, at least 1. Trials above it continue to their end.
        concurrency: Option<usize>,
        /// The greatest number of trials in all.
        trials: Option<u64>,
        /// The greatest running time of the experiment.
        duration: Option<Duration>,
    },
    /// The tuner has received other results. If it waited, the state machine requests a proposal again.
    TunerUpdated,
    /// The tuner searches another space. If it waited or had no further proposals, the state machine requests one
    /// again.
    ChangeSpace {
        /// The trials whose ends the tuner must still learn, with the ids of their proposals. The rebuilt tuner treats
        /// their proposals as open. The list includes trials that run again at the user's request.
        open: Vec<(TrialJobId, u64)>,
    },
}

/// A trial with the user's own parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct UserTrial {
    /// The id of the trial.
    pub trial: TrialJobId,
    /// The trial's position in the experiment, from 0.
    pub sequence: u64,
    /// The trial's parameters.
    pub parameters: Parameters,
}

/// A trial from the store, for a resumed experiment.
#[derive(Debug, Clone)]
pub struct StoredTrial {
    /// The id of the trial.
    pub trial: TrialJobId,
    /// The trial's position in the experiment.
    pub sequence: u64,
    /// The tuner's number for the trial.
    pub parameter_id: Option<u64>,
    /// The state of the trial.
    pub state: StoredTrialState,
    /// The stop that was intended.
    pub intent: Option<StopReason>,
    /// The number of retries after temporary failures.
    pub retries: u32,
}

/// The state of a stored trial when its experiment resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredTrialState {
    /// The trial had ended.
    Ended,
    /// The job of the trial still exists.
    Alive {
        /// The time since the agent started the command. `None`: it has not started it.
        running_for: Option<Duration>,
    },
    /// The trial waits for an attempt. It was never submitted, the manager's own end interrupted it, or the user reruns it.
    Waiting,
}
