//! The only `select!` over the trial. Its arms return an event, [`Phase::step`] determines the effect, and
//! [`Supervisor::perform`] performs it.
//!
//! It must not wait for a disk or the network: such work has a thread or a task of its own.
//!
//! The parts: `intake` records observations, `streams` ends the output, `directives` applies directives and stop rules,
//! `loop_state` contains the due times and the stop request, `status_snapshot` answers `--listen`.

mod directives;
mod intake;
mod loop_state;
pub mod phase;
pub mod recorder;
pub mod rules;
mod status_snapshot;
mod streams;

use std::future::pending;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};
use trial_protocol::{Directive, SignalSender, TrialExit};

use crate::http::status::StatusRequest;
use crate::observe::detect::Alarm;
use crate::output::IntakeEvent;
use crate::output::capture::Capture;
use crate::output::metric_file::{MetricFileWatcher, MetricFiles};
use crate::supervise::loop_state::LoopState;
use crate::supervise::phase::{Effect, Event, Phase, REPEAT_KILL_INTERVAL, Remaining};
use crate::trial::reap::Reaper;
use crate::trial::signals::{ReceivedSignal, SignalSource, Signals, signal_byte};
use crate::trial::tree::Leftovers;
use crate::trial::{LostGuard, Trial, reexec};
use crate::util::numbers::to_millis;
use crate::verdict::{Observations, Stop, StopBy, TrialEnd, conclude};

pub use intake::Intake;
pub use status_snapshot::StatusSource;
pub use streams::TrialStreams;

/// The time for which complete log lines may wait for more.
const LOG_LINGER: Duration = Duration::from_millis(250);

/// The running time after which a trial gets a guard, and a thread for its metric files.
const WATCH_DELAY: Duration = Duration::from_millis(100);

/// The interval at which a provisional verdict is written while the trial runs: since Kubernetes 1.28, an out-of-memory
/// kill ends the whole container, including the agent.
const PROVISIONAL_VERDICT_INTERVAL: Duration = Duration::from_secs(3);

/// The time that the trial's output may stay open after the trial's end before another thread reads the rest.
const READ_REST_DELAY: Duration = Duration::from_millis(20);

/// The signals that the user of a terminal sends to the trial directly: INT and QUIT.
const TYPED_SIGNALS: [u8; 2] = [2, 3];

/// The maximum wait for the manager's reason for a stop.
const REASON_WAIT: Duration = Duration::from_millis(500);

/// The interval at which the supervisor checks whether the manager has acknowledged all facts.
const REASON_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The maximum wait for the agent's own SIGTERM after SIGTERM ended the trial: a service that signals all processes of
/// a job may reach the trial first.
const SHARED_TERM_WAIT: Duration = Duration::from_millis(50);

/// The parts that the loop uses.
pub struct Supervisor {
    /// The trial.
    pub trial: Trial,
    /// The receiver of the exit status of the trial's own process, from the reaper.
    pub exit: oneshot::Receiver<ExitStatus>,
    /// The reaper, the only place that waits for processes.
    pub reaper: Reaper,
    /// The signals of the agent.
    pub signals: Signals,
    /// The recorder of observations.
    pub intake: Intake,
    /// The trial's output.
    pub streams: TrialStreams,
    /// The metric files, until they are watched.
    pub metric_files: Option<MetricFiles>,
    /// The manager's directives.
    pub directives: mpsc::Receiver<Directive>,
    /// The writer of provisional verdicts.
    pub capture: Capture,
    /// The time from a stop request to SIGKILL, unless the request gives another.
    pub grace: Duration,
    /// The time from the end of the trial's own process to the end of its whole tree.
    pub drain: Duration,
    /// The state for the status page.
    pub status: StatusSource,
}

/// The end of a trial, with its circumstances.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// The exit status of the trial's own process. `None`: the process survived SIGKILL.
    pub status: Option<ExitStatus>,
    /// The requested stop, if there was one.
    pub stop: Option<Stop>,
    /// The sender of the signal that caused the stop, if a signal did.
    pub sender: Option<SignalSender>,
    /// The trial's leftover processes.
    pub leftovers: Leftovers,
    /// `true` if the agent has received SIGTERM. Its sender then also waits for the agent's end.
    pub stop_signalled: bool,
    /// The signal of a key that the user pressed at the trial's terminal, if it ended the trial.
    pub typed_signal: Option<u8>,
}

/// An event of the `select!`.
enum LoopEvent {
    Signal(ReceivedSignal),
    Due(Timer),
    Directive(Directive),
    Intake(IntakeEvent),
    StatusRequest(StatusRequest),
}

/// The timers of the loop.
#[derive(Clone, Copy)]
enum Timer {
    Deadline,
    RepeatKill,
    Watch,
    ProvisionalVerdict,
    Sample,
    Log,
    ReadRest,
    Rule,
}

/// Supervises the trial until all its processes have ended and all its output was read.
pub async fn supervise(supervisor: &mut Supervisor) -> Ending {
    let mut phase = Phase::Running;
    let now = Instant::now();
    let mut state = LoopState {
        provisional_at: Some(now + PROVISIONAL_VERDICT_INTERVAL),
        sample_at: supervisor.intake.next_sample(now),
        log_at: supervisor.next_log_flush(),
        ..LoopState::new(now)
    };
    // The trial may have ended before the first signal could arrive.
    let mut early = supervisor.reap(&phase, &mut state);
    while !matches!(phase, Phase::Done(_)) {
        let event = match early.take() {
            Some(event) => Some(event),
            None => {
                let event = supervisor.next_event(&phase, &state).await;
                crate::util::faults::inject_at("supervise");
                supervisor.handle_event(event, &phase, &mut state)
            }
        };
        let Some(event) = event else { continue };
        let (next, effect) = phase.step(event, Instant::now().into_std(), supervisor.drain);
        phase = next;
        if let Some(effect) = effect {
            supervisor.perform(effect, &phase, &mut state);
        }
        state.repeat_kill_at = phase.is_killing().then(|| Instant::now() + REPEAT_KILL_INTERVAL);
    }
    supervisor.intake.end_observing();
    supervisor.end_logs();
    supervisor.record_rest(state.metric_file_watcher.take()).await;
    supervisor.wait_for_shared_term(&mut state).await;
    supervisor.wait_for_reason(&mut state).await;
    state.conclude(&supervisor.trial, &phase)
}

impl Supervisor {
    async fn next_event(&mut self, phase: &Phase, state: &LoopState) -> LoopEvent {
        let rule_at = directives::next_due(&mut self.intake, state);
        let deadline = phase.deadline().map(Instant::from_std);
        tokio::select! {
            // An exit outranks a stop: a reaped pid must never be signalled. The trial's output is last, so that it
            // cannot delay a signal or a deadline.
            biased;
            signal = self.signals.next() => LoopEvent::Signal(signal),
            () = wait_until(deadline) => LoopEvent::Due(Timer::Deadline),
            () = wait_until(state.repeat_kill_at) => LoopEvent::Due(Timer::RepeatKill),
            () = wait_until(state.watch_at) => LoopEvent::Due(Timer::Watch),
            () = wait_until(state.provisional_at) => LoopEvent::Due(Timer::ProvisionalVerdict),
            () = wait_until(state.sample_at) => LoopEvent::Due(Timer::Sample),
            () = wait_until(state.log_at) => LoopEvent::Due(Timer::Log),
            () = wait_until(state.read_rest_at) => LoopEvent::Due(Timer::ReadRest),
            () = wait_until(rule_at) => LoopEvent::Due(Timer::Rule),
            Some(directive) = self.directives.recv() => LoopEvent::Directive(directive),
            Some(request) = self.status.requests.recv() => LoopEvent::StatusRequest(request),
            event = self.intake.next_event() => LoopEvent::Intake(event),
        }
    }

    /// Handles an event of the loop, and returns the resulting event for the phase, if any.
    fn handle_event(
        &mut self,
        event: LoopEvent,
        phase: &Phase,
        state: &mut LoopState,
    ) -> Option<Event> {
        match event {
            LoopEvent::Signal(ReceivedSignal::Child) => self.reap(phase, state),
            LoopEvent::Signal(ReceivedSignal::Sent(Signal::SIGTERM, sender)) => {
                self.handle_stop_signal(sender, state)
            }
            LoopEvent::Signal(ReceivedSignal::Sent(signal, sender)) => {
                if !phase.is_reaped() {
                    state.record_sender(sender);
                    state.forwarded_signal = Some(signal_byte(signal));
                    self.trial.forward_signal(signal);
                }
                None
            }
            LoopEvent::Due(timer) => self.handle_timer(timer, phase, state),
            LoopEvent::Directive(directive) => self.apply(directive, state),
            LoopEvent::Intake(IntakeEvent::Closed(stream)) => {
                self.streams.close(stream);
                phase.is_reaped().then(|| Event::Checked(self.remaining()))
            }
            LoopEvent::Intake(event) => {
                self.intake.record(event);
                directives::check_metrics(&mut self.intake, self.grace, state)
            }
            LoopEvent::StatusRequest(request) => {
                // The client may have disconnected.
                request.send(self.status.page(phase, &self.intake)).ok();
                None
            }
        }
    }

    fn handle_stop_signal(&mut self, sender: SignalSource, state: &mut LoopState) -> Option<Event> {
        // GNU `timeout` sends the same signal twice: to its child, and to its group.
        let now = Instant::now();
        if state.stop_signalled_at.is_some_and(|first| now < first + SHARED_TERM_WAIT) {
            return None;
        }
        state.stop_signalled_at.get_or_insert(now);
        state.record_sender(sender);
        state.record_sigterm();
        state.stop_signals += 1;
        if state.stop_signals == 1 && self.status.is_managed() {
            let message = "trialkeeper received SIGTERM and stops the trial";
            self.intake.note("stop-asked", message);
        }
        Some(match state.stop_signals {
            1 => Event::StopRequested { grace: self.grace },
            _ => Event::SecondStopSignal,
        })
    }

    fn handle_timer(
        &mut self,
        timer: Timer,
        phase: &Phase,
        state: &mut LoopState,
    ) -> Option<Event> {
        let now = Instant::now();
        match timer {
            Timer::Deadline => {
                // `remaining` reaps processes, and a reaped pid must not be killed.
                let left = if phase.is_reaped() { self.remaining() } else { Remaining::ANYTHING };
                return Some(Event::DeadlinePassed(left));
            }
            Timer::RepeatKill => {
                self.trial.kill(phase.is_reaped());
                state.repeat_kill_at = Some(now + REPEAT_KILL_INTERVAL);
                return self.reap(phase, state);
            }
            Timer::Watch => {
                state.watch_at = None;
                self.start_guard();
                state.metric_file_watcher = self.watch_metric_files();
            }
            Timer::ProvisionalVerdict => {
                state.provisional_at = Some(now + PROVISIONAL_VERDICT_INTERVAL);
                let observed = self.intake.observer().observations_so_far();
                let observed = Observations { stop: state.ending.stop, ..observed };
                self.capture.queue_verdict(&conclude(&observed));
            }
            Timer::Sample => {
                state.sample_at = self.intake.next_sample(now);
                self.intake.take_sample();
                return self.stop_for_alarm(state);
            }
            Timer::Log => {
                self.streams.ship_logs(false);
                state.log_at = self.next_log_flush();
            }
            Timer::ReadRest => {
                state.read_rest_at = None;
                self.streams.read_rest();
            }
            Timer::Rule => {
                return directives::check_running_time(&mut self.intake, self.grace, state);
            }
        }
        None
    }

    /// Reaps ended processes, and returns the resulting event for the phase, if any.
    fn reap(&mut self, phase: &Phase, state: &mut LoopState) -> Option<Event> {
        let left = self.remaining();
        self.trial.stop_orphans();
        self.replace_guard();
        if let Ok(status) = self.exit.try_recv() {
            let exit = trial_exit(status);
            state.ending.status = Some(status);
            if self.trial.record_reaped(status.signal().is_some())
                && let Some(signal) =
                    TYPED_SIGNALS.into_iter().find(|typed| exit.shell_code() == 128 + typed)
            {
                state.forwarded_signal = Some(signal);
                state.ending.typed_signal = Some(signal);
            }
            let now = Instant::now();
            let by_term = exit == TrialExit::Signal(signal_byte(Signal::SIGTERM));
            state.shared_term_until = by_term.then(|| now + SHARED_TERM_WAIT);
            state.read_rest_at = left.output.then(|| now + READ_REST_DELAY);
            return Some(Event::Exited { exit, left });
        }
        self.trial.follow_suspension();
        phase.is_reaped().then_some(Event::Checked(left))
    }

    fn remaining(&self) -> Remaining {
        // Without a child, no process is left. This common case costs one system call; a walk through `/proc` may cost
        // milliseconds on a busy machine.
        let processes = self.reaper.reap_ended()
            && (self.reaper.helpers().is_empty() || !self.trial.tree().is_empty());
        Remaining { output: self.streams.has_open_stream(), processes }
    }

    fn next_log_flush(&self) -> Option<Instant> {
        self.streams.has_log_shippers().then(|| Instant::now() + LOG_LINGER)
    }

    /// Stops the trial if the latest sample fulfils a stop condition of the user.
    fn stop_for_alarm(&mut self, state: &mut LoopState) -> Option<Event> {
        if state.ending.stop.is_some() || state.ending.status.is_some() {
            return None;
        }
        state.record_stop(match self.intake.observer().reason_to_stop()? {
            Alarm::Stalled { silent, .. } => StopBy::Stalled(to_millis(silent)),
            Alarm::GpuIdle { idle, .. } => StopBy::GpuIdle(to_millis(idle)),
            Alarm::GpuHang { hung, .. } => StopBy::GpuHang(to_millis(hung)),
        });
        Some(Event::StopRequested { grace: self.grace })
    }

    fn apply(&mut self, directive: Directive, state: &mut LoopState) -> Option<Event> {
        directives::apply(directive, self.grace, &mut self.intake, &self.streams, state)
    }

    fn perform(&mut self, effect: Effect, phase: &Phase, state: &mut LoopState) {
        reexec::record_stop();
        let reaped = phase.is_reaped();
        let signal = match effect {
            Effect::Stop => {
                if reaped {
                    state.ending.leftovers.add(&self.trial.tree());
                    self.note_leftovers();
                }
                self.trial.stop(reaped);
                Signal::SIGTERM
            }
            Effect::Kill => {
                // The verdict contains the end of the trial's own process anyway, so it is not a leftover.
                let mut killed = self.trial.kill(reaped);
                killed.retain(|process| reaped || process.pid != self.trial.pid());
                state.ending.leftovers.add_killed(&killed);
                Signal::SIGKILL
            }
        };
        if let Some(stop) = &mut state.ending.stop
            && !reaped
        {
            stop.signal = Some(signal_byte(signal));
        }
    }

    fn note_leftovers(&self) {
        let tree = self.trial.tree();
        if !tree.is_empty() {
            let mut left = Leftovers::default();
            left.add(&tree);
            let names = left.names().join(", ");
            let message = format!("trialkeeper stops leftover processes: {names}");
            self.intake.note("leftovers", message);
        }
    }

    /// Starts the guard, which ends the trial, or copies its output, if the agent is killed.
    fn start_guard(&mut self) {
        self.trial.start_guard(|| self.streams.sources(), self.capture.dir());
    }

    /// Replaces a guard that has ended, and records a note about it.
    fn replace_guard(&mut self) {
        let Some(LostGuard { status, replaced }) = self.trial.take_lost_guard() else { return };
        let consequence = if replaced {
            self.start_guard();
            "another was started"
        } else {
            "it is not replaced: if trialkeeper is killed, processes of the trial may survive"
        };
        let message = format!(
            "the guard, which ends the trial if trialkeeper is killed, has ended ({status}); {consequence}"
        );
        tracing::warn!("{message}");
        self.intake.note("guard-lost", message);
    }

    /// Ships the remaining log lines. Another process may still hold a stream open.
    fn end_logs(&self) {
        self.streams.ship_logs(true);
        let shed = self.streams.shed_bytes();
        if shed > 0 {
            let message = format!("dropped {shed} bytes of log above the rate limit");
            self.intake.note("log-shed", message);
        }
    }

    fn watch_metric_files(&mut self) -> Option<MetricFileWatcher> {
        match self.metric_files.take()?.watch() {
            Ok(metric_file_watcher) => Some(metric_file_watcher),
            Err(source) => {
                let message = format!("cannot read the metric files: {source}");
                self.intake.note("metric-files", message);
                None
            }
        }
    }

    /// Records all remaining findings, including the last records of metric files.
    async fn record_rest(&mut self, metric_file_watcher: Option<MetricFileWatcher>) {
        // A trial that ended before it was watched has usually written no metric file. A thread only to check this
        // would be the most expensive part of its end.
        self.metric_files = self.metric_files.take().filter(MetricFiles::any_exists);
        if let Some(metric_file_watcher) = metric_file_watcher.or_else(|| self.watch_metric_files())
        {
            drop(metric_file_watcher);
            self.intake.record_last_reading().await;
        }
        self.intake.record_arrived_events();
    }

    /// Waits for the manager's reason after SIGTERM. A manager stops a trial in two ways, and the signal may arrive
    /// before the directive. The directive arrives with the answer to a batch of facts, at the latest the batch with
    /// the note about the signal.
    async fn wait_for_reason(&mut self, state: &mut LoopState) {
        let bound = Instant::now() + REASON_WAIT;
        while matches!(state.ending.stop, Some(Stop { by: StopBy::Signal(15), .. }))
            && self.status.is_managed()
        {
            let over = !self.status.has_pending_facts() || Instant::now() >= bound;
            let until = if over { Instant::now() } else { Instant::now() + REASON_CHECK_INTERVAL };
            match timeout_at(until, self.directives.recv()).await {
                Ok(Some(directive)) => drop(self.apply(directive, state)),
                Ok(None) => return,
                Err(_) if over => return,
                Err(_) => {}
            }
        }
    }

    /// Waits for the agent's own SIGTERM if the trial was ended by one that the agent did not send.
    async fn wait_for_shared_term(&mut self, state: &mut LoopState) {
        let Some(until) = state.shared_term_until.filter(|_| state.ending.stop.is_none()) else {
            return;
        };
        while let Ok(signal) = timeout_at(until, self.signals.next()).await {
            if let ReceivedSignal::Sent(Signal::SIGTERM, sender) = signal {
                self.handle_stop_signal(sender, state);
                return;
            }
        }
    }
}

/// Converts a wait status to the trial's exit.
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

/// Returns the end of a trial whose own process has this wait status. `None`: the process was not reaped.
pub fn trial_end(status: Option<ExitStatus>) -> TrialEnd {
    match status {
        Some(status) => {
            TrialEnd::Exited { exit: trial_exit(status), wait_status: Some(status.into_raw()) }
        }
        None => TrialEnd::AgentFailed { why: "the trial's process survived SIGKILL".to_owned() },
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
