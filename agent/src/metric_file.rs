//! Watches NNI's file of metrics, `$NNI_SYS_DIR/.nni/metrics`, on a thread of its own: the directory may be
//! on a network file system that hangs.
//!
//! `notify` tells of changes at once where the file system does; a look every second finds the rest, and a
//! last one after the trial's end. It must not create anything there: NNI's SDK fails if the directory
//! appears between its own look and its `mkdir`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::mpsc as blocking;
use std::thread;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use crate::collect::{Finding, MetricFileReader};
use crate::output::Heard;

/// How often to look where nobody tells of changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The most read at once, in bytes.
const CHUNK: u64 = 1 << 20;

/// The file, before its thread runs.
#[derive(Debug)]
pub struct MetricFile {
    path: PathBuf,
    /// Where this attempt begins: what an earlier one left was reported then.
    offset: u64,
    heard: mpsc::Sender<Heard>,
}

/// The thread.
#[derive(Debug)]
pub struct Watching {
    wake: blocking::Sender<Wake>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    Changed,
    Stop,
}

impl Drop for Watching {
    fn drop(&mut self) {
        // The thread may have panicked; then there is nothing to stop.
        self.wake.send(Wake::Stop).ok();
    }
}

impl MetricFile {
    /// The metric file below `sys_dir`; findings go to `heard`. Call it before the trial starts.
    pub fn new(sys_dir: &Path, heard: mpsc::Sender<Heard>) -> Self {
        let path = sys_dir.join(".nni/metrics");
        let offset = path.metadata().map_or(0, |metadata| metadata.len());
        Self { path, offset, heard }
    }

    /// Starts the thread. Once the returned value is dropped it looks a last time and says
    /// [`Heard::FileRead`].
    pub fn watch(self) -> Result<Watching, std::io::Error> {
        let (wake, woken) = blocking::channel();
        let changed = wake.clone();
        thread::Builder::new()
            .name("metric-file".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || Reader::new(self).work(&woken, changed))?;
        Ok(Watching { wake })
    }
}

struct Reader {
    file: MetricFile,
    parser: MetricFileReader,
}

impl Reader {
    fn new(file: MetricFile) -> Self {
        Self { file, parser: MetricFileReader::new() }
    }

    fn work(mut self, woken: &blocking::Receiver<Wake>, changed: blocking::Sender<Wake>) {
        // `Some` until there is something to watch.
        let mut changed = Some(changed);
        let mut watcher = None;
        loop {
            if watcher.is_none()
                && let Some(dir) = self.file.path.parent().filter(|dir| dir.is_dir())
                && let Some(tell) = changed.take()
            {
                // Where it cannot watch (no inotify instances left, say), looking every second must do.
                watcher = watch(dir, tell).ok();
            }
            self.read();
            let first = woken.recv_timeout(LOOK_EVERY).ok();
            // One look answers all the wakes that came so far.
            if first.into_iter().chain(woken.try_iter()).any(|wake| wake == Wake::Stop) {
                break;
            }
        }
        self.read();
        let mut found = Vec::new();
        self.parser.finish(&mut found);
        self.tell(found);
        self.file.heard.blocking_send(Heard::FileRead).ok();
    }

    fn read(&mut self) {
        // Absent is the common case: most trials report on stdout.
        let Ok(mut file) = File::open(&self.file.path) else { return };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        if length < self.file.offset {
            // Somebody began the file anew.
            self.file.offset = 0;
            self.parser = MetricFileReader::new();
        }
        if length == self.file.offset || file.seek(SeekFrom::Start(self.file.offset)).is_err() {
            return;
        }
        loop {
            let mut bytes = Vec::new();
            match (&mut file).take(CHUNK).read_to_end(&mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            self.file.offset += u64::try_from(bytes.len()).unwrap_or(0);
            let mut found = Vec::new();
            self.parser.feed(&bytes, &mut found);
            self.tell(found);
        }
    }

    fn tell(&self, found: Vec<Finding>) {
        if !found.is_empty() {
            // The main task may have gone; then nobody wants to know.
            self.file.heard.blocking_send(Heard::Findings(found)).ok();
        }
    }
}

fn watch(dir: &Path, tell: blocking::Sender<Wake>) -> Result<RecommendedWatcher, notify::Error> {
    let mut watcher = notify::recommended_watcher(move |_| {
        // The reader may have ended before the watcher.
        tell.send(Wake::Changed).ok();
    })?;
    watcher.watch(dir, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
