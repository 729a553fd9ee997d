//! PURE: a text in a post's JSON, whatever it holds. A Python keeper escapes a byte of the output that it could not
//! decode as half of a pair of surrogates. Rust cannot hold that in a text. The line is worth more than that character.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A text. What is no character stands as U+FFFD.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Text(pub(super) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As bytes `serde_json` gives what it refuses to give as a text: half a pair is then three bytes, as if it
        // were a character.
        deserializer.deserialize_byte_buf(Bytes)
    }
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
        self.visit_byte_buf(bytes.to_vec())
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Text, E> {
        Ok(Text(String::from_utf8(bytes).unwrap_or_else(|error| mended(error.into_bytes()))))
    }
}

fn mended(mut bytes: Vec<u8>) -> String {
    for at in 0..bytes.len().saturating_sub(2) {
        if let [0xED, 0xA0..=0xBF, 0x80..=0xBF] = bytes[at..at + 3] {
            // One for the three, which has three bytes, too.
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
    fn bytes_that_are_no_character_cost_no_line() {
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
        fn a_sound_text_is_read_as_it_is(text: String) {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<Text>(&json).unwrap().0, text);
        }

        #[test]
        fn texts_of_random_bytes_never_panic(bytes: Vec<u8>) {
            drop(mended(bytes.clone()));
            drop(serde_json::from_slice::<Text>(&bytes));
        }
    }
}
