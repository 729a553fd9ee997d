//! PURE: NNI's search spaces: parse, validate, sample.
//!
//! A space is held as a flat list of [`Dimension`]s, in the order of the document, a nested choice before
//! what its options hold. A [`Point`] gives each dimension its [`Coordinate`], or none where the
//! dimension belongs to an option that is not chosen. Tuners work on points; trials see the
//! [`Parameters`] that a point stands for. The two steps between them ([`SearchSpace::parameters`] and
//! [`SearchSpace::locate`]) round and convert exactly as NNI 3.0's `nni/common/hpo_utils/formatting.py`.
//!
//! Unlike NNI, which logs what is wrong with a space and goes on, this module refuses it.

mod convert;
mod parse;
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

/// Why a search space, or a point of it, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Error {
    /// Where, such as `lr._value[1]`.
    pub path: String,
    /// The problem and the allowed values.
    pub problem: String,
}

/// One parameter that may vary, nested ones included.
#[derive(Debug, Clone, PartialEq)]
pub struct Dimension {
    /// The parameter's name; unique among its siblings only.
    pub name: String,
    /// The option of a nested choice that this dimension belongs to. `None`: always present.
    pub parent: Option<Parent>,
    /// The values that it may take.
    pub domain: Domain,
}

/// An option of a nested choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// Index of the choice among the dimensions; less than the child's own.
    pub dimension: usize,
    /// Which of its options.
    pub option: u64,
}

/// The values that a dimension may take.
#[derive(Debug, Clone, PartialEq)]
pub enum Domain {
    /// `choice`: one of these values.
    Choice(Vec<Value>),
    /// `choice` whose options are spaces of their own: the options' `_name`s.
    Nested(Vec<String>),
    /// `randint`: `size` consecutive integers from `low`. NNI's tuners treat it as categorical.
    Integer {
        /// The least value.
        low: i64,
        /// The number of values, at least 1.
        size: u64,
    },
    /// Everything else.
    Real(Real),
}

/// A real number with a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Real {
    /// The distribution of the coordinate.
    pub shape: Shape,
    /// `true` if the value is `exp` of the coordinate.
    pub log: bool,
    /// The value is a multiple of this, where given.
    pub q: Option<f64>,
    /// The least and the largest value, of the uniform kinds.
    pub bounds: Option<(f64, f64)>,
    /// `true` if the value is an integer (`lograndint`); `q` is then 1.
    pub integer: bool,
}

/// The distribution of a coordinate: of the value, or of its logarithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// Evenly between the two.
    Uniform {
        /// The least coordinate.
        low: f64,
        /// The largest coordinate.
        high: f64,
    },
    /// Gaussian.
    Normal {
        /// Mean.
        mu: f64,
        /// Standard deviation, greater than 0.
        sigma: f64,
    },
}

/// A position on one dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Coordinate {
    /// A choice of a categorical dimension: index of the option, or offset from the least integer.
    Index(u64),
    /// A value of a real dimension: before `exp`, rounding and clipping.
    Real(f64),
}

/// A position on every dimension that is present, in the order of the dimensions.
pub type Point = Vec<Option<Coordinate>>;

impl SearchSpace {
    /// Checks and takes in NNI's form, `{"lr": {"_type": "loguniform", "_value": [1e-4, 0.1]}}`.
    pub fn parse(json: &Value) -> Result<Self, Error> {
        Ok(Self { dimensions: parse::dimensions(json)?, json: json.clone() })
    }

    /// Takes in a space for a tuner that makes of it what it likes. One that is not in NNI's form is kept as it
    /// is, without dimensions: what the tuner proposes is all that can be known of it.
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

    /// Returns whether it is in NNI's form, so that its parameters are known.
    pub fn is_known(&self) -> bool {
        // A space in NNI's form has a parameter.
        !self.dimensions.is_empty()
    }

    /// Returns whether a parameter is a `lograndint`, which is TrialKeeper's and not NNI's.
    pub fn has_log_integers(&self) -> bool {
        let is_one = |domain: &Domain| matches!(domain, Domain::Real(real) if real.integer);
        self.dimensions.iter().any(|dimension| is_one(&dimension.domain))
    }

    /// The space as it was written.
    pub fn as_json(&self) -> &Value {
        &self.json
    }

    /// All dimensions, parents before their children.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// The names of the parameters at the top level: the keys of every [`Parameters`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.dimensions.iter().filter(|d| d.parent.is_none()).map(|d| d.name.as_str())
    }

    /// Returns whether dimension `index` is present in a point whose earlier coordinates are given.
    pub fn is_present(&self, index: usize, earlier: &[Option<Coordinate>]) -> bool {
        match self.dimensions[index].parent {
            None => true,
            Some(parent) => earlier[parent.dimension] == Some(Coordinate::Index(parent.option)),
        }
    }

    /// Returns the number of different parameter sets. `None`: without end, or more than can be counted.
    pub fn size(&self) -> Option<u128> {
        self.size_below(None)
    }

    /// Refuses parameters that this space does not contain, and says why. Multiples of `q` are not
    /// insisted on, since a person may want to try what lies between. A space whose parameters are not known
    /// contains all.
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
    /// Returns the number of options of a categorical domain. `None`: it is real.
    pub fn options(&self) -> Option<u64> {
        match self {
            Self::Choice(values) => Some(values.len().try_into().unwrap_or(u64::MAX)),
            Self::Nested(names) => Some(names.len().try_into().unwrap_or(u64::MAX)),
            Self::Integer { size, .. } => Some(*size),
            Self::Real(_) => None,
        }
    }
}
