//! PURE: shortens a foreign text for display.

/// The maximum length of a displayed text, in characters.
const MAX_EXCERPT_CHARS: usize = 500;

/// Returns the beginning of a text, with an ellipsis if it was shortened.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_EXCERPT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
