use proptest::prelude::*;
use serde_json::json;

use super::*;

fn found(source: Source, name: &str, kind: Option<MetricKind>, value: f64) -> CollectedMetric {
    CollectedMetric { source, name: name.to_owned(), kind, sequence: None, value: value.into() }
}

fn text(name: &str, value: f64) -> CollectedMetric {
    found(Source::Text, name, None, value)
}

fn registry(objective: Option<&str>) -> MetricRegistry {
    let objective = objective.map(str::to_owned);
    MetricRegistry::new(&CollectSpec { objective, ..CollectSpec::default() })
}

fn summarized(metric: Option<Metric>) -> Option<(String, serde_json::Value, bool)> {
    metric.map(|metric| {
        assert_eq!((metric.kind, metric.sequence), (MetricKind::Final, 0));
        (metric.name, metric.value.as_json().clone(), metric.derived)
    })
}

#[test]
fn the_result_is_chosen_by_rules() {
    use MetricKind::{Final, Intermediate};
    let sdk = |kind, value| found(Source::Sdk, OBJECTIVE, Some(kind), value);
    let json = |name, kind, value| found(Source::Json, name, Some(kind), value);
    #[rustfmt::skip]
    let table = [
        // what it says               objective       reported                                                    result
        ("nothing",                   None,           vec![],                                                     None),
        ("the sole name",             None,           vec![text("r2", 0.1), text("r2", 0.2)],                     Some(("r2", 0.2, false))),
        ("but no setting",            None,           vec![text("time", 3.0)],                                    None),
        ("the likeliest name",        None,           vec![text("acc", 0.5), text("loss", 0.1), text("r2", 1.0)], Some(("acc", 0.5, false))),
        ("its last value",            None,           vec![text("acc", 0.5), text("loss", 0.1), text("acc", 0.6)], Some(("acc", 0.6, false))),
        ("else the last name",        None,           vec![text("q2", 0.5), text("energy", 0.1), text("lr", 1.0)], Some(("energy", 0.1, false))),
        ("by its last appearance",    None,           vec![text("q2", 0.5), text("energy", 0.1), text("q2", 1.0)], Some(("q2", 1.0, false))),
        ("only bystanders",           None,           vec![text("epoch", 1.0), text("lr", 0.1)],                  None),
        ("the named objective",       Some("loss"),   vec![text("acc", 0.5), text("loss", 0.1)],                  Some(("loss", 0.1, false))),
        ("and no other",              Some("loss"),   vec![text("acc", 0.5)],                                     None),
        ("a final of the SDK",        None,           vec![sdk(Intermediate, 0.1), sdk(Final, 0.2)],              None),
        ("the SDK's intermediates",   None,           vec![sdk(Intermediate, 0.1), sdk(Intermediate, 0.2)],       Some((OBJECTIVE, 0.2, true))),
        ("text beside the SDK",       Some("acc"),    vec![sdk(Intermediate, 0.1), text("acc", 0.9)],             Some((OBJECTIVE, 0.1, true))),
        ("a final of a JSON line",    None,           vec![json("acc", Final, 0.9), text("acc", 0.1)],            None),
        ("no such beside the SDK",    None,           vec![sdk(Intermediate, 0.1), json("acc", Final, 0.9)],      Some((OBJECTIVE, 0.1, true))),
    ];
    for (case, objective, entered, concluded) in table {
        let mut registry = registry(objective);
        for found in entered {
            registry.register(found);
        }
        let expected =
            concluded.map(|(name, value, derived)| (name.to_owned(), json!(value), derived));
        assert_eq!(summarized(registry.conclude(true)), expected, "{case}");
        assert_eq!(summarized(registry.conclude(true)), None, "{case}, once");
    }
}

#[test]
fn a_failed_trial_has_no_concluded_result() {
    let mut registry = registry(None);
    registry.register(text("acc", 0.5));
    assert_eq!(registry.conclude(false), None);
}

#[test]
fn a_json_final_is_reported_at_once_and_numbered() {
    let mut registry = registry(None);
    let finals = [0.1, 0.2].map(|value| {
        let found = found(Source::Json, "acc", Some(MetricKind::Final), value);
        let metric = registry.register(found).unwrap();
        (metric.kind, metric.sequence)
    });
    assert_eq!(finals, [(MetricKind::Final, 0), (MetricKind::Final, 1)]);
}

#[test]
fn printed_values_are_numbered_per_name_and_never_backwards() {
    let mut registry = registry(None);
    #[rustfmt::skip]
    let table = [
        ("loss", None,    0),
        ("acc",  None,    0),
        ("loss", None,    1),
        ("loss", Some(7), 7),
        ("loss", Some(7), 8),
        ("loss", Some(2), 9),
        ("loss", None,    10),
        ("acc",  Some(u64::MAX), u64::MAX),
        ("acc",  None,    u64::MAX),
    ];
    for (name, given, sequence) in table {
        let metric =
            registry.register(CollectedMetric { sequence: given, ..text(name, 0.5) }).unwrap();
        let expected = (MetricKind::Intermediate, sequence, false);
        assert_eq!((metric.kind, metric.sequence, metric.derived), expected, "{name} {given:?}");
    }
}

#[test]
fn the_sdk_numbers_its_metrics_itself() {
    let mut registry = registry(None);
    for given in [0, 1, 1, 0] {
        let kind = Some(MetricKind::Intermediate);
        let found =
            CollectedMetric { sequence: Some(given), ..found(Source::Sdk, OBJECTIVE, kind, 0.5) };
        assert_eq!(registry.register(found).unwrap().sequence, given);
    }
}

#[test]
fn names_over_the_bound_are_counted_but_not_the_objective() {
    let mut registry = registry(Some("acc"));
    for index in 0..MAX_PRINTED_NAMES + 2 {
        let kept = registry.register(text(&format!("n{index}"), 0.5)).is_some();
        assert_eq!(kept, index < MAX_PRINTED_NAMES, "{index}");
    }
    assert!(registry.register(text("n0", 0.6)).is_some());
    assert!(registry.register(text("acc", 0.7)).is_some());
    assert_eq!(summarized(registry.conclude(true)), Some(("acc".to_owned(), json!(0.7), false)));
    let codes: Vec<_> = registry.notes().into_iter().map(|(code, _)| code).collect();
    assert_eq!(codes, ["metric-names-exceeded"]);
}

#[test]
fn a_flood_is_thinned_and_its_last_value_known() {
    let mut registry = registry(None);
    let total = 8 * MAX_DENSE_VALUES + 1;
    let mut kept = Vec::new();
    for index in 0..total {
        #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "small")]
        kept.extend(registry.register(text("loss", index as f64)).map(|metric| metric.sequence));
    }
    let between = |from: u64, to: u64| {
        kept.iter()
            .filter(|n| (from * MAX_DENSE_VALUES..to * MAX_DENSE_VALUES).contains(*n))
            .count()
    };
    let dense = usize::try_from(MAX_DENSE_VALUES).unwrap();
    assert_eq!(between(0, 1), dense);
    assert_eq!(between(1, 2), dense / 2);
    assert_eq!(between(2, 4), dense / 2);
    assert_eq!(between(4, 8), dense / 2);
    assert_eq!(registry.thinned_values, total - u64::try_from(kept.len()).unwrap());
    let last = summarized(registry.conclude(true)).unwrap();
    assert_eq!(last.1, json!(80_000.0));
    assert_eq!(registry.notes().len(), 1);
}

#[test]
fn a_missing_objective_is_noted() {
    let sdk = found(Source::Sdk, OBJECTIVE, Some(MetricKind::Intermediate), 0.1);
    #[rustfmt::skip]
    let table = [
        // what it says             entered                                      noted
        ("nothing printed",         vec![],                                      false),
        ("another name only",       vec![text("acc", 0.5)],                      true),
        ("the objective, too",      vec![text("acc", 0.5), text("f1", 0.5)],     false),
        ("the SDK goes before it",  vec![sdk, text("acc", 0.5)],                 false),
    ];
    for (case, entered, noted) in table {
        // The outcome of the trial does not matter: a failed trial gets no result anyway.
        for succeeded in [true, false] {
            let mut registry = registry(Some("f1"));
            for found in entered.clone() {
                registry.register(found);
            }
            registry.conclude(succeeded);
            let codes: Vec<_> = registry.notes().into_iter().map(|(code, _)| code).collect();
            let expected: &[&str] = if noted { &["objective-not-seen"] } else { &[] };
            assert_eq!(codes, expected, "{case}, succeeded: {succeeded}");
        }
    }
}

proptest! {
    #[test]
    fn the_last_value_of_the_sole_name_is_the_result(
        values in proptest::collection::vec(any::<f64>(), 1..50),
    ) {
        let mut registry = registry(None);
        for value in &values {
            registry.register(text("x", *value));
        }
        let last = MetricValue::from(*values.last().unwrap());
        prop_assert_eq!(registry.conclude(true).unwrap().value, last);
    }
}
