//! The fields that a platform's section inherits from the top level, and the common result of reading a section.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::super::path_base::PathBase;
use super::super::secret_file::SecretFile;
use super::super::section::{InheritableFields, Problem, Section};
use super::super::{HybridPart, TrainingServiceSpec};

/// The common interface of the sections of all services. The defaults are those of a service whose trials run on other
/// machines, with a copy of the code.
pub trait ServiceSection {
    /// Returns the address at which trials reach the manager. `None`: the section names none.
    fn advertise(&self) -> Option<&str> {
        None
    }

    /// Returns whether trials run a copy of the code that the manager makes at the start of the search.
    fn needs_code(&self) -> bool {
        true
    }

    /// Returns whether trials run on this machine, with its files and packages.
    fn is_local(&self) -> bool {
        false
    }

    /// Returns whether all or some trials run on other machines.
    fn has_remote_trials(&self) -> bool {
        !self.is_local()
    }

    /// Returns the greatest number of a trial's concurrent pods, each with its own agent.
    fn pods_of_trial(&self) -> u64 {
        1
    }

    /// Returns the services among which the section distributes trials. Only a hybrid service has them.
    fn parts(&self) -> &[HybridPart] {
        &[]
    }

    /// Applies `codeSnapshot` from the file's top level.
    ///
    /// # Errors
    ///
    /// The service does not support the value. The text is the reason, and follows the field's name in the message.
    fn set_code_snapshot(&mut self, wanted: bool) -> Result<(), &'static str> {
        if wanted == self.needs_code() { Ok(()) } else { Err(SNAPSHOT_IS_REQUIRED) }
    }

    /// Replaces the secrets of the section, whose canonical form is `canonical`, by files in `folder`. Returns the
    /// files, which the caller must write.
    fn take_secrets(&mut self, _folder: &Path, _canonical: &mut Value) -> Vec<SecretFile> {
        Vec::new()
    }

    /// Reduces the time limit for a trial's start to `limit`.
    fn limit_start_up(&mut self, _limit: Duration) {}
}

/// The error for `codeSnapshot: false` of a service whose trials run elsewhere.
pub(in crate::config) const SNAPSHOT_IS_REQUIRED: &str = "is false, but trials on other machines always run a copy that is made when the search starts; leave it out";

/// A section `trainingService` with its inherited fields.
pub(in crate::config) struct Service {
    pub(in crate::config) spec: TrainingServiceSpec,
    /// The trial's command.
    pub(in crate::config) command: String,
    /// Every command, including the trial's, and the field that holds it.
    pub(in crate::config) commands: Vec<(String, String)>,
    pub(in crate::config) code: PathBuf,
    pub(in crate::config) gpus: Option<u32>,
    pub(in crate::config) canonical: Value,
}

/// The fields that every platform's section may have, in the order of the canonical form.
pub(in crate::config) const INHERITED_FIELDS: [&str; 6] =
    ["platform", "trialCommand", "trialCodeDirectory", "trialGpuNumber", "nniManagerIp", "debug"];

/// The fields of the experiment file's top level that a platform's section inherits.
#[derive(Clone, Copy)]
pub(in crate::config) struct TopLevel<'a> {
    pub(in crate::config) fields: &'a InheritableFields,
    /// The code directory.
    pub(in crate::config) code: &'a Path,
    pub(in crate::config) base: PathBase<'a>,
}

/// The values of the fields that every platform's section may have, or else those of the top level.
pub(in crate::config) struct ServiceFields {
    /// The command and the field that holds it.
    pub(in crate::config) command: Option<(String, String)>,
    pub(in crate::config) code: PathBuf,
    pub(in crate::config) gpus: Option<u32>,
    /// `nniManagerIp`.
    pub(in crate::config) ip: Option<String>,
}

impl ServiceFields {
    /// Opens the section of a platform, whose further fields are `own`, and reads the fields that it inherits.
    pub(in crate::config) fn open(
        platform: &str,
        value: Value,
        own: &[&'static str],
        top: TopLevel<'_>,
    ) -> Result<(Section, Self), Problem> {
        Self::open_ordered(platform, value, &[&INHERITED_FIELDS[..], own].concat(), top)
    }

    /// Opens the section of a platform, whose fields have this order in the canonical form.
    pub(in crate::config) fn open_ordered(
        platform: &str,
        value: Value,
        fields: &[&'static str],
        top: TopLevel<'_>,
    ) -> Result<(Section, Self), Problem> {
        let mut section = Section::open("trainingService", value, fields)?;
        section.record("platform", platform);
        let inherited = Self::read(&mut section, top)?;
        Ok((section, inherited))
    }

    /// Reads the fields of a platform's section, and records the inherited values.
    fn read(section: &mut Section, top: TopLevel<'_>) -> Result<Self, Problem> {
        let TopLevel { fields: shared, code: shared_code, base } = top;
        let own = InheritableFields::read(section, base)?;
        let owner = |is_own: bool, name: &str| {
            if is_own { section.field_path(name) } else { name.to_owned() }
        };
        let command_path = owner(own.command.is_some(), "trialCommand");
        let code_path = owner(own.code.is_some(), "trialCodeDirectory");
        let command = own.command.clone().or_else(|| shared.command.clone());
        let code = own.code.clone().unwrap_or_else(|| shared_code.to_owned());
        if base.is_folder_missing(&code) {
            let found = if code.exists() { "is not a directory" } else { "does not exist" };
            return Err(Problem::new(code_path, format!("{} {found}", code.display())));
        }
        let gpus = own.gpus.or(shared.gpus);
        let ip = own.ip.or_else(|| shared.ip.clone());
        section.record("trialCommand", &command);
        section.record("trialCodeDirectory", code.to_string_lossy());
        section.record("trialGpuNumber", gpus);
        section.record("nniManagerIp", &ip);
        section.record("debug", own.debug.or(shared.debug).unwrap_or(false));
        Ok(Self { command: command.map(|command| (command_path, command)), code, gpus, ip })
    }

    /// Returns the fields of a section whose only command is the trial's.
    pub(in crate::config) fn into_trial_fields(self) -> Result<TrialFields, Problem> {
        let Self { command, code, gpus, ip } = self;
        let (command_path, command) = command.ok_or_else(missing_command)?;
        Ok(TrialFields { command_path, command, code, gpus, advertise: ip })
    }
}

/// The inherited fields of a section whose only command is the trial's.
pub(in crate::config) struct TrialFields {
    /// The field that holds the command.
    command_path: String,
    command: String,
    code: PathBuf,
    pub(in crate::config) gpus: Option<u32>,
    /// The address at which trials reach the manager.
    pub(in crate::config) advertise: Option<String>,
}

impl TrialFields {
    pub(in crate::config) fn command(&self) -> &str {
        &self.command
    }

    /// Returns the service of a section that has been read.
    pub(in crate::config) fn into_service(
        self,
        spec: TrainingServiceSpec,
        section: Section,
    ) -> Service {
        Service {
            spec,
            commands: vec![(self.command_path, self.command.clone())],
            command: self.command,
            code: self.code,
            gpus: self.gpus,
            canonical: Value::Object(section.into_canonical()),
        }
    }
}

/// The fields that say which GPUs of a machine trials use.
pub(in crate::config) struct GpuFields {
    /// `useActiveGpu`.
    pub(in crate::config) use_active: Option<bool>,
    /// `maxTrialNumberPerGpu`, at least 1.
    pub(in crate::config) max_trials_per_gpu: u64,
    /// `gpuIndices`.
    pub(in crate::config) indices: Option<Vec<u64>>,
}

impl GpuFields {
    /// Reads the fields for trials with this number of GPUs.
    pub(in crate::config) fn read(
        section: &mut Section,
        gpus: Option<u32>,
    ) -> Result<Self, Problem> {
        let use_active = section.boolean("useActiveGpu")?;
        let max_trials_per_gpu = section.integer_or("maxTrialNumberPerGpu", 1, 1)?;
        if max_trials_per_gpu != 1 && gpus.unwrap_or(0) == 0 {
            let problem = format!(
                "{max_trials_per_gpu} has no meaning unless `trialGpuNumber` is above 0; remove it"
            );
            return Err(section.problem("maxTrialNumberPerGpu", problem));
        }
        Ok(Self { use_active, max_trials_per_gpu, indices: section.indices("gpuIndices")? })
    }
}

/// Returns the problem of a file without any command.
pub(in crate::config) fn missing_command() -> Problem {
    Problem::new("trialCommand", "is missing; for example: python3 trial.py")
}
