//! The fields of `platform: local`.

use std::path::Path;

use serde_json::Value;

use super::super::base::Base;
use super::super::section::{InheritableFields, Problem, Section};
use super::super::{LocalSpec, TrainingServiceSpec};
use super::inherited::{Inherited, Service, ServiceSection, no_command};

/// The fields of NNI 3.0's `LocalConfig`, in the order of the canonical form.
pub(in crate::config) const FIELDS: [&str; 10] = [
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

/// Reads the section of `platform: local`.
pub(in crate::config) fn section(
    value: Value,
    shared: &InheritableFields,
    shared_code: &Path,
    base: Base<'_>,
) -> Result<Service, Problem> {
    let mut local = Section::open("trainingService", value, &FIELDS)?;
    local.record("platform", "local");
    let Inherited { command, code, gpus, ip: _ } =
        Inherited::take(&mut local, shared, shared_code, base)?;
    // Trials on this machine do not need the address.
    local.record("nniManagerIp", Value::Null);
    let Some((command_path, command)) = command else { return Err(no_command()) };
    let use_active_gpu = local.boolean("useActiveGpu")?;
    let per_gpu = local.integer_or("maxTrialNumberPerGpu", 1, 1)?;
    let gpu_indices = local.indices("gpuIndices")?;
    local.boolean_or("reuseMode", false)?;
    let with_gpus = gpus.is_some_and(|gpus| gpus > 0);
    if with_gpus && use_active_gpu.is_none() {
        let problem = "must be set if `trialGpuNumber` is: true if trials may use a GPU that other processes (such as a desktop) use, too";
        return Err(local.fault("useActiveGpu", problem));
    }
    if !with_gpus && per_gpu != 1 {
        let problem = format!("{per_gpu} has no meaning without `trialGpuNumber`");
        return Err(local.fault("maxTrialNumberPerGpu", problem));
    }
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
        canonical: Value::Object(local.into_canonical()),
    })
}
