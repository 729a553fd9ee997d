//! `BOHB` (Falkner and others, 2018): Hyperband with new points from a tree-structured Parzen estimator. The
//! estimator uses the results with the largest budget that has enough results.
//!
//! A share of the points stays random, in case results with small budgets are misleading. A new point never equals a
//! point that was tried. So a rebuilt tuner knows that a repeated point is a point that continues.

use rand::Rng as _;
use trial_protocol::Direction;

use super::super::halton;
use super::super::model_based::Trials;
use super::super::random::generator;
use super::super::tpe::JointEstimator;
use super::{Error, Hyperband, Outcome, TrialProgress};
use crate::search::class_args::Arguments;
use crate::search::goals::Goals;
use crate::search::search_space::{Parameters, SearchSpace};
use crate::search::tuner::model_based::Model as _;

/// The number of draws to replace a point that was already tried.
const MAX_REDRAWS: usize = 32;

/// The model that suggests new points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Model {
    estimator: JointEstimator,
    /// The minimum number of results with the same budget.
    least: usize,
    /// The share of the points that is random.
    random_fraction: f64,
}

impl Model {
    /// Reads `classArgs`, with the names of NNI's BOHB. The widths of NNI's kernels are checked and have no effect,
    /// because this estimator chooses its own.
    pub(super) fn from_arguments(
        arguments: &mut Arguments<'_>,
        space: &SearchSpace,
    ) -> Result<Self, Error> {
        let mut count = |name, plain: usize| {
            arguments
                .integer(name, 1..=1_000_000)
                .map(|found| found.and_then(|n| usize::try_from(n).ok()).unwrap_or(plain))
        };
        let least = count("min_points_in_model", space.dimensions().len() + 1)?.max(3);
        let candidates = count("num_samples", 64)?;
        let mut part = |name, plain, most: f64| match arguments.number(name, 0.0)? {
            Some(part) if part > most => {
                arguments.fault(name, format!("expected a number from 0 to {most}, found {part}"))
            }
            part => Ok(part.unwrap_or(plain)),
        };
        let good = part("top_n_percent", 15.0, 100.0)? / 100.0;
        let random_fraction = part("random_fraction", 1.0 / 3.0, 1.0)?;
        for name in ["bandwidth_factor", "min_bandwidth"] {
            arguments.number(name, 0.0)?;
        }
        let estimator = JointEstimator::with_good_share(good, candidates);
        Ok(Self { estimator, least, random_fraction })
    }

    /// Returns the new point of a proposal.
    pub(super) fn new_point(&self, hyperband: &Hyperband, id: u64) -> Parameters {
        let space = &hyperband.space;
        let mut rng = generator(hyperband.seed, id);
        let is_random = rng.random::<f64>() < self.random_fraction;
        let trials = if is_random { None } else { self.trials(hyperband) };
        let mut last = space.parameters(&halton::halton_point(space, hyperband.seed, id));
        if let Some(trials) = &trials {
            last = space.parameters(&self.estimator.suggest(space, trials, &mut rng));
        }
        for _ in 0..MAX_REDRAWS {
            if !hyperband.has_tried(&last) {
                break;
            }
            last = space.sample(&mut rng);
        }
        last
    }

    /// Returns the trials with the largest budget that has enough results.
    fn trials(&self, hyperband: &Hyperband) -> Option<Trials> {
        let rounds = || {
            let brackets = hyperband.brackets.iter();
            brackets.flat_map(|bracket| bracket.plan.iter().zip(&bracket.rounds))
        };
        let imported = hyperband.imported.iter();
        let mut budgets: Vec<u64> = rounds()
            .map(|((_, budget), _)| *budget)
            .chain(imported.clone().map(|result| result.budget))
            .collect();
        budgets.sort_unstable_by(|a, b| b.cmp(a));
        budgets.dedup();
        let with = |wanted: u64| {
            let mut trials = Trials::new(Direction::Minimize, &Goals::default());
            for result in imported.clone().filter(|result| result.budget == wanted) {
                let found = hyperband.space.locate(&result.parameters).ok().zip(result.end.loss());
                if let Some((point, loss)) = found {
                    trials.import(point, &loss.into());
                }
            }
            let members = rounds().filter(|((_, budget), _)| *budget == wanted);
            for member in members.flat_map(|(_, members)| members) {
                let Ok(point) = hyperband.space.locate(&member.parameters) else { continue };
                trials.propose(member.id, point);
                match member.end {
                    TrialProgress::Running => {}
                    TrialProgress::Loss(loss) => {
                        trials.observe(member.id, &Outcome::Result(loss.into()));
                    }
                    TrialProgress::Failed => trials.observe(member.id, &Outcome::Failed),
                }
            }
            trials
        };
        budgets.into_iter().map(with).find(|trials| trials.losses().count() >= self.least)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use trial_protocol::MetricValue;

    use super::super::super::{Proposal, Sample, TunerSpec, build};
    use super::*;

    /// Returns the best loss with the largest budget after a number of trials. A small budget adds an error to the
    /// loss.
    fn best(name: &str, seed: u64, trials: u64) -> f64 {
        let space = SearchSpace::parse(&json!({
            "x": {"_type": "uniform", "_value": [-5, 5]},
            "y": {"_type": "uniform", "_value": [-5, 5]},
            "z": {"_type": "choice", "_value": ["a", "b", "c"]}
        }))
        .unwrap();
        let (most, args) = if name == "BOHB" { ("max_budget", 9) } else { ("R", 9) };
        let args = json!({most: args, "optimize_mode": "minimize"});
        let spec = TunerSpec::new(name, args.as_object().unwrap().clone()).unwrap();
        let mut tuner = build(&spec, &space, seed).unwrap();
        let mut best = f64::INFINITY;
        for id in 0..trials {
            let Proposal::Parameters(parameters) = tuner.propose(id) else { break };
            let number = |name: &str| parameters[name].as_f64().unwrap();
            let wrong = f64::from(u8::from(parameters["z"] != "b"));
            let loss = (number("x") - 2.0).powi(2) + (number("y") + 1.0).powi(2) + wrong;
            let budget = number(super::super::TRIAL_BUDGET);
            tuner.observe(id, &Outcome::Result(MetricValue::from(loss + 3.0 / budget)));
            if budget > 8.0 {
                best = best.min(loss);
            }
        }
        best
    }

    #[test]
    fn a_model_finds_better_results_than_random_points() {
        let median = |name: &str| {
            let mut bests: Vec<f64> = (0..9).map(|seed| best(name, seed, 150)).collect();
            bests.sort_by(f64::total_cmp);
            bests[4]
        };
        let (model, chance) = (median("BOHB"), median("Hyperband"));
        assert!(model < chance / 2.0, "{model}, by chance {chance}");
    }

    #[test]
    fn imported_results_teach_the_model() {
        let space = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
        let space = SearchSpace::parse(&space).unwrap();
        let args = json!({"optimize_mode": "minimize", "random_fraction": 0.0});
        let spec = TunerSpec::new("BOHB", args.as_object().unwrap().clone()).unwrap();
        let mean = |budget: Option<u64>| {
            let mut tuner = build(&spec, &space, 0).unwrap();
            let samples = (0..40_u32).map(|n| {
                let x = f64::from(n) / 40.0;
                let mut parameters = json!({"x": x}).as_object().unwrap().clone();
                parameters
                    .extend(budget.map(|budget| {
                        (super::super::TRIAL_BUDGET.to_owned(), Value::from(budget))
                    }));
                Sample {
                    parameters: parameters.into_iter().collect(),
                    value: MetricValue::from((x - 0.9).abs()),
                }
            });
            tuner.import(&samples.collect::<Vec<_>>());
            let found = (0..3).map(|id| match tuner.propose(id) {
                Proposal::Parameters(parameters) => parameters["x"].as_f64().unwrap(),
                other @ (Proposal::Wait | Proposal::Exhausted) => panic!("{other:?}"),
            });
            found.sum::<f64>() / 3.0
        };
        for budget in [None, Some(1), Some(9)] {
            let mean = mean(budget);
            assert!((mean - 0.9).abs() < 0.1, "{budget:?}: {mean}");
        }
    }

    #[test]
    fn budgets_begin_with_the_minimum() {
        let args = json!({"min_budget": 3, "max_budget": 81}).as_object().unwrap().clone();
        let spec = TunerSpec::new("bohb", args).unwrap();
        let space = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
        let mut tuner = build(&spec, &SearchSpace::parse(&space).unwrap(), 0).unwrap();
        let Proposal::Parameters(first) = tuner.propose(0) else { panic!("the first") };
        assert_eq!(first[super::super::TRIAL_BUDGET], Value::from(3));
        let args = json!({"min_budget": 9, "max_budget": 3}).as_object().unwrap().clone();
        let spec = TunerSpec::new("bohb", args).unwrap();
        let refused = build(&spec, &SearchSpace::parse(&space).unwrap(), 0).unwrap_err();
        assert_eq!(refused.path, "tuner.classArgs.min_budget");
    }
}
