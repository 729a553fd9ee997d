//! The section `trainingService`. This module finds the platform, and the platform's module reads the fields.

use serde_json::Value;

use super::document::describe_kind;
use super::kubernetes;
use super::kubernetes::WorkloadKind;
use super::section::{Problem, Section};
use super::services::inherited::{Service, TopLevel};
use super::services::{hybrid, local, openpai, plugin, remote};
use crate::util::nearest::normalize_name;

/// Platforms of NNI that are not supported.
const OTHER_PLATFORMS: [&str; 6] = ["aml", "dlc", "adl", "dlts", "paiYarn", HYBRID_PLATFORM];
/// NNI's name for an experiment on several platforms.
pub(super) const HYBRID_PLATFORM: &str = "hybrid";

/// Reads the section `trainingService`.
pub(super) fn read_service(file: &mut Section, top: TopLevel<'_>) -> Result<Service, Problem> {
    let path = "trainingService";
    let service = match file.take(path) {
        None => return Err(file.problem(path, "is missing; for example {platform: local}")),
        Some(Value::Array(parts)) => {
            // An unknown platform is more important than a mistake in the section of another one.
            for (i, part) in parts.iter().enumerate() {
                find_reader(&format!("{path}[{i}]"), part)?;
            }
            hybrid::read_sections(parts, |part| find_reader(path, &part)?(part, top))?
        }
        Some(value) => find_reader(path, &value)?(value, top)?,
    };
    file.record(path, &service.canonical);
    Ok(service)
}

/// Reads the section of one platform.
type SectionReader = fn(Value, TopLevel<'_>) -> Result<Service, Problem>;

/// The platforms of this build by their names in the experiment file, with the readers of their sections.
const PLATFORMS: [(&str, SectionReader); 8] = [
    ("local", local::read_section),
    ("remote", remote::read_section),
    ("plugin", plugin::read_section),
    ("openpai", openpai::read_section),
    (WorkloadKind::Job.platform(), |value, top| {
        kubernetes::read_section(WorkloadKind::Job, value, top)
    }),
    (WorkloadKind::TfJob.platform(), kubernetes::read_kubeflow_section),
    (WorkloadKind::TrainJob.platform(), |value, top| {
        kubernetes::read_section(WorkloadKind::TrainJob, value, top)
    }),
    (WorkloadKind::Framework.platform(), |value, top| {
        kubernetes::read_section(WorkloadKind::Framework, value, top)
    }),
];
/// NNI's older name of `openpai`.
const OLDER_OPENPAI_PLATFORM: &str = "pai";

/// Finds the reader of the platform that the section at `path` requests.
fn find_reader(path: &str, service: &Value) -> Result<SectionReader, Problem> {
    let Some(members) = service.as_object() else {
        return Ok(local::read_section); // Not an object: reported when the section is opened.
    };
    let field = members.iter().find(|(key, _)| normalize_name(key) == "platform");
    check_platform(&format!("{path}.platform"), field.map(|(_, value)| value))
}

/// Checks that this build has the platform with this name, which is at `path`, and returns the reader of its section. An
/// error lists the platforms of this build.
pub(super) fn check_platform(path: &str, name: Option<&Value>) -> Result<SectionReader, Problem> {
    let has = platform_list();
    let problem = match name {
        Some(Value::String(name)) => {
            let current = if name == OLDER_OPENPAI_PLATFORM { "openpai" } else { name };
            if let Some((_, reader)) = PLATFORMS.iter().find(|(known, _)| *known == current) {
                return Ok(*reader);
            }
            if name == HYBRID_PLATFORM {
                let example = "such as [{platform: local}, {platform: remote, machineList: […]}]";
                format!("`{name}` is not a platform; list several platforms, {example}")
            } else if OTHER_PLATFORMS.contains(&name.as_str()) {
                format!(
                    "`{name}` is not supported; the platforms are {has}, and a plugin connects any other system"
                )
            } else {
                let platforms = PLATFORMS.iter().map(|(name, _)| *name).chain(OTHER_PLATFORMS);
                let advice = match crate::util::nearest::nearest(name, platforms) {
                    Some(near) => format!("did you mean `{near}`? This build has {has}"),
                    None => format!("allowed: {has}"),
                };
                format!("`{name}` is not a platform; {advice}")
            }
        }
        Some(other) if !other.is_null() => {
            format!("expected a string, found {}", describe_kind(other))
        }
        _ => format!("is missing; allowed: {has}"),
    };
    Err(Problem::new(path, problem))
}

/// Returns the names of all platforms, as a phrase.
fn platform_list() -> String {
    let names: Vec<&str> = PLATFORMS.iter().map(|(name, _)| *name).collect();
    let (last, others) = names.split_last().expect("there are platforms");
    format!("{} and {last}", others.join(", "))
}
