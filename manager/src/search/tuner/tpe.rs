//! The tree-structured Parzen estimator (Bergstra and others, "Algorithms for Hyper-Parameter Optimization", 2011).
//! With `tpe_args`, which are arguments of NNI, the estimator works like NNI 3.0's `nni/algorithms/hpo/tpe_tuner.py`.
//! Without them, it works as described in [`joint`], which finds better results in as many trials
//! (`docs/benchmarks.md`).
//!
//! NNI's estimator considers each parameter separately. The values in the good trials form one density, and the
//! values in the other trials a second density. The estimator draws candidates from the first density, and proposes
//! the candidate with the largest ratio of the two densities. Running trials count with an assumed result, the lie,
//! so that concurrent proposals differ.

mod density;
mod joint;
mod kernels;

#[cfg(test)]
mod tests;

use rand_chacha::ChaCha8Rng;

use self::density::{Categories, Mixture, Prior};
pub(super) use self::joint::JointEstimator;
use super::Error;
use super::model_based::{Model, Trials};
use crate::search::class_args::Arguments;
use crate::search::search_space::{Coordinate, Domain, Point, SearchSpace, Shape};

/// `TPE`: NNI's estimator with `tpe_args`, otherwise the estimator over whole points.
#[derive(Debug)]
pub(super) enum Estimator {
    Nni(Tpe),
    Joint(JointEstimator),
}

impl Estimator {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let given = arguments.raw("tpe_args").is_some();
        let nni = Tpe::from_arguments(arguments)?;
        Ok(if given { Self::Nni(nni) } else { Self::Joint(JointEstimator::default()) })
    }
}

impl Model for Estimator {
    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point {
        match self {
            Self::Nni(nni) => nni.suggest(space, trials, rng),
            Self::Joint(joint) => joint.suggest(space, trials, rng),
        }
    }

    fn is_starting(&self, trials: &Trials) -> bool {
        match self {
            // NNI's estimator starts each parameter separately.
            Self::Nni(_) => false,
            Self::Joint(joint) => joint.is_starting(trials),
        }
    }
}

/// NNI's `tpe_args`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tpe {
    /// `constant_liar_type`: the assumed result of running trials. With `None`, they do not count.
    liar: Option<Liar>,
    /// `n_startup_jobs`: the number of trials with a parameter before which it is drawn at random.
    startup: usize,
    /// `n_ei_candidates`: the number of candidates.
    candidates: usize,
    /// `linear_forgetting`: the number of trials above which earlier values have less weight.
    forgetting: usize,
    /// `prior_weight`: the weight of the search space itself, in trials.
    prior_weight: f64,
    /// `gamma`: the number of good trials, as a factor of the square root of the number of trials.
    gamma: f64,
}

/// The assumed result of a running trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Liar {
    Best,
    Worst,
    Mean,
}

impl Default for Tpe {
    fn default() -> Self {
        Self {
            liar: Some(Liar::Best),
            startup: 20,
            candidates: 24,
            forgetting: 25,
            prior_weight: 1.0,
            gamma: 0.25,
        }
    }
}

impl Tpe {
    /// Reads `tpe_args`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let plain = Self::default();
        let mut given = arguments.section("tpe_args")?;
        let liar =
            match given.one_of_or_null("constant_liar_type", &["best", "worst", "mean", "none"])? {
                None => plain.liar,
                Some("best") => Some(Liar::Best),
                Some("worst") => Some(Liar::Worst),
                Some("mean") => Some(Liar::Mean),
                Some(_) => None,
            };
        let mut count = |name, least, plain| {
            given
                .integer(name, least..=1_000_000)
                .map(|found| found.and_then(|number| usize::try_from(number).ok()).unwrap_or(plain))
        };
        let startup = count("n_startup_jobs", 0, plain.startup)?;
        let candidates = count("n_ei_candidates", 1, plain.candidates)?;
        let forgetting = count("linear_forgetting", 1, plain.forgetting)?;
        let prior_weight = given.number("prior_weight", 0.0)?.unwrap_or(plain.prior_weight);
        let gamma = given.number("gamma", 0.0)?.unwrap_or(plain.gamma);
        given.refuse_unread("tpe_args")?;
        Ok(Self { liar, startup, candidates, forgetting, prior_weight, gamma })
    }

    /// Returns the assumed loss of running trials, or `None` if they do not count.
    fn assumed_loss(&self, trials: &Trials) -> Option<f64> {
        let liar = self.liar?;
        let losses = || trials.losses().map(|(_, loss)| loss).filter(|loss| loss.is_finite());
        let lie = match liar {
            Liar::Best => losses().reduce(f64::min),
            Liar::Worst => losses().reduce(f64::max),
            Liar::Mean => {
                let (sum, count) =
                    losses().fold((0.0, 0.0), |(sum, n), loss| (sum + loss, n + 1.0));
                (count > 0.0).then(|| sum / count)
            }
        };
        // Without any result, the value of the lie does not matter, because all trials have it.
        Some(lie.unwrap_or(0.0))
    }

    /// Splits ranked values, the best first, into those of the good trials and those of the others.
    fn split(&self, mut ranked: Vec<Coordinate>) -> (Vec<Coordinate>, Vec<Coordinate>) {
        let good = (self.gamma * count_to_f64(ranked.len()).sqrt())
            .ceil()
            .min(count_to_f64(self.forgetting));
        let above = ranked.split_off(ranked.len().min(f64_to_count(good)));
        (ranked, above)
    }

    /// Returns the weight of each of `n` values: 1, or less for the first values if there are many.
    fn weights(&self, n: usize) -> Vec<f64> {
        let ramp = n.saturating_sub(self.forgetting);
        let start = 1.0 / count_to_f64(n);
        let step = if ramp > 1 { (1.0 - start) / count_to_f64(ramp - 1) } else { 0.0 };
        let weight =
            |i| if i < ramp && n >= self.forgetting { start + step * count_to_f64(i) } else { 1.0 };
        (0..n).map(weight).collect()
    }

    fn coordinate(
        &self,
        domain: &Domain,
        ranked: Vec<Coordinate>,
        rng: &mut ChaCha8Rng,
    ) -> Coordinate {
        if ranked.len() < self.startup {
            return domain.sample(rng);
        }
        let (below, above) = self.split(ranked);
        match (domain, domain.options()) {
            (Domain::Real(real), _) => {
                let prior = Prior::for_shape(real.shape, self.prior_weight);
                let good = self.mixture(&below, prior);
                let bad = self.mixture(&above, prior);
                let candidates = good.sample(self.candidates, rng);
                let ratio = |x: &f64| good.log_density(*x) - bad.log_density(*x);
                Coordinate::Real(best_candidate(&candidates, ratio).copied().unwrap_or(prior.mu))
            }
            (_, options) => {
                let options = options.unwrap_or(1);
                let good = self.categories(&below, options);
                let bad = self.categories(&above, options);
                let candidates = good.sample(self.candidates, rng);
                let ratio = |i: &u64| good.log_probability(*i) - bad.log_probability(*i);
                Coordinate::Index(best_candidate(&candidates, ratio).copied().unwrap_or(0))
            }
        }
    }

    fn mixture(&self, values: &[Coordinate], prior: Prior) -> Mixture {
        let values: Vec<f64> = values
            .iter()
            .filter_map(|value| match value {
                Coordinate::Real(x) => Some(*x),
                Coordinate::Index(_) => None,
            })
            .collect();
        Mixture::around(&values, &self.weights(values.len()), prior)
    }

    fn categories(&self, values: &[Coordinate], options: u64) -> Categories {
        let indices = values.iter().filter_map(|value| match value {
            Coordinate::Index(i) => Some(*i),
            Coordinate::Real(_) => None,
        });
        let weighted = indices.zip(self.weights(values.len()));
        Categories::new(weighted, options, self.prior_weight)
    }
}

impl Model for Tpe {
    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point {
        let lies = self.assumed_loss(trials).into_iter();
        let running = lies.flat_map(|lie| trials.running().map(move |point| (point, lie)));
        let mut known: Vec<(&Point, f64)> = trials.losses().chain(running).collect();
        sort_by_loss(&mut known);
        let mut point: Point = Vec::with_capacity(space.dimensions().len());
        for (index, dimension) in space.dimensions().iter().enumerate() {
            if !space.is_present(index, &point) {
                point.push(None);
                continue;
            }
            let ranked = known.iter().filter_map(|(point, _)| point[index]).collect();
            point.push(Some(self.coordinate(&dimension.domain, ranked, rng)));
        }
        point
    }
}

/// Sorts by loss, the smallest first. Of equal losses, the earlier is first.
fn sort_by_loss<T>(records: &mut [(T, f64)]) {
    records.sort_by(|(_, a), (_, b)| a.total_cmp(b));
}

/// Returns the first candidate with the largest ratio.
fn best_candidate<T>(candidates: &[T], ratio: impl Fn(&T) -> f64) -> Option<&T> {
    let scored = candidates.iter().map(|candidate| (candidate, ratio(candidate)));
    scored.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(best, _)| best)
}

/// The exponent of e below which a term, relative to the largest term, does not change the sum of doubles.
const NEGLIGIBLE_EXPONENT: f64 = 40.0;

/// Returns the logarithm of the sum of the exponentials of `exponents`.
fn log_sum(exponents: &[f64]) -> f64 {
    let largest = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    let relative = exponents.iter().map(|exponent| exponent - largest);
    let sum: f64 = relative.filter(|e| *e > -NEGLIGIBLE_EXPONENT).map(f64::exp).sum();
    sum.ln() + largest
}

/// Converts a count to a double.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "no list has 2^53 items")]
fn count_to_f64(n: usize) -> f64 {
    n as f64
}

/// Converts a count that was computed as a double.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a list is never longer"
)]
fn f64_to_count(n: f64) -> usize {
    n as usize
}

impl Prior {
    /// Returns the prior for a distribution of the search space. A uniform distribution becomes a wide normal
    /// distribution around its middle, truncated at the bounds.
    fn for_shape(shape: Shape, weight: f64) -> Self {
        match shape {
            Shape::Normal { mu, sigma } => Self { mu, sigma, weight, bounds: None },
            Shape::Uniform { low, high } => Self {
                mu: f64::midpoint(low, high),
                sigma: high - low,
                weight,
                bounds: Some((low, high)),
            },
        }
    }
}
