//! The command line. Each flag has an environment variable: `TRIALKEEPER_` and the flag's name.
//!
//! This module only parses; `run::settings` interprets the values.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::Resettable;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use trial_protocol::{ExperimentId, TrialJobId};

mod config_file;
mod diagnostics;
mod flags;
pub mod legacy;
mod manager;
mod metrics;
mod origin;
mod output;
mod plain;
mod pod;
mod supervision;
mod trial;
mod unknown_variables;
mod values;
mod watch;

pub use diagnostics::DiagnosticsArgs;
pub use manager::ManagerArgs;
pub use metrics::{Collect, MetricArgs, SdkChannelKind};
pub use output::{ExitCodeMap, LogCollection, OutputArgs};
pub use pod::{Fetch, PodArgs};
pub use supervision::SupervisionArgs;
pub use trial::TrialArgs;
pub use values::duration;
pub use watch::WatchArgs;

use flags::FlagGroup;
use legacy::NniKeeperArgs;

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
            default_value = watch::GPU_PROGRAM
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
        default_value = watch::GPU_PROGRAM
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
    /// The trial and its ids.
    #[command(flatten)]
    pub trial: TrialArgs,
    /// The manager. Without one, everything stays on this machine.
    #[command(flatten)]
    pub manager: ManagerArgs,
    /// The files of the run, and the output to send.
    #[command(flatten)]
    pub output: OutputArgs,
    /// The parameters, and the collection of metrics.
    #[command(flatten)]
    pub metrics: MetricArgs,
    /// The times that the trial and its reports have.
    #[command(flatten)]
    pub supervision: SupervisionArgs,
    /// The observation of the trial from outside.
    #[command(flatten)]
    pub watch: WatchArgs,
    /// The options of a pod.
    #[command(flatten)]
    pub pod: PodArgs,
    /// The agent's own messages and state.
    #[command(flatten)]
    pub diagnostics: DiagnosticsArgs,

    /// A settings file with lines `name = value`, as in TOML. Flags and variables take precedence.
    #[arg(long, env = "TRIALKEEPER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print each setting with its origin, and run nothing.
    #[arg(long)]
    pub print_config: bool,
    /// Print metrics as they arrive, and a summary. Twice: also print trialkeeper's actions.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Warnings about arguments and variables that have no effect.
    #[arg(skip)]
    pub warnings: Vec<String>,
    /// The options of an NNI manager, if the arguments were those of NNI's own keeper.
    #[arg(skip)]
    pub legacy: Option<NniKeeperArgs>,
}

impl RunArgs {
    /// Returns the groups of flags.
    fn groups(&mut self) -> [&mut dyn FlagGroup; 8] {
        [
            &mut self.trial,
            &mut self.manager,
            &mut self.output,
            &mut self.metrics,
            &mut self.supervision,
            &mut self.watch,
            &mut self.pod,
            &mut self.diagnostics,
        ]
    }
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
        let settings = config_file::find(|| command_definition(&words), &words)?;
        let mut command = config_file::apply(command_definition(&words), &settings, &words)?;
        let matches = command.try_get_matches_from_mut(&words).map_err(|error| {
            let is_set = |name: &OsStr| std::env::var_os(name).is_some();
            origin::name_origins(error, &Cli::command(), &words, &settings, is_set)
        })?;
        let mut cli = Cli::from_arg_matches(&matches)?;
        if let Command::Run(args) = &mut cli.command {
            let set = std::env::vars_os().map(|(name, _)| name);
            let set = set.filter(|name| origin::is_effective(name, &words));
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
        Err(error) => {
            let error = origin::with_advice(error);
            // The exit code does not depend on an open stderr or stdout.
            error.print().ok();
            // clap returns a request for help as an error, too. For errors clap exits with 2, which could be the
            // trial's code.
            let code = if error.use_stderr() { AGENT_FAULT } else { 0 };
            Err(ExitCode::from(code))
        }
    }
}

/// Returns the definition of the command line, without the variables that do not take effect.
fn command_definition(words: &[OsString]) -> clap::Command {
    let without_ignored_variable = |arg: Arg| match arg.get_env() {
        Some(name) if !origin::is_effective(name, words) => arg.env(Resettable::Reset),
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
