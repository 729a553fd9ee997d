//! The output of a trial while its agent is silent, if the platform provides it: the pod cannot reach the manager, or
//! the agent has not started yet. The manager stores none of it.

use std::time::Duration;

use futures_util::StreamExt as _;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use trial_protocol::TrialJobId;
use utoipa::ToSchema;

use super::super::Shared;
use super::log::incomplete_bytes;
use crate::job_state::JobState;
use crate::training_service::Output;

/// The pause between two requests to the platform.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The time for which further output is collected, and the maximum number of bytes that are sent at once.
const GATHER_TIME: Duration = Duration::from_millis(250);
const MAX_OUTPUT_BYTES: usize = 64 << 10;

/// Output that no agent has reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct UnreportedOutput {
    /// The text that the trial's first process, and all processes that it started, printed on both streams.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) text: String,
    /// The reason why no output can be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

/// The output of one trial, for one client.
#[derive(Default)]
pub(super) struct SilentOutput {
    open: Option<Output>,
    /// The bytes that have not been sent, such as those of an incomplete character.
    pending_bytes: Vec<u8>,
    /// The earliest time of the next request to the platform.
    next_request: Option<Instant>,
    /// The time of the last output.
    last: Option<Instant>,
    /// `true` if the platform can never provide the output.
    is_unavailable: bool,
    /// `true` if the client received output that the agent may report again.
    pub(super) was_sent: bool,
}

impl SilentOutput {
    /// Waits for the next output, permanently if none is available. If the future is dropped, no output is lost.
    pub(super) async fn next(
        &mut self,
        shared: &Shared,
        trial: &TrialJobId,
        silent_for: Option<Duration>,
    ) -> UnreportedOutput {
        let Some(service) = shared.state.service.get().filter(|_| !self.is_unavailable) else {
            return std::future::pending().await;
        };
        while self.open.is_none() {
            sleep_until(self.next_request.unwrap_or_else(Instant::now)).await;
            let ago = self.last.map(|last| last.elapsed()).or(silent_for);
            self.next_request = Some(Instant::now() + RETRY_PAUSE);
            match service.output(trial, ago).await {
                Some(Ok(output)) => self.open = Some(output),
                Some(Err(why)) => {
                    self.is_unavailable = true;
                    return UnreportedOutput { text: String::new(), why: Some(why) };
                }
                None => {}
            }
        }
        self.gather().await
    }

    async fn gather(&mut self) -> UnreportedOutput {
        // Output that a dropped call left is sent soon.
        let left = self.pending_bytes.len() > incomplete_bytes(&self.pending_bytes);
        let mut until = left.then(|| Instant::now() + GATHER_TIME);
        loop {
            let piece = async {
                match &mut self.open {
                    Some(output) => output.next().await,
                    None => None,
                }
            };
            let piece = match until {
                None => piece.await,
                Some(until) => match tokio::time::timeout_at(until, piece).await {
                    Ok(piece) => piece,
                    Err(_) => break,
                },
            };
            let Some(piece) = piece else {
                self.open = None;
                break;
            };
            self.last = Some(Instant::now());
            self.pending_bytes.extend(piece);
            if self.pending_bytes.len() >= MAX_OUTPUT_BYTES {
                break;
            }
            until = until.or(Some(Instant::now() + GATHER_TIME));
        }
        let cut = if self.open.is_some() { incomplete_bytes(&self.pending_bytes) } else { 0 };
        let rest = self.pending_bytes.split_off(self.pending_bytes.len() - cut);
        let whole = std::mem::replace(&mut self.pending_bytes, rest);
        self.was_sent |= !whole.is_empty();
        UnreportedOutput { text: String::from_utf8_lossy(&whole).into_owned(), why: None }
    }
}

/// Returns whether the agent of a trial in this state is silent.
pub(super) fn is_silent(state: JobState) -> bool {
    matches!(state, JobState::Waiting | JobState::Lost)
}
