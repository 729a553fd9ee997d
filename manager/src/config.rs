//! Experiment file -> checked [`ExperimentSpec`]. Reads NNI's v2 form, and the v1 form of the same fields.
//!
//! Every field that NNI knows is checked for its type and kept in the canonical form, also where it has no
//! effect here. Nothing unknown is passed over: a field, tuner or platform that this build cannot honour is
//! an error that says so.

mod algorithms;
mod all;
mod base;
mod check;
mod command;
mod direction;
mod document;
mod foreign;
mod goals;
mod hybrid;
mod inherited;
pub mod kubernetes;
mod labels;
mod local;
mod location;
mod nni_class;
mod notifications;
mod openpai;
mod plugin;
mod registered;
mod remote;
mod section;
mod service;
pub mod units;
mod v1;

#[cfg(test)]
mod tests;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

pub use self::algorithms::{AssessorChoice, TunerChoice};
use self::base::Base;
pub use self::command::render_command;
pub use self::hybrid::{HybridPart, HybridSpec, stored_platform};
pub use self::inherited::ServiceSection;
use self::kubernetes::KubernetesSpec;
pub use self::location::Location;
use self::location::Places;
pub use self::notifications::{EventKind, NotificationsSpec, SecretSource, WebhookSpec};
pub use self::plugin::PluginSpec;
pub use self::remote::{MachineSpec, RemoteSpec};
use self::section::Problem;
use crate::search::goals::Goals;
use crate::search::search_space::{Parameters, SearchSpace};
use crate::search::tuner::{CHECKPOINT_FOLDER, OptimizeMode};

/// The most trials that may run at a time: what is more is a slip of the finger, and would all be asked for at once.
pub const MOST_AT_A_TIME: usize = 100_000;

/// An experiment as wanted; every field is checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ExperimentSpec {
    /// `experimentName`.
    pub name: Option<String>,
    /// `searchSpace` or `searchSpaceFile`.
    pub search_space: SearchSpace,
    /// `trialCommand`; a line for the agent's `--shell`, with `{{name}}` replaced by the parameter of that name.
    pub trial_command: String,
    /// `trialCodeDirectory`: absolute. It exists where trials are to be started; that of a stored experiment may have gone.
    pub trial_code_directory: PathBuf,
    /// `trialConcurrency`, from 1 to [`MOST_AT_A_TIME`].
    pub trial_concurrency: usize,
    /// `trialGpuNumber`. `None`: GPUs are left alone; `Some(0)`: hidden from the trial.
    pub trial_gpu_number: Option<u32>,
    /// `maxTrialNumber`, at least 1. `None`: unlimited.
    pub max_trial_number: Option<u64>,
    /// `maxExperimentDuration`. `None`: unlimited.
    pub max_experiment_duration: Option<Duration>,
    /// `maxTrialDuration`. `None`: unlimited.
    pub max_trial_duration: Option<Duration>,
    /// `targetMetric` (TrialKeeper's): a result as good as this ends the search. `None`: none does.
    pub target_metric: Option<f64>,
    /// `maxConsecutiveFailures` (TrialKeeper's). 0: failures never hold the search. `None`: they do where the first
    /// trials all fail alike.
    pub max_consecutive_failures: Option<u32>,
    /// `maxTrialRetries` (TrialKeeper's).
    pub max_trial_retries: u32,
    /// `trialRepeats` (TrialKeeper's): the number of trials of each point, at least 1.
    pub trial_repeats: u64,
    /// `tuner`.
    pub tuner: TunerChoice,
    /// The direction of the objective, for tuner and assessor alike: `objective.direction` or an
    /// `optimize_mode`; NNI's default of the tuner where the file states neither.
    pub optimize_mode: OptimizeMode,
    /// `true` if the file states no direction.
    pub optimize_mode_assumed: bool,
    /// `assessor`. `None`: trials are left to run to their end.
    pub assessor: Option<AssessorChoice>,
    /// `pythonInterpreter` (TrialKeeper's): what runs NNI's dispatcher. `None`: `python3`, as `PATH` finds it.
    pub python_interpreter: Option<String>,
    /// `recordPackages` (TrialKeeper's): whether the packages of the interpreter are listed when the search starts.
    pub record_packages: bool,
    /// `tunerGpuIndices`: GPUs for a tuner outside the manager. `None`: none.
    pub tuner_gpu_indices: Option<Vec<u64>>,
    /// `tunerPatience` (TrialKeeper's): how long a tuner outside the manager may owe an answer without a word.
    pub tuner_patience: Duration,
    /// `trainingService`.
    pub training_service: TrainingServiceSpec,
    /// `objective` or `objective.metric` (TrialKeeper's): the metric to optimise. `None`: NNI's SDK's, or concluded.
    pub objective: Option<String>,
    /// `objectives` and `constraints` (TrialKeeper's): where there are several objectives, `objective` is the first
    /// one.
    pub goals: Goals,
    /// `initialTrials` (TrialKeeper's): points that are tried first. Each names some of the space's parameters; the
    /// others are drawn.
    pub initial_trials: Vec<Parameters>,
    /// `owner` (TrialKeeper's): the person whose search it is. `None`: the user who starts it.
    pub owner: Option<String>,
    /// `tags` (TrialKeeper's): words to find it by.
    pub tags: Vec<String>,
    /// `notifications` (TrialKeeper's): whom to tell. `None`: no one.
    pub notifications: Option<NotificationsSpec>,
    /// The whole file in canonical form (camelCase, absolute paths, space inlined): what is stored.
    pub canonical: Value,
}

impl ExperimentSpec {
    /// Returns a sentence for the user if the file states no direction: which one is assumed, and how to state it.
    pub fn assumed_direction(&self) -> Option<String> {
        self.optimize_mode_assumed.then(|| {
            format!(
                "the experiment file states no direction; {} is assumed, the default of {}; state it with `objective: {{direction: {}}}`",
                self.optimize_mode.word(),
                self.tuner.name(),
                self.optimize_mode.word(),
            )
        })
    }

    /// Returns a warning if the name of the optimised metric suggests the other direction, as in a maximised `val_loss`.
    pub fn direction_warning(&self, metric: &str) -> Option<String> {
        direction::warning(metric, self.optimize_mode)
    }

    /// Returns the direction if the file states it.
    pub fn stated_direction(&self) -> Option<OptimizeMode> {
        (!self.optimize_mode_assumed).then_some(self.optimize_mode)
    }

    /// Returns a warning if a class of the user's own is not given the experiment's direction.
    ///
    /// Most such classes maximize by default. So nothing is said where the file states no direction and the tuner's
    /// default is to maximize.
    pub fn untold_direction(&self) -> Option<String> {
        if self.optimize_mode_assumed && self.optimize_mode == OptimizeMode::Maximize {
            return None;
        }
        let tuner = self.tuner.class_without_mode().map(|class| (self.tuner.section(), class));
        let assessor = self.assessor.as_ref().and_then(AssessorChoice::class_without_mode);
        let untold = tuner.into_iter().chain(assessor.map(|class| ("assessor", class)));
        let mode = self.optimize_mode.word();
        let advice = untold.map(|(section, class)| {
            format!(
                "`{class}` is not told that the search {mode}s; if it has an argument for it, set `{section}: {{classArgs: {{optimize_mode: {mode}}}}}`"
            )
        });
        let advice: Vec<_> = advice.collect();
        (!advice.is_empty()).then(|| advice.join("\n"))
    }

    /// Names the folder of the checkpoints that trials leave for one another, where the tuner needs one and the file names none.
    /// It becomes a part of what is stored: a resumed search goes on with the same checkpoints.
    pub fn set_checkpoint_folder(&mut self, folder: &Path) {
        if let TunerChoice::Native(tuner) = &mut self.tuner
            && tuner.needs_checkpoint_folder()
        {
            tuner.set_checkpoint_folder(&folder.to_string_lossy());
            let class_args = &mut self.canonical["tuner"]["classArgs"];
            class_args[CHECKPOINT_FOLDER] = tuner.class_args[CHECKPOINT_FOLDER].clone();
        }
    }

    /// The variables of the manager's environment that hold a secret; none of them reaches a trial or an algorithm.
    pub fn secret_variables(&self) -> Vec<String> {
        self.notifications.as_ref().map_or_else(Vec::new, NotificationsSpec::secret_variables)
    }
}

/// Where trials run.
#[derive(Debug, Clone, PartialEq)]
pub enum TrainingServiceSpec {
    /// This machine.
    Local(LocalSpec),
    /// Machines that are reached over SSH.
    Remote(RemoteSpec),
    /// A program of the user's own.
    Plugin(PluginSpec),
    /// Frameworks on Kubernetes.
    Kubernetes(Box<KubernetesSpec>),
    /// Several of these.
    Hybrid(HybridSpec),
}

impl TrainingServiceSpec {
    /// Returns the section, for what all sections have in common.
    pub fn section(&self) -> &dyn ServiceSection {
        match self {
            Self::Local(section) => section,
            Self::Remote(section) => section,
            Self::Plugin(section) => section,
            Self::Kubernetes(section) => section.as_ref(),
            Self::Hybrid(section) => section,
        }
    }

    /// Returns the section, to change it.
    pub fn section_mut(&mut self) -> &mut dyn ServiceSection {
        match self {
            Self::Local(section) => section,
            Self::Remote(section) => section,
            Self::Plugin(section) => section,
            Self::Kubernetes(section) => section.as_mut(),
            Self::Hybrid(section) => section,
        }
    }
}

/// The sharing of this machine's GPUs and files among trials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSpec {
    /// `useActiveGpu`: whether trials may use a GPU that others use, too. `None`: not said, which is
    /// allowed only where GPUs are left alone.
    pub use_active_gpu: Option<bool>,
    /// `maxTrialNumberPerGpu`, at least 1.
    pub max_trial_number_per_gpu: u64,
    /// `gpuIndices`: which GPUs there are for trials. `None`: all.
    pub gpu_indices: Option<Vec<u64>>,
    /// `codeSnapshot`: whether each trial runs in a copy of the code that is made when the search starts.
    pub code_snapshot: bool,
}

/// The reason that an experiment file is refused: names the file, each field that is wrong and what is allowed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}{problem}", .file.display(), .at.map(|at| format!("{at}: ")).unwrap_or_default())]
pub struct Error {
    /// The file.
    pub file: PathBuf,
    /// Where in it. `None`: it is said in `problem`, not known, or the whole file.
    pub at: Option<Location>,
    /// Which field, what is wrong, what is allowed.
    pub problem: String,
}

/// Reads and checks an experiment file; `-` is standard input, whose relative paths are relative to the working directory.
pub fn load(file: &Path) -> Result<ExperimentSpec, Error> {
    let (file, bytes, base) = if file == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes);
        (Path::new("standard input"), read, std::env::current_dir())
    } else {
        let folder = |path: PathBuf| path.parent().unwrap_or(Path::new("/")).to_owned();
        (file, std::fs::read(file), std::fs::canonicalize(file).map(folder))
    };
    let fault = |problem: String| Error { file: file.to_owned(), at: None, problem };
    let bytes = bytes.map_err(|error| fault(format!("cannot be read: {error}")))?;
    let document = document::parse(&bytes).map_err(fault)?;
    let base = base.map_err(|error| fault(format!("its directory cannot be found: {error}")))?;
    if let Some(problem) = foreign::recognise(&document) {
        return Err(fault(problem));
    }
    of_any_form(document, Base::requiring_files(&base)).map_err(|problems| {
        let mut problems: Vec<_> = problems.into_iter().flat_map(Problem::each).collect();
        locate(&mut problems, &bytes);
        Problem::all_in_file(problems, file)
    })
}

/// Reads and checks an experiment in NNI's canonical form that a client sent as JSON; its paths are absolute.
pub fn from_client(document: Value) -> Result<ExperimentSpec, Error> {
    of_any_form(document, Base::requiring_files(Path::new("/")))
        .map_err(|problems| Problem::all_in_file(problems, Path::new("the posted experiment")))
}

/// Checks a document in v1 or v2 form. Its faults are reported in the document's own words.
fn of_any_form(document: Value, base: Base<'_>) -> Result<ExperimentSpec, Vec<Problem>> {
    if !v1::is_v1(&document) {
        return checked(document, base);
    }
    let converted = v1::check_platform(&document).and_then(|()| v1::convert(document));
    let mut converted = converted.map_err(|problem| vec![problem])?;
    let v2 = std::mem::take(&mut converted.v2);
    checked(v2, base).map_err(|problems| {
        problems.into_iter().map(|problem| converted.original(problem)).collect()
    })
}

/// Finds where problems stand: in the text of the experiment file, or in the other file that they name.
fn locate(problems: &mut [Problem], text: &[u8]) {
    let here = Places::of(text);
    for problem in problems {
        let path = problem.path.as_str();
        problem.at = match &problem.file {
            Some(file) => {
                let there = std::fs::read(file).ok().and_then(|bytes| Places::of(&bytes));
                there.and_then(|places| {
                    let inner = path.strip_prefix("searchSpace.").unwrap_or(path);
                    places.find(path).or_else(|| places.find(inner))
                })
            }
            None => here.as_ref().and_then(|places| match path.strip_prefix("the template, ") {
                None => places.find(path),
                Some(inner) => find_in_template(places, inner),
            }),
        };
    }
}

/// The place of what is wrong with a template: in it, or where the file that has it is named.
fn find_in_template(places: &Places, path: &str) -> Option<Location> {
    let found = ["trainingService", "frameworkcontrollerConfig"].iter().find_map(|section| {
        let template = format!("{section}.template");
        let within = places.find_exactly(&template).map(|_| format!("{template}.{path}"));
        within.or_else(|| {
            let file = format!("{section}.configPath");
            places.find_exactly(&file).map(|_| file)
        })
    });
    places.find(&found?)
}

/// Checks a document in v2 form. All its faults are reported at once.
fn checked(mut document: Value, base: Base<'_>) -> Result<ExperimentSpec, Vec<Problem>> {
    let missing = registered::resolve(&mut document, base);
    let spec = check::check(document.clone(), base).map_err(|first| {
        let mut problems = all::problems(document, base, first);
        for problem in &mut problems {
            if let Some(looked) = missing.iter().find(|looked| looked.path == problem.path) {
                problem.what.push_str(&looked.note);
            }
        }
        problems
    })?;
    labels::check_points(&spec).map(|()| spec).map_err(|problem| vec![problem])
}

/// Reads a file of another kind, JSON or YAML: a search space, results.
pub fn read(file: &Path) -> Result<Value, Error> {
    let fault = |problem: String| Error { file: file.to_owned(), at: None, problem };
    let bytes = std::fs::read(file).map_err(|error| fault(format!("cannot be read: {error}")))?;
    document::parse(&bytes).map_err(fault)
}

/// Checks a canonical form that was stored earlier. The files that it names may have gone since.
pub fn from_canonical(canonical: &Value) -> Result<ExperimentSpec, Error> {
    check::check(canonical.clone(), Base::stored()).map_err(stored_problem)
}

/// Checks that the files are there with which a stored experiment starts trials: its code, its algorithms, its keys.
///
/// # Errors
///
/// One is missing; the error names it and its field.
pub fn check_stored_files(canonical: &Value) -> Result<(), Error> {
    let base = Base::requiring_files(Path::new("/"));
    check::check(canonical.clone(), base).map(drop).map_err(stored_problem)
}

fn stored_problem(problem: Problem) -> Error {
    problem.in_file(Path::new("stored experiment"))
}
