//! The state of a trial that has not ended, and of its present attempt.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use trial_protocol::{AttemptId, Metric, TrialJobId};

use crate::experiment::pod_ends::PodEnds;
use crate::experiment::result::Steps;
use crate::util::ids;

/// A trial that has not ended.
pub(super) struct LiveTrial {
    /// The trial's position in the experiment, from 0.
    sequence: u64,
    /// The trial's parameters.
    parameters: Value,
    /// The present attempt.
    attempt: AttemptId,
    /// `true` if `attempt` may have been submitted, so that another run needs a new number.
    submitted: bool,
    /// The intermediate results of the attempt, for the assessor.
    steps: Steps,
    /// The reason why the assessor stopped the trial, if it did.
    early_stop_reason: Option<String>,
    /// The time since which the trial has run, as far as this manager knows.
    running_since: Option<Instant>,
    /// The start time of the attempt, as its agent reported it.
    started_at_ms: Option<i64>,
    /// The time to renew the assessor's rules at the agent.
    renew_at: Option<Instant>,
    /// True if the agent has reported the end of the attempt's command.
    ended: bool,
    /// True if a queue evicted the attempt. Reports of its pod no longer count.
    requeued: bool,
    /// The ends of the commands of the attempt's pods.
    pods: PodEnds,
    /// The time since which the ends of some pods decide the trial while others run.
    decided: Option<Decision>,
}

/// The time since which the end of a trial is decided while some of its pods run.
#[derive(Debug, Clone, Copy)]
struct Decision {
    since: Instant,
    /// True if the service was asked to end the job.
    is_finishing: bool,
}

impl LiveTrial {
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
            early_stop_reason: None,
            running_since: None,
            started_at_ms: None,
            renew_at: None,
            ended: false,
            requeued: false,
            pods: PodEnds::default(),
            decided: None,
        }
    }

    /// Returns the trial's position in the experiment, from 0.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the trial's parameters.
    pub(super) fn parameters(&self) -> &Value {
        &self.parameters
    }

    /// Returns the present attempt.
    pub(super) fn attempt(&self) -> &AttemptId {
        &self.attempt
    }

    /// Returns the intermediate results of the attempt, for the assessor.
    pub(super) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Returns the start time of the attempt, as its agent reported it.
    pub(super) fn started_at_ms(&self) -> Option<i64> {
        self.started_at_ms
    }

    /// Returns the ends of the commands of the attempt's pods.
    pub(super) fn pods(&self) -> &PodEnds {
        &self.pods
    }

    /// Returns the ends of the commands of the attempt's pods, to change them.
    pub(super) fn pods_mut(&mut self) -> &mut PodEnds {
        &mut self.pods
    }

    /// Returns whether the attempt may have been submitted.
    pub(super) fn is_submitted(&self) -> bool {
        self.submitted
    }

    /// Returns whether the attempt runs, as far as this manager knows.
    pub(super) fn is_running(&self) -> bool {
        self.running_since.is_some()
    }

    /// Returns whether the agent has reported the end of the attempt's command.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns whether the assessor has stopped the trial.
    pub(super) fn is_stopped_early(&self) -> bool {
        self.early_stop_reason.is_some()
    }

    /// Returns whether a queue evicted the attempt, so that reports of its pod no longer count.
    pub(super) fn is_requeued(&self) -> bool {
        self.requeued
    }

    /// Returns whether the ends of some pods decide the trial while others run.
    pub(super) fn is_decided(&self) -> bool {
        self.decided.is_some()
    }

    /// Returns whether the assessor's rules must be renewed at the agent.
    pub(super) fn is_renewal_due(&self, now: Instant) -> bool {
        self.renew_at.is_some_and(|at| now >= at)
    }

    /// Returns whether the service may end the job, because the end of its command is the end of the trial.
    pub(super) fn can_finish(&self) -> bool {
        self.ended && !self.pods.has_others()
    }

    /// Marks the attempt as submitted. From now on, another run needs a new number.
    pub(super) fn mark_submitted(&mut self) {
        self.submitted = true;
    }

    /// Records the start time of the attempt, as its agent reports it.
    pub(super) fn record_start(&mut self, started_at_ms: i64) {
        self.started_at_ms = Some(started_at_ms);
    }

    /// Marks the attempt as running since this instant.
    pub(super) fn mark_running(&mut self, since: Instant) {
        self.running_since = Some(since);
    }

    /// Records that the agent has reported the end of the attempt's command.
    pub(super) fn record_end(&mut self) {
        self.ended = true;
    }

    /// Schedules the next renewal of the assessor's rules at the agent. `None`: the agent has no such rules.
    pub(super) fn schedule_renewal(&mut self, at: Option<Instant>) {
        self.renew_at = at;
    }

    /// Adds an intermediate result. Returns `true` if it is the next step of a trial that was not stopped early.
    pub(super) fn add_step(&mut self, metric: &Metric) -> bool {
        self.steps.insert(metric) && self.early_stop_reason.is_none()
    }

    /// Stops the trial early for the assessor's `reason`. Returns `false` if it was stopped before.
    pub(super) fn stop_early(&mut self, reason: &str) -> bool {
        if self.early_stop_reason.is_some() {
            return false;
        }
        self.early_stop_reason = Some(reason.to_owned());
        true
    }

    /// Returns the reason why the assessor stopped the trial, and forgets it.
    pub(super) fn take_reason(&mut self) -> Option<String> {
        self.early_stop_reason.take()
    }

    /// Ends the running time of the attempt, and returns it. `None`: the attempt did not run.
    pub(super) fn end_run(&mut self) -> Option<Duration> {
        self.renew_at = None;
        self.running_since.take().map(|since| since.elapsed())
    }

    /// Marks the trial as decided while some of its pods run. Returns `false` if it was decided before.
    pub(super) fn mark_decided(&mut self) -> bool {
        if self.decided.is_some() {
            return false;
        }
        self.decided = Some(Decision { since: Instant::now(), is_finishing: false });
        true
    }

    /// Marks the trial as undecided.
    pub(super) fn clear_decision(&mut self) {
        self.decided = None;
    }

    /// Returns `true` once, if the trial has been decided for at least this time.
    pub(super) fn begin_finishing(&mut self, decided_for: Duration) -> bool {
        let decided = self.decided.as_mut().filter(|decided| !decided.is_finishing);
        match decided.filter(|decided| decided.since.elapsed() >= decided_for) {
            Some(decided) => {
                decided.is_finishing = true;
                true
            }
            None => false,
        }
    }

    /// Makes the first pod that reports for the submitted attempt the present attempt. Returns the submitted attempt,
    /// unless `attempt` is no such pod.
    pub(super) fn adopt_first_pod(&mut self, attempt: &AttemptId) -> Option<AttemptId> {
        let is_first = !self.requeued && ids::is_pod_of(attempt, &self.attempt);
        is_first.then(|| std::mem::replace(&mut self.attempt, attempt.clone()))
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
        self.early_stop_reason = None;
        (self.running_since, self.started_at_ms, self.renew_at) = (None, None, None);
        self.reset();
    }

    /// Makes a running attempt wait: another pod will run it from its beginning.
    pub(super) fn requeue(&mut self, steps: Steps) {
        self.steps = steps;
        self.early_stop_reason = None;
        (self.running_since, self.started_at_ms, self.renew_at) = (None, None, None);
        (self.ended, self.requeued) = (false, true);
        self.pods.restart();
        self.decided = None;
    }

    /// Gives the next attempt its number before a slot for it is free.
    pub(super) fn reserve_next_attempt(&mut self, trial: &TrialJobId, steps: Steps) {
        self.attempt = ids::next_attempt(trial, &self.attempt);
        self.steps = steps;
        (self.submitted, self.early_stop_reason) = (false, None);
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
