//! The task that owns an experiment: it turns what happens into events, lets [`State::step`] decide, and
//! performs the effects, one after the other. It decides nothing itself.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{info, warn};
use trial_protocol::{AttemptId, ExperimentId, Metric, ReportBody, StopReason, TrialJobId};

use super::ending::{End, Gone};
use super::notice::Notice;
use super::result::{self, Steps, TrialResult};
use super::state::{self, Effect, ExperimentState, Fate, Limits, Remembered, State};
use super::{Event, Handle};
use crate::assessor::{Assessor, Judgement};
use crate::clock::Clock;
use crate::config::{ExperimentSpec, render_command};
use crate::errors::chain;
use crate::ids;
use crate::job_state::JobState;
use crate::search_space::Parameters;
use crate::store::{self, NewTrial, Store, TrialChange, TrialRow};
use crate::token::Secret;
use crate::training_service::{
    Adopted, JobEvent, Token, TrainingService, TrialJobSpec, parameter_record,
};
use crate::tuner::{Outcome, Tuner};

/// Everything the conductor works with.
pub struct Conductor {
    /// Which experiment.
    pub id: ExperimentId,
    /// What is wanted.
    pub spec: ExperimentSpec,
    /// Where everything is recorded.
    pub store: Store,
    /// What proposes.
    pub tuner: Box<dyn Tuner>,
    /// What gives hopeless trials up, if anything does.
    pub assessor: Option<Box<dyn Assessor>>,
    /// What runs trials.
    pub service: Arc<dyn TrainingService>,
    /// What trial tokens are made from.
    pub secret: Arc<Secret>,
    /// Where directives wait for agents.
    pub handle: Handle,
    /// Events from the handle.
    pub events: mpsc::Receiver<Event>,
    /// Events from the training service.
    pub jobs: mpsc::UnboundedReceiver<JobEvent>,
    /// Who watches.
    pub notices: mpsc::UnboundedSender<Notice>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
}

/// What the conductor keeps of a trial that has not ended.
struct Job {
    sequence: u64,
    parameters: Value,
    attempt: AttemptId,
    /// Whether `attempt` may have been submitted already, so that another run needs a new number.
    submitted: bool,
    /// Intermediate results of the attempt, for the assessor.
    steps: Steps,
    /// Why the assessor gave it up.
    given_up: Option<String>,
}

struct Run {
    c: Conductor,
    state: State,
    jobs: HashMap<TrialJobId, Job>,
    taken: HashSet<TrialJobId>,
    /// Running time before this run, and when this run began.
    before: Duration,
    began: Instant,
}

/// Conducts the experiment to its end, or until it is stopped, and says where it stands then.
pub async fn conduct(conductor: Conductor) -> Result<ExperimentState, store::Error> {
    let mut run = Run::prepare(conductor).await?;
    run.perform(state::Event::Begin).await?;
    while !matches!(run.state.stands(), ExperimentState::Done | ExperimentState::Stopped) {
        let wake = run.state.next_deadline().map(|at| run.began + at.saturating_sub(run.before));
        let stopping = run.state.stands() == ExperimentState::Stopping;
        let handle = run.c.handle.clone();
        tokio::select! {
            () = handle.stopped(), if !stopping => run.perform(state::Event::Stop).await?,
            Some(event) = run.c.events.recv() => run.told(event).await?,
            Some(event) = run.c.jobs.recv() => run.gone(event).await?,
            () = until(wake) => run.perform(state::Event::Tick).await?,
        }
    }
    Ok(run.state.stands())
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Run {
    /// Builds the state from the store: a new experiment has no trials, an interrupted one has.
    async fn prepare(mut c: Conductor) -> Result<Self, store::Error> {
        let limits = Limits {
            concurrency: c.spec.trial_concurrency,
            trials: c.spec.max_trial_number,
            duration: c.spec.max_experiment_duration,
            trial_duration: c.spec.max_trial_duration,
        };
        let before = c.store.experiment().await?.map_or(0, |row| row.elapsed_ms);
        let before = Duration::from_millis(before);
        let began = Instant::now();
        let rows = c.store.trials().await?;
        let taken = rows.iter().map(|row| row.id.clone()).collect();
        let (mut jobs, mut remembered) = (HashMap::new(), Vec::new());
        let mut gone = Vec::new();
        for row in rows {
            let fate = Self::fate(&mut c, &row, &mut gone).await?;
            if fate != Fate::Ended {
                let submitted = fate != Fate::Again || row.state != JobState::Waiting;
                let (sequence, parameters) = (row.sequence, row.parameters.clone());
                let steps = Self::steps(&c.store, &c.spec, &row).await?;
                let attempt = row.attempt.clone();
                let job = Job { sequence, parameters, attempt, submitted, steps, given_up: None };
                jobs.insert(row.id.clone(), job);
            }
            Self::teach(&mut c, &row, fate).await?;
            let (sequence, parameter_id, intent) = (row.sequence, row.parameter_id, row.intent);
            remembered.push(Remembered { trial: row.id, sequence, parameter_id, fate, intent });
        }
        let state = State::resume(limits, before, remembered);
        let mut run = Self { c, state, jobs, taken, before, began };
        for event in gone {
            run.gone(event).await?;
        }
        Ok(run)
    }

    /// Finds out what became of a trial while no manager watched.
    async fn fate(
        c: &mut Conductor,
        row: &TrialRow,
        gone: &mut Vec<JobEvent>,
    ) -> Result<Fate, store::Error> {
        let interrupted = row.intent == Some(StopReason::ManagerShutdown);
        if row.state.is_final() {
            let again = interrupted && row.state != JobState::Succeeded;
            return Ok(if again { Fate::Again } else { Fate::Ended });
        }
        // Reports that arrive meanwhile are in the store before we look there; their events are not
        // needed, but must not fill the channel, or the agent's delivery would wait for us.
        let adopt = c.service.adopt(&row.id, &row.attempt);
        tokio::pin!(adopt);
        let adopted = loop {
            tokio::select! {
                adopted = &mut adopt => break adopted,
                Some(_) = c.events.recv() => {}
            }
        };
        let known = c.store.attempt_state(&row.id, &row.attempt).await?;
        Ok(match adopted {
            Adopted::Alive => {
                let started = row.started_at_ms.filter(|_| known.facts_through.is_some());
                let now = c.clock.now_ms();
                let ran = |at: i64| Duration::from_millis(u64::try_from(now - at).unwrap_or(0));
                Fate::Alive { running_for: started.map(ran) }
            }
            Adopted::Gone if known.ended => {
                let (trial, attempt) = (row.id.clone(), row.attempt.clone());
                gone.push(JobEvent { trial, attempt, exit_code: None, message: None });
                Fate::Alive { running_for: None }
            }
            // Nobody knows of a failure of its own: the machine went down, or a person cleaned up.
            Adopted::Gone | Adopted::Unknown => Fate::Again,
        })
    }

    /// Rebuilds what the tuner knew.
    async fn teach(c: &mut Conductor, row: &TrialRow, fate: Fate) -> Result<(), store::Error> {
        let Some(parameter_id) = row.parameter_id else { return Ok(()) };
        let none = Parameters::new();
        let parameters = row.parameters.as_object().unwrap_or(&none);
        c.tuner.adopt(parameter_id, parameters);
        if fate == Fate::Ended {
            let result = trial_result(&c.store, &c.spec, &row.id, &row.attempt).await?;
            let succeeded = row.state == JobState::Succeeded;
            let number = result.last.filter(|value| succeeded && value.number().is_some());
            let outcome = number.map_or(Outcome::Failed, Outcome::Result);
            c.tuner.observe(parameter_id, &outcome);
            let steps = Self::steps(&c.store, &c.spec, row).await?;
            if let Some(assessor) = &mut c.assessor {
                assessor.ended(&steps.history(), succeeded);
            }
        }
        Ok(())
    }

    /// The intermediate results of a trial's attempt, where an assessor wants them.
    async fn steps(
        store: &Store,
        spec: &ExperimentSpec,
        row: &TrialRow,
    ) -> Result<Steps, store::Error> {
        let mut steps = Steps::new(spec.objective.as_deref());
        if spec.assessor.is_some() {
            let rows = store.metrics(&row.id).await?;
            for known in rows.iter().filter(|known| known.attempt == row.attempt) {
                steps.enter(&known.metric);
            }
        }
        Ok(steps)
    }

    fn elapsed(&self) -> Duration {
        self.before + self.began.elapsed()
    }

    async fn told(&mut self, event: Event) -> Result<(), store::Error> {
        let Event::Reported { trial, attempt, fresh } = event;
        if self.jobs.get(&trial).is_none_or(|job| job.attempt != attempt) {
            return Ok(());
        }
        for report in fresh {
            let event = match &report.body {
                ReportBody::Started(_) => Some(state::Event::Started { trial: trial.clone() }),
                ReportBody::Metric(metric) => self.judge(&trial, metric),
                ReportBody::Ended(_)
                | ReportBody::Shed(_)
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

    /// Asks the assessor about a trial that has taken another step.
    fn judge(&mut self, trial: &TrialJobId, metric: &Metric) -> Option<state::Event> {
        let assessor = self.c.assessor.as_mut()?;
        let job = self.jobs.get_mut(trial)?;
        if !job.steps.enter(metric) || job.given_up.is_some() {
            return None;
        }
        let Judgement::Bad { reason } = assessor.judge(&job.steps.history()) else { return None };
        info!(%trial, "the assessor gives the trial up: {reason}");
        job.given_up = Some(reason);
        Some(state::Event::Cancel { trial: trial.clone(), reason: StopReason::EarlyStop })
    }

    /// A job is gone. The store, not the order in which events came, says what its agent reported.
    async fn gone(&mut self, event: JobEvent) -> Result<(), store::Error> {
        let JobEvent { trial, attempt, exit_code, message } = event;
        if self.jobs.get(&trial).is_none_or(|job| job.attempt != attempt) {
            return Ok(()); // An attempt that was given up before.
        }
        // What an agent said before it went was told before it went: its start, above all.
        while let Ok(event) = self.c.events.try_recv() {
            self.told(event).await?;
        }
        let mut ended = self.c.store.attempt_state(&trial, &attempt).await?.ended;
        if !ended {
            self.recover(&trial).await?;
            ended = self.c.store.attempt_state(&trial, &attempt).await?.ended;
        }
        let verdict = if ended { self.c.store.verdict(&trial).await? } else { None };
        let result = trial_result(&self.c.store, &self.c.spec, &trial, &attempt).await?.last;
        let gone = Gone { exit_code, message };
        let verdict = verdict.map(Box::new);
        self.perform(state::Event::Gone { trial, gone, verdict, result }).await
    }

    /// Lets the service deliver what an agent left; its reports come through our own intake, which must
    /// not wait for us meanwhile.
    async fn recover(&mut self, trial: &TrialJobId) -> Result<(), store::Error> {
        let service = Arc::clone(&self.c.service);
        let recover = service.recover(trial);
        tokio::pin!(recover);
        loop {
            tokio::select! {
                () = &mut recover => return Ok(()),
                Some(event) = self.c.events.recv() => self.told(event).await?,
            }
        }
    }

    async fn perform(&mut self, event: state::Event) -> Result<(), store::Error> {
        let mut effects = VecDeque::from(self.state.step(event, self.elapsed()));
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Propose { parameter_id } => {
                    let proposal = self.c.tuner.propose(parameter_id);
                    let trial = self.fresh_id();
                    let answer = state::Event::Proposed { parameter_id, proposal, trial };
                    effects.extend(self.state.step(answer, self.elapsed()));
                }
                Effect::Launch { trial, sequence, parameter_id, parameters } => {
                    let gone = self.launch(trial, sequence, parameter_id, parameters).await?;
                    effects.extend(
                        gone.map(|gone| self.state.step(gone, self.elapsed())).unwrap_or_default(),
                    );
                }
                Effect::Relaunch { trial } => {
                    let gone = self.relaunch(&trial).await?;
                    effects.extend(
                        gone.map(|gone| self.state.step(gone, self.elapsed())).unwrap_or_default(),
                    );
                }
                Effect::RecordRunning { trial } => {
                    self.record(&trial, JobState::Running, None, None).await?;
                    self.notify(Notice::Running { trial });
                }
                Effect::Stop { trial, reason } => {
                    let now = self.c.clock.now_ms();
                    self.c.store.set_intent(&trial, Some(reason), now).await?;
                    self.c.handle.order_stop(&trial, reason);
                    self.c.service.cancel(&trial).await;
                }
                Effect::RecordEnd { trial, end } => self.record_end(trial, end).await?,
                Effect::Observe { parameter_id, outcome } => {
                    self.c.tuner.observe(parameter_id, &outcome);
                }
                Effect::RecordState(stands) => {
                    let elapsed = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
                    let now = self.c.clock.now_ms();
                    self.c.store.set_experiment_state(stands.as_str(), elapsed, now).await?;
                    info!(state = %stands, "the experiment stands");
                    self.notify(Notice::State(stands));
                }
            }
        }
        Ok(())
    }

    fn fresh_id(&mut self) -> TrialJobId {
        loop {
            let id = ids::trial();
            if self.taken.insert(id.clone()) {
                return id;
            }
        }
    }

    async fn launch(
        &mut self,
        trial: TrialJobId,
        sequence: u64,
        parameter_id: u64,
        parameters: Parameters,
    ) -> Result<Option<state::Event>, store::Error> {
        let attempt = ids::first_attempt(&trial);
        let parameters = Value::Object(parameters);
        let row = NewTrial {
            id: trial.clone(),
            sequence,
            parameter_id: Some(parameter_id),
            parameters: parameters.clone(),
            attempt: attempt.clone(),
            created_at_ms: self.c.clock.now_ms(),
        };
        self.c.store.insert_trial(row).await?;
        let steps = Steps::new(self.c.spec.objective.as_deref());
        let job = Job { sequence, parameters, attempt, submitted: false, steps, given_up: None };
        self.jobs.insert(trial.clone(), job);
        Ok(self.submit(&trial, Some(parameter_id)).await)
    }

    async fn relaunch(&mut self, trial: &TrialJobId) -> Result<Option<state::Event>, store::Error> {
        let Some(row) = self.c.store.trial(trial).await? else { return Ok(None) };
        let Some(job) = self.jobs.get_mut(trial) else { return Ok(None) };
        if job.submitted {
            job.attempt = ids::next_attempt(trial, &job.attempt);
            job.steps = Steps::new(self.c.spec.objective.as_deref());
            job.given_up = None;
        }
        let (attempt, now) = (job.attempt.clone(), self.c.clock.now_ms());
        self.c.store.set_intent(trial, None, now).await?;
        self.record(trial, JobState::Waiting, None, Some(attempt)).await?;
        Ok(self.submit(trial, row.parameter_id).await)
    }

    /// Submits a recorded trial; a refusal is the trial's end, not the experiment's.
    async fn submit(
        &mut self,
        trial: &TrialJobId,
        parameter_id: Option<u64>,
    ) -> Option<state::Event> {
        let job = self.jobs.get_mut(trial)?;
        job.submitted = true;
        let none = Parameters::new();
        let parameters = job.parameters.as_object().unwrap_or(&none);
        let spec = TrialJobSpec {
            experiment: self.c.id.clone(),
            trial: trial.clone(),
            attempt: job.attempt.clone(),
            sequence: job.sequence,
            command: render_command(&self.c.spec.trial_command, parameters),
            parameter_record: parameter_record(parameter_id, &job.parameters),
            token: Token(self.c.secret.trial_token(&self.c.id, trial)),
        };
        match self.c.service.submit(&spec).await {
            Ok(()) => None,
            Err(error) => {
                let message = chain(&error);
                warn!(%trial, "the trial could not be submitted: {message}");
                let gone = Gone { exit_code: None, message: Some(message) };
                let trial = trial.clone();
                Some(state::Event::Gone { trial, gone, verdict: None, result: None })
            }
        }
    }

    async fn record_end(&mut self, trial: TrialJobId, mut end: End) -> Result<(), store::Error> {
        self.c.handle.forget(&trial);
        let Some(job) = self.jobs.get_mut(&trial) else { return Ok(()) };
        if end.state == JobState::EarlyStopped && job.given_up.is_some() {
            end.message = job.given_up.take();
        }
        if let Some(assessor) = &mut self.c.assessor
            && end.state != JobState::SysCanceled
        {
            assessor.ended(&job.steps.history(), end.state == JobState::Succeeded);
        }
        let (sequence, attempt) = (job.sequence, job.attempt.clone());
        let change = TrialChange {
            state: end.state,
            at_ms: self.c.clock.now_ms(),
            message: end.message.clone(),
            exit_code: end.exit_code,
            attempt: None,
        };
        self.c.store.change_trial(&trial, change).await?;
        let result = trial_result(&self.c.store, &self.c.spec, &trial, &attempt).await?;
        let mut last_lines = String::new();
        if end.state == JobState::Failed
            && let Some(verdict) = self.c.store.verdict(&trial).await?
        {
            let evidence = verdict.evidence;
            let errors = evidence.stderr_tail.trim();
            last_lines =
                if errors.is_empty() { evidence.stdout_tail } else { evidence.stderr_tail };
        }
        self.notify(Notice::Ended { trial, sequence, end, result, last_lines });
        Ok(())
    }

    async fn record(
        &mut self,
        trial: &TrialJobId,
        state: JobState,
        message: Option<String>,
        attempt: Option<AttemptId>,
    ) -> Result<(), store::Error> {
        let at_ms = self.c.clock.now_ms();
        let change = TrialChange { state, at_ms, message, exit_code: None, attempt };
        self.c.store.change_trial(trial, change).await
    }

    fn notify(&self, notice: Notice) {
        // Nobody need be watching.
        drop(self.c.notices.send(notice));
    }
}

/// Reads a trial's results from the store.
pub async fn trial_result(
    store: &Store,
    spec: &ExperimentSpec,
    trial: &TrialJobId,
    attempt: &AttemptId,
) -> Result<TrialResult, store::Error> {
    let rows = store.metrics(trial).await?;
    let metrics = rows.iter().map(|row| (&row.attempt, &row.metric));
    Ok(result::pick(metrics, attempt, spec.objective.as_deref()))
}
