//! Which parameters were proposed already, and what to propose instead when one comes up again.

use std::collections::HashSet;

use serde_json::Value;

use super::grid::Grid;
use crate::search::search_space::{Domain, Parameters, Point, SearchSpace};

/// The number of times that a colliding draw is replaced by another draw before the grid is walked. NNI walks at once;
/// a few more draws keep a search random that has only begun to fill its space.
const DRAWS: usize = 16;

/// Parameters that were proposed, in a form that does not depend on the order of their names.
#[derive(Debug, Clone, Default)]
pub(super) struct History(HashSet<String>);

impl History {
    /// Remembers parameters; `false` if they were known.
    pub(super) fn insert(&mut self, parameters: &Parameters) -> bool {
        let mut text = String::new();
        write_sorted(parameters, &mut text);
        self.0.insert(text)
    }
}

/// Keeps a tuner from proposing the same parameters twice, and notices when there are no more. After NNI
/// 3.0's `nni/common/hpo_utils/dedup.py`.
#[derive(Debug)]
pub(super) struct Dedup {
    space: SearchSpace,
    /// `true` if a draw can collide at all: not where a parameter that is always present is continuous.
    may_collide: bool,
    history: History,
    grid: Option<Grid>,
}

impl Dedup {
    pub(super) fn new(space: &SearchSpace) -> Self {
        let continuous = |domain: &Domain| match domain {
            Domain::Real(real) => real.q.is_none(),
            Domain::Choice(_) | Domain::Nested(_) | Domain::Integer { .. } => false,
        };
        let mut always = space.dimensions().iter().filter(|d| d.parent.is_none());
        Self {
            may_collide: !always.any(|dimension| continuous(&dimension.domain)),
            space: space.clone(),
            history: History::default(),
            grid: None,
        }
    }

    /// The first new one of what `draw` yields, else the next new point of a grid; `None` when every
    /// point was proposed.
    pub(super) fn fresh(&mut self, mut draw: impl FnMut() -> Point) -> Option<Parameters> {
        if !self.may_collide {
            return Some(self.space.parameters(&draw()));
        }
        for _ in 0..DRAWS {
            let parameters = self.space.parameters(&draw());
            if self.history.insert(&parameters) {
                return Some(parameters);
            }
        }
        // What the walk passes is in the history, so that a rebuilt tuner's walk arrives where this is.
        let grid = self.grid.get_or_insert_with(|| Grid::new(&self.space));
        grid.find(|parameters| self.history.insert(parameters))
    }

    /// Remembers parameters that were proposed earlier.
    pub(super) fn adopt(&mut self, parameters: &Parameters) {
        if self.may_collide {
            self.history.insert(parameters);
        }
    }
}

/// Writes JSON with the members of every object in the order of their names.
fn write_sorted(members: &Parameters, text: &mut String) {
    let mut members: Vec<_> = members.iter().collect();
    members.sort_by_key(|(name, _)| *name);
    for (name, value) in members {
        text.push_str(&Value::from(name.as_str()).to_string());
        match value {
            Value::Object(inner) => {
                text.push('{');
                write_sorted(inner, text);
                text.push('}');
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => text.push_str(&value.to_string()),
        }
        text.push(',');
    }
}
