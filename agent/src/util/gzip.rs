//! PURE: compresses bytes in memory into gzip streams (RFC 1952), and decompresses them. The caller decides which bytes
//! are worth compressing.

use std::io::Write as _;

use flate2::Compression;
pub use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;

/// Returns the bytes as one gzip stream. Uses the fastest level, because the processor is the trial's.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.expect("writing to memory does not fail")
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _};
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    fn gunzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut back = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut back)?;
        Ok(back)
    }

    #[test]
    fn the_gzip_program_reads_a_stream_and_finds_it_whole() {
        let text = b"epoch 3 loss 0.25 accuracy 0.75\n".repeat(4_000);
        let mut child = Command::new("gzip")
            .args(["-d", "-c"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let stream = gzip(&text);
        assert!(stream.len() < text.len() / 10, "{} of {}", stream.len(), text.len());
        let writer = std::thread::spawn(move || stdin.write_all(&stream));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout == text);
    }

    #[test]
    fn a_stream_that_is_cut_or_altered_is_refused() {
        let good = gzip(&b"x".repeat(100_000));
        for length in [0, 3, 10, 11, good.len() - 20, good.len() - 1] {
            assert!(gunzip(&good[..length]).is_err(), "{length} bytes");
        }
        assert!(gunzip(b"PK\x03\x04 and so on").is_err());
        for (part, back) in [("CRC-32", 8), ("length", 4)] {
            let mut altered = good.clone();
            let at = altered.len() - back;
            altered[at] ^= 1;
            assert!(gunzip(&altered).is_err(), "another {part}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_survive_compression(bytes: Vec<u8>) {
            prop_assert_eq!(gunzip(&gzip(&bytes)).unwrap(), bytes);
        }

        #[test]
        fn gzip_streams_of_random_bytes_never_panic(bytes: Vec<u8>, flags: u8) {
            gunzip(&bytes).ok();
            gunzip(&[&[0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 0], bytes.as_slice()].concat()).ok();
        }
    }
}
