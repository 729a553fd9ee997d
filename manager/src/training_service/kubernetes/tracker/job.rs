//! PURE: the state of one workload.

use std::time::Duration;

use trial_protocol::{AttemptId, Class, TrialJobId};

use super::{Act, QUERY_INTERVAL, UNSEEN_TIME};
use crate::training_service::kubernetes::outcome::{JobPhase, WorkloadOutcome};
use crate::training_service::kubernetes::workload::Workload;
use crate::training_service::{JobNews, JobWaits};

/// The reason for the wait of a suspended workload until its queue gives another.
pub(super) const SUSPENDED: &str =
    "it is suspended: a queue, another controller, or a user with `kubectl`, must resume it";

/// The reason for the wait of a workload that its queue does not know.
const NO_WORKLOAD: &str = "Kueue has created no Workload for the trial: does Kueue run, does it manage this namespace, is the kind among its `integrations.frameworks`, and does the WorkloadPriorityClass exist? Its log gives the reason";

/// Returns the phrase about the label of a queue that the experiment file does not name.
fn label(queue: &str) -> String {
    format!("the cluster gave it the label `kueue.x-k8s.io/queue-name: {queue}`")
}

/// The message of a workload that succeeded without a report from its agent.
pub(super) const UNREPORTED: &str = "its pod succeeded, but its agent did not report it: can pods reach the manager? See --advertise";

/// A workload that has not ended.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Debug)]
pub(super) struct Job {
    pub(super) trial: TrialJobId,
    pub(super) attempt: AttemptId,
    /// The object's unique id, if it was seen.
    pub(super) id: Option<String>,
    /// The queue in the object's label, if the experiment file names none. The cluster adds the label in a namespace with
    /// a default queue.
    pub(super) queue_name: Option<String>,
    /// The time since which the workload waits for a pod. `None`: its pods run.
    pub(super) waits_since: Option<Duration>,
    /// The time that the workload had waited for pods when its queue took it back.
    pub(super) waited: Duration,
    /// The time since which the workload is suspended.
    pub(super) suspended_since: Option<Duration>,
    /// Set if the workload has run, or may have, since its queue last took it back.
    pub(super) ran: bool,
    /// Set if the tracker has reported that the queue took the workload back, until the workload may run again.
    pub(super) is_requeued: bool,
    /// Set if an agent has reported that the trial runs, until the queue takes the workload back.
    pub(super) is_reported_running: bool,
    /// Set if a queue has noticed the workload.
    pub(super) in_queue: bool,
    /// The queue's reason, while it does not let the workload run.
    pub(super) queue_why: Option<String>,
    /// The position in the queue, as a phrase, if the queue tells it.
    pub(super) position: Option<String>,
    /// The time since which the workload would not fit even into an empty queue.
    pub(super) never_fits_since: Option<Duration>,
    /// The time since which the end of the workload is decided, or the time at which the tracker last read its pods.
    pub(super) ending_since: Option<Duration>,
    /// The time at which its trial was recorded as ended while the workload continued.
    pub(super) handed_over: Option<Duration>,
    /// The end that was read from its pods, while the remaining pods end.
    pub(super) settled: Option<WorkloadOutcome>,
    /// The time since which the pods run. `None` also after the tracker has asked for a silent agent's output.
    pub(super) runs_since: Option<Duration>,
    /// The number of pod places that have had a pod since the workload may run.
    pub(super) places: u64,
    /// Set if the cluster has the workload.
    pub(super) made: bool,
    pub(super) phase: JobPhase,
    /// The reason for the wait, and the last reason that was reported.
    pub(super) why: Option<String>,
    pub(super) reported_why: Option<String>,
    /// The last image that was reported.
    pub(super) image: Option<String>,
    /// Set while its pods are read or their end is awaited. Observations of the workload then add nothing.
    pub(super) is_inspected: bool,
    /// The time of the last query to the cluster about a missing pod.
    pub(super) queried_at: Option<Duration>,
    pub(super) stop: Option<Stop>,
    /// An end that takes precedence over the observed one, because the workload was stopped for it.
    pub(super) forced: Option<ForcedEnd>,
}

/// The reason for which a workload was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForcedEnd {
    /// The reason, for the user.
    pub(super) message: String,
    /// The prospect of a retry, if it is known.
    pub(super) class: Option<Class>,
    /// The platform's statement, if it removed the workload.
    pub(super) disruption: Option<String>,
}

impl ForcedEnd {
    /// Creates a failure with only this message.
    pub(super) fn failure(message: String) -> Self {
        Self { message, class: None, disruption: None }
    }
}

impl Job {
    /// Returns the time of the next query to the cluster about an idle workload that needs `wanted` pods. `None`: the
    /// workload makes progress.
    pub(super) fn next_query(&self, wanted: u64) -> Option<Duration> {
        let is_idle = self.stop.is_none() && self.is_idle(wanted);
        let since = self.waits_since.filter(|_| is_idle)?;
        Some(self.queried_at.map_or(since + UNSEEN_TIME, |queried_at| queried_at + QUERY_INTERVAL))
    }

    /// Returns the queue's reason with the position in the queue. `None`: the queue lets the workload run.
    pub(super) fn queue_reason(&self) -> Option<String> {
        let why = self.queue_why.as_ref()?;
        Some(match &self.position {
            Some(position) => format!("{why}; {position}"),
            None => why.clone(),
        })
    }

    /// Returns the news that the queue has taken the workload back.
    pub(super) fn report_requeue(&mut self) -> Act {
        let why = self.why.take().unwrap_or_else(|| self.suspended_reason());
        self.why = Some(why.clone());
        self.is_requeued = true;
        (self.queried_at, self.reported_why) = (None, Some(why.clone()));
        let (trial, attempt) = (self.trial.clone(), self.attempt.clone());
        Act::Report(JobNews::Requeued(JobWaits { trial, attempt, why }))
    }

    /// Returns the reason for the wait of the suspended workload until its queue gives another.
    pub(super) fn suspended_reason(&self) -> String {
        match &self.queue_name {
            Some(queue) => format!("it is suspended: {}, so Kueue must admit it", label(queue)),
            None => SUSPENDED.to_owned(),
        }
    }

    /// Returns the reason for the wait of a workload that its queue does not know.
    pub(super) fn unnoticed_reason(&self) -> String {
        match &self.queue_name {
            Some(queue) => {
                format!(
                    "it is suspended: {}, but no Workload exists for it. {NO_WORKLOAD}",
                    label(queue)
                )
            }
            None => NO_WORKLOAD.to_owned(),
        }
    }

    /// Returns whether the controller has not examined the workload, or has not created all of its pods.
    pub(super) fn is_idle(&self, wanted: u64) -> bool {
        match self.phase {
            // If one pod exists and another was refused, the status may stay empty.
            JobPhase::Unseen => self.made,
            JobPhase::Waiting | JobPhase::Starting => self.places < wanted,
            JobPhase::Suspended | JobPhase::Running | JobPhase::Ending | JobPhase::Completed(_) => {
                false
            }
        }
    }

    /// Returns the probable reason for an idle workload if no better reason is known.
    pub(super) fn idle_reason(&self, kind: &dyn Workload, wanted: u64) -> Option<String> {
        if self.why.is_some() || !self.is_idle(wanted) {
            return None;
        }
        let controller = kind.controller();
        let pods = match (&self.phase, self.places) {
            (JobPhase::Unseen, _) => {
                return Some(format!(
                    "{controller} has not noticed the trial's object; does its pod run, and does it watch this namespace?"
                ));
            }
            (_, 0) => "no pod".to_owned(),
            (_, made) => format!("only {made} of {wanted} pods"),
        };
        Some(format!(
            "{controller} has created {pods}; possible causes are a quota (`kubectl describe quota`), the namespace's Pod Security profile, a webhook or a missing service account; {controller}'s log gives the reason"
        ))
    }
}

/// The state of a stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The stop is requested, but the workload is not created yet.
    Wanted,
    /// The cluster received the stop request at this time.
    Asked(Duration),
    /// The stop had no effect, and the workload was deleted.
    Deleted,
}

/// Returns the news of the reason for the wait, if it has changed.
pub(super) fn report_reason(job: &mut Job) -> Option<Act> {
    if job.why == job.reported_why {
        return None;
    }
    job.reported_why.clone_from(&job.why);
    let why = job.why.clone()?;
    let (trial, attempt) = (job.trial.clone(), job.attempt.clone());
    Some(Act::Report(JobNews::Waits(JobWaits { trial, attempt, why })))
}
