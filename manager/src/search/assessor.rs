//! PURE: what stops hopeless trials early.
//!
//! An assessor knows the trials that have ended and judges one that runs by its intermediate results. All that it keeps
//! about running trials follows from their results. So after a restart it is rebuilt from the ended trials, and from
//! the running ones as they go on.

mod asha;
mod curvefitting;
mod medianstop;

use serde_json::{Map, Value};

pub use crate::search::class_args::Error;
use crate::search::class_args::{Arguments, OptimizeMode};
use crate::util::nearest::{advice, folded};

/// An assessor's judgement of a running trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// Let it run.
    Good,
    /// Stop it.
    Bad {
        /// Why, for a person.
        reason: String,
    },
}

/// The bounds at which a trial will be stopped: its best result is worse than a bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    /// Which results are better.
    pub mode: OptimizeMode,
    /// After how many results the first of the bounds applies, at least 1.
    pub from: usize,
    /// The worst that is good enough after so many results, after one more, and so on. At least one, all finite.
    pub bounds: Vec<f64>,
}

/// Judges running trials.
pub trait Assessor: Send + std::fmt::Debug {
    /// Judges a running trial by its intermediate results, oldest first, without a gap. Called after
    /// every new one; NaN stands for a result that is no number.
    fn judge(&mut self, trial: &str, history: &[f64]) -> Judgement;

    /// Learns that a trial ended, and what its intermediate results were. `success` is false for one that
    /// failed or was stopped.
    fn ended(&mut self, trial: &str, history: &[f64], success: bool);

    /// Returns the bounds at which it would stop a trial that has taken so many steps, whichever `others` succeed
    /// meanwhile: what breaks a bound is stopped for certain. `None`: that cannot be known beforehand.
    fn bounds(&self, _results: usize, _others: usize) -> Option<Bounds> {
        None
    }
}

/// Which assessor, and its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct AssessorSpec {
    /// NNI's name, in its canonical spelling.
    pub name: String,
    /// NNI's `classArgs`.
    pub class_args: Map<String, Value>,
}

/// An assessor that this build has: NNI's name, and what makes it.
type BuiltInAssessor = (&'static str, fn(&mut Arguments<'_>) -> Result<Box<dyn Assessor>, Error>);

const ALGORITHMS: [BuiltInAssessor; 3] = [
    ("ASHA", |arguments| Ok(Box::new(asha::Asha::from_arguments(arguments)?))),
    ("Medianstop", |arguments| Ok(Box::new(medianstop::Medianstop::from_arguments(arguments)?))),
    ("Curvefitting", |arguments| {
        Ok(Box::new(curvefitting::Curvefitting::from_arguments(arguments)?))
    }),
];

impl AssessorSpec {
    /// Finds the assessor of this name, in any case.
    pub fn new(name: &str, class_args: Map<String, Value>) -> Result<Self, Error> {
        Ok(Self { name: algorithm(name)?.0.to_owned(), class_args })
    }

    /// Returns whether the assessor has an `optimize_mode`. Without one it expects results that grow, as NNI's
    /// Curvefitting does.
    pub fn takes_direction(&self) -> bool {
        self.name != "Curvefitting"
    }
}

/// Makes the assessor that `spec` names.
pub fn build(spec: &AssessorSpec) -> Result<Box<dyn Assessor>, Error> {
    let (name, build) = algorithm(&spec.name)?;
    let mut arguments = Arguments::new("assessor", &spec.class_args);
    let assessor = build(&mut arguments)?;
    arguments.finish(name)?;
    Ok(assessor)
}

/// Returns whether an assessor of this name is built in.
pub fn is_known(name: &str) -> bool {
    algorithm(name).is_ok()
}

fn algorithm(name: &str) -> Result<&'static BuiltInAssessor, Error> {
    let wanted = folded(name);
    if let Some(found) = ALGORITHMS.iter().find(|(name, _)| folded(name) == wanted) {
        return Ok(found);
    }
    let built_in = ALGORITHMS.iter().map(|(name, _)| *name);
    let problem = format!("`{name}` is not an assessor; {}", advice(name, built_in));
    Err(Error { path: "assessor.name".to_owned(), problem })
}
