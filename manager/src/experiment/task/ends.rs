//! Handles the ends of jobs. Ends at the same time are handled together, since a commit for one costs as much as for a
//! hundred. [`ending`] decides the final state of a trial. An end is recorded as such, or as the wait for another
//! attempt.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use tracing::info;
use trial_protocol::{
    AttemptId, Metric, MetricKind, MetricValue, OBJECTIVE, StopReason, TrialJobId, Verdict,
};

use super::ExperimentTask;
use super::transient_errors::WriteWatch;
use crate::experiment::ending::{self, End, JobEnd};
use crate::experiment::notice::Notice;
use crate::experiment::result::{self, TrialResult};
use crate::experiment::state;
use crate::job_state::JobState;
use crate::store::{self, FinalRecords, Span, TrialChange};
use crate::training_service::JobEvent;

/// The reports of trials that have ended, until their ends are recorded.
pub(super) type PendingEnds = HashMap<TrialJobId, StoredEnd>;

/// The reports of an agent whose trial has ended.
#[derive(Debug, Default)]
pub(super) struct StoredEnd {
    result: TrialResult,
    verdict: Option<Verdict>,
    started_at_ms: Option<i64>,
}

impl ExperimentTask {
    /// Handles the ends of jobs. Their agents' reports come from the store, independent of the order of events.
    pub(super) async fn handle_ends(
        &mut self,
        mut events: Vec<JobEvent>,
    ) -> Result<(), store::Error> {
        // Events of other attempts are outdated: the task gave them up before.
        events.retain(|event| {
            self.jobs.is_current_submission(&event.trial, &event.attempt)
                && self.state.is_live(&event.trial)
        });
        if events.is_empty() {
            return Ok(());
        }
        // Reports that arrived before the end are handled first, above all the start.
        while let Some(event) = self.recorder.inbox().try_next() {
            self.handle_batch(event).await?;
        }
        let attempts: Vec<_> = events.iter().map(|event| self.attempt_of(event)).collect();
        let words = self.final_records(&attempts).await?;
        let mut effects = Vec::new();
        for ((event, (trial, attempt)), words) in events.into_iter().zip(attempts).zip(words) {
            let event = self.end_of_job(event, trial, &attempt, words).await?;
            effects.extend(self.state.step(event, self.elapsed()));
        }
        self.perform_all(effects).await?;
        // Entries of retried trials, and of trials that had already ended, are not used.
        self.pending_ends.clear();
        Ok(())
    }

    /// Returns the event for the end of a job, and keeps the trial's results until the end is recorded.
    async fn end_of_job(
        &mut self,
        event: JobEvent,
        trial: TrialJobId,
        attempt: &AttemptId,
        words: FinalRecords,
    ) -> Result<state::Event, store::Error> {
        let FinalRecords { verdict, metrics, started_at_ms, .. } = words;
        let verdict = match verdict {
            Some(verdict) => Some(verdict),
            None => self.kept_verdict(&trial, attempt).await?,
        };
        if !metrics.is_empty() {
            self.state.record_metric();
        }
        if let Some(verdict) = &verdict
            && verdict.stop == Some(StopReason::EarlyStop)
            && self.state.intent(&trial).is_none()
            && let Some(stop) = self.give_up(&trial, &verdict.message)
        {
            // The agent ended its trial by a rule of an earlier manager, and reported it to that manager.
            self.perform(stop).await?;
        }
        let metrics = metrics.iter().map(|row| (&row.attempt, &row.metric));
        let objective = self.spec.objective.as_deref();
        let found = result::pick_with_goals(metrics.clone(), attempt, objective, &self.spec.goals);
        let gone = JobEnd::of(self.explained_by_pods(event));
        let intent = self.state.intent(&trial);
        let verdict = match ending::service_verdict(intent, verdict.as_ref(), &gone) {
            Some(own) => Some(self.record_verdict(&trial, attempt, own).await?),
            None => verdict,
        };
        // A trial that was stopped had no chance to report a final result.
        let cut = intent == Some(StopReason::EarlyStop)
            || ending::succeeded_without(intent, verdict.as_ref(), &gone);
        let found = if cut && found.last.is_none() {
            let derived = self.derive_result(&trial, attempt, found).await?;
            let (objective, goals) = (self.spec.objective.as_deref(), &self.spec.goals);
            result::with_goals(derived, metrics, attempt, objective, goals)
        } else {
            found
        };
        let result = found.last.clone();
        let words = StoredEnd { result: found, verdict: verdict.clone(), started_at_ms };
        self.pending_ends.insert(trial.clone(), words);
        let verdict = verdict.map(Box::new);
        Ok(state::Event::Gone { trial, gone, verdict, result })
    }

    /// Returns the trial, and the latest attempt that its agent reported for.
    fn attempt_of(&self, event: &JobEvent) -> (TrialJobId, AttemptId) {
        let attempt = self.jobs.get(&event.trial).map_or(&event.attempt, |job| &job.attempt);
        (event.trial.clone(), attempt.clone())
    }

    /// Delivers the remaining reports of gone attempts' agents, and returns the stored reports. If a report could not
    /// be stored, waits for the store and tries again, because a missing report is no evidence of a trial's end.
    async fn final_records(
        &mut self,
        attempts: &[(TrialJobId, AttemptId)],
    ) -> Result<Vec<FinalRecords>, store::Error> {
        loop {
            let words = self.recorder.final_records(attempts).await?;
            if words.iter().all(|words| words.ended) {
                return Ok(words);
            }
            let watch = WriteWatch::begin(self.recorder.store());
            for ((trial, _), _) in attempts.iter().zip(&words).filter(|(_, words)| !words.ended) {
                self.recover(trial).await?;
            }
            if watch.has_accepted_all() {
                return self.recorder.final_records(attempts).await;
            }
            self.recorder.wait_until_writable().await?;
        }
    }

    /// Makes the service deliver an agent's remaining reports. They arrive through the manager's own intake, which must
    /// not wait for the experiment's task meanwhile.
    async fn recover(&mut self, trial: &TrialJobId) -> Result<(), store::Error> {
        let service = Arc::clone(self.launcher.service());
        let recover = service.recover(trial);
        tokio::pin!(recover);
        loop {
            tokio::select! {
                () = &mut recover => return Ok(()),
                Some(event) = self.recorder.inbox().next() => self.handle_event(event).await?,
            }
        }
    }

    /// Returns and records the verdict that the agent kept on disk and the store never received. Such a verdict can
    /// exist because an agent of an earlier version accepts an answer from any server at its manager's address.
    async fn kept_verdict(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<Verdict>, store::Error> {
        match self.launcher.service().kept_verdict(trial, attempt).await {
            Some(verdict) => Ok(Some(self.record_verdict(trial, attempt, verdict).await?)),
            None => Ok(None),
        }
    }

    /// Records a verdict that the agent has not reported.
    async fn record_verdict(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        verdict: Verdict,
    ) -> Result<Verdict, store::Error> {
        self.recorder.record_verdict(trial, attempt, &verdict).await?;
        Ok(verdict)
    }

    /// Returns the results of a stopped trial. The last intermediate result becomes the final one, and is recorded as
    /// derived.
    async fn derive_result(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        found: TrialResult,
    ) -> Result<TrialResult, store::Error> {
        let Some(value) = found.intermediate.last().filter(|_| found.last.is_none()) else {
            return Ok(found);
        };
        let value: MetricValue = value.clone();
        let counted = self.jobs.get(trial).and_then(|job| job.steps.name());
        let name = found.name.clone().or_else(|| counted.map(str::to_owned));
        let metric = Metric {
            name: name.clone().unwrap_or_else(|| OBJECTIVE.to_owned()),
            kind: MetricKind::Final,
            sequence: 0,
            value: value.clone(),
            derived: true,
        };
        self.recorder.record_derived(trial, attempt, &metric).await?;
        Ok(TrialResult { last: Some(value), ..found })
    }

    /// Records ends in one commit, and reports them. Returns the points whose results are now complete.
    pub(super) async fn record_ends(
        &mut self,
        ends: Vec<(TrialJobId, End)>,
    ) -> Result<Vec<state::Event>, store::Error> {
        let (mut changes, mut ended) = (Vec::new(), Vec::new());
        for (trial, mut end) in ends {
            self.leases.end(&trial);
            self.jobs.end(&trial);
            let Some(job) = self.jobs.get_mut(&trial) else { continue };
            if end.state == JobState::EarlyStopped && job.given_up.is_some() {
                end.message = job.given_up.take();
            }
            self.advisers.observe_for_assessor(&trial, end.state, &job.steps);
            let ran = job.running_since.take().map(|since| since.elapsed());
            job.renew_at = None;
            let words = self.pending_ends.get(&trial);
            let verdict = words.and_then(|words| words.verdict.as_ref());
            // The agent's times are used, because a manager may notice the end hours later.
            let span = Span {
                started_at_ms: words.and_then(|words| words.started_at_ms),
                duration_ms: verdict.and_then(|verdict| verdict.duration_ms),
            };
            let change = TrialChange {
                state: end.state,
                at_ms: self.recorder.now_ms(),
                message: end.message.clone(),
                exit_code: end.exit_code,
                attempt: None,
                reported: span,
            };
            changes.push((trial.clone(), change));
            let (sequence, parameters) = (job.sequence, job.parameters.clone());
            if let Some(ran) = ran.filter(|_| end.state == JobState::Succeeded) {
                self.rules.record_success(ran);
            }
            ended.push((trial, sequence, parameters, end));
        }
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.recorder.record_changes(&changes).await?;
        let known = ended.into_iter().filter_map(|end| self.report_end(end));
        let known: Vec<_> = known.collect();
        Ok(if self.spec.trial_repeats > 1 { known } else { Vec::new() })
    }

    /// Records that a trial will be retried, with the number of its next attempt. If the manager dies before that
    /// attempt begins, the next manager submits it, because the store contains no end of that attempt.
    pub(super) async fn record_retry(
        &mut self,
        trial: &TrialJobId,
        message: String,
    ) -> Result<(), store::Error> {
        info!(%trial, "the trial failed: {message}");
        let Some(attempt) = self.reserve_next_attempt(trial) else { return Ok(()) };
        self.recorder.record_retry(trial, message, attempt).await
    }

    /// Records that a trial waits for another attempt, which is no retry.
    pub(super) async fn record_next_attempt(
        &mut self,
        trial: &TrialJobId,
        message: String,
    ) -> Result<(), store::Error> {
        let Some(attempt) = self.reserve_next_attempt(trial) else { return Ok(()) };
        self.recorder.record_state(trial, JobState::Waiting, Some(message), Some(attempt)).await
    }

    fn reserve_next_attempt(&mut self, trial: &TrialJobId) -> Option<AttemptId> {
        self.leases.end(trial);
        self.jobs.reserve_next_attempt(trial)
    }

    /// Reports a recorded end: the trial, its position and its parameters. Returns the point if its results are now
    /// complete.
    fn report_end(
        &mut self,
        (trial, sequence, parameters, end): (TrialJobId, u64, Value, End),
    ) -> Option<state::Event> {
        // A trial that could not be submitted has no reports.
        let StoredEnd { result, verdict, .. } =
            self.pending_ends.remove(&trial).unwrap_or_default();
        let number = result.last.as_ref().and_then(MetricValue::number);
        let number = number.filter(|_| end.state == JobState::Succeeded);
        let competes = number.and_then(|number| self.points.add_result(&parameters, number));
        if let Some(mean) = competes {
            self.announcer.update_best(&trial, sequence, &parameters, mean);
        }
        let evidence = verdict.filter(|_| end.state == JobState::Failed);
        let last_lines = evidence.map_or_else(String::new, |Verdict { evidence, .. }| {
            let errors = evidence.stderr_tail.trim();
            if errors.is_empty() { evidence.stdout_tail } else { evidence.stderr_tail }
        });
        let ended = Notice::Ended { trial, sequence, end, result, last_lines, competes };
        self.announcer.notify(ended);
        competes.map(|mean| state::Event::PointKnown { mean })
    }
}
