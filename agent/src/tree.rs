//! The trial's process tree, found by walking `/proc` by parent.
//!
//! As child subreaper (or PID 1) we are the ancestor of everything the trial started, also of what called
//! `setsid` or forked twice. What the agent itself started is left out.

use std::collections::{HashMap, HashSet};
use std::fs;

/// One living process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Name of its program, at most 15 bytes (`/proc/PID/comm`).
    pub name: String,
    /// Whether it has ended and waits to be reaped.
    pub zombie: bool,
}

/// Everything alive below `root`, except `helpers` and what they started. Empty if `/proc` cannot be read.
pub fn descendants(root: u32, helpers: &[u32]) -> Vec<Process> {
    select(everyone(), root, helpers)
}

fn everyone() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| {
            entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit)
        })
        // A process may end between the listing and the reading.
        .filter_map(|entry| fs::read(entry.path().join("stat")).ok())
        .filter_map(|stat| parse(&stat))
        .collect()
}

/// PURE: the members of the tree below `root`.
fn select(everyone: Vec<Process>, root: u32, helpers: &[u32]) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in &everyone {
        children.entry(process.parent).or_default().push(process.pid);
    }
    let mut members = HashSet::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if !helpers.contains(child) && *child != root && members.insert(*child) {
                open.push(*child);
            }
        }
    }
    everyone
        .into_iter()
        .filter(|process| !process.zombie && members.contains(&process.pid))
        .collect()
}

/// PURE: reads `/proc/PID/stat`: `pid (comm) state ppid pgrp ...`, where comm may hold anything, also `)`.
fn parse(stat: &[u8]) -> Option<Process> {
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
    fn a_line_of_stat_is_read_whatever_the_name() {
        let stat = b"12 (a) (b c) S 3 4 5 0 -1\n";
        let read = parse(stat).unwrap();
        assert_eq!((read.pid, read.parent, read.group, read.zombie), (12, 3, 4, false));
        assert_eq!(read.name, "a) (b c");
        assert!(parse(b"12 (a) Z 3 4 5").unwrap().zombie);
        for broken in
            [&b""[..], b"12", b"12 (a", b"12 (a)", b"12 (a) S", b"12 )a( S 1 1", b"x (a) S 1 1"]
        {
            assert_eq!(parse(broken), None, "{}", String::from_utf8_lossy(broken));
        }
    }

    #[test]
    fn the_tree_has_everybody_below_and_nobody_else() {
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
        let found: Vec<u32> =
            select(all, 10, &[20]).into_iter().map(|process| process.pid).collect();
        assert_eq!(found, [11, 12]);
    }

    #[test]
    fn a_loop_of_parents_ends() {
        assert_eq!(select(vec![process(2, 3), process(3, 2), process(3, 1)], 1, &[]).len(), 3);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(stat: Vec<u8>) {
            drop(parse(&stat));
        }
    }
}
