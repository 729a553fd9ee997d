//! PURE: the parameters of a search space, for the axes of charts and for the parameter importance.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::search::search_space::{Dimension, Domain, Real, SearchSpace, Shape};

/// A parameter's axis.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ParameterAxis {
    /// The parameter's name. A member of a nested choice is `outer.inner`.
    pub name: String,
    /// The type in the search space, such as `loguniform`.
    pub r#type: &'static str,
    /// `true` if the search space draws the parameter on a logarithmic scale.
    pub log: bool,
    /// The options, in the order of the search space. Absence means that the parameter is a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub options: Option<Vec<Value>>,
    /// The minimum. Absence means that the space sets none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// The maximum. Absence means that the space sets none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// The distance between two adjacent values. Absence means that values are continuous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
}

/// Returns the axes of a space, in its order. Members with the same name in several options of a choice share an
/// axis.
pub fn axes(space: &SearchSpace) -> Vec<ParameterAxis> {
    let dimensions = space.dimensions();
    let mut axes: Vec<ParameterAxis> = Vec::with_capacity(dimensions.len());
    for at in 0..dimensions.len() {
        let new = axis(&name_of(dimensions, at), &dimensions[at].domain);
        match axes.iter_mut().find(|known| known.name == new.name) {
            Some(known) => extend_axis(known, new),
            None => axes.push(new),
        }
    }
    axes
}

/// Returns the name of a dimension in the parameters of trials.
fn name_of(dimensions: &[Dimension], at: usize) -> String {
    let mut name = dimensions[at].name.clone();
    let mut parent = dimensions[at].parent;
    while let Some(above) = parent {
        let dimension = &dimensions[above.dimension];
        name = format!("{}.{name}", dimension.name);
        parent = dimension.parent;
    }
    match dimensions[at].domain {
        Domain::Nested(_) => format!("{name}._name"),
        Domain::Choice(_) | Domain::Integer { .. } | Domain::Real(_) => name,
    }
}

fn axis(name: &str, domain: &Domain) -> ParameterAxis {
    let plain = |r#type| ParameterAxis {
        name: name.to_owned(),
        r#type,
        log: false,
        options: None,
        low: None,
        high: None,
        step: None,
    };
    match domain {
        Domain::Choice(values) => {
            ParameterAxis { options: Some(values.clone()), ..plain("choice") }
        }
        Domain::Nested(names) => {
            let options = names.iter().map(|name| Value::from(name.as_str())).collect();
            ParameterAxis { options: Some(options), ..plain("choice") }
        }
        Domain::Integer { low, size } => {
            let high = i128::from(*low) + i128::from(*size) - 1;
            let number = |value: i128| value.to_string().parse().ok();
            ParameterAxis {
                low: number((*low).into()),
                high: number(high),
                step: Some(1.0),
                ..plain("randint")
            }
        }
        Domain::Real(real) => ParameterAxis {
            log: real.log,
            low: real.bounds.map(|(low, _)| low),
            high: real.bounds.map(|(_, high)| high),
            step: real.q,
            ..plain(type_of(real))
        },
    }
}

fn type_of(real: &Real) -> &'static str {
    match (real.shape, real.log, real.q.is_some()) {
        (Shape::Uniform { .. }, false, false) => "uniform",
        (Shape::Uniform { .. }, false, true) => "quniform",
        (Shape::Uniform { .. }, true, false) => "loguniform",
        (Shape::Uniform { .. }, true, true) => "qloguniform",
        (Shape::Normal { .. }, false, false) => "normal",
        (Shape::Normal { .. }, false, true) => "qnormal",
        (Shape::Normal { .. }, true, false) => "lognormal",
        (Shape::Normal { .. }, true, true) => "qlognormal",
    }
}

/// Extends an axis to the values of another axis with the same name.
fn extend_axis(axis: &mut ParameterAxis, other: ParameterAxis) {
    axis.log &= other.log;
    axis.low = axis.low.zip(other.low).map(|(a, b)| a.min(b));
    axis.high = axis.high.zip(other.high).map(|(a, b)| a.max(b));
    axis.step = axis.step.zip(other.step).map(|(a, b)| a.min(b));
    match (&mut axis.options, other.options) {
        (Some(options), Some(more)) => {
            let new: Vec<_> = more.into_iter().filter(|one| !options.contains(one)).collect();
            options.extend(new);
        }
        // One is numeric and the other has options: charts then use the values themselves.
        (options, _) => *options = None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_space_determines_the_axes() {
        let space = json!({
            "lr": {"_type": "loguniform", "_value": [1e-4, 0.1]},
            "units": {"_type": "choice", "_value": [256, 32]},
            "layers": {"_type": "randint", "_value": [1, 9]},
            "drop": {"_type": "quniform", "_value": [0, 0.5, 0.1]},
            "scale": {"_type": "normal", "_value": [0, 1]},
            "model": {"_type": "choice", "_value": [
                {"_name": "tree", "depth": {"_type": "randint", "_value": [2, 12]}},
                {"_name": "forest", "depth": {"_type": "randint", "_value": [1, 5]}},
            ]},
        });
        let axes = axes(&SearchSpace::parse(&space).unwrap());
        let expected = json!([
            {"name": "lr", "type": "loguniform", "log": true, "low": 1e-4, "high": 0.1},
            {"name": "units", "type": "choice", "log": false, "options": [256, 32]},
            {"name": "layers", "type": "randint", "log": false, "low": 1.0, "high": 8.0, "step": 1.0},
            {"name": "drop", "type": "quniform", "log": false, "low": 0.0, "high": 0.5, "step": 0.1},
            {"name": "scale", "type": "normal", "log": false},
            {"name": "model._name", "type": "choice", "log": false, "options": ["tree", "forest"]},
            {"name": "model.depth", "type": "randint", "log": false, "low": 1.0, "high": 11.0, "step": 1.0},
        ]);
        assert_eq!(serde_json::to_value(axes).unwrap(), expected);
    }
}
