//! The platform `plugin` before its trials start.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tracing::{info, warn};

use super::{Identity, Plugin, Settings, clean_up, probe};
use crate::config::{ExperimentSpec, PluginSpec};
use crate::training_service::TrainingService;
use crate::training_service::agent_arguments::AgentSettings;
use crate::training_service::agent_program;
use crate::training_service::platform::{
    BoxError, CheckContext, CheckedPlatform, CleanContext, Finding, Platform, StartContext,
    UnavailableError,
};
use crate::util::errors::error_chain;

#[async_trait]
impl Platform for PluginSpec {
    async fn check(&self, context: CheckContext<'_>) -> Result<Box<dyn CheckedPlatform>, BoxError> {
        let agent = agent_program::find(context.agent)?;
        if context.is_new {
            let secrets = context.spec.secret_variables();
            let (gpus, code) = (context.spec.trial_gpu_number, &context.spec.trial_code_directory);
            let plugin = probe(self, gpus, code, secrets).await.map_err(|error| {
                if error.is_temporary() {
                    UnavailableError(error.into()).into()
                } else {
                    BoxError::from(error)
                }
            })?;
            info!("trials run at the plugin {}", plugin.name);
        }
        Ok(Box::new(CheckedPlugin { agent, section: self.clone() }))
    }

    async fn examine(&self, spec: &ExperimentSpec) -> Vec<Finding> {
        let (gpus, code) = (spec.trial_gpu_number, &spec.trial_code_directory);
        let probed = probe(self, gpus, code, spec.secret_variables()).await;
        let found = probed.map(|Identity { name, free }| {
            let jobs = |free| if free == 1 { "1 job".to_owned() } else { format!("{free} jobs") };
            Some(format!("the plugin {name} has room for {} now", jobs(free?)))
        });
        found
            .map_err(|error| error_chain(&error))
            .transpose()
            .map(|found| Finding { found })
            .into_iter()
            .collect()
    }

    fn success_message(&self) -> String {
        "the plugin answers and accepts its settings".to_owned()
    }

    async fn clean(&self, context: CleanContext<'_>) -> Result<(), BoxError> {
        let CleanContext { id, spec, dir } = context;
        let (code, secrets) = (&spec.trial_code_directory, spec.secret_variables());
        for left in clean_up(self, code, secrets, id, dir).await? {
            warn!("the plugin could not remove {left}");
        }
        Ok(())
    }
}

/// A plugin that has answered, and the agent program for it.
struct CheckedPlugin {
    agent: PathBuf,
    section: PluginSpec,
}

#[async_trait]
impl CheckedPlatform for CheckedPlugin {
    fn api_server(&self) -> Option<&str> {
        self.section.api_server.as_deref()
    }

    async fn start(
        self: Box<Self>,
        context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError> {
        let StartContext { id, spec, dir, ca_file, url, secret, events } = context;
        let settings = Settings {
            spec: self.section,
            code_directory: spec.trial_code_directory.clone(),
            experiment: id.clone(),
            name: spec.name.clone(),
            dir,
            agent: self.agent,
            gpus_each: spec.trial_gpu_number,
            agents: AgentSettings::of(spec),
            ca_file,
            url,
            secret_variables: spec.secret_variables(),
            secret,
            events,
        };
        Ok(Arc::new(Plugin::start(settings)?))
    }
}
