//! Segments after failed writes, and the pauses of the thread.

use std::fs;

use super::super::queue::QueueState;
use super::*;

fn record(seq: u64) -> Record {
    Record { seq, json: format!("{{\"seq\":{seq}}}").into() }
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        record::encode(record, &mut bytes);
    }
    bytes
}

/// The rest of a failed write stays, because the disk refuses to cut it off.
#[test]
fn nothing_is_written_after_a_partial_record() {
    let (one, two) = ([record(0)], [record(1), record(2)]);
    let whole = encoded(&two);
    // One segment already contains a record; the other was created for these records.
    for (before, first) in [(&one[..], 0), (&[], 1)] {
        for cut in 0..whole.len() {
            let dir = tempfile::tempdir().unwrap();
            let mut lane = LaneWriter::open(dir.path(), Lane::Facts).unwrap();
            let mut file = lane.files.create_segment(first).unwrap();
            file.write_all(&encoded(before)).unwrap();
            let bytes = file.metadata().unwrap().len();
            file.write_all(&whole[..cut]).unwrap();
            // A file that is open for reading only can neither be written nor cut.
            let path = dir.path().join(format!("facts-{first:020}.seg"));
            let file = File::open(path).unwrap();
            lane.open = Some(OpenSegment { first, file, bytes });

            lane.write(&two).unwrap_err();
            lane.write(&two).unwrap();
            lane.write(&[record(3)]).unwrap();
            lane.sync().unwrap();
            let expected: Vec<_> = before.iter().map(|record| record.seq).chain(1..4).collect();
            let seqs = |found: Vec<Record>| found.iter().map(|r| r.seq).collect::<Vec<_>>();
            let read = lane.files.read(None, u64::MAX, usize::MAX).unwrap();
            assert_eq!(seqs(read), expected, "cut at {cut}");
            let later = LaneWriter::open(dir.path(), Lane::Facts).unwrap();
            let kept = usize::try_from(later.summary().kept).unwrap();
            assert_eq!(kept, expected.len(), "cut at {cut}");
        }
    }
}

#[test]
fn a_full_segment_is_synced_unless_it_is_acknowledged() {
    for acked in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut lane = LaneWriter::open(dir.path(), Lane::Facts).unwrap();
        lane.write(&[record(0)]).unwrap();
        lane.open.as_mut().unwrap().bytes = SEGMENT_BYTES;
        lane.write(&[record(1)]).unwrap();
        let first = dir.path().join("facts-00000000000000000000.seg");
        fs::remove_file(&first).unwrap();
        // A character device cannot be synced.
        std::os::unix::fs::symlink("/dev/null", first).unwrap();
        if acked {
            lane.files.ack(0);
            lane.acked_unsaved = true;
        }
        assert_eq!(lane.sync().is_ok(), acked);
        assert_eq!(lane.is_clean(), acked);
    }
}

#[test]
fn a_log_that_is_being_written_is_not_dropped_for_a_sample() {
    use trial_protocol::{LogChunk, LogText, ReportBody, Stream};

    let mut state = QueueState::default();
    let text = LogText::Text("x".repeat(1000));
    let log = ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes: 0, text });
    state.push(0, log, u64::MAX);
    let limit_bytes = state.bulk.kept_bytes();
    let mut records = Vec::new();
    collect_unwritten(&mut state.bulk, &mut records);
    assert_eq!(records.len(), 1);

    state.push(0, ReportBody::Sample(Box::default()), limit_bytes);
    assert_eq!(state.bulk.memory.len(), 1);
    assert_eq!((state.shed.log_bytes, state.shed.samples), (0, 1), "the log reaches the disk");

    // The write failed, so the log waits again.
    state.bulk.writing_through = None;
    state.push(0, ReportBody::Sample(Box::default()), limit_bytes);
    assert_eq!((state.shed.log_bytes, state.shed.samples), (1000, 1));
}

#[test]
fn an_elapsed_time_is_not_waited_for() {
    let [now, soon, later] = [0, 1, 2].map(Duration::from_secs);
    for (retry_in, clean, expected) in [
        (None, true, IdleStep::ForWork),
        (None, false, IdleStep::AtMost(later)),
        (Some(soon), true, IdleStep::AtMost(soon)),
        (Some(soon), false, IdleStep::AtMost(soon)),
        (Some(now), true, IdleStep::ForWork),
        (Some(now), false, IdleStep::SyncAgain),
    ] {
        assert_eq!(
            decide_idle_step(retry_in, clean, later),
            expected,
            "{retry_in:?}, clean: {clean}"
        );
    }
}
