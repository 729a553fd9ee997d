//! `trialkeeper run`: builds the parts, starts the trial, and puts everything away after it.
//!
//! The order is the point. Before the trial starts there is only what it needs itself: its directory with
//! its parameters, its pipes, and our ears for signals. Spool, delivery and everything else are built while
//! it runs. At the end: its output is read to the end, the verdict is reached and written, the rest is
//! delivered, and then we exit with its code.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use trial_protocol::{Directive, ReportBody, Started, Stream, TrialExit, Verdict};

use crate::book::Book;
use crate::capture::Capture;
use crate::cli::{KEEPER_FAULT, RunArgs};
use crate::clock::{Clock, SystemClock};
use crate::deliver;
use crate::environment::{self, Facts};
use crate::errors::chain;
use crate::metric_file::MetricFile;
use crate::output::{Heard, Pump, SharedTail};
use crate::parameters::Parameters;
use crate::reap::Reaper;
use crate::run_dir::{self, PARAMETERS_FILE, RunDir, Wanted};
use crate::settings::{Settings, is_inline};
use crate::signals::{Signals, unblock_all};
use crate::spool::{self, Opened, Spool};
use crate::standalone;
use crate::supervise::{Ending, World, supervise, trial_exit};
use crate::trial::{self, Plan, Trial};
use crate::verdict::{End, Known, conclude};

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

/// Everything that is settled before the trial starts.
struct Prepared {
    settings: Settings,
    plan: Plan,
    dir: Option<PathBuf>,
    /// Where NNI's SDK keeps its files.
    sys_dir: Option<PathBuf>,
}

fn prepare(
    args: &RunArgs,
    now_ms: i64,
    random: u64,
) -> Result<Prepared, Box<dyn std::error::Error>> {
    let inherited: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let variable = |name: &str| std::env::var_os(name);
    let settings = Settings::resolve(args, &variable, random)?;
    let their_sys_dir =
        variable("NNI_SYS_DIR").map(PathBuf::from).filter(|_| args.output_dir.is_none());
    let parameters = parameters(args, their_sys_dir.as_deref())?;

    let wanted = match &settings.output_dir {
        Some(dir) => Wanted::Dir(dir.clone()),
        None => Wanted::New { now_ms, random },
    };
    let RunDir { path: dir, warnings } = run_dir::prepare(&wanted, &parameters);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let code_dir = std::env::current_dir().ok();
    let parameters_file = dir.as_ref().map(|dir| dir.join(PARAMETERS_FILE));
    let ids = &settings.sender;
    let facts = Facts {
        platform: args.platform.as_deref(),
        experiment: args.experiment.as_ref().map(|_| ids.experiment.as_str()),
        trial: args.trial.as_ref().map(|_| ids.trial.as_str()),
        sequence: args.sequence,
        output_dir: dir.as_deref().filter(|_| args.output_dir.is_some()),
        fallback_dir: dir.as_deref(),
        code_dir: code_dir.as_deref(),
        parameters: &parameters,
        parameters_file: parameters_file.as_deref(),
    };
    let environment = environment::changes(&inherited, &facts);
    let (program, arguments) =
        settings.command.split_first().expect("clap requires a command or a shell line");
    let plan = Plan {
        program: program.clone(),
        arguments: arguments.to_vec(),
        environment,
        detach_on_death: settings.detach_on_death,
    };
    Ok(Prepared { plan, sys_dir: their_sys_dir.or_else(|| dir.clone()), dir, settings })
}

/// Why the parameters are not known. The trial is not started then: its result would be another point's.
#[derive(Debug, thiserror::Error)]
enum ParametersError {
    #[error("cannot read the parameters in {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot understand the parameters in {}", .path.display())]
    Parse { path: PathBuf, source: crate::parameters::Error },
    #[error("cannot understand the value of --parameters")]
    ParseInline(#[source] crate::parameters::Error),
}

fn parameters(args: &RunArgs, sys_dir: Option<&Path>) -> Result<Parameters, ParametersError> {
    let path = match &args.parameters {
        Some(text) if is_inline(text) => {
            return Parameters::parse(&text.to_string_lossy())
                .map_err(ParametersError::ParseInline);
        }
        Some(path) => PathBuf::from(path),
        // Whoever set NNI_SYS_DIR may have put the record there.
        None => match sys_dir.map(|dir| dir.join("parameter.cfg")).filter(|path| path.exists()) {
            Some(path) => path,
            None => return Ok(Parameters::none()),
        },
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            Parameters::parse(&text).map_err(|source| ParametersError::Parse { path, source })
        }
        Err(source) => Err(ParametersError::Read { path, source }),
    }
}

/// The agent cannot do its work, so the trial takes its place: unobserved is better than not run.
fn step_aside(plan: &Plan, source: &io::Error) -> ExitCode {
    tracing::error!("cannot watch the trial ({source}); it runs without trialkeeper");
    let error = trial::step_aside(plan);
    tracing::error!("{}", chain(&error));
    ExitCode::from(error.code())
}

async fn keep(prepared: Prepared, clock: Arc<dyn Clock>) -> ExitCode {
    let Prepared { settings, plan, dir, sys_dir } = prepared;
    let signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(source) => return step_aside(&plan, &source),
    };
    if let Err(source) = Reaper::adopt_orphans() {
        tracing::warn!(
            "cannot adopt orphans ({source}); what leaves the trial's group is not ended"
        );
    }
    let reaper = Reaper::default();
    let (tell, heard) = mpsc::channel(HEARD_ROOM);
    let metric_file = sys_dir.map(|dir| MetricFile::new(&dir, tell.clone()));
    let capture = Capture::new(dir.as_deref());
    let mut pumps = Pumps { settings: &settings, capture: &capture, tell, open: Vec::new() };
    let (stdout, stdout_tail) =
        pumps.start(Stream::Stdout, io::stdout().as_fd().try_clone_to_owned());
    let (stderr, stderr_tail) =
        pumps.start(Stream::Stderr, io::stderr().as_fd().try_clone_to_owned());
    let open = std::mem::take(&mut pumps.open);
    drop(pumps);

    // Before the trial, because its lock tells whether somebody runs this very attempt already.
    let Opened { spool, warnings, attempt_in_use } = Spool::open(spool::Options {
        dir: settings.spool_dir.clone().or_else(|| Some(dir.as_ref()?.join("spool"))),
        attempt: settings.attempt.clone(),
        sender: settings.named.then(|| settings.sender.clone()),
        limit_bytes: settings.spool_bytes,
        sync_interval: SYNC_EVERY,
        now_ms: clock.now_ms(),
    });
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if attempt_in_use {
        tracing::error!("the attempt {} runs already; it is not run twice", settings.attempt);
        return ExitCode::from(KEEPER_FAULT);
    }
    let before = Instant::now();
    let started = trial::start(&plan, stdout, stderr, &reaper);
    // From here on the trial runs.

    let live = settings.verbose >= 1;
    let book = Book::new(&settings.collect, spool.clone(), clock, live);
    let trial = started.as_ref().ok().map(|(trial, _)| trial);
    book.report(ReportBody::Started(announcement(&settings, trial)));
    let delivery = Delivery::start(&settings, &spool);

    let mut known = Known::default();
    let book = match started {
        Ok((trial, exit)) => {
            let parts = Parts { trial, exit, reaper, signals, heard, open, metric_file };
            watched(parts, &settings, delivery.directives, book, &mut known).await
        }
        Err(error) => {
            tracing::error!("{}", chain(&error));
            known.end = never_started(&error);
            book
        }
    };
    known.duration_ms = Some(u64::try_from(before.elapsed().as_millis()).unwrap_or(u64::MAX));
    known.stdout_tail = tail(&stdout_tail);
    known.stderr_tail = tail(&stderr_tail);
    let code = exit_code(&known.end);
    let verdict = conclude(&known);

    // The end: the verdict to the disk and to the manager, and what is left to either.
    capture.verdict(serde_json::to_vec(&verdict).expect("a verdict is texts and numbers"));
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
    say_goodbye(&settings, &verdict, &book, dir.as_deref(), outcome.as_ref());
    ExitCode::from(code)
}

/// Starts the threads that read the trial's output.
struct Pumps<'a> {
    settings: &'a Settings,
    capture: &'a Capture,
    tell: mpsc::Sender<Heard>,
    open: Vec<Stream>,
}

impl Pumps<'_> {
    /// What the trial gets as `stream`: a pipe with a pump behind it, or, where that cannot be had, our own.
    fn start(
        &mut self,
        stream: Stream,
        sink: Result<std::os::fd::OwnedFd, io::Error>,
    ) -> (Stdio, SharedTail) {
        let tail = SharedTail::default();
        let pump = Pump {
            stream,
            capture: self.capture.clone(),
            tail: Arc::clone(&tail),
            heard: self.tell.clone(),
        };
        let started = sink.and_then(|sink| {
            let (source, trials) = io::pipe()?;
            pump.start(source.into(), sink, &self.settings.collect)?;
            Ok(trials)
        });
        match started {
            Ok(trials) => {
                self.open.push(stream);
                (Stdio::from(trials), tail)
            }
            Err(source) => {
                tracing::warn!(
                    "cannot read the trial's output ({source}); no metrics are found in it"
                );
                (Stdio::inherit(), tail)
            }
        }
    }
}

/// What supervision takes over.
struct Parts {
    trial: Trial,
    exit: oneshot::Receiver<ExitStatus>,
    reaper: Reaper,
    signals: Signals,
    heard: mpsc::Receiver<Heard>,
    open: Vec<Stream>,
    metric_file: Option<MetricFile>,
}

async fn watched(
    parts: Parts,
    settings: &Settings,
    directives: mpsc::Receiver<Directive>,
    book: Book,
    known: &mut Known,
) -> Book {
    let Parts { trial, exit, reaper, signals, heard, open, metric_file } = parts;
    let (grace, drain) = (settings.grace, settings.drain);
    let mut world = World {
        trial,
        exit,
        reaper,
        signals,
        heard,
        open,
        metric_file,
        directives,
        book,
        grace,
        drain,
    };
    let Ending { status, stop, leftovers } = supervise(&mut world).await;
    known.end = match status {
        Some(status) => {
            End::Exited { exit: trial_exit(status), wait_status: Some(status.into_raw()) }
        }
        None => End::KeeperFailed { why: "the trial's process survived SIGKILL".to_owned() },
    };
    known.stop = stop;
    known.leftovers = leftovers;
    let succeeded = stop.is_none() && status.is_some_and(|status| status.success());
    world.book.conclude(succeeded);
    world.book
}

/// The task that delivers, where there is a manager.
struct Delivery {
    directives: mpsc::Receiver<Directive>,
    ended: watch::Sender<bool>,
    task: Option<JoinHandle<deliver::Outcome>>,
}

impl Delivery {
    fn start(settings: &Settings, spool: &Spool) -> Self {
        let (order, directives) = mpsc::channel(16);
        let (ended, told) = watch::channel(false);
        let task = settings.manager.clone().map(|manager| {
            let settings = deliver::Settings {
                manager,
                token_file: settings.token_file.clone(),
                ca_file: settings.ca_file.clone(),
                sender: settings.sender.clone(),
                heartbeat: settings.heartbeat,
                flush: settings.flush,
            };
            // A task, so that a panic in it is not ours. Joined in `finish`.
            tokio::spawn(deliver::run(settings, spool.clone(), order, told))
        });
        Self { directives, ended, task }
    }

    /// Tells it that nothing more will come, and waits until it is done or out of time.
    async fn finish(
        task: Option<JoinHandle<deliver::Outcome>>,
        ended: watch::Sender<bool>,
        flush: Duration,
    ) -> Option<deliver::Outcome> {
        let task = task?;
        ended.send(true).ok();
        let lost =
            |why: &str| deliver::Outcome { undelivered: 0, last_error: Some(why.to_owned()) };
        // It watches the time itself; ours is for the case that it does not.
        Some(match timeout(flush + Duration::from_secs(1), task).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => lost("delivery failed; reports wait in the spool"),
            Err(_) => lost("delivery does not end; reports wait in the spool"),
        })
    }
}

fn announcement(settings: &Settings, trial: Option<&Trial>) -> Started {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let command = settings.command.iter().map(|word| word.to_string_lossy().into_owned());
    Started {
        command: command.collect(),
        pid: trial.map(Trial::pid),
        host: nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        role: variable("FC_TASKROLE_NAME"),
        role_index: variable("FC_TASK_INDEX").and_then(|index| index.parse().ok()),
    }
}

fn never_started(error: &trial::Error) -> End {
    let source = |source: &io::Error| source.to_string();
    match error {
        trial::Error::NotFound { program, .. } => {
            End::NotFound { program: program.display().to_string() }
        }
        trial::Error::NotExecutable { program, source: why } => {
            End::NotExecutable { program: program.display().to_string(), why: source(why) }
        }
        trial::Error::Spawn { source: why, .. } => {
            End::KeeperFailed { why: format!("no process could be started: {why}") }
        }
    }
}

fn exit_code(end: &End) -> u8 {
    match end {
        End::Exited { exit, .. } => exit.shell_code(),
        End::NotFound { .. } => 127,
        End::NotExecutable { .. } => 126,
        End::KeeperFailed { .. } => KEEPER_FAULT,
        // It was killed, and not even that ended it.
        End::Running => TrialExit::Signal(9).shell_code(),
    }
}

fn tail(tail: &SharedTail) -> Vec<u8> {
    tail.lock().unwrap_or_else(PoisonError::into_inner).bytes().to_vec()
}

fn say_goodbye(
    settings: &Settings,
    verdict: &Verdict,
    book: &Book,
    dir: Option<&Path>,
    outcome: Option<&deliver::Outcome>,
) {
    if let Some(error) = outcome.and_then(|outcome| outcome.last_error.as_ref()) {
        tracing::warn!("not everything was delivered: {error}");
    }
    if settings.manager.is_none() || settings.verbose >= 1 {
        let undelivered = outcome.map(|outcome| outcome.undelivered);
        let facts = standalone::Facts { verdict, tally: book.tally(), dir, undelivered };
        // A closed stderr is no fault of the trial's.
        io::stderr().write_all(standalone::summary(&facts).as_bytes()).ok();
    }
}
