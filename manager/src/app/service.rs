//! Builds the training service that an experiment names, and whatever only that service needs: an agent
//! program, this machine's GPUs, a cluster. It starts no job.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::{info, warn};
use trial_protocol::ExperimentId;

use super::{Error, agent_program, reach};
use crate::config::kubernetes::{AgentSource, KubernetesSpec, StorageSpec};
use crate::config::{ExperimentSpec, LocalSpec, PluginSpec, RemoteSpec, TrainingServiceSpec};
use crate::token::Secret;
use crate::training_service::kubernetes::client::{Access, Cluster, SECRETS, a_few_times};
use crate::training_service::kubernetes::workload::workload;
use crate::training_service::kubernetes::{self, KubernetesService, manifest, preflight};
use crate::training_service::local::gpus::{self, Gpus, Wanted};
use crate::training_service::local::{self, Local};
use crate::training_service::plugin::{self, Plugin};
use crate::training_service::remote::{self, Remote};
use crate::training_service::share::Share;
use crate::training_service::{JobEvents, TrainingService, azure_key};
use crate::util::layout::ExperimentDir;

/// The training service as it was found before anything of the experiment was made: an experiment that cannot run
/// leaves nothing behind.
pub(super) enum Ready {
    /// This machine can run trials with this agent.
    Local {
        /// The agent program.
        agent: PathBuf,
    },
    /// Machines are asked when the search has begun; this agent is copied there.
    Remote {
        /// The agent program.
        agent: PathBuf,
    },
    /// The plugin has answered; this agent is handed to it.
    Plugin {
        /// The agent program.
        agent: PathBuf,
    },
    /// The cluster can run trials.
    Kubernetes {
        /// Which cluster.
        cluster: Cluster,
        /// The agent program, for pods whose image has none.
        agent: Option<PathBuf>,
    },
}

/// Where the service is to find, and to tell, what it needs.
pub(super) struct Place {
    /// The experiment's folder.
    pub(super) dir: ExperimentDir,
    /// The authority that the manager's certificate is checked against. `None`: no encryption.
    pub(super) ca_file: Option<PathBuf>,
    /// Base URL of the manager, as trials on other machines reach it.
    pub(super) url: String,
    /// The secret from which trials' tokens are made.
    pub(super) secret: Arc<Secret>,
    /// Where news of jobs goes.
    pub(super) events: JobEvents,
}

impl Ready {
    /// Looks for what the experiment's service needs. One that was begun goes on also where no new trial could be
    /// started just now: the agents of those that run wait for a manager to take their results.
    pub(super) async fn find(
        agent: Option<PathBuf>,
        spec: &ExperimentSpec,
        id: &ExperimentId,
        is_new: bool,
    ) -> Result<Self, Error> {
        match &spec.training_service {
            TrainingServiceSpec::Local(_) => Ok(Self::Local { agent: find_agent(agent)? }),
            TrainingServiceSpec::Remote(_) => Ok(Self::Remote { agent: find_agent(agent)? }),
            TrainingServiceSpec::Plugin(service) => {
                Ok(Self::Plugin { agent: find_plugin(agent, spec, service, is_new).await? })
            }
            TrainingServiceSpec::Kubernetes(spec) => {
                let cluster = Cluster::connect(&access(spec)).await?;
                let kind = workload(spec.workload);
                preflight::check(&cluster, kind, spec.queue.is_some()).await?;
                if is_new {
                    if let Some(warning) = preflight::queue::check(&cluster, spec).await? {
                        warn!("{warning}");
                    }
                    match preflight::pods(&cluster, kind, &common(id, spec, &cluster)).await? {
                        Some(refusal) if refusal.is_quota() => warn!("{refusal}"),
                        Some(refusal) => return Err(refusal.into()),
                        None => {}
                    }
                    preflight::controller(&cluster, kind, id).await?;
                }
                let agent = match spec.agent {
                    AgentSource::Auto => {
                        let agent = find_agent(agent)?;
                        if let Some(why) = agent_program::unfit(&agent) {
                            warn!(
                                "{} is handed to pods whose image has no trialkeeper, and {why}: build the static \
                                 one (cargo static) and name it with --agent, or set agentImage",
                                agent.display()
                            );
                        }
                        Some(agent)
                    }
                    AgentSource::Image | AgentSource::Copy(_) | AgentSource::Volume(_) => None,
                };
                Ok(Self::Kubernetes { cluster, agent })
            }
        }
    }

    /// The address to listen on where the user names none: trials on this machine need no more than the loopback
    /// interface.
    pub(super) fn host(&self) -> &'static str {
        match self.server() {
            None => "127.0.0.1",
            // In a cluster of IPv6 alone that is the address that pods are told. Most systems take IPv4 there, too.
            Some(server) if reach::is_ipv6(server) => "::",
            Some(_) => "0.0.0.0",
        }
    }

    /// The API server that trials are near to, where they are not on this machine.
    pub(super) fn server(&self) -> Option<&str> {
        match self {
            Self::Local { .. } | Self::Remote { .. } | Self::Plugin { .. } => None,
            Self::Kubernetes { cluster, .. } => Some(cluster.server()),
        }
    }

    /// The agent program that trials elsewhere may fetch.
    pub(super) fn program(&self) -> Option<PathBuf> {
        match self {
            Self::Local { .. } | Self::Remote { .. } | Self::Plugin { .. } => None,
            Self::Kubernetes { agent, .. } => agent.clone(),
        }
    }

    /// Makes the service; `spec` is what it can honour afterwards.
    pub(super) async fn build(
        self,
        id: &ExperimentId,
        spec: &mut ExperimentSpec,
        place: Place,
    ) -> Result<Arc<dyn TrainingService>, Error> {
        match (self, &spec.training_service) {
            (Self::Local { agent }, TrainingServiceSpec::Local(sharing)) => {
                let gpus = gpus(spec, sharing)?;
                if let Some(room) = gpus.room().filter(|room| *room < spec.trial_concurrency) {
                    warn!(
                        "the GPUs have room for {room} trials at a time, not for {}",
                        spec.trial_concurrency
                    );
                    spec.trial_concurrency = room;
                }
                let archive = || place.dir.code_archive();
                let settings = local::Settings {
                    agent,
                    experiment: id.clone(),
                    code_archive: sharing.code_snapshot.then(archive),
                    dir: place.dir,
                    code_directory: spec.trial_code_directory.clone(),
                    objective: spec.objective.clone(),
                    ca_file: place.ca_file,
                    secret_variables: spec.secret_variables(),
                    secret: place.secret,
                    events: place.events,
                };
                Ok(Arc::new(Local::new(settings, gpus)))
            }
            (Self::Kubernetes { cluster, .. }, TrainingServiceSpec::Kubernetes(service)) => {
                let service = service.as_ref().clone();
                let objective = spec.objective.clone();
                start_on_kubernetes(id, cluster, service, objective, place).await
            }
            (Self::Remote { agent }, TrainingServiceSpec::Remote(service)) => {
                Ok(Arc::new(Remote::start(remote_settings(id, agent, spec, service, place))?))
            }
            (Self::Plugin { agent }, TrainingServiceSpec::Plugin(service)) => {
                Ok(Arc::new(Plugin::start(plugin_settings(id, agent, spec, service, place))?))
            }
            (
                Self::Local { .. }
                | Self::Remote { .. }
                | Self::Plugin { .. }
                | Self::Kubernetes { .. },
                _,
            ) => {
                unreachable!("what was found is what the same spec asked for")
            }
        }
    }
}

/// Looks whether a plugin can work, and for the agent that it is handed.
async fn find_plugin(
    agent: Option<PathBuf>,
    spec: &ExperimentSpec,
    service: &PluginSpec,
    is_new: bool,
) -> Result<PathBuf, Error> {
    let agent = find_agent(agent)?;
    if is_new {
        let secrets = spec.secret_variables();
        let name = plugin::probe(service, &spec.trial_code_directory, secrets).await?;
        info!("trials run at the plugin {name}");
    }
    Ok(agent)
}

fn remote_settings(
    id: &ExperimentId,
    agent: PathBuf,
    spec: &ExperimentSpec,
    service: &RemoteSpec,
    place: Place,
) -> remote::Settings {
    remote::Settings {
        agent,
        experiment: id.clone(),
        dir: place.dir,
        machines: service.machines.clone(),
        gpus_each: spec.trial_gpu_number,
        objective: spec.objective.clone(),
        ca_file: place.ca_file,
        url: place.url,
        secret: place.secret,
        events: place.events,
    }
}

fn plugin_settings(
    id: &ExperimentId,
    agent: PathBuf,
    spec: &ExperimentSpec,
    service: &PluginSpec,
    place: Place,
) -> plugin::Settings {
    plugin::Settings {
        spec: service.clone(),
        code_directory: spec.trial_code_directory.clone(),
        experiment: id.clone(),
        name: spec.name.clone(),
        dir: place.dir,
        agent,
        gpus_each: spec.trial_gpu_number,
        objective: spec.objective.clone(),
        ca_file: place.ca_file,
        url: place.url,
        secret_variables: spec.secret_variables(),
        secret: place.secret,
        events: place.events,
    }
}

/// Where a section says that the cluster is.
pub(super) fn access(spec: &KubernetesSpec) -> Access {
    Access {
        kubeconfig: spec.kubeconfig.clone(),
        context: spec.context.clone(),
        namespace: spec.namespace.clone(),
    }
}

/// Makes what all trials of the experiment share in the cluster, and begins to watch.
async fn start_on_kubernetes(
    id: &ExperimentId,
    cluster: Cluster,
    spec: KubernetesSpec,
    objective: Option<String>,
    place: Place,
) -> Result<Arc<dyn TrainingService>, Error> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|source| Error::Unreadable { path: path.clone(), source })
    };
    let ca_pem = place.ca_file.as_ref().map(read).transpose()?;
    let ca_pem = ca_pem.map(|pem| String::from_utf8_lossy(&pem).into_owned());
    let common =
        manifest::Common { objective, has_ca: ca_pem.is_some(), ..common(id, &spec, &cluster) };
    let mut secrets = vec![manifest::experiment_secret(&common, &place.url, ca_pem.as_deref())];
    if let StorageSpec::Azure { account, .. } = &common.spec.storage
        && let Some(key) = key(&common.spec.storage).await?
    {
        secrets.push(manifest::storage_secret(&common, account, &key.0));
    }
    for role in &common.spec.roles {
        if let Some(path) = &role.registry_auth {
            secrets.push(manifest::registry_secret(&common, &role.name, &read(path)?));
        }
    }
    for secret in &secrets {
        a_few_times(|| cluster.put(SECRETS, secret)).await?;
    }
    let settings = kubernetes::Settings { cluster, common, events: place.events };
    Ok(Arc::new(KubernetesService::start(settings)))
}

/// Returns the settings that all trials share, as far as the section and the cluster determine them.
fn common(id: &ExperimentId, spec: &KubernetesSpec, cluster: &Cluster) -> manifest::Common {
    let share = match &spec.storage {
        StorageSpec::Http | StorageSpec::Image => None,
        StorageSpec::Nfs { server, path } => {
            Some(Share::Nfs { server: server.clone(), path: path.clone() })
        }
        StorageSpec::Pvc { claim: Some(claim), .. } => Some(Share::Claim { name: claim.clone() }),
        StorageSpec::Pvc { claim: None, .. } => Some(Share::Template),
        StorageSpec::Azure { share, .. } => {
            Some(Share::AzureFile { secret: manifest::storage_name(id), share: share.clone() })
        }
    };
    manifest::Common {
        share,
        experiment: id.clone(),
        namespace: cluster.namespace().to_owned(),
        objective: None,
        has_ca: false,
        spec: spec.clone(),
    }
}

/// The key of the account whose disk trials share.
async fn key(storage: &StorageSpec) -> Result<Option<azure_key::Key>, Error> {
    let StorageSpec::Azure { vault, vault_key, key_file, .. } = storage else { return Ok(None) };
    let source = match (key_file, vault.clone().zip(vault_key.clone())) {
        (Some(path), _) => azure_key::Source::File(path.into()),
        (None, Some((vault, secret))) => azure_key::Source::Vault { vault, secret },
        (None, None) => azure_key::Source::Variable,
    };
    let variable = std::env::var(azure_key::VARIABLE).ok();
    Ok(Some(azure_key::find(&source, variable, Path::new("az")).await?))
}

/// Shares this machine's GPUs out as the experiment wants; asks for them only if it wants any.
fn gpus(spec: &ExperimentSpec, local: &LocalSpec) -> Result<Gpus, gpus::Error> {
    let wanted = Wanted {
        each: spec.trial_gpu_number,
        sharers: local.max_trial_number_per_gpu,
        indices: local.gpu_indices.clone(),
        active: local.use_active_gpu.unwrap_or(true),
    };
    let machine = match spec.trial_gpu_number {
        None | Some(0) => Vec::new(),
        Some(_) => gpus::of_this_machine(),
    };
    Gpus::new(&wanted, &machine)
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Absolute: it is started elsewhere.
pub(super) fn find_agent(given: Option<PathBuf>) -> Result<PathBuf, Error> {
    const NAME: &str = "trialkeeper";
    if let Some(path) = given {
        return if path.is_file() { Ok(absolute(path)) } else { Err(Error::NoAgent { path }) };
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(NAME)));
    let in_path = std::env::var_os("PATH").into_iter().flat_map(|path| {
        std::env::split_paths(&path).map(|dir| dir.join(NAME)).collect::<Vec<_>>()
    });
    let mut places = beside.clone().into_iter().chain(in_path);
    places
        .find(|path| path.is_file())
        .map(absolute)
        .ok_or(Error::NoAgent { path: beside.unwrap_or_else(|| NAME.into()) })
}
