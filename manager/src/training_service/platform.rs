//! Chooses the training service. Only [`platform`] maps a section to its service. The section of an experiment
//! file is the [`Platform`]. It is checked before anything of the experiment is created, so an experiment that cannot
//! run leaves nothing behind. The result of the check is a [`CheckedPlatform`], which starts the service.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use trial_protocol::ExperimentId;

use super::{JobNewsSender, TrainingService};
use crate::config::{ExperimentSpec, TrainingServiceSpec};
use crate::token::Secret;
use crate::util::layout::ExperimentDir;

/// An error of a service, whose text names the problem and the remedy.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The input of a check.
#[derive(Debug, Clone, Copy)]
pub struct CheckContext<'a> {
    /// The experiment.
    pub id: &'a ExperimentId,
    /// The specification of the experiment.
    pub spec: &'a ExperimentSpec,
    /// The agent program that the user chose. `None`: the one next to this program, or else one in `PATH`.
    pub agent: Option<&'a Path>,
    /// True for a new experiment. A started experiment continues even if no new trial could start now, because the
    /// agents of its trials wait for a manager that accepts their results.
    pub is_new: bool,
    /// True if an experiment with several services may start although some of them are out of reach.
    pub tolerates_absence: bool,
}

/// The error of a platform that does not answer or cannot be used now, although its section may be right. Other
/// services of the same experiment can run the trials.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UnavailableError(pub BoxError);

/// The input of a service's start.
#[derive(Debug, Clone)]
pub struct StartContext<'a> {
    /// The experiment.
    pub id: &'a ExperimentId,
    /// The specification of the experiment.
    pub spec: &'a ExperimentSpec,
    /// The folder of the experiment.
    pub dir: ExperimentDir,
    /// The authority that signs the manager's certificate. `None`: no encryption.
    pub ca_file: Option<PathBuf>,
    /// The base URL of the manager, as trials on other machines reach it.
    pub url: String,
    /// The secret from which trials' tokens are derived.
    pub secret: Arc<Secret>,
    /// The receiver of news of jobs.
    pub events: JobNewsSender,
}

/// The input of a cleanup.
#[derive(Debug, Clone, Copy)]
pub struct CleanContext<'a> {
    /// The experiment.
    pub id: &'a ExperimentId,
    /// The specification of the experiment.
    pub spec: &'a ExperimentSpec,
    /// The folder of the experiment.
    pub dir: &'a ExperimentDir,
}

/// A sentence about one aspect that an examination checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The sentence. An error names the problem and the remedy.
    pub found: Result<String, String>,
}

/// A training service before its start, as its section of the experiment file describes it.
#[async_trait]
pub trait Platform: Send + Sync {
    /// Checks that trials can run. Starts no job and writes nothing.
    ///
    /// # Errors
    ///
    /// Trials cannot run. The error names the problem and the remedy.
    async fn check(&self, context: CheckContext<'_>) -> Result<Box<dyn CheckedPlatform>, BoxError>;

    /// Examines each machine that trials may run on, more closely than [`Self::check`]. By default, returns no
    /// findings.
    async fn examine(&self, _spec: &ExperimentSpec) -> Vec<Finding> {
        Vec::new()
    }

    /// Returns the message about a successful check, for the user.
    fn success_message(&self) -> String;

    /// Stops the jobs of an experiment without a manager, and deletes its remains outside its folder.
    ///
    /// # Errors
    ///
    /// The removal failed, and parts of the experiment may remain.
    async fn clean(&self, context: CleanContext<'_>) -> Result<(), BoxError>;
}

/// A training service that can run trials.
#[async_trait]
pub trait CheckedPlatform: Send + Sync {
    /// Returns the server of the platform, if trials run on other machines. The connection to this server determines
    /// the manager's listening address and the address that trials use. By default, trials reach the manager on the
    /// loopback interface.
    fn api_server(&self) -> Option<&str> {
        None
    }

    /// Returns the agent program that trials on other machines fetch from the manager. The default is `None`.
    fn agent_for_pods(&self) -> Option<&Path> {
        None
    }

    /// Returns sentences about the platform that the user may want to know, although trials can run. By default,
    /// returns none.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the fields of the section whose values depend on the user's environment, with their present values. The
    /// record of the experiment contains them, so that a later manager uses the same cluster in any environment. For
    /// several services, returns a list with the fields of each. By default, returns none.
    fn resolved_fields(&self) -> Value {
        Value::Null
    }

    /// Starts the service. No job is submitted.
    ///
    /// # Errors
    ///
    /// The service cannot start. The error names the reason.
    async fn start(
        self: Box<Self>,
        context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError>;
}

/// Returns the platform of a section.
pub fn platform(service: &TrainingServiceSpec) -> &dyn Platform {
    match service {
        TrainingServiceSpec::Local(section) => section,
        TrainingServiceSpec::Remote(section) => section,
        TrainingServiceSpec::Plugin(section) => section,
        TrainingServiceSpec::Kubernetes(section) => section.as_ref(),
        TrainingServiceSpec::Hybrid(section) => section,
    }
}
