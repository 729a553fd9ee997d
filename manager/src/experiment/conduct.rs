//! The task that owns an experiment. It turns occurrences into events, lets [`State::step`] decide, and performs the
//! effects one after the other. It makes no decisions itself.
//!
//! Its parts have private fields. The [`Recorder`] writes the store, the [`JobLauncher`] submits jobs, and the
//! [`LeaseMonitor`] watches agents. [`StopRules`] hands them their rules, and the [`Announcer`] informs users.

mod announcer;
mod command;
mod dependencies;
mod ends;
mod inbox;
mod job;
mod launcher;
mod lease_monitor;
mod prepare;
mod recorder;
mod requeue;
mod retry;
mod running_time;
mod stop_rules;
mod transient_errors;
mod user_trials;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{error, info, warn};
use trial_protocol::{
    AttemptId, DirectiveBody, Metric, Report, ReportBody, StopReason, TrialJobId,
};

use self::announcer::Announcer;
pub use self::dependencies::Dependencies;
use self::ends::PendingEnds;
pub use self::inbox::Inbox;
use self::job::Job;
use self::launcher::JobLauncher;
use self::lease_monitor::LeaseMonitor;
use self::recorder::Recorder;
pub use self::recorder::trial_result;
use self::running_time::{RunningTime, sleep_until_wake};
use self::stop_rules::StopRules;
use self::transient_errors::TransientError as _;
use super::advice::Advice;
use super::ending::JobEnd;
use super::notice::Notice;
use super::result::Steps;
use super::state::{self, Effect, ExperimentState, State};
use super::{Handle, TaskEvent};
use crate::advisers::AdviserEvent;
use crate::config::ExperimentSpec;
use crate::job_state::JobState;
use crate::search::assessor::Judgement;
use crate::search::repeats::PointResults;
use crate::search::search_space::Parameters;
use crate::store::{self, NewTrial};
use crate::training_service::{JobNews, JobWaits};
use crate::util::errors::chain;
use crate::util::ids;

/// The code of the note by which an agent reports that it stopped its trial by a rule of the assessor.
const EARLY_STOP: &str = "early-stop";
/// The code of the note by which an agent reports which of several printed metrics it chose as the result.
const OBJECTIVE_CHOSEN: &str = "objective-chosen";
/// The greatest number of events, or of news of jobs, that the task handles together.
const MAX_BATCH: usize = 256;

/// A running experiment.
struct ExperimentTask {
    spec: ExperimentSpec,
    recorder: Recorder,
    launcher: JobLauncher,
    leases: LeaseMonitor,
    rules: StopRules,
    announcer: Announcer,
    /// The tuner and the assessor.
    advice: Advice,
    /// Queues directives for agents.
    handle: Handle,
    /// News from the training service.
    job_news: mpsc::UnboundedReceiver<JobNews>,
    state: State,
    jobs: HashMap<TrialJobId, Job>,
    pending_ends: PendingEnds,
    /// The attempts whose agents have reported the end of their trials, and whose jobs the task need not wait for.
    final_verdicts: Vec<(TrialJobId, AttemptId)>,
    /// The results of the successful trials.
    points: PointResults,
    time: RunningTime,
    /// `true` if the task does not end when the search is done, because wider limits may continue it.
    stays_open: bool,
}

/// Conducts the experiment until it ends, is stopped or is left, and returns its state.
pub async fn conduct(dependencies: Dependencies) -> Result<ExperimentState, store::Error> {
    let mut task = prepare::prepare(dependencies).await?;
    task.time.tell(&task.handle);
    task.add_initial().await?;
    task.perform(state::Event::Begin).await?;
    task.judge_stored().await?;
    let mut news = Vec::new();
    let service = Arc::clone(task.launcher.service());
    let mut out_of_reach = Box::pin(async move { service.out_of_reach().await });
    while !task.has_ended() {
        // The ends of one batch are recorded before the next batch.
        if task.conclude_by_verdicts().await? {
            continue;
        }
        // Reports come before news and deadlines. An agent that reported during a wait for the disk must not count as
        // silent at the next check.
        if let Some(event) = task.recorder.inbox().pop() {
            task.handle_batch(event).await?;
            continue;
        }
        let wake = task.state.next_deadline().map(|at| task.time.moment_of(at));
        let stopping = task.state.state() == ExperimentState::Stopping;
        let done = task.state.state() == ExperimentState::Done;
        let (handle, check) = (task.handle.clone(), task.leases.next_check());
        tokio::select! {
            () = handle.end_requested(), if done => {}
            () = handle.stopped(), if !stopping => {
                task.perform(state::Event::ExperimentStopRequested).await?;
            }
            () = handle.leave_requested(), if !stopping && !handle.is_stop_requested() => {
                // The next manager needs the running time.
                task.record_experiment(task.state.state()).await?;
                break;
            }
            Some(event) = task.recorder.inbox().next() => task.handle_batch(event).await?,
            more @ 1.. = task.job_news.recv_many(&mut news, MAX_BATCH) => {
                debug_assert_eq!(more, news.len());
                task.handle_job_news(std::mem::take(&mut news)).await?;
            }
            event = task.advice.next_event() => task.handle_adviser(event).await?,
            // The next manager takes over the trials that continue. The requests to them are recorded.
            () = &mut out_of_reach, if stopping => break,
            () = sleep_until_wake(wake) => task.perform(state::Event::Tick).await?,
            () = tokio::time::sleep_until(check) => task.check_leases().await?,
        }
    }
    task.advice.close().await;
    task.launcher.close().await;
    Ok(task.state.state())
}

impl ExperimentTask {
    /// Returns whether the task is over. A search that is done may continue until its end is requested.
    fn has_ended(&self) -> bool {
        let waits = self.stays_open && !self.handle.is_end_requested();
        let state = self.state.state();
        state == ExperimentState::Stopped || state == ExperimentState::Done && !waits
    }

    fn elapsed(&self) -> Duration {
        self.time.elapsed()
    }

    fn new_steps(&self) -> Steps {
        Steps::new(self.spec.objective.as_deref())
    }

    /// Handles an event and the waiting ones behind it, in order. Trials that begin at the same time are recorded
    /// together. A commit for one costs as much as for a hundred, and an end waits behind it.
    async fn handle_batch(&mut self, first: TaskEvent) -> Result<(), store::Error> {
        let mut events = vec![first];
        while events.len() < MAX_BATCH
            && let Some(event) = self.recorder.inbox().try_next()
        {
            events.push(event);
        }
        let mut effects = Vec::new();
        for event in &events {
            // Events behind a command are handled after it.
            let TaskEvent::Reported { trial, attempt, fresh } = event else { break };
            self.adopt_first_pod(trial, attempt);
            let started = fresh.iter().find(|report| matches!(report.body, ReportBody::Started(_)));
            let is_current = |job: &&mut Job| job.attempt == *attempt && !job.requeued;
            let Some(job) = self.jobs.get_mut(trial).filter(is_current) else { continue };
            if let Some(started) = started
                && !self.state.is_running(trial)
            {
                job.started_at_ms = Some(started.observed_at_ms);
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

    async fn handle_reports(
        &mut self,
        trial: &TrialJobId,
        attempt: AttemptId,
        fresh: Vec<Report>,
    ) -> Result<(), store::Error> {
        let Some(job) = self.jobs.get(trial) else { return Ok(()) };
        let (current, requeued) = (job.attempt.clone(), job.requeued);
        if ids::is_later(&attempt, &current) || self.is_newer_pod(trial, &attempt, &current).await?
        {
            self.take_over_attempt(trial, attempt).await?;
        } else if requeued || current != attempt && ids::of_old_keeper(&current) != attempt {
            return Ok(());
        }
        self.renew_lease(trial).await?;
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
                self.note_final_verdict(trial, verdict);
            }
        }
        Ok(())
    }

    /// Handles a report, and returns the event that follows from it.
    fn handle_report(&mut self, trial: &TrialJobId, report: &Report) -> Option<state::Event> {
        match &report.body {
            ReportBody::Started(_) => {
                if let Some(job) = self.jobs.get_mut(trial) {
                    job.started_at_ms = Some(report.observed_at_ms);
                }
                Some(state::Event::Started { trial: trial.clone() })
            }
            ReportBody::Metric(metric) => {
                self.state.record_metric();
                self.judge(trial, metric)
            }
            // The agent stopped the trial by a rule of the assessor.
            ReportBody::Note { code, message } if code == EARLY_STOP => {
                self.give_up(trial, message.clone())
            }
            ReportBody::Note { code, message } if code == OBJECTIVE_CHOSEN => {
                self.announcer.notify_of_objective(trial, message);
                None
            }
            ReportBody::Ended(_) => {
                if let Some(job) = self.jobs.get_mut(trial) {
                    job.ended = true;
                }
                None
            }
            ReportBody::Shed(_)
            | ReportBody::Note { .. }
            | ReportBody::Log(_)
            | ReportBody::Sample(_)
            | ReportBody::Unknown => None,
        }
    }

    /// Presents a trial's next step to the assessor.
    fn judge(&mut self, trial: &TrialJobId, metric: &Metric) -> Option<state::Event> {
        if !self.advice.assesses() {
            return None;
        }
        let job = self.jobs.get_mut(trial)?;
        if !job.steps.insert(metric) || job.given_up.is_some() {
            return None;
        }
        // The first metric determines which metric counts, which the assessor's rules need.
        if metric.sequence == 0 {
            self.rules.mark_stale();
        }
        let judgement = self.advice.step(trial, metric.sequence, &metric.value, &job.steps);
        let Judgement::Bad { reason } = judgement else { return None };
        self.give_up(trial, reason)
    }

    /// Judges the running trials by the steps in the store. Steps that agents delivered before this manager read the
    /// store cause no event. The last of them may be a reason to stop its trial.
    async fn judge_stored(&mut self) -> Result<(), store::Error> {
        let runs = |job: &Job| job.submitted && !job.ended && job.given_up.is_none();
        let running = self.jobs.iter().filter(|(_, job)| runs(job));
        let running: Vec<TrialJobId> = running.map(|(trial, _)| trial.clone()).collect();
        for trial in running {
            let Some(job) = self.jobs.get(&trial).filter(|job| !job.steps.history().is_empty())
            else {
                continue;
            };
            if let Judgement::Bad { reason } = self.advice.judge(&trial, &job.steps)
                && let Some(event) = self.give_up(&trial, reason)
            {
                self.perform(event).await?;
            }
        }
        Ok(())
    }

    fn give_up(&mut self, trial: &TrialJobId, reason: String) -> Option<state::Event> {
        let job = self.jobs.get_mut(trial).filter(|job| job.given_up.is_none())?;
        info!(%trial, "the assessor stops the trial: {reason}");
        job.given_up = Some(reason);
        Some(state::Event::StopRequested { trial: trial.clone(), reason: StopReason::EarlyStop })
    }

    /// Handles a message from an external tuner or assessor.
    async fn handle_adviser(&mut self, event: AdviserEvent) -> Result<(), store::Error> {
        let event = match event {
            AdviserEvent::Proposed { id, proposal } => {
                let trial = self.launcher.new_trial_id();
                Some(state::Event::Proposed { parameter_id: id, proposal, trial })
            }
            AdviserEvent::Ready => Some(state::Event::TunerReady),
            AdviserEvent::Kill { trial, reason } => {
                let reason = reason.unwrap_or_else(|| {
                    format!("given up by {}", self.advice.external_assessor_name())
                });
                self.give_up(&trial, reason)
            }
            AdviserEvent::Trouble(trouble) => {
                self.handle_trouble(trouble).await?;
                None
            }
            AdviserEvent::Lost { message } => self.handle_loss(&message).await?,
        };
        match event {
            Some(event) => self.perform(event).await,
            None => Ok(()),
        }
    }

    async fn handle_trouble(&mut self, trouble: Option<String>) -> Result<(), store::Error> {
        // A trouble that holds the search stays visible until the search is resumed.
        let stays = trouble.is_none() && self.state.is_held();
        if self.announcer.trouble() == trouble.as_deref() || stays {
            return Ok(());
        }
        let name = self.advice.external_name();
        let well = || format!("{name} answers again");
        self.announcer.notify(Notice::Message(trouble.clone().unwrap_or_else(well)));
        self.announcer.record_trouble(&mut self.recorder, name, trouble).await
    }

    async fn handle_loss(&mut self, message: &str) -> Result<Option<state::Event>, store::Error> {
        let depends = self.advice.depends();
        let lost = if depends {
            format!(
                "the tuner is lost: {message}; after it is repaired, continue with `trial-manager resume`"
            )
        } else {
            format!("the assessor is lost, so no more trials are stopped early: {message}")
        };
        error!("{lost}");
        let name = self.advice.external_name();
        self.announcer.record_trouble(&mut self.recorder, name, Some(lost)).await?;
        Ok(depends.then_some(state::Event::TunerLost))
    }

    /// Renews the lease of an agent that has reported anything.
    async fn renew_lease(&mut self, trial: &TrialJobId) -> Result<(), store::Error> {
        if self.leases.renew(trial) && self.jobs.get(trial).is_some_and(|job| !job.ended) {
            info!(%trial, "the agent of a lost trial reports again");
            self.recorder.record_state(trial, JobState::Running, None, None).await?;
            let sequence = self.jobs.get(trial).map_or(0, |job| job.sequence);
            self.announcer.notify(Notice::Found { trial: trial.clone(), sequence });
        }
        Ok(())
    }

    /// Renews the agents' rules, and records the trials whose leases have expired.
    async fn check_leases(&mut self) -> Result<(), store::Error> {
        let expired = self.leases.expired();
        self.renew_rules();
        for trial in expired {
            let seconds = self.leases.lease_s();
            if self.jobs.get(&trial).is_some_and(|job| job.ended) {
                info!(%trial, "its job still exists {seconds} s after the end of its command; ending the job");
                self.launcher.service().finish(&trial).await;
                continue;
            }
            let message = format!(
                "its agent has not reported for {seconds} s; its job still exists, and the agent's stored reports \
                 are accepted when it reports again"
            );
            warn!(%trial, "the trial is lost: {message}");
            let text = Some(message.clone());
            self.recorder.record_state(&trial, JobState::Lost, text, None).await?;
            let sequence = self.jobs.get(&trial).map_or(0, |job| job.sequence);
            self.announcer.notify(Notice::Lost { trial, sequence, message });
        }
        Ok(())
    }

    /// Sends a trial's agent the rules that apply even while it cannot reach the manager.
    fn push_rules(&mut self, trial: &TrialJobId) {
        let others = self.state.live().saturating_sub(1);
        let is_stopping = self.state.intent(trial).is_some();
        let Some(job) = self.jobs.get_mut(trial) else { return };
        let rule =
            if is_stopping { None } else { self.rules.assessor_rule(job, &self.advice, others) };
        self.rules.push(trial, job, rule);
    }

    /// Sends agents new rules if the assessor has learned something, or the old rules are about to expire.
    fn renew_rules(&mut self) {
        let others = self.state.live().saturating_sub(1);
        for trial in self.rules.due(&self.jobs) {
            let is_stopping = self.state.intent(&trial).is_some();
            let Some(job) = self.jobs.get_mut(&trial).filter(|_| !is_stopping) else { continue };
            // Without a rule of the assessor nothing has changed, because the agent already has the trial's time limit.
            let rule = self.rules.assessor_rule(job, &self.advice, others);
            if rule.is_some() {
                self.rules.push(&trial, job, rule);
            }
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
                JobNews::PodLeft(pod) => {
                    if self.is_current_submission(&pod.trial, &pod.attempt) {
                        self.handle.departed().insert(&pod.trial, pod.incarnation);
                    }
                }
                JobNews::Image(image)
                    if self.is_current_submission(&image.trial, &image.attempt) =>
                {
                    images.push(image);
                }
                JobNews::Placed(part) if self.is_current_submission(&part.trial, &part.attempt) => {
                    self.recorder.record_part(&part).await?;
                }
                JobNews::Image(_) | JobNews::Placed(_) => {}
            }
        }
        self.handle_ends(gone).await?;
        if !images.is_empty() {
            self.recorder.record_images(images).await?;
        }
        let mut waits = Vec::new();
        for (news, requeued) in waiting {
            if requeued {
                self.record_waits(std::mem::take(&mut waits)).await?;
                self.record_requeue(news).await?;
            } else {
                waits.push(news);
            }
        }
        self.record_waits(waits).await
    }

    /// Records why jobs wait.
    async fn record_waits(&mut self, news: Vec<JobWaits>) -> Result<(), store::Error> {
        let mut waits = Vec::new();
        for JobWaits { trial, attempt, why } in news {
            let job =
                self.jobs.get(&trial).filter(|_| self.is_current_submission(&trial, &attempt));
            // News of other attempts is outdated: the task gave them up before.
            let Some(sequence) = job.map(|job| job.sequence) else { continue };
            // The agent may have started the command meanwhile, which makes the reason obsolete.
            let row = self.recorder.trial(&trial).await?;
            if row.is_some_and(|row| row.state == JobState::Waiting) {
                waits.push((trial, sequence, why));
            }
        }
        if waits.is_empty() {
            return Ok(());
        }
        let reasons = waits.iter().map(|(trial, _, why)| (trial.clone(), why.clone()));
        self.recorder.record_waits(reasons.collect()).await?;
        for (trial, sequence, why) in waits {
            self.announcer.notify(Notice::Waits { trial, sequence, why });
        }
        Ok(())
    }

    async fn perform(&mut self, event: state::Event) -> Result<(), store::Error> {
        let effects = self.state.step(event, self.elapsed());
        self.perform_all(effects).await
    }

    /// Performs effects in order, except that all ends are recorded first and together, because other components wait
    /// for them.
    async fn perform_all(&mut self, effects: Vec<Effect>) -> Result<(), store::Error> {
        let (ends, rest): (Vec<_>, Vec<_>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::RecordEnd { .. }));
        let ends = ends.into_iter().filter_map(|effect| {
            let Effect::RecordEnd { trial, end } = effect else { return None };
            Some((trial, end))
        });
        let news = self.record_ends(ends.collect()).await?;
        let mut effects = VecDeque::from(rest);
        for event in news {
            effects.extend(self.state.step(event, self.elapsed()));
        }
        while let Some(effect) = effects.pop_front() {
            for event in self.perform_next(effect, &mut effects).await? {
                effects.extend(self.state.step(event, self.elapsed()));
            }
        }
        Ok(())
    }

    /// Performs an effect, and those of `rest` that are recorded in the same commit. Returns the resulting events.
    async fn perform_next(
        &mut self,
        effect: Effect,
        rest: &mut VecDeque<Effect>,
    ) -> Result<Vec<state::Event>, store::Error> {
        match effect {
            Effect::Propose { parameter_id } => {
                let Some(proposal) = self.advice.propose(parameter_id) else {
                    return Ok(Vec::new());
                };
                let trial = self.launcher.new_trial_id();
                return Ok(vec![state::Event::Proposed { parameter_id, proposal, trial }]);
            }
            Effect::Launch { trial, sequence, parameter_id, parameters } => {
                let mut new = vec![(trial, sequence, parameter_id, parameters)];
                while let Some(Effect::Launch { trial, sequence, parameter_id, parameters }) =
                    rest.pop_front_if(|next| matches!(next, Effect::Launch { .. }))
                {
                    new.push((trial, sequence, parameter_id, parameters));
                }
                return self.launch(new).await;
            }
            Effect::Enqueue(own) => self.enqueue(own).await?,
            Effect::Relaunch { trial } => return self.relaunch(&trial).await,
            Effect::Retry { trial, message } => self.record_retry(&trial, message).await?,
            Effect::Replace { trial, message } => self.record_replacement(&trial, message).await?,
            Effect::Notify(message) => self.announcer.notify(Notice::Message(message)),
            Effect::Hold(why) => self.announcer.record_hold(&mut self.recorder, why).await?,
            Effect::RecordRunning { trial } => {
                let mut started = vec![trial];
                while let Some(Effect::RecordRunning { trial }) =
                    rest.pop_front_if(|next| matches!(next, Effect::RecordRunning { .. }))
                {
                    started.push(trial);
                }
                self.record_running(started).await?;
            }
            Effect::StopTrial { trial, reason } => {
                let mut stops = vec![(trial, reason)];
                while let Some(Effect::StopTrial { trial, reason }) =
                    rest.pop_front_if(|next| matches!(next, Effect::StopTrial { .. }))
                {
                    stops.push((trial, reason));
                }
                self.stop_trials(&stops).await?;
            }
            Effect::RecordEnd { trial, end } => return self.record_ends(vec![(trial, end)]).await,
            Effect::Observe { trial, parameter_id, state, outcome } => {
                self.advice.observe(&trial, parameter_id, state, &outcome);
            }
            Effect::Teach { trial, result } => self.teach_user_result(&trial, result),
            Effect::RecordState(state) => {
                self.record_experiment(state).await?;
                self.time.follow(state, &self.handle);
                info!(%state, "the state of the experiment has changed");
                self.announcer.notify(Notice::State(state));
            }
        }
        Ok(Vec::new())
    }

    /// Records that trials run, and sends their agents rules.
    async fn record_running(&mut self, trials: Vec<TrialJobId>) -> Result<(), store::Error> {
        let started = trials.iter().map(|trial| {
            let job = self.jobs.get(trial);
            let started_at_ms = job.and_then(|job| job.started_at_ms);
            // If the job's pods report as separate attempts, this is the first record of the pod.
            (trial.clone(), job.map(|job| job.attempt.clone()), started_at_ms)
        });
        let started = started.collect();
        self.recorder.record_running(started).await?;
        for trial in trials {
            self.leases.begin(&trial);
            if let Some(job) = self.jobs.get_mut(&trial) {
                job.running_since = Some(Instant::now());
            }
            self.push_rules(&trial);
            self.announcer.notify(Notice::Running { trial });
        }
        Ok(())
    }

    /// Records why trials must stop, and stops them.
    async fn stop_trials(
        &mut self,
        stops: &[(TrialJobId, StopReason)],
    ) -> Result<(), store::Error> {
        let intent = |(trial, reason): &(TrialJobId, _)| (trial.clone(), Some(*reason));
        let intents: Vec<_> = stops.iter().map(intent).collect();
        self.recorder.record_intents(&intents).await?;
        for (trial, reason) in stops {
            self.push_stop_directive(trial, *reason);
            self.launcher.service().stop(trial).await;
        }
        Ok(())
    }

    fn push_stop_directive(&self, trial: &TrialJobId, reason: StopReason) {
        if let Some(job) = self.jobs.get(trial) {
            let stop = DirectiveBody::Stop { reason, grace_ms: None };
            self.handle.push_directive(trial, &job.attempt, stop);
        }
    }

    /// Records new trials in one commit, and submits them. Returns the ends of those that were refused.
    async fn launch(
        &mut self,
        new: Vec<(TrialJobId, u64, u64, Parameters)>,
    ) -> Result<Vec<state::Event>, store::Error> {
        let (mut rows, mut order) = (Vec::new(), Vec::new());
        for (trial, sequence, parameter_id, parameters) in new {
            self.advice.notify_launched(&trial, Some(parameter_id), &parameters);
            rows.push(NewTrial {
                id: trial.clone(),
                sequence,
                parameter_id: Some(parameter_id),
                parameters: Value::Object(parameters),
                attempt: ids::first_attempt(&trial),
                created_at_ms: self.recorder.now_ms(),
            });
            order.push((trial, parameter_id));
        }
        self.recorder.insert_trials(&rows).await?;
        for NewTrial { id, sequence, parameters, attempt, .. } in rows {
            let job = Job::new(sequence, parameters, attempt, false, self.new_steps());
            self.jobs.insert(id, job);
        }
        let mut refused = Vec::new();
        for (trial, parameter_id) in order {
            refused.extend(self.submit(&trial, Some(parameter_id)).await);
        }
        Ok(refused)
    }

    /// Submits a recorded trial and returns the resulting events. A refusal ends the trial and not the experiment.
    async fn submit(&mut self, trial: &TrialJobId, parameter_id: Option<u64>) -> Vec<state::Event> {
        let Some(job) = self.jobs.get_mut(trial) else { return Vec::new() };
        let submitted = self.launcher.submit(self.recorder.inbox(), trial, job, parameter_id).await;
        let Err(error) = submitted else { return Vec::new() };
        // Such an error is only returned if the experiment must stop: otherwise, the launcher tries again.
        let stop = error.is_transient().then_some(state::Event::ExperimentStopRequested);
        let message = chain(&error);
        warn!(%trial, "the trial could not be submitted: {message}");
        let gone = JobEnd { message: Some(message), ..JobEnd::default() };
        let trial = trial.clone();
        let gone = state::Event::Gone { trial, gone, verdict: None, result: None };
        stop.into_iter().chain([gone]).collect()
    }

    /// Returns whether `attempt` is the submission that the trial waits for.
    fn is_current_submission(&self, trial: &TrialJobId, attempt: &AttemptId) -> bool {
        self.jobs.get(trial).is_some_and(|job| job.is_submission(attempt))
    }

    /// Records the experiment's state.
    async fn record_experiment(&mut self, state: ExperimentState) -> Result<(), store::Error> {
        let elapsed = self.elapsed();
        self.announcer.record_experiment(&mut self.recorder, state, elapsed).await
    }
}

#[cfg(test)]
mod tests;
