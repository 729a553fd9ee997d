use proptest::prelude::*;
use serde_json::json;
use trial_protocol::{AttemptId, Metric, MetricKind, TrialJobId};

use super::*;
use crate::search::goals::Goals;
use crate::store::{TrialRow, TrialSummaryRow};

fn trial(
    sequence: u64,
    state: JobState,
    result: Option<Value>,
    parameters: Value,
) -> Arc<TrialSummary> {
    let row = TrialRow {
        retries: 0,
        id: TrialJobId::new(format!("t{sequence}")).unwrap(),
        sequence,
        parameter_id: Some(sequence),
        parameters,
        attempt: AttemptId::new("a").unwrap(),
        state,
        intent: None,
        created_at_ms: 0,
        started_at_ms: Some(10),
        ended_at_ms: None,
        message: None,
        exit_code: None,
    };
    let finals = result.map(|value| Metric {
        name: "default".to_owned(),
        kind: MetricKind::Final,
        sequence: 0,
        value: value.into(),
        derived: false,
    });
    let glance = TrialSummaryRow {
        key: 1,
        row,
        facts_through: None,
        finals: finals.into_iter().collect(),
        latest: Vec::new(),
        verdict: None,
        lost: None,
    };
    Arc::new(TrialSummary::new(glance, (None, &Goals::default()), 0, 0))
}

fn table_query(by: Column, descending: bool) -> TableQuery {
    TableQuery { states: Vec::new(), cause: None, text: None, filter: None, by, descending }
}

fn sequences(page: &Page<'_>) -> Vec<u64> {
    page.rows.iter().map(|trial| trial.sequence).collect()
}

#[test]
fn a_column_or_cause_that_no_trial_has_is_refused() {
    let trials =
        [trial(0, JobState::Failed, None, json!({"lr": 1, "net": {"_name": "cnn", "size": 3}}))];
    let asked = |by: Column, cause: Option<&str>, trials: &[Arc<TrialSummary>]| {
        let wanted = TableQuery { cause: cause.map(str::to_owned), ..table_query(by, false) };
        page(trials, &wanted, None, 9, 0).map(|page| page.total).map_err(|error| error.to_string())
    };
    let parameter = |name: &str| Column::Parameter(name.to_owned());
    assert_eq!(asked(parameter("net.size"), None, &trials), Ok(1));
    let wrong = asked(parameter("rl"), None, &trials).unwrap_err();
    assert_eq!(
        wrong,
        "sort: no trial has a parameter \"rl\"; the parameters are lr, net._name, net.size"
    );
    let wrong = asked(Column::of_word("rl"), None, &trials).unwrap_err();
    assert_eq!(wrong, format!("sort is \"rl\"; expected {}", Column::WORDS));
    assert_eq!(asked(Column::of_word("lr"), None, &trials), Ok(1));
    let wrong = asked(Column::of_word("metrics.acc"), None, &trials).unwrap_err();
    assert_eq!(wrong, "sort: no trial has a metric \"acc\"; the metrics are ");
    // A cause that agents may report is accepted; any other cause is refused.
    assert_eq!(asked(Column::Sequence, Some("oom-cuda"), &trials), Ok(0));
    let wrong = asked(Column::Sequence, Some("oom"), &trials).unwrap_err();
    assert_eq!(wrong, "cause: no trial has the cause \"oom\"; the causes are unknown");
    // Without trials, both names are accepted.
    assert_eq!(asked(parameter("rl"), Some("oom"), &[]), Ok(0));
}

#[test]
fn a_cause_is_filtered_by_its_exact_name() {
    let mut failed = trial(0, JobState::Failed, None, json!({"x": "exit"}));
    Arc::make_mut(&mut failed).cause = Some("oom-cuda".to_owned());
    Arc::make_mut(&mut failed).message = Some("the trial exited with 1".to_owned());
    let trials = [failed, trial(1, JobState::Failed, None, json!({}))];
    for (cause, expected) in [("oom-cuda", &[0][..]), ("exit", &[]), ("unknown", &[1])] {
        let wanted =
            TableQuery { cause: Some(cause.to_owned()), ..table_query(Column::Sequence, false) };
        assert_eq!(sequences(&page(&trials, &wanted, None, 9, 0).unwrap()), expected, "{cause}");
    }
}

#[test]
fn trials_without_a_value_are_sorted_last() {
    use JobState::{Failed, Succeeded};
    let trials = [
        trial(0, Succeeded, Some(json!(0.5)), json!({"lr": 3, "act": "relu"})),
        trial(1, Failed, None, json!({"lr": 1})),
        trial(2, Succeeded, Some(json!({"default": 0.9})), json!({"lr": 2, "act": "elu"})),
        trial(3, Succeeded, Some(json!("NaN")), json!({"lr": 2})),
        trial(4, Succeeded, Some(json!("Infinity")), json!({"lr": 2})),
    ];
    let parameter = |name: &str| Column::Parameter(name.to_owned());
    #[rustfmt::skip]
    let table = [
        ("by position",         table_query(Column::Sequence, false), vec![0, 1, 2, 3, 4]),
        ("the newest first",    table_query(Column::Sequence, true),  vec![4, 3, 2, 1, 0]),
        ("the best first",      table_query(Column::Final, true),     vec![4, 2, 0, 3, 1]),
        ("the worst first",     table_query(Column::Final, false),    vec![0, 2, 4, 1, 3]),
        ("by a parameter",      table_query(parameter("lr"), false),  vec![1, 2, 3, 4, 0]),
        ("by a word",           table_query(parameter("act"), false), vec![2, 0, 1, 3, 4]),
        ("one state",           TableQuery { states: vec![Failed], ..table_query(Column::Sequence, false) }, vec![1]),
        ("a text",              TableQuery { text: Some("RELU".to_owned()), ..table_query(Column::Sequence, false) }, vec![0]),
    ];
    for (case, wanted, expected) in table {
        let all = page(&trials, &wanted, None, 10, 20).unwrap();
        assert_eq!(sequences(&all), expected, "{case}");
        assert_eq!((all.total, all.next), (expected.len(), None), "{case}");
        // The same rows, one row per page.
        let (mut cursor, mut found) = (None, Vec::new());
        loop {
            let one = page(&trials, &wanted, cursor.as_deref(), 1, 20).unwrap();
            found.extend(sequences(&one));
            cursor = one.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "{case}, in pages");
    }
}

#[test]
fn trials_are_sorted_and_filtered_by_any_metric() {
    let object = |loss: f64| Some(json!({"default": 1, "loss": loss}));
    let trials = [
        trial(0, JobState::Succeeded, object(0.5), json!({"lr": 1})),
        trial(1, JobState::Succeeded, object(0.25), json!({"lr": 2})),
        trial(2, JobState::Failed, None, json!({"lr": 3})),
    ];
    let filtered = |text: &str| {
        let filter = Some(Filter::parse(text).unwrap());
        let wanted = TableQuery { filter, ..table_query(Column::Sequence, false) };
        page(&trials, &wanted, None, 9, 0)
            .map(|page| sequences(&page))
            .map_err(|error| error.to_string())
    };
    for (word, expected) in [("metrics.loss", [1, 0, 2]), ("loss", [1, 0, 2]), ("lr", [0, 1, 2])] {
        let sorted = page(&trials, &table_query(Column::of_word(word), false), None, 9, 0).unwrap();
        assert_eq!(sequences(&sorted), expected, "{word}");
    }
    assert_eq!(filtered("metrics.loss < 0.3"), Ok(vec![1]));
    assert_eq!(filtered("loss > 0.3"), Ok(vec![0]));
    let wrong = filtered("loss > 0.3 and metrics.acc > 1").unwrap_err();
    assert!(wrong.starts_with("filter: at character 16: no trial has \"metrics.acc\""), "{wrong}");
}

#[test]
fn a_new_or_removed_row_hides_no_other() {
    let mut trials: Vec<_> =
        (0..6).map(|at| trial(at, JobState::Running, None, json!({}))).collect();
    let newest = table_query(Column::Sequence, true);
    let first = page(&trials, &newest, None, 2, 0).unwrap();
    assert_eq!(sequences(&first), [5, 4]);
    let cursor = first.next.unwrap();
    trials.push(trial(6, JobState::Running, None, json!({})));
    trials.remove(4);
    assert_eq!(sequences(&page(&trials, &newest, Some(&cursor), 2, 0).unwrap()), [3, 2]);
}

#[test]
fn running_trials_neither_repeat_nor_disappear_between_pages() {
    let started = |sequence: u64, at_ms: i64| {
        let mut trial = trial(sequence, JobState::Running, None, json!({}));
        Arc::make_mut(&mut trial).started_at_ms = Some(at_ms);
        trial
    };
    for (descending, expected) in [(true, [0, 1, 2]), (false, [2, 1, 0])] {
        let mut trials = [started(0, 0), started(1, 10), started(2, 20)];
        let wanted = table_query(Column::Duration, descending);
        let (mut cursor, mut found, mut now_ms) = (None, Vec::new(), 30);
        loop {
            let one = page(&trials, &wanted, cursor.as_deref(), 1, now_ms).unwrap();
            found.extend(sequences(&one));
            cursor = one.next;
            if cursor.is_none() {
                break;
            }
            now_ms += 100;
            Arc::make_mut(&mut trials[1]).ended_at_ms = Some(now_ms);
        }
        assert_eq!(found, expected, "descending: {descending}");
    }
}

proptest! {
    #[test]
    fn random_cursors_never_panic(text in ".*|[A-Za-z0-9_-]{0,40}") {
        let trials = [trial(0, JobState::Running, None, json!({}))];
        drop(page(&trials, &table_query(Column::Sequence, false), Some(&text), 1, 0));
    }
}
