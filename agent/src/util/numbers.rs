//! Conversions of numbers. A number that the new type lacks becomes the nearest one that it has.

use std::time::Duration;

/// The number of bytes in a mebibyte.
pub const BYTES_PER_MIB: u64 = 1 << 20;

/// Returns a length as a 64-bit number.
pub fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Returns the whole milliseconds of `time`.
pub fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the nearest float, for shares, rates and readings, which need no more than its 53 bits.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "the nearest float is wanted"
)]
pub fn to_f64(number: u64) -> f64 {
    number as f64
}
