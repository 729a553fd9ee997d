//! The parser of search spaces, from JSON to checked dimensions. Every error names the entry and the allowed content.

use serde_json::{Map, Number, Value};

use super::{Dimension, Domain, Error, Parent, Real, Shape};
use crate::util::nearest::{nearest, normalize_name, suggest_names};

const TYPE_NAMES: [&str; 11] = [
    "choice",
    "randint",
    "lograndint",
    "uniform",
    "quniform",
    "loguniform",
    "qloguniform",
    "normal",
    "qnormal",
    "lognormal",
    "qlognormal",
];

/// Words of other tools and of programming languages for a type, normalized, and the type with its meaning.
const TYPE_SYNONYMS: [(&str, &str); 11] = [
    ("float", "`uniform`"),
    ("double", "`uniform`"),
    ("real", "`uniform`"),
    ("range", "`uniform`"),
    ("logfloat", "`loguniform`"),
    ("int", "`randint`, whose high end is not included"),
    ("integer", "`randint`, whose high end is not included"),
    ("intuniform", "`randint`, whose high end is not included"),
    ("categorical", "`choice`"),
    ("discrete", "`choice`"),
    ("gridsearch", "`choice`"),
];

/// The largest logarithm. Above it, `exp` overflows a double.
const MAX_LOGARITHM: f64 = 709.0;

/// The maximum depth of nested choices, so that no document can exhaust the stack.
const MAX_NESTING_DEPTH: usize = 32;

/// Returns a space in which each bound is a number. `PyYAML`, and so NNI's client, reads `1e-4` as a text. NNI converts
/// it, except in the options of a choice.
pub(super) fn convert_bounds(json: &Value) -> Value {
    let Value::Object(members) = json else { return json.clone() };
    let entry = |(name, entry): (&String, &Value)| (name.clone(), convert_entry_bounds(entry, 0));
    Value::Object(members.iter().map(entry).collect())
}

fn convert_entry_bounds(entry: &Value, depth: usize) -> Value {
    let mut entry = entry.clone();
    let is_choice = entry.get("_type").is_none_or(|name| name == "choice");
    let Some(Value::Array(values)) = entry.get_mut("_value") else { return entry };
    for value in values {
        match value {
            Value::String(text) if !is_choice => {
                if let Some(number) = parse_number(text) {
                    *value = Value::Number(number);
                }
            }
            Value::Object(members)
                if is_choice && depth <= MAX_NESTING_DEPTH && members.contains_key("_name") =>
            {
                for (name, member) in members.iter_mut() {
                    if name != "_name" {
                        *member = convert_entry_bounds(member, depth + 1);
                    }
                }
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {}
        }
    }
    entry
}

/// Returns the number that a text is.
pub(crate) fn parse_number(text: &str) -> Option<Number> {
    let text = text.trim();
    let other = || text.parse().ok().and_then(Number::from_f64);
    serde_json::from_str(text).ok().or_else(other)
}

/// Returns the dimensions of a space.
pub(super) fn parse_dimensions(json: &Value) -> Result<Vec<Dimension>, Error> {
    let Value::Object(members) = json else {
        return fault(
            "searchSpace",
            format!("expected an object of parameters, found {}", kind(json)),
        );
    };
    if members.is_empty() {
        return fault("searchSpace", "is empty; name at least one parameter");
    }
    let mut found = Vec::new();
    collect_dimensions(members, "", None, 0, &mut found)?;
    Ok(found)
}

fn collect_dimensions(
    members: &Map<String, Value>,
    prefix: &str,
    parent: Option<Parent>,
    depth: usize,
    found: &mut Vec<Dimension>,
) -> Result<(), Error> {
    if depth > MAX_NESTING_DEPTH {
        return fault(prefix, format!("choices may be nested at most {MAX_NESTING_DEPTH} deep"));
    }
    for (name, entry) in members {
        if parent.is_some() && name == "_name" {
            continue;
        }
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        if name.is_empty() {
            return fault(&path, "a parameter's name must not be empty");
        }
        let index = found.len();
        let (domain, options) = parse_domain(entry, &path)?;
        found.push(Dimension { name: name.clone(), parent, domain });
        for (option, members) in (0..).zip(options) {
            let path = format!("{path}._value[{option}]");
            let parent = Parent { dimension: index, option };
            collect_dimensions(members, &path, Some(parent), depth + 1, found)?;
        }
    }
    Ok(())
}

/// A domain, and for a nested choice its options, whose members are dimensions.
type ParsedDomain<'a> = (Domain, Vec<&'a Map<String, Value>>);

/// Returns the domain of an entry, and for a nested choice its options.
fn parse_domain<'a>(entry: &'a Value, path: &str) -> Result<ParsedDomain<'a>, Error> {
    let Value::Object(members) = entry else {
        let (purpose, options) = if entry.is_array() {
            ("a choice between these values", entry.to_string())
        } else {
            ("a constant", format!("[{entry}]"))
        };
        let problem = format!(
            "expected {{\"_type\": ..., \"_value\": [...]}}, found {}; for {purpose} use {{\"_type\": \"choice\", \"_value\": {options}}}",
            kind(entry)
        );
        return fault(path, problem);
    };
    if let Some(other) = members.keys().find(|key| !matches!(key.as_str(), "_type" | "_value")) {
        let problem = match nearest(other, ["_type", "_value"]) {
            Some(name) => {
                format!("unknown; did you mean `{name}`? Only `_type` and `_value` belong here")
            }
            None if is_parameter_entry(&members[other]) => {
                "is a parameter inside a parameter; only the options of a `choice` may have their own".to_owned()
            }
            None => "unknown; only `_type` and `_value` belong here".to_owned(),
        };
        return fault(&format!("{path}.{other}"), problem);
    }
    let (Some(kind_name), Some(value)) = (members.get("_type"), members.get("_value")) else {
        let missing = if members.contains_key("_type") { "_value" } else { "_type" };
        return fault(path, format!("`{missing}` is missing"));
    };
    let type_path = format!("{path}._type");
    let Value::String(name) = kind_name else {
        return fault(&type_path, format!("expected a string, found {}", kind(kind_name)));
    };
    let path = format!("{path}._value");
    let Value::Array(values) = value else {
        return fault(&path, format!("expected a list, found {}", kind(value)));
    };
    match name.as_str() {
        "choice" => parse_choice(values, &path),
        "randint" => Ok((parse_integer(values, &path)?, Vec::new())),
        "lograndint" => Ok((parse_log_integer(values, &path)?, Vec::new())),
        other if TYPE_NAMES.contains(&other) => {
            Ok((Domain::Real(parse_real(other, values, &path)?), Vec::new()))
        }
        other => {
            let meant = TYPE_SYNONYMS.iter().find(|(word, _)| *word == normalize_name(other));
            let advice = match meant {
                Some((_, name)) => format!("here it is {name}"),
                None => suggest_names(other, TYPE_NAMES),
            };
            fault(&type_path, format!("`{other}` is not a type; {advice}"))
        }
    }
}

/// Returns `true` for the description of a parameter.
pub(super) fn is_parameter_entry(value: &Value) -> bool {
    value.as_object().is_some_and(|o| o.contains_key("_type") && o.contains_key("_value"))
}

fn parse_choice<'a>(values: &'a [Value], path: &str) -> Result<ParsedDomain<'a>, Error> {
    if values.is_empty() {
        return fault(path, "is empty; a choice needs at least one option");
    }
    // As in NNI, options without `_name` are constants, even if their members look like parameters.
    let is_nested = |value: &Value| value.get("_name").is_some();
    if !values.iter().any(is_nested) {
        return Ok((Domain::Choice(values.to_vec()), Vec::new()));
    }
    let mut names = Vec::new();
    let mut options = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let Some((members, name)) = value.as_object().and_then(|o| Some((o, o.get("_name")?)))
        else {
            return fault(
                &path,
                "has no `_name`; in a nested choice every option is an object with `_name`",
            );
        };
        let Value::String(name) = name else {
            let problem = format!("expected a string, found {}", kind(name));
            return fault(&format!("{path}._name"), problem);
        };
        if names.contains(name) {
            return fault(&format!("{path}._name"), format!("two options have the name `{name}`"));
        }
        names.push(name.clone());
        options.push(members);
    }
    Ok((Domain::Nested(names), options))
}

fn parse_integer(values: &[Value], path: &str) -> Result<Domain, Error> {
    let (low, high) = parse_integer_bounds(values, path)?;
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "both are integers of at most 53 bits, and high is the larger"
    )]
    Ok(Domain::Integer { low: low as i64, size: (high - low) as u64 })
}

/// Returns the domain of integers whose logarithm is uniform. Each integer gets the part of the range that rounds to
/// it, so that the ends are not less likely than the other integers.
fn parse_log_integer(values: &[Value], path: &str) -> Result<Domain, Error> {
    let (low, high) = parse_integer_bounds(values, path)?;
    if low < 1.0 {
        return fault(&format!("{path}[0]"), "the low end of a lograndint must be at least 1");
    }
    let last = high - 1.0;
    Ok(Domain::Real(Real {
        shape: Shape::Uniform { low: (low - 0.5).ln(), high: (last + 0.5).ln() },
        log: true,
        q: Some(1.0),
        bounds: Some((low, last)),
        integer: true,
    }))
}

/// Returns the smallest integer, and the largest integer plus 1.
fn parse_integer_bounds(values: &[Value], path: &str) -> Result<(f64, f64), Error> {
    let numbers = parse_numbers(values, 2, "[low, high), high not included", path)?;
    // NNI also rounds both numbers up.
    let (low, high) = (numbers[0].ceil(), numbers[1].ceil());
    // Above 2^53 a double skips integers.
    if let Some(i) = [low, high].iter().position(|n| n.abs() > 9_007_199_254_740_992.0) {
        return fault(&format!("{path}[{i}]"), "is beyond 2^53, the largest integer that is exact");
    }
    if low >= high {
        return fault(
            path,
            format!("contains no integer: {low} <= x < {high}; high is not included"),
        );
    }
    Ok((low, high))
}

fn parse_real(name: &str, values: &[Value], path: &str) -> Result<Real, Error> {
    let (quantised, rest) = match name.strip_prefix('q') {
        Some(rest) => (true, rest),
        None => (false, name),
    };
    let log = rest.starts_with("log");
    let normal = rest.ends_with("normal");
    let form = match (normal, quantised) {
        (false, false) => "[low, high]",
        (false, true) => "[low, high, q]",
        (true, false) => "[mu, sigma]",
        (true, true) => "[mu, sigma, q]",
    };
    let numbers = parse_numbers(values, if quantised { 3 } else { 2 }, form, path)?;
    let q = numbers.get(2).copied();
    if q.is_some_and(|q| q <= 0.0) {
        return fault(&format!("{path}[2]"), "q must be greater than 0");
    }
    let (first, second) = (numbers[0], numbers[1]);
    if normal {
        if second <= 0.0 {
            return fault(&format!("{path}[1]"), "sigma must be greater than 0");
        }
        if log && first > MAX_LOGARITHM {
            return fault(
                &format!("{path}[0]"),
                format!(
                    "mu is the mean of the logarithm; above {MAX_LOGARITHM} the values overflow"
                ),
            );
        }
        return Ok(Real {
            shape: Shape::Normal { mu: first, sigma: second },
            log,
            q,
            bounds: None,
            integer: false,
        });
    }
    if first >= second {
        let constant = "; for a constant, use a `choice` with one option";
        let advice = if first > second { "" } else { constant };
        let problem =
            format!("the low end {first} must be less than the high end {second}{advice}");
        return fault(path, problem);
    }
    if log && first <= 0.0 {
        return fault(
            &format!("{path}[0]"),
            format!("the low end of a {name} must be greater than 0"),
        );
    }
    if !(second - first).is_finite() {
        return fault(path, "the range is too wide for a double");
    }
    let (low, high) = if log { (first.ln(), second.ln()) } else { (first, second) };
    let shape = Shape::Uniform { low, high };
    Ok(Real { shape, log, q, bounds: Some((first, second)), integer: false })
}

fn parse_numbers(
    values: &[Value],
    expected: usize,
    form: &str,
    path: &str,
) -> Result<Vec<f64>, Error> {
    if values.len() != expected {
        return fault(path, format!("expected {expected} numbers, {form}; found {}", values.len()));
    }
    let number = |(i, value): (usize, &Value)| match value.as_f64().filter(|n| n.is_finite()) {
        Some(number) => Ok(number),
        None => fault(
            &format!("{path}[{i}]"),
            format!("expected a number, {form}; found {}", kind(value)),
        ),
    };
    values.iter().enumerate().map(number).collect()
}

/// Returns a description of a value for an error message.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() <= 40 => format!("the string {value}"),
        Value::String(_) => "a long string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn fault<T>(path: &str, problem: impl Into<String>) -> Result<T, Error> {
    Err(Error { path: path.to_owned(), problem: problem.into() })
}
