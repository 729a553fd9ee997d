//! Bayesian optimisation with a Gaussian process, with the arguments and acquisition functions of NNI 3.0's
//! `nni/algorithms/hpo/gp_tuner`.
//!
//! NNI fits the process to the raw parameters, with a common length scale, and takes seconds for a proposal. Here,
//! every parameter is scaled to the range 0 to 1 by its own distribution (a `loguniform` by its logarithm), and has
//! its own length scale. All types and nested choices are supported. Running trials count with their expected value.
//! The effort is bounded: see [`MAX_PROCESS_TRIALS`] and [`process::fit`].

mod features;
mod process;

#[cfg(test)]
mod tests;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use self::features::Features;
use self::process::{Matern, Process};
use super::Error;
use super::model_based::{Model, Trials};
use crate::search::class_args::Arguments;
use crate::search::search_space::normal::{standard_cdf, standard_normal};
use crate::search::search_space::{Coordinate, Domain, Point, SearchSpace, Shape};

/// The maximum number of trials in the process: half of them the best trials, the others the latest.
const MAX_PROCESS_TRIALS: usize = 120;

/// NNI's `GP`.
#[derive(Debug)]
pub(super) struct Gp {
    utility: Utility,
    /// `nu`: the smoothness of the process.
    smoothness: Matern,
    /// `alpha`: the minimum noise of an observation, relative to the variance of all observations.
    alpha: f64,
    /// `cold_start_num`: the number of results before which proposals are quasi-random.
    cold_start: usize,
    /// `selection_num_warm_up`: the number of random points that are considered.
    warm_up: usize,
    /// `selection_num_starting_points`: the number of best points from which the local search starts.
    starting_points: usize,
}

/// The acquisition function, which rates a point by the prediction of the process.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Utility {
    /// `ei`: the expected improvement beyond `xi`.
    Improvement { xi: f64 },
    /// `ucb`: the mean plus `kappa` standard deviations.
    Bound { kappa: f64 },
    /// `poi`: the probability of an improvement beyond `xi`.
    Probability { xi: f64 },
}

impl Gp {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let kappa = arguments.number("kappa", 0.0)?.unwrap_or(5.0);
        let xi = arguments.number("xi", 0.0)?.unwrap_or(0.0);
        let utility = match arguments.one_of("utility", &["ei", "ucb", "poi"])? {
            Some("ucb") => Utility::Bound { kappa },
            Some("poi") => Utility::Probability { xi },
            _ => Utility::Improvement { xi },
        };
        let nu = arguments.number("nu", 0.0)?.unwrap_or(2.5);
        let Some(smoothness) = Matern::from_nu(nu) else {
            return arguments.fault("nu", format!("expected 0.5, 1.5 or 2.5, found {nu}"));
        };
        let alpha = arguments.number("alpha", 0.0)?.unwrap_or(1e-6);
        let mut count = |name, plain| {
            arguments
                .integer(name, 1..=1_000_000)
                .map(|found| found.and_then(|number| usize::try_from(number).ok()).unwrap_or(plain))
        };
        Ok(Self {
            utility,
            smoothness,
            alpha,
            cold_start: count("cold_start_num", 10)?,
            // NNI's defaults, 100,000 and 250, make it slow.
            warm_up: count("selection_num_warm_up", 400)?,
            starting_points: count("selection_num_starting_points", 5)?,
        })
    }

    /// Returns the most promising point, among random points and points near the best known points.
    fn most_promising(
        &self,
        view: &PointRating<'_>,
        best_known: &[&Point],
        rng: &mut ChaCha8Rng,
    ) -> Point {
        let space = view.space;
        let mut pool: Vec<(f64, Point)> = Vec::new();
        let consider = |point: Point| (view.utility_of(self.utility, &point), point);
        for _ in 0..self.warm_up {
            pool.push(consider(space.sample_point(rng)));
        }
        for known in best_known {
            for scale in [0.2, 0.05, 0.02] {
                for _ in 0..8 {
                    pool.push(consider(neighbour(space, known, scale, rng)));
                }
            }
        }
        pool.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        pool.truncate(self.starting_points);
        for start in &mut pool {
            for scale in [0.1, 0.05, 0.02, 0.01, 0.005] {
                for _ in 0..6 {
                    let next = consider(neighbour(space, &start.1, scale, rng));
                    if next.0 > start.0 {
                        *start = next;
                    }
                }
            }
        }
        let best = pool.into_iter().reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map_or_else(|| space.sample_point(rng), |(_, point)| point)
    }
}

impl Model for Gp {
    fn is_starting(&self, trials: &Trials) -> bool {
        trials.losses().count() < self.cold_start || trials.losses().take(2).count() < 2
    }

    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point {
        let known = select_trials(trials);
        if self.is_starting(trials) {
            return space.sample_point(rng);
        }
        let features = Features::new(space);
        let goodness = goodness(&known);
        let places: Vec<Vec<f64>> =
            known.iter().map(|(point, _)| features.vector_of(point)).collect();
        let mut process = process::fit(self.smoothness, self.alpha, &places, &goodness);
        let best = process.largest();
        // A running trial counts with its expected value: the mean stays, and the uncertainty shrinks.
        for point in trials.running() {
            let place = features.vector_of(point);
            let (mean, _) = process.predict(&place);
            process.push(place, mean);
        }
        let mut ranked: Vec<&(&Point, f64)> = known.iter().collect();
        ranked.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let leaders: Vec<&Point> = ranked.iter().take(3).map(|(point, _)| *point).collect();
        let view = PointRating { space, features: &features, process: &process, best };
        self.most_promising(&view, &leaders, rng)
    }
}

/// A rating of points by the process.
struct PointRating<'a> {
    space: &'a SearchSpace,
    features: &'a Features,
    process: &'a Process,
    best: f64,
}

impl PointRating<'_> {
    fn utility_of(&self, utility: Utility, point: &Point) -> f64 {
        let (mean, deviation) = self.process.predict(&self.features.vector_of(point));
        utility.rate(mean, deviation, self.best)
    }
}

impl Utility {
    /// Returns the utility of a point with this predicted mean and deviation. `best` is the best known value.
    fn rate(self, mean: f64, deviation: f64, best: f64) -> f64 {
        match self {
            Self::Bound { kappa } => mean + kappa * deviation,
            Self::Improvement { xi } => {
                let gain = mean - best - xi;
                let z = gain / deviation;
                let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
                gain * standard_cdf(z) + deviation * density
            }
            Self::Probability { xi } => standard_cdf((mean - best - xi) / deviation),
        }
    }
}

/// Returns the trials for the process.
fn select_trials(trials: &Trials) -> Vec<(&Point, f64)> {
    let done: Vec<(&Point, f64)> = trials.losses().collect();
    let Some(surplus) = done.len().checked_sub(MAX_PROCESS_TRIALS).filter(|surplus| *surplus > 0)
    else {
        return done;
    };
    let mut order: Vec<usize> = (0..done.len()).collect();
    order.sort_by(|a, b| done[*a].1.total_cmp(&done[*b].1));
    let (better, worse) = order.split_at_mut(MAX_PROCESS_TRIALS / 2);
    worse.sort_unstable();
    let latest = &worse[surplus..];
    let mut kept: Vec<usize> = better.iter().chain(latest).copied().collect();
    kept.sort_unstable();
    kept.into_iter().map(|index| done[index]).collect()
}

/// Returns the values to which the process is fitted: larger is better, and the median is 0. Losses far above the
/// median are compressed, so that a few extreme losses do not hide the differences between the others.
fn goodness(known: &[(&Point, f64)]) -> Vec<f64> {
    let mut sorted: Vec<f64> = known.iter().map(|(_, loss)| *loss).collect();
    sorted.sort_by(f64::total_cmp);
    let worst = sorted.iter().rev().copied().find(|loss| loss.is_finite()).unwrap_or(0.0);
    let quantile = |part: usize| sorted[(sorted.len() - 1) * part / 4].min(worst);
    let (middle, spread) = (quantile(2), quantile(3) - quantile(1));
    let spread = if spread > 0.0 { spread } else { (worst - sorted[0]).max(f64::MIN_POSITIVE) };
    let value = |(_, loss): &(&Point, f64)| {
        let bad = (loss.min(worst) - middle) / spread;
        if bad > 0.0 { -bad.ln_1p() } else { -bad }
    };
    known.iter().map(value).collect()
}

/// Returns a point near `centre`, with some coordinates moved by about `scale` of their range.
fn neighbour(space: &SearchSpace, centre: &Point, scale: f64, rng: &mut impl Rng) -> Point {
    let present = centre.iter().filter(|at| at.is_some()).count();
    // On average 2.5 coordinates move, whatever the number of dimensions.
    let chance = (2.5 / f64::from(u32::try_from(present).unwrap_or(u32::MAX))).min(1.0);
    let mut point: Point = Vec::with_capacity(centre.len());
    for (index, dimension) in space.dimensions().iter().enumerate() {
        let at = match centre[index] {
            _ if !space.is_present(index, &point) => None,
            None => Some(dimension.domain.sample(rng)),
            Some(old) if rng.random::<f64>() >= chance => Some(old),
            Some(old) => Some(move_coordinate(&dimension.domain, old, scale, rng)),
        };
        point.push(at);
    }
    point
}

fn move_coordinate(domain: &Domain, old: Coordinate, scale: f64, rng: &mut impl Rng) -> Coordinate {
    match (domain, old) {
        (Domain::Real(real), Coordinate::Real(x)) => {
            // The width is at least the step of `q`, because smaller moves would be rounded away.
            let mut nudge = |width: f64| (width * scale).max(real.step(x)) * standard_normal(rng);
            Coordinate::Real(match real.shape {
                Shape::Uniform { low, high } => (x + nudge(high - low)).clamp(low, high),
                Shape::Normal { sigma, .. } => x + nudge(sigma * 3.0),
            })
        }
        (Domain::Integer { size, .. }, Coordinate::Index(old)) => {
            let reach = (features::u64_to_f64(*size) * scale).max(1.0);
            let far = features::u64_to_f64(old) + (reach * standard_normal(rng)).round();
            Coordinate::Index(features::f64_to_index(far, *size))
        }
        _ => domain.sample(rng),
    }
}
