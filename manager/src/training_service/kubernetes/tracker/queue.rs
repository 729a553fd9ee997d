//! PURE: the place of a workload in a queue, which lets it run and may evict it.

use std::time::Duration;

use super::TrackerAction;
use crate::training_service::kubernetes::kueue::{self, QueueState};

/// The reason for the wait of a suspended workload until its queue gives another.
pub(super) const SUSPENDED_REASON: &str = "it is suspended, but not by the manager: a queue, another controller, or a user with `kubectl`, must resume it";

/// The reason for the wait of a workload that its queue does not know.
const NO_WORKLOAD_REASON: &str = "Kueue has created no Workload for the trial: does Kueue run, does it manage this namespace, is the kind among its `integrations.frameworks`, and does the WorkloadPriorityClass exist? Its log gives the reason";

/// The watch of the queues.
#[derive(Debug, Default)]
pub(super) struct QueueWatch {
    /// Set if the labels of all workloads name a queue.
    is_named: bool,
    is_requested: bool,
    /// The time of the first complete listing since the watch last failed.
    listed_at: Option<Duration>,
}

impl QueueWatch {
    /// Creates the watch for workloads that name a queue, or none.
    pub(super) fn new(is_named: bool) -> Self {
        Self { is_named, is_requested: is_named, listed_at: None }
    }

    /// Returns whether the labels of all workloads name a queue.
    pub(super) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Requests the watch, unless it was requested before.
    pub(super) fn request_watch(&mut self) -> Option<TrackerAction> {
        (!std::mem::replace(&mut self.is_requested, true)).then_some(TrackerAction::WatchQueue)
    }

    /// Handles the start of a gapless watch (`true`), or a gap in it.
    pub(super) fn observe(&mut self, is_complete: bool, now: Duration) {
        self.listed_at = is_complete.then(|| self.listed_at.unwrap_or(now));
    }
}

/// The place of a workload in a queue.
#[derive(Debug, Default)]
pub(super) struct QueueStatus {
    /// The queue in the object's label, if the experiment file names none. The cluster adds the label in a namespace
    /// with a default queue.
    label: Option<String>,
    /// Set if a queue has noticed the workload.
    is_noticed: bool,
    /// The queue's reason, while it does not let the workload run.
    why: Option<String>,
    /// The position in the queue, as a phrase, if the queue tells it.
    position: Option<String>,
    /// The time since which the workload would not fit even into an empty queue.
    never_fits_since: Option<Duration>,
    /// The time since which the workload is suspended.
    suspended_since: Option<Duration>,
    /// Set if the tracker has reported that the queue evicted the workload, until the workload may run again.
    is_requeued: bool,
}

impl QueueStatus {
    /// Handles the queue in the label of the workload.
    pub(super) fn observe_label(&mut self, label: Option<&str>) {
        self.label = label.map(str::to_owned);
    }

    /// Handles the state of the workload in its queue. `None`: the queue has only noticed the workload.
    pub(super) fn observe_state(&mut self, state: Option<&QueueState>, now: Duration) {
        self.is_noticed = true;
        let Some(state) = state else { return };
        let never_fits = matches!(state, QueueState::NeverFits(_));
        self.never_fits_since = never_fits.then(|| self.never_fits_since.unwrap_or(now));
        match state {
            QueueState::Admitted => (self.why, self.position) = (None, None),
            QueueState::Waits(why) | QueueState::NeverFits(why) => self.why = Some(why.clone()),
            QueueState::Ended(_) => {}
        }
    }

    /// Handles the number of workloads ahead, if the queue tells it.
    pub(super) fn observe_position(&mut self, ahead: Option<u64>) {
        self.position = ahead.map(kueue::position_phrase);
    }

    /// Records that the workload is suspended.
    pub(super) fn record_suspension(&mut self, now: Duration) {
        self.suspended_since = self.suspended_since.or(Some(now));
    }

    /// Records that the workload is no longer suspended.
    pub(super) fn clear_suspension(&mut self) {
        self.suspended_since = None;
    }

    /// Records whether the tracker has reported that the queue evicted the workload.
    pub(super) fn set_requeued(&mut self, is_requeued: bool) {
        self.is_requeued = is_requeued;
    }

    pub(super) fn is_requeued(&self) -> bool {
        self.is_requeued
    }

    /// Returns whether the queue gives a reason for holding the workload back.
    pub(super) fn has_reason(&self) -> bool {
        self.why.is_some()
    }

    /// Returns the queue's reason with the position in the queue. `None`: the queue lets the workload run.
    pub(super) fn reason(&self) -> Option<String> {
        let why = self.why.as_ref()?;
        Some(match &self.position {
            Some(position) => format!("{why}; {position}"),
            None => why.clone(),
        })
    }

    /// Returns the reason for the wait of the suspended workload until its queue gives another.
    pub(super) fn suspended_reason(&self) -> String {
        match &self.label {
            Some(queue) => {
                format!("it is suspended: {}, so Kueue must admit it", label_phrase(queue))
            }
            None => SUSPENDED_REASON.to_owned(),
        }
    }

    /// Returns the reason for the wait of a workload that its queue does not know.
    pub(super) fn unnoticed_reason(&self) -> String {
        match &self.label {
            Some(queue) => {
                let label = label_phrase(queue);
                format!(
                    "it is suspended: {label}, but no Workload exists for it. {NO_WORKLOAD_REASON}"
                )
            }
            None => NO_WORKLOAD_REASON.to_owned(),
        }
    }

    /// Returns the time since which the workload would not fit even into an empty queue.
    pub(super) fn never_fits_since(&self) -> Option<Duration> {
        self.never_fits_since
    }

    /// Returns the time since which the queue has not noticed the workload. `None`: the queue has noticed it, or the
    /// tracker cannot know, because no queue is watched without a gap.
    pub(super) fn unnoticed_since(&self, watch: &QueueWatch) -> Option<Duration> {
        let suspended = self.suspended_since.filter(|_| !self.is_noticed)?;
        Some(suspended.max(watch.listed_at.filter(|_| self.has_named_queue(watch))?))
    }

    /// Returns the time since which another client suspends the workload, and not a queue that the tracker knows.
    pub(super) fn foreign_suspension_since(&self, watch: &QueueWatch) -> Option<Duration> {
        self.suspended_since.filter(|_| !self.is_noticed && !self.has_named_queue(watch))
    }

    fn has_named_queue(&self, watch: &QueueWatch) -> bool {
        watch.is_named || self.label.is_some()
    }
}

/// Returns the phrase about the label of a queue that the experiment file does not name.
fn label_phrase(queue: &str) -> String {
    format!("the cluster gave it the label `kueue.x-k8s.io/queue-name: {queue}`")
}
