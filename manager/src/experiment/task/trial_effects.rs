//! Performs the effects that concern trials: records them, submits their attempts, and stops them.

use std::collections::VecDeque;

use tokio::time::Instant;
use tracing::info;
use trial_protocol::{AttemptId, StopReason, TrialJobId};

use super::announcer::Announcer;
use super::launcher::JobLauncher;
use super::lease_monitor::LeaseMonitor;
use super::live_trial::LiveTrial;
use super::live_trials::LiveTrials;
use super::new_trials;
use super::pending_ends::{EndedTrial, PendingEnds};
use super::recorder::Recorder;
use super::stop_rules::StopRules;
use super::verdict_ends::VerdictEnds;
use crate::experiment::advisers::Advisers;
use crate::experiment::ending::RecordedEnd;
use crate::experiment::notice::Notice;
use crate::experiment::state::{self, Effect, State, UserTrial};
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::store::{self, NewTrial};
use crate::training_service::JobWait;
use crate::util::ids;

/// Performs the effects that concern trials. An effect is recorded before it is performed.
pub(super) struct TrialEffects<'a> {
    pub(super) state: &'a State,
    pub(super) recorder: &'a mut Recorder,
    pub(super) launcher: &'a mut JobLauncher,
    pub(super) leases: &'a mut LeaseMonitor,
    pub(super) rules: &'a mut StopRules,
    pub(super) announcer: &'a mut Announcer,
    pub(super) advisers: &'a mut Advisers,
    pub(super) trials: &'a mut LiveTrials,
    pub(super) ends: &'a mut PendingEnds,
    pub(super) verdict_ends: &'a mut VerdictEnds,
}

impl TrialEffects<'_> {
    /// Records new trials in one commit, and submits them. Returns the ends of those that were refused.
    pub(super) async fn launch(
        &mut self,
        new: Vec<(TrialJobId, u64, u64, Parameters)>,
    ) -> Result<Vec<state::Event>, store::Error> {
        let created_at_ms = self.recorder.now_ms();
        let order: Vec<_> = new.iter().map(|(trial, _, id, _)| (trial.clone(), *id)).collect();
        let row = |(trial, sequence, id, parameters)| {
            new_trials::new_trial_row(trial, sequence, Some(id), parameters, created_at_ms)
        };
        self.insert_trials(new.into_iter().map(row).collect()).await?;
        let mut refused = Vec::new();
        for (trial, parameter_id) in order {
            refused.extend(self.submit(&trial, Some(parameter_id)).await);
        }
        Ok(refused)
    }

    /// Records new trials of the user.
    pub(super) async fn enqueue(&mut self, own: Vec<UserTrial>) -> Result<(), store::Error> {
        let now = self.recorder.now_ms();
        let row = |UserTrial { trial, sequence, parameters }| {
            new_trials::new_trial_row(trial, sequence, None, parameters, now)
        };
        self.insert_trials(own.into_iter().map(row).collect()).await
    }

    /// Records new trials in one commit.
    async fn insert_trials(&mut self, rows: Vec<NewTrial>) -> Result<(), store::Error> {
        self.recorder.insert_trials(&rows).await?;
        for row in rows {
            if let Some(parameters) = row.parameters.as_object() {
                self.advisers.notify_launched(&row.id, row.parameter_id, parameters);
            }
            self.trials.add_new(row);
        }
        Ok(())
    }

    /// Submits a recorded trial and returns the resulting events. A refusal ends the trial and not the experiment.
    async fn submit(&mut self, trial: &TrialJobId, parameter_id: Option<u64>) -> Vec<state::Event> {
        let Some(job) = self.trials.get_mut(trial) else { return Vec::new() };
        self.launcher.submit(self.recorder.inbox(), trial, job, parameter_id).await
    }

    /// Submits another attempt of a trial.
    pub(super) async fn start_next_attempt(
        &mut self,
        trial: &TrialJobId,
    ) -> Result<Vec<state::Event>, store::Error> {
        let Some(row) = self.recorder.trial(trial).await? else { return Ok(Vec::new()) };
        let Some(attempt) = self.trials.begin_next_attempt(trial) else { return Ok(Vec::new()) };
        self.recorder.record_intents(&[(trial.clone(), None)]).await?;
        self.recorder.record_state(trial, JobState::Waiting, None, Some(attempt)).await?;
        Ok(self.submit(trial, row.parameter_id).await)
    }

    /// Records that trials run, and sends their agents rules.
    pub(super) async fn record_running(
        &mut self,
        trials: Vec<TrialJobId>,
    ) -> Result<(), store::Error> {
        let started = trials.iter().map(|trial| {
            let job = self.trials.get(trial);
            let started_at_ms = job.and_then(LiveTrial::started_at_ms);
            // If the job's pods report as separate attempts, this is the first record of the pod.
            (trial.clone(), job.map(|job| job.attempt().clone()), started_at_ms)
        });
        self.recorder.record_running(started.collect()).await?;
        for trial in trials {
            self.leases.begin(&trial);
            if let Some(job) = self.trials.get_mut(&trial) {
                job.mark_running(Instant::now());
            }
            self.rules.send_rules(&trial, self.trials, self.advisers, self.state);
            self.announcer.notify(Notice::Running { trial });
        }
        Ok(())
    }

    /// Records why trials must stop, and stops them.
    pub(super) async fn stop_trials(
        &mut self,
        stops: &[(TrialJobId, StopReason)],
    ) -> Result<(), store::Error> {
        let intent = |(trial, reason): &(TrialJobId, _)| (trial.clone(), Some(*reason));
        let intents: Vec<_> = stops.iter().map(intent).collect();
        self.recorder.record_intents(&intents).await?;
        for (trial, reason) in stops {
            self.trials.push_stop_directive(trial, *reason);
            self.launcher.service().stop(trial).await;
        }
        Ok(())
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
        self.trials.reserve_next_attempt(trial)
    }

    /// Takes over the attempt of a pod that the cluster has started again. From now on, only the reports of its agent
    /// count, and no longer those of the earlier agent.
    pub(super) async fn take_over_attempt(
        &mut self,
        trial: &TrialJobId,
        attempt: AttemptId,
    ) -> Result<(), store::Error> {
        let Some(earlier) = self.trials.replace_attempt(trial, attempt.clone()) else {
            return Ok(());
        };
        self.verdict_ends.forget_main_end(self.trials, trial);
        if !ids::is_pod_of(&attempt, &earlier) {
            info!(%trial, "the cluster has started its pod again");
        }
        let runs = self.state.is_running(trial);
        let state = if runs { JobState::Running } else { JobState::Waiting };
        self.recorder.record_state(trial, state, None, Some(attempt)).await?;
        // The new agent has not received the directives for the earlier one.
        if let Some(reason) = self.state.intent(trial) {
            self.trials.push_stop_directive(trial, reason);
        }
        if runs {
            self.leases.begin(trial);
            self.rules.send_rules(trial, self.trials, self.advisers, self.state);
        }
        Ok(())
    }

    /// Puts a running trial that its queue evicted back to waiting: another pod will run it from its beginning. Returns
    /// the trial's position, unless the trial does not run.
    pub(super) async fn requeue(&mut self, news: JobWait) -> Result<Option<u64>, store::Error> {
        if !self.trials.is_current_submission(&news.trial, &news.attempt)
            || self.state.intent(&news.trial).is_some()
        {
            return Ok(None);
        }
        // The trial's agent, which had not reported yet, is gone.
        if !self.state.is_running(&news.trial) {
            self.announcer.record_waits(self.trials, self.recorder, vec![news]).await?;
            return Ok(None);
        }
        let JobWait { trial, why, .. } = news;
        info!(%trial, "its queue has taken the trial back: {why}");
        self.leases.end(&trial);
        Ok(self.trials.requeue(&trial))
    }

    /// Records that an evicted trial waits. `sequence` is its position.
    pub(super) async fn record_requeue(
        &mut self,
        trial: TrialJobId,
        sequence: u64,
        why: String,
    ) -> Result<(), store::Error> {
        self.recorder.record_state(&trial, JobState::Waiting, Some(why.clone()), None).await?;
        self.announcer.notify(Notice::Waits { trial, sequence, why });
        Ok(())
    }

    /// Records ends in one commit, and reports them. Returns the points whose results are now complete.
    pub(super) async fn record_ends(
        &mut self,
        ends: Vec<(TrialJobId, RecordedEnd)>,
    ) -> Result<Vec<state::Event>, store::Error> {
        let (mut changes, mut ended) = (Vec::new(), Vec::new());
        for (trial, mut end) in ends {
            self.leases.end(&trial);
            self.trials.remove_ended(&trial);
            let Some(job) = self.trials.get_mut(&trial) else { continue };
            if end.state == JobState::EarlyStopped && job.is_stopped_early() {
                end.message = job.take_reason();
            }
            self.advisers.observe_for_assessor(&trial, end.state, job.steps());
            if let Some(ran) = job.end_run().filter(|_| end.state == JobState::Succeeded) {
                self.rules.record_success(ran);
            }
            let (sequence, parameters) = (job.sequence(), job.parameters().clone());
            let change = self.ends.trial_change(&trial, &end, self.recorder.now_ms());
            changes.push((trial.clone(), change));
            ended.push(EndedTrial { trial, sequence, parameters, end });
        }
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.recorder.record_changes(&changes).await?;
        let known =
            ended.into_iter().filter_map(|ended| self.ends.report_end(ended, self.announcer));
        Ok(known.collect())
    }
}

/// Returns `first` and the content of the effects that follow it, as long as `read` returns it. `read` returns other
/// effects as they are.
pub(super) fn take_alike<T>(
    first: T,
    rest: &mut VecDeque<Effect>,
    read: impl Fn(Effect) -> Result<T, Effect>,
) -> Vec<T> {
    let mut alike = vec![first];
    while let Some(effect) = rest.pop_front() {
        match read(effect) {
            Ok(next) => alike.push(next),
            Err(other) => {
                rest.push_front(other);
                break;
            }
        }
    }
    alike
}

/// Returns the sequence, the tuner's number and the parameters of a trial to launch, or another effect as it is.
pub(super) fn read_launch(effect: Effect) -> Result<(TrialJobId, u64, u64, Parameters), Effect> {
    if let Effect::Launch { trial, sequence, parameter_id, parameters } = effect {
        Ok((trial, sequence, parameter_id, parameters))
    } else {
        Err(effect)
    }
}

/// Returns the trial that is recorded as running, or another effect as it is.
pub(super) fn read_running(effect: Effect) -> Result<TrialJobId, Effect> {
    if let Effect::RecordRunning { trial } = effect { Ok(trial) } else { Err(effect) }
}

/// Returns the trial to stop and the reason, or another effect as it is.
pub(super) fn read_stop(effect: Effect) -> Result<(TrialJobId, StopReason), Effect> {
    if let Effect::StopTrial { trial, reason } = effect { Ok((trial, reason)) } else { Err(effect) }
}
