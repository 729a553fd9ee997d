//! The checks and the start of `platform: remote`. The machines are not contacted until the search has begun.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::manager_tunnel::DirectAddress;
use super::ssh::Ssh;
use super::{Error as RemoteError, Remote, Settings};
use super::{clean, examine};
use crate::config::{ExperimentSpec, MachineSpec, RemoteSpec};
use crate::training_service::TrainingService;
use crate::training_service::agent_arguments::AgentSettings;
use crate::training_service::agent_program;
use crate::training_service::platform::{
    BoxError, CheckContext, CheckedPlatform, CleanContext, Finding, Platform, StartContext,
};
use crate::util::clock::{Clock as _, SystemClock};

/// A reason why the service cannot start.
#[derive(Debug, thiserror::Error)]
#[error("the connections to the machines cannot be prepared")]
struct StartError(#[from] RemoteError);

/// The SSH configuration of a machine is refused.
#[derive(Debug, thiserror::Error)]
#[error("the machine {name} cannot be used: {why}")]
struct ConfigurationError {
    name: String,
    why: String,
}

#[async_trait]
impl Platform for RemoteSpec {
    async fn check(&self, context: CheckContext<'_>) -> Result<Box<dyn CheckedPlatform>, BoxError> {
        let agent = agent_program::find(context.agent)?;
        for machine in self.machines.iter().filter(|_| context.is_new) {
            // No connection is opened, so no socket is created at this path.
            let ssh = Ssh::new(machine, Path::new(""), 0);
            let checked = ssh.check_configuration().await;
            let name = machine.name.clone();
            checked.map_err(|why| ConfigurationError { name, why })?;
        }
        Ok(Box::new(CheckedRemote {
            agent,
            machines: self.machines.clone(),
            max_absence: self.patience,
        }))
    }

    async fn examine(&self, spec: &ExperimentSpec) -> Vec<Finding> {
        let now_s = SystemClock.now_ms() / 1000;
        examine::examine(&self.machines, spec.trial_gpu_number, now_s).await
    }

    async fn clean(&self, context: CleanContext<'_>) -> Result<(), BoxError> {
        Ok(clean::clean(&self.machines, context.id, context.dir).await?)
    }

    fn success_message(&self) -> String {
        "an agent for the machines exists; they are contacted when the search begins".to_owned()
    }
}

/// Machines, with an agent program to copy there.
struct CheckedRemote {
    agent: PathBuf,
    machines: Vec<MachineSpec>,
    max_absence: Duration,
}

#[async_trait]
impl CheckedPlatform for CheckedRemote {
    async fn start(
        self: Box<Self>,
        context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError> {
        let StartContext { id, spec, dir, ca_file, url, secret, events } = context;
        let direct = DirectAddress::new_if_encrypted(url, ca_file.as_deref());
        let direct = direct.map_err(|source| {
            StartError(RemoteError::Read { path: ca_file.unwrap_or_default(), source })
        })?;
        let settings = Settings {
            agent: self.agent,
            experiment: id.clone(),
            dir,
            machines: self.machines,
            max_absence: self.max_absence,
            direct,
            gpus_each: spec.trial_gpu_number,
            agents: AgentSettings::of(spec),
            secret,
            events,
        };
        Ok(Arc::new(Remote::start(settings).map_err(StartError)?))
    }
}
