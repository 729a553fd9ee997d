//! Prepares the platforms on Kubernetes before their trials start. It checks the cluster and creates the objects that
//! all trials of an experiment share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use tracing::warn;
use trial_protocol::ExperimentId;

use super::client::{self, Access, Cluster, Resource, SECRETS, with_retries};
use super::manifest::cache::CachedFiles;
use super::preflight::Refusal;
use super::shared_disk::SharedDisk;
use super::workload::workload;
use super::{KubernetesService, Settings, azure_key, cleanup, manifest, preflight};
use crate::config::kubernetes::{AgentSource, KubernetesSpec, StorageSpec};
use crate::training_service::TrainingService;
use crate::training_service::agent_arguments::AgentSettings;
use crate::training_service::agent_program;
use crate::training_service::platform::{
    BoxError, CheckContext, CheckedPlatform, CleanContext, Platform, StartContext, UnavailableError,
};
use crate::util::digest::sha256_of_file;

/// A reason why the service cannot start.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// A file that the experiment names cannot be read.
    #[error("{field}: cannot read {}", .path.display())]
    Read { field: &'static str, path: PathBuf, source: std::io::Error },
    /// The key of the shared storage is not available.
    #[error("the storage account cannot be used")]
    StorageKey(#[from] azure_key::Error),
}

#[async_trait]
impl Platform for KubernetesSpec {
    async fn check(&self, context: CheckContext<'_>) -> Result<Box<dyn CheckedPlatform>, BoxError> {
        self.check_cluster(context).await.map_err(|error| {
            if is_temporary(&error) { UnavailableError(error).into() } else { error }
        })
    }

    fn success_message(&self) -> String {
        self.workload.success_message()
    }

    async fn clean(&self, context: CleanContext<'_>) -> Result<(), BoxError> {
        Ok(clean_cluster(&cluster_access(self), context.id).await?)
    }
}

/// Returns whether the cluster may be usable later without a change of the experiment file.
fn is_temporary(error: &BoxError) -> bool {
    let cause = match error.downcast_ref::<Refusal>() {
        Some(Refusal::Cluster(cause)) => Some(cause),
        Some(_) | None => error.downcast_ref::<client::Error>(),
    };
    cause.is_some_and(client::Error::is_temporary)
}

impl KubernetesSpec {
    async fn check_cluster(
        &self,
        context: CheckContext<'_>,
    ) -> Result<Box<dyn CheckedPlatform>, BoxError> {
        let cluster = Cluster::connect(&cluster_access(self)).await?;
        let kind = workload(self.workload);
        let outage = match preflight::check_cluster(&cluster, kind, self.queue.is_some()).await {
            // The agents of its trials wait for a manager that accepts their results.
            Err(Refusal::Cluster(error)) if !context.is_new && error.is_temporary() => {
                Some(report_outage(&error))
            }
            done => done.map(|()| None)?,
        };
        let mut notes = Vec::new();
        if context.is_new {
            if let Some(warning) = preflight::queue::check_queue(&cluster, self).await? {
                warn!("{warning}");
            }
            let workload_settings = workload_settings(context.id, self, &cluster);
            match preflight::check_workload(&cluster, kind, &workload_settings).await {
                // The cluster calls the webhook for trials, too, and they wait for it.
                Err(Refusal::Cluster(error)) if error.is_webhook_down() => {
                    warn!("{error}; trials wait until the webhook answers: does its pod run?");
                }
                done => notes = done?,
            }
        }
        let agent = match self.agent {
            AgentSource::Auto => Some(agent_for_any_image(context.agent)?),
            AgentSource::Image | AgentSource::Copy(_) | AgentSource::Volume(_) => None,
        };
        let is_new = context.is_new;
        let section = self.clone();
        Ok(Box::new(CheckedCluster { cluster, agent, section, is_new, outage, notes }))
    }
}

/// Deletes all objects of an experiment from a cluster.
///
/// # Errors
///
/// The cluster cannot be reached, or refuses the deletion.
pub async fn clean_cluster(access: &Access, id: &ExperimentId) -> Result<(), client::Error> {
    let cluster = Cluster::connect(access).await?;
    cleanup::clean_all(&cluster, id).await?;
    if !cleanup::wait_until_pods_gone(&cluster, id).await? {
        let namespace = cluster.namespace();
        warn!("pods of it are still ending: `kubectl -n {namespace} get pods` shows them");
    }
    Ok(())
}

/// Finds the agent program that pods fetch. Logs a warning if the program does not run in every image.
fn agent_for_any_image(chosen: Option<&Path>) -> Result<PathBuf, agent_program::Error> {
    let agent = agent_program::find(chosen)?;
    if let Some(why) = agent_program::image_problem(&agent) {
        warn!(
            "{} is the agent of pods whose image has no trialkeeper, and {why}: build a static agent (cargo static) \
             and name it with --agent, or set agentImage",
            agent.display()
        );
    }
    Ok(agent)
}

/// A cluster that can run trials, or that is out of reach for now.
struct CheckedCluster {
    cluster: Cluster,
    /// The agent program for pods whose image has none. `None`: every image has one.
    agent: Option<PathBuf>,
    section: KubernetesSpec,
    /// True for a new experiment.
    is_new: bool,
    /// The reason why the cluster is out of reach, if it is.
    outage: Option<String>,
    /// The harmless changes that the cluster makes to trials.
    notes: Vec<String>,
}

#[async_trait]
impl CheckedPlatform for CheckedCluster {
    fn api_server(&self) -> Option<&str> {
        Some(self.cluster.server())
    }

    fn agent_for_pods(&self) -> Option<&Path> {
        self.agent.as_deref()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn resolved_fields(&self) -> Value {
        // Without the record, a manager that resumes after `kubectl config use-context` would not find the trials, and
        // would start them again elsewhere.
        json!({"context": self.cluster.context(), "namespace": self.cluster.namespace()})
    }

    async fn start(
        self: Box<Self>,
        context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError> {
        let Self { cluster, section, agent, is_new, mut outage, .. } = *self;
        let ca_pem =
            context.ca_file.as_deref().map(|path| read_file("--ca-file", path)).transpose()?;
        let ca_pem = ca_pem.map(|pem| String::from_utf8_lossy(&pem).into_owned());
        let workload_settings = manifest::WorkloadSettings {
            agents: AgentSettings::of(context.spec),
            has_ca: ca_pem.is_some(),
            cached_files: cached_files(&section, agent, context.dir.code_archive()).await?,
            ..workload_settings(context.id, &section, &cluster)
        };
        let secrets = shared_secrets(&workload_settings, &context.url, ca_pem.as_deref()).await?;
        let mut shared: Vec<_> = secrets.into_iter().map(|secret| (SECRETS, secret)).collect();
        shared.extend(workload(section.workload).shared_objects(&workload_settings));
        if outage.is_none() {
            match write_objects(&cluster, &shared).await {
                Err(error) if !is_new && error.is_temporary() => {
                    outage = Some(report_outage(&error));
                }
                done => done?,
            }
        }
        let settings = Settings {
            cluster,
            workload_settings,
            shared_objects: shared,
            outage,
            events: context.events,
        };
        Ok(Arc::new(KubernetesService::start(settings)))
    }
}

/// Informs the user that the cluster is out of reach, and returns the reason.
fn report_outage(error: &client::Error) -> String {
    warn!(
        "{error}; the manager goes on without the cluster: agents can report, trials wait, and it tries again until the \
         cluster answers"
    );
    error.to_string()
}

/// Creates or updates objects.
async fn write_objects(
    cluster: &Cluster,
    objects: &[(Resource, Value)],
) -> Result<(), client::Error> {
    for (resource, object) in objects {
        with_retries(|| cluster.create_or_update(*resource, object)).await?;
    }
    Ok(())
}

/// Returns the digests of the files that pods look for in the cache, if there is one.
async fn cached_files(
    section: &KubernetesSpec,
    agent: Option<PathBuf>,
    code: PathBuf,
) -> Result<Option<CachedFiles>, Error> {
    if section.cache.is_none() {
        return Ok(None);
    }
    let code = section.storage.needs_code().then_some(code);
    let digest = async |field, path: Option<PathBuf>| {
        let Some(path) = path else { return Ok(None) };
        let file = path.clone();
        // In a blocking task, because hashing large code would block the executor.
        let task = tokio::task::spawn_blocking(move || sha256_of_file(&file)).await;
        let digest = task.unwrap_or_else(|lost| Err(std::io::Error::other(lost)));
        digest.map(Some).map_err(|source| Error::Read { field, path, source })
    };
    let agent = digest("--agent", agent).await?;
    Ok(Some(CachedFiles { agent, code: digest("trialCodeDirectory", code).await? }))
}

/// Returns the Secrets that all trials of an experiment share.
async fn shared_secrets(
    workload_settings: &manifest::WorkloadSettings,
    url: &str,
    ca_pem: Option<&str>,
) -> Result<Vec<Value>, Error> {
    let mut secrets = vec![manifest::experiment_secret(workload_settings, url, ca_pem)];
    if let StorageSpec::Azure { account, .. } = &workload_settings.spec.storage
        && let Some(key) = storage_key(&workload_settings.spec.storage).await?
    {
        secrets.push(manifest::storage_secret(workload_settings, account, &key.0));
    }
    for role in &workload_settings.spec.roles {
        if let Some(path) = &role.registry_auth {
            let document = read_file("privateRegistryAuthPath", path)?;
            secrets.push(manifest::registry_secret(workload_settings, &role.name, &document));
        }
    }
    Ok(secrets)
}

/// Reads a file that a field or a flag names.
fn read_file(field: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Read { field, path: path.to_owned(), source })
}

/// Returns the access data of the cluster that a section names.
fn cluster_access(spec: &KubernetesSpec) -> Access {
    Access {
        kubeconfig: spec.kubeconfig.clone(),
        context: spec.context.clone(),
        namespace: spec.namespace.clone(),
    }
}

/// Returns the settings that all trials share, from the section and the cluster.
fn workload_settings(
    id: &ExperimentId,
    spec: &KubernetesSpec,
    cluster: &Cluster,
) -> manifest::WorkloadSettings {
    let shared_disk = match &spec.storage {
        StorageSpec::Http | StorageSpec::Image => None,
        StorageSpec::Nfs { server, path } => {
            Some(SharedDisk::Nfs { server: server.clone(), path: path.clone() })
        }
        StorageSpec::Pvc { claim: Some(claim), .. } => {
            Some(SharedDisk::Claim { name: claim.clone() })
        }
        StorageSpec::Pvc { claim: None, .. } => Some(SharedDisk::Template),
        StorageSpec::Azure { share, .. } => Some(SharedDisk::AzureFile {
            secret: manifest::storage_secret_name(id),
            share: share.clone(),
        }),
    };
    manifest::WorkloadSettings {
        shared_disk,
        experiment: id.clone(),
        namespace: cluster.namespace().to_owned(),
        container_name: workload(spec.workload).container_name(),
        agents: AgentSettings::default(),
        has_ca: false,
        cached_files: None,
        spec: spec.clone(),
    }
}

/// Returns the key of the storage account that trials share. `None`: no such account is configured.
async fn storage_key(
    storage: &StorageSpec,
) -> Result<Option<azure_key::StorageKey>, azure_key::Error> {
    let StorageSpec::Azure { vault, vault_key, key_file, .. } = storage else { return Ok(None) };
    let source = match (key_file, vault.clone().zip(vault_key.clone())) {
        (Some(path), _) => azure_key::KeySource::File(path.into()),
        (None, Some((vault, secret))) => azure_key::KeySource::Vault { vault, secret },
        (None, None) => azure_key::KeySource::Variable,
    };
    let variable = std::env::var(azure_key::KEY_VARIABLE).ok();
    Ok(Some(azure_key::find_key(&source, variable, Path::new("az")).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_for_an_unreadable_file_names_its_field() {
        let path = Path::new("/nowhere/auth.json");
        let problem = read_file("privateRegistryAuthPath", path).unwrap_err().to_string();
        assert_eq!(problem, "privateRegistryAuthPath: cannot read /nowhere/auth.json");
    }
}
