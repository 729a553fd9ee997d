//! `trialkeeper run`: builds the parts, starts the trial, and puts everything away after it.
//!
//! The order is the point. Before the trial starts there is only what it needs itself: its directory with
//! its parameters, its pipes, our ears for signals, and the spool, whose lock tells whether this very attempt
//! runs already. Delivery and everything else are built while it runs. At the end: its output is read to the
//! end, the verdict is reached and written, the rest is delivered, and then we exit with its code.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use trial_protocol::{ReportBody, Stream};

use crate::book::{Book, Scribe};
use crate::capture::{Capture, Places};
use crate::cli::{KEEPER_FAULT, RunArgs};
use crate::clock::{Clock, SystemClock};
use crate::errors::chain;
use crate::metric_file::MetricFiles;
use crate::observe::Observer;
use crate::reap::Reaper;
use crate::settings::Settings;
use crate::signals::{Signals, unblock_all};
use crate::spool::{self, Opened, Spool};
use crate::supervise::{Ending, World, supervise, trial_exit};
use crate::tail::FileSpec;
use crate::trial::{self, Plan};
use crate::verdict::{End, Known, conclude};

mod channel;
mod delivery;
mod ends;
mod prepare;
mod pumps;

use channel::{SdkChannel, Served};
use delivery::Delivery;
use prepare::{Prepared, prepare};
use pumps::{Pumps, Running};

/// Messages of the pumps that may wait for the main task.
const HEARD_ROOM: usize = 64;

/// The longest between a report and its being safe on disk; the verdict is safe at once.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The longest wait for the disk at the end.
const DISK_WAIT: Duration = Duration::from_secs(2);

/// Runs a trial as `args` say, and returns the exit code.
pub fn run(args: &RunArgs) -> ExitCode {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    unblock_all();
    crate::log::start(args.log_file.as_deref(), args.verbose, Arc::clone(&clock));
    let random = RandomState::new().build_hasher().finish();
    let prepared = match prepare(args, clock.now_ms(), random) {
        Ok(prepared) => prepared,
        Err(error) => {
            tracing::error!("{}", chain(error.as_ref()));
            return ExitCode::from(KEEPER_FAULT);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => return step_aside(&prepared.plan, &source),
    };
    let code = runtime.block_on(keep(prepared, clock));
    // A name that is still being resolved, say, must not keep us here.
    runtime.shutdown_background();
    code
}

/// The agent cannot do its work, so the trial takes its place: unobserved is better than not run.
fn step_aside(plan: &Plan, source: &io::Error) -> ExitCode {
    tracing::error!("cannot watch the trial ({source}); it runs without trialkeeper");
    let error = trial::step_aside(plan);
    tracing::error!("{}", chain(&error));
    ExitCode::from(error.code())
}

async fn keep(prepared: Prepared, clock: Arc<dyn Clock>) -> ExitCode {
    let Prepared { settings, mut plan, record, dir, earlier, sys_dir, parameter_id } = prepared;
    let signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(source) => return step_aside(&plan, &source),
    };
    if let Err(source) = Reaper::adopt_orphans() {
        tracing::warn!(
            "cannot adopt orphans ({source}); what leaves the trial's group is not ended"
        );
    }
    let channel = SdkChannel::open(&settings, &mut plan.environment).await;
    let reaper = Reaper::default();
    let (tell, heard) = mpsc::channel(HEARD_ROOM);
    let watcher = tell.clone();
    let files = files(&settings, sys_dir.as_deref());
    let metric_files = MetricFiles::new(&settings.collect, files, tell.clone());
    let capture = Capture::new(Places {
        dir: dir.clone(),
        termination_log: termination_log(&settings),
        rotate_bytes: settings.rotate_bytes,
    });
    // Before the trial, because its lock tells whether somebody runs this very attempt already.
    let Opened { spool, warnings, attempt_in_use } = Spool::open(spool::Options {
        dir: settings.spool_dir.clone().or_else(|| Some(dir.as_ref()?.join("spool"))),
        attempt: settings.attempt.clone(),
        sender: settings.named.then(|| settings.sender.clone()),
        limit_bytes: settings.spool_bytes,
        // Without a manager nobody relies on them, and an fsync would be most of a short trial's time.
        sync_interval: settings.manager.as_ref().map_or(Duration::MAX, |_| SYNC_EVERY),
        now_ms: clock.now_ms(),
    });
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if attempt_in_use {
        tracing::error!("the attempt {} runs already; it is not run twice", settings.attempt);
        return ExitCode::from(KEEPER_FAULT);
    }
    let mut pumps = Pumps::new(&settings, &capture, tell, &spool, &clock);
    let (stdout, stdout_tail) =
        pumps.start(Stream::Stdout, io::stdout().as_fd().try_clone_to_owned());
    let (stderr, stderr_tail) =
        pumps.start(Stream::Stderr, io::stderr().as_fd().try_clone_to_owned());
    let Running { open, shippers } = pumps.running();
    let observe = settings.observe.clone();
    let mut observer = Observer::new(observe, reaper.clone(), watcher, stdout_tail, stderr_tail);
    let started = trial::start(&plan, stdout, stderr, &reaper);
    // From here on the trial runs.

    let Served { findings, end: channel_end } = channel.serve(record);
    observer.begin();
    let secrets = settings.observe.secrets.clone();
    let live = settings.verbose >= 1;
    let mut book = Book::new(&settings.collect, spool.clone(), clock, live, secrets.clone());
    if let Some(legacy) = &settings.legacy {
        let objective = settings.collect.objective.clone();
        let mut scribe =
            Scribe::new(spool.clone(), settings.sender.clone(), parameter_id, objective, secrets);
        if let Some(version) = &legacy.manager_version {
            scribe.compare_versions(version, settings.nni_version.as_deref());
        }
        book = book.for_nni(scribe);
    }
    let trial = started.as_ref().ok().map(|(trial, _)| trial);
    book.report(ReportBody::Started(ends::announcement(&settings, trial)));
    if let Some(earlier) = earlier {
        book.note("earlier-attempt", ends::of_earlier(&earlier));
    }
    let delivery = Delivery::start(&settings, &spool);

    let (known, book) = match started {
        Ok((trial, exit)) => {
            let mut world = World {
                trial,
                exit,
                reaper,
                signals,
                heard,
                open,
                metric_files: Some(metric_files),
                channel: findings,
                directives: delivery.directives,
                book,
                observer,
                shippers,
                capture: capture.clone(),
                grace: settings.grace,
                drain: settings.drain,
                stop_on_stall: settings.observe.stop_on_stall,
            };
            let ending = supervise(&mut world).await;
            let World { mut book, observer, .. } = world;
            let succeeded =
                ending.stop.is_none() && ending.status.is_some_and(|status| status.success());
            book.conclude(succeeded);
            (what_is_known(&observer, ending), book)
        }
        Err(error) => {
            tracing::error!("{}", chain(&error));
            (Known { end: ends::never_started(&error), ..observer.known() }, book)
        }
    };
    channel_end.end();
    let verdict = conclude(&known);

    // The end: the verdict to the disk and to the manager, and what is left to either.
    capture.verdict(&verdict);
    if capture.shed_bytes() > 0 {
        let message = format!("{} bytes of output are not in the files", capture.shed_bytes());
        book.note("output-shed", message);
    }
    book.report(ReportBody::Ended(Box::new(verdict.clone())));
    let delivered = Delivery::finish(delivery.task, delivery.ended, settings.flush);
    let (outcome, kept) = tokio::join!(delivered, capture.finish(DISK_WAIT));
    spool.close(DISK_WAIT).await;
    if let Some(error) = kept.error {
        tracing::warn!("{error}; {} bytes of output are not in the files", kept.shed_bytes);
    }
    ends::say_goodbye(&settings, &verdict, &book, dir.as_deref(), outcome.as_ref());
    ExitCode::from(ends::exit_code(&known.end, &verdict, settings.exit_code_map))
}

/// Where Kubernetes reads the last words of a container, if we are in one.
const TERMINATION_LOG: &str = "/dev/termination-log";

fn termination_log(settings: &Settings) -> Option<PathBuf> {
    let usual = || Some(PathBuf::from(TERMINATION_LOG)).filter(|path| path.is_file());
    settings.termination_log.clone().or_else(usual)
}

fn what_is_known(observer: &Observer, ending: Ending) -> Known {
    let Ending { status, stop, leftovers } = ending;
    let end = match status {
        Some(status) => {
            End::Exited { exit: trial_exit(status), wait_status: Some(status.into_raw()) }
        }
        None => End::KeeperFailed { why: "the trial's process survived SIGKILL".to_owned() },
    };
    Known { end, stop, leftovers, ..observer.known() }
}

fn files(settings: &Settings, sys_dir: Option<&Path>) -> FileSpec {
    FileSpec {
        metric_file: sys_dir.map(|dir| dir.join(".nni/metrics")),
        line_files: settings.metric_files.clone(),
        event_dirs: settings.tensorboard.clone(),
    }
}
