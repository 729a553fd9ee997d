//! `QMC`: quasi-random search. The points fill the space more evenly than random points, whatever their number.
//!
//! The sequence is Halton's (1960), with a different prime base for each parameter. Random permutations scramble the
//! digits (Owen, "A randomized Halton algorithm in R", 2017). Unlike Sobol's sequence, it needs no table of direction
//! numbers, so the number of parameters is not limited. Point `id` depends only on the seed and `id`.

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

use super::dedup::Dedup;
use super::random::generator;
use super::{Outcome, Proposal, Sample, Tuner};
use crate::search::search_space::casts::u64_to_f64;
use crate::search::search_space::{Parameters, Point, SearchSpace};

/// The weight of a digit below which further digits are ignored.
const MIN_DIGIT_WEIGHT: f64 = 1e-12;

/// A tuner that proposes the points of the sequence.
#[derive(Debug)]
pub(super) struct Halton {
    space: SearchSpace,
    seed: u64,
    dedup: Dedup,
}

impl Halton {
    pub(super) fn new(space: &SearchSpace, seed: u64) -> Self {
        Self { space: space.clone(), seed, dedup: Dedup::new(space) }
    }
}

impl Tuner for Halton {
    fn propose(&mut self, id: u64) -> Proposal {
        let mut rng = generator(self.seed, id);
        let mut next = Some(halton_point(&self.space, self.seed, id));
        let draw = || next.take().unwrap_or_else(|| self.space.sample_point(&mut rng));
        match self.dedup.draw_new(draw) {
            Some(parameters) => Proposal::Parameters(parameters),
            None => Proposal::Exhausted,
        }
    }

    fn adopt(&mut self, _id: u64, parameters: &Parameters) {
        self.dedup.adopt(parameters);
    }

    fn observe(&mut self, _id: u64, _outcome: &Outcome) {}

    fn import(&mut self, samples: &[Sample]) {
        for sample in samples {
            self.dedup.adopt(&sample.parameters);
        }
    }
}

/// Returns point `id` of the sequence with the scrambling of `seed`.
pub(super) fn halton_point(space: &SearchSpace, seed: u64, id: u64) -> Point {
    let mut point: Point = Vec::with_capacity(space.dimensions().len());
    for (index, (dimension, base)) in space.dimensions().iter().zip(Primes(1)).enumerate() {
        let present = space.is_present(index, &point);
        // Each parameter has its own stream, far from the streams of the proposals.
        let stream = u64::MAX - u64::try_from(index).unwrap_or_default();
        let at = || dimension.domain.at_share(radical_inverse(id, base, generator(seed, stream)));
        point.push(present.then(at));
    }
    point
}

/// Returns the scrambled radical inverse: the digits of `n` in reverse order after the point, each replaced by a random
/// permutation. The result is between 0 and 1, excluding both.
fn radical_inverse(mut n: u64, base: u64, mut rng: ChaCha8Rng) -> f64 {
    let (mut sum, mut unit) = (0.0, 1.0);
    while unit > MIN_DIGIT_WEIGHT {
        unit /= u64_to_f64(base);
        sum += unit * u64_to_f64(permute_digit(n % base, base, &mut rng));
        n /= base;
    }
    (sum + unit / 2.0).clamp(MIN_DIGIT_WEIGHT, 1.0 - MIN_DIGIT_WEIGHT)
}

/// Returns the digit to which a random permutation of `0..base` maps a digit. The number of random draws does not
/// depend on the digit.
fn permute_digit(digit: u64, base: u64, rng: &mut ChaCha8Rng) -> u64 {
    // The Fisher-Yates shuffle, tracking only the position of one digit.
    let mut at = digit;
    for last in (1..base).rev() {
        let other = rng.random_range(0..=last);
        if at == last {
            at = other;
        } else if at == other {
            at = last;
        }
    }
    at
}

/// The primes greater than a number.
struct Primes(u64);

impl Iterator for Primes {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let has_divisor = |n: u64| (2..n).take_while(|d| d * d <= n).any(|d| n.is_multiple_of(d));
        self.0 += 1;
        while has_divisor(self.0) {
            self.0 += 1;
        }
        Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::search::search_space::Coordinate;

    #[test]
    fn the_bases_are_primes() {
        assert_eq!(Primes(1).take(8).collect::<Vec<_>>(), [2, 3, 5, 7, 11, 13, 17, 19]);
    }

    #[test]
    fn the_first_points_of_a_base_lie_in_different_parts() {
        let unit = json!({"_type": "uniform", "_value": [0, 1]});
        let names = (0..6).map(|i| (format!("x{i}"), unit.clone()));
        let space = SearchSpace::parse(&names.collect::<serde_json::Map<_, _>>().into()).unwrap();
        for seed in 0..20 {
            for (at, base) in Primes(1).take(6).enumerate() {
                let part = |id: u64| match halton_point(&space, seed, id)[at] {
                    Some(Coordinate::Real(x)) => (x * u64_to_f64(base)).floor(),
                    other => panic!("a number, not {other:?}"),
                };
                let mut parts: Vec<f64> = (0..base).map(part).collect();
                parts.sort_by(f64::total_cmp);
                assert_eq!(parts, (0..base).map(u64_to_f64).collect::<Vec<_>>(), "base {base}");
            }
        }
    }

    #[test]
    fn the_sequence_is_more_even_than_random_points() {
        let unit = json!({"_type": "uniform", "_value": [0, 1]});
        let space = SearchSpace::parse(&json!({"x": unit, "y": unit, "z": unit})).unwrap();
        // The squared error, over 20 seeds, of the mean of a smooth function over 128 points.
        let error = |points: &dyn Fn(u64, u64) -> Point| {
            let value = |point: &Point| -> f64 {
                let term = |at: &Option<Coordinate>| match at {
                    Some(Coordinate::Real(x)) => x * x,
                    _ => 0.0,
                };
                point.iter().map(term).sum()
            };
            let mean = |seed| (0..128).map(|id| value(&points(seed, id))).sum::<f64>() / 128.0;
            (0..20).map(|seed| (mean(seed) - 1.0).powi(2)).sum::<f64>()
        };
        let quasi = error(&|seed, id| halton_point(&space, seed, id));
        let random = error(&|seed, id| space.sample_point(&mut generator(seed, id)));
        assert!(quasi < random / 20.0, "{quasi} {random}");
    }
}
