//! PURE: the results of a point with several trials: their mean, and its uncertainty.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value};
use trial_protocol::MetricValue;
use utoipa::ToSchema;

/// The 97.5 % quantiles of Student's t distribution with 1 to 10 degrees of freedom (NIST/SEMATECH e-Handbook of
/// Statistical Methods, section 1.3.6.7.2).
const T_QUANTILES: [f64; 10] =
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// The results of the trials that have the same parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Estimate {
    /// The number of results.
    pub results: usize,
    /// The number of results that the experiment requires for each point: `trialRepeats`.
    pub wanted: u64,
    /// The mean of the results.
    pub mean: f64,
    /// Half the width of the interval around the mean that contains the true value with 95 % confidence, by Student's
    /// t. Absent if there is only one result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_width: Option<f64>,
}

impl Estimate {
    /// Returns the estimate from results, or `None` if none of them is finite.
    pub fn new(numbers: &[f64], wanted: u64) -> Option<Self> {
        let finite: Vec<f64> =
            numbers.iter().copied().filter(|number| number.is_finite()).collect();
        let count = count_to_f64(finite.len());
        let mean = finite.iter().sum::<f64>() / count;
        let squares: f64 = finite.iter().map(|number| (number - mean).powi(2)).sum();
        let half_width = (finite.len() > 1).then(|| {
            let error = (squares / (count - 1.0) / count).sqrt();
            quantile(finite.len() - 1) * error
        });
        (!finite.is_empty()).then_some(Self { results: finite.len(), wanted, mean, half_width })
    }

    /// Returns whether the point has as many results as the experiment requires.
    pub fn is_complete(&self) -> bool {
        u64::try_from(self.results).unwrap_or(u64::MAX) >= self.wanted
    }
}

/// Returns the 97.5 % quantile of Student's t distribution.
fn quantile(degrees: usize) -> f64 {
    if let Some(exact) = degrees.checked_sub(1).and_then(|at| T_QUANTILES.get(at)) {
        return *exact;
    }
    // The first terms of the expansion around the normal quantile (Abramowitz and Stegun, 26.7.5).
    let (z, n) = (1.959_964_f64, count_to_f64(degrees));
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    z + first / n + second / n.powi(2)
}

fn count_to_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

/// Returns the mean of several results: of the numbers, or of each member that is a number in all results. Returns
/// `None` if the results have no number in common.
pub fn mean(values: &[MetricValue]) -> Option<MetricValue> {
    let count = count_to_f64(values.len());
    let of = |numbers: Option<Vec<f64>>| {
        let numbers = numbers.filter(|numbers| !numbers.is_empty())?;
        Some(MetricValue::from(numbers.iter().sum::<f64>() / count))
    };
    let Some(first) = values.first()?.as_json().as_object() else {
        return of(values.iter().map(MetricValue::number).collect());
    };
    let member = |name: &String| {
        let of_one = |value: &MetricValue| {
            MetricValue::from(value.as_json().as_object()?.get(name)?.clone()).number()
        };
        let mean = of(values.iter().map(of_one).collect())?;
        Some((name.clone(), mean.as_json().clone()))
    };
    let members: Map<String, Value> = first.keys().filter_map(member).collect();
    let mean = MetricValue::from(Value::Object(members));
    mean.number().is_some().then_some(mean)
}

/// The results of each point of a search that repeats its points. The parameters identify a point.
#[derive(Debug, Clone)]
pub struct PointResults {
    wanted: u64,
    points: HashMap<String, Vec<f64>>,
}

impl PointResults {
    /// Creates an empty collection for a search that requires `wanted` results for each point.
    pub fn new(wanted: u64) -> Self {
        Self { wanted, points: HashMap::new() }
    }

    /// Adds a trial's result. Returns the number with which its point competes: the mean when the point has all its
    /// results, or the result itself if points are not repeated.
    pub fn add_result(&mut self, parameters: &Value, number: f64) -> Option<f64> {
        if self.wanted <= 1 {
            return Some(number);
        }
        let numbers = self.points.entry(parameters.to_string()).or_default();
        numbers.push(number);
        let estimate = Estimate::new(numbers, self.wanted)?;
        estimate.is_complete().then_some(estimate.mean)
    }
}

/// Returns the trials that compete for the best result, each with the number that counts. If points are repeated, a
/// complete point competes once, with its mean and the trial that completed it. While no point is complete, all results
/// compete.
///
/// `results` are the results of the succeeded trials, in the order of the trials, with their parameters.
pub fn competitors<'a, T: Copy>(
    results: impl Iterator<Item = (T, &'a Value, f64)> + Clone,
    wanted: u64,
) -> Vec<(T, f64)> {
    let mut points = PointResults::new(wanted);
    let means = results.clone().filter_map(|(trial, parameters, number)| {
        Some((trial, points.add_result(parameters, number)?))
    });
    let means: Vec<_> = means.collect();
    if means.is_empty() {
        return results.map(|(trial, _, number)| (trial, number)).collect();
    }
    means
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_estimate_has_the_confidence_interval_of_the_mean() {
        // With the quantiles 12.706, 4.303, 2.776, 2.201 and 2.023.
        #[rustfmt::skip]
        let table = [
            (vec![1.0, 2.0],                            1.5, Some(6.353_102_4)),
            (vec![0.9, 1.0, 1.1],                       1.0, Some(0.248_413_8)),
            (vec![1.0; 5],                              1.0, Some(0.0)),
            ((1..=12).map(f64::from).collect(),         6.5, Some(2.290_869_4)),
            ((1..=40).map(f64::from).collect(),        20.5, Some(3.738_767_3)),
            (vec![3.0],                                 3.0, None),
            (vec![3.0, f64::NAN],                       3.0, None),
        ];
        for (numbers, mean, half_width) in table {
            let estimate = Estimate::new(&numbers, 2).unwrap();
            assert!((estimate.mean - mean).abs() < 1e-12, "{numbers:?}: {estimate:?}");
            match (estimate.half_width, half_width) {
                (Some(found), Some(wanted)) => {
                    assert!((found - wanted).abs() < 1e-3 * (1.0 + wanted), "{numbers:?}: {found}");
                }
                (found, wanted) => assert_eq!(found, wanted, "{numbers:?}"),
            }
        }
        assert_eq!(Estimate::new(&[f64::NAN], 1), None);
    }

    #[test]
    fn the_mean_of_objects_has_the_means_of_their_common_members() {
        #[rustfmt::skip]
        let table = [
            (vec![json!(1), json!(2)],                                               Some(json!(1.5))),
            (vec![json!({"default": 1, "size": 3, "a": "x"}), json!({"default": 2, "size": 5, "b": 1})], Some(json!({"default": 1.5, "size": 4.0}))),
            (vec![json!(1), json!("NaN")],                                           Some(json!("NaN"))),
            (vec![json!({"default": 1}), json!(2)],                                  None),
            (vec![],                                                                 None),
        ];
        for (values, expected) in table {
            let values: Vec<MetricValue> = values.into_iter().map(MetricValue::from).collect();
            let found = mean(&values).map(|mean| mean.as_json().clone());
            assert_eq!(found, expected, "{values:?}");
        }
    }

    #[test]
    fn a_complete_point_competes_with_its_mean() {
        let (one, other) = (json!({"x": 1}), json!({"x": 2}));
        let results = [(0, &one, 1.0), (1, &other, 9.0), (2, &one, 3.0), (3, &other, 1.0)];
        let among = |count: usize, wanted| competitors(results.into_iter().take(count), wanted);
        assert_eq!(among(4, 1), [(0, 1.0), (1, 9.0), (2, 3.0), (3, 1.0)]);
        assert_eq!(among(2, 2), [(0, 1.0), (1, 9.0)], "none is complete");
        assert_eq!(among(3, 2), [(2, 2.0)]);
        assert_eq!(among(4, 2), [(2, 2.0), (3, 5.0)]);
    }
}
