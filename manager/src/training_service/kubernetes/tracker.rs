//! PURE: the tracker of an experiment's workloads. Its input is observations, and its output is actions and news. It
//! has no clock and does no I/O.
//!
//! # Invariants
//!
//! 1. The end of an attempt is reported once. Afterwards, the tracker only deletes its remains.
//! 2. An attempt ends when its workload is completed or gone, could not be created, or runs on a node that is gone.
//!    Nothing else ends it.
//! 3. The next listing reveals changes that a watch missed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use trial_protocol::{AttemptId, Class, TrialJobId};

pub use self::act::Act;
use self::early_ends::UnadoptedMetadata;
use self::job::{ForcedEnd, Job, Stop, UNREPORTED, report_reason};
pub use self::pod_observation::{observe_missing_pod, observe_pod};
pub use self::pods::PodDeparture;
use self::pods::Pods;
use super::disruption::Disruption;
use super::outcome::{JobPhase, WorkloadOutcome};
use super::pending_reason::workload_of;
use super::workload::{StopRequest, Workload};
use crate::training_service::{Adopted, JobEvent, JobNews};

mod act;
mod deadlines;
mod early_ends;
mod job;
mod pod_observation;
mod pods;
mod queue;
mod waits;

/// The time that a new workload may go unnoticed before the tracker gives that as the reason for waiting.
const UNSEEN_TIME: Duration = Duration::from_secs(20);
/// The interval between queries to the cluster about an idle workload.
const QUERY_INTERVAL: Duration = Duration::from_mins(3);
/// The time beyond its pods' grace period in which a workload must end after a stop. Otherwise it is deleted.
const STOP_MARGIN: Duration = Duration::from_mins(1);
/// The time for which pods may run before the tracker reports that no agent has started the trial. Most agents start
/// the trial within seconds. The tracker does not see agents' reports, so the receiver of the news checks that.
const SILENT_TIME: Duration = Duration::from_secs(30);
/// The number of finished workloads that stay in the cluster for a returning manager, and the number that is deleted at
/// a time.
const MAX_FINISHED: usize = 100;
const DELETE_BATCH: usize = 50;
/// The number of finished workloads that stay even if a quota is exhausted, because their ends may not be recorded yet.
const MIN_FINISHED: usize = 10;

/// Tracks the workloads of an experiment.
#[derive(Debug)]
pub struct Tracker {
    kind: &'static dyn Workload,
    start_up: Duration,
    patience: Duration,
    jobs: HashMap<String, Job>,
    /// The latest attempt of each trial.
    latest: HashMap<TrialJobId, String>,
    /// The workloads of an earlier manager that are not yet adopted.
    unadopted: HashMap<String, JobPhase>,
    /// The metadata of such workloads.
    unadopted_metadata: HashMap<String, UnadoptedMetadata>,
    /// The time from which unadopted workloads that have not ended are deleted. `None`: more may be adopted.
    end_unadopted_at: Option<Duration>,
    /// The workloads that were created before the current listing began, and that the listing has not shown yet.
    /// `None`: no listing is in progress.
    missing: Option<HashSet<String>>,
    listed: bool,
    finished: VecDeque<AttemptId>,
    pods: Pods,
    /// Set if the workloads' labels name a queue.
    queued: bool,
    /// Set if the queues are watched.
    watches_queue: bool,
    /// The time of the first complete listing of the queues since their watch last failed.
    queue_listed_at: Option<Duration>,
    /// The number of pods of a workload.
    wanted: u64,
    grace: Duration,
}

impl Tracker {
    /// Creates an empty tracker. A workload fails if its pods have not started within `start_up`. `grace` is the pods'
    /// grace period.
    pub fn new(kind: &'static dyn Workload, start_up: Duration, grace: Duration) -> Self {
        Self {
            kind,
            start_up,
            patience: grace + STOP_MARGIN,
            jobs: HashMap::new(),
            latest: HashMap::new(),
            unadopted: HashMap::new(),
            unadopted_metadata: HashMap::new(),
            end_unadopted_at: None,
            missing: None,
            listed: false,
            finished: VecDeque::new(),
            pods: Pods::new(kind),
            queued: false,
            watches_queue: false,
            queue_listed_at: None,
            wanted: 1,
            grace,
        }
    }

    /// Returns this tracker for workloads that wait in a queue that they name.
    #[must_use]
    pub fn with_queue(self, queued: bool) -> Self {
        Self { queued, watches_queue: queued, ..self }
    }

    /// Returns this tracker for workloads with this number of pods.
    #[must_use]
    pub fn with_pods(self, wanted: u64) -> Self {
        Self { wanted, ..self }
    }

    /// Returns whether a complete listing of the cluster has been seen.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Adds an attempt that is about to be submitted under this name.
    pub fn submit(&mut self, name: &str, trial: TrialJobId, attempt: AttemptId, now: Duration) {
        self.insert_job(name, trial, attempt, now, JobPhase::Unseen);
    }

    fn insert_job(
        &mut self,
        name: &str,
        trial: TrialJobId,
        attempt: AttemptId,
        now: Duration,
        phase: JobPhase,
    ) {
        self.latest.insert(trial.clone(), name.to_owned());
        let made = phase != JobPhase::Unseen;
        let job = Job {
            trial,
            attempt,
            id: None,
            queue_name: None,
            waits_since: Some(now),
            runs_since: None,
            // A listing may already have shown the pods of an earlier manager.
            places: self.pods.places(name),
            made,
            phase,
            why: None,
            reported_why: None,
            image: None,
            is_inspected: false,
            queried_at: None,
            stop: None,
            forced: None,
            waited: Duration::ZERO,
            suspended_since: None,
            // A workload that an earlier manager created may have run.
            ran: made,
            is_requeued: false,
            is_reported_running: false,
            in_queue: false,
            queue_why: None,
            position: None,
            never_fits_since: None,
            ending_since: None,
            handed_over: None,
            settled: None,
        };
        self.jobs.insert(name.to_owned(), job);
    }

    /// Handles the result of a submission.
    pub fn handle_submission(
        &mut self,
        name: &str,
        outcome: Result<(), String>,
        now: Duration,
    ) -> Vec<Act> {
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        match outcome {
            Ok(()) => {
                job.made = true;
                if job.stop == Some(Stop::Wanted) {
                    job.stop = Some(Stop::Asked(now));
                    return vec![Act::Stop(name.to_owned())];
                }
                Vec::new()
            }
            Err(message) => {
                // A watch has shown the workload, although no answer confirmed its creation.
                let discard = job.made.then(|| Act::Discard(name.to_owned()));
                let acts = self.end(name, WorkloadOutcome::failure(message));
                acts.into_iter().chain(discard).collect()
            }
        }
    }

    /// Returns the known number of TrialKeeper's workloads in the cluster.
    pub fn workload_count(&self) -> usize {
        let live = self.jobs.values().filter(|job| job.made).count();
        live + self.finished.len() + self.unadopted.len()
    }

    /// Returns the workload of a trial if its pods are known to run.
    pub fn running_workload(&self, trial: &TrialJobId) -> Option<String> {
        let name = self.latest.get(trial)?;
        let runs = |job: &Job| matches!(job.phase, JobPhase::Starting | JobPhase::Running);
        self.jobs.get(name).is_some_and(runs).then(|| name.clone())
    }

    /// Returns the attempt that a workload runs.
    pub fn attempt_of(&self, name: &str) -> Option<AttemptId> {
        self.jobs.get(name).map(|job| job.attempt.clone())
    }

    /// Returns whether a stop was requested for an attempt, or the attempt has ended.
    pub fn is_stop_requested(&self, name: &str) -> bool {
        self.jobs.get(name).is_none_or(|job| job.stop.is_some())
    }

    /// Returns whether the cluster is known to have the workload of an attempt.
    pub fn is_made(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(|job| job.made)
    }

    /// Handles the report of an agent that its trial runs, which the watch of the workloads may show later. The other
    /// pods of a trial with several have no such report.
    pub fn mark_running(&mut self, trial: &TrialJobId) {
        let name = self.latest.get(trial).filter(|_| self.wanted == 1);
        if let Some(job) = name.and_then(|name| self.jobs.get_mut(name)) {
            job.is_reported_running = true;
        }
    }

    /// Returns the fate of an earlier manager's attempt. Before the first complete listing, an attempt that was not listed
    /// may run, and must not run twice. The listing reveals whether its workload exists.
    pub fn adopt(
        &mut self,
        name: &str,
        trial: &TrialJobId,
        attempt: &AttemptId,
        now: Duration,
    ) -> (Adopted, Vec<Act>) {
        let Some(phase) = self.unadopted.remove(name) else {
            return (self.adopt_unlisted(name, trial, attempt, now), Vec::new());
        };
        // Nothing remains to be delivered: the caller has the agent's reports, or they were lost with the pod.
        if let JobPhase::Completed(WorkloadOutcome {
            succeeded: true,
            needs_pods: false,
            exit_code,
            class,
            ..
        }) = phase
        {
            self.finished.push_back(attempt.clone());
            let (trial, attempt) = (trial.clone(), attempt.clone());
            let message = Some(UNREPORTED.to_owned());
            let unexplained = JobEvent::unexplained(trial, attempt);
            let event = JobEvent { exit_code, message, class, succeeded: true, ..unexplained };
            return (Adopted::Gone(event), Vec::new());
        }
        self.insert_job(name, trial.clone(), attempt.clone(), now, JobPhase::Waiting);
        let metadata = self.unadopted_metadata.remove(name);
        self.observe_queue_name(name, metadata.and_then(|known| known.queue).as_deref());
        let unlisted = self.missing.as_ref().is_some_and(|missing| missing.contains(name));
        let acts = self.handle_phase(name, phase, now);
        // The previous observation does not prove that the workload still exists.
        if let Some(missing) = self.missing.as_mut().filter(|_| unlisted) {
            missing.insert(name.to_owned());
        }
        (Adopted::Alive, acts)
    }

    /// Adopts an attempt whose workload no listing has shown.
    fn adopt_unlisted(
        &mut self,
        name: &str,
        trial: &TrialJobId,
        attempt: &AttemptId,
        now: Duration,
    ) -> Adopted {
        if self.listed {
            return Adopted::Unknown;
        }
        self.insert_job(name, trial.clone(), attempt.clone(), now, JobPhase::Unseen);
        if let Some(job) = self.jobs.get_mut(name) {
            // No deadline runs before the cluster shows the workload.
            (job.made, job.ran, job.waits_since) = (true, true, None);
        }
        if let Some(missing) = &mut self.missing {
            missing.insert(name.to_owned());
        }
        Adopted::Alive
    }

    /// Requests the stop of a trial.
    pub fn stop_trial(&mut self, trial: &TrialJobId, now: Duration) -> Vec<Act> {
        let Some(name) = self.latest.get(trial).cloned() else { return Vec::new() };
        self.stop(&name, now)
    }

    fn stop(&mut self, name: &str, now: Duration) -> Vec<Act> {
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        if job.stop.is_some() {
            return Vec::new();
        }
        if !job.made {
            job.stop = Some(Stop::Wanted);
            return Vec::new();
        }
        job.runs_since = None;
        job.stop = Some(Stop::Asked(now));
        vec![Act::Stop(name.to_owned())]
    }

    /// Handles the observed phase of a workload.
    pub fn handle_phase(&mut self, name: &str, phase: JobPhase, now: Duration) -> Vec<Act> {
        if let Some(missing) = &mut self.missing {
            missing.remove(name);
        }
        let Some(job) = self.jobs.get_mut(name) else {
            // After the first listing, foreign workloads are no longer of interest.
            let listing = !self.listed || self.missing.is_some();
            if listing || self.unadopted.contains_key(name) {
                self.unadopted.insert(name.to_owned(), phase);
            }
            return Vec::new();
        };
        job.made = true;
        let was_suspended = std::mem::replace(&mut job.phase, phase) == JobPhase::Suspended;
        if was_suspended && !matches!(job.phase, JobPhase::Suspended | JobPhase::Completed(_)) {
            self.pods.resume(name);
            job.is_requeued = false;
        }
        match &job.phase {
            JobPhase::Unseen => Vec::new(),
            JobPhase::Suspended => self.handle_suspension(name, now),
            // A pod that is retried also returns to these phases.
            JobPhase::Waiting | JobPhase::Starting => {
                if was_suspended {
                    (job.why, job.queried_at, job.suspended_since) = (None, None, None);
                }
                job.ran |= job.phase == JobPhase::Starting;
                job.waits_since = job.waits_since.or(Some(now));
                job.runs_since = None;
                Vec::new()
            }
            JobPhase::Running => {
                (job.ran, job.waited, job.suspended_since) = (true, Duration::ZERO, None);
                if job.waits_since.take().is_some() {
                    job.runs_since = Some(now);
                    job.why = None;
                }
                Vec::new()
            }
            JobPhase::Ending => {
                (job.waits_since, job.runs_since, job.why) = (None, None, None);
                job.ran = true;
                job.ending_since = job.ending_since.or(Some(now));
                Vec::new()
            }
            JobPhase::Completed(outcome) if outcome.needs_pods || self.kind.ends_before_pods() => {
                let outcome = outcome.clone();
                if std::mem::replace(&mut job.is_inspected, true) {
                    return Vec::new();
                }
                vec![Act::Inspect(name.to_owned(), outcome)]
            }
            JobPhase::Completed(outcome) => {
                let outcome = outcome.clone();
                self.complete_end(name, outcome)
            }
        }
    }

    /// Handles the disappearance of a workload.
    pub fn handle_deleted_workload(&mut self, name: &str) -> Vec<Act> {
        self.unadopted.remove(name);
        if let Some(missing) = &mut self.missing {
            missing.remove(name);
        }
        let Some(job) = self.jobs.get_mut(name).filter(|job| job.made) else { return Vec::new() };
        // The tracker already waits for the pods' end or reads their status. The pods may have been deleted with the
        // workload, so reading them again would show nothing.
        if job.is_inspected {
            return Vec::new();
        }
        let end = match job.stop {
            Some(Stop::Deleted) => {
                let message = "the workload did not end within its time and was deleted";
                return self.end(name, WorkloadOutcome::failure(message.to_owned()));
            }
            Some(Stop::Asked(_)) if self.kind.stop() == StopRequest::Delete => None,
            Some(Stop::Wanted | Stop::Asked(_)) | None => {
                let kind = self.kind.resource().kind;
                let message = format!("its {kind} was deleted, but not by the manager");
                Some(ForcedEnd { message, class: Some(Class::Transient), disruption: None })
            }
        };
        job.forced = job.forced.take().or(end);
        if self.kind.stop() == StopRequest::Delete {
            // The pods have their grace period. Another attempt must not run beside them.
            (job.is_inspected, job.phase) = (true, JobPhase::Ending);
            (job.waits_since, job.runs_since, job.suspended_since) = (None, None, None);
            return vec![Act::AwaitPods(name.to_owned())];
        }
        self.end_deleted_workload(name)
    }

    /// Ends a workload that was deleted. Its pods are gone, or their time limit has passed.
    pub fn end_deleted_workload(&mut self, name: &str) -> Vec<Act> {
        if let Some(outcome) = self.jobs.get_mut(name).and_then(|job| job.settled.take()) {
            return self.end(name, outcome);
        }
        self.end(name, WorkloadOutcome::failure("stopped on request".to_owned()))
    }

    /// Begins a listing of the workloads.
    pub fn begin_listing(&mut self) {
        let made = self.jobs.iter().filter(|(_, job)| job.made).map(|(name, _)| name);
        // The workloads of an earlier manager stay known during the listing. A resume may ask for one at any time, and
        // would start an unknown one a second time.
        self.missing = Some(made.chain(self.unadopted.keys()).cloned().collect());
    }

    /// Completes a listing. A workload that was not listed is gone.
    pub fn complete_listing(&mut self) -> Vec<Act> {
        self.listed = true;
        let missing = self.missing.take().unwrap_or_default();
        missing.iter().flat_map(|name| self.handle_deleted_workload(name)).collect()
    }

    /// Handles the observed reason why a pod of a workload waits.
    pub fn set_wait_reason(&mut self, name: &str, why: Option<String>) -> Vec<Act> {
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        if job.waits_since.is_none() && job.phase != JobPhase::Suspended {
            return Vec::new();
        }
        // A reason may still hold if the pod no longer reports it, or reports it in less detail. Only a running pod
        // disproves it.
        let known = job.why.as_deref().unwrap_or_default();
        if let Some(why) = why.filter(|why| !known.starts_with(why)) {
            job.why = Some(why);
        }
        report_reason(job).into_iter().collect()
    }

    /// Handles the observation of a pod: its reason for waiting, and its disruption by the platform.
    pub fn observe_pod(
        &mut self,
        pod: &str,
        why: Option<String>,
        disruption: Option<Disruption>,
    ) -> Vec<Act> {
        let name = workload_of(pod);
        if !self.knows(name) {
            return Vec::new();
        }
        // A deleted pod's reason to wait does not matter, because its workload has another pod or none.
        if self.pods.is_deleted(pod) {
            self.pods.set_disruption(pod, disruption);
            return Vec::new();
        }
        self.pods.set_disruption(pod, disruption);
        let places = self.pods.places(name);
        if let Some(job) = self.jobs.get_mut(name)
            && std::mem::replace(&mut job.places, places) < places
            && job.phase != JobPhase::Suspended
        {
            job.why = None;
        }
        self.set_wait_reason(name, why)
    }

    /// Deletes the remains of ended attempts early, when a quota of the cluster is exhausted.
    pub fn delete_old_workloads(&mut self) -> Option<Act> {
        let many = self.finished.len().checked_sub(MIN_FINISHED).filter(|many| *many > 0)?;
        Some(Act::Tidy(self.finished.drain(..many).collect()))
    }

    /// Handles the end of a workload, completed with the observations of its pods.
    pub fn complete_end(&mut self, name: &str, outcome: WorkloadOutcome) -> Vec<Act> {
        let outcome = self.explained(name, outcome);
        self.end(name, outcome)
    }

    /// Handles the end of a workload that was read from its pods, since its controller does not write it for the reason
    /// `why`. `has_running`: some of its pods still run, and end with the workload.
    pub fn settle_end(
        &mut self,
        name: &str,
        outcome: WorkloadOutcome,
        why: &str,
        has_running: bool,
    ) -> Vec<Act> {
        let outcome = self.explained(name, outcome);
        let message = format!("{}; {why}", outcome.message);
        let outcome = WorkloadOutcome { message, ..outcome };
        let Some(job) = self.jobs.get_mut(name).filter(|job| has_running && !job.is_inspected)
        else {
            return self.end(name, outcome);
        };
        (job.settled, job.is_inspected, job.phase) = (Some(outcome), true, JobPhase::Ending);
        (job.waits_since, job.runs_since) = (None, None);
        vec![Act::Discard(name.to_owned()), Act::AwaitPods(name.to_owned())]
    }

    fn explained(&self, name: &str, outcome: WorkloadOutcome) -> WorkloadOutcome {
        if outcome.succeeded {
            return WorkloadOutcome { message: UNREPORTED.to_owned(), ..outcome };
        }
        let outcome = self.pods.explain(name, outcome);
        if self.wanted == 1 || outcome.disruption.is_some() {
            return outcome;
        }
        match self.disruption_by_deletion(name) {
            Some(disruption) => outcome.with_lost_peer(disruption),
            None => self.pods.with_lost_peer(name, outcome),
        }
    }

    /// Returns the disruption of a workload whose first lost pod was deleted, but not by the manager, before another pod
    /// failed.
    fn disruption_by_deletion(&self, name: &str) -> Option<Disruption> {
        self.jobs.get(name).filter(|job| self.wanted > 1 && job.stop.is_none())?;
        self.pods.first_deleted(name).map(Disruption::of_deleted_pod)
    }

    fn end(&mut self, name: &str, outcome: WorkloadOutcome) -> Vec<Act> {
        let Some(job) = self.jobs.remove(name) else { return Vec::new() };
        let Job { trial, attempt, forced, .. } = job;
        if self.latest.get(&trial).is_some_and(|latest| latest == name) {
            self.latest.remove(&trial);
        }
        self.pods.forget(name);
        // The controller calls a requested stop permanent. The prospect of a retry depends on the reason for the stop.
        let WorkloadOutcome { succeeded, exit_code, message, class, cause, disruption, .. } =
            outcome;
        let (message, class, cause, disruption) = match forced {
            None => (message, class, cause, disruption.map(|disruption| disruption.evidence)),
            Some(ForcedEnd { message, class, disruption }) => (message, class, None, disruption),
        };
        let message = Some(message);
        self.finished.push_back(attempt.clone());
        let unexplained = JobEvent::unexplained(trial, attempt);
        let base = JobEvent { exit_code, message, class, cause, ..unexplained };
        let event = JobEvent { disruption, succeeded, ..base };
        let mut acts = vec![Act::Report(JobNews::Gone(event))];
        acts.extend(self.tidy_finished());
        acts
    }

    /// Deletes the remains of attempts that ended long ago, if there are many.
    fn tidy_finished(&mut self) -> Vec<Act> {
        let mut acts = Vec::new();
        while self.finished.len() >= MAX_FINISHED + DELETE_BATCH {
            acts.push(Act::Tidy(self.finished.drain(..DELETE_BATCH).collect()));
        }
        acts
    }
}

#[cfg(test)]
mod tests;
