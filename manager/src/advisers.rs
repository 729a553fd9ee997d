//! External tuners and assessors: NNI's own dispatcher with any Python algorithm, or a program that implements the
//! ask-and-tell protocol (`docs/ask-and-tell.md`).
//!
//! The protocols are pure ([`nni`] and [`ask_and_tell`], with the [`history`]). [`launch`] starts the program;
//! [`process`] exchanges messages with it and restarts it after a crash. The experiment owns an [`ExternalAdviser`],
//! to which it sends requests and from which it receives events asynchronously.
//!
//! # Invariants
//!
//! 1. The history outlives the program: a restarted program receives the entire history before its first request.
//! 2. A trial's end follows its final result, and is sent to the program once.
//! 3. The failure of a program never ends a trial.

mod ask_and_tell;
mod history;
mod launch;
mod nni;
mod preflight;
mod process;
mod registry;
mod silence_timer;
mod wire;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use trial_protocol::{MetricValue, TrialJobId};

pub use self::preflight::{find_command, find_program, import_modules};
pub use self::registry::find_nni_config;
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::search::tuner::Proposal;
pub use crate::search::tuner::Sample;

/// The interpreter if `pythonInterpreter` is not set; it is looked up in `PATH`.
pub const DEFAULT_PYTHON: &str = "python3";

/// An algorithm that NNI's dispatcher creates.
#[derive(Debug, Clone, PartialEq)]
pub struct Algorithm {
    /// The source.
    pub source: ClassSource,
    /// `classArgs`.
    pub class_args: Map<String, Value>,
}

/// The source from which the dispatcher loads an algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassSource {
    /// The name of an algorithm of the package `nni`.
    NniName(String),
    /// A class, as `module.Class`.
    Class {
        /// `className`.
        class: String,
        /// `codeDirectory`, an absolute path: the folder of the module, unless the module is installed.
        code: PathBuf,
    },
}

impl Algorithm {
    /// Returns the algorithm as a section of an experiment file.
    pub fn section(&self) -> Value {
        let mut section = match &self.source {
            ClassSource::NniName(name) => json!({ "name": name }),
            ClassSource::Class { class, code } => {
                json!({ "className": class, "codeDirectory": code.to_string_lossy() })
            }
        };
        if !self.class_args.is_empty() {
            section["classArgs"] = Value::Object(self.class_args.clone());
        }
        section
    }

    /// Returns the algorithm's name for users.
    pub fn name(&self) -> &str {
        match &self.source {
            ClassSource::NniName(name) => name,
            ClassSource::Class { class, .. } => class,
        }
    }
}

/// The program to start.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// `python -m nni`, as NNI's manager starts it.
    Nni {
        /// The interpreter: a path, or a name that is looked up in `PATH`.
        python: String,
        /// The tuner. `None` if the manager has a tuner of its own.
        tuner: Option<Algorithm>,
        /// The assessor. `None` if there is none, or the manager has one of its own.
        assessor: Option<Algorithm>,
        /// `true` if the tuner is an advisor, which also stops trials and processes every message.
        advisor: bool,
    },
    /// A program that implements ask-and-tell on its standard input and output.
    AskAndTell {
        /// The program and its arguments.
        command: Vec<String>,
        /// The description of the search in the greeting.
        greeting: Map<String, Value>,
    },
}

/// A program to start, and its environment.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramSettings {
    /// The program.
    pub program: Program,
    /// The experiment's identifier.
    pub experiment: String,
    /// The search space as the user wrote it.
    pub space: Value,
    /// The folder for the program's output, log and checkpoints. It is created if necessary.
    pub dir: PathBuf,
    /// The working directory of an ask-and-tell command.
    pub code: PathBuf,
    /// The GPUs that a Python algorithm may use. `None` for no GPU.
    pub gpus: Option<Vec<u64>>,
    /// The time that a program may take for an answer without sending anything. Then it is restarted.
    pub silence_timeout: Duration,
    /// The variables that are removed from the program's environment.
    pub secret_variables: Vec<String>,
}

/// A message from the experiment.
#[derive(Debug, Clone, PartialEq)]
pub enum AdviserRequest {
    /// A request for the parameters of this proposal.
    Propose {
        /// The proposal.
        id: u64,
    },
    /// A trial that tries these parameters. It may have started before this manager did.
    Launched {
        /// The trial.
        trial: TrialJobId,
        /// The proposal. `None` if a user chose the parameters.
        proposal: Option<u64>,
        /// The parameters of the trial.
        parameters: Parameters,
    },
    /// An intermediate result of a running trial.
    Step {
        /// The trial.
        trial: TrialJobId,
        /// The position among the trial's intermediate results, from 0.
        sequence: u64,
        /// The result.
        value: MetricValue,
    },
    /// The end of a trial.
    Ended {
        /// The trial.
        trial: TrialJobId,
        /// The final state.
        state: JobState,
        /// The result, if it is usable.
        result: Option<MetricValue>,
    },
    /// Results from before the search.
    Import(Vec<Sample>),
    /// A new search space.
    Space(Value),
}

/// A message to the experiment.
#[derive(Debug, Clone, PartialEq)]
pub enum AdviserEvent {
    /// An answer to [`AdviserRequest::Propose`].
    Proposed {
        /// The proposal.
        id: u64,
        /// The answer.
        proposal: Proposal,
    },
    /// The program can propose again after [`Proposal::Wait`].
    Ready,
    /// A request to stop a hopeless trial.
    StopTrial {
        /// The trial.
        trial: TrialJobId,
        /// The reason, if the program gives one.
        reason: Option<String>,
    },
    /// A problem for the user: the adviser does not answer, or was restarted. `None` if the adviser answers again.
    Trouble(Option<String>),
    /// The program has failed permanently. No event follows.
    Lost {
        /// The failure, and the remedy.
        message: String,
    },
}

/// An external tuner or assessor, as the experiment uses it.
#[derive(Debug)]
pub struct ExternalAdviser {
    requests: mpsc::UnboundedSender<AdviserRequest>,
    events: mpsc::UnboundedReceiver<AdviserEvent>,
    task: JoinHandle<()>,
    /// `true` if the adviser proposes parameters.
    pub tunes: bool,
    /// `true` if the adviser needs intermediate results.
    pub assesses: bool,
    /// The adviser's name for users.
    pub name: String,
    /// The name of the part that stops trials: the assessor, or else the advisor or command that does both.
    pub assessor_name: String,
}

impl ExternalAdviser {
    /// Starts the program. A failure to start is reported later as an event.
    pub fn start(setting: ProgramSettings) -> Self {
        let (tunes, assesses, name, assessor_name) = match &setting.program {
            Program::Nni { tuner, assessor, advisor, .. } => {
                let name = |first: Option<&Algorithm>| {
                    first.map_or("NNI's dispatcher", Algorithm::name).to_owned()
                };
                let (tuner, assessor) = (tuner.as_ref(), assessor.as_ref());
                let assesses = assessor.is_some() || *advisor;
                (tuner.is_some(), assesses, name(tuner.or(assessor)), name(assessor.or(tuner)))
            }
            Program::AskAndTell { command, .. } => {
                (true, true, command.join(" "), command.join(" "))
            }
        };
        // Unbounded, because the number of messages is limited: one request per event of a trial, and one answer per
        // request.
        let (requests, receiver) = mpsc::unbounded_channel();
        let (sender, events) = mpsc::unbounded_channel();
        let task = tokio::spawn(process::supervise(setting, receiver, sender));
        Self { requests, events, task, tunes, assesses, name, assessor_name }
    }

    /// Sends a request. A request after the end of the program is ignored.
    pub fn send_request(&self, request: AdviserRequest) {
        drop(self.requests.send(request));
    }

    /// Waits for the next event. Never returns once the program has failed permanently.
    pub async fn next_event(&mut self) -> AdviserEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Ends the program and waits for its exit.
    pub async fn close(self) {
        drop(self.requests);
        // If the task panicked, its child was killed when it was dropped.
        drop(self.task.await);
    }
}
