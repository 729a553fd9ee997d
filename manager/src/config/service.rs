//! The section `trainingService`. This module finds the platform, and the platform's module reads the fields.

use serde_json::Value;

use super::document::describe_kind;
use super::kubernetes;
use super::kubernetes::WorkloadKind;
use super::section::{Problem, Section};
use super::services::inherited::{Service, TopLevel};
use super::services::{hybrid, local, openpai, plugin, remote};
use crate::util::nearest::folded;

/// Platforms that NNI knows and this build does not support.
const OTHER_PLATFORMS: [&str; 5] = ["aml", "dlc", "adl", "dlts", HYBRID_PLATFORM];
/// NNI's name for an experiment on several platforms.
pub(super) const HYBRID_PLATFORM: &str = "hybrid";

/// Reads the section `trainingService`.
pub(super) fn read_service(file: &mut Section, top: TopLevel<'_>) -> Result<Service, Problem> {
    let path = "trainingService";
    let service = match file.take(path) {
        None => return Err(file.problem(path, "is missing; for example {platform: local}")),
        Some(Value::Array(parts)) => hybrid::read_sections(parts, |part| read_section(part, top))?,
        Some(value) => read_section(value, top)?,
    };
    file.record(path, &service.canonical);
    Ok(service)
}

/// Reads one section.
fn read_section(value: Value, top: TopLevel<'_>) -> Result<Service, Problem> {
    match find_platform(&value)? {
        Platform::Local => local::read_section(value, top),
        Platform::Remote => remote::read_section(value, top),
        Platform::Plugin => plugin::read_section(value, top),
        Platform::OpenPai => openpai::read_section(value, top),
        Platform::Kubernetes(kind) => kubernetes::read_section(kind, value, top),
        Platform::Kubeflow => kubernetes::read_kubeflow_section(value, top),
    }
}

/// The platforms of this build.
#[derive(Debug, Clone, Copy)]
pub(super) enum Platform {
    /// Trials run on this machine.
    Local,
    /// Trials run on machines that are reached over SSH.
    Remote,
    /// Trials run through the user's own program.
    Plugin,
    /// Trials run on `OpenPAI`.
    OpenPai,
    /// Trials run on Kubernetes, as objects of this kind.
    Kubernetes(WorkloadKind),
    /// Trials run on Kubernetes, as objects of the training operator. The section names the kind.
    Kubeflow,
}

/// The platforms by their names in the experiment file.
const PLATFORMS: [(&str, Platform); 8] = [
    ("local", Platform::Local),
    ("remote", Platform::Remote),
    ("plugin", Platform::Plugin),
    ("openpai", Platform::OpenPai),
    (WorkloadKind::Job.platform(), Platform::Kubernetes(WorkloadKind::Job)),
    (WorkloadKind::TfJob.platform(), Platform::Kubeflow),
    (WorkloadKind::TrainJob.platform(), Platform::Kubernetes(WorkloadKind::TrainJob)),
    (WorkloadKind::Framework.platform(), Platform::Kubernetes(WorkloadKind::Framework)),
];
/// NNI's older name of `openpai`.
const OLDER_OPENPAI_PLATFORM: &str = "pai";

/// Finds the requested platform, before its fields are read.
fn find_platform(service: &Value) -> Result<Platform, Problem> {
    let Some(members) = service.as_object() else {
        return Ok(Platform::Local); // Not an object: reported when the section is opened.
    };
    let field = members.iter().find(|(key, _)| folded(key) == "platform");
    check_platform("trainingService.platform", field.map(|(_, value)| value))
}

/// Finds the platform with this name, which is at `path`. An error lists the platforms of this build.
pub(super) fn check_platform(path: &str, name: Option<&Value>) -> Result<Platform, Problem> {
    let has = platform_list();
    let problem = match name {
        Some(Value::String(name)) => {
            let current = if name == OLDER_OPENPAI_PLATFORM { "openpai" } else { name };
            if let Some((_, platform)) = PLATFORMS.iter().find(|(known, _)| *known == current) {
                return Ok(*platform);
            }
            if name == HYBRID_PLATFORM {
                let example = "such as [{platform: local}, {platform: remote, machineList: […]}]";
                format!("`{name}` is not a platform; list several platforms, {example}")
            } else if OTHER_PLATFORMS.contains(&name.as_str()) {
                format!("`{name}` is not available in this build, which has {has}")
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
