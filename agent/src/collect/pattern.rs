//! PURE: the user's regular expressions, for output that no other collector understands.
//!
//! Named groups define the meaning of a match:
//!
//! | groups | metric |
//! | --- | --- |
//! | `name` and `value` | the metric named by the text of `name` |
//! | `value` alone | the objective |
//! | any other name | the metric of that name |
//! | `step` | none: it is the step of the others in the match |
//!
//! For example, `epoch (?P<step>\d+): val (?P<val_loss>\S+)` reads a metric `val_loss`. The text of a group is read
//! like the value of `name=value`. `0.5,` and `93.5%` are therefore 0.5 and 93.5, but `12ms` is not a number. The
//! engine is `regex-lite`: its time is linear in the line, and its size is a tenth of that of `regex`.

use std::str::FromStr;

use regex_lite::{Captures, Regex};
use trial_protocol::{MetricValue, OBJECTIVE};

use super::{CollectedMetric, Finding, MAX_NAME_BYTES, Source, text};

/// Groups that are not metrics themselves.
const ROLE_GROUPS: [&str; 3] = ["name", "value", "step"];

/// A regular expression whose named groups are metrics.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    /// Names of groups that are metrics, in order.
    metrics: Vec<String>,
    has_name: bool,
    has_value: bool,
}

/// The reasons to refuse a pattern.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// The pattern is not a valid regular expression.
    #[error("{pattern:?} is not a valid regular expression")]
    Syntax {
        /// The pattern.
        pattern: String,
        /// The problem with it.
        #[source]
        source: regex_lite::Error,
    },
    /// No group is a metric.
    #[error(
        "{pattern:?} names no metric: add a group such as (?P<accuracy>\\S+), or the two groups \
         (?P<name>...) and (?P<value>...)"
    )]
    Nameless {
        /// The pattern.
        pattern: String,
    },
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(pattern: &str) -> Result<Self, PatternError> {
        let regex = Regex::new(pattern)
            .map_err(|source| PatternError::Syntax { pattern: pattern.to_owned(), source })?;
        let groups: Vec<_> = regex.capture_names().flatten().map(str::to_owned).collect();
        let has = |name: &str| groups.iter().any(|group| group == name);
        let (has_name, has_value) = (has("name"), has("value"));
        let metrics: Vec<_> =
            groups.into_iter().filter(|group| !ROLE_GROUPS.contains(&group.as_str())).collect();
        if metrics.is_empty() && !has_value {
            return Err(PatternError::Nameless { pattern: pattern.to_owned() });
        }
        Ok(Self { regex, metrics, has_name, has_value })
    }
}

impl Pattern {
    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Appends the metrics of every match in `line`, and returns whether there was a match. `objective` is the name of
    /// a value without a name.
    pub(super) fn read(
        &self,
        line: &str,
        objective: Option<&str>,
        found: &mut Vec<Finding>,
    ) -> bool {
        let before = found.len();
        for captures in self.regex.captures_iter(line) {
            let sequence = captures.name("step").and_then(|step| step.as_str().parse().ok());
            let mut add = |name: &str, value: &str| {
                found.push(finding(name, value, sequence));
            };
            match (self.has_value, self.has_name) {
                (true, true) => {
                    if let (Some(name), Some(value)) =
                        (captures.name("name"), captures.name("value"))
                    {
                        add(name.as_str(), value.as_str());
                    }
                }
                (true, false) => {
                    add_group(&captures, "value", objective.unwrap_or(OBJECTIVE), &mut add);
                }
                (false, _) => {}
            }
            for metric in &self.metrics {
                add_group(&captures, metric, metric, &mut add);
            }
        }
        found.len() > before
    }
}

fn add_group(captures: &Captures<'_>, group: &str, name: &str, add: &mut impl FnMut(&str, &str)) {
    // A group in a branch that was not taken has no value.
    if let Some(value) = captures.name(group) {
        add(name, value.as_str());
    }
}

fn finding(name: &str, value: &str, sequence: Option<u64>) -> Finding {
    // A group such as `\S+` includes a comma after the number.
    let number: Option<MetricValue> = text::value_after(value.as_bytes());
    match number {
        Some(value) if (1..=MAX_NAME_BYTES).contains(&name.len()) => {
            let (source, name, kind) = (Source::Pattern, name.to_owned(), None);
            Finding::Metric(CollectedMetric { source, name, kind, sequence, value })
        }
        Some(_) | None => {
            let shown = format!("{name}={value:?}");
            Finding::unreadable(
                Source::Pattern,
                shown.as_bytes(),
                "a pattern matched text that is not a number",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn summarized(pattern: &str, line: &str) -> Vec<String> {
        let mut found = Vec::new();
        pattern.parse::<Pattern>().unwrap().read(line, Some("acc"), &mut found);
        let summarize = |finding: Finding| match finding {
            Finding::Metric(found) => {
                let step = found.sequence.map_or(String::new(), |step| format!("[{step}]"));
                format!("{}{step}={}", found.name, found.value.as_json())
            }
            Finding::Unreadable { why, .. } => format!("!{why}"),
        };
        found.into_iter().map(summarize).collect()
    }

    #[test]
    fn groups_become_metrics() {
        #[rustfmt::skip]
        let table: [(&str, &str, &str, &[&str]); 16] = [
            ("a group by name",     r"loss: (?P<loss>\S+)",                     "loss: 0.5 acc: 1",      &["loss=0.5"]),
            ("two groups",          r"L (?P<loss>\S+) A (?P<acc>\S+)",          "L 1 A 2",               &["loss=1", "acc=2"]),
            ("name and value",      r"(?P<name>\w+): (?P<value>[\d.]+)",        "loss: 0.5 acc: 1",      &["loss=0.5", "acc=1"]),
            ("value alone",         r"result (?P<value>\S+)",                   "result 3e-2",           &["acc=0.03"]),
            ("a step",              r"(?P<step>\d+)/9 (?P<loss>\S+)",           "4/9 0.5",               &["loss[4]=0.5"]),
            ("the short form",      r"loss (?<loss>\S+)",                       "loss nan",              &["loss=\"NaN\""]),
            ("a branch not taken",  r"L (?P<loss>\d+)|A (?P<acc>\d+)",          "A 2",                   &["acc=2"]),
            ("no match",            r"loss (?P<loss>\d+)",                      "acc 2",                 &[]),
            ("no number",           r"loss (?P<loss>\S+)",                      "loss tensor(0.5)",      &["!a pattern matched text that is not a number"]),
            ("a percent sign",      r"acc: (?P<acc>\S+)",                       "acc: 93.5%",            &["acc=93.5"]),
            ("a comma behind it",   r"loss: (?P<loss>\S+)",                     "loss: 1.5e-3, acc: 1",  &["loss=0.0015"]),
            ("brackets around it",  r"\((?P<loss>[^ ]+)",                        "(-.5) x",               &["loss=-0.5"]),
            ("all that follows",    r"loss: (?P<loss>.*)",                      "loss: 0.5 acc: 1",      &["loss=0.5"]),
            ("a unit",              r"t=(?P<t>\S+)",                            "t=12ms",                &["!a pattern matched text that is not a number"]),
            ("thousands",           r"n: (?P<n>\S+)",                           "n: 1,000",              &["!a pattern matched text that is not a number"]),
            ("nothing",             r"n:(?P<n>.*)",                             "n: ",                   &["!a pattern matched text that is not a number"]),
        ];
        for (case, pattern, line, expected) in table {
            assert_eq!(summarized(pattern, line), expected, "{case}");
        }
    }

    #[test]
    fn a_pattern_that_cannot_work_is_refused() {
        let refused = |pattern: &str| pattern.parse::<Pattern>().unwrap_err().to_string();
        assert!(refused("(").contains("not a valid regular expression"));
        assert!(refused(r"loss (\d+)").contains("names no metric"));
        assert!(refused(r"(?P<name>\w+) (?P<step>\d+)").contains("names no metric"));
    }

    proptest! {
        #[test]
        fn random_patterns_never_panic(pattern in "[a-z(?P<>)|*+.\\\\\\[\\]{}0-9]{0,24}", line: String) {
            if let Ok(pattern) = pattern.parse::<Pattern>() {
                pattern.read(&line, None, &mut Vec::new());
            }
        }
    }
}
