//! The section `trainingService`: which platform, what it inherits from the top level, and the fields of
//! `local`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::check::{Canonical, Shared};
use super::kubernetes::WorkloadKind;
use super::section::{Problem, Section, kind};
use super::{LocalSpec, TrainingServiceSpec, kubernetes, plugin, remote};
use crate::util::nearest::folded;

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

/// Platforms that NNI knows and this build does not.
const OTHER_PLATFORMS: [&str; 7] = ["openpai", "pai", "aml", "dlc", "adl", "dlts", "hybrid"];

/// The facts that other parts of the manager read from a section, whichever service it is for. The defaults are those
/// of a service whose trials run on other machines, with a copy of the code.
pub trait ServiceSection {
    /// Returns the address under which trials are to reach the manager. `None`: the section names none.
    fn advertise(&self) -> Option<&str> {
        None
    }

    /// Returns whether trials run a copy of the code that the manager makes when the search starts.
    fn needs_code(&self) -> bool {
        true
    }

    /// Returns whether trials run on this machine: in its files, with its packages.
    fn is_local(&self) -> bool {
        false
    }

    /// Takes `codeSnapshot` over, which stands at the file's top level.
    ///
    /// # Errors
    ///
    /// The service cannot do it; the text says why, and continues the field's name.
    fn set_code_snapshot(&mut self, wanted: bool) -> Result<(), &'static str> {
        if wanted == self.needs_code() { Ok(()) } else { Err(ALWAYS_COPIED) }
    }

    /// Lowers the time that a trial may take to start to `limit`.
    fn limit_start_up(&mut self, _limit: Duration) {}
}

/// The answer to `codeSnapshot: false` of a service whose trials run elsewhere.
pub(super) const ALWAYS_COPIED: &str = "is false, but trials elsewhere always run a copy that is made when the search starts; leave it out";

impl ServiceSection for LocalSpec {
    fn needs_code(&self) -> bool {
        self.code_snapshot
    }

    fn is_local(&self) -> bool {
        true
    }

    fn set_code_snapshot(&mut self, wanted: bool) -> Result<(), &'static str> {
        self.code_snapshot = wanted;
        Ok(())
    }
}

/// The section `trainingService`, with what it inherits.
pub(super) struct Service {
    pub(super) spec: TrainingServiceSpec,
    /// The trial's command.
    pub(super) command: String,
    /// Every command, the trial's among them, and the field where it stands.
    pub(super) commands: Vec<(String, String)>,
    pub(super) code: PathBuf,
    pub(super) gpus: Option<u32>,
    pub(super) canonical: Value,
}

/// The fields that every platform's section may have, and what they inherit where they are missing.
pub(super) struct Inherited {
    pub(super) own: Shared,
    /// The command and the field where it stands.
    pub(super) command: Option<(String, String)>,
    pub(super) code: PathBuf,
    pub(super) gpus: Option<u32>,
    pub(super) debug: bool,
}

impl Inherited {
    /// Takes the fields from a platform's section.
    pub(super) fn take(
        section: &mut Section,
        shared: &Shared,
        shared_code: &Path,
        base: &Path,
    ) -> Result<Self, Problem> {
        let own = Shared::take(section, base)?;
        let owner =
            |is_own: bool, name: &str| if is_own { section.at(name) } else { name.to_owned() };
        let command_path = owner(own.command.is_some(), "trialCommand");
        let code_path = owner(own.code.is_some(), "trialCodeDirectory");
        let command = own.command.clone().or_else(|| shared.command.clone());
        let code = own.code.clone().unwrap_or_else(|| shared_code.to_owned());
        if !code.is_dir() {
            let found = if code.exists() { "is no directory" } else { "does not exist" };
            return Err(Problem::new(code_path, format!("{} {found}", code.display())));
        }
        let gpus = own.gpus.or(shared.gpus);
        let debug = own.debug.or(shared.debug).unwrap_or(false);
        Ok(Self { command: command.map(|command| (command_path, command)), own, code, gpus, debug })
    }
}

/// Returns the problem of a file without any command.
pub(super) fn no_command() -> Problem {
    Problem::new("trialCommand", "is missing; for example: python3 trial.py")
}

/// Reads the section `trainingService`.
pub(super) fn service(
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
                "several training services at a time are not available in this build",
            ));
        }
        Some(value) => value,
    };
    match platform(&value)? {
        Platform::Local => local(value, shared, shared_code, base),
        Platform::Remote => remote::section(value, shared, shared_code, base),
        Platform::Plugin => plugin::section(value, shared, shared_code, base),
        Platform::Kubernetes(kind) => kubernetes::section(kind, value, shared, shared_code, base),
        Platform::Kubeflow => kubernetes::kubeflow(value, shared, shared_code, base),
    }
}

fn local(
    value: Value,
    shared: &Shared,
    shared_code: &Path,
    base: &Path,
) -> Result<Service, Problem> {
    let mut local = Section::open("trainingService", value, &LOCAL_FIELDS)?;
    local.take("platform");
    let Inherited { command, code, gpus, debug, .. } =
        Inherited::take(&mut local, shared, shared_code, base)?;
    let Some((command_path, command)) = command else { return Err(no_command()) };
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
    canonical.put("debug", debug);
    canonical.put("useActiveGpu", use_active_gpu);
    canonical.put("maxTrialNumberPerGpu", per_gpu);
    canonical.put("gpuIndices", &gpu_indices);
    canonical.put("reuseMode", reuse);
    Ok(Service {
        spec: TrainingServiceSpec::Local(LocalSpec {
            use_active_gpu,
            max_trial_number_per_gpu: per_gpu,
            gpu_indices,
            code_snapshot: false,
        }),
        commands: vec![(command_path, command.clone())],
        command,
        code,
        gpus,
        canonical: Value::Object(canonical.0),
    })
}

/// The platforms of this build.
#[derive(Debug, Clone, Copy)]
pub(super) enum Platform {
    /// This machine.
    Local,
    /// Machines that are reached over SSH.
    Remote,
    /// A program of the user's own.
    Plugin,
    /// Kubernetes, with objects of this kind.
    Kubernetes(WorkloadKind),
    /// Kubernetes, with objects of the training operator's; the section says of which kind.
    Kubeflow,
}

const PLATFORMS: [(&str, Platform); 6] = [
    ("local", Platform::Local),
    ("remote", Platform::Remote),
    ("plugin", Platform::Plugin),
    ("kubernetes", Platform::Kubernetes(WorkloadKind::Job)),
    ("frameworkcontroller", Platform::Kubernetes(WorkloadKind::Framework)),
    ("kubeflow", Platform::Kubeflow),
];

/// Which platform is wanted, before its fields are looked at.
fn platform(service: &Value) -> Result<Platform, Problem> {
    let Some(members) = service.as_object() else {
        return Ok(Platform::Local); // No object: said where it is opened.
    };
    let field = members.iter().find(|(key, _)| folded(key) == "platform");
    check_platform("trainingService.platform", field.map(|(_, value)| value))
}

/// Finds the platform of this name, which stands at `path`; an error says what this build has instead.
pub(super) fn check_platform(path: &str, name: Option<&Value>) -> Result<Platform, Problem> {
    let has = "local, remote, kubernetes, kubeflow and frameworkcontroller";
    let problem = match name {
        Some(Value::String(name)) => {
            if let Some((_, platform)) = PLATFORMS.iter().find(|(known, _)| known == name) {
                return Ok(*platform);
            }
            if OTHER_PLATFORMS.contains(&name.as_str()) {
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
        Some(other) if !other.is_null() => format!("expected a string, found {}", kind(other)),
        _ => format!("is missing; allowed: {has}"),
    };
    Err(Problem::new(path, problem))
}
