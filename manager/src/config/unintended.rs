//! PURE: settings that are allowed, but that users rarely intend. Each finding is certain.

use super::{ExperimentSpec, TunerChoice};
use crate::search::search_space::Dimension;

/// Returns a warning for each parameter of the search space that has equal options or a single value.
pub fn space_warnings(spec: &ExperimentSpec) -> Vec<String> {
    let warning = |dimension: &Dimension| {
        let (name, domain) = (&dimension.name, &dimension.domain);
        let repeated = domain.repeated_option().map(|option| {
            format!(
                "searchSpace: `{name}` has the option {option} twice, so it is tried more often"
            )
        });
        let constant = || {
            let value = domain.only_multiple()?;
            Some(format!("searchSpace: the step of `{name}` leaves one value, {value}"))
        };
        repeated.or_else(constant)
    };
    spec.search_space.dimensions().iter().filter_map(warning).collect()
}

/// Returns a warning if nothing in the file ends the search. A user's own tuner may end it, and so may a tuner that has
/// tried all points of a finite space.
pub fn endless_warning(spec: &ExperimentSpec) -> Option<String> {
    let is_bounded = spec.max_trial_number.is_some()
        || spec.max_experiment_duration.is_some()
        || spec.target_metric.is_some();
    let is_own = matches!(spec.tuner, TunerChoice::BuiltIn(_));
    let is_finite = spec.search_space.size().is_some();
    let is_endless = !is_bounded && is_own && !is_finite;
    is_endless.then(|| {
            "the search has no end: it runs until it is stopped; `maxTrialNumber` or `maxExperimentDuration` limits it"
                .to_owned()
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config;

    fn spec(space: &Value, fields: &Value) -> ExperimentSpec {
        let mut canonical = json!({
            "trialCommand": "true", "trialCodeDirectory": "/", "trialConcurrency": 1,
            "searchSpace": space, "tuner": {"name": "Random"}, "trainingService": {"platform": "local"},
        });
        let members = canonical.as_object_mut().unwrap();
        members.extend(fields.as_object().unwrap().clone());
        config::from_canonical(&canonical).unwrap()
    }

    #[test]
    fn equal_options_and_single_values_have_a_warning() {
        #[rustfmt::skip]
        let table = [
            ("choice",      json!([1, 2, 1.0]),        Some("`x` has the option 1.0 twice")),
            ("choice",      json!(["a", "b", "a"]),    Some("`x` has the option \"a\" twice")),
            ("choice",      json!([1, "1", true]),     None),
            ("choice",      json!([1]),                None),
            ("quniform",    json!([0, 4, 10]),         Some("leaves one value, 0")),
            ("quniform",    json!([7, 9, 10]),         Some("leaves one value, 9")),
            ("quniform",    json!([0, 6, 10]),         None),
            ("qloguniform", json!([1, 4, 10]),         Some("leaves one value, 1")),
            ("uniform",     json!([0, 1]),             None),
            ("qnormal",     json!([0, 1, 10]),         None),
            ("randint",     json!([3, 4]),             None),
        ];
        for (kind, values, expected) in table {
            let space = json!({"x": {"_type": kind, "_value": values}, "y": {"_type": "choice", "_value": [0, 1]}});
            let warnings = space_warnings(&spec(&space, &json!({})));
            assert_eq!(warnings.len(), usize::from(expected.is_some()), "{kind}: {warnings:?}");
            let found =
                warnings.iter().all(|warning| warning.contains(expected.unwrap_or_default()));
            assert!(found, "{kind}: {warnings:?}");
        }
    }

    #[test]
    fn only_a_search_that_nothing_ends_is_called_endless() {
        let (endless, finite) = (
            json!({"x": {"_type": "uniform", "_value": [0, 1]}}),
            json!({"x": {"_type": "choice", "_value": [0, 1]}}),
        );
        #[rustfmt::skip]
        let table = [
            (&endless, json!({}),                                          true),
            (&endless, json!({"maxTrialNumber": 3}),                       false),
            (&endless, json!({"maxExperimentDuration": "1h"}),             false),
            (&endless, json!({"targetMetric": 1}),                         false),
            (&endless, json!({"tuner": {"command": ["./my-tuner"]}}),      false),
            (&finite,  json!({}),                                          false),
        ];
        for (space, fields, expected) in table {
            let warning = endless_warning(&spec(space, &fields));
            assert_eq!(warning.is_some(), expected, "{fields}: {warning:?}");
        }
    }
}
