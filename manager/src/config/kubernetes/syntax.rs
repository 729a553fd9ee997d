//! PURE: checks of values that Kubernetes would refuse, often only later in a waiting pod or in every trial.
//! `FrameworkController` reads all Frameworks of a cluster at once. If one of them has a field of an unexpected type,
//! `FrameworkController` reads none.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use crate::config::document::describe_kind;
use crate::config::section::Problem;
use crate::util::nearest::suggest_names;

/// The objects whose members are amounts. Kubernetes also accepts numbers for amounts.
const AMOUNT_OBJECTS: [&str; 3] = ["requests", "limits", "overhead"];
/// The fields that are amounts themselves.
const AMOUNT_FIELDS: [&str; 2] = ["sizeLimit", "divisor"];

/// Reads `value` as the type that Kubernetes uses. The path of an error begins with `at`.
pub(super) fn parse_typed<T: DeserializeOwned>(at: &str, value: &Value) -> Result<T, Problem> {
    let mut plain = value.clone();
    check_amounts(at, &mut plain)?;
    serde_path_to_error::deserialize(&plain).map_err(|error| {
        let mut found = Some(value);
        for segment in error.path() {
            found = match segment {
                Segment::Seq { index } => found.and_then(|list| list.get(index)),
                Segment::Map { key } => found.and_then(|object| object.get(key)),
                Segment::Enum { .. } | Segment::Unknown => None,
            };
        }
        let path = error.path().to_string();
        let path = if path == "." { at.to_owned() } else { format!("{at}.{path}") };
        let message = error.inner().to_string();
        let what = match (message.split_once(", expected "), found) {
            (Some((_, expected)), Some(found)) => {
                let hint = if expected == "a string" && (found.is_number() || found.is_boolean()) {
                    "; put it in quotes"
                } else {
                    ""
                };
                format!(
                    "expected {}, found {}{hint}",
                    translate_type_name(expected),
                    describe_kind(found)
                )
            }
            _ => message,
        };
        Problem::new(path, what)
    })
}

/// Refuses fields of `value` that are missing in `typed`, which was read from `value`, with the message `what`.
pub(super) fn refuse_unknown_fields(
    at: &str,
    value: &Value,
    typed: &impl Serialize,
    what: &str,
) -> Result<(), Problem> {
    let read = serde_json::to_value(typed).unwrap_or_default();
    refuse_missing_members(at, value, &read, what)
}

fn refuse_missing_members(
    at: &str,
    value: &Value,
    read: &Value,
    what: &str,
) -> Result<(), Problem> {
    match (value, read) {
        (Value::Object(members), Value::Object(known)) => {
            for (name, member) in members.iter().filter(|(_, member)| !member.is_null()) {
                let at = format!("{at}.{name}");
                let Some(read) = known.get(name) else {
                    return Err(Problem::new(at, what));
                };
                refuse_missing_members(&at, member, read, what)?;
            }
            Ok(())
        }
        (Value::Array(list), Value::Array(known)) => {
            let mut pairs = list.iter().zip(known).enumerate();
            pairs.try_for_each(|(i, (member, read))| {
                refuse_missing_members(&format!("{at}[{i}]"), member, read, what)
            })
        }
        _ => Ok(()),
    }
}

/// Checks the amounts (`500m`, `2Gi`) in an object, and converts numbers to text.
fn check_amounts(at: &str, value: &mut Value) -> Result<(), Problem> {
    match value {
        Value::Object(members) => members.iter_mut().try_for_each(|(name, member)| {
            if name == "metadata" || name == "status" {
                return Ok(());
            }
            let at = format!("{at}.{name}");
            if let Some(amounts) =
                member.as_object_mut().filter(|_| AMOUNT_OBJECTS.contains(&name.as_str()))
            {
                return amounts
                    .iter_mut()
                    .try_for_each(|(name, one)| check_amount(&format!("{at}.{name}"), one));
            }
            if AMOUNT_FIELDS.contains(&name.as_str()) {
                return check_amount(&at, member);
            }
            check_amounts(&at, member)
        }),
        Value::Array(list) => {
            let mut list = list.iter_mut().enumerate();
            list.try_for_each(|(i, member)| check_amounts(&format!("{at}[{i}]"), member))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn check_amount(at: &str, value: &mut Value) -> Result<(), Problem> {
    let text = match &*value {
        Value::Null => return Ok(()),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => String::new(),
    };
    if is_amount(&text) {
        *value = Value::from(text);
        return Ok(());
    }
    let what = format!("expected an amount such as 4, 500m or 2Gi, found {}", describe_kind(value));
    Err(Problem::new(at, what))
}

/// Returns whether a text is a `Quantity` of Kubernetes.
fn is_amount(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let digits = &text[..text.len() - number.len()];
    let exponent = || {
        let exponent = number.strip_prefix(['e', 'E'])?;
        exponent.strip_prefix(['+', '-']).unwrap_or(exponent).parse::<u16>().ok()
    };
    digits.parse::<f64>().is_ok()
        && (["", "n", "u", "m", "k", "M", "G", "T", "P", "E"].contains(&number)
            || ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].contains(&number)
            || exponent().is_some())
}

/// Translates the library's name of a type for the user.
fn translate_type_name(expected: &str) -> &str {
    match expected {
        "a sequence" => "a list",
        "a map" => "fields",
        "a boolean" => "true or false",
        "i32" | "i64" => "an integer",
        "u64" => "an integer of at least 0",
        // A type of Kubernetes.
        other if other.starts_with("struct ") => "fields",
        other if other.starts_with(|c: char| c.is_ascii_uppercase()) => "fields",
        other => other,
    }
}

/// Checks an image's name by the rules of container runtimes: `host:port/path:tag@digest`.
pub(super) fn check_image(name: &str) -> Result<(), String> {
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    // The part before the first slash is a host if it cannot be part of a path.
    let path = match rest.split_once('/') {
        Some((host, path))
            if host == "localhost"
                || host.contains(|c: char| c == '.' || c == ':' || c.is_ascii_uppercase()) =>
        {
            path
        }
        _ => rest,
    };
    let (path, tag) = match path.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (path, None),
    };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let good_tag = |tag: &str| {
        (1..=128).contains(&tag.len())
            && tag.starts_with(word)
            && tag.chars().all(|c| word(c) || c == '-' || c == '.')
    };
    let good_digest = |digest: &str| {
        digest.split_once(':').is_some_and(|(kind, hex)| {
            !kind.is_empty() && hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
        })
    };
    let printable = name.chars().all(|c| c.is_ascii_graphic());
    // The controller replaces these placeholders by a task's number and similar values.
    if name.contains("{{FC_")
        || printable
            && path.split('/').all(is_image_component)
            && tag.is_none_or(good_tag)
            && digest.is_none_or(good_digest)
    {
        return Ok(());
    }
    let lower = path.to_ascii_lowercase();
    if lower != path && lower.split('/').all(is_image_component) {
        return Err(format!(
            "`{name}` is not a valid image name: `{path}` has upper-case letters, which only a host and a tag may have"
        ));
    }
    Err(format!(
        "`{name}` is not a valid image name; a valid one is registry.example.com:5000/team/image:1.0"
    ))
}

/// Matches `[a-z0-9]+` with single dots, one or two underscores, or dashes in between.
fn is_image_component(part: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    part.starts_with(alphanumeric)
        && part.ends_with(alphanumeric)
        && part.split(alphanumeric).all(|between| {
            ["", ".", "_", "__"].contains(&between) || between.chars().all(|c| c == '-')
        })
}

/// Checks the name of most kinds of objects (a DNS subdomain, RFC 1123).
pub(super) fn check_object_name(name: &str) -> Result<(), String> {
    if is_subdomain(name) {
        return Ok(());
    }
    Err(format!(
        "`{name}` is not a valid name in Kubernetes: only lower-case letters, digits, dashes and dots are allowed"
    ))
}

/// Checks a namespace's name (a DNS label).
pub(super) fn check_namespace(name: &str) -> Result<(), String> {
    if is_subdomain(name) && name.len() <= 63 && !name.contains('.') {
        return Ok(());
    }
    Err(format!(
        "`{name}` is not a valid namespace: at most 63 lower-case letters, digits and dashes are allowed"
    ))
}

fn is_subdomain(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let part = |part: &str| {
        !part.is_empty()
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// Checks the name of a label or a taint: `[domain/]name`.
pub(super) fn check_label_name(name: &str) -> Result<(), String> {
    let (domain, own) = match name.split_once('/') {
        Some((domain, own)) => (Some(domain), own),
        None => (None, name),
    };
    if domain.is_none_or(is_subdomain) && !own.is_empty() && is_label(own) {
        return Ok(());
    }
    Err(format!(
        "`{name}` is not a valid label name; valid ones are gpu and node.example.com/gpu: after the domain at most 63 letters, \
         digits, dashes, dots and underscores"
    ))
}

/// Checks a label's or a taint's value.
pub(super) fn check_label_value(value: &str) -> Result<(), String> {
    if is_label(value) {
        return Ok(());
    }
    Err(format!(
        "`{value}` is not a valid label value: at most 63 letters, digits, dashes, dots and underscores, with a letter or digit at both ends"
    ))
}

fn is_label(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.is_empty()
        || text.len() <= 63
            && text.starts_with(outer)
            && text.ends_with(outer)
            && text.chars().all(|c| outer(c) || "-_.".contains(c))
}

/// Checks a toleration as the API server does.
pub(super) fn check_toleration(at: &str, value: &Value) -> Result<(), Problem> {
    let read: k8s_openapi::api::core::v1::Toleration = parse_typed(at, value)?;
    let known = ["key", "operator", "value", "effect", "tolerationSeconds"];
    let unknown = value
        .as_object()
        .and_then(|fields| fields.keys().find(|name| !known.contains(&name.as_str())));
    if let Some(name) = unknown {
        let what = format!("unknown field; {}", suggest_names(name, known));
        return Err(Problem::new(format!("{at}.{name}"), what));
    }
    let fault = |field: &str, what: String| Err(Problem::new(format!("{at}.{field}"), what));
    let text = |field: Option<String>| field.unwrap_or_default();
    let (key, operator, own, effect) =
        (text(read.key), text(read.operator), text(read.value), text(read.effect));
    for (field, word, allowed) in [
        ("operator", &operator, ["Equal", "Exists"].as_slice()),
        ("effect", &effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    ] {
        if !word.is_empty() && !allowed.contains(&word.as_str()) {
            let advice = suggest_names(word, allowed.iter().copied());
            return fault(field, format!("`{word}` is not known; {advice}"));
        }
    }
    let exists = operator == "Exists";
    if key.is_empty() && !exists {
        return fault("key", "is missing; without one the operator is `Exists`".to_owned());
    }
    if exists && !own.is_empty() {
        return fault("value", "has no meaning with the operator `Exists`".to_owned());
    }
    if read.toleration_seconds.is_some() && effect != "NoExecute" {
        return fault("tolerationSeconds", "needs the effect `NoExecute`".to_owned());
    }
    let named = |field, checked: Result<(), String>| checked.or_else(|what| fault(field, what));
    if !key.is_empty() {
        named("key", check_label_name(&key))?;
    }
    named("value", check_label_value(&own))
}

/// Returns whether `FrameworkController` accepts the name for a Framework or a task role.
pub fn is_framework_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_kubernetes() {
        type Check = fn(&str) -> Result<(), String>;
        let digest = format!("a@sha256:{}", "0".repeat(64));
        let (long, tag) = ("a".repeat(64), format!("a:{}", "1".repeat(129)));
        #[rustfmt::skip]
        let table: [(Check, &[&str], &[&str]); 5] = [
            (check_image,
                &["python", "python:3.12-slim", "pytorch/pytorch:2.1-cuda12", "localhost/a", "localhost:5000/a:1",
                  "registry.example.com:5000/team/my_image--x/a.b:V1.0", "Host/a", "a__b", "[fd00::1]:5000/a", &digest,
                  "any:{{FC_TASK_INDEX}}"],
                &["Python", "a/B:1", "a b", "a:", "a:-1", "a//b", "/a", "a/", "a..b", "a___b", "-a", "a@sha256:0", "http://a/b",
                  "a:1:2", "é", &tag]),
            (check_object_name, &["a", "my-lab.x", "0"], &["", "A", "a_b", "-a", "a-", "a..b", ".a", "a b"]),
            (check_namespace, &["lab", "my-lab"], &["my.lab", "Lab", "", &long]),
            (check_label_name,
                &["gpu", "nvidia.com/gpu.product", "node-role.kubernetes.io/control-plane", "A_b.c-D"],
                &["", "a/b/c", "/a", "a/", "A.b/c", "my gpu", "-a", "a-", &long]),
            (check_label_value, &["", "A100", "NVIDIA-A100-80GB_x.y"], &["a b", "-a", "a/b", "ä", &long]),
        ];
        for (i, (check, accepted, refused)) in table.into_iter().enumerate() {
            for name in accepted {
                assert_eq!(check(name), Ok(()), "{i}");
            }
            for name in refused {
                assert!(check(name).is_err(), "{i}: {name}");
            }
        }
        assert!(
            check_image("team/Python:3")
                .unwrap_err()
                .contains("`team/Python` has upper-case letters")
        );
    }

    #[test]
    fn amounts_follow_the_rules_of_kubernetes() {
        for accepted in ["1", "0.5", ".5", "5.", "500m", "2Gi", "1e3", "1E-3", "-1", "12k"] {
            assert!(is_amount(accepted), "{accepted}");
        }
        for refused in ["", "m", ".", "1.2.3", "2gb", "2 Gi", "1e", "many", "0x10", "2GiB"] {
            assert!(!is_amount(refused), "{refused}");
        }
    }
}
