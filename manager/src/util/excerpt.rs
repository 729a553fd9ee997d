//! PURE: the beginning of a foreign text, as long as it is shown.

/// The length of a foreign text that is shown, in characters.
const SHOWN: usize = 500;

/// Returns a text as far as it is shown.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
