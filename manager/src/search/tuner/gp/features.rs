//! The conversion of points to vectors whose distance measures their difference.

use serde_json::Value;

pub(super) use crate::search::search_space::casts::{f64_to_index, u64_to_f64};
use crate::search::search_space::{Coordinate, Domain, Point, Real, SearchSpace};

/// The features of each dimension of a space.
#[derive(Debug)]
pub(super) struct Features(Vec<Feature>);

#[derive(Debug)]
enum Feature {
    /// A number from 0 to 1, by the parameter's distribution.
    Real(Real),
    /// A number from 0 to 1: the rank of each option.
    Ranks(Vec<f64>),
    /// A number from 0 to 1: an integer, with the number of integers.
    Integer(u64),
    /// A number for each option, one of which is set. All options have the same distance.
    Options(usize),
}

/// The number of the chosen option. The distance of two options is then 1, like that of the two ends of a number.
const CHOSEN_OPTION: f64 = std::f64::consts::FRAC_1_SQRT_2;

/// The number for a parameter that is not present: the middle of its range.
const ABSENT_PARAMETER: f64 = 0.5;

impl Features {
    pub(super) fn new(space: &SearchSpace) -> Self {
        let feature = |domain: &Domain| match domain {
            Domain::Real(real) => Feature::Real(*real),
            Domain::Integer { size, .. } => Feature::Integer(*size),
            Domain::Nested(names) => Feature::Options(names.len()),
            Domain::Choice(values) => match ranks(values) {
                Some(ranks) => Feature::Ranks(ranks),
                None => Feature::Options(values.len()),
            },
        };
        Self(space.dimensions().iter().map(|dimension| feature(&dimension.domain)).collect())
    }

    /// Returns the vector for a point.
    pub(super) fn vector_of(&self, point: &Point) -> Vec<f64> {
        let mut numbers = Vec::with_capacity(self.0.len());
        for (feature, at) in self.0.iter().zip(point) {
            match (feature, at) {
                (Feature::Options(count), at) => {
                    let chosen = match at {
                        Some(Coordinate::Index(index)) => usize::try_from(*index).ok(),
                        Some(Coordinate::Real(_)) | None => None,
                    };
                    numbers.extend(
                        (0..*count).map(|i| if chosen == Some(i) { CHOSEN_OPTION } else { 0.0 }),
                    );
                }
                (Feature::Real(real), Some(Coordinate::Real(x))) => numbers.push(real.share(*x)),
                (Feature::Ranks(ranks), Some(Coordinate::Index(i))) => {
                    let rank = usize::try_from(*i).ok().and_then(|i| ranks.get(i));
                    numbers.push(rank.copied().unwrap_or(ABSENT_PARAMETER));
                }
                (Feature::Integer(size), Some(Coordinate::Index(i))) => {
                    numbers.push(u64_to_f64(*i) / u64_to_f64((*size).saturating_sub(1).max(1)));
                }
                _ => numbers.push(ABSENT_PARAMETER),
            }
        }
        numbers
    }
}

/// Returns the rank of each option, from 0 to 1, if all options are numbers.
fn ranks(values: &[Value]) -> Option<Vec<f64>> {
    let numbers: Option<Vec<f64>> = values.iter().map(Value::as_f64).collect();
    let numbers = numbers.filter(|numbers| numbers.len() > 1)?;
    let mut sorted = numbers.clone();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup();
    let last = u64_to_f64(u64::try_from(sorted.len()).ok()?.saturating_sub(1).max(1));
    let rank = |number: &f64| {
        let below = sorted.partition_point(|other| other < number);
        u64::try_from(below).map_or(ABSENT_PARAMETER, |below| u64_to_f64(below) / last)
    };
    Some(numbers.iter().map(rank).collect())
}
