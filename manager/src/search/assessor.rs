//! PURE: assessors, which stop unpromising trials early.
//!
//! An assessor judges a running trial by its intermediate results and those of the ended trials. Its state depends
//! only on results. After a restart, it is rebuilt from the ended trials, and from each running trial when that trial
//! reports.

mod asha;
mod curvefitting;
mod medianstop;

use serde_json::{Map, Value};
use trial_protocol::Direction;

use crate::search::class_args::Arguments;
pub use crate::search::class_args::Error;
use crate::util::nearest::{normalize_name, suggest_names};

/// An assessor's assessment of a running trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assessment {
    /// The trial continues.
    Good,
    /// The trial is stopped.
    Bad {
        /// The reason, for the user.
        reason: String,
    },
}

/// The bounds for a trial's best result. If its best result is worse than a bound, the trial is stopped.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    /// The direction in which results are better.
    pub direction: Direction,
    /// The number of results after which the first bound applies, at least 1.
    pub from: usize,
    /// The worst acceptable best result after `from` results, after `from + 1` results, and so on. Not empty; all
    /// bounds are finite.
    pub bounds: Vec<f64>,
}

/// An assessor, which judges running trials.
pub trait Assessor: Send + std::fmt::Debug {
    /// Judges a running trial by its intermediate results, oldest first and complete. Called after every new result.
    /// NaN represents a result that is not a number.
    fn assess(&mut self, trial: &str, history: &[f64]) -> Assessment;

    /// Records the end of a trial with its intermediate results. `success` is `false` if the trial failed or was
    /// stopped.
    fn record_end(&mut self, trial: &str, history: &[f64], success: bool);

    /// Returns the bounds at which a trial with `results` results is certainly stopped, whatever the results of
    /// `others` trials that may succeed meanwhile. Returns `None` if no such bounds are known.
    fn bounds(&self, _results: usize, _others: usize) -> Option<Bounds> {
        None
    }
}

/// The name and the arguments of an assessor.
#[derive(Debug, Clone, PartialEq)]
pub struct AssessorSpec {
    /// The canonical name: NNI's, if NNI has the algorithm.
    pub name: String,
    /// NNI's `classArgs`.
    pub class_args: Map<String, Value>,
}

/// A built-in assessor: its canonical name, and the constructor.
type BuiltInAssessor = (&'static str, fn(&mut Arguments<'_>) -> Result<Box<dyn Assessor>, Error>);

const ALGORITHMS: [BuiltInAssessor; 3] = [
    ("ASHA", |arguments| Ok(Box::new(asha::Asha::from_arguments(arguments)?))),
    ("Medianstop", |arguments| Ok(Box::new(medianstop::Medianstop::from_arguments(arguments)?))),
    ("Curvefitting", |arguments| {
        Ok(Box::new(curvefitting::Curvefitting::from_arguments(arguments)?))
    }),
];

impl AssessorSpec {
    /// Creates the specification of the assessor with this name, ignoring case.
    pub fn new(name: &str, class_args: Map<String, Value>) -> Result<Self, Error> {
        Ok(Self { name: find_algorithm(name)?.0.to_owned(), class_args })
    }

    /// Returns whether the assessor has an `optimize_mode`. Curvefitting, like NNI's, has none and expects larger
    /// results to be better.
    pub fn has_optimize_mode(&self) -> bool {
        self.name != "Curvefitting"
    }
}

/// Creates the assessor that `spec` names.
pub fn build(spec: &AssessorSpec) -> Result<Box<dyn Assessor>, Error> {
    let (name, build) = find_algorithm(&spec.name)?;
    let mut arguments = Arguments::new("assessor", &spec.class_args);
    let assessor = build(&mut arguments)?;
    arguments.refuse_unread(name)?;
    Ok(assessor)
}

/// Returns whether an assessor of this name is built in.
pub fn is_known(name: &str) -> bool {
    find_algorithm(name).is_ok()
}

/// Returns the names of the built-in assessors.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALGORITHMS.iter().map(|(name, _)| *name)
}

fn find_algorithm(name: &str) -> Result<&'static BuiltInAssessor, Error> {
    let wanted = normalize_name(name);
    if let Some(found) = ALGORITHMS.iter().find(|(name, _)| normalize_name(name) == wanted) {
        return Ok(found);
    }
    let problem = format!("`{name}` is not an assessor; {}", suggest_names(name, names()));
    Err(Error { path: "assessor.name".to_owned(), problem })
}
