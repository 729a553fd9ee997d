//! Population Based Training (Jaderberg and others, 2017), after NNI 3.0's `nni/algorithms/hpo/pbt_tuner.py`. A
//! population of models is trained step by step. Between two steps, the worst members continue from the checkpoints
//! of the best members, with similar parameters.
//!
//! A trial is one step of one member. It loads the checkpoint of the previous step from the folder in the parameter
//! `load_checkpoint_dir`, and saves its own in `save_checkpoint_dir`, which is `all_checkpoint_dir`/MEMBER/STEP. In the
//! first step, both folders are the same and empty. A step begins when all trials of the previous step have ended.
//!
//! There are two differences from NNI. A member whose trial failed always continues from one of the best members,
//! because the failed trial may have saved no checkpoint. And a nested choice never changes, because its options are
//! different models.
//!
//! The `save_checkpoint_dir` of a proposal names its step and its member. Its parameters depend only on the results of
//! the previous step. So a tuner that a later manager rebuilds from the results makes the same proposals.

use std::collections::BTreeMap;

use rand::Rng;
use serde_json::Value;
use trial_protocol::Direction;

use super::random::generator;
use super::trial_progress::TrialProgress;
use super::{CHECKPOINT_FOLDER, Error, Outcome, Proposal, Sample, Tuner, TunerSettings};
use crate::search::class_args::Arguments;
use crate::search::search_space::casts::{f64_to_index, u64_to_f64};
use crate::search::search_space::{
    Coordinate, Domain, Parameters, Point, Real, SearchSpace, Shape,
};

/// NNI's names for the parameters that the tuner adds to those of the space.
pub(super) const OWN_PARAMETERS: [&str; 2] = [LOAD_FOLDER_PARAMETER, SAVE_FOLDER_PARAMETER];

const LOAD_FOLDER_PARAMETER: &str = "load_checkpoint_dir";
const SAVE_FOLDER_PARAMETER: &str = "save_checkpoint_dir";

/// NNI's `PBT`.
#[derive(Debug)]
pub(super) struct Pbt {
    space: SearchSpace,
    seed: u64,
    direction: Direction,
    /// `all_checkpoint_dir`.
    folder: String,
    /// `population_size`: the number of members.
    population: usize,
    /// `factor`: the share of its range by which a parameter moves.
    factor: f64,
    /// `resample_probability`: the probability that a parameter is drawn at random instead.
    resample: f64,
    /// `fraction`: the share of the population that is replaced after each step.
    fraction: f64,
    /// The trials by step and member.
    trials: BTreeMap<(usize, usize), MemberStep>,
}

/// A step of one member.
#[derive(Debug)]
struct MemberStep {
    id: u64,
    /// The parameters without the folders.
    parameters: Parameters,
    /// The folder of the checkpoint.
    checkpoint: String,
    end: TrialProgress,
}

impl Pbt {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(
        arguments: &mut Arguments<'_>,
        space: &SearchSpace,
        TunerSettings { seed, direction, .. }: TunerSettings<'_>,
    ) -> Result<Self, Error> {
        let folder = match arguments.raw(CHECKPOINT_FOLDER) {
            None => "checkpoint".to_owned(),
            Some(Value::String(folder)) if !folder.trim_matches('/').is_empty() => {
                folder.trim_end_matches('/').to_owned()
            }
            Some(other) => {
                let problem = format!("expected the path of a folder, found {other}");
                return arguments.fault(CHECKPOINT_FOLDER, problem);
            }
        };
        let population = arguments.integer("population_size", 2..=99_999)?.unwrap_or(10);
        let factor = read_share(arguments, "factor")?.unwrap_or(0.2);
        let resample = read_share(arguments, "resample_probability")?.unwrap_or(0.25);
        let fraction = read_share(arguments, "fraction")?.unwrap_or(0.2);
        if let Some(name) = space.names().find(|name| OWN_PARAMETERS.contains(name)) {
            let problem =
                "the tuner sets this parameter; remove it from the search space".to_owned();
            return Err(Error { path: format!("searchSpace.{name}"), problem });
        }
        Ok(Self {
            space: space.clone(),
            seed,
            direction,
            folder,
            population: usize::try_from(population).unwrap_or(usize::MAX),
            factor,
            resample,
            fraction,
            trials: BTreeMap::new(),
        })
    }

    /// Returns the place of the next trial: its step and its member. Returns `None` while the current step has running
    /// trials and no free member.
    fn next_place(&self) -> Option<(usize, usize)> {
        let step = self.trials.last_key_value().map_or(0, |((step, _), _)| *step);
        let free = (0..self.population).find(|member| !self.trials.contains_key(&(step, *member)));
        match free {
            Some(member) => Some((step, member)),
            None => self
                .step_trials(step)
                .all(|trial| trial.end != TrialProgress::Running)
                .then_some((step + 1, 0)),
        }
    }

    /// Returns the trials of a step, in the order of the members.
    fn step_trials(&self, step: usize) -> impl Iterator<Item = &MemberStep> {
        self.trials.range((step, 0)..(step + 1, 0)).map(|(_, trial)| trial)
    }

    /// Returns the parameters of a member in a step, and the folder of the checkpoint to load.
    fn next_parameters(&self, (step, member): (usize, usize), id: u64) -> (Parameters, String) {
        let mut rng = generator(self.seed, id);
        let before = step.checked_sub(1).and_then(|before| self.trials.get(&(before, member)));
        let (Some(own), Some(before)) = (before, step.checked_sub(1)) else {
            return (self.space.sample(&mut rng), self.checkpoint((step, member)));
        };
        let (best, worst) = self.extremes(before);
        if own.end != TrialProgress::Failed && !worst.contains(&own.id) {
            return (own.parameters.clone(), own.checkpoint.clone());
        }
        if best.is_empty() {
            return (self.space.sample(&mut rng), own.checkpoint.clone());
        }
        let model = best[rng.random_range(0..best.len())];
        (self.perturb(&model.parameters, &mut rng), model.checkpoint.clone())
    }

    /// Returns the best trials of a step, and the ids of the worst trials.
    fn extremes(&self, step: usize) -> (Vec<&MemberStep>, Vec<u64>) {
        let mut ranked: Vec<(f64, &MemberStep)> =
            self.step_trials(step).filter_map(|trial| Some((trial.end.loss()?, trial))).collect();
        // The sort is stable: of equal losses, the earlier member is first.
        ranked.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let population = u64::try_from(self.population).unwrap_or(u64::MAX);
        let part = f64_to_index((u64_to_f64(population) * self.fraction).ceil(), u64::MAX);
        // At most half of the trials, so that no trial is both among the best and the worst.
        let part = usize::try_from(part).unwrap_or(usize::MAX).min(ranked.len() / 2);
        let worst = ranked[ranked.len() - part..].iter().map(|(_, trial)| trial.id).collect();
        let best =
            ranked[..part.max(1).min(ranked.len())].iter().map(|(_, trial)| *trial).collect();
        (best, worst)
    }

    /// Returns parameters near the given parameters.
    fn perturb(&self, parameters: &Parameters, rng: &mut impl Rng) -> Parameters {
        // Fails if the search space has changed since.
        let Ok(model) = self.space.locate(parameters) else { return self.space.sample(rng) };
        let mut point: Point = Vec::with_capacity(model.len());
        for (dimension, at) in self.space.dimensions().iter().zip(model) {
            let domain = &dimension.domain;
            let is_nested = matches!(domain, Domain::Nested(_));
            point.push(at.map(|at| {
                if is_nested {
                    at
                } else if rng.random::<f64>() < self.resample {
                    domain.sample(rng)
                } else {
                    move_coordinate(domain, at, self.factor, rng.random())
                }
            }));
        }
        self.space.parameters(&point)
    }

    fn checkpoint(&self, (step, member): (usize, usize)) -> String {
        format!("{}/{member}/{step}", self.folder)
    }

    fn add_member(&mut self, place: (usize, usize), id: u64, parameters: Parameters) {
        let checkpoint = self.checkpoint(place);
        self.trials
            .insert(place, MemberStep { id, parameters, checkpoint, end: TrialProgress::Running });
    }
}

/// Returns the position at a distance of `factor` of the range, or the adjacent option.
fn move_coordinate(domain: &Domain, at: Coordinate, factor: f64, up: bool) -> Coordinate {
    match (domain, at) {
        (Domain::Real(real), Coordinate::Real(x)) => {
            Coordinate::Real(move_real(real, x, factor, up))
        }
        (Domain::Integer { size, .. }, Coordinate::Index(i)) => {
            let distance = f64_to_index((u64_to_f64(*size) * factor).round(), *size).max(1);
            Coordinate::Index(move_index(i, distance, *size, up))
        }
        (_, Coordinate::Index(i)) => {
            Coordinate::Index(move_index(i, 1, domain.options().unwrap_or(1), up))
        }
        (_, Coordinate::Real(_)) => at,
    }
}

fn move_index(at: u64, distance: u64, size: u64, up: bool) -> u64 {
    if up {
        at.saturating_add(distance).min(size.saturating_sub(1))
    } else {
        at.saturating_sub(distance)
    }
}

fn move_real(real: &Real, x: f64, factor: f64, up: bool) -> f64 {
    let width = match real.shape {
        Shape::Uniform { low, high } => high - low,
        Shape::Normal { sigma, .. } => sigma,
    };
    // A distance below the step of `q` would be rounded away.
    let distance = (width * factor).max(real.step(x));
    let moved = if up { x + distance } else { x - distance };
    match real.shape {
        Shape::Uniform { low, high } => moved.clamp(low, high),
        Shape::Normal { .. } => moved,
    }
}

/// Reads an argument that must be from 0 to 1.
fn read_share(arguments: &mut Arguments<'_>, name: &'static str) -> Result<Option<f64>, Error> {
    match arguments.number(name, 0.0)? {
        Some(number) if number > 1.0 => {
            arguments.fault(name, format!("expected a number from 0 to 1, found {number}"))
        }
        number => Ok(number),
    }
}

/// Returns the place in the name of a checkpoint's folder, if any.
fn place_of(folder: &Value) -> Option<(usize, usize)> {
    let mut parts = folder.as_str()?.rsplit('/');
    let (step, member) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((step, member))
}

impl Tuner for Pbt {
    fn propose(&mut self, id: u64) -> Proposal {
        let Some(place) = self.next_place() else { return Proposal::Wait };
        let (mut parameters, load) = self.next_parameters(place, id);
        self.add_member(place, id, parameters.clone());
        parameters.insert(LOAD_FOLDER_PARAMETER.to_owned(), Value::from(load));
        parameters.insert(SAVE_FOLDER_PARAMETER.to_owned(), Value::from(self.checkpoint(place)));
        Proposal::Parameters(parameters)
    }

    fn adopt(&mut self, id: u64, parameters: &Parameters) {
        let mut parameters = parameters.clone();
        parameters.shift_remove(LOAD_FOLDER_PARAMETER);
        let place = parameters.shift_remove(SAVE_FOLDER_PARAMETER).as_ref().and_then(place_of);
        if let Some(place) = place.filter(|(_, member)| *member < self.population) {
            self.add_member(place, id, parameters);
        }
    }

    fn observe(&mut self, id: u64, outcome: &Outcome) {
        let end = TrialProgress::new(outcome, self.direction);
        if let Some(trial) = self.trials.values_mut().rev().find(|trial| trial.id == id) {
            trial.end = end;
        }
    }

    /// Ignores the results, because a result from elsewhere has no checkpoint here.
    fn import(&mut self, _samples: &[Sample]) {}
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trial_protocol::MetricValue;

    use super::super::{TunerSpec, build};
    use super::*;

    fn pbt(args: &Value) -> Box<dyn Tuner> {
        let space = json!({
            "lr": {"_type": "loguniform", "_value": [0.001, 1]},
            "x": {"_type": "uniform", "_value": [0, 1]},
        });
        let spec = TunerSpec::new("PBTTuner", args.as_object().unwrap().clone()).unwrap();
        build(&spec, &SearchSpace::parse(&space).unwrap(), 7).unwrap()
    }

    fn propose_parameters(tuner: &mut dyn Tuner, id: u64) -> Option<Parameters> {
        match tuner.propose(id) {
            Proposal::Parameters(parameters) => Some(parameters),
            Proposal::Wait => None,
            Proposal::Exhausted => panic!("never"),
        }
    }

    fn result(number: f64) -> Outcome {
        Outcome::Result(MetricValue::from(number))
    }

    fn folders(parameters: &Parameters) -> (&str, &str) {
        (
            parameters[LOAD_FOLDER_PARAMETER].as_str().unwrap(),
            parameters[SAVE_FOLDER_PARAMETER].as_str().unwrap(),
        )
    }

    fn settings() -> Parameters {
        Parameters::new()
    }

    /// Returns the parameters without the folders.
    fn without_folders(parameters: &Parameters) -> Parameters {
        let mut own = settings();
        own.extend(
            parameters
                .iter()
                .filter(|(name, _)| !OWN_PARAMETERS.contains(&name.as_str()))
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        own
    }

    #[test]
    fn the_worst_members_continue_from_the_checkpoints_of_the_best() {
        let args =
            json!({"population_size": 5, "all_checkpoint_dir": "/c/", "resample_probability": 0});
        let mut tuner = pbt(&args);
        let tuner = tuner.as_mut();
        let first: Vec<_> = (0..5).map(|id| propose_parameters(tuner, id).unwrap()).collect();
        for (member, parameters) in first.iter().enumerate() {
            let folder = format!("/c/{member}/0");
            assert_eq!(folders(parameters), (folder.as_str(), folder.as_str()));
        }
        assert_eq!(propose_parameters(tuner, 5), None, "the step is not over");
        for (id, number) in [(4, 0.4), (1, 0.9), (0, 0.5), (2, 0.1)] {
            tuner.observe(id, &result(number));
        }
        assert_eq!(propose_parameters(tuner, 5), None, "one still runs");
        tuner.observe(3, &Outcome::Failed);
        let second: Vec<_> = (5..10).map(|id| propose_parameters(tuner, id).unwrap()).collect();
        #[rustfmt::skip]
        let expected = [("/c/0/0", "/c/0/1"), ("/c/1/0", "/c/1/1"), ("/c/1/0", "/c/2/1"), ("/c/1/0", "/c/3/1"), ("/c/4/0", "/c/4/1")];
        assert_eq!(second.iter().map(folders).collect::<Vec<_>>(), expected);
        for member in [0, 1, 4] {
            assert_eq!(
                without_folders(&second[member]),
                without_folders(&first[member]),
                "member {member} stays"
            );
        }
        let best = first[1]["x"].as_f64().unwrap();
        for member in [2, 3] {
            let x = second[member]["x"].as_f64().unwrap();
            let moved = [(best + 0.2).min(1.0), (best - 0.2).max(0.0)];
            assert!(moved.iter().any(|moved| (moved - x).abs() < 1e-9), "{best} -> {x}");
        }
    }

    #[test]
    fn a_completely_failed_population_is_drawn_again() {
        let mut tuner = pbt(&json!({"population_size": 2}));
        let first: Vec<_> =
            (0..2).map(|id| propose_parameters(tuner.as_mut(), id).unwrap()).collect();
        tuner.observe(0, &Outcome::Failed);
        tuner.observe(1, &Outcome::Failed);
        let next = propose_parameters(tuner.as_mut(), 2).unwrap();
        assert_ne!(without_folders(&next), without_folders(&first[0]));
        assert_eq!(folders(&next), ("checkpoint/0/0", "checkpoint/0/1"));
    }

    #[test]
    fn the_population_converges_to_the_best_rate() {
        // The error of a model falls fastest with a rate of 0.1. The test compares the errors after ten steps.
        let trained = |fraction: f64| {
            let mut tuner = pbt(&json!({"optimize_mode": "minimize", "fraction": fraction}));
            let mut errors: BTreeMap<String, f64> = BTreeMap::new();
            let mut reached = 0.0;
            for id in 0..100 {
                let parameters = propose_parameters(tuner.as_mut(), id).unwrap();
                let (load, save) = folders(&parameters);
                let before = errors.get(load).copied().unwrap_or(1.0);
                let rate = parameters["lr"].as_f64().unwrap();
                let error = before * (0.4 + (rate / 0.1).ln().abs() / 10.0);
                errors.insert(save.to_owned(), error);
                reached += if id < 90 { 0.0 } else { error };
                tuner.observe(id, &result(error));
            }
            reached
        };
        assert!(trained(0.3) < trained(0.0) / 2.0, "{} {}", trained(0.3), trained(0.0));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let space = json!({"save_checkpoint_dir": {"_type": "uniform", "_value": [0, 1]}});
        let refused = |args: Value, space: &Value| {
            let spec = TunerSpec::new("PBT", args.as_object().unwrap().clone()).unwrap();
            build(&spec, &SearchSpace::parse(space).unwrap(), 0).unwrap_err().to_string()
        };
        let good = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
        #[rustfmt::skip]
        let table = [
            (json!({}),                          &space, "searchSpace.save_checkpoint_dir: the tuner sets this parameter; remove it from the search space"),
            (json!({"all_checkpoint_dir": 3}),   &good,  "tuner.classArgs.all_checkpoint_dir: expected the path of a folder, found 3"),
            (json!({"all_checkpoint_dir": "/"}), &good,  "tuner.classArgs.all_checkpoint_dir: expected the path of a folder, found \"/\""),
            (json!({"fraction": 1.5}),           &good,  "tuner.classArgs.fraction: expected a number from 0 to 1, found 1.5"),
            (json!({"population_size": 1}),      &good,  "tuner.classArgs.population_size: expected an integer of at least 2 and at most 99999, found 1"),
        ];
        for (args, space, message) in table {
            assert_eq!(refused(args, space), message);
        }
    }
}
