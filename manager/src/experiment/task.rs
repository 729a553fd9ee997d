//! The task that owns an experiment. It turns occurrences into events, lets [`State::step`] decide, and performs the
//! effects one after the other. It makes no decisions itself.
//!
//! Its parts have private fields:
//!
//! * [`Recorder`] writes the store.
//! * [`JobLauncher`] submits jobs.
//! * [`LeaseMonitor`] watches agents.
//! * [`StopRules`] sends agents their rules.
//! * [`Announcer`] informs users.
//! * [`LiveTrials`] has the trials that have not ended.
//! * [`PendingEnds`] has the ends of trials until they are recorded.
//! * [`VerdictEnds`] ends trials by the verdicts of their agents.
//!
//! Two further ones borrow these parts for one event: [`CommandHandler`] checks the commands of users, and
//! [`TrialEffects`] performs the effects that concern trials.

mod announcer;
mod assessments;
mod command;
mod dependencies;
mod inbox;
mod launcher;
mod lease_monitor;
mod live_trial;
mod live_trials;
mod new_trials;
mod pending_ends;
mod prepare;
mod recorder;
mod running_time;
mod stop_rules;
mod stored_trials;
mod transient_errors;
mod trial_effects;
mod verdict_ends;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tracing::{info, warn};
use trial_protocol::{AttemptId, MetricValue, Report, ReportBody, StopReason, TrialJobId, Verdict};

use self::announcer::Announcer;
use self::assessments::{assess_step, assess_stored_steps, stop_early};
use self::command::{CommandHandler, PreparedCommand};
pub use self::dependencies::Dependencies;
pub use self::inbox::Inbox;
use self::launcher::JobLauncher;
use self::lease_monitor::LeaseMonitor;
use self::live_trial::LiveTrial;
use self::live_trials::LiveTrials;
use self::pending_ends::{EndedJob, PendingEnds};
use self::recorder::Recorder;
pub use self::recorder::trial_result;
use self::running_time::{RunningTime, sleep_until_wake};
use self::stop_rules::StopRules;
use self::transient_errors::WriteWatch;
use self::trial_effects::{TrialEffects, take_alike};
use self::verdict_ends::VerdictEnds;
use super::advisers::Advisers;
use super::command::{Command, CommandError};
use super::ending::RecordedEnd;
use super::notice::Notice;
use super::state::{self, Effect, ExperimentState, State, UserChange};
use super::{ExperimentHandle, TaskEvent};
use crate::advisers::AdviserEvent;
use crate::config::ExperimentSpec;
use crate::search::tuner::Sample;
use crate::store::{self, FinalRecords};
use crate::training_service::{JobEndEvent, JobNews, JobWait};
use crate::util::ids;

/// The code of the note by which an agent reports that it stopped its trial by a rule of the assessor.
const EARLY_STOP_NOTE: &str = "early-stop";
/// The code of the note by which an agent reports which of several printed metrics it chose as the result.
const OBJECTIVE_CHOSEN_NOTE: &str = "objective-chosen";
/// The greatest number of events, or of news of jobs, that the task handles together.
const MAX_BATCH_EVENTS: usize = 256;

/// A running experiment.
struct ExperimentTask {
    spec: ExperimentSpec,
    recorder: Recorder,
    launcher: JobLauncher,
    leases: LeaseMonitor,
    rules: StopRules,
    announcer: Announcer,
    /// The tuner and the assessor.
    advisers: Advisers,
    handle: ExperimentHandle,
    /// News from the training service.
    job_news: mpsc::UnboundedReceiver<JobNews>,
    state: State,
    trials: LiveTrials,
    ends: PendingEnds,
    verdict_ends: VerdictEnds,
    time: RunningTime,
    /// `true` if the task does not end when the search is done, because wider limits may continue it.
    stays_open: bool,
}

/// Conducts the experiment until it ends, is stopped or is left, and returns its state.
pub async fn run_experiment(dependencies: Dependencies) -> Result<ExperimentState, store::Error> {
    let mut task = prepare::prepare_task(dependencies).await?;
    task.time.publish(&task.handle);
    task.queue_initial_points().await?;
    task.perform(state::Event::Begin).await?;
    for stop in assess_stored_steps(&mut task.trials, &mut task.advisers) {
        task.perform(stop).await?;
    }
    let mut news = Vec::new();
    let service = Arc::clone(task.launcher.service());
    let mut out_of_reach = Box::pin(async move { service.wait_until_out_of_reach().await });
    while !task.has_ended() {
        // The ends of one batch are recorded before the next batch.
        if task.conclude_by_verdicts().await? {
            continue;
        }
        // Reports come before news and deadlines. An agent that reported during a wait for the disk must not count as
        // silent at the next check.
        if let Some(event) = task.recorder.inbox().pop_kept() {
            task.handle_batch(event).await?;
            continue;
        }
        let wake = task.state.next_deadline().map(|at| task.time.moment_of(at));
        let stopping = task.state.experiment_state() == ExperimentState::Stopping;
        let done = task.state.experiment_state() == ExperimentState::Done;
        let (handle, check) = (task.handle.clone(), task.leases.next_check());
        tokio::select! {
            () = handle.wait_for_end(), if done => {}
            () = handle.wait_for_stop(), if !stopping => {
                task.perform(state::Event::ExperimentStopRequested).await?;
            }
            () = handle.wait_for_leave(), if !stopping && !handle.is_stop_requested() => {
                // The next manager needs the running time.
                task.record_experiment_state(task.state.experiment_state()).await?;
                break;
            }
            Some(event) = task.recorder.inbox().next() => task.handle_batch(event).await?,
            1.. = task.job_news.recv_many(&mut news, MAX_BATCH_EVENTS) => {
                task.handle_job_news(std::mem::take(&mut news)).await?;
            }
            event = task.advisers.next_event() => task.handle_adviser(event).await?,
            // The next manager takes over the trials that continue. The requests to them are recorded.
            () = &mut out_of_reach, if stopping => break,
            () = sleep_until_wake(wake) => task.perform(state::Event::Tick).await?,
            () = sleep_until(check) => {
                task.rules.renew_rules(&mut task.trials, &task.advisers, &task.state);
                let (trials, service) = (&task.trials, task.launcher.service());
                task.leases.check(trials, service, &mut task.recorder, &task.announcer).await?;
                task.verdict_ends.finish_decided_jobs(&mut task.trials, &task.state).await;
                if let Some(elapsed) = task.time.take_due() {
                    task.recorder.record_running_time(elapsed).await;
                }
            }
        }
    }
    task.advisers.close().await;
    task.launcher.close().await;
    Ok(task.state.experiment_state())
}

impl ExperimentTask {
    /// Returns whether the task is over. A search that is done may continue until its end is requested.
    fn has_ended(&self) -> bool {
        let waits = self.stays_open && !self.handle.is_end_requested();
        let state = self.state.experiment_state();
        state == ExperimentState::Stopped || state == ExperimentState::Done && !waits
    }

    fn elapsed(&self) -> Duration {
        self.time.elapsed()
    }

    /// Queues the points of the experiment file, all or none, before any other trial.
    async fn queue_initial_points(&mut self) -> Result<(), store::Error> {
        let is_new = self.state.next_sequence() == 0
            && self.state.experiment_state() == ExperimentState::Running;
        if !is_new || self.spec.initial_trials.is_empty() {
            return Ok(());
        }
        let seed = self.recorder.store().experiment().row().await?.map_or(0, |row| row.seed);
        let points = new_trials::initial_points(&self.spec, seed).into_iter();
        let points = points.map(|parameters| (self.launcher.new_trial_id(), parameters)).collect();
        let effects = self.state.apply_change(UserChange::AddTrials(points), self.elapsed());
        self.perform_all(effects).await
    }

    /// Handles an event and the waiting ones behind it, in order. Trials that begin at the same time are recorded
    /// together. A commit for one costs as much as for a hundred, and an end waits behind it.
    async fn handle_batch(&mut self, first: TaskEvent) -> Result<(), store::Error> {
        let mut events = vec![first];
        while events.len() < MAX_BATCH_EVENTS
            && let Some(event) = self.recorder.inbox().try_next()
        {
            events.push(event);
        }
        let mut effects = Vec::new();
        for event in &events {
            // Events behind a command are handled after it.
            let TaskEvent::Reported { trial, attempt, fresh } = event else { break };
            self.trials.adopt_first_pod(trial, attempt, self.state.intent(trial));
            let started = fresh.iter().find(|report| matches!(report.body, ReportBody::Started(_)));
            let is_current = |job: &LiveTrial| job.attempt() == attempt && !job.is_requeued();
            if let Some(started) = started
                && self.trials.get(trial).is_some_and(is_current)
                && !self.state.is_running(trial)
            {
                self.trials.record_start(trial, started.observed_at_ms);
                let event = state::Event::Started { trial: trial.clone() };
                effects.extend(self.state.step(event, self.elapsed()));
            }
        }
        self.perform_all(effects).await?;
        for event in events {
            self.handle_event(event).await?;
        }
        Ok(())
    }

    async fn handle_event(&mut self, event: TaskEvent) -> Result<(), store::Error> {
        match event {
            TaskEvent::Reported { trial, attempt, fresh } => {
                self.handle_reports(&trial, attempt, fresh).await
            }
            TaskEvent::Command { command, reply } => {
                // The command must see the trials whose agents have reported their ends as ended.
                self.conclude_by_verdicts().await?;
                // The caller may no longer wait, but the command is carried out.
                self.recorder.inbox().set_caller(reply);
                let answer = Box::pin(self.handle_command(command)).await?;
                self.recorder.inbox().answer(answer);
                Ok(())
            }
        }
    }

    /// Carries out a command, or returns the reason for a refusal. An error of the store concerns the experiment.
    async fn handle_command(
        &mut self,
        command: Command,
    ) -> Result<Result<(), CommandError>, store::Error> {
        let handler = CommandHandler {
            spec: &mut self.spec,
            recorder: &self.recorder,
            launcher: &mut self.launcher,
            trials: &mut self.trials,
            state: &self.state,
            advisers: &mut self.advisers,
            announcer: &self.announcer,
            stays_open: self.stays_open,
        };
        match handler.prepare(command).await {
            Ok(PreparedCommand::Event(event)) => self.perform(event).await?,
            Ok(PreparedCommand::UserChange(change)) => {
                let requested = change.clone();
                let effects = self.state.apply_change(change, self.elapsed());
                if let UserChange::Rerun(trial) = requested
                    && !effects.contains(&Effect::StartNextAttempt { trial: trial.clone() })
                {
                    // Recorded at once, so that the caller sees the waiting trial, and a later manager runs it. This
                    // does not count as a failure.
                    let message = "it waits to run again at the user's request".to_owned();
                    self.trial_effects().record_next_attempt(&trial, message).await?;
                }
                self.perform_all(effects).await?;
            }
            Ok(PreparedCommand::Directive(trial, body)) => self.trials.push_directive(&trial, body),
            Err(refused) => return Ok(Err(refused)),
        }
        Ok(Ok(()))
    }

    async fn handle_reports(
        &mut self,
        trial: &TrialJobId,
        attempt: AttemptId,
        fresh: Vec<Report>,
    ) -> Result<(), store::Error> {
        let Some(job) = self.trials.get(trial) else { return Ok(()) };
        let (current, requeued) = (job.attempt().clone(), job.is_requeued());
        if let Some(pod) = ids::other_pod(&attempt, &ids::submitted_attempt(&current)) {
            self.verdict_ends.handle_reports_of_other_pod(&mut self.trials, trial, pod, &fresh);
            return Ok(());
        }
        if ids::is_later(&attempt, &current)
            || self.recorder.is_newer_pod(trial, &attempt, &current).await?
        {
            self.trial_effects().take_over_attempt(trial, attempt).await?;
        } else if requeued || current != attempt && ids::legacy_attempt(&current) != attempt {
            return Ok(());
        }
        self.leases
            .record_renewal(trial, &self.trials, &mut self.recorder, &self.announcer)
            .await?;
        self.launcher.service().mark_running(trial);
        for report in fresh {
            // NNI's own keeper does not report the start.
            let is_of_a_run = matches!(
                report.body,
                ReportBody::Metric(_) | ReportBody::Log(_) | ReportBody::Sample(_)
            );
            if is_of_a_run && !self.state.is_running(trial) {
                self.perform(state::Event::Started { trial: trial.clone() }).await?;
            }
            if let Some(event) = self.handle_report(trial, &report) {
                self.perform(event).await?;
            }
            if let ReportBody::Ended(verdict) = &report.body {
                self.verdict_ends.record_main_end(&mut self.trials, trial, verdict);
            }
        }
        Ok(())
    }

    /// Handles a report, and returns the event that follows from it.
    fn handle_report(&mut self, trial: &TrialJobId, report: &Report) -> Option<state::Event> {
        match &report.body {
            ReportBody::Started(_) => {
                self.trials.record_start(trial, report.observed_at_ms);
                Some(state::Event::Started { trial: trial.clone() })
            }
            ReportBody::Metric(metric) => {
                self.state.record_metric();
                let (trials, advisers, rules) =
                    (&mut self.trials, &mut self.advisers, &mut self.rules);
                assess_step(trials, advisers, rules, trial, metric)
            }
            // The agent stopped the trial by a rule of the assessor.
            ReportBody::Note { code, message } if code == EARLY_STOP_NOTE => {
                stop_early(&mut self.trials, trial, message)
            }
            ReportBody::Note { code, message } if code == OBJECTIVE_CHOSEN_NOTE => {
                self.announcer.notify_of_objective(trial, message);
                None
            }
            ReportBody::Ended(_) => {
                self.trials.record_end(trial);
                None
            }
            ReportBody::Shed(_)
            | ReportBody::Note { .. }
            | ReportBody::Log(_)
            | ReportBody::Sample(_)
            | ReportBody::Unknown => None,
        }
    }

    /// Handles a message from an external tuner or assessor.
    async fn handle_adviser(&mut self, event: AdviserEvent) -> Result<(), store::Error> {
        let event = match event {
            AdviserEvent::Proposed { id, proposal } => {
                let trial = self.launcher.new_trial_id();
                Some(state::Event::Proposed { parameter_id: id, proposal, trial })
            }
            AdviserEvent::Ready => Some(state::Event::TunerReady),
            AdviserEvent::StopTrial { trial, reason } => {
                let reason = reason.unwrap_or_else(|| {
                    format!("stopped early by {}", self.advisers.external_assessor_name())
                });
                stop_early(&mut self.trials, &trial, &reason)
            }
            AdviserEvent::Trouble(trouble) => {
                // A trouble that holds the search stays visible until the search is resumed.
                if trouble.is_some() || !self.state.is_held() {
                    let name = self.advisers.external_name();
                    self.announcer.report_trouble(&mut self.recorder, name, trouble).await?;
                }
                None
            }
            AdviserEvent::Lost { message } => {
                let (name, tunes) =
                    (self.advisers.external_name(), self.advisers.has_external_tuner());
                self.announcer.record_loss(&mut self.recorder, name, &message, tunes).await?;
                tunes.then_some(state::Event::TunerLost)
            }
        };
        match event {
            Some(event) => self.perform(event).await,
            None => Ok(()),
        }
    }

    /// Handles news from the training service, ends first. Similar news is recorded together, because the ends of the
    /// next batch wait for every commit.
    async fn handle_job_news(&mut self, news: Vec<JobNews>) -> Result<(), store::Error> {
        let (mut gone, mut waiting, mut images) = (Vec::new(), Vec::new(), Vec::new());
        for news in news {
            match news {
                JobNews::Gone(event) => gone.push(event),
                JobNews::Waits(waits) => waiting.push((waits, false)),
                JobNews::Requeued(waits) => waiting.push((waits, true)),
                JobNews::PodLeft(pod)
                    if self.trials.is_current_submission(&pod.trial, &pod.attempt) =>
                {
                    self.handle.departed().insert(&pod.trial, pod.incarnation);
                }
                JobNews::Image(image)
                    if self.trials.is_current_submission(&image.trial, &image.attempt) =>
                {
                    images.push(image);
                }
                JobNews::Placed(part)
                    if self.trials.is_current_submission(&part.trial, &part.attempt) =>
                {
                    self.recorder.record_service_part(&part).await?;
                }
                JobNews::PodLeft(_) | JobNews::Image(_) | JobNews::Placed(_) => {}
            }
        }
        self.handle_ends(gone).await?;
        if !images.is_empty() {
            self.recorder.record_images(images).await?;
        }
        let mut waits = Vec::new();
        for (news, requeued) in waiting {
            if requeued {
                self.announcer
                    .record_waits(&self.trials, &mut self.recorder, std::mem::take(&mut waits))
                    .await?;
                self.handle_requeue(news).await?;
            } else {
                waits.push(news);
            }
        }
        self.announcer.record_waits(&self.trials, &mut self.recorder, waits).await
    }

    /// Puts a running trial that its queue evicted back to waiting.
    async fn handle_requeue(&mut self, news: JobWait) -> Result<(), store::Error> {
        let (trial, why) = (news.trial.clone(), news.why.clone());
        let Some(sequence) = self.trial_effects().requeue(news).await? else { return Ok(()) };
        self.perform(state::Event::Requeued { trial: trial.clone() }).await?;
        self.trial_effects().record_requeue(trial, sequence, why).await
    }

    /// Ends the trials of the final verdicts in one commit. Returns whether there were any.
    async fn conclude_by_verdicts(&mut self) -> Result<bool, store::Error> {
        let ends = self.verdict_ends.take_final_ends(&self.trials, &self.state).await;
        if ends.is_empty() {
            return Ok(false);
        }
        // The future is boxed, because this call handles waiting events, as its caller does.
        Box::pin(self.handle_ends(ends)).await?;
        Ok(true)
    }

    /// Handles the ends of jobs together, since a commit for one costs as much as for a hundred. Their agents' reports
    /// come from the store, independent of the order of events.
    async fn handle_ends(&mut self, mut events: Vec<JobEndEvent>) -> Result<(), store::Error> {
        // Events of other attempts are outdated: the task gave them up before.
        events.retain(|event| {
            self.trials.is_current_submission(&event.trial, &event.attempt)
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
        let records = self.final_records(&attempts).await?;
        let mut effects = Vec::new();
        for ((event, (_, attempt)), records) in events.into_iter().zip(attempts).zip(records) {
            let event = self.judge_end(event, attempt, records).await?;
            effects.extend(self.state.step(event, self.elapsed()));
        }
        self.perform_all(effects).await?;
        self.ends.forget_pending();
        Ok(())
    }

    /// Returns the trial, and the latest attempt that its agent reported for.
    fn attempt_of(&self, event: &JobEndEvent) -> (TrialJobId, AttemptId) {
        let attempt = self.trials.get(&event.trial).map_or(&event.attempt, LiveTrial::attempt);
        (event.trial.clone(), attempt.clone())
    }

    /// Returns the event for the end of a job.
    async fn judge_end(
        &mut self,
        event: JobEndEvent,
        attempt: AttemptId,
        mut records: FinalRecords,
    ) -> Result<state::Event, store::Error> {
        let trial = event.trial.clone();
        if records.verdict.is_none() {
            records.verdict = self.recover_kept_verdict(&trial, &attempt).await?;
        }
        if !records.metrics.is_empty() {
            self.state.record_metric();
        }
        if let Some(verdict) = &records.verdict
            && verdict.stop == Some(StopReason::EarlyStop)
            && self.state.intent(&trial).is_none()
            && let Some(stop) = stop_early(&mut self.trials, &trial, &verdict.message)
        {
            // The agent ended its trial by a rule of an earlier manager, and reported it to that manager.
            self.perform(stop).await?;
        }
        let event = self.verdict_ends.explain_by_pods(&self.trials, event);
        let intent = self.state.intent(&trial);
        let step_name =
            self.trials.get(&trial).and_then(|job| job.steps().name()).map(str::to_owned);
        let ended = EndedJob { event, attempt, records, intent, step_name };
        self.ends.conclude_job(ended, &self.spec, &mut self.recorder).await
    }

    /// Returns and records the verdict that the agent kept on disk and the store never received. Such a verdict can
    /// exist because an agent of an earlier version accepts an answer from any server at its manager's address.
    async fn recover_kept_verdict(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<Verdict>, store::Error> {
        let verdict = self.launcher.service().verdict_on_disk(trial, attempt).await;
        if let Some(verdict) = &verdict {
            self.recorder.record_verdict(trial, attempt, verdict).await?;
        }
        Ok(verdict)
    }

    /// Delivers the remaining reports of gone attempts' agents, and returns the stored reports. If a report could not
    /// be stored, waits for the store and tries again, because a missing report is no evidence of a trial's end.
    async fn final_records(
        &mut self,
        attempts: &[(TrialJobId, AttemptId)],
    ) -> Result<Vec<FinalRecords>, store::Error> {
        loop {
            let records = self.recorder.final_records(attempts).await?;
            if records.iter().all(|records| records.ended) {
                return Ok(records);
            }
            let watch = WriteWatch::begin(self.recorder.store());
            let missing = attempts.iter().zip(&records).filter(|(_, records)| !records.ended);
            for ((trial, _), _) in missing {
                self.recover_reports(trial).await?;
            }
            if watch.has_accepted_all() {
                return self.recorder.final_records(attempts).await;
            }
            self.recorder.wait_until_writable().await?;
        }
    }

    /// Makes the service deliver an agent's remaining reports. They arrive through the manager's own intake, which must
    /// not wait for the experiment's task meanwhile.
    async fn recover_reports(&mut self, trial: &TrialJobId) -> Result<(), store::Error> {
        let service = Arc::clone(self.launcher.service());
        let recover = service.recover_reports(trial);
        tokio::pin!(recover);
        loop {
            tokio::select! {
                () = &mut recover => return Ok(()),
                Some(event) = self.recorder.inbox().next() => self.handle_event(event).await?,
            }
        }
    }

    async fn perform(&mut self, event: state::Event) -> Result<(), store::Error> {
        let effects = self.state.step(event, self.elapsed());
        self.perform_all(effects).await
    }

    /// Performs effects in order, except that all ends are recorded first and together, because other components wait
    /// for them.
    async fn perform_all(&mut self, effects: Vec<Effect>) -> Result<(), store::Error> {
        let (mut ends, mut rest) = (Vec::new(), VecDeque::new());
        for effect in effects {
            if let Effect::RecordEnd { trial, end } = effect {
                ends.push((trial, end));
            } else {
                rest.push_back(effect);
            }
        }
        let mut effects = rest;
        for event in self.record_ends(ends).await? {
            effects.extend(self.state.step(event, self.elapsed()));
        }
        while let Some(effect) = effects.pop_front() {
            for event in self.perform_next(effect, &mut effects).await? {
                effects.extend(self.state.step(event, self.elapsed()));
            }
        }
        Ok(())
    }

    /// Records ends in one commit, and reports them. Returns the points whose results are now complete.
    async fn record_ends(
        &mut self,
        ends: Vec<(TrialJobId, RecordedEnd)>,
    ) -> Result<Vec<state::Event>, store::Error> {
        let known = self.trial_effects().record_ends(ends).await?;
        Ok(if self.spec.trial_repeats > 1 { known } else { Vec::new() })
    }

    /// Returns the performer of effects that concern trials.
    fn trial_effects(&mut self) -> TrialEffects<'_> {
        TrialEffects {
            state: &self.state,
            recorder: &mut self.recorder,
            launcher: &mut self.launcher,
            leases: &mut self.leases,
            rules: &mut self.rules,
            announcer: &mut self.announcer,
            advisers: &mut self.advisers,
            trials: &mut self.trials,
            ends: &mut self.ends,
            verdict_ends: &mut self.verdict_ends,
        }
    }

    /// Performs an effect, and those of `rest` that are recorded in the same commit. Returns the resulting events.
    async fn perform_next(
        &mut self,
        effect: Effect,
        rest: &mut VecDeque<Effect>,
    ) -> Result<Vec<state::Event>, store::Error> {
        match effect {
            Effect::Propose { parameter_id } => {
                return Ok(Vec::from_iter(self.propose(parameter_id)));
            }
            Effect::Launch { trial, sequence, parameter_id, parameters } => {
                let first = (trial, sequence, parameter_id, parameters);
                let new = take_alike(first, rest, trial_effects::read_launch);
                return self.trial_effects().launch(new).await;
            }
            Effect::Enqueue(own) => self.trial_effects().enqueue(own).await?,
            Effect::StartNextAttempt { trial } => {
                return self.trial_effects().start_next_attempt(&trial).await;
            }
            Effect::RecordRetry { trial, message } => {
                self.trial_effects().record_retry(&trial, message).await?;
            }
            Effect::RecordReplacement { trial, message } => {
                warn!(%trial, "another attempt replaces the present one: {message}");
                self.trial_effects().record_next_attempt(&trial, message).await?;
            }
            Effect::Notify(message) => self.announcer.notify(Notice::Message(message)),
            Effect::Hold(why) => self.announcer.record_hold(&mut self.recorder, why).await?,
            Effect::RecordRunning { trial } => {
                let started = take_alike(trial, rest, trial_effects::read_running);
                self.trial_effects().record_running(started).await?;
            }
            Effect::StopTrial { trial, reason } => {
                let stops = take_alike((trial, reason), rest, trial_effects::read_stop);
                self.trial_effects().stop_trials(&stops).await?;
            }
            Effect::RecordEnd { trial, end } => return self.record_ends(vec![(trial, end)]).await,
            Effect::Observe { trial, parameter_id, state, outcome } => {
                self.advisers.observe(&trial, parameter_id, state, &outcome);
            }
            Effect::ObserveUserTrial { trial, result } => self.report_to_tuner(&trial, result),
            Effect::RecordState(state) => {
                self.record_experiment_state(state).await?;
                self.time.follow_state(state, &self.handle);
                info!(%state, "the state of the experiment has changed");
                self.announcer.notify(Notice::State(state));
            }
        }
        Ok(Vec::new())
    }

    /// Reports the result of a trial of the user to the tuner.
    fn report_to_tuner(&mut self, trial: &TrialJobId, value: MetricValue) {
        let parameters = self.trials.parameters(trial);
        let sample = parameters.map(|parameters| Sample { parameters, value });
        self.advisers.import(Vec::from_iter(sample));
    }

    fn propose(&mut self, parameter_id: u64) -> Option<state::Event> {
        let proposal = self.advisers.propose(parameter_id)?;
        let trial = self.launcher.new_trial_id();
        Some(state::Event::Proposed { parameter_id, proposal, trial })
    }

    /// Records the experiment's state with its running time.
    async fn record_experiment_state(
        &mut self,
        state: ExperimentState,
    ) -> Result<(), store::Error> {
        let elapsed = self.elapsed();
        self.announcer.record_experiment_state(&mut self.recorder, state, elapsed).await
    }
}

#[cfg(test)]
mod tests;
