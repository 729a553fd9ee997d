//! Backups are whole, and check-ups find what is broken.

use std::fs;

use rusqlite::Connection;
use trial_protocol::{AttemptId, Cause, Lane, LogChunk, LogText, ReportBody, Stream, Verdict};

use super::{Bed, attempt, batch, ended, log, metric, new_trial, report, trial, verdict};
use crate::store::{Error, Store};

async fn lived_in() -> Bed {
    let bed = Bed::with_trial().await;
    let reports = vec![report(0, metric(0, 0.5)), report(1, ended(0))];
    bed.store.ingest(batch("a", Lane::Facts, reports), 1).await.unwrap();
    // Its last intermediate result is its final one, as of a trial that the assessor gave up.
    let ReportBody::Metric(last) = metric(0, 0.5) else { unreachable!() };
    bed.store.derive(&trial("t"), &AttemptId::new("a").unwrap(), last, 2).await.unwrap();
    bed
}

#[tokio::test]
async fn a_verdict_of_the_manager_s_outranks_the_agent_s_whenever_that_comes() {
    for (says, before, after) in [
        ("the agent's came before", vec![report(0, metric(0, 0.5)), report(1, ended(1))], vec![]),
        ("the agent's comes later", vec![report(0, metric(0, 0.5))], vec![report(1, ended(1))]),
        ("the agent was never heard", vec![], vec![]),
    ] {
        let bed = Bed::with_trial().await;
        let tell = |reports: Vec<_>| async {
            if !reports.is_empty() {
                bed.store.ingest(batch("a1", Lane::Facts, reports), 1).await.unwrap();
            }
        };
        tell(before).await;
        let own = Verdict { cause: Cause::Preempted, ..verdict(143) };
        for _ in 0..2 {
            bed.store.judge(&trial("t"), &attempt("a1"), own.clone(), 2).await.unwrap();
        }
        tell(after).await;
        let words = bed.store.last_words(vec![(trial("t"), attempt("a1"))]).await.unwrap();
        assert!(words[0].ended, "{says}");
        assert_eq!(words[0].verdict.as_ref(), Some(&own), "{says}");
        let key = bed.store.changes(0, 9).await.unwrap()[0].trial;
        let glance = bed.store.glances(vec![key], Vec::new()).await.unwrap().remove(0);
        assert_eq!(glance.verdict.as_deref(), Some(&own), "{says}");
        let told = bed.store.reports(&trial("t"), Lane::Facts).await.unwrap();
        let ends: Vec<_> = told.iter().filter(|row| row.kind == "ended").collect();
        assert!(ends.last().unwrap().is_own() && !told[0].is_own() | (told.len() == 1), "{says}");
        let path = bed.path();
        bed.store.close().await;
        assert_eq!(Store::check_file(&path).unwrap(), Vec::<String>::new(), "{says}");
    }
}

#[tokio::test]
async fn a_backup_of_a_running_store_opens_as_a_store() {
    let bed = lived_in().await;
    let copy = bed.folder.path().join("copy.db");
    bed.store.backup(&copy).await.unwrap();
    bed.store.insert_trial(new_trial("later", 1)).await.unwrap();

    let restored = Store::open(&copy).unwrap();
    assert_eq!(restored.trials().await.unwrap().len(), 1);
    let metrics = bed.store.metrics(&trial("t")).await.unwrap();
    assert_eq!(restored.metrics(&trial("t")).await.unwrap(), metrics);
    restored.close().await;
    assert_eq!(Store::check_file(&copy).unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_backup_overwrites_nothing_and_leaves_no_half() {
    let bed = lived_in().await;
    let taken = bed.folder.path().join("taken");
    fs::write(&taken, "precious").unwrap();
    let refused = bed.store.backup(&taken).await.unwrap_err();
    assert!(matches!(refused, Error::Backup { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&taken).unwrap(), "precious");
    let nowhere = bed.store.backup(&bed.folder.path().join("no/folder")).await.unwrap_err();
    assert!(matches!(nowhere, Error::Backup { .. }), "{nowhere}");
    let path = bed.path();
    bed.store.close().await;
    let mut names: Vec<_> = fs::read_dir(bed.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["taken", "trialkeeper.db", "trialkeeper.db.lock"]);

    // Nor does it need a running manager.
    let copy = bed.folder.path().join("copy.db");
    Store::backup_file(&path, &copy).unwrap();
    assert_eq!(Store::check_file(&copy).unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_check_up_finds_what_is_broken() {
    #[rustfmt::skip]
    let table = [
        ("UPDATE report SET body = 'no JSON' WHERE seq = 0",      "1 reports are not JSON"),
        ("UPDATE attempt SET facts_through = 0",                  "1 attempts have more reports than they are noted to have"),
        ("UPDATE attempt SET ended = 0",                          "1 attempts are noted to have ended, or not to have, against their reports"),
        ("UPDATE attempt SET trial = 77",                         "1 rows point to rows that are not there"),
        ("UPDATE trial SET state = 'TIRED'",                      "the database's state cannot be read: \"TIRED\" is not a trial job state"),
        ("UPDATE trial SET parameters = '{'",                     "the database's parameters cannot be read: EOF while parsing an object at line 1 column 1"),
    ];
    for (damage, expected) in table {
        let bed = lived_in().await;
        assert_eq!(bed.store.check().await.unwrap(), Vec::<String>::new());
        let stranger = Connection::open(bed.path()).unwrap();
        stranger.pragma_update(None, "foreign_keys", false).unwrap();
        stranger.execute(damage, []).unwrap();
        let found = bed.store.check().await.unwrap();
        assert_eq!(found, [expected], "{damage}");
    }
}

#[tokio::test]
async fn only_databases_of_the_manager_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Store::check_file(&folder.path().join("missing")).unwrap_err();
    assert!(matches!(missing, Error::Open { .. }), "{missing}");
    let text = folder.path().join("text");
    fs::write(&text, "a text, and no database".repeat(100)).unwrap();
    assert!(matches!(Store::check_file(&text).unwrap_err(), Error::NotOurs { .. }));
}

#[tokio::test]
async fn a_log_chunk_that_ends_beyond_all_numbers_is_refused_and_found_in_an_old_database() {
    let bed = Bed::with_trial().await;
    let most = u64::try_from(i64::MAX).unwrap();
    let base64 = |offset_bytes| {
        let text = LogText::Base64("eA==".to_owned());
        ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes, text })
    };
    #[rustfmt::skip]
    let table = [
        (log(most, "x\n"), false), (log(most - 1, "x\n"), false), (log(u64::MAX, "x\n"), false),
        (base64(most), false), (log(most - 2, "x\n"), true), (log(0, "y\n"), true),
    ];
    for (seq, (chunk, fits)) in (0..).zip(table) {
        let said = format!("{chunk:?}");
        let stored = bed.store.ingest(batch("a1", Lane::Bulk, vec![report(seq, chunk)]), 1).await;
        match stored {
            Ok(_) => assert!(fits, "{said}"),
            Err(error) => {
                assert!(!fits && matches!(error, Error::TooLarge { .. }), "{said}: {error}");
            }
        }
    }
    let speaker = bed.store.writing(&trial("t")).await.unwrap().unwrap();
    let part = bed.store.log_part(speaker.key, Stream::Stdout, 0, 100).await.unwrap();
    assert_eq!(part.end, most, "the longest stream is read");
    assert_eq!(bed.store.check().await.unwrap(), Vec::<String>::new());

    let stranger = Connection::open(bed.path()).unwrap();
    let lengthened = "UPDATE log_chunk SET bytes = x'783078300a' WHERE offset_bytes > 0";
    assert_eq!(stranger.execute(lengthened, []).unwrap(), 1);
    let found = bed.store.check().await.unwrap();
    assert!(
        matches!(&found[..], [line] if line.starts_with("1 parts of trials' output")),
        "{found:?}"
    );
    let part = bed.store.log_part(speaker.key, Stream::Stdout, 0, 100).await.unwrap();
    assert_eq!((part.bytes.as_slice(), part.end), (&b"y\n"[..], 2), "the rest is shown");
    let tail = bed.store.log_tail(speaker.key, Stream::Stdout, 1).await.unwrap();
    assert_eq!(tail, 1);
}
