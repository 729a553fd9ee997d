//! Repetition of each point of an inner tuner, for trials with noisy results. The inner tuner proposes each point
//! once, and receives the mean of its results.
//!
//! The proposals of a point have consecutive numbers, so that a rebuilt tuner can group them again.

use std::collections::BTreeMap;

use super::{Outcome, Proposal, Sample, Tuner};
use crate::search::repeats::mean;
use crate::search::search_space::Parameters;

/// A tuner that proposes each point several times.
#[derive(Debug)]
pub(super) struct RepeatingTuner {
    inner: Box<dyn Tuner>,
    repeats: u64,
    /// The points with missing results, by the inner tuner's numbers.
    points: BTreeMap<u64, RepeatedPoint>,
}

#[derive(Debug)]
struct RepeatedPoint {
    parameters: Parameters,
    /// The outcomes by the number of the proposal, so that the order in which trials end does not matter.
    outcomes: BTreeMap<u64, Outcome>,
}

impl RepeatedPoint {
    fn new(parameters: Parameters) -> Self {
        Self { parameters, outcomes: BTreeMap::new() }
    }

    /// Returns the mean of the results, or a failure if there are no results.
    fn outcome(&self) -> Outcome {
        let results = self.outcomes.values().filter_map(|outcome| match outcome {
            Outcome::Result(value) => Some(value.clone()),
            Outcome::Failed => None,
        });
        mean(&results.collect::<Vec<_>>()).map_or(Outcome::Failed, Outcome::Result)
    }
}

impl RepeatingTuner {
    pub(super) fn new(inner: Box<dyn Tuner>, repeats: u64) -> Self {
        Self { inner, repeats: repeats.max(1), points: BTreeMap::new() }
    }
}

impl Tuner for RepeatingTuner {
    fn propose(&mut self, id: u64) -> Proposal {
        let number = id / self.repeats;
        if let Some(point) = self.points.get(&number) {
            return Proposal::Parameters(point.parameters.clone());
        }
        let proposal = self.inner.propose(number);
        if let Proposal::Parameters(parameters) = &proposal {
            self.points.insert(number, RepeatedPoint::new(parameters.clone()));
        }
        proposal
    }

    fn adopt(&mut self, id: u64, parameters: &Parameters) {
        let number = id / self.repeats;
        if !self.points.contains_key(&number) {
            self.inner.adopt(number, parameters);
            self.points.insert(number, RepeatedPoint::new(parameters.clone()));
        }
    }

    fn observe(&mut self, id: u64, outcome: &Outcome) {
        let number = id / self.repeats;
        let Some(point) = self.points.get_mut(&number) else { return };
        point.outcomes.insert(id, outcome.clone());
        if u64::try_from(point.outcomes.len()).is_ok_and(|known| known >= self.repeats) {
            self.inner.observe(number, &point.outcome());
            self.points.remove(&number);
        }
    }

    fn import(&mut self, samples: &[Sample]) {
        self.inner.import(samples);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trial_protocol::MetricValue;

    use super::super::{TunerSpec, build};
    use super::*;
    use crate::search::search_space::SearchSpace;

    fn tuner(repeats: u64) -> Box<dyn Tuner> {
        let space = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
        let args = json!({"optimize_mode": "minimize"}).as_object().unwrap().clone();
        let spec = TunerSpec { repeats, ..TunerSpec::new("TPE", args).unwrap() };
        build(&spec, &SearchSpace::parse(&space).unwrap(), 7).unwrap()
    }

    fn propose_parameters(tuner: &mut dyn Tuner, id: u64) -> Parameters {
        match tuner.propose(id) {
            Proposal::Parameters(parameters) => parameters,
            other @ (Proposal::Wait | Proposal::Exhausted) => panic!("{other:?}"),
        }
    }

    fn loss(parameters: &Parameters) -> f64 {
        (parameters["x"].as_f64().unwrap() - 0.3).powi(2)
    }

    #[test]
    fn a_point_is_proposed_several_times_and_observed_with_its_mean() {
        let (mut once, mut thrice) = (tuner(1), tuner(3));
        for number in 0..40 {
            let point = propose_parameters(once.as_mut(), number);
            once.observe(number, &Outcome::Result(MetricValue::from(loss(&point))));
            let ids = [number * 3, number * 3 + 1, number * 3 + 2];
            for id in ids {
                assert_eq!(propose_parameters(thrice.as_mut(), id), point, "{id}");
            }
            // In a different order, and with noise whose sum is 0.
            for (id, noise) in [(ids[2], 0.25), (ids[0], -0.5), (ids[1], 0.25)] {
                let noisy = MetricValue::from(loss(&point) + noise);
                thrice.observe(id, &Outcome::Result(noisy));
            }
        }
    }

    #[test]
    fn a_failed_trial_does_not_count_if_its_point_has_a_result() {
        let mut points = RepeatedPoint::new(Parameters::new());
        points.outcomes.insert(0, Outcome::Failed);
        assert_eq!(points.outcome(), Outcome::Failed);
        points.outcomes.insert(1, Outcome::Result(MetricValue::from(2.0)));
        assert_eq!(points.outcome(), Outcome::Result(MetricValue::from(2.0)));
    }

    #[test]
    fn a_rebuilt_tuner_continues_in_the_middle_of_a_point() {
        let mut steady = tuner(3);
        let before: Vec<_> = (0..67).map(|id| propose_parameters(steady.as_mut(), id)).collect();
        let mut rebuilt = tuner(3);
        for (id, parameters) in (0..).zip(&before) {
            rebuilt.adopt(id, parameters);
        }
        for (id, parameters) in (0..).zip(&before) {
            let outcome = Outcome::Result(MetricValue::from(loss(parameters)));
            steady.observe(id, &outcome);
            rebuilt.observe(id, &outcome);
        }
        for id in 67..75 {
            assert_eq!(
                propose_parameters(steady.as_mut(), id),
                propose_parameters(rebuilt.as_mut(), id),
                "{id}"
            );
        }
        assert_eq!(
            propose_parameters(steady.as_mut(), 68),
            before[66],
            "it belongs to the point of 66"
        );
    }
}
