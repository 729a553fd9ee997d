//! Conversions between integers and doubles.

/// Converts an index to a double.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a part need not be exact beyond 2^53"
)]
pub(crate) fn u64_to_f64(n: u64) -> f64 {
    n as f64
}

/// Converts a double to an index, at most `size` - 1.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
pub(crate) fn f64_to_index(n: f64, size: u64) -> u64 {
    (n as u64).min(size.saturating_sub(1))
}

/// Converts a double without a fraction to an integer.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "an integer of at most 53 bits"
)]
pub(super) fn f64_to_i64(number: f64) -> i64 {
    number as i64
}
