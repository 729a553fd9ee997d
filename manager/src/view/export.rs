//! PURE: trials in forms for other programs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The columns that each trial has.
const TRIAL_CSV_COLUMNS: [&str; 9] = [
    "sequence",
    "id",
    "state",
    "final",
    "latest",
    "latest_step",
    "started_at_ms",
    "ended_at_ms",
    "cause",
];
/// The columns that exist only if a trial has a value: the mean of repeated trials, the machine and the code of the
/// run, and permanently lost reports.
const OPTIONAL_CSV_COLUMNS: [&str; 10] = [
    "mean",
    "mean_half_width",
    "mean_results",
    "host",
    "git_commit",
    "git_branch",
    "git_dirty",
    "git_diff_sha256",
    "code_sha256",
    "lost",
];

/// Returns a member of an object as text. Empty if it is missing.
pub fn member_text<'a>(of: &'a Value, name: &str) -> &'a str {
    of.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Formats a value for one field.
pub fn format_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// Makes a text harmless for spreadsheets. A text that begins like a formula would be evaluated by the program that
/// opens the file (OWASP, "CSV Injection"), so it gets an apostrophe. Some programs also accept the full-width signs.
/// Numbers stay unchanged.
pub fn defuse_formula(text: String) -> String {
    // Some programs skip white space and control characters before a formula.
    let is_formula = text.starts_with(['\t', '\r'])
        || text
            .trim_start_matches(|c: char| c.is_whitespace() || c.is_control())
            .starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    if is_formula && text.parse::<f64>().is_err() { format!("'{text}") } else { text }
}

/// Formats a field of a line (RFC 4180).
fn quote_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Returns a header and a line for each row (RFC 4180), harmless for spreadsheets.
pub fn csv_lines<const N: usize>(
    header: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let header = header.map(str::to_owned);
    csv_rows(std::iter::once(header).chain(rows))
}

/// Returns a line for each row (RFC 4180), harmless for spreadsheets.
pub fn csv_rows(rows: impl Iterator<Item = impl IntoIterator<Item = String>>) -> String {
    let line = |row: Vec<String>| row.join(",") + "\r\n";
    let fields = |text: String| quote_field(&defuse_formula(text));
    rows.map(|row| line(row.into_iter().map(fields).collect())).collect()
}

/// Returns the field of a rare column.
fn optional_text(trial: &Value, name: &str) -> String {
    let value = match name {
        "mean" => trial.pointer("/estimate/mean"),
        "mean_half_width" => trial.pointer("/estimate/half_width"),
        "mean_results" => trial.pointer("/estimate/results"),
        _ => trial.get(name),
    };
    defuse_formula(value.map(format_value).unwrap_or_default())
}

/// Returns a line for each trial (RFC 4180), with a column for each parameter.
pub fn trials_csv(trials: &[Value]) -> String {
    let mut names: Vec<String> = Vec::new();
    let parameters = |trial: &Value| {
        let none = Value::Null;
        let flat = super::flatten_parameters(trial.get("parameters").unwrap_or(&none));
        flat.into_iter()
            .map(|(name, value)| (name, defuse_formula(format_value(value))))
            .collect::<BTreeMap<_, _>>()
    };
    for trial in trials {
        names.extend(
            parameters(trial).into_keys().filter(|name| !names.contains(name)).collect::<Vec<_>>(),
        );
    }
    let header = TRIAL_CSV_COLUMNS.into_iter().map(str::to_owned);
    let header = header.chain(names.iter().map(|name| quote_field(&format!("parameters.{name}"))));
    let rare: Vec<_> = OPTIONAL_CSV_COLUMNS
        .into_iter()
        .filter(|name| trials.iter().any(|trial| !optional_text(trial, name).is_empty()))
        .collect();
    let header = header.chain(rare.iter().map(|name| (*name).to_owned()));
    let mut lines = vec![header.collect::<Vec<_>>().join(",")];
    for trial in trials {
        let known = parameters(trial);
        let own = TRIAL_CSV_COLUMNS.into_iter().map(|name| {
            quote_field(&defuse_formula(trial.get(name).map(format_value).unwrap_or_default()))
        });
        let rest = names
            .iter()
            .map(|name| known.get(name).map(|text| quote_field(text)).unwrap_or_default());
        let rare = rare.iter().map(|name| quote_field(&optional_text(trial, name)));
        lines.push(own.chain(rest).chain(rare).collect::<Vec<_>>().join(","));
    }
    lines.push(String::new());
    lines.join("\r\n")
}

/// Formats a trial with all its metrics as an entry of a JSON list.
pub fn json_entry(trial: &Value, metrics: &[Value]) -> String {
    let mut trial = trial.clone();
    trial["metrics"] = json!(metrics);
    let text = format!("{trial:#}");
    format!("  {}", text.replace('\n', "\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_trial_has_its_mean() {
        let trial = |at: u32, estimate: Value| json!({"sequence": at, "id": format!("t{at}"), "state": "SUCCEEDED", "estimate": estimate});
        let estimate = json!({"results": 3, "wanted": 5, "mean": 0.5, "half_width": 0.1});
        let plain = trials_csv(&[trial(0, Value::Null)]);
        assert!(!plain.contains("mean"), "{plain}");
        let repeated = trials_csv(&[trial(0, Value::Null), trial(1, estimate)]);
        let lines: Vec<_> = repeated.lines().collect();
        assert!(lines[0].ends_with(",cause,mean,mean_half_width,mean_results"), "{repeated}");
        assert!(lines[1].ends_with(",,,") && lines[2].ends_with(",0.5,0.1,3"), "{repeated}");
    }

    #[test]
    fn lines_are_harmless_and_quoted() {
        let rows =
            [["=1+1".to_owned(), "a,\"b\"\n".to_owned()], ["-1".to_owned(), "＝1".to_owned()]];
        let text = csv_lines(&["x", "y"], rows.into_iter());
        assert_eq!(text, "x,y\r\n'=1+1,\"a,\"\"b\"\"\n\"\r\n-1,'＝1\r\n");
    }
}
