//! Backups are complete, and checks find damage.

use std::fs;

use rusqlite::Connection;
use trial_protocol::{AttemptId, Cause, Lane, LogChunk, LogText, ReportBody, Stream, Verdict};

use super::{
    TestStore, attempt, ended_body, log_chunk, metric_body, new_trial, received_batch, report,
    trial, verdict,
};
use crate::store::{self, Error, Store};

async fn bed_with_reports() -> TestStore {
    let bed = TestStore::with_trial().await;
    let reports = vec![report(0, metric_body(0, 0.5)), report(1, ended_body(0))];
    bed.store.reports().ingest(received_batch("a", Lane::Facts, reports), 1).await.unwrap();
    // The last intermediate result is the final one, as for a trial that the assessor stopped.
    let ReportBody::Metric(last) = metric_body(0, 0.5) else { unreachable!() };
    bed.store
        .reports()
        .insert_derived_metric(&trial("t"), &AttemptId::new("a").unwrap(), last, 2)
        .await
        .unwrap();
    bed
}

#[tokio::test]
async fn the_managers_verdict_takes_precedence_over_the_agents_whichever_is_first() {
    for (case, before, after) in [
        (
            "the agent reports first",
            vec![report(0, metric_body(0, 0.5)), report(1, ended_body(1))],
            vec![],
        ),
        (
            "the agent reports later",
            vec![report(0, metric_body(0, 0.5))],
            vec![report(1, ended_body(1))],
        ),
        ("the agent has sent no report", vec![], vec![]),
    ] {
        let bed = TestStore::with_trial().await;
        let send = |reports: Vec<_>| async {
            if !reports.is_empty() {
                bed.store
                    .reports()
                    .ingest(received_batch("a1", Lane::Facts, reports), 1)
                    .await
                    .unwrap();
            }
        };
        send(before).await;
        let own = Verdict { cause: Cause::Preempted, ..verdict(143) };
        for _ in 0..2 {
            bed.store
                .reports()
                .record_verdict(&trial("t"), &attempt("a1"), own.clone(), 2)
                .await
                .unwrap();
        }
        send(after).await;
        let records =
            bed.store.reports().final_records(vec![(trial("t"), attempt("a1"))]).await.unwrap();
        assert!(records[0].ended, "{case}");
        assert_eq!(records[0].verdict.as_ref(), Some(&own), "{case}");
        let key = bed.store.queries().changes(0, 9).await.unwrap()[0].trial;
        let glance = bed.store.queries().summaries(vec![key], Vec::new()).await.unwrap().remove(0);
        assert_eq!(glance.verdict.as_deref(), Some(&own), "{case}");
        let reports = bed.store.reports().all(&trial("t"), Lane::Facts).await.unwrap();
        let ends: Vec<_> = reports.iter().filter(|row| row.kind == "ended").collect();
        assert!(
            ends.last().unwrap().is_own() && !reports[0].is_own() | (reports.len() == 1),
            "{case}"
        );
        let path = bed.path();
        bed.store.close().await;
        assert_eq!(store::check(&path).unwrap(), Vec::<String>::new(), "{case}");
    }
}

#[tokio::test]
async fn a_backup_of_a_running_store_opens_as_a_store() {
    let bed = bed_with_reports().await;
    let copy = bed.folder.path().join("copy.db");
    store::backup(&bed.path(), &copy).unwrap();
    bed.store.trials().insert(vec![new_trial("later", 1)]).await.unwrap();

    let restored = Store::open(&copy).unwrap();
    assert_eq!(restored.trials().all().await.unwrap().len(), 1);
    let metrics = bed.store.reports().metrics(&trial("t")).await.unwrap();
    assert_eq!(restored.reports().metrics(&trial("t")).await.unwrap(), metrics);
    restored.close().await;
    assert_eq!(store::check(&copy).unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_backup_overwrites_no_file_and_leaves_no_partial_file() {
    let bed = bed_with_reports().await;
    let taken = bed.folder.path().join("taken");
    fs::write(&taken, "precious").unwrap();
    let refused = store::backup(&bed.path(), &taken).unwrap_err();
    assert!(matches!(refused, Error::Backup { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&taken).unwrap(), "precious");
    let nowhere = store::backup(&bed.path(), &bed.folder.path().join("no/folder")).unwrap_err();
    assert!(matches!(nowhere, Error::Backup { .. }), "{nowhere}");
    let path = bed.path();
    bed.store.close().await;
    let mut names: Vec<_> = fs::read_dir(bed.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["taken", "trialkeeper.db", "trialkeeper.db.lock"]);

    // A backup does not need a running manager.
    let copy = bed.folder.path().join("copy.db");
    store::backup(&path, &copy).unwrap();
    assert_eq!(store::check(&copy).unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_check_finds_damage() {
    #[rustfmt::skip]
    let table = [
        ("UPDATE report SET body = 'no JSON' WHERE seq = 0",      "1 reports are not JSON"),
        ("UPDATE attempt SET facts_through = 0",                  "1 attempts have more reports than their records show"),
        ("UPDATE attempt SET ended = 0",                          "1 attempts are recorded as ended or not ended, but their reports differ"),
        ("UPDATE attempt SET trial = 77",                         "1 rows refer to missing rows"),
        ("UPDATE trial SET state = 'TIRED'",                      "the database's state cannot be read: \"TIRED\" is not a trial job state"),
        ("UPDATE trial SET parameters = '{'",                     "the database's parameters cannot be read: EOF while parsing an object at line 1 column 1"),
    ];
    for (damage, expected) in table {
        let bed = bed_with_reports().await;
        assert_eq!(store::check(&bed.path()).unwrap(), Vec::<String>::new());
        let connection = Connection::open(bed.path()).unwrap();
        connection.pragma_update(None, "foreign_keys", false).unwrap();
        connection.execute(damage, []).unwrap();
        let found = store::check(&bed.path()).unwrap();
        assert_eq!(found, [expected], "{damage}");
    }
}

#[tokio::test]
async fn only_databases_of_the_manager_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let missing = store::check(&folder.path().join("missing")).unwrap_err();
    assert!(matches!(missing, Error::Open { .. }), "{missing}");
    let text = folder.path().join("text");
    fs::write(&text, "a text, and no database".repeat(100)).unwrap();
    assert!(matches!(store::check(&text).unwrap_err(), Error::ForeignDatabase { .. }));
}

#[tokio::test]
async fn a_log_chunk_that_ends_beyond_2_63_is_refused_and_found_in_an_old_database() {
    let bed = TestStore::with_trial().await;
    let most = u64::try_from(i64::MAX).unwrap();
    let base64 = |offset_bytes| {
        let text = LogText::Base64("eA==".to_owned());
        ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes, text })
    };
    #[rustfmt::skip]
    let table = [
        (log_chunk(most, "x\n"), false), (log_chunk(most - 1, "x\n"), false), (log_chunk(u64::MAX, "x\n"), false),
        (base64(most), false), (log_chunk(most - 2, "x\n"), true), (log_chunk(0, "y\n"), true),
    ];
    for (seq, (chunk, fits)) in (0..).zip(table) {
        let text = format!("{chunk:?}");
        let stored = bed
            .store
            .reports()
            .ingest(received_batch("a1", Lane::Bulk, vec![report(seq, chunk)]), 1)
            .await;
        match stored {
            Ok(_) => assert!(fits, "{text}"),
            Err(error) => {
                assert!(!fits && matches!(error, Error::TooLarge { .. }), "{text}: {error}");
            }
        }
    }
    let writing = bed.store.logs().output_attempt(&trial("t")).await.unwrap().unwrap();
    let part = bed.store.logs().read_part(writing.key, Stream::Stdout, 0, 100).await.unwrap();
    assert_eq!(part.end, most, "the longest stream is readable");
    assert_eq!(store::check(&bed.path()).unwrap(), Vec::<String>::new());

    let connection = Connection::open(bed.path()).unwrap();
    let lengthened = "UPDATE log_chunk SET bytes = x'783078300a' WHERE offset_bytes > 0";
    assert_eq!(connection.execute(lengthened, []).unwrap(), 1);
    let found = store::check(&bed.path()).unwrap();
    assert!(
        matches!(&found[..], [line] if line.starts_with("1 parts of trials' output")),
        "{found:?}"
    );
    let part = bed.store.logs().read_part(writing.key, Stream::Stdout, 0, 100).await.unwrap();
    assert_eq!((part.bytes.as_slice(), part.end), (&b"y\n"[..], 2), "the other chunk is shown");
    let tail = bed.store.logs().tail_start(writing.key, Stream::Stdout, 1).await.unwrap();
    assert_eq!(tail, 1);
}
