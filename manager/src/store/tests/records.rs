//! A complete search: its creation, its trials, and the data that a reader finds after a restart.

use serde_json::json;
use trial_protocol::{
    ExperimentId, Lane, LogChunk, LogText, MetricKind, ReportBody, StopReason, Stream,
};

use super::{
    TestStore, attempt, ended_body, log_chunk, metric_body, new_trial, received_batch, report,
    sample_body, trial, verdict,
};
use crate::job_state::JobState;
use crate::store::{AttemptState, Error, ExperimentRow, NewTrial, TrialChange, TrialTimes};

fn experiment() -> ExperimentRow {
    ExperimentRow {
        id: ExperimentId::new("e").unwrap(),
        canonical: json!({"trialCommand": "it's ; DROP TABLE trial", "x": 1.5e300}),
        seed: u64::MAX - 1,
        state: "RUNNING".to_owned(),
        created_at_ms: 900,
        ended_at_ms: None,
        elapsed_ms: 0,
        trouble: None,
    }
}

fn change(state: JobState, at_ms: i64) -> TrialChange {
    TrialChange {
        state,
        at_ms,
        message: None,
        exit_code: None,
        attempt: None,
        reported: TrialTimes::default(),
    }
}

#[tokio::test]
async fn a_search_survives_a_restart_unchanged() {
    let bed = TestStore::new();
    let store = &bed.store;
    assert_eq!(store.experiment().row().await.unwrap(), None);
    store.experiment().create(experiment()).await.unwrap();
    let again = store.experiment().create(experiment()).await.unwrap_err();
    assert_eq!(again.to_string(), "experiment e already exists in the database");
    store.experiment().set_state("STOPPED", 4000, 5000, None).await.unwrap();

    store.trials().insert(vec![new_trial("b", 1)]).await.unwrap();
    store.trials().insert(vec![new_trial("t", 0)]).await.unwrap();
    let again = store.trials().insert(vec![new_trial("t", 2)]).await.unwrap_err();
    assert_eq!(again.to_string(), "trial t already exists in the database");
    let t = trial("t");
    store.trials().change(vec![(t.clone(), change(JobState::Running, 1100))]).await.unwrap();
    let lost =
        TrialChange { message: Some("silent for 30 s".to_owned()), ..change(JobState::Lost, 1200) };
    store.trials().change(vec![(t.clone(), lost)]).await.unwrap();
    store.trials().change(vec![(t.clone(), change(JobState::Running, 1300))]).await.unwrap();
    store.trials().set_intents(&[(t.clone(), Some(StopReason::EarlyStop))], 1400).await.unwrap();
    let end = TrialChange { exit_code: Some(143), ..change(JobState::EarlyStopped, 1500) };
    store.trials().change(vec![(t.clone(), end)]).await.unwrap();

    let bed = bed.reopen().await;
    let store = &bed.store;
    let expected = ExperimentRow {
        state: "STOPPED".to_owned(),
        ended_at_ms: Some(5000),
        elapsed_ms: 4000,
        trouble: None,
        ..experiment()
    };
    assert_eq!(store.experiment().row().await.unwrap(), Some(expected));
    let trials = store.trials().all().await.unwrap();
    let order: Vec<_> = trials.iter().map(|row| (row.id.as_str(), row.state)).collect();
    assert_eq!(order, [("t", JobState::EarlyStopped), ("b", JobState::Waiting)]);
    let row = store.trials().get(&t).await.unwrap().unwrap();
    assert_eq!(row, trials[0]);
    assert_eq!(row.parameters, json!({"lr": 0.1}));
    assert_eq!(row.intent, Some(StopReason::EarlyStop));
    assert_eq!((row.started_at_ms, row.ended_at_ms), (Some(1100), Some(1500)));
    assert_eq!((row.message, row.exit_code), (None, Some(143)));

    let timeline: Vec<_> = store
        .trials()
        .events(&t)
        .await
        .unwrap()
        .into_iter()
        .map(|event| (event.at_ms, event.state, event.intent, event.message, event.exit_code))
        .collect();
    let early = Some(StopReason::EarlyStop);
    #[rustfmt::skip]
    let expected = vec![
        (1000, JobState::Waiting,      None,  None,                                None),
        (1100, JobState::Running,      None,  None,                                None),
        (1200, JobState::Lost,         None,  Some("silent for 30 s".to_owned()),  None),
        (1300, JobState::Running,      None,  None,                                None),
        (1400, JobState::Running,      early, None,                                None),
        (1500, JobState::EarlyStopped, early, None,                                Some(143)),
    ];
    assert_eq!(timeline, expected);
}

#[tokio::test]
async fn a_new_attempt_clears_the_end_of_the_previous_one() {
    let bed = TestStore::with_trial().await;
    let t = trial("t");
    bed.store.trials().change(vec![(t.clone(), change(JobState::Running, 10))]).await.unwrap();
    let failed = TrialChange { exit_code: Some(1), ..change(JobState::Failed, 20) };
    bed.store.trials().change(vec![(t.clone(), failed)]).await.unwrap();
    let retry = TrialChange { attempt: Some(attempt("a2")), ..change(JobState::Waiting, 30) };
    bed.store.trials().change(vec![(t.clone(), retry)]).await.unwrap();

    let row = bed.store.trials().get(&t).await.unwrap().unwrap();
    assert_eq!(row.attempt, attempt("a2"));
    assert_eq!((row.started_at_ms, row.ended_at_ms, row.exit_code), (None, None, None));
    let attempts: Vec<_> = bed
        .store
        .trials()
        .events(&t)
        .await
        .unwrap()
        .into_iter()
        .map(|event| event.attempt)
        .collect();
    assert_eq!(attempts, ["a1", "a1", "a1", "a2"].map(attempt));
}

#[tokio::test]
async fn errors_name_the_missing_row() {
    let bed = TestStore::new();
    let t = trial("t");
    let nothing = bed.store.experiment().set_state("DONE", 0, 0, None).await.unwrap_err();
    assert!(matches!(nothing, Error::NoExperiment), "{nothing}");
    assert_eq!(bed.store.trials().get(&t).await.unwrap(), None);
    let unknown = [
        bed.store
            .trials()
            .change(vec![(t.clone(), change(JobState::Running, 0))])
            .await
            .unwrap_err(),
        bed.store.trials().set_intents(&[(t.clone(), None)], 0).await.unwrap_err(),
        bed.store.reports().metrics(&t).await.unwrap_err(),
        bed.store.reports().final_records(vec![(t.clone(), attempt("a"))]).await.unwrap_err(),
        bed.store.reports().attempt_state(&t, &attempt("a")).await.unwrap_err(),
        bed.store.reports().ingest(received_batch("a", Lane::Facts, vec![]), 0).await.unwrap_err(),
    ];
    for error in unknown {
        assert_eq!(error.to_string(), "there is no trial t");
    }
    assert!(
        bed.store.database().write_error().is_none(),
        "a wrong request is not a failure of the store"
    );
}

#[tokio::test]
async fn reports_are_read_back_by_attempt_and_seq() {
    let bed = TestStore::with_trial().await;
    let (store, t) = (&bed.store, trial("t"));
    // The second attempt reports before the first has sent all its reports.
    let first = vec![report(0, metric_body(0, 0.5)), report(3, metric_body(1, f64::NAN))];
    assert_eq!(
        store.reports().ingest(received_batch("z", Lane::Facts, first), 10).await.unwrap().through,
        Some(3)
    );
    let second = vec![report(0, metric_body(0, 0.7)), report(1, ended_body(1))];
    store.reports().ingest(received_batch("b", Lane::Facts, second), 20).await.unwrap();
    let rest =
        vec![report(4, metric_body(2, 0.6)), report(5, ended_body(0)), report(6, ended_body(2))];
    store.reports().ingest(received_batch("z", Lane::Facts, rest), 30).await.unwrap();

    let bed = bed.reopen().await;
    let store = &bed.store;
    let metrics = store.reports().metrics(&t).await.unwrap();
    let read: Vec<_> = metrics
        .iter()
        .map(|row| (row.attempt.as_str(), row.seq, row.observed_at_ms, row.stored_at_ms))
        .collect();
    assert_eq!(
        read,
        [("z", 0, 5000, 10), ("z", 3, 5003, 10), ("z", 4, 5004, 30), ("b", 0, 5000, 20)]
    );
    assert_eq!(metrics[1].metric.value.as_json(), &json!("NaN"));
    assert_eq!(metrics[1].metric.kind, MetricKind::Intermediate);

    for (of, expected) in [("b", Some(verdict(1))), ("z", Some(verdict(0))), ("a", None)] {
        let records = store.reports().final_records(vec![(t.clone(), attempt(of))]).await.unwrap();
        assert_eq!(records[0].verdict, expected, "of attempt {of}");
    }
    let state = store.reports().attempt_state(&t, &attempt("z")).await.unwrap();
    assert_eq!(
        state,
        AttemptState {
            facts_through: Some(6),
            bulk_through: None,
            ended: true,
            last_heard_ms: Some(30)
        }
    );
    let silent = store.reports().attempt_state(&t, &attempt("silent")).await.unwrap();
    assert_eq!(silent, AttemptState::default());
}

#[tokio::test]
async fn the_bulk_lane_is_stored() {
    let bed = TestStore::with_trial().await;
    let (store, t) = (&bed.store, trial("t"));
    let binary = ReportBody::Log(LogChunk {
        stream: Stream::Stdout,
        offset_bytes: 5,
        text: LogText::Base64("/wA=".to_owned()),
    });
    let broken = ReportBody::Log(LogChunk {
        stream: Stream::Stderr,
        offset_bytes: 0,
        text: LogText::Base64("no base64".to_owned()),
    });
    let reports = vec![
        report(0, log_chunk(0, "hallo")),
        report(1, sample_body()),
        report(2, binary),
        report(3, broken),
    ];
    let ingested =
        store.reports().ingest(received_batch("a", Lane::Bulk, reports.clone()), 10).await.unwrap();
    assert_eq!((ingested.through, &ingested.fresh), (Some(3), &reports));

    let log = store.reports().log(&t, Stream::Stdout).await.unwrap();
    let log: Vec<_> = log.into_iter().map(|chunk| (chunk.offset_bytes, chunk.bytes)).collect();
    assert_eq!(log, [(0, b"hallo".to_vec()), (5, vec![0xff, 0])]);
    assert_eq!(store.reports().log(&t, Stream::Stderr).await.unwrap(), []);
    let rest = store.reports().all(&t, Lane::Bulk).await.unwrap();
    let rest: Vec<_> = rest.into_iter().map(|row| (row.seq, row.kind)).collect();
    assert_eq!(
        rest,
        [(1, "sample".to_owned()), (3, "log".to_owned())],
        "an unreadable chunk is kept as a report"
    );
    let state = store.reports().attempt_state(&t, &attempt("a")).await.unwrap();
    assert_eq!(state.bulk_through, Some(3));
    let end = store.reports().log_end(&t, &attempt("a"), Stream::Stdout).await.unwrap();
    assert_eq!(end, 7);
    assert_eq!(store.reports().log_end(&t, &attempt("b"), Stream::Stdout).await.unwrap(), 0);
    assert_eq!(state.facts_through, None, "each lane has its own count");
}

#[tokio::test]
async fn a_heartbeat_never_moves_the_time_of_the_last_report_back() {
    let bed = TestStore::with_trial().await;
    let (store, t) = (&bed.store, trial("t"));
    for (at_ms, heard) in [(10, 10), (30, 30), (20, 30)] {
        let beat =
            store.reports().ingest(received_batch("a", Lane::Facts, vec![]), at_ms).await.unwrap();
        assert_eq!((beat.through, beat.fresh), (None, vec![]));
        let state = store.reports().attempt_state(&t, &attempt("a")).await.unwrap();
        assert_eq!(state.last_heard_ms, Some(heard));
    }
}

#[tokio::test]
async fn the_agents_times_of_a_trial_take_precedence() {
    const NOTICED: i64 = 9_000;
    // The trial was created at 1000, and the manager saw it run at 2000.
    #[rustfmt::skip]
    let table = [
        // the agent's report             started       duration        stored times
        ("nothing",                       None,         None,           (2_000, NOTICED)),
        ("an end long ago",               Some(1_500),  Some(3_000),    (1_500, 4_500)),
        ("only a duration",               None,         Some(3_000),    (2_000, 5_000)),
        ("a clock that is behind",        Some(10),     Some(3_000),    (1_000, 4_000)),
        ("a clock that is ahead",         Some(99_000), Some(3_000),    (NOTICED, NOTICED)),
        ("a duration that is too long",   Some(1_500),  Some(u64::MAX), (1_500, NOTICED)),
    ];
    for (case, started_at_ms, duration_ms, expected) in table {
        let bed = TestStore::new();
        let store = &bed.store;
        store.experiment().create(experiment()).await.unwrap();
        store
            .trials()
            .insert(vec![NewTrial { created_at_ms: 1_000, ..new_trial("t", 0) }])
            .await
            .unwrap();
        let t = trial("t");
        store.trials().change(vec![(t.clone(), change(JobState::Running, 2_000))]).await.unwrap();
        let reported = TrialTimes { started_at_ms, duration_ms };
        let end = TrialChange { reported, ..change(JobState::Failed, NOTICED) };
        store.trials().change(vec![(t.clone(), end)]).await.unwrap();
        let row = store.trials().get(&t).await.unwrap().unwrap();
        let (started, ended) = (row.started_at_ms.unwrap(), row.ended_at_ms.unwrap());
        assert_eq!((started, ended), expected, "{case}");
        let noticed = store.trials().events(&t).await.unwrap().pop().unwrap();
        assert_eq!(
            noticed.at_ms, NOTICED,
            "{case}: the timeline keeps the time of the manager's record"
        );
    }
}
