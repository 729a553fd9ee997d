//! Watches the files that contain metrics, on a thread of its own: a network file system may hang.
//!
//! If the file system supports it, `notify` reports changes at once. A check every second finds other changes, and a
//! last check follows the trial's end. The watcher must not create anything: NNI's SDK fails if its directory appears
//! between its own check and its `mkdir`.
//!
//! A check opens the files, and `notify` reports that too. It must not trigger another check, or checks would never
//! end. Other writes, such as a checkpoint of gigabytes beside the event files, must cost the trial's machine almost
//! nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::thread;
use std::time::{Duration, Instant};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use crate::collect::{CollectSpec, Finding};
use crate::output::file_tail::{FileCollectors, FileSpec};
use crate::output::{IntakeEvent, READER_STACK_BYTES};

/// The time between checks if no change is reported.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest pause between two checks.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The pause after a check, in multiples of the check's duration.
const PAUSE_PER_CHECK: u32 = 20;

/// The files, before their thread is started.
#[derive(Debug)]
pub struct MetricFiles {
    collectors: FileCollectors,
    /// Directories that are not watched yet, and may not exist yet.
    unwatched_dirs: Vec<(PathBuf, RecursiveMode)>,
    /// The files and directories themselves.
    paths: Vec<PathBuf>,
    events: mpsc::Sender<IntakeEvent>,
}

/// A handle to the thread. On drop, the thread checks the files a last time and sends [`IntakeEvent::MetricFilesRead`].
#[derive(Debug)]
pub struct MetricFileWatcher {
    wake: blocking::Sender<WatcherCommand>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatcherCommand {
    Changed,
    Stop,
}

impl Drop for MetricFileWatcher {
    fn drop(&mut self) {
        // The thread may have panicked, so that nothing must be stopped.
        self.wake.send(WatcherCommand::Stop).ok();
    }
}

impl MetricFiles {
    /// Creates the collectors of the files of `spec`, which send findings to `events`. Must be called before the trial
    /// starts: existing content is from an earlier attempt, which has reported it. The trial waits for this call, so it
    /// reads almost nothing.
    pub fn new(collect: &CollectSpec, spec: FileSpec, events: mpsc::Sender<IntakeEvent>) -> Self {
        let files = spec.metric_file.iter().chain(&spec.line_files);
        let parents = files.filter_map(|file| file.parent()).map(|dir| {
            // The parent of a bare name is the empty path.
            let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir.to_owned() };
            (dir, RecursiveMode::NonRecursive)
        });
        let dirs = spec.event_dirs.iter().cloned().map(|dir| (dir, RecursiveMode::Recursive));
        let unwatched_dirs = parents.chain(dirs).collect();
        let files = spec.metric_file.iter().chain(&spec.line_files);
        let paths = files.chain(&spec.event_dirs).cloned().collect();
        let mut collectors = FileCollectors::new(collect, spec);
        collectors.skip();
        Self { collectors, unwatched_dirs, paths, events }
    }

    /// Returns NNI's file and the line-based files, each with its length before the trial.
    pub fn offsets(&self) -> Vec<(PathBuf, u64)> {
        self.collectors.offsets()
    }

    /// Returns whether any of the files or directories exists by now.
    pub fn any_exists(&self) -> bool {
        self.paths.iter().any(|path| path.exists())
    }

    /// Starts the thread.
    pub fn watch(self) -> Result<MetricFileWatcher, std::io::Error> {
        let (wake, woken) = blocking::channel();
        let changed = wake.clone();
        thread::Builder::new()
            .name("metric-files".to_owned())
            .stack_size(READER_STACK_BYTES)
            .spawn(move || self.run(&woken, &changed))?;
        Ok(MetricFileWatcher { wake })
    }

    fn run(
        mut self,
        woken: &blocking::Receiver<WatcherCommand>,
        changed: &blocking::Sender<WatcherCommand>,
    ) {
        let mut watcher = None;
        let mut found = Vec::new();
        let is_woken = Arc::<AtomicBool>::default();
        loop {
            let begun = Instant::now();
            is_woken.store(false, Ordering::Release);
            self.watch_existing_dirs(&mut watcher, changed, &is_woken);
            self.collectors.poll(&mut found);
            self.send_findings(std::mem::take(&mut found));
            if wait_for_command(woken, pause_after(begun.elapsed())) == WatcherCommand::Stop {
                break;
            }
        }
        self.collectors.finish(&mut found);
        self.send_findings(found);
        self.events.blocking_send(IntakeEvent::MetricFilesRead).ok();
    }

    /// Watches the directories that exist by now. If they cannot be watched (for example without a free inotify
    /// instance), the check every second must suffice.
    fn watch_existing_dirs(
        &mut self,
        watcher: &mut Option<RecommendedWatcher>,
        changed: &blocking::Sender<WatcherCommand>,
        is_woken: &Arc<AtomicBool>,
    ) {
        let (existing, absent) =
            std::mem::take(&mut self.unwatched_dirs).into_iter().partition(|(dir, _)| dir.is_dir());
        self.unwatched_dirs = absent;
        let existing: Vec<(PathBuf, RecursiveMode)> = existing;
        for (dir, mode) in existing {
            if watcher.is_none() {
                *watcher = create_watcher(changed.clone(), Arc::clone(is_woken)).ok();
            }
            if let Some(watcher) = watcher {
                watcher.watch(&dir, mode).ok();
            }
        }
    }

    fn send_findings(&self, found: Vec<Finding>) {
        if !found.is_empty() {
            // The main task may have ended. The findings are then useless.
            self.events.blocking_send(IntakeEvent::Findings(found)).ok();
        }
    }
}

/// Creates a watcher that wakes the thread on a change, and sets `is_woken`. While it is set, no further wake is
/// needed. The opening of a file is not a change: the agent itself may have opened it.
fn create_watcher(
    wake: blocking::Sender<WatcherCommand>,
    is_woken: Arc<AtomicBool>,
) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        let changed = event.map_or(true, |event| !event.kind.is_access());
        if changed && !is_woken.swap(true, Ordering::AcqRel) {
            // The reader may have ended before the watcher.
            wake.send(WatcherCommand::Changed).ok();
        }
    })
}

/// Waits until another check is needed, and at least for `pause`, so that several changes need only one check. The
/// trial's end ends the wait at once.
fn wait_for_command(woken: &blocking::Receiver<WatcherCommand>, pause: Duration) -> WatcherCommand {
    let begun = Instant::now();
    let mut left = CHECK_INTERVAL.max(pause);
    // One check covers all wakes so far.
    while let Ok(wake) = woken.recv_timeout(left) {
        left = pause.saturating_sub(begun.elapsed());
        if wake == WatcherCommand::Stop || left.is_zero() {
            return wake;
        }
    }
    WatcherCommand::Changed
}

/// PURE: returns the pause after a check of the given duration.
fn pause_after(look: Duration) -> Duration {
    (look * PAUSE_PER_CHECK).clamp(MIN_CHECK_INTERVAL, CHECK_INTERVAL)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A bound for events that are immediate on an idle machine.
    const TEST_TIMEOUT: Duration = Duration::from_mins(1);

    #[test]
    fn a_reader_does_not_wake_itself() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["one", "other"].map(|name| dir.path().join(name));
        for file in &files {
            fs::write(file, "{}").unwrap();
        }
        let (wake, woken) = blocking::channel();
        let is_woken = Arc::<AtomicBool>::default();
        let mut watcher = create_watcher(wake, Arc::clone(&is_woken)).unwrap();
        watcher.watch(dir.path(), RecursiveMode::NonRecursive).unwrap();
        // Alternately, because the kernel merges equal events.
        for file in files.iter().cycle().take(100) {
            fs::read(file).unwrap();
        }
        for change in ["a", "b"] {
            fs::create_dir(dir.path().join(change)).unwrap();
            assert_eq!(woken.recv_timeout(TEST_TIMEOUT), Ok(WatcherCommand::Changed), "{change}");
            is_woken.store(false, Ordering::Release);
        }
        // Further events would come from the reads.
        drop(watcher);
        assert_eq!(woken.into_iter().count(), 0);
    }

    #[test]
    fn the_pause_grows_with_the_duration_of_a_check() {
        let millis = Duration::from_millis;
        for (look, pause) in [(0, 10), (1, 20), (7, 140), (50, 1000), (100_000, 1000)] {
            assert_eq!(pause_after(millis(look)), millis(pause), "{look} ms");
        }
    }

    #[test]
    fn changes_gather_and_the_end_stops_the_wait_at_once() {
        let (wake, woken) = blocking::channel();
        for is_woken in [
            WatcherCommand::Changed,
            WatcherCommand::Changed,
            WatcherCommand::Changed,
            WatcherCommand::Stop,
        ] {
            wake.send(is_woken).unwrap();
        }
        assert_eq!(wait_for_command(&woken, Duration::ZERO), WatcherCommand::Changed);
        assert_eq!(wait_for_command(&woken, 100 * TEST_TIMEOUT), WatcherCommand::Stop);
    }
}
