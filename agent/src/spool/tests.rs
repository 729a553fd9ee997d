//! The guarantees of the spool.

mod crashes;
mod identity;
mod ingestion;
mod rewind;
mod shedding;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use trial_protocol::{LogChunk, LogText, Metric, MetricKind, Report, Shed, Stream};

use super::queue::WINDOW_BYTES;
use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn attempt(name: &str) -> AttemptId {
    AttemptId::new(name).unwrap()
}

fn options(dir: Option<&Path>) -> Options {
    Options {
        dir: dir.map(Path::to_owned),
        attempt: attempt("a-1"),
        sender: None,
        limit_bytes: 64 << 20,
        sync_interval: Duration::from_secs(1),
        now_ms: 1,
    }
}

fn sender(trial: &str) -> Sender {
    Sender {
        experiment: ExperimentId::new("exp").unwrap(),
        trial: TrialJobId::new(trial).unwrap(),
        dialect: Dialect::Native,
    }
}

fn open(dir: &Path) -> Spool {
    let opened = Spool::open(options(Some(dir)));
    assert_eq!(opened.warnings, Vec::<String>::new());
    opened.spool
}

fn metric(number: u32) -> ReportBody {
    ReportBody::Metric(Metric {
        name: "m".to_owned(),
        kind: MetricKind::Intermediate,
        sequence: u64::from(number),
        value: f64::from(number).into(),
        derived: false,
    })
}

fn log(bytes: usize) -> ReportBody {
    let text = LogText::Text("x".repeat(bytes));
    ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes: 0, text })
}

fn verdict() -> trial_protocol::Verdict {
    trial_protocol::Verdict {
        cause: trial_protocol::Cause::Succeeded,
        class: trial_protocol::Class::None,
        confidence: trial_protocol::Confidence::Certain,
        exit: None,
        message: String::new(),
        stop: None,
        duration_ms: None,
        evidence: trial_protocol::Evidence::default(),
    }
}

fn seqs(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.seq).collect()
}

fn body(record: &Record) -> ReportBody {
    serde_json::from_str::<Report>(&record.json).unwrap().body
}

/// Delivers and acknowledges all reports of a lane, and returns them.
async fn drain(spool: &Spool, lane: Lane) -> Vec<Record> {
    let mut all = Vec::new();
    while spool.pending_in(lane) > 0 {
        tokio::time::timeout(TEST_TIMEOUT, spool.wait_until_readable(lane))
            .await
            .expect("readable in time");
        let batch = spool.peek(lane, 1000).await;
        if let Some(last) = batch.last() {
            spool.ack(lane, last.seq);
        }
        all.extend(batch);
    }
    all
}

#[tokio::test]
async fn reports_are_delivered_in_order_and_once() {
    let dir = tempfile::tempdir().unwrap();
    for place in [None, Some(dir.path())] {
        let spool = Spool::open(options(place)).spool;
        for number in 0..100 {
            spool.append(i64::from(number), metric(number));
            spool.append(0, log(10));
        }
        assert_eq!(spool.pending(), 200);
        for lane in [Lane::Facts, Lane::Bulk] {
            let all = drain(&spool, lane).await;
            assert_eq!(seqs(&all), (0..100).collect::<Vec<_>>(), "{place:?} {lane:?}");
        }
        assert_eq!(spool.pending(), 0);
    }
}

#[tokio::test]
async fn unacknowledged_reports_outlive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    (0..10).for_each(|number| first.append(0, metric(number)));
    first.wait_until_readable(Lane::Facts).await;
    first.ack(Lane::Facts, 3);
    assert!(first.close(TEST_TIMEOUT).await);

    let second = open(dir.path());
    assert_eq!(second.pending(), 6);
    second.append(0, metric(10));
    let all = drain(&second, Lane::Facts).await;
    let (old, new) = all.split_at(6);
    assert_eq!(seqs(old), (4..10).collect::<Vec<_>>());
    assert_eq!(new.iter().map(body).collect::<Vec<_>>(), [metric(10)]);
    assert!(second.close(TEST_TIMEOUT).await);
}

#[tokio::test]
async fn the_last_count_of_dropped_reports_precedes_the_verdict() {
    let spool = Spool::open(Options { limit_bytes: 0, ..options(None) }).spool;
    (0..5).for_each(|_| spool.append(0, log(100)));
    spool.append(0, ReportBody::Ended(Box::new(verdict())));
    let bodies: Vec<_> = drain(&spool, Lane::Facts).await.iter().map(body).collect();
    let [.., ReportBody::Shed(shed), ReportBody::Ended(_)] = bodies.as_slice() else {
        panic!("{bodies:?}");
    };
    assert_eq!(*shed, Shed { log_bytes: 500, samples: 0 });
}

#[tokio::test]
async fn reports_of_another_trial_are_not_delivered_as_this_ones() {
    let dir = tempfile::tempdir().unwrap();
    let open_as = |name: &str, trial: &str| {
        let own = Some(sender(trial));
        Spool::open(Options { attempt: attempt(name), sender: own, ..options(Some(dir.path())) })
            .spool
    };
    for (name, trial) in [("x-1", "x"), ("y-1", "y")] {
        let spool = open_as(name, trial);
        spool.append(0, metric(0));
        assert!(spool.close(TEST_TIMEOUT).await);
    }
    assert_eq!(open_as("x-2", "x").earlier_attempts(), [attempt("x-1")]);
    assert_eq!(Sender::read(dir.path(), &attempt("y-1")).unwrap(), sender("y"));
}

#[tokio::test]
async fn an_acknowledged_spool_leaves_no_segment() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    (0..10).for_each(|number| spool.append(0, metric(number)));
    drain(&spool, Lane::Facts).await;
    assert!(spool.close(TEST_TIMEOUT).await);
    let left: Vec<_> = fs::read_dir(dir.path().join("a-1")).unwrap().flatten().collect();
    assert!(left.iter().all(|entry| entry.path().extension().unwrap() == "ack"), "{left:?}");
}

#[tokio::test]
async fn more_than_fits_in_memory_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let count = 300;
    for _ in 0..count {
        spool.append(0, log(20_000));
    }
    let all = drain(&spool, Lane::Bulk).await;
    assert_eq!(seqs(&all), (0..count).collect::<Vec<_>>());
    let state = spool.shared.lock();
    assert!(state.bulk.memory_bytes <= WINDOW_BYTES, "memory is bounded");
}

#[tokio::test]
async fn a_full_spool_sheds_logs_then_samples_and_never_facts() {
    let dir = tempfile::tempdir().unwrap();
    let limit_bytes = 10_000;
    let spool = Spool::open(Options { limit_bytes, ..options(Some(dir.path())) }).spool;
    for number in 0..50 {
        spool.append(0, log(1000));
        spool.append(0, metric(number));
    }
    for _ in 0..200 {
        spool.append(0, ReportBody::Sample(Box::default()));
    }
    let (facts, bulk) = (drain(&spool, Lane::Facts).await, drain(&spool, Lane::Bulk).await);
    let bodies: Vec<_> = facts.iter().map(body).collect();
    let metrics = bodies.iter().filter(|body| matches!(body, ReportBody::Metric(_))).count();
    assert_eq!(metrics, 50);
    let is_shed_report = |body: &ReportBody| matches!(body, ReportBody::Shed(shed) if shed.log_bytes >= 10_000 && shed.samples > 0);
    assert!(bodies.iter().any(is_shed_report), "the count is reported");
    let kept = bulk.iter().map(|record| record.json.len()).sum::<usize>();
    assert!(kept < 10_000, "{kept} bytes kept");
}

#[tokio::test]
async fn a_second_process_keeps_its_reports_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let lock = SpoolLock::acquire(Some(dir.path()), &attempt("a-1"));
    assert!(lock.is_held_by_another(&attempt("a-1")), "the same attempt must not run twice");
    let second = Spool::open_locked(options(Some(dir.path())), lock);
    assert_eq!(second.warnings.len(), 1);
    second.spool.append(0, metric(0));
    assert_eq!(drain(&second.spool, Lane::Facts).await.len(), 1);
    drop(first);
    let other = Options { attempt: attempt("a-2"), ..options(Some(dir.path())) };
    assert!(Spool::open(other).warnings.is_empty(), "a lock ends with its holder");
}

#[tokio::test]
async fn earlier_attempts_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    first.append(0, metric(7));
    first.wait_until_readable(Lane::Facts).await;
    assert!(first.close(TEST_TIMEOUT).await);
    let second =
        Spool::open(Options { attempt: attempt("a-2"), ..options(Some(dir.path())) }).spool;
    assert_eq!(second.earlier_attempts(), [attempt("a-1")]);
    let mut lane = second.earlier_lane(&attempt("a-1"), Lane::Facts).unwrap();
    let found = lane.read(None, u64::MAX, 1000).unwrap();
    assert_eq!(body(&found[0]), metric(7));
}

#[tokio::test]
async fn an_unusable_directory_costs_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for place in [file.as_path(), Path::new("/proc/no-such-place")] {
        let opened = Spool::open(options(Some(place)));
        assert_eq!(opened.warnings.len(), 1, "{place:?}");
        opened.spool.append(0, metric(0));
        assert_eq!(drain(&opened.spool, Lane::Facts).await.len(), 1);
        assert!(!opened.spool.close(TEST_TIMEOUT).await, "no report is on a disk");
    }
}

/// A disk that is full from the beginning. `/dev/full` cannot be a directory, so a link makes it the segment's file.
/// Writes to it fail with ENOSPC.
#[tokio::test]
async fn a_full_disk_does_not_stop_delivery() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(options(Some(dir.path()))).spool;
    let first = dir.path().join("a-1/facts-00000000000000000000.seg");
    std::os::unix::fs::symlink("/dev/full", first).unwrap();
    spool.append(0, metric(0));
    spool.append(0, metric(1));
    let all = drain(&spool, Lane::Facts).await;
    assert_eq!(all.iter().map(body).collect::<Vec<_>>(), [metric(0), metric(1)]);
}

/// Only the bulk lane meets a full disk. Records of the other lane must not be written again and again.
#[tokio::test]
async fn facts_are_written_once_although_logs_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("a-1");
    let spool = Spool::open(options(Some(dir.path()))).spool;
    let first = own.join("bulk-00000000000000000000.seg");
    std::os::unix::fs::symlink("/dev/full", first).unwrap();
    spool.append(0, metric(0));
    spool.append(0, log(100));
    spool.wait_until_readable(Lane::Bulk).await;
    spool.append(0, metric(1));
    assert!(!spool.close(TEST_TIMEOUT).await, "the logs are not on the disk");
    let mut files = LaneFiles::open(&own, Lane::Facts).unwrap();
    let found = files.read(None, u64::MAX, usize::MAX).unwrap();
    assert_eq!(found.iter().map(body).collect::<Vec<_>>(), [metric(0), metric(1)]);
}

/// A directory blocks the name of the next cursor. After its removal, only time passes.
#[test]
fn a_failed_sync_is_repeated_automatically() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let taken = dir.path().join("a-1/facts.ack.new");
    fs::create_dir(&taken).unwrap();
    let becomes = |wanted: DiskState| {
        let until = std::time::Instant::now() + TEST_TIMEOUT;
        while spool.shared.lock().disk != wanted {
            assert!(std::time::Instant::now() < until, "the disk did not become {wanted:?}");
            std::thread::yield_now();
        }
    };
    spool.append(0, metric(0));
    spool.append(0, metric(1));
    spool.ack(Lane::Facts, 0);
    becomes(DiskState::Failing);
    fs::remove_dir(&taken).unwrap();
    becomes(DiskState::Working);
    assert_eq!(fs::read_to_string(dir.path().join("a-1/facts.ack")).unwrap().trim(), "0");
}

/// Writes `count` records as a segment of the lane. Returns the end of each record.
fn write_segment(dir: &Path, count: u64) -> (std::path::PathBuf, Vec<usize>) {
    let own = dir.join("a-1");
    fs::create_dir_all(&own).unwrap();
    let mut bytes = record::SEGMENT_MAGIC.to_vec();
    let mut ends = Vec::new();
    for seq in 0..count {
        let report = Report { seq, observed_at_ms: 0, body: metric(u32::try_from(seq).unwrap()) };
        let json = serde_json::to_string(&report).unwrap();
        record::encode(&Record { seq, json: json.into() }, &mut bytes);
        ends.push(bytes.len());
    }
    let path = own.join("facts-00000000000000000000.seg");
    fs::write(&path, bytes).unwrap();
    (path, ends)
}

#[tokio::test]
async fn a_crash_at_any_byte_keeps_everything_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ends) = write_segment(dir.path(), 4);
    let whole = fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let kept = u64::try_from(ends.iter().filter(|end| **end <= cut).count()).unwrap();
        let spool = open(dir.path());
        assert_eq!(spool.pending(), kept, "cut at {cut}");
        spool.append(0, metric(99));
        let all = drain(&spool, Lane::Facts).await;
        let (old, new) = all.split_at(all.len() - 1);
        assert_eq!(seqs(old), (0..kept).collect::<Vec<_>>(), "cut at {cut}");
        assert_eq!(body(&new[0]), metric(99), "cut at {cut}");
        assert!(spool.close(TEST_TIMEOUT).await);
        fs::remove_dir_all(dir.path().join("a-1")).unwrap();
        fs::create_dir(dir.path().join("a-1")).unwrap();
    }
}

#[tokio::test]
async fn a_flipped_bit_loses_no_record_before_it_and_invents_none() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ends) = write_segment(dir.path(), 3);
    let whole = fs::read(&path).unwrap();
    for position in (0..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        let mut files = LaneFiles::open(&dir.path().join("a-1"), Lane::Facts).unwrap();
        let found = files.read(None, u64::MAX, usize::MAX).unwrap();
        let before = ends.iter().filter(|end| **end <= position).count();
        let whole_magic = position >= record::SEGMENT_MAGIC.len();
        assert_eq!(found.len(), if whole_magic { before } else { 0 }, "bit at {position}");
    }
}

/// The next step of the model.
#[derive(Debug, Clone)]
enum Step {
    Append(u8),
    Deliver { max_bytes: usize, acked: bool },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        5 => any::<u8>().prop_map(Step::Append),
        3 => (1..2000_usize, any::<bool>())
            .prop_map(|(max_bytes, acked)| Step::Deliver { max_bytes, acked }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(one, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_spool_behaves_like_a_queue(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut spool = open(dir.path());
        let mut model: VecDeque<ReportBody> = VecDeque::new();
        let mut highest = None;
        for step in steps {
            match step {
                Step::Append(number) => {
                    spool.append(0, metric(number.into()));
                    model.push_back(metric(number.into()));
                }
                Step::Deliver { .. } if model.is_empty() => {}
                Step::Deliver { max_bytes, acked } => {
                    let found = runtime.block_on(async {
                        tokio::time::timeout(TEST_TIMEOUT, spool.wait_until_readable(Lane::Facts)).await.unwrap();
                        spool.peek(Lane::Facts, max_bytes).await
                    });
                    prop_assert!(!found.is_empty());
                    for (record, expected) in found.iter().zip(&model) {
                        prop_assert_eq!(&body(record), expected);
                    }
                    if acked {
                        prop_assert!(Some(found[0].seq) > highest, "a seq is used once");
                        highest = found.last().map(|record| record.seq);
                        spool.ack(Lane::Facts, found.last().unwrap().seq);
                        model.drain(..found.len());
                    }
                }
                Step::Reopen => {
                    prop_assert!(runtime.block_on(spool.close(TEST_TIMEOUT)));
                    spool = open(dir.path());
                }
            }
            prop_assert_eq!(spool.pending(), u64::try_from(model.len()).unwrap());
        }
    }

    #[test]
    fn segments_of_random_bytes_never_panic(bytes: Vec<u8>) {
        let mut rest = bytes.as_slice();
        while let record::DecodeResult::Whole(_, length) = record::decode(rest) {
            rest = &rest[length..];
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_valid_start_of_any_file_is_read(
        bytes: Vec<u8>,
        whole in prop::option::of("[a-z]{1,9}"),
        cursor: Vec<u8>,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut segment = record::SEGMENT_MAGIC.to_vec();
        if let Some(json) = &whole {
            record::encode(&Record { seq: 0, json: json.as_str().into() }, &mut segment);
        }
        segment.extend(bytes);
        fs::write(dir.path().join("facts-00000000000000000000.seg"), segment).unwrap();
        fs::write(dir.path().join("facts.ack"), cursor).unwrap();
        let mut files = LaneFiles::open(dir.path(), Lane::Facts).unwrap();
        let acked = files.acked();
        let summary = files.scan(true).unwrap();
        let read = files.read(None, u64::MAX, 1 << 20).unwrap();
        let expected = whole.into_iter().count();
        prop_assert!(read.len() >= expected, "complete records are read");
        prop_assert!(acked.is_some() || summary.kept >= u64::try_from(expected).unwrap());
    }
}
