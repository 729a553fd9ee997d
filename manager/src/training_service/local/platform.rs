//! The checks and the start of `platform: local`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::gpus::{self, GpuRequest, Gpus};
use super::{Local, Settings, clean};
use crate::config::{ExperimentSpec, LocalSpec};
use crate::training_service::TrainingService;
use crate::training_service::agent_arguments::AgentSettings;
use crate::training_service::agent_program;
use crate::training_service::platform::{
    BoxError, CheckContext, CheckedPlatform, CleanContext, Platform, StartContext,
};

#[async_trait]
impl Platform for LocalSpec {
    async fn check(&self, context: CheckContext<'_>) -> Result<Box<dyn CheckedPlatform>, BoxError> {
        let agent = agent_program::find(context.agent)?;
        let gpus = select_gpus(context.spec, self)?;
        Ok(Box::new(CheckedLocal { agent, gpus, section: self.clone() }))
    }

    fn success_message(&self) -> String {
        "this machine can run trials".to_owned()
    }

    async fn clean(&self, context: CleanContext<'_>) -> Result<(), BoxError> {
        Ok(clean::clean(context.dir).await?)
    }
}

/// This machine, with an agent program and the GPUs that the trials may use.
struct CheckedLocal {
    agent: PathBuf,
    gpus: Gpus,
    section: LocalSpec,
}

#[async_trait]
impl CheckedPlatform for CheckedLocal {
    async fn start(
        self: Box<Self>,
        context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError> {
        let StartContext { id, spec, dir, ca_file, secret, events, .. } = context;
        let archive = || dir.code_archive();
        let settings = Settings {
            agent: self.agent,
            experiment: id.clone(),
            code_archive: self.section.code_snapshot.then(archive),
            dir,
            code_directory: spec.trial_code_directory.clone(),
            agents: AgentSettings::of(spec),
            ca_file,
            secret_variables: spec.secret_variables(),
            secret,
            events,
        };
        Ok(Arc::new(Local::new(settings, self.gpus)))
    }
}

/// Distributes this machine's GPUs as the experiment requires. Lists them only if trials use any.
fn select_gpus(spec: &ExperimentSpec, section: &LocalSpec) -> Result<Gpus, gpus::Error> {
    let wanted = GpuRequest {
        per_trial: spec.trial_gpu_number,
        trials_per_gpu: section.max_trial_number_per_gpu,
        indices: section.gpu_indices.clone(),
        includes_active: section.use_active_gpu.unwrap_or(true),
    };
    let machine = match spec.trial_gpu_number {
        None | Some(0) => Vec::new(),
        Some(_) => gpus::list_gpus(),
    };
    Gpus::new(&wanted, &machine)
}
