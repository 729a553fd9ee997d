//! The command line: reads arguments, calls [`app`], shows what comes back. Exit codes are
//! decided here and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use trial_protocol::ExperimentId;

use crate::app::{self, What};
use crate::config;
use crate::layout::ExperimentDir;

mod progress;
mod report;
mod run;
mod upkeep;

/// The experiment is done and at least one trial succeeded.
const DONE: u8 = 0;
/// The experiment is done and no trial succeeded, or the manager failed.
const NOTHING_SUCCEEDED: u8 = 1;
/// The configuration, an argument or the machine does not allow the experiment to begin.
const BAD_INPUT: u8 = 2;
/// Interrupted; the experiment can be resumed. 128 + SIGINT, as a shell shows it.
const INTERRUPTED: u8 = 130;

/// Runs searches: proposes parameters, runs the trials that try them, keeps every result.
#[derive(Debug, Parser)]
#[command(name = "trial-manager", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the experiment of a file to its end.
    Run {
        /// Experiment file, YAML or JSON, in NNI's form.
        file: PathBuf,
        #[command(flatten)]
        common: Common,
    },
    /// Go on with an experiment that was interrupted.
    Resume {
        /// Its id, as `run` showed it.
        id: String,
        #[command(flatten)]
        common: Common,
    },
    /// Copy an experiment's database into one file, beside a running manager or without one.
    Backup {
        /// Id of the experiment.
        id: ExperimentId,
        /// The new file; it must not exist.
        to: PathBuf,
        /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
        #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
        data_dir: Option<PathBuf>,
    },
    /// Read all of an experiment's database and say what is wrong with it. Exit code 1 if anything is.
    Check {
        /// Id of the experiment.
        id: ExperimentId,
        /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
        #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
        data_dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1", env = "TRIAL_MANAGER_HOST")]
    host: String,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8080, env = "TRIAL_MANAGER_PORT")]
    port: u16,
    /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
    #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// What to print on standard output at the end.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// The agent program [default: `trialkeeper` beside this program, else in PATH].
    #[arg(long, env = "TRIAL_MANAGER_AGENT")]
    agent: Option<PathBuf>,
    /// Serve images that still carry NNI's own keeper on this port (NNI's convention: port + 1). Whoever
    /// reaches it can report for a known trial: it knows no tokens.
    #[arg(long, env = "TRIAL_MANAGER_LEGACY_PORT")]
    legacy_port: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// The best trials and the winner, for a person.
    Table,
    /// One JSON object with every trial.
    Json,
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(log_level())
        .with_target(false)
        .init();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { BAD_INPUT } else { DONE };
            // A closed terminal is no reason to fail.
            drop(error.print());
            return ExitCode::from(code);
        }
    };
    let (common, what) = match cli.command {
        Command::Run { file, common } => match config::load(&file) {
            Ok(spec) => (common, What::New(Box::new(spec))),
            Err(error) => return fail(&error, BAD_INPUT),
        },
        Command::Resume { id, common } => (common, What::Resume(id)),
        Command::Backup { id, to, data_dir } => {
            return upkeep::backup(&data_dir_of(data_dir, &id), &to);
        }
        Command::Check { id, data_dir } => return upkeep::check(&data_dir_of(data_dir, &id)),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime {
        Ok(runtime) => ExitCode::from(runtime.block_on(run::run(common, what))),
        Err(error) => fail(&error, NOTHING_SUCCEEDED),
    }
}

/// Shows an error with its causes, and returns the exit code.
fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    show(error);
    ExitCode::from(code)
}

#[expect(clippy::print_stderr, reason = "this is the command line")]
fn show(error: &dyn std::error::Error) {
    eprintln!("trial-manager: {}", crate::errors::chain(error));
}

fn exit_code_of(error: &app::Error) -> u8 {
    if error.is_usage() { BAD_INPUT } else { NOTHING_SUCCEEDED }
}

fn log_level() -> tracing::Level {
    let wanted = std::env::var("TRIAL_MANAGER_LOG").ok();
    wanted.and_then(|level| level.parse().ok()).unwrap_or(tracing::Level::WARN)
}

fn data_dir_of(given: Option<PathBuf>, id: &ExperimentId) -> ExperimentDir {
    ExperimentDir::new(&data_dir(given), id)
}

/// `--data-dir`, or the XDG base directory for user data (XDG Base Directory Specification 0.8).
fn data_dir(given: Option<PathBuf>) -> PathBuf {
    let absolute = |variable: &str| {
        std::env::var_os(variable)
            .filter(|text| !text.is_empty())
            .map(|text: OsString| PathBuf::from(text))
    };
    given.unwrap_or_else(|| {
        let xdg = absolute("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let home = || absolute("HOME").map(|home| home.join(".local").join("share"));
        xdg.or_else(home).unwrap_or_else(|| PathBuf::from(".")).join("trialkeeper")
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
