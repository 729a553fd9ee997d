//! The task that owns an experiment: it turns what happens into events, lets [`State::step`] decide, and
//! performs the effects, one after the other. It decides nothing itself.

mod announce;
mod command;
mod gone;
mod inbox;
mod jobs;
mod own;
mod patience;
mod prepare;
mod rules;
mod silence;
mod steer;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{error, info};
use trial_protocol::{
    AttemptId, DirectiveBody, ExperimentId, Metric, ReportBody, StopReason, TrialJobId,
};

pub use self::gone::trial_result;
pub use self::inbox::Inbox;
use super::advice::Advice;
use super::code_recorder::CodeRecorder;
use super::lease::Leases;
use super::notice::Notice;
use super::result::Steps;
use super::state::{self, Effect, ExperimentState, State};
use super::{Event, Handle};
use crate::advisers::AdviserEvent;
use crate::config::ExperimentSpec;
use crate::notifications::OutboxWaker;
use crate::notifications::event::Best;
use crate::search::assessor::Judgement;
use crate::store::{self, Store};
use crate::token::Secret;
use crate::training_service::{JobNews, TrainingService};
use crate::util::clock::Clock;
use crate::util::ids;

/// The note of an agent that has stopped its trial by a rule of the assessor's.
const EARLY_STOP: &str = "early-stop";
/// The code of the note with which an agent says which of several printed metrics it took for the result.
const OBJECTIVE_CHOSEN: &str = "objective-chosen";
/// The most news of jobs that is taken together.
const TOGETHER: usize = 256;

/// Everything the conductor works with.
pub struct Dependencies {
    /// Which experiment.
    pub id: ExperimentId,
    /// The specification.
    pub spec: ExperimentSpec,
    /// Where everything is recorded.
    pub store: Store,
    /// The tuner and the assessor.
    pub advice: Advice,
    /// The service that runs trials.
    pub service: Arc<dyn TrainingService>,
    /// Records the code that attempts are started with. `None`: trials do not run in the code directory itself.
    pub code: Option<CodeRecorder>,
    /// The secret from which trials' tokens are made.
    pub secret: Arc<Secret>,
    /// Where directives wait for agents.
    pub handle: Handle,
    /// The messages of the handle.
    pub inbox: Inbox,
    /// Events from the training service.
    pub jobs: mpsc::UnboundedReceiver<JobNews>,
    /// Rings when others are to be told of something.
    pub waker: OutboxWaker,
    /// The receiver of notices.
    pub notices: mpsc::UnboundedSender<Notice>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The time that an agent may be silent before its trial is `LOST`.
    pub lease: Duration,
}

/// The state of a trial that has not ended.
struct Job {
    sequence: u64,
    parameters: Value,
    attempt: AttemptId,
    /// `true` if `attempt` may have been submitted already, so that another run needs a new number.
    submitted: bool,
    /// Intermediate results of the attempt, for the assessor.
    steps: Steps,
    /// Why the assessor gave it up.
    given_up: Option<String>,
    /// Since when it has run, as far as this manager knows.
    running_since: Option<Instant>,
    /// When its agent says that the attempt was started.
    started_at_ms: Option<i64>,
    /// When the assessor's rules that its agent was left are to be renewed.
    renew_at: Option<Instant>,
    /// Its agent has said that the attempt's command has ended.
    ended: bool,
}

impl Job {
    fn new(
        sequence: u64,
        parameters: Value,
        attempt: AttemptId,
        submitted: bool,
        steps: Steps,
    ) -> Self {
        Self {
            sequence,
            parameters,
            attempt,
            submitted,
            steps,
            given_up: None,
            running_since: None,
            started_at_ms: None,
            renew_at: None,
            ended: false,
        }
    }
}

struct ExperimentTask {
    deps: Dependencies,
    state: State,
    jobs: HashMap<TrialJobId, Job>,
    taken: HashSet<TrialJobId>,
    leases: Leases,
    /// The reports of trials whose end is being recorded.
    known: gone::Known,
    /// The best trial so far.
    best: Option<Best>,
    /// The trouble with a tuner or an assessor outside, as the store has it.
    trouble: Option<String>,
    /// When silence was last looked at.
    beat_at: Instant,
    /// The time that the trial ran that succeeded soonest.
    shortest: Option<Duration>,
    /// It was said which metric an agent took for the result.
    objective_told: bool,
    /// The assessor has learnt something since agents were left rules.
    news: bool,
    /// Running time before this run, and when this run began.
    before: Duration,
    began: Instant,
}

/// Conducts the experiment to its end, or until it is stopped or left, and says where it stands then.
pub async fn conduct(conductor: Dependencies) -> Result<ExperimentState, store::Error> {
    let mut run = ExperimentTask::prepare(conductor).await?;
    run.deps.handle.began(run.before, run.began);
    run.add_initial().await?;
    run.perform(state::Event::Begin).await?;
    run.judge_stored().await?;
    let mut news = Vec::new();
    let service = Arc::clone(&run.deps.service);
    let mut out_of_reach = Box::pin(async move { service.out_of_reach().await });
    while !matches!(run.state.stands(), ExperimentState::Done | ExperimentState::Stopped) {
        // First, or who spoke while a disk was waited for would be silent in the next beat's eyes.
        if let Some(event) = run.deps.inbox.pop() {
            run.told_all(event).await?;
            continue;
        }
        let wake = run.state.next_deadline().map(|at| run.began + at.saturating_sub(run.before));
        let stopping = run.state.stands() == ExperimentState::Stopping;
        let (handle, beat) = (run.deps.handle.clone(), run.next_beat());
        tokio::select! {
            () = handle.stopped(), if !stopping => run.perform(state::Event::Stop).await?,
            () = handle.left(), if !stopping && !handle.is_to_stop() => {
                // How long it has run counts for the next manager.
                run.record_state(run.state.stands()).await?;
                break;
            }
            Some(event) = run.deps.inbox.next() => run.told_all(event).await?,
            more @ 1.. = run.deps.jobs.recv_many(&mut news, TOGETHER) => {
                debug_assert_eq!(more, news.len());
                run.news(std::mem::take(&mut news)).await?;
            }
            said = run.deps.advice.heard() => run.advised(said).await?,
            // What runs on is the next manager's; what it was asked is recorded.
            () = &mut out_of_reach, if stopping => break,
            () = until(wake) => run.perform(state::Event::Tick).await?,
            () = tokio::time::sleep_until(beat) => run.beat().await?,
        }
    }
    run.deps.advice.close().await;
    if let Some(code) = run.deps.code.take() {
        code.close().await;
    }
    Ok(run.state.stands())
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl ExperimentTask {
    fn elapsed(&self) -> Duration {
        self.before + self.began.elapsed()
    }

    /// Takes an event and what has arrived behind it, in order. Of trials that begin at the same time it is recorded
    /// together: a commit costs as much for one as for a hundred, and who has ended waits behind it.
    async fn told_all(&mut self, first: Event) -> Result<(), store::Error> {
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
            let started = fresh.iter().find(|said| matches!(said.body, ReportBody::Started(_)));
            let Some(job) = self.jobs.get_mut(trial).filter(|job| job.attempt == *attempt) else {
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

    async fn told(&mut self, event: Event) -> Result<(), store::Error> {
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
        if ids::is_later(&attempt, &job.attempt) {
            self.started_again(&trial, attempt).await?;
        } else if job.attempt != attempt && ids::of_old_keeper(&job.attempt) != attempt {
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
                ReportBody::Ended(_) => {
                    if let Some(job) = self.jobs.get_mut(&trial) {
                        job.ended = true;
                    }
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

    /// Shows the assessor a trial's next step.
    fn judge(&mut self, trial: &TrialJobId, metric: &Metric) -> Option<state::Event> {
        if !self.deps.advice.assesses() {
            return None;
        }
        let job = self.jobs.get_mut(trial)?;
        if !job.steps.enter(metric) || job.given_up.is_some() {
            return None;
        }
        // Its agent can be left rules once it is known which metric they are about.
        self.news |= metric.sequence == 0;
        let judgement = self.deps.advice.step(trial, metric.sequence, &metric.value, &job.steps);
        let Judgement::Bad { reason } = judgement else { return None };
        self.give_up(trial, reason)
    }

    fn give_up(&mut self, trial: &TrialJobId, reason: String) -> Option<state::Event> {
        let job = self.jobs.get_mut(trial).filter(|job| job.given_up.is_none())?;
        info!(%trial, "the assessor gives the trial up: {reason}");
        job.given_up = Some(reason);
        Some(state::Event::Cancel { trial: trial.clone(), reason: StopReason::EarlyStop })
    }

    /// A tuner or an assessor outside has spoken.
    async fn advised(&mut self, said: AdviserEvent) -> Result<(), store::Error> {
        let event = match said {
            AdviserEvent::Proposed { id, proposal } => {
                let trial = self.fresh_id();
                Some(state::Event::Proposed { parameter_id: id, proposal, trial })
            }
            AdviserEvent::Ready => Some(state::Event::TunerReady),
            AdviserEvent::Kill { trial, reason } => {
                let reason = reason.unwrap_or_else(|| {
                    format!("given up by {}", self.deps.advice.outside_assessor_name())
                });
                self.give_up(&trial, reason)
            }
            AdviserEvent::Trouble(trouble) => {
                // What holds the search is shown until it is resumed.
                let stays = trouble.is_none() && self.state.is_held();
                if self.trouble != trouble && !stays {
                    let name = self.deps.advice.outside_name();
                    let well = || format!("{name} answers again");
                    self.notify(Notice::Told(trouble.clone().unwrap_or_else(well)));
                    self.troubled(trouble).await?;
                }
                None
            }
            AdviserEvent::Lost { message } => {
                let depends = self.deps.advice.depends();
                let lost = if depends {
                    format!(
                        "the tuner is lost: {message}; `trial-manager resume` goes on once it is mended"
                    )
                } else {
                    format!(
                        "the assessor is lost, and no trial is stopped early any more: {message}"
                    )
                };
                error!("{lost}");
                self.troubled(Some(lost)).await?;
                depends.then_some(state::Event::TunerLost)
            }
        };
        match event {
            Some(event) => self.perform(event).await,
            None => Ok(()),
        }
    }

    async fn perform(&mut self, event: state::Event) -> Result<(), store::Error> {
        let effects = self.state.step(event, self.elapsed());
        self.do_all(effects).await
    }

    async fn do_all(&mut self, effects: Vec<Effect>) -> Result<(), store::Error> {
        // Ends first, and all of them at once: they are what others wait to see.
        let (ends, rest): (Vec<_>, Vec<_>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::RecordEnd { .. }));
        let ends = ends.into_iter().filter_map(|effect| {
            let Effect::RecordEnd { trial, end } = effect else { return None };
            Some((trial, end))
        });
        self.record_ends(ends.collect()).await?;
        let mut effects = VecDeque::from(rest);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Propose { parameter_id } => {
                    let Some(proposal) = self.deps.advice.propose(parameter_id) else { continue };
                    let trial = self.fresh_id();
                    let answer = state::Event::Proposed { parameter_id, proposal, trial };
                    effects.extend(self.state.step(answer, self.elapsed()));
                }
                Effect::Launch { trial, sequence, parameter_id, parameters } => {
                    let mut new = vec![(trial, sequence, parameter_id, parameters)];
                    while let Some(Effect::Launch { trial, sequence, parameter_id, parameters }) =
                        effects.pop_front_if(|next| matches!(next, Effect::Launch { .. }))
                    {
                        new.push((trial, sequence, parameter_id, parameters));
                    }
                    for gone in self.launch(new).await? {
                        effects.extend(self.state.step(gone, self.elapsed()));
                    }
                }
                Effect::Enqueue(own) => self.enqueue(own).await?,
                Effect::Relaunch { trial } => {
                    for gone in self.relaunch(&trial).await? {
                        effects.extend(self.state.step(gone, self.elapsed()));
                    }
                }
                Effect::Retry { trial, message } => {
                    info!(%trial, "the trial failed: {message}");
                    self.retried(&trial, message).await?;
                }
                Effect::Tell(message) => self.notify(Notice::Told(message)),
                Effect::Hold(why) => {
                    self.notify(Notice::Told(why.clone()));
                    self.announce_hold(&why).await?;
                }
                Effect::RecordRunning { trial } => {
                    let mut begun = vec![trial];
                    while let Some(Effect::RecordRunning { trial }) =
                        effects.pop_front_if(|next| matches!(next, Effect::RecordRunning { .. }))
                    {
                        begun.push(trial);
                    }
                    self.record_running(&begun).await?;
                    for trial in begun {
                        self.leases.expect(&trial, false);
                        if let Some(job) = self.jobs.get_mut(&trial) {
                            job.running_since = Some(Instant::now());
                        }
                        self.order_rules(&trial);
                        self.notify(Notice::Running { trial });
                    }
                }
                Effect::Stop { trial, reason } => {
                    let mut stops = vec![(trial, Some(reason))];
                    while let Some(Effect::Stop { trial, reason }) =
                        effects.pop_front_if(|next| matches!(next, Effect::Stop { .. }))
                    {
                        stops.push((trial, Some(reason)));
                    }
                    let now = self.deps.clock.now_ms();
                    self.deps.inbox.patiently(|| self.deps.store.set_intents(&stops, now)).await?;
                    for (trial, reason) in stops {
                        if let Some(reason) = reason {
                            self.order_stop(&trial, reason);
                        }
                        self.deps.service.cancel(&trial).await;
                    }
                }
                Effect::RecordEnd { trial, end } => self.record_ends(vec![(trial, end)]).await?,
                Effect::Observe { trial, parameter_id, state, outcome } => {
                    self.deps.advice.observe(&trial, parameter_id, state, &outcome);
                }
                Effect::Teach { trial, result } => self.teach_own(&trial, result),
                Effect::RecordState(stands) => {
                    self.record_state(stands).await?;
                    info!(state = %stands, "the experiment stands");
                    self.notify(Notice::State(stands));
                }
            }
        }
        Ok(())
    }

    fn order_stop(&self, trial: &TrialJobId, reason: StopReason) {
        if let Some(job) = self.jobs.get(trial) {
            let stop = DirectiveBody::Stop { reason, grace_ms: None };
            self.deps.handle.order(trial, &job.attempt, stop);
        }
    }

    fn notify(&self, notice: Notice) {
        // There may be no receiver.
        drop(self.deps.notices.send(notice));
    }
}

#[cfg(test)]
mod tests;
