//! PURE: percent-encoding.

use std::fmt::Write as _;

/// Encodes a text for any part of a URL (RFC 3986, section 2.1): only unreserved characters stay.
pub fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").unwrap_or_default();
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_encoded_byte_by_byte() {
        for (text, expected) in [("", ""), ("a-Z_0.~", "a-Z_0.~"), ("a b/é&", "a%20b%2F%C3%A9%26")]
        {
            assert_eq!(encode(text), expected);
        }
    }
}
