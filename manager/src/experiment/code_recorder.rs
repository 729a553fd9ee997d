//! Records the code with which each attempt starts. It works beside the experiment's task and never delays a trial. It
//! reads a shared code directory just after the attempt's start.

use std::io;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::warn;
use trial_protocol::{AttemptId, TrialJobId};

use crate::code_archive::version::{CodeTracker, CodeVersion};
use crate::store::AttemptRecords;

/// The time limit for unfinished records at the end of a search.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of attempts that may share one reading of the directory, if they start at the same time.
const MAX_SHARED_READ: usize = 256;

/// Records the code of attempts, in the order of their starts.
#[derive(Debug)]
pub struct CodeRecorder {
    // The channel is unbounded, because the experiment's task must not wait. It carries one short message for each
    // attempt.
    attempts: mpsc::UnboundedSender<(TrialJobId, AttemptId)>,
    task: JoinHandle<()>,
}

impl CodeRecorder {
    /// Starts to record the code of attempts.
    pub fn start(records: AttemptRecords, source: CodeSource) -> Self {
        let (attempts, waiting) = mpsc::unbounded_channel();
        let task = tokio::spawn(record_all(records, source, waiting));
        Self { attempts, task }
    }

    /// Requests a record of the code with which an attempt was just started. Returns at once.
    pub fn record(&self, trial: &TrialJobId, attempt: &AttemptId) {
        // The task ends early only by a panic, after which nothing more is recorded.
        drop(self.attempts.send((trial.clone(), attempt.clone())));
    }

    /// Waits until all requested records are stored, but no longer than ten seconds.
    pub async fn close(self) {
        let Self { attempts, mut task } = self;
        drop(attempts);
        if tokio::time::timeout(CLOSE_TIMEOUT, &mut task).await.is_err() {
            warn!(
                "reading the code directory takes too long; the code of the last trials is not recorded"
            );
            task.abort();
        }
    }
}

/// The code that trials run.
#[derive(Debug)]
pub enum CodeSource {
    /// A directory that trials share. Its content may change between their starts.
    Directory(CodeTracker),
    /// Copies of one archive.
    Archive(CodeVersion),
}

impl CodeSource {
    async fn read_version(self) -> (Self, io::Result<CodeVersion>) {
        match self {
            Self::Directory(tracker) => {
                let (tracker, version) = tracker.read_version_with_git().await;
                (Self::Directory(tracker), version)
            }
            Self::Archive(version) => (Self::Archive(version.clone()), Ok(version)),
        }
    }
}

async fn record_all(
    records: AttemptRecords,
    mut source: CodeSource,
    mut waiting: mpsc::UnboundedReceiver<(TrialJobId, AttemptId)>,
) {
    let mut attempts = Vec::new();
    while waiting.recv_many(&mut attempts, MAX_SHARED_READ).await > 0 {
        let attempts = std::mem::take(&mut attempts);
        let (used, version) = source.read_version().await;
        source = used;
        match version {
            Ok(version) => {
                if let Err(error) = records.record_code(attempts, version).await {
                    warn!("the code with which a trial was started is not recorded: {error}");
                }
            }
            Err(error) => warn!("cannot read the code directory: {error}"),
        }
    }
}
