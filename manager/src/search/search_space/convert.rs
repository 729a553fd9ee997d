//! The conversion between points and parameters. The order of operations is NNI's: `exp`, rounding to a multiple of `q`
//! (half to even), clipping.

use serde_json::{Map, Number, Value};

use super::{
    Coordinate, Dimension, Domain, Error, Parameters, Parent, Point, Real, SearchSpace, Shape,
};
use crate::util::nearest::advice;

/// The relative tolerance at the bounds of a value, because `exp(ln(x))` does not always equal `x`.
const SLACK: f64 = 1e-9;

impl SearchSpace {
    /// Returns the parameters for a point, in the order of the space.
    pub fn parameters(&self, point: &[Option<Coordinate>]) -> Parameters {
        self.level(point, None)
    }

    fn level(&self, point: &[Option<Coordinate>], parent: Option<Parent>) -> Parameters {
        let present = self.dimensions.iter().zip(point).enumerate();
        present
            .filter(|(_, (dimension, _))| dimension.parent == parent)
            .filter_map(|(index, (dimension, at))| {
                Some((dimension.name.clone(), self.value(point, index, &dimension.domain, (*at)?)?))
            })
            .collect()
    }

    fn value(
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
                members.extend(self.level(point, Some(Parent { dimension: index, option })));
                Some(Value::Object(members))
            }
            (Domain::Integer { low, .. }, Coordinate::Index(offset)) => {
                Some(Value::from(low.checked_add_unsigned(offset)?))
            }
            (Domain::Real(real), Coordinate::Real(x)) if real.integer => {
                Some(Value::from(whole(real.value(x))))
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
            return fault(path(key), format!("is not a parameter; {}", advice(key, names)));
        }
        for (index, dimension) in below() {
            let path = path(&dimension.name);
            let Some(value) = members.get(&dimension.name) else {
                return fault(path, "is missing");
            };
            let at = dimension.locate(value, &path)?;
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
}

impl Dimension {
    /// Returns the coordinate of a value on this dimension.
    fn locate(&self, value: &Value, path: &str) -> Result<Coordinate, Error> {
        match &self.domain {
            Domain::Choice(values) => {
                match (0..).zip(values).find(|(_, option)| same(option, value)) {
                    Some((index, _)) => Ok(Coordinate::Index(index)),
                    None => {
                        let allowed = Value::from(values.as_slice());
                        fault(path.to_owned(), format!("{value} is not one of {allowed}"))
                    }
                }
            }
            Domain::Nested(names) => {
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
            Domain::Integer { low, size } => {
                let offset = integral(value)
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
            Domain::Real(real) if real.integer && integral(value).is_none() => {
                fault(path.to_owned(), format!("{value} is not {}", real.range()))
            }
            Domain::Real(real) => match value.as_f64() {
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
}

impl Real {
    /// Returns the value at a coordinate. It is always finite.
    pub fn value(&self, coordinate: f64) -> f64 {
        let mut x = if self.log { coordinate.exp() } else { coordinate };
        if let Some(q) = self.q {
            x = (x / q).round_ties_even() * q;
        }
        if let Some((low, high)) = self.bounds {
            x = x.max(low).min(high);
        }
        // JSON has no infinity. Adding 0 converts -0 to 0, because Python's integers have no -0.
        x.clamp(f64::MIN, f64::MAX) + 0.0
    }

    /// Returns the coordinate of the value that the trial receives, which may be a multiple of `q`.
    pub fn quantized(&self, coordinate: f64) -> f64 {
        match self.q {
            None => coordinate,
            Some(_) => self.locate(self.value(coordinate)).unwrap_or(coordinate),
        }
    }

    /// Returns the approximate distance from a coordinate to the next multiple of `q`, or 0 without `q`.
    pub fn step(&self, coordinate: f64) -> f64 {
        match (self.q, self.log) {
            (None, _) => 0.0,
            (Some(q), false) => q,
            (Some(q), true) => (q / coordinate.exp()).ln_1p(),
        }
    }

    /// Returns the coordinate of a value, or `None` if the distribution does not contain the value.
    fn locate(&self, value: f64) -> Option<f64> {
        let value = match self.bounds {
            Some((low, high)) => {
                let slack = SLACK * (high - low).max(low.abs());
                if value < low - slack || value > high + slack {
                    return None;
                }
                value.clamp(low, high)
            }
            None => value,
        };
        match self.log {
            false => Some(value),
            // A small value of a `qlognormal` is rounded to 0. The original value is unknown, so the coordinate is
            // that of the middle of the rounding interval.
            true if value == 0.0 && self.q.is_some() => self.q.map(|q| (q / 4.0).ln()),
            true => (value > 0.0).then(|| value.ln()),
        }
    }

    fn range(&self) -> String {
        match (self.bounds, self.log) {
            (Some((low, high)), _) if self.integer => format!("an integer from {low} to {high}"),
            (Some((low, high)), _) => format!("from {low} to {high}"),
            (None, true) => "greater than 0".to_owned(),
            (None, false) => "finite".to_owned(),
        }
    }

    /// Returns the number of values, or `None` if they are not countable.
    pub(super) fn size(&self) -> Option<u128> {
        let (q, (low, high)) = (self.q?, self.bounds?);
        // The multiples whose rounding interval overlaps the open range. Multiples outside the bounds are clipped.
        let first = (low / q + 0.5).floor();
        let last = (high / q - 0.5).ceil();
        let count = (last - first + 1.0).max(1.0);
        #[expect(
            clippy::as_conversions,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1, and the cast saturates"
        )]
        (count < 1e30).then_some(count as u128)
    }

    /// Returns the quantile `p` (0 to 1) of the distribution, as a coordinate. It is infinite at the ends of a normal
    /// distribution.
    pub fn quantile(&self, p: f64) -> f64 {
        match self.shape {
            Shape::Uniform { low, high } => low + (high - low) * p,
            Shape::Normal { mu, sigma } => mu + sigma * super::sample::standard_quantile(p),
        }
    }
}

/// Returns whether two JSON values are equal in Python, where `1` equals `1.0`.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => a == b,
    }
}

/// Returns a JSON number as an integer, or `None` if it has a fraction. `3.0` is an integer.
fn integral(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number =
            value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= 9_007_199_254_740_992.0)?;
        Some(whole(number))
    })
}

/// Converts a double without a fraction to an integer.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "an integer of at most 53 bits"
)]
fn whole(number: f64) -> i64 {
    number as i64
}

fn fault<T>(path: String, problem: impl Into<String>) -> Result<T, Error> {
    Err(Error { path, problem: problem.into() })
}
