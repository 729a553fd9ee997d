//! PURE and seeded: what proposes the next parameters.

use serde_json::{Map, Value};

use crate::search_space::{Parameters, SearchSpace};

/// What a tuner answers when asked for parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum Proposal {
    /// Try these.
    Parameters(Parameters),
    /// The space is used up: there will be no more.
    Exhausted,
    /// Nothing before another result is known.
    Wait,
}

/// How a trial ended, as far as a tuner cares.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The final result, as reported; the objective's number is `value.number()`.
    Result(trial_protocol::MetricValue),
    /// It failed, was stopped, or reported nothing usable.
    Failed,
}

/// Proposes parameters. Same seed and same calls: the same proposals.
pub trait Tuner: Send + std::fmt::Debug {
    /// Proposes the parameters with number `id` (from 0, rising by one for each request).
    ///
    /// Randomness must depend only on the seed and `id`, so that a search which was interrupted goes on
    /// as if it had not been.
    fn propose(&mut self, id: u64) -> Proposal;

    /// Learns that `parameters` were proposed as `id` before the manager was started again. Called in
    /// rising order of `id`, before any `propose`.
    fn adopt(&mut self, id: u64, parameters: &Parameters);

    /// Learns how the trial of proposal `id` ended. Called at most once for an id.
    fn observe(&mut self, id: u64, outcome: &Outcome);
}

/// Which tuner, and its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct TunerSpec {
    /// NNI's name, in its canonical spelling.
    pub name: String,
    /// NNI's `classArgs`.
    pub class_args: Map<String, Value>,
}

/// Whether the objective is to be made large or small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizeMode {
    /// The larger the better; NNI's default.
    Maximize,
    /// The smaller the better.
    Minimize,
}

/// Why a tuner cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Error {
    /// Which field, such as `tuner.classArgs.optimize_mode`.
    pub path: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

/// Makes the tuner that `spec` names.
pub fn build(_spec: &TunerSpec, _space: &SearchSpace, _seed: u64) -> Result<Box<dyn Tuner>, Error> {
    Err(Error { path: "tuner.name".to_owned(), problem: "not built yet".to_owned() })
}
