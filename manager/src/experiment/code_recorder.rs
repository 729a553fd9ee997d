//! Records which code each attempt is started with. It works beside the experiment's task and never delays a trial: a
//! directory that trials share is read just after the attempt's start.

use std::io;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::warn;
use trial_protocol::{AttemptId, TrialJobId};

use crate::code_archive::version::{CodeTracker, CodeVersion};
use crate::store::Store;

/// The time that the end of a search waits for records that are still to be made.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts that share one look at the directory, if they were started at a time.
const TOGETHER: usize = 256;

/// Records the code of attempts, in the order of their starts.
#[derive(Debug)]
pub struct CodeRecorder {
    // Unbounded, since the experiment's task must not wait: one short message for each attempt.
    attempts: mpsc::UnboundedSender<(TrialJobId, AttemptId)>,
    task: JoinHandle<()>,
}

impl CodeRecorder {
    /// Starts to record the code of attempts.
    pub fn start(store: &Store, source: CodeSource) -> Self {
        let (attempts, waiting) = mpsc::unbounded_channel();
        let task = tokio::spawn(record_all(store.clone(), source, waiting));
        Self { attempts, task }
    }

    /// Has the code recorded that an attempt was just started with. Returns at once.
    pub fn record(&self, trial: &TrialJobId, attempt: &AttemptId) {
        // The task ends only by a panic, after which nothing is recorded any more.
        drop(self.attempts.send((trial.clone(), attempt.clone())));
    }

    /// Waits until all is recorded, but no longer than ten seconds.
    pub async fn close(self) {
        let Self { attempts, mut task } = self;
        drop(attempts);
        if tokio::time::timeout(CLOSE_TIMEOUT, &mut task).await.is_err() {
            warn!(
                "the code directory is read too slowly; the code of the last trials is not recorded"
            );
            task.abort();
        }
    }
}

/// The code that trials run.
#[derive(Debug)]
pub enum CodeSource {
    /// A directory that they share, as it is when they start.
    Directory(CodeTracker),
    /// Copies of one archive.
    Archive(CodeVersion),
}

impl CodeSource {
    async fn look(self) -> (Self, io::Result<CodeVersion>) {
        match self {
            Self::Directory(tracker) => {
                let (tracker, version) = tracker.look_with_git().await;
                (Self::Directory(tracker), version)
            }
            Self::Archive(version) => (Self::Archive(version.clone()), Ok(version)),
        }
    }
}

async fn record_all(
    store: Store,
    mut source: CodeSource,
    mut waiting: mpsc::UnboundedReceiver<(TrialJobId, AttemptId)>,
) {
    let mut attempts = Vec::new();
    while waiting.recv_many(&mut attempts, TOGETHER).await > 0 {
        let attempts = std::mem::take(&mut attempts);
        let (used, version) = source.look().await;
        source = used;
        match version {
            Ok(version) => {
                if let Err(error) = store.record_code(attempts, version).await {
                    warn!("the code that a trial was started with is not recorded: {error}");
                }
            }
            Err(error) => warn!("cannot read the code directory: {error}"),
        }
    }
}
