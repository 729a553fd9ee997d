//! PURE and seeded: the tuners, which propose the next parameters.
//!
//! A tuner's state depends on the proposed parameters and the known outcomes, but not on the order in which the
//! outcomes arrived. Therefore a tuner that is rebuilt from the store ([`Tuner::adopt`], then [`Tuner::observe`])
//! continues exactly like the lost tuner.

mod anneal;
mod batch;
mod cmaes;
mod dedup;
mod evolution;
mod gp;
mod grid;
mod halton;
mod history;
mod hyperband;
pub mod import;
mod model_based;
mod nsga2;
mod pbt;
mod random;
mod repeating;
mod tpe;
mod trial_progress;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};
use trial_protocol::Direction;

use crate::search::class_args::Arguments;
pub use crate::search::class_args::Error;
use crate::search::goals::Goals;
use crate::search::search_space::{Parameters, SearchSpace};
use crate::util::nearest::{normalize_name, suggest_names};

/// A tuner's answer to a request for parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum Proposal {
    /// The parameters for the next trial.
    Parameters(Parameters),
    /// The space is exhausted. The tuner will propose nothing more.
    Exhausted,
    /// The tuner proposes nothing until it knows another result.
    Wait,
}

/// The end of a trial, for a tuner.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The final result, as reported. The objective's number is `value.number()`.
    Result(trial_protocol::MetricValue),
    /// The trial failed, was stopped, or reported nothing usable.
    Failed,
}

/// Parameters that were tried elsewhere, and their result.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The parameters.
    pub parameters: Parameters,
    /// The result. Its number is `value.number()`.
    pub value: trial_protocol::MetricValue,
}

/// A tuner, which proposes parameters. The same seed and the same calls give the same proposals.
pub trait Tuner: Send + std::fmt::Debug {
    /// Proposes the parameters with number `id` (from 0, rising by one for each request).
    ///
    /// Randomness must depend only on the seed and `id`, so that an interrupted search continues like an uninterrupted
    /// search.
    fn propose(&mut self, id: u64) -> Proposal;

    /// Records `parameters` that were proposed as `id` before the manager was restarted. Called in rising order of
    /// `id`, before any `propose`.
    fn adopt(&mut self, id: u64, parameters: &Parameters);

    /// Records the outcome of the trial of proposal `id`. Called at most once for an id.
    fn observe(&mut self, id: u64, outcome: &Outcome);

    /// Records results from elsewhere, in the order of their import. Later proposals may depend on the results, but
    /// not on the time of the import.
    fn import(&mut self, samples: &[Sample]);
}

/// The name, the arguments and the goals of a tuner.
#[derive(Debug, Clone, PartialEq)]
pub struct TunerSpec {
    /// The canonical name: NNI's, if NNI has the algorithm.
    pub name: String,
    /// NNI's `classArgs`.
    pub class_args: Map<String, Value>,
    /// The named objectives, and the constraints.
    pub goals: Goals,
    /// The number of trials for each point, at least 1. The tuner receives the mean of their results.
    pub repeats: u64,
}

/// A built-in tuner.
struct BuiltInTuner {
    /// The canonical name.
    name: &'static str,
    /// NNI's other name for the tuner, if any.
    alias: Option<&'static str>,
    /// The direction that NNI assumes without `optimize_mode`. For tuners that ignore results, it only determines the
    /// experiment's best trial.
    default_direction: Direction,
    /// The goals that the tuner supports.
    supported_goals: SupportedGoals,
    /// The constructor, which checks the arguments.
    build: TunerConstructor,
}

/// The goals that a tuner supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SupportedGoals {
    /// All goals, because the tuner ignores results.
    Nothing,
    /// One objective.
    Objective,
    /// One objective, and constraints.
    Constraints,
    /// Several objectives, and constraints.
    Everything,
}

/// NNI's name for the parameter with a trial's budget.
pub const TRIAL_BUDGET: &str = "TRIAL_BUDGET";

/// NNI's name for the argument with the folder in which trials save checkpoints for other trials.
pub const CHECKPOINT_FOLDER: &str = "all_checkpoint_dir";

/// The settings for every tuner.
#[derive(Debug, Clone, Copy)]
struct TunerSettings<'a> {
    seed: u64,
    direction: Direction,
    goals: &'a Goals,
}

/// A constructor of a tuner.
type TunerConstructor =
    fn(&mut Arguments<'_>, &SearchSpace, TunerSettings<'_>) -> Result<Box<dyn Tuner>, Error>;

const ALGORITHMS: [BuiltInTuner; 13] = [
    BuiltInTuner {
        name: "TPE",
        alias: None,
        default_direction: Direction::Minimize,
        supported_goals: SupportedGoals::Everything,
        build: |arguments, space, setting| {
            let model = tpe::Estimator::from_arguments(arguments)?;
            Ok(Box::new(model_based::ModelBasedTuner::new(space, setting, model)))
        },
    },
    BuiltInTuner {
        name: "Anneal",
        alias: None,
        default_direction: Direction::Minimize,
        supported_goals: SupportedGoals::Objective,
        build: |arguments, space, setting| {
            let model = anneal::Anneal::from_arguments(arguments)?;
            Ok(Box::new(model_based::ModelBasedTuner::new(space, setting, model)))
        },
    },
    BuiltInTuner {
        name: "Evolution",
        alias: None,
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Objective,
        build: |arguments, space, setting| {
            let model = evolution::Evolution::from_arguments(arguments, setting.seed)?;
            Ok(Box::new(model_based::ModelBasedTuner::new(space, setting, model)))
        },
    },
    BuiltInTuner {
        name: "GP",
        alias: Some("GPTuner"),
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Objective,
        build: |arguments, space, setting| {
            let model = gp::Gp::from_arguments(arguments)?;
            Ok(Box::new(model_based::ModelBasedTuner::new(space, setting, model)))
        },
    },
    BuiltInTuner {
        name: "Hyperband",
        alias: None,
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Objective,
        build: |arguments, space, setting| {
            Ok(Box::new(hyperband::Hyperband::from_arguments(arguments, space, setting)?))
        },
    },
    BuiltInTuner {
        name: "BOHB",
        alias: None,
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Objective,
        build: |arguments, space, setting| {
            Ok(Box::new(hyperband::Hyperband::with_model(arguments, space, setting)?))
        },
    },
    BuiltInTuner {
        name: "CMA-ES",
        alias: Some("CMAES"),
        default_direction: Direction::Minimize,
        supported_goals: SupportedGoals::Constraints,
        build: |arguments, space, setting| {
            let model = cmaes::CmaEs::from_arguments(arguments, space, setting.seed)?;
            Ok(Box::new(model_based::ModelBasedTuner::new(space, setting, model)))
        },
    },
    BuiltInTuner {
        name: "NSGA-II",
        alias: Some("NSGA2"),
        default_direction: Direction::Minimize,
        supported_goals: SupportedGoals::Everything,
        build: |arguments, space, setting| {
            let model = nsga2::Nsga2::from_arguments(arguments)?;
            Ok(Box::new(model_based::ModelBasedTuner::new(space, setting, model)))
        },
    },
    BuiltInTuner {
        name: "PBT",
        alias: Some("PBTTuner"),
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Objective,
        build: |arguments, space, setting| {
            Ok(Box::new(pbt::Pbt::from_arguments(arguments, space, setting)?))
        },
    },
    BuiltInTuner {
        name: "QMC",
        alias: Some("Halton"),
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Nothing,
        build: |_, space, setting| Ok(Box::new(halton::Halton::new(space, setting.seed))),
    },
    BuiltInTuner {
        name: "Random",
        alias: None,
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Nothing,
        build: |_, space, setting| Ok(Box::new(random::Random::new(space, setting.seed))),
    },
    BuiltInTuner {
        name: "GridSearch",
        alias: None,
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Nothing,
        build: |_, space, _| Ok(Box::new(grid::GridSearch::new(space))),
    },
    BuiltInTuner {
        name: "Batch",
        alias: Some("BatchTuner"),
        default_direction: Direction::Maximize,
        supported_goals: SupportedGoals::Nothing,
        build: |_, space, _| Ok(Box::new(batch::Batch::new(space)?)),
    },
];

/// The tuners of NNI 3.0 that are not built in (`nni/runtime/default_config/builtin_algorithms.yml`): the name, and
/// NNI's other name.
const NNI_ONLY_TUNERS: [(&str, &str); 7] = [
    ("TPE_legacy", "TPE_legacy"),
    ("Metis", "MetisTuner"),
    ("SMAC", "SMAC"),
    ("PPO", "PPOTuner"),
    ("DNGO", "DNGOTuner"),
    ("NetworkMorphism", "NetworkMorphism"),
    ("RegularizedEvolutionTuner", "RegularizedEvolutionTuner"),
];

/// Returns whether a tuner of this name is built in, or part of NNI.
pub fn is_known(name: &str) -> bool {
    find_algorithm(name).is_ok() || nni_name(name).is_some()
}

/// Returns the names of all tuners of TrialKeeper and NNI.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALGORITHMS.iter().map(|a| a.name).chain(NNI_ONLY_TUNERS.iter().map(|(name, _)| *name))
}

/// Returns the canonical name of a tuner of NNI that is not built in.
pub fn nni_name(name: &str) -> Option<&'static str> {
    let wanted = normalize_name(name);
    let is = |name: &str| normalize_name(name) == wanted;
    let found = NNI_ONLY_TUNERS.iter().find(|(proper, other)| is(proper) || is(other));
    found.map(|(proper, _)| *proper)
}

impl TunerSpec {
    /// Returns the parameters that the tuner adds to those of the space.
    pub fn own_parameters(&self) -> &'static [&'static str] {
        match self.name.as_str() {
            "Hyperband" | "BOHB" => &[TRIAL_BUDGET],
            "PBT" => &pbt::OWN_PARAMETERS,
            _ => &[],
        }
    }

    /// Sets the folder in which trials save checkpoints for other trials.
    pub fn set_checkpoint_folder(&mut self, folder: &str) {
        self.class_args.insert(CHECKPOINT_FOLDER.to_owned(), Value::from(folder));
    }

    /// Returns whether trials save checkpoints for other trials, but `classArgs` name no folder.
    pub fn needs_checkpoint_folder(&self) -> bool {
        let is_named =
            self.class_args.get(CHECKPOINT_FOLDER).is_some_and(|folder| !folder.is_null());
        self.is_population_based() && !is_named
    }

    /// Returns whether each trial is one step of a model's training, which continues from a checkpoint of another
    /// trial.
    pub fn is_population_based(&self) -> bool {
        self.name == "PBT"
    }

    /// Creates the specification of the tuner with this name, or with NNI's other name, ignoring case.
    pub fn new(name: &str, class_args: Map<String, Value>) -> Result<Self, Error> {
        Ok(Self {
            name: find_algorithm(name)?.name.to_owned(),
            class_args,
            goals: Goals::default(),
            repeats: 1,
        })
    }

    /// Returns the direction that NNI assumes if this tuner's `classArgs` have none.
    pub fn default_direction(&self) -> Result<Direction, Error> {
        Ok(find_algorithm(&self.name)?.default_direction)
    }
}

/// Creates the tuner that `spec` names. `classArgs.seed` takes precedence over `seed`.
pub fn build(spec: &TunerSpec, space: &SearchSpace, seed: u64) -> Result<Box<dyn Tuner>, Error> {
    let algorithm = find_algorithm(&spec.name)?;
    let mut arguments = Arguments::new("tuner", &spec.class_args);
    let setting = TunerSettings {
        direction: arguments.optimize_mode()?.unwrap_or(algorithm.default_direction),
        seed: arguments.integer("seed", 0..=u64::MAX)?.unwrap_or(seed),
        goals: &spec.goals,
    };
    let is_nnis = spec.class_args.get("tpe_args").is_some_and(|given| !given.is_null());
    algorithm.check_goals(&spec.goals, is_nnis)?;
    let tuner = (algorithm.build)(&mut arguments, space, setting)?;
    arguments.refuse_unread(algorithm.name)?;
    Ok(if spec.repeats > 1 {
        Box::new(repeating::RepeatingTuner::new(tuner, spec.repeats))
    } else {
        tuner
    })
}

impl BuiltInTuner {
    /// Returns an error for goals that the tuner does not support. `as_nni` is `true` for TPE with NNI's `tpe_args`.
    fn check_goals(&self, goals: &Goals, as_nni: bool) -> Result<(), Error> {
        let learns = if as_nni { SupportedGoals::Objective } else { self.supported_goals };
        let name = if as_nni { "TPE with `tpe_args`" } else { self.name };
        let several = goals.has_several_objectives();
        let what = match learns {
            SupportedGoals::Nothing | SupportedGoals::Everything => return Ok(()),
            SupportedGoals::Constraints | SupportedGoals::Objective if several => {
                "only one objective; for several objectives, use TPE or NSGA-II"
            }
            SupportedGoals::Objective if !goals.constraints.is_empty() => {
                "no constraints; for constraints, use TPE, NSGA-II or CMA-ES"
            }
            SupportedGoals::Constraints | SupportedGoals::Objective => return Ok(()),
        };
        let problem = format!(
            "{name} supports {what}, or a tuner that does not learn: Random, QMC, GridSearch, Batch"
        );
        Err(Error { path: "tuner.name".to_owned(), problem })
    }
}

fn find_algorithm(name: &str) -> Result<&'static BuiltInTuner, Error> {
    let wanted = normalize_name(name);
    let is = |name: &str| normalize_name(name) == wanted;
    if let Some(found) = ALGORITHMS.iter().find(|a| is(a.name) || a.alias.is_some_and(is)) {
        return Ok(found);
    }
    let problem = format!(
        "`{name}` is not a tuner; {}; for your own tuner, set `className`",
        suggest_names(name, names())
    );
    Err(Error { path: "tuner.name".to_owned(), problem })
}

/// Returns the parameter sets of a batch, or `None` for other tuners.
pub fn batch_sets(spec: &TunerSpec, space: &SearchSpace) -> Option<Vec<Parameters>> {
    (spec.name == "Batch").then(|| batch::parameter_sets(space).ok())?
}

/// Returns the names that occur in every parameter set of a batch. Returns `None` for other tuners, whose parameters
/// have the names of the space.
pub fn batch_names(spec: &TunerSpec, space: &SearchSpace) -> Option<Vec<String>> {
    let sets = batch_sets(spec, space)?;
    let (first, others) = sets.split_first()?;
    let everywhere = |name: &&String| others.iter().all(|set| set.contains_key(*name));
    Some(first.keys().filter(everywhere).cloned().collect())
}
