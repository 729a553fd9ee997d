//! One attempt at a plugin. Its task submits or adopts the attempt and informs every new process, until the job is
//! gone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tracing::warn;
use trial_protocol::{Cause, Class};

use super::link::{AskError, Link};
use super::room::PendingJob;
use super::wire::{AttemptKey, GoneMessage, GoneReason, Refusal, Remedy, SpoolFate};
use super::{
    ADOPT_TIMEOUT, CANCEL_TIMEOUT, PluginState, RECOVER_TIMEOUT, SUBMIT_TIMEOUT, TrialJobSpec,
};
use crate::training_service::{AGENT_END_TIMEOUT, JobEnd, JobEndEvent, JobNews, JobWait};

/// The number of processes that may try to recover the reports of a job that is gone.
const MAX_RECOVERIES: u32 = 5;
/// The pause before the plugin is asked again about a job whose platform is out of reach, unless the plugin names a
/// pause.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(15);

/// A message to the task of a job.
#[derive(Debug)]
pub(super) enum JobMessage {
    /// Stops the job.
    Stop {
        /// True if the agent has ended, so that the rest of the job must end at once.
        force: bool,
    },
    /// The agent has reported, so the job exists, whatever the plugin answers.
    Began,
    /// The plugin reports that the job is gone.
    Gone(Box<GoneMessage>),
    /// The plugin reports the reason for a wait.
    Waits(String),
    /// Withdraws the job if the plugin has not created it. The reply tells whether it was withdrawn.
    Withdraw(oneshot::Sender<bool>),
}

/// A job, and the requests that were made for it.
pub(super) struct PluginJob {
    pub(super) state: Arc<PluginState>,
    pub(super) key: AttemptKey,
    /// The submission. `None`: an earlier manager submitted the job, or its agent has reported.
    pub(super) spec: Option<TrialJobSpec>,
    pub(super) messages: mpsc::UnboundedReceiver<JobMessage>,
    /// True if the plugin may have created the job.
    pub(super) may_exist: bool,
    /// The job's place in the count of room. `None`: the plugin counts it.
    pub(super) pending: Option<PendingJob>,
    /// The requested stop, with its `force` flag.
    pub(super) stop_requested: Option<bool>,
    /// True if the job goes to another service.
    pub(super) withdrawn: bool,
    /// The end of the job, if the plugin reported it before its answer.
    pub(super) gone: Option<Box<GoneMessage>>,
}

/// The state of a job after a process was informed of it.
enum StartResult {
    /// The job exists, and the plugin will report its end.
    Alive,
    /// The job has ended, or will never exist.
    Ended(JobEndEvent),
    /// The request must be repeated, after a pause or when there is room.
    Retry(Duration, String),
    /// The process ended.
    Lost,
}

impl PluginJob {
    /// Follows the job to its end. `None`: it was withdrawn, or the experiment ends first.
    pub(super) async fn run(mut self) -> Option<JobEndEvent> {
        loop {
            if self.withdrawn {
                return None;
            }
            if self.stop_requested.is_some() && !self.may_exist {
                return Some(self.event(JobEnd::default()));
            }
            let state = Arc::clone(&self.state);
            if let Some(trouble) = state.unavailable_reason() {
                self.report_wait(&trouble);
            }
            let link = tokio::select! {
                link = state.wait_for_link() => link,
                message = self.messages.recv() => {
                    self.handle_message(message?, None);
                    continue;
                }
            };
            match self.inform_process(&link).await {
                StartResult::Alive => {
                    if let Some(pending) = self.pending.take() {
                        pending.mark_submitted();
                    }
                }
                StartResult::Ended(event) => return Some(event),
                StartResult::Lost => continue,
                StartResult::Retry(pause, why) => {
                    self.report_wait(&why);
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = state.room_available.notified() => {}
                        message = self.messages.recv() => self.handle_message(message?, Some(&link)),
                    }
                    continue;
                }
            }
            if let Some(force) = self.stop_requested {
                self.send_cancel(&link, force);
            }
            loop {
                if let Some(gone) = self.gone.take() {
                    return Some(self.end_event(&gone).await);
                }
                tokio::select! {
                    biased;
                    message = self.messages.recv() => self.handle_message(message?, Some(&link)),
                    () = link.wait_until_lost() => break,
                }
            }
        }
    }

    /// Handles a message. A stop is sent at once and may overtake the submit.
    fn handle_message(&mut self, message: JobMessage, link: Option<&Arc<Link>>) {
        match message {
            JobMessage::Stop { force } => {
                self.stop_requested = Some(force);
                if let Some(link) = link.filter(|_| self.may_exist) {
                    self.send_cancel(link, force);
                }
            }
            // A second submit could start the job again, because the plugin may have died before it recorded the job.
            JobMessage::Began => self.spec = None,
            JobMessage::Gone(gone) => self.gone = self.gone.take().or(Some(gone)),
            JobMessage::Waits(why) => self.report_wait(&why),
            JobMessage::Withdraw(reply) => {
                let given_up =
                    !self.may_exist && self.spec.is_some() && self.stop_requested.is_none();
                // If the caller no longer waits for the reply, the job stays at this service.
                self.withdrawn |= given_up && reply.send(true).is_ok();
            }
        }
    }

    /// Informs a process of the job.
    async fn inform_process(&mut self, link: &Arc<Link>) -> StartResult {
        let spec = self.spec.clone().filter(|_| self.stop_requested.is_none());
        let (method, params, bound) = match &spec {
            Some(spec) => match self.state.parameters().submit_params(&self.key, spec) {
                Ok(params) => ("submit", params, SUBMIT_TIMEOUT),
                Err(why) => return self.refusal_end(why, Some(Class::Transient)),
            },
            None => ("adopt", self.state.parameters().adopt_params(&self.key), ADOPT_TIMEOUT),
        };
        self.may_exist = true;
        let asker = Arc::clone(link);
        let mut answer = std::pin::pin!(async move { asker.ask(method, &params, bound).await });
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut answer => break answer,
                Some(message) = self.messages.recv() => self.handle_message(message, Some(link)),
            }
        };
        match answer {
            Err(AskError::Lost) => StartResult::Lost,
            Err(AskError::Refused(refusal)) => {
                // After other errors, the plugin may have created the job.
                let refused = spec.is_some()
                    && matches!(
                        refusal.remedy,
                        Remedy::None | Remedy::OtherSettings | Remedy::OtherVersion
                    );
                let mut begun = self.handle_start_refusal(refusal);
                if let StartResult::Ended(event) = &mut begun {
                    event.end.refused = refused;
                }
                begun
            }
            Ok(_) if spec.is_some() => StartResult::Alive,
            Ok(answer) => self.handle_adopt_answer(&answer).await,
        }
    }

    fn handle_start_refusal(&mut self, Refusal { message, remedy }: Refusal) -> StartResult {
        match remedy {
            Remedy::None | Remedy::OtherSettings | Remedy::OtherVersion => {
                self.refusal_end(message, Some(Class::Permanent))
            }
            Remedy::NextAttempt => self.refusal_end(message, Some(Class::Transient)),
            Remedy::Cancelled => StartResult::Ended(self.event(JobEnd::default())),
            Remedy::Room(pause) => {
                self.may_exist = self.spec.is_none();
                StartResult::Retry(pause, message)
            }
            Remedy::Later(pause) => StartResult::Retry(pause, message),
        }
    }

    /// Reads the answer to `adopt`.
    async fn handle_adopt_answer(&mut self, answer: &Value) -> StartResult {
        match answer["phase"].as_str() {
            Some("running" | "waiting") => StartResult::Alive,
            Some("unreachable") => {
                let pause = answer["after_ms"].as_u64();
                let pause = pause.map_or(UNREACHABLE_PAUSE, Duration::from_millis);
                StartResult::Retry(pause, "the platform cannot be reached".to_owned())
            }
            Some("gone") => {
                let end = self
                    .gone
                    .take()
                    .or_else(|| serde_json::from_value(answer["gone"].clone()).ok().map(Box::new));
                match end {
                    Some(gone) => StartResult::Ended(self.end_event(&gone).await),
                    None => StartResult::Ended(self.event(JobEnd::default())),
                }
            }
            _ if self.stop_requested.is_some() => StartResult::Ended(self.event(JobEnd::default())),
            _ => self.refusal_end("the plugin no longer knows the job".to_owned(), None),
        }
    }

    fn send_cancel(&self, link: &Arc<Link>, force: bool) {
        let method = if force && self.state.capabilities().finish { "finish" } else { "cancel" };
        let params =
            json!({"key": self.key, "force": force, "grace_ms": AGENT_END_TIMEOUT.as_millis()});
        let (link, trial) = (Arc::clone(link), self.key.trial.clone());
        self.state.tasks.spawn(async move {
            // If the process has ended, the next one receives the request.
            if let Err(AskError::Refused(refusal)) = link.ask(method, &params, CANCEL_TIMEOUT).await
            {
                warn!(%trial, "the plugin does not end the job: {refusal}");
            }
        });
    }

    /// Returns the end of a job that is gone, after the delivery of its agent's remaining reports.
    async fn end_event(&self, gone: &GoneMessage) -> JobEndEvent {
        if gone.spool == SpoolFate::Left && self.state.capabilities().recover {
            self.recover_reports().await;
        }
        let words = || {
            gone.message.clone().or_else(|| match gone.reason {
                GoneReason::Timeout => Some("the platform's time limit ended the job".to_owned()),
                GoneReason::Oom => {
                    Some("the job used more memory than the platform allows".to_owned())
                }
                GoneReason::Preempted => Some("the job was preempted".to_owned()),
                GoneReason::NodeLost => Some("the job's machine was lost".to_owned()),
                GoneReason::StartFailed => Some("the job could not be started".to_owned()),
                GoneReason::Revoked => Some("the job was ended, but not by the manager".to_owned()),
                GoneReason::Exit | GoneReason::Cancelled | GoneReason::Unknown => None,
            })
        };
        let class = gone.class.or(match gone.reason {
            GoneReason::Timeout => Some(Class::Permanent),
            GoneReason::Oom => Some(Class::UserError),
            GoneReason::Preempted | GoneReason::NodeLost | GoneReason::StartFailed => {
                Some(Class::Transient)
            }
            GoneReason::Exit
            | GoneReason::Cancelled
            | GoneReason::Revoked
            | GoneReason::Unknown => None,
        });
        let cause = (gone.reason == GoneReason::Oom).then_some(Cause::OomKernel);
        let disruption =
            matches!(gone.reason, GoneReason::Preempted | GoneReason::NodeLost).then(words);
        self.event(JobEnd {
            exit_code: gone.exit.shell_code(),
            message: words(),
            class,
            cause,
            disruption: disruption.flatten(),
            succeeded: gone.exit.shell_code() == Some(0) && words().is_some(),
            ..JobEnd::default()
        })
    }

    async fn recover_reports(&self) {
        for _ in 0..MAX_RECOVERIES {
            let link = self.state.wait_for_link().await;
            match link.ask("recover", &json!({"key": self.key}), RECOVER_TIMEOUT).await {
                Ok(_) => return,
                Err(AskError::Lost) => {}
                Err(AskError::Refused(refusal)) => {
                    let trial = &self.key.trial;
                    warn!(%trial, "the agent's remaining reports could not be delivered: {refusal}");
                    return;
                }
            }
        }
    }

    fn event(&self, end: JobEnd) -> JobEndEvent {
        let AttemptKey { trial, attempt, .. } = &self.key;
        JobEndEvent { trial: trial.clone(), attempt: attempt.clone(), end }
    }

    fn refusal_end(&self, message: String, class: Option<Class>) -> StartResult {
        let end = JobEnd { message: Some(message), class, ..JobEnd::default() };
        StartResult::Ended(self.event(end))
    }

    fn report_wait(&self, why: &str) {
        let (trial, attempt, why) =
            (self.key.trial.clone(), self.key.attempt.clone(), why.to_owned());
        self.state.send_news(JobNews::Waits(JobWait { trial, attempt, why }));
    }
}
