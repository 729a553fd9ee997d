//! The command line. Each flag has an environment variable: `TRIALKEEPER_` and the flag's name.
//!
//! This module only parses; `run::settings` interprets the values.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{BoolishValueParser, Resettable};
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use trial_protocol::{AttemptId, Direction, ExperimentId, TrialJobId};

use crate::collect::Pattern;
use crate::delivery::ManagerAddress;

mod config_file;
mod defaults;
pub mod legacy;
mod origin;
mod plain;
mod pod;
mod unknown_variables;
mod values;
mod watch;

pub use pod::{Fetch, PodArgs};
pub use values::duration;
pub use watch::WatchArgs;

use legacy::NniKeeperArgs;
use values::{address, heartbeat, log_line_bytes, manager, pattern, rotate_bytes};

/// The exit code for the agent's own faults, including a malformed command line.
pub const AGENT_FAULT: u8 = 125;

/// Runs the command of a trial, watches it, and reports every observation.
#[derive(Debug, Parser)]
#[command(name = "trialkeeper", version, disable_help_subcommand = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command as a trial. Short form: `trialkeeper -- CMD`.
    ///
    /// Exit code: the trial's own, or 128 + the signal that killed it; 126 if the command is not
    /// executable, 127 if it is not found, 125 for a fault of trialkeeper itself.
    Run(Box<RunArgs>),
    /// Deliver the reports that an agent left in its spool.
    ///
    /// Exit code: 0 if the manager has all reports, 1 if some remain, 125 if the spool cannot be
    /// delivered.
    Replay(ReplayArgs),
    /// Show a trial's parameters, verdict, metrics and files.
    Inspect {
        /// The trial's output directory.
        dir: PathBuf,
        /// The output format.
        #[arg(long, default_value = "text")]
        output: Output,
    },
    /// Print one reading of the GPUs. Exit code: 0, or 1 if no GPU can be read.
    Gpu {
        /// The program that reads NVIDIA's GPUs.
        #[arg(
            long,
            env = "TRIALKEEPER_GPU_PROGRAM",
            value_name = "PROGRAM",
            default_value = defaults::GPU_PROGRAM
        )]
        gpu_program: PathBuf,
        /// The output format.
        #[arg(long, default_value = "text")]
        output: Output,
    },
    /// Check the conditions for a trial on this machine: the connection to the manager, disk space, GPUs, limits.
    ///
    /// Exit code: 0 if no check fails, 1 if one does.
    Doctor(DoctorArgs),
    /// Copy this program into a directory, for an init container.
    Install {
        /// The target directory.
        dir: PathBuf,
    },
    /// Print the completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version {
        /// The output format.
        #[arg(long, default_value = "text")]
        output: Output,
    },
}

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Human-readable.
    #[value(alias = "table")]
    Text,
    /// Machine-readable.
    Json,
}

/// The manager and its credentials.
#[derive(Debug, Default, Args)]
pub struct ManagerArgs {
    /// Base URL of the manager.
    #[arg(long, env = "TRIALKEEPER_MANAGER", value_name = "URL", conflicts_with = "manager_file", value_parser = manager)]
    pub manager: Option<String>,
    /// A file whose first line is the manager's URL. Read again when the manager does not answer.
    #[arg(long, env = "TRIALKEEPER_MANAGER_FILE", value_name = "FILE")]
    pub manager_file: Option<PathBuf>,
    /// A file with the token for the manager.
    #[arg(long, env = "TRIALKEEPER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A PEM file with the authority that signed the manager's certificate [default: public authorities].
    #[arg(long, env = "TRIALKEEPER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

impl ManagerArgs {
    /// Returns the address, if one was given.
    pub fn address(&self) -> Option<ManagerAddress> {
        ManagerAddress::given(self.manager.clone(), self.manager_file.clone())
    }
}

/// Options of `replay`.
#[derive(Debug, Args)]
#[command(mut_arg("manager_file", |file| file.required_unless_present("manager")))]
pub struct ReplayArgs {
    /// The trial's output directory, or its spool.
    pub dir: PathBuf,
    /// The experiment that --trial belongs to.
    #[arg(long, value_name = "ID", requires = "trial")]
    pub experiment: Option<ExperimentId>,
    /// The trial that the reports belong to. Required if the spool was created without a manager.
    #[arg(long, value_name = "ID", requires = "experiment")]
    pub trial: Option<TrialJobId>,
    /// The manager that receives the reports.
    #[command(flatten)]
    pub manager: ManagerArgs,
    /// Maximum time for delivery.
    #[arg(long, env = "TRIALKEEPER_FLUSH", value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub flush: Duration,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The manager to check.
    #[command(flatten)]
    pub manager: ManagerArgs,
    /// The trial's output directory [default: the current one].
    #[arg(long, env = "TRIALKEEPER_OUTPUT_DIR", value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// The spool directory [default: spool, in the output directory].
    #[arg(long, env = "TRIALKEEPER_SPOOL_DIR", value_name = "DIR")]
    pub spool_dir: Option<PathBuf>,
    /// The program that reads NVIDIA's GPUs.
    #[arg(
        long,
        env = "TRIALKEEPER_GPU_PROGRAM",
        value_name = "PROGRAM",
        default_value = defaults::GPU_PROGRAM
    )]
    pub gpu_program: PathBuf,
    /// The output format.
    #[arg(long, default_value = "text")]
    pub output: Output,
}

/// Options of `run`.
#[derive(Debug, Default, Args)]
#[command(mut_arg("manager", |url| {
    url.help("Base URL of the manager. Without a manager, everything stays on this machine")
}))]
pub struct RunArgs {
    /// The command and its arguments.
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        required_unless_present_any = ["shell", "print_config"]
    )]
    pub command: Vec<OsString>,
    /// A shell command instead of CMD, run by `/bin/bash -c`, or by `/bin/sh -c` if there is no bash.
    #[arg(long, env = "TRIALKEEPER_SHELL", value_name = "LINE", conflicts_with = "command")]
    pub shell: Option<OsString>,

    /// ID of the experiment [default: `$NNI_EXP_ID`].
    #[arg(long, env = "TRIALKEEPER_EXPERIMENT", value_name = "ID")]
    pub experiment: Option<ExperimentId>,
    /// ID of the trial [default: `$NNI_TRIAL_JOB_ID`].
    #[arg(long, env = "TRIALKEEPER_TRIAL", value_name = "ID")]
    pub trial: Option<TrialJobId>,
    /// ID of this attempt [default: `$FC_TASK_ATTEMPT_INSTANCE_UID`, else random].
    #[arg(long, env = "TRIALKEEPER_ATTEMPT", value_name = "ID")]
    pub attempt: Option<AttemptId>,
    /// Number of the trial in its experiment, from 0.
    #[arg(long, env = "TRIALKEEPER_SEQUENCE", value_name = "N")]
    pub sequence: Option<u64>,
    /// The platform that NNI's SDK sees [default: `$NNI_PLATFORM`, else local].
    #[arg(long, env = "TRIALKEEPER_PLATFORM", value_name = "NAME")]
    pub platform: Option<String>,

    /// The manager. Without one, everything stays on this machine.
    #[command(flatten)]
    pub manager: ManagerArgs,

    /// The trial's directory for output, verdict and spool [default: `$NNI_OUTPUT_DIR`, else a new one in
    /// ./trialkeeper-runs].
    #[arg(long, env = "TRIALKEEPER_OUTPUT_DIR", value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// The spool directory [default: spool, in the output directory].
    #[arg(long, env = "TRIALKEEPER_SPOOL_DIR", value_name = "DIR")]
    pub spool_dir: Option<PathBuf>,
    /// Maximum size of the spool in bytes. Above it, logs and samples are dropped, but never metrics or lifecycle
    /// reports.
    #[arg(long, env = "TRIALKEEPER_SPOOL_BYTES", value_name = "N", default_value = defaults::SPOOL_BYTES)]
    pub spool_bytes: u64,
    /// Size in bytes at which the files `stdout` and `stderr` are rotated [default: never].
    #[arg(long, env = "TRIALKEEPER_ROTATE_BYTES", value_name = "N", value_parser = rotate_bytes)]
    pub rotate_bytes: Option<u64>,
    /// A file for the short verdict, at most 4096 bytes of JSON [default: /dev/termination-log, if it exists].
    #[arg(long, env = "TRIALKEEPER_TERMINATION_LOG", value_name = "FILE")]
    pub termination_log: Option<PathBuf>,
    /// Map the trial's exit code for a platform that decides on retries by the exit code.
    #[arg(long, env = "TRIALKEEPER_EXIT_CODE_MAP", value_name = "PLATFORM")]
    pub exit_code_map: Option<ExitCodeMap>,
    /// The part of the trial's output to send to the manager.
    #[arg(long, env = "TRIALKEEPER_LOG_COLLECTION", value_name = "WAY", default_value = "none")]
    pub log_collection: LogCollection,
    /// Length in bytes up to which a line is sent completely.
    #[arg(long, env = "TRIALKEEPER_LOG_LINE_BYTES", value_name = "N", default_value = defaults::LOG_LINE_BYTES, value_parser = log_line_bytes)]
    pub log_line_bytes: usize,
    /// Maximum bytes of each stream to send per second. The rest is dropped and counted.
    #[arg(long, env = "TRIALKEEPER_LOG_RATE", value_name = "N", default_value = defaults::LOG_RATE)]
    pub log_rate: u64,
    /// A variable whose value is masked in all data that is sent. Can be repeated.
    #[arg(long, env = "TRIALKEEPER_MASK_ENV", value_name = "NAME", value_delimiter = ',')]
    pub mask_env: Vec<String>,
    /// The trial's parameters: NNI's record or a JSON object, in a file or inline.
    #[arg(long, env = "TRIALKEEPER_PARAMETERS", value_name = "FILE|JSON")]
    pub parameters: Option<OsString>,
    /// Metric formats to look for in the trial's output, besides the SDK's.
    #[arg(
        long,
        env = "TRIALKEEPER_COLLECT",
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = defaults::COLLECT
    )]
    pub collect: Vec<Collect>,
    /// A regular expression for lines of output, whose named groups are metrics. Can be repeated (in the
    /// variable: one per line).
    #[arg(
        long,
        env = "TRIALKEEPER_METRIC_PATTERN",
        value_name = "REGEX",
        value_delimiter = '\n',
        value_parser = pattern
    )]
    pub metric_pattern: Vec<Pattern>,
    /// A file to which the trial writes metrics, in the formats of its output. Can be repeated.
    #[arg(long, env = "TRIALKEEPER_METRIC_FILE", value_name = "FILE", value_delimiter = ':')]
    pub metric_file: Vec<PathBuf>,
    /// A directory to which the trial writes `TensorBoard` event files. Can be repeated.
    #[arg(long, env = "TRIALKEEPER_TENSORBOARD", value_name = "DIR", value_delimiter = ':')]
    pub tensorboard: Vec<PathBuf>,
    /// The channel over which NNI's SDK reports.
    #[arg(long, env = "TRIALKEEPER_SDK_CHANNEL", value_name = "WAY", default_value = "stdout")]
    pub sdk_channel: SdkWay,
    /// The metric that the search optimises.
    #[arg(long, env = "TRIALKEEPER_OBJECTIVE", value_name = "NAME")]
    pub objective: Option<String>,
    /// The direction of the search, `maximize` or `minimize`. Without an objective, it decides between a loss
    /// and a measure of quality if a trial prints both.
    #[arg(long, env = "TRIALKEEPER_DIRECTION", value_name = "DIRECTION")]
    pub direction: Option<Direction>,

    /// Time for the trial to end after a stop request, before it is killed.
    #[arg(long, env = "TRIALKEEPER_GRACE", value_name = "TIME", default_value = defaults::STOP_GRACE, value_parser = duration)]
    pub grace: Duration,
    /// Time that processes left behind by the trial may continue.
    #[arg(long, env = "TRIALKEEPER_DRAIN", value_name = "TIME", default_value = defaults::DRAIN, value_parser = duration)]
    pub drain: Duration,
    /// Time for delivery after the trial's end. Remaining reports stay in the spool.
    #[arg(long, env = "TRIALKEEPER_FLUSH", value_name = "TIME", default_value = defaults::FLUSH, value_parser = duration)]
    pub flush: Duration,
    /// Maximum time between two messages to the manager.
    #[arg(long, env = "TRIALKEEPER_HEARTBEAT", value_name = "TIME", default_value = defaults::HEARTBEAT, value_parser = heartbeat)]
    pub heartbeat: Duration,
    /// The observation of the trial from outside.
    #[command(flatten)]
    pub watch: WatchArgs,
    /// Let the trial continue if trialkeeper itself is killed.
    #[arg(long, env = "TRIALKEEPER_DETACH_ON_DEATH", value_parser = BoolishValueParser::new())]
    pub detach_on_death: bool,

    /// Serve `/healthz` and `/metrics` (Prometheus) on this address, such as `127.0.0.1:9464` or `[::]:9464`. Port 0 is
    /// any free port.
    #[arg(long, env = "TRIALKEEPER_LISTEN", value_name = "ADDR", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// The options of a pod.
    #[command(flatten)]
    pub pod: PodArgs,

    /// A settings file with lines `name = value`, as in TOML. Flags and variables take precedence.
    #[arg(long, env = "TRIALKEEPER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print each setting with its origin, and run nothing.
    #[arg(long)]
    pub print_config: bool,
    /// Print metrics as they arrive, and a summary. Twice: also print trialkeeper's actions.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// The file for trialkeeper's own messages [default: stderr].
    #[arg(long, env = "TRIALKEEPER_LOG_FILE", value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Warnings about arguments and variables that have no effect.
    #[arg(skip)]
    pub warnings: Vec<String>,
    /// The options of an NNI manager, if the arguments were those of NNI's own keeper.
    #[arg(skip)]
    pub legacy: Option<NniKeeperArgs>,
}

/// A metric format in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Collect {
    /// `name=value` text.
    Text,
    /// JSON objects on separate lines.
    Json,
    /// No format.
    None,
}

/// The part of the output to send to the manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogCollection {
    /// The last 64 KiB of each stream.
    #[default]
    None,
    /// All lines.
    Http,
}

/// A channel of NNI's SDK.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SdkWay {
    /// Marked lines on standard output.
    #[default]
    Stdout,
    /// HTTP requests to trialkeeper.
    Http,
}

/// A platform that attaches a meaning to exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ExitCodeMap {
    /// 200 for a transient failure, 210 for a permanent one.
    Frameworkcontroller,
    /// 143 for a trial that was asked to end, whatever its own code. A Job takes 0 for success, and most other codes
    /// for a failure of the trial.
    Kubernetes,
}

/// Parses the command line. Returns the exit code on an error, or if the user asked only for printed information.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    match words.get(1..) {
        Some(rest) if legacy::is_legacy(rest) => return parse_legacy(rest),
        _ => {}
    }
    parse_own(words)
}

/// Parses the arguments of NNI's own keeper as a run of the agent.
fn parse_legacy(words: &[OsString]) -> Result<Cli, ExitCode> {
    let mut legacy = legacy::parse(words).map_err(|error| {
        writeln!(io::stderr(), "trialkeeper: error: {error}").ok();
        ExitCode::from(AGENT_FAULT)
    })?;
    let mut cli = parse_own(legacy::as_run(&legacy))?;
    if let Command::Run(args) = &mut cli.command {
        args.manager.manager = Some(legacy.manager.clone());
        args.manager.manager_file = None;
        args.warnings.append(&mut legacy.warnings);
        args.legacy = Some(legacy);
    }
    Ok(cli)
}

fn parse_own(words: Vec<OsString>) -> Result<Cli, ExitCode> {
    match plain::run(&words, std::env::vars_os()) {
        Some(args) => Ok(Cli { command: Command::Run(Box::new(args)) }),
        None => parse_with_clap(words),
    }
}

fn parse_with_clap(words: Vec<OsString>) -> Result<Cli, ExitCode> {
    let words = insert_run(words);
    let read = || {
        let settings = config_file::find(|| table(&words), &words)?;
        let mut command = config_file::apply(table(&words), &settings, &words)?;
        let matches = command.try_get_matches_from_mut(&words).map_err(|refusal| {
            let is_set = |name: &OsStr| std::env::var_os(name).is_some();
            origin::name_origins(refusal, &Cli::command(), &words, &settings, is_set)
        })?;
        let mut cli = Cli::from_arg_matches(&matches)?;
        if let Command::Run(args) = &mut cli.command {
            let set = std::env::vars_os().map(|(name, _)| name);
            let set = set.filter(|name| origin::counts(name, &words));
            args.warnings = unknown_variables::warnings(&mut command, set);
            if args.print_config {
                let run = matches.subcommand_matches("run");
                let shown = run.map(|run| config_file::origins(&Cli::command(), run, &settings));
                let notes = args.warnings.iter().map(|warning| format!("# {warning}\n"));
                let shown = shown.into_iter().chain(notes).collect::<String>();
                io::stdout().write_all(shown.as_bytes()).ok();
                return Ok(None);
            }
        }
        Ok(Some(cli))
    };
    match read() {
        Ok(Some(cli)) => Ok(cli),
        Ok(None) => Err(ExitCode::SUCCESS),
        Err(refusal) => {
            let refusal = origin::with_advice(refusal);
            // The exit code does not depend on an open stderr or stdout.
            refusal.print().ok();
            // clap returns a request for help as an error, too. For errors clap exits with 2, which could be the
            // trial's code.
            let code = if refusal.use_stderr() { AGENT_FAULT } else { 0 };
            Err(ExitCode::from(code))
        }
    }
}

/// Returns the definition of the command line, without the variables that do not count.
fn table(words: &[OsString]) -> clap::Command {
    let without_ignored_variable = |arg: Arg| match arg.get_env() {
        Some(name) if !origin::counts(name, words) => arg.env(Resettable::Reset),
        _ => arg,
    };
    Cli::command().mut_subcommands(|command| command.mut_args(without_ignored_variable))
}

/// Inserts the `run` that `trialkeeper [options] -- CMD` omits.
fn insert_run(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let bare = words.get(1).is_some_and(|word| {
        word.as_encoded_bytes().starts_with(b"-")
            && !["-h", "--help", "-V", "--version"].iter().any(|own| word == own)
    });
    if bare {
        words.insert(1, "run".into());
    }
    words
}

#[cfg(test)]
mod tests;
