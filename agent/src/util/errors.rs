//! The text of an error with its causes, in one line.

use std::error::Error;

/// Returns the text of an error and its causes, joined by colons. Only the code that prints chains uses it, because
/// messages do not repeat their sources.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the door")]
    struct Outer(#[source] std::fmt::Error);

    #[test]
    fn causes_follow_in_order() {
        let shown = chain(&Outer(std::fmt::Error));
        assert_eq!(shown, format!("cannot open the door: {}", std::fmt::Error));
    }
}
