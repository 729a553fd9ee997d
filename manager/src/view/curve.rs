//! PURE: curves with fewer points, and the best result so far.

use serde::Serialize;
use serde_json::Value;
use trial_protocol::{Direction, MetricValue, OBJECTIVE};
use utoipa::ToSchema;

use crate::search::goals::is_better;

/// Thins a curve to about `points` points: the first, the last, and the lowest and the highest of each stretch in
/// between, so that no peak is lost. `number` returns the value of a point. A point without a number is kept only if
/// its stretch has no other point.
fn thin<T>(curve: Vec<T>, points: usize, number: impl Fn(&T) -> Option<f64>) -> Vec<T> {
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

/// A curve that is thinned while it is read. However long it is, it needs memory for about four times the requested
/// number of points, and all its parts are equally dense.
#[derive(Debug)]
pub struct CurveDownsampler<T> {
    points: usize,
    /// Half the number of points of which two are kept.
    stretch: usize,
    first: Option<CurvePoint<T>>,
    kept_points: Vec<CurvePoint<T>>,
    /// The beginning of a stretch that is not complete.
    incomplete_stretch: Vec<CurvePoint<T>>,
    last: Option<CurvePoint<T>>,
}

/// A point and its value.
type CurvePoint<T> = (T, Option<f64>);

impl<T> CurveDownsampler<T> {
    /// Creates a downsampler that keeps about `points` points, at least four.
    pub fn new(points: usize) -> Self {
        let (first, last) = (None, None);
        Self {
            points: points.max(4),
            stretch: 1,
            first,
            kept_points: Vec::new(),
            incomplete_stretch: Vec::new(),
            last,
        }
    }

    /// Adds the next point and its value.
    pub fn add(&mut self, point: T, number: Option<f64>) {
        if self.first.is_none() {
            self.first = Some((point, number));
            return;
        }
        let Some(before) = self.last.replace((point, number)) else { return };
        self.incomplete_stretch.push(before);
        if self.stretch == 1 {
            self.kept_points.append(&mut self.incomplete_stretch);
        } else if self.incomplete_stretch.len() == 2 * self.stretch {
            self.kept_points.extend(peaks(std::mem::take(&mut self.incomplete_stretch)));
        }
        if self.kept_points.len() > 2 * self.points {
            // The points of two stretches are thinned to those of one stretch of twice the length.
            let mut all = std::mem::take(&mut self.kept_points).into_iter();
            while !all.as_slice().is_empty() {
                self.kept_points.extend(peaks(all.by_ref().take(4).collect()));
            }
            self.stretch *= 2;
        }
    }

    /// Returns the curve, with at most the requested number of points.
    pub fn finish(self) -> Vec<T> {
        let curve = self.first.into_iter().chain(self.kept_points);
        let curve: Vec<_> = curve.chain(peaks(self.incomplete_stretch)).chain(self.last).collect();
        let thin = thin(curve, self.points, |(_, number)| *number);
        thin.into_iter().map(|(point, _)| point).collect()
    }
}

/// Returns the lowest and the highest point of a stretch, in their order.
fn peaks<T>(stretch: Vec<CurvePoint<T>>) -> impl Iterator<Item = CurvePoint<T>> {
    let numbers = stretch.iter().map(|(_, number)| number.filter(|number| !number.is_nan()));
    let numbers: Vec<_> =
        numbers.enumerate().filter_map(|(at, number)| Some((at, number?))).collect();
    let lowest = numbers.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |found| found.0);
    let highest = numbers.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |found| found.0);
    let peaks = stretch.into_iter().enumerate();
    peaks.filter(move |(at, _)| [lowest, highest].contains(at)).map(|(_, point)| point)
}

/// Returns the curves to which a reported value belongs, each with its number: the metric's own curve, or for an
/// object one curve for each numeric member. The member `default` is the metric itself. NNI's SDK uses one name for
/// all reports, so its members keep their own names.
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

/// An improvement of the best result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Improvement {
    /// The position of the trial with this result.
    pub sequence: u64,
    /// The result.
    pub value: f64,
}

/// Returns every result that was better than all before it.
pub fn improvements(
    results: impl Iterator<Item = (u64, f64)>,
    direction: Direction,
) -> Vec<Improvement> {
    let mut steps: Vec<Improvement> = Vec::new();
    for (sequence, value) in results {
        if is_better(direction, Some(value), steps.last().map(|step| step.value)) {
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

    fn thinned(curve: impl IntoIterator<Item = f64>, points: usize) -> (Vec<(usize, f64)>, usize) {
        let mut thinner = CurveDownsampler::new(points);
        let mut most = 0;
        for (at, value) in curve.into_iter().enumerate() {
            thinner.add((at, value), Some(value));
            most = most.max(thinner.kept_points.len() + thinner.incomplete_stretch.len());
        }
        (thinner.finish(), most)
    }

    #[test]
    fn all_parts_of_a_long_curve_are_equally_dense() {
        let saw = |at: u32| if at == 123_457 { 99.0 } else { f64::from(at % 7) };
        let (thin, most) = thinned((0..1_000_000).map(saw), 1000);
        assert!((500..=1000).contains(&thin.len()), "{}", thin.len());
        assert!(most < 4000, "{most} were held");
        assert!(thin.contains(&(123_457, 99.0)), "a peak is lost");
        let widest = thin.windows(2).map(|two| two[1].0 - two[0].0).max();
        assert!(widest < Some(10_000), "{widest:?}");
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
    fn only_improvements_are_kept() {
        let results = [(0, 3.0), (1, 5.0), (2, f64::NAN), (3, 2.0), (4, 1.0)];
        let of = |direction| {
            let steps = improvements(results.into_iter(), direction);
            steps.into_iter().map(|step| step.sequence).collect::<Vec<_>>()
        };
        assert_eq!(of(Direction::Maximize), [0, 1]);
        assert_eq!(of(Direction::Minimize), [0, 3, 4]);
    }

    proptest! {
        #[test]
        fn a_thin_curve_keeps_its_ends_and_its_order(
            curve in prop::collection::vec(prop::option::of(any::<f64>()), 0..300),
            points in 0_usize..50,
        ) {
            let numbered: Vec<_> = curve.into_iter().enumerate().collect();
            let mut thinner = CurveDownsampler::new(points);
            for (at, number) in &numbered {
                thinner.add(*at, *number);
            }
            let as_it_comes = thinner.finish();
            prop_assert_eq!(as_it_comes.first(), numbered.first().map(|p| &p.0));
            prop_assert_eq!(as_it_comes.last(), numbered.last().map(|p| &p.0));
            prop_assert!(as_it_comes.is_sorted());
            prop_assert!(as_it_comes.len() <= points.max(4));
            prop_assert!(as_it_comes.len() == numbered.len() || numbered.len() > points.max(4));
            let thin = thin(numbered.clone(), points, |(_, number)| *number);
            prop_assert_eq!(thin.first().map(|p| p.0), numbered.first().map(|p| p.0));
            prop_assert_eq!(thin.last().map(|p| p.0), numbered.last().map(|p| p.0));
            prop_assert!(thin.is_sorted_by_key(|p| p.0));
            prop_assert!(thin.len() <= points.max(4) || thin.len() == numbered.len() && points < 4);
        }
    }
}
