use proptest::prelude::*;
use serde_json::json;

use trial_protocol::{AttemptId, TrialJobId};

use super::*;
use crate::job_state::JobState;
use crate::search::goals::Goals;
use crate::store::{TrialRow, TrialSummaryRow};

fn trial(sequence: u64, parameters: Value) -> TrialSummary {
    let row = TrialRow {
        retries: 0,
        id: TrialJobId::new(format!("t{sequence}")).unwrap(),
        sequence,
        parameter_id: None,
        parameters,
        attempt: AttemptId::new("a").unwrap(),
        state: JobState::Running,
        intent: None,
        created_at_ms: 0,
        started_at_ms: None,
        ended_at_ms: None,
        message: None,
        exit_code: None,
    };
    let (finals, latest) = (Vec::new(), Vec::new());
    let glance = TrialSummaryRow {
        key: 1,
        row,
        facts_through: None,
        finals,
        latest,
        verdict: None,
        lost: None,
    };
    TrialSummary::new(glance, (None, &Goals::default()), 0, 0)
}

fn is_selected(text: &str) -> bool {
    let mut one = trial(
        7,
        json!({"lr": 0.005, "activation": "relu", "layer": {"size": 3}, "odd name": 1, "deep": true}),
    );
    one.final_value = Some(json!(0.9));
    one.metric = Some("accuracy".to_owned());
    let metrics = [
        ("accuracy", json!(0.9)),
        ("acc", json!(0.5)),
        ("lr", json!(7)),
        ("val/odd", json!("NaN")),
    ];
    one.metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
    (one.started_at_ms, one.ended_at_ms) = (Some(0), Some(90_000));
    one.state = JobState::Succeeded;
    Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).matches(&one, 0)
}

#[test]
fn expressions_select_by_parameters_results_and_fields() {
    #[rustfmt::skip]
    let table = [
        (r#"lr < 0.01 and activation == "relu""#, true), ("lr < 1e-3", false), ("lr<=5e-3", true), ("lr >= 0.0051", false),
        ("activation = 'tanh' or number == 7", true), ("activation == 'relu' && layer.size > 2", true), ("!(layer.size > 2)", false),
        ("not lr > 0.01 and not number != 7", true), ("state == succeeded", true), ("state == FAILED", false), ("succeeded == state", true),
        ("cause == unknown", true), ("duration > 1m", true), ("duration > 2m", false), ("duration < 1.5h", true), ("duration == 90000ms", true),
        ("accuracy > 0.8", true), ("final > 0.95", false), ("latest > 0", false), ("latest == null", true), ("final != null", true),
        ("latest != null", false), ("missing != 3", false), ("missing == null", true), ("`odd name` == 1", true), ("`parameters.odd name` <= 2.5 and `parameters.a\\`b` == null", true), ("parameters.lr < 1", true),
        ("acc < 1", true), ("acc > 0.5", false), ("metrics.acc == 0.5", true), ("metrics.accuracy > 0.8", true), ("metrics.lr == 7", true),
        ("lr == 7", false), ("parameters.acc == null", true), ("metrics.missing == null", true), ("metrics.val/odd < 1", false),
        ("deep == true", true), ("deep != false", true), ("activation ~ 'REL'", true), ("lr < 'a'", false), ("lr == '0.005'", false),
        ("lr > -1 and lr < +1", true), ("id == t7", false), ("0.001 < lr", true), ("lr == 0.005 or x == (", true),
    ];
    for (text, expected) in table {
        if text.ends_with('(') {
            assert!(Filter::parse(text).is_err());
            continue;
        }
        assert_eq!(is_selected(text), expected, "{text}");
    }
}

#[test]
fn a_fault_has_its_position() {
    #[rustfmt::skip]
    let table = [
        ("", 1, "expected a name"), ("lr", 3, "expected a comparison"), ("lr <", 5, "expected a name"), ("lr < 1 x", 8, "expected `and`"),
        ("(lr < 1", 8, "expected `)` for the `(` at character 1"), ("lr == \"a", 7, "no closing"), ("é # 1", 3, "unexpected '#'"),
        ("lr < 1.2.3", 6, "is not a number"), ("duration > 5min", 13, "is not a unit of time"), ("a == 1 and and b == 1", 12, "expected a name"),
    ];
    for (text, position, problem) in table {
        let error = Filter::parse(text).unwrap_err();
        assert_eq!(error.position, position, "{text}: {error}");
        assert!(error.problem.contains(problem), "{text}: {error}");
    }
    assert!(Filter::parse(&"(".repeat(200)).unwrap_err().problem.contains("nesting"));
    assert!(Filter::parse(&"x".repeat(3000)).is_err());
}

#[test]
fn the_names_of_an_expression_have_positions() {
    let filter = Filter::parse("lr < 1 and state == failed or `a b` == final").unwrap();
    assert_eq!(filter.names(), [("lr", 1), ("a b", 31)]);
}

proptest! {
    #[test]
    fn the_fault_of_a_random_filter_is_within_its_text(text in any::<String>()) {
        if let Err(error) = Filter::parse(&text) {
            prop_assert!((1..=text.chars().count() + 1).contains(&error.position));
        }
    }

    #[test]
    fn random_expressions_never_panic(text in "[a-z0-9 ()<>=!~&|.\"'`-]{0,60}") {
        if let Ok(filter) = Filter::parse(&text) {
            filter.matches(&trial(0, json!({"a": 1})), 0);
        }
    }
}
