//! The trial's process tree, found by following parents in `/proc`.
//!
//! As child subreaper (or PID 1), the agent is the ancestor of every process of the trial, even after `setsid` or a
//! double fork. The agent's own helpers are excluded.

use std::collections::{HashMap, HashSet};
use std::fs;

mod leftovers;

pub use leftovers::{LeftoverCounts, Leftovers};

/// A live process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Name of the program, at most 15 bytes (`/proc/PID/comm`).
    pub name: String,
    /// `true` if the process has ended and was not reaped yet.
    pub zombie: bool,
}

/// Returns all live descendants of `root`, except `helpers` and their descendants. Empty if `/proc` cannot be read or
/// belongs to another PID namespace.
pub fn descendants(root: u32, helpers: &[u32]) -> Vec<Process> {
    select_descendants(all_processes(), &[root], helpers, false)
}

/// Returns all live processes that have `mark` (`NAME=value`) in their environment or are members of `group`, and all
/// their descendants, except this process. An unreadable environment counts as unmarked.
pub fn find_marked(mark: &[u8], group: Option<u32>) -> Vec<Process> {
    let is_marked = |process: &Process| {
        group == Some(process.group)
            || fs::read(format!("/proc/{}/environ", process.pid)).is_ok_and(|environment| {
                environment.split(|byte| *byte == 0).any(|entry| entry == mark)
            })
    };
    let processes = all_processes();
    let own = std::process::id();
    let roots: Vec<u32> = processes
        .iter()
        .filter(|process| process.pid != own && is_marked(process))
        .map(|process| process.pid)
        .collect();
    select_descendants(processes, &roots, &[own], true)
}

/// Returns whether process `pid` is about to end, has ended, or cannot be read.
pub fn is_ending(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/stat")).ok().is_none_or(|stat| is_exiting(&stat))
}

/// Returns the name of process `pid`, if the process exists and can be read.
pub fn process_name(pid: u32) -> Option<String> {
    Some(parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)?.name)
}

/// PURE: returns whether this line of `/proc/PID/stat` has the kernel's flag for an exiting process, in the ninth
/// field.
fn is_exiting(stat: &[u8]) -> bool {
    const PF_EXITING: u64 = 4;
    let Some(Process { zombie: false, .. }) = parse_stat(stat) else { return true };
    let rest =
        memchr::memrchr(b')', stat).and_then(|close| std::str::from_utf8(&stat[close + 1..]).ok());
    let flags = rest.and_then(|rest| rest.split_ascii_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

fn all_processes() -> Vec<Process> {
    // If `/proc` belongs to another PID namespace, this process's pid denotes another process there.
    let own = std::process::id().to_string();
    if fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() != own.as_str()) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| {
            entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit)
        })
        // A process may end between the listing and the read.
        .filter_map(|entry| fs::read(entry.path().join("stat")).ok())
        .filter_map(|stat| parse_stat(&stat))
        .collect()
}

/// Returns the programs in `tree` that handle a signal, and so are expected to end their own processes. Shells do not
/// count, because they run their handler only after the program in the foreground has ended.
pub fn programs_with_handler(tree: &[Process], handles: impl Fn(u32) -> bool) -> Vec<u32> {
    let programs = tree.iter().filter(|it| !it.name.ends_with("sh") && handles(it.pid));
    programs.map(|it| it.pid).collect()
}

/// PURE: returns the members of `tree` below `programs`.
pub fn below(tree: &[Process], programs: &[u32]) -> Vec<u32> {
    let mut below = Vec::new();
    let mut parents = programs.to_vec();
    while let Some(parent) = parents.pop() {
        for process in tree {
            if process.parent == parent && !below.contains(&process.pid) {
                below.push(process.pid);
                parents.push(process.pid);
            }
        }
    }
    below
}

/// PURE: returns the live descendants of `roots`, and with `with_roots` the roots too.
fn select_descendants(
    all: Vec<Process>,
    roots: &[u32],
    except: &[u32],
    with_roots: bool,
) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in &all {
        children.entry(process.parent).or_default().push(process.pid);
    }
    let mut members: HashSet<u32> = roots.iter().copied().collect();
    let mut open = roots.to_vec();
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if !except.contains(child) && members.insert(*child) {
                open.push(*child);
            }
        }
    }
    if !with_roots {
        members.retain(|pid| !roots.contains(pid));
    }
    all.into_iter().filter(|process| !process.zombie && members.contains(&process.pid)).collect()
}

/// PURE: parses `/proc/PID/stat`: `pid (comm) state ppid pgrp ...`, where comm may contain any character, even `)`.
fn parse_stat(stat: &[u8]) -> Option<Process> {
    let open = memchr::memchr(b'(', stat)?;
    let close = memchr::memrchr(b')', stat)?;
    let pid = std::str::from_utf8(stat.get(..open)?).ok()?.trim().parse().ok()?;
    let name = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
    let mut rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let state = rest.next()?;
    let parent = rest.next()?.parse().ok()?;
    let group = rest.next()?.parse().ok()?;
    Some(Process { pid, parent, group, name, zombie: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn process(pid: u32, parent: u32) -> Process {
        Process { pid, parent, group: pid, name: "x".to_owned(), zombie: false }
    }

    #[test]
    fn only_programs_that_handle_the_signal_protect_those_below() {
        let named =
            |pid, parent, name: &str| Process { name: name.to_owned(), ..process(pid, parent) };
        let tree = [
            named(2, 1, "bash"),
            named(3, 2, "python3"),
            named(4, 3, "python3"),
            named(5, 4, "python3"),
            named(6, 2, "sleep"),
        ];
        for (handles, below) in [
            (vec![], vec![]),
            (vec![2], vec![]),
            (vec![3], vec![4, 5]),
            (vec![2, 4], vec![5]),
            (vec![3, 4, 5], vec![4, 5]),
        ] {
            let programs = programs_with_handler(&tree, |pid| handles.contains(&pid));
            let mut found = super::below(&tree, &programs);
            found.sort_unstable();
            assert_eq!(found, below, "{handles:?}");
        }
    }

    #[test]
    fn a_stat_line_is_parsed_with_any_name() {
        let stat = b"12 (a) (b c) S 3 4 5 0 -1\n";
        let read = parse_stat(stat).unwrap();
        assert_eq!((read.pid, read.parent, read.group, read.zombie), (12, 3, 4, false));
        assert_eq!(read.name, "a) (b c");
        assert!(parse_stat(b"12 (a) Z 3 4 5").unwrap().zombie);
        for broken in
            [&b""[..], b"12", b"12 (a", b"12 (a)", b"12 (a) S", b"12 )a( S 1 1", b"x (a) S 1 1"]
        {
            assert_eq!(parse_stat(broken), None, "{}", String::from_utf8_lossy(broken));
        }
    }

    #[test]
    fn an_exiting_process_counts_as_ended() {
        #[rustfmt::skip]
        let table: [(&[u8], bool); 5] = [
            (b"12 (a) S 3 4 5 0 -1 4194304 0",  false),
            (b"12 (a) S 3 4 5 0 -1 4194308 0",  true),
            (b"12 (a) Z 3 4 5 0 -1 4194304 0",  true),
            (b"12 (a) S 3 4 5",                 false),
            (b"",                               true),
        ];
        for (stat, ending) in table {
            assert_eq!(is_exiting(stat), ending, "{}", String::from_utf8_lossy(stat));
        }
        assert!(!is_ending(std::process::id()));
    }

    #[test]
    fn the_tree_consists_of_all_descendants() {
        let mut ended = process(13, 10);
        ended.zombie = true;
        let all = vec![
            process(1, 0),
            process(10, 1),
            process(11, 10),
            process(12, 11),
            ended,
            process(20, 10), // A helper, and what it started.
            process(21, 20),
            process(30, 1),
        ];
        let found: Vec<u32> = select_descendants(all.clone(), &[10], &[20], false)
            .into_iter()
            .map(|process| process.pid)
            .collect();
        assert_eq!(found, [11, 12]);
        let found: Vec<u32> = select_descendants(all, &[11, 20], &[21], true)
            .into_iter()
            .map(|process| process.pid)
            .collect();
        assert_eq!(found, [11, 12, 20], "with the roots");
    }

    #[test]
    fn a_loop_of_parents_ends() {
        assert_eq!(
            select_descendants(vec![process(2, 3), process(3, 2), process(3, 1)], &[1], &[], false)
                .len(),
            3
        );
    }

    proptest! {
        #[test]
        fn stat_lines_of_random_bytes_never_panic(stat: Vec<u8>) {
            drop(parse_stat(&stat));
            is_exiting(&stat);
        }
    }
}
