//! The section `trainingService` of `platform: openpai`: NNI's fields, for the plugin that communicates with `OpenPAI`.

use std::path::Path;

use serde_json::Value;

use super::super::document::describe_kind;
use super::super::path_base::PathBase;
use super::super::section::{Problem, Section, resolve_path};
use super::super::{PluginSpec, TrainingServiceSpec, document};
use super::inherited::{Service, ServiceFields, TopLevel};

/// The field of NNI 2.10's `OpenpaiConfig` that the plugin does not need. It has no effect.
const REUSE_MODE_FIELD: &str = "reuseMode";

/// The other own fields of `OpenpaiConfig`, and TrialKeeper's `tokenFile` and `caFile`, in the order of the canonical
/// form. They are the settings of the plugin.
pub(in crate::config) const OPENPAI_FIELDS: [&str; 14] = [
    "host",
    "username",
    "token",
    "tokenFile",
    "caFile",
    "dockerImage",
    "trialCpuNumber",
    "trialMemorySize",
    "virtualCluster",
    "storageConfigName",
    "localStorageMountPoint",
    "containerStorageMountPoint",
    "openpaiConfigFile",
    "openpaiConfig",
];

const DEFAULT_IMAGE: &str = "msranni/nni:latest";
const PLUGIN_MODULE: &str = "trialkeeper.openpai";

/// Reads the section.
pub(in crate::config) fn read_section(value: Value, top: TopLevel<'_>) -> Result<Service, Problem> {
    let base = top.base;
    let own = [&[REUSE_MODE_FIELD], &OPENPAI_FIELDS[..]].concat();
    let (mut section, mut inherited) = ServiceFields::open("openpai", value, &own, top)?;
    let host = read_host(&mut section)?;
    read_required(&mut section, "username", "the name of your account")?;
    check_token_source(&mut section, base)?;
    section.absolute_path("caFile", base)?;
    let job = read_job(&mut section, base)?;
    let image = section.string("dockerImage")?;
    let image = image.or_else(|| job.is_none().then(|| DEFAULT_IMAGE.to_owned()));
    section.record("dockerImage", image);
    check_sizes(&mut section, job.is_some())?;
    section.string("virtualCluster")?;
    read_storage(&mut section, base)?;
    if inherited.command.is_none() {
        inherited.command = job.as_ref().and_then(command_of_job);
    }
    let trial = inherited.into_trial_fields()?;
    section.record("trialCommand", trial.command());
    section.boolean(REUSE_MODE_FIELD)?;
    let settings = section.recorded(&OPENPAI_FIELDS);
    let spec = PluginSpec {
        command: vec![find_python(), "-m".to_owned(), PLUGIN_MODULE.to_owned()],
        settings: Value::Object(settings),
        advertise: trial.advertise.clone(),
        api_server: Some(host),
    };
    Ok(trial.into_service(TrainingServiceSpec::Plugin(spec), section))
}

/// Returns the interpreter next to this program, because its environment contains the module. Without one, returns the
/// interpreter in `PATH`.
fn find_python() -> String {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("python3"));
    let beside = beside.filter(|program| program.is_file());
    beside.map_or_else(|| "python3".to_owned(), |program| program.to_string_lossy().into_owned())
}

fn read_required(section: &mut Section, name: &str, example: &str) -> Result<String, Problem> {
    let value = section.string(name)?;
    value.ok_or_else(|| section.problem(name, format!("is missing; {example}")))
}

/// Reads `host`, an address of the web portal. The default scheme is `https://`.
fn read_host(section: &mut Section) -> Result<String, Problem> {
    let host =
        read_required(section, "host", "the address of OpenPAI, such as https://pai.example.org")?;
    let url = if host.contains("://") { host } else { format!("https://{host}") };
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    match rest {
        Some(rest)
            if !rest.is_empty() && !rest.starts_with('/') && !url.contains(['?', '#', ' ']) =>
        {
            section.record("host", &url);
            Ok(url)
        }
        _ => {
            let problem = format!("`{url}` is not an address such as https://pai.example.org");
            Err(section.problem("host", problem))
        }
    }
}

/// Reads `token` or `tokenFile`, exactly one of which must be set.
fn check_token_source(section: &mut Section, base: PathBase<'_>) -> Result<(), Problem> {
    let token = section.string("token")?;
    let file = section.absolute_path("tokenFile", base)?;
    match (token, file) {
        (None, None) => {
            let problem = "is missing; set it, or better a `tokenFile` that only you can read";
            Err(section.problem("token", problem))
        }
        (Some(_), Some(_)) => Err(section.given_besides("tokenFile", "token")),
        (Some(_), None) | (None, Some(_)) => Ok(()),
    }
}

/// Reads `openpaiConfig` or `openpaiConfigFile`, a job of protocol 2.
fn read_job(section: &mut Section, base: PathBase<'_>) -> Result<Option<Value>, Problem> {
    let inline = section.take("openpaiConfig");
    let file = section.unrecorded_string("openpaiConfigFile")?;
    let (name, job) = match (inline, file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(section.given_besides("openpaiConfigFile", "openpaiConfig"));
        }
        (Some(job), None) => ("openpaiConfig", job),
        (None, Some(file)) => {
            ("openpaiConfigFile", read_job_file(section, &resolve_path(&file, base))?)
        }
    };
    if let Some(problem) = job_problem(&job) {
        return Err(section.problem(name, problem));
    }
    section.record("openpaiConfig", &job);
    Ok(Some(job))
}

fn read_job_file(section: &Section, file: &Path) -> Result<Value, Problem> {
    let fault = |problem: String| {
        section.problem("openpaiConfigFile", format!("{}: {problem}", file.display()))
    };
    let bytes = std::fs::read(file).map_err(|error| fault(format!("cannot be read: {error}")))?;
    document::parse(&bytes).map_err(fault)
}

/// Returns the reason why a job cannot run trials. `OpenPAI` checks the rest.
fn job_problem(job: &Value) -> Option<String> {
    if !job.is_object() {
        return Some(format!(
            "expected a job of OpenPAI's protocol 2, found {}",
            describe_kind(job)
        ));
    }
    if job["protocolVersion"].as_str() != Some("2") && job["protocolVersion"] != 2 {
        return Some("needs `protocolVersion: 2`".to_owned());
    }
    let roles = job["taskRoles"].as_object();
    let Some((name, role)) = roles.and_then(|roles| roles.iter().next()) else {
        return Some("needs `taskRoles` with a role, whose command is the trial's".to_owned());
    };
    if !role.is_object() {
        return Some(format!("taskRoles.{name}: expected fields, found {}", describe_kind(role)));
    }
    // A trial has one agent.
    let instances = &role["instances"];
    let is_one = instances.is_null() || *instances == 1;
    (!is_one).then(|| {
        let found = describe_kind(instances);
        format!("taskRoles.{name}.instances: must be 1 in the first role, which runs the trial, found {found}")
    })
}

/// Returns the commands of a job's first role as a trial's command.
fn command_of_job(job: &Value) -> Option<(String, String)> {
    let (name, role) = job["taskRoles"].as_object()?.iter().next()?;
    let lines: Vec<String> = serde_json::from_value(role["commands"].clone()).ok()?;
    let command = lines.join("\n");
    let path = format!("trainingService.openpaiConfig.taskRoles.{name}.commands");
    (!command.trim().is_empty()).then_some((path, command))
}

/// Reads `trialCpuNumber` and `trialMemorySize`, which the user's own job contains itself.
fn check_sizes(section: &mut Section, in_job: bool) -> Result<(), Problem> {
    let cpus = section.integer("trialCpuNumber", 1)?;
    let memory = section.memory_mib("trialMemorySize")?;
    if !in_job {
        for (name, is_missing, example) in
            [("trialCpuNumber", cpus.is_none(), "4"), ("trialMemorySize", memory.is_none(), "8gb")]
        {
            if is_missing {
                return Err(section.problem(name, format!("is missing; for example {example}")));
            }
        }
    }
    Ok(())
}

/// Reads the storage that this machine and the containers share.
fn read_storage(section: &mut Section, base: PathBase<'_>) -> Result<(), Problem> {
    read_required(section, "storageConfigName", "a storage that OpenPAI lets you use")?;
    let local =
        read_required(section, "localStorageMountPoint", "the storage's folder on this machine")?;
    let inside = read_required(
        section,
        "containerStorageMountPoint",
        "the storage's folder in containers, such as /mnt/NAME",
    )?;
    if !inside.starts_with('/') {
        let problem = format!("expected an absolute path, found `{inside}`");
        return Err(section.problem("containerStorageMountPoint", problem));
    }
    section.record("localStorageMountPoint", resolve_path(&local, base).to_string_lossy());
    Ok(())
}
