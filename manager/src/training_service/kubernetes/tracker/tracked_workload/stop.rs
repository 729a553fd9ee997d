//! PURE: the state of a workload's stop, and the end that it leads to.

use std::time::Duration;

use trial_protocol::Class;

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
    /// Creates a failure with this prospect of a retry.
    pub(super) fn failure(message: String, class: Option<Class>) -> Self {
        Self { message, class, disruption: None }
    }
}

/// The state of a stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopState {
    /// The stop is requested, but the workload is not created yet.
    Pending,
    /// The cluster received the stop request at this time.
    Sent(Duration),
    /// The stop had no effect, and the workload was deleted.
    Deleted,
}
