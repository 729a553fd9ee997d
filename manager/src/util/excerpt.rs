//! PURE: shortens a foreign text for display.

/// The maximum length of a displayed text, in characters.
const SHOWN: usize = 500;

/// Returns the beginning of a text, with an ellipsis if it was shortened.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
