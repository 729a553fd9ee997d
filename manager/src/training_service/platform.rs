//! The choice of a training service. [`platform`] is the only table of the services that there are. The section of an
//! experiment file is the [`Platform`]. It is checked before anything of the experiment is made, so an experiment that
//! cannot run leaves nothing behind. The check's findings are a [`CheckedPlatform`], which starts the service.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use trial_protocol::ExperimentId;

use super::{JobEvents, TrainingService};
use crate::config::{ExperimentSpec, TrainingServiceSpec};
use crate::token::Secret;
use crate::util::layout::ExperimentDir;

/// An error of a service's own, whose text says what failed and what to do.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The facts that a check goes by.
#[derive(Debug, Clone, Copy)]
pub struct CheckContext<'a> {
    /// The experiment.
    pub id: &'a ExperimentId,
    /// Its specification.
    pub spec: &'a ExperimentSpec,
    /// The agent program of the user's choice. `None`: the one beside this program, else in `PATH`.
    pub agent: Option<&'a Path>,
    /// True for an experiment that has not begun. One that has begun goes on also where no new trial could be started
    /// just now: the agents of its trials wait for a manager to take their results.
    pub is_new: bool,
}

/// The facts that a service starts with.
#[derive(Debug, Clone)]
pub struct StartContext<'a> {
    /// The experiment.
    pub id: &'a ExperimentId,
    /// Its specification.
    pub spec: &'a ExperimentSpec,
    /// Its folder.
    pub dir: ExperimentDir,
    /// The authority that the manager's certificate is checked against. `None`: no encryption.
    pub ca_file: Option<PathBuf>,
    /// Base URL of the manager, as trials on other machines reach it.
    pub url: String,
    /// The secret from which trials' tokens are made.
    pub secret: Arc<Secret>,
    /// The receiver of news of jobs.
    pub events: JobEvents,
}

/// The facts that a clean-up goes by.
#[derive(Debug, Clone, Copy)]
pub struct CleanContext<'a> {
    /// The experiment.
    pub id: &'a ExperimentId,
    /// Its specification.
    pub spec: &'a ExperimentSpec,
    /// Its folder.
    pub dir: &'a ExperimentDir,
}

/// A sentence about one thing that an examination has looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The sentence; an error says what is wrong and how to mend it.
    pub found: Result<String, String>,
}

/// A training service before anything has started, as its section of the experiment file describes it.
#[async_trait]
pub trait Platform: Send + Sync {
    /// Checks that trials can run. Starts no job and writes nothing.
    ///
    /// # Errors
    ///
    /// Trials cannot run; the error says what is missing and how to mend it.
    async fn check(&self, context: CheckContext<'_>) -> Result<Box<dyn CheckedPlatform>, BoxError>;

    /// Looks more closely than [`Self::check`], at each machine that trials may run on. By default there is nothing to see.
    async fn examine(&self, _spec: &ExperimentSpec) -> Vec<Finding> {
        Vec::new()
    }

    /// Returns the sentence for a user about a successful check.
    fn describe(&self) -> String;

    /// Deletes everything that an experiment without a manager left outside its folder. By default there is nothing.
    ///
    /// # Errors
    ///
    /// Something may be left.
    async fn clean(&self, _context: CleanContext<'_>) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A training service that can run trials.
#[async_trait]
pub trait CheckedPlatform: Send + Sync {
    /// Returns the server that trials are near to, if they run on other machines: it decides where the manager listens
    /// and which address it announces. By default trials reach the manager on the loopback interface.
    fn api_server(&self) -> Option<&str> {
        None
    }

    /// Returns the agent program that trials elsewhere fetch from the manager. By default there is none.
    fn agent_for_pods(&self) -> Option<&Path> {
        None
    }

    /// Starts the service. No job is submitted.
    ///
    /// # Errors
    ///
    /// The service cannot begin; the error says why.
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
