//! Ends trials by the verdicts of their agents, before their jobs end.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;
use trial_protocol::{
    AttemptId, DirectiveBody, Report, ReportBody, StopReason, TrialJobId, Verdict,
};

use super::live_trials::LiveTrials;
use super::recorder::Recorder;
use crate::experiment::ExperimentHandle;
use crate::experiment::pod_ends::DecidedEnd;
use crate::experiment::state::{ExperimentState, State};
use crate::store;
use crate::training_service::completion::{ReplicaId, TrialCompletion};
use crate::training_service::{JobEndEvent, TrainingService};
use crate::util::ids;

/// The time after which the service ends a job whose trial is decided while some of its pods run. A working controller
/// ends them within seconds.
const DECIDED_JOB_TIMEOUT: Duration = Duration::from_secs(30);

/// Decides the ends of trials by the verdicts of their agents.
pub(super) struct VerdictEnds {
    service: Arc<dyn TrainingService>,
    /// Queues directives for agents.
    handle: ExperimentHandle,
    /// The attempts whose agents have reported the end of their trials, and whose jobs the task need not wait for.
    final_verdicts: Vec<(TrialJobId, AttemptId)>,
}

impl VerdictEnds {
    /// Creates an empty list. The agents of the service's trials receive directives through `handle`.
    pub(super) fn new(service: Arc<dyn TrainingService>, handle: ExperimentHandle) -> Self {
        Self { service, handle, final_verdicts: Vec::new() }
    }

    /// Handles the reports of a pod whose metrics are not the trial's.
    pub(super) fn handle_reports_of_other_pod(
        &mut self,
        trials: &mut LiveTrials,
        trial: &TrialJobId,
        pod: ids::OtherPod,
        fresh: &[Report],
    ) {
        let Some(replica) = trials.get_mut(trial).and_then(|job| job.pods_mut().observe(pod))
        else {
            return;
        };
        for report in fresh {
            match &report.body {
                ReportBody::Ended(verdict) => {
                    self.record_pod_end(trials, trial, replica.clone(), verdict);
                }
                ReportBody::Started(_) => self.stop_decided(trials, trial),
                ReportBody::Metric(_)
                | ReportBody::Shed(_)
                | ReportBody::Note { .. }
                | ReportBody::Log(_)
                | ReportBody::Sample(_)
                | ReportBody::Unknown => {}
            }
        }
    }

    /// Asks the agents of a decided trial's pods to end their commands, as the job's controller will do.
    fn stop_decided(&self, trials: &LiveTrials, trial: &TrialJobId) {
        let Some(job) = trials.get(trial).filter(|job| job.is_decided()) else { return };
        let completion = self.service.completion(trial);
        let runs_main =
            completion.is_some_and(|completion| !job.pods().has_ended(&completion.main));
        let main = (job.attempt().clone(), runs_main);
        let all =
            job.pods().others(&ids::submitted_attempt(job.attempt())).into_iter().chain([main]);
        for (attempt, _) in all.filter(|(_, runs)| *runs) {
            let stop = DirectiveBody::Stop { reason: StopReason::Other, grace_ms: None };
            self.handle.push_directive(trial, &attempt, stop);
        }
    }

    /// Records that the command of the main pod has ended.
    pub(super) fn record_main_end(
        &mut self,
        trials: &mut LiveTrials,
        trial: &TrialJobId,
        verdict: &Verdict,
    ) {
        if let Some(TrialCompletion { main, .. }) = self.service.completion(trial) {
            self.record_pod_end(trials, trial, main, verdict);
        }
    }

    fn record_pod_end(
        &mut self,
        trials: &mut LiveTrials,
        trial: &TrialJobId,
        replica: ReplicaId,
        verdict: &Verdict,
    ) {
        if let Some(job) = trials.get_mut(trial) {
            job.pods_mut().record(replica, verdict);
        }
        self.note_decided_end(trials, trial);
    }

    /// Forgets the end of the main pod's command, because another pod replaces it.
    pub(super) fn forget_main_end(&self, trials: &mut LiveTrials, trial: &TrialJobId) {
        let completion = self.service.completion(trial);
        if let Some((job, completion)) = trials.get_mut(trial).zip(completion) {
            job.pods_mut().remove(&completion.main);
        }
    }

    /// Returns the end of a trial that its agents' verdicts decide.
    fn decided_end(
        &self,
        trials: &LiveTrials,
        trial: &TrialJobId,
    ) -> Option<(DecidedEnd, TrialCompletion)> {
        let completion = self.service.completion(trial)?;
        Some((trials.get(trial)?.pods().decide(&completion)?, completion))
    }

    /// Remembers a trial whose end its agents' verdicts decide.
    fn note_decided_end(&mut self, trials: &mut LiveTrials, trial: &TrialJobId) {
        let decided = self.decided_end(trials, trial).map(|(decided, _)| decided);
        let Some(job) = trials.get_mut(trial) else { return };
        match decided {
            Some(DecidedEnd { is_over: true, .. }) => {
                let noted = (trial.clone(), job.attempt().clone());
                if !self.final_verdicts.contains(&noted) {
                    self.final_verdicts.push(noted);
                }
            }
            Some(DecidedEnd { is_over: false, .. }) => {
                if job.mark_decided() {
                    self.stop_decided(trials, trial);
                }
            }
            None => job.clear_decision(),
        }
    }

    /// Returns the ends of the trials with final verdicts, and forgets them.
    pub(super) async fn take_final_ends(
        &mut self,
        trials: &LiveTrials,
        state: &State,
    ) -> Vec<JobEndEvent> {
        let mut noted = std::mem::take(&mut self.final_verdicts);
        // A search that stops waits for its jobs, because it reports the jobs that it leaves in the cluster.
        let is_interrupted = state.experiment_state() == ExperimentState::Stopping;
        noted.retain(|(trial, attempt)| {
            !is_interrupted && trials.is_current_submission(trial, attempt)
        });
        let mut ends = Vec::new();
        for (trial, attempt) in noted {
            ends.extend(self.final_end(trials, state, &trial, attempt).await);
        }
        ends
    }

    /// Returns the end of a trial, unless it must wait for its job.
    async fn final_end(
        &self,
        trials: &LiveTrials,
        state: &State,
        trial: &TrialJobId,
        attempt: AttemptId,
    ) -> Option<JobEndEvent> {
        let (decided, completion) =
            self.decided_end(trials, trial).filter(|(decided, _)| decided.is_over)?;
        if !state.is_live(trial) || !self.service.accept_verdict_end(trial, decided.certainty).await
        {
            return None;
        }
        info!(%trial, "its agents have reported the end; not waiting for its job");
        let end = trials.get(trial)?.pods().job_end(&decided, &completion);
        Some(JobEndEvent { trial: trial.clone(), attempt, end })
    }

    /// Ends the jobs whose trials were decided long ago while some of their pods run. Their controller is down, or the
    /// pods do not end.
    pub(super) async fn finish_decided_jobs(&self, trials: &mut LiveTrials, state: &State) {
        let mut due = Vec::new();
        for (trial, job) in trials.iter_mut() {
            if job.begin_finishing(DECIDED_JOB_TIMEOUT) {
                due.push(trial.clone());
            }
        }
        for trial in due.into_iter().filter(|trial| state.is_live(trial)) {
            info!(%trial, "its end is decided, and some of its pods still run; ending its job");
            self.service.finish(&trial).await;
        }
    }

    /// Returns the end of a job. If the trial was decided before, and its other pods were asked to end, the pods'
    /// agents explain the end.
    pub(super) fn explain_by_pods(&self, trials: &LiveTrials, event: JobEndEvent) -> JobEndEvent {
        let job = trials.get(&event.trial).filter(|job| job.is_decided());
        if event.end.disruption.is_some() || event.end.succeeded {
            return event;
        }
        match job.zip(self.decided_end(trials, &event.trial)) {
            Some((job, (decided, completion))) => {
                JobEndEvent { end: job.pods().job_end(&decided, &completion), ..event }
            }
            None => event,
        }
    }

    /// Restores the ends of the commands of a live trial's pods from the store.
    pub(super) async fn restore(
        &mut self,
        trials: &mut LiveTrials,
        recorder: &mut Recorder,
        state: &State,
        trial: &TrialJobId,
    ) -> Result<(), store::Error> {
        let Some(completion) = self.service.completion(trial) else { return Ok(()) };
        let Some(main) = trials.get(trial).map(|job| job.attempt().clone()) else { return Ok(()) };
        let submitted = ids::submitted_attempt(&main);
        let attempts = recorder.attempts(trial).await?;
        let verdicts = recorder.verdicts(trial).await?;
        let Some(job) = trials.get_mut(trial) else { return Ok(()) };
        for pod in attempts.iter().filter_map(|attempt| ids::other_pod(attempt, &submitted)) {
            job.pods_mut().observe(pod);
        }
        if !state.is_running(trial) {
            // Its queue evicted the trial, or the trial has not started.
            job.pods_mut().restart();
            return Ok(());
        }
        for (attempt, verdict) in verdicts {
            let replica = match ids::other_pod(&attempt, &submitted) {
                Some(pod) => job.pods_mut().observe(pod),
                None => (attempt == main).then(|| completion.main.clone()),
            };
            if let Some(replica) = replica {
                job.pods_mut().record(replica, &verdict);
            }
        }
        self.note_decided_end(trials, trial);
        Ok(())
    }
}
