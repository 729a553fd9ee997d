//! `trialkeeper replay`: delivers the reports that an agent left in its spool when it ended.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use trial_protocol::{AttemptId, Lane};

use crate::cli::{AGENT_FAULT, ManagerArgs, ReplayArgs};
use crate::commands::tools::create_runtime;
use crate::delivery::{self, Credentials, ManagerAddress, Outcome};
use crate::spool::lock::{self, DirLock};
use crate::spool::{Dialect, LaneFiles, Sender, lane_files};
use crate::util::clock::SystemClock;
use crate::util::errors::chain;

/// The spool to deliver, and its destination.
#[derive(Debug)]
pub struct ReplayRequest {
    /// An output directory with a spool, or a spool.
    pub dir: PathBuf,
    /// The trial that the reports belong to, if the spool does not name it.
    pub sender: Option<Sender>,
    /// The address of the manager.
    pub manager: ManagerAddress,
    /// A file with the bearer token.
    pub token_file: Option<PathBuf>,
    /// PEM file with the manager's certificate authority.
    pub ca_file: Option<PathBuf>,
    /// The maximum time for delivery.
    pub timeout: Duration,
}

/// The errors of a replay.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no spool.
    #[error("there is no spool in {}; name a trial's output directory", .path.display())]
    NoSpool {
        /// The directory that was searched.
        path: PathBuf,
    },
    /// The spool does not name the trial of its reports.
    #[error(
        "{} does not name the trial of its reports: the run had no manager, or the file is damaged; \
         set --experiment and --trial",
        .path.display()
    )]
    NoSender {
        /// Path of the spool.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// An agent uses the spool.
    #[error("process {holder} uses {} and delivers the reports itself", .path.display())]
    InUse {
        /// Path of the spool.
        path: PathBuf,
        /// The process that holds it.
        holder: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
}

/// Runs the command and returns its exit code.
pub fn main(args: ReplayArgs) -> ExitCode {
    crate::util::log::start(None, 0, Arc::new(SystemClock));
    let address = args.manager.address();
    let ManagerArgs { token_file, ca_file, .. } = args.manager;
    let Some(manager) = address else {
        return ExitCode::from(AGENT_FAULT); // The command line requires a manager.
    };
    let sender = args.experiment.zip(args.trial);
    let sender =
        sender.map(|(experiment, trial)| Sender { experiment, trial, dialect: Dialect::Native });
    let ReplayArgs { dir, flush: timeout, .. } = args;
    let request = ReplayRequest { dir, sender, manager, token_file, ca_file, timeout };
    let runtime = match create_runtime() {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    match runtime.block_on(replay(request)) {
        Ok(Outcome { undelivered: 0, .. }) => ExitCode::SUCCESS,
        Ok(Outcome { undelivered, last_error }) => {
            let why = last_error.unwrap_or_default();
            tracing::error!(
                "{undelivered} reports were not delivered and stay in the spool: {why}"
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::from(AGENT_FAULT)
        }
    }
}

/// Delivers all remaining reports, each under the attempt that wrote it, the oldest attempt first.
pub async fn replay(request: ReplayRequest) -> Result<Outcome, Error> {
    let inside = request.dir.join("spool");
    let path = if inside.is_dir() { inside } else { request.dir };
    if !path.is_dir() {
        return Err(Error::NoSpool { path });
    }
    // The lock names an attempt, so that a second agent of the same attempt notices it. A replay runs no attempt.
    let replay_id = AttemptId::new("replay").expect("letters are an id");
    let _lock = DirLock::acquire(&path, &replay_id).map_err(|error| match error {
        lock::Error::Held { holder, .. } => Error::InUse { path: path.clone(), holder },
        lock::Error::Io { path, source } => Error::Read { path, source },
    })?;
    let mut total = Outcome { undelivered: 0, last_error: None };
    let mut unnamed = None;
    for attempt in lane_files::list_attempts(&path) {
        let noted = Sender::read(&path, &attempt);
        let sender = match noted.or_else(|error| request.sender.clone().ok_or(error)) {
            Ok(sender) => sender,
            Err(source) => {
                // The other attempts must not wait until a person names the trial.
                unnamed = Some(Error::NoSender { path: path.join(attempt.as_str()), source });
                continue;
            }
        };
        let settings = delivery::Settings {
            manager: request.manager.clone(),
            token_file: request.token_file.clone(),
            ca_file: request.ca_file.clone(),
            credentials: Credentials::default(),
            sender,
            heartbeat: Duration::from_hours(1),
            flush: request.timeout,
            // The user ends this command like any program.
            abort: watch::channel(false).1,
            counts: Arc::default(),
        };
        let outcome =
            delivery::deliver_files(settings, &attempt, open_lanes(&path, &attempt)?).await;
        total.undelivered += outcome.undelivered;
        total.last_error = outcome.last_error.or(total.last_error);
    }
    match unnamed {
        Some(error) if total.undelivered == 0 => Err(error),
        _ => Ok(total),
    }
}

fn open_lanes(spool: &Path, attempt: &AttemptId) -> Result<Vec<LaneFiles>, Error> {
    let dir = spool.join(attempt.as_str());
    [Lane::Facts, Lane::Bulk]
        .into_iter()
        .map(|lane| LaneFiles::open(&dir, lane))
        .collect::<Result<_, _>>()
        .map_err(|source| Error::Read { path: dir, source })
}
