//! Proposes other parameters instead of those that were proposed before.

use super::grid::Grid;
use super::history::History;
use crate::search::search_space::{Domain, Parameters, Point, SearchSpace};

/// The number of times that a colliding draw is replaced by another draw before the grid is walked. NNI walks at once;
/// a few more draws keep a search random that has only begun to fill its space.
const DRAWS: usize = 16;

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
