//! PURE: parses and bounds the values of flags. Values below a sensible minimum are refused here, so that the user who
//! set them sees the error.

use core::net::SocketAddr;
use std::time::Duration;

use crate::collect::Pattern;
use crate::util::errors::chain;

/// The minimum size for rotation of an output file: one page.
const MIN_ROTATE_BYTES: u64 = 4096;

/// The minimum length of a line to send. It leaves room for the mark of a cut line, which is a few words long.
const MIN_LINE_BYTES: u64 = 64;

/// The minimum times between two heartbeats and between two samples. Each of them costs time on this machine or the
/// manager's.
const MIN_HEARTBEAT: Duration = Duration::from_millis(100);
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Checks that the manager's URL has a known scheme and a host, because other texts cannot name a manager.
pub(super) fn manager(text: &str) -> Result<String, String> {
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let known = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let host = rest.starts_with(|first: char| first.is_alphanumeric() || "[_".contains(first));
    let plain = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    (known && host && plain)
        .then(|| text.to_owned())
        .ok_or_else(|| "a URL is expected, such as http://10.0.0.1:8080".to_owned())
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "an IP address with a port is expected, such as 127.0.0.1:9464".to_owned())
}

pub(super) fn pattern(text: &str) -> Result<Pattern, String> {
    text.parse().map_err(|error| chain(&error))
}

/// Parses a time: a number with the unit `ms`, `s`, `m`, `h` or `d`. A number without a unit means seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        unit => return Err(format!("unknown unit {unit:?}; ms, s, m, h and d are known")),
    };
    let number: f64 =
        digits.parse().map_err(|_| "a number with a unit is expected, such as 20s".to_owned())?;
    // A year is as good as unlimited, and larger values would overflow.
    match number * seconds {
        time if (0.0..=31_536_000.0).contains(&time) => Ok(Duration::from_secs_f64(time)),
        _ => Err("a time between 0 and 365d is expected".to_owned()),
    }
}

/// Parses the size at which a file is rotated.
pub(super) fn rotate_bytes(text: &str) -> Result<u64, String> {
    at_least(text, MIN_ROTATE_BYTES, ", such as 104857600; omit it to never rotate")
}

/// Parses the length of a line.
pub(super) fn log_line_bytes(text: &str) -> Result<usize, String> {
    let bytes = at_least(text, MIN_LINE_BYTES, "")?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn at_least(text: &str, least: u64, advice: &str) -> Result<u64, String> {
    let bytes = text.parse::<u64>().ok().filter(|bytes| *bytes >= least);
    bytes.ok_or_else(|| format!("a number of bytes of at least {least} is expected{advice}"))
}

/// Parses the maximum time between two messages to the manager.
pub(super) fn heartbeat(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let long = Some(time).filter(|time| *time >= MIN_HEARTBEAT);
    long.ok_or_else(|| format!("a time of at least {MIN_HEARTBEAT:?} is expected"))
}

/// Parses the time between two samples.
pub(super) fn sample_interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let long = Some(time).filter(|time| time.is_zero() || *time >= MIN_SAMPLE_INTERVAL);
    long.ok_or_else(|| {
        format!("a time of at least {MIN_SAMPLE_INTERVAL:?} is expected, or 0 for none")
    })
}
