//! `CMA-ES` (Hansen, "The CMA Evolution Strategy: A Tutorial", 2016), with negative weights. Numbers are drawn from a
//! normal distribution whose mean, width and orientation adapt to the results.
//!
//! The distribution is a function of the known results, which are processed in the order of their ids, generation by
//! generation. Therefore trials may end in any order, many may run at a time, and a resumed search continues the
//! same. A result that was not drawn from the distribution of its generation is pulled towards it ("injected", Hansen
//! 2011).
//!
//! This applies to the numbers at the top level, each on the scale of its own distribution. Choices, and the
//! parameters of their options, are random.

mod distribution;

use std::sync::Mutex;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

use self::distribution::{Distribution, Weights};
use super::Error;
use super::model_based::{Model, Trials};
use super::random::generator;
use crate::search::class_args::Arguments;
use crate::search::goals::Merit;
use crate::search::pareto;
use crate::search::search_space::{Point, SearchSpace};

/// The initial width, relative to each parameter's range.
const INITIAL_WIDTH: f64 = 0.2;
/// The initial width if results were imported. The mean is then the best of them.
const INITIAL_WIDTH_WITH_IMPORTS: f64 = 0.1;
/// The minimum width. A narrower distribution finds nothing new, so the search restarts with twice the population.
const MIN_WIDTH: f64 = 1e-9;
/// The number of times that a draw outside the range is repeated before it is clipped.
const MAX_REDRAWS: usize = 50;

/// The model of `CMA-ES`.
#[derive(Debug)]
pub(super) struct CmaEs {
    seed: u64,
    /// The dimensions that the distribution covers.
    moved: Vec<usize>,
    /// The initial size of a generation.
    population: usize,
    /// The latest state, so that a proposal need not process all results again.
    latest_state: Mutex<State>,
}

/// The processed results, and the resulting distribution.
#[derive(Debug, Clone, Default)]
struct State {
    /// The initial mean and width.
    start: (Vec<f64>, f64),
    processed: Vec<(Vec<f64>, Merit)>,
    /// The current distribution. `None` before the first call.
    distribution: Option<Distribution>,
    /// The size of a generation, which doubles at each restart.
    population: usize,
    restarts: u64,
}

impl CmaEs {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(
        arguments: &mut Arguments<'_>,
        space: &SearchSpace,
        seed: u64,
    ) -> Result<Self, Error> {
        let dimensions = space.dimensions().iter().enumerate();
        let moved: Vec<usize> = dimensions
            .filter(|(_, dimension)| dimension.parent.is_none() && dimension.domain.is_numeric())
            .map(|(index, _)| index)
            .collect();
        if moved.is_empty() {
            let problem = "has no number at the top level, which CMA-ES requires; use TPE";
            return Err(Error { path: "searchSpace".to_owned(), problem: problem.to_owned() });
        }
        let given = arguments.integer("population_size", 3..=10_000)?;
        let given = given.and_then(|given| usize::try_from(given).ok());
        let population = given.unwrap_or_else(|| Weights::default_population(moved.len()));
        Ok(Self { seed, moved, population, latest_state: Mutex::default() })
    }

    /// Returns the state after all complete generations of known results.
    fn state(&self, space: &SearchSpace, trials: &Trials) -> State {
        let shares = |point: &Point| -> Vec<f64> {
            let share = |index: &usize| {
                point[*index].map_or(0.5, |at| space.dimensions()[*index].domain.share(at))
            };
            self.moved.iter().map(share).collect()
        };
        let results: Vec<(Vec<f64>, Merit)> =
            trials.proposed_merits().map(|(point, merit)| (shares(point), merit.clone())).collect();
        let start = self.start(trials, shares);
        let mut state = match self.latest_state.lock() {
            Ok(memory) => memory.clone(),
            Err(_) => State::default(),
        };
        let is_known = state.start == start && results.starts_with(&state.processed);
        if state.distribution.is_none() || !is_known {
            let distribution = Distribution::new(start.0.clone(), start.1, self.population);
            let population = self.population;
            state =
                State { start, population, distribution: Some(distribution), ..State::default() };
        }
        while let Some(generation) =
            results.get(state.processed.len()..state.processed.len() + state.population)
        {
            state.update(generation, self.seed);
        }
        if let Ok(mut memory) = self.latest_state.lock() {
            *memory = state.clone();
        }
        state
    }

    /// Returns the initial mean and width.
    fn start(&self, trials: &Trials, shares: impl Fn(&Point) -> Vec<f64>) -> (Vec<f64>, f64) {
        let best = trials.imported_merits().min_by(|(_, a), (_, b)| a.compare(b));
        match best {
            Some((point, _)) => (shares(point), INITIAL_WIDTH_WITH_IMPORTS),
            None => (vec![0.5; self.moved.len()], INITIAL_WIDTH),
        }
    }
}

impl State {
    /// Processes a generation.
    fn update(&mut self, generation: &[(Vec<f64>, Merit)], seed: u64) {
        let Some(distribution) = &mut self.distribution else { return };
        let merits: Vec<&Merit> = generation.iter().map(|(_, merit)| merit).collect();
        let ranked = pareto::select_best(&merits, merits.len());
        let ranked: Vec<&[f64]> = ranked.iter().map(|at| generation[*at].0.as_slice()).collect();
        distribution.update(&ranked);
        self.processed.extend_from_slice(generation);
        if distribution.width() < MIN_WIDTH || !distribution.width().is_finite() {
            self.restarts += 1;
            self.population = self.population.saturating_mul(2);
            // A stream that no proposal uses.
            let mut rng = generator(seed, u64::MAX - self.restarts);
            let mean = (0..self.start.0.len()).map(|_| rng.random()).collect();
            *distribution = Distribution::new(mean, INITIAL_WIDTH, self.population);
        }
    }
}

impl Model for CmaEs {
    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point {
        let Some(distribution) = self.state(space, trials).distribution else {
            return space.sample_point(rng);
        };
        let is_inside = |draw: &[f64]| draw.iter().all(|share| (0.0..=1.0).contains(share));
        let mut draw = distribution.draw(rng);
        for _ in 0..MAX_REDRAWS {
            if is_inside(&draw) {
                break;
            }
            draw = distribution.draw(rng);
        }
        let mut point: Point = Vec::with_capacity(space.dimensions().len());
        for (index, dimension) in space.dimensions().iter().enumerate() {
            let at = match self.moved.iter().position(|moved| *moved == index) {
                Some(at) => Some(dimension.domain.at_share(draw[at].clamp(1e-9, 1.0 - 1e-9))),
                None if space.is_present(index, &point) => Some(dimension.domain.sample(rng)),
                None => None,
            };
            point.push(at);
        }
        point
    }
}
