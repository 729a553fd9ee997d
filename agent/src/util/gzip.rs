//! PURE: bytes -> a gzip stream (RFC 1952) of them. It does not decide what is worth it.

use miniz_oxide::deflate::compress_to_vec;

/// Quick rather than small: the processor is the trial's.
const LEVEL: u8 = 1;

/// No name, no time, from Unix, by the fastest way.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 3];

/// Check sums of all bytes, by the polynomial of RFC 1952.
static SUMS: [u32; 256] = sums();

const fn sums() -> [u32; 256] {
    let mut sums = [0; 256];
    let mut byte = 0;
    while byte < 256_u32 {
        let mut sum = byte;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        #[expect(clippy::as_conversions, reason = "`try_from` is not const; at most 255")]
        {
            sums[byte as usize] = sum;
        }
        byte += 1;
    }
    sums
}

/// Compresses all of it.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let deflated = compress_to_vec(bytes, LEVEL);
    let mut stream = Vec::with_capacity(HEAD.len() + deflated.len() + 8);
    stream.extend_from_slice(&HEAD);
    stream.extend_from_slice(&deflated);
    stream.extend_from_slice(&sum(bytes).to_le_bytes());
    // Modulo 2^32, as the format wants it.
    stream.extend_from_slice(&bytes.len().to_le_bytes()[..4]);
    stream
}

fn sum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        let [low, ..] = sum.to_le_bytes();
        sum >> 8 ^ SUMS[usize::from(low ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;
    use crate::util::gunzip::Gunzip;

    #[test]
    fn the_check_sum_is_the_one_of_the_standard() {
        assert_eq!(sum(b"123456789"), 0xcbf4_3926);
        assert_eq!(sum(b""), 0);
    }

    #[test]
    fn gzip_itself_reads_it_and_finds_it_whole() {
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

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes: Vec<u8>) {
            let mut back = Vec::new();
            Gunzip::new(gzip(&bytes).as_slice()).unwrap().read_to_end(&mut back).unwrap();
            prop_assert_eq!(back, bytes);
        }
    }
}
