//! Records which code each attempt is started with. It works beside the experiment's task and never delays a trial: the
//! directory is read just after the attempt's start.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::warn;
use trial_protocol::{AttemptId, TrialJobId};

use crate::code_archive::version::{CodeTracker, CodeVersion, git_state};
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
    /// Starts to record what is in `directory`.
    pub fn start(store: &Store, directory: &Path) -> Self {
        let (attempts, waiting) = mpsc::unbounded_channel();
        let task = tokio::spawn(record_all(store.clone(), directory.to_owned(), waiting));
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

async fn record_all(
    store: Store,
    directory: PathBuf,
    mut waiting: mpsc::UnboundedReceiver<(TrialJobId, AttemptId)>,
) {
    let (mut tracker, mut last, mut attempts) =
        (CodeTracker::new(directory.clone()), None, Vec::new());
    while waiting.recv_many(&mut attempts, TOGETHER).await > 0 {
        let looked = tokio::task::spawn_blocking(move || {
            let version = tracker.look();
            (tracker, version)
        });
        let Ok((used, version)) = looked.await else { return };
        tracker = used;
        let attempts = std::mem::take(&mut attempts);
        let mut version = match version {
            Ok(version) => version,
            Err(error) => {
                warn!("cannot read the code directory {}: {error}", directory.display());
                continue;
            }
        };
        if is_new(last.as_ref(), &version) {
            version.git = git_state(&directory).await;
            tracker.set_git(version.git.clone());
            last = Some(version.clone());
        }
        if let Err(error) = store.record_code(attempts, version).await {
            warn!("which code a trial was started with is not recorded: {error}");
        }
    }
}

fn is_new(last: Option<&CodeVersion>, version: &CodeVersion) -> bool {
    last.is_none_or(|last| last.sha256 != version.sha256)
}
