//! Coordinates <-> parts of a distribution: the unit cube in which all parameters have the same range.

use super::sample::standard_cdf;
use super::{Coordinate, Domain, Real, Shape};

impl Domain {
    /// The position below which the part `p` of the distribution lies; options count in their order. `p` lies between 0
    /// and 1, the ends excluded where the distribution is normal.
    pub(crate) fn at_share(&self, p: f64) -> Coordinate {
        match (self, self.options()) {
            (Self::Real(real), _) => Coordinate::Real(real.quantile(p)),
            (_, options) => {
                let options = options.unwrap_or(1);
                Coordinate::Index(index((p * double(options)).floor(), options))
            }
        }
    }

    /// The part of the distribution below a position: below what the trial sees of it, or the middle of an option's part.
    pub(crate) fn share(&self, at: Coordinate) -> f64 {
        match (self, at) {
            (Self::Real(real), Coordinate::Real(x)) => real.share(x),
            (_, Coordinate::Index(i)) => (double(i) + 0.5) / double(self.options().unwrap_or(1)),
            (_, Coordinate::Real(_)) => 0.5,
        }
    }

    /// Returns whether nearby positions have nearby values: a number or an integer.
    pub(crate) fn is_numeric(&self) -> bool {
        match self {
            Self::Real(_) => true,
            Self::Integer { size, .. } => *size > 1,
            Self::Choice(_) | Self::Nested(_) => false,
        }
    }
}

impl Real {
    /// The part of the distribution below what the trial sees of a coordinate.
    pub(crate) fn share(&self, coordinate: f64) -> f64 {
        let x = self.settled(coordinate);
        match self.shape {
            Shape::Uniform { low, high } => (x - low) / (high - low),
            Shape::Normal { mu, sigma } => standard_cdf((x - mu) / sigma),
        }
    }
}

/// An index as a double.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a part need not be exact beyond 2^53"
)]
pub(crate) fn double(n: u64) -> f64 {
    n as f64
}

/// The index below `size` that is nearest to a double.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
pub(crate) fn index(n: f64, size: u64) -> u64 {
    (n as u64).min(size.saturating_sub(1))
}
