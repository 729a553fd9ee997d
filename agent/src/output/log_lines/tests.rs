//! Tests of the log chunks, as tables and properties.

use proptest::prelude::*;

use super::*;

fn spec() -> Spec {
    Spec { line_bytes: 20, bytes_per_second: 1 << 30, secrets: Secrets::default() }
}

/// Returns the chunks of a stream that arrives in the given portions.
fn chunks(spec: Spec, portions: &[&[u8]]) -> Vec<LogChunk> {
    let mut lines = LogChunker::new(Stream::Stdout, spec);
    let mut chunks = Vec::new();
    for portion in portions {
        lines.feed(portion, Duration::ZERO, &mut chunks);
    }
    lines.flush(true, Duration::ZERO, &mut chunks);
    chunks
}

fn texts(chunks: &[LogChunk]) -> Vec<(u64, &str)> {
    chunks
        .iter()
        .map(|chunk| match &chunk.text {
            LogText::Text(text) => (chunk.offset_bytes, text.as_str()),
            LogText::Base64(text) => (chunk.offset_bytes, text.as_str()),
        })
        .collect()
}

/// A name, the portions, and the chunks: their positions and texts.
type Row<'a> = (&'a str, &'a [&'a [u8]], &'a [(u64, &'a str)]);

#[test]
fn lines_become_pieces() {
    let secrets = Secrets::new([b"s3cret".to_vec(), b"s3cret-longer".to_vec(), b"abc".to_vec()]);
    #[rustfmt::skip]
    let table: [Row<'_>; 16] = [
        ("lines are joined",                  &[b"a\nb\n"],                        &[(0, "a\nb\n")]),
        ("whatever the portions",             &[b"a", b"\n", b"b\n"],              &[(0, "a\nb\n")]),
        ("the last may lack its newline",     &[b"a\nb"],                          &[(0, "a\nb")]),
        ("an empty line counts",              &[b"\n\n"],                          &[(0, "\n\n")]),
        ("a progress bar is its last state",  &[b" 1%\r 50%\r100%\ndone\n"],       &[(0, "100%\ndone\n")]),
        ("one that ends with a return",       &[b" 1%\r100%\r"],                   &[(0, "100%")]),
        ("in portions, too",                  &[b" 1%\r", b"2%\r", b"\ndone\n"],   &[(0, "2%\ndone\n")]),
        ("CRLF is a newline",                 &[b"a\r\nb\r\n"],                    &[(0, "a\nb\n")]),
        ("also through a terminal",           &[b"a\r\r\nb\r\r", b"\n"],           &[(0, "a\nb\n")]),
        ("a secret is not cut in two",        &[b"0123456789012345 s3cret x\n"],   &[(0, "0123456789012345 *** [... 2 bytes cut]\n")]),
        ("part of a secret is not sent",      &[b"0123456789 s3cret-longer-and-longer s3cret\n"], &[(0, "0123456789 [... 22 bytes cut]\n")]),
        ("a long line is cut and marked",     &[b"0123456789012345678901234\nx\n"], &[(0, "01234567890123456789 [... 5 bytes cut]\nx\n")]),
        ("a secret is masked",                &[b"is s3cret!\n"],                  &[(0, "is ***!\n")]),
        ("also over portions",                &[b"is s3c", b"ret!\n"],             &[(0, "is ***!\n")]),
        ("the longest one as a whole",        &[b"s3cret-longer\n"],               &[(0, "***\n")]),
        ("a short one would mask everything", &[b"abc\n"],                         &[(0, "abc\n")]),
    ];
    for (case, portions, expected) in table {
        let spec = Spec { secrets: secrets.clone(), ..spec() };
        let chunks = chunks(spec, portions);
        assert_eq!(texts(&chunks), expected, "{case}");
    }
}

#[test]
fn a_secret_with_several_lines_is_masked_line_by_line() {
    let key = b"-----BEGIN KEY-----\nMIIEpAIBAAKCAQ\nab==\n-----END KEY-----\n";
    let spec = Spec { line_bytes: 100, secrets: Secrets::new([key.to_vec()]), ..spec() };
    let chunks = chunks(spec.clone(), &[b"key:\n", key, b"  MIIEpAIBAAKCAQ\r\n"]);
    let all: String = texts(&chunks).into_iter().map(|(_, text)| text).collect();
    assert_eq!(all, "key:\n***\n***\nab==\n***\n  ***\n", "a short line is not masked");
    // The tail contains the secret as a whole.
    assert_eq!(spec.secrets.mask_text(String::from_utf8_lossy(key).into_owned()), "***\n");
}

#[test]
fn a_low_rate_passes_some_of_a_flood() {
    let spec = Spec { bytes_per_second: 1000, ..spec() };
    let mut lines = LogChunker::new(Stream::Stdout, spec);
    let mut chunks = Vec::new();
    for second in 0..10 {
        let line = "0123456789abcde\n".repeat(10_000);
        lines.feed(line.as_bytes(), Duration::from_secs(second), &mut chunks);
    }
    let sent: usize = texts(&chunks).iter().map(|(_, text)| text.len()).sum();
    assert!((8_000..=10_000).contains(&sent), "{sent}");
    assert_eq!(lines.shed_bytes(), 1_600_000 - u64::try_from(sent).unwrap());
}

#[test]
fn a_line_longer_than_the_rate_is_sent_eventually() {
    let mut lines = LogChunker::new(Stream::Stdout, Spec { bytes_per_second: 8, ..spec() });
    let mut chunks = Vec::new();
    lines.feed(b"0123456789012345\n", Duration::from_secs(2), &mut chunks);
    assert_eq!(texts(&chunks), [(0, "0123456789012345\n")]);
}

#[test]
fn a_long_running_bar_is_shown_periodically() {
    let mut lines = LogChunker::new(Stream::Stdout, spec());
    let mut chunks = Vec::new();
    for tenth in 0..250 {
        let now = Duration::from_millis(100 * tenth);
        lines.feed(format!("\r{tenth:3}").as_bytes(), now, &mut chunks);
        lines.flush(false, now, &mut chunks);
    }
    let now = Duration::from_secs(25);
    lines.feed(b"\ndone\nno bar", now, &mut chunks);
    lines.flush(false, now * 2, &mut chunks);
    assert_eq!(texts(&chunks), [(0, "100\n"), (4, "200\n"), (8, "249\ndone\n")]);

    // The newline after a shown line is not a line of its own.
    let (mut lines, mut chunks) = (LogChunker::new(Stream::Stdout, spec()), Vec::new());
    lines.feed(b" 1%\r 2%", Duration::ZERO, &mut chunks);
    lines.flush(false, now, &mut chunks);
    lines.feed(b"\nnext\n", now, &mut chunks);
    lines.flush(true, now, &mut chunks);
    assert_eq!(texts(&chunks), [(0, " 2%\n"), (4, "next\n")]);
}

#[test]
fn bytes_that_are_not_utf8_are_kept() {
    let chunks = chunks(spec(), &[b"\xff\xfe\xfd\n"]);
    assert_eq!(chunks[0].text, LogText::Base64("//79Cg==".to_owned()));
}

#[test]
fn output_above_the_rate_is_dropped_and_counted_until_the_rate_recovers() {
    let spec = Spec { bytes_per_second: 8, ..spec() };
    let mut lines = LogChunker::new(Stream::Stdout, spec);
    let mut chunks = Vec::new();
    let mut feed = |second, text: &str| {
        let now = Duration::from_secs(second);
        lines.feed(text.as_bytes(), now, &mut chunks);
        lines.flush(false, now, &mut chunks);
    };
    feed(0, "12345\n");
    feed(0, "lost\n");
    feed(1, "1234567\n");
    assert_eq!(lines.shed_bytes(), 5);
    assert_eq!(texts(&chunks), [(0, "12345\n"), (11, "1234567\n")]);
}

#[test]
fn a_piece_is_sent_when_it_is_long_enough() {
    let line = format!("{}\n", "x".repeat(15)).repeat(CHUNK_BYTES / 16 + 1);
    let mut lines = LogChunker::new(Stream::Stdout, spec());
    let mut chunks = Vec::new();
    lines.feed(line.as_bytes(), Duration::ZERO, &mut chunks);
    assert_eq!(
        texts(&chunks).iter().map(|(_, text)| text.len()).collect::<Vec<_>>(),
        [CHUNK_BYTES]
    );
}

proptest! {
    #[test]
    fn plain_text_arrives_whole_at_its_offsets(
        portions in prop::collection::vec("[a-c\n]{0,30}", 0..20),
    ) {
        let spec = Spec { line_bytes: 1000, ..spec() };
        let portions: Vec<_> = portions.iter().map(String::as_bytes).collect();
        let chunks = chunks(spec, &portions);
        let mut position = 0;
        let mut whole = String::new();
        for (offset, text) in texts(&chunks) {
            prop_assert_eq!(offset, position);
            position += u64::try_from(text.len()).unwrap();
            whole.push_str(text);
        }
        prop_assert_eq!(whole.as_bytes(), portions.concat());
    }

    #[test]
    fn the_pieces_of_random_bytes_have_rising_offsets(portions in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)) {
        let portions: Vec<_> = portions.iter().map(Vec::as_slice).collect();
        let chunks = chunks(spec(), &portions);
        prop_assert!(chunks.is_sorted_by(|a, b| a.offset_bytes < b.offset_bytes));
    }
}

#[test]
fn the_end_of_a_stream_begins_with_a_whole_line() {
    let long = "y".repeat(EVIDENCE_TAIL_BYTES);
    let last = |total, tail: &str| {
        let chunk = last_lines(Stream::Stdout, total, tail.as_bytes());
        chunk.map(|chunk| (chunk.offset_bytes, chunk.text))
    };
    let text = |text: &str| LogText::Text(text.to_owned());
    assert_eq!(last(4096, &long), None, "the verdict has room for it");
    assert_eq!(last(4098, &format!("x\n{long}")), Some((0, text(&format!("x\n{long}")))));
    let secret = format!("***\n{long}");
    assert_eq!(last(9000, &secret), Some((0, text(&secret))), "only masked text is missing");
    let more = to_u64(MAX_KEPT_BYTES) + 1000;
    assert_eq!(
        last(more, &format!("x\n{long}")),
        Some((1002, text(&long))),
        "x may end a longer line"
    );
    let one = format!("{long}y");
    assert_eq!(last(more, &one), Some((1000, text(&one))), "there is no other line");
}
