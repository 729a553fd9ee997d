//! PURE: the leftover processes of a trial, and how each ended.

use std::collections::HashSet;

use super::Process;

/// The maximum number of named leftovers.
const MAX_NAMED_LEFTOVERS: usize = 64;

/// The leftover processes of a trial. A fork bomb leaves thousands: all are counted, and the first are named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    named: Vec<(u32, String)>,
    seen: HashSet<u32>,
    killed: HashSet<u32>,
    /// The processes that are still alive after the wait, some of them unnamed.
    alive: Vec<(u32, String)>,
}

/// The number of leftovers that ended in each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftoverCounts {
    /// The number of processes that ended after SIGTERM.
    pub terminated: usize,
    /// The number of processes that SIGKILL ended.
    pub killed: usize,
    /// The number of processes that survived.
    pub alive: usize,
}

impl Leftovers {
    /// Adds the new processes of `tree`, which will get SIGTERM.
    pub fn add(&mut self, tree: &[Process]) {
        for member in tree {
            if self.seen.insert(member.pid) && self.named.len() < MAX_NAMED_LEFTOVERS {
                self.named.push(entry(member));
            }
        }
    }

    /// Adds the processes that get SIGKILL.
    pub fn add_killed(&mut self, tree: &[Process]) {
        self.add(tree);
        self.killed.extend(tree.iter().map(|member| member.pid));
    }

    /// Records the processes of `tree` as the survivors at the end of the wait.
    pub fn record_survivors(&mut self, tree: &[Process]) {
        self.add(tree);
        self.alive = tree.iter().map(entry).collect();
    }

    /// Returns whether there are no leftovers.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Returns the number of leftovers that ended in each way.
    pub fn counts(&self) -> LeftoverCounts {
        let alive = self.alive.len();
        let killed = self
            .killed
            .iter()
            .filter(|pid| self.alive.iter().all(|(there, _)| there != *pid))
            .count();
        LeftoverCounts { terminated: self.seen.len() - killed - alive, killed, alive }
    }

    /// Returns each leftover as `pid name`, survivors first and marked. The last entry of a long list gives the number
    /// of the others.
    pub fn names(&self) -> Vec<String> {
        let there = self.alive.iter().map(|(pid, name)| format!("{pid} {name} (still there)"));
        let alive: HashSet<u32> = self.alive.iter().map(|(pid, _)| *pid).collect();
        let gone = self.named.iter().filter(|(pid, _)| !alive.contains(pid));
        let gone = gone.map(|(pid, name)| format!("{pid} {name}"));
        let mut names: Vec<_> = there.chain(gone).take(MAX_NAMED_LEFTOVERS).collect();
        let more = self.seen.len() - names.len();
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        names
    }
}

fn entry(process: &Process) -> (u32, String) {
    (process.pid, process.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(pids: impl IntoIterator<Item = u32>) -> Vec<Process> {
        let process =
            |pid| Process { pid, parent: 1, group: pid, name: "x".to_owned(), zombie: false };
        pids.into_iter().map(process).collect()
    }

    #[test]
    fn each_leftover_is_counted_once() {
        type Row<'a> = (&'a str, &'a [u32], &'a [u32], &'a [u32], [usize; 3], &'a [&'a str]);
        #[rustfmt::skip]
        let table: [Row<'_>; 6] = [
            // SIGTERM, SIGKILL, alive, counts, names
            ("no process",                  &[],     &[],     &[],     [0, 0, 0], &[]),
            ("all ended on SIGTERM",        &[7, 8], &[],     &[],     [2, 0, 0], &["7 x", "8 x"]),
            ("one was killed",              &[7, 8], &[8],    &[],     [1, 1, 0], &["7 x", "8 x"]),
            ("one appeared later",          &[7],    &[7, 9], &[],     [0, 2, 0], &["7 x", "9 x"]),
            ("one is still there",          &[7, 8], &[7, 8], &[8],    [0, 1, 1], &["8 x (still there)", "7 x"]),
            ("one that was not killed",     &[7],    &[],     &[8],    [1, 0, 1], &["8 x (still there)", "7 x"]),
        ];
        for (case, terminated, killed, there, [ended, by_kill, alive], names) in table {
            let mut left = Leftovers::default();
            left.add(&tree(terminated.iter().copied()));
            left.add_killed(&tree(killed.iter().copied()));
            left.record_survivors(&tree(there.iter().copied()));
            assert_eq!(
                left.counts(),
                LeftoverCounts { terminated: ended, killed: by_kill, alive },
                "{case}"
            );
            assert_eq!(left.names(), names, "{case}");
            assert_eq!(left.is_empty(), names.is_empty(), "{case}");
        }
    }

    #[test]
    fn a_fork_bomb_is_counted_whole_and_its_first_processes_are_named() {
        let mut left = Leftovers::default();
        for round in 0..3 {
            left.add_killed(&tree(1..=20_000 + round));
        }
        left.record_survivors(&tree([20_002]));
        assert_eq!(left.counts(), LeftoverCounts { terminated: 0, killed: 20_001, alive: 1 });
        let names = left.names();
        assert_eq!((names.len(), names[0].as_str()), (65, "20002 x (still there)"));
        assert_eq!((names[1].as_str(), names[64].as_str()), ("1 x", "and 19938 more"));
    }
}
