use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::json;
use trial_protocol::MetricKind;

use super::*;

fn scanner(stream: Stream) -> StreamScanner {
    StreamScanner::new(&CollectSpec::default(), stream)
}

/// Returns the findings in the portions of a stream.
fn scan(mut scanner: StreamScanner, portions: &[&[u8]]) -> Vec<Finding> {
    let mut found = Vec::new();
    for portion in portions {
        scanner.feed(portion, &mut found);
    }
    scanner.finish(&mut found);
    found
}

/// Returns a short form of findings: `name=value` for a metric (`*` for a final one), `!why` for an unreadable one.
fn summarized(found: &[Finding]) -> Vec<String> {
    let summarize = |finding: &Finding| match finding {
        Finding::Metric(found) => {
            let star = if found.kind == Some(MetricKind::Final) { "*" } else { "" };
            format!("{}{star}={}", found.name, found.value.as_json())
        }
        Finding::Unreadable { why, .. } => format!("!{why}"),
    };
    found.iter().map(summarize).collect()
}

fn marked(value: &str) -> String {
    let inner = serde_json::to_string(value).unwrap();
    format!(r#"NNISDK_MEb'{{"type": "PERIODICAL", "sequence": 0, "value": {inner}}}'"#)
}

#[test]
fn metrics_are_found_in_lines() {
    let half = marked("0.5");
    let last = half.replace("PERIODICAL", "FINAL");
    let request = half.replace("PERIODICAL", "REQUEST_PARAMETER");
    let torn = &half[..40];
    #[rustfmt::skip]
    let table: [(&str, String, &[&str]); 28] = [
        ("nothing",                    String::new(),                             &[]),
        ("ordinary text",              "hello\nworld\n".into(),                   &[]),
        ("a marked metric",            format!("{half}\n"),                       &["default=0.5"]),
        ("without a newline",          half.clone(),                              &["default=0.5"]),
        ("with a carriage return",     format!("{half}\r\n"),                     &["default=0.5"]),
        ("a final one",                format!("{last}\n"),                       &["default*=0.5"]),
        ("a parameter request",        format!("{request}\n"),                    &[]),
        ("an apostrophe inside",       format!("{}\n", marked("\"it's\"")),       &["default=\"it's\""]),
        ("behind text",                format!("working...{half}\n"),             &["default=0.5"]),
        ("behind a pair",              format!("acc=0.9{half}\n"),                &["acc=0.9", "default=0.5"]),
        ("before a pair",              format!("{half} acc=0.9\n"),               &["default=0.5", "acc=0.9"]),
        ("behind a progress bar",      format!("1%\r2%\r{half}\n"),               &["default=0.5"]),
        ("behind a last state",        format!("acc=1\racc=2\r{half}\n"),       &["acc=2", "default=0.5"]),
        ("two on a line",              format!("{half}{last}\n\n"),               &["default=0.5", "default*=0.5"]),
        ("a pair in its value",        format!("{}\n", marked("\"a=1\"")),        &["default=\"a=1\""]),
        ("no object",                  "NNISDK_MEb'0.5'\n".into(),                &["!no object follows the marker"]),
        ("nothing behind it",          "NNISDK_MEb'".into(),                      &["!no object follows the marker"]),
        ("no apostrophe",              format!("{}\n", &half[..half.len() - 1]),  &["!no apostrophe follows its object"]),
        ("torn by the newline",        format!("{torn}\n{half}\n"),               &["!its object does not end on the line", "default=0.5"]),
        ("torn by another",            format!("{torn}{half}\n"),                 &["!its object does not end on the line", "default=0.5"]),
        ("no metric inside",           "NNISDK_MEb'{\"a=1\": 1} x=1'\n".into(),   &["!no apostrophe follows its object"]),
        ("pairs",                      "loss=1 acc=2\nf1=3".into(),               &["loss=1", "acc=2", "f1=3"]),
        ("colours",                    "\x1b[32mloss=\x1b[1m1\x1b[0m\n".into(),   &["loss=1"]),
        ("an overwritten state",       "loss=3\rloss=2\rloss=1\r\n".into(),       &["loss=1"]),
        ("a JSON line",                "{\"acc\": 1, \"x\": \"a=1\"}\n".into(),   &["acc=1"]),
        ("a JSON line at the end",     "{\"type\": \"final\", \"acc\": 1}".into(), &["acc*=1"]),
        ("braces of another kind",     "{acc=1}\n".into(),                        &["acc=1"]),
        ("an empty line between",      "\n\nacc=1\n\n".into(),                    &["acc=1"]),
    ];
    for (case, bytes, expected) in table {
        let whole = scan(scanner(Stream::Stdout), &[bytes.as_bytes()]);
        assert_eq!(summarized(&whole), expected, "{case}");
        let single: Vec<_> = bytes.as_bytes().chunks(1).collect();
        assert_eq!(scan(scanner(Stream::Stdout), &single), whole, "{case}, byte by byte");
    }
}

#[test]
fn stderr_holds_only_marked_metrics() {
    let bytes = format!("acc=1\n{{\"acc\": 1}}\nacc=2{}acc=3\n", marked("0.5"));
    let found = scan(scanner(Stream::Stderr), &[bytes.as_bytes()]);
    assert_eq!(summarized(&found), ["default=0.5"]);
}

#[test]
fn a_collector_that_is_off_finds_nothing() {
    let bytes = format!("acc=1\n{{\"f1\": 1}}\n{}\n", marked("0.5"));
    #[rustfmt::skip]
    let table: [(bool, bool, &[&str]); 4] = [
        (true,  true,  &["acc=1", "f1=1", "default=0.5"]),
        (true,  false, &["acc=1", "default=0.5"]),
        (false, true,  &["f1=1", "default=0.5"]),
        (false, false, &["default=0.5"]),
    ];
    for (text, json_lines, expected) in table {
        let spec = CollectSpec { text, json_lines, ..CollectSpec::default() };
        let found = scan(StreamScanner::new(&spec, Stream::Stdout), &[bytes.as_bytes()]);
        assert_eq!(summarized(&found), expected, "text {text}, JSON {json_lines}");
    }
}

#[test]
fn a_line_that_a_pattern_matches_is_read_by_no_other_collector() {
    let patterns = vec![r"loss[:=] ?(?P<loss>[\d.]+)".parse().unwrap()];
    let spec = CollectSpec { patterns, ..CollectSpec::default() };
    let bytes = format!("loss: 0.5\nloss=0.25 acc=1\nacc=0.75\n{}\n", marked("0.5"));
    let expected = ["loss=0.5", "loss=0.25", "acc=0.75", "default=0.5"];
    for portion in [1, usize::MAX] {
        let portions: Vec<_> = bytes.as_bytes().chunks(portion).collect();
        let found = scan(StreamScanner::new(&spec, Stream::Stdout), &portions);
        assert_eq!(summarized(&found), expected, "{portion} at a time");
    }
}

#[test]
fn a_metric_of_a_million_characters_survives() {
    let long = "x".repeat(1_000_000);
    let line = format!(
        "{}\nacc=1\n{{\"default\": 1, \"x\": \"{long}\"}}\n",
        marked(&json!(long).to_string())
    );
    for portion in [7_777, 65_536, usize::MAX] {
        let portions: Vec<_> = line.as_bytes().chunks(portion).collect();
        let found = scan(scanner(Stream::Stdout), &portions);
        assert_eq!(found.len(), 3, "{portion}");
        let Finding::Metric(first) = &found[0] else { panic!("{:?}", summarized(&found)) };
        assert_eq!(first.value.as_json(), &json!(long), "{portion}");
    }
}

#[test]
fn an_endless_line_is_not_kept_and_hides_no_metric() {
    let mut scanner = scanner(Stream::Stdout);
    let mut found = Vec::new();
    let noise = vec![b'.'; 1_000_000];
    for _ in 0..10 {
        scanner.feed(&noise, &mut found);
        assert!(scanner.carry.capacity() <= 2 * LINE_LIMITS.piece, "{}", scanner.carry.capacity());
    }
    scanner.feed(b" acc=1", &mut found);
    scanner.feed(marked("0.5").as_bytes(), &mut found);
    scanner.feed(b"\nacc=2\n", &mut found);
    assert!(scanner.carry.capacity() <= 2 * PORTION_BYTES, "{}", scanner.carry.capacity());
    let long = "!a line of more than 1114112 bytes is not searched for metrics";
    assert_eq!(summarized(&found), [long, "default=0.5", "acc=2"]);
    scanner.feed(&[&noise, &noise, &b"a=1\n"[..]].concat(), &mut found);
    assert_eq!(found.len(), 3, "reported once");
}

#[test]
fn a_long_line_is_searched_whatever_its_content() {
    let noise = "x".repeat(1_000_000);
    let patterns = vec![r"loss: (?P<loss>\S+)".parse().unwrap()];
    let spec = CollectSpec { patterns, ..CollectSpec::default() };
    let digits = "1".repeat(1_000_000);
    let lines = format!("{noise} acc=0.5\n{noise} loss: 0.25\nn=0.{digits}\n");
    for portion in [1_000, 65_536, usize::MAX] {
        let portions: Vec<_> = lines.as_bytes().chunks(portion).collect();
        let found = scan(StreamScanner::new(&spec, Stream::Stdout), &portions);
        let expected = ["acc=0.5", "loss=0.25", "n=0.1111111111111111"];
        assert_eq!(summarized(&found), expected, "{portion} at a time");
    }
}

#[test]
fn a_progress_bar_of_megabytes_counts_in_its_last_state() {
    let mut bar = String::new();
    for step in 0..50_000 {
        write!(bar, "\r{step} of many, loss={step}").unwrap();
    }
    bar.push('\n');
    for portion in [1_000, usize::MAX] {
        let portions: Vec<_> = bar.as_bytes().chunks(portion).collect();
        assert_eq!(summarized(&scan(scanner(Stream::Stdout), &portions)), ["loss=49999"]);
    }
}

#[test]
fn an_endless_object_is_unreadable_and_later_metrics_are_found() {
    let bytes =
        format!("NNISDK_MEb'{{\"{}\n{}\n", "x".repeat(2 * LINE_LIMITS.piece), marked("0.5"));
    for portion in [100_000, usize::MAX] {
        let portions: Vec<_> = bytes.as_bytes().chunks(portion).collect();
        let found = scan(scanner(Stream::Stdout), &portions);
        let Finding::Unreadable { excerpt, why, .. } = &found[0] else {
            panic!("{:?}", summarized(&found))
        };
        assert_eq!(excerpt.chars().count(), 200);
        assert!(why.contains("over 1114112 bytes"), "{why}");
        assert_eq!(summarized(&found[1..]), ["default=0.5"]);
    }
}

/// Returns a scanner with limits that short texts reach.
fn small() -> StreamScanner {
    let limits = LineLimits { early_read_bytes: 70, piece: 900 };
    StreamScanner { limits, next_parse_length: 70, ..scanner(Stream::Stdout) }
}

/// Streams that contain the difficult cases.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        4 => Just(marked("0.5")),
        1 => Just(marked("{\"default\": NaN, \"s\": \"it's \\\"=1\"}")),
        1 => Just(marked(&"9".repeat(60))),
        1 => Just(marked(&format!("\"{}\"", "y".repeat(850)))),
        2 => (0..60_usize).prop_map(|cut| marked("0.5")[..cut].to_owned()),
        1 => Just("NNISDK_MEb'".to_owned()),
        1 => Just("NNISDK_MEb'{\"".to_owned()),
        4 => Just("\n".to_owned()),
        2 => Just("\r".to_owned()),
        1 => Just("\r\n".to_owned()),
        3 => Just("acc=0.5".to_owned()),
        2 => Just("{\"step\": 1, \"loss\": 2}".to_owned()),
        1 => Just("\x1b[1m".to_owned()),
        1 => (0..100_usize).prop_map(|length| " ".repeat(length)),
        1 => (0..1_000_usize).prop_map(|length| "x".repeat(length)),
        2 => "[a-c=0-9.{}'\"\\\\ \r\n\u{e9}]{0,12}",
    ];
    let text = proptest::collection::vec(fragment, 0..24).prop_map(|all| all.concat().into_bytes());
    prop_oneof![4 => text, 1 => proptest::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn portions_do_not_matter(
        stream in streams(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let portions: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
        let single: Vec<_> = stream.chunks(1).collect();

        let whole = scan(small(), &[&stream]);
        prop_assert_eq!(&scan(small(), &portions), &whole);
        prop_assert_eq!(&scan(small(), &single), &whole);
    }

    #[test]
    fn output_of_random_bytes_never_panics_the_scanner(bytes: Vec<u8>) {
        scan(scanner(Stream::Stdout), &[&bytes]);
        scan(scanner(Stream::Stderr), &[&bytes]);
    }
}

#[test]
fn a_report_after_an_unfinished_line_is_read() {
    let report = r#"{"type": "intermediate", "step": 2, "loss": 0.5}"#;
    #[rustfmt::skip]
    let table: [(String, &[&str]); 6] = [
        (format!("{report}\n"),                             &["loss=0.5"]),
        (format!("training... {report}\n"),                 &["loss=0.5"]),
        (format!("acc=1 {report}\n"),                       &["acc=1", "loss=0.5"]),
        (format!("  50%|##  |\r 100%|####| {report}\r\n"), &["loss=0.5"]),
        (format!("{{\"acc\": 1, \"x\": {report}}}\n"),        &["acc=1"]),
        ("{\"type\": \"".repeat(2) + "}\n",                  &[]),
    ];
    for (output, expected) in table {
        let found = scan(scanner(Stream::Stdout), &[output.as_bytes()]);
        assert_eq!(summarized(&found), expected, "{output}");
    }
}
