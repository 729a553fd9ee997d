//! PURE: the state of one workload, and the actions that follow from observations of it.

mod deadlines;
mod stop;

use std::time::Duration;

use trial_protocol::{AttemptId, Class, TrialJobId};

use self::deadlines::{JobDeadlines, StartDeadline};
use self::stop::{ForcedEnd, StopState};
use super::TrackerAction;
use super::pods::ObservedPods;
use super::queue::{QueueStatus, QueueWatch};
use super::rules::TrackerRules;
use super::start::StartProgress;
use super::wait_reason::{WaitReason, missing_pod_reason, silent_agent_reason, unexamined_reason};
use crate::training_service::kubernetes::kueue::{QueueEnd, QueueState};
use crate::training_service::kubernetes::outcome::{WorkloadOutcome, WorkloadPhase};
use crate::training_service::kubernetes::workload::StopRequest;
use crate::training_service::{
    DepartedPod, JobEnd, JobEndEvent, JobImage, JobNews, JobWait, VerdictCertainty,
};

/// A workload that has not ended.
#[derive(Debug)]
pub(super) struct TrackedWorkload {
    name: String,
    trial: TrialJobId,
    attempt: AttemptId,
    /// The object's unique id, if it was seen.
    id: Option<String>,
    phase: WorkloadPhase,
    /// Set if the cluster has the workload.
    is_created: bool,
    /// Set if an earlier manager may have created the workload, and neither the cluster nor an agent has shown it
    /// since.
    is_unconfirmed: bool,
    start: StartProgress,
    queue: QueueStatus,
    reason: WaitReason,
    /// The last image that was reported.
    image: Option<String>,
    /// The time of the last query to the cluster about a missing pod.
    queried_at: Option<Duration>,
    stop: Option<StopState>,
    /// An end that takes precedence over the observed one, because the workload was stopped for it.
    forced_end: Option<ForcedEnd>,
    /// The time since which the end of the workload is decided, or the time at which the tracker last read its pods.
    ending_since: Option<Duration>,
    /// The time at which its trial was recorded as ended while the workload continued.
    handed_over_at: Option<Duration>,
    /// The end that was read from its pods, while the remaining pods end.
    settled_outcome: Option<WorkloadOutcome>,
    /// Set while its pods are read or their end is awaited. Observations of the workload then add nothing.
    ignores_phase: bool,
}

/// The consequence of an observation.
#[derive(Debug)]
pub(super) enum WorkloadChange {
    /// The workload continues, and these actions follow.
    Continues(Vec<TrackerAction>),
    /// The workload has ended.
    Ends(WorkloadOutcome),
}

impl TrackedWorkload {
    /// Creates the state of a workload that is about to be created (`WorkloadPhase::Unseen`), or that the cluster has.
    /// `places` is the number of places that have had a pod: a listing may already have shown those of an earlier
    /// manager.
    pub(super) fn new(
        name: &str,
        (trial, attempt): (TrialJobId, AttemptId),
        phase: WorkloadPhase,
        places: u64,
        now: Duration,
    ) -> Self {
        let is_created = phase != WorkloadPhase::Unseen;
        Self {
            name: name.to_owned(),
            trial,
            attempt,
            id: None,
            phase,
            is_created,
            is_unconfirmed: false,
            // A workload that an earlier manager created may have run.
            start: StartProgress::new(Some(now), places, is_created),
            queue: QueueStatus::default(),
            reason: WaitReason::default(),
            image: None,
            queried_at: None,
            stop: None,
            forced_end: None,
            ending_since: None,
            handed_over_at: None,
            settled_outcome: None,
            ignores_phase: false,
        }
    }

    /// Returns this workload of an earlier manager, which no listing has shown. No deadline runs before the cluster
    /// shows it.
    pub(super) fn into_unlisted(self) -> Self {
        let start = StartProgress::new(None, self.start.place_count(), true);
        Self { is_created: true, is_unconfirmed: true, start, ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn trial(&self) -> &TrialJobId {
        &self.trial
    }

    pub(super) fn attempt(&self) -> &AttemptId {
        &self.attempt
    }

    /// Returns the object's unique id, if it was seen.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns whether the cluster is known to have the workload.
    pub(super) fn is_created(&self) -> bool {
        self.is_created
    }

    /// Returns whether the controller has examined the workload.
    pub(super) fn is_examined(&self) -> bool {
        self.phase != WorkloadPhase::Unseen
    }

    /// Returns whether the pods are known to run.
    pub(super) fn has_running_pods(&self) -> bool {
        matches!(self.phase, WorkloadPhase::Starting | WorkloadPhase::Running)
    }

    /// Returns whether a stop was requested.
    pub(super) fn has_stop_request(&self) -> bool {
        self.stop.is_some()
    }

    /// Returns whether the workload continues although its trial was recorded as ended.
    pub(super) fn is_handed_over(&self) -> bool {
        self.handed_over_at.is_some()
    }

    /// Returns whether the workload waits in a queue for its turn.
    pub(super) fn is_waiting_in_queue(&self) -> bool {
        self.phase == WorkloadPhase::Suspended && self.queue.has_reason()
    }

    /// Returns whether the workload ends with its pods, regardless of what deleted them.
    pub(super) fn can_end_with_pods(&self) -> bool {
        self.stop.is_none() && !self.ignores_phase && self.phase != WorkloadPhase::Suspended
    }

    /// Handles the unique id of the object.
    pub(super) fn observe_id(&mut self, id: Option<&str>) {
        self.id = id.map(str::to_owned);
    }

    /// Handles the queue in the label of the workload.
    pub(super) fn observe_queue_label(&mut self, label: Option<&str>) {
        self.queue.observe_label(label);
    }

    /// Handles the report of an agent that the trial runs. The other pods of a trial with several have no such report.
    pub(super) fn mark_running(&mut self, rules: &TrackerRules) {
        self.confirm_creation();
        if rules.pods == 1 {
            self.start.record_report();
        }
    }

    /// Records that the workload was created.
    pub(super) fn confirm_creation(&mut self) {
        self.is_unconfirmed = false;
    }

    /// Handles the success of the submission.
    pub(super) fn handle_creation(&mut self, now: Duration) -> Vec<TrackerAction> {
        self.is_created = true;
        if self.stop != Some(StopState::Pending) {
            return Vec::new();
        }
        self.stop = Some(StopState::Sent(now));
        vec![TrackerAction::Stop(self.name.clone())]
    }

    /// Requests the stop of the workload.
    pub(super) fn stop(&mut self, now: Duration) -> Vec<TrackerAction> {
        if self.stop.is_some() {
            return Vec::new();
        }
        if !self.is_created {
            self.stop = Some(StopState::Pending);
            return Vec::new();
        }
        self.start.ignore_silence();
        self.stop = Some(StopState::Sent(now));
        vec![TrackerAction::Stop(self.name.clone())]
    }

    /// Stops the workload for this reason, unless a stop was requested before.
    fn stop_for(&mut self, end: ForcedEnd, now: Duration) -> Vec<TrackerAction> {
        if self.stop.is_none() {
            self.forced_end = Some(end);
        }
        self.stop(now)
    }

    /// Stops the workload of a trial that has ended according to its agent.
    pub(super) fn finish(&mut self, now: Duration) -> Vec<TrackerAction> {
        // A queue that evicted the trial lets it run again.
        if self.phase == WorkloadPhase::Suspended {
            return Vec::new();
        }
        let message = "the trial ended, but its pod did not: does another process run in the pod, or is its node down?";
        self.stop_for(ForcedEnd::failure(message.to_owned(), None), now)
    }

    /// Records that the trial has ended while its workload still exists.
    pub(super) fn accept_verdict_end(&mut self, now: Duration) -> Vec<TrackerAction> {
        self.handed_over_at = self.handed_over_at.or(Some(now));
        if self.phase == WorkloadPhase::Suspended { self.stop(now) } else { Vec::new() }
    }

    /// Returns whether the failure of a pod explains the end of the trial.
    pub(super) fn can_explain_end(&self, certainty: VerdictCertainty) -> bool {
        let is_decided = match &self.phase {
            WorkloadPhase::Suspended => return false,
            WorkloadPhase::Completed(outcome) if outcome.disruption.is_some() => return false,
            WorkloadPhase::Completed(_) | WorkloadPhase::Ending => true,
            WorkloadPhase::Unseen
            | WorkloadPhase::Waiting
            | WorkloadPhase::Starting
            | WorkloadPhase::Running => false,
        };
        // The controller stops the other pods only after it has decided that the workload fails.
        certainty != VerdictCertainty::FailedAndStopped || is_decided || self.stop.is_some()
    }

    /// Returns whether a suspended workload may run again in this phase.
    pub(super) fn can_resume_in(&self, phase: &WorkloadPhase) -> bool {
        self.phase == WorkloadPhase::Suspended
            && !matches!(phase, WorkloadPhase::Suspended | WorkloadPhase::Completed(_))
    }

    /// Handles the observed phase.
    pub(super) fn handle_phase(
        &mut self,
        phase: WorkloadPhase,
        rules: &TrackerRules,
        queue_watch: &mut QueueWatch,
        now: Duration,
    ) -> WorkloadChange {
        (self.is_created, self.is_unconfirmed) = (true, false);
        if self.can_resume_in(&phase) {
            self.queue.set_requeued(false);
        }
        let was_suspended = self.phase == WorkloadPhase::Suspended;
        self.phase = phase;
        match &self.phase {
            WorkloadPhase::Unseen => {}
            WorkloadPhase::Suspended => {
                return WorkloadChange::Continues(self.handle_suspension(queue_watch, now));
            }
            // A pod that is retried also returns to these phases.
            WorkloadPhase::Waiting | WorkloadPhase::Starting => {
                if was_suspended {
                    self.reason.clear();
                    self.queried_at = None;
                    self.queue.clear_suspension();
                }
                if self.phase == WorkloadPhase::Starting {
                    self.start.record_run();
                }
                self.start.begin_wait(now);
            }
            WorkloadPhase::Running => {
                self.queue.clear_suspension();
                if self.start.begin_run(now) {
                    self.reason.clear();
                }
            }
            WorkloadPhase::Ending => {
                self.start.end();
                self.start.record_run();
                self.reason.clear();
                self.ending_since = self.ending_since.or(Some(now));
            }
            WorkloadPhase::Completed(outcome) => {
                let outcome = outcome.clone();
                if !outcome.needs_pods && !rules.kind.can_end_before_pods() {
                    return WorkloadChange::Ends(outcome);
                }
                if !std::mem::replace(&mut self.ignores_phase, true) {
                    let inspect = TrackerAction::ExplainFromPods(self.name.clone(), outcome);
                    return WorkloadChange::Continues(vec![inspect]);
                }
            }
        }
        WorkloadChange::Continues(Vec::new())
    }

    /// Handles the suspension of the workload, initially or again.
    fn handle_suspension(
        &mut self,
        queue_watch: &mut QueueWatch,
        now: Duration,
    ) -> Vec<TrackerAction> {
        // The trial has ended, and must not run again when its queue resumes the workload.
        if self.handed_over_at.is_some() {
            return self.stop(now);
        }
        self.ending_since = None;
        self.queue.record_suspension(now);
        let has_run = self.start.suspend(now);
        match self.queue.reason() {
            Some(why) => self.reason.set(Some(why)),
            None if has_run => self.reason.clear(),
            None => {}
        }
        let news = if has_run {
            Some(self.report_requeue())
        } else {
            if self.reason.current().is_none() {
                self.reason.set(Some(self.queue.suspended_reason()));
            }
            self.report_reason()
        };
        news.into_iter().chain(queue_watch.request_watch()).collect()
    }

    /// Returns the news that the queue evicted the workload.
    fn report_requeue(&mut self) -> TrackerAction {
        let known = self.reason.current().map(str::to_owned);
        let why = known.unwrap_or_else(|| self.queue.suspended_reason());
        self.reason.set_reported(why.clone());
        self.queue.set_requeued(true);
        self.queried_at = None;
        TrackerAction::Report(JobNews::Requeued(self.wait_news(why)))
    }

    /// Returns the news of the reason for the wait, if it has changed.
    fn report_reason(&mut self) -> Option<TrackerAction> {
        let why = self.reason.take_news()?;
        Some(TrackerAction::Report(JobNews::Waits(self.wait_news(why))))
    }

    fn wait_news(&self, why: String) -> JobWait {
        JobWait { trial: self.trial.clone(), attempt: self.attempt.clone(), why }
    }

    /// Handles the state of the workload in its queue. `None`: the queue has only noticed the workload.
    pub(super) fn handle_queue_state(
        &mut self,
        state: Option<QueueState>,
        now: Duration,
    ) -> Vec<TrackerAction> {
        self.queue.observe_state(state.as_ref(), now);
        match state {
            None | Some(QueueState::Admitted) => Vec::new(),
            Some(QueueState::Waits(_) | QueueState::NeverFits(_)) => {
                if matches!(self.phase, WorkloadPhase::Suspended | WorkloadPhase::Unseen) {
                    let why = self.queue.reason();
                    self.set_wait_reason(why)
                } else {
                    Vec::new()
                }
            }
            Some(QueueState::Ended(QueueEnd { why, disruption })) => {
                let class = Some(Class::Permanent);
                self.stop_for(ForcedEnd { message: why, class, disruption }, now)
            }
        }
    }

    /// Handles the number of workloads ahead of a workload that waits in a queue, if the queue tells it.
    pub(super) fn handle_position(&mut self, ahead: Option<u64>) -> Option<TrackerAction> {
        if !self.is_waiting_in_queue() {
            return None;
        }
        self.queue.observe_position(ahead);
        self.reason.set(self.queue.reason());
        self.report_reason()
    }

    /// Handles the observed reason why a pod waits.
    pub(super) fn set_wait_reason(&mut self, why: Option<String>) -> Vec<TrackerAction> {
        if self.start.waits_since().is_none() && self.phase != WorkloadPhase::Suspended {
            return Vec::new();
        }
        self.reason.observe(why);
        self.report_reason().into_iter().collect()
    }

    /// Handles the number of places that have had a pod. A reason from the time without a pod no longer holds.
    pub(super) fn observe_places(&mut self, places: u64) {
        if self.start.record_places(places) && self.phase != WorkloadPhase::Suspended {
            self.reason.clear();
        }
    }

    /// Handles the end of all scheduling gates. The pods have the whole time to start.
    pub(super) fn handle_ungating(&mut self, now: Duration) {
        self.reason.clear();
        self.start.restart_wait(now);
    }

    /// Handles the replacement of a pod. The new pod has its own time to start.
    pub(super) fn handle_replaced_pod(&mut self, now: Duration) {
        self.start.restart_wait(now);
    }

    /// Handles a running pod. The workload reports this later, and a queue may evict both before that. The watch of
    /// pods may also be behind that of workloads, so that the queue has evicted the workload already.
    pub(super) fn mark_pod_running(&mut self) -> Option<TrackerAction> {
        if self.phase != WorkloadPhase::Suspended {
            self.start.record_run();
            return None;
        }
        let is_over = self.stop.is_some() || self.handed_over_at.is_some();
        if self.queue.is_requeued() || is_over { None } else { Some(self.report_requeue()) }
    }

    /// Handles a pod whose containers have all ended. The workload may end with the pod.
    pub(super) fn mark_pod_completed(&mut self, now: Duration) {
        // A pod that its queue stops does not end the workload.
        if self.phase != WorkloadPhase::Suspended {
            self.ending_since = self.ending_since.or(Some(now));
        }
    }

    /// Handles the image of the pod whose metrics are the trial's.
    pub(super) fn report_image(&mut self, image: String) -> Option<TrackerAction> {
        if self.image.as_ref() == Some(&image) {
            return None;
        }
        self.image = Some(image.clone());
        let (trial, attempt) = (self.trial.clone(), self.attempt.clone());
        Some(TrackerAction::Report(JobNews::Image(JobImage { trial, attempt, image })))
    }

    /// Returns the news that a pod has left.
    pub(super) fn report_pod_left(&self, incarnation: String) -> TrackerAction {
        let (trial, attempt) = (self.trial.clone(), self.attempt.clone());
        TrackerAction::Report(JobNews::PodLeft(DepartedPod { trial, attempt, incarnation }))
    }

    /// Handles the last line of output, if known, of a running pod whose agent has not reported.
    pub(super) fn handle_silent_agent(
        &mut self,
        last_line: Option<&str>,
        rules: &TrackerRules,
    ) -> Vec<TrackerAction> {
        if self.phase != WorkloadPhase::Running {
            return Vec::new();
        }
        let why = silent_agent_reason(rules.kind, &self.name, &self.attempt, last_line);
        self.reason.set(Some(why));
        self.report_reason().into_iter().collect()
    }

    /// Returns whether the controller has not examined the workload, or has not created all of its pods.
    pub(super) fn is_idle(&self, rules: &TrackerRules) -> bool {
        match self.phase {
            // If one pod exists and another was refused, the status may stay empty.
            WorkloadPhase::Unseen => self.is_created,
            WorkloadPhase::Waiting | WorkloadPhase::Starting => {
                self.start.place_count() < rules.pods
            }
            WorkloadPhase::Suspended
            | WorkloadPhase::Running
            | WorkloadPhase::Ending
            | WorkloadPhase::Completed(_) => false,
        }
    }

    /// Handles the cluster's reason for a missing pod. `None`: the cluster shows no reason.
    pub(super) fn handle_missing_pod(
        &mut self,
        why: Option<String>,
        rules: &TrackerRules,
    ) -> Vec<TrackerAction> {
        let why = why.or_else(|| self.idle_reason(rules));
        self.set_wait_reason(why)
    }

    /// Returns the probable reason for an idle workload if no better reason is known.
    fn idle_reason(&self, rules: &TrackerRules) -> Option<String> {
        if self.reason.current().is_some() || !self.is_idle(rules) {
            return None;
        }
        Some(if self.phase == WorkloadPhase::Unseen {
            unexamined_reason(rules.kind)
        } else {
            missing_pod_reason(rules.kind, self.start.place_count(), rules.pods)
        })
    }

    /// Handles a rule of the cluster that denies a pod again and again. The workload fails, since a retry would have
    /// the same pod.
    pub(super) fn handle_denied_pod(&mut self, why: String, now: Duration) -> Vec<TrackerAction> {
        self.stop_for(ForcedEnd::failure(why, Some(Class::Permanent)), now)
    }

    /// Handles the disappearance of the workload.
    pub(super) fn handle_deletion(&mut self, rules: &TrackerRules) -> WorkloadChange {
        // The tracker already waits for the pods' end or reads their status. The pods may have been deleted with the
        // workload, so reading them again would show nothing.
        if self.ignores_phase {
            return WorkloadChange::Continues(Vec::new());
        }
        let deletes = rules.kind.stop_request() == StopRequest::Delete;
        let end = match self.stop {
            Some(StopState::Deleted) => {
                let message = "the workload did not end within its time and was deleted";
                return WorkloadChange::Ends(WorkloadOutcome::failure(message.to_owned()));
            }
            Some(StopState::Sent(_)) if deletes => None,
            Some(StopState::Pending | StopState::Sent(_)) | None => {
                let kind = rules.kind.resource().kind;
                let message = if self.is_unconfirmed {
                    format!(
                        "the cluster has no {kind} of the attempt that an earlier manager recorded"
                    )
                } else {
                    format!("its {kind} was deleted, but not by the manager")
                };
                Some(ForcedEnd::failure(message, Some(Class::Transient)))
            }
        };
        self.forced_end = self.forced_end.take().or(end);
        if !deletes {
            return WorkloadChange::Ends(self.outcome_of_deletion());
        }
        // The pods have their grace period. Another attempt must not run beside them.
        self.queue.clear_suspension();
        self.begin_ending();
        WorkloadChange::Continues(vec![TrackerAction::AwaitPods(self.name.clone())])
    }

    /// Returns the outcome of a workload that was deleted, and whose pods are gone.
    pub(super) fn outcome_of_deletion(&mut self) -> WorkloadOutcome {
        let stopped = || WorkloadOutcome::failure("stopped on request".to_owned());
        self.settled_outcome.take().unwrap_or_else(stopped)
    }

    /// Handles the end of the workload that was read from its pods while some of them still run.
    pub(super) fn settle(&mut self, outcome: WorkloadOutcome) -> WorkloadChange {
        if self.ignores_phase {
            return WorkloadChange::Ends(outcome);
        }
        self.settled_outcome = Some(outcome);
        self.begin_ending();
        let name = self.name.clone();
        WorkloadChange::Continues(vec![
            TrackerAction::DeleteLeftover(name.clone()),
            TrackerAction::AwaitPods(name),
        ])
    }

    /// Ignores the phase from now on, because the ends of the pods end the workload.
    fn begin_ending(&mut self) {
        (self.ignores_phase, self.phase) = (true, WorkloadPhase::Ending);
        self.start.end();
    }

    /// Ends the workload, because its node is gone and its pods do not end. Returns the outcome.
    pub(super) fn end_with_lost_node(&mut self) -> WorkloadOutcome {
        let message =
            "its pod was deleted, but its node has not reported the end: is the node gone?";
        self.forced_end.get_or_insert(ForcedEnd {
            message: message.to_owned(),
            class: Some(Class::Transient),
            disruption: Some("NodeLost: its pod does not end".to_owned()),
        });
        WorkloadOutcome::failure(message.to_owned())
    }

    /// Returns the news of the end. The controller calls a requested stop permanent. The prospect of a retry depends on
    /// the reason for the stop.
    pub(super) fn into_end(self, outcome: WorkloadOutcome) -> JobEndEvent {
        let WorkloadOutcome { succeeded, exit_code, message, class, cause, disruption, .. } =
            outcome;
        let (message, class, cause, disruption) = match self.forced_end {
            None => (message, class, cause, disruption.map(|disruption| disruption.evidence)),
            Some(ForcedEnd { message, class, disruption }) => (message, class, None, disruption),
        };
        let base = JobEnd { exit_code, message: Some(message), class, cause, ..JobEnd::default() };
        // The attempt was probably never created. Like an attempt that a listing lacks at a resume, another one
        // replaces it.
        let end = JobEnd { disruption, succeeded, replaced: self.is_unconfirmed, ..base };
        JobEndEvent { trial: self.trial, attempt: self.attempt, end }
    }

    /// Returns the deadlines of the workload.
    pub(super) fn deadlines<'a>(
        &'a self,
        rules: &'a TrackerRules,
        pods: &'a ObservedPods,
        queue_watch: &'a QueueWatch,
    ) -> JobDeadlines<'a> {
        JobDeadlines::new(self, rules, pods, queue_watch)
    }

    /// Returns the actions that are due at `now`.
    pub(super) fn tick(
        &mut self,
        rules: &TrackerRules,
        pods: &mut ObservedPods,
        queue_watch: &QueueWatch,
        now: Duration,
    ) -> Vec<TrackerAction> {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| now >= at);
        if is_due(self.deadlines(rules, pods, queue_watch).deletion_deadline()) {
            self.stop = Some(StopState::Deleted);
            return vec![TrackerAction::DeleteUnstopped(self.name.clone())];
        }
        let mut actions = Vec::new();
        if is_due(self.deadlines(rules, pods, queue_watch).report_deadline()) {
            self.start.ignore_silence();
            actions.push(TrackerAction::ReadOutput(self.name.clone()));
        }
        if is_due(self.deadlines(rules, pods, queue_watch).settlement_deadline()) {
            self.ending_since = Some(now);
            actions.push(TrackerAction::ConcludeFromPods(self.name.clone()));
        }
        if is_due(self.deadlines(rules, pods, queue_watch).pods_end_deadline()) {
            pods.restart_outliving(&self.name, now);
            actions.push(TrackerAction::ConcludeFromPods(self.name.clone()));
        }
        if is_due(self.deadlines(rules, pods, queue_watch).stop_deadline()) {
            actions.extend(self.stop(now));
            return actions;
        }
        if is_due(self.deadlines(rules, pods, queue_watch).unnoticed_report()) {
            self.queried_at = Some(now);
            let why = self.queue.unnoticed_reason();
            actions.extend(self.set_wait_reason(Some(why)));
        }
        let start = self.deadlines(rules, pods, queue_watch).start_deadline();
        if let Some(deadline) = start.filter(|deadline| now >= deadline.at) {
            actions.extend(self.fail_to_start(deadline, rules, now));
        } else if is_due(self.deadlines(rules, pods, queue_watch).next_query()) {
            self.queried_at = Some(now);
            actions.push(TrackerAction::QueryMissingPod(self.name.clone()));
        }
        actions
    }

    /// Stops a workload that has not started in time.
    fn fail_to_start(
        &mut self,
        StartDeadline { class, suspension_limit, .. }: StartDeadline,
        rules: &TrackerRules,
        now: Duration,
    ) -> Vec<TrackerAction> {
        let why = self.reason.current().unwrap_or("the cluster shows no reason");
        let message = match suspension_limit {
            Some(time) => {
                let hours = time.as_secs() / 3600;
                format!("nothing resumed the trial within {hours} h: {why}")
            }
            None => {
                let waited = rules.start_up.as_secs();
                format!("the trial did not start within {waited} s (startUpDeadline): {why}")
            }
        };
        self.stop_for(ForcedEnd::failure(message, class), now)
    }
}
