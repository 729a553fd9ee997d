//! The refusals that the client gets: `application/problem+json` (RFC 9457) with a stable `code`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use trial_protocol::{Offer, TrialJobId};

use crate::experiment::command::CommandError;
use crate::ingest;
use crate::store;
use crate::token;

/// The time after which a client retries while the manager has too many requests, in seconds.
const RETRY_BUSY_S: u32 = 1;
/// The time after which a client retries while the database cannot be written, or the manager is stopping, in
/// seconds.
const RETRY_UNAVAILABLE_S: u32 = 5;

/// The reason why a request was refused.
#[derive(Debug)]
pub enum Error {
    /// 400: the route does not accept this request.
    BadRequest(String),
    /// 401: no token, or a token that the manager did not issue.
    Unauthorized(String),
    /// 403: a valid token that does not allow this request.
    Forbidden(String),
    /// 404: no such trial.
    UnknownTrial(TrialJobId),
    /// 404: no such experiment.
    UnknownExperiment(String),
    /// 404: no such route.
    NotFound,
    /// 405: the route has no such method.
    MethodNotAllowed,
    /// 409: the present state does not allow this request.
    Conflict(String),
    /// 409: the client's protocol version is too old or too new.
    NoCommonVersion {
        /// The manager's offer.
        offer: Offer,
        /// The mismatch.
        detail: String,
    },
    /// 413: the body has more than `limit_bytes`.
    TooLarge {
        /// The manager's limit.
        limit_bytes: usize,
    },
    /// 408: the body did not arrive in time.
    TooSlow,
    /// 415: the manager does not support the compression.
    UnknownEncoding,
    /// 404: the trial has no such file, or its folder is on another machine.
    NoFile,
    /// 404: no changes to git's commit were recorded for the trial's code.
    NoDiff,
    /// 500: the code directory cannot be packed, or the archive can no longer be read.
    NoCode(String),
    /// 429: this trial has too many requests or too much data in progress.
    TooMany,
    /// 503: all clients together have too much in progress.
    Overloaded,
    /// 503: the database cannot be written.
    Unwritable(String),
    /// 503: a file to be sent cannot be read.
    Unreadable(String),
    /// 503: the manager is stopping.
    Stopping,
}

impl Error {
    /// Returns the status, the stable code, and the explanation with the remedy.
    pub(super) fn parts(&self) -> (StatusCode, &'static str, String) {
        let (status, code) = self.kind();
        (status, code, self.detail())
    }

    fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "bad-request"),
            Self::Unauthorized(_) => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden"),
            Self::UnknownTrial(_) => (StatusCode::NOT_FOUND, "unknown-trial"),
            Self::UnknownExperiment(_) => (StatusCode::NOT_FOUND, "unknown-experiment"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found"),
            Self::NoFile | Self::NoDiff => (StatusCode::NOT_FOUND, "unknown-file"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed"),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too-slow"),
            Self::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            Self::NoCommonVersion { .. } => (StatusCode::CONFLICT, "no-common-version"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
            Self::UnknownEncoding => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-encoding"),
            Self::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too-many-requests"),
            Self::NoCode(_) => (StatusCode::INTERNAL_SERVER_ERROR, "no-code"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            Self::Unwritable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unwritable"),
            Self::Unreadable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unreadable"),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        }
    }

    fn detail(&self) -> String {
        let text = match self {
            Self::BadRequest(detail)
            | Self::Unauthorized(detail)
            | Self::Forbidden(detail)
            | Self::UnknownExperiment(detail)
            | Self::Conflict(detail)
            | Self::NoCommonVersion { detail, .. }
            | Self::NoCode(detail)
            | Self::Unwritable(detail)
            | Self::Unreadable(detail) => detail,
            Self::UnknownTrial(trial) => return format!("there is no trial {trial}"),
            Self::TooLarge { limit_bytes } => {
                return format!(
                    "a request's body may have at most {limit_bytes} bytes; send fewer reports at once"
                );
            }
            Self::NotFound => "there is nothing at this address",
            Self::MethodNotAllowed => "this address does not support that method",
            Self::TooSlow => "the request's body did not arrive in time; send it again",
            Self::UnknownEncoding => "a body may be compressed only with gzip",
            Self::NoFile => {
                "the trial has no such file on this machine; files of a trial on another machine are there"
            }
            Self::NoDiff => "no changes to git's commit were recorded for this trial's code",
            Self::TooMany => {
                "this trial has too many requests in progress; send this one again later"
            }
            Self::Overloaded => "too many requests at once; send this one again later",
            Self::Stopping => "the manager is shutting down; keep the reports",
        };
        text.to_owned()
    }

    fn retry_after_s(&self) -> Option<u32> {
        match self {
            Self::TooMany | Self::Overloaded => Some(RETRY_BUSY_S),
            Self::Unwritable(_) | Self::Unreadable(_) | Self::Stopping => Some(RETRY_UNAVAILABLE_S),
            Self::BadRequest(_)
            | Self::Unauthorized(_)
            | Self::Forbidden(_)
            | Self::UnknownTrial(_)
            | Self::UnknownExperiment(_)
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::Conflict(_)
            | Self::NoCommonVersion { .. }
            | Self::TooLarge { .. }
            | Self::TooSlow
            | Self::NoFile
            | Self::NoDiff
            | Self::NoCode(_)
            | Self::UnknownEncoding => None,
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, code, detail) = self.parts();
        let title = status.canonical_reason().unwrap_or_default();
        let mut problem = json!({
            "type": "about:blank",
            "title": title,
            "status": status.as_u16(),
            "code": code,
            "detail": detail,
        });
        if let Self::NoCommonVersion { offer, .. } = &self {
            problem["offer"] = serde_json::to_value(offer).unwrap_or(Value::Null);
        }
        let mut response = (status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::Unauthorized(_)) {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<ingest::BatchError> for Error {
    fn from(error: ingest::BatchError) -> Self {
        Self::BadRequest(error.to_string())
    }
}

impl From<token::TokenRefusal> for Error {
    fn from(refusal: token::TokenRefusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            token::TokenRefusal::Invalid | token::TokenRefusal::Expired(_) => {
                Self::Unauthorized(detail)
            }
            token::TokenRefusal::OtherTrial(_) => Self::Forbidden(detail),
        }
    }
}

impl From<ingest::Error> for Error {
    fn from(error: ingest::Error) -> Self {
        let detail = error.to_string();
        match error {
            ingest::Error::NoCommonVersion { offer, .. } => Self::NoCommonVersion { offer, detail },
            ingest::Error::UnknownExperiment(_) => Self::UnknownExperiment(detail),
            ingest::Error::UnknownTrial(trial) => Self::UnknownTrial(trial),
            ingest::Error::Stopping => Self::Stopping,
            ingest::Error::Store(error) => error.into(),
        }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        let detail = error.to_string();
        match error {
            store::Error::TooLarge { .. } => Self::BadRequest(detail),
            store::Error::UnknownTrial(trial) => Self::UnknownTrial(trial),
            store::Error::Closed => Self::Stopping,
            store::Error::Overloaded => Self::Overloaded,
            store::Error::Open { .. }
            | store::Error::Lock { .. }
            | store::Error::InUse { .. }
            | store::Error::ForeignDatabase { .. }
            | store::Error::NewerSchema { .. }
            | store::Error::EmptyDatabase { .. }
            | store::Error::OlderSchema { .. }
            | store::Error::Damaged { .. }
            | store::Error::Exists(_)
            | store::Error::Superseded(_)
            | store::Error::NoExperiment
            | store::Error::Unreadable { .. }
            | store::Error::Backup { .. }
            | store::Error::Displaced { .. }
            | store::Error::Failed { .. } => Self::Unwritable(detail),
        }
    }
}

impl From<CommandError> for Error {
    fn from(refused: CommandError) -> Self {
        let detail = refused.to_string();
        match refused {
            CommandError::UnknownTrial(trial) => Self::UnknownTrial(trial),
            CommandError::ZeroLimit(_) | CommandError::InvalidValue(_) => Self::BadRequest(detail),
            CommandError::Ended { .. }
            | CommandError::NotEnded { .. }
            | CommandError::NoMoreTrials(_)
            | CommandError::TrialLimitReached { .. }
            | CommandError::LastTrials
            | CommandError::NotRunning => Self::Conflict(detail),
            CommandError::WaitsForDisk(_) | CommandError::Delayed(_) => Self::Unwritable(detail),
            CommandError::Store(error) => error.into(),
        }
    }
}

/// Responds to any address that is not in the table.
pub(super) async fn not_found() -> Error {
    Error::NotFound
}

/// Responds to any method that is not in the table.
pub(super) async fn method_not_allowed() -> Error {
    Error::MethodNotAllowed
}
