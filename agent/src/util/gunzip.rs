//! PURE: a gzip stream (RFC 1952) -> what was compressed. One member; its check sum is not looked at, since the caller
//! knows the sum of the whole file.

use std::io::{self, Read};

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZFlush, MZStatus};

/// Compressed bytes that are held.
const HELD: usize = 32 << 10;

/// Reads what was compressed.
pub struct Gunzip<R> {
    source: R,
    state: Box<InflateState>,
    held: Vec<u8>,
    /// The part of `held` that was not inflated yet.
    from: usize,
    ended: bool,
}

impl<R: Read> Gunzip<R> {
    /// Reads the head of the stream.
    pub fn new(mut source: R) -> io::Result<Self> {
        let mut head = [0; 10];
        source.read_exact(&mut head)?;
        let [0x1f, 0x8b, 8, flags, ..] = head else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not gzip"));
        };
        if flags & 4 != 0 {
            let mut length = [0; 2];
            source.read_exact(&mut length)?;
            let length = u64::from(u16::from_le_bytes(length));
            io::copy(&mut source.by_ref().take(length), &mut io::sink())?;
        }
        // A name, and a comment.
        for _ in 0..(flags >> 3 & 1) + (flags >> 4 & 1) {
            let mut byte = [1];
            while byte[0] != 0 {
                source.read_exact(&mut byte)?;
            }
        }
        if flags & 2 != 0 {
            source.read_exact(&mut [0; 2])?;
        }
        let state = InflateState::new_boxed(DataFormat::Raw);
        Ok(Self { source, state, held: Vec::new(), from: 0, ended: false })
    }
}

impl<R: Read> Read for Gunzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.ended || buffer.is_empty() {
                return Ok(0);
            }
            let mut over = false;
            if self.from == self.held.len() {
                self.held.resize(HELD, 0);
                let read = self.source.read(&mut self.held)?;
                self.held.truncate(read);
                self.from = 0;
                over = read == 0;
            }
            let done = inflate(&mut self.state, &self.held[self.from..], buffer, MZFlush::None);
            self.from += done.bytes_consumed;
            let damaged = |_| io::Error::new(io::ErrorKind::InvalidData, "the gzip is damaged");
            match done.status {
                Ok(MZStatus::StreamEnd) => self.ended = true,
                // No progress, which is an end only where nothing more comes.
                Ok(_) | Err(miniz_oxide::MZError::Buf) => {
                    if over && done.bytes_written == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(damaged(error)),
            }
            if done.bytes_written > 0 {
                return Ok(done.bytes_written);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    fn gzip(bytes: &[u8], options: &[&str]) -> Vec<u8> {
        let mut child = Command::new("gzip")
            .args(["-c"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&bytes));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        output.stdout
    }

    fn gunzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut found = Vec::new();
        Gunzip::new(bytes)?.read_to_end(&mut found)?;
        Ok(found)
    }

    #[test]
    fn what_gzip_writes_is_read() {
        let noise: Vec<u8> =
            (0..300_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        for bytes in [Vec::new(), b"x".to_vec(), vec![b'x'; 1 << 20], noise] {
            for options in [["-1"], ["-9"]] {
                assert!(gunzip(&gzip(&bytes, &options)).unwrap() == bytes, "{}", bytes.len());
            }
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("named"), "text").unwrap();
        let named = Command::new("gzip").args(["-c", "named"]).current_dir(folder.path()).output();
        assert_eq!(gunzip(&named.unwrap().stdout).unwrap(), b"text", "a name in the head");
    }

    #[test]
    fn what_is_cut_or_something_else_is_refused() {
        let good = gzip(&vec![b'x'; 100_000], &["-6"]);
        for length in [0, 3, 10, 11, good.len() - 20] {
            assert!(gunzip(&good[..length]).is_err(), "{length}");
        }
        assert!(gunzip(b"PK\x03\x04 and so on").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, flags: u8) {
            drop(gunzip(&bytes));
            drop(gunzip(&[&[0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 0], bytes.as_slice()].concat()));
        }
    }
}
