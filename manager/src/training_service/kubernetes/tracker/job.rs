//! PURE: the state of one workload.

use std::time::Duration;

use trial_protocol::{AttemptId, Class, TrialJobId};

use super::{ASK_AGAIN, Act, UNSEEN};
use crate::training_service::kubernetes::outcome::JobPhase;
use crate::training_service::kubernetes::workload::Workload;
use crate::training_service::{JobNews, JobWaits};

/// The reason that a workload waits that is not to run yet, until its queue says more.
pub(super) const SUSPENDED: &str =
    "it is suspended: a queue, or a person with `kubectl`, is to let it run";

/// The message of a workload that succeeded without a report of its agent.
pub(super) const UNREPORTED: &str = "its pod ended well, but its agent never reported so: can pods reach the manager? See --advertise";

/// A workload that has not ended.
#[expect(clippy::struct_excessive_bools, reason = "facts that come and go one by one")]
#[derive(Debug)]
pub(super) struct Job {
    pub(super) trial: TrialJobId,
    pub(super) attempt: AttemptId,
    /// Since when it waits for a pod. `None`: they run.
    pub(super) waits_since: Option<Duration>,
    /// The time for which it waited for pods before its queue took it back.
    pub(super) waited: Duration,
    /// Since when it is not to run yet.
    pub(super) suspended_since: Option<Duration>,
    /// It has run, or may have, since it was last taken back.
    pub(super) ran: bool,
    /// Its queue has taken it in.
    pub(super) in_queue: bool,
    /// The queue's words, while it does not let the workload run.
    pub(super) queue_why: Option<String>,
    /// Since when its queue could not let it run even if it were empty.
    pub(super) never_fits_since: Option<Duration>,
    /// Since when it is decided how it ends, or was last looked at for that.
    pub(super) ending_since: Option<Duration>,
    /// When its trial was recorded as ended, which it is not.
    pub(super) handed_over: Option<Duration>,
    /// Since when its pods run, until that was told.
    pub(super) runs_since: Option<Duration>,
    /// The number of places that have had a pod since it may run.
    pub(super) places: u64,
    /// The cluster has it.
    pub(super) made: bool,
    pub(super) phase: JobPhase,
    /// The reason that it waits, and whether that was told.
    pub(super) why: Option<String>,
    pub(super) told_why: Option<String>,
    /// The image that was told.
    pub(super) image: Option<String>,
    /// Its pods are being read, or their end is awaited: what is seen of it meanwhile says no more.
    pub(super) is_inspected: bool,
    /// The time at which the cluster was last asked why it lacks a pod.
    pub(super) asked_about: Option<Duration>,
    pub(super) stop: Option<Stop>,
    /// An end that outranks how the workload ends after it was stopped for it.
    pub(super) forced: Option<ForcedEnd>,
}

/// The end of a workload that was stopped for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForcedEnd {
    /// Why, for a person.
    pub(super) message: String,
    /// The prospect of a retry, where that is known.
    pub(super) class: Option<Class>,
    /// The platform's words, where it took the workload away.
    pub(super) disruption: Option<String>,
}

impl ForcedEnd {
    /// A failure of which only this message is known.
    pub(super) fn failure(message: String) -> Self {
        Self { message, class: None, disruption: None }
    }
}

impl Job {
    /// When the cluster is to be asked why nothing happens to it. `None`: something does. It is to have `wanted` pods.
    pub(super) fn asks_at(&self, wanted: u64) -> Option<Duration> {
        let is_idle = self.stop.is_none() && self.is_left_alone(wanted);
        let since = self.waits_since.filter(|_| is_idle)?;
        Some(self.asked_about.map_or(since + UNSEEN, |asked| asked + ASK_AGAIN))
    }

    /// Returns whether its controller has not looked at it, or has not made all of its pods.
    pub(super) fn is_left_alone(&self, wanted: u64) -> bool {
        match self.phase {
            // Where one pod is there and another was refused, the status may stay empty for ever.
            JobPhase::Unseen => self.made,
            JobPhase::Waiting | JobPhase::Starting => self.places < wanted,
            JobPhase::Suspended | JobPhase::Running | JobPhase::Ending | JobPhase::Completed(_) => {
                false
            }
        }
    }

    /// Returns the probable reason if nothing has happened to it for a while, where nothing else says why.
    pub(super) fn left_alone(&self, kind: &dyn Workload, wanted: u64) -> Option<String> {
        if self.why.is_some() || !self.is_left_alone(wanted) {
            return None;
        }
        let controller = kind.controller();
        let pods = match (&self.phase, self.places) {
            (JobPhase::Unseen, _) => {
                return Some(format!(
                    "{controller} has not looked at it; does its pod run, and does it watch this namespace?"
                ));
            }
            (_, 0) => "no pod".to_owned(),
            (_, made) => format!("only {made} of {wanted} pods"),
        };
        Some(format!(
            "{controller} has made {pods} for it; does a quota (`kubectl describe quota`), the namespace's Pod Security profile, a webhook or a service account that is not there stand in the way? {controller}'s log says so"
        ))
    }
}

/// A stop that was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Wanted; the workload is not made yet.
    Wanted,
    /// Asked for, at this time.
    Asked(Duration),
    /// It did not help; deleted.
    Deleted,
}

/// Returns the news of why it waits, if the reason is new.
pub(super) fn tell_why(job: &mut Job) -> Option<Act> {
    if job.why == job.told_why {
        return None;
    }
    job.told_why.clone_from(&job.why);
    let why = job.why.clone()?;
    let (trial, attempt) = (job.trial.clone(), job.attempt.clone());
    Some(Act::Tell(JobNews::Waits(JobWaits { trial, attempt, why })))
}
