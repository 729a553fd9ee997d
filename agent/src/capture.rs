//! Writes the trial's directory: the files `stdout`, `stderr` and `verdict.json`, on a thread of its own.
//!
//! Invariants:
//!
//! * A disk that hangs costs the trial at most [`PATIENCE`]; then its output is no longer copied, and
//!   counted, until the disk answers again. A slow disk slows the trial, as redirection in a shell would.
//! * At most [`ROOM`] bytes of each stream wait in memory (and as many are being written).
//! * Nobody but the thread touches the disk; it starts with the first thing there is to write.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use trial_protocol::Stream;

use crate::run_dir::replace;

/// Bytes of one stream that may wait for the disk.
pub const ROOM: usize = 256 * 1024;

/// The longest that a pump waits for a disk that does not take anything.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Name of the file with the verdict.
pub const VERDICT_FILE: &str = "verdict.json";

/// What became of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of output that are not in the files.
    pub shed_bytes: u64,
    /// The last thing that went wrong, if anything did.
    pub error: Option<String>,
}

/// A handle on the thread; all clones share it.
#[derive(Debug, Clone)]
pub struct Capture {
    // `None`: there is no directory, and nothing is kept.
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    started: bool,
    waiting: [Vec<u8>; 2],
    verdict: Option<Vec<u8>>,
    finish: Option<oneshot::Sender<Outcome>>,
    /// What is left of the patience with the write that is going on.
    spent: Duration,
    outcome: Outcome,
}

/// What the thread is to do next.
struct Work {
    bytes: [Vec<u8>; 2],
    verdict: Option<Vec<u8>>,
    finish: Option<oneshot::Sender<Outcome>>,
}

impl Capture {
    /// Keeps the trial's output in `dir`, after what an earlier attempt left there.
    pub fn new(dir: Option<&Path>) -> Self {
        let shared = |dir: &Path| {
            Arc::new(Shared {
                dir: dir.to_owned(),
                state: Mutex::default(),
                work: Condvar::new(),
                room: Condvar::new(),
            })
        };
        Self { shared: dir.map(shared) }
    }

    /// Takes the next bytes of `stream`. Waits for a disk that is slow, but not for one that hangs.
    pub fn output(&self, stream: Stream, bytes: &[u8]) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        shared.start(&mut state);
        while state.waiting[index(stream)].len() + bytes.len() > ROOM {
            let left = PATIENCE.saturating_sub(state.spent);
            if left.is_zero() {
                state.outcome.shed_bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                return;
            }
            let before = Instant::now();
            let (woken, _) =
                shared.room.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            // The thread sets it back whenever the disk has taken something.
            state.spent += before.elapsed();
        }
        state.waiting[index(stream)].extend_from_slice(bytes);
        shared.work.notify_one();
    }

    /// Replaces the verdict on disk. Does not wait for it.
    pub fn verdict(&self, json: Vec<u8>) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        shared.start(&mut state);
        state.verdict = Some(json);
        shared.work.notify_one();
    }

    /// Bytes that were not kept so far.
    pub fn shed_bytes(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.lock().outcome.shed_bytes)
    }

    /// Writes what is waiting, and tells how it went; waits for that at most `bound`.
    pub async fn finish(&self, bound: Duration) -> Outcome {
        let Some(shared) = &self.shared else { return Outcome::default() };
        let (tell, told) = oneshot::channel();
        {
            let mut state = shared.lock();
            shared.start(&mut state);
            state.finish = Some(tell);
            shared.work.notify_one();
        }
        match tokio::time::timeout(bound, told).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => {
                let state = shared.lock();
                let waiting: usize = state.waiting.iter().map(Vec::len).sum();
                let error = format!("{} does not answer", shared.dir.display());
                Outcome {
                    shed_bytes: state.outcome.shed_bytes
                        + u64::try_from(waiting).unwrap_or(u64::MAX),
                    error: state.outcome.error.clone().or(Some(error)),
                }
            }
        }
    }
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change below is a single statement, so the state is whole whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, state: &mut State) {
        if state.started {
            return;
        }
        state.started = true;
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name("capture".to_owned()).stack_size(128 * 1024);
        if let Err(source) = thread.spawn(move || shared.work_off()) {
            state.outcome.error = Some(format!("cannot start a thread for the files: {source}"));
            state.spent = PATIENCE;
        }
    }

    fn work_off(&self) {
        let mut files = [self.file("stdout"), self.file("stderr")];
        let mut spare = [Vec::new(), Vec::new()];
        loop {
            let work = self.next(spare);
            for (file, bytes) in files.iter_mut().zip(&work.bytes) {
                if !bytes.is_empty() {
                    self.keep(file, bytes);
                }
            }
            if let Some(verdict) = work.verdict
                && let Err(source) = replace(&self.dir.join(VERDICT_FILE), &verdict)
            {
                self.lock().outcome.error = Some(format!("cannot write {VERDICT_FILE}: {source}"));
            }
            self.lock().spent = Duration::ZERO;
            if let Some(finish) = work.finish {
                // Nobody may be waiting any more.
                finish.send(self.lock().outcome.clone()).ok();
                return;
            }
            spare = work.bytes;
        }
    }

    /// Waits for work, and gives the emptied buffers back for reuse.
    fn next(&self, mut spare: [Vec<u8>; 2]) -> Work {
        spare.iter_mut().for_each(Vec::clear);
        let mut state = self.lock();
        loop {
            let idle = state.waiting.iter().all(Vec::is_empty)
                && state.verdict.is_none()
                && state.finish.is_none();
            if !idle {
                break;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let work = Work {
            bytes: std::mem::replace(&mut state.waiting, spare),
            verdict: state.verdict.take(),
            finish: state.finish.take(),
        };
        self.room.notify_all();
        work
    }

    fn file(&self, name: &str) -> Result<File, io::Error> {
        OpenOptions::new().create(true).append(true).open(self.dir.join(name))
    }

    fn keep(&self, file: &mut Result<File, io::Error>, bytes: &[u8]) {
        let kept = match file {
            Ok(file) => file.write_all(bytes),
            Err(source) => Err(io::Error::new(source.kind(), source.to_string())),
        };
        if let Err(source) = kept {
            let mut state = self.lock();
            state.outcome.shed_bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            state.outcome.error = Some(format!("cannot keep the trial's output: {source}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_streams_and_the_verdict_are_kept_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let capture = Capture::new(Some(dir.path()));
        let mut expected = Vec::new();
        for n in 0..20_000_u32 {
            let line = format!("line {n}\n");
            expected.extend_from_slice(line.as_bytes());
            capture.output(Stream::Stdout, line.as_bytes());
        }
        capture.output(Stream::Stderr, b"\xff no newline");
        capture.verdict(b"{}".to_vec());
        let outcome = capture.finish(Duration::from_secs(30)).await;
        assert_eq!(outcome, Outcome::default());
        assert!(std::fs::read(dir.path().join("stdout")).unwrap() == expected);
        assert_eq!(std::fs::read(dir.path().join("stderr")).unwrap(), b"\xff no newline");
        assert_eq!(std::fs::read(dir.path().join(VERDICT_FILE)).unwrap(), b"{}");
    }

    #[tokio::test]
    async fn a_second_attempt_appends() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let capture = Capture::new(Some(dir.path()));
            capture.output(Stream::Stdout, b"x\n");
            capture.finish(Duration::from_secs(30)).await;
        }
        assert_eq!(std::fs::read(dir.path().join("stdout")).unwrap(), b"x\nx\n");
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let capture = Capture::new(Some(&dir.path().join("absent")));
        capture.output(Stream::Stdout, b"12345");
        let outcome = capture.finish(Duration::from_secs(30)).await;
        assert_eq!(outcome.shed_bytes, 5);
        assert!(outcome.error.unwrap().contains("cannot keep"));
    }

    #[tokio::test]
    async fn a_disk_that_hangs_is_waited_for_once() {
        // A pipe that nobody reads hangs as a dead network file system does.
        let dir = tempfile::tempdir().unwrap();
        let stdout = dir.path().join("stdout");
        nix::unistd::mkfifo(&stdout, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = OpenOptions::new().read(true).write(true).open(&stdout).unwrap();
        let capture = Capture::new(Some(dir.path()));
        let before = Instant::now();
        for _ in 0..40 {
            capture.output(Stream::Stdout, &vec![b'x'; ROOM / 2]);
        }
        assert!(capture.shed_bytes() > 0, "the pipe holds far less than was written");
        // Forty waits would be forty times the patience; the bound is generous for a busy machine.
        assert!(before.elapsed() < 20 * PATIENCE);
        let outcome = capture.finish(Duration::from_millis(10)).await;
        assert!(outcome.error.unwrap().contains("does not answer"));
        drop(reader);
    }
}
