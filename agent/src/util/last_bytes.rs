//! The last bytes of a stream, kept in memory for the verdict.

use std::collections::VecDeque;

use crate::util::numbers::to_u64;

/// The maximum number of bytes that are kept.
pub const MAX_KEPT_BYTES: usize = 64 * 1024;

/// The end of one stream.
#[derive(Debug, Default)]
pub struct LastBytes {
    bytes: VecDeque<u8>,
    total: u64,
}

impl LastBytes {
    /// Appends the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(to_u64(bytes.len()));
        let bytes = &bytes[bytes.len().saturating_sub(MAX_KEPT_BYTES)..];
        // Drained first, so that the buffer never exceeds the maximum.
        let over = (self.bytes.len() + bytes.len()).saturating_sub(MAX_KEPT_BYTES);
        self.bytes.drain(..over);
        self.bytes.extend(bytes);
    }

    /// Returns the last bytes of the stream, at most [`MAX_KEPT_BYTES`].
    pub fn bytes(&self) -> Vec<u8> {
        let (older, newer) = self.bytes.as_slices();
        [older, newer].concat()
    }

    /// Returns the length of the whole stream so far, in bytes.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_bytes_do_not_depend_on_the_portions(portions in prop::collection::vec(prop_oneof![0..100_usize, 60_000..140_000_usize], 0..8)) {
            let mut last = LastBytes::default();
            let mut whole = Vec::new();
            for (n, length) in portions.into_iter().enumerate() {
                let portion: Vec<u8> = (0..length).map(|i| (i * 7 + n).to_le_bytes()[0]).collect();
                last.push(&portion);
                whole.extend_from_slice(&portion);
            }
            assert_eq!(last.bytes(), whole[whole.len().saturating_sub(MAX_KEPT_BYTES)..]);
            assert_eq!(last.total(), u64::try_from(whole.len()).unwrap());
        }
    }
}
