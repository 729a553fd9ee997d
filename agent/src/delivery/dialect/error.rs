//! PURE: the errors of delivery, and the decision whether to try again.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::StatusCode;

use crate::http::client;

/// The errors of sending a batch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file with the manager's address cannot be read.
    #[error("cannot read the manager's address from {}", .path.display())]
    NoAddress {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// The client could not be created.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// No answer, or an incomplete one.
    #[error("cannot reach the manager at {url}")]
    Unreachable {
        /// URL of the request.
        url: String,
        /// The underlying error.
        #[source]
        source: reqwest::Error,
    },
    /// No answer from an NNI manager, or an answer that is not HTTP.
    #[error("cannot reach the manager at {url}")]
    NoAnswer {
        /// URL of the request.
        url: String,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// A value that cannot be the address of an NNI manager.
    #[error("{url:?} is not the address of an NNI manager; http://HOST:PORT is expected")]
    Address {
        /// The value that was given.
        url: String,
    },
    /// A status of an NNI manager without an explanation.
    #[error("the manager at {url} answered {status}")]
    UnexplainedStatus {
        /// URL of the request.
        url: String,
        /// HTTP status of the answer.
        status: u16,
    },
    /// HTTP 200 with a body that is not an ack.
    #[error("the server at {url} is not a manager")]
    NotAManager {
        /// URL of the request.
        url: String,
        /// The underlying error.
        #[source]
        source: serde_json::Error,
    },
    /// HTTP 200 with an ack that does not include the batch.
    #[error("the manager acknowledges a batch without having stored it")]
    NotStored,
    /// HTTP 401 or 403.
    #[error("the manager at {url} refuses the token ({detail}); is the token file current?")]
    Unauthorized {
        /// URL of the request.
        url: String,
        /// The detail of the answer.
        detail: String,
    },
    /// HTTP 404.
    #[error("the manager at {url} does not know this trial ({detail})")]
    Unknown {
        /// URL of the request.
        url: String,
        /// The detail of the answer.
        detail: String,
    },
    /// HTTP 409 with the manager's own explanation.
    #[error("the manager at {url} uses another protocol ({detail}); rebuild the trial image")]
    WireVersion {
        /// URL of the request.
        url: String,
        /// The detail of the answer.
        detail: String,
    },
    /// HTTP 413.
    #[error("the manager at {url} rejects a batch because it is too large")]
    TooLarge {
        /// URL of the request.
        url: String,
        /// `true` if the refusal is the manager's own, not that of a proxy in front of it.
        own: bool,
    },
    /// HTTP 429 or 503.
    #[error("the manager at {url} is busy ({detail})")]
    Busy {
        /// URL of the request.
        url: String,
        /// The pause that the manager requests, if there is one.
        after: Option<Duration>,
        /// The detail of the answer.
        detail: String,
    },
    /// HTTP 400 with the manager's own explanation: it permanently refuses these bytes.
    #[error("the manager at {url} answered {status} ({detail})")]
    Refused {
        /// URL of the request.
        url: String,
        /// HTTP status of the answer.
        status: StatusCode,
        /// The detail of the answer.
        detail: String,
    },
    /// Any other answer.
    #[error("the manager at {url} answered {status} ({detail})")]
    Failed {
        /// URL of the request.
        url: String,
        /// HTTP status of the answer.
        status: StatusCode,
        /// The detail of the answer.
        detail: String,
    },
}

/// The reaction to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// Try again after a growing pause.
    Retry,
    /// Try again after this time.
    RetryAfter(Duration),
    /// Try a smaller batch. A single report that is refused is given up.
    Split,
    /// Try a smaller batch, and a single report again after a pause, because a proxy and not the manager refuses it.
    SplitOrRetry,
    /// An operator has to act first. Try again rarely, and do not wait after the trial's end.
    NeedsOperator,
}

/// The longest pause that a server may request. The server may be a proxy that does not support leases, and the manager
/// regards an agent that is silent for longer as lost.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(1);

impl Error {
    /// Returns the reaction to this error. No other code decides it.
    pub fn retry_decision(&self) -> RetryDecision {
        match self {
            Self::NoAddress { .. }
            | Self::Unreachable { .. }
            | Self::NoAnswer { .. }
            | Self::UnexplainedStatus { .. }
            | Self::NotAManager { .. }
            | Self::NotStored
            | Self::Failed { .. }
            | Self::Busy { after: None, .. }
            // Another manager may use the address until the agent's own manager returns.
            | Self::Unauthorized { .. }
            | Self::Unknown { .. } => RetryDecision::Retry,
            Self::Busy { after: Some(after), .. } => RetryDecision::RetryAfter((*after).min(LONGEST_RETRY_AFTER)),
            Self::TooLarge { own: false, .. } => RetryDecision::SplitOrRetry,
            Self::TooLarge { own: true, .. } | Self::Refused { .. } => RetryDecision::Split,
            Self::Client(_) | Self::Address { .. } | Self::WireVersion { .. } => RetryDecision::NeedsOperator,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_retry_decision() {
        let url = || "u".to_owned();
        let detail = String::new;
        let status = StatusCode::IM_A_TEAPOT;
        let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
        #[rustfmt::skip]
        let table = [
            (Error::Unauthorized { url: url(), detail: detail() },                     RetryDecision::Retry),
            (Error::Unknown { url: url(), detail: detail() },                          RetryDecision::Retry),
            (Error::Busy { url: url(), after: None, detail: detail() },                RetryDecision::Retry),
            (Error::Busy { url: url(), after: Some(second), detail: detail() },        RetryDecision::RetryAfter(second)),
            (Error::Busy { url: url(), after: Some(hour), detail: detail() },          RetryDecision::RetryAfter(LONGEST_RETRY_AFTER)),
            (Error::Failed { url: url(), status, detail: detail() },                   RetryDecision::Retry),
            (Error::TooLarge { url: url(), own: true },                                RetryDecision::Split),
            (Error::TooLarge { url: url(), own: false },                               RetryDecision::SplitOrRetry),
            (Error::Refused { url: url(), status, detail: detail() },                  RetryDecision::Split),
            (Error::WireVersion { url: url(), detail: detail() },                      RetryDecision::NeedsOperator),
        ];
        for (error, decision) in table {
            assert_eq!(error.retry_decision(), decision, "{error}");
        }
    }
}
