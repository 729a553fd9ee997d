use std::sync::Arc;

use rusqlite::{Connection, StatementStatus};
use serde_json::json;
use trial_protocol::{
    AttemptId, Cause, Evidence, ExperimentId, Lane, LogChunk, LogText, Metric, MetricKind, Offer,
    Report, ReportBatch, ReportBody, Stream, TrialExit, TrialJobId, Verdict,
};

use super::*;
use crate::store::report_records::{DELETE_MIDDLE_CHUNKS, SELECT_SENDER};
use crate::store::schema::{MIGRATIONS, compile_once, migrate};
use crate::store::{NewTrial, Store, TrialChange};

fn trial(id: &str) -> TrialJobId {
    TrialJobId::new(id).unwrap()
}

fn metric_body(name: &str, kind: MetricKind, sequence: u64, value: f64) -> ReportBody {
    let name = name.to_owned();
    ReportBody::Metric(Metric { name, kind, sequence, value: value.into(), derived: false })
}

fn log_chunk(offset_bytes: u64, text: &str) -> ReportBody {
    let text = LogText::Text(text.to_owned());
    ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes, text })
}

struct QueryTestStore {
    store: Store,
    folder: tempfile::TempDir,
}

impl QueryTestStore {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("db")).unwrap();
        for (sequence, id) in [(0, "t"), (1, "u")] {
            let new = NewTrial {
                id: trial(id),
                sequence,
                parameter_id: Some(sequence),
                parameters: json!({"lr": 0.1}),
                attempt: AttemptId::new("a").unwrap(),
                created_at_ms: 1000,
            };
            store.trials().insert(vec![new]).await.unwrap();
        }
        Self { store, folder }
    }

    async fn send(&self, lane: Lane, bodies: Vec<ReportBody>) {
        self.send_as("a", lane, bodies).await;
    }

    async fn send_as(&self, attempt: &str, lane: Lane, bodies: Vec<ReportBody>) {
        let reports = (0..).zip(bodies);
        let batch = ReportBatch {
            offer: Offer::new([]),
            experiment: ExperimentId::new("e").unwrap(),
            trial: trial("t"),
            attempt: AttemptId::new(attempt).unwrap(),
            lane,
            reports: reports
                .map(|(seq, body)| Report { seq, observed_at_ms: 5000, body })
                .collect(),
            obeyed: Vec::new(),
            acknowledged: None,
            forgotten: None,
        };
        self.store.reports().ingest(Arc::new(batch.into()), 6000).await.unwrap();
    }
}

#[tokio::test]
async fn a_trial_is_listed_with_a_summary_of_its_reports() {
    use MetricKind::{Final, Intermediate};
    let bed = QueryTestStore::new().await;
    let verdict = Verdict {
        cause: Cause::Succeeded,
        class: trial_protocol::Class::None,
        confidence: trial_protocol::Confidence::Certain,
        exit: Some(TrialExit::Code(0)),
        message: "the command exited with 0".to_owned(),
        stop: None,
        duration_ms: Some(5),
        evidence: Evidence::default(),
    };
    let bodies = vec![
        metric_body("acc", Intermediate, 0, 0.1),
        metric_body("loss", Intermediate, 0, 3.0),
        metric_body("acc", Intermediate, 1, 0.2),
        metric_body("acc", Final, 0, 0.9),
        ReportBody::Ended(Box::new(verdict.clone())),
    ];
    bed.send(Lane::Facts, bodies).await;
    let changes = bed.store.queries().changes(0, 10).await.unwrap();
    assert_eq!(changes.iter().map(|change| change.trial).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(bed.store.queries().newest_change().await.unwrap(), 2);
    assert_eq!(bed.store.queries().changes(2, 10).await.unwrap(), []);

    let glances = bed.store.queries().summaries(vec![1, 2, 99], Vec::new()).await.unwrap();
    assert_eq!(glances.len(), 2, "an unknown trial is skipped");
    let latest: Vec<_> =
        glances[0].latest.iter().map(|metric| (metric.name.as_str(), metric.sequence)).collect();
    assert_eq!(latest, [("acc", 1), ("loss", 0)]);
    assert_eq!(glances[0].finals[0].value, 0.9.into());
    assert_eq!(glances[0].verdict.as_deref(), Some(&verdict));
    assert_eq!((glances[0].facts_through, glances[1].facts_through), (Some(4), None));

    let attempts = bed.store.queries().attempts(&trial("t")).await.unwrap();
    let metrics = bed.store.queries().metrics_after(attempts[0].key, 0, 2).await.unwrap();
    assert_eq!(metrics.iter().map(|row| row.seq).collect::<Vec<_>>(), [1, 2]);
    for (name, expected) in [(Some("acc"), 2), (Some("loss"), 1), (None, 3), (Some("x"), 0)] {
        let steps = bed.store.queries().count_steps(attempts[0].key, name).await.unwrap();
        assert_eq!(steps, expected, "{name:?}");
    }
    let reports = bed.store.queries().other_reports(&attempts[0], 10).await.unwrap();
    assert_eq!(reports.iter().map(|row| row.kind.as_str()).collect::<Vec<_>>(), ["ended"]);
}

#[tokio::test]
async fn the_old_keepers_output_is_shown_if_the_agent_has_sent_none() {
    let bed = QueryTestStore::new().await;
    let writing = async || {
        let source =
            bed.store.logs().output_attempt(&trial("t")).await.unwrap().map(|row| row.attempt);
        source.map(|attempt| attempt.to_string()).unwrap_or_default()
    };
    let line = || {
        ReportBody::Log(LogChunk {
            stream: Stream::Stdout,
            offset_bytes: 0,
            text: LogText::Text("x".to_owned()),
        })
    };
    let note = || ReportBody::Note { code: "n".to_owned(), message: String::new() };
    assert_eq!(writing().await, "");
    for (attempt, lane, body, expected) in [
        ("a-legacy", Lane::Facts, note(), "a-legacy"),
        ("a", Lane::Facts, note(), "a"),
        ("a-legacy", Lane::Bulk, line(), "a-legacy"),
        ("a", Lane::Bulk, line(), "a"),
    ] {
        bed.send_as(attempt, lane, vec![body]).await;
        assert_eq!(writing().await, expected);
    }
}

#[tokio::test]
async fn the_old_keepers_metrics_are_used_if_the_agent_has_sent_none() {
    use MetricKind::{Final, Intermediate};
    let bed = QueryTestStore::new().await;
    let started = || ReportBody::Note { code: "n".to_owned(), message: String::new() };
    let seen = async || {
        let glance = bed.store.queries().summaries(vec![1], Vec::new()).await.unwrap().remove(0);
        let of = |metrics: &[Metric]| {
            metrics.iter().map(|metric| metric.value.number().unwrap()).collect::<Vec<_>>()
        };
        let source = bed
            .store
            .queries()
            .reporting_attempt(&trial("t"))
            .await
            .unwrap()
            .map(|row| row.attempt);
        let source = source.map(|attempt| attempt.to_string()).unwrap_or_default();
        (of(&glance.finals), of(&glance.latest), glance.facts_through, source)
    };
    assert_eq!(seen().await, (vec![], vec![], None, String::new()));
    bed.send_as("a", Lane::Facts, vec![started()]).await;
    assert_eq!(seen().await, (vec![], vec![], Some(0), "a".to_owned()));
    let keeper =
        vec![metric_body("default", Intermediate, 0, 0.5), metric_body("default", Final, 0, 0.7)];
    bed.send_as("a-legacy", Lane::Facts, keeper).await;
    let (finals, latest, through, source) = seen().await;
    assert_eq!((finals, latest, source.as_str()), (vec![0.7], vec![0.5], "a-legacy"));
    assert!(through > Some(0), "a caller that waits for changes is woken");
    // The agent reads the same output a little later.
    let agent = vec![
        started(),
        metric_body("default", Intermediate, 0, 0.5),
        metric_body("default", Final, 0, 0.7),
    ];
    bed.send_as("a", Lane::Facts, agent).await;
    let (finals, latest, now, source) = seen().await;
    assert_eq!(
        (finals, latest, source.as_str()),
        (vec![0.7], vec![0.5], "a"),
        "no metric is counted twice"
    );
    assert!(now > through);
}

#[tokio::test]
async fn reports_are_counted_up_to_a_limit() {
    let bed = QueryTestStore::new().await;
    let note = || ReportBody::Note { code: "n".to_owned(), message: String::new() };
    bed.send_as("a", Lane::Facts, vec![note(), note(), note()]).await;
    bed.send_as("a", Lane::Bulk, vec![log_chunk(0, "x")]).await;
    let counted = async |keys, most| bed.store.queries().report_counts(keys, most).await.unwrap();
    let table = [
        (vec![1], 3, vec![3]),
        (vec![1], 2, vec![]),
        (vec![1, 1, 1], 8, vec![3, 3]),
        (vec![99, 1], 3, vec![0, 3]),
    ];
    for (keys, most, expected) in table {
        assert_eq!(counted(keys.clone(), most).await, expected, "{keys:?}, {most}");
    }
}

#[tokio::test]
async fn output_is_found_by_its_position() {
    let bed = QueryTestStore::new().await;
    let bodies = vec![
        log_chunk(0, "0123456789"),
        ReportBody::Sample(Box::default()),
        log_chunk(10, "abcdef"),
    ];
    bed.send(Lane::Bulk, bodies).await;
    let attempt = bed.store.queries().attempts(&trial("t")).await.unwrap().remove(0);
    let part = async |from, limit| {
        let part =
            bed.store.logs().read_part(attempt.key, Stream::Stdout, from, limit).await.unwrap();
        (String::from_utf8(part.bytes).unwrap(), part.next, part.end)
    };
    let table = [
        (0, 100, "0123456789abcdef", 16),
        (0, 4, "0123", 4),
        (4, 8, "456789ab", 12),
        (12, 100, "cdef", 16),
        (16, 100, "", 16),
        (99, 100, "", 99),
    ];
    for (from, limit, text, next) in table {
        assert_eq!(part(from, limit).await, (text.to_owned(), next, 16), "{from}");
    }
    let nothing = bed.store.logs().read_part(attempt.key, Stream::Stderr, 0, 100).await.unwrap();
    assert_eq!(nothing, LogPart::default());
    assert_eq!(bed.store.queries().samples_after(&attempt, -1, 10).await.unwrap().len(), 1);
    assert_eq!(bed.store.queries().samples_after(&attempt, 1, 10).await.unwrap().len(), 0);
}

#[tokio::test]
async fn other_reports_do_not_count_toward_the_limit_of_samples() {
    let bed = QueryTestStore::new().await;
    let note = || ReportBody::Note { code: "code".to_owned(), message: "message".to_owned() };
    bed.send(Lane::Bulk, vec![note(), note(), ReportBody::Sample(Box::default())]).await;
    let attempt = bed.store.queries().attempts(&trial("t")).await.unwrap().remove(0);
    let samples = bed.store.queries().samples_after(&attempt, -1, 1).await.unwrap();
    assert_eq!(samples.iter().map(|sample| sample.seq).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn a_line_of_the_output_has_the_time_of_the_chunk_in_which_it_begins() {
    let bed = QueryTestStore::new().await;
    let chunks = [
        log_chunk(0, "a\nb"),
        log_chunk(3, "c"),
        log_chunk(4, "d\ne\nf"),
        log_chunk(12, "g\n"),
        log_chunk(14, "h\n"),
    ];
    bed.send(Lane::Bulk, chunks.to_vec()).await;
    let second =
        "UPDATE log_chunk SET observed_at_ms = seq * 1000 + CASE seq WHEN 4 THEN -1 ELSE 5 END";
    Connection::open(bed.folder.path().join("db")).unwrap().execute(second, []).unwrap();
    let times = async |from, limit| {
        let part = bed.store.logs().read_part(1, Stream::Stdout, from, limit).await.unwrap();
        let lines = part.times.iter().map(|time| (time.line, time.observed_at_ms));
        (String::from_utf8(part.bytes).unwrap(), lines.collect::<Vec<_>>())
    };
    let whole = "a\nbcd\ne\nf[3 bytes are missing]\ng\nh\n";
    assert_eq!(times(0, 100).await, (whole.to_owned(), vec![(0, 5), (2, 2005), (4, 3005)]));
    assert_eq!(times(3, 3).await, ("cd\n".to_owned(), vec![(0, 1005)]));
}

#[tokio::test]
async fn a_gap_in_the_output_is_reported() {
    let bed = QueryTestStore::new().await;
    bed.send(Lane::Bulk, vec![log_chunk(0, "begin\n"), log_chunk(16, "end\n")]).await;
    let part = bed.store.logs().read_part(1, Stream::Stdout, 0, 100).await.unwrap();
    assert_eq!(String::from_utf8(part.bytes).unwrap(), "begin\n[10 bytes are missing]\nend\n");
    assert_eq!(part.next, 20);
    // The tail consists of stored bytes only; the line about the gap does not shorten it.
    for (bytes, from, text) in [
        (0, 20, ""),
        (3, 17, "nd\n"),
        (4, 16, "end\n"),
        (6, 4, "n\n[10 bytes are missing]\nend\n"),
        (10, 0, "begin\n[10 bytes are missing]\nend\n"),
        (99, 0, "begin\n[10 bytes are missing]\nend\n"),
    ] {
        assert_eq!(
            bed.store.logs().tail_start(1, Stream::Stdout, bytes).await.unwrap(),
            from,
            "{bytes}"
        );
        let limit = usize::try_from(bytes).unwrap().max(1);
        let part = bed.store.logs().read_part(1, Stream::Stdout, from, limit).await.unwrap();
        assert_eq!(String::from_utf8(part.bytes).unwrap(), text, "{bytes}");
    }
    assert_eq!(bed.store.logs().tail_start(1, Stream::Stderr, 9).await.unwrap(), 0);
}

#[tokio::test]
async fn a_store_that_is_only_read_refuses_writes() {
    let bed = QueryTestStore::new().await;
    let path = bed.folder.path().join("db");
    let reader = Store::open_to_read(&path).unwrap();
    assert_eq!(reader.trials().all().await.unwrap().len(), 2, "while the manager runs");
    let change = TrialChange {
        state: crate::job_state::JobState::Running,
        at_ms: 1,
        message: None,
        exit_code: None,
        attempt: None,
        reported: crate::store::TrialTimes::default(),
    };
    let refusal = reader.trials().change(vec![(trial("t"), change)]).await.unwrap_err();
    assert!(matches!(refusal, Error::Closed));
    assert!(matches!(Store::open_to_read(&bed.folder.path().join("no")), Err(Error::Open { .. })));

    let old = bed.folder.path().join("old");
    let mut connection = Connection::open(&old).unwrap();
    migrate(&mut connection, 0, &MIGRATIONS[..1]).unwrap();
    assert!(
        matches!(Store::open_to_read(&old), Err(Error::OlderSchema { found: 1, known, .. }) if known > 1)
    );
}

#[test]
fn a_migration_marks_the_reports_that_summarise_a_trial() {
    let mut connection = Connection::open_in_memory().unwrap();
    migrate(&mut connection, 0, &MIGRATIONS[..1]).unwrap();
    let insert = "INSERT INTO trial VALUES (1, 't', 0, NULL, '{}', 'a', 'RUNNING', NULL, 0, NULL, NULL, NULL, NULL);
         INSERT INTO attempt VALUES (1, 1, 'a', 0, 9, NULL, 0);
         INSERT INTO report VALUES (1, 0, 0, 0, 0, 'metric', '{\"type\":\"intermediate\"}');
         INSERT INTO report VALUES (1, 0, 1, 0, 0, 'metric', '{\"type\":\"final\"}');
         INSERT INTO report VALUES (1, 0, 2, 0, 0, 'metric', 'no JSON');
         INSERT INTO report VALUES (1, 0, 3, 0, 0, 'ended', '{}');
         INSERT INTO report VALUES (1, 1, 0, 0, 0, 'ended', '{}');";
    connection.execute_batch(insert).unwrap();
    migrate(&mut connection, 1, MIGRATIONS).unwrap();
    let found: String = connection
        .query_row("SELECT group_concat(lane || seq) FROM report WHERE sums_up = 1", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(found, "01,03");
}

#[tokio::test]
async fn the_start_and_the_end_of_an_endless_output_are_kept() {
    const MIB: u64 = 1 << 20;
    let bed = QueryTestStore::new().await;
    let bodies =
        [(0, "start"), (5, "more"), (2 * MIB, "middle"), (64 * MIB - 1, "late"), (66 * MIB, "end")];
    bed.send(Lane::Bulk, bodies.map(|(offset, text)| log_chunk(offset, text)).to_vec()).await;
    let part = bed.store.logs().read_part(1, Stream::Stdout, 0, 1000).await.unwrap();
    assert_eq!((part.from, part.end), (0, 66 * MIB + 3));
    let missing = |from, to| format!("[{} bytes are missing]\n", to - from);
    let expected =
        format!("startmore{}late{}end", missing(9, 64 * MIB - 1), missing(64 * MIB + 3, 66 * MIB));
    assert_eq!(String::from_utf8(part.bytes).unwrap(), expected);
}

/// Returns the statements of the pages, and those that run for each batch.
fn statements() -> impl Iterator<Item = &'static str> {
    let shown = [
        SELECT_CHANGES,
        SELECT_CURRENT_ATTEMPT,
        SELECT_OLD_KEEPER_ATTEMPT,
        HAS_METRIC,
        SELECT_ATTEMPTS,
        SELECT_SUMMARY_REPORTS,
        SELECT_LAST_REPORTS,
        SELECT_SAMPLES,
        SELECT_METRICS,
        COUNT_STEPS,
        SELECT_OTHER_REPORTS,
        SELECT_ATTEMPT_STEPS,
        SELECT_ATTEMPT_HOSTS,
        SELECT_VERDICTS,
    ];
    shown.into_iter().chain(log::LOG_STATEMENTS).chain([DELETE_MIDDLE_CHUNKS, SELECT_SENDER])
}

// A statement that reads a whole table is slow once the table is large.
#[test]
fn every_statement_uses_an_index() {
    let mut connection = Connection::open_in_memory().unwrap();
    migrate(&mut connection, 0, MIGRATIONS).unwrap();
    for sql in statements() {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let wanted = statement.parameter_count();
        let values = rusqlite::params_from_iter(vec![1; wanted]);
        let steps = statement.query_map(values, |row| row.get::<_, String>("detail")).unwrap();
        for step in steps {
            let step = step.unwrap();
            // The few attempts of one trial may be sorted.
            let good = step.starts_with("SEARCH ") && !step.contains("AUTOMATIC");
            assert!(good || sql == SELECT_ATTEMPTS, "{sql}\n  {step}");
            // These statements must not read the metrics, of which there may be millions.
            let own = [
                (SELECT_SUMMARY_REPORTS, "report_that_sums_up"),
                (SELECT_OTHER_REPORTS, "report_beside_metrics"),
            ];
            let own = own.iter().find(|(few, _)| *few == sql);
            assert!(own.is_none_or(|(_, index)| step.contains(index)), "{sql}\n  {step}");
        }
    }
}

// Recompiling a statement for each value costs several times as much as running it.
#[test]
fn every_statement_is_compiled_once() {
    let mut connection = Connection::open_in_memory().unwrap();
    migrate(&mut connection, 0, MIGRATIONS).unwrap();
    compile_once(&connection).unwrap();
    for sql in statements() {
        let mut statement = connection.prepare(sql).unwrap();
        for value in 0..3 {
            let values = vec![value; statement.parameter_count()];
            statement.query(rusqlite::params_from_iter(values)).unwrap().next().unwrap();
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{sql}");
    }
}

#[tokio::test]
async fn a_metric_that_cannot_be_parsed_takes_no_place_on_a_page() {
    let bed = QueryTestStore::new().await;
    let metrics = (0..5).map(|step| metric_body("acc", MetricKind::Intermediate, step, 0.1));
    bed.send(Lane::Facts, metrics.collect()).await;
    let store = Connection::open(bed.folder.path().join("db")).unwrap();
    store.execute("UPDATE report SET body = '{}' WHERE seq IN (0, 1, 3)", []).unwrap();
    let attempt = bed.store.queries().attempts(&trial("t")).await.unwrap()[0].key;
    let table: [(i64, u32, &[u64]); 4] =
        [(-1, 1, &[2]), (-1, 2, &[2, 4]), (2, 2, &[4]), (-1, 9, &[2, 4])];
    for (after, limit, expected) in table {
        let page = bed.store.queries().metrics_after(attempt, after, limit).await.unwrap();
        let found: Vec<_> = page.iter().map(|row| row.seq).collect();
        assert_eq!(found, expected, "after {after}, limit {limit}");
    }
}
