//! The state of a trial that has not ended, and of its present attempt.

use serde_json::Value;
use tokio::time::Instant;
use trial_protocol::{AttemptId, TrialJobId};

use crate::experiment::pod_ends::PodEnds;
use crate::experiment::result::Steps;
use crate::util::ids;

/// A trial that has not ended.
pub(super) struct Job {
    /// The trial's position in the experiment, from 0.
    pub(super) sequence: u64,
    /// The trial's parameters.
    pub(super) parameters: Value,
    /// The present attempt.
    pub(super) attempt: AttemptId,
    /// `true` if `attempt` may have been submitted, so that another run needs a new number.
    pub(super) submitted: bool,
    /// The intermediate results of the attempt, for the assessor.
    pub(super) steps: Steps,
    /// The reason why the assessor stopped the trial, if it did.
    pub(super) given_up: Option<String>,
    /// The time since which the trial has run, as far as this manager knows.
    pub(super) running_since: Option<Instant>,
    /// The start time of the attempt, as its agent reported it.
    pub(super) started_at_ms: Option<i64>,
    /// The time to renew the assessor's rules at the agent.
    pub(super) renew_at: Option<Instant>,
    /// True if the agent has reported the end of the attempt's command.
    pub(super) ended: bool,
    /// True if a queue evicted the attempt. Reports of its pod no longer count.
    pub(super) requeued: bool,
    /// The ends of the commands of the attempt's pods.
    pub(super) pods: PodEnds,
    /// The time since which the ends of some pods decide the trial while others run.
    pub(super) decided: Option<Decision>,
}

/// The time since which the end of a trial is decided while some of its pods run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decision {
    pub(super) since: Instant,
    /// True if the service was asked to end the job.
    pub(super) is_finishing: bool,
}

impl Job {
    /// Returns a trial whose attempt does not run.
    pub(super) fn new(
        sequence: u64,
        parameters: Value,
        attempt: AttemptId,
        submitted: bool,
        steps: Steps,
    ) -> Self {
        Self {
            sequence,
            parameters,
            attempt,
            submitted,
            steps,
            given_up: None,
            running_since: None,
            started_at_ms: None,
            renew_at: None,
            ended: false,
            requeued: false,
            pods: PodEnds::default(),
            decided: None,
        }
    }

    /// Returns whether the service may end the job, because the end of its command is the end of the trial.
    pub(super) fn can_finish(&self) -> bool {
        self.ended && !self.pods.has_others()
    }

    fn reset(&mut self) {
        (self.ended, self.requeued) = (false, false);
        (self.pods, self.decided) = (PodEnds::default(), None);
    }

    /// Begins the next attempt, if the present one may have been submitted.
    pub(super) fn begin_next_attempt(&mut self, trial: &TrialJobId, steps: Steps) {
        if !self.submitted {
            return;
        }
        self.attempt = ids::next_attempt(trial, &self.attempt);
        self.steps = steps;
        self.given_up = None;
        (self.running_since, self.started_at_ms, self.renew_at) = (None, None, None);
        self.reset();
    }

    /// Makes a running attempt wait: another pod will run it from its beginning.
    pub(super) fn requeue(&mut self, steps: Steps) {
        self.steps = steps;
        self.given_up = None;
        (self.running_since, self.started_at_ms, self.renew_at) = (None, None, None);
        (self.ended, self.requeued) = (false, true);
        self.pods.restart();
        self.decided = None;
    }

    /// Gives the next attempt its number before a slot for it is free.
    pub(super) fn reserve_next_attempt(&mut self, trial: &TrialJobId, steps: Steps) {
        self.attempt = ids::next_attempt(trial, &self.attempt);
        self.steps = steps;
        (self.submitted, self.given_up) = (false, None);
        self.reset();
    }

    /// Makes an attempt that the cluster started the present one, and returns the earlier one.
    pub(super) fn replace_attempt(&mut self, attempt: AttemptId, steps: Steps) -> AttemptId {
        self.steps = steps;
        (self.ended, self.requeued, self.decided) = (false, false, None);
        std::mem::replace(&mut self.attempt, attempt)
    }

    /// Returns whether `attempt` is the submission that the trial waits for.
    pub(super) fn is_submission(&self, attempt: &AttemptId) -> bool {
        ids::submitted_attempt(&self.attempt) == ids::submitted_attempt(attempt)
    }
}
