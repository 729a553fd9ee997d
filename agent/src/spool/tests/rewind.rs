//! Acknowledged facts are delivered again to a manager that has lost them.

use super::*;

#[tokio::test]
async fn acknowledged_facts_are_offered_again_to_a_manager_that_has_lost_them() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    (0..10).for_each(|number| spool.append(0, metric(number)));
    let first = drain(&spool, Lane::Facts).await;
    assert_eq!(spool.cursor(), Cursor { acknowledged: Some(9), forgotten: None });

    for (to, expected) in [(Some(3), 4..10), (Some(8), 9..10), (None, 0..10)] {
        spool.rewind(to).await;
        assert_eq!(spool.cursor(), Cursor { acknowledged: to, forgotten: None });
        assert_eq!(spool.pending_in(Lane::Facts), expected.end - expected.start);
        let again = drain(&spool, Lane::Facts).await;
        assert_eq!(seqs(&again), expected.clone().collect::<Vec<_>>());
        assert_eq!(again[..], first[usize::try_from(expected.start).unwrap()..]);
    }

    spool.rewind(Some(6)).await;
    spool.append(0, metric(10));
    let again = drain(&spool, Lane::Facts).await;
    assert_eq!(seqs(&again), [7, 8, 9, 10], "new reports follow the repeated ones");
}

#[tokio::test]
async fn facts_that_cannot_be_offered_again_are_forgotten() {
    let gone = |through| Cursor { acknowledged: Some(through), forgotten: Some(through) };
    let in_memory = Spool::open(options(None)).spool;
    in_memory.append(0, metric(0));
    drain(&in_memory, Lane::Facts).await;
    in_memory.rewind(None).await;
    assert_eq!((in_memory.cursor(), in_memory.pending()), (gone(0), 0));

    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    (0..4).for_each(|number| first.append(0, metric(number)));
    drain(&first, Lane::Facts).await;
    for entry in fs::read_dir(dir.path().join("a-1")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "seg") {
            fs::remove_file(path).unwrap();
        }
    }
    first.rewind(Some(1)).await;
    assert_eq!((first.cursor(), first.pending()), (gone(3), 0));
    // `close` may return an error, because the segment that it would delete is already absent.
    first.close(TEST_TIMEOUT).await;

    let second = open(dir.path());
    assert_eq!(second.cursor(), gone(3), "an ended process leaves no acknowledged reports");
    second.append(0, metric(4));
    tokio::time::timeout(TEST_TIMEOUT, second.wait_until_readable(Lane::Facts)).await.unwrap();
    let files = LaneFiles::open(&dir.path().join("a-1"), Lane::Facts).unwrap();
    assert_eq!((files.acked(), files.forgotten()), (Some(3), Some(3)), "and the files record this");
}
