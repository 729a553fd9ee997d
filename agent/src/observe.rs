//! What is known of the trial while it runs: the ground that its verdict stands on.

use std::sync::PoisonError;

use tokio::time::Instant;

use crate::output::SharedTail;
use crate::verdict::Known;

/// Collects what a verdict needs to know.
#[derive(Debug)]
pub struct Observer {
    started: Instant,
    stdout: SharedTail,
    stderr: SharedTail,
}

impl Observer {
    /// An observer of a trial that is about to start.
    pub fn new(stdout: SharedTail, stderr: SharedTail) -> Self {
        Self { started: Instant::now(), stdout, stderr }
    }

    /// Everything known now, but for how the trial ended.
    pub fn known(&mut self) -> Known {
        Known {
            duration_ms: Some(
                u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            ),
            stdout_tail: last(&self.stdout),
            stderr_tail: last(&self.stderr),
            ..Known::default()
        }
    }
}

fn last(bytes: &SharedTail) -> Vec<u8> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner).bytes().to_vec()
}
