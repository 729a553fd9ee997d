//! Reads durations and amounts of memory in common notations. They are those of NNI 3.0
//! (`nni/experiment/config/utils/public.py`) and those that NNI rejects: numbers in quotes, `4g`, `100ms`, `1h30m`.
//! YAML 1.1, in which NNI reads its files, has a further notation: `1:30:00` are 5400 seconds.

use std::time::Duration;

use serde_json::Value;

use super::document::describe_kind;

const SECONDS_PER_UNIT: [(&str, f64); 13] = [
    ("ms", 0.001),
    ("s", 1.0),
    ("sec", 1.0),
    ("second", 1.0),
    ("seconds", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("minute", 60.0),
    ("minutes", 60.0),
    ("h", 3600.0),
    ("hour", 3600.0),
    ("hours", 3600.0),
    ("d", 86400.0),
];

const MEBIBYTES_PER_UNIT: [(&str, f64); 14] = [
    ("b", 1.0 / 1_048_576.0),
    ("k", 1.0 / 1024.0),
    ("kb", 1.0 / 1024.0),
    ("ki", 1.0 / 1024.0),
    ("kib", 1.0 / 1024.0),
    ("m", 1.0),
    ("mb", 1.0),
    ("mi", 1.0),
    ("mib", 1.0),
    ("g", 1024.0),
    ("gb", 1024.0),
    ("gi", 1024.0),
    ("gib", 1024.0),
    ("tb", 1_048_576.0),
];

/// Reads a duration such as `90`, `"1.5h"` or `"1h30m"`. A number without a unit is in seconds. Fractions of a second
/// are rounded up, as in NNI, unless the unit is `ms`.
pub fn parse_duration(value: &Value) -> Result<Duration, String> {
    let form = "a duration such as 90, 90s, 10m, 1.5h or 2d";
    let seconds = parse_amount(value, &SECONDS_PER_UNIT)
        .or_else(|| parse_sexagesimal(value.as_str()?))
        .ok_or_else(|| describe_wrong_value(value, form))?;
    let fine = value.as_str().is_some_and(|text| text.to_lowercase().contains("ms"));
    let seconds = if fine { seconds } else { seconds.ceil() };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(describe_wrong_value(value, &format!("{form}, greater than 0"))),
    }
}

/// Reads an amount of memory such as `8192` or `"8gb"`, and returns it in MiB, rounded up. A number without a unit is
/// in MiB. All units are powers of 1024, as in NNI.
pub fn parse_memory_mib(value: &Value) -> Result<u64, String> {
    let form = "an amount of memory such as 8192, 8192mb or 8gb";
    let mebibytes = parse_amount(value, &MEBIBYTES_PER_UNIT)
        .ok_or_else(|| describe_wrong_value(value, form))?
        .ceil();
    if !(1.0..=1e15).contains(&mebibytes) {
        return Err(describe_wrong_value(value, &format!("{form}, greater than 0")));
    }
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an integer between 1 and 10^15"
    )]
    Ok(mebibytes as u64)
}

/// Reads a number, or numbers with units that add up.
fn parse_amount(value: &Value, units: &[(&str, f64)]) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::String(text) => text.to_lowercase(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    let mut rest = text.trim();
    if let Some(plain) = parse_number(rest) {
        return Some(plain);
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let (amount, after) = rest.split_at(rest.find(|c: char| c.is_alphabetic())?);
        let (unit, after) =
            after.split_at(after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len()));
        let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
        total += parse_number(amount.trim())? * factor;
        rest = after.trim_start();
    }
    Some(total)
}

/// Reads a number in base 60, such as `1:30:00`, in the form of YAML 1.1 (<https://yaml.org/type/float.html>): after
/// the first colon, each part has one or two digits and is less than 60. The last part may have a fraction.
fn parse_sexagesimal(text: &str) -> Option<f64> {
    let (parts, last) = text.trim().rsplit_once(':')?;
    let (seconds, fraction) = last.split_once('.').unwrap_or((last, ""));
    let mut parts = parts.split(':');
    let first = parts.next().filter(|part| !part.is_empty() && !part.contains('.'))?;
    let whole = parts.chain([seconds]).try_fold(parse_number(first)?, |total, part| {
        let has_form = (1..=2).contains(&part.len()) && !part.contains('.');
        let digits = parse_number(part).filter(|digits| has_form && *digits < 60.0)?;
        Some(total * 60.0 + digits)
    })?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let fraction = Some(fraction).filter(|digits| !digits.contains('.'))?;
    Some(whole + parse_number(&format!("0.{fraction}"))?)
}

/// Reads a decimal number. Rust's own parser would also accept `inf`, `nan` and a sign.
fn parse_number(text: &str) -> Option<f64> {
    let digits = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if digits { text.parse().ok() } else { None }
}

fn describe_wrong_value(value: &Value, form: &str) -> String {
    format!("expected {form}, found {}", describe_kind(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_are_read_in_nnis_and_further_notations() {
        #[rustfmt::skip]
        let table = [
            (json!(60),        Some(60_000)),
            (json!("60"),      Some(60_000)),
            (json!("60s"),     Some(60_000)),
            (json!("10M"),     Some(600_000)),
            (json!("1.5h"),    Some(5_400_000)),
            (json!("2d"),      Some(172_800_000)),
            (json!("0.1s"),    Some(1_000)),
            (json!("100ms"),   Some(100)),
            (json!("1h30m"),   Some(5_400_000)),
            (json!("1h 30m"),  Some(5_400_000)),
            (json!(" 5 min "), Some(300_000)),
            (json!("1:30:00"), Some(5_400_000)),
            (json!("90:05"),   Some(5_405_000)),
            (json!("1:30.5"),  Some(91_000)),
            (json!("1:60"),    None),
            (json!("1.5:30"),  None),
            (json!("1:2.5:0"), None),
            (json!("1:005"),   None),
            (json!("1:5.1.1"), None),
            (json!("1::5"),    None),
            (json!("1:"),      None),
            (json!(":30"),     None),
            (json!("1:-5"),    None),
            (json!(0),         None),
            (json!("0s"),      None),
            (json!(-5),        None),
            (json!("-5s"),     None),
            (json!("1x"),      None),
            (json!("s"),       None),
            (json!("1h30"),    None),
            (json!(""),        None),
            (json!("inf"),     None),
            (json!("1e400d"),  None),
            (json!(1e300),     None),
            (json!(true),      None),
            (json!([1]),       None),
        ];
        for (value, ms) in table {
            assert_eq!(parse_duration(&value).ok(), ms.map(Duration::from_millis), "{value}");
        }
    }

    #[test]
    fn memory_is_read_in_nnis_and_further_notations() {
        #[rustfmt::skip]
        let table = [
            (json!(8192),     Some(8192)),
            (json!("8192"),   Some(8192)),
            (json!("8gb"),    Some(8192)),
            (json!("1.5GB"),  Some(1536)),
            (json!("4g"),     Some(4096)),
            (json!("4Gi"),    Some(4096)),
            (json!("4GiB"),   Some(4096)),
            (json!("100kb"),  Some(1)),
            (json!("1tb"),    Some(1_048_576)),
            (json!("1b"),     Some(1)),
            (json!(0),        None),
            (json!("4x"),     None),
            (json!("gb"),     None),
        ];
        for (value, mib) in table {
            assert_eq!(parse_memory_mib(&value).ok(), mib, "{value}");
        }
    }

    #[test]
    fn an_error_shows_the_notations() {
        let expected =
            "expected a duration such as 90, 90s, 10m, 1.5h or 2d, found the string \"soon\"";
        assert_eq!(parse_duration(&json!("soon")), Err(expected.to_owned()));
    }

    proptest! {
        #[test]
        fn random_amounts_never_panic(text in ".*") {
            drop(parse_duration(&json!(text)));
            drop(parse_memory_mib(&json!(text)));
        }
    }
}
