//! The fallback after a failure of the agent: a program that only supervises the trial to its end. It copies the
//! output, forwards signals, reaps processes, stops the tree on request, and exits with the trial's code.
//!
//! It must not do anything else. It uses no thread, no network and no spool, and the only files that it writes are
//! the verdict and the termination log at the end. [`trial::reexec`](crate::trial::reexec) starts it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use nix::libc::PIPE_BUF;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use tokio::sync::oneshot;

use crate::cli::AGENT_FAULT;
use crate::output::run_dir::{VERDICT_FILE, replace_file};
use crate::supervise::phase::{Effect, Event, Phase, REPEAT_KILL_INTERVAL, Remaining};
use crate::supervise::{trial_end, trial_exit};
use crate::trial::Trial;
use crate::trial::guard::Guard;
use crate::trial::reap::Reaper;
use crate::trial::reexec::{ReexecState, take_inherited};
use crate::trial::signals::signal_number;
use crate::trial::tree::Leftovers;
use crate::util::last_bytes::LastBytes;
use crate::util::secrets::Secrets;
use crate::verdict::{
    Observations, Stop, StopBy, TrialEnd, conclude, exit_code_for_frameworkcontroller,
    termination_message,
};

/// Number of bytes to read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// The stop that SIGTERM requests.
const STOP_BY_TERM: Stop = Stop { by: StopBy::Signal(15), signal: None };

/// Supervises the trial described by `words`, and returns its exit code.
pub fn main(words: &[OsString]) -> ExitCode {
    let Some(state) = ReexecState::read(words) else {
        print_error("error: --fallback is for internal use only");
        return ExitCode::from(AGENT_FAULT);
    };
    print_error(
        "error: trialkeeper has failed. The trial continues. Its output and exit code are forwarded, but \
         nothing more is collected or delivered",
    );
    match MinimalSupervisor::new(&state) {
        Ok(mut supervisor) => {
            supervisor.supervise();
            ExitCode::from(supervisor.conclude(&state))
        }
        Err(error) => {
            print_error(&format!("error: cannot supervise the trial: {error}"));
            ExitCode::from(AGENT_FAULT)
        }
    }
}

fn print_error(text: &str) {
    // Ignored: stderr may be closed.
    io::stderr().write_all(format!("trialkeeper: {text}\n").as_bytes()).ok();
}

struct MinimalSupervisor {
    signals: SignalFd,
    streams: [OutputStream; 2],
    trial: Trial,
    exit: oneshot::Receiver<ExitStatus>,
    reaper: Reaper,
    grace: Duration,
    drain: Duration,
    /// The exit status of the trial's own process, if the previous program had reaped it.
    reaped_before: Option<ExitStatus>,
    status: Option<ExitStatus>,
    /// `true` if the trial's own process was reaped and its exit status is unknown.
    status_lost: bool,
    stop: Option<Stop>,
    leftovers: Leftovers,
}

/// One of the trial's output streams.
struct OutputStream {
    /// `None`: the stream has ended.
    source: Option<File>,
    /// `None`: the reader has closed the stream.
    sink: Option<File>,
    /// Bytes that were read and not yet written.
    unwritten: Vec<u8>,
    tail: LastBytes,
}

impl MinimalSupervisor {
    fn new(state: &ReexecState) -> Result<Self, io::Error> {
        // First of all: once other files are open, the number of a descriptor that was closed at the last moment could
        // belong to another file.
        let live = &state.live;
        let reaper = Reaper::default();
        let [stdout, stderr] = live.outputs.map(|number| number.and_then(take_inherited));
        let guard = live.guard.and_then(|(process, pipe)| {
            Some(Guard::adopt(&reaper, process.unsigned_abs(), take_inherited(pipe)?))
        });
        let all = SigSet::all();
        // The previous program has blocked all signals already, so those that arrived meanwhile are still pending.
        all.thread_block()?;
        let signals = SignalFd::with_flags(&all, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Reaper::adopt_orphans()?;
        let (trial, exit) = Trial::adopt(Pid::from_raw(state.pid), guard, &reaper);
        Ok(Self {
            signals,
            streams: [
                OutputStream::new(stdout, io::stdout().as_fd()),
                OutputStream::new(stderr, io::stderr().as_fd()),
            ],
            trial,
            exit,
            reaper,
            grace: Duration::from_millis(state.grace_ms),
            drain: Duration::from_millis(state.drain_ms),
            reaped_before: live.status.map(ExitStatus::from_raw),
            status: None,
            status_lost: false,
            // The source of the stop is no longer known. SIGTERM is the usual one.
            stop: live.stopping.then_some(STOP_BY_TERM),
            leftovers: Leftovers::default(),
        })
    }

    fn supervise(&mut self) {
        let mut phase = Phase::Running;
        // The trial may have ended before this program took over.
        let mut events: Vec<Event> = self.reap(&phase).into_iter().collect();
        if events.is_empty() && !self.reaper.reap_ended() {
            events.extend(self.reap(&phase));
            // The previous program reaped the trial at that moment and could not pass the status on.
            self.status_lost = events.is_empty();
            if self.status_lost {
                return;
            }
        }
        if self.stop.is_some() {
            events.push(Event::StopRequested { grace: self.grace });
        }
        loop {
            for event in events.drain(..) {
                let (next, effect) = phase.step(event, Instant::now(), self.drain);
                phase = next;
                self.perform(effect, &phase);
            }
            if matches!(phase, Phase::Done(_)) {
                return;
            }
            let open = self.count_open_streams();
            self.wait(&phase);
            // Before the signals, so that the event for the trial's end includes the current state of the streams. A
            // stream that ended in between would otherwise never be seen to end.
            self.streams.iter_mut().for_each(OutputStream::copy);
            self.handle_signals(&phase, &mut events);
            if phase.is_killing() {
                self.trial.kill(phase.is_reaped());
            }
            if phase.is_killing() || open != self.count_open_streams() {
                events.extend(self.reap(&phase));
            }
            if phase.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                // The check reaps processes, and a reaped pid must not be killed.
                let left = if phase.is_reaped() { self.remaining() } else { Remaining::ANYTHING };
                events.push(Event::DeadlinePassed(left));
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self, phase: &Phase) {
        let left = phase.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let wait = if phase.is_killing() {
            Some(left.unwrap_or(REPEAT_KILL_INTERVAL).min(REPEAT_KILL_INTERVAL))
        } else {
            left
        };
        // Rounded up, so that the deadline has passed when it is checked.
        let millis = wait.map(|wait| i32::try_from(wait.as_millis() + 1).unwrap_or(i32::MAX));
        let timeout = millis.and_then(|millis| PollTimeout::try_from(millis).ok());
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.streams.iter().filter_map(OutputStream::poll_target));
        // The result is ignored, because the caller checks every file.
        poll(&mut fds, timeout.unwrap_or(PollTimeout::NONE)).ok();
    }

    fn handle_signals(&mut self, phase: &Phase, events: &mut Vec<Event>) {
        let mut ended = false;
        while let Ok(Some(received)) = self.signals.read_signal() {
            if received.ssi_pid == std::process::id() {
                // Another thread of the previous program failed too, and sent its signal for the hand-over.
                continue;
            }
            let received =
                i32::try_from(received.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok());
            match received {
                Some(Signal::SIGCHLD) => ended = true,
                Some(Signal::SIGTERM) => {
                    events.push(match self.stop {
                        None => Event::StopRequested { grace: self.grace },
                        Some(_) => Event::SecondStopSignal,
                    });
                    self.stop.get_or_insert(STOP_BY_TERM);
                }
                // The terminal's stop signals are meant for the trial. A write detects a closed pipe.
                Some(Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU | Signal::SIGPIPE)
                | None => {}
                Some(signal) => {
                    if !phase.is_reaped() {
                        self.trial.forward_signal(signal);
                    }
                }
            }
        }
        if ended {
            events.extend(self.reap(phase));
        }
    }

    /// Reaps ended processes, and returns the resulting event.
    fn reap(&mut self, phase: &Phase) -> Option<Event> {
        let left = self.remaining();
        // The previous program may have recorded the exit status without reaping the process.
        let ended = self.reaped_before.take().or_else(|| self.exit.try_recv().ok());
        if let (Some(status), None) = (ended, self.status) {
            self.status = Some(status);
            self.trial.record_reaped(false);
            return Some(Event::Exited { exit: trial_exit(status), left });
        }
        phase.is_reaped().then_some(Event::Checked(left))
    }

    fn remaining(&self) -> Remaining {
        let processes = self.reaper.reap_ended() && !self.trial.tree().is_empty();
        Remaining { output: self.count_open_streams() > 0, processes }
    }

    fn count_open_streams(&self) -> usize {
        self.streams.iter().filter(|stream| !stream.has_ended()).count()
    }

    fn perform(&mut self, effect: Option<Effect>, phase: &Phase) {
        let reaped = phase.is_reaped();
        let signal = match effect {
            None => return,
            Some(Effect::Stop) => {
                if reaped {
                    self.leftovers.add(&self.trial.tree());
                }
                self.trial.stop(reaped);
                Signal::SIGTERM
            }
            Some(Effect::Kill) => {
                let mut killed = self.trial.kill(reaped);
                killed.retain(|process| reaped || process.pid != self.trial.pid());
                self.leftovers.add_killed(&killed);
                Signal::SIGKILL
            }
        };
        if let Some(stop) = self.stop.as_mut().filter(|_| !reaped) {
            stop.signal = u8::try_from(signal_number(signal)).ok();
        }
    }

    /// Writes the verdict, and returns the exit code.
    fn conclude(&mut self, state: &ReexecState) -> u8 {
        let [stdout, stderr] = &self.streams;
        let end = if self.status_lost {
            TrialEnd::AgentFailed { why: "the trial's exit status was lost".to_owned() }
        } else {
            trial_end(self.status)
        };
        let mut leftovers = std::mem::take(&mut self.leftovers);
        if self.status.is_none() || !leftovers.is_empty() {
            leftovers.record_survivors(&self.trial.tree());
        }
        let values = state.secret_variables.iter().filter_map(std::env::var_os);
        let secrets = Secrets::new(values.map(OsString::into_vec));
        let masked = |tail: &LastBytes| {
            let mut bytes = tail.bytes();
            secrets.mask(&mut bytes);
            bytes
        };
        let mut verdict = conclude(&Observations {
            end,
            stop: self.stop,
            stdout_tail: masked(&stdout.tail),
            stderr_tail: masked(&stderr.tail),
            leftovers,
            ..Observations::default()
        });
        verdict.message.push_str(
            " (trialkeeper itself failed: its earlier observations are not in this verdict.)",
        );
        if let Some(dir) = &state.dir {
            let json = serde_json::to_vec(&verdict).expect("a verdict is always valid JSON");
            if let Err(error) = replace_file(&dir.join(VERDICT_FILE), &json) {
                print_error(&format!("warning: cannot write {VERDICT_FILE}: {error}"));
            }
        }
        if let Some(path) = &state.termination_log {
            // Ignored: the output directory has the verdict too, and the exit code reflects it.
            std::fs::write(path, termination_message(&verdict)).ok();
        }
        match self.status.map(trial_exit) {
            None => AGENT_FAULT,
            Some(exit) if state.maps_exit_code => {
                exit_code_for_frameworkcontroller(verdict.class, exit.shell_code())
            }
            Some(exit) => exit.shell_code(),
        }
    }
}

impl OutputStream {
    fn new(source: Option<OwnedFd>, sink: BorrowedFd<'_>) -> Self {
        Self {
            source: source.map(File::from),
            sink: sink.try_clone_to_owned().ok().map(File::from),
            unwritten: Vec::new(),
            tail: LastBytes::default(),
        }
    }

    fn has_ended(&self) -> bool {
        self.source.is_none() && self.unwritten.is_empty()
    }

    /// Returns the file to wait for: the sink while bytes are waiting, else the source.
    fn poll_target(&self) -> Option<PollFd<'_>> {
        match (&self.sink, &self.source) {
            (Some(sink), _) if !self.unwritten.is_empty() => {
                Some(PollFd::new(sink.as_fd(), PollFlags::POLLOUT))
            }
            (_, Some(source)) => Some(PollFd::new(source.as_fd(), PollFlags::POLLIN)),
            (_, None) => None,
        }
    }

    fn is_ready(&self) -> bool {
        let Some(poll_target) = self.poll_target() else { return false };
        let mut poll_target = [poll_target];
        poll(&mut poll_target, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Copies all bytes that need no wait, up to a limit, so that signals are handled in time.
    fn copy(&mut self) {
        for _ in 0..64 {
            if !self.is_ready() {
                return;
            }
            if self.unwritten.is_empty() {
                self.read();
            } else {
                self.write();
            }
        }
    }

    fn read(&mut self) {
        let Some(source) = &mut self.source else { return };
        let mut buffer = vec![0; CHUNK_BYTES];
        match source.read(&mut buffer) {
            Ok(length @ 1..) => {
                self.tail.push(&buffer[..length]);
                if self.sink.is_some() {
                    self.unwritten.extend_from_slice(&buffer[..length]);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => self.source = None,
        }
    }

    fn write(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        let length = self.unwritten.len().min(PIPE_BUF);
        match sink.write(&self.unwritten[..length]) {
            Ok(length) => drop(self.unwritten.drain(..length)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            // The reader has closed the stream. The trial must be able to continue.
            Err(_) => {
                self.sink = None;
                self.unwritten.clear();
            }
        }
    }
}
