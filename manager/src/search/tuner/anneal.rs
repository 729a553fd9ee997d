//! Anneal: a search around the best trials, whose steps shrink with every result.
//!
//! The algorithm is that of `hyperopt` (0.1.2, `hyperopt/anneal.py`, which NNI 3.0 calls). For every parameter, it
//! chooses a good trial: the best with probability 1/2, the second with probability 1/4, and so on. It draws a value
//! around that trial's value. The distribution is the parameter's own, shrunk to 1 / (1 + 0.1 n) of its width after n
//! trials. All parameters follow the same good trial, if it has them.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use trial_protocol::Direction;

use super::Error;
use super::model_based::{Model, Trials};
use crate::search::class_args::Arguments;
use crate::search::search_space::normal::standard_normal;
use crate::search::search_space::{Coordinate, Domain, Point, Real, SearchSpace, Shape};

/// The factor by which each trial shrinks the step.
const SHRINK_FACTOR: f64 = 0.1;

/// The probability of following the best trial that was not yet considered: 1 / the mean rank.
const FOLLOW_BEST_PROBABILITY: f64 = 0.5;

/// The number of proposed trials up to which running trials do not count.
const MAX_TRIALS_WITHOUT_LIAR: usize = 20;

/// NNI's `Anneal`.
#[derive(Debug)]
pub(super) struct Anneal {
    /// The assumed result of running trials. `None` without `parallel_optimize`: running trials do not count.
    liar: Option<Liar>,
}

/// `constant_liar_type`: a statistic of the reported metrics, whatever the direction of the objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Liar {
    Min,
    Max,
    Mean,
}

impl Anneal {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let parallel = arguments.boolean("parallel_optimize")?.unwrap_or(false);
        let liar = match arguments.one_of("constant_liar_type", &["min", "max", "mean"])? {
            Some("max") => Liar::Max,
            Some("mean") => Liar::Mean,
            _ => Liar::Min,
        };
        Ok(Self { liar: parallel.then_some(liar) })
    }

    /// Returns the assumed loss of running trials, or `None` if they do not count.
    fn assumed_loss(&self, trials: &Trials) -> Option<f64> {
        let liar = self.liar.filter(|_| trials.count() > MAX_TRIALS_WITHOUT_LIAR)?;
        let losses = || trials.losses().map(|(_, loss)| loss).filter(|loss| loss.is_finite());
        match (liar, trials.direction()) {
            (Liar::Min, Direction::Minimize) | (Liar::Max, Direction::Maximize) => {
                losses().reduce(f64::min)
            }
            (Liar::Max, Direction::Minimize) | (Liar::Min, Direction::Maximize) => {
                losses().reduce(f64::max)
            }
            (Liar::Mean, _) => {
                let (sum, count) =
                    losses().fold((0.0, 0.0), |(sum, n), loss| (sum + loss, n + 1.0));
                (count > 0.0).then(|| sum / count)
            }
        }
    }
}

impl Model for Anneal {
    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point {
        let lie = self.assumed_loss(trials);
        let lies = lie.into_iter().flat_map(|lie| trials.running().map(move |point| (point, lie)));
        let mut known: Vec<(&Point, f64)> = trials.losses().chain(lies).collect();
        // The sort is stable: of equal losses, the earlier is first.
        known.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let mut followed: Vec<&Point> = Vec::new();
        let mut point: Point = Vec::with_capacity(space.dimensions().len());
        for (index, dimension) in space.dimensions().iter().enumerate() {
            if !space.is_present(index, &point) {
                point.push(None);
                continue;
            }
            let having: Vec<&Point> = known
                .iter()
                .map(|(point, _)| *point)
                .filter(|point| point[index].is_some())
                .collect();
            let old = followed.iter().find_map(|point| point[index]);
            let around = old.or_else(|| {
                let good = having.get(draw_rank(having.len(), rng))?;
                followed.push(good);
                good[index]
            });
            let domain = &dimension.domain;
            point.push(Some(match around {
                Some(around) => perturb(domain, around, remaining_width(having.len()), rng),
                None => domain.sample(rng),
            }));
        }
        point
    }
}

/// Draws the rank of the trial to follow among `count` trials, from a geometric distribution that ends at the last
/// trial.
fn draw_rank(count: usize, rng: &mut impl Rng) -> usize {
    let mut rank = 0;
    while rank + 1 < count && rng.random::<f64>() >= FOLLOW_BEST_PROBABILITY {
        rank += 1;
    }
    rank
}

/// Returns the share of a parameter's width that remains after a number of trials.
fn remaining_width(trials: usize) -> f64 {
    1.0 / (1.0 + SHRINK_FACTOR * f64::from(u32::try_from(trials).unwrap_or(u32::MAX)))
}

/// Draws a position around another position, from the domain's own distribution with its width shrunk.
pub(super) fn perturb(
    domain: &Domain,
    around: Coordinate,
    shrunk: f64,
    rng: &mut impl Rng,
) -> Coordinate {
    match (domain, around) {
        (Domain::Real(real), Coordinate::Real(x)) => {
            Coordinate::Real(perturb_real(real, x, shrunk, rng))
        }
        _ if rng.random::<f64>() < shrunk => domain.sample(rng),
        _ => around,
    }
}

fn perturb_real(real: &Real, x: f64, shrunk: f64, rng: &mut impl Rng) -> f64 {
    match real.shape {
        Shape::Uniform { low, high } => {
            let width = (high - low) * shrunk;
            let start = (x - width / 2.0).min(high - width).max(low);
            start + rng.random::<f64>() * width
        }
        Shape::Normal { sigma, .. } => x + sigma * shrunk * standard_normal(rng),
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use serde_json::Value;
    use trial_protocol::MetricValue;

    use super::*;
    use crate::search::goals::Goals;
    use crate::search::tuner::Outcome;

    #[test]
    fn suggestions_are_distributed_as_in_nni() {
        let stories: Vec<Value> =
            serde_json::from_str(include_str!("../../../fixtures/tuner/nni_anneal.json")).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for story in stories {
            let space = SearchSpace::parse(&story["space"]).unwrap();
            let direction = match story["optimize_mode"].as_str() {
                Some("minimize") => Direction::Minimize,
                _ => Direction::Maximize,
            };
            let mut trials = Trials::new(direction, &Goals::default());
            for (id, trial) in (0..).zip(story["history"].as_array().unwrap()) {
                trials.propose(id, space.locate(trial[0].as_object().unwrap()).unwrap());
                trials.observe(id, &Outcome::Result(MetricValue::from(trial[1].clone())));
            }
            let draws: Vec<_> = (0..3000)
                .map(|_| {
                    space.parameters(&Anneal { liar: None }.suggest(&space, &trials, &mut rng))
                })
                .collect();
            let share = |is: &dyn Fn(&Value) -> bool, name: &str| {
                f64::from(u32::try_from(draws.iter().filter(|d| is(&d[name])).count()).unwrap())
                    / 3000.0
            };
            // Four standard errors of two samples of this size.
            for (name, quantiles) in story["quantiles"].as_object().unwrap() {
                for pair in quantiles.as_array().unwrap() {
                    let (p, x) = (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap());
                    let below = share(&|value| value.as_f64().unwrap() < x, name);
                    assert!((below - p).abs() < 0.055, "{name}: {below} of {p} below {x}");
                }
            }
            for (option, expected) in story["shares"].as_object().unwrap() {
                let actual = share(&|value| value == option, "c");
                assert!((actual - expected.as_f64().unwrap()).abs() < 0.055, "{option}: {actual}");
            }
        }
    }

    #[test]
    fn running_trials_count_only_with_a_liar() {
        let mut trials = Trials::new(Direction::Maximize, &Goals::default());
        for id in 0..30_u32 {
            trials.propose(u64::from(id), vec![Some(Coordinate::Real(f64::from(id) / 30.0))]);
            if id < 10 {
                let metric = MetricValue::from(f64::from(id));
                trials.observe(u64::from(id), &Outcome::Result(metric));
            }
        }
        #[rustfmt::skip]
        let table = [
            (None,            None),
            (Some(Liar::Min), Some(-0.0)),
            (Some(Liar::Max), Some(-9.0)),
            (Some(Liar::Mean), Some(-4.5)),
        ];
        for (liar, lie) in table {
            assert_eq!(Anneal { liar }.assumed_loss(&trials), lie, "{liar:?}");
        }
    }
}
