//! Random points. The distributions are NNI's, but the values differ, because the random generator is not `NumPy`'s.

use std::f64::consts::{SQRT_2, TAU};

use rand::Rng;

use super::{Coordinate, Domain, Parameters, Point, Real, SearchSpace, Shape};

impl SearchSpace {
    /// Returns random parameters.
    pub fn sample(&self, rng: &mut impl Rng) -> Parameters {
        self.parameters(&self.sample_point(rng))
    }

    /// Returns a random point.
    pub fn sample_point(&self, rng: &mut impl Rng) -> Point {
        let mut point: Point = Vec::with_capacity(self.dimensions.len());
        for (index, dimension) in self.dimensions.iter().enumerate() {
            let present = self.is_present(index, &point);
            point.push(present.then(|| dimension.domain.sample(rng)));
        }
        point
    }
}

impl Domain {
    /// Returns a random position.
    pub fn sample(&self, rng: &mut impl Rng) -> Coordinate {
        match (self, self.options()) {
            (Self::Real(real), _) => Coordinate::Real(real.sample(rng)),
            (_, Some(options)) => Coordinate::Index(rng.random_range(0..options.max(1))),
            (_, None) => Coordinate::Index(0),
        }
    }
}

impl Real {
    /// Returns a random coordinate.
    pub fn sample(&self, rng: &mut impl Rng) -> f64 {
        match self.shape {
            Shape::Uniform { low, high } => low + rng.random::<f64>() * (high - low),
            Shape::Normal { mu, sigma } => mu + sigma * standard_normal(rng),
        }
    }
}

/// Draws a number from the standard normal distribution, after Box and Muller.
pub(crate) fn standard_normal(rng: &mut impl Rng) -> f64 {
    // 1 - u lies in (0, 1], where the logarithm is finite.
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (TAU * rng.random::<f64>()).cos()
}

/// Returns the inverse of the standard normal distribution function, to full precision.
pub(crate) fn standard_quantile(p: f64) -> f64 {
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    if p > 0.5 {
        // Exact: 1 - p has no rounding error here. The lower tail keeps its relative precision.
        return -standard_quantile(1.0 - p);
    }
    // Winitzki's closed form is accurate to three digits. Each step of Halley's method triples the number of digits.
    let log = (4.0 * p * (1.0 - p)).ln();
    let half = log / 2.0 + 2.0 / (std::f64::consts::PI * 0.147);
    let mut x = -SQRT_2 * ((half * half - log / 0.147).sqrt() - half).max(0.0).sqrt();
    for _ in 0..4 {
        let error = standard_cdf(x) - p;
        let density = (-x * x / 2.0).exp() / TAU.sqrt();
        let step = error / density;
        x -= step / (1.0 + x * step / 2.0);
    }
    x
}

/// Returns the standard normal distribution function at `x`.
pub(crate) fn standard_cdf(x: f64) -> f64 {
    libm::erfc(-x / SQRT_2) / 2.0
}
