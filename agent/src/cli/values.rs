//! PURE: values of flags, read and bounded. A value that is too small to make sense is refused here, where the user who
//! set it reads the error.

use core::net::SocketAddr;
use std::time::Duration;

use crate::collect::Pattern;
use crate::util::errors::chain;

/// The smallest file of output that is worth being set aside: one page.
const ROTATE_LEAST: u64 = 4096;

/// The shortest line worth being sent: what says that it was cut has a few words.
const LINE_LEAST: u64 = 64;

/// The shortest time between two heartbeats, and between two samples: each costs this machine or the manager's something.
const HEARTBEAT_LEAST: Duration = Duration::from_millis(100);
const SAMPLE_LEAST: Duration = Duration::from_millis(10);

/// Reads the manager's URL, so far as to know that it is one: no manager can be reached at another.
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

/// Reads a time: a number with the unit `ms`, `s`, `m` or `h`; without one, seconds.
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
    // A year is for ever; more only overflows the arithmetic.
    match number * seconds {
        time if (0.0..=31_536_000.0).contains(&time) => Ok(Duration::from_secs_f64(time)),
        _ => Err("a time between 0 and 365d is expected".to_owned()),
    }
}

/// Reads a size after which a file is set aside.
pub(super) fn rotate_bytes(text: &str) -> Result<u64, String> {
    at_least(text, ROTATE_LEAST, ", such as 104857600; leave it out for files that grow for ever")
}

/// Reads a length of a line.
pub(super) fn log_line_bytes(text: &str) -> Result<usize, String> {
    let bytes = at_least(text, LINE_LEAST, "")?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn at_least(text: &str, least: u64, advice: &str) -> Result<u64, String> {
    let bytes = text.parse::<u64>().ok().filter(|bytes| *bytes >= least);
    bytes.ok_or_else(|| format!("a number of bytes of at least {least} is expected{advice}"))
}

/// Reads the longest silence.
pub(super) fn heartbeat(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let long = Some(time).filter(|time| *time >= HEARTBEAT_LEAST);
    long.ok_or_else(|| format!("a time of at least {HEARTBEAT_LEAST:?} is expected"))
}

/// Reads the time between two samples.
pub(super) fn sample_interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let long = Some(time).filter(|time| time.is_zero() || *time >= SAMPLE_LEAST);
    long.ok_or_else(|| format!("a time of at least {SAMPLE_LEAST:?} is expected, or 0 for none"))
}
