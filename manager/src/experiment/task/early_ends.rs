//! Ends trials by the verdicts of their agents, before their jobs end.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;
use trial_protocol::{
    AttemptId, DirectiveBody, Report, ReportBody, StopReason, TrialJobId, Verdict,
};

use super::ExperimentTask;
use super::job::Decided;
use crate::experiment::pod_ends::DecidedEnd;
use crate::experiment::state;
use crate::store;
use crate::training_service::JobEvent;
use crate::training_service::completion::{PodPlace, TrialCompletion};
use crate::util::ids;

/// The time after which the service ends a job whose trial is decided while some of its pods run. A working controller
/// ends them within seconds.
const LINGER_TIME: Duration = Duration::from_secs(30);

impl ExperimentTask {
    /// Handles the reports of a pod whose metrics are not the trial's.
    pub(super) fn handle_reports_of_other_pod(
        &mut self,
        trial: &TrialJobId,
        pod: ids::OtherPod,
        fresh: &[Report],
    ) {
        let Some(place) = self.jobs.get_mut(trial).and_then(|job| job.pods.observe(pod)) else {
            return;
        };
        for report in fresh {
            match &report.body {
                ReportBody::Ended(verdict) => self.record_pod_end(trial, place.clone(), verdict),
                ReportBody::Started(_) => self.stop_decided(trial),
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
    fn stop_decided(&self, trial: &TrialJobId) {
        let Some(job) = self.jobs.get(trial).filter(|job| job.decided.is_some()) else { return };
        let completion = self.launcher.service().completion(trial);
        let runs_main = completion.is_some_and(|completion| !job.pods.has_ended(&completion.main));
        let main = (job.attempt.clone(), runs_main);
        let all = job.pods.others(&ids::submitted(&job.attempt)).into_iter().chain([main]);
        for (attempt, _) in all.filter(|(_, runs)| *runs) {
            let stop = DirectiveBody::Stop { reason: StopReason::Other, grace_ms: None };
            self.handle.push_directive(trial, &attempt, stop);
        }
    }

    /// Records that the command of the main pod has ended.
    pub(super) fn record_main_end(&mut self, trial: &TrialJobId, verdict: &Verdict) {
        if let Some(TrialCompletion { main, .. }) = self.launcher.service().completion(trial) {
            self.record_pod_end(trial, main, verdict);
        }
    }

    fn record_pod_end(&mut self, trial: &TrialJobId, place: PodPlace, verdict: &Verdict) {
        if let Some(job) = self.jobs.get_mut(trial) {
            job.pods.record(place, verdict);
        }
        self.note_decided_end(trial);
    }

    /// Forgets the end of the main pod's command, because another pod has its place.
    pub(super) fn forget_main_end(&mut self, trial: &TrialJobId) {
        let completion = self.launcher.service().completion(trial);
        if let Some((job, completion)) = self.jobs.get_mut(trial).zip(completion) {
            job.pods.remove(&completion.main);
        }
    }

    /// Returns the end of a trial that its agents' verdicts decide.
    fn decided_end(&self, trial: &TrialJobId) -> Option<(DecidedEnd, TrialCompletion)> {
        let completion = self.launcher.service().completion(trial)?;
        Some((self.jobs.get(trial)?.pods.decide(&completion)?, completion))
    }

    /// Remembers a trial whose end its agents' verdicts decide.
    fn note_decided_end(&mut self, trial: &TrialJobId) {
        let decided = self.decided_end(trial).map(|(decided, _)| decided);
        let Some(job) = self.jobs.get_mut(trial) else { return };
        match decided {
            Some(DecidedEnd { is_over: true, .. }) => {
                let noted = (trial.clone(), job.attempt.clone());
                if !self.final_verdicts.contains(&noted) {
                    self.final_verdicts.push(noted);
                }
            }
            Some(DecidedEnd { is_over: false, .. }) if job.decided.is_none() => {
                job.decided = Some(Decided { since: Instant::now(), is_finishing: false });
                self.stop_decided(trial);
            }
            Some(DecidedEnd { is_over: false, .. }) => {}
            None => job.decided = None,
        }
    }

    /// Ends the trials of the final verdicts in one commit. Returns whether there were any.
    pub(super) async fn conclude_by_verdicts(&mut self) -> Result<bool, store::Error> {
        let mut noted = std::mem::take(&mut self.final_verdicts);
        // A search that stops waits for its jobs, because it reports the jobs that it leaves in the cluster.
        let is_interrupted = self.state.state() == state::ExperimentState::Stopping;
        noted.retain(|(trial, attempt)| {
            !is_interrupted && self.jobs.is_current_submission(trial, attempt)
        });
        let mut ends = Vec::new();
        for (trial, attempt) in noted {
            let Some(end) = self.hand_over(&trial, attempt).await else { continue };
            ends.push(end);
        }
        if ends.is_empty() {
            return Ok(false);
        }
        // The future is boxed, because this call handles waiting events, as its caller does.
        Box::pin(self.handle_ends(ends)).await?;
        Ok(true)
    }

    /// Returns the end of a trial, unless it must wait for its job.
    async fn hand_over(&mut self, trial: &TrialJobId, attempt: AttemptId) -> Option<JobEvent> {
        let (decided, completion) =
            self.decided_end(trial).filter(|(decided, _)| decided.is_over)?;
        if !self.state.is_live(trial)
            || !self.launcher.service().hand_over(trial, decided.trust).await
        {
            return None;
        }
        info!(%trial, "its agents have reported the end; not waiting for its job");
        let unexplained = JobEvent::unexplained(trial.clone(), attempt);
        Some(self.jobs.get(trial)?.pods.event(&decided, &completion, unexplained))
    }

    /// Ends the jobs whose trials were decided long ago while some of their pods run. Their controller is down, or the
    /// pods do not end.
    pub(super) async fn finish_decided_jobs(&mut self) {
        let mut due = Vec::new();
        for (trial, job) in self.jobs.iter_mut() {
            let decided = job.decided.as_mut().filter(|decided| !decided.is_finishing);
            if let Some(decided) = decided.filter(|decided| decided.since.elapsed() >= LINGER_TIME)
            {
                decided.is_finishing = true;
                due.push(trial.clone());
            }
        }
        for trial in due.into_iter().filter(|trial| self.state.is_live(trial)) {
            info!(%trial, "its end is decided, and some of its pods still run; ending its job");
            self.launcher.service().finish(&trial).await;
        }
    }

    /// Returns the end of a job. If the trial was decided before, and its other pods were asked to end, the pods' agents
    /// explain the end.
    pub(super) fn explained_by_pods(&self, event: JobEvent) -> JobEvent {
        let job = self.jobs.get(&event.trial).filter(|job| job.decided.is_some());
        if event.disruption.is_some() || event.succeeded {
            return event;
        }
        match job.zip(self.decided_end(&event.trial)) {
            Some((job, (decided, completion))) => {
                let unexplained = JobEvent::unexplained(event.trial, event.attempt);
                job.pods.event(&decided, &completion, unexplained)
            }
            None => event,
        }
    }

    /// Restores the ends of the commands of a live trial's pods from the store.
    pub(super) async fn restore_pod_ends(
        &mut self,
        trial: &TrialJobId,
    ) -> Result<(), store::Error> {
        let Some(completion) = self.launcher.service().completion(trial) else { return Ok(()) };
        let Some(main) = self.jobs.get(trial).map(|job| job.attempt.clone()) else { return Ok(()) };
        let submitted = ids::submitted(&main);
        let attempts = self.recorder.attempts(trial).await?;
        let verdicts = self.recorder.verdicts(trial).await?;
        let runs = self.state.is_running(trial);
        let Some(job) = self.jobs.get_mut(trial) else { return Ok(()) };
        for pod in attempts.iter().filter_map(|attempt| ids::other_pod(attempt, &submitted)) {
            job.pods.observe(pod);
        }
        if !runs {
            // Its queue has taken the trial back, or the trial has not started.
            job.pods.restart();
            return Ok(());
        }
        for (attempt, verdict) in verdicts {
            let place = match ids::other_pod(&attempt, &submitted) {
                Some(pod) => job.pods.observe(pod),
                None => (attempt == main).then(|| completion.main.clone()),
            };
            if let Some(place) = place {
                job.pods.record(place, &verdict);
            }
        }
        self.note_decided_end(trial);
        Ok(())
    }
}
