//! `trialkeeper run`: builds the parts, starts the trial, and puts everything away after it.
//!
//! The order is the point. Before the trial starts there is only what it needs itself: its directory with
//! its parameters, its pipes, and the lock on the spool, which tells whether this very attempt runs already.
//! Signals that come meanwhile wait. Everything else is built while the trial runs, if it runs long enough. At
//! the end: its output is read to the end, the verdict is reached and written, the rest is delivered, and then
//! we exit with its code.

use std::cell::OnceCell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use trial_protocol::ReportBody;

use crate::cli::{KEEPER_FAULT, RunArgs};
use crate::collect::tail::FileSpec;
use crate::commands::inspect::{Recipe, SDK_FILE};
use crate::delivery::Credentials;
use crate::http::status::listen;
use crate::observe::Observer;
use crate::output::capture::{Capture, CapturePaths};
use crate::output::metric_file::MetricFiles;
use crate::output::{PumpEvent, SharedTail};
use crate::run::settings::{Identity, Settings};
use crate::spool::Claim;
use crate::supervise::recorder::{MetricSummary, Recorder};
use crate::supervise::{Ending, StatusSource, Supervisor, supervise, trial_exit};
use crate::trial::environment;
use crate::trial::hand_over::{disarm, hand_over, watch_panics};
use crate::trial::reap::Reaper;
use crate::trial::settle_signals;
use crate::trial::signals::{BlockedSignals, Signals};
use crate::util::clock::{Clock, SystemClock};
use crate::util::errors::chain;
use crate::verdict::{Observations, TrialEnd, conclude};

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
pub mod settings;
pub mod standalone;
mod summary;

use channel::{SdkChannel, Served};
use delivery::Delivery;
use finish::Finish;
use launch::{FaultContext, Launched, launch};
use pod_setup::remove_code;
use prepare::{Prepared, prepare};
use pumps::{Pumps, RunningPumps};
use recording::{open_spool, recorder};

/// Messages of the pumps that may wait for the main task.
const HEARD_ROOM: usize = 64;

/// The longest between a report and its being safe on disk; the verdict is safe at once.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The longest wait for the disk at the end.
const DISK_WAIT: Duration = Duration::from_secs(2);

/// The longest that the end of the output waits for its reader, and the longest once a stop is requested.
const TAKEN_WAIT: Duration = Duration::from_mins(10);
const TAKEN_HURRIED: Duration = Duration::from_secs(2);

/// Runs a trial as `args` say, and returns the exit code.
pub fn run(args: &RunArgs) -> ExitCode {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    crate::util::log::start(args.log_file.as_deref(), args.verbose, Arc::clone(&clock));
    watch_panics();
    settle_signals();
    let held_back = BlockedSignals::begin();
    let random = RandomState::new().build_hasher().finish();
    let runtime = LazyRuntime::new();
    let prepared = match prepare(args, clock.now_ms(), random, &runtime) {
        Ok(prepared) => prepared,
        Err(error) => {
            tracing::error!("{}", chain(error.as_ref()));
            return ExitCode::from(KEEPER_FAULT);
        }
    };
    let settings = &prepared.settings;
    // Before the trial, where another process could run this very attempt already.
    let spool_dir = spool_dir(&prepared);
    let claim = (settings.identity != Identity::None)
        .then(|| Claim::take(spool_dir.as_deref(), &settings.attempt));
    if claim.as_ref().is_some_and(|claim| claim.is_of_another(&settings.attempt)) {
        tracing::error!("the attempt {} runs already; it is not run twice", settings.attempt);
        return ExitCode::from(KEEPER_FAULT);
    }
    if let Err(source) = Reaper::adopt_orphans() {
        tracing::warn!(
            "cannot adopt orphans ({source}); what leaves the trial's group is not ended"
        );
    }
    let (pod, dir) = (settings.pod.clone(), prepared.dir.clone());
    let watch = StartedRun::start(prepared, claim, runtime);
    // From here on the trial runs.

    let code = watch.watch(held_back, clock);
    remove_code(&pod, dir.as_deref());
    code
}

/// A runtime that is made when it is needed first.
type LazyRuntime = OnceCell<io::Result<Runtime>>;

fn new_runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // What looks up names is a thread, and where none can be started any more tokio has no way but to panic.
        .thread_keep_alive(Duration::from_hours(24))
        .build()
}

fn spool_dir(prepared: &Prepared) -> Option<PathBuf> {
    let own = || Some(prepared.dir.as_ref()?.join("spool"));
    prepared.settings.spool_dir.clone().or_else(own)
}

/// A trial that was started, and what is made ready to watch it.
struct StartedRun {
    prepared: Prepared,
    claim: Option<Claim>,
    launched: Launched,
    tails: [SharedTail; 2],
    observer: Observer,
    reaper: Reaper,
    metric_files: MetricFiles,
    capture: Capture,
    tell: mpsc::Sender<PumpEvent>,
    heard: mpsc::Receiver<PumpEvent>,
    channel: SdkChannel,
    runtime: LazyRuntime,
    credentials: Credentials,
}

impl StartedRun {
    /// Starts the trial.
    fn start(mut prepared: Prepared, claim: Option<Claim>, runtime: LazyRuntime) -> Self {
        // The trial is told where the SDK's channel is, so that must be there already.
        let mut channel = SdkChannel::none();
        if prepared.settings.sdk_channel {
            match runtime.get_or_init(new_runtime) {
                Ok(made) => {
                    channel = made.block_on(SdkChannel::open(&mut prepared.plan.environment));
                }
                Err(source) => tracing::warn!("the SDK's channel is not served: {source}"),
            }
        }
        let settings = &prepared.settings;
        let credentials = settings.manager.as_ref().map_or_else(Credentials::default, |manager| {
            Credentials::read(manager, settings.token_file.as_deref(), settings.ca_file.as_deref())
        });
        let (tell, heard) = mpsc::channel(HEARD_ROOM);
        let files = files(settings, prepared.sys_dir.as_deref());
        // Before the trial: what is in its files by now is not its.
        let metric_files = MetricFiles::new(&settings.collect, files, tell.clone());
        let (reaper, tails) = (Reaper::default(), <[SharedTail; 2]>::default());
        let [stdout_tail, stderr_tail] = tails.clone();
        let watcher = tell.clone();
        let observe = settings.observe.clone();
        let observer = Observer::new(observe, reaper.clone(), watcher, stdout_tail, stderr_tail);
        let termination_log = termination_log(settings);
        let context = FaultContext {
            dir: prepared.dir.as_deref(),
            termination_log: termination_log.as_deref(),
            claim: claim.as_ref(),
        };
        let obstacle = prepared.obstacle.take();
        let launched = launch(settings, &prepared.plan, obstacle, &context, &reaper);
        let capture = Capture::new(CapturePaths {
            dir: prepared.dir.clone(),
            termination_log,
            rotate_bytes: settings.rotate_bytes,
            collectors: prepared.dir.as_deref().and_then(|dir| {
                let recipe = Recipe {
                    collect: settings.collect.clone(),
                    files: metric_files.offsets(),
                    event_dirs: settings.tensorboard.clone(),
                    since_ms: prepared.since_ms,
                };
                recipe.to_json(dir, &settings.observe.secrets)
            }),
        });
        Self {
            prepared,
            claim,
            launched,
            tails,
            observer,
            reaper,
            metric_files,
            capture,
            tell,
            heard,
            channel,
            runtime,
            credentials,
        }
    }

    /// Watches the trial to its end, and returns the exit code.
    fn watch(mut self, held_back: io::Result<BlockedSignals>, clock: Arc<dyn Clock>) -> ExitCode {
        let held_back = match held_back {
            Ok(held_back) => Some(held_back),
            Err(source) => {
                tracing::warn!("signals are not heard at first: {source}");
                None
            }
        };
        if let Some(code) = held_back.as_ref().and_then(|held_back| self.try_fast_path(held_back)) {
            return code;
        }
        let runtime = std::mem::take(&mut self.runtime).into_inner();
        let runtime = match runtime.unwrap_or_else(new_runtime) {
            Ok(runtime) => runtime,
            Err(source) => {
                tracing::error!("cannot watch the trial: {source}");
                // Does not return if the trial runs.
                hand_over();
                return ExitCode::from(KEEPER_FAULT);
            }
        };
        let code = runtime.block_on(self.keep(clock));
        // A name that is still being resolved, say, must not keep us here.
        runtime.shutdown_background();
        code
    }

    /// Sees a trial to its end, and returns the exit code, if it ends at once without having sent or printed anything,
    /// and no request to watch it came.
    fn try_fast_path(&mut self, held_back: &BlockedSignals) -> Option<ExitCode> {
        let settings = &self.prepared.settings;
        if settings.identity != Identity::None || settings.sdk_channel {
            return None;
        }
        let Launched { started, outputs } = &mut self.launched;
        let (trial, exit) = started.as_mut().ok()?;
        let (observer, files) = (&mut self.observer, &self.metric_files);
        let status = fast_path::wait(
            held_back,
            outputs,
            exit,
            &self.reaper,
            || observer.begin(),
            || !files.any_is_there(),
        )?;
        trial.reaped(false);
        let ending = Ending { status: Some(status), ..Ending::default() };
        let observed = if status.success() {
            Observations { end: end_of(&ending), ..self.observer.observations_of_fast_success() }
        } else {
            self.observer.begin();
            observations_at_end(&self.observer, ending)
        };
        let verdict = conclude(&observed);
        let code = summary::exit_code(&observed.end, &verdict, settings.exit_code_map);
        disarm(code);
        if let Err(error) = self.capture.only_verdict(&verdict) {
            tracing::warn!("{error}");
        }
        let dir = self.prepared.dir.as_deref();
        summary::log_summary(settings, &verdict, &MetricSummary::default(), dir, None);
        Some(ExitCode::from(code))
    }

    /// Watches a trial to its end, and returns the exit code.
    async fn keep(self, clock: Arc<dyn Clock>) -> ExitCode {
        let Self { prepared, claim, launched, tails, mut observer, reaper, .. } = self;
        observer.begin();
        let (metric_files, capture, tell, heard) =
            (self.metric_files, self.capture, self.tell, self.heard);
        let spool_dir = spool_dir(&prepared);
        let Prepared { mut settings, plan, record, dir, earlier, parameter_id, signals, .. } =
            prepared;
        settings.collect.variables = environment::numbers(std::env::vars_os(), &plan.environment);
        let Launched { started, outputs } = launched;
        let signals = match signals.map_or_else(Signals::listen, Ok) {
            Ok(signals) => signals,
            Err(source) => {
                tracing::error!("cannot listen to signals: {source}");
                hand_over();
                return ExitCode::from(KEEPER_FAULT);
            }
        };
        let spool = open_spool(&settings, spool_dir.clone(), claim, clock.now_ms());
        let pumps = Pumps::new(&settings, &capture, tell, &spool, &clock);
        let RunningPumps { open, outlets, shippers } = pumps.start_all(outputs, tails);

        let Served { findings, end: channel_end } = self.channel.serve(record);
        let recorder = recorder(&settings, &spool, clock, parameter_id);
        let trial = started.as_ref().ok().map(|(trial, _)| trial);
        recorder.report(ReportBody::Started(summary::announcement(&settings, trial)));
        if let Some(earlier) = earlier {
            recorder.note("earlier-attempt", summary::of_earlier(&earlier));
        }
        let Delivery { directives, counts, last } =
            Delivery::start(&settings, self.credentials, &spool);

        let (request_status, status_requests) = mpsc::channel(1);
        if let Some(address) = settings.listen {
            tokio::spawn(listen(address, request_status, last.ended()));
        }
        let (observed, recorder, signals, hurried) = match started {
            Ok((trial, exit)) => {
                let supervisor = Supervisor {
                    trial,
                    exit,
                    reaper,
                    signals,
                    heard,
                    open,
                    outlets: outlets.clone(),
                    metric_files: Some(metric_files),
                    channel: findings,
                    directives,
                    recorder,
                    observer,
                    shippers,
                    capture: capture.clone(),
                    grace: settings.grace,
                    drain: settings.drain,
                    status: StatusSource {
                        requests: status_requests,
                        sender: settings.sender.clone(),
                        spool: spool.clone(),
                        counts,
                    },
                };
                supervised(&settings, supervisor).await
            }
            Err(error) => {
                tracing::error!("{}", chain(&error));
                let observed =
                    Observations { end: summary::never_started(&error), ..observer.observations() };
                (observed, recorder, signals, false)
            }
        };
        channel_end.end();
        let finish = Finish { settings, dir, spool_dir, spool, capture, outlets, last };
        finish.finish(&observed, recorder, signals, hurried).await
    }
}

/// Supervises a trial to its end. Returns what is known of the end, and whether a stop was requested that hurries us.
async fn supervised(
    settings: &Settings,
    mut supervisor: Supervisor,
) -> (Observations, Recorder, Signals, bool) {
    let ending = supervise(&mut supervisor).await;
    let Supervisor { mut recorder, observer, signals, .. } = supervisor;
    let hurried = ending.terminated;
    let succeeded = ending.stop.is_none() && ending.status.is_some_and(|status| status.success());
    recorder.conclude(succeeded);
    let observed = observations_at_end(&observer, ending);
    if settings.manager.is_some() && settings.legacy.is_none() && settings.logs.is_none() {
        for last in observer.last_lines(&observed) {
            recorder.report(ReportBody::Log(last));
        }
    }
    (observed, recorder, signals, hurried)
}

/// Where Kubernetes reads the last words of a container, if we are in one.
const TERMINATION_LOG: &str = "/dev/termination-log";

fn termination_log(settings: &Settings) -> Option<PathBuf> {
    let usual = || Some(PathBuf::from(TERMINATION_LOG)).filter(|path| path.is_file());
    settings.termination_log.clone().or_else(usual)
}

fn observations_at_end(observer: &Observer, ending: Ending) -> Observations {
    let end = end_of(&ending);
    let Ending { stop, sender, leftovers, .. } = ending;
    Observations { end, stop, sender, leftovers, ..observer.observations() }
}

fn end_of(ending: &Ending) -> TrialEnd {
    match ending.status {
        Some(status) => {
            TrialEnd::Exited { exit: trial_exit(status), wait_status: Some(status.into_raw()) }
        }
        None => TrialEnd::KeeperFailed { why: "the trial's process survived SIGKILL".to_owned() },
    }
}

fn files(settings: &Settings, sys_dir: Option<&Path>) -> FileSpec {
    FileSpec {
        metric_file: sys_dir.map(|dir| dir.join(SDK_FILE)),
        line_files: settings.metric_files.clone(),
        event_dirs: settings.tensorboard.clone(),
    }
}
