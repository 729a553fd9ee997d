//! An append-only file, which is rotated when it exceeds a size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::util::numbers::to_u64;

/// One file of output.
#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    rotate_bytes: u64,
    /// The file and its length. `None` after a failure or a rotation: the next write opens it again.
    open: Option<(File, u64)>,
}

impl RotatingFile {
    /// Opens the file `name` in `dir`, or creates it: an empty file shows that nothing was printed.
    pub(super) fn open(dir: &Path, name: &str, rotate_bytes: Option<u64>) -> Self {
        let rotate_bytes = rotate_bytes.unwrap_or(u64::MAX).max(1);
        let path = dir.join(name);
        // A failure is reported by the next write.
        let open = open_at_end(&path).ok();
        Self { path, rotate_bytes, open }
    }

    /// Appends `bytes`. A rotation splits no line, unless the line is longer than a whole file.
    pub(super) fn append(&mut self, mut bytes: &[u8]) -> Result<(), io::Error> {
        while !bytes.is_empty() {
            let (mut file, length) = match self.open.take() {
                Some(open) => open,
                None => open_at_end(&self.path)?,
            };
            let room =
                usize::try_from(self.rotate_bytes.saturating_sub(length)).unwrap_or(usize::MAX);
            let fits = fitting_length(bytes, room, length == 0);
            file.write_all(&bytes[..fits])?;
            bytes = &bytes[fits..];
            let length = length.saturating_add(to_u64(fits));
            if bytes.is_empty() {
                self.open = Some((file, length));
            } else {
                fs::rename(&self.path, self.rotated_path())?;
            }
        }
        Ok(())
    }

    fn rotated_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".1");
        name.into()
    }
}

fn open_at_end(path: &Path) -> Result<(File, u64), io::Error> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// PURE: returns how many of `bytes` fit into `room`: whole lines, or at least one byte if the file is empty.
fn fitting_length(bytes: &[u8], room: usize, empty: bool) -> usize {
    if bytes.len() <= room {
        return bytes.len();
    }
    match memchr::memrchr(b'\n', &bytes[..room]) {
        Some(newline) => newline + 1,
        None if empty => room.max(1),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_fit() {
        #[rustfmt::skip]
        let table = [
            ("all of it",               "a\nb\n", 9, true,  4),
            ("exactly",                 "a\nb\n", 4, true,  4),
            ("one line",                "a\nb\n", 3, true,  2),
            ("none, in a used file",    "abc\n",  2, false, 0),
            ("a piece, in a new one",   "abc\n",  2, true,  2),
            ("always something",        "abc\n",  0, true,  1),
        ];
        for (case, bytes, room, empty, fits) in table {
            assert_eq!(fitting_length(bytes.as_bytes(), room, empty), fits, "{case}");
        }
    }

    #[test]
    fn a_file_above_the_limit_is_rotated_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = RotatingFile::open(dir.path(), "stdout", Some(10));
        file.append(b"1111\n2222\n3333\n").unwrap();
        file.append(b"4444\n5555\n").unwrap();
        let read = |name| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            (read("stdout.1").as_str(), read("stdout").as_str()),
            ("3333\n4444\n", "5555\n")
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn without_a_limit_no_file_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = RotatingFile::open(dir.path(), "stdout", None);
        for _ in 0..3 {
            file.append(&[b'x'; 1000]).unwrap();
        }
        assert_eq!(fs::metadata(dir.path().join("stdout")).unwrap().len(), 3000);
    }
}
