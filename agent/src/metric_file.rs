//! Watches the files that hold metrics, on a thread of its own: they may be on a network file system that
//! hangs.
//!
//! `notify` tells of changes at once where the file system does; a look every second finds the rest, and a
//! last one after the trial's end. It must not create anything there: NNI's SDK fails if its directory
//! appears between its own look and its `mkdir`.

use std::path::PathBuf;
use std::sync::mpsc as blocking;
use std::thread;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use crate::collect::{CollectSpec, Finding};
use crate::output::{Heard, READER_STACK};
use crate::tail::{FileCollectors, FileSpec};

/// How often to look where nobody tells of changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The files, before their thread runs.
#[derive(Debug)]
pub struct MetricFiles {
    collectors: FileCollectors,
    /// What may be watched, and is not yet: it may not be there yet either.
    places: Vec<(PathBuf, RecursiveMode)>,
    /// The files and directories themselves.
    wanted: Vec<PathBuf>,
    heard: mpsc::Sender<Heard>,
}

/// The thread. Dropped, it looks a last time and says [`Heard::FilesRead`].
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

impl MetricFiles {
    /// The files of `spec`; findings go to `heard`. Call it before the trial starts: what is there by then is
    /// of an earlier attempt, which has reported it. The trial waits for this, so next to nothing is read.
    pub fn new(collect: &CollectSpec, spec: FileSpec, heard: mpsc::Sender<Heard>) -> Self {
        let files = spec.metric_file.iter().chain(&spec.line_files);
        let parents = files.filter_map(|file| file.parent()).map(|dir| {
            // The parent of a bare name is the empty path.
            let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir.to_owned() };
            (dir, RecursiveMode::NonRecursive)
        });
        let dirs = spec.event_dirs.iter().cloned().map(|dir| (dir, RecursiveMode::Recursive));
        let places = parents.chain(dirs).collect();
        let files = spec.metric_file.iter().chain(&spec.line_files);
        let wanted = files.chain(&spec.event_dirs).cloned().collect();
        let mut collectors = FileCollectors::new(collect, spec);
        collectors.skip();
        Self { collectors, places, wanted, heard }
    }

    /// Whether any of the files or directories is there by now.
    pub fn any_is_there(&self) -> bool {
        self.wanted.iter().any(|path| path.exists())
    }

    /// Starts the thread.
    pub fn watch(self) -> Result<Watching, std::io::Error> {
        let (wake, woken) = blocking::channel();
        let changed = wake.clone();
        thread::Builder::new()
            .name("metric-files".to_owned())
            .stack_size(READER_STACK)
            .spawn(move || self.work(&woken, &changed))?;
        Ok(Watching { wake })
    }

    fn work(mut self, woken: &blocking::Receiver<Wake>, changed: &blocking::Sender<Wake>) {
        let mut watcher = None;
        let mut found = Vec::new();
        loop {
            self.watch_what_is_there(&mut watcher, changed);
            self.collectors.poll(&mut found);
            self.tell(std::mem::take(&mut found));
            let first = woken.recv_timeout(LOOK_EVERY).ok();
            // One look answers all the wakes that came so far.
            if first.into_iter().chain(woken.try_iter()).any(|wake| wake == Wake::Stop) {
                break;
            }
        }
        self.collectors.finish(&mut found);
        self.tell(found);
        self.heard.blocking_send(Heard::FilesRead).ok();
    }

    /// Asks for news of the directories that exist by now. Where they cannot be watched (no inotify instance
    /// is left, say), looking every second must do.
    fn watch_what_is_there(
        &mut self,
        watcher: &mut Option<RecommendedWatcher>,
        changed: &blocking::Sender<Wake>,
    ) {
        let (there, absent) =
            std::mem::take(&mut self.places).into_iter().partition(|(dir, _)| dir.is_dir());
        self.places = absent;
        let there: Vec<(PathBuf, RecursiveMode)> = there;
        for (dir, mode) in there {
            if watcher.is_none() {
                let tell = changed.clone();
                let told = move |_| {
                    // The reader may have ended before the watcher.
                    tell.send(Wake::Changed).ok();
                };
                *watcher = notify::recommended_watcher(told).ok();
            }
            if let Some(watcher) = watcher {
                watcher.watch(&dir, mode).ok();
            }
        }
    }

    fn tell(&self, found: Vec<Finding>) {
        if !found.is_empty() {
            // The main task may have gone; then nobody wants to know.
            self.heard.blocking_send(Heard::Findings(found)).ok();
        }
    }
}
