//! Crashes while a lane's files change: during the start of a segment, the replacement of a cursor, or a deletion.

use super::*;

/// Returns a complete segment with `count` metrics from `first` on.
fn segment(first: u64, count: u64) -> Vec<u8> {
    let mut bytes = record::SEGMENT_MAGIC.to_vec();
    for seq in first..first + count {
        let report = Report { seq, observed_at_ms: 0, body: metric(u32::try_from(seq).unwrap()) };
        let json = serde_json::to_string(&report).unwrap();
        record::encode(&Record { seq, json: json.into() }, &mut bytes);
    }
    bytes
}

/// A lane's files as a new process finds them: segments by their first seq, and the two files of the cursor.
struct LaneFileContent<'a> {
    segments: Vec<(u64, &'a [u8])>,
    cursor: Option<&'a str>,
    next_cursor: Option<&'a str>,
}

impl LaneFileContent<'_> {
    /// Returns the seqs that a process offers if it finds these files and then appends a report.
    async fn offered_seqs(&self) -> Vec<u64> {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("a-1");
        fs::create_dir(&own).unwrap();
        for (first, bytes) in &self.segments {
            fs::write(own.join(format!("facts-{first:020}.seg")), bytes).unwrap();
        }
        for (name, text) in [("facts.ack", self.cursor), ("facts.ack.new", self.next_cursor)] {
            if let Some(text) = text {
                fs::write(own.join(name), text).unwrap();
            }
        }
        let spool = open(dir.path());
        spool.append(0, metric(99));
        let mut all = drain(&spool, Lane::Facts).await;
        let new = all.pop().unwrap();
        assert_eq!(body(&new), metric(99));
        let old = seqs(&all);
        assert!(old.iter().all(|seq| *seq < new.seq), "a seq is used once: {old:?} {}", new.seq);
        assert!(spool.close(TEST_TIMEOUT).await);
        let left: Vec<_> = fs::read_dir(&own).unwrap().flatten().map(|file| file.path()).collect();
        let is_segment = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "seg");
        assert!(!left.iter().any(is_segment), "acknowledged segments are deleted: {left:?}");
        old
    }
}

#[tokio::test]
async fn a_new_segment_is_cut_after_its_last_record() {
    let [first, second, third] = [0, 3, 6].map(|first| segment(first, 3));
    let record = (third.len() - record::SEGMENT_MAGIC.len()) / 3;
    for cut in 0..=third.len() {
        let segments = vec![(0, &first[..]), (3, &second[..]), (6, &third[..cut])];
        let found = LaneFileContent { segments, cursor: Some("1\n"), next_cursor: None };
        let whole = cut.saturating_sub(record::SEGMENT_MAGIC.len()) / record;
        let expected: Vec<_> = (2..6 + u64::try_from(whole).unwrap()).collect();
        assert_eq!(found.offered_seqs().await, expected, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_cursor_that_is_being_replaced_loses_nothing() {
    let files = [0, 3, 6].map(|first| segment(first, 3));
    let all: Vec<_> = [0, 3, 6].into_iter().zip(files.iter().map(Vec::as_slice)).collect();
    for acked in 1..9_u64 {
        let (before, after) = (format!("{}\n", acked - 1), format!("{acked}\n"));
        let open =
            LaneFileContent { segments: all.clone(), cursor: Some(&before), next_cursor: None };
        let mut found = vec![open];
        // The new cursor is written beside the old one, byte by byte …
        found.extend((0..=after.len()).map(|cut| LaneFileContent {
            segments: all.clone(),
            cursor: Some(&before),
            next_cursor: Some(&after[..cut]),
        }));
        let late = found.len();
        // … replaces it, and then segments are deleted, the oldest first. After a power failure, the cursor may be
        // empty.
        let gone = usize::try_from((acked + 1) / 3).unwrap().min(2);
        for first in 0..=gone {
            for cursor in [after.as_str(), ""] {
                let segments = all[first..].to_vec();
                found.push(LaneFileContent { segments, cursor: Some(cursor), next_cursor: None });
            }
        }
        for (step, found) in found.iter().enumerate() {
            let offered = found.offered_seqs().await;
            let owed: Vec<_> = (acked + 1..9).collect();
            assert!(offered.ends_with(&owed), "acked {acked}, step {step}: {offered:?}");
            let once = offered.windows(2).all(|two| two[0] + 1 == two[1]);
            assert!(once, "acked {acked}, step {step}: {offered:?}");
            let known = if step < late { acked - 1 } else { acked };
            if found.cursor.is_some_and(|cursor| !cursor.is_empty()) {
                assert!(offered.iter().all(|seq| *seq > known), "acked {acked}, step {step}");
            }
        }
    }
}
