//! Converts YAML or JSON text to a JSON value. Errors name line and column, and duplicate keys are refused.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::util::nearest::normalize_name;

/// Reads a document as JSON, or else as YAML.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => {
            let line = bytes[..error.valid_up_to()].split(|b| *b == b'\n').count();
            return Err(format!("line {line}: is not UTF-8; save the file in this encoding"));
        }
    };
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    let json = match serde_json::from_str::<Document>(text) {
        Ok(document) => return Ok(document.0),
        Err(error) => error,
    };
    match parse_yaml(text) {
        Ok(document) => Ok(document),
        // Text that looks like JSON was meant as JSON.
        Err(_) if text.trim_start().starts_with('{') => Err(json_problem(&json)),
        Err(error) => Err(yaml_problem(&error)),
    }
}

/// Reads YAML as `PyYAML` does, which NNI uses: an integer with a leading 0 is octal, `yes` and `on` are true, but `y`
/// and `n` are texts.
fn parse_yaml(text: &str) -> Result<Value, serde_saphyr::Error> {
    let read = |strict_booleans| {
        let options =
            serde_saphyr::options! { strict_booleans: strict_booleans, legacy_octal_numbers: true };
        serde_saphyr::from_str_with_options::<Document>(text, options)
    };
    let mut document = read(false)?.0;
    // A text with a tag such as `!!bool yes` has no strict form.
    if let Ok(strict) = read(true) {
        restore_y_and_n(&mut document, &strict.0);
    }
    Ok(document)
}

/// Replaces the truth values that are the texts `y` and `n` in `strict`, in which only `true` and `false` are truth
/// values.
fn restore_y_and_n(value: &mut Value, strict: &Value) {
    match (value, strict) {
        (value @ Value::Bool(_), Value::String(text)) if text.len() == 1 => *value = strict.clone(),
        (Value::Array(items), Value::Array(strict)) => {
            items.iter_mut().zip(strict).for_each(|(item, strict)| restore_y_and_n(item, strict));
        }
        (Value::Object(members), Value::Object(strict)) => {
            for (key, member) in members {
                restore_y_and_n(member, strict.get(key).unwrap_or(&Value::Null));
            }
        }
        _ => {}
    }
}

fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (line, column) = (error.line(), error.column());
    let cause = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    format!("line {line}, column {column}: {cause}")
}

/// Parts of YAML messages that leave the mistake open, and its remedy.
const YAML_REMEDIES: [(&str, &str); 11] = [
    ("tabs disallowed", "indent with spaces"),
    ("block mapping, did not find", "indent the fields of one object equally"),
    ("block collection, did not find", "indent the items of one list equally"),
    (
        "mapping values are not allowed",
        "indent the fields of one object equally, and put a value that contains `: ` in quotes",
    ),
    ("illegal placement of ':'", UNCLOSED_BRACKET_REMEDY),
    ("parsing a flow", UNCLOSED_BRACKET_REMEDY),
    ("multiline quoted scalar", UNCLOSED_BRACKET_REMEDY),
    ("simple key expected ':'", "write `name: value`, with a space after the colon"),
    ("expected string scalar", "put a value that begins with `{` or `[` in quotes"),
    ("unexpected character", "put a value that begins with this character in quotes"),
    ("only single YAML document", "remove the second one, from the line `---` on"),
];
const UNCLOSED_BRACKET_REMEDY: &str = "a `[`, `{` or quotation mark above may not be closed";

/// Returns a YAML message with its remedy.
fn with_remedy(cause: &str) -> String {
    let twice = cause.strip_prefix("duplicate mapping key: ");
    if let Some(key) = twice.and_then(|rest| rest.strip_suffix(" not allowed here")) {
        return format!("`{key}` is given twice; keep one of them");
    }
    let remedy = YAML_REMEDIES.iter().find(|(part, _)| cause.contains(part));
    remedy.map_or_else(|| cause.to_owned(), |(_, remedy)| format!("{cause}; {remedy}"))
}

fn yaml_problem(error: &serde_saphyr::Error) -> String {
    // The message without a location, which is added below in the wording of the other messages.
    let plain = error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let cause = plain.lines().next().unwrap_or_default();
    match error.location() {
        None => with_remedy(cause),
        Some(at) => {
            let (line, column) = (at.line(), at.column());
            let cause =
                cause.strip_suffix(&format!(" at line {line}, column {column}")).unwrap_or(cause);
            format!("line {line}, column {column}: {}", with_remedy(cause))
        }
    }
}

/// Returns a member of an object under any of its spellings.
pub(super) fn find_member<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let wanted = normalize_name(name);
    object.iter().find(|(key, _)| normalize_name(key) == wanted).map(|(_, value)| value)
}

/// Returns the kind of a value, for the user.
pub(super) fn describe_kind(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() <= 60 => format!("the string {value}"),
        Value::String(_) => "a long string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// A JSON value in which every key occurs once.
struct Document(Value);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor).map(Self)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        match Number::from_f64(value) {
            Some(number) => Ok(Value::Number(number)),
            None => Err(E::custom(format_args!("{value} is not a number that JSON can hold"))),
        }
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Document(value)) = items.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if members.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "`{key}` is given twice; keep one of them"
                )));
            }
            let Document(value) = entries.next_value()?;
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn common_yaml_values_are_read_as_json() {
        #[rustfmt::skip]
        let table = [
            ("a: 1",                       json!({"a": 1})),
            ("a: 1.0",                     json!({"a": 1.0})),
            // PyYAML reads the next one as a string.
            ("a: 1e-4",                    json!({"a": 0.0001})),
            ("a: '1'",                     json!({"a": "1"})),
            ("a: -7",                      json!({"a": -7})),
            ("a: 010\nb: 01\nc: 0644",     json!({"a": 8, "b": 1, "c": 420})),
            ("a: [yes, No, ON, off]",      json!({"a": [true, false, true, false]})),
            ("a: [y, n, Y, N, {y: n}]",    json!({"a": ["y", "n", "Y", "N", {"y": "n"}]})),
            ("a: ['y', \"yes\", 'on']",    json!({"a": ["y", "yes", "on"]})),
            ("a: true",                    json!({"a": true})),
            ("a: null\nb: ~\nc:",          json!({"a": null, "b": null, "c": null})),
            ("a: python3 m.py --x {{y}}",  json!({"a": "python3 m.py --x {{y}}"})),
            ("a: [1, x, 2.5]",             json!({"a": [1, "x", 2.5]})),
            ("a: |\n  one\n  two\n",       json!({"a": "one\ntwo\n"})),
            ("a: &k {b: 1}\nc: *k",        json!({"a": {"b": 1}, "c": {"b": 1}})),
            ("{\"a\": [1, {\"b\": null}]}", json!({"a": [1, {"b": null}]})),
            ("\u{feff}a: 1",               json!({"a": 1})),
        ];
        for (text, value) in table {
            assert_eq!(parse(text.as_bytes()), Ok(value), "{text}");
        }
    }

    #[test]
    fn an_unreadable_document_is_refused_with_line_and_column() {
        #[rustfmt::skip]
        let table: [(&[u8], &str); 16] = [
            (b"",                          "is empty"),
            (b"a: 1\nb: \xff",             "line 2: is not UTF-8; save the file in this encoding"),
            (b"a: 1\na: 2",                "line 2, column 1: `a` is given twice; keep one of them"),
            (b"a: 1\n b: 2",               "line 2, column 3: mapping values are not allowed in this context; indent the fields of one object equally, and put a value that contains `: ` in quotes"),
            (b"a:\n  b: 1\n c: 2",         "line 3, column 2: while parsing a block mapping, did not find expected key; indent the fields of one object equally"),
            (b"a:\n\tb: 1",                "line 2, column 2: tabs disallowed within this context (block indentation); indent with spaces"),
            (b"a: [1, 2\nb: 3",            "line 2, column 2: illegal placement of ':' indicator; a `[`, `{` or quotation mark above may not be closed"),
            (b"a: {b: 1\nc: 2",            "line 2, column 2: while parsing a flow mapping, did not find expected ',' or '}'; a `[`, `{` or quotation mark above may not be closed"),
            (b"a: 1\nb:2\nc: 3",           "line 2, column 1: simple key expected ':'; write `name: value`, with a space after the colon"),
            (b"a: {{x}} 1",                "line 1, column 5: expected string scalar; put a value that begins with `{` or `[` in quotes"),
            (b"a: \"x\nb: 1",              "line 2, column 1: invalid indentation in multiline quoted scalar; a `[`, `{` or quotation mark above may not be closed"),
            (b"a: @x",                     "line 1, column 4: unexpected character: `@'; put a value that begins with this character in quotes"),
            (b"a: 1\n---\nb: 2",           "line 3, column 1: only single YAML document expected but multiple found; remove the second one, from the line `---` on"),
            (b"a: .nan",                   "line 1, column 4: "),
            (b"{\"a\": 1, \"a\": 2}",      "line 1, column 12: `a` is given twice; keep one of them"),
            (b"{\"a\": [1,]}",             "line 1, column 10: trailing comma"),
        ];
        for (text, problem) in table {
            let found = parse(text).map_err(|found| {
                assert!(found.starts_with(problem) && !found.contains('\n'), "{found}");
            });
            // A trailing comma is valid YAML.
            assert!(found.is_err() || problem.ends_with("comma"), "{found:?}");
        }
    }

    proptest! {
        #[test]
        fn documents_of_random_bytes_never_panic(bytes: Vec<u8>) {
            drop(parse(&bytes));
        }

        #[test]
        fn random_yaml_never_panics(text in "[ \n:a1{}\\[\\],'\"&*#|>!%@-]{0,40}") {
            drop(parse(text.as_bytes()));
        }
    }
}
