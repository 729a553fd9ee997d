//! The tree-structured Parzen estimator over whole points instead of single parameters, after Falkner and others,
//! "BOHB", 2018, and the default of Optuna 5's `TPESampler`.
//!
//! Parameters that are present together form a group: those of the top level, and those of each option of a nested
//! choice. The good trials of a group form one density, and the other trials a second density. Each density is a
//! mixture with a kernel around every trial and a kernel for the search space itself. The estimator draws candidates
//! from the first density, and proposes the candidate with the largest ratio of the two densities. It then continues
//! with the groups of the chosen options. An integer is a number, similar to its neighbours; in NNI, it is a
//! category. Running trials count among the other trials.
//!
//! With several objectives, the good trials are those of the first Pareto fronts. From a front that does not fit as a
//! whole, the estimator takes the trials that together dominate most (Ozaki and others, "Multiobjective
//! Tree-Structured Parzen Estimator", 2022). A trial that satisfies the constraints is better than a trial that does
//! not.

use rand_chacha::ChaCha8Rng;

use super::kernels::{Axis, Kernels, Place};
use super::{count_to_f64, f64_to_count};
use crate::search::goals::Merit;
use crate::search::pareto;
use crate::search::search_space::{Coordinate, Parent, Point, SearchSpace};
use crate::search::tuner::model_based::{Model, ObservedPoint, Trials};

/// The settings of the estimator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::search::tuner) struct JointEstimator {
    /// The number of results before which proposals are quasi-random.
    startup: usize,
    /// The number of candidates for each group.
    candidates: usize,
    /// The share of the trials that is good.
    gamma: f64,
    /// The maximum number of good trials.
    max_good: usize,
    /// The power of the number of good trials with which the minimum width of their kernels falls. Optuna uses 1 for
    /// all trials. A larger power keeps candidates close to good trials, while bad trials still affect a wide area.
    narrowing_power: f64,
    /// The same power for several objectives. Their good trials lie along a front, so a wide kernel would reach from
    /// one compromise to another.
    front_narrowing_power: f64,
}

/// The trials of a search, each part in the order of their ids.
struct Split<'a> {
    good: Vec<&'a Point>,
    others: Vec<&'a Point>,
    /// The power with which the minimum width of the kernels around good trials falls.
    narrowing_power: f64,
}

impl Default for JointEstimator {
    fn default() -> Self {
        Self {
            startup: 10,
            candidates: 24,
            gamma: 0.1,
            max_good: 25,
            narrowing_power: 1.5,
            front_narrowing_power: 2.0,
        }
    }
}

impl JointEstimator {
    /// Creates an estimator with another share of good trials, and without a startup phase.
    pub(in crate::search::tuner) fn with_good_share(gamma: f64, candidates: usize) -> Self {
        Self { startup: 0, candidates, gamma, ..Self::default() }
    }

    /// Splits the trials into the good trials and the others.
    fn split<'a>(&self, known: &[ObservedPoint<'a>]) -> Split<'a> {
        let done: Vec<(usize, &Merit)> =
            known.iter().enumerate().filter_map(|(at, known)| Some((at, known.merit?))).collect();
        let good = f64_to_count(
            (self.gamma * count_to_f64(done.len())).ceil().min(count_to_f64(self.max_good)),
        );
        let merits: Vec<&Merit> = done.iter().map(|(_, merit)| *merit).collect();
        let mut is_good = vec![false; known.len()];
        for at in pareto::select_best(&merits, good) {
            is_good[done[at].0] = true;
        }
        let (below, above): (Vec<_>, Vec<_>) =
            known.iter().zip(is_good).partition(|(_, good)| *good);
        let points = |part: Vec<(&ObservedPoint<'a>, bool)>| {
            part.iter().map(|(known, _)| known.point).collect()
        };
        let has_several = merits.first().is_some_and(|merit| merit.losses.len() > 1);
        let closer = if has_several { self.front_narrowing_power } else { self.narrowing_power };
        Split { good: points(below), others: points(above), narrowing_power: closer }
    }

    /// Chooses the parameters below `parent`, then the parameters of the chosen options.
    fn choose_parameters(
        &self,
        space: &SearchSpace,
        parent: Option<Parent>,
        trials: &Split<'_>,
        point: &mut Point,
        rng: &mut ChaCha8Rng,
    ) {
        let dimensions = space.dimensions().iter().enumerate();
        let group: Vec<(usize, Axis)> = dimensions
            .filter(|(_, dimension)| dimension.parent == parent)
            .map(|(index, dimension)| (index, Axis::for_domain(&dimension.domain)))
            .collect();
        let Some((first, _)) = group.first() else { return };
        let axes: Vec<Axis> = group.iter().map(|(_, axis)| *axis).collect();
        let places = |points: &[&Point]| -> Vec<Vec<Place>> {
            let present = points.iter().filter(|point| point[*first].is_some());
            present
                .map(|point| group.iter().map(|(index, axis)| axis.place(point[*index])).collect())
                .collect()
        };
        let good = Kernels::around(&axes, &places(&trials.good), trials.narrowing_power);
        let bad = Kernels::around(&axes, &places(&trials.others), 1.0);
        let mut best: Option<(f64, Vec<Place>)> = None;
        for _ in 0..self.candidates {
            let candidate = good.draw(&axes, rng);
            let ratio = good.log_density(&candidate) - bad.log_density(&candidate);
            if best.as_ref().is_none_or(|(known, _)| ratio > *known) {
                best = Some((ratio, candidate));
            }
        }
        let Some((_, chosen)) = best else { return };
        for ((index, axis), place) in group.iter().zip(chosen) {
            let at = axis.coordinate(place);
            point[*index] = Some(at);
            if let Coordinate::Index(option) = at {
                let parent = Some(Parent { dimension: *index, option });
                self.choose_parameters(space, parent, trials, point, rng);
            }
        }
    }
}

impl Model for JointEstimator {
    fn is_starting(&self, trials: &Trials) -> bool {
        trials.losses().count() < self.startup
    }

    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point {
        if self.is_starting(trials) {
            return space.sample_point(rng);
        }
        let known: Vec<ObservedPoint<'_>> = trials.known().collect();
        let mut point = vec![None; space.dimensions().len()];
        self.choose_parameters(space, None, &self.split(&known), &mut point, rng);
        point
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use serde_json::json;
    use trial_protocol::MetricValue;

    use super::*;
    use crate::search::goals::Goals;
    use crate::search::tuner::Outcome;
    use trial_protocol::Direction;

    fn space(json: &serde_json::Value) -> SearchSpace {
        SearchSpace::parse(json).unwrap()
    }

    /// Returns suggestions after `n` random trials with this loss.
    fn suggestions(
        space: &SearchSpace,
        n: u64,
        loss: impl Fn(&crate::search::search_space::Parameters) -> f64,
    ) -> Vec<crate::search::search_space::Parameters> {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let mut trials = Trials::new(Direction::Minimize, &Goals::default());
        for id in 0..n {
            let point = space.sample_point(&mut rng);
            let value = MetricValue::from(loss(&space.parameters(&point)));
            trials.propose(id, point);
            trials.observe(id, &Outcome::Result(value));
        }
        let joint = JointEstimator::default();
        (0..200).map(|_| space.parameters(&joint.suggest(space, &trials, &mut rng))).collect()
    }

    #[test]
    fn one_in_ten_trials_is_good() {
        let point: Point = vec![];
        let losses = [5.0, 1.0, 4.0, 0.5, 3.0, 2.0, 9.0, 8.0, 7.0, 6.0, f64::INFINITY];
        let merits = losses.map(|loss| Merit { losses: vec![loss], violation: 0.0 });
        let known: Vec<ObservedPoint<'_>> = merits
            .iter()
            .map(|merit| ObservedPoint { point: &point, merit: Some(merit) })
            .chain([ObservedPoint { point: &point, merit: None }])
            .collect();
        let Split { good, others, .. } = JointEstimator::default().split(&known);
        // Two of eleven are good. The running trial is among the others.
        assert_eq!((good.len(), others.len()), (2, 10));
    }

    #[test]
    fn dependent_parameters_are_suggested_together() {
        let unit = json!({"_type": "uniform", "_value": [0, 1]});
        let space = space(&json!({"x": unit, "y": unit}));
        // The loss is small if both are small or both are large, so neither parameter is informative alone.
        let number =
            |p: &crate::search::search_space::Parameters, name: &str| p[name].as_f64().unwrap();
        let loss =
            |p: &crate::search::search_space::Parameters| (number(p, "x") - number(p, "y")).abs();
        let near = suggestions(&space, 80, loss);
        let near = near.iter().filter(|p| loss(p) < 0.2).count();
        // By chance, 36 of 100 would be near.
        assert!(near > 140, "{near} of 200");
    }

    #[test]
    fn integers_are_similar_to_their_neighbours_and_options_have_parameters() {
        let space = space(&json!({
            "n": {"_type": "randint", "_value": [0, 100]},
            "net": {"_type": "choice", "_value": [
                {"_name": "flat"}, {"_name": "deep", "rate": {"_type": "normal", "_value": [0, 1]}}]},
            "one": {"_type": "choice", "_value": [7]}
        }));
        let suggested = suggestions(&space, 60, |p| {
            let n = p["n"].as_f64().unwrap();
            let deep = p["net"].get("rate").map_or(50.0, |rate| rate.as_f64().unwrap().abs());
            (n - 70.0).abs() + deep
        });
        for parameters in &suggested {
            assert_eq!(space.validate(parameters), Ok(()));
        }
        let near = suggested.iter().filter(|p| (p["n"].as_f64().unwrap() - 70.0).abs() < 20.0);
        let near = near.count();
        assert!(near > 120, "{near} of 200, by chance 78");
        let deep = suggested.iter().filter(|p| p["net"]["_name"] == "deep").count();
        assert!(deep > 140, "{deep} of 200");
    }
}
