//! PURE: the judgement of running trials by the assessor, and the stops that follow.

use tracing::info;
use trial_protocol::{Metric, StopReason, TrialJobId};

use super::live_trial::LiveTrial;
use super::live_trials::LiveTrials;
use super::stop_rules::StopRules;
use crate::experiment::advisers::Advisers;
use crate::experiment::state;
use crate::search::assessor::Assessment;

/// Presents a trial's next step to the assessor. Returns the stop of a trial that the assessor judges bad.
pub(super) fn assess_step(
    trials: &mut LiveTrials,
    advisers: &mut Advisers,
    rules: &mut StopRules,
    trial: &TrialJobId,
    metric: &Metric,
) -> Option<state::Event> {
    if !advisers.has_assessor() {
        return None;
    }
    let job = trials.add_step(trial, metric)?;
    // The first metric determines which metric counts, which the assessor's rules need.
    if metric.sequence == 0 {
        rules.mark_stale();
    }
    match advisers.assess_step(trial, metric.sequence, &metric.value, job.steps()) {
        Assessment::Bad { reason } => stop_early(trials, trial, &reason),
        Assessment::Good => None,
    }
}

/// Lets the assessor judge the running trials by the steps in the store, and returns the stops. Steps that agents
/// delivered before this manager read the store cause no event. The last of them may be a reason to stop its trial.
pub(super) fn assess_stored_steps(
    trials: &mut LiveTrials,
    advisers: &mut Advisers,
) -> Vec<state::Event> {
    let runs = |job: &LiveTrial| job.is_submitted() && !job.has_ended() && !job.is_stopped_early();
    let mut stops = Vec::new();
    for trial in trials.find(runs) {
        if let Some(job) = trials.get(&trial).filter(|job| !job.steps().history().is_empty())
            && let Assessment::Bad { reason } = advisers.assess(&trial, job.steps())
        {
            stops.extend(stop_early(trials, &trial, &reason));
        }
    }
    stops
}

/// Stops a trial early for the assessor's `reason`, and returns its stop.
pub(super) fn stop_early(
    trials: &mut LiveTrials,
    trial: &TrialJobId,
    reason: &str,
) -> Option<state::Event> {
    if !trials.stop_early(trial, reason) {
        return None;
    }
    info!(%trial, "the assessor stops the trial: {reason}");
    Some(state::Event::StopRequested { trial: trial.clone(), reason: StopReason::EarlyStop })
}
