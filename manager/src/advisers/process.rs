//! Supervises an adviser's program as a child process: starts it, exchanges messages with it, and restarts it with
//! the entire history after a crash. The content of the messages is defined elsewhere.

mod output_excerpt;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::warn;

use self::output_excerpt::{excerpt, find_error_line, last_lines, written_since};
use super::history::{Conversation, ConversationStep, History};
use super::launch::{StartedProgram, launch};
use super::silence_timer::{SilenceAction, SilenceTimer};
use super::wire::{Incoming, ProgramConnection};
use super::{AdviserEvent, AdviserRequest, ProgramSettings};
use crate::search::tuner::Proposal;

/// The interval at which deadlines are checked while an answer is expected.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The time that a program may take to become ready. Python's larger libraries load slowly.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// The time in which parameters may still arrive after the answer "no more", if the end of a trial provides them.
const LATE_ANSWER_WAIT: Duration = Duration::from_secs(1);
/// The interval at which a program that owes an answer receives a message.
const REMINDER_INTERVAL: Duration = Duration::from_secs(3);
/// The time that a program may take to exit. NNI checks for the end every 3 s.
const EXIT_TIMEOUT: Duration = Duration::from_secs(6);
/// The numbers of deaths after which a program is not restarted: in a row without an answer, and in total.
const MAX_SUCCESSIVE_DEATHS: u32 = 3;
const MAX_DEATHS: u32 = 20;

/// The end of a process or of its supervision.
enum ProcessEnd {
    /// The experiment has closed the adviser.
    Closed,
    /// The process died, or was ended because it failed.
    Died {
        why: String,
        /// `true` if the program had become ready.
        ready: bool,
        /// `true` if the program had answered a request.
        has_answered: bool,
    },
}

/// The sender of events to the experiment.
struct EventSender {
    events: mpsc::UnboundedSender<AdviserEvent>,
    /// The part of the program whose answer clears the reported problem.
    troubled: Option<AdviserPart>,
    /// `true` if a process has become ready. Problems that an earlier manager reported are then cleared.
    started: bool,
}

/// The part of a program that owes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AdviserPart {
    /// The tuner owes parameters.
    Tuner,
    /// The assessor has results to process.
    Assessor,
    /// Both parts, because the process has ended.
    Either,
}

impl EventSender {
    /// Sends an event. A closed receiver is ignored.
    fn send(&self, event: AdviserEvent) {
        drop(self.events.send(event));
    }

    fn report_trouble(&mut self, part: AdviserPart, message: String) {
        self.troubled = Some(part);
        self.send(AdviserEvent::Trouble(Some(message)));
    }

    /// Clears the problem of a part that answers again. `alone` means that the other part owes nothing.
    fn clear_trouble(&mut self, part: AdviserPart, alone: bool) {
        let over = |reported| reported == part || (reported == AdviserPart::Either && alone);
        if self.troubled.is_some_and(over) {
            self.troubled = None;
            self.send(AdviserEvent::Trouble(None));
        }
    }
}

/// Keeps a program running until the experiment closes the requests.
pub(super) async fn supervise(
    setting: ProgramSettings,
    mut requests: mpsc::UnboundedReceiver<AdviserRequest>,
    events: mpsc::UnboundedSender<AdviserEvent>,
) {
    let mut sender = EventSender { events, troubled: None, started: false };
    let mut history = History::new(setting.space.clone());
    let (mut successive_deaths, mut deaths, mut ever_ready) = (0, 0, false);
    loop {
        // Requests that are already waiting become part of the history, so that they are not sent twice.
        loop {
            match requests.try_recv() {
                Ok(request) => drop(history.record(&request)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let mut session = match ProgramSession::start(&setting).await {
            Ok(session) => session,
            Err(message) => return report_loss(message, &mut history, requests, &sender).await,
        };
        let end = session.converse(&mut history, &mut requests, &mut sender).await;
        let ProcessEnd::Died { why, ready, has_answered } = end else { return };
        ever_ready |= ready;
        deaths += 1;
        successive_deaths = if has_answered { 0 } else { successive_deaths + 1 };
        let place = setting.dir.display();
        if !ever_ready {
            let message = format!("{why}; its output is in {place}");
            return report_loss(message, &mut history, requests, &sender).await;
        }
        if successive_deaths >= MAX_SUCCESSIVE_DEATHS || deaths >= MAX_DEATHS {
            let message = format!(
                "{why}; it has failed {deaths} times and is not restarted; its output is in {place}"
            );
            return report_loss(message, &mut history, requests, &sender).await;
        }
        let message = format!(
            "{why}; it is restarted with the history of the search (its output is in {place})"
        );
        sender.report_trouble(AdviserPart::Either, message);
    }
}

/// Reports that the program has failed permanently, and records the remaining requests.
async fn report_loss(
    message: String,
    history: &mut History,
    mut requests: mpsc::UnboundedReceiver<AdviserRequest>,
    sender: &EventSender,
) {
    sender.send(AdviserEvent::Lost { message });
    while let Some(request) = requests.recv().await {
        history.record(&request);
    }
}

/// A process and its connection.
struct ProgramSession {
    child: Child,
    connection: ProgramConnection,
    conversation: Box<dyn Conversation>,
    program_name: String,
    /// The advice for a module that Python does not find.
    module_advice: String,
    /// The file of the program's output, and its length before the start.
    output: (PathBuf, u64),
    log: (PathBuf, u64),
    ready: bool,
    has_answered: bool,
    started: Instant,
    last_request: Instant,
    last_message: Instant,
    last_reminder: Instant,
    /// The number of answers that the tuner owes.
    owed: usize,
    /// The number of messages that the assessor has not processed.
    unprocessed: usize,
    limit: Duration,
    /// The deadlines of the tuner and of the assessor. They are two threads, and each may hang.
    tuner_timer: SilenceTimer,
    assessor_timer: SilenceTimer,
}

impl ProgramSession {
    async fn start(setting: &ProgramSettings) -> Result<Self, String> {
        let StartedProgram {
            child,
            connection,
            program_name,
            module_advice,
            conversation,
            output,
            log,
        } = launch(setting).await?;
        let now = Instant::now();
        Ok(Self {
            child,
            connection,
            conversation,
            program_name,
            module_advice,
            output,
            log,
            ready: false,
            has_answered: false,
            started: now,
            last_request: now,
            last_message: now,
            last_reminder: now,
            owed: 0,
            unprocessed: 0,
            limit: setting.silence_timeout,
            tuner_timer: SilenceTimer::new(setting.silence_timeout, now),
            assessor_timer: SilenceTimer::new(setting.silence_timeout, now),
        })
    }

    /// Forwards requests and receives messages until one side ends.
    async fn converse(
        &mut self,
        history: &mut History,
        requests: &mut mpsc::UnboundedReceiver<AdviserRequest>,
        sender: &mut EventSender,
    ) -> ProcessEnd {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if let ProgramConnection::Pipes(..) = self.connection {
            let step = self.conversation.first_messages(history);
            self.apply_step(step, history, sender);
        }
        loop {
            let is_waiting = !self.ready
                || !history.open_requests.is_empty()
                || !history.refused_requests.is_empty()
                || self.conversation.unprocessed() > 0
                || self.last_request.elapsed() < CHECK_INTERVAL * 3;
            tokio::select! {
                request = requests.recv() => {
                    let Some(request) = request else {
                        self.stop().await;
                        return ProcessEnd::Closed;
                    };
                    self.last_request = Instant::now();
                    if history.record(&request) {
                        let step = self.conversation.handle_request(&request, history);
                        self.apply_step(step, history, sender);
                    }
                }
                incoming = self.connection.next() => match incoming {
                    Incoming::Connected => {
                        let step = self.conversation.first_messages(history);
                        self.apply_step(step, history, sender);
                    }
                    Incoming::Text(text) => {
                        if let Err(why) = self.handle_message(&text, history, sender) {
                            return self.end_process(&why).await;
                        }
                    }
                    // The exit of the process gives the reason.
                    Incoming::Closed => {}
                },
                status = self.child.wait() => return self.unexpected_exit(status.ok()),
                _ = ticks.tick(), if is_waiting => {
                    if let Some(end) = self.check_deadlines(history, sender).await {
                        return end;
                    }
                }
            }
            if let ProgramConnection::Closed = self.connection {
                return self.wait_for_exit("has closed its connection").await;
            }
        }
    }

    /// Processes a message. The error is the reason to end the program: it proposed unusable parameters.
    fn handle_message(
        &mut self,
        text: &str,
        history: &mut History,
        sender: &mut EventSender,
    ) -> Result<(), String> {
        self.last_message = Instant::now();
        match self.conversation.handle_message(text, history) {
            Ok(ConversationStep { unusable_proposal: Some(what), .. }) => {
                return Err(format!("proposed {}", excerpt(&what)));
            }
            Ok(step) => {
                let timer = if step.is_from_assessor {
                    &mut self.assessor_timer
                } else {
                    &mut self.tuner_timer
                };
                timer.record_message(self.last_message);
                self.apply_step(step, history, sender);
            }
            Err(problem) => {
                self.tuner_timer.record_message(self.last_message);
                warn!(
                    "unexpected message from {}: {problem}: {}",
                    self.program_name,
                    excerpt(text)
                );
            }
        }
        Ok(())
    }

    /// Ends the program if it is not ready or silent for too long, and sends what is due by now.
    async fn check_deadlines(
        &mut self,
        history: &mut History,
        sender: &mut EventSender,
    ) -> Option<ProcessEnd> {
        let now = Instant::now();
        if !self.ready && now - self.started > START_TIMEOUT {
            let bound = format!("was not ready within {} s", START_TIMEOUT.as_secs());
            return Some(self.end_process(&bound).await);
        }
        if now - self.last_request >= CHECK_INTERVAL {
            let step = self.conversation.idle_messages();
            self.apply_step(step, history, sender);
        }
        let quiet = now - self.last_message.max(self.last_request);
        if quiet >= LATE_ANSWER_WAIT {
            for id in std::mem::take(&mut history.refused_requests) {
                let proposal = Proposal::Wait;
                sender.send(AdviserEvent::Proposed { id, proposal });
            }
        }
        let silence = self.tuner_timer.silence(now).max(self.assessor_timer.silence(now));
        // A program that is not ready may have failed on the search space, and detects that only when it receives a
        // message.
        if (silence >= REMINDER_INTERVAL || !self.ready)
            && now - self.last_reminder >= REMINDER_INTERVAL
        {
            self.last_reminder = now;
            let step = self.conversation.reminder_messages();
            self.apply_step(step, history, sender);
        }
        let limit = self.limit.as_secs_f64();
        let tuner = self.tuner_timer.next_action(self.ready, now);
        let assessor = self.assessor_timer.next_action(self.ready, now);
        for (part, due, missing, silent) in [
            (AdviserPart::Tuner, tuner, "proposed anything", "sent a message"),
            (AdviserPart::Assessor, assessor, "processed a result", "processed a result"),
        ] {
            match due {
                SilenceAction::Nothing => {}
                SilenceAction::Notify => {
                    let (name, slow) =
                        (&self.program_name, self.tuner_timer.notice_delay().as_secs_f64());
                    let mut message = format!(
                        "{name} has been asked, and has not {missing} for {slow} s; running trials continue, and it is \
                         restarted if it has not {silent} for {limit} s (`tunerPatience`)"
                    );
                    message.push_str(&self.last_output());
                    sender.report_trouble(part, message);
                }
                SilenceAction::End => {
                    let why = format!("has not {silent} for {limit} s (`tunerPatience`)");
                    return Some(self.end_process(&why).await);
                }
            }
        }
        None
    }

    /// Sends the messages and forwards the events of a step.
    fn apply_step(&mut self, step: ConversationStep, history: &History, sender: &mut EventSender) {
        let ConversationStep {
            messages,
            events,
            notes,
            ready,
            is_from_assessor,
            unusable_proposal: _,
        } = step;
        self.ready |= ready;
        if self.ready && !std::mem::replace(&mut sender.started, true) {
            sender.send(AdviserEvent::Trouble(None));
        }
        for note in notes {
            warn!("{} says: {}", self.program_name, excerpt(&note));
        }
        for text in messages {
            self.connection.send(text);
        }
        let owed = history.open_requests.len();
        if owed < self.owed {
            sender.clear_trouble(AdviserPart::Tuner, true);
        }
        self.tuner_timer.set_missing(owed, owed < self.owed, Instant::now());
        self.owed = owed;
        let unprocessed = self.conversation.unprocessed();
        self.assessor_timer.set_missing(unprocessed, is_from_assessor, Instant::now());
        // The first message only shows that this dispatcher reports the count.
        if is_from_assessor && self.unprocessed > 0 {
            sender.clear_trouble(AdviserPart::Assessor, owed == 0);
            self.has_answered |= unprocessed == 0 && owed == 0;
        }
        self.unprocessed = unprocessed;
        for event in events {
            if let AdviserEvent::Proposed { proposal: Proposal::Parameters(_), .. }
            | AdviserEvent::Ready = event
            {
                self.has_answered = true;
            }
            sender.send(event);
        }
    }

    /// Waits for the exit of a process whose connection has failed, for the sake of its exit status. Kills it if it
    /// does not exit.
    async fn wait_for_exit(&mut self, why: &str) -> ProcessEnd {
        let ended = timeout(EXIT_TIMEOUT, self.child.wait()).await;
        if let Ok(status) = ended {
            return self.unexpected_exit(status.ok());
        }
        self.end_process(why).await
    }

    /// Ends a process that does not work as required.
    async fn end_process(&mut self, why: &str) -> ProcessEnd {
        self.kill().await;
        self.death(why)
    }

    /// Returns the end of the process with the reason and the last error message of the program.
    fn death(&self, how: &str) -> ProcessEnd {
        let reason =
            [&self.output, &self.log].into_iter().find_map(|(path, at)| find_error_line(path, *at));
        let advice = match &reason {
            Some(line)
                if line.ends_with("No module named nni")
                    || line.ends_with("No module named 'nni'") =>
            {
                "; set `pythonInterpreter` to an interpreter with the package `nni`"
            }
            Some(line) if line.contains("No module named") => &self.module_advice,
            Some(_) | None => "",
        };
        let reason = reason.as_ref().map(|line| format!(": {line}{advice}")).unwrap_or_default();
        let why = format!("{} {how}{reason}", self.program_name);
        ProcessEnd::Died { why, ready: self.ready, has_answered: self.has_answered }
    }

    fn unexpected_exit(&self, status: Option<ExitStatus>) -> ProcessEnd {
        let status = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
        self.death(&format!("ended unexpectedly ({status})"))
    }

    /// Returns the last lines of the process's output, as the end of a message; empty if there is no output.
    fn last_output(&self) -> String {
        let (path, at) = &self.output;
        let text = written_since(path, *at).or_else(|| written_since(&self.log.0, self.log.1));
        text.map_or_else(String::new, |text| last_lines(&text))
    }

    /// Asks the process to exit, and kills it if it does not.
    async fn stop(&mut self) {
        // A hanging program would not process the message, and the stop must not wait for it.
        if self.tuner_timer.is_overdue() || self.assessor_timer.is_overdue() {
            return self.kill().await;
        }
        for text in self.conversation.last_messages().messages {
            self.connection.send(text);
        }
        self.connection.close_queue();
        let ended = timeout(EXIT_TIMEOUT, async {
            loop {
                tokio::select! {
                    _ = self.child.wait() => break,
                    // Reads the farewell, so that it does not block the connection.
                    _ = self.connection.next() => {}
                }
            }
        });
        if ended.await.is_err() {
            self.kill().await;
        }
    }

    async fn kill(&mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // Kills the processes that the program started, too. A process that has ended is not an error.
            let _gone = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        drop(self.child.wait().await);
    }
}
