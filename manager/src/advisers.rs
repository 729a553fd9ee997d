//! Tuners and assessors outside the manager: NNI's own dispatcher with any Python algorithm, or a program that speaks
//! the ask-and-tell protocol (`docs/ask-and-tell.md`).
//!
//! The messages are pure ([`nni`], [`ask_and_tell`], over the [`history`]); [`launch`] starts the program, [`process`] listens and
//! starts it again when it dies. The experiment holds an [`ExternalAdviser`]: it gives orders and hears answers, in
//! its own time.
//!
//! # Invariants
//!
//! 1. The history outlives the program: a new one learns everything before it is asked anything.
//! 2. A trial's end follows its final result, and reaches the program once.
//! 3. A program that is lost takes no trial with it.

mod answer_deadline;
mod ask_and_tell;
mod history;
mod launch;
mod nni;
mod preflight;
mod process;
mod registry;
mod wire;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use trial_protocol::{MetricValue, TrialJobId};

pub use self::preflight::{look, look_for, look_for_program};
pub use self::registry::find_nni_config;
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::search::tuner::Proposal;
pub use crate::search::tuner::Sample;

/// The interpreter where `pythonInterpreter` names none: `PATH` finds it.
pub const DEFAULT_PYTHON: &str = "python3";

/// An algorithm that NNI's dispatcher makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Algorithm {
    /// The source.
    pub source: ClassSource,
    /// `classArgs`.
    pub class_args: Map<String, Value>,
}

/// Where the dispatcher finds an algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassSource {
    /// Among NNI's own, by its name.
    BuiltIn(String),
    /// A class, as `module.Class`.
    Class {
        /// `className`.
        class: String,
        /// `codeDirectory`, absolute: where its module lies, unless it is installed.
        code: PathBuf,
    },
}

impl Algorithm {
    /// The algorithm as a section of an experiment file.
    pub fn section(&self) -> Value {
        let mut section = match &self.source {
            ClassSource::BuiltIn(name) => json!({ "name": name }),
            ClassSource::Class { class, code } => {
                json!({ "className": class, "codeDirectory": code.to_string_lossy() })
            }
        };
        if !self.class_args.is_empty() {
            section["classArgs"] = Value::Object(self.class_args.clone());
        }
        section
    }

    /// Returns its name for the user.
    pub fn name(&self) -> &str {
        match &self.source {
            ClassSource::BuiltIn(name) => name,
            ClassSource::Class { class, .. } => class,
        }
    }
}

/// The program to start.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// `python -m nni`, as NNI's manager starts it.
    Nni {
        /// The interpreter: a path, or a name to look for in `PATH`.
        python: String,
        /// The tuner. `None`: the manager has its own.
        tuner: Option<Algorithm>,
        /// The assessor. `None`: none, or the manager's own.
        assessor: Option<Algorithm>,
        /// `true` if the tuner is an advisor: one that stops trials, too, and minds every message.
        advisor: bool,
    },
    /// A program that speaks ask-and-tell on its standard input and output.
    AskAndTell {
        /// The program and its arguments.
        command: Vec<String>,
        /// The description of the search in its greeting.
        greeting: Map<String, Value>,
    },
}

/// The program to start, and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The program.
    pub program: Program,
    /// The experiment.
    pub experiment: String,
    /// The search space, as written.
    pub space: Value,
    /// Folder of the program: its output, its log, its checkpoints. Made if absent.
    pub dir: PathBuf,
    /// Where an ask-and-tell command is run.
    pub code: PathBuf,
    /// GPUs that a Python algorithm may use. `None`: none.
    pub gpus: Option<Vec<u64>>,
    /// The time that it may owe an answer without a word before it is replaced.
    pub patience: Duration,
    /// Variables that the program is started without.
    pub secret_variables: Vec<String>,
}

/// A message of the experiment.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Parameters are wanted for this proposal.
    Propose {
        /// The proposal.
        id: u64,
    },
    /// A trial tries these parameters, now or since before the manager was started.
    Launched {
        /// The trial.
        trial: TrialJobId,
        /// The proposal. `None`: a person's parameters.
        proposal: Option<u64>,
        /// The parameters of the trial.
        parameters: Parameters,
    },
    /// A running trial has an intermediate result.
    Step {
        /// The trial.
        trial: TrialJobId,
        /// Position among its intermediate results, from 0.
        sequence: u64,
        /// The result.
        value: MetricValue,
    },
    /// A trial ended.
    Ended {
        /// The trial.
        trial: TrialJobId,
        /// How.
        state: JobState,
        /// Its result, where that is usable.
        result: Option<MetricValue>,
    },
    /// Results from before the search began.
    Import(Vec<Sample>),
    /// The search space is another from now on.
    Space(Value),
}

/// A message to the experiment.
#[derive(Debug, Clone, PartialEq)]
pub enum AdviserEvent {
    /// An answer to [`Order::Propose`].
    Proposed {
        /// The proposal.
        id: u64,
        /// The answer.
        proposal: Proposal,
    },
    /// After [`Proposal::Wait`]: it can propose now.
    Ready,
    /// A trial is hopeless.
    Kill {
        /// The trial.
        trial: TrialJobId,
        /// Why, if the program says.
        reason: Option<String>,
    },
    /// The adviser does not do its work, or was started again; the manager tells a user. `None`: the adviser answers
    /// again.
    Trouble(Option<String>),
    /// The program is lost for good; nothing more will be said.
    Lost {
        /// The failure, and the remedy.
        message: String,
    },
}

/// A tuner or an assessor outside, as the experiment holds it.
#[derive(Debug)]
pub struct ExternalAdviser {
    orders: mpsc::UnboundedSender<Order>,
    said: mpsc::UnboundedReceiver<AdviserEvent>,
    task: JoinHandle<()>,
    /// `true` if it proposes.
    pub tunes: bool,
    /// `true` if it wants to see intermediate results.
    pub assesses: bool,
    /// Its name for the user.
    pub name: String,
    /// The name of the one that gives trials up: the assessor, or else the advisor or the command that does both.
    pub assessor_name: String,
}

impl ExternalAdviser {
    /// Starts the program. That it cannot be started is said, like all else, later.
    pub fn start(setting: Setting) -> Self {
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
        // One order per event of a trial, one answer per order: bounded by what happens.
        let (orders, ordered) = mpsc::unbounded_channel();
        let (say, said) = mpsc::unbounded_channel();
        let task = tokio::spawn(process::supervise(setting, ordered, say));
        Self { orders, said, task, tunes, assesses, name, assessor_name }
    }

    /// Gives an order. One that comes too late is no error.
    pub fn order(&self, order: Order) {
        drop(self.orders.send(order));
    }

    /// Waits for what the program says; for ever, once it is lost.
    pub async fn heard(&mut self) -> AdviserEvent {
        match self.said.recv().await {
            Some(said) => said,
            None => std::future::pending().await,
        }
    }

    /// Lets the program end, and waits for it.
    pub async fn close(self) {
        drop(self.orders);
        // A task that panicked has nothing left to end: its child is killed when it is dropped.
        drop(self.task.await);
    }
}
