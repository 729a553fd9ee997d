//! PURE: suggests an allowed name for a mistyped one.

/// The maximum number of characters that are compared.
const MAX_COMPARED_CHARS: usize = 64;

/// Returns the allowed name that is nearest to `word`, if the difference may be a typing mistake. Case and
/// underscores are ignored. About one edit is accepted per three characters; swapping two neighbours counts as one
/// edit.
pub fn nearest<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = normalized_prefix(word);
    let budget = (plain.chars().count() / 3).max(1);
    allowed
        .into_iter()
        .map(|name| (strsim::osa_distance(&plain, &normalized_prefix(name)), name))
        .filter(|(edits, _)| *edits <= budget)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

/// Returns the end of an error message about an unknown `word`: a suggestion if there is a near name, and the list of
/// allowed names.
pub fn suggest_names<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> String {
    let allowed: Vec<&str> = allowed.into_iter().collect();
    let list = allowed.join(", ");
    match nearest(word, allowed) {
        Some(name) => format!("did you mean `{name}`? Allowed: {list}"),
        None => format!("allowed: {list}"),
    }
}

/// Returns the form in which NNI compares field names: lower case, without underscores.
pub fn normalize_name(name: &str) -> String {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// Returns the normalized beginning of a name. Comparing two texts takes time in proportion to the product of their
/// lengths.
fn normalized_prefix(name: &str) -> String {
    normalize_name(name).chars().take(MAX_COMPARED_CHARS).collect()
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
