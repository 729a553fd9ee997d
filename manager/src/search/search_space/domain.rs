//! The values of one dimension: the conversion between values, positions and shares.

use rand::Rng;
use serde_json::Value;

use super::casts::{f64_to_i64, f64_to_index, u64_to_f64};
use super::real::Real;
use super::{Coordinate, Error, fault};

/// The values that a dimension may have.
#[derive(Debug, Clone, PartialEq)]
pub enum Domain {
    /// `choice`: one of these values.
    Choice(Vec<Value>),
    /// `choice` whose options have parameters of their own: the `_name`s of the options.
    Nested(Vec<String>),
    /// `randint`: `size` consecutive integers from `low`. NNI's tuners treat it as categorical.
    Integer {
        /// The smallest value.
        low: i64,
        /// The number of values, at least 1.
        size: u64,
    },
    /// All other types: a number with a distribution.
    Real(Real),
}

/// The maximum number of options that are compared with one another: two million comparisons.
const MAX_COMPARED_OPTIONS: usize = 2000;

impl Domain {
    /// Returns the number of options of a categorical domain, or `None` for a real domain.
    pub fn options(&self) -> Option<u64> {
        match self {
            Self::Choice(values) => Some(values.len().try_into().unwrap_or(u64::MAX)),
            Self::Nested(names) => Some(names.len().try_into().unwrap_or(u64::MAX)),
            Self::Integer { size, .. } => Some(*size),
            Self::Real(_) => None,
        }
    }

    /// Returns the option of a choice that equals an earlier option, if any. A choice of very many options is not
    /// searched.
    pub fn repeated_option(&self) -> Option<&Value> {
        let Self::Choice(values) = self else { return None };
        if values.len() > MAX_COMPARED_OPTIONS {
            return None;
        }
        let is_repeated = |(index, value): &(usize, &Value)| {
            values[..*index].iter().any(|earlier| is_equal_in_python(earlier, value))
        };
        values.iter().enumerate().find(is_repeated).map(|(_, value)| value)
    }

    /// Returns the only value of a range whose step leaves no other.
    pub fn only_multiple(&self) -> Option<f64> {
        let Self::Real(real) = self else { return None };
        (real.size() == Some(1)).then(|| real.value(real.quantile(0.5)))
    }

    /// Returns the position of a value. `path` names the value in errors.
    pub(super) fn locate(&self, value: &Value, path: &str) -> Result<Coordinate, Error> {
        match self {
            Self::Choice(values) => {
                match (0..).zip(values).find(|(_, option)| is_equal_in_python(option, value)) {
                    Some((index, _)) => Ok(Coordinate::Index(index)),
                    None => {
                        let allowed = Value::from(values.as_slice());
                        fault(path.to_owned(), format!("{value} is not one of {allowed}"))
                    }
                }
            }
            Self::Nested(names) => {
                let name = value.get("_name").and_then(Value::as_str);
                let index = name.and_then(|name| (0..).zip(names).find(|(_, n)| *n == name));
                match index {
                    Some((index, _)) => Ok(Coordinate::Index(index)),
                    None => fault(
                        path.to_owned(),
                        format!("expected an object whose `_name` is one of {}", names.join(", ")),
                    ),
                }
            }
            Self::Integer { low, size } => {
                let offset = as_integer(value)
                    .and_then(|n| n.checked_sub(*low))
                    .and_then(|offset| u64::try_from(offset).ok())
                    .filter(|offset| offset < size);
                match offset {
                    Some(offset) => Ok(Coordinate::Index(offset)),
                    None => {
                        let last = low.saturating_add_unsigned(size - 1);
                        let problem = format!("{value} is not an integer from {low} to {last}");
                        fault(path.to_owned(), problem)
                    }
                }
            }
            Self::Real(real) if real.integer && as_integer(value).is_none() => {
                fault(path.to_owned(), format!("{value} is not {}", real.range()))
            }
            Self::Real(real) => match value.as_f64() {
                Some(number) => match real.locate(number) {
                    Some(x) => Ok(Coordinate::Real(x)),
                    None => fault(path.to_owned(), format!("{value} is not {}", real.range())),
                },
                None => {
                    fault(path.to_owned(), format!("{value} is not a number, {}", real.range()))
                }
            },
        }
    }

    /// Returns a random position.
    pub fn sample(&self, rng: &mut impl Rng) -> Coordinate {
        match (self, self.options()) {
            (Self::Real(real), _) => Coordinate::Real(real.sample(rng)),
            (_, Some(options)) => Coordinate::Index(rng.random_range(0..options.max(1))),
            (_, None) => Coordinate::Index(0),
        }
    }

    /// Returns the position below which the share `p` of the distribution lies, with options in their order. `p` is
    /// from 0 to 1, and excludes both ends if the distribution is normal.
    pub(crate) fn at_share(&self, p: f64) -> Coordinate {
        match (self, self.options()) {
            (Self::Real(real), _) => Coordinate::Real(real.quantile(p)),
            (_, options) => {
                let options = options.unwrap_or(1);
                Coordinate::Index(f64_to_index((p * u64_to_f64(options)).floor(), options))
            }
        }
    }

    /// Returns the share of the distribution below a position. For a number, the position is the value that the trial
    /// receives; for an option, it is the middle of the option's share.
    pub(crate) fn share(&self, at: Coordinate) -> f64 {
        match (self, at) {
            (Self::Real(real), Coordinate::Real(x)) => real.share(x),
            (_, Coordinate::Index(i)) => {
                (u64_to_f64(i) + 0.5) / u64_to_f64(self.options().unwrap_or(1))
            }
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

/// Returns whether two JSON values are equal in Python, where `1` equals `1.0`.
fn is_equal_in_python(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal_in_python(a, b))
        }
        _ => a == b,
    }
}

/// Returns a JSON number as an integer, or `None` if it has a fraction. `3.0` is an integer.
fn as_integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number =
            value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= 9_007_199_254_740_992.0)?;
        Some(f64_to_i64(number))
    })
}
