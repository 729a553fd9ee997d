//! A density over the parameters of a group: a mixture of product kernels, with a kernel around every known trial and
//! a kernel for the search space itself.

use std::f64::consts::TAU;

use rand::Rng;

use super::{count_to_f64, log_sum};
use crate::search::search_space::normal::{standard_cdf, standard_normal};
use crate::search::search_space::{Coordinate, Domain, Shape};

/// The axis of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Axis {
    /// A number, in its own unit.
    Number {
        low: f64,
        high: f64,
        /// `true` if `low` and `high` are bounds; `false` if they frame a normal distribution.
        bounded: bool,
        /// `true` for whole numbers, which start at `low + 0.5`.
        whole: bool,
    },
    /// A number of options.
    Options(u64),
}

/// A place on an axis: a number, or an option.
pub(super) type Place = Coordinate;

/// The number of standard deviations between the `low` and `high` of a normal distribution.
const NORMAL_SIGMAS: f64 = 3.5;

/// The number of newest trials with full weight. Older trials have less weight.
const FULL_WEIGHT_TRIALS: usize = 25;

/// The number of times that a candidate outside the bounds is drawn again.
const MAX_REDRAWS: usize = 100;

impl Axis {
    pub(super) fn for_domain(domain: &Domain) -> Self {
        match domain {
            Domain::Real(real) => match real.shape {
                Shape::Uniform { low, high } => {
                    Self::Number { low, high, bounded: true, whole: false }
                }
                Shape::Normal { mu, sigma } => {
                    let (low, high) =
                        (mu - sigma * NORMAL_SIGMAS / 2.0, mu + sigma * NORMAL_SIGMAS / 2.0);
                    Self::Number { low, high, bounded: false, whole: false }
                }
            },
            Domain::Integer { size, .. } => {
                #[expect(
                    clippy::as_conversions,
                    clippy::cast_precision_loss,
                    reason = "a randint has at most 2^54 values, and a proposal need not be exact there"
                )]
                let high = *size as f64 - 0.5;
                Self::Number { low: -0.5, high, bounded: true, whole: true }
            }
            Domain::Choice(_) | Domain::Nested(_) => Self::Options(domain.options().unwrap_or(1)),
        }
    }

    /// Returns the place of a coordinate on this axis.
    pub(super) fn place(self, at: Option<Coordinate>) -> Place {
        match (self, at) {
            (Self::Number { whole: true, .. }, Some(Coordinate::Index(offset))) =>
            {
                #[expect(
                    clippy::as_conversions,
                    clippy::cast_precision_loss,
                    reason = "a randint has at most 2^54 values, and a proposal need not be exact there"
                )]
                Coordinate::Real(offset as f64)
            }
            (_, Some(at)) => at,
            (Self::Number { low, high, .. }, None) => Coordinate::Real(f64::midpoint(low, high)),
            (Self::Options(_), None) => Coordinate::Index(0),
        }
    }

    /// Returns the coordinate of a place.
    pub(super) fn coordinate(self, place: Place) -> Coordinate {
        match (self, place) {
            #[expect(
                clippy::as_conversions,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it was rounded and lies within the bounds; the cast saturates"
            )]
            (Self::Number { whole: true, .. }, Coordinate::Real(x)) => Coordinate::Index(x as u64),
            (_, place) => place,
        }
    }
}

/// The kernels: one for each trial, and the last for the space.
#[derive(Debug)]
pub(super) struct Kernels {
    /// The share of each kernel.
    weights: Vec<f64>,
    /// The logarithm of the weighted density at the middle of each kernel.
    peaks: Vec<f64>,
    /// The parts of all kernels, kernel by kernel and within it axis by axis.
    parts: Vec<AxisKernel>,
    /// The numeric parts in the same order, in the form for the density: the middle and the inverse width.
    numbers: Vec<(f64, f64)>,
    axes: usize,
}

/// The part of a kernel on one axis.
#[derive(Debug, Clone, Copy)]
enum AxisKernel {
    Number {
        mu: f64,
        sigma: f64,
    },
    /// The option of the trial, with the log probabilities of this option and of each other option.
    Option {
        seen: u64,
        own: f64,
        other: f64,
    },
}

impl Kernels {
    /// Creates kernels around places, the oldest first. The minimum width of a kernel falls with the power `closer`
    /// of the number of places.
    pub(super) fn around(axes: &[Axis], places: &[Vec<Place>], closer: f64) -> Self {
        let known = places.len();
        let mut weights = trial_weights(known);
        let total: f64 = weights.iter().sum();
        for weight in &mut weights {
            *weight /= total;
        }
        let mut peaks: Vec<f64> = weights.iter().map(|weight| weight.ln()).collect();
        let none = AxisKernel::Option { seen: 0, own: 0.0, other: 0.0 };
        let mut parts = vec![none; (known + 1) * axes.len()];
        for (at, axis) in axes.iter().enumerate() {
            let column: Vec<Place> = places.iter().map(|place| place[at]).collect();
            for (kernel, part) in axis.parts(&column, closer).into_iter().enumerate() {
                peaks[kernel] += axis.peak(part);
                parts[kernel * axes.len() + at] = part;
            }
        }
        let number = |part: &AxisKernel| match part {
            AxisKernel::Number { mu, sigma } => Some((*mu, 1.0 / sigma)),
            AxisKernel::Option { .. } => None,
        };
        let numbers = parts.iter().filter_map(number).collect();
        Self { weights, peaks, parts, numbers, axes: axes.len() }
    }

    /// Draws a candidate.
    pub(super) fn draw(&self, axes: &[Axis], rng: &mut impl Rng) -> Vec<Place> {
        let mut left = rng.random::<f64>();
        let kernel = self.weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        let kernel = kernel.unwrap_or(self.weights.len() - 1);
        let parts = &self.parts[kernel * self.axes..(kernel + 1) * self.axes];
        axes.iter().zip(parts).map(|(axis, part)| axis.draw(*part, rng)).collect()
    }

    /// Returns the logarithm of the density at a place.
    pub(super) fn log_density(&self, at: &[Place]) -> f64 {
        let mut exponents = self.peaks.clone();
        let real = |place: &Place| match place {
            Coordinate::Real(x) => Some(*x),
            Coordinate::Index(_) => None,
        };
        let reals: Vec<f64> = at.iter().filter_map(real).collect();
        if !reals.is_empty() {
            for (exponent, parts) in
                exponents.iter_mut().zip(self.numbers.chunks_exact(reals.len()))
            {
                let distance = |((mu, inverse), x): (&(f64, f64), &f64)| {
                    let distance = (x - mu) * inverse;
                    distance * distance
                };
                *exponent -= 0.5 * parts.iter().zip(&reals).map(distance).sum::<f64>();
            }
        }
        if reals.len() < self.axes {
            for (exponent, parts) in exponents.iter_mut().zip(self.parts.chunks_exact(self.axes)) {
                *exponent += parts
                    .iter()
                    .zip(at)
                    .map(|(part, at)| part.option_log_probability(*at))
                    .sum::<f64>();
            }
        }
        log_sum(&exponents)
    }
}

/// Returns the weight of each of `known` trials, and of the space after them. The weight is 1, or less for older
/// trials if there are many.
fn trial_weights(known: usize) -> Vec<f64> {
    let ramp = known.saturating_sub(FULL_WEIGHT_TRIALS);
    let start = 1.0 / count_to_f64(known.max(1));
    let step = if ramp > 1 { (1.0 - start) / count_to_f64(ramp - 1) } else { 0.0 };
    let weight = |i| if i < ramp { start + step * count_to_f64(i) } else { 1.0 };
    (0..=known).map(weight).collect()
}

impl Axis {
    /// Returns the parts of all kernels on this axis. The last part is that of the space.
    fn parts(self, column: &[Place], closer: f64) -> Vec<AxisKernel> {
        match self {
            Self::Options(options) => {
                // The weight of one trial, spread over all kernels, is added to every option.
                let share = 1.0 / count_to_f64(column.len() + 1);
                #[expect(
                    clippy::as_conversions,
                    clippy::cast_precision_loss,
                    reason = "a list has fewer options than 2^53"
                )]
                let options = options as f64;
                let total = 1.0 + share * options;
                let (own, other) = (((1.0 + share) / total).ln(), (share / total).ln());
                let even = -options.ln();
                let seen = |place: &Place| match place {
                    Coordinate::Index(seen) => AxisKernel::Option { seen: *seen, own, other },
                    Coordinate::Real(_) => AxisKernel::Option { seen: 0, own: even, other: even },
                };
                let space = AxisKernel::Option { seen: 0, own: even, other: even };
                column.iter().map(seen).chain([space]).collect()
            }
            Self::Number { low, high, bounded, whole } => {
                let values: Vec<f64> = column
                    .iter()
                    .map(|place| match place {
                        Coordinate::Real(x) => *x,
                        Coordinate::Index(_) => f64::midpoint(low, high),
                    })
                    .collect();
                let range = high - low;
                // The kernel of a whole number always reaches the neighbouring numbers.
                let least = range / (count_to_f64(values.len()) + 2.0).powf(closer).min(100.0);
                let least = if whole { least.max(0.5) } else { least };
                let widths = kernel_widths(&values, low, high);
                let part = |mu: f64, sigma: f64| AxisKernel::Number { mu, sigma };
                let around = values
                    .iter()
                    .zip(widths)
                    .map(|(mu, width)| part(*mu, width.clamp(least.min(range), range)));
                let space = if bounded { range } else { range / NORMAL_SIGMAS };
                around.chain([part(f64::midpoint(low, high), space)]).collect()
            }
        }
    }

    /// Returns the logarithm of a kernel's density at its middle, including the truncation at the bounds.
    fn peak(self, part: AxisKernel) -> f64 {
        let (Self::Number { low, high, bounded, .. }, AxisKernel::Number { mu, sigma }) =
            (self, part)
        else {
            return 0.0;
        };
        let full = -(TAU.sqrt() * sigma).ln();
        let (left, right) = ((low - mu) / sigma, (high - mu) / sigma);
        // With bounds so far away, the truncation is negligible.
        if !bounded || (left < -6.0 && right > 6.0) {
            return full;
        }
        full - (standard_cdf(right) - standard_cdf(left)).ln()
    }

    fn draw(self, part: AxisKernel, rng: &mut impl Rng) -> Place {
        match (self, part) {
            (Self::Number { low, high, bounded, whole }, AxisKernel::Number { mu, sigma }) => {
                let mut x = mu;
                for _ in 0..MAX_REDRAWS {
                    x = mu + sigma * standard_normal(rng);
                    if !bounded || (x > low && x < high) {
                        break;
                    }
                }
                // Rarely needed, because a kernel's middle lies within the bounds.
                let x = if bounded { x.clamp(low, high) } else { x };
                let x = if whole { x.round().clamp(low + 0.5, high - 0.5) } else { x };
                Coordinate::Real(x)
            }
            (Self::Options(options), AxisKernel::Option { seen, own, other: _ }) => {
                let stays = rng.random::<f64>() < own.exp();
                Coordinate::Index(if stays { seen } else { other_option(seen, options, rng) })
            }
            // Unreachable: all parts on an axis are of the axis's kind.
            (Self::Number { low, high, .. }, AxisKernel::Option { .. }) => {
                Coordinate::Real(f64::midpoint(low, high))
            }
            (Self::Options(_), AxisKernel::Number { .. }) => Coordinate::Index(0),
        }
    }
}

/// Returns a random option other than `seen`, if there is one.
fn other_option(seen: u64, options: u64, rng: &mut impl Rng) -> u64 {
    let others = options.saturating_sub(1);
    if others == 0 {
        return seen;
    }
    let other = rng.random_range(0..others);
    if other < seen { other } else { other + 1 }
}

impl AxisKernel {
    /// Returns the logarithm of an option's probability, or 0 on an axis of numbers.
    fn option_log_probability(self, at: Place) -> f64 {
        match (self, at) {
            (Self::Option { seen, own, other }, Coordinate::Index(i)) => {
                if i == seen {
                    own
                } else {
                    other
                }
            }
            (Self::Number { .. }, _) | (Self::Option { .. }, Coordinate::Real(_)) => 0.0,
        }
    }
}

/// Returns the width of each value's kernel: the gap to the farther neighbour. The ends of the axis count as neighbours
/// only if there is a single value.
fn kernel_widths(values: &[f64], low: f64, high: f64) -> Vec<f64> {
    if let [only] = values {
        return vec![(only - low).max(high - only)];
    }
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut widths = vec![0.0; values.len()];
    for (rank, at) in order.iter().enumerate() {
        let gap =
            |other: Option<&usize>| other.map_or(0.0, |other| (values[*at] - values[*other]).abs());
        let left = gap(rank.checked_sub(1).and_then(|rank| order.get(rank)));
        widths[*at] = left.max(gap(order.get(rank + 1)));
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_density_integrates_to_one_within_the_bounds() {
        let axes = [Axis::Number { low: 0.0, high: 1.0, bounded: true, whole: false }];
        for values in [vec![], vec![0.3], vec![0.0, 0.9, 0.95, 0.95], vec![0.5; 40]] {
            let places: Vec<_> = values.iter().map(|x| vec![Coordinate::Real(*x)]).collect();
            let kernels = Kernels::around(&axes, &places, 1.5);
            let cells = 2000_u32;
            let density = |i| {
                let x = (f64::from(i) + 0.5) / f64::from(cells);
                kernels.log_density(&[Coordinate::Real(x)]).exp() / f64::from(cells)
            };
            let mass: f64 = (0..cells).map(density).sum();
            assert!((mass - 1.0).abs() < 1e-3, "{values:?}: {mass}");
        }
    }

    #[test]
    fn the_probabilities_of_options_add_up_to_one() {
        let axes = [Axis::Options(3)];
        let places: Vec<_> = [0, 2, 2].iter().map(|i| vec![Coordinate::Index(*i)]).collect();
        let kernels = Kernels::around(&axes, &places, 1.0);
        let shares = [0, 1, 2].map(|i| kernels.log_density(&[Coordinate::Index(i)]).exp());
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{shares:?}");
        // As in Optuna: one of four kernels is even; the others give their own option (1 + 1/4) / (1 + 3/4).
        let own = 1.25 / 1.75;
        let expected =
            [(1.0 / 3.0 + own + 2.0 * (0.25 / 1.75)) / 4.0, (1.0 / 3.0 + 3.0 * 0.25 / 1.75) / 4.0];
        assert!((shares[0] - expected[0]).abs() < 1e-12 && (shares[1] - expected[1]).abs() < 1e-12);
    }

    #[test]
    fn kernels_reach_the_farther_neighbour() {
        // Optuna's widths for 0.1, 0.4, 0.5 and for a single value, before clamping.
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(near(&kernel_widths(&[0.4, 0.1, 0.5], 0.0, 1.0), &[0.3, 0.3, 0.1]));
        assert!(near(&kernel_widths(&[0.2], 0.0, 1.0), &[0.8]));
    }

    #[test]
    fn old_trials_have_less_weight() {
        let all = trial_weights(30);
        assert_eq!((all.len(), all[0], all[4], all[30]), (31, 1.0 / 30.0, 1.0, 1.0));
    }
}
