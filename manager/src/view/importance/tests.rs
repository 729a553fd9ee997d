use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::search::class_args::parse_direction;
use crate::search::search_space::SearchSpace;
use crate::view::{flatten_parameters, space};

fn shares(space: &Value, trials: &[(Value, f64)], direction: Direction) -> Vec<Importance> {
    let axes = SearchSpace::parse(space).map(|space| space::axes(&space)).unwrap_or_default();
    let results: Vec<_> =
        trials.iter().map(|(value, result)| (flatten_parameters(value), *result)).collect();
    importance(&results, &axes, direction)
}

/// Returns a number from 0 to 1 without a pattern: multiples of the square root of `of`, modulo 1.
fn pseudo_random_share(at: u32, of: f64) -> f64 {
    (f64::from(at + 1) * of.sqrt()).fract()
}

#[test]
fn the_shares_equal_optunas() {
    let recorded = include_str!("../../../fixtures/importance/optuna_values.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    for case in recorded["cases"].as_array().unwrap() {
        let trials: Vec<(Value, f64)> = serde_json::from_value(case["trials"].clone()).unwrap();
        let direction = parse_direction(case["direction"].as_str().unwrap()).unwrap();
        let found = shares(&case["space"], &trials, direction);
        let expected = case["importance"].as_object().unwrap();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for one in &found {
            let expected_share = expected[&one.name].as_f64().unwrap();
            assert!(
                (one.share - expected_share).abs() < 1e-9,
                "{}: {} for {expected_share}",
                one.name,
                one.share
            );
        }
        assert!(found.is_sorted_by(|a, b| a.share >= b.share), "{found:?}");
    }
}

#[test]
fn the_documentation_compares_these_shares() {
    let recorded = include_str!("../../../fixtures/importance/optuna_values.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    let case = &recorded["cases"][0];
    let trials: Vec<(Value, f64)> = serde_json::from_value(case["trials"].clone()).unwrap();
    let page = include_str!("../../../../docs/benchmarks.md");
    for one in shares(&case["space"], &trials, Direction::Minimize) {
        let percent = |share: &Value| format!("{:.2}", 100.0 * share.as_f64().unwrap());
        let [ped, fanova] = ["importance", "fanova"].map(|of| percent(&case[of][&one.name]));
        let row = format!("| `{}` | {:.2} | {ped} | {fanova} |", one.name, 100.0 * one.share);
        assert!(page.contains(&row), "docs/benchmarks.md must contain {row}");
    }
}

#[test]
fn the_only_parameter_with_an_effect_has_the_whole_importance() {
    // The result depends only on x, and y and z are spread evenly for every x.
    let space = json!({
        "x": {"_type": "uniform", "_value": [0, 1]},
        "y": {"_type": "uniform", "_value": [0, 1]},
        "z": {"_type": "choice", "_value": ["a", "b"]},
        "same": {"_type": "choice", "_value": [1]},
    });
    let trials: Vec<(Value, f64)> = (0..10_000)
        .map(|at| {
            let (x, y) = (pseudo_random_share(at, 2.0), pseudo_random_share(at, 3.0));
            let z = if pseudo_random_share(at, 5.0) < 0.5 { "a" } else { "b" };
            (json!({"x": x, "y": y, "z": z, "same": 1}), (x - 0.3).powi(2))
        })
        .collect();
    let found = shares(&space, &trials, Direction::Minimize);
    let share = |name| found.iter().find(|one| one.name == name).unwrap().share;
    assert!(share("x") > 0.98 && share("y") < 0.01 && share("z") < 0.01, "{found:?}");
    assert!(share("same").abs() < f64::EPSILON, "{found:?}");
}

#[test]
fn few_or_equal_results_give_no_importance() {
    let space = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
    let trials = |count: u32, result: fn(f64) -> f64| -> Vec<(Value, f64)> {
        (0..count)
            .map(|at| {
                (json!({"x": pseudo_random_share(at, 2.0)}), result(pseudo_random_share(at, 2.0)))
            })
            .collect()
    };
    assert_eq!(shares(&space, &trials(7, |x| x), Direction::Minimize), []);
    assert_eq!(shares(&space, &trials(50, |_| 1.0), Direction::Minimize), []);
    assert_eq!(shares(&space, &trials(50, |_| f64::NAN), Direction::Minimize), []);
    assert_eq!(shares(&space, &trials(8, |x| x), Direction::Minimize).len(), 1);
}

proptest! {
    #[test]
    fn shares_add_up_to_one(
        rows in prop::collection::vec((any::<f64>(), 0_i64..5, any::<f64>()), 0..60),
        known in any::<bool>(),
    ) {
        let rows: Vec<_> = rows.into_iter().map(|(x, c, y)| (json!({"x": x, "c": c}), y)).collect();
        let space = json!({
            "x": {"_type": "uniform", "_value": [-1, 1]}, "c": {"_type": "choice", "_value": [0, 1, 2]},
        });
        let space = if known { space } else { json!({}) };
        let found = shares(&space, &rows, Direction::Maximize);
        for one in &found {
            prop_assert!((0.0..=1.0).contains(&one.share), "{one:?}");
        }
        let sum: f64 = found.iter().map(|one| one.share).sum();
        prop_assert!(found.is_empty() || (sum - 1.0).abs() < 1e-9, "{found:?}");
    }
}
