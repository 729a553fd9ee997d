//! PURE: a text in a post's JSON, whatever its content. The Python keeper escapes an undecodable byte of the output
//! as half of a pair of surrogates. A Rust string cannot contain that, so the character is replaced and the line
//! kept.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A text. U+FFFD replaces each invalid character.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Text(pub(super) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // `serde_json` returns as bytes the texts that it refuses as strings. Half a pair of surrogates is then three
        // bytes, as if it were a character.
        deserializer.deserialize_byte_buf(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
        self.visit_byte_buf(bytes.to_vec())
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Text, E> {
        Ok(Text(
            String::from_utf8(bytes)
                .unwrap_or_else(|error| replace_invalid_utf8(error.into_bytes())),
        ))
    }
}

fn replace_invalid_utf8(mut bytes: Vec<u8>) -> String {
    for at in 0..bytes.len().saturating_sub(2) {
        if let [0xED, 0xA0..=0xBF, 0x80..=0xBF] = bytes[at..at + 3] {
            // U+FFFD also has three bytes, so it replaces them in place.
            bytes[at..at + 3].copy_from_slice("\u{FFFD}".as_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_characters_are_replaced() {
        #[rustfmt::skip]
        let table: [(&[u8], Option<&str>); 10] = [
            (br#""plain""#,                    Some("plain")),
            (br#""a\ttab, \u00e9, \ud83d\ude00""#, Some("a\ttab, \u{e9}, \u{1f600}")),
            (br#""half \ud83d of a pair""#,    Some("half \u{fffd} of a pair")),
            (br#""the other \ude00""#,         Some("the other \u{fffd}")),
            (br#""the wrong way \ude00\ud83d""#, Some("the wrong way \u{fffd}\u{fffd}")),
            (b"\"Latin-1: \xe9\"",            Some("Latin-1: \u{fffd}")),
            (b"7",                             None),
            (b"null",                          None),
            (b"[104, 105]",                    None),
            (br#""\ud83""#,                    None),
        ];
        for (json, expected) in table {
            let read = serde_json::from_slice::<Text>(json).map(|text| text.0).ok();
            assert_eq!(read.as_deref(), expected, "{}", String::from_utf8_lossy(json));
        }
    }

    proptest! {
        #[test]
        fn a_valid_text_is_unchanged(text: String) {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<Text>(&json).unwrap().0, text);
        }

        #[test]
        fn texts_of_random_bytes_never_panic(bytes: Vec<u8>) {
            drop(replace_invalid_utf8(bytes.clone()));
            drop(serde_json::from_slice::<Text>(&bytes));
        }
    }
}
