//! The conversion between coordinates and the unit cube. In the cube, each parameter is a share of its distribution.

use super::sample::standard_cdf;
use super::{Coordinate, Domain, Real, Shape};

impl Domain {
    /// Returns the position below which the share `p` of the distribution lies, with options in their order. `p` is
    /// from 0 to 1, and excludes both ends if the distribution is normal.
    pub(crate) fn at_share(&self, p: f64) -> Coordinate {
        match (self, self.options()) {
            (Self::Real(real), _) => Coordinate::Real(real.quantile(p)),
            (_, options) => {
                let options = options.unwrap_or(1);
                Coordinate::Index(index((p * double(options)).floor(), options))
            }
        }
    }

    /// Returns the share of the distribution below a position. For a number, the position is the value that the trial
    /// receives; for an option, it is the middle of the option's share.
    pub(crate) fn share(&self, at: Coordinate) -> f64 {
        match (self, at) {
            (Self::Real(real), Coordinate::Real(x)) => real.share(x),
            (_, Coordinate::Index(i)) => (double(i) + 0.5) / double(self.options().unwrap_or(1)),
            (_, Coordinate::Real(_)) => 0.5,
        }
    }

    /// Returns whether the domain is a number or an integer, so that nearby positions have similar values.
    pub(crate) fn is_numeric(&self) -> bool {
        match self {
            Self::Real(_) => true,
            Self::Integer { size, .. } => *size > 1,
            Self::Choice(_) | Self::Nested(_) => false,
        }
    }
}

impl Real {
    /// Returns the share of the distribution below the value that the trial receives for a coordinate.
    pub(crate) fn share(&self, coordinate: f64) -> f64 {
        let x = self.quantized(coordinate);
        match self.shape {
            Shape::Uniform { low, high } => (x - low) / (high - low),
            Shape::Normal { mu, sigma } => standard_cdf((x - mu) / sigma),
        }
    }
}

/// Converts an index to a double.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a part need not be exact beyond 2^53"
)]
pub(crate) fn double(n: u64) -> f64 {
    n as f64
}

/// Converts a double to an index, at most `size` - 1.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
pub(crate) fn index(n: f64, size: u64) -> u64 {
    (n as u64).min(size.saturating_sub(1))
}
