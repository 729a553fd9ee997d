//! Batches may be split, repeated, mixed and delayed: the store is the same, and each report is new exactly once.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use trial_protocol::{Lane, Report, ReportBody, Stream};

use super::{
    TestStore, attempt, ended_body, log_chunk, metric_body, received_batch, report, sample_body,
    trial,
};

/// A lane of an attempt, with all its reports.
type Source = ((&'static str, Lane), Vec<Report>);

/// Returns the reports of two attempts. Gaps represent dropped reports.
fn sources() -> Vec<Source> {
    let facts = |from: u64| {
        (0..8)
            .map(move |n| report(from + n + n / 2, metric_body(n, 0.5)))
            .chain([report(100, ended_body(0))])
    };
    let bulk = (0..8_u64).map(|n| {
        report(n * 2, if n % 3 == 0 { sample_body() } else { log_chunk(n * 5, "text\n") })
    });
    vec![
        (("a", Lane::Facts), facts(0).collect()),
        (("a", Lane::Bulk), bulk.clone().collect()),
        (("b", Lane::Facts), facts(3).collect()),
        (("b", Lane::Bulk), bulk.collect()),
    ]
}

/// Generates deliveries, each with its source, its first report and its number of reports.
fn deliveries() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    prop::collection::vec((0..4_usize, 0..9_usize, 0..5_usize), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn reports_in_any_order_and_repetition_are_stored_the_same(deliveries in deliveries()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(deliver(deliveries));
    }
}

async fn deliver(deliveries: Vec<(usize, usize, usize)>) {
    let sources = sources();
    let bed = TestStore::with_trial().await;
    let everything = (0..sources.len()).map(|source| (source, 0, usize::MAX));
    let mut stored: BTreeMap<(&str, Lane), BTreeSet<u64>> = BTreeMap::new();
    let mut fresh: BTreeMap<(&str, Lane), Vec<Report>> = BTreeMap::new();
    for (source, from, count) in deliveries.into_iter().chain(everything) {
        let (name, reports) = &sources[source];
        let from = from.min(reports.len());
        let part = &reports[from..from.saturating_add(count).min(reports.len())];
        let ingested = bed
            .store
            .reports()
            .ingest(received_batch(name.0, name.1, part.to_vec()), 1)
            .await
            .unwrap();

        let model = stored.entry(*name).or_default();
        let new =
            part.iter().filter(|report| model.insert(report.seq)).cloned().collect::<Vec<_>>();
        assert_eq!(ingested.fresh, new);
        assert_eq!(ingested.through, model.last().copied());
        fresh.entry(*name).or_default().extend(ingested.fresh);
    }

    let t = trial("t");
    for ((name, lane), reports) in &sources {
        let mut once = fresh[&(*name, *lane)].clone();
        once.sort_by_key(|report| report.seq);
        assert_eq!(&once, reports, "each report is new exactly once");

        let is_log = |report: &&Report| matches!(report.body, ReportBody::Log(_));
        let rows = bed.store.reports().all(&t, *lane).await.unwrap();
        let rows: Vec<_> = rows
            .into_iter()
            .filter(|row| row.attempt == attempt(name))
            .map(|row| (row.seq, row.observed_at_ms, serde_json::from_value(row.body).unwrap()))
            .collect();
        let expected: Vec<(u64, i64, ReportBody)> = reports
            .iter()
            .filter(|report| !is_log(report))
            .map(|report| (report.seq, report.observed_at_ms, report.body.clone()))
            .collect();
        assert_eq!(rows, expected);

        let chunks = bed.store.reports().log(&t, Stream::Stdout).await.unwrap();
        let chunks = chunks.iter().filter(|chunk| chunk.attempt == attempt(name)).count();
        let expected = sources
            .iter()
            .filter(|((other, _), _)| other == name)
            .flat_map(|(_, reports)| reports.iter().filter(is_log))
            .count();
        assert_eq!(chunks, expected);
    }
    let state = bed.store.reports().attempt_state(&t, &attempt("a")).await.unwrap();
    assert_eq!((state.facts_through, state.ended), (Some(100), true));
}
