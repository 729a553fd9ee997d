//! The fields of `platform: local`.

use serde_json::Value;

use super::super::section::Problem;
use super::super::{LocalSpec, TrainingServiceSpec};
use super::inherited::{GpuFields, Service, ServiceFields, ServiceSection, TopLevel};

/// The own fields of NNI 3.0's `LocalConfig`, in the order of the canonical form.
pub(in crate::config) const FIELDS: [&str; 4] =
    ["useActiveGpu", "maxTrialNumberPerGpu", "gpuIndices", "reuseMode"];

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
pub(in crate::config) fn read_section(value: Value, top: TopLevel<'_>) -> Result<Service, Problem> {
    let (mut local, inherited) = ServiceFields::open("local", value, &FIELDS, top)?;
    // Trials on this machine do not need the address.
    local.record("nniManagerIp", Value::Null);
    let trial = inherited.into_trial_fields()?;
    let gpus = GpuFields::read(&mut local, trial.gpus)?;
    local.boolean_or("reuseMode", false)?;
    if trial.gpus.is_some_and(|gpus| gpus > 0) && gpus.use_active.is_none() {
        let problem = "is missing, because `trialGpuNumber` is above 0; write true if trials may use a GPU that other processes (such as a desktop) use, otherwise false";
        return Err(local.problem("useActiveGpu", problem));
    }
    let spec = TrainingServiceSpec::Local(LocalSpec {
        use_active_gpu: gpus.use_active,
        max_trial_number_per_gpu: gpus.max_trials_per_gpu,
        gpu_indices: gpus.indices,
        code_snapshot: false,
    });
    Ok(trial.into_service(spec, local))
}
