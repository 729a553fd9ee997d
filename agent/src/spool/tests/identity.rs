//! The identity of a report: its number and its trial.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;

use super::*;

#[tokio::test]
async fn no_seq_is_used_twice_whatever_reached_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    first.append(0, metric(0));
    drain(&first, Lane::Facts).await;
    assert!(first.close(TEST_TIMEOUT).await);
    // A full disk may have kept nothing.
    fs::remove_dir_all(dir.path().join("a-1")).unwrap();
    fs::create_dir(dir.path().join("a-1")).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for place in [dir.path(), &file] {
        let later = Spool::open(options(Some(place))).spool;
        later.append(0, metric(1));
        let again = seqs(&drain(&later, Lane::Facts).await);
        assert!(again[0] >= 1 << 11, "{again:?} in {}", place.display());
    }
}

#[tokio::test]
async fn no_seq_is_used_twice_after_a_power_failure_that_set_the_clock_back() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("a-1");
    fs::create_dir(&own).unwrap();
    let at = |now_ms| Spool::open(Options { now_ms, ..options(Some(dir.path())) }).spool;
    let spool = at(1_000);
    (0..9).for_each(|number| spool.append(0, metric(number)));
    spool.wait_until_readable(Lane::Facts).await;
    let sent = seqs(&spool.peek(Lane::Facts, usize::MAX).await);
    assert!(spool.close(TEST_TIMEOUT).await);
    // Of the sent reports, only the name of the segment is left on the disk.
    for entry in fs::read_dir(&own).unwrap() {
        fs::write(entry.unwrap().path(), "").unwrap();
    }
    let later = at(5);
    later.append(0, metric(1));
    let again = seqs(&drain(&later, Lane::Facts).await);
    assert!(sent.iter().all(|seq| again[0] > *seq), "{again:?} after {sent:?}");
}

#[tokio::test]
async fn no_seq_is_used_twice_where_the_first_process_left_nothing() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut used = BTreeSet::new();
    let places = [Some(dirs[0].path()), Some(dirs[1].path()), None];
    for (place, now_ms) in places.into_iter().zip(1_000..) {
        let spool =
            Spool::open(Options { sender: Some(sender("t")), now_ms, ..options(place) }).spool;
        (0..9).for_each(|number| spool.append(0, metric(number)));
        for seq in seqs(&drain(&spool, Lane::Facts).await) {
            assert!(used.insert(seq), "{seq} in {place:?}");
        }
    }
}

#[test]
fn numbers_fit_their_types_for_any_clock() {
    for (now_ms, most) in [(1_795_000_000_000, 1 << 53), (i64::MAX, 1 << 63), (-1, 1 << 53)] {
        assert!(first_seq_at(now_ms) < most, "{now_ms}");
    }
}

#[tokio::test]
async fn the_sender_is_written_once_and_whole() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("a-1");
    let open = || Spool::open(Options { sender: Some(sender("t")), ..options(Some(dir.path())) });
    fs::create_dir(&own).unwrap();
    // The file of a process that died during the write.
    fs::write(own.join("sender.json"), "{\"exp").unwrap();
    let mut noted = Vec::new();
    for number in 0..2 {
        let spool = open().spool;
        spool.append(0, metric(number));
        spool.wait_until_readable(Lane::Facts).await;
        assert_eq!(Sender::read(dir.path(), &attempt("a-1")).unwrap(), sender("t"));
        assert!(spool.close(TEST_TIMEOUT).await);
        noted.push(fs::metadata(own.join("sender.json")).unwrap().ino());
    }
    assert_eq!(noted[0], noted[1], "an existing file is not rewritten");
}
