//! Formats an error with its causes on one line.

use std::error::Error;

/// Returns an error and its causes, joined by colons. TrialKeeper's messages do not repeat their sources. A library's
/// message may repeat its source; then the text appears only once.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the file")]
    struct Outer(#[source] std::fmt::Error);

    #[test]
    fn causes_follow_in_order() {
        let shown = error_chain(&Outer(std::fmt::Error));
        assert_eq!(shown, format!("cannot open the file: {}", std::fmt::Error));
    }

    #[test]
    fn a_source_that_the_message_contains_is_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("service: {0}")]
        struct Repeating(#[source] Outer);

        let shown = error_chain(&Repeating(Outer(std::fmt::Error)));
        assert_eq!(shown, format!("service: cannot open the file: {}", std::fmt::Error));
    }
}
