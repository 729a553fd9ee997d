//! The choice of the result for trials that print in the form of common programs, and name no objective.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use trial_protocol::{Direction, Stream};

use super::metric_registry::MetricRegistry;
use super::{CollectSpec, Finding, StreamScanner};

fn conclude_log(
    bytes: &[u8],
    parameters: &[(&str, f64)],
    direction: Option<Direction>,
) -> Option<(String, Value)> {
    let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
    let spec =
        CollectSpec { parameters: parameters.collect(), direction, ..CollectSpec::default() };
    let mut registry = MetricRegistry::new(&spec);
    let mut scanner = StreamScanner::new(&spec, Stream::Stdout);
    let mut found = Vec::new();
    scanner.feed(bytes, &mut found);
    scanner.finish(&mut found);
    for finding in found {
        if let Finding::Metric(metric) = finding {
            registry.register(metric);
        }
    }
    registry.conclude(true).map(|metric| (metric.name, metric.value.as_json().clone()))
}

fn read_log(log: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/logs/{log}.txt"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{log}: {error}"))
}

/// The log, the trial's parameters, and the expected result.
type Row<'a> = (&'a str, &'a [(&'a str, f64)], Option<(&'a str, Value)>);

#[test]
fn the_metric_that_a_person_would_choose_is_the_result() {
    #[rustfmt::skip]
    let table: [Row<'_>; 12] = [
        ("settings_first", &[("lr", 0.1)],                      Some(("val_acc", json!(0.91)))),
        ("echo",           &[("width", 64.0), ("depth", 3.0)],  Some(("quality", json!(0.25)))),
        ("keras",          &[("learning_rate", 0.001)],         Some(("val_accuracy", json!(0.8125)))),
        ("lightning",      &[],                                 Some(("val_acc", json!(0.812)))),
        ("transformers",   &[],                                 Some(("eval_accuracy", json!(0.8456)))),
        ("xgboost",        &[("max_depth", 3.0)],               Some(("validation_1-auc", json!(0.95352)))),
        ("lightgbm",       &[],                                 Some(("auc", json!(0.916_384)))),
        ("sklearn_mlp",    &[],                                 Some(("score", json!(0.533_333)))),
        ("sklearn_sgd",    &[],                                 Some(("Objective", json!(5.756_024)))),
        ("sklearn_grid",   &[("C", 10.0)],                      Some(("score", json!(0.867)))),
        ("flax",           &[],                                 Some(("accuracy", json!(98.13)))),
        ("fastai",         &[],                                 Some(("accuracy", json!(0.861_234)))),
    ];
    for (log, parameters, expected) in table {
        let bytes = read_log(log);
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        for direction in [None, Some(Direction::Maximize)] {
            assert_eq!(
                conclude_log(&bytes, parameters, direction),
                expected,
                "{log} {direction:?}"
            );
        }
    }
}

#[test]
fn a_search_that_minimizes_chooses_a_loss_if_there_is_one() {
    #[rustfmt::skip]
    let table = [
        ("keras",          Some(("val_loss", json!(0.5507)))),
        ("fastai",         Some(("valid_loss", json!(0.323_456)))),
        ("transformers",   Some(("eval_loss", json!(0.3987)))),
        ("settings_first", Some(("loss", json!(0.53)))),
        ("sklearn_grid",   Some(("score", json!(0.867)))),
    ];
    for (log, expected) in table {
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        let found = conclude_log(&read_log(log), &[], Some(Direction::Minimize));
        assert_eq!(found, expected, "{log}");
    }
}

proptest! {
    #[test]
    fn the_result_of_random_output_is_a_number_or_none(text in "[a-z:=' .0-9{}\\n-]{0,200}") {
        if let Some((name, value)) = conclude_log(text.as_bytes(), &[("a", 1.0)], None) {
            prop_assert!(!name.is_empty() && value != Value::Null);
        }
    }
}
