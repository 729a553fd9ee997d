//! PURE: the code with which trials were started, and the differences between trials of one search.

use serde::Serialize;
use utoipa::ToSchema;

use crate::code_archive::version::CodeVersion;
use crate::store::CodeRow;

/// A version of the code with which trials were started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CodeUse {
    /// The version.
    #[serde(flatten)]
    pub version: CodeVersion,
    /// The trials whose current attempt was started with this version, such as `0-2, 5`. Absence means all known
    /// trials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trials: Option<String>,
}

/// Returns the versions for display.
pub fn code_uses(rows: &[CodeRow]) -> Vec<CodeUse> {
    let several = rows.len() > 1;
    let shown = |row: &CodeRow| CodeUse {
        version: row.version.clone(),
        trials: several.then(|| format_ranges(&row.trials)),
    };
    rows.iter().map(shown).collect()
}

/// Returns a version in a few words: the start of its hash, git's commit and branch, and the start of the changes'
/// hash.
pub fn describe_version(version: &CodeVersion) -> String {
    let start = |text: &str| text.chars().take(12).collect::<String>();
    let cut = if version.cut { " (in part)" } else { "" };
    let git = version.git.as_ref().map_or_else(String::new, |git| {
        let branch = git.branch.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        let dirty = match (git.dirty, &git.diff_sha256) {
            (Some(true), Some(diff)) => format!(", with changes {}", start(diff)),
            (Some(true), None) => ", with changes".to_owned(),
            (Some(false) | None, _) => String::new(),
        };
        format!(", commit {}{branch}{dirty}", start(&git.commit))
    });
    format!("{}{cut}{git}", start(&version.sha256))
}

/// Returns a sentence about trials that ran other code than the first ones. `None` if there are none.
pub fn difference(rows: &[CodeRow]) -> Option<String> {
    let mut used = rows.iter().filter(|row| !row.trials.is_empty());
    let first = used.next()?;
    let others: Vec<_> = used
        .map(|row| {
            let changed = &row.version.changed;
            let which = if changed.is_empty() {
                String::new()
            } else {
                format!(" ({})", changed.join(", "))
            };
            format!("{}{which}", describe_trials(&row.trials))
        })
        .collect();
    let others = (!others.is_empty()).then(|| others.join("; "))?;
    let first = describe_trials(&first.trials);
    Some(format!(
        "{others} ran other code than {first}; list files that are not code in .nniignore"
    ))
}

fn describe_trials(trials: &[u64]) -> String {
    format!("{} {}", if trials.len() == 1 { "trial" } else { "trials" }, format_ranges(trials))
}

/// Formats ascending numbers as ranges, such as `0-2, 5`, with at most twenty ranges.
fn format_ranges(numbers: &[u64]) -> String {
    const MAX_RANGES: usize = 20;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let more = ranges.len().saturating_sub(MAX_RANGES);
    let shown = ranges.iter().take(MAX_RANGES).map(|(first, last)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    });
    let more = (more > 0).then(|| "…".to_owned());
    shown.chain(more).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(trials: &[u64], changed: &[&str]) -> CodeRow {
        let changed = changed.iter().map(|name| (*name).to_owned()).collect();
        let sha256 = format!("{trials:?}");
        let version = CodeVersion { sha256, files: 1, bytes: 1, cut: false, changed, git: None };
        CodeRow { version, trials: trials.to_vec() }
    }

    #[test]
    fn the_trials_that_ran_other_code_are_named() {
        let table = [
            (vec![], None),
            (vec![row(&[], &[])], None),
            (vec![row(&[0, 1], &[]), row(&[], &["a"])], None),
            (
                vec![row(&[0, 1, 2], &[]), row(&[3, 4, 5], &["train.py"])],
                Some(
                    "trials 3-5 (train.py) ran other code than trials 0-2; list files that are not code in .nniignore",
                ),
            ),
            (
                vec![row(&[0, 3], &[]), row(&[1], &["a", "b"]), row(&[4, 5], &[])],
                Some(
                    "trial 1 (a, b); trials 4-5 ran other code than trials 0, 3; list files that are not code in .nniignore",
                ),
            ),
        ];
        for (rows, expected) in table {
            assert_eq!(difference(&rows).as_deref(), expected);
        }
    }

    #[test]
    fn a_long_list_of_trials_is_shortened() {
        let every_second: Vec<_> = (0..100).map(|n| n * 2).collect();
        assert!(format_ranges(&every_second).ends_with("36, 38, …"));
    }
}
