//! Test doubles of the task's environment: a training service that starts nothing, and a tuner that keeps its
//! observations.

use std::sync::{Mutex, OnceLock};

use async_trait::async_trait;

use super::*;
use crate::search::search_space::Parameters;
use crate::search::tuner::{Proposal, Sample, Tuner};
use crate::training_service::completion::TrialCompletion;
use crate::training_service::{
    AdoptionResult, JobEndEvent, SubmitError, TrainingService, TrialJobSpec, VerdictCertainty,
};

#[derive(Default)]
pub(super) struct FakeService {
    pub(super) stopped: Mutex<Vec<TrialJobId>>,
    pub(super) finished: Mutex<Vec<TrialJobId>>,
    pub(super) submitted: Mutex<Vec<AttemptId>>,
    pub(super) alive: bool,
    /// Set if the service does not know the jobs of an earlier manager.
    pub(super) has_forgotten_jobs: bool,
    /// The rules by which trials end with their agents' verdicts, before their jobs.
    pub(super) completion: Option<TrialCompletion>,
    /// Set if the service makes trials wait for their jobs.
    pub(super) makes_trials_wait: bool,
    pub(super) handed_over: Mutex<Vec<(TrialJobId, VerdictCertainty)>>,
    /// The remaining reports of a gone job's agent, and the number of times that they were refused.
    pub(super) remaining_reports: Mutex<Option<ReportBatch>>,
    pub(super) refused: Mutex<u32>,
    pub(super) intake: OnceLock<Intake>,
    /// The number of trials that the service can run at a time.
    pub(super) room: Option<usize>,
}

impl FakeService {
    /// Sets the destination of remaining reports.
    pub(super) fn set_intake(&self, intake: &Intake) {
        drop(self.intake.set(intake.clone()));
    }

    async fn deliver_remaining_reports(&self) {
        let Some(left) = self.remaining_reports.lock().unwrap().clone() else { return };
        match self.intake.get().unwrap().accept(left).await {
            Ok(_) => *self.remaining_reports.lock().unwrap() = None,
            Err(_) => *self.refused.lock().unwrap() += 1,
        }
    }
}

#[async_trait]
impl TrainingService for FakeService {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        self.submitted.lock().unwrap().push(job.attempt.clone());
        Ok(())
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> AdoptionResult {
        if self.alive {
            return AdoptionResult::Alive;
        }
        if self.has_forgotten_jobs {
            return AdoptionResult::Unknown;
        }
        self.deliver_remaining_reports().await;
        let (trial, attempt) = (trial.clone(), attempt.clone());
        AdoptionResult::Gone(JobEndEvent::unexplained(trial, attempt))
    }

    async fn recover_reports(&self, _: &TrialJobId) {
        self.deliver_remaining_reports().await;
    }

    async fn stop(&self, trial: &TrialJobId) {
        self.stopped.lock().unwrap().push(trial.clone());
    }

    async fn finish(&self, trial: &TrialJobId) {
        self.finished.lock().unwrap().push(trial.clone());
    }

    fn completion(&self, _: &TrialJobId) -> Option<TrialCompletion> {
        self.completion.clone()
    }

    async fn accept_verdict_end(&self, trial: &TrialJobId, certainty: VerdictCertainty) -> bool {
        self.handed_over.lock().unwrap().push((trial.clone(), certainty));
        !self.makes_trials_wait
    }

    fn capacity(&self) -> Option<usize> {
        self.room
    }

    async fn close(&self) {}
}

#[derive(Debug, Clone, Default)]
pub(super) struct RecordingTuner(pub(super) Arc<Mutex<Vec<Outcome>>>);

impl Tuner for RecordingTuner {
    fn propose(&mut self, _: u64) -> Proposal {
        Proposal::Parameters(Parameters::new())
    }

    fn adopt(&mut self, _: u64, _: &Parameters) {}

    fn observe(&mut self, _: u64, outcome: &Outcome) {
        self.0.lock().unwrap().push(outcome.clone());
    }

    fn import(&mut self, _: &[Sample]) {}
}
