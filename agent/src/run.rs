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
use crate::output::capture::{Capture, Places};
use crate::output::metric_file::MetricFiles;
use crate::output::{PumpEvent, SharedTail};
use crate::run::settings::{Identity, Settings};
use crate::spool::Claim;
use crate::supervise::recorder::{Recorder, Tally};
use crate::supervise::{Ending, Look, Supervisor, supervise, trial_exit};
use crate::trial::environment;
use crate::trial::hand_over::{disarm, hand_over, watch_panics};
use crate::trial::reap::Reaper;
use crate::trial::settle_signals;
use crate::trial::signals::{HeldBack, Signals};
use crate::util::clock::{Clock, SystemClock};
use crate::util::errors::chain;
use crate::verdict::{End, Known, conclude};

mod ahead;
mod brief;
mod channel;
mod delivery;
mod ends;
mod finish;
pub mod hold;
mod launch;
mod prepare;
mod pumps;
mod recording;
pub mod settings;
pub mod standalone;

use ahead::remove_code;
use channel::{SdkChannel, Served};
use delivery::Delivery;
use finish::Finish;
use launch::{FaultContext, Launched, launch};
use prepare::{Prepared, prepare};
use pumps::{Pumps, Running};
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
    let held_back = HeldBack::begin();
    let random = RandomState::new().build_hasher().finish();
    let runtime = Later::new();
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
    let watch = Watch::start(prepared, claim, runtime);
    // From here on the trial runs.

    let code = watch.watch(held_back, clock);
    remove_code(&pod, dir.as_deref());
    code
}

/// A runtime that is made when it is needed first.
type Later = OnceCell<io::Result<Runtime>>;

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
struct Watch {
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
    runtime: Later,
    credentials: Credentials,
}

impl Watch {
    /// Starts the trial.
    fn start(mut prepared: Prepared, claim: Option<Claim>, runtime: Later) -> Self {
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
        let capture = Capture::new(Places {
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
    fn watch(mut self, held_back: io::Result<HeldBack>, clock: Arc<dyn Clock>) -> ExitCode {
        let held_back = match held_back {
            Ok(held_back) => Some(held_back),
            Err(source) => {
                tracing::warn!("signals are not heard at first: {source}");
                None
            }
        };
        if let Some(code) = held_back.as_ref().and_then(|held_back| self.unless_brief(held_back)) {
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
    fn unless_brief(&mut self, held_back: &HeldBack) -> Option<ExitCode> {
        let settings = &self.prepared.settings;
        if settings.identity != Identity::None || settings.sdk_channel {
            return None;
        }
        let Launched { started, outputs } = &mut self.launched;
        let (trial, exit) = started.as_mut().ok()?;
        let (observer, files) = (&mut self.observer, &self.metric_files);
        let status = brief::wait(
            held_back,
            outputs,
            exit,
            &self.reaper,
            || observer.begin(),
            || !files.any_is_there(),
        )?;
        trial.reaped(false);
        let ending = Ending { status: Some(status), ..Ending::default() };
        let known = if status.success() {
            Known { end: end_of(&ending), ..self.observer.known_of_a_brief_success() }
        } else {
            self.observer.begin();
            what_is_known(&self.observer, ending)
        };
        let verdict = conclude(&known);
        let code = ends::exit_code(&known.end, &verdict, settings.exit_code_map);
        disarm(code);
        if let Err(error) = self.capture.only_verdict(&verdict) {
            tracing::warn!("{error}");
        }
        let dir = self.prepared.dir.as_deref();
        ends::say_goodbye(settings, &verdict, &Tally::default(), dir, None);
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
        let Running { open, outlets, shippers } = pumps.start_all(outputs, tails);

        let Served { findings, end: channel_end } = self.channel.serve(record);
        let recorder = recorder(&settings, &spool, clock, parameter_id);
        let trial = started.as_ref().ok().map(|(trial, _)| trial);
        recorder.report(ReportBody::Started(ends::announcement(&settings, trial)));
        if let Some(earlier) = earlier {
            recorder.note("earlier-attempt", ends::of_earlier(&earlier));
        }
        let Delivery { directives, counts, last } =
            Delivery::start(&settings, self.credentials, &spool);

        let (ask, asked) = mpsc::channel(1);
        if let Some(address) = settings.listen {
            tokio::spawn(listen(address, ask, last.ended()));
        }
        let (known, recorder, signals, hurried) = match started {
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
                    look: Look {
                        asked,
                        sender: settings.sender.clone(),
                        spool: spool.clone(),
                        counts,
                    },
                };
                supervised(&settings, supervisor).await
            }
            Err(error) => {
                tracing::error!("{}", chain(&error));
                let known = Known { end: ends::never_started(&error), ..observer.known() };
                let hurried = matches!(known.end, End::StoppedBefore { .. });
                (known, recorder, signals, hurried)
            }
        };
        channel_end.end();
        let finish = Finish { settings, dir, spool_dir, spool, capture, outlets, last };
        finish.finish(&known, recorder, signals, hurried).await
    }
}

/// Supervises a trial to its end. Returns what is known of the end, and whether a stop was requested that hurries us.
async fn supervised(
    settings: &Settings,
    mut supervisor: Supervisor,
) -> (Known, Recorder, Signals, bool) {
    let ending = supervise(&mut supervisor).await;
    let Supervisor { mut recorder, observer, signals, .. } = supervisor;
    let hurried = ending.terminated;
    let succeeded = ending.stop.is_none() && ending.status.is_some_and(|status| status.success());
    recorder.conclude(succeeded);
    let known = what_is_known(&observer, ending);
    if settings.manager.is_some() && settings.legacy.is_none() && settings.logs.is_none() {
        for last in observer.last_lines(&known) {
            recorder.report(ReportBody::Log(last));
        }
    }
    (known, recorder, signals, hurried)
}

/// Where Kubernetes reads the last words of a container, if we are in one.
const TERMINATION_LOG: &str = "/dev/termination-log";

fn termination_log(settings: &Settings) -> Option<PathBuf> {
    let usual = || Some(PathBuf::from(TERMINATION_LOG)).filter(|path| path.is_file());
    settings.termination_log.clone().or_else(usual)
}

fn what_is_known(observer: &Observer, ending: Ending) -> Known {
    let end = end_of(&ending);
    let Ending { stop, sender, leftovers, .. } = ending;
    Known { end, stop, sender, leftovers, ..observer.known() }
}

fn end_of(ending: &Ending) -> End {
    match ending.status {
        Some(status) => {
            End::Exited { exit: trial_exit(status), wait_status: Some(status.into_raw()) }
        }
        None => End::KeeperFailed { why: "the trial's process survived SIGKILL".to_owned() },
    }
}

fn files(settings: &Settings, sys_dir: Option<&Path>) -> FileSpec {
    FileSpec {
        metric_file: sys_dir.map(|dir| dir.join(SDK_FILE)),
        line_files: settings.metric_files.clone(),
        event_dirs: settings.tensorboard.clone(),
    }
}
