//! Reads the trial's process tree, through `sysinfo`.
//!
//! All descendants of the agent belong to the trial, except the agent's helpers. Orphans become children of the agent
//! (it is PID 1 or a subreaper), so even a daemon that left its session is counted.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use sysinfo::{Pid, Process, ProcessRefreshKind, ProcessesToUpdate, System};
use trial_protocol::ProcessSample;

use crate::trial::tree;

/// Reads the process tree below one process.
#[derive(Debug)]
pub struct ProcessReader {
    system: System,
    /// The time of the last reading, and the processor time that each process had used by then, in milliseconds.
    previous: Option<(Duration, BTreeMap<ProcessIdentity, u64>)>,
}

/// The identity of a process: its pid, which may be reused, and its start time.
type ProcessIdentity = (Pid, u64);

impl ProcessReader {
    /// Creates a reader. `None` if processes cannot be read, for example in a root without `/proc`.
    pub fn new() -> Option<Self> {
        fs::metadata("/proc/self/stat").ok()?;
        Some(Self { system: System::new().ok()?, previous: None })
    }

    /// Reads the descendants of process `top`, except those at or below `except`. `now` is from a monotonic clock.
    /// `None` if there are no processes.
    pub fn read(&mut self, top: u32, except: &[u32], now: Duration) -> Option<ProcessSample> {
        let tree = tree::descendants(top, except);
        let tree: Vec<_> = tree.iter().map(|process| Pid::from_u32(process.pid)).collect();
        // Without threads, because `sysinfo` would read each like a process. Only the trial's processes, because a
        // machine may run a thousand others.
        let kind = ProcessRefreshKind::nothing()
            .without_tasks()
            .with_cpu()
            .with_memory()
            .with_disk_usage();
        self.system.refresh_processes_specifics(ProcessesToUpdate::Some(&tree), true, kind);

        let processes: Vec<_> = tree.iter().filter_map(|pid| self.system.process(*pid)).collect();
        if processes.is_empty() {
            return None;
        }
        let used: BTreeMap<ProcessIdentity, u64> = processes
            .iter()
            .map(|process| ((process.pid(), process.start_time()), process.accumulated_cpu_time()))
            .collect();
        let previous = self.previous.replace((now, used));
        let cpu_percent = previous.and_then(|previous| self.cpu_percent(&previous));

        let sum = |value: fn(&Process) -> u64| processes.iter().map(|process| value(process)).sum();
        Some(ProcessSample {
            processes: to_u32(processes.len()),
            threads: count_entries(&tree, "task"),
            cpu_percent,
            memory_bytes: sum(Process::memory),
            read_bytes: Some(sum(|process| process.disk_usage().total_read_bytes)),
            written_bytes: Some(sum(|process| process.disk_usage().total_written_bytes)),
            descriptors: count_entries(&tree, "fd"),
        })
    }

    /// Returns the processor time since `previous`, in percent of one core. It lacks the time of processes that have
    /// ended since. A new process counts from its start.
    fn cpu_percent(&self, previous: &(Duration, BTreeMap<ProcessIdentity, u64>)) -> Option<f64> {
        let (then, used_then) = previous;
        let (now, used_now) = self.previous.as_ref()?;
        let elapsed = now.checked_sub(*then).filter(|elapsed| !elapsed.is_zero())?;
        let used: u64 = used_now
            .iter()
            .map(|(name, used)| used.saturating_sub(used_then.get(name).copied().unwrap_or(0)))
            .sum();
        let used = Duration::from_millis(used);
        Some(100.0 * used.as_secs_f64() / elapsed.as_secs_f64())
    }
}

/// Returns the total number of entries in `dir` of all processes. `None` if no directory can be read.
fn count_entries(tree: &[Pid], dir: &str) -> Option<u32> {
    let each = tree.iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/{dir}")).ok());
    each.map(|entries| to_u32(entries.count())).reduce(u32::saturating_add)
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A shell with a child process, both ended on drop.
    struct Tree {
        shell: Child,
        leaf: u32,
    }

    impl Tree {
        /// Starts a shell that starts `child` in the background.
        fn new(child: &str) -> Self {
            let script = format!("{child} >/dev/null & echo $!; read line; kill $!");
            let mut shell = Command::new("sh")
                .args(["-c", &script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut leaf = String::new();
            let mut stdout = BufReader::new(shell.stdout.take().unwrap());
            stdout.read_line(&mut leaf).unwrap();
            Self { shell, leaf: leaf.trim().parse().unwrap() }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            // The end of its input ends the shell, which ends its child.
            drop(self.shell.stdin.take());
            self.shell.wait().unwrap();
        }
    }

    #[test]
    fn the_tree_below_a_process_is_summed() {
        let tree = Tree::new("sleep 600");
        let mut reader = ProcessReader::new().unwrap();
        let sample = reader.read(tree.shell.id(), &[], Duration::ZERO).unwrap();
        assert_eq!((sample.processes, sample.threads), (1, Some(1)), "{sample:?}");
        assert!(sample.memory_bytes > 0 && sample.descriptors > Some(0), "{sample:?}");
        assert_eq!(sample.cpu_percent, None);
        assert_eq!(reader.read(tree.leaf, &[], Duration::ZERO), None);
    }

    #[test]
    fn the_agents_helpers_are_not_counted() {
        let tree = Tree::new("sleep 600");
        let mut reader = ProcessReader::new().unwrap();
        let mut processes = |except: &[u32]| {
            let sample = reader.read(tree.shell.id(), except, Duration::ZERO);
            sample.map(|sample| sample.processes)
        };
        assert_eq!(processes(&[]), Some(1));
        assert_eq!(processes(&[tree.leaf]), None);
    }

    #[test]
    fn processor_time_is_the_difference_of_two_readings() {
        let tree = Tree::new("(while :; do :; done)");
        let mut reader = ProcessReader::new().unwrap();
        let top = tree.shell.id();
        let first = reader.read(top, &[], Duration::ZERO).unwrap();
        assert_eq!(first.cpu_percent, None);
        // The times are simulated: each reading is one second after the last, however long the loop really takes.
        let used = (1..1_000_000).find_map(|second| {
            let sample = reader.read(top, &[], Duration::from_secs(second)).unwrap();
            sample.cpu_percent.filter(|percent| *percent > 0.0)
        });
        assert!(used.is_some());
        assert_eq!(reader.read(top, &[], Duration::ZERO).unwrap().cpu_percent, None);
    }
}
