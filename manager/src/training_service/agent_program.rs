//! Finds the agent program and checks whether its ELF header lets it run in any image. It runs nothing.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The name of the program.
const PROGRAM_NAME: &str = "trialkeeper";

/// The number of bytes to read. They contain the header and all program headers, which linkers put first: a few dozen
/// of at most 56 bytes.
const HEADER_BYTES: u64 = 64 << 10;
/// The program header that names a loader (`PT_INTERP`). An image may lack that loader, or have another version of it.
const INTERPRETER_HEADER: u32 = 3;

/// The agent program was not found.
#[derive(Debug, thiserror::Error)]
#[error("there is no agent program {}; build it (`cargo build -p trialkeeper`) or name it with --agent", .path.display())]
pub struct Error {
    /// The path at which the program was expected.
    pub path: PathBuf,
}

/// Returns the path of the agent program: the user's choice, the one next to this program, or one in `PATH`. The path
/// is absolute, because agents start in other directories.
pub fn find(chosen: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = chosen {
        return if path.is_file() {
            Ok(absolute_path(path.to_owned()))
        } else {
            Err(Error { path: path.to_owned() })
        };
    }
    let beside =
        std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM_NAME)));
    let in_path = std::env::var_os("PATH").into_iter().flat_map(|path| {
        std::env::split_paths(&path).map(|dir| dir.join(PROGRAM_NAME)).collect::<Vec<_>>()
    });
    let mut candidates = beside.clone().into_iter().chain(in_path);
    candidates
        .find(|path| path.is_file())
        .map(absolute_path)
        .ok_or(Error { path: beside.unwrap_or_else(|| PROGRAM_NAME.into()) })
}

fn absolute_path(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Returns the reason why a program cannot run in every image. `None`: its header shows no reason.
pub fn image_problem(program: &Path) -> Option<&'static str> {
    let mut head = Vec::new();
    // An unreadable program is reported later, when it is needed.
    File::open(program).ok()?.take(HEADER_BYTES).read_to_end(&mut head).ok()?;
    header_problem(&head)
}

fn header_problem(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"#!") {
        return None;
    }
    // TrialKeeper's builds are 64-bit and little-endian (System V ABI, ELF-64).
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return Some("it is not a program for Linux on x86-64 or aarch64");
    }
    let number = |at: usize, bytes: usize| {
        let field = head.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let place = |at: usize, bytes: usize| usize::try_from(number(at, bytes)?).ok();
    let (first, size, count) = (place(32, 8)?, place(54, 2)?, place(56, 2)?);
    let dynamic = (0..count).any(|index| {
        let at = size.checked_mul(index).and_then(|offset| offset.checked_add(first));
        at.and_then(|at| number(at, 4)) == Some(u64::from(INTERPRETER_HEADER))
    });
    dynamic.then_some("it needs the C library of this machine, which an image may lack or have in an older version")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a header of 64 bytes and program headers of these types.
    fn elf_program(types: &[u32]) -> Vec<u8> {
        let mut head = vec![0; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[32] = 64;
        head[54] = 56;
        head[56] = u8::try_from(types.len()).unwrap();
        for kind in types {
            head.extend(kind.to_le_bytes());
            head.extend([0; 52]);
        }
        head
    }

    #[test]
    fn only_a_program_without_a_loader_runs_in_every_image() {
        assert_eq!(header_problem(&elf_program(&[6, 1, 1])), None);
        assert!(
            header_problem(&elf_program(&[6, 3, 1])).is_some_and(|why| why.contains("C library"))
        );
        assert!(
            header_problem(b"\xcf\xfa\xed\xfe").is_some_and(|why| why.contains("not a program"))
        );
        assert_eq!(header_problem(b"#!/bin/sh\n"), None);
        // The file may be truncated, or contain invalid offsets.
        let whole = elf_program(&[3]);
        for length in 0..whole.len() {
            header_problem(&whole[..length]);
        }
        let mut wild = whole;
        wild[32..40].fill(0xff);
        wild[54..58].fill(0xff);
        assert_eq!(header_problem(&wild), None);
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn a_test_program_is_not_static() {
        assert!(image_problem(&std::env::current_exe().unwrap()).is_some());
    }
}
