//! Batch: proposes the parameter sets that the experiment file lists, in their order.

use super::{Error, Outcome, Proposal, Sample, Tuner};
use crate::search::search_space::{Domain, Parameters, SearchSpace};

/// NNI's `Batch`: the space is one `choice` whose options are whole parameter sets.
#[derive(Debug)]
pub(super) struct Batch {
    waiting: Vec<Parameters>,
}

impl Batch {
    pub(super) fn new(space: &SearchSpace) -> Result<Self, Error> {
        Ok(Self { waiting: parameter_sets(space)?.into_iter().rev().collect() })
    }

    /// Removes a parameter set that was already tried.
    fn remove(&mut self, parameters: &Parameters) {
        // The list is reversed, so the last equal set is the first in the file.
        if let Some(at) = self.waiting.iter().rposition(|waiting| waiting == parameters) {
            self.waiting.remove(at);
        }
    }
}

impl Tuner for Batch {
    fn propose(&mut self, _id: u64) -> Proposal {
        match self.waiting.pop() {
            Some(parameters) => Proposal::Parameters(parameters),
            None => Proposal::Exhausted,
        }
    }

    fn adopt(&mut self, _id: u64, parameters: &Parameters) {
        self.remove(parameters);
    }

    fn observe(&mut self, _id: u64, _outcome: &Outcome) {}

    fn import(&mut self, samples: &[Sample]) {
        for sample in samples {
            self.remove(&sample.parameters);
        }
    }
}

/// Returns the parameter sets of a batch, in order.
pub(super) fn parameter_sets(space: &SearchSpace) -> Result<Vec<Parameters>, Error> {
    let [dimension] = space.dimensions() else {
        return fault(
            "searchSpace".to_owned(),
            "for the tuner Batch it must be one `choice` whose options are whole parameter sets",
        );
    };
    let path = format!("searchSpace.{}", dimension.name);
    let Domain::Choice(values) = &dimension.domain else {
        return fault(path, "for the tuner Batch it must be a `choice` of whole parameter sets");
    };
    let sets = values.iter().enumerate().map(|(i, value)| match value.as_object() {
        Some(set) => Ok(set.clone()),
        None => fault(
            format!("{path}._value[{i}]"),
            "for the tuner Batch it must be an object of parameters",
        ),
    });
    sets.collect()
}

fn fault<T>(path: String, problem: &str) -> Result<T, Error> {
    Err(Error { path, problem: problem.to_owned() })
}
