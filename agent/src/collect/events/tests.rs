use proptest::prelude::*;

use super::*;

/// Written with `PyTorch`'s usual writer, `tensorboardX` 2.6.5.
const SIMPLE: &[u8] = include_bytes!("../../../fixtures/tfevents/tensorboardx.bin");
/// Written with TensorFlow 2, which stores scalars as tensors, and tensorboard 2.21.0.
const TENSORS: &[u8] = include_bytes!("../../../fixtures/tfevents/tensors.bin");

fn read(portions: &[&[u8]]) -> Vec<Finding> {
    let mut reader = EventFileReader::new();
    let mut found = Vec::new();
    for portion in portions {
        reader.feed(portion, &mut found);
    }
    reader.finish(&mut found);
    found
}

fn summarized(found: &[Finding]) -> Vec<String> {
    let summarize = |finding: &Finding| match finding {
        Finding::Metric(found) => {
            format!("{}[{}]={}", found.name, found.sequence.unwrap(), found.value.as_json())
        }
        Finding::Unreadable { why, .. } => format!("!{why}"),
    };
    found.iter().map(summarize).collect()
}

fn framed(data: &[u8]) -> Vec<u8> {
    let length = u64::try_from(data.len()).unwrap().to_le_bytes();
    let parts =
        [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()];
    parts.concat()
}

#[test]
fn scalars_of_every_writer_are_read() {
    let simple = [
        "train/loss[0]=1.0",
        "train/loss[1]=0.5",
        "train/loss[2]=0.33333334",
        "accuracy[3]=\"NaN\"",
        "accuracy[4]=0.93",
    ];
    let tensors = [
        "f32[1]=0.25",
        "f32_content[2]=0.1",
        "f64_content[3]=0.1",
        "f64[4]=0.2",
        "i32[5]=-7.0",
        "i64[6]=1099511627776.0",
        "half[7]=0.5",
        "bfloat16[8]=0.5",
        "a[11]=1.5",
        "b[11]=\"-Infinity\"",
    ];
    for portion in [1, 5, 64, usize::MAX] {
        let single: Vec<_> = SIMPLE.chunks(portion).collect();
        assert_eq!(summarized(&read(&single)), simple, "{portion} at a time");
        let single: Vec<_> = TENSORS.chunks(portion).collect();
        assert_eq!(summarized(&read(&single)), tensors, "{portion} at a time");
    }
}

#[test]
fn an_incomplete_record_is_waited_for() {
    let mut reader = EventFileReader::new();
    let mut found = Vec::new();
    let (head, tail) = SIMPLE.split_at(100);
    reader.feed(head, &mut found);
    let before = found.len();
    reader.feed(tail, &mut found);
    assert_eq!((before, found.len()), (1, 5));
    assert_eq!(summarized(&read(&[head])), ["train/loss[0]=1.0"]);
}

#[test]
fn broken_bytes_are_skipped_and_reported_once() {
    // Record 0 has 24 bytes of data, record 1 ("train/loss" of step 0) has 30.
    let second = 24 + 16;
    let third = second + 30 + 16;
    #[rustfmt::skip]
    let table = [
        ("data",            second + HEADER_BYTES, "!46 bytes of the event file fail their checksum"),
        ("a length",        second,                "!46 bytes of the event file fail their checksum"),
        ("its checksum",    second + 8,            "!46 bytes of the event file fail their checksum"),
        ("data's checksum", third - 1,             "!46 bytes of the event file fail their checksum"),
    ];
    for (case, at, reported) in table {
        let mut bytes = SIMPLE.to_vec();
        bytes[at] ^= 0x40;
        let expected = [
            reported,
            "train/loss[1]=0.5",
            "train/loss[2]=0.33333334",
            "accuracy[3]=\"NaN\"",
            "accuracy[4]=0.93",
        ];
        assert_eq!(summarized(&read(&[&bytes])), expected, "{case}");
        let single: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(summarized(&read(&single)), expected, "{case}, byte by byte");
    }
}

#[test]
fn a_record_that_is_no_event_is_reported() {
    let bytes = [framed(&[0x0b]), SIMPLE.to_vec()].concat();
    assert_eq!(
        summarized(&read(&[&bytes]))[..2],
        ["!17 bytes of the event file are not events", "train/loss[0]=1.0"]
    );
}

#[test]
fn a_record_that_is_too_large_is_skipped_and_not_kept() {
    let large = framed(&vec![7; 2 * MAX_LINE_BYTES]);
    let mut reader = EventFileReader::new();
    let mut found = Vec::new();
    for portion in large.chunks(10_000) {
        reader.feed(portion, &mut found);
        assert!(reader.carry.len() < 10_000);
    }
    reader.feed(SIMPLE, &mut found);
    assert_eq!(summarized(&found).len(), 5);
    let whole = [&large[..], SIMPLE].concat();
    assert_eq!(read(&[&whole]), found);
}

/// Returns an event with a summary of one scalar, and with `filler` bytes of other content.
fn summary(name: &str, filler: usize) -> Vec<u8> {
    let block = |field: u8, bytes: &[u8]| {
        let mut length = bytes.len();
        let mut block = vec![field << 3 | 2];
        while length > 0x7f {
            block.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        block.push(u8::try_from(length).unwrap());
        [&block, bytes].concat()
    };
    let scalar = [&block(1, name.as_bytes())[..], &[0x15], &0.5_f32.to_le_bytes()].concat();
    let image = block(1, &block(4, &vec![0; filler]));
    let summary = block(5, &[block(1, &scalar), image].concat());
    framed(&[&[0x09], &1.0_f64.to_le_bytes()[..], &[0x10, 3], &summary].concat())
}

#[test]
fn a_summary_with_an_image_is_read_up_to_a_megabyte_and_a_larger_one_reported_once() {
    let (small, large) = (summary("acc", 1_000_000), summary("acc", 2 * MAX_LINE_BYTES));
    let graph = framed(&[&[0x22, 0x80, 0x80, 0x80, 0x02][..], &vec![0; 4 << 20]].concat());
    let file = [&graph[..], &small, &large, &large, &small].concat();
    let reported_once = "!an event of more than 1114112 bytes is skipped, with any scalars in it";
    for portion in [1_000, 100_000, usize::MAX] {
        let portions: Vec<_> = file.chunks(portion).collect();
        let found = summarized(&read(&portions));
        assert_eq!(found, ["acc[3]=0.5", reported_once, "acc[3]=0.5"], "{portion} at a time");
    }
}

#[test]
fn an_invalid_length_does_no_harm() {
    let length = u64::MAX.to_le_bytes();
    let bytes = [&length[..], &masked_crc(&length).to_le_bytes(), SIMPLE].concat();
    assert_eq!(read(&[&bytes]), []);
}

proptest! {
    #[test]
    fn portions_do_not_matter_whatever_is_broken(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut bytes = [SIMPLE, TENSORS].concat();
        for (at, with) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let portions: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        prop_assert_eq!(read(&portions), read(&[&bytes]));
    }

    #[test]
    fn event_files_of_random_bytes_never_panic(bytes: Vec<u8>) {
        read(&[&bytes]);
        read(&[&framed(&bytes)]);
    }
}
