//! Checks a document in v2 form, and returns a specification with its canonical form.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use trial_protocol::Direction;

use super::direction::{AgreedDirection, DirectionStatement};
use super::path_base::PathBase;
use super::section::{InheritableFields, Problem, Section, resolve_path};
use super::services::inherited::{Service, TopLevel};
use super::services::labels;
use super::{
    AssessorChoice, ExperimentSpec, Goals, MAX_TRIAL_CONCURRENCY, TrainingServiceSpec, TunerChoice,
    algorithms, command, document, goals, notifications, service,
};
use crate::search::search_space::SearchSpace;
use crate::search::tuner::CHECKPOINT_FOLDER;
use crate::util::nearest::suggest_names;

/// The fields of NNI 3.0's `ExperimentConfig`, and TrialKeeper's, in the order of the canonical form.
pub(super) const FIELDS: [&str; 37] = [
    "experimentName",
    "experimentType",
    "searchSpaceFile",
    "searchSpace",
    "trialCommand",
    "trialCodeDirectory",
    "trialConcurrency",
    "trialGpuNumber",
    "maxExperimentDuration",
    "maxTrialNumber",
    "maxTrialDuration",
    "targetMetric",
    "maxConsecutiveFailures",
    "maxTrialRetries",
    "trialRepeats",
    "nniManagerIp",
    "useAnnotation",
    "debug",
    "logLevel",
    "experimentWorkingDirectory",
    "tunerGpuIndices",
    "tuner",
    "advisor",
    "assessor",
    "objective",
    "objectives",
    "constraints",
    "pythonInterpreter",
    "tunerPatience",
    "trainingService",
    "codeSnapshot",
    "recordPackages",
    "sharedStorage",
    "notifications",
    "initialTrials",
    "owner",
    "tags",
];

/// The default of `tunerPatience`, and its limits.
const DEFAULT_TUNER_TIMEOUT: Duration = Duration::from_mins(15);
const MIN_TUNER_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_TUNER_TIMEOUT: Duration = Duration::from_hours(7 * 24);

/// The greatest number of trials of one point. A larger number is a typing error.
const MAX_TRIAL_REPEATS: u64 = 1000;

/// NNI's default of `experimentWorkingDirectory`.
pub(super) const DEFAULT_WORKING_DIRECTORY: &str = "~/nni-experiments";

const LOG_LEVELS: [&str; 7] = ["trace", "debug", "info", "warning", "error", "fatal", "critical"];

/// Checks a document. Relative paths refer to `base`.
pub(super) fn check(document: Value, base: PathBase<'_>) -> Result<ExperimentSpec, Problem> {
    let mut top = Section::open("", document, &FIELDS)?;
    let name = top.string_or_unset("experimentName")?;
    check_experiment_type(&mut top)?;
    let (search_space, ignored) = read_search_space(&mut top, base)?;
    let shared = InheritableFields::read(&mut top, base)?;
    let code = shared.code.clone().unwrap_or_else(|| resolve_path(".", base));
    top.record("trialCodeDirectory", code.to_string_lossy());
    let limits = SearchLimits::read(&mut top)?;
    read_fields_without_effect(&mut top, base, &shared)?;
    let chosen = Algorithms::read(&mut top, &search_space, &limits, base)?;
    let inherited = TopLevel { fields: &shared, code: &code, base };
    let (service, record_packages) = read_training_service(&mut top, inherited, &chosen.tuner)?;
    let notifications = notifications::read_notifications(&mut top, base)?;
    let initial_trials = labels::read_initial_trials(&mut top)?;
    let owner = labels::read_owner(&mut top)?;
    let tags = labels::read_tags(&mut top)?;
    check_commands(service.commands, &chosen.tuner, &search_space)?;
    Ok(ExperimentSpec {
        private_file: None,
        name,
        search_space,
        trial_command: service.command,
        trial_code_directory: service.code,
        trial_concurrency: limits.trial_concurrency,
        trial_gpu_number: service.gpus,
        max_trial_number: limits.max_trial_number,
        max_experiment_duration: limits.max_experiment_duration,
        max_trial_duration: limits.max_trial_duration,
        target_metric: limits.target_metric,
        max_consecutive_failures: limits.max_consecutive_failures,
        max_trial_retries: limits.max_trial_retries,
        trial_repeats: limits.trial_repeats,
        tuner: chosen.tuner,
        direction: chosen.direction,
        direction_assumed: chosen.direction_assumed,
        assessor: chosen.assessor,
        python_interpreter: chosen.python_interpreter,
        record_packages,
        tuner_gpu_indices: chosen.gpu_indices,
        tuner_patience: chosen.patience,
        training_service: service.spec,
        objective: chosen.objective,
        goals: chosen.goals,
        initial_trials,
        owner,
        tags,
        notifications,
        ignored,
        canonical: Value::Object(top.into_canonical()),
    })
}

/// Reads `experimentType`, which has one value.
fn check_experiment_type(top: &mut Section) -> Result<(), Problem> {
    let kind = top.string_or("experimentType", "hpo")?;
    if kind == "hpo" {
        return Ok(());
    }
    Err(top.problem("experimentType", format!("`{kind}` is not known; allowed: hpo")))
}

/// Reads `trainingService` and the fields about it, the last of which is `recordPackages`.
fn read_training_service(
    top: &mut Section,
    inherited: TopLevel<'_>,
    tuner: &TunerChoice,
) -> Result<(Service, bool), Problem> {
    let mut service = service::read_service(top, inherited)?;
    if let TunerChoice::BuiltIn(tuner) = tuner
        && service.spec.section().has_remote_trials()
        && tuner.needs_checkpoint_folder()
    {
        let path = format!("tuner.classArgs.{CHECKPOINT_FOLDER}");
        let problem = "is missing; name a folder that all trials share, such as one on the storage that they mount";
        return Err(Problem::new(path, problem));
    }
    read_code_snapshot(top, &mut service.spec)?;
    let record_packages = read_record_packages(top, &service.spec)?;
    if top.take("sharedStorage").is_some() {
        let problem = "is not supported; mount the disk on every machine, or name a disk for pods in `trainingService.storage`";
        return Err(top.problem("sharedStorage", problem));
    }
    Ok((service, record_packages))
}

/// Checks the placeholders in commands, as far as the names of the parameters are known.
fn check_commands(
    commands: Vec<(String, String)>,
    tuner: &TunerChoice,
    space: &SearchSpace,
) -> Result<(), Problem> {
    let Some(names) = tuner.placeholder_names(space) else { return Ok(()) };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    commands.into_iter().try_for_each(|(path, command)| {
        command::check_placeholders(&command, &names).map_err(|problem| Problem::new(path, problem))
    })
}

/// The bounds of a search.
struct SearchLimits {
    trial_concurrency: usize,
    max_trial_number: Option<u64>,
    max_experiment_duration: Option<Duration>,
    max_trial_duration: Option<Duration>,
    target_metric: Option<f64>,
    max_consecutive_failures: Option<u32>,
    max_trial_retries: u32,
    trial_repeats: u64,
}

impl SearchLimits {
    fn read(top: &mut Section) -> Result<Self, Problem> {
        let trial_concurrency = read_concurrency(top)?;
        let max_experiment_duration = top.duration("maxExperimentDuration")?;
        let max_trial_number = top.integer("maxTrialNumber", 1)?;
        let max_trial_duration = top.duration("maxTrialDuration")?;
        let target_metric = top.number("targetMetric")?;
        let max_consecutive_failures = read_count(top, "maxConsecutiveFailures", 0)?;
        let max_trial_retries = read_count(top, "maxTrialRetries", 0)?;
        let trial_repeats = top.integer("trialRepeats", 1)?;
        if trial_repeats.is_some_and(|repeats| repeats > MAX_TRIAL_REPEATS) {
            let problem = format!("must be at most {MAX_TRIAL_REPEATS}");
            return Err(top.problem("trialRepeats", problem));
        }
        Ok(Self {
            trial_concurrency,
            max_trial_number,
            max_experiment_duration,
            max_trial_duration,
            target_metric,
            max_consecutive_failures,
            max_trial_retries: max_trial_retries.unwrap_or(0),
            trial_repeats: trial_repeats.unwrap_or(1),
        })
    }
}

/// The algorithms of a search, their objective, and the settings of those outside the manager.
struct Algorithms {
    tuner: TunerChoice,
    assessor: Option<AssessorChoice>,
    objective: Option<String>,
    goals: Goals,
    direction: Direction,
    direction_assumed: bool,
    gpu_indices: Option<Vec<u64>>,
    python_interpreter: Option<String>,
    patience: Duration,
}

impl Algorithms {
    fn read(
        top: &mut Section,
        search_space: &SearchSpace,
        limits: &SearchLimits,
        base: PathBase<'_>,
    ) -> Result<Self, Problem> {
        let gpu_indices = top.indices("tunerGpuIndices")?;
        let mut tuner = algorithms::read_tuner(top, search_space, base)?;
        algorithms::set_repeats(limits.trial_repeats, &mut tuner)?;
        let mut assessor = algorithms::read_assessor(top, &tuner, base)?;
        let has_objective = top.peek("objective").is_some();
        let ObjectiveFields { metric: objective, stated } = read_objective(top)?;
        let goals =
            goals::read_goals(top, objective.as_deref(), has_objective, limits.target_metric)?;
        let objective = goals.objectives.first().map(|first| first.metric.clone()).or(objective);
        let stated = stated.or_else(|| goals::first_direction(&goals));
        let AgreedDirection { direction, assumed: direction_assumed } =
            algorithms::set_direction(stated, &mut tuner, assessor.as_mut())?;
        let goals = goals::with_direction(goals, objective.as_deref(), direction);
        algorithms::set_goals(&goals, search_space, &mut tuner)?;
        let has_classes = matches!(tuner, TunerChoice::Nni { .. })
            || matches!(assessor, Some(AssessorChoice::Nni(_)));
        Ok(Self {
            tuner,
            assessor,
            objective,
            goals,
            direction,
            direction_assumed,
            gpu_indices,
            python_interpreter: algorithms::read_interpreter(top, base, has_classes)?,
            patience: read_tuner_patience(top)?,
        })
    }
}

/// Reads `trialConcurrency`, which is required.
fn read_concurrency(top: &mut Section) -> Result<usize, Problem> {
    let Some(concurrency) = top.integer("trialConcurrency", 1)? else {
        let problem = "is missing; say how many trials may run at a time";
        return Err(top.problem("trialConcurrency", problem));
    };
    let at_a_time =
        usize::try_from(concurrency).ok().filter(|number| *number <= MAX_TRIAL_CONCURRENCY);
    at_a_time.ok_or_else(|| {
        let problem = format!("is {concurrency}; at most {MAX_TRIAL_CONCURRENCY} is possible");
        top.problem("trialConcurrency", problem)
    })
}

/// Reads `codeSnapshot` into the training service.
fn read_code_snapshot(top: &mut Section, service: &mut TrainingServiceSpec) -> Result<(), Problem> {
    let Some(wanted) = top.boolean("codeSnapshot")? else { return Ok(()) };
    let set = service.section_mut().set_code_snapshot(wanted);
    set.map_err(|problem| top.problem("codeSnapshot", problem))
}

/// Reads `recordPackages`.
fn read_record_packages(top: &mut Section, service: &TrainingServiceSpec) -> Result<bool, Problem> {
    let wanted = top.boolean("recordPackages")?.unwrap_or(false);
    if wanted && !service.section().is_local() {
        let problem = "is for `platform: local`; elsewhere trials have the packages of their image or machine";
        return Err(top.problem("recordPackages", problem));
    }
    Ok(wanted)
}

/// The objective.
struct ObjectiveFields {
    metric: Option<String>,
    stated: Option<DirectionStatement>,
}

/// Reads `objective`: the metric's name, or an object of `metric` and `direction`, both optional.
fn read_objective(top: &mut Section) -> Result<ObjectiveFields, Problem> {
    if top.peek("objective").is_some_and(Value::is_array) {
        let problem = "expected a string, found a list; several objectives belong in `objectives`";
        return Err(top.problem("objective", problem));
    }
    if !top.peek("objective").is_some_and(Value::is_object) {
        return Ok(ObjectiveFields { metric: top.string("objective")?, stated: None });
    }
    let value = top.take("objective").unwrap_or_default();
    let mut fields = Section::open("objective", value, &goals::OBJECTIVE_FIELDS)?;
    let metric = fields.string("metric")?;
    let direction = goals::read_direction(&mut fields)?;
    let stated = direction
        .map(|direction| DirectionStatement { path: fields.field_path("direction"), direction });
    top.record("objective", fields.into_canonical());
    Ok(ObjectiveFields { metric, stated })
}

/// Reads a count of at least `least`. Counts above the maximum of `u32` are read as this maximum.
fn read_count(top: &mut Section, name: &str, least: u64) -> Result<Option<u32>, Problem> {
    let count = top.integer(name, least)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    top.record(name, count);
    Ok(count)
}

/// Reads `tunerPatience`, which is long enough for an answer and has an upper limit.
fn read_tuner_patience(top: &mut Section) -> Result<Duration, Problem> {
    let patience = top.duration("tunerPatience")?.unwrap_or(DEFAULT_TUNER_TIMEOUT);
    if (MIN_TUNER_TIMEOUT..=MAX_TUNER_TIMEOUT).contains(&patience) {
        return Ok(patience);
    }
    let problem = format!("expected a duration from 1s to 7d, found {} s", patience.as_secs_f64());
    Err(top.problem("tunerPatience", problem))
}

/// Checks and records fields that NNI's manager or dispatcher uses and that have no effect in TrialKeeper.
fn read_fields_without_effect(
    top: &mut Section,
    base: PathBase<'_>,
    shared: &InheritableFields,
) -> Result<(), Problem> {
    if top.boolean_or("useAnnotation", false)? {
        let problem = "NNI 3.0 dropped annotations; describe the space in `searchSpace` instead";
        return Err(top.problem("useAnnotation", problem));
    }
    let debug = shared.debug.unwrap_or(false);
    top.record("debug", debug);
    let level = top.string_or("logLevel", if debug { "debug" } else { "info" })?;
    if !LOG_LEVELS.contains(&level.as_str()) {
        let advice = suggest_names(&level, LOG_LEVELS);
        return Err(top.problem("logLevel", format!("`{level}` is not known; {advice}")));
    }
    if top.absolute_path("experimentWorkingDirectory", base)?.is_none() {
        let default = resolve_path(DEFAULT_WORKING_DIRECTORY, base);
        top.record("experimentWorkingDirectory", default.to_string_lossy());
    }
    Ok(())
}

/// Reads `searchSpaceFile`, or else `searchSpace`. Returns the space, and the fields that have no effect: NNI 3.0 writes
/// both fields into the JSON form of an experiment, and reads the file.
fn read_search_space(
    top: &mut Section,
    base: PathBase<'_>,
) -> Result<(SearchSpace, Vec<String>), Problem> {
    let inline = top.peek("searchSpace").cloned();
    let besides_file = inline.filter(|_| top.peek("searchSpaceFile").is_some());
    let space = parse_search_space(top, base)?;
    top.record("searchSpace", space.as_json());
    let is_ignored = besides_file.is_some_and(|inline| inline != *space.as_json());
    let ignored = if is_ignored { vec!["searchSpace".to_owned()] } else { Vec::new() };
    Ok((space, ignored))
}

fn parse_search_space(top: &mut Section, base: PathBase<'_>) -> Result<SearchSpace, Problem> {
    let any_form = algorithms::can_have_any_space(top);
    let take_in = if any_form { SearchSpace::accept_any_form } else { SearchSpace::parse };
    let parse = |json: &Value, prefix: &str, file: Option<&Path>| {
        take_in(json).map_err(|error| {
            let path = if error.path.starts_with("searchSpace") || prefix.is_empty() {
                error.path
            } else {
                format!("{prefix}.{}", error.path)
            };
            let problem = Problem::new(path, error.problem);
            match file {
                Some(file) => problem.in_other_file(file),
                None => problem,
            }
        })
    };
    let missing = if top.is_null("searchSpace") {
        "has no value; indent its parameters below it, or give a `searchSpaceFile`"
    } else {
        "is missing; give it here or in a `searchSpaceFile`"
    };
    let inline = top.take("searchSpace");
    let Some(file) = top.unrecorded_string("searchSpaceFile")? else {
        return match inline {
            Some(json) => parse(&json, "searchSpace", None),
            None => Err(top.problem("searchSpace", missing)),
        };
    };
    let path = resolve_path(&file, base);
    let bytes = std::fs::read(&path).map_err(|error| {
        top.problem("searchSpaceFile", format!("{} cannot be read: {error}", path.display()))
    })?;
    let json = document::parse(&bytes)
        .map_err(|what| Problem::new("the search space", what).in_other_file(&path))?;
    parse(&json, "", Some(&path))
}
