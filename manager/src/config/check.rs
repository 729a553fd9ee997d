//! A document in v2 form -> a checked spec and its canonical form.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::section::{Problem, Section, kind};
use super::{ExperimentSpec, LocalSpec, TrainingServiceSpec, command, document, units};
use crate::assessor::{self, AssessorSpec};
use crate::nearest::{advice, folded};
use crate::search_space::SearchSpace;
use crate::tuner::{self, TunerSpec};

/// NNI 3.0's `ExperimentConfig`, in its order, and `objective`, which is ours.
const FIELDS: [&str; 23] = [
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
    "nniManagerIp",
    "useAnnotation",
    "debug",
    "logLevel",
    "experimentWorkingDirectory",
    "tunerGpuIndices",
    "tuner",
    "assessor",
    "advisor",
    "trainingService",
    "sharedStorage",
    "objective",
];

/// NNI 3.0's `LocalConfig`.
const LOCAL_FIELDS: [&str; 10] = [
    "platform",
    "trialCommand",
    "trialCodeDirectory",
    "trialGpuNumber",
    "nniManagerIp",
    "debug",
    "useActiveGpu",
    "maxTrialNumberPerGpu",
    "gpuIndices",
    "reuseMode",
];

const LOG_LEVELS: [&str; 7] = ["trace", "debug", "info", "warning", "error", "fatal", "critical"];

/// What NNI knows and this build does not.
const OTHER_PLATFORMS: [&str; 10] = [
    "remote",
    "frameworkcontroller",
    "kubeflow",
    "openpai",
    "pai",
    "aml",
    "dlc",
    "adl",
    "dlts",
    "hybrid",
];

/// Checks a document. Relative paths are relative to `base`.
pub(super) fn check(document: Value, base: &Path) -> Result<ExperimentSpec, Problem> {
    let mut top = Section::open("", document, &FIELDS)?;
    let mut canonical = Canonical(Map::new());

    let name = top.string("experimentName")?;
    canonical.put("experimentName", &name);
    if let Some(other) = top.string("experimentType")?.filter(|kind| kind != "hpo") {
        return Err(top.fault("experimentType", format!("`{other}` is not known; allowed: hpo")));
    }
    canonical.put("experimentType", "hpo");
    let search_space = search_space(&mut top, base)?;
    canonical.put("searchSpace", search_space.as_json().clone());

    let shared = Shared::take(&mut top, base)?;
    canonical.put("trialCommand", &shared.command);
    let code = shared.code.clone().unwrap_or_else(|| resolve(".", base));
    canonical.put("trialCodeDirectory", code.to_string_lossy());
    let Some(concurrency) = top.integer("trialConcurrency", 1)? else {
        return Err(
            top.fault("trialConcurrency", "is missing; say how many trials may run at a time")
        );
    };
    canonical.put("trialConcurrency", concurrency);
    canonical.put("trialGpuNumber", shared.gpus);
    let max_experiment_duration = duration(&mut top, "maxExperimentDuration", &mut canonical)?;
    let max_trial_number = top.integer("maxTrialNumber", 1)?;
    canonical.put("maxTrialNumber", max_trial_number);
    let max_trial_duration = duration(&mut top, "maxTrialDuration", &mut canonical)?;
    canonical.put("nniManagerIp", &shared.ip);
    if top.boolean("useAnnotation")? == Some(true) {
        let problem = "NNI 3.0 dropped annotations; describe the space in `searchSpace` instead";
        return Err(top.fault("useAnnotation", problem));
    }
    canonical.put("useAnnotation", false);
    without_effect(&mut top, base, &shared, &mut canonical)?;

    let tuner = tuner(&mut top, &search_space, &mut canonical)?;
    let optimize_mode =
        tuner.optimize_mode().map_err(|error| Problem::new(error.path, error.problem))?;
    let assessor = assessor(&mut top, &mut canonical)?;
    let service = service(&mut top, &shared, &code, base)?;
    canonical.put("trainingService", service.canonical);
    if top.take("sharedStorage").is_some() {
        return Err(top
            .fault("sharedStorage", "is not available in this build; trials run on this machine"));
    }
    let objective = top.string("objective")?;
    canonical.put("objective", &objective);

    let names = placeholder_names(&tuner, &search_space);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    command::check(&service.command, &names)
        .map_err(|problem| Problem::new(service.command_path, problem))?;

    Ok(ExperimentSpec {
        name,
        search_space,
        trial_command: service.command,
        trial_code_directory: service.code,
        trial_concurrency: usize::try_from(concurrency).unwrap_or(usize::MAX),
        trial_gpu_number: service.gpus,
        max_trial_number,
        max_experiment_duration,
        max_trial_duration,
        tuner,
        optimize_mode,
        assessor,
        training_service: service.spec,
        objective,
        canonical: Value::Object(canonical.0),
    })
}

/// The canonical form as it grows. What is not set is not in it.
struct Canonical(Map<String, Value>);

impl Canonical {
    fn put(&mut self, name: &str, value: impl Serialize) {
        let value = json!(value);
        if !value.is_null() {
            self.0.insert(name.to_owned(), value);
        }
    }
}

/// The fields that stand at the top level or in the training service.
struct Shared {
    command: Option<String>,
    code: Option<PathBuf>,
    gpus: Option<u32>,
    ip: Option<String>,
    debug: Option<bool>,
}

impl Shared {
    fn take(section: &mut Section, base: &Path) -> Result<Self, Problem> {
        let command = section.string("trialCommand")?;
        let code = section.string("trialCodeDirectory")?;
        let gpus = section.integer("trialGpuNumber", 0)?.map(|gpus| {
            u32::try_from(gpus)
                .map_err(|_| section.fault("trialGpuNumber", format!("{gpus} GPUs are too many")))
        });
        Ok(Self {
            command,
            code: code.map(|code| resolve(&code, base)),
            gpus: gpus.transpose()?,
            ip: section.string("nniManagerIp")?,
            debug: section.boolean("debug")?,
        })
    }
}

fn duration(
    top: &mut Section,
    name: &str,
    canonical: &mut Canonical,
) -> Result<Option<Duration>, Problem> {
    let Some(written) = top.take(name) else { return Ok(None) };
    let duration = units::duration(&written).map_err(|problem| top.fault(name, problem))?;
    canonical.put(name, written);
    Ok(Some(duration))
}

/// Fields that NNI's manager or dispatcher obeys and that change nothing here: checked and kept.
fn without_effect(
    top: &mut Section,
    base: &Path,
    shared: &Shared,
    canonical: &mut Canonical,
) -> Result<(), Problem> {
    let debug = shared.debug.unwrap_or(false);
    canonical.put("debug", debug);
    let level = top.string("logLevel")?.unwrap_or_else(|| {
        let level = if debug { "debug" } else { "info" };
        level.to_owned()
    });
    if !LOG_LEVELS.contains(&level.as_str()) {
        let advice = advice(&level, LOG_LEVELS);
        return Err(top.fault("logLevel", format!("`{level}` is not known; {advice}")));
    }
    canonical.put("logLevel", level);
    let directory = top.string("experimentWorkingDirectory")?;
    let directory = resolve(directory.as_deref().unwrap_or("~/nni-experiments"), base);
    canonical.put("experimentWorkingDirectory", directory.to_string_lossy());
    canonical.put("tunerGpuIndices", &top.indices("tunerGpuIndices")?);
    Ok(())
}

fn search_space(top: &mut Section, base: &Path) -> Result<SearchSpace, Problem> {
    let parse = |json: &Value, prefix: &str, file: Option<&Path>| {
        SearchSpace::parse(json).map_err(|error| Problem {
            path: if error.path.starts_with("searchSpace") || prefix.is_empty() {
                error.path
            } else {
                format!("{prefix}.{}", error.path)
            },
            what: error.problem,
            file: file.map(Path::to_owned),
        })
    };
    let inline = top.take("searchSpace");
    let Some(file) = top.string("searchSpaceFile")? else {
        return match inline {
            Some(json) => parse(&json, "searchSpace", None),
            None => {
                Err(top.fault("searchSpace", "is missing; give it here or in a `searchSpaceFile`"))
            }
        };
    };
    if inline.is_some() {
        return Err(
            top.fault("searchSpaceFile", "is given besides `searchSpace`; keep one of them")
        );
    }
    let path = resolve(&file, base);
    let bytes = std::fs::read(&path).map_err(|error| {
        top.fault("searchSpaceFile", format!("{} cannot be read: {error}", path.display()))
    })?;
    let json = document::parse(&bytes).map_err(|what| Problem {
        path: "the search space".to_owned(),
        what,
        file: Some(path.clone()),
    })?;
    parse(&json, "", Some(&path))
}

/// The section `tuner`, or `advisor`, NNI's older name for a tuner that also stops trials.
fn tuner(
    top: &mut Section,
    space: &SearchSpace,
    canonical: &mut Canonical,
) -> Result<TunerSpec, Problem> {
    let (tuner, advisor) = (top.take("tuner"), top.take("advisor"));
    let (section, value) = match (tuner, advisor) {
        (Some(_), Some(_)) => {
            return Err(top.fault("advisor", "is given besides `tuner`; keep one of them"));
        }
        (Some(value), None) => ("tuner", value),
        (None, Some(value)) => ("advisor", value),
        (None, None) => {
            return Err(top.fault("tuner", "is missing; for example {name: Random}"));
        }
    };
    let (name, class_args) = algorithm(section, value)?;
    let in_section = |error: tuner::Error| {
        let path = match error.path.strip_prefix("tuner") {
            Some(rest) => format!("{section}{rest}"),
            None => error.path,
        };
        Problem::new(path, error.problem)
    };
    let spec = TunerSpec::new(&name, class_args).map_err(in_section)?;
    // Made only to be checked.
    tuner::build(&spec, space, 0).map_err(in_section)?;
    canonical.put("tuner", written(&spec.name, &spec.class_args));
    Ok(spec)
}

fn assessor(top: &mut Section, canonical: &mut Canonical) -> Result<Option<AssessorSpec>, Problem> {
    let Some(value) = top.take("assessor") else { return Ok(None) };
    let (name, class_args) = algorithm("assessor", value)?;
    let in_section = |error: assessor::Error| Problem::new(error.path, error.problem);
    let spec = AssessorSpec::new(&name, class_args).map_err(in_section)?;
    // Made only to be checked.
    assessor::build(&spec).map_err(in_section)?;
    canonical.put("assessor", written(&spec.name, &spec.class_args));
    Ok(Some(spec))
}

/// An algorithm in canonical form.
fn written(name: &str, class_args: &Map<String, Value>) -> Value {
    let mut algorithm = json!({"name": name});
    if !class_args.is_empty() {
        algorithm["classArgs"] = Value::Object(class_args.clone());
    }
    algorithm
}

/// Name and arguments of a built-in algorithm.
fn algorithm(section: &str, value: Value) -> Result<(String, Map<String, Value>), Problem> {
    let known = ["name", "className", "codeDirectory", "classArgs"];
    let mut fields = Section::open(section, value, &known)?;
    let name = fields.string("name")?;
    let class = fields.string("className")?;
    let code = fields.string("codeDirectory")?;
    let class_args = match fields.take("classArgs") {
        None => Map::new(),
        Some(Value::Object(class_args)) => class_args,
        Some(other) => {
            let problem = format!("expected arguments by name, found {}", kind(&other));
            return Err(fields.fault("classArgs", problem));
        }
    };
    match (name, class, code) {
        (Some(_), Some(_), _) => {
            Err(fields.fault("className", "is given besides `name`; keep one of them"))
        }
        (None, Some(_), _) => Err(fields
            .fault("className", "a class of your own is not available in this build; use `name`")),
        (Some(_), None, Some(_)) => {
            Err(fields.fault("codeDirectory", "belongs to `className`, which is not given"))
        }
        (None, None, _) => Err(fields.fault("name", "is missing")),
        (Some(name), None, None) => Ok((name, class_args)),
    }
}

/// What the section `trainingService` says, with what it inherits.
struct Service {
    spec: TrainingServiceSpec,
    command: String,
    command_path: String,
    code: PathBuf,
    gpus: Option<u32>,
    canonical: Value,
}

fn service(
    top: &mut Section,
    shared: &Shared,
    shared_code: &Path,
    base: &Path,
) -> Result<Service, Problem> {
    let path = "trainingService";
    let value = match top.take(path) {
        None => return Err(top.fault(path, "is missing; for example {platform: local}")),
        Some(Value::Array(_)) => {
            return Err(top.fault(
                path,
                "several training services at a time are not available in this build, which has local",
            ));
        }
        Some(value) => value,
    };
    platform(&value)?;
    let mut local = Section::open(path, value, &LOCAL_FIELDS)?;
    local.take("platform");
    let own = Shared::take(&mut local, base)?;
    let owner = |is_own: bool, name: &str| if is_own { local.at(name) } else { name.to_owned() };
    let command_path = owner(own.command.is_some(), "trialCommand");
    let code_path = owner(own.code.is_some(), "trialCodeDirectory");
    let Some(command) = own.command.or_else(|| shared.command.clone()) else {
        return Err(Problem::new("trialCommand", "is missing; for example: python3 trial.py"));
    };
    let code = own.code.unwrap_or_else(|| shared_code.to_owned());
    if !code.is_dir() {
        let found = if code.exists() { "is no directory" } else { "does not exist" };
        return Err(Problem::new(code_path, format!("{} {found}", code.display())));
    }
    let gpus = own.gpus.or(shared.gpus);
    let use_active_gpu = local.boolean("useActiveGpu")?;
    let per_gpu = local.integer("maxTrialNumberPerGpu", 1)?.unwrap_or(1);
    let gpu_indices = local.indices("gpuIndices")?;
    let reuse = local.boolean("reuseMode")?.unwrap_or(false);
    let with_gpus = gpus.is_some_and(|gpus| gpus > 0);
    if with_gpus && use_active_gpu.is_none() {
        let problem = "must be set when `trialGpuNumber` is: true if trials may use a GPU that others (such as a desktop) use, too";
        return Err(local.fault("useActiveGpu", problem));
    }
    if !with_gpus && per_gpu != 1 {
        let problem = format!("{per_gpu} has no meaning without `trialGpuNumber`");
        return Err(local.fault("maxTrialNumberPerGpu", problem));
    }

    let mut canonical = Canonical(Map::new());
    canonical.put("platform", "local");
    canonical.put("trialCommand", &command);
    canonical.put("trialCodeDirectory", code.to_string_lossy());
    canonical.put("trialGpuNumber", gpus);
    canonical.put("debug", own.debug.or(shared.debug).unwrap_or(false));
    canonical.put("useActiveGpu", use_active_gpu);
    canonical.put("maxTrialNumberPerGpu", per_gpu);
    canonical.put("gpuIndices", &gpu_indices);
    canonical.put("reuseMode", reuse);
    Ok(Service {
        spec: TrainingServiceSpec::Local(LocalSpec {
            use_active_gpu,
            max_trial_number_per_gpu: per_gpu,
            gpu_indices,
        }),
        command,
        command_path,
        code,
        gpus,
        canonical: Value::Object(canonical.0),
    })
}

/// Refuses every platform but `local`, before its fields are looked at.
fn platform(service: &Value) -> Result<(), Problem> {
    let path = "trainingService.platform";
    let members = service.as_object();
    let field = members.and_then(|m| m.iter().find(|(key, _)| folded(key) == "platform"));
    match field.map(|(_, value)| value) {
        Some(Value::String(name)) if name == "local" => Ok(()),
        Some(Value::String(name)) if OTHER_PLATFORMS.contains(&name.as_str()) => Err(Problem::new(
            path,
            format!("`{name}` is not available in this build, which has local"),
        )),
        Some(Value::String(name)) => {
            let platforms = std::iter::once("local").chain(OTHER_PLATFORMS);
            let advice = match crate::nearest::nearest(name, platforms) {
                Some(near) => format!("did you mean `{near}`? This build has local"),
                None => "allowed: local".to_owned(),
            };
            Err(Problem::new(path, format!("`{name}` is not a platform; {advice}")))
        }
        Some(other) if !other.is_null() => {
            Err(Problem::new(path, format!("expected a string, found {}", kind(other))))
        }
        _ if members.is_some() => Err(Problem::new(path, "is missing; allowed: local")),
        _ => Ok(()), // No object: said where it is opened.
    }
}

/// The names that `{{name}}` may use: those of every parameter set.
fn placeholder_names(tuner: &TunerSpec, space: &SearchSpace) -> Vec<String> {
    match tuner::batch_names(tuner, space) {
        Some(names) => names,
        None => space.names().map(str::to_owned).collect(),
    }
}

/// An absolute path without `.`, `..` and symbolic links, as far as it exists; `~` is the home directory.
fn resolve(path: &str, base: &Path) -> PathBuf {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => match home() {
            Some(home) => home.join(rest.trim_start_matches('/')),
            None => PathBuf::from(path),
        },
        _ => PathBuf::from(path),
    };
    let mut resolved = PathBuf::from("/");
    for part in base.join(path).components() {
        match part {
            Component::RootDir | Component::Prefix(_) | Component::CurDir => {}
            Component::ParentDir => {
                resolved.pop();
            }
            Component::Normal(name) => {
                resolved.push(name);
                if let Ok(real) = std::fs::canonicalize(&resolved) {
                    resolved = real;
                }
            }
        }
    }
    resolved
}
