//! The choice of the result for trials that print as programs of the field do, and name no objective.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use trial_protocol::Stream;

use super::metric_registry::MetricRegistry;
use super::{CollectSpec, Finding, StreamScanner};

fn concluded(bytes: &[u8], parameters: &[(&str, f64)]) -> Option<(String, Value)> {
    let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
    let spec = CollectSpec { parameters: parameters.collect(), ..CollectSpec::default() };
    let mut registry = MetricRegistry::new(&spec);
    let mut scanner = StreamScanner::new(&spec, Stream::Stdout);
    let mut found = Vec::new();
    scanner.feed(bytes, &mut found);
    scanner.finish(&mut found);
    for finding in found {
        if let Finding::Metric(metric) = finding {
            registry.enter(metric);
        }
    }
    registry.conclude(true).map(|metric| (metric.name, metric.value.as_json().clone()))
}

/// The log, the trial's parameters, and the metric that speaks for it.
type Row<'a> = (&'a str, &'a [(&'a str, f64)], Option<(&'a str, Value)>);

#[test]
fn the_metric_that_a_person_would_take_speaks_for_the_trial() {
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
        ("fastai",         &[],                                 None),
    ];
    for (log, parameters, expected) in table {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/logs/{log}.txt"));
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{log}: {error}"));
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(concluded(&bytes, parameters), expected, "{log}");
    }
}

proptest! {
    #[test]
    fn any_text_leads_to_a_number_or_to_nothing(text in "[a-z:=' .0-9{}\\n-]{0,200}") {
        if let Some((name, value)) = concluded(text.as_bytes(), &[("a", 1.0)]) {
            prop_assert!(!name.is_empty() && value != Value::Null);
        }
    }
}
