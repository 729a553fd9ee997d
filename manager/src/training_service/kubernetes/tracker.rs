//! PURE: the tracker of an experiment's workloads. Its input is observations, and its output is actions and news. It
//! has no clock and does no I/O.
//!
//! Its parts have private fields, and the tracker passes each observation to the parts that it concerns:
//!
//! * [`TrackedWorkload`] decides about one workload.
//! * [`ObservedPods`] has the observed pods.
//! * [`UnadoptedWorkloads`] has the workloads of an earlier manager that are not adopted yet.
//! * [`FinishedWorkloads`] has the workloads that have ended.
//!
//! # Invariants
//!
//! 1. The end of an attempt is reported once. Afterwards, the tracker only deletes its remains.
//! 2. An attempt ends when its workload is completed or gone, could not be created, or runs on a node that is gone.
//!    Nothing else ends it.
//! 3. The next listing reveals changes that a watch missed.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use trial_protocol::{AttemptId, TrialJobId};

pub use self::action::TrackerAction;
use self::finished::FinishedWorkloads;
use self::job_index::WorkloadIndex;
use self::listing::WorkloadListing;
pub use self::pod_observation::{observe_missing_pod, observe_pod};
pub use self::pods::{ObservedPods, PodDeparture, PodKey};
use self::queue::QueueWatch;
use self::rules::TrackerRules;
use self::tracked_workload::{TrackedWorkload, WorkloadChange};
use self::unadopted::UnadoptedWorkloads;
use super::client::WatchedObject;
use super::disruption::Disruption;
use super::kueue::QueueState;
use super::outcome::{WorkloadOutcome, WorkloadPhase};
use super::workload::{StopRequest, Workload};
use crate::config::kubernetes::WorkloadKind;
use crate::training_service::{AdoptionResult, JobEnd, JobEndEvent, JobNews, VerdictCertainty};

mod action;
mod finished;
mod job_index;
mod listing;
mod pod_observation;
mod pods;
mod queue;
mod rules;
mod start;
mod tracked_workload;
mod unadopted;
mod wait_reason;

/// The message of a workload that succeeded without a report from its agent.
const UNREPORTED_SUCCESS: &str = "its pod succeeded, but its agent did not report it: can pods reach the manager? See --advertise";

/// Tracks the workloads of an experiment.
#[derive(Debug)]
pub struct Tracker {
    rules: TrackerRules,
    jobs: WorkloadIndex,
    pods: ObservedPods,
    listing: WorkloadListing,
    unadopted: UnadoptedWorkloads,
    finished: FinishedWorkloads,
    queue_watch: QueueWatch,
}

impl Tracker {
    /// Creates an empty tracker. A workload fails if its pods have not started within `start_up`. `grace` is the pods'
    /// grace period.
    pub fn new(kind: &'static dyn Workload, start_up: Duration, grace: Duration) -> Self {
        Self {
            rules: TrackerRules { kind, start_up, grace, pods: 1 },
            jobs: WorkloadIndex::default(),
            pods: ObservedPods::new(kind),
            listing: WorkloadListing::default(),
            unadopted: UnadoptedWorkloads::default(),
            finished: FinishedWorkloads::default(),
            queue_watch: QueueWatch::default(),
        }
    }

    /// Returns the kind of the workloads.
    pub fn kind(&self) -> WorkloadKind {
        self.rules.kind.kind()
    }

    /// Returns this tracker for workloads that wait in a queue that they name.
    #[must_use]
    pub fn with_queue(self, queued: bool) -> Self {
        Self { queue_watch: QueueWatch::new(queued), ..self }
    }

    /// Returns this tracker for workloads with this number of pods.
    #[must_use]
    pub fn with_pods(self, pods: u64) -> Self {
        Self { rules: TrackerRules { pods, ..self.rules }, ..self }
    }

    /// Returns whether a complete listing of the cluster has been seen.
    pub fn is_listed(&self) -> bool {
        self.listing.has_completed()
    }

    /// Adds an attempt that is about to be submitted under this name.
    pub fn add_attempt(
        &mut self,
        name: &str,
        trial: TrialJobId,
        attempt: AttemptId,
        now: Duration,
    ) {
        let job = self.new_job(name, (trial, attempt), WorkloadPhase::Unseen, now);
        self.jobs.insert(job);
    }

    fn new_job(
        &self,
        name: &str,
        of: (TrialJobId, AttemptId),
        phase: WorkloadPhase,
        now: Duration,
    ) -> TrackedWorkload {
        TrackedWorkload::new(name, of, phase, self.pods.place_count(name), now)
    }

    /// Handles the result of a submission.
    pub fn handle_submission(
        &mut self,
        name: &str,
        outcome: Result<(), String>,
        now: Duration,
    ) -> Vec<TrackerAction> {
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        match outcome {
            Ok(()) => job.handle_creation(now),
            Err(message) => {
                // A watch has shown the workload, although no answer confirmed its creation.
                let discard =
                    job.is_created().then(|| TrackerAction::DeleteLeftover(name.to_owned()));
                let actions = self.end_job(name, WorkloadOutcome::failure(message));
                actions.into_iter().chain(discard).collect()
            }
        }
    }

    /// Returns the known number of TrialKeeper's workloads in the cluster.
    pub fn workload_count(&self) -> usize {
        let live = self.jobs.iter().filter(|job| job.is_created()).count();
        live + self.finished.len() + self.unadopted.len()
    }

    /// Returns the workload of a trial if its pods are known to run.
    pub fn running_workload(&self, trial: &TrialJobId) -> Option<String> {
        let job = self.jobs.latest_of_trial(trial).filter(|job| job.has_running_pods())?;
        Some(job.name().to_owned())
    }

    /// Returns the attempt that a workload runs.
    pub fn attempt_of(&self, name: &str) -> Option<AttemptId> {
        self.jobs.get(name).map(|job| job.attempt().clone())
    }

    /// Returns the unique id of a workload.
    pub fn id_of(&self, name: &str) -> Option<&str> {
        self.jobs.get(name)?.id()
    }

    /// Returns whether a stop was requested for an attempt, or the attempt has ended.
    pub fn is_stop_requested(&self, name: &str) -> bool {
        self.jobs.get(name).is_none_or(TrackedWorkload::has_stop_request)
    }

    /// Returns whether the cluster is known to have the workload of an attempt.
    pub fn is_created(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(TrackedWorkload::is_created)
    }

    /// Returns whether the controller has examined a workload.
    pub fn is_examined(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(TrackedWorkload::is_examined)
    }

    /// Returns whether a workload waits in a queue for its turn.
    pub fn is_waiting_in_queue(&self) -> bool {
        self.jobs.iter().any(TrackedWorkload::is_waiting_in_queue)
    }

    /// Returns whether a workload continues after its trial was recorded as ended.
    pub fn has_handed_over(&self) -> bool {
        self.jobs.iter().any(TrackedWorkload::is_handed_over)
    }

    /// Handles the report of an agent that its trial runs, which the watch of the workloads may show later.
    pub fn mark_running(&mut self, trial: &TrialJobId) {
        if let Some(job) = self.jobs.latest_of_trial_mut(trial) {
            job.mark_running(&self.rules);
        }
    }

    /// Returns the fate of an earlier manager's attempt. Before the first complete listing, an attempt that was not
    /// listed may run, and must not run twice. The listing reveals whether its workload exists.
    pub fn adopt(
        &mut self,
        name: &str,
        trial: &TrialJobId,
        attempt: &AttemptId,
        now: Duration,
    ) -> (AdoptionResult, Vec<TrackerAction>) {
        let of = (trial.clone(), attempt.clone());
        let Some(workload) = self.unadopted.remove(name) else {
            return (self.adopt_unlisted(name, of, now), Vec::new());
        };
        let (phase, queue) = workload.into_parts();
        // Nothing remains to be delivered: the caller has the agent's reports, or they were lost with the pod.
        if let WorkloadPhase::Completed(WorkloadOutcome {
            succeeded: true,
            needs_pods: false,
            exit_code,
            class,
            ..
        }) = phase
        {
            self.finished.add(attempt.clone());
            let message = Some(UNREPORTED_SUCCESS.to_owned());
            let end = JobEnd { exit_code, message, class, succeeded: true, ..JobEnd::default() };
            let event = JobEndEvent { trial: of.0, attempt: of.1, end };
            return (AdoptionResult::Gone(event), Vec::new());
        }
        let job = self.new_job(name, of, WorkloadPhase::Waiting, now);
        self.jobs.insert(job);
        self.observe_queue_name(name, queue.as_deref());
        let is_expected = self.listing.is_expected(name);
        let actions = self.handle_phase(name, phase, now);
        // The previous observation does not prove that the workload still exists.
        if is_expected {
            self.listing.add_expected(name);
        }
        (AdoptionResult::Alive, actions)
    }

    /// Adopts an attempt whose workload no listing has shown.
    fn adopt_unlisted(
        &mut self,
        name: &str,
        of: (TrialJobId, AttemptId),
        now: Duration,
    ) -> AdoptionResult {
        if self.listing.has_completed() {
            return AdoptionResult::Unknown;
        }
        let job = self.new_job(name, of, WorkloadPhase::Unseen, now).into_unlisted();
        self.jobs.insert(job);
        self.listing.add_expected(name);
        AdoptionResult::Alive
    }

    /// Lets the workloads that an earlier manager left, and that were not adopted, end by themselves for a while, and
    /// then deletes them. Their trials have ended.
    pub fn end_unadopted(&mut self, now: Duration) {
        self.unadopted.set_deadline(now + self.rules.stop_limit());
    }

    /// Handles the metadata of a workload that is not adopted.
    pub fn observe_unadopted(&mut self, object: &WatchedObject) {
        self.unadopted.observe_metadata(object);
    }

    /// Requests the stop of a trial.
    pub fn stop_trial(&mut self, trial: &TrialJobId, now: Duration) -> Vec<TrackerAction> {
        self.jobs.latest_of_trial_mut(trial).map(|job| job.stop(now)).unwrap_or_default()
    }

    /// Stops the workload of a trial that has ended according to its agent, while the workload has not.
    pub fn finish(&mut self, trial: &TrialJobId, now: Duration) -> Vec<TrackerAction> {
        self.jobs.latest_of_trial_mut(trial).map(|job| job.finish(now)).unwrap_or_default()
    }

    /// Records that a trial has ended while its workload still exists. `false`: the trial ends with its workload,
    /// because the cluster may have removed a pod before another failed.
    pub fn accept_verdict_end(
        &mut self,
        trial: &TrialJobId,
        certainty: VerdictCertainty,
        now: Duration,
    ) -> (bool, Vec<TrackerAction>) {
        let is_final = certainty == VerdictCertainty::Final;
        let Some(job) = self.jobs.latest_of_trial(trial) else { return (is_final, Vec::new()) };
        let has_disruption =
            self.pods.has_disruption(job.name()) || self.disruption_by_deletion(job).is_some();
        if !is_final && (has_disruption || !job.can_explain_end(certainty)) {
            return (false, Vec::new());
        }
        let actions = self.jobs.latest_of_trial_mut(trial).map(|job| job.accept_verdict_end(now));
        (true, actions.unwrap_or_default())
    }

    /// Handles the unique id of a workload.
    pub fn observe_id(&mut self, name: &str, id: Option<&str>) {
        if let Some(job) = self.jobs.get_mut(name) {
            job.observe_id(id);
        }
    }

    /// Handles the observed phase of a workload.
    pub fn handle_phase(
        &mut self,
        name: &str,
        phase: WorkloadPhase,
        now: Duration,
    ) -> Vec<TrackerAction> {
        self.listing.record_news(name);
        let Some(job) = self.jobs.get_mut(name) else {
            // After the first listing, foreign workloads are no longer of interest.
            if self.listing.can_show_more() || self.unadopted.contains(name) {
                self.unadopted.observe_phase(name, phase);
            }
            return Vec::new();
        };
        if job.can_resume_in(&phase) {
            self.pods.mark_deleted_as_past(name);
        }
        match job.handle_phase(phase, &self.rules, &mut self.queue_watch, now) {
            WorkloadChange::Continues(actions) => actions,
            WorkloadChange::Ends(outcome) => self.complete_end(name, outcome),
        }
    }

    /// Handles the disappearance of a workload.
    pub fn handle_deleted_workload(&mut self, name: &str) -> Vec<TrackerAction> {
        self.unadopted.remove(name);
        self.listing.record_news(name);
        let Some(job) = self.jobs.get_mut(name).filter(|job| job.is_created()) else {
            return Vec::new();
        };
        if self.pods.place_count(name) > 0 {
            job.confirm_creation();
        }
        match job.handle_deletion(&self.rules) {
            WorkloadChange::Continues(actions) => actions,
            WorkloadChange::Ends(outcome) => self.end_job(name, outcome),
        }
    }

    /// Ends a workload that was deleted. Its pods are gone, or their time limit has passed.
    pub fn end_deleted_workload(&mut self, name: &str) -> Vec<TrackerAction> {
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        let outcome = job.outcome_of_deletion();
        self.end_job(name, outcome)
    }

    /// Begins a listing of the workloads.
    pub fn begin_listing(&mut self) {
        let made = self.jobs.iter().filter(|job| job.is_created()).map(|job| job.name().to_owned());
        // The workloads of an earlier manager stay known during the listing. A resume may ask for one at any time, and
        // would start an unknown one a second time.
        self.listing.begin(made.chain(self.unadopted.names().cloned()).collect());
    }

    /// Completes a listing. A workload that was not listed is gone.
    pub fn complete_listing(&mut self) -> Vec<TrackerAction> {
        let missing = self.listing.complete();
        missing.iter().flat_map(|name| self.handle_deleted_workload(name)).collect()
    }

    /// Handles the observed reason why a pod of a workload waits.
    pub fn set_wait_reason(&mut self, name: &str, why: Option<String>) -> Vec<TrackerAction> {
        self.jobs.get_mut(name).map(|job| job.set_wait_reason(why)).unwrap_or_default()
    }

    /// Handles the cluster's reason for a missing pod. `None`: the cluster shows no reason.
    pub fn handle_missing_pod(&mut self, name: &str, why: Option<String>) -> Vec<TrackerAction> {
        let rules = &self.rules;
        let Some(job) = self.jobs.get_mut(name).filter(|job| job.is_idle(rules)) else {
            return Vec::new();
        };
        let is_quota_exhausted = why.as_ref().is_some_and(|why| why.contains("exceeded quota"));
        let actions = job.handle_missing_pod(why, rules);
        // The pods of finished workloads count for a quota of objects.
        let deletion = is_quota_exhausted.then(|| self.delete_old_workloads()).flatten();
        actions.into_iter().chain(deletion).collect()
    }

    /// Handles a rule of the cluster that denies a pod of a workload.
    pub fn handle_denied_pod(
        &mut self,
        name: &str,
        why: String,
        now: Duration,
    ) -> Vec<TrackerAction> {
        let job = self.jobs.get_mut(name).filter(|job| job.is_idle(&self.rules));
        job.map(|job| job.handle_denied_pod(why, now)).unwrap_or_default()
    }

    /// Handles the last line of output, if known, of a running pod whose agent has not reported.
    pub fn handle_silent_agent(
        &mut self,
        name: &str,
        last_line: Option<&str>,
    ) -> Vec<TrackerAction> {
        let job = self.jobs.get_mut(name);
        job.map(|job| job.handle_silent_agent(last_line, &self.rules)).unwrap_or_default()
    }

    /// Handles the state of a workload in its queue. `None`: the queue has only noticed the workload.
    pub fn handle_queue_state(
        &mut self,
        name: &str,
        state: Option<QueueState>,
        now: Duration,
    ) -> Vec<TrackerAction> {
        self.jobs.get_mut(name).map(|job| job.handle_queue_state(state, now)).unwrap_or_default()
    }

    /// Handles the start of a gapless watch of the queues (`true`), or a gap in it.
    pub fn observe_queue_watch(&mut self, is_complete: bool, now: Duration) {
        self.queue_watch.observe(is_complete, now);
    }

    /// Handles the queue in the label of a workload.
    pub fn observe_queue_name(&mut self, name: &str, queue: Option<&str>) {
        let is_added = !self.queue_watch.is_named();
        if let Some(job) = self.jobs.get_mut(name).filter(|_| is_added) {
            job.observe_queue_label(queue);
        }
    }

    /// Handles the number of workloads ahead of each waiting workload, by its name.
    pub fn handle_positions(&mut self, ahead: &HashMap<String, u64>) -> Vec<TrackerAction> {
        let news = self.jobs.iter_mut().filter_map(|job| {
            let ahead = ahead.get(job.name()).copied();
            job.handle_position(ahead)
        });
        news.collect()
    }

    /// Returns whether a workload belongs to the experiment, or may belong to it because no listing is complete yet.
    fn can_own(&self, name: &str) -> bool {
        !self.listing.has_completed() || self.jobs.contains(name) || self.unadopted.contains(name)
    }

    /// Returns the observed pods, to add an observation of this pod, unless it is foreign.
    fn pods_unless_foreign(&mut self, pod: PodKey<'_>) -> Option<&mut ObservedPods> {
        self.can_own(pod.workload).then_some(&mut self.pods)
    }

    /// Handles the observation of a pod: its reason for waiting, and its disruption by the platform.
    pub fn observe_pod<'a>(
        &mut self,
        pod: impl Into<PodKey<'a>>,
        why: Option<String>,
        disruption: Option<Disruption>,
    ) -> Vec<TrackerAction> {
        let pod = pod.into();
        let Some(pods) = self.pods_unless_foreign(pod) else { return Vec::new() };
        pods.set_disruption(pod, disruption);
        // A deleted pod's reason to wait does not matter, because its workload has another pod or none.
        if pods.is_deleted(pod) {
            return Vec::new();
        }
        let places = pods.place_count(pod.workload);
        let Some(job) = self.jobs.get_mut(pod.workload) else { return Vec::new() };
        job.observe_places(places);
        job.set_wait_reason(why)
    }

    /// Handles the image of the pod whose metrics are the trial's.
    pub fn report_image(&mut self, name: &str, image: String) -> Option<TrackerAction> {
        self.jobs.get_mut(name)?.report_image(image)
    }

    /// Handles a pod that ends, or has ended.
    pub fn observe_pod_end<'a>(&mut self, pod: impl Into<PodKey<'a>>, seen: Value) {
        let pod = pod.into();
        if let Some(pods) = self.pods_unless_foreign(pod) {
            pods.record_end(pod, seen);
        }
    }

    /// Handles whether a pod has scheduling gates. Its workload has the whole time to start without them.
    pub fn observe_pod_gates<'a>(
        &mut self,
        pod: impl Into<PodKey<'a>>,
        is_gated: bool,
        now: Duration,
    ) {
        let pod = pod.into();
        let Some(pods) = self.pods_unless_foreign(pod) else { return };
        let was_gated = pods.is_gated(pod.workload);
        pods.record_gates(pod, is_gated);
        let is_free = was_gated && !pods.is_gated(pod.workload);
        if let Some(job) = self.jobs.get_mut(pod.workload).filter(|_| is_free) {
            job.handle_ungating(now);
        }
    }

    /// Handles whether a pod runs on although its trial has ended. The kinds' controllers wait for such a pod.
    pub fn observe_outliving_pod<'a>(
        &mut self,
        pod: impl Into<PodKey<'a>>,
        has_outlived_trial: bool,
        now: Duration,
    ) {
        let pod = pod.into();
        if let Some(pods) = self.pods_unless_foreign(pod) {
            pods.record_outliving(pod, has_outlived_trial.then_some(now));
        }
    }

    /// Handles a running pod, which its workload may show later.
    pub fn mark_pod_running<'a>(&mut self, pod: impl Into<PodKey<'a>>) -> Option<TrackerAction> {
        self.jobs.get_mut(pod.into().workload)?.mark_pod_running()
    }

    /// Handles a pod whose containers have all ended. The workload may end with the pod.
    pub fn mark_pod_completed<'a>(&mut self, pod: impl Into<PodKey<'a>>, now: Duration) {
        let pod = pod.into();
        let counts = self.pods.is_current(pod);
        if let Some(job) = self.jobs.get_mut(pod.workload).filter(|_| counts) {
            job.mark_pod_completed(now);
        }
    }

    /// Handles a step in the disappearance of a pod. `incarnation` is the pod's unique id.
    pub fn observe_pod_departure<'a>(
        &mut self,
        pod: impl Into<PodKey<'a>>,
        incarnation: Option<&str>,
        departure: PodDeparture,
        now: Duration,
    ) -> Option<TrackerAction> {
        let (pod, wanted) = (pod.into(), self.rules.pods);
        let is_up = |pods: &ObservedPods| pods.started_place_count(pod.workload) >= wanted;
        let was_up = is_up(&self.pods);
        if let Some(pods) = self.pods_unless_foreign(pod) {
            pods.record_deletion(pod, incarnation, departure, now);
        }
        let job = self.jobs.get_mut(pod.workload)?;
        if was_up && !is_up(&self.pods) {
            job.handle_replaced_pod(now);
        }
        let incarnation =
            incarnation.filter(|_| wanted > 1 && departure != PodDeparture::NotDeleted)?;
        let is_new = self.pods.record_departure(pod);
        is_new.then(|| job.report_pod_left(incarnation.to_owned()))
    }

    /// Begins a listing of the pods.
    pub fn begin_pod_listing(&mut self) {
        self.pods.begin_listing();
    }

    /// Completes a listing of the pods. A pod that was not listed is gone.
    pub fn complete_pod_listing(&mut self, now: Duration) -> Vec<TrackerAction> {
        let gone = self.pods.complete_listing().into_iter();
        let left = gone.filter_map(|(workload, name, incarnation)| {
            let pod = PodKey { workload: &workload, name: &name };
            self.observe_pod_departure(pod, incarnation.as_deref(), PodDeparture::Gone, now)
        });
        left.collect()
    }

    /// Returns the observed pods.
    pub fn pods(&self) -> &ObservedPods {
        &self.pods
    }

    /// Returns the pod of a workload with a single pod, if the pod's own end was observed. A listing is then not
    /// necessary.
    pub fn only_ended_pod(&self, name: &str) -> Option<Value> {
        self.pods.only_ended_pod(name).filter(|_| self.rules.pods == 1)
    }

    /// Deletes the remains of ended attempts early, when a quota of the cluster is exhausted.
    pub fn delete_old_workloads(&mut self) -> Option<TrackerAction> {
        self.finished.delete_for_quota()
    }

    /// Handles the end of a workload, completed with the observations of its pods.
    pub fn complete_end(&mut self, name: &str, outcome: WorkloadOutcome) -> Vec<TrackerAction> {
        let outcome = self.add_disruption(name, outcome);
        self.end_job(name, outcome)
    }

    /// Ends a workload by the ends of its pods. `why` states why its controller has not written the end. `has_running`:
    /// some of its pods still run, and end with the workload.
    pub fn end_from_pods(
        &mut self,
        name: &str,
        outcome: WorkloadOutcome,
        why: &str,
        has_running: bool,
    ) -> Vec<TrackerAction> {
        let outcome = self.add_disruption(name, outcome);
        let message = format!("{}; {why}", outcome.message);
        let outcome = WorkloadOutcome { message, ..outcome };
        let change = match self.jobs.get_mut(name).filter(|_| has_running) {
            Some(job) => job.settle(outcome),
            None => WorkloadChange::Ends(outcome),
        };
        match change {
            WorkloadChange::Continues(actions) => actions,
            WorkloadChange::Ends(outcome) => self.end_job(name, outcome),
        }
    }

    fn add_disruption(&self, name: &str, outcome: WorkloadOutcome) -> WorkloadOutcome {
        if outcome.succeeded {
            return WorkloadOutcome { message: UNREPORTED_SUCCESS.to_owned(), ..outcome };
        }
        let outcome = self.pods.with_observed_disruption(name, outcome);
        if self.rules.pods == 1 || outcome.disruption.is_some() {
            return outcome;
        }
        match self.jobs.get(name).and_then(|job| self.disruption_by_deletion(job)) {
            Some(disruption) => outcome.with_lost_peer(disruption),
            None => self.pods.with_lost_peer(name, outcome),
        }
    }

    /// Returns the disruption of a workload whose first lost pod was deleted, but not by the manager, before another
    /// pod failed.
    fn disruption_by_deletion(&self, job: &TrackedWorkload) -> Option<Disruption> {
        if self.rules.pods <= 1 || job.has_stop_request() {
            return None;
        }
        self.pods.first_deleted(job.name()).map(Disruption::of_deleted_pod)
    }

    fn end_job(&mut self, name: &str, outcome: WorkloadOutcome) -> Vec<TrackerAction> {
        let Some(job) = self.jobs.remove(name) else { return Vec::new() };
        self.pods.remove_workload(name);
        self.finished.add(job.attempt().clone());
        let end = TrackerAction::Report(JobNews::Gone(job.into_end(outcome)));
        std::iter::once(end).chain(self.finished.delete_excess()).collect()
    }

    /// Returns the time of the next [`Self::tick`].
    pub fn next_deadline(&self) -> Option<Duration> {
        let (rules, pods, queue_watch) = (&self.rules, &self.pods, &self.queue_watch);
        let jobs = self
            .jobs
            .iter()
            .filter_map(|job| job.deadlines(rules, pods, queue_watch).next_deadline());
        let lost = self.lost_node_deadlines().map(|(_, at)| at);
        let unadopted = self.unadopted.deadline().filter(|_| self.listing.has_completed());
        jobs.chain(lost).chain(unadopted).min()
    }

    /// Returns the actions that are due at `now`.
    pub fn tick(&mut self, now: Duration) -> Vec<TrackerAction> {
        let mut actions = self.end_pods_of_lost_nodes(now);
        actions.extend(self.discard_unadopted(now));
        for job in self.jobs.iter_mut() {
            actions.extend(job.tick(&self.rules, &mut self.pods, &self.queue_watch, now));
        }
        actions
    }

    /// Returns the workloads whose deleted pods have not ended, each with the time from which its node counts as gone.
    fn lost_node_deadlines(&self) -> impl Iterator<Item = (&TrackedWorkload, Duration)> {
        let is_deleted = self.rules.kind.stop_request() == StopRequest::Delete;
        let deleted = self.pods.workloads_with_deleted_pods().filter(move |_| is_deleted);
        deleted.filter_map(|(name, since)| {
            let job = self.jobs.get(name).filter(|job| job.can_end_with_pods())?;
            Some((job, since + self.rules.node_gone_limit()))
        })
    }

    /// Ends workloads whose pods should have ended long ago: their nodes are gone, and their controllers wait for them.
    fn end_pods_of_lost_nodes(&mut self, now: Duration) -> Vec<TrackerAction> {
        let late = self.lost_node_deadlines().filter(|(_, at)| now >= *at);
        let late: Vec<String> = late.map(|(job, _)| job.name().to_owned()).collect();
        let mut actions = Vec::new();
        for name in late {
            let Some(job) = self.jobs.get_mut(&name) else { continue };
            let outcome = job.end_with_lost_node();
            actions.push(TrackerAction::DeleteLeftover(name.clone()));
            actions.extend(self.end_job(&name, outcome));
        }
        actions
    }

    /// Returns the deletions of unadopted workloads that are due at `now`. Those that have ended count as the oldest
    /// finished ones.
    fn discard_unadopted(&mut self, now: Duration) -> Vec<TrackerAction> {
        let is_listed = self.listing.has_completed();
        let discarded = is_listed.then(|| self.unadopted.take_due_deletions(now)).flatten();
        let Some((mut actions, ended)) = discarded else { return Vec::new() };
        self.finished.add_oldest(ended);
        actions.extend(self.finished.delete_excess());
        actions
    }
}

#[cfg(test)]
mod tests;
