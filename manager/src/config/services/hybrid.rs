//! The list form of `trainingService`: several training services in one experiment, as in NNI's hybrid mode.
//!
//! Each part is a complete section, and may limit its concurrent trials. Trials are the same on every part. The parts
//! share the command and the code, and if one of them runs copies of the code, all do.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::super::TrainingServiceSpec;
use super::super::secret_file::SecretFile;
use super::super::section::Problem;
use super::inherited::{SNAPSHOT_IS_REQUIRED, Service, ServiceSection};
use crate::util::nearest::normalize_name;

/// The field of a part that limits its trials.
const PART_LIMIT_FIELD: &str = "trialConcurrency";

/// Several training services.
#[derive(Debug, Clone, PartialEq)]
pub struct HybridSpec {
    /// The parts in the order of the file, at least one.
    pub parts: Vec<HybridPart>,
}

/// One of several training services.
#[derive(Debug, Clone, PartialEq)]
pub struct HybridPart {
    /// The `platform` of the part.
    pub platform: String,
    /// The section of the part.
    pub spec: TrainingServiceSpec,
    /// The `trialGpuNumber` of its trials.
    pub gpus: Option<u32>,
    /// The `trialConcurrency` of the part, at least 1. `None`: only the experiment's limit applies.
    pub limit: Option<usize>,
}

impl HybridSpec {
    fn sections(&self) -> impl Iterator<Item = &dyn ServiceSection> {
        self.parts.iter().map(|part| part.spec.section())
    }

    /// Sets whether trials on this machine run copies of the code.
    fn set_local_snapshot(&mut self, wanted: bool) -> Result<(), &'static str> {
        let sections = self.parts.iter_mut().map(|part| part.spec.section_mut());
        let mut local = sections.filter(|section| section.is_local());
        local.try_for_each(|section| section.set_code_snapshot(wanted))
    }

    fn has_code_to_ship(&self) -> bool {
        self.sections().any(|section| !section.is_local() && section.needs_code())
    }
}

impl ServiceSection for HybridSpec {
    fn advertise(&self) -> Option<&str> {
        self.sections().find_map(ServiceSection::advertise)
    }

    fn needs_code(&self) -> bool {
        self.sections().any(ServiceSection::needs_code)
    }

    fn is_local(&self) -> bool {
        self.sections().any(ServiceSection::is_local)
    }

    fn has_remote_trials(&self) -> bool {
        self.sections().any(ServiceSection::has_remote_trials)
    }

    fn pods_of_trial(&self) -> u64 {
        self.sections().map(ServiceSection::pods_of_trial).max().unwrap_or(1)
    }

    fn parts(&self) -> &[HybridPart] {
        &self.parts
    }

    fn set_code_snapshot(&mut self, wanted: bool) -> Result<(), &'static str> {
        if !wanted && self.has_code_to_ship() {
            return Err(SNAPSHOT_IS_REQUIRED);
        }
        self.set_local_snapshot(wanted)
    }

    fn take_secrets(&mut self, folder: &Path, canonical: &mut Value) -> Vec<SecretFile> {
        let mut taken = Vec::new();
        for (number, part) in self.parts.iter_mut().enumerate() {
            let (folder, canonical) = (folder.join(number.to_string()), &mut canonical[number]);
            taken.extend(part.spec.section_mut().take_secrets(&folder, canonical));
        }
        taken
    }

    fn limit_start_up(&mut self, limit: Duration) {
        for part in &mut self.parts {
            part.spec.section_mut().limit_start_up(limit);
        }
    }
}

/// Reads the list. `read` reads one section.
pub(in crate::config) fn read_sections(
    parts: Vec<Value>,
    read: impl Fn(Value) -> Result<Service, Problem>,
) -> Result<Service, Problem> {
    let mut services = Vec::new();
    for (number, mut value) in parts.into_iter().enumerate() {
        let limit = take_limit(&mut value, number)?;
        let platform = platform_name(&value);
        let service = read(value).map_err(|problem| number_problem(problem, number))?;
        services.push((limit, platform, service));
    }
    let Some((_, _, first)) = services.first() else {
        return Err(Problem::new(
            "trainingService",
            "is an empty list; name at least one service, such as [{platform: local}]",
        ));
    };
    let (command, code, gpus) = (first.command.clone(), first.code.clone(), first.gpus);
    check_parts_are_alike(&services)?;
    let (mut commands, mut canonical, mut spec) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (limit, platform, service)) in services.into_iter().enumerate() {
        let own = service.commands.into_iter();
        commands.extend(own.map(|(path, command)| (number_path(&path, number), command)));
        let mut written = service.canonical;
        if let (Some(limit), Some(members)) = (limit, written.as_object_mut()) {
            members.insert(PART_LIMIT_FIELD.to_owned(), limit.into());
        }
        canonical.push(written);
        spec.push(HybridPart { platform, spec: service.spec, gpus: service.gpus, limit });
    }
    let mut spec = HybridSpec { parts: spec };
    if spec.has_code_to_ship() {
        let set = spec.set_local_snapshot(true);
        set.map_err(|problem| Problem::new("trainingService", problem))?;
    }
    Ok(Service {
        spec: TrainingServiceSpec::Hybrid(spec),
        command,
        commands,
        code,
        gpus,
        canonical: Value::Array(canonical),
    })
}

/// Removes the limit of the part's trials from its section.
fn take_limit(value: &mut Value, number: usize) -> Result<Option<usize>, Problem> {
    let Some(members) = value.as_object_mut() else { return Ok(None) };
    let key =
        members.keys().find(|key| normalize_name(key) == normalize_name(PART_LIMIT_FIELD)).cloned();
    let limit = key.and_then(|key| members.remove(&key)).filter(|limit| !limit.is_null());
    let Some(limit) = limit else { return Ok(None) };
    let number_of = limit.as_u64().and_then(|limit| usize::try_from(limit).ok());
    number_of.filter(|limit| *limit >= 1).map(Some).ok_or_else(|| {
        let path = number_path(&format!("trainingService.{PART_LIMIT_FIELD}"), number);
        Problem::new(path, format!("expected a whole number of at least 1, found {limit}"))
    })
}

/// Returns the platform as written. The reader of the section checks whether it exists.
fn platform_name(value: &Value) -> String {
    let mut members = value.as_object().into_iter().flatten();
    let platform = members.find(|(key, _)| normalize_name(key) == "platform");
    platform.and_then(|(_, name)| name.as_str()).unwrap_or_default().to_owned()
}

/// Refuses parts whose trials would differ. Also refuses two parts on Kubernetes, which would mistake each other's jobs
/// for their own.
fn check_parts_are_alike(services: &[(Option<usize>, String, Service)]) -> Result<(), Problem> {
    let mut kubernetes = None;
    for (number, (_, _, service)) in services.iter().enumerate() {
        let (_, _, first) = &services[0];
        let at = |name: &str| number_path(&format!("trainingService.{name}"), number);
        if service.command != first.command {
            let problem = "differs from that of trainingService[0]; trials of one search run the same command";
            return Err(Problem::new(at("trialCommand"), problem));
        }
        if service.code != first.code {
            let problem =
                "differs from that of trainingService[0]; trials of one search run the same code";
            return Err(Problem::new(at("trialCodeDirectory"), problem));
        }
        if let TrainingServiceSpec::Kubernetes(_) = service.spec
            && let Some(other) = kubernetes.replace(number)
        {
            let problem = format!(
                "is on Kubernetes, as is trainingService[{other}]; at most one part may be"
            );
            return Err(Problem::new(at("platform"), problem));
        }
    }
    Ok(())
}

/// Returns the problem of a section in a list.
fn number_problem(problem: Problem, number: usize) -> Problem {
    let others = problem.others.into_iter().map(|other| number_problem(other, number)).collect();
    Problem { path: number_path(&problem.path, number), others, ..problem }
}

/// Returns the path of a field of the section at this position in the list.
fn number_path(path: &str, number: usize) -> String {
    match path.strip_prefix("trainingService") {
        Some(rest) if rest.is_empty() || rest.starts_with('.') => {
            format!("trainingService[{number}]{rest}")
        }
        Some(_) | None => path.to_owned(),
    }
}

/// Returns the name of a stored experiment's platform, which is NNI's `hybrid` if there are several.
pub fn stored_platform(canonical: &Value) -> &str {
    let service = &canonical["trainingService"];
    if service.is_array() { "hybrid" } else { service["platform"].as_str().unwrap_or_default() }
}
