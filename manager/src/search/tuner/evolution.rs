//! Evolution (Real and others, "Large-Scale Evolution of Image Classifiers", 2017), after NNI 3.0's
//! `nni/algorithms/hpo/evolution_tuner.py`. The tuner copies a good survivor with one parameter changed, and removes
//! the worse trial of a random pair.
//!
//! NNI copies the better trial of that same pair, and always draws the changed parameter at random. Here, the copied
//! trial is the best of four, and a changed number may stay near its old value. This finds better results in as many
//! trials (`benches/tuners.rs`).
//!
//! NNI removes a trial at every proposal, so its population depends on the results that are known at that time. Here,
//! the survivors depend only on the results, not on their order: trials enter the population in the order of their
//! ids, and when it is too large, the worse trial of a random pair leaves. Therefore a resumed search continues
//! unchanged. NNI's tuner has no seed.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::Error;
use super::anneal::perturb;
use super::model_based::{Model, Trials};
use super::random::generator;
use crate::search::class_args::Arguments;
use crate::search::search_space::{Coordinate, Point, SearchSpace};

/// The share of mutated numbers that stay near their old value.
const NEAR_MUTATION_SHARE: f64 = 0.3;

/// The width of the interval around the old value, relative to the parameter's range.
const NEAR_MUTATION_WIDTH: f64 = 0.2;

/// NNI's `Evolution`.
#[derive(Debug)]
pub(super) struct Evolution {
    /// `population_size`: the number of random trials at the start, and the maximum number of survivors.
    population: usize,
    seed: u64,
}

impl Evolution {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>, seed: u64) -> Result<Self, Error> {
        let population = arguments.integer("population_size", 1..=99_999)?.unwrap_or(32);
        Ok(Self { population: usize::try_from(population).unwrap_or(usize::MAX), seed })
    }

    /// Returns the survivors and their losses. Running trials also use places in the population.
    fn survivors<'a>(&self, trials: &'a Trials) -> Vec<(&'a Point, f64)> {
        let room = self.population.saturating_sub(trials.running().count()).max(2);
        // A separate stream: the streams of proposals begin at 0.
        let mut rng = generator(self.seed, u64::MAX);
        let mut living: Vec<(&Point, f64)> = Vec::new();
        for newcomer in trials.losses() {
            living.push(newcomer);
            if living.len() > room {
                let (one, other) = draw_pair(living.len(), &mut rng);
                let worse = if living[one].1 > living[other].1 { one } else { other };
                living.swap_remove(worse);
            }
        }
        living
    }
}

impl Model for Evolution {
    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point {
        // Each failed trial is replaced by another random trial.
        if trials.count() < self.population.saturating_add(trials.failed_count()) {
            return space.sample_point(rng);
        }
        let living = self.survivors(trials);
        if living.len() < 2 {
            return space.sample_point(rng);
        }
        let better = |(one, other): (usize, usize)| {
            if living[one].1 <= living[other].1 { one } else { other }
        };
        let first = better(draw_pair(living.len(), rng));
        let second = better(draw_pair(living.len(), rng));
        mutate(space, living[better((first, second))].0, rng)
    }
}

/// Returns two different random indices below `count`, which is at least 2.
fn draw_pair(count: usize, rng: &mut impl Rng) -> (usize, usize) {
    let one = rng.random_range(0..count);
    let other = rng.random_range(0..count - 1);
    (one, if other < one { other } else { other + 1 })
}

/// Returns a copy of `parent` with one parameter changed. If the change selects another option, draws its parameters.
fn mutate(space: &SearchSpace, parent: &Point, rng: &mut impl Rng) -> Point {
    let present: Vec<usize> =
        parent.iter().enumerate().filter(|(_, at)| at.is_some()).map(|(index, _)| index).collect();
    let changed = present[rng.random_range(0..present.len())];
    let mut point: Point = Vec::with_capacity(parent.len());
    for (index, dimension) in space.dimensions().iter().enumerate() {
        let at: Option<Coordinate> = match parent[index] {
            _ if !space.is_present(index, &point) => None,
            Some(old) if index != changed => Some(old),
            Some(Coordinate::Real(old)) if rng.random::<f64>() < NEAR_MUTATION_SHARE => {
                Some(perturb(&dimension.domain, Coordinate::Real(old), NEAR_MUTATION_WIDTH, rng))
            }
            _ => Some(dimension.domain.sample(rng)),
        };
        point.push(at);
    }
    point
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

    fn space() -> SearchSpace {
        let json = json!({
            "a": {"_type": "uniform", "_value": [0, 1]},
            "b": {"_type": "choice", "_value": [
                {"_name": "p"}, {"_name": "q", "c": {"_type": "normal", "_value": [0, 1]}}]},
            "d": {"_type": "uniform", "_value": [0, 1]}
        });
        SearchSpace::parse(&json).unwrap()
    }

    #[test]
    fn a_mutant_differs_in_one_parameter_and_its_children() {
        let space = space();
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let mut changes = [0; 4];
        for _ in 0..300 {
            let parent = space.sample_point(&mut rng);
            let child = mutate(&space, &parent, &mut rng);
            assert!(space.validate(&space.parameters(&child)).is_ok());
            let differing: Vec<usize> = (0..4).filter(|i| parent[*i] != child[*i]).collect();
            // A choice may be drawn unchanged. A changed choice adds or removes its parameter.
            assert!(matches!(differing.as_slice(), [] | [_] | [1, 2]), "{differing:?}");
            for i in differing {
                changes[i] += 1;
            }
        }
        assert!(changes.iter().all(|count| *count > 20), "{changes:?}");
    }

    #[test]
    fn the_best_trials_survive() {
        let space = space();
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let mut trials = Trials::new(Direction::Minimize, &Goals::default());
        for id in 0..200_u32 {
            trials.propose(u64::from(id), space.sample_point(&mut rng));
            let loss = f64::from((id * 37) % 200);
            trials.observe(u64::from(id), &Outcome::Result(MetricValue::from(loss)));
        }
        let evolution = Evolution { population: 20, seed: 1 };
        let mut losses: Vec<f64> =
            evolution.survivors(&trials).into_iter().map(|(_, loss)| loss).collect();
        losses.sort_by(f64::total_cmp);
        assert_eq!((losses.len(), losses.first()), (20, Some(&0.0)));
        // By chance, the mean would be 100.
        assert!(losses.iter().sum::<f64>() / 20.0 < 70.0, "{losses:?}");
    }
}
