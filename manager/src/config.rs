//! Reads an experiment file into a checked [`ExperimentSpec`]. The file has NNI's v2 form, or the v1 form of the same
//! fields.
//!
//! Every field of NNI is checked for its type and kept in the canonical form, even if it has no effect in TrialKeeper.
//! An unknown or unsupported field, tuner or platform is an error.

mod algorithms;
mod check;
mod command;
mod direction;
mod document;
mod foreign;
mod goals;
pub mod kubernetes;
mod location;
mod notifications;
mod path_base;
mod problem_list;
mod secret_file;
mod section;
mod service;
mod services;
mod unintended;
pub mod units;
mod v1;

#[cfg(test)]
mod tests;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use trial_protocol::Direction;

use self::algorithms::registered;
pub use self::algorithms::{AssessorChoice, TunerChoice};
pub use self::command::render_command;
use self::kubernetes::KubernetesSpec;
use self::location::FieldLocations;
pub use self::location::Location;
pub use self::notifications::{EventKind, NotificationsSpec, SecretSource, WebhookSpec};
use self::path_base::PathBase;
pub use self::secret_file::SecretFile;
use self::section::{MAX_PROBLEMS, Problem, resolve_path};
pub use self::services::hybrid::{HybridPart, HybridSpec, stored_platform};
pub use self::services::inherited::ServiceSection;
use self::services::labels;
pub use self::services::labels::{MAX_TAGS, label_problem};
pub use self::services::plugin::PluginSpec;
pub use self::services::remote::{MachineSpec, RemoteSpec};
pub use self::unintended::{endless_warning, space_warnings};
use crate::search::goals::Goals;
use crate::search::search_space::{Parameters, SearchSpace};
use crate::search::tuner::CHECKPOINT_FOLDER;
use crate::util::shell;

/// The greatest number of concurrent trials. A larger number is a typing error, and the manager would request so many
/// proposals at once.
pub const MAX_TRIAL_CONCURRENCY: usize = 100_000;

/// The checked specification of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct ExperimentSpec {
    /// `experimentName`.
    pub name: Option<String>,
    /// `searchSpace` or `searchSpaceFile`.
    pub search_space: SearchSpace,
    /// `trialCommand`: a line for the agent's `--shell`. The parameter `name` replaces the placeholder `{{name}}`.
    pub trial_command: String,
    /// `trialCodeDirectory`: an absolute path. It must exist if trials are to be started. For a stored experiment, the
    /// directory may no longer exist.
    pub trial_code_directory: PathBuf,
    /// `trialConcurrency`, from 1 to [`MAX_TRIAL_CONCURRENCY`].
    pub trial_concurrency: usize,
    /// `trialGpuNumber`. `None`: the visible GPUs are not changed. `Some(0)`: all GPUs are hidden from the trial.
    pub trial_gpu_number: Option<u32>,
    /// `maxTrialNumber`, at least 1. `None`: unlimited.
    pub max_trial_number: Option<u64>,
    /// `maxExperimentDuration`. `None`: unlimited.
    pub max_experiment_duration: Option<Duration>,
    /// `maxTrialDuration`. `None`: unlimited.
    pub max_trial_duration: Option<Duration>,
    /// `targetMetric` (TrialKeeper's): the result that ends the search if a trial reaches it. `None`: no result does.
    pub target_metric: Option<f64>,
    /// `maxConsecutiveFailures` (TrialKeeper's). 0: failures never hold the search. `None`: failures hold the search if
    /// the first trials all fail in the same way.
    pub max_consecutive_failures: Option<u32>,
    /// `maxTrialRetries` (TrialKeeper's).
    pub max_trial_retries: u32,
    /// `trialRepeats` (TrialKeeper's): the number of trials of each point, at least 1.
    pub trial_repeats: u64,
    /// `tuner`.
    pub tuner: TunerChoice,
    /// The direction of the objective, for both tuner and assessor: `objective.direction`, an `optimize_mode`, or else
    /// NNI's default for the tuner.
    pub direction: Direction,
    /// `true` if the file states no direction.
    pub direction_assumed: bool,
    /// `assessor`. `None`: no trial is stopped early.
    pub assessor: Option<AssessorChoice>,
    /// `pythonInterpreter` (TrialKeeper's): the program that runs NNI's dispatcher. `None`: `python3` in `PATH`.
    pub python_interpreter: Option<String>,
    /// `recordPackages` (TrialKeeper's). `true`: the interpreter's packages are recorded when the search starts.
    pub record_packages: bool,
    /// `tunerGpuIndices`: the GPUs for an external tuner. `None`: no GPUs.
    pub tuner_gpu_indices: Option<Vec<u64>>,
    /// `tunerPatience` (TrialKeeper's): the time limit for an answer of an external tuner.
    pub tuner_patience: Duration,
    /// `trainingService`.
    pub training_service: TrainingServiceSpec,
    /// `objective` or `objective.metric` (TrialKeeper's): the metric to optimise. `None`: the metric of NNI's SDK, or
    /// the one that the agent chooses.
    pub objective: Option<String>,
    /// `objectives` and `constraints` (TrialKeeper's). With several objectives, `objective` is the first one.
    pub goals: Goals,
    /// `initialTrials` (TrialKeeper's): the points that are tried first. A point may omit parameters of the space,
    /// which are then drawn.
    pub initial_trials: Vec<Parameters>,
    /// `owner` (TrialKeeper's): the owner of the search. `None`: the user who starts it.
    pub owner: Option<String>,
    /// `tags` (TrialKeeper's): words by which users find the search.
    pub tags: Vec<String>,
    /// `notifications` (TrialKeeper's): the recipients and events of notifications. `None`: no notifications.
    pub notifications: Option<NotificationsSpec>,
    /// The paths of the fields that have no effect, as in NNI 3.0.
    pub ignored: Vec<String>,
    /// The experiment file if it contains secrets, which must not go to the trials with the code.
    pub private_file: Option<PathBuf>,
    /// The whole file in the canonical form that is stored: camelCase, absolute paths, the search space inlined.
    pub canonical: Value,
}

impl ExperimentSpec {
    /// Returns a hint for the user if the file states no direction. The hint names the assumed direction and the field
    /// for it.
    pub fn assumed_direction_hint(&self) -> Option<String> {
        self.direction_assumed.then(|| {
            format!(
                "the experiment file states no direction; {} is assumed, the default of {}; state it with `objective: {{direction: {}}}`",
                self.direction.as_str(),
                self.tuner.name(),
                self.direction.as_str(),
            )
        })
    }

    /// Returns a warning if fields of the file have no effect.
    pub fn ignored_warning(&self) -> Option<String> {
        let fields: Vec<_> = self.ignored.iter().map(|field| format!("`{field}`")).collect();
        let verb = if fields.len() == 1 { "has" } else { "have" };
        (!fields.is_empty())
            .then(|| format!("{} {verb} no effect, as in NNI 3.0", fields.join(", ")))
    }

    /// Returns a warning if `experimentWorkingDirectory` names another folder than `data_dir`, which holds the results.
    pub fn working_directory_warning(&self, data_dir: &Path) -> Option<String> {
        let given = Path::new(self.canonical["experimentWorkingDirectory"].as_str()?);
        let default =
            resolve_path(check::DEFAULT_WORKING_DIRECTORY, PathBase::for_stored_experiment());
        (given != data_dir && given != default).then(|| {
            let given = given.display().to_string();
            let option = shell::command_line(&["--data-dir".to_owned(), given.clone()]);
            format!("the file's folder for results, {given}, has no effect; `{option}` stores them there")
        })
    }

    /// Returns a warning if the name of the optimised metric suggests the other direction, as in a maximised
    /// `val_loss`.
    pub fn direction_warning(&self, metric: &str) -> Option<String> {
        direction::opposite_direction_warning(metric, self.direction)
    }

    /// Returns a warning if options of a choice have parameters but no `_name`, so that trials get them as constants.
    pub fn constant_options_warning(&self) -> Option<String> {
        let names = self.search_space.choices_of_unnamed_spaces();
        let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
        (!names.is_empty()).then(|| {
            format!(
                "searchSpace: the options of {} have parameters and no `_name`, so trials get their descriptions as constants, as in NNI",
                names.join(", ")
            )
        })
    }

    /// Returns the direction if the file states it.
    pub fn stated_direction(&self) -> Option<Direction> {
        (!self.direction_assumed).then_some(self.direction)
    }

    /// Returns a warning if the user's own class does not receive the experiment's direction.
    ///
    /// Most such classes maximise by default. There is therefore no warning if the file states no direction and the
    /// tuner's default is to maximise.
    pub fn missing_direction_warning(&self) -> Option<String> {
        if self.direction_assumed && self.direction == Direction::Maximize {
            return None;
        }
        let tuner = self.tuner.class_without_mode().map(|class| (self.tuner.section_name(), class));
        let assessor = self.assessor.as_ref().and_then(AssessorChoice::class_without_mode);
        let untold = tuner.into_iter().chain(assessor.map(|class| ("assessor", class)));
        let (mode, verb) = (self.direction.as_str(), direction::verb(self.direction));
        let advice = untold.map(|(section, class)| {
            format!(
                "`{class}` does not learn that the search {verb}; if it has an argument for the direction, set `{section}: {{classArgs: {{optimize_mode: {mode}}}}}`"
            )
        });
        let advice: Vec<_> = advice.collect();
        (!advice.is_empty()).then(|| advice.join("\n"))
    }

    /// Sets the folder of the checkpoints that trials share, if the tuner needs one and the file names none. The stored
    /// form contains the folder, so that a resumed search continues with the same checkpoints.
    pub fn set_checkpoint_folder(&mut self, folder: &Path) {
        if let TunerChoice::BuiltIn(tuner) = &mut self.tuner
            && tuner.needs_checkpoint_folder()
        {
            tuner.set_checkpoint_folder(&folder.to_string_lossy());
            let class_args = &mut self.canonical["tuner"]["classArgs"];
            class_args[CHECKPOINT_FOLDER] = tuner.class_args[CHECKPOINT_FOLDER].clone();
        }
    }

    /// Returns whether the file contains secrets.
    pub fn has_secrets(&self) -> bool {
        !self.clone().take_secrets(Path::new("")).is_empty()
    }

    /// Replaces the secrets of the file by files in `folder`, which the caller must write.
    pub fn take_secrets(&mut self, folder: &Path) -> Vec<SecretFile> {
        let canonical = &mut self.canonical["trainingService"];
        self.training_service.section_mut().take_secrets(folder, canonical)
    }

    /// Returns the variables of the manager's environment that hold secrets. No trial and no algorithm receives them.
    pub fn secret_variables(&self) -> Vec<String> {
        self.notifications.as_ref().map_or_else(Vec::new, NotificationsSpec::secret_variables)
    }
}

/// The training service, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum TrainingServiceSpec {
    /// This machine.
    Local(LocalSpec),
    /// Machines that are reached over SSH.
    Remote(RemoteSpec),
    /// The user's own program.
    Plugin(PluginSpec),
    /// Objects on Kubernetes, such as Jobs and Frameworks.
    Kubernetes(Box<KubernetesSpec>),
    /// Several of these services.
    Hybrid(HybridSpec),
}

impl TrainingServiceSpec {
    /// Returns the section by its common interface.
    pub fn section(&self) -> &dyn ServiceSection {
        match self {
            Self::Local(section) => section,
            Self::Remote(section) => section,
            Self::Plugin(section) => section,
            Self::Kubernetes(section) => section.as_ref(),
            Self::Hybrid(section) => section,
        }
    }

    /// Returns the section for changes.
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
    /// `useActiveGpu`. `true`: trials may use a GPU that other processes use, too. `None` is only allowed if trials
    /// request no GPUs.
    pub use_active_gpu: Option<bool>,
    /// `maxTrialNumberPerGpu`, at least 1.
    pub max_trial_number_per_gpu: u64,
    /// `gpuIndices`: the GPUs that trials may use. `None`: all GPUs.
    pub gpu_indices: Option<Vec<u64>>,
    /// `codeSnapshot`. `true`: each trial runs in a copy of the code. The copy is made when the search starts.
    pub code_snapshot: bool,
}

/// The reason for the refusal of an experiment file: the file, each wrong field, and the allowed values.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}{problem}", .file.display(), .location.map(|at| format!("{at}: ")).unwrap_or_default())]
pub struct Error {
    /// The file.
    pub file: PathBuf,
    /// The location in the file. `None`: `problem` contains it, it is unknown, or the error concerns the whole file.
    pub location: Option<Location>,
    /// The field, the problem, and the allowed values.
    pub problem: String,
}

/// Reads and checks an experiment file. The name `-` means standard input, whose relative paths refer to the working
/// directory.
pub fn load(file: &Path) -> Result<ExperimentSpec, Error> {
    let (file, bytes, base) = if file == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes);
        (Path::new("standard input"), read, std::env::current_dir())
    } else {
        let folder = |path: PathBuf| path.parent().unwrap_or(Path::new("/")).to_owned();
        (file, std::fs::read(file), std::fs::canonicalize(file).map(folder))
    };
    let fault = |problem: String| Error { file: file.to_owned(), location: None, problem };
    let bytes = bytes.map_err(|error| fault(format!("cannot be read: {error}")))?;
    let document = document::parse(&bytes).map_err(fault)?;
    let base = base.map_err(|error| fault(format!("its directory cannot be found: {error}")))?;
    if let Some(problem) = foreign::recognise_tool(&document) {
        return Err(fault(problem));
    }
    let is_exposed = file.metadata().is_ok_and(|file| file.permissions().mode() & 0o077 != 0);
    let requiring = PathBase::requiring_files(&base);
    let base = if is_exposed { requiring.with_exposed_file(file) } else { requiring };
    let checked = check_any_form(document, base).map(|spec| {
        let private_file = std::fs::canonicalize(file).ok().filter(|_| spec.has_secrets());
        ExperimentSpec { private_file, ..spec }
    });
    checked.map_err(|problems| {
        let mut problems: Vec<_> = problems.into_iter().flat_map(Problem::split_problems).collect();
        locate_problems(&mut problems, &bytes);
        // Problems without a line in this file come last, in the order of their discovery.
        problems.sort_by_key(|problem| match (&problem.file, problem.location) {
            (None, Some(at)) => (0, at.line, at.column),
            (Some(_), _) | (None, None) => (1, 0, 0),
        });
        Problem::combine_into_error(problems, file)
    })
}

/// Checks an experiment that a client sent as JSON, in NNI's canonical form with absolute paths.
pub fn from_client(mut document: Value) -> Result<ExperimentSpec, Error> {
    // NNI's client sends the path of the file besides its content.
    if let Some(members) = document.as_object_mut()
        && members.contains_key("searchSpace")
    {
        members.remove("searchSpaceFile");
    }
    check_any_form(document, PathBase::requiring_files(Path::new("/"))).map_err(|problems| {
        Problem::combine_into_error(problems, Path::new("the posted experiment"))
    })
}

/// Checks a document in v1 or v2 form. Problems are reported in the terms of the document's form.
fn check_any_form(document: Value, base: PathBase<'_>) -> Result<ExperimentSpec, Vec<Problem>> {
    if !v1::is_v1(&document) {
        return check_v2(document, base);
    }
    v1::check_platform(&document).map_err(|problem| vec![problem])?;
    let (converted, mut problems) = convert_known_fields(&document)?;
    let checked = check_v2(converted.v2.clone(), base);
    for problem in checked.as_ref().err().into_iter().flatten() {
        let problem = converted.translate_problem(problem.clone());
        if !problem_list::is_repeated(&problem, &problems, &document) {
            problems.push(problem);
        }
    }
    let mut spec = checked.ok().filter(|_| problems.is_empty()).ok_or(problems)?;
    spec.ignored.extend(converted.ignored);
    Ok(spec)
}

/// Converts the known fields of a v1 document. Returns also the problems of its unknown fields.
///
/// # Errors
///
/// The document has a problem with which it cannot be converted.
fn convert_known_fields(
    original: &Value,
) -> Result<(v1::ConvertedDocument, Vec<Problem>), Vec<Problem>> {
    let (mut document, mut problems) = (original.clone(), Vec::new());
    loop {
        let problem = match v1::convert(document.clone()) {
            Ok(converted) => return Ok((converted, problems)),
            Err(problem) => problem,
        };
        let mut found = problem.split_problems();
        found.truncate(MAX_PROBLEMS + 1 - problems.len());
        let is_removed = problem_list::remove_unknown_fields(&mut document, &found);
        for problem in found {
            if !problem_list::is_repeated(&problem, &problems, original) {
                problems.push(problem);
            }
        }
        if !is_removed || problems.len() > MAX_PROBLEMS {
            return Err(problems);
        }
    }
}

/// Locates problems in the text of the experiment file, or in the other file that they name.
fn locate_problems(problems: &mut [Problem], text: &[u8]) {
    let here = FieldLocations::parse(text);
    for problem in problems {
        let path = problem.path.as_str();
        problem.location = match &problem.file {
            Some(file) => {
                let there =
                    std::fs::read(file).ok().and_then(|bytes| FieldLocations::parse(&bytes));
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

/// Returns the location of a template's problem: the place in an inline template, or the field that names its file.
fn find_in_template(places: &FieldLocations, path: &str) -> Option<Location> {
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

/// Checks a document in v2 form. All its problems are reported at once.
fn check_v2(mut document: Value, base: PathBase<'_>) -> Result<ExperimentSpec, Vec<Problem>> {
    let missing = registered::resolve_registered_names(&mut document, base);
    check_new_experiment(document.clone(), base).map_err(|first| {
        let mut problems = problem_list::find_all_problems(document, base, first);
        for problem in &mut problems {
            if let Some(not_registered) =
                missing.iter().find(|not_registered| not_registered.path == problem.path)
            {
                problem.message.push_str(&not_registered.note);
            }
        }
        problems
    })
}

/// Checks a document in v2 form, and the initial points against its search space. Returns the first problem.
fn check_new_experiment(document: Value, base: PathBase<'_>) -> Result<ExperimentSpec, Problem> {
    let spec = check::check(document, base)?;
    labels::check_initial_trials(&spec).map(|()| spec)
}

/// Reads another file in JSON or YAML, such as a search space or results.
pub fn read_document(file: &Path) -> Result<Value, Error> {
    let fault = |problem: String| Error { file: file.to_owned(), location: None, problem };
    let bytes = std::fs::read(file).map_err(|error| fault(format!("cannot be read: {error}")))?;
    document::parse(&bytes).map_err(fault)
}

/// Checks a stored canonical form. The files that it names need not exist any more.
pub fn from_canonical(canonical: &Value) -> Result<ExperimentSpec, Error> {
    check::check(canonical.clone(), PathBase::for_stored_experiment()).map_err(stored_file_error)
}

/// Checks that the files exist that a stored experiment needs to start trials: its code, its algorithms, its keys.
///
/// # Errors
///
/// A file is missing. The error names the file and its field.
pub fn check_stored_files(canonical: &Value) -> Result<(), Error> {
    let base = PathBase::requiring_files(Path::new("/"));
    check::check(canonical.clone(), base).map(drop).map_err(stored_file_error)
}

fn stored_file_error(problem: Problem) -> Error {
    problem.into_error(Path::new("stored experiment"))
}
