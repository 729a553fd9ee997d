//! PURE: suggests an allowed name for a mistyped one.

/// Returns the allowed name that is nearest to `word`, if the difference may be a typing mistake. Case and
/// underscores are ignored. About one edit is accepted per three characters; swapping two neighbours counts as one
/// edit.
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

/// Returns the end of an error message about an unknown `word`: a suggestion if there is a near name, and the list of
/// allowed names.
pub fn advice<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> String {
    let allowed: Vec<&str> = allowed.into_iter().collect();
    let list = allowed.join(", ");
    match nearest(word, allowed) {
        Some(name) => format!("did you mean `{name}`? Allowed: {list}"),
        None => format!("allowed: {list}"),
    }
}

/// Returns the form in which NNI compares field names: lower case, without underscores.
pub fn folded(name: &str) -> String {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn one text into the
/// other.
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
    fn a_typing_mistake_gets_a_suggestion_and_another_word_does_not() {
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
