//! PURE: removes terminal control sequences (ECMA-48) from a line, so that coloured numbers can be read.

use std::borrow::Cow;

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;

/// Returns `line` without control sequences. Borrows it if there are none, which is nearly always the case.
pub fn strip(line: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(ESCAPE, line) else {
        return Cow::Borrowed(line);
    };
    let mut clean = Vec::with_capacity(line.len());
    clean.extend_from_slice(&line[..first]);
    let mut rest = &line[first..];
    while let Some(tail) = rest.strip_prefix(&[ESCAPE]) {
        let tail = &tail[sequence_length(tail)..];
        let plain = memchr::memchr(ESCAPE, tail).unwrap_or(tail.len());
        clean.extend_from_slice(&tail[..plain]);
        rest = &tail[plain..];
    }
    Cow::Owned(clean)
}

/// Returns the number of bytes after the escape character that belong to its sequence.
fn sequence_length(tail: &[u8]) -> usize {
    match tail.first() {
        // CSI: parameters, intermediates, one final byte.
        Some(b'[') => {
            let body = &tail[1..];
            let parameters = body.iter().take_while(|byte| (0x20..=0x3f).contains(*byte)).count();
            let last = body.get(parameters).is_some_and(|byte| (0x40..=0x7e).contains(byte));
            1 + parameters + usize::from(last)
        }
        // OSC (a window title, a hyperlink): up to BEL or ESC \.
        Some(b']') => match memchr::memchr2(BELL, ESCAPE, tail) {
            Some(end) if tail[end] == BELL => end + 1,
            Some(end) if tail.get(end + 1) == Some(&b'\\') => end + 2,
            Some(end) => end,
            None => tail.len(),
        },
        Some(byte) if byte.is_ascii() && *byte != ESCAPE => 1,
        Some(_) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_sequences_vanish_and_text_stays() {
        #[rustfmt::skip]
        let table: [(&str, &[u8], &[u8]); 9] = [
            ("plain",              b"loss=0.5",                          b"loss=0.5"),
            ("a colour",           b"\x1b[32mloss=0.5\x1b[0m",           b"loss=0.5"),
            ("inside the pair",    b"loss=\x1b[1;38;5;9m0.5\x1b[m",      b"loss=0.5"),
            ("erase the line",     b"\x1b[2Kloss=0.5",                   b"loss=0.5"),
            ("a hyperlink",        b"\x1b]8;;http://h/?a=1\x1b\\x\x1b]8;;\x1b\\", b"x"),
            ("a title",            b"\x1b]0;a=1\x07b",                   b"b"),
            ("cut off",            b"a\x1b[3",                           b"a"),
            ("a lone escape",      b"a\x1b",                             b"a"),
            ("two in a row",       b"\x1b\x1b[0ma",                      b"a"),
        ];
        for (case, line, clean) in table {
            assert_eq!(strip(line).as_ref(), clean, "{case}");
        }
    }

    proptest! {
        #[test]
        fn no_escape_is_left_in_any_bytes(bytes: Vec<u8>) {
            prop_assert!(!strip(&bytes).contains(&ESCAPE));
        }
    }
}
