//! `GridSearch`: every combination, with finer and finer grids for continuous parameters.
//!
//! The order and the points are those of NNI 3.0's `nni/algorithms/hpo/gridsearch_tuner.py`. The search consists of
//! epochs. A categorical parameter contributes all its values to every epoch. A numeric parameter contributes the
//! median of its distribution to the first epoch. The second epoch adds the quartiles, the third the eighths, and so
//! on. A part that `q` rounds to a single value is not divided further. Within an epoch, the last parameter varies
//! fastest, and combinations of earlier epochs are skipped.

use super::history::History;
use super::{Outcome, Proposal, Sample, Tuner};
use crate::search::search_space::{Coordinate, Domain, Parameters, Point, Real, SearchSpace};

/// NNI's `GridSearch`.
#[derive(Debug)]
pub(super) struct GridSearch {
    grid: Grid,
    history: History,
}

impl GridSearch {
    pub(super) fn new(space: &SearchSpace) -> Self {
        Self { grid: Grid::new(space), history: History::default() }
    }
}

impl Tuner for GridSearch {
    fn propose(&mut self, _id: u64) -> Proposal {
        match self.grid.find(|parameters| self.history.insert(parameters)) {
            Some(parameters) => Proposal::Parameters(parameters),
            None => Proposal::Exhausted,
        }
    }

    fn adopt(&mut self, _id: u64, parameters: &Parameters) {
        self.history.insert(parameters);
    }

    fn observe(&mut self, _id: u64, _outcome: &Outcome) {}

    fn import(&mut self, samples: &[Sample]) {
        for sample in samples {
            self.history.insert(&sample.parameters);
        }
    }
}

/// A walk over all points of finer and finer grids. It ends when the grid cannot be refined.
#[derive(Debug)]
pub(super) struct Grid {
    space: SearchSpace,
    axes: Vec<Axis>,
    /// The current position on each axis. Empty before the first point of an epoch.
    vector: Vec<u64>,
    exhausted: bool,
}

/// The values of one dimension in this epoch.
#[derive(Debug)]
struct Axis {
    /// The number of values from earlier epochs.
    known: u64,
    ticks: Ticks,
}

#[derive(Debug)]
enum Ticks {
    /// All options of a categorical dimension.
    Options(u64),
    /// Some points of a distribution, as the share of the distribution below them.
    Points { points: Vec<f64>, divisible: Vec<(f64, f64)> },
}

impl Axis {
    fn new(domain: &Domain) -> Self {
        let ticks = match domain {
            Domain::Real(real) => {
                let mut divisible = vec![(0.0, 0.5), (0.5, 1.0)];
                divisible.retain(|(low, high)| has_distinct_values(real, *low, *high));
                Ticks::Points { points: vec![0.5], divisible }
            }
            Domain::Choice(_) | Domain::Nested(_) | Domain::Integer { .. } => {
                Ticks::Options(domain.options().unwrap_or(1))
            }
        };
        Self { known: 0, ticks }
    }

    fn length(&self) -> u64 {
        match &self.ticks {
            Ticks::Options(count) => *count,
            Ticks::Points { points, .. } => points.len().try_into().unwrap_or(u64::MAX),
        }
    }

    fn coordinate(&self, position: u64, domain: &Domain) -> Option<Coordinate> {
        match (&self.ticks, domain) {
            (Ticks::Points { points, .. }, Domain::Real(real)) => {
                let p = points.get(usize::try_from(position).ok()?)?;
                Some(Coordinate::Real(real.quantile(*p)))
            }
            _ => Some(Coordinate::Index(position)),
        }
    }

    /// Refines the axis for the next epoch. Returns `false` if nothing changed.
    fn refine(&mut self, domain: &Domain) -> bool {
        self.known = self.length();
        let (Ticks::Points { points, divisible }, Domain::Real(real)) = (&mut self.ticks, domain)
        else {
            return false;
        };
        let mut changed = false;
        for (low, high) in std::mem::take(divisible) {
            let middle = f64::midpoint(low, high);
            if middle <= low || middle >= high {
                continue; // The limit of a double's precision.
            }
            let left = has_distinct_values(real, low, middle);
            let right = has_distinct_values(real, middle, high);
            // No grid contains the ends 0 and 1, because a normal distribution is infinite there.
            let (first, last) = (low <= 0.0, high >= 1.0);
            if (left || first) && (right || last) {
                points.push(middle);
                changed = true;
            }
            if left {
                divisible.push((low, middle));
                changed |= first;
            }
            if right {
                divisible.push((middle, high));
                changed |= last;
            }
        }
        changed
    }
}

impl Grid {
    pub(super) fn new(space: &SearchSpace) -> Self {
        Self {
            axes: space.dimensions().iter().map(|d| Axis::new(&d.domain)).collect(),
            space: space.clone(),
            vector: Vec::new(),
            exhausted: false,
        }
    }

    /// Returns the next parameters that `wanted` accepts, or `None` at the end of the walk.
    pub(super) fn find(
        &mut self,
        mut wanted: impl FnMut(&Parameters) -> bool,
    ) -> Option<Parameters> {
        loop {
            let point = self.next_point()?;
            let parameters = self.space.parameters(&point);
            if wanted(&parameters) {
                return Some(parameters);
            }
        }
    }

    fn next_point(&mut self) -> Option<Point> {
        while !self.exhausted {
            if !self.advance() {
                self.exhausted = !self.next_epoch();
                continue;
            }
            let known = self.axes.iter().zip(&self.vector).all(|(axis, at)| *at < axis.known);
            if !known {
                return Some(self.point());
            }
        }
        None
    }

    /// Moves to the next point of the epoch. Returns `false` at its end.
    fn advance(&mut self) -> bool {
        if self.vector.is_empty() {
            self.vector = vec![0; self.axes.len()];
            return true;
        }
        let point = self.point();
        // Dimensions of options that are not chosen do not move.
        for index in (0..self.axes.len()).rev().filter(|index| point[*index].is_some()) {
            self.vector[index] += 1;
            if self.vector[index] < self.axes[index].length() {
                return true;
            }
            self.vector[index] = 0;
        }
        self.vector.clear();
        false
    }

    /// Refines the grid until it has a new point. Returns `false` if the grid cannot be refined.
    fn next_epoch(&mut self) -> bool {
        loop {
            let mut changed = false;
            for (axis, dimension) in self.axes.iter_mut().zip(self.space.dimensions()) {
                changed |= axis.refine(&dimension.domain);
            }
            // Without a new point, the walk would only skip known points.
            if !changed || self.axes.iter().any(|axis| axis.length() > axis.known) {
                return changed;
            }
        }
    }

    fn point(&self) -> Point {
        let mut point: Point = Vec::with_capacity(self.axes.len());
        for (index, dimension) in self.space.dimensions().iter().enumerate() {
            let present = self.space.is_present(index, &point);
            let at = self.axes[index].coordinate(self.vector[index], &dimension.domain);
            point.push(at.filter(|_| present));
        }
        point
    }
}

/// Returns whether the distribution has different values at two quantiles.
fn has_distinct_values(real: &Real, low: f64, high: f64) -> bool {
    let value = |p: f64| {
        let coordinate = real.quantile(p);
        if coordinate.is_finite() { real.value(coordinate) } else { coordinate }
    };
    value(low) < value(high)
}
