//! The advisers of an experiment, behind one interface: its tuner and its assessor, built-in or external. A built-in
//! adviser answers at once, an external one later through [`Advisers::next_event`]. This module makes no decisions
//! itself.

use serde_json::Value;
use trial_protocol::{MetricValue, TrialJobId};

use super::result::Steps;
use crate::advisers::{AdviserEvent, AdviserRequest, ExternalAdviser, Sample};
use crate::job_state::JobState;
use crate::search::assessor::{Assessment, Assessor, Bounds};
use crate::search::search_space::Parameters;
use crate::search::tuner::{Outcome, Proposal, Tuner};

/// The advisers of one experiment. At least one of `tuner` and `external` makes proposals.
#[derive(Debug)]
pub struct Advisers {
    /// A built-in tuner.
    pub tuner: Option<Box<dyn Tuner>>,
    /// A built-in assessor.
    pub assessor: Option<Box<dyn Assessor>>,
    /// The external adviser, in another process.
    pub external: Option<ExternalAdviser>,
}

impl Advisers {
    /// Informs the advisers of a trial that an earlier manager started.
    pub(super) fn adopt(&mut self, trial: &TrialJobId, id: Option<u64>, parameters: &Parameters) {
        if let (Some(tuner), Some(id)) = (&mut self.tuner, id) {
            tuner.adopt(id, parameters);
        }
        self.notify_launched(trial, id, parameters);
    }

    /// Informs the external adviser of a new trial.
    pub(super) fn notify_launched(
        &mut self,
        trial: &TrialJobId,
        proposal: Option<u64>,
        parameters: &Parameters,
    ) {
        self.send_request(|| AdviserRequest::Launched {
            trial: trial.clone(),
            proposal,
            parameters: parameters.clone(),
        });
    }

    /// Imports results of other searches for the tuner.
    pub(super) fn import(&mut self, samples: Vec<Sample>) {
        if samples.is_empty() {
            return;
        }
        if let Some(tuner) = &mut self.tuner {
            tuner.import(&samples);
        }
        self.send_request(|| AdviserRequest::Import(samples));
    }

    /// Changes the search space. `tuner` is the built-in tuner for the new space, which has learned all earlier
    /// results.
    pub(super) fn change_space(&mut self, space: &Value, tuner: Option<Box<dyn Tuner>>) {
        self.tuner = tuner;
        self.send_request(|| AdviserRequest::Space(space.clone()));
    }

    /// Requests parameters. `None`: the answer arrives as an event.
    pub(super) fn propose(&mut self, id: u64) -> Option<Proposal> {
        match (&mut self.tuner, &self.external) {
            (Some(tuner), _) => Some(tuner.propose(id)),
            (None, Some(external)) => {
                external.send_request(AdviserRequest::Propose { id });
                None
            }
            (None, None) => Some(Proposal::Exhausted),
        }
    }

    /// Passes a new step of a running trial to the assessor, and returns the assessment.
    pub(super) fn assess_step(
        &mut self,
        trial: &TrialJobId,
        sequence: u64,
        value: &MetricValue,
        steps: &Steps,
    ) -> Assessment {
        self.pass_step(trial, sequence, value);
        self.assess(trial, steps)
    }

    /// Judges a running trial by all of its steps. An external assessor sends its assessment as an event instead.
    pub(super) fn assess(&mut self, trial: &TrialJobId, steps: &Steps) -> Assessment {
        match &mut self.assessor {
            Some(assessor) => assessor.assess(trial.as_str(), &steps.history()),
            None => Assessment::Good,
        }
    }

    /// Passes an intermediate result to the external assessor only.
    pub(super) fn pass_step(&mut self, trial: &TrialJobId, sequence: u64, value: &MetricValue) {
        if self.external.as_ref().is_some_and(|external| external.assesses) {
            // NNI's assessors receive numbers, and no other members of an object.
            let number = value.number().unwrap_or(f64::NAN);
            let trial = trial.clone();
            self.send_request(|| AdviserRequest::Step { trial, sequence, value: number.into() });
        }
    }

    /// Returns the bounds at which the assessor will stop a running trial, if at most `others` more trials succeed
    /// meanwhile. `None`: an agent cannot evaluate the assessor's rule.
    pub(super) fn bounds(&self, steps: &Steps, others: usize) -> Option<Bounds> {
        self.assessor.as_ref()?.bounds(steps.history().len(), others)
    }

    /// Returns whether any adviser uses intermediate results.
    pub(super) fn has_assessor(&self) -> bool {
        self.assessor.is_some() || self.external.as_ref().is_some_and(|external| external.assesses)
    }

    /// Reports the end of a trial to the assessor.
    pub(super) fn observe_for_assessor(
        &mut self,
        trial: &TrialJobId,
        state: JobState,
        steps: &Steps,
    ) {
        if let Some(assessor) = &mut self.assessor
            && state != JobState::SysCanceled
        {
            assessor.record_end(trial.as_str(), &steps.history(), state == JobState::Succeeded);
        }
    }

    /// Reports the end of a trial to the tuner.
    pub(super) fn observe(
        &mut self,
        trial: &TrialJobId,
        proposal: Option<u64>,
        state: JobState,
        outcome: &Outcome,
    ) {
        if let (Some(tuner), Some(id)) = (&mut self.tuner, proposal) {
            tuner.observe(id, outcome);
        }
        let result = match outcome {
            Outcome::Result(value) => Some(value.clone()),
            Outcome::Failed => None,
        };
        self.send_request(|| AdviserRequest::Ended { trial: trial.clone(), state, result });
    }

    /// Waits for a message of the external adviser. Never returns if there is no external adviser.
    pub(super) async fn next_event(&mut self) -> AdviserEvent {
        match &mut self.external {
            Some(external) => external.next_event().await,
            None => std::future::pending().await,
        }
    }

    /// Returns the name of the external adviser, for the user.
    pub(super) fn external_name(&self) -> &str {
        self.external.as_ref().map_or("", |external| &external.name)
    }

    /// Returns the name of the external adviser that stops trials.
    pub(super) fn external_assessor_name(&self) -> &str {
        self.external.as_ref().map_or("", |external| &external.assessor_name)
    }

    /// Returns whether the search depends on an external adviser.
    pub(super) fn has_external_tuner(&self) -> bool {
        self.external.as_ref().is_some_and(|external| external.tunes)
    }

    /// Closes the external adviser.
    pub(super) async fn close(&mut self) {
        if let Some(external) = self.external.take() {
            external.close().await;
        }
    }

    fn send_request(&self, request: impl FnOnce() -> AdviserRequest) {
        if let Some(external) = &self.external {
            external.send_request(request());
        }
    }
}
