//! Runs one experiment at several training services, its parts. A trial is submitted to a part with room. If the part
//! refuses the trial, or lets it wait, the trial moves to another part.
//!
//! The part of each attempt is recorded in the trial's folder before the attempt is submitted. A resumed manager asks
//! only that part, because an attempt belongs to exactly one part.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, select_all};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use trial_protocol::{AttemptId, Class, TrialJobId, Verdict};

use self::schedule::{RefusalResult, Schedule};
use super::completion::TrialCompletion;
use super::{
    AdoptionResult, FreeRoom, JobEnd, JobEndEvent, JobNews, JobNewsSender, JobPart, JobWait,
    Output, PartStatus, SubmitError, TrainingService, TrialJobSpec, VerdictCertainty,
};
use crate::util::errors::error_chain;
use crate::util::files::{create_private_folder, write_file};
use crate::util::layout::ExperimentDir;

mod platform;
mod schedule;

/// The interval at which the manager reads the parts' room while trials wait.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
/// The name of the file in a trial's folder with the latest attempt and the part that received it.
const PART_FILE: &str = "training-service";

/// The settings of a [`Hybrid`].
pub struct Settings {
    /// The experiment's folder.
    pub dir: ExperimentDir,
    /// The receiver of news of jobs.
    pub events: JobNewsSender,
    /// The parts, in the order of the file.
    pub parts: Vec<PartService>,
}

/// A training service that was started as a part.
pub struct PartService {
    /// The platform of the part.
    pub platform: String,
    /// The greatest number of concurrent trials at the part.
    pub limit: Option<usize>,
    /// The started service.
    pub service: Arc<dyn TrainingService>,
    /// The news of the service.
    pub news: mpsc::UnboundedReceiver<JobNews>,
}

/// Runs trials at several training services.
pub struct Hybrid {
    state: Arc<HybridState>,
}

struct HybridState {
    parts: Vec<StartedPart>,
    dir: ExperimentDir,
    events: JobNewsSender,
    schedule: Mutex<Schedule>,
    /// Held while a job is submitted, stopped or moved, so that no stop overtakes the submit of its job.
    placement_lock: tokio::sync::Mutex<()>,
    changed: Notify,
    ended: CancellationToken,
    tasks: TaskTracker,
}

struct StartedPart {
    platform: String,
    limit: Option<usize>,
    service: Arc<dyn TrainingService>,
}

impl Hybrid {
    /// Creates the service from started parts.
    pub fn start(settings: Settings) -> Self {
        let Settings { dir, events, parts } = settings;
        let names = parts.iter().enumerate().map(|(number, part)| {
            (format!("trainingService[{number}] ({})", part.platform), part.limit)
        });
        let schedule = Mutex::new(Schedule::new(names));
        let (mut own, mut receivers) = (Vec::new(), Vec::new());
        for PartService { platform, limit, service, news } in parts {
            own.push(StartedPart { platform, limit, service });
            receivers.push(news);
        }
        let state = Arc::new(HybridState {
            parts: own,
            dir,
            events,
            schedule,
            placement_lock: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            ended: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        for (number, mut news) in receivers.into_iter().enumerate() {
            let listener = Arc::clone(&state);
            // The task ends with the part, after all of its news.
            tokio::spawn(async move {
                while let Some(news) = news.recv().await {
                    listener.handle_news(number, news);
                }
            });
        }
        let placer = Arc::clone(&state);
        state.tasks.spawn(async move {
            placer.ended.clone().run_until_cancelled(placer.keep_placing()).await;
        });
        Self { state }
    }
}

impl HybridState {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_news(&self, news: JobNews) {
        // The receiver lives as long as the experiment, and later news has no reader.
        drop(self.events.send(news));
    }

    fn rooms(&self) -> Vec<FreeRoom> {
        self.parts.iter().map(|part| part.service.free_room()).collect()
    }

    /// Places trials after each change, and from time to time, because a part does not announce new room.
    async fn keep_placing(&self) {
        loop {
            // A timeout is expected: the room is also read at intervals.
            drop(timeout(ROOM_INTERVAL, self.changed.notified()).await);
            self.move_waiting_trials().await;
            self.place_trials().await;
        }
    }

    /// Submits trials to parts that have room. The trial with the longest wait comes first.
    async fn place_trials(&self) {
        let _guard = self.placement_lock.lock().await;
        loop {
            let rooms = self.rooms();
            let placed = self.schedule().place_next(&rooms, Instant::now());
            let Some((job, part)) = placed else { break };
            self.submit_to(part, &job).await;
        }
        let rooms = self.rooms();
        let waiting = self.schedule().new_wait_reasons(&rooms, Instant::now());
        for (trial, attempt, why) in waiting {
            self.send_news(JobNews::Waits(JobWait { trial, attempt, why }));
        }
    }

    async fn submit_to(&self, part: usize, job: &TrialJobSpec) {
        let (trial, attempt) = (&job.trial, &job.attempt);
        let dir = self.dir.trial(trial);
        let written = create_private_folder(dir.path()).and_then(|()| {
            write_file(&dir.path().join(PART_FILE), 0o600, &format!("{attempt}\n{part}\n"))
        });
        if let Err(error) = written {
            self.schedule().remove(trial, attempt);
            let message = Some(format!("cannot write {}: {error}", dir.path().display()));
            let class = Some(Class::Transient);
            let end = JobEnd { message, class, ..JobEnd::default() };
            let (trial, attempt) = (trial.clone(), attempt.clone());
            return self.send_news(JobNews::Gone(JobEndEvent { trial, attempt, end }));
        }
        self.report_part(trial, attempt, part);
        if let Err(error) = self.parts[part].service.submit(job).await {
            let end = JobEnd { message: Some(error_chain(&error)), ..JobEnd::default() };
            let (trial, attempt) = (trial.clone(), attempt.clone());
            self.handle_refusal(part, JobEndEvent { trial, attempt, end });
        }
    }

    fn report_part(&self, trial: &TrialJobId, attempt: &AttemptId, part: usize) {
        self.send_news(JobNews::Placed(JobPart {
            trial: trial.clone(),
            attempt: attempt.clone(),
            part,
            platform: self.parts[part].platform.clone(),
        }));
    }

    /// Handles a refusal by a part: the job goes to another part, or is gone if all parts have refused it.
    fn handle_refusal(&self, part: usize, mut event: JobEndEvent) {
        let JobEndEvent { trial, attempt, .. } = &event;
        let why = event.end.message.clone().unwrap_or_else(|| "the trial was refused".to_owned());
        match self.schedule().refuse(trial, attempt, part, &why, Instant::now()) {
            RefusalResult::Queued => {
                warn!(%trial, "trainingService[{part}] refuses the trial: {why}; moving it to another part");
                self.changed.notify_one();
            }
            RefusalResult::ByAll(reasons) => {
                event.end.message =
                    Some(format!("no training service accepts the trial: {reasons}"));
                self.send_news(JobNews::Gone(event));
            }
            RefusalResult::Unknown => self.send_news(JobNews::Gone(event)),
        }
    }

    /// Takes back trials that wait at a part while another has room for them.
    async fn move_waiting_trials(&self) {
        let rooms = self.rooms();
        let movable = self.schedule().movable_trials(&rooms, Instant::now());
        for (trial, part) in movable {
            let _guard = self.placement_lock.lock().await;
            if self.schedule().part_of(&trial) == Some(part)
                && self.parts[part].service.withdraw(&trial).await
            {
                info!(%trial, "trainingService[{part}] has not started the trial; moving it to another part");
                self.schedule().requeue(&trial, Instant::now());
                // One trial moves at a time, because the next part may have room for only one.
                return self.changed.notify_one();
            }
        }
    }

    /// Handles the news of a part.
    fn handle_news(&self, part: usize, news: JobNews) {
        match news {
            JobNews::Gone(event) if event.end.refused => return self.handle_refusal(part, event),
            JobNews::Gone(event) => {
                let mut schedule = self.schedule();
                if event.end.exit_code.is_none() && event.end.class.is_some() {
                    schedule.record_failed_start(&event.trial, &event.attempt, Instant::now());
                }
                schedule.remove(&event.trial, &event.attempt);
                drop(schedule);
                self.send_news(JobNews::Gone(event));
            }
            JobNews::Waits(waits) => {
                self.schedule().record_wait(&waits.trial, &waits.attempt, false);
                self.send_news(JobNews::Waits(self.with_part_name(part, waits)));
            }
            JobNews::Requeued(waits) => {
                self.schedule().record_wait(&waits.trial, &waits.attempt, true);
                self.send_news(JobNews::Requeued(self.with_part_name(part, waits)));
            }
            other @ (JobNews::PodLeft(_) | JobNews::Image(_) | JobNews::Placed(_)) => {
                self.send_news(other);
            }
        }
        self.changed.notify_one();
    }

    fn with_part_name(&self, part: usize, waits: JobWait) -> JobWait {
        let platform = &self.parts[part].platform;
        let why = format!("trainingService[{part}] ({platform}): {}", waits.why);
        JobWait { why, ..waits }
    }

    /// Returns the recorded part of a trial, and the attempt that was submitted there.
    fn recorded_part(&self, trial: &TrialJobId) -> Option<(AttemptId, usize)> {
        let text = std::fs::read_to_string(self.dir.trial(trial).path().join(PART_FILE)).ok()?;
        let mut lines = text.lines();
        let attempt = AttemptId::new(lines.next()?).ok()?;
        let part = lines.next()?.parse().ok().filter(|part| *part < self.parts.len())?;
        Some((attempt, part))
    }

    /// Returns the present or last service of a trial.
    fn service_of(&self, trial: &TrialJobId) -> Option<&Arc<dyn TrainingService>> {
        let placed = self.schedule().part_of(trial);
        let part = placed.or_else(|| self.recorded_part(trial).map(|(_, part)| part))?;
        Some(&self.parts[part].service)
    }

    fn part_status(&self, number: usize) -> PartStatus {
        let part = &self.parts[number];
        let (jobs, waiting) = self.schedule().trial_counts(number);
        let beyond_limit = part.limit.map(|limit| limit.saturating_sub(jobs));
        let (room, trouble) = match part.service.free_room() {
            FreeRoom::Unknown => (None, None),
            FreeRoom::Jobs(room) => (Some(room), None),
            FreeRoom::Queue => (Some(0), None),
            FreeRoom::Unreachable(why) => (Some(0), Some(why)),
        };
        // While a trial waits there, a further one would wait, too.
        let behind_waiting = (waiting > 0).then_some(0);
        let free = room.into_iter().chain(beyond_limit).chain(behind_waiting).min();
        PartStatus { platform: part.platform.clone(), jobs, waiting, free, trouble }
    }
}

#[async_trait]
impl TrainingService for Hybrid {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        self.state.schedule().enqueue(job.clone());
        self.state.place_trials().await;
        Ok(())
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> AdoptionResult {
        let recorded = self.state.recorded_part(trial);
        let Some((_, part)) = recorded.filter(|(recorded, _)| recorded == attempt) else {
            return AdoptionResult::Unknown;
        };
        // Must precede the call of `adopt`, because the part's news may arrive before the answer.
        self.state.schedule().take_over(trial, attempt, part);
        let adopted = self.state.parts[part].service.adopt(trial, attempt).await;
        match &adopted {
            // The earlier manager may have died before it recorded the part.
            AdoptionResult::Alive => self.state.report_part(trial, attempt, part),
            AdoptionResult::Gone(_) => self.state.schedule().remove(trial, attempt),
            AdoptionResult::Unknown => {
                let mut schedule = self.state.schedule();
                schedule.remove(trial, attempt);
                // The earlier manager may have submitted the trial there, and its agent may still start.
                schedule.bind(trial, part);
            }
        }
        adopted
    }

    fn end_unadopted(&self) {
        self.state.parts.iter().for_each(|part| part.service.end_unadopted());
    }

    async fn recover_reports(&self, trial: &TrialJobId) {
        if let Some(service) = self.state.service_of(trial) {
            service.recover_reports(trial).await;
        }
    }

    async fn verdict_on_disk(&self, trial: &TrialJobId, attempt: &AttemptId) -> Option<Verdict> {
        self.state.service_of(trial)?.verdict_on_disk(trial, attempt).await
    }

    async fn stop(&self, trial: &TrialJobId) {
        let _guard = self.state.placement_lock.lock().await;
        let queued = self.state.schedule().remove_queued(trial);
        if let Some(attempt) = queued {
            let event = JobEndEvent::unexplained(trial.clone(), attempt);
            return self.state.send_news(JobNews::Gone(event));
        }
        self.state.schedule().request_stop(trial);
        if let Some(service) = self.state.service_of(trial) {
            service.stop(trial).await;
        }
    }

    fn completion(&self, trial: &TrialJobId) -> Option<TrialCompletion> {
        self.state.service_of(trial)?.completion(trial)
    }

    async fn accept_verdict_end(&self, trial: &TrialJobId, certainty: VerdictCertainty) -> bool {
        match self.state.service_of(trial) {
            Some(service) => service.accept_verdict_end(trial, certainty).await,
            None => false,
        }
    }

    async fn finish(&self, trial: &TrialJobId) {
        if let Some(service) = self.state.service_of(trial) {
            service.finish(trial).await;
        }
    }

    async fn output(
        &self,
        trial: &TrialJobId,
        ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        self.state.service_of(trial)?.output(trial, ago).await
    }

    async fn wait_until_out_of_reach(&self) {
        let parts = self.state.parts.iter().map(|part| part.service.wait_until_out_of_reach());
        select_all(parts).await;
    }

    fn capacity(&self) -> Option<usize> {
        let rooms = self.state.parts.iter().map(|part| {
            let limits = part.service.capacity().into_iter().chain(part.limit);
            limits.min()
        });
        rooms.sum()
    }

    fn mark_running(&self, trial: &TrialJobId) {
        let mut schedule = self.state.schedule();
        schedule.mark_running(trial);
        if let Some(part) = schedule.part_of(trial) {
            self.state.parts[part].service.mark_running(trial);
        }
    }

    fn parts(&self) -> Vec<PartStatus> {
        (0..self.state.parts.len()).map(|part| self.state.part_status(part)).collect()
    }

    async fn close(&self) {
        self.state.ended.cancel();
        self.state.tasks.close();
        self.state.tasks.wait().await;
        join_all(self.state.parts.iter().map(|part| part.service.close())).await;
    }
}
