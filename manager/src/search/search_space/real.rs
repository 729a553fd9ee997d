//! A real parameter: the conversion between its values, coordinates and shares. The order of operations is NNI's:
//! `exp`, rounding to a multiple of `q` (half to even), clipping.

use rand::Rng;

use super::normal::{standard_cdf, standard_normal, standard_quantile};

/// The relative tolerance at the bounds of a value, because `exp(ln(x))` does not always equal `x`.
const BOUND_TOLERANCE: f64 = 1e-9;

/// A real number with a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Real {
    /// The distribution of the coordinate.
    pub shape: Shape,
    /// `true` if the value is `exp` of the coordinate.
    pub log: bool,
    /// The number of which the value is a multiple, if any.
    pub q: Option<f64>,
    /// The smallest and the largest value, for uniform distributions.
    pub bounds: Option<(f64, f64)>,
    /// `true` if the value is an integer (`lograndint`); `q` is then 1.
    pub integer: bool,
}

/// The distribution of a coordinate: of the value, or of its logarithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// A uniform distribution.
    Uniform {
        /// The smallest coordinate.
        low: f64,
        /// The largest coordinate.
        high: f64,
    },
    /// A normal distribution.
    Normal {
        /// The mean.
        mu: f64,
        /// The standard deviation, greater than 0.
        sigma: f64,
    },
}

impl Real {
    /// Returns the value at a coordinate. It is always finite.
    pub fn value(&self, coordinate: f64) -> f64 {
        let mut x = if self.log { coordinate.exp() } else { coordinate };
        if let Some(q) = self.q {
            x = (x / q).round_ties_even() * q;
        }
        if let Some((low, high)) = self.bounds {
            x = x.max(low).min(high);
        }
        // JSON has no infinity. Adding 0 converts -0 to 0, because Python's integers have no -0.
        x.clamp(f64::MIN, f64::MAX) + 0.0
    }

    /// Returns the coordinate of the value that the trial receives, which may be a multiple of `q`.
    pub fn quantized(&self, coordinate: f64) -> f64 {
        match self.q {
            None => coordinate,
            Some(_) => self.locate(self.value(coordinate)).unwrap_or(coordinate),
        }
    }

    /// Returns the approximate distance from a coordinate to the next multiple of `q`, or 0 without `q`.
    pub fn step(&self, coordinate: f64) -> f64 {
        match (self.q, self.log) {
            (None, _) => 0.0,
            (Some(q), false) => q,
            (Some(q), true) => (q / coordinate.exp()).ln_1p(),
        }
    }

    /// Returns the coordinate of a value, or `None` if the distribution does not contain the value.
    pub(super) fn locate(&self, value: f64) -> Option<f64> {
        let value = match self.bounds {
            Some((low, high)) => {
                let slack = BOUND_TOLERANCE * (high - low).max(low.abs());
                if value < low - slack || value > high + slack {
                    return None;
                }
                value.clamp(low, high)
            }
            None => value,
        };
        match self.log {
            false => Some(value),
            // A small value of a `qlognormal` is rounded to 0. The original value is unknown, so the coordinate is
            // that of the middle of the rounding interval.
            true if value == 0.0 && self.q.is_some() => self.q.map(|q| (q / 4.0).ln()),
            true => (value > 0.0).then(|| value.ln()),
        }
    }

    pub(super) fn range(&self) -> String {
        match (self.bounds, self.log) {
            (Some((low, high)), _) if self.integer => format!("an integer from {low} to {high}"),
            (Some((low, high)), _) => format!("from {low} to {high}"),
            (None, true) => "greater than 0".to_owned(),
            (None, false) => "finite".to_owned(),
        }
    }

    /// Returns the number of values, or `None` if they are not countable.
    pub(super) fn size(&self) -> Option<u128> {
        let (q, (low, high)) = (self.q?, self.bounds?);
        // The multiples whose rounding interval overlaps the open range. Multiples outside the bounds are clipped.
        let first = (low / q + 0.5).floor();
        let last = (high / q - 0.5).ceil();
        let count = (last - first + 1.0).max(1.0);
        #[expect(
            clippy::as_conversions,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1, and the cast saturates"
        )]
        (count < 1e30).then_some(count as u128)
    }

    /// Returns the quantile `p` (0 to 1) of the distribution, as a coordinate. It is infinite at the ends of a normal
    /// distribution.
    pub fn quantile(&self, p: f64) -> f64 {
        match self.shape {
            Shape::Uniform { low, high } => low + (high - low) * p,
            Shape::Normal { mu, sigma } => mu + sigma * standard_quantile(p),
        }
    }

    /// Returns a random coordinate.
    pub fn sample(&self, rng: &mut impl Rng) -> f64 {
        match self.shape {
            Shape::Uniform { low, high } => low + rng.random::<f64>() * (high - low),
            Shape::Normal { mu, sigma } => mu + sigma * standard_normal(rng),
        }
    }

    /// Returns the share of the distribution below the value that the trial receives for a coordinate.
    pub(crate) fn share(&self, coordinate: f64) -> f64 {
        let x = self.quantized(coordinate);
        match self.shape {
            Shape::Uniform { low, high } => (x - low) / (high - low),
            Shape::Normal { mu, sigma } => standard_cdf((x - mu) / sigma),
        }
    }
}
