//! `platform: remote` before its trials start. The machines are asked when the search has begun.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Error as RemoteError, Remote, Settings};
use crate::config::{MachineSpec, RemoteSpec};
use crate::training_service::TrainingService;
use crate::training_service::agent_program;
use crate::training_service::platform::{
    BoxError, CheckContext, CheckedPlatform, Platform, StartContext,
};

/// The reason that the service cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("the connections to the machines cannot be prepared")]
struct StartError(#[from] RemoteError);

#[async_trait]
impl Platform for RemoteSpec {
    async fn check(&self, context: CheckContext<'_>) -> Result<Box<dyn CheckedPlatform>, BoxError> {
        let agent = agent_program::find(context.agent)?;
        Ok(Box::new(CheckedRemote { agent, machines: self.machines.clone() }))
    }

    fn describe(&self) -> String {
        "there is an agent for the machines; they are asked when the search begins".to_owned()
    }
}

/// Machines, with an agent program to copy there.
struct CheckedRemote {
    agent: PathBuf,
    machines: Vec<MachineSpec>,
}

#[async_trait]
impl CheckedPlatform for CheckedRemote {
    async fn start(
        self: Box<Self>,
        context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError> {
        let StartContext { id, spec, dir, ca_file, url, secret, events } = context;
        let settings = Settings {
            agent: self.agent,
            experiment: id.clone(),
            dir,
            machines: self.machines,
            gpus_each: spec.trial_gpu_number,
            objective: spec.objective.clone(),
            ca_file,
            url,
            secret,
            events,
        };
        Ok(Arc::new(Remote::start(settings).map_err(StartError)?))
    }
}
