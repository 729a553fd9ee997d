//! The densities of NNI's estimator: normal mixtures and weighted categories.

use std::collections::BTreeMap;
use std::f64::consts::{SQRT_2, TAU};

use rand::Rng;

use super::{count_to_f64, log_sum};
use crate::search::search_space::normal::standard_normal;

/// The prior distribution of a parameter, before any trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prior {
    pub(super) mu: f64,
    pub(super) sigma: f64,
    /// The weight, in trials.
    pub(super) weight: f64,
    /// The bounds of the parameter, if any.
    pub(super) bounds: Option<(f64, f64)>,
}

/// A mixture of normal distributions, one around each known value and one for the prior, truncated at the bounds.
/// This is the paper's adaptive Parzen estimator (section 4.2).
#[derive(Debug)]
pub(super) struct Mixture {
    pub(super) parts: Vec<MixtureComponent>,
    bounds: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MixtureComponent {
    /// The share of the component. The sum of all shares is 1.
    pub(super) weight: f64,
    pub(super) mu: f64,
    pub(super) sigma: f64,
    /// 1 / `sigma`.
    inverse: f64,
    /// The logarithm of the weighted density at `mu`, including the truncation.
    peak: f64,
}

/// The number of times that a candidate outside the bounds is drawn again.
const MAX_REDRAWS: usize = 100;

impl Mixture {
    /// Creates a mixture with a normal distribution around each value. Its width is the gap to the farther neighbour.
    pub(super) fn around(values: &[f64], weights: &[f64], prior: Prior) -> Self {
        let mut centres: Vec<(f64, f64)> =
            values.iter().copied().zip(weights.iter().copied()).collect();
        centres.push((prior.mu, prior.weight));
        centres.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let prior_at = centres.partition_point(|(mu, _)| *mu < prior.mu);
        let last = centres.len() - 1;
        let total: f64 = centres.iter().map(|(_, weight)| weight).sum();
        let narrowest = prior.sigma / count_to_f64((centres.len() + 1).min(100));
        let parts = centres.iter().enumerate().map(|(i, (mu, weight))| {
            let left = i.checked_sub(1).map(|i| mu - centres[i].0);
            let right = (i < last).then(|| centres[i + 1].0 - mu);
            let sigma = match (left, right) {
                _ if i == prior_at => prior.sigma,
                _ if last == 1 => prior.sigma * 0.5,
                (Some(left), Some(right)) => left.max(right),
                (gap, None) | (None, gap) => gap.unwrap_or(prior.sigma),
            };
            let sigma = sigma.clamp(narrowest, prior.sigma);
            // If all weights are 0, all components have the same weight.
            let weight =
                if total > 0.0 { weight / total } else { 1.0 / count_to_f64(centres.len()) };
            MixtureComponent { weight, mu: *mu, sigma, inverse: 1.0 / sigma, peak: 0.0 }
        });
        let mut mixture = Self { parts: parts.collect(), bounds: prior.bounds };
        let accepted = mixture.share_within_bounds();
        for part in &mut mixture.parts {
            part.peak = (part.weight / (TAU.sqrt() * part.sigma) / accepted).ln();
        }
        mixture
    }

    /// Returns the share of the mixture within the bounds.
    fn share_within_bounds(&self) -> f64 {
        let Some((low, high)) = self.bounds else { return 1.0 };
        let share = |part: &MixtureComponent| {
            let below = |x: f64| libm::erf((x - part.mu) / (SQRT_2 * part.sigma)) * 0.5 + 0.5;
            part.weight * (below(high) - below(low))
        };
        self.parts.iter().map(share).sum()
    }

    /// Draws candidates within the bounds.
    pub(super) fn sample(&self, candidates: usize, rng: &mut impl Rng) -> Vec<f64> {
        (0..candidates).map(|_| self.draw(rng)).collect()
    }

    fn draw(&self, rng: &mut impl Rng) -> f64 {
        let mut x = 0.0;
        for _ in 0..MAX_REDRAWS {
            let part = self.pick_component(rng);
            x = part.mu + part.sigma * standard_normal(rng);
            match self.bounds {
                Some((low, high)) if x < low || x > high => {}
                _ => return x,
            }
        }
        // Rare, because the middle of every component lies within the bounds.
        self.bounds.map_or(x, |(low, high)| x.clamp(low, high))
    }

    fn pick_component(&self, rng: &mut impl Rng) -> MixtureComponent {
        let mut left = rng.random::<f64>();
        for part in &self.parts {
            left -= part.weight;
            if left < 0.0 {
                return *part;
            }
        }
        self.parts[self.parts.len() - 1]
    }

    /// Returns the logarithm of the density at `x`.
    pub(super) fn log_density(&self, x: f64) -> f64 {
        let exponent = |part: &MixtureComponent| {
            let distance = (x - part.mu) * part.inverse;
            part.peak - 0.5 * distance * distance
        };
        let exponents: Vec<f64> = self.parts.iter().map(exponent).collect();
        log_sum(&exponents)
    }
}

/// The probabilities of options: the weight of each option in known trials, plus a common prior. Only options that
/// occurred use memory.
#[derive(Debug)]
pub(super) struct Categories {
    option_weights: BTreeMap<u64, f64>,
    options: u64,
    prior: f64,
    total: f64,
}

impl Categories {
    pub(super) fn new(
        weighted: impl Iterator<Item = (u64, f64)>,
        options: u64,
        prior_weight: f64,
    ) -> Self {
        let mut seen = BTreeMap::new();
        for (index, weight) in weighted {
            *seen.entry(index).or_insert(0.0) += weight;
        }
        let known: f64 = seen.values().sum();
        // If all weights are 0, all options have the same weight.
        let prior = if known + prior_weight > 0.0 { prior_weight } else { 1.0 };
        #[expect(
            clippy::as_conversions,
            clippy::cast_precision_loss,
            reason = "a randint has at most 2^54 values, and precision is not needed beyond 2^53"
        )]
        let total = known + prior * options as f64;
        Self { option_weights: seen, options, prior, total }
    }

    pub(super) fn log_probability(&self, index: u64) -> f64 {
        ((self.option_weights.get(&index).unwrap_or(&0.0) + self.prior) / self.total).ln()
    }

    /// Draws candidates.
    pub(super) fn sample(&self, candidates: usize, rng: &mut impl Rng) -> Vec<u64> {
        (0..candidates).map(|_| self.draw(rng)).collect()
    }

    fn draw(&self, rng: &mut impl Rng) -> u64 {
        let mut left = rng.random::<f64>() * self.total;
        for (index, weight) in &self.option_weights {
            left -= weight;
            if left < 0.0 {
                return *index;
            }
        }
        if self.prior > 0.0 {
            return rng.random_range(0..self.options.max(1));
        }
        // Only reached by rounding: without a prior, only options that occurred can be drawn.
        self.option_weights.keys().next_back().copied().unwrap_or(0)
    }
}
