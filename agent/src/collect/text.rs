//! PURE: reads `name=value` in a line of text, and `name: value` if the name denotes a metric.
//!
//! The rule is that of Katib's default filter, `([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)`. It is stricter
//! where the filter finds metrics by accident: name and value must each be a whole token. `lr=0.1abc`, `x==3`,
//! `date=2026-01-02` and `http://host/?a=1` are therefore text. Unlike in Katib, a name may contain `.`, `/`, `@` and
//! letters of any alphabet. A value may be `nan` or `inf`, and `|` is a separator. The tables in the tests are
//! authoritative.
//!
//! Katib reads only names that the user configured. If the user named the objective, this module accepts everything
//! that Katib accepts as that name (`val|acc`, `--acc`, `1st`, with any text before it). A unit may then follow the
//! number (`12ms`). Text that Katib misreads, such as the 1 of `1,000`, stays text here.

use std::str;

use serde_json::Value;
use trial_protocol::MetricValue;

use super::MAX_NAME_BYTES;
use super::objective::is_metric_name;

/// The prefixes of the agent's and NNI's variables. A trial that prints its environment reports no metrics.
const VARIABLE_PREFIXES: [&str; 2] = ["TRIALKEEPER_", "NNI_"];

/// Calls `found` with every pair in `line`, from left to right. `line` contains no newline and no colour codes.
pub(super) fn find_pairs(
    line: &[u8],
    objective: Option<&str>,
    mut found: impl FnMut(&str, MetricValue),
) {
    for equals in memchr::memchr2_iter(b'=', b':', line) {
        if line[equals] == b':' {
            if let Some((name, value)) = find_labelled_pair(line, equals, objective) {
                found(name, value);
            }
            continue;
        }
        if let Some(objective) =
            objective.filter(|name| matches_katib_filter(&line[..equals], name))
            && let Some(value) = value_with_unit(&line[equals + 1..])
        {
            found(objective, value);
            continue;
        }
        // The value is read first, because most `=` in ordinary text fail there at little cost.
        if let Some(value) = value_after(&line[equals + 1..])
            && let Some(name) = name_before(&line[..equals])
            && !VARIABLE_PREFIXES.iter().any(|ours| name.starts_with(ours))
        {
            found(name, value);
        }
    }
}

/// Returns the pair around a colon, as Keras (`val_loss: 0.6`), Hugging Face (`'eval_loss': 0.3`), `XGBoost`
/// (`validation_0-logloss:0.2`) and many loops print it. Too much other text has this form, so only names of metrics
/// count.
fn find_labelled_pair<'l>(
    line: &'l [u8],
    colon: usize,
    objective: Option<&str>,
) -> Option<(&'l str, MetricValue)> {
    let value = value_after(&line[colon + 1..])?;
    let text = &line[..colon];
    // The quote of a Python dictionary. Text with double quotes is JSON.
    let text = text.strip_suffix(b"'").unwrap_or(text);
    let name = name_before(text)?;
    (is_metric_name(name) || objective == Some(name)).then_some((name, value))
}

/// Returns whether Katib would accept the end of `text` as `name`, and whether it is not part of a longer name.
fn matches_katib_filter(text: &[u8], name: &str) -> bool {
    let is_part = |byte: &u8| is_name_byte(*byte) || *byte == b'|' || !byte.is_ascii();
    let is_katibs = |byte: &u8| byte.is_ascii_alphanumeric() || b"_|-".contains(byte);
    let Some(before) = text.trim_ascii_end().strip_suffix(name.as_bytes()) else { return false };
    !before.last().is_some_and(is_part) && !name.is_empty() && name.bytes().all(|b| is_katibs(&b))
}

/// Returns the number at the start of `text`, if it is a whole token except for a unit.
fn value_with_unit(text: &[u8]) -> Option<MetricValue> {
    let text = text.trim_ascii_start();
    let (number, rest) = text.split_at(number_length(text)?);
    let unit = rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    // `info` is not infinity with a unit, and `0x10` is not zero.
    let is_number = number.last().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.');
    let closed = match &rest[unit..] {
        rest if unit == 0 || !is_number => unit == 0 && can_follow_number(rest),
        [b'/' | b'*' | b'^', ..] => true,
        rest => can_follow_number(rest),
    };
    if closed { to_value(number) } else { None }
}

/// Returns the number that `text` consists of.
pub fn parse_number(text: &str) -> Option<MetricValue> {
    let text = text.trim().as_bytes();
    (number_length(text)? == text.len()).then(|| to_value(text))?
}

/// Returns the name at the end of `text`, if it is a whole token.
fn name_before(text: &[u8]) -> Option<&str> {
    let text = text.trim_ascii_end();
    let window = &text[text.len().saturating_sub(MAX_NAME_BYTES + 1)..];
    let length =
        window.iter().rev().take_while(|byte| is_name_byte(**byte) || !byte.is_ascii()).count();
    if length > MAX_NAME_BYTES {
        return None;
    }
    let before = window[..window.len() - length].last();

    // Letters of any alphabet belong to the name. Any other character of several bytes ends it.
    let token = &window[window.len() - length..];
    let (name, opened) = match str::from_utf8(token) {
        Ok(token) => {
            let foreign = |c: char| !c.is_ascii() && !c.is_alphanumeric();
            match token.char_indices().rev().find(|(_, c)| foreign(*c)) {
                Some((at, c)) => (&token[at + c.len_utf8()..], true),
                None => (token, before.is_none_or(|byte| can_precede_name(*byte))),
            }
        }
        Err(_) => {
            let after = token.iter().rposition(|byte| !byte.is_ascii())? + 1;
            (str::from_utf8(&token[after..]).ok()?, true)
        }
    };

    let first = name.chars().next()?;
    let last = name.chars().next_back()?;
    let whole = opened && (first.is_alphabetic() || first == '_') && !"-./@".contains(last);
    whole.then_some(name)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-./@".contains(&byte)
}

/// Returns whether the byte may precede a name.
fn can_precede_name(byte: u8) -> bool {
    byte.is_ascii_whitespace() || b"([{<>)]},;:|\"'`".contains(&byte)
}

/// Returns the number at the start of `text`, if it is a whole token. A comma, a percent sign or a bracket may follow.
pub(super) fn value_after(text: &[u8]) -> Option<MetricValue> {
    let text = text.trim_ascii_start();
    let length = number_length(text)?;
    if !can_follow_number(&text[length..]) {
        return None;
    }
    to_value(&text[..length])
}

fn to_value(number: &[u8]) -> Option<MetricValue> {
    let number = str::from_utf8(number).ok()?;
    // An integer stays an integer, as in JSON. A number that does not fit becomes a float.
    let integer = number.parse::<i64>().ok().map(|integer| Value::from(integer).into());
    integer.or_else(|| number.parse::<f64>().ok().map(MetricValue::from))
}

/// Returns the length of the number at the start of `text`.
fn number_length(text: &[u8]) -> Option<usize> {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let unsigned = &text[sign..];
    for word in ["infinity", "inf", "nan"] {
        let head = unsigned.get(..word.len());
        if head.is_some_and(|head| head.eq_ignore_ascii_case(word.as_bytes())) {
            return Some(sign + word.len());
        }
    }

    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(unsigned);
    let mut length = whole;
    if unsigned.get(length) == Some(&b'.') {
        let fraction = digits(&unsigned[length + 1..]);
        if whole + fraction == 0 {
            return None;
        }
        // In `loss=1.`, the point may belong to the number or end the sentence. The value is the same.
        length += 1 + fraction;
    }
    if length == 0 {
        return None;
    }
    if matches!(unsigned.get(length), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(unsigned.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits(&unsigned[length + 1 + signed..]);
        if exponent > 0 {
            length += 1 + signed + exponent;
        }
    }
    Some(sign + length)
}

/// Returns whether a value may end before `rest`.
fn can_follow_number(rest: &[u8]) -> bool {
    let rest = rest.strip_prefix(b"%").unwrap_or(rest);
    match rest {
        [] => true,
        [byte, ..] if byte.is_ascii_whitespace() || b")]}>|\"'`".contains(byte) => true,
        // `1,000` and `1.2.3` are not `1` and `1.2`.
        [b',' | b';', after, ..] => !after.is_ascii_digit(),
        [b'.' | b':' | b'!' | b'?', after, ..] => {
            after.is_ascii_whitespace() || b")]}\"'`".contains(after)
        }
        [b',' | b';' | b'.' | b':' | b'!' | b'?'] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn all(line: &[u8]) -> Vec<(String, Value)> {
        summarized(line, None)
    }

    fn summarized(line: &[u8], objective: Option<&str>) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        find_pairs(line, objective, |name, value| {
            found.push((name.to_owned(), value.as_json().clone()));
        });
        found
    }

    /// For each line, Katib's default filter finds exactly these values, if the user configured the name. The
    /// exceptions, including text that Katib misreads as a number, are at the end.
    #[test]
    fn the_objective_is_found_where_katib_finds_it() {
        #[rustfmt::skip]
        let table: [(&str, &str, &[Value]); 30] = [
            ("acc",     "acc=0.93",                                        &[json!(0.93)]),
            ("acc",     "2024-03-04T17:55:08Z acc=0.93",                   &[json!(0.93)]),
            ("acc",     "2024-03-04T17:55:08.000035161+09:00 INFO acc = 1", &[json!(1)]),
            ("acc",     "epoch 1: acc=0.5 loss=3, acc=0.6;acc=0.7",        &[json!(0.5), json!(0.6), json!(0.7)]),
            ("val-acc", "val-acc=0.93",                                    &[json!(0.93)]),
            ("val|acc", "val|acc=0.93",                                    &[json!(0.93)]),
            ("--acc",   "--acc=0.93",                                      &[json!(0.93)]),
            ("acc-",    "acc-=0.93",                                       &[json!(0.93)]),
            ("1st",     "1st=0.93",                                        &[json!(0.93)]),
            ("1",       "1 = 2",                                           &[json!(2)]),
            ("acc",     "$acc=1",                                          &[json!(1)]),
            ("acc",     "http://h/?acc=1",                                 &[json!(1)]),
            ("acc",     "acc=.5 acc=+2 acc=-1.5E+3",                       &[json!(0.5), json!(2), json!(-1500.0)]),
            ("acc",     "acc=12ms",                                        &[json!(12)]),
            ("acc",     "acc=3s, acc=4it/s acc=5e",                        &[json!(3), json!(4), json!(5)]),
            ("acc",     "acc=0.93abc.",                                    &[json!(0.93)]),
            ("a",       "xa=1 a=2 x-a=3",                                  &[json!(2)]),
            // Katib does not read these.
            ("val/acc", "val/acc=0.93",                                    &[json!(0.93)]),
            ("acc",     "acc=nan acc=inf",                                 &[json!("NaN"), json!("Infinity")]),
            ("acc",     "|acc=0.93|",                                      &[json!(0.93)]),
            // Katib misreads these, or reads them as nothing.
            ("acc",     "train.acc=1 train/acc=2 acc@acc=3 精acc=4",       &[]),
            ("acc",     "acc=",                                            &[]),
            ("acc",     "acc==3",                                          &[]),
            ("acc",     "acc=1,000",                                       &[]),
            ("acc",     "acc=1_000",                                       &[]),
            ("acc",     "acc=0x10",                                        &[]),
            ("acc",     "acc=1.2.3",                                       &[]),
            ("acc",     "acc=2026-01-02 acc=12:30:01",                     &[]),
            ("acc",     "acc=info acc=nano",                               &[]),
            ("acc",     "acc=e5 acc=- acc=true",                           &[]),
        ];
        for (objective, line, expected) in table {
            let pairs_found = summarized(line.as_bytes(), Some(objective));
            let values =
                pairs_found.iter().filter(|(name, _)| name == objective).map(|(_, value)| value);
            assert!(values.eq(expected), "{objective} in {line}: {pairs_found:?}");
        }
        let others = summarized(b"x=1 lr=0.1abc acc=2s", Some("acc"));
        assert_eq!(others, [("x".to_owned(), json!(1)), ("acc".to_owned(), json!(2))]);
    }

    #[test]
    fn only_a_complete_text_is_a_number() {
        #[rustfmt::skip]
        let table = [
            ("0.5", Some(json!(0.5))), (" 3 ", Some(json!(3))), ("-1e3", Some(json!(-1000.0))), ("nan", Some(json!("NaN"))),
            ("", None), ("3s", None), ("1,000", None), ("0.5%", None), ("1 2", None),
        ];
        for (text, expected) in table {
            assert_eq!(
                parse_number(text).map(|number| number.as_json().clone()),
                expected,
                "{text:?}"
            );
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn pairs_are_found_in_text() {
        #[rustfmt::skip]
        let table: [(&str, &[(&str, Value)]); 68] = [
            // Pairs.
            ("accuracy=0.93",                    &[("accuracy", json!(0.93))]),
            ("accuracy = 0.93",                  &[("accuracy", json!(0.93))]),
            ("epoch=3 loss=0.5, acc=0.8",        &[("epoch", json!(3)), ("loss", json!(0.5)), ("acc", json!(0.8))]),
            ("loss=0.5,acc=0.8;f1=1",            &[("loss", json!(0.5)), ("acc", json!(0.8)), ("f1", json!(1))]),
            ("Epoch 3: loss=0.5",                &[("loss", json!(0.5))]),
            ("Epoch 3 (loss=0.5, acc=0.8)",      &[("loss", json!(0.5)), ("acc", json!(0.8))]),
            ("Result(acc=0.8)",                  &[("acc", json!(0.8))]),
            ("[epoch 3]loss=0.5",                &[("loss", json!(0.5))]),
            ("|loss=0.5|acc=0.8|",               &[("loss", json!(0.5)), ("acc", json!(0.8))]),
            ("the end: score=0.5.",              &[("score", json!(0.5))]),
            ("score=1.",                         &[("score", json!(1.0))]),
            ("score=.5",                         &[("score", json!(0.5))]),
            ("score=5!",                         &[("score", json!(5))]),
            ("loss=-1.5e-3",                     &[("loss", json!(-0.0015))]),
            ("loss=+3",                          &[("loss", json!(3))]),
            ("loss=1E5",                         &[("loss", json!(100_000.0))]),
            ("loss=nan",                         &[("loss", json!("NaN"))]),
            ("loss=NaN",                         &[("loss", json!("NaN"))]),
            ("loss=inf acc=-Infinity",           &[("loss", json!("Infinity")), ("acc", json!("-Infinity"))]),
            ("loss=1e999",                       &[("loss", json!("Infinity"))]),
            ("n=123456789012345678901234567890", &[("n", json!(1.234_567_890_123_456_8e29))]),
            ("acc=93.5%",                        &[("acc", json!(93.5))]),
            ("\"acc=1\"",                        &[("acc", json!(1))]),
            ("<b>acc=1</b>",                     &[]),
            ("val/acc=1 train.loss=2 hit@10=3",  &[("val/acc", json!(1)), ("train.loss", json!(2)), ("hit@10", json!(3))]),
            ("val-acc=1 _x=2 x1=3",              &[("val-acc", json!(1)), ("_x", json!(2)), ("x1", json!(3))]),
            ("精度=0.9",                         &[("精度", json!(0.9))]),
            ("→acc=0.9",                         &[("acc", json!(0.9))]),
            ("a = b = 3",                        &[("b", json!(3))]),
            ("loss=\t1",                         &[("loss", json!(1))]),
            ("gap - loss=1",                     &[("loss", json!(1))]),
            ("x=1 y=abc z=2",                    &[("x", json!(1)), ("z", json!(2))]),
            ("epoch=3: done",                    &[("epoch", json!(3))]),
            // The output of `env`.
            ("NNI_TRIAL_SEQ_ID=0",               &[]),
            ("TRIALKEEPER_PARAM_lr=0.1",         &[]),
            // Text.
            ("",                                 &[]),
            ("=",                                &[]),
            ("=1",                               &[]),
            ("loss=",                            &[]),
            ("lr=0.1abc",                        &[]),
            ("a=1.2.3",                          &[]),
            ("x==3",                             &[]),
            ("x!=3 x<=3 x>=3 x+=3 x-=3 x/=3",    &[]),
            ("x:=3",                             &[]),
            ("http://h/?a=1&b=2",                &[]),
            ("http://h/a=1",                     &[]),
            ("/tmp/run=3",                       &[]),
            ("--lr=0.1 -n=3",                    &[]),
            ("date=2026-01-02 at=12:30:01",      &[]),
            ("step=3/100",                       &[]),
            ("n=1,000",                          &[]),
            ("n=1_000",                          &[]),
            ("n=0x10",                           &[]),
            ("a=5e b=e5 c=. d=+ e=-",            &[]),
            ("a=info b=nano",                    &[]),
            ("a=\"0.5\"",                        &[]),
            ("a=[1, 2]",                         &[]),
            ("a=True b=None",                    &[]),
            ("5=3 2nd=3",                        &[]),
            ("$x=3 #y=3 &z=3",                   &[]),
            ("===== 3 =====",                    &[]),
            ("a=1=2",                            &[]),
            ("loss: 0.5",                        &[("loss", json!(0.5))]),
            ("eta: 5 rank: 0 lr: 0.1",           &[]),
            ("at 12:30:01 accuracy: 12:30",      &[]),
            ("x=3s",                             &[]),
            ("t=3%x",                            &[]),
            ("name.=3",                          &[]),
        ];
        for (line, expected) in table {
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            assert_eq!(all(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn invalid_utf8_separates_tokens() {
        assert_eq!(all(b"\xff\xfeacc=1"), [("acc".to_owned(), json!(1))]);
        assert_eq!(all(b"acc=1\xff"), []);
    }

    #[test]
    fn a_name_over_the_limit_is_text() {
        let longest = "n".repeat(MAX_NAME_BYTES);
        assert_eq!(all(format!("x {longest}=1").as_bytes()), [(longest.clone(), json!(1))]);
        assert_eq!(all(format!("{longest}n=1").as_bytes()), []);
    }

    proptest! {
        #[test]
        fn random_bytes_yield_only_names_within_the_limit(bytes: Vec<u8>) {
            for objective in [None, Some("a")] {
                find_pairs(&bytes, objective, |name, _| {
                    assert!(!name.is_empty() && name.len() <= MAX_NAME_BYTES);
                });
            }
        }

        #[test]
        fn random_pairs_yield_only_finite_or_named_values(line in "[a-z=0-9.,e+\\- ]{0,40}") {
            for objective in [None, Some("a")] {
                find_pairs(line.as_bytes(), objective, |_, value| assert!(value.number().is_some()));
            }
        }
    }
}
