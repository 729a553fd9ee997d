//! PURE: the training services of an experiment with several: free room, trials, failures, speed.

use std::collections::HashMap;

use serde::Serialize;
use trial_protocol::AttemptId;
use utoipa::ToSchema;

use super::Snapshot;
use crate::config::HybridPart;
use crate::job_state::JobState;
use crate::store::AttemptPart;
use crate::training_service::PartStatus;
use crate::util::ids;

/// One of several training services, in numbers. A trial counts for the service of its current attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ServicePartView {
    /// The position in the list `trainingService`, from 0.
    pub index: usize,
    /// The service's `platform`.
    pub platform: String,
    /// The number of trials that run there.
    pub running: usize,
    /// The number of trials that were submitted there and wait.
    pub waiting: usize,
    /// The number of trials that it could run in addition. Absence means that the service does not report it, or that
    /// no manager runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<usize>,
    /// The maximum number of its concurrent trials. Absence means no limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The number of trials that succeeded there.
    pub succeeded: usize,
    /// The number of trials that failed or were lost there.
    pub failed: usize,
    /// The mean duration of the succeeded trials, in milliseconds. Absence means that none has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_duration_ms: Option<u64>,
    /// The reason why the service cannot be reached. Absence means that it can, or that no manager runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Returns the services. `status` is empty if no manager runs.
pub fn views(
    parts: &[HybridPart],
    snapshot: &Snapshot,
    placed: &[AttemptPart],
    status: &[PartStatus],
) -> Vec<ServicePartView> {
    let parts = parts.iter().enumerate();
    let mut views: Vec<ServicePartView> =
        parts.map(|(index, part)| without_trials(index, part, status.get(index))).collect();
    let placed: HashMap<(i64, &str), usize> =
        placed.iter().map(|it| ((it.trial, it.attempt.as_str()), it.part.index)).collect();
    let mut durations = vec![(0_u64, 0_u64); views.len()];
    for trial in &snapshot.trials {
        let Ok(attempt) = AttemptId::new(&trial.attempt) else { continue };
        let submitted = ids::submitted_attempt(&attempt);
        let Some(index) = placed.get(&(trial.key, submitted.as_str())) else { continue };
        let Some(view) = views.get_mut(*index) else { continue };
        match trial.state {
            JobState::Running | JobState::Unknown => view.running += 1,
            JobState::Waiting => view.waiting += 1,
            JobState::Failed | JobState::Lost => view.failed += 1,
            JobState::Succeeded => {
                view.succeeded += 1;
                let took = trial.ended_at_ms.zip(trial.started_at_ms);
                let took = took.and_then(|(end, start)| u64::try_from(end - start).ok());
                if let Some(took) = took {
                    durations[*index].0 += took;
                    durations[*index].1 += 1;
                }
            }
            JobState::UserCanceled | JobState::SysCanceled | JobState::EarlyStopped => {}
        }
    }
    for (view, (sum, count)) in views.iter_mut().zip(durations) {
        view.mean_duration_ms = sum.checked_div(count);
    }
    views
}

/// Returns a service without trials.
fn without_trials(index: usize, part: &HybridPart, now: Option<&PartStatus>) -> ServicePartView {
    ServicePartView {
        index,
        platform: part.platform.clone(),
        limit: part.limit,
        free: now.and_then(|now| now.free),
        trouble: now.and_then(|now| now.trouble.clone()),
        ..ServicePartView::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LocalSpec, TrainingServiceSpec};
    use crate::store::ServicePart;

    #[test]
    #[expect(clippy::too_many_lines, reason = "one story")]
    fn each_service_counts_the_trials_of_its_attempts() {
        let part = |platform: &str, limit| HybridPart {
            platform: platform.to_owned(),
            spec: TrainingServiceSpec::Local(LocalSpec {
                use_active_gpu: None,
                max_trial_number_per_gpu: 1,
                gpu_indices: None,
                code_snapshot: true,
            }),
            gpus: None,
            limit,
        };
        let spec = [part("local", Some(2)), part("plugin", None)];
        let mut snapshot = Snapshot::default();
        let trials = [
            (JobState::Succeeded, 100),
            (JobState::Succeeded, 300),
            (JobState::Failed, 1),
            (JobState::Running, 1),
            (JobState::Waiting, 1),
        ];
        let mut placed = Vec::new();
        let at = |index| ServicePart { index, platform: "any".to_owned() };
        for (number, (state, took)) in trials.into_iter().enumerate() {
            let sequence = u64::try_from(number).unwrap();
            let mut trial =
                super::super::trial::tests::summary(i64::try_from(number).unwrap(), sequence);
            trial.state = state;
            (trial.started_at_ms, trial.ended_at_ms) = (Some(1000), Some(1000 + took));
            let attempt = trial.attempt.clone();
            placed.push(AttemptPart {
                trial: trial.key,
                attempt,
                part: at(usize::from(number >= 3)),
            });
            snapshot.trials.push(trial.into());
        }
        // An earlier attempt ran at another service.
        placed.push(AttemptPart { trial: 3, attempt: "t3-0".to_owned(), part: at(0) });
        let status = PartStatus {
            platform: "plugin".to_owned(),
            jobs: 2,
            waiting: 1,
            free: Some(0),
            trouble: Some("it ended".to_owned()),
        };
        let local = PartStatus { free: Some(2), trouble: None, ..status.clone() };
        let views = views(&spec, &snapshot, &placed, &[local, status]);
        let expected = [
            ServicePartView {
                index: 0,
                platform: "local".to_owned(),
                limit: Some(2),
                free: Some(2),
                succeeded: 2,
                failed: 1,
                mean_duration_ms: Some(200),
                ..ServicePartView::default()
            },
            ServicePartView {
                index: 1,
                platform: "plugin".to_owned(),
                running: 1,
                waiting: 1,
                free: Some(0),
                trouble: Some("it ended".to_owned()),
                ..ServicePartView::default()
            },
        ];
        assert_eq!(views, expected);
        assert_eq!(super::views(&spec, &snapshot, &placed, &[])[1].free, None, "no manager runs");
    }
}
