//! The program outside as a supervised child: it is started, spoken with, and started again when it dies,
//! with everything it has to know. What is said is decided elsewhere.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::door::Door;
use super::history::{Conversation, History, Turn};
use super::nni::{Dialogue, Duties};
use super::patience::{Due, Patience};
use super::wire::{Came, Wire};
use super::{Order, Program, Said, Setting};
use crate::ids;
use crate::tuner::Proposal;

/// How often a clock is looked at while something is awaited.
const BEAT: Duration = Duration::from_millis(200);
/// How long a program may take to be ready to be asked: Python's larger libraries load slowly.
const START: Duration = Duration::from_mins(2);
/// How long after "nothing more" parameters may still come, if the end of a trial brings them.
const GRACE: Duration = Duration::from_secs(1);
/// How often a program that owes an answer is spoken to.
const NUDGE: Duration = Duration::from_secs(3);
/// How long a program may take to end: NNI's looks every 3 s whether it should.
const PARTING: Duration = Duration::from_secs(6);
/// How many processes in a row may die without an answer, and how many in all.
const FRUITLESS: u32 = 3;
const DEATHS: u32 = 20;

/// What an advisor's dispatcher is started with instead of `-m nni`. NNI 3.0's own advisors name their proposals
/// by texts, and its `recoverable.py` compares every name with a number, so that Hyperband and BOHB fail at their
/// first result. Nothing else is changed.
const ADVISOR: &str = "\
import runpy
from nni.recoverable import Recoverable
compare = Recoverable.is_created_in_previous_exp
Recoverable.is_created_in_previous_exp = lambda self, name: not isinstance(name, str) and compare(self, name)
runpy.run_module('nni', run_name='__main__', alter_sys=True)
";

/// How a process came to its end.
enum End {
    /// The experiment wants no more of it.
    Wanted,
    /// By itself.
    Died {
        why: String,
        /// Whether it was ever ready to be asked.
        ready: bool,
        /// Whether it had proposed anything.
        fruitful: bool,
    },
}

/// Who hears what the program says.
struct Listener {
    said: mpsc::UnboundedSender<Said>,
    /// Whether a trouble was told of that is not over.
    troubled: bool,
}

impl Listener {
    /// A listener that has gone needs no word.
    fn hear(&self, word: Said) {
        drop(self.said.send(word));
    }

    fn trouble(&mut self, message: String) {
        self.troubled = true;
        self.hear(Said::Trouble(Some(message)));
    }

    fn well(&mut self) {
        if std::mem::take(&mut self.troubled) {
            self.hear(Said::Trouble(None));
        }
    }
}

/// Keeps a program running until the orders end.
pub(super) async fn supervise(
    setting: Setting,
    mut orders: mpsc::UnboundedReceiver<Order>,
    said: mpsc::UnboundedSender<Said>,
) {
    let mut listener = Listener { said, troubled: false };
    let mut history = History::new(setting.space.clone());
    let (mut fruitless, mut deaths, mut ever_ready) = (0, 0, false);
    loop {
        // What is known already need not be said twice.
        loop {
            match orders.try_recv() {
                Ok(order) => drop(history.take(&order)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let mut session = match Session::start(&setting, deaths).await {
            Ok(session) => session,
            Err(message) => return lost(message, &mut history, orders, &listener).await,
        };
        let end = session.converse(&mut history, &mut orders, &mut listener).await;
        let End::Died { why, ready, fruitful } = end else { return };
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
                "{why}; it has failed {deaths} times and is left alone; its output is in {place}"
            );
            return lost(message, &mut history, orders, &listener).await;
        }
        listener.trouble(format!(
            "{why}; it is started again and told what it knew (its output is in {place})"
        ));
    }
}

/// Nothing more will come of the program: says so, and lets the orders pass.
async fn lost(
    message: String,
    history: &mut History,
    mut orders: mpsc::UnboundedReceiver<Order>,
    listener: &Listener,
) {
    listener.hear(Said::Lost { message });
    while let Some(order) = orders.recv().await {
        history.take(&order);
    }
}

/// One process and the way to it.
struct Session {
    child: Child,
    wire: Wire,
    conversation: Box<dyn Conversation>,
    what: String,
    /// What it writes and where it stood before.
    output: (PathBuf, u64),
    log: (PathBuf, u64),
    ready: bool,
    fruitful: bool,
    begun: Instant,
    last_order: Instant,
    last_word: Instant,
    last_nudge: Instant,
    /// How many answers it owes.
    owed: usize,
    patience: Patience,
    limit: Duration,
}

impl Session {
    async fn start(setting: &Setting, deaths: u32) -> Result<Self, String> {
        let in_dir = |error: io::Error| {
            format!("cannot prepare {} for the tuner: {error}", setting.dir.display())
        };
        let (logs, checkpoints) = (setting.dir.join("log"), setting.dir.join("checkpoint"));
        for folder in [&logs, &checkpoints] {
            fs::create_dir_all(folder).map_err(in_dir)?;
        }
        let output = setting.dir.join("output");
        let (log, sink) = (logs.join("dispatcher.log"), append(&output).map_err(in_dir)?);
        let (output_at, log_at) = (length(&output), length(&log));
        let errors = sink.try_clone().map_err(in_dir)?;

        let (mut command, wire, what, conversation): (_, _, _, Box<dyn Conversation>) =
            match &setting.program {
                Program::Nni { python, tuner, assessor, advisor } => {
                    let (wire, url) = Wire::door(&ids::secret_path()).await.map_err(in_dir)?;
                    let mut params = json!({ "experimentName": setting.experiment });
                    // The dispatcher insists on a tuner; this one is never asked.
                    params["tuner"] =
                        tuner.as_ref().map_or(json!({"name": "Random"}), super::Algorithm::section);
                    if let Some(assessor) = assessor {
                        params["assessor"] = assessor.section();
                    }
                    let mut command = Command::new(python);
                    let module = if *advisor { ["-c", ADVISOR] } else { ["-m", "nni"] };
                    command
                        .args(module)
                        .arg("--exp_params")
                        .arg(BASE64_STANDARD.encode(params.to_string()))
                        .current_dir(&logs)
                        .stdin(Stdio::null())
                        .stdout(Stdio::from(sink))
                        .env("SDK_PROCESS", "dispatcher")
                        .env("NNI_MODE", if deaths == 0 { "start" } else { "resume" })
                        .env("NNI_CHECKPOINT_DIRECTORY", &checkpoints)
                        .env("NNI_LOG_DIRECTORY", &logs)
                        .env("NNI_LOG_LEVEL", "info")
                        .env("NNI_INCLUDE_INTERMEDIATE_RESULTS", "false")
                        .env("NNI_TUNER_COMMAND_CHANNEL", url)
                        .env("CUDA_VISIBLE_DEVICES", visible(setting.gpus.as_deref()));
                    let duties = Duties {
                        tunes: tuner.is_some(),
                        assesses: assessor.is_some() || *advisor,
                        advisor: *advisor,
                    };
                    let what = format!("NNI's dispatcher (`{python} -m nni`)");
                    (command, wire, what, Box::new(Dialogue::new(duties)))
                }
                Program::AskAndTell { command: words, greeting } => {
                    let program = words.first().map_or("", String::as_str);
                    let mut command = Command::new(program);
                    command
                        .args(words.iter().skip(1))
                        .current_dir(&setting.code)
                        .stdin(Stdio::piped())
                        .stdout(Stdio::piped())
                        .env("CUDA_VISIBLE_DEVICES", visible(setting.gpus.as_deref()));
                    let what = format!("the tuner's command (`{}`)", words.join(" "));
                    (command, Wire::Closed, what, Box::new(Door::new(greeting.clone())))
                }
            };
        // A group of its own: a Ctrl-C at the terminal is the manager's to handle.
        let mut child = command
            .stderr(Stdio::from(errors))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                let advice = match &setting.program {
                    Program::Nni { .. } => "set `pythonInterpreter` to one that has `nni`",
                    Program::AskAndTell { .. } => "correct `tuner.command`",
                };
                format!("{what} cannot be started: {error}; {advice}")
            })?;
        let wire = match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Wire::pipes(input, output),
            _ => wire,
        };
        info!("{what} is started");
        let now = Instant::now();
        Ok(Self {
            child,
            wire,
            conversation,
            what,
            output: (output, output_at),
            log: (log, log_at),
            ready: false,
            fruitful: false,
            begun: now,
            last_order: now,
            last_word: now,
            last_nudge: now,
            owed: 0,
            limit: setting.patience,
            patience: Patience::new(setting.patience, now),
        })
    }

    /// Passes orders on and hears answers until one side ends it.
    async fn converse(
        &mut self,
        history: &mut History,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        listener: &mut Listener,
    ) -> End {
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
                || self.last_order.elapsed() < BEAT * 3;
            tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else {
                        self.part().await;
                        return End::Wanted;
                    };
                    self.last_order = Instant::now();
                    if history.take(&order) {
                        let turn = self.conversation.tell(&order, history);
                        self.take(turn, history, listener);
                    }
                }
                came = self.wire.next() => match came {
                    Came::Connected => {
                        let turn = self.conversation.greet(history);
                        self.take(turn, history, listener);
                    }
                    Came::Text(text) => {
                        self.last_word = Instant::now();
                        self.patience.heard(self.last_word);
                        match self.conversation.hear(&text, history) {
                            Ok(turn) => self.take(turn, history, listener),
                            Err(problem) => {
                                warn!("{} said what is not understood: {problem}: {}", self.what, shown(&text));
                            }
                        }
                    }
                    // Why, its exit says.
                    Came::Closed => {}
                },
                status = self.child.wait() => return self.died(status.ok()),
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

    /// Looks at the clock.
    async fn beat(&mut self, history: &mut History, listener: &mut Listener) -> Option<End> {
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
        if quiet >= GRACE {
            for id in std::mem::take(&mut history.refused) {
                let proposal = Proposal::Wait;
                listener.hear(Said::Proposed { id, proposal });
            }
        }
        let silence = self.patience.silence(now);
        if silence >= NUDGE && now - self.last_nudge >= NUDGE {
            self.last_nudge = now;
            let turn = self.conversation.nudge();
            self.take(turn, history, listener);
        }
        let (what, limit) = (&self.what, self.limit.as_secs_f64());
        match self.patience.look(self.ready, now) {
            Due::Nothing => None,
            Due::Tell => {
                let slow = self.patience.slow().as_secs_f64();
                listener.trouble(format!(
                    "{what} has not proposed anything for {slow} s; the trials that run go on, and it is started \
                     again after {limit} s without a word (`tunerPatience`)"
                ));
                None
            }
            Due::End => {
                let why = format!("has not said a word for {limit} s (`tunerPatience`)");
                Some(self.end(&why).await)
            }
        }
    }

    /// Says and passes on what a turn of the conversation brought.
    fn take(&mut self, turn: Turn, history: &History, listener: &mut Listener) {
        let Turn { say, said: heard, notes, ready } = turn;
        self.ready |= ready;
        for note in notes {
            warn!("{} says: {}", self.what, shown(&note));
        }
        for text in say {
            self.wire.say(text);
        }
        let owed = history.asks.len();
        if owed < self.owed {
            listener.well();
        }
        self.patience.owes(owed, owed < self.owed, Instant::now());
        self.owed = owed;
        for word in heard {
            if let Said::Proposed { proposal: Proposal::Parameters(_), .. } | Said::Ready = word {
                self.fruitful = true;
            }
            listener.hear(word);
        }
    }

    /// A process that cannot be spoken with any more is ended, unless it is on its way out, with a reason.
    async fn give_up(&mut self, why: &str) -> End {
        let ended = timeout(PARTING, self.child.wait()).await;
        if let Ok(status) = ended {
            return self.died(status.ok());
        }
        self.end(why).await
    }

    /// A process that does not do what it should is ended.
    async fn end(&mut self, why: &str) -> End {
        self.kill().await;
        End::Died {
            why: format!("{} {why}", self.what),
            ready: self.ready,
            fruitful: self.fruitful,
        }
    }

    fn died(&self, status: Option<ExitStatus>) -> End {
        let status = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
        let reason = [&self.output, &self.log].into_iter().find_map(|(path, at)| reason(path, *at));
        let reason = reason.map(|line| format!(": {line}")).unwrap_or_default();
        let what = &self.what;
        let why = format!("{what} ended by itself ({status}){reason}");
        End::Died { why, ready: self.ready, fruitful: self.fruitful }
    }

    /// Lets the process end, and sees to it.
    async fn part(&mut self) {
        // One that hangs would not hear it, and nobody is to wait for that.
        if self.patience.hangs() {
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
                    // Its farewell must not fill the way.
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
            // What it started itself goes with it. One that has ended is no error.
            let _gone = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        drop(self.child.wait().await);
    }
}

fn visible(gpus: Option<&[u64]>) -> String {
    let gpus: Vec<String> = gpus.unwrap_or_default().iter().map(u64::to_string).collect();
    gpus.join(",")
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

/// The line with which a Python program says what went wrong, of what was written to a file since `at`.
fn reason(path: &Path, at: u64) -> Option<String> {
    const LAST: u64 = 64 << 10;
    let mut file = File::open(path).ok()?;
    let from = at.max(length(path).saturating_sub(LAST));
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(LAST).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let error = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        let last = name.rsplit('.').next().unwrap_or_default();
        !name.contains(' ') && (last.ends_with("Error") || last.ends_with("Exception"))
    };
    let no_module = |line: &&str| line.contains("No module named");
    let found = text.lines().rev().find(|line| error(line) || no_module(line));
    found.map(|line| shown(line.trim()))
}

/// The beginning of a foreign text, fit for one line.
fn shown(text: &str) -> String {
    let line: String =
        text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect();
    line
}
