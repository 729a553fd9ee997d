//! PURE: the allowed name that a mistyped one was meant to be.

/// The allowed name that is nearest to `word`, if it is near enough to be a typing mistake: case and
/// underscores count nothing, and about one edit (an exchange of neighbours is one) per three
/// characters is forgiven.
pub fn nearest<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = folded(word);
    let budget = (plain.chars().count() / 3).max(1);
    allowed
        .into_iter()
        .map(|name| (distance(&plain, &folded(name)), name))
        .filter(|(edits, _)| *edits <= budget)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

/// The end of an error message about an unknown `word`: a suggestion where there is a near name, and
/// always what is allowed.
pub fn advice<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> String {
    let allowed: Vec<&str> = allowed.into_iter().collect();
    let list = allowed.join(", ");
    match nearest(word, allowed) {
        Some(name) => format!("did you mean `{name}`? Allowed: {list}"),
        None => format!("allowed: {list}"),
    }
}

/// The form in which NNI compares field names: lower case, no underscores.
pub fn folded(name: &str) -> String {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// Returns how many insertions, deletions, replacements and exchanges of neighbours lead from one to the other.
fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().take(64).collect();
    let to: Vec<char> = to.chars().take(64).collect();
    let mut rows = vec![(0..=to.len()).collect::<Vec<_>>()];
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let mut best =
                (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_mistake_finds_its_name_and_nonsense_does_not() {
        let names = ["trialCommand", "trialConcurrency", "tuner", "maxTrialNumber"];
        #[rustfmt::skip]
        let table = [
            ("trialComand",      Some("trialCommand")),
            ("TRIAL_COMMAND",    Some("trialCommand")),
            ("trialConcurency",  Some("trialConcurrency")),
            ("tunre",            Some("tuner")),
            ("maxTrialNum",      Some("maxTrialNumber")),
            ("portal",           None),
            ("",                 None),
        ];
        for (word, name) in table {
            assert_eq!(nearest(word, names), name, "{word}");
        }
    }
}
