//! PURE: texts of others, as far as they are shown.

/// The length of a foreign text that is shown, in characters.
const SHOWN: usize = 500;

/// Returns a text as far as it is shown.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
