//! PURE: curves with fewer points, and the best so far.

use serde::Serialize;
use serde_json::Value;
use trial_protocol::{MetricValue, OBJECTIVE};
use utoipa::ToSchema;

use crate::experiment::result::is_better;
use crate::tuner::OptimizeMode;

/// Thins a curve to about `points` points: the first, the last, and of each stretch in between the lowest
/// and the highest, so that no peak is lost. `number` says how high a point is; one without a number stands
/// for itself only where its stretch has no other.
pub fn thin<T>(curve: Vec<T>, points: usize, number: impl Fn(&T) -> Option<f64>) -> Vec<T> {
    if curve.len() <= points || points < 4 {
        return curve;
    }
    let stretches = (points - 2) / 2;
    let inner = curve.len() - 2;
    let mut kept = vec![false; curve.len()];
    if let [first, .., last] = kept.as_mut_slice() {
        (*first, *last) = (true, true);
    }
    for stretch in 0..stretches {
        let from = 1 + inner * stretch / stretches;
        let to = 1 + inner * (stretch + 1) / stretches;
        let numbers = (from..to).filter_map(|at| Some((at, number(&curve[at])?)));
        let numbers: Vec<_> = numbers.filter(|(_, number)| !number.is_nan()).collect();
        let lowest = numbers.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let highest = numbers.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        match (lowest, highest) {
            (Some((low, _)), Some((high, _))) => (kept[*low], kept[*high]) = (true, true),
            (_, _) => kept[from] = true,
        }
    }
    curve.into_iter().zip(kept).filter_map(|(point, keep)| keep.then_some(point)).collect()
}

/// The curves that a reported value is a point of, each with its number: the metric's own, and of an object one for each member
/// that is a number. The member `default` is the metric itself; NNI's SDK has one name for all that it reports, so that
/// its members go by their own.
pub fn points_of(name: &str, value: &Value) -> Vec<(String, f64)> {
    let number = |value: &Value| MetricValue::from(value.clone()).number();
    let Some(members) = value.as_object() else {
        return number(value).map(|number| (name.to_owned(), number)).into_iter().collect();
    };
    let plain = members.iter().filter(|(_, value)| !value.is_object());
    plain
        .filter_map(|(member, value)| {
            let curve = match (member.as_str(), name) {
                (OBJECTIVE, _) => name.to_owned(),
                (member, OBJECTIVE) => member.to_owned(),
                (member, name) => format!("{name}.{member}"),
            };
            Some((curve, number(value)?))
        })
        .collect()
}

/// One improvement of the best result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Improvement {
    /// The trial that brought it: its position.
    pub sequence: u64,
    /// The result.
    pub value: f64,
}

/// Every result that was better than all before it.
pub fn improvements(
    results: impl Iterator<Item = (u64, f64)>,
    mode: OptimizeMode,
) -> Vec<Improvement> {
    let mut steps: Vec<Improvement> = Vec::new();
    for (sequence, value) in results {
        if is_better(mode, Some(value), steps.last().map(|step| step.value)) {
            steps.push(Improvement { sequence, value });
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn peaks_survive_thinning() {
        let curve: Vec<f64> = (0..1000).map(|at| if at == 500 { 99.0 } else { 0.0 }).collect();
        let thin = thin(curve, 20, |value| Some(*value));
        assert!(thin.len() <= 20 && thin.contains(&99.0), "{thin:?}");
    }

    #[test]
    fn each_number_of_an_object_is_a_point_of_its_own_curve() {
        use serde_json::json;
        let object =
            json!({"default": 0.5, "acc": 1, "note": "x", "loss": "NaN", "more": {"default": 3}});
        let of = |name: &str, value: &Value| {
            let points = points_of(name, value).into_iter();
            points.map(|(name, number)| format!("{name} {number}")).collect::<Vec<_>>()
        };
        assert_eq!(of("default", &object), ["default 0.5", "acc 1", "loss NaN"]);
        assert_eq!(of("val", &object), ["val 0.5", "val.acc 1", "val.loss NaN"]);
        assert_eq!(of("acc", &json!(0.25)), ["acc 0.25"]);
        assert!(of("acc", &json!("good")).is_empty());
    }

    #[test]
    fn only_improvements_are_told() {
        let results = [(0, 3.0), (1, 5.0), (2, f64::NAN), (3, 2.0), (4, 1.0)];
        let of = |mode| {
            let steps = improvements(results.into_iter(), mode);
            steps.into_iter().map(|step| step.sequence).collect::<Vec<_>>()
        };
        assert_eq!(of(OptimizeMode::Maximize), [0, 1]);
        assert_eq!(of(OptimizeMode::Minimize), [0, 3, 4]);
    }

    proptest! {
        #[test]
        fn a_thin_curve_keeps_its_ends_and_its_order(
            curve in prop::collection::vec(prop::option::of(any::<f64>()), 0..300),
            points in 0_usize..50,
        ) {
            let numbered: Vec<_> = curve.into_iter().enumerate().collect();
            let thin = thin(numbered.clone(), points, |(_, number)| *number);
            prop_assert_eq!(thin.first().map(|p| p.0), numbered.first().map(|p| p.0));
            prop_assert_eq!(thin.last().map(|p| p.0), numbered.last().map(|p| p.0));
            prop_assert!(thin.is_sorted_by_key(|p| p.0));
            prop_assert!(thin.len() <= points.max(4) || thin.len() == numbered.len() && points < 4);
        }
    }
}
