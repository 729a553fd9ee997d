//! The ends of trials, from the end of a job until the end of its trial is recorded and reported. [`ending`] decides
//! the final state of a trial.

use std::collections::HashMap;

use serde_json::Value;
use trial_protocol::{
    AttemptId, Metric, MetricKind, MetricValue, OBJECTIVE, StopReason, TrialJobId, Verdict,
};

use super::announcer::Announcer;
use super::recorder::Recorder;
use crate::config::ExperimentSpec;
use crate::experiment::ending::{self, RecordedEnd};
use crate::experiment::notice::Notice;
use crate::experiment::result::{self, TrialResult};
use crate::experiment::state;
use crate::job_state::JobState;
use crate::search::repeats::PointResults;
use crate::store::{self, FinalRecords, TrialChange, TrialTimes};
use crate::training_service::JobEndEvent;

/// The ends of trials whose jobs have ended, until they are recorded.
pub(super) struct PendingEnds {
    /// The reports of trials that have ended, until their ends are recorded.
    pending: HashMap<TrialJobId, StoredEnd>,
    /// The results of the successful trials.
    points: PointResults,
}

/// The reports of an agent whose trial has ended.
#[derive(Debug, Default)]
struct StoredEnd {
    result: TrialResult,
    verdict: Option<Verdict>,
    started_at_ms: Option<i64>,
}

/// A job that has ended, and the records of its trial.
pub(super) struct EndedJob {
    /// The end of the job.
    pub(super) event: JobEndEvent,
    /// The latest attempt that the agent reported for.
    pub(super) attempt: AttemptId,
    /// The agent's reports. Their verdict may come from the agent's disk.
    pub(super) records: FinalRecords,
    /// The reason for which the trial must stop.
    pub(super) intent: Option<StopReason>,
    /// The metric whose intermediate results count, if it is known.
    pub(super) step_name: Option<String>,
}

/// A trial whose end is recorded.
pub(super) struct EndedTrial {
    pub(super) trial: TrialJobId,
    /// The trial's position in the experiment.
    pub(super) sequence: u64,
    pub(super) parameters: Value,
    pub(super) end: RecordedEnd,
}

impl PendingEnds {
    /// Creates an empty list. `points` are the results of the trials that succeeded before.
    pub(super) fn new(points: PointResults) -> Self {
        Self { pending: HashMap::new(), points }
    }

    /// Returns the event for the end of a job, and keeps the trial's results until the end is recorded.
    pub(super) async fn conclude_job(
        &mut self,
        ended: EndedJob,
        spec: &ExperimentSpec,
        recorder: &mut Recorder,
    ) -> Result<state::Event, store::Error> {
        let EndedJob { event, attempt, records, intent, step_name } = ended;
        let FinalRecords { verdict, metrics, started_at_ms, .. } = records;
        let JobEndEvent { trial, end: job_end, .. } = event;
        let metrics = metrics.iter().map(|row| (&row.attempt, &row.metric));
        let (objective, goals) = (spec.objective.as_deref(), &spec.goals);
        let found = result::pick_result_with_goals(metrics.clone(), &attempt, objective, goals);
        let verdict = match ending::service_verdict(intent, verdict.as_ref(), &job_end) {
            Some(own) => {
                recorder.record_verdict(&trial, &attempt, &own).await?;
                Some(own)
            }
            None => verdict,
        };
        // Such a trial had no chance to report a final result.
        let was_cut_short = intent == Some(StopReason::EarlyStop)
            || ending::has_succeeded_without_pod(intent, verdict.as_ref(), &job_end);
        let found = match derived_metric(&found, step_name).filter(|_| was_cut_short) {
            Some(metric) => {
                recorder.record_derived_metric(&trial, &attempt, &metric).await?;
                let derived = TrialResult { final_value: Some(metric.value), ..found };
                result::apply_goals(derived, metrics, &attempt, objective, goals)
            }
            None => found,
        };
        let result = found.final_value.clone();
        let stored = StoredEnd { result: found, verdict: verdict.clone(), started_at_ms };
        self.pending.insert(trial.clone(), stored);
        let verdict = verdict.map(Box::new);
        Ok(state::Event::JobGone { trial, job_end, verdict, result })
    }

    /// Returns the change of a trial in the store by its end.
    pub(super) fn trial_change(
        &self,
        trial: &TrialJobId,
        end: &RecordedEnd,
        at_ms: i64,
    ) -> TrialChange {
        let stored = self.pending.get(trial);
        let verdict = stored.and_then(|stored| stored.verdict.as_ref());
        // The agent's times are used, because a manager may notice the end hours later.
        let reported = TrialTimes {
            started_at_ms: stored.and_then(|stored| stored.started_at_ms),
            duration_ms: verdict.and_then(|verdict| verdict.duration_ms),
        };
        let (message, exit_code) = (end.message.clone(), end.exit_code);
        TrialChange { state: end.state, at_ms, message, exit_code, attempt: None, reported }
    }

    /// Reports a recorded end. Returns the point if its results are now complete.
    pub(super) fn report_end(
        &mut self,
        ended: EndedTrial,
        announcer: &mut Announcer,
    ) -> Option<state::Event> {
        let EndedTrial { trial, sequence, parameters, end } = ended;
        // A trial that could not be submitted has no reports.
        let StoredEnd { result, verdict, .. } = self.pending.remove(&trial).unwrap_or_default();
        let number = result.final_value.as_ref().and_then(MetricValue::number);
        let number = number.filter(|_| end.state == JobState::Succeeded);
        let point_mean = number.and_then(|number| self.points.add_result(&parameters, number));
        if let Some(mean) = point_mean {
            announcer.update_best(&trial, sequence, &parameters, mean);
        }
        let evidence = verdict.filter(|_| end.state == JobState::Failed);
        let last_lines = evidence.map_or_else(String::new, |Verdict { evidence, .. }| {
            let errors = evidence.stderr_tail.trim();
            if errors.is_empty() { evidence.stdout_tail } else { evidence.stderr_tail }
        });
        let ended = Notice::Ended { trial, sequence, end, result, last_lines, point_mean };
        announcer.notify(ended);
        point_mean.map(|mean| state::Event::PointCompleted { mean })
    }

    /// Forgets the reports of trials that are retried, or that had already ended.
    pub(super) fn forget_pending(&mut self) {
        self.pending.clear();
    }
}

/// Returns the final result that the last intermediate one becomes for a trial without a final result. `step_name` is
/// the metric whose intermediate results count.
fn derived_metric(found: &TrialResult, step_name: Option<String>) -> Option<Metric> {
    let value = found.intermediate.last().filter(|_| found.final_value.is_none())?.clone();
    let name = found.name.clone().or(step_name).unwrap_or_else(|| OBJECTIVE.to_owned());
    Some(Metric { name, kind: MetricKind::Final, sequence: 0, value, derived: true })
}
