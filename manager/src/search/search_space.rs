//! PURE: NNI's search spaces: parse, validate, sample.
//!
//! A space is a flat list of [`Dimension`]s, in the order of the document. A nested choice precedes the dimensions of
//! its options. A [`Point`] has a [`Coordinate`] for each dimension, or `None` if the dimension belongs to an option
//! that is not chosen. Tuners use points; trials receive [`Parameters`]. The conversions between them
//! ([`SearchSpace::parameters`] and [`SearchSpace::locate`]) round exactly like NNI 3.0's
//! `nni/common/hpo_utils/formatting.py`.
//!
//! This module refuses an invalid space. NNI only logs the problem and continues.

mod convert;
pub(super) mod parse;
pub(crate) mod sample;
pub(crate) mod unit_cube;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

/// One point of a search space: parameter name -> value.
pub type Parameters = Map<String, Value>;

/// A checked search space.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchSpace {
    dimensions: Vec<Dimension>,
    json: Value,
}

/// The reason why a search space, or a point of it, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Error {
    /// The path of the entry, such as `lr._value[1]`.
    pub path: String,
    /// The problem and the allowed values.
    pub problem: String,
}

/// A parameter that may vary, at the top level or within a nested choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Dimension {
    /// The parameter's name, which is unique only among its siblings.
    pub name: String,
    /// The option of a nested choice to which this dimension belongs. `None` if the dimension is always present.
    pub parent: Option<Parent>,
    /// The values that the parameter may have.
    pub domain: Domain,
}

/// An option of a nested choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// The index of the choice among the dimensions, which is less than the index of each child.
    pub dimension: usize,
    /// The index of the option.
    pub option: u64,
}

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

/// A position on one dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Coordinate {
    /// A position on a categorical dimension: the index of the option, or the offset from the smallest integer.
    Index(u64),
    /// A position on a real dimension, before `exp`, rounding and clipping.
    Real(f64),
}

/// A position on every dimension that is present, in the order of the dimensions.
pub type Point = Vec<Option<Coordinate>>;

impl SearchSpace {
    /// Parses a space in NNI's format, such as `{"lr": {"_type": "loguniform", "_value": [1e-4, 0.1]}}`.
    pub fn parse(json: &Value) -> Result<Self, Error> {
        let json = parse::with_numbers(json);
        Ok(Self { dimensions: parse::dimensions(&json)?, json })
    }

    /// Accepts a space for a tuner of the user, which may interpret it in its own way. A space that is not in NNI's
    /// format has no dimensions; its parameters are then known only from the tuner's proposals.
    pub fn of_any_form(json: &Value) -> Result<Self, Error> {
        Self::parse(json).or_else(|error| match json {
            Value::Object(_) => Ok(Self { dimensions: Vec::new(), json: json.clone() }),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(error),
        })
    }

    /// Returns whether the space is in NNI's format, so that its parameters are known.
    pub fn is_known(&self) -> bool {
        // A space in NNI's format has at least one parameter.
        !self.dimensions.is_empty()
    }

    /// Returns whether a parameter is a `lograndint`, a type that NNI does not have.
    pub fn has_log_integers(&self) -> bool {
        let is_one = |domain: &Domain| matches!(domain, Domain::Real(real) if real.integer);
        self.dimensions.iter().any(|dimension| is_one(&dimension.domain))
    }

    /// Returns the JSON from which the space was parsed, with numbers in place of texts that are numbers.
    pub fn as_json(&self) -> &Value {
        &self.json
    }

    /// Returns all dimensions, parents before their children.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// Returns the names of the choices with options that have parameters and no `_name`: such options are constants.
    pub fn choices_of_unnamed_spaces(&self) -> impl Iterator<Item = &str> {
        let is_space = |value: &Value| {
            value.as_object().is_some_and(|members| members.values().any(parse::is_space))
        };
        let choices = self.dimensions.iter().filter(
            move |one| matches!(&one.domain, Domain::Choice(values) if values.iter().any(is_space)),
        );
        choices.map(|one| one.name.as_str())
    }

    /// Returns the names of the parameters at the top level: the keys of every [`Parameters`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.dimensions.iter().filter(|d| d.parent.is_none()).map(|d| d.name.as_str())
    }

    /// Returns whether dimension `index` is present in a point with these `earlier` coordinates.
    pub fn is_present(&self, index: usize, earlier: &[Option<Coordinate>]) -> bool {
        match self.dimensions[index].parent {
            None => true,
            Some(parent) => earlier[parent.dimension] == Some(Coordinate::Index(parent.option)),
        }
    }

    /// Returns the number of different parameter sets, or `None` if it is infinite or overflows.
    pub fn size(&self) -> Option<u128> {
        self.size_below(None)
    }

    /// Returns an error if this space does not contain the parameters. Values between multiples of `q` are accepted,
    /// because a user may want to try them. A space whose parameters are not known contains all parameters.
    pub fn validate(&self, parameters: &Parameters) -> Result<(), Error> {
        if self.is_known() { self.locate(parameters).map(drop) } else { Ok(()) }
    }

    fn size_below(&self, parent: Option<Parent>) -> Option<u128> {
        let siblings = self.dimensions.iter().enumerate().filter(|(_, d)| d.parent == parent);
        siblings
            .map(|(index, dimension)| self.size_of(index, &dimension.domain))
            .try_fold(1_u128, |product, size| product.checked_mul(size?))
    }

    fn size_of(&self, index: usize, domain: &Domain) -> Option<u128> {
        match domain {
            Domain::Choice(values) => {
                let distinct: std::collections::HashSet<String> =
                    values.iter().map(Value::to_string).collect();
                u128::try_from(distinct.len()).ok()
            }
            Domain::Nested(options) => (0..).zip(options).try_fold(0_u128, |sum, (option, _)| {
                sum.checked_add(self.size_below(Some(Parent { dimension: index, option }))?)
            }),
            Domain::Integer { size, .. } => Some(u128::from(*size)),
            Domain::Real(real) => real.size(),
        }
    }
}

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
}
