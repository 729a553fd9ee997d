//! Replacement of parameters that were already proposed.

use super::grid::Grid;
use super::history::History;
use crate::search::search_space::{Domain, Parameters, Point, SearchSpace};

/// The number of draws before a walk over the grid replaces them. NNI starts the walk after the first collision. A few
/// more draws keep a search random while most of its space is free.
const MAX_DRAWS: usize = 16;

/// Prevents a tuner from proposing the same parameters twice, and detects an exhausted space. After NNI 3.0's
/// `nni/common/hpo_utils/dedup.py`.
#[derive(Debug)]
pub(super) struct Dedup {
    space: SearchSpace,
    /// `true` if draws can collide. They cannot if a parameter that is always present is continuous.
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

    /// Returns the first new parameters from `draw`, or else from the next new point of a grid. Returns `None` if every
    /// point was proposed.
    pub(super) fn draw_new(&mut self, mut draw: impl FnMut() -> Point) -> Option<Parameters> {
        if !self.may_collide {
            return Some(self.space.parameters(&draw()));
        }
        for _ in 0..MAX_DRAWS {
            let parameters = self.space.parameters(&draw());
            if self.history.insert(&parameters) {
                return Some(parameters);
            }
        }
        // All points that the walk skips are in the history, so a rebuilt tuner's walk continues at the same point.
        let grid = self.grid.get_or_insert_with(|| Grid::new(&self.space));
        grid.find(|parameters| self.history.insert(parameters))
    }

    /// Adds parameters that were proposed earlier.
    pub(super) fn adopt(&mut self, parameters: &Parameters) {
        if self.may_collide {
            self.history.insert(parameters);
        }
    }
}
