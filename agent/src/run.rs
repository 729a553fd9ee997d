//! `trialkeeper run`: builds the parts, starts the trial, and finishes the run after it.
//!
//! The order matters. Before the trial starts, the agent prepares only what the trial needs: its directory with its
//! parameters, its pipes, and the lock on the spool. The lock shows whether this attempt is already running. Signals
//! that arrive meanwhile stay pending. Everything else is built while the trial runs, if it runs long enough. At the
//! end, the agent reads the rest of the output, writes the verdict, delivers the remaining reports, and exits with the
//! trial's code.

use std::cell::OnceCell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::cli::{AGENT_FAULT, RunArgs};
use crate::commands::inspect::{CollectorsFile, REPORTS_FILE, SDK_METRIC_FILE};
use crate::delivery::Credentials;
use crate::observe::Observer;
use crate::output::capture::{Capture, CapturePaths};
use crate::output::file_tail::FileSpec;
use crate::output::metric_file::MetricFiles;
use crate::output::{IntakeEvent, SharedTail};
use crate::run::settings::{Identity, Settings};
use crate::spool::SpoolLock;
use crate::supervise::recorder::MetricSummary;
use crate::supervise::{Ending, trial_end};
use crate::trial::reap::Reaper;
use crate::trial::reexec::{disarm, reexec, watch_panics};
use crate::trial::set_signal_actions;
use crate::trial::signals::{BlockedSignals, Signals};
use crate::util::clock::{Clock, SystemClock};
use crate::util::errors::chain;
use crate::verdict::{Observations, conclude};

mod channel;
mod delivery;
pub mod fallback;
mod fast_path;
mod finish;
mod launch;
mod pod_setup;
mod prepare;
mod pumps;
mod recording;
mod running;
pub mod settings;
mod summary;
pub mod summary_text;

use channel::SdkChannel;
use launch::{HandOverContext, LaunchResult, launch};
use pod_setup::remove_code;
use prepare::{PreparedRun, prepare};
use running::WatchedRun;

/// The maximum number of messages that wait for the main task.
const EVENT_QUEUE_CAPACITY: usize = 64;

/// The maximum time until a report is synced to disk. The verdict is synced earlier (`VERDICT_SYNC_DELAY`).
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum wait for the disk at the end.
const DISK_WAIT: Duration = Duration::from_secs(2);

/// The maximum wait for the reader of the output at the end, without and with a requested stop.
const READER_WAIT: Duration = Duration::from_mins(10);
const STOPPED_READER_WAIT: Duration = Duration::from_secs(2);

/// Runs a trial with the options `args`, and returns the exit code.
pub fn run(args: &RunArgs) -> ExitCode {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    crate::util::log::start(args.diagnostics.log_file.as_deref(), args.verbose, Arc::clone(&clock));
    watch_panics();
    set_signal_actions();
    let blocked_signals = BlockedSignals::block();
    let random = RandomState::new().build_hasher().finish();
    let runtime = LazyRuntime::new();
    let prepared = match prepare(args, clock.now_ms(), random, &runtime) {
        Ok(prepared) => prepared,
        Err(error) => {
            tracing::error!("{}", chain(error.as_ref()));
            return ExitCode::from(AGENT_FAULT);
        }
    };
    let settings = &prepared.settings;
    // Before the trial starts, because another process may already run this attempt.
    let spool_dir = spool_dir(&prepared);
    let spool_lock = (settings.identity != Identity::None)
        .then(|| SpoolLock::acquire(spool_dir.as_deref(), &settings.attempt));
    if spool_lock
        .as_ref()
        .is_some_and(|spool_lock| spool_lock.is_held_by_another(&settings.attempt))
    {
        tracing::error!("attempt {} is already running; not started twice", settings.attempt);
        return ExitCode::from(AGENT_FAULT);
    }
    if let Err(source) = Reaper::adopt_orphans() {
        tracing::warn!(
            "cannot adopt orphans ({source}); processes outside the trial's group survive"
        );
    }
    let (pod, dir) = (settings.pod.clone(), prepared.dir.clone());
    let run = StartedRun::start(prepared, spool_lock, runtime);
    // The trial runs from here on.

    let code = run.watch(blocked_signals, clock);
    remove_code(&pod, dir.as_deref());
    code
}

/// A runtime that is created on first use.
type LazyRuntime = OnceCell<io::Result<Runtime>>;

fn new_runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // A thread resolves host names. tokio panics if it can start no thread, so the thread is kept alive.
        .thread_keep_alive(Duration::from_hours(24))
        .build()
}

fn spool_dir(prepared: &PreparedRun) -> Option<PathBuf> {
    let own = || Some(prepared.dir.as_ref()?.join("spool"));
    prepared.settings.spool_dir.clone().or_else(own)
}

/// A started trial, and the parts that are ready to watch it.
struct StartedRun {
    prepared: PreparedRun,
    spool_lock: Option<SpoolLock>,
    launched: LaunchResult,
    tails: [SharedTail; 2],
    observer: Observer,
    reaper: Reaper,
    metric_files: MetricFiles,
    capture: Capture,
    events_sender: mpsc::Sender<IntakeEvent>,
    events: mpsc::Receiver<IntakeEvent>,
    channel: SdkChannel,
    runtime: LazyRuntime,
    credentials: Credentials,
}

impl StartedRun {
    /// Starts the trial.
    fn start(
        mut prepared: PreparedRun,
        spool_lock: Option<SpoolLock>,
        runtime: LazyRuntime,
    ) -> Self {
        // The trial's environment contains the address of the SDK's channel, so the channel is bound first.
        let mut channel = SdkChannel::none();
        if prepared.settings.sdk_channel {
            match runtime.get_or_init(new_runtime) {
                Ok(made) => {
                    channel = made.block_on(SdkChannel::open(&mut prepared.command.environment));
                }
                Err(source) => tracing::warn!("cannot serve the SDK's channel: {source}"),
            }
        }
        let settings = &prepared.settings;
        let credentials = settings.manager.as_ref().map_or_else(Credentials::default, |manager| {
            Credentials::read(manager, settings.token_file.as_deref(), settings.ca_file.as_deref())
        });
        let (events_sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let files = metric_file_spec(settings, prepared.sys_dir.as_deref());
        // Before the trial starts: records that are already in its files are not from this trial.
        let metric_files = MetricFiles::new(&settings.collect, files, events_sender.clone());
        let (reaper, tails) = (Reaper::default(), <[SharedTail; 2]>::default());
        let [stdout_tail, stderr_tail] = tails.clone();
        let observer_events = events_sender.clone();
        let observe = settings.observe.clone();
        let observer =
            Observer::new(observe, reaper.clone(), observer_events, stdout_tail, stderr_tail);
        let termination_log = termination_log(settings);
        let context = HandOverContext {
            dir: prepared.dir.as_deref(),
            termination_log: termination_log.as_deref(),
            spool_lock: spool_lock.as_ref(),
        };
        let start_failure = prepared.start_failure.take();
        let launched = launch(settings, &prepared.command, start_failure, &context, &reaper);
        let capture = create_capture(&prepared, &metric_files, termination_log);
        Self {
            prepared,
            spool_lock,
            launched,
            tails,
            observer,
            reaper,
            metric_files,
            capture,
            events_sender,
            events,
            channel,
            runtime,
            credentials,
        }
    }

    /// Watches the trial to its end, and returns the exit code.
    fn watch(
        mut self,
        blocked_signals: io::Result<BlockedSignals>,
        clock: Arc<dyn Clock>,
    ) -> ExitCode {
        let blocked_signals = match blocked_signals {
            Ok(blocked_signals) => Some(blocked_signals),
            Err(source) => {
                tracing::warn!("signals are handled only after start-up: {source}");
                None
            }
        };
        if let Some(code) = blocked_signals.as_ref().and_then(|signals| self.try_fast_path(signals))
        {
            return code;
        }
        let runtime = std::mem::take(&mut self.runtime).into_inner();
        let runtime = match runtime.unwrap_or_else(new_runtime) {
            Ok(runtime) => runtime,
            Err(source) => {
                tracing::error!("cannot watch the trial: {source}");
                // Does not return if the trial is running.
                reexec();
                return ExitCode::from(AGENT_FAULT);
            }
        };
        let code = runtime.block_on(self.supervise(clock));
        // A pending host name lookup, for example, must not delay the exit.
        runtime.shutdown_background();
        code
    }

    /// Watches a short trial to its end, and returns its exit code. `None`: the trial must be supervised, because it
    /// runs too long or produced output, or because a signal arrived.
    fn try_fast_path(&mut self, blocked_signals: &BlockedSignals) -> Option<ExitCode> {
        let settings = &self.prepared.settings;
        if settings.identity != Identity::None || settings.sdk_channel {
            return None;
        }
        let LaunchResult { started, outputs } = &mut self.launched;
        let (trial, exit) = started.as_mut().ok()?;
        let (observer, files) = (&mut self.observer, &self.metric_files);
        let status = fast_path::wait_for_short_trial(
            blocked_signals,
            outputs,
            exit,
            &self.reaper,
            || observer.read_baseline(),
            || !files.any_exists(),
        )?;
        trial.record_reaped(false);
        let ending = Ending { status: Some(status), ..Ending::default() };
        let observations = if status.success() {
            Observations {
                end: trial_end(ending.status),
                ..self.observer.observations_of_fast_success()
            }
        } else {
            self.observer.read_baseline();
            observations_at_end(&self.observer, ending)
        };
        let verdict = conclude(&observations);
        let code = summary::exit_code(&observations.end, &verdict, settings.exit_code_map);
        disarm(code);
        if let Err(error) = self.capture.write_verdict(&verdict) {
            tracing::warn!("{error}");
        }
        let dir = self.prepared.dir.as_deref();
        summary::log_summary(settings, &verdict, &MetricSummary::default(), dir, None);
        Some(ExitCode::from(code))
    }

    /// Watches a trial to its end, and returns the exit code.
    async fn supervise(mut self, clock: Arc<dyn Clock>) -> ExitCode {
        self.observer.read_baseline();
        let signals = match self.prepared.signals.take().map_or_else(Signals::listen, Ok) {
            Ok(signals) => signals,
            Err(source) => {
                tracing::error!("cannot listen to signals: {source}");
                reexec();
                return ExitCode::from(AGENT_FAULT);
            }
        };
        let running = WatchedRun::open(self, signals, clock);
        // Boxed: otherwise the future of every caller would become as large as this one.
        let (ended, finish) = Box::pin(running.supervise()).await;
        finish.finish(ended).await
    }
}

/// Returns the writer of the trial's files.
fn create_capture(
    prepared: &PreparedRun,
    metric_files: &MetricFiles,
    termination_log: Option<PathBuf>,
) -> Capture {
    let settings = &prepared.settings;
    let collectors = prepared.dir.as_deref().and_then(|dir| {
        let collectors = CollectorsFile {
            collect: settings.collect.clone(),
            files: metric_files.offsets(),
            event_dirs: settings.tensorboard.clone(),
            since_ms: prepared.since_ms,
        };
        collectors.to_json(dir, &settings.observe.secrets)
    });
    Capture::new(CapturePaths {
        dir: prepared.dir.clone(),
        termination_log,
        rotate_bytes: settings.rotate_bytes,
        collectors,
    })
}

/// The file that Kubernetes reads as the container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";

fn termination_log(settings: &Settings) -> Option<PathBuf> {
    let usual = || Some(PathBuf::from(TERMINATION_LOG)).filter(|path| path.is_file());
    settings.termination_log.clone().or_else(usual)
}

fn observations_at_end(observer: &Observer, ending: Ending) -> Observations {
    let end = trial_end(ending.status);
    let Ending { stop, sender, leftovers, .. } = ending;
    Observations { end, stop, sender, leftovers, ..observer.observations() }
}

fn metric_file_spec(settings: &Settings, sys_dir: Option<&Path>) -> FileSpec {
    let mut line_files = settings.metric_files.clone();
    if line_files.is_empty() {
        line_files.extend(sys_dir.map(|dir| dir.join(REPORTS_FILE)));
    }
    FileSpec {
        metric_file: sys_dir.map(|dir| dir.join(SDK_METRIC_FILE)),
        line_files,
        event_dirs: settings.tensorboard.clone(),
    }
}
