//! Supervises an adviser's program as a child process: starts it, exchanges messages with it, and restarts it with
//! the entire history after a crash. The content of the messages is defined elsewhere.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::warn;

use super::answer_deadline::{SilenceAction, SilenceTimer};
use super::history::{Conversation, History, Turn};
use super::launch::{Launched, launch, length};
use super::wire::{Incoming, Wire};
use super::{AdviserEvent, Order, Setting};
use crate::search::tuner::Proposal;

/// The interval at which deadlines are checked while an answer is expected.
const BEAT: Duration = Duration::from_millis(200);
/// The time that a program may take to become ready. Python's larger libraries load slowly.
const START: Duration = Duration::from_mins(2);
/// The time in which parameters may still arrive after the answer "no more", if the end of a trial provides them.
const LATE_ANSWER_WAIT: Duration = Duration::from_secs(1);
/// The interval at which a program that owes an answer receives a message.
const NUDGE: Duration = Duration::from_secs(3);
/// The time that a program may take to exit. NNI checks for the end every 3 s.
const PARTING: Duration = Duration::from_secs(6);
/// The numbers of processes that may die without an answer, in a row and in total.
const FRUITLESS: u32 = 3;
const DEATHS: u32 = 20;

/// The end of a process or of its supervision.
enum ProcessEnd {
    /// The experiment has closed the adviser.
    Wanted,
    /// The process died, or was ended because it failed.
    Died {
        why: String,
        /// `true` if the program had become ready.
        ready: bool,
        /// `true` if the program had proposed parameters.
        fruitful: bool,
    },
}

/// The sender of events to the experiment.
struct MessageReceiver {
    said: mpsc::UnboundedSender<AdviserEvent>,
    /// The part of the program whose answer clears the reported problem.
    troubled: Option<Debtor>,
    /// `true` if a process has become ready. Problems that an earlier manager reported are then cleared.
    begun: bool,
}

/// The part of a program that owes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Debtor {
    /// The tuner owes parameters.
    Tuner,
    /// The assessor has results to process.
    Assessor,
    /// Both parts, because the process has ended.
    Either,
}

impl MessageReceiver {
    /// Sends an event. A closed receiver is ignored.
    fn hear(&self, word: AdviserEvent) {
        drop(self.said.send(word));
    }

    fn trouble(&mut self, whose: Debtor, message: String) {
        self.troubled = Some(whose);
        self.hear(AdviserEvent::Trouble(Some(message)));
    }

    /// Clears the problem of a part that answers again. `alone` means that the other part owes nothing.
    fn well(&mut self, who: Debtor, alone: bool) {
        let over = |whose| whose == who || (whose == Debtor::Either && alone);
        if self.troubled.is_some_and(over) {
            self.troubled = None;
            self.hear(AdviserEvent::Trouble(None));
        }
    }
}

/// Keeps a program running until the experiment closes the orders.
pub(super) async fn supervise(
    setting: Setting,
    mut orders: mpsc::UnboundedReceiver<Order>,
    said: mpsc::UnboundedSender<AdviserEvent>,
) {
    let mut listener = MessageReceiver { said, troubled: None, begun: false };
    let mut history = History::new(setting.space.clone());
    let (mut fruitless, mut deaths, mut ever_ready) = (0, 0, false);
    loop {
        // Orders that are already waiting become part of the history, so that they are not sent twice.
        loop {
            match orders.try_recv() {
                Ok(order) => drop(history.take(&order)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let mut session = match ProgramSession::start(&setting, deaths).await {
            Ok(session) => session,
            Err(message) => return lost(message, &mut history, orders, &listener).await,
        };
        let end = session.converse(&mut history, &mut orders, &mut listener).await;
        let ProcessEnd::Died { why, ready, fruitful } = end else { return };
        ever_ready |= ready;
        deaths += 1;
        fruitless = if fruitful { 0 } else { fruitless + 1 };
        let place = setting.dir.display();
        if !ever_ready {
            let message = format!("{why}; its output is in {place}");
            return lost(message, &mut history, orders, &listener).await;
        }
        if fruitless >= FRUITLESS || deaths >= DEATHS {
            let message = format!(
                "{why}; it has failed {deaths} times and is not restarted; its output is in {place}"
            );
            return lost(message, &mut history, orders, &listener).await;
        }
        let message = format!(
            "{why}; it is restarted with the history of the search (its output is in {place})"
        );
        listener.trouble(Debtor::Either, message);
    }
}

/// Reports that the program has failed permanently, and records the remaining orders.
async fn lost(
    message: String,
    history: &mut History,
    mut orders: mpsc::UnboundedReceiver<Order>,
    listener: &MessageReceiver,
) {
    listener.hear(AdviserEvent::Lost { message });
    while let Some(order) = orders.recv().await {
        history.take(&order);
    }
}

/// A process and its connection.
struct ProgramSession {
    child: Child,
    wire: Wire,
    conversation: Box<dyn Conversation>,
    what: String,
    /// The advice for a module that Python does not find.
    lacks: String,
    /// The file of the program's output, and its length before the start.
    output: (PathBuf, u64),
    log: (PathBuf, u64),
    ready: bool,
    fruitful: bool,
    begun: Instant,
    last_order: Instant,
    last_word: Instant,
    last_nudge: Instant,
    /// The number of answers that the tuner owes.
    owed: usize,
    /// The number of messages that the assessor has not processed.
    unseen: usize,
    limit: Duration,
    /// The deadlines of the tuner and of the assessor. They are two threads, and each may hang.
    answers: SilenceTimer,
    looks: SilenceTimer,
}

impl ProgramSession {
    async fn start(setting: &Setting, deaths: u32) -> Result<Self, String> {
        let Launched { child, wire, what, lacks, conversation, output, log } =
            launch(setting, deaths).await?;
        let now = Instant::now();
        Ok(Self {
            child,
            wire,
            conversation,
            what,
            lacks,
            output,
            log,
            ready: false,
            fruitful: false,
            begun: now,
            last_order: now,
            last_word: now,
            last_nudge: now,
            owed: 0,
            unseen: 0,
            limit: setting.patience,
            answers: SilenceTimer::new(setting.patience, now),
            looks: SilenceTimer::new(setting.patience, now),
        })
    }

    /// Forwards orders and receives messages until one side ends.
    async fn converse(
        &mut self,
        history: &mut History,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        listener: &mut MessageReceiver,
    ) -> ProcessEnd {
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if let Wire::Pipes(..) = self.wire {
            let turn = self.conversation.greet(history);
            self.take(turn, history, listener);
        }
        loop {
            let restless = !self.ready
                || !history.asks.is_empty()
                || !history.refused.is_empty()
                || self.conversation.unseen() > 0
                || self.last_order.elapsed() < BEAT * 3;
            tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else {
                        self.part().await;
                        return ProcessEnd::Wanted;
                    };
                    self.last_order = Instant::now();
                    if history.take(&order) {
                        let turn = self.conversation.tell(&order, history);
                        self.take(turn, history, listener);
                    }
                }
                came = self.wire.next() => match came {
                    Incoming::Connected => {
                        let turn = self.conversation.greet(history);
                        self.take(turn, history, listener);
                    }
                    Incoming::Text(text) => {
                        if let Err(why) = self.hear(&text, history, listener) {
                            return self.end(&why).await;
                        }
                    }
                    // The exit of the process gives the reason.
                    Incoming::Closed => {}
                },
                status = self.child.wait() => return self.exited(status.ok()),
                _ = beat.tick(), if restless => {
                    if let Some(end) = self.beat(history, listener).await {
                        return end;
                    }
                }
            }
            if let Wire::Closed = self.wire {
                return self.give_up("has closed its connection").await;
            }
        }
    }

    /// Processes a message. The error is the reason to end the program: it proposed unusable parameters.
    fn hear(
        &mut self,
        text: &str,
        history: &mut History,
        listener: &mut MessageReceiver,
    ) -> Result<(), String> {
        self.last_word = Instant::now();
        match self.conversation.hear(text, history) {
            Ok(Turn { broken: Some(what), .. }) => {
                return Err(format!("proposed {}", shown(&what)));
            }
            Ok(turn) => {
                let speaks = if turn.seen { &mut self.looks } else { &mut self.answers };
                speaks.heard(self.last_word);
                self.take(turn, history, listener);
            }
            Err(problem) => {
                self.answers.heard(self.last_word);
                warn!("unexpected message from {}: {problem}: {}", self.what, shown(text));
            }
        }
        Ok(())
    }

    /// Checks the deadlines.
    async fn beat(
        &mut self,
        history: &mut History,
        listener: &mut MessageReceiver,
    ) -> Option<ProcessEnd> {
        let now = Instant::now();
        if !self.ready && now - self.begun > START {
            let bound = format!("was not ready within {} s", START.as_secs());
            return Some(self.end(&bound).await);
        }
        if now - self.last_order >= BEAT {
            let turn = self.conversation.idle();
            self.take(turn, history, listener);
        }
        let quiet = now - self.last_word.max(self.last_order);
        if quiet >= LATE_ANSWER_WAIT {
            for id in std::mem::take(&mut history.refused) {
                let proposal = Proposal::Wait;
                listener.hear(AdviserEvent::Proposed { id, proposal });
            }
        }
        let silence = self.answers.silence(now).max(self.looks.silence(now));
        // A program that is not ready may have failed on the search space, and detects that only when it receives a
        // message.
        if (silence >= NUDGE || !self.ready) && now - self.last_nudge >= NUDGE {
            self.last_nudge = now;
            let turn = self.conversation.nudge();
            self.take(turn, history, listener);
        }
        let limit = self.limit.as_secs_f64();
        for (whose, due, lacks, silent) in [
            (
                Debtor::Tuner,
                self.answers.look(self.ready, now),
                "proposed anything",
                "sent a message",
            ),
            (
                Debtor::Assessor,
                self.looks.look(self.ready, now),
                "processed a result",
                "processed a result",
            ),
        ] {
            match due {
                SilenceAction::Nothing => {}
                SilenceAction::Tell => {
                    let (what, slow) = (&self.what, self.answers.slow().as_secs_f64());
                    let mut message = format!(
                        "{what} has been asked, and has not {lacks} for {slow} s; running trials continue, and it is \
                         restarted after {limit} s without a message (`tunerPatience`)"
                    );
                    message.push_str(&self.last_output());
                    listener.trouble(whose, message);
                }
                SilenceAction::End => {
                    let why = format!("has not {silent} for {limit} s (`tunerPatience`)");
                    return Some(self.end(&why).await);
                }
            }
        }
        None
    }

    /// Sends the messages and forwards the events of a turn.
    fn take(&mut self, turn: Turn, history: &History, listener: &mut MessageReceiver) {
        let Turn { say, said: heard, notes, ready, seen, broken: _ } = turn;
        self.ready |= ready;
        if self.ready && !std::mem::replace(&mut listener.begun, true) {
            listener.hear(AdviserEvent::Trouble(None));
        }
        for note in notes {
            warn!("{} says: {}", self.what, shown(&note));
        }
        for text in say {
            self.wire.say(text);
        }
        let owed = history.asks.len();
        if owed < self.owed {
            listener.well(Debtor::Tuner, true);
        }
        self.answers.owes(owed, owed < self.owed, Instant::now());
        self.owed = owed;
        let unseen = self.conversation.unseen();
        self.looks.owes(unseen, seen, Instant::now());
        // The first message only shows that this dispatcher reports the count.
        if seen && self.unseen > 0 {
            listener.well(Debtor::Assessor, owed == 0);
            self.fruitful |= unseen == 0 && owed == 0;
        }
        self.unseen = unseen;
        for word in heard {
            if let AdviserEvent::Proposed { proposal: Proposal::Parameters(_), .. }
            | AdviserEvent::Ready = word
            {
                self.fruitful = true;
            }
            listener.hear(word);
        }
    }

    /// Waits for the exit of a process whose connection has failed, for the sake of its exit status. Kills it if it
    /// does not exit.
    async fn give_up(&mut self, why: &str) -> ProcessEnd {
        let ended = timeout(PARTING, self.child.wait()).await;
        if let Ok(status) = ended {
            return self.exited(status.ok());
        }
        self.end(why).await
    }

    /// Ends a process that does not work as required.
    async fn end(&mut self, why: &str) -> ProcessEnd {
        self.kill().await;
        self.died(why)
    }

    /// Returns the end of the process with the reason and the last error message of the program.
    fn died(&self, how: &str) -> ProcessEnd {
        let reason = [&self.output, &self.log].into_iter().find_map(|(path, at)| reason(path, *at));
        let advice = match &reason {
            Some(line)
                if line.ends_with("No module named nni")
                    || line.ends_with("No module named 'nni'") =>
            {
                "; set `pythonInterpreter` to an interpreter with the package `nni`"
            }
            Some(line) if line.contains("No module named") => &self.lacks,
            Some(_) | None => "",
        };
        let reason = reason.as_ref().map(|line| format!(": {line}{advice}")).unwrap_or_default();
        let why = format!("{} {how}{reason}", self.what);
        ProcessEnd::Died { why, ready: self.ready, fruitful: self.fruitful }
    }

    fn exited(&self, status: Option<ExitStatus>) -> ProcessEnd {
        let status = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
        self.died(&format!("ended unexpectedly ({status})"))
    }

    /// Returns the last lines of the process's output, as the end of a message; empty if there is no output.
    fn last_output(&self) -> String {
        let (path, at) = &self.output;
        let text = written_since(path, *at).or_else(|| written_since(&self.log.0, self.log.1));
        text.map_or_else(String::new, |text| last_lines(&text))
    }

    /// Asks the process to exit, and kills it if it does not.
    async fn part(&mut self) {
        // A hanging program would not process the message, and the stop must not wait for it.
        if self.answers.hangs() || self.looks.hangs() {
            return self.kill().await;
        }
        for text in self.conversation.part().say {
            self.wire.say(text);
        }
        self.wire.hush();
        let ended = timeout(PARTING, async {
            loop {
                tokio::select! {
                    _ = self.child.wait() => break,
                    // Reads the farewell, so that it does not block the connection.
                    _ = self.wire.next() => {}
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

/// The number of lines of a silent program's output that a message shows.
const LAST_LINES: usize = 3;

/// Returns the last lines of a text, as the end of a message; empty if the text has none.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last: Vec<String> =
        lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| shown(line)).collect();
    if last.is_empty() { String::new() } else { format!("; it last wrote: {}", last.join(" / ")) }
}

/// Returns the last 64 KiB that were written to a file since `at`. `None` if nothing was written, or the file is
/// unreadable.
fn written_since(path: &Path, at: u64) -> Option<String> {
    const LAST: u64 = 64 << 10;
    let mut file = File::open(path).ok()?;
    let from = at.max(length(path).saturating_sub(LAST));
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(LAST).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

/// Returns the line of a file that contains a Python program's error message, if it was written since `at`.
fn reason(path: &Path, at: u64) -> Option<String> {
    let text = written_since(path, at)?;
    let error = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        let last = name.rsplit('.').next().unwrap_or_default();
        !name.contains(' ') && (last.ends_with("Error") || last.ends_with("Exception"))
    };
    let no_module = |line: &&str| line.contains("No module named");
    let found = text.lines().rev().find(|line| error(line) || no_module(line));
    found.map(|line| shown(line.trim()))
}

/// Returns the beginning of a foreign text on a single line.
fn shown(text: &str) -> String {
    let line: String =
        text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect();
    line
}
