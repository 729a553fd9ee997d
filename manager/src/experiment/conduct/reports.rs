//! What an experiment's task does with the reports of agents.

use tracing::info;
use trial_protocol::{AttemptId, Cause, ReportBody, TrialJobId, Verdict};

use super::{EARLY_STOP, ExperimentTask, OBJECTIVE_CHOSEN, TOGETHER};
use crate::experiment::Event;
use crate::experiment::notice::Notice;
use crate::experiment::state;
use crate::store;
use crate::training_service::JobEvent;
use crate::util::ids;

impl ExperimentTask {
    /// Takes an event and what has arrived behind it, in order. Of trials that begin at the same time it is recorded
    /// together: a commit costs as much for one as for a hundred, and who has ended waits behind it.
    pub(super) async fn told_all(&mut self, first: Event) -> Result<(), store::Error> {
        let mut events = vec![first];
        while events.len() < TOGETHER
            && let Some(event) = self.deps.inbox.waiting()
        {
            events.push(event);
        }
        let mut effects = Vec::new();
        for event in &events {
            // What a person asks for stands in its place.
            let Event::Reported { trial, attempt, fresh } = event else { break };
            self.adopt_first_pod(trial, attempt);
            let started = fresh.iter().find(|said| matches!(said.body, ReportBody::Started(_)));
            let Some(job) =
                self.jobs.get_mut(trial).filter(|job| job.attempt == *attempt && !job.requeued)
            else {
                continue;
            };
            if let Some(started) = started
                && !self.state.runs(trial)
            {
                job.started_at_ms = Some(started.observed_at_ms);
                let event = state::Event::Started { trial: trial.clone() };
                effects.extend(self.state.step(event, self.elapsed()));
            }
        }
        self.do_all(effects).await?;
        for event in events {
            self.told(event).await?;
        }
        Ok(())
    }

    pub(super) async fn told(&mut self, event: Event) -> Result<(), store::Error> {
        let (trial, attempt, fresh) = match event {
            Event::Reported { trial, attempt, fresh } => (trial, attempt, fresh),
            Event::Commanded { command, reply } => {
                // Who asked may have gone; what was asked for is done all the same.
                self.deps.inbox.asked(reply);
                let answer = Box::pin(self.commanded(command)).await?;
                self.deps.inbox.answer(answer);
                return Ok(());
            }
        };
        let Some(job) = self.jobs.get(&trial) else { return Ok(()) };
        let current = job.attempt.clone();
        if ids::is_later(&attempt, &current)
            || self.is_newer_pod(&trial, &attempt, &current).await?
        {
            self.started_again(&trial, attempt).await?;
        } else if current != attempt && ids::of_old_keeper(&current) != attempt {
            return Ok(());
        } else if self.jobs.get(&trial).is_some_and(|job| job.requeued) {
            return Ok(());
        }
        self.heard(&trial).await?;
        for report in fresh {
            // NNI's own keeper has no word for the start.
            let of_a_run = matches!(
                report.body,
                ReportBody::Metric(_) | ReportBody::Log(_) | ReportBody::Sample(_)
            );
            if of_a_run && !self.state.runs(&trial) {
                self.perform(state::Event::Started { trial: trial.clone() }).await?;
            }
            let event = match &report.body {
                ReportBody::Started(_) => {
                    if let Some(job) = self.jobs.get_mut(&trial) {
                        job.started_at_ms = Some(report.observed_at_ms);
                    }
                    Some(state::Event::Started { trial: trial.clone() })
                }
                ReportBody::Metric(metric) => {
                    self.state.reported();
                    self.judge(&trial, metric)
                }
                // By a rule that it was left.
                ReportBody::Note { code, message } if code == EARLY_STOP => {
                    self.give_up(&trial, message.clone())
                }
                ReportBody::Note { code, message } if code == OBJECTIVE_CHOSEN => {
                    if !std::mem::replace(&mut self.objective_told, true) {
                        self.notify(Notice::Told(format!("trial {trial}: {message}")));
                    }
                    None
                }
                ReportBody::Ended(verdict) => {
                    if let Some(job) = self.jobs.get_mut(&trial) {
                        job.ended = true;
                    }
                    self.conclude_by_verdict(&trial, verdict).await?;
                    None
                }
                ReportBody::Shed(_)
                | ReportBody::Note { .. }
                | ReportBody::Log(_)
                | ReportBody::Sample(_)
                | ReportBody::Unknown => None,
            };
            if let Some(event) = event {
                self.perform(event).await?;
            }
        }
        Ok(())
    }

    /// Takes a pod that speaks for the attempt that was submitted as the attempt's, if it is the first. It is recorded when the
    /// pod's command runs.
    fn adopt_first_pod(&mut self, trial: &TrialJobId, attempt: &AttemptId) {
        let Some(job) = self.jobs.get_mut(trial) else { return };
        if job.requeued || !ids::is_pod_of(attempt, &job.attempt) {
            return;
        }
        self.deps.handle.forget(trial, &job.attempt);
        job.attempt = attempt.clone();
        if let Some(reason) = self.state.intent(trial) {
            self.order_stop(trial, reason);
        }
    }

    /// Returns whether a pod was heard later than the present one first: the names of two do not say which is the later one,
    /// and their clocks need not agree.
    async fn is_newer_pod(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        current: &AttemptId,
    ) -> Result<bool, store::Error> {
        if !ids::is_another_pod(attempt, current) {
            return Ok(false);
        }
        let attempts = self.deps.inbox.patiently(|| self.deps.store.attempts(trial)).await?;
        let place = |of: &AttemptId| attempts.iter().position(|known| known.attempt == *of);
        Ok(place(attempt) > place(current))
    }

    /// Ends a trial whose agent has said how, where its job need not be waited for. A pod that was asked to end says nothing
    /// about its trial: its platform may have taken it away, and may run it again.
    async fn conclude_by_verdict(
        &mut self,
        trial: &TrialJobId,
        verdict: &Verdict,
    ) -> Result<(), store::Error> {
        let is_final = match verdict.cause {
            Cause::Stopped | Cause::Preempted => verdict.stop.is_some(),
            _ => true,
        };
        if !is_final || !self.deps.service.ends_with_verdict() {
            return Ok(());
        }
        let Some(job) = self.jobs.get(trial) else { return Ok(()) };
        let event = JobEvent::unexplained(trial.clone(), job.attempt.clone());
        info!(%trial, "its agent has said how it ended; its job is let go");
        self.deps.service.handed_over(trial).await;
        // It takes in what has arrived, as this does.
        Box::pin(self.gone(vec![event])).await
    }
}
