//! The section `trainingService` of `platform: openpai`: NNI's fields, for the plugin that communicates with `OpenPAI`.

use std::path::Path;

use serde_json::Value;

use super::super::base::Base;
use super::super::document::kind;
use super::super::section::{Problem, Section, resolve};
use super::super::{PluginSpec, TrainingServiceSpec, document};
use super::inherited::{Inherited, Service, TopLevel};

/// The field of NNI 2.10's `OpenpaiConfig` that the plugin does not need. It has no effect.
const REUSE_MODE: &str = "reuseMode";

/// The other own fields of `OpenpaiConfig`, and TrialKeeper's `tokenFile` and `caFile`, in the order of the canonical form.
/// They are the settings of the plugin.
pub(in crate::config) const SETTINGS: [&str; 14] = [
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
const MODULE: &str = "trialkeeper.openpai";

/// Reads the section.
pub(in crate::config) fn section(value: Value, top: TopLevel<'_>) -> Result<Service, Problem> {
    let base = top.base;
    let own = [&[REUSE_MODE], &SETTINGS[..]].concat();
    let (mut section, mut inherited) = Inherited::open("openpai", value, &own, top)?;
    let host = host(&mut section)?;
    required(&mut section, "username", "the name of your account")?;
    token(&mut section, base)?;
    section.absolute_path("caFile", base)?;
    let job = job(&mut section, base)?;
    let image = section.string("dockerImage")?;
    let image = image.or_else(|| job.is_none().then(|| DEFAULT_IMAGE.to_owned()));
    section.record("dockerImage", image);
    sizes(&mut section, job.is_some())?;
    section.string("virtualCluster")?;
    storage(&mut section, base)?;
    if inherited.command.is_none() {
        inherited.command = job.as_ref().and_then(command_of_job);
    }
    let trial = inherited.with_command()?;
    section.record("trialCommand", trial.command());
    section.boolean(REUSE_MODE)?;
    let settings = section.recorded(&SETTINGS);
    let spec = PluginSpec {
        command: vec![python(), "-m".to_owned(), MODULE.to_owned()],
        settings: Value::Object(settings),
        advertise: trial.advertise.clone(),
        api_server: Some(host),
    };
    Ok(trial.into_service(TrainingServiceSpec::Plugin(spec), section))
}

/// Returns the interpreter next to this program, because its environment contains the module. Without one, returns the
/// interpreter in `PATH`.
fn python() -> String {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("python3"));
    let beside = beside.filter(|program| program.is_file());
    beside.map_or_else(|| "python3".to_owned(), |program| program.to_string_lossy().into_owned())
}

fn required(section: &mut Section, name: &str, example: &str) -> Result<String, Problem> {
    let value = section.string(name)?;
    value.ok_or_else(|| section.fault(name, format!("is missing; {example}")))
}

/// Reads `host`, an address of the web portal. The default scheme is `https://`.
fn host(section: &mut Section) -> Result<String, Problem> {
    let host =
        required(section, "host", "the address of OpenPAI, such as https://pai.example.org")?;
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
            Err(section.fault("host", problem))
        }
    }
}

/// Reads `token` or `tokenFile`, exactly one of which must be set.
fn token(section: &mut Section, base: Base<'_>) -> Result<(), Problem> {
    let token = section.string("token")?;
    let file = section.absolute_path("tokenFile", base)?;
    match (token, file) {
        (None, None) => {
            let problem = "is missing; set it, or better a `tokenFile` that only you can read";
            Err(section.fault("token", problem))
        }
        (Some(_), Some(_)) => Err(section.given_besides("tokenFile", "token")),
        (Some(_), None) | (None, Some(_)) => Ok(()),
    }
}

/// Reads `openpaiConfig` or `openpaiConfigFile`, a job of protocol 2.
fn job(section: &mut Section, base: Base<'_>) -> Result<Option<Value>, Problem> {
    let inline = section.take("openpaiConfig");
    let file = section.unrecorded_string("openpaiConfigFile")?;
    let (name, job) = match (inline, file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(section.given_besides("openpaiConfigFile", "openpaiConfig"));
        }
        (Some(job), None) => ("openpaiConfig", job),
        (None, Some(file)) => ("openpaiConfigFile", read(section, &resolve(&file, base))?),
    };
    if let Some(problem) = fault_of_job(&job) {
        return Err(section.fault(name, problem));
    }
    section.record("openpaiConfig", &job);
    Ok(Some(job))
}

fn read(section: &Section, file: &Path) -> Result<Value, Problem> {
    let fault = |problem: String| {
        section.fault("openpaiConfigFile", format!("{}: {problem}", file.display()))
    };
    let bytes = std::fs::read(file).map_err(|error| fault(format!("cannot be read: {error}")))?;
    document::parse(&bytes).map_err(fault)
}

/// Returns the reason why a job cannot run trials. `OpenPAI` checks the rest.
fn fault_of_job(job: &Value) -> Option<String> {
    if !job.is_object() {
        return Some(format!("expected a job of OpenPAI's protocol 2, found {}", kind(job)));
    }
    if job["protocolVersion"].as_str() != Some("2") && job["protocolVersion"] != 2 {
        return Some("needs `protocolVersion: 2`".to_owned());
    }
    let roles = job["taskRoles"].as_object();
    let Some((name, role)) = roles.and_then(|roles| roles.iter().next()) else {
        return Some("needs `taskRoles` with a role, whose command is the trial's".to_owned());
    };
    if !role.is_object() {
        return Some(format!("taskRoles.{name}: expected fields, found {}", kind(role)));
    }
    // A trial has one agent.
    let instances = &role["instances"];
    let is_one = instances.is_null() || *instances == 1;
    (!is_one).then(|| {
        let found = kind(instances);
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
fn sizes(section: &mut Section, in_job: bool) -> Result<(), Problem> {
    let cpus = section.integer("trialCpuNumber", 1)?;
    let memory = section.memory_mib("trialMemorySize")?;
    if !in_job {
        for (name, is_missing, example) in
            [("trialCpuNumber", cpus.is_none(), "4"), ("trialMemorySize", memory.is_none(), "8gb")]
        {
            if is_missing {
                return Err(section.fault(name, format!("is missing; for example {example}")));
            }
        }
    }
    Ok(())
}

/// Reads the storage that this machine and the containers share.
fn storage(section: &mut Section, base: Base<'_>) -> Result<(), Problem> {
    required(section, "storageConfigName", "a storage that OpenPAI lets you use")?;
    let local =
        required(section, "localStorageMountPoint", "the storage's folder on this machine")?;
    let inside = required(
        section,
        "containerStorageMountPoint",
        "the storage's folder in containers, such as /mnt/NAME",
    )?;
    if !inside.starts_with('/') {
        let problem = format!("expected an absolute path, found `{inside}`");
        return Err(section.fault("containerStorageMountPoint", problem));
    }
    section.record("localStorageMountPoint", resolve(&local, base).to_string_lossy());
    Ok(())
}
