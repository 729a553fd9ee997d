//! The common part of the tuners that learn from results: the known trials, and the conversion of a model's
//! suggestion to a proposal.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use trial_protocol::{Direction, MetricValue};

use super::dedup::Dedup;
use super::halton;
use super::random::generator;
use super::{Outcome, Proposal, Sample, Tuner, TunerSettings};
use crate::search::goals::{Goals, Merit};
use crate::search::search_space::{Parameters, Point, SearchSpace};

/// A model, which suggests promising points.
pub(super) trait Model: Send + std::fmt::Debug {
    /// Returns a promising point of the space, which must depend only on the arguments.
    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point;

    /// Returns whether there are too few results for a suggestion. The tuner then proposes quasi-random points.
    fn is_starting(&self, _trials: &Trials) -> bool {
        false
    }
}

/// The known trials, in the order of their ids. The order of the results is not stored, so that a rebuilt tuner has the
/// same state.
#[derive(Debug)]
pub(super) struct Trials {
    direction: Direction,
    goals: Goals,
    /// The results from elsewhere, in the order of their import.
    imported: Vec<(Point, TrialStatus)>,
    known: BTreeMap<u64, (Point, TrialStatus)>,
}

#[derive(Debug, Clone, PartialEq)]
enum TrialStatus {
    Running,
    Done(Merit),
    Failed,
}

/// A trial with a result, or a running trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObservedPoint<'a> {
    pub(super) point: &'a Point,
    /// The merit of the result. `None` if the trial runs.
    pub(super) merit: Option<&'a Merit>,
}

impl Trials {
    pub(super) fn new(direction: Direction, goals: &Goals) -> Self {
        Self { direction, goals: goals.clone(), imported: Vec::new(), known: BTreeMap::new() }
    }

    /// Returns the direction in which metrics are better.
    pub(super) fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the number of points that were proposed or imported.
    pub(super) fn count(&self) -> usize {
        self.all().count()
    }

    /// Returns the number of points that ended without a result.
    pub(super) fn failed_count(&self) -> usize {
        self.all().filter(|(_, standing)| *standing == TrialStatus::Failed).count()
    }

    /// Returns the imported points, then the proposed ones.
    fn all(&self) -> impl Iterator<Item = &(Point, TrialStatus)> {
        self.imported.iter().chain(self.known.values())
    }

    /// Returns the trials with a result, and their losses, or the first loss if there are several.
    pub(super) fn losses(&self) -> impl Iterator<Item = (&Point, f64)> {
        self.merits().map(|(point, merit)| (point, merit.losses[0]))
    }

    /// Returns the trials with a result, and their merits.
    pub(super) fn merits(&self) -> impl Iterator<Item = (&Point, &Merit)> {
        self.all().filter_map(point_with_merit)
    }

    /// Returns the imported trials of [`Self::merits`].
    pub(super) fn imported_merits(&self) -> impl Iterator<Item = (&Point, &Merit)> {
        self.imported.iter().filter_map(point_with_merit)
    }

    /// Returns the proposed trials of [`Self::merits`].
    pub(super) fn proposed_merits(&self) -> impl Iterator<Item = (&Point, &Merit)> {
        self.known.values().filter_map(point_with_merit)
    }

    /// Returns the trials with a result and the running trials, in the order of their ids, imported trials first.
    pub(super) fn known(&self) -> impl Iterator<Item = ObservedPoint<'_>> {
        self.all().filter_map(|(point, standing)| match standing {
            TrialStatus::Done(merit) => Some(ObservedPoint { point, merit: Some(merit) }),
            TrialStatus::Running => Some(ObservedPoint { point, merit: None }),
            TrialStatus::Failed => None,
        })
    }

    /// Returns the running trials.
    pub(super) fn running(&self) -> impl Iterator<Item = &Point> {
        self.known
            .values()
            .filter(|(_, standing)| *standing == TrialStatus::Running)
            .map(|(point, _)| point)
    }

    pub(super) fn propose(&mut self, id: u64, point: Point) {
        self.known.insert(id, (point, TrialStatus::Running));
    }

    pub(super) fn observe(&mut self, id: u64, outcome: &Outcome) {
        let ended = match outcome {
            Outcome::Result(value) => self.status_of_result(value),
            Outcome::Failed => TrialStatus::Failed,
        };
        if let Some((_, standing)) = self.known.get_mut(&id) {
            *standing = ended;
        }
    }

    pub(super) fn import(&mut self, point: Point, value: &MetricValue) {
        let standing = self.status_of_result(value);
        self.imported.push((point, standing));
    }

    /// Returns the standing of a trial with this result.
    fn status_of_result(&self, value: &MetricValue) -> TrialStatus {
        self.goals.merit(value, self.direction).map_or(TrialStatus::Failed, TrialStatus::Done)
    }
}

fn point_with_merit((point, standing): &(Point, TrialStatus)) -> Option<(&Point, &Merit)> {
    match standing {
        TrialStatus::Done(merit) => Some((point, merit)),
        TrialStatus::Running | TrialStatus::Failed => None,
    }
}

/// The number of suggestions that the tuner requests for a proposal if they were already proposed.
const MAX_SUGGESTIONS: usize = 3;

/// A tuner around a model.
#[derive(Debug)]
pub(super) struct ModelBasedTuner<M> {
    space: SearchSpace,
    seed: u64,
    dedup: Dedup,
    trials: Trials,
    model: M,
}

impl<M: Model> ModelBasedTuner<M> {
    pub(super) fn new(space: &SearchSpace, setting: TunerSettings<'_>, model: M) -> Self {
        let TunerSettings { seed, direction, goals } = setting;
        let dedup = Dedup::new(space);
        Self { space: space.clone(), seed, dedup, trials: Trials::new(direction, goals), model }
    }

    /// Records a proposal by the trial's parameters, which are rounded, because a rebuilt tuner only has these.
    fn record_proposal(&mut self, id: u64, parameters: &Parameters) {
        // Parameters of another space are ignored.
        if let Ok(point) = self.space.locate(parameters) {
            self.trials.propose(id, point);
        }
    }
}

impl<M: Model> Tuner for ModelBasedTuner<M> {
    fn propose(&mut self, id: u64) -> Proposal {
        let mut rng = generator(self.seed, id);
        let mut asked = 0;
        let draw = || {
            asked += 1;
            // After several known suggestions, random points are more likely to be new.
            if asked > MAX_SUGGESTIONS {
                return self.space.sample_point(&mut rng);
            }
            if self.model.is_starting(&self.trials) {
                return match asked {
                    1 => halton::halton_point(&self.space, self.seed, id),
                    _ => self.space.sample_point(&mut rng),
                };
            }
            self.model.suggest(&self.space, &self.trials, &mut rng)
        };
        match self.dedup.draw_new(draw) {
            Some(parameters) => {
                self.record_proposal(id, &parameters);
                Proposal::Parameters(parameters)
            }
            None => Proposal::Exhausted,
        }
    }

    fn adopt(&mut self, id: u64, parameters: &Parameters) {
        self.dedup.adopt(parameters);
        self.record_proposal(id, parameters);
    }

    fn observe(&mut self, id: u64, outcome: &Outcome) {
        self.trials.observe(id, outcome);
    }

    fn import(&mut self, samples: &[Sample]) {
        for Sample { parameters, value } in samples {
            self.dedup.adopt(parameters);
            if let Ok(point) = self.space.locate(parameters) {
                self.trials.import(point, value);
            }
        }
    }
}
