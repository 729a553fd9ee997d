//! The only `select!` over the trial. Its arms name what happened, [`Phase::step`] decides what that means,
//! and [`Supervisor::perform`] does it.
//!
//! It must not wait for a disk or the network: whatever does has a thread or a task of its own.

mod orders;
pub mod phase;
pub mod recorder;
pub mod rules;

use std::future::pending;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use trial_protocol::{Directive, ReportBody, SignalSender, Stream, TrialExit};

use crate::collect::Finding;
use crate::http::status::Asked;
use crate::observe::detect::Alarm;
use crate::observe::{Observer, Remark};
use crate::output::capture::Capture;
use crate::output::log_ship::Shipper;
use crate::output::metric_file::{MetricFiles, Watching};
use crate::output::{Outlet, PumpEvent};
use crate::supervise::phase::{Effect, Event, Left, Phase};
use crate::supervise::recorder::Recorder;
use crate::trial::reap::Reaper;
use crate::trial::signals::{Caught, Signals, byte};
use crate::trial::tree::Leftovers;
use crate::trial::{Trial, hand_over};
use crate::verdict::{Known, Stop, StopBy, conclude};

mod last_words;
mod look;
mod memory;

pub use look::Look;

/// The interval at which killed trees are looked through again for what was forked meanwhile.
const HUNT_EVERY: Duration = Duration::from_millis(20);

/// The time that finished lines of log may wait for more.
const LOG_LINGER: Duration = Duration::from_millis(250);

/// The time that a trial must live before its files of metrics are worth a thread, and it is worth a guard.
const WATCH_AFTER: Duration = Duration::from_millis(100);

/// The interval at which the verdict is written ahead of the end: since Kubernetes 1.28 an out-of-memory kill takes the
/// whole container, us too.
const AHEAD_EVERY: Duration = Duration::from_secs(3);

/// The time that the trial's output may stay open after its end before it is read out.
const READ_OUT_AFTER: Duration = Duration::from_millis(20);

/// The signals that the user of a terminal sends to the trial directly: INT and QUIT.
const TYPED: [u8; 2] = [2, 3];

/// The longest wait for the last look at the files of metrics.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Everything the loop works with.
pub struct Supervisor {
    /// The trial.
    pub trial: Trial,
    /// Told by the reaper when the trial's own process has ended.
    pub exit: oneshot::Receiver<ExitStatus>,
    /// The only waiter.
    pub reaper: Reaper,
    /// The source of signals.
    pub signals: Signals,
    /// The messages of the pumps and the other threads.
    pub heard: mpsc::Receiver<PumpEvent>,
    /// Streams that are still open.
    pub open: Vec<Stream>,
    /// All that are read.
    pub outlets: Vec<Outlet>,
    /// The files of metrics.
    pub metric_files: Option<MetricFiles>,
    /// The findings of the SDK's channel.
    pub channel: mpsc::Receiver<Finding>,
    /// Orders of the manager's.
    pub directives: mpsc::Receiver<Directive>,
    /// Where observations go.
    pub recorder: Recorder,
    /// The observations that the verdict will rest on.
    pub observer: Observer,
    /// The logs of its streams, where they are collected.
    pub shippers: Vec<Arc<Shipper>>,
    /// Where verdicts are written ahead.
    pub capture: Capture,
    /// From a request to end to the kill, unless the request says otherwise.
    pub grace: Duration,
    /// From the end of the trial's own process to the end of everything.
    pub drain: Duration,
    /// The state that is shown on request.
    pub look: Look,
}

/// The end of a trial, with its circumstances.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// The end of the trial's own process. `None`: it could not even be killed.
    pub status: Option<ExitStatus>,
    /// The party that requested the end, if one did.
    pub stop: Option<Stop>,
    /// The sender of the signal that counts, if one does.
    pub sender: Option<SignalSender>,
    /// The processes that were left of it.
    pub leftovers: Leftovers,
    /// `true` if TERM has come: then its sender waits for our end too.
    pub terminated: bool,
}

/// The event that the `select!` saw.
enum LoopEvent {
    Caught(Caught),
    DeadlinePassed,
    HuntDue,
    WatchDue,
    AheadDue,
    SampleDue,
    LogDue,
    ReadOutDue,
    Ordered(Directive),
    RuleDue,
    PumpEvent(PumpEvent),
    Asked(Asked),
}

/// The memory of the loop besides the phase.
struct LoopState {
    started: Instant,
    ending: Ending,
    terminated: u32,
    forwarded: Option<u8>,
    watching: Option<Watching>,
    hunt_at: Option<Instant>,
    watch_at: Option<Instant>,
    ahead_at: Option<Instant>,
    sample_at: Option<Instant>,
    log_at: Option<Instant>,
    read_out_at: Option<Instant>,
}

/// Watches the trial until it and everything it started are gone, and all its output was read.
pub async fn supervise(supervisor: &mut Supervisor) -> Ending {
    let mut phase = Phase::Running;
    let now = Instant::now();
    let mut memory = LoopState {
        started: now,
        ending: Ending::default(),
        terminated: 0,
        forwarded: None,
        watching: None,
        hunt_at: None,
        watch_at: Some(now + WATCH_AFTER),
        ahead_at: Some(now + AHEAD_EVERY),
        sample_at: supervisor.observer.next_sample(now),
        log_at: supervisor.next_log(),
        read_out_at: None,
    };
    // Its end may have come before the first signal could.
    let mut early = supervisor.child_ended(&phase, &mut memory);
    while !matches!(phase, Phase::Done(_)) {
        let event = match early.take() {
            Some(event) => Some(event),
            None => {
                let happened = supervisor.next(&phase, &memory).await;
                crate::util::faults::here("supervise");
                supervisor.interpret(happened, &phase, &mut memory)
            }
        };
        let Some(event) = event else { continue };
        let (next, effect) = phase.step(event, Instant::now().into_std(), supervisor.drain);
        phase = next;
        if let Some(effect) = effect {
            supervisor.perform(effect, &phase, &mut memory);
        }
        memory.hunt_at = phase.hunts().then(|| Instant::now() + HUNT_EVERY);
    }
    supervisor.observer.end();
    supervisor.end_logs();
    supervisor.hear_out(memory.watching.take()).await;
    supervisor.hear_the_reason(&mut memory).await;
    memory.conclude(supervisor, &phase)
}

impl Supervisor {
    async fn next(&mut self, phase: &Phase, memory: &LoopState) -> LoopEvent {
        let due = self.next_due(memory);
        tokio::select! {
            // An exit outranks a stop: a reaped pid must never be signalled. And whatever the trial prints,
            // it cannot keep us from hearing a signal or a deadline.
            biased;
            caught = self.signals.next() => LoopEvent::Caught(caught),
            () = until(phase.deadline().map(Instant::from_std)) => LoopEvent::DeadlinePassed,
            () = until(memory.hunt_at) => LoopEvent::HuntDue,
            () = until(memory.watch_at) => LoopEvent::WatchDue,
            () = until(memory.ahead_at) => LoopEvent::AheadDue,
            () = until(memory.sample_at) => LoopEvent::SampleDue,
            () = until(memory.log_at) => LoopEvent::LogDue,
            () = until(memory.read_out_at) => LoopEvent::ReadOutDue,
            () = until(due) => LoopEvent::RuleDue,
            Some(directive) = self.directives.recv() => LoopEvent::Ordered(directive),
            Some(heard) = self.heard.recv() => LoopEvent::PumpEvent(heard),
            Some(asked) = self.look.asked.recv() => LoopEvent::Asked(asked),
            Some(finding) = self.channel.recv() => LoopEvent::PumpEvent(PumpEvent::Findings(vec![finding])),
        }
    }

    fn interpret(
        &mut self,
        happened: LoopEvent,
        phase: &Phase,
        memory: &mut LoopState,
    ) -> Option<Event> {
        match happened {
            LoopEvent::Caught(Caught::Child) => self.child_ended(phase, memory),
            LoopEvent::Caught(Caught::Sent(Signal::SIGTERM, sender)) => {
                memory.heard_from(sender);
                memory.asked(StopBy::Signal(byte(Signal::SIGTERM)));
                memory.terminated += 1;
                if memory.terminated == 1 && self.is_managed() {
                    let message = "SIGTERM has reached trialkeeper; the trial is asked to end";
                    self.recorder.note("stop-asked", message.to_owned());
                }
                Some(match memory.terminated {
                    1 => Event::StopRequested { grace: self.grace },
                    _ => Event::Hurried,
                })
            }
            LoopEvent::Caught(Caught::Sent(signal, sender)) => {
                if !phase.reaped() {
                    memory.heard_from(sender);
                    memory.forwarded = Some(byte(signal));
                    self.trial.forward(signal);
                }
                None
            }
            LoopEvent::DeadlinePassed => {
                // A look reaps, and what is reaped must not be killed.
                let left = if phase.reaped() { self.left() } else { Left::ANYTHING };
                Some(Event::DeadlinePassed(left))
            }
            LoopEvent::HuntDue => {
                self.trial.kill(phase.reaped());
                memory.hunt_at = Some(Instant::now() + HUNT_EVERY);
                self.child_ended(phase, memory)
            }
            LoopEvent::WatchDue => {
                memory.watch_at = None;
                self.guard();
                memory.watching = self.watch_metric_files();
                None
            }
            LoopEvent::AheadDue => {
                memory.ahead_at = Some(Instant::now() + AHEAD_EVERY);
                let known = Known { stop: memory.ending.stop, ..self.observer.known_so_far() };
                self.capture.verdict(&conclude(&known));
                None
            }
            LoopEvent::SampleDue => {
                memory.sample_at = self.observer.next_sample(Instant::now());
                self.take_sample(memory)
            }
            LoopEvent::LogDue => {
                self.shippers.iter().for_each(|shipper| shipper.flush(false));
                memory.log_at = self.next_log();
                None
            }
            LoopEvent::ReadOutDue => {
                memory.read_out_at = None;
                self.read_out();
                None
            }
            LoopEvent::Ordered(directive) => self.ordered(directive, memory),
            LoopEvent::RuleDue => self.overdue(memory),
            LoopEvent::PumpEvent(PumpEvent::Closed(stream)) => {
                self.open.retain(|open| *open != stream);
                phase.reaped().then(|| Event::Looked(self.left()))
            }
            LoopEvent::PumpEvent(heard) => {
                self.hear(heard);
                self.broken(memory)
            }
            LoopEvent::Asked(asked) => {
                // The client may have gone.
                asked.send(self.page(phase)).ok();
                None
            }
        }
    }

    /// Reaps, and says what that means.
    fn child_ended(&mut self, phase: &Phase, memory: &mut LoopState) -> Option<Event> {
        let left = self.left();
        self.replace_guard();
        if let Ok(status) = self.exit.try_recv() {
            let exit = trial_exit(status);
            memory.ending.status = Some(status);
            if self.trial.reaped(status.signal().is_some())
                && let Some(signal) =
                    TYPED.into_iter().find(|typed| exit.shell_code() == 128 + typed)
            {
                memory.forwarded = Some(signal);
            }
            memory.read_out_at = left.output.then(|| Instant::now() + READ_OUT_AFTER);
            return Some(Event::Exited { exit, left });
        }
        self.trial.follow_stop();
        phase.reaped().then_some(Event::Looked(left))
    }

    fn left(&self) -> Left {
        // Without any child no process is left, which is the common case and costs one system call; walking through
        // `/proc` may cost milliseconds on a busy machine.
        let processes = self.reaper.sweep()
            && (self.reaper.helpers().is_empty() || !self.trial.tree().is_empty());
        Left { output: !self.open.is_empty(), processes }
    }

    fn next_log(&self) -> Option<Instant> {
        (!self.shippers.is_empty()).then(|| Instant::now() + LOG_LINGER)
    }

    /// Reports a sample; what it shows may be a reason to end the trial.
    fn take_sample(&mut self, memory: &mut LoopState) -> Option<Event> {
        let mut remarks = Vec::new();
        let sample = self.observer.sample(&mut remarks);
        self.recorder.report(ReportBody::Sample(Box::new(sample)));
        self.remark(&remarks);
        if memory.ending.stop.is_some() || memory.ending.status.is_some() {
            return None;
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        memory.asked(match self.observer.reason_to_stop()? {
            Alarm::Stalled { silent, .. } => StopBy::Stalled(millis(silent)),
            Alarm::GpuIdle { idle, .. } => StopBy::GpuIdle(millis(idle)),
            Alarm::GpuHang { hung, .. } => StopBy::GpuHang(millis(hung)),
        });
        Some(Event::StopRequested { grace: self.grace })
    }

    fn remark(&self, remarks: &[Remark]) {
        for remark in remarks {
            tracing::warn!("{}", remark.message());
            self.recorder.note(remark.code(), remark.message());
        }
    }

    fn perform(&mut self, effect: Effect, phase: &Phase, memory: &mut LoopState) {
        hand_over::stopping();
        let reaped = phase.reaped();
        let signal = match effect {
            Effect::Terminate => {
                if reaped {
                    memory.ending.leftovers.add(&self.trial.tree());
                    self.note_left("ends what the trial left running");
                }
                self.trial.terminate(reaped);
                Signal::SIGTERM
            }
            Effect::Kill => {
                // Of those that did not end when they were asked to, the trial's own process is told as its end.
                let mut killed = self.trial.kill(reaped);
                killed.retain(|process| reaped || process.pid != self.trial.pid());
                memory.ending.leftovers.add_killed(&killed);
                Signal::SIGKILL
            }
        };
        if let Some(stop) = &mut memory.ending.stop
            && !reaped
        {
            stop.signal = Some(byte(signal));
        }
    }

    fn note_left(&self, what: &str) {
        let tree = self.trial.tree();
        if !tree.is_empty() {
            let mut left = Leftovers::default();
            left.add(&tree);
            let names = left.names().join(", ");
            self.recorder.note("leftovers", format!("trialkeeper {what}: {names}"));
        }
    }

    fn watch_metric_files(&mut self) -> Option<Watching> {
        match self.metric_files.take()?.watch() {
            Ok(watching) => Some(watching),
            Err(source) => {
                self.recorder
                    .note("metric-files", format!("files of metrics are not read: {source}"));
                None
            }
        }
    }

    fn end_steps(&mut self, steps: u64) {
        for _ in 0..steps {
            let remarks = self.observer.step_ended();
            self.remark(&remarks);
        }
    }

    fn hear(&mut self, heard: PumpEvent) {
        match heard {
            PumpEvent::Findings(found) => {
                let steps = self.recorder.enter(found);
                self.end_steps(steps);
            }
            PumpEvent::Lines(lines, found) => {
                let steps = self.recorder.enter_lines(lines, found);
                self.end_steps(steps);
            }
            PumpEvent::GpuRow(line) => {
                let remarks = self.observer.gpu_row(&line);
                self.remark(&remarks);
            }
            PumpEvent::Cards(cards) => {
                let remarks = self.observer.cards(cards);
                self.remark(&remarks);
            }
            PumpEvent::Trouble { code, message } => {
                tracing::warn!("{message}");
                self.recorder.note(code, message);
            }
            PumpEvent::Closed(_) | PumpEvent::FilesRead => {}
        }
    }

    /// Takes in what was found up to the end, the last records of files too.
    async fn hear_out(&mut self, watching: Option<Watching>) {
        // A trial that was over before anybody watched has, as a rule, written no such file; a thread to find
        // that out would be the dearest part of its end.
        self.metric_files = self.metric_files.take().filter(MetricFiles::any_is_there);
        if let Some(watching) = watching.or_else(|| self.watch_metric_files()) {
            drop(watching);
            self.hear_last_look().await;
        }
        while let Ok(heard) = self.heard.try_recv() {
            self.hear(heard);
        }
        while let Ok(finding) = self.channel.try_recv() {
            self.hear(PumpEvent::Findings(vec![finding]));
        }
    }
}

/// Returns the exit that a wait status means for the trial.
pub fn trial_exit(status: ExitStatus) -> TrialExit {
    match (status.code(), status.signal()) {
        (Some(code), _) => {
            TrialExit::Code(u8::try_from(code).expect("the kernel keeps eight bits"))
        }
        (None, Some(signal)) => {
            TrialExit::Signal(u8::try_from(signal).expect("signals are numbered up to 64"))
        }
        (None, None) => unreachable!("a process that was reaped has exited or was killed"),
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
