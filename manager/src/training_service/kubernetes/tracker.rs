//! PURE: the tracker of an experiment's workloads. Observations go in, actions and news come out; no clock, no I/O.
//!
//! # Invariants
//!
//! 1. The end of an attempt is told once, and after it nothing is done about the attempt but tidying up.
//! 2. An attempt ends when its workload is completed or gone, could not be made, or runs on a node that is gone; nothing
//!    else ends it.
//! 3. Changes that no watch saw are found by the next listing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use trial_protocol::{AttemptId, TrialJobId};

pub use self::act::Act;
use self::job::{ForcedEnd, Job, Stop, UNREPORTED, tell_why};
pub use self::pods::PodGoes;
use self::pods::Pods;
use super::disruption::Disruption;
use super::outcome::{JobPhase, Outcome};
use super::pending_reason::workload_of;
use super::workload::{StopRequest, Workload};
use crate::training_service::{Adopted, JobEvent, JobNews};

mod act;
mod deadlines;
mod job;
mod pods;
mod queue;
mod waits;

/// The time for which the controller may leave a new workload alone before that is given as the reason for waiting.
const UNSEEN: Duration = Duration::from_secs(20);
/// The time after which the cluster is asked again why nothing happens to a workload.
const ASK_AGAIN: Duration = Duration::from_mins(3);
/// The time beyond its pods' own that a workload may take to end after it was stopped. Then it is deleted.
const MARGIN: Duration = Duration::from_mins(1);
/// The time for which pods may run before it is worth saying that no agent has started the trial. Most do within
/// seconds; who is told looks whether it is so.
const UNHEARD: Duration = Duration::from_secs(30);
/// Finished workloads that are left in the cluster for a manager that comes back, and how many are tidied up
/// at a time.
const KEPT: usize = 100;
const TIDIED: usize = 50;
/// The number of them that are left where a quota wants room: their ends may not be recorded yet.
const SPARED: usize = 10;

/// The workloads of an experiment.
#[derive(Debug)]
pub struct Tracker {
    kind: &'static dyn Workload,
    start_up: Duration,
    patience: Duration,
    jobs: HashMap<String, Job>,
    /// The latest attempt of each trial.
    latest: HashMap<TrialJobId, String>,
    /// The workloads that an earlier manager left, until they are adopted.
    strangers: HashMap<String, JobPhase>,
    /// A listing is under way: names that were made before it began, and were not listed yet.
    missing: Option<HashSet<String>>,
    listed: bool,
    finished: VecDeque<AttemptId>,
    pods: Pods,
    /// Workloads name a queue.
    queued: bool,
    /// True if the news of queues is watched.
    watches_queue: bool,
    /// The number of pods of a workload.
    wanted: u64,
    grace: Duration,
}

impl Tracker {
    /// An empty tracker. A workload whose pods have not started within `start_up` has failed; each pod may take
    /// `grace` to end.
    pub fn new(kind: &'static dyn Workload, start_up: Duration, grace: Duration) -> Self {
        Self {
            kind,
            start_up,
            patience: grace + MARGIN,
            jobs: HashMap::new(),
            latest: HashMap::new(),
            strangers: HashMap::new(),
            missing: None,
            listed: false,
            finished: VecDeque::new(),
            pods: Pods::new(kind),
            queued: false,
            watches_queue: false,
            wanted: 1,
            grace,
        }
    }

    /// Returns this tracker for workloads that wait in a queue which they name.
    #[must_use]
    pub fn queued(self, queued: bool) -> Self {
        Self { queued, watches_queue: queued, ..self }
    }

    /// Returns this tracker for workloads of so many pods.
    #[must_use]
    pub fn with_pods(self, wanted: u64) -> Self {
        Self { wanted, ..self }
    }

    /// Returns whether everything in the cluster has been seen once.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// An attempt is about to be submitted under this name.
    pub fn submit(&mut self, name: &str, trial: TrialJobId, attempt: AttemptId, now: Duration) {
        self.enter(name, trial, attempt, now, JobPhase::Unseen);
    }

    fn enter(
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
            waits_since: Some(now),
            runs_since: None,
            // An earlier manager's pods may have been listed before.
            places: self.pods.places(name),
            made,
            phase,
            why: None,
            told_why: None,
            image: None,
            is_inspected: false,
            asked_about: None,
            stop: None,
            forced: None,
            waited: Duration::ZERO,
            suspended_since: None,
            // So may have run what an earlier manager made.
            ran: made,
            in_queue: false,
            queue_why: None,
            never_fits_since: None,
            ending_since: None,
            handed_over: None,
        };
        self.jobs.insert(name.to_owned(), job);
    }

    /// The cluster has taken it, or will not.
    pub fn submitted(
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
            Err(message) => self.end(name, Outcome::unseen(message)),
        }
    }

    /// Returns the number of our workloads in the cluster, as far as is known.
    pub fn made(&self) -> usize {
        let live = self.jobs.values().filter(|job| job.made).count();
        live + self.finished.len() + self.strangers.len()
    }

    /// The workload of a trial whose pods run, as far as is known.
    pub fn running(&self, trial: &TrialJobId) -> Option<String> {
        let name = self.latest.get(trial)?;
        let runs = |job: &Job| matches!(job.phase, JobPhase::Starting | JobPhase::Running);
        self.jobs.get(name).is_some_and(runs).then(|| name.clone())
    }

    /// The attempt that a workload runs.
    pub fn attempt(&self, name: &str) -> Option<AttemptId> {
        self.jobs.get(name).map(|job| job.attempt.clone())
    }

    /// Returns whether a stop was requested for an attempt that is not made yet.
    pub fn is_unwanted(&self, name: &str) -> bool {
        self.jobs.get(name).is_none_or(|job| job.stop == Some(Stop::Wanted))
    }

    /// Returns the fate of an attempt of an earlier manager. Only once everything was listed.
    pub fn adopt(
        &mut self,
        name: &str,
        trial: &TrialJobId,
        attempt: &AttemptId,
        now: Duration,
    ) -> (Adopted, Vec<Act>) {
        let Some(phase) = self.strangers.remove(name) else {
            return (Adopted::Unknown, Vec::new());
        };
        // Its reports were lost with its pod, or were delivered: the caller knows. Nothing else is.
        if let JobPhase::Completed(Outcome {
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
        self.enter(name, trial.clone(), attempt.clone(), now, JobPhase::Waiting);
        let unlisted = self.missing.as_ref().is_some_and(|missing| missing.contains(name));
        let acts = self.workload(name, phase, now);
        // What was known of it is no news of its being there.
        if let Some(missing) = self.missing.as_mut().filter(|_| unlisted) {
            missing.insert(name.to_owned());
        }
        (Adopted::Alive, acts)
    }

    /// A stop of a trial is requested.
    pub fn stop_trial(&mut self, trial: &TrialJobId, now: Duration) -> Vec<Act> {
        let Some(name) = self.latest.get(trial).cloned() else { return Vec::new() };
        self.stop(&name, now)
    }

    /// A trial has ended as its agent said, and its workload has not.
    pub fn finish(&mut self, trial: &TrialJobId, now: Duration) -> Vec<Act> {
        let Some(name) = self.latest.get(trial).cloned() else { return Vec::new() };
        // A queue that took the trial back lets it run again.
        if self.jobs.get(&name).is_some_and(|job| job.phase == JobPhase::Suspended) {
            return Vec::new();
        }
        if let Some(job) = self.jobs.get_mut(&name)
            && job.stop.is_none()
        {
            job.forced = Some(ForcedEnd::failure(
                "its trial had ended and its pod did not: does something else run in the pod, or is its node down?"
                    .to_owned(),
            ));
        }
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

    /// A workload stands as it was just seen.
    pub fn workload(&mut self, name: &str, phase: JobPhase, now: Duration) -> Vec<Act> {
        if let Some(missing) = &mut self.missing {
            missing.remove(name);
        }
        let Some(job) = self.jobs.get_mut(name) else {
            // After the first listing, foreign workloads were told of already.
            let listing = !self.listed || self.missing.is_some();
            if listing || self.strangers.contains_key(name) {
                self.strangers.insert(name.to_owned(), phase);
            }
            return Vec::new();
        };
        job.made = true;
        let was_suspended = std::mem::replace(&mut job.phase, phase) == JobPhase::Suspended;
        if was_suspended && !matches!(job.phase, JobPhase::Suspended | JobPhase::Completed(_)) {
            self.pods.resume(name);
        }
        match &job.phase {
            JobPhase::Unseen => Vec::new(),
            JobPhase::Suspended => self.suspended(name, now),
            // Also of a pod that is tried again.
            JobPhase::Waiting | JobPhase::Starting => {
                if was_suspended {
                    (job.why, job.asked_about, job.suspended_since) = (None, None, None);
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
            JobPhase::Completed(outcome) if outcome.needs_pods => {
                let outcome = outcome.clone();
                if std::mem::replace(&mut job.is_inspected, true) {
                    return Vec::new();
                }
                vec![Act::Inspect(name.to_owned(), outcome)]
            }
            JobPhase::Completed(outcome) => {
                let outcome = outcome.clone();
                self.explained(name, outcome)
            }
        }
    }

    /// A workload is gone.
    pub fn workload_gone(&mut self, name: &str) -> Vec<Act> {
        self.strangers.remove(name);
        if let Some(missing) = &mut self.missing {
            missing.remove(name);
        }
        let Some(job) = self.jobs.get_mut(name).filter(|job| job.made) else { return Vec::new() };
        // Its pods may have been deleted with it, and say no more; or their end is awaited already.
        if job.is_inspected {
            return Vec::new();
        }
        let message = match job.stop {
            Some(Stop::Deleted) => "it did not end within its time and was deleted".to_owned(),
            Some(Stop::Asked(_)) if self.kind.stop() == StopRequest::Delete => {
                job.is_inspected = true;
                job.phase = JobPhase::Ending;
                return vec![Act::AwaitPods(name.to_owned())];
            }
            Some(Stop::Wanted | Stop::Asked(_)) | None => {
                format!("somebody deleted its {}", self.kind.resource().kind)
            }
        };
        self.end(name, Outcome::unseen(message))
    }

    /// The pods of a workload that was deleted on request are gone, or their time is up.
    pub fn pods_gone(&mut self, name: &str) -> Vec<Act> {
        self.end(name, Outcome::unseen("stopped on request".to_owned()))
    }

    /// Everything is listed from here on.
    pub fn listing(&mut self) {
        let made = self.jobs.iter().filter(|(_, job)| job.made).map(|(name, _)| name);
        // What an earlier manager left stays known meanwhile: a resume may ask for it at any time, and what is
        // unknown then is started a second time.
        self.missing = Some(made.chain(self.strangers.keys()).cloned().collect());
    }

    /// Everything has been listed: what was there and is no longer is gone.
    pub fn listing_done(&mut self) -> Vec<Act> {
        self.listed = true;
        let missing = self.missing.take().unwrap_or_default();
        missing.iter().flat_map(|name| self.workload_gone(name)).collect()
    }

    /// Enters the reason why a pod of a workload waits, as it was just seen.
    pub fn waits(&mut self, name: &str, why: Option<String>) -> Vec<Act> {
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        if job.waits_since.is_none() && job.phase != JobPhase::Suspended {
            return Vec::new();
        }
        // What a pod no longer says, or says in fewer words, may still be so; only running disproves it.
        let known = job.why.as_deref().unwrap_or_default();
        if let Some(why) = why.filter(|why| !known.starts_with(why)) {
            job.why = Some(why);
        }
        tell_why(job).into_iter().collect()
    }

    /// A pod was seen: what it waits for, and whether the platform takes it away.
    pub fn pod(
        &mut self,
        pod: &str,
        why: Option<String>,
        disruption: Option<Disruption>,
    ) -> Vec<Act> {
        let name = workload_of(pod);
        if !self.knows(name) {
            return Vec::new();
        }
        // It waits for nothing any more, and its workload has another or none.
        if self.pods.is_deleted(pod) {
            self.pods.seen(pod, disruption);
            return Vec::new();
        }
        self.pods.seen(pod, disruption);
        let places = self.pods.places(name);
        if let Some(job) = self.jobs.get_mut(name)
            && std::mem::replace(&mut job.places, places) < places
            && job.phase != JobPhase::Suspended
        {
            job.why = None;
        }
        self.waits(name, why)
    }

    /// The cluster takes nothing more: what is left of attempts that have ended can go before its time.
    pub fn make_room(&mut self) -> Option<Act> {
        let many = self.finished.len().checked_sub(SPARED).filter(|many| *many > 0)?;
        Some(Act::Tidy(self.finished.drain(..many).collect()))
    }

    /// A workload ended so, with all that its pods say where the workload itself does not.
    pub fn explained(&mut self, name: &str, outcome: Outcome) -> Vec<Act> {
        let outcome = if outcome.succeeded {
            Outcome { message: UNREPORTED.to_owned(), ..outcome }
        } else {
            self.pods.explain(name, outcome)
        };
        self.end(name, outcome)
    }

    fn end(&mut self, name: &str, outcome: Outcome) -> Vec<Act> {
        let Some(job) = self.jobs.remove(name) else { return Vec::new() };
        let Job { trial, attempt, forced, .. } = job;
        if self.latest.get(&trial).is_some_and(|latest| latest == name) {
            self.latest.remove(&trial);
        }
        self.pods.forget(name);
        // A stop of ours is permanent to the controller; why we asked for it says what another try would do.
        let Outcome { succeeded, exit_code, message, class, cause, disruption, .. } = outcome;
        let (message, class, cause, disruption) = match forced {
            None => (message, class, cause, disruption.map(|disruption| disruption.said)),
            Some(ForcedEnd { message, class, disruption }) => (message, class, None, disruption),
        };
        let message = Some(message);
        self.finished.push_back(attempt.clone());
        let unexplained = JobEvent::unexplained(trial, attempt);
        let told = JobEvent { exit_code, message, class, cause, ..unexplained };
        let event = JobEvent { disruption, succeeded, ..told };
        let mut acts = vec![Act::Tell(JobNews::Gone(event))];
        if self.finished.len() >= KEPT + TIDIED {
            acts.push(Act::Tidy(self.finished.drain(..TIDIED).collect()));
        }
        acts
    }
}

#[cfg(test)]
mod tests;
