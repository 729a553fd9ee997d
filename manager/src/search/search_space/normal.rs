//! The standard normal distribution.

use std::f64::consts::{SQRT_2, TAU};

use rand::Rng;

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
