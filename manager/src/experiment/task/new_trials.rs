//! New trials: the points of the experiment file and of users, which are completed, and the rows in the store.

use serde_json::Value;
use trial_protocol::TrialJobId;

use crate::config::{ExperimentSpec, TunerChoice};
use crate::search::search_space::{self, Parameters};
use crate::search::tuner;
use crate::search::user_point;
use crate::store::NewTrial;
use crate::util::ids;

/// Completes a point of the user: missing parameters are drawn from the space that `spec` describes.
pub(super) fn complete_point(
    spec: &ExperimentSpec,
    given: &Parameters,
    seed: u64,
    number: u64,
) -> Result<Parameters, search_space::Error> {
    let native = if let TunerChoice::BuiltIn(native) = &spec.tuner { Some(native) } else { None };
    let sets = native.and_then(|native| tuner::batch_sets(native, &spec.search_space));
    user_point::complete_point(given, &spec.search_space, sets.as_deref(), seed, number)
}

/// Returns the points of the experiment file in the order in which they run, each as often as the file says.
pub(super) fn initial_points(spec: &ExperimentSpec, seed: u64) -> Vec<Parameters> {
    let mut points = Vec::new();
    for (number, given) in (0_u64..).zip(&spec.initial_trials) {
        // This cannot fail, because the file was checked against the same space.
        let Ok(parameters) = complete_point(spec, given, seed, number) else { continue };
        points.extend((0..spec.trial_repeats).map(|_| parameters.clone()));
    }
    points
}

/// Returns the row of a new trial. `parameter_id`: the tuner chose its parameters.
pub(super) fn new_trial_row(
    trial: TrialJobId,
    sequence: u64,
    parameter_id: Option<u64>,
    parameters: Parameters,
    created_at_ms: i64,
) -> NewTrial {
    NewTrial {
        attempt: ids::first_attempt(&trial),
        id: trial,
        sequence,
        parameter_id,
        parameters: Value::Object(parameters),
        created_at_ms,
    }
}
