//! PURE: NNI's search spaces: parse, validate, sample.
//!
//! A space is a flat list of [`Dimension`]s, in the order of the document. A nested choice precedes the dimensions of
//! its options. A [`Point`] has a [`Coordinate`] for each dimension, or `None` if the dimension belongs to an option
//! that is not chosen. Tuners use points; trials receive [`Parameters`]. The conversions between them
//! ([`SearchSpace::parameters`] and [`SearchSpace::locate`]) round exactly like NNI 3.0's
//! `nni/common/hpo_utils/formatting.py`.
//!
//! Random points have NNI's distributions, but other values, because the random generator is not `NumPy`'s.
//!
//! This module refuses an invalid space. NNI only logs the problem and continues.

pub(crate) mod casts;
mod domain;
pub(crate) mod normal;
pub(super) mod parse;
mod real;

#[cfg(test)]
mod tests;

use rand::Rng;
use serde_json::{Map, Number, Value};

use self::casts::f64_to_i64;
pub use self::domain::Domain;
pub use self::real::{Real, Shape};
use crate::util::nearest::suggest_names;

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
        let json = parse::convert_bounds(json);
        Ok(Self { dimensions: parse::parse_dimensions(&json)?, json })
    }

    /// Accepts a space for a tuner of the user, which may interpret it in its own way. A space that is not in NNI's
    /// format has no dimensions; its parameters are then known only from the tuner's proposals.
    pub fn accept_any_form(json: &Value) -> Result<Self, Error> {
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
            value.as_object().is_some_and(|members| members.values().any(parse::is_parameter_entry))
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

    /// Returns the parameters for a point, in the order of the space.
    pub fn parameters(&self, point: &[Option<Coordinate>]) -> Parameters {
        self.nested_parameters(point, None)
    }

    fn nested_parameters(
        &self,
        point: &[Option<Coordinate>],
        parent: Option<Parent>,
    ) -> Parameters {
        let present = self.dimensions.iter().zip(point).enumerate();
        present
            .filter(|(_, (dimension, _))| dimension.parent == parent)
            .filter_map(|(index, (dimension, at))| {
                Some((
                    dimension.name.clone(),
                    self.parameter_value(point, index, &dimension.domain, (*at)?)?,
                ))
            })
            .collect()
    }

    fn parameter_value(
        &self,
        point: &[Option<Coordinate>],
        index: usize,
        domain: &Domain,
        at: Coordinate,
    ) -> Option<Value> {
        match (domain, at) {
            (Domain::Choice(values), Coordinate::Index(i)) => {
                values.get(usize::try_from(i).ok()?).cloned()
            }
            (Domain::Nested(names), Coordinate::Index(option)) => {
                let name = names.get(usize::try_from(option).ok()?)?;
                let mut members =
                    Map::from_iter([("_name".to_owned(), Value::from(name.as_str()))]);
                members.extend(
                    self.nested_parameters(point, Some(Parent { dimension: index, option })),
                );
                Some(Value::Object(members))
            }
            (Domain::Integer { low, .. }, Coordinate::Index(offset)) => {
                Some(Value::from(low.checked_add_unsigned(offset)?))
            }
            (Domain::Real(real), Coordinate::Real(x)) if real.integer => {
                Some(Value::from(f64_to_i64(real.value(x))))
            }
            (Domain::Real(real), Coordinate::Real(x)) => {
                Number::from_f64(real.value(x)).map(Value::Number)
            }
            _ => None,
        }
    }

    /// Returns the point for `parameters`. If a choice has equal options, the point has the first of them. A value
    /// that was rounded to a multiple of `q` stays rounded.
    pub fn locate(&self, parameters: &Parameters) -> Result<Point, Error> {
        let mut point = vec![None; self.dimensions.len()];
        self.locate_level(parameters, None, "", &mut point)?;
        Ok(point)
    }

    fn locate_level(
        &self,
        members: &Parameters,
        parent: Option<Parent>,
        prefix: &str,
        point: &mut Point,
    ) -> Result<(), Error> {
        let below = || self.dimensions.iter().enumerate().filter(move |(_, d)| d.parent == parent);
        let path = |name: &str| {
            if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
        };
        let known = |key: &str| below().any(|(_, dimension)| dimension.name == key);
        if let Some(key) =
            members.keys().find(|key| !(known(key) || parent.is_some() && *key == "_name"))
        {
            let names = below().map(|(_, dimension)| dimension.name.as_str());
            return fault(path(key), format!("is not a parameter; {}", suggest_names(key, names)));
        }
        for (index, dimension) in below() {
            let path = path(&dimension.name);
            let Some(value) = members.get(&dimension.name) else {
                return fault(path, "is missing");
            };
            let at = dimension.domain.locate(value, &path)?;
            point[index] = Some(at);
            if let (Domain::Nested(_), Coordinate::Index(option), Value::Object(members)) =
                (&dimension.domain, at, value)
            {
                let parent = Some(Parent { dimension: index, option });
                self.locate_level(members, parent, &path, point)?;
            }
        }
        Ok(())
    }

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

fn fault<T>(path: String, problem: impl Into<String>) -> Result<T, Error> {
    Err(Error { path, problem: problem.into() })
}
