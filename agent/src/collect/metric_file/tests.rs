use proptest::prelude::*;

use super::*;

fn record(value: &str) -> String {
    let inner = serde_json::to_string(value).unwrap();
    framed(&format!("{{\"type\": \"PERIODICAL\", \"sequence\": 0, \"value\": {inner}}}\n"))
}

fn framed(payload: &str) -> String {
    format!("ME{:06}{payload}", payload.len())
}

fn read(portions: &[&[u8]]) -> Vec<Finding> {
    let mut reader = MetricFileReader::new();
    let mut found = Vec::new();
    for portion in portions {
        reader.feed(portion, &mut found);
    }
    reader.finish(&mut found);
    found
}

fn summarized(found: &[Finding]) -> Vec<String> {
    let summarize = |finding: &Finding| match finding {
        Finding::Metric(found) => found.value.as_json().to_string(),
        Finding::Unreadable { why, excerpt, .. } => format!("!{why}: {excerpt}"),
    };
    found.iter().map(summarize).collect()
}

#[test]
fn metric_files_are_parsed() {
    let one = record("1");
    let two = record("2");
    let request = framed("{\"type\": \"REQUEST_PARAMETER\", \"sequence\": 0}\n");
    let torn = &one[..30];
    let torn_report = format!("!30 bytes of the metric file are not a record: {torn}");
    let cut_report = format!("!30 bytes of the metric file are not a record: {torn}");
    #[rustfmt::skip]
    let table: [(&str, String, Vec<&str>); 15] = [
        ("nothing",                   String::new(),                     vec![]),
        ("one record",                one.clone(),                       vec!["1"]),
        ("two records",               format!("{one}{two}"),             vec!["1", "2"]),
        ("a parameter request",       format!("{request}{two}"),         vec!["2"]),
        ("an apostrophe",             record("\"it's\""),                vec!["\"it's\""]),
        ("letters of two bytes",      record("\"\u{e9}\""),              vec!["\"\u{e9}\""]),
        ("no newline in the payload", framed("{\"type\": \"FINAL\", \"value\": \"3\"}"), vec!["3"]),
        ("garbage before",            format!("MEH garbage{one}"),       vec!["!11 bytes of the metric file are not a record: MEH garbage", "1"]),
        ("garbage between",           format!("{one}\0\0{two}"),         vec!["1", "!2 bytes of the metric file are not a record: \0\0", "2"]),
        ("only garbage",              "garbage".into(),                  vec!["!7 bytes of the metric file are not a record: garbage"]),
        ("a torn record",             format!("{torn}{two}"),            vec![&torn_report, "2"]),
        ("a torn record at the end",  format!("{two}{torn}"),            vec!["2", &cut_report]),
        ("a length that is too long", format!("ME000200{}{two}", &one[8..]), vec!["!60 bytes of the metric file are not a record: ME000200{\"type\": \"PERIODICAL\", \"sequence\": 0, \"value\": \"1\"}\n", "2"]),
        ("one within a torn one",     format!("{}{two}", &one[..9]),     vec!["!9 bytes of the metric file are not a record: ME000052{", "2"]),
        ("no metric",                 format!("{}{two}", framed("{}\n")), vec!["!11 bytes of the metric file are not a record: ME000003{}\n", "2"]),
    ];
    for (case, bytes, expected) in table {
        let whole = read(&[bytes.as_bytes()]);
        assert_eq!(summarized(&whole), expected, "{case}");
        let single: Vec<_> = bytes.as_bytes().chunks(1).collect();
        assert_eq!(read(&single), whole, "{case}, byte by byte");
    }
}

#[test]
fn a_record_of_almost_a_million_bytes_survives_byte_by_byte() {
    let long = format!("\"{}\"", "x".repeat(900_000));
    let bytes = record(&long);
    let single: Vec<_> = bytes.as_bytes().chunks(1).collect();
    assert_eq!(summarized(&read(&single)), [long]);
}

#[test]
fn a_metric_is_found_as_soon_as_its_record_is_whole() {
    let mut reader = MetricFileReader::new();
    let mut found = Vec::new();
    let bytes = record("1");
    let (last, head) = bytes.as_bytes().split_last().unwrap();
    reader.feed(head, &mut found);
    assert_eq!(found, []);
    reader.feed(&[*last], &mut found);
    assert_eq!(summarized(&found), ["1"]);
}

/// Files that contain the difficult cases.
fn files() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        4 => Just(record("0.5")),
        1 => Just(record("\"ME000012{\"")),
        2 => (0..60_usize).prop_map(|cut| record("0.5")[..cut].to_owned()),
        1 => "ME[0-9]{0,7}",
        1 => "[ME{}\"0-9\n]{0,12}",
    ];
    let text = proptest::collection::vec(fragment, 0..16).prop_map(|all| all.concat().into_bytes());
    prop_oneof![4 => text, 1 => proptest::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #[test]
    fn portions_do_not_matter(
        file in files(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(file.len() + 1)).collect();
        cuts.extend([0, file.len()]);
        cuts.sort_unstable();
        let portions: Vec<_> = cuts.windows(2).map(|cut| &file[cut[0]..cut[1]]).collect();
        let single: Vec<_> = file.chunks(1).collect();
        let whole = read(&[&file]);
        prop_assert_eq!(&read(&portions), &whole);
        prop_assert_eq!(&read(&single), &whole);
    }
}
