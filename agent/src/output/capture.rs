//! Writes the trial's directory on a thread of its own: the files `stdout`, `stderr` and `verdict.json`, and the
//! platform's termination log.
//!
//! Invariants:
//!
//! * A hung disk delays the trial by at most [`DISK_TIMEOUT`]. After that, its output is only counted and not copied,
//!   until the disk responds again. A slow disk slows the trial down, like redirection in a shell.
//! * At most [`MAX_QUEUED_BYTES`] bytes of each stream wait in memory (and as many are being written).
//! * Only the thread writes output. It starts with the first write. If the only write is a verdict at the very end, no
//!   thread is started.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use trial_protocol::{Stream, Verdict};

use crate::output::HELPER_STACK_BYTES;
use crate::output::run_dir::{COLLECTORS_FILE, VERDICT_FILE, replace_file};
use crate::util::numbers::to_u64;
use crate::verdict::termination_message;

mod rotating_file;

use rotating_file::RotatingFile;

/// The maximum number of bytes of one stream that wait for the disk.
pub const MAX_QUEUED_BYTES: usize = 64 * 1024;

/// The maximum time that a pump waits for a hung disk.
pub const DISK_TIMEOUT: Duration = Duration::from_secs(1);

/// The files to write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturePaths {
    /// The output directory. `None`: no directory is writable.
    pub dir: Option<PathBuf>,
    /// A file for the short form of the verdict. It is written in place, because it may be a mount.
    pub termination_log: Option<PathBuf>,
    /// Maximum size of an output file in bytes. Above it, the file is rotated; one old file is kept.
    pub rotate_bytes: Option<u64>,
    /// The content of the collectors' file. `None`: there is no such file.
    pub collectors: Option<Vec<u8>>,
}

/// The result of writing the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureOutcome {
    /// Number of bytes of output that are not in the files.
    pub shed_bytes: u64,
    /// The last error, if there was one.
    pub error: Option<String>,
}

/// A handle to the thread. All clones share it.
#[derive(Debug, Clone)]
pub struct Capture {
    // `None`: there are no files to write.
    shared: Option<Arc<CaptureShared>>,
}

#[derive(Debug)]
struct CaptureShared {
    paths: CapturePaths,
    state: Mutex<CaptureState>,
    work_added: Condvar,
    space_freed: Condvar,
}

#[derive(Debug, Default)]
struct CaptureState {
    started: bool,
    queued: [Vec<u8>; 2],
    verdict: Option<Box<Verdict>>,
    finish: Option<oneshot::Sender<CaptureOutcome>>,
    /// The time that pumps have waited since the disk last completed a write.
    pump_wait: Duration,
    outcome: CaptureOutcome,
}

/// The next task of the thread.
struct CaptureWork {
    bytes: [Vec<u8>; 2],
    verdict: Option<Box<Verdict>>,
    finish: Option<oneshot::Sender<CaptureOutcome>>,
}

impl Capture {
    /// Creates the writer of the files in `paths`. Output is appended to that of an earlier attempt.
    pub fn new(paths: CapturePaths) -> Self {
        let anywhere = paths.dir.is_some() || paths.termination_log.is_some();
        let shared = anywhere.then(|| {
            let (work_added, space_freed) = (Condvar::new(), Condvar::new());
            Arc::new(CaptureShared { paths, state: Mutex::default(), work_added, space_freed })
        });
        Self { shared }
    }

    /// Returns the directory of the files.
    pub fn dir(&self) -> Option<&Path> {
        self.shared.as_ref()?.paths.dir.as_deref()
    }

    /// Queues the next bytes of `stream`. Waits for a slow disk, but not for a hung one.
    pub fn queue_output(&self, stream: Stream, bytes: &[u8]) {
        let Some(shared) = self.shared.as_ref().filter(|shared| shared.paths.dir.is_some()) else {
            return;
        };
        let mut state = shared.lock();
        shared.start_thread(&mut state);
        while state.queued[stream_index(stream)].len() + bytes.len() > MAX_QUEUED_BYTES {
            let left = DISK_TIMEOUT.saturating_sub(state.pump_wait);
            if left.is_zero() {
                state.outcome.shed_bytes += to_u64(bytes.len());
                return;
            }
            let before = Instant::now();
            let (woken, _) = shared
                .space_freed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            // The thread resets it whenever the disk has completed a write.
            state.pump_wait += before.elapsed();
        }
        state.queued[stream_index(stream)].extend_from_slice(bytes);
        shared.work_added.notify_one();
    }

    /// Replaces the verdict on disk, without waiting for the write.
    pub fn queue_verdict(&self, verdict: &Verdict) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        shared.start_thread(&mut state);
        state.verdict = Some(Box::new(verdict.clone()));
        shared.work_added.notify_one();
    }

    /// Writes the verdict of a trial that printed nothing, and waits for the write.
    pub fn write_verdict(&self, verdict: &Verdict) -> Result<(), String> {
        self.shared.as_ref().map_or(Ok(()), |shared| shared.write_verdict_files(verdict))
    }

    /// Returns the number of bytes that were not written so far.
    pub fn shed_bytes(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.lock().outcome.shed_bytes)
    }

    /// Writes the queued bytes, and returns the result. Waits at most `bound`.
    pub async fn finish(&self, bound: Duration) -> CaptureOutcome {
        let Some(shared) = &self.shared else { return CaptureOutcome::default() };
        let (sender, outcome) = oneshot::channel();
        {
            let mut state = shared.lock();
            shared.start_thread(&mut state);
            state.finish = Some(sender);
            shared.work_added.notify_one();
        }
        match tokio::time::timeout(bound, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => {
                let state = shared.lock();
                let queued: usize = state.queued.iter().map(Vec::len).sum();
                let error = "the disk does not respond".to_owned();
                CaptureOutcome {
                    shed_bytes: state.outcome.shed_bytes + to_u64(queued),
                    error: Some(state.outcome.error.clone().unwrap_or(error)),
                }
            }
        }
    }
}

fn stream_index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl CaptureShared {
    fn lock(&self) -> MutexGuard<'_, CaptureState> {
        // Every change below is a single statement, so the state is consistent after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_thread(self: &Arc<Self>, state: &mut CaptureState) {
        if state.started {
            return;
        }
        let shared = Arc::clone(self);
        let thread =
            thread::Builder::new().name("capture".to_owned()).stack_size(HELPER_STACK_BYTES);
        match thread.spawn(move || shared.run()) {
            Ok(_) => {
                state.started = true;
                state.pump_wait = Duration::ZERO;
            }
            // The next output tries again.
            Err(source) => {
                state.outcome.error =
                    Some(format!("cannot start a thread for the files: {source}"));
                state.pump_wait = DISK_TIMEOUT;
            }
        }
    }

    fn run(&self) {
        let (dir, limit) = (self.paths.dir.as_ref(), self.paths.rotate_bytes);
        let file = |name| dir.map(|dir| RotatingFile::open(dir, name, limit));
        self.write_collectors();
        let mut files = [file("stdout"), file("stderr")];
        let mut spare = [Vec::new(), Vec::new()];
        loop {
            let work = self.wait_for_work(spare);
            for (file, bytes) in files.iter_mut().zip(&work.bytes) {
                if let (Some(file), false) = (file, bytes.is_empty())
                    && let Err(source) = file.append(bytes)
                {
                    let mut state = self.lock();
                    state.outcome.shed_bytes += to_u64(bytes.len());
                    state.outcome.error =
                        Some(format!("cannot write the trial's output: {source}"));
                }
            }
            if let Some(verdict) = work.verdict
                && let Err(error) = self.write_verdict_files(&verdict)
            {
                self.lock().outcome.error = Some(error);
            }
            self.lock().pump_wait = Duration::ZERO;
            if let Some(finish) = work.finish {
                // The receiver may no longer exist.
                finish.send(self.lock().outcome.clone()).ok();
                return;
            }
            spare = work.bytes;
        }
    }

    /// Writes the collectors' file of this run, or removes that of an earlier attempt.
    fn write_collectors(&self) {
        let Some(dir) = &self.paths.dir else { return };
        let path = dir.join(COLLECTORS_FILE);
        let kept = match &self.paths.collectors {
            Some(json) => replace_file(&path, json),
            None => match std::fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        };
        if let Err(source) = kept {
            self.lock().outcome.error = Some(format!("cannot write {COLLECTORS_FILE}: {source}"));
        }
    }

    /// Waits for work. `spare` contains buffers for reuse.
    fn wait_for_work(&self, mut spare: [Vec<u8>; 2]) -> CaptureWork {
        spare.iter_mut().for_each(Vec::clear);
        let mut state = self.lock();
        loop {
            let idle = state.queued.iter().all(Vec::is_empty)
                && state.verdict.is_none()
                && state.finish.is_none();
            if !idle {
                break;
            }
            state = self.work_added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let work = CaptureWork {
            bytes: std::mem::replace(&mut state.queued, spare),
            verdict: state.verdict.take(),
            finish: state.finish.take(),
        };
        self.space_freed.notify_all();
        work
    }

    /// Writes the verdict to both files. If the disk is full, the termination log may be the only one that works.
    fn write_verdict_files(&self, verdict: &Verdict) -> Result<(), String> {
        let failed = |what: &str, source: io::Error| format!("cannot write {what}: {source}");
        let written = self.paths.dir.as_ref().map_or(Ok(()), |dir| {
            let json = serde_json::to_vec(verdict).expect("a verdict is always valid JSON");
            replace_file(&dir.join(VERDICT_FILE), &json)
                .map_err(|source| failed(VERDICT_FILE, source))
        });
        let logged = self.paths.termination_log.as_ref().map_or(Ok(()), |path| {
            std::fs::write(path, termination_message(verdict))
                .map_err(|source| failed(&path.display().to_string(), source))
        });
        written.and(logged)
    }
}

#[cfg(test)]
mod tests;
