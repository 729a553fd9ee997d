//! PURE: words of a Bourne shell.

/// Quotes a text as one word.
pub fn quote(text: &str) -> String {
    format!("'{}'", escape_single_quotes(text))
}

/// Returns a text for a place between single quotes.
pub fn escape_single_quotes(text: &str) -> String {
    text.replace('\'', r"'\''")
}

/// Returns a command in the form for a shell. Words that the shell would split or interpret are quoted.
pub fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) { word.clone() } else { quote(word) }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_quoted_for_a_shell() {
        let words = ["sh", "-c", "echo it's $X", "", "a=b"].map(str::to_owned);
        assert_eq!(command_line(&words), r"sh -c 'echo it'\''s $X' '' a=b");
    }
}
