//! The command line. Every flag has an environment variable, `TRIALKEEPER_` and the flag's name.
//!
//! It must not decide anything: what the words mean is `settings`'.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{BoolishValueParser, Resettable};
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use crate::collect::{Direction, Pattern};
use crate::delivery::ManagerAddress;

mod config_file;
pub mod legacy;
mod origin;
mod plain;
mod pod;
mod stray;
mod values;
mod watch;

pub use pod::{Fetch, PodArgs};
pub use values::duration;
pub use watch::WatchArgs;

use legacy::Legacy;
use values::{address, heartbeat, log_line_bytes, manager, pattern, rotate_bytes};

/// Exit code for the agent's own faults, a bad command line included.
pub const KEEPER_FAULT: u8 = 125;

/// Runs a trial's command, watches it, reports what it observes, and loses nothing.
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
    /// Run a command as a trial. `trialkeeper -- CMD` is short for it.
    ///
    /// Exit code: the trial's own, or 128 + the signal that killed it; 126 if the command is not
    /// executable, 127 if it is not found, 125 for a fault of trialkeeper's.
    Run(Box<RunArgs>),
    /// Deliver what a trial's agent that is gone left in its spool.
    ///
    /// Exit code: 0 when the manager has everything, 1 when something is left, 125 when there is nothing
    /// to deliver from.
    Replay(ReplayArgs),
    /// Show what became of a trial, from its output directory.
    Inspect {
        /// The trial's output directory.
        dir: PathBuf,
        /// The form of the output.
        #[arg(long, default_value = "text")]
        output: Output,
    },
    /// Print one reading of the GPUs. Exit code: 0, or 1 if there are none to be read.
    Gpu {
        /// The program that reads NVIDIA's GPUs.
        #[arg(
            long,
            env = "TRIALKEEPER_GPU_PROGRAM",
            value_name = "PROGRAM",
            default_value = "nvidia-smi"
        )]
        gpu_program: PathBuf,
        /// The form of the output.
        #[arg(long, default_value = "text")]
        output: Output,
    },
    /// Look at what a trial would find here: the way to the manager hop by hop, room, GPUs, limits.
    ///
    /// Exit code: 0 if nothing fails, 1 if something does.
    Doctor(DoctorArgs),
    /// Copy this program into a directory, for an init container.
    Install {
        /// Where to.
        dir: PathBuf,
    },
    /// Print a shell's script that completes this program's words.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version {
        /// The form of the output.
        #[arg(long, default_value = "text")]
        output: Output,
    },
}

/// A form of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For a person.
    #[value(alias = "table")]
    Text,
    /// For a program.
    Json,
}

/// The manager and its credentials.
#[derive(Debug, Default, Args)]
pub struct ManagerArgs {
    /// Base URL of the manager.
    #[arg(long, env = "TRIALKEEPER_MANAGER", value_name = "URL", conflicts_with = "manager_file", value_parser = manager)]
    pub manager: Option<String>,
    /// A file whose first line is the manager's URL, read again when the manager does not answer.
    #[arg(long, env = "TRIALKEEPER_MANAGER_FILE", value_name = "FILE")]
    pub manager_file: Option<PathBuf>,
    /// A file with the token that the manager wants to see.
    #[arg(long, env = "TRIALKEEPER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A PEM file with the authority that signed the manager's certificate [default: the public ones].
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
    /// The experiment of --trial.
    #[arg(long, value_name = "ID", requires = "trial")]
    pub experiment: Option<ExperimentId>,
    /// Whose reports they are where the spool does not say it: it was made without a manager.
    #[arg(long, value_name = "ID", requires = "experiment")]
    pub trial: Option<TrialJobId>,
    /// The manager that is to have it.
    #[command(flatten)]
    pub manager: ManagerArgs,
    /// The time to try.
    #[arg(long, env = "TRIALKEEPER_FLUSH", value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub flush: Duration,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The manager that is to be looked at.
    #[command(flatten)]
    pub manager: ManagerArgs,
    /// The trial's directory [default: the current one].
    #[arg(long, env = "TRIALKEEPER_OUTPUT_DIR", value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Where reports would wait for delivery [default: spool, in the output directory].
    #[arg(long, env = "TRIALKEEPER_SPOOL_DIR", value_name = "DIR")]
    pub spool_dir: Option<PathBuf>,
    /// The program that reads NVIDIA's GPUs.
    #[arg(
        long,
        env = "TRIALKEEPER_GPU_PROGRAM",
        value_name = "PROGRAM",
        default_value = "nvidia-smi"
    )]
    pub gpu_program: PathBuf,
    /// The form of the output.
    #[arg(long, default_value = "text")]
    pub output: Output,
}

/// Options of `run`.
#[derive(Debug, Default, Args)]
#[command(mut_arg("manager", |url| {
    url.help("Base URL of the manager. Without a manager everything stays on this machine")
}))]
pub struct RunArgs {
    /// The command and its arguments.
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        required_unless_present_any = ["shell", "print_config"]
    )]
    pub command: Vec<OsString>,
    /// A line for `/bin/bash -c` instead of a command; for `/bin/sh -c` where there is no bash.
    #[arg(long, env = "TRIALKEEPER_SHELL", value_name = "LINE", conflicts_with = "command")]
    pub shell: Option<OsString>,

    /// Id of the experiment; else `NNI_EXP_ID`.
    #[arg(long, env = "TRIALKEEPER_EXPERIMENT", value_name = "ID")]
    pub experiment: Option<ExperimentId>,
    /// Id of the trial; else `NNI_TRIAL_JOB_ID`.
    #[arg(long, env = "TRIALKEEPER_TRIAL", value_name = "ID")]
    pub trial: Option<TrialJobId>,
    /// Id of this attempt; else `FC_TASK_ATTEMPT_INSTANCE_UID`, else random.
    #[arg(long, env = "TRIALKEEPER_ATTEMPT", value_name = "ID")]
    pub attempt: Option<AttemptId>,
    /// Number of the trial within the experiment, from 0.
    #[arg(long, env = "TRIALKEEPER_SEQUENCE", value_name = "N")]
    pub sequence: Option<u64>,
    /// Where trials run, as NNI's SDK is to see it [default: `NNI_PLATFORM`, else local].
    #[arg(long, env = "TRIALKEEPER_PLATFORM", value_name = "NAME")]
    pub platform: Option<String>,

    /// The manager. Without one, everything stays on this machine.
    #[command(flatten)]
    pub manager: ManagerArgs,

    /// The trial's directory: output, verdict, spool [default: `NNI_OUTPUT_DIR`, else a new one below
    /// ./trialkeeper-runs].
    #[arg(long, env = "TRIALKEEPER_OUTPUT_DIR", value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Where reports wait for delivery [default: spool, in the output directory].
    #[arg(long, env = "TRIALKEEPER_SPOOL_DIR", value_name = "DIR")]
    pub spool_dir: Option<PathBuf>,
    /// Size of the spool over which logs and samples are dropped; facts never are.
    #[arg(long, env = "TRIALKEEPER_SPOOL_BYTES", value_name = "N", default_value = "268435456")]
    pub spool_bytes: u64,
    /// Size in bytes over which the file `stdout` or `stderr` is set aside and begun anew [default: never].
    #[arg(long, env = "TRIALKEEPER_ROTATE_BYTES", value_name = "N", value_parser = rotate_bytes)]
    pub rotate_bytes: Option<u64>,
    /// A file for the verdict in short, at most 4096 bytes of JSON [default: /dev/termination-log, if it is
    /// there].
    #[arg(long, env = "TRIALKEEPER_TERMINATION_LOG", value_name = "FILE")]
    pub termination_log: Option<PathBuf>,
    /// Exit codes for a platform that decides by them whether to try again: the verdict's class instead of
    /// the trial's own code.
    #[arg(long, env = "TRIALKEEPER_EXIT_CODE_MAP", value_name = "PLATFORM")]
    pub exit_code_map: Option<ExitCodeMap>,
    /// Send the trial's output to the manager, or do not.
    #[arg(long, env = "TRIALKEEPER_LOG_COLLECTION", value_name = "WAY", default_value = "none")]
    pub log_collection: LogCollection,
    /// The longest line that is sent whole, in bytes.
    #[arg(long, env = "TRIALKEEPER_LOG_LINE_BYTES", value_name = "N", default_value = "16384", value_parser = log_line_bytes)]
    pub log_line_bytes: usize,
    /// Bytes of output a second that are sent, of each stream; more is counted and left out.
    #[arg(long, env = "TRIALKEEPER_LOG_RATE", value_name = "N", default_value = "67108864")]
    pub log_rate: u64,
    /// A variable whose value must not leave this machine: it is masked in what is sent; may be given several
    /// times.
    #[arg(long, env = "TRIALKEEPER_MASK_ENV", value_name = "NAME", value_delimiter = ',')]
    pub mask_env: Vec<String>,
    /// The trial's parameters: a file with NNI's record or a JSON object, or the JSON object itself.
    #[arg(long, env = "TRIALKEEPER_PARAMETERS", value_name = "FILE|JSON")]
    pub parameters: Option<OsString>,
    /// The formats to look for in the trial's output, beside the SDK's metrics; `none`: nothing.
    #[arg(
        long,
        env = "TRIALKEEPER_COLLECT",
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "text,json"
    )]
    pub collect: Vec<Collect>,
    /// A regular expression for lines of output, its named groups being metrics; may be given several times
    /// (in the variable: one per line).
    #[arg(
        long,
        env = "TRIALKEEPER_METRIC_PATTERN",
        value_name = "REGEX",
        value_delimiter = '\n',
        value_parser = pattern
    )]
    pub metric_pattern: Vec<Pattern>,
    /// A file that the trial writes metrics to, as lines like those of its output; may be given several times.
    #[arg(long, env = "TRIALKEEPER_METRIC_FILE", value_name = "FILE", value_delimiter = ':')]
    pub metric_file: Vec<PathBuf>,
    /// A directory that the trial writes `TensorBoard`'s event files to; may be given several times.
    #[arg(long, env = "TRIALKEEPER_TENSORBOARD", value_name = "DIR", value_delimiter = ':')]
    pub tensorboard: Vec<PathBuf>,
    /// The way in which NNI's SDK reports: over its stdout, or over HTTP to trialkeeper.
    #[arg(long, env = "TRIALKEEPER_SDK_CHANNEL", value_name = "WAY", default_value = "stdout")]
    pub sdk_channel: SdkWay,
    /// Name of the metric that the search optimises.
    #[arg(long, env = "TRIALKEEPER_OBJECTIVE", value_name = "NAME")]
    pub objective: Option<String>,
    /// The direction of the search, `maximize` or `minimize`: a trial without an objective's name that prints both
    /// a loss and a measure of quality is judged by the one that fits.
    #[arg(long, env = "TRIALKEEPER_DIRECTION", value_name = "DIRECTION")]
    pub direction: Option<Direction>,

    /// The time in which the trial may end after a stop request.
    #[arg(long, env = "TRIALKEEPER_GRACE", value_name = "TIME", default_value = "20s", value_parser = duration)]
    pub grace: Duration,
    /// The time in which processes that the trial leaves behind may go on writing.
    #[arg(long, env = "TRIALKEEPER_DRAIN", value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub drain: Duration,
    /// The time in which to go on delivering after the trial's end; the rest stays in the spool.
    #[arg(long, env = "TRIALKEEPER_FLUSH", value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub flush: Duration,
    /// The longest silence towards the manager.
    #[arg(long, env = "TRIALKEEPER_HEARTBEAT", value_name = "TIME", default_value = "5s", value_parser = heartbeat)]
    pub heartbeat: Duration,
    /// The observation of the trial from outside.
    #[command(flatten)]
    pub watch: WatchArgs,
    /// Let the trial live on if trialkeeper itself is killed.
    #[arg(long, env = "TRIALKEEPER_DETACH_ON_DEATH", value_parser = BoolishValueParser::new())]
    pub detach_on_death: bool,

    /// Serve `/healthz` and `/metrics` (Prometheus) on this address, such as `127.0.0.1:9464` or `[::]:9464`; port 0: any.
    #[arg(long, env = "TRIALKEEPER_LISTEN", value_name = "ADDR", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// The options of a pod.
    #[command(flatten)]
    pub pod: PodArgs,

    /// A file with settings, `name = value` as in TOML; flags and variables outrank it.
    #[arg(long, env = "TRIALKEEPER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print each setting and where it comes from, and run nothing.
    #[arg(long)]
    pub print_config: bool,
    /// Say more: metrics as they come, and a summary at the end. Twice: what trialkeeper does.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Where trialkeeper's own messages go [default: stderr].
    #[arg(long, env = "TRIALKEEPER_LOG_FILE", value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Arguments that were not understood, and do no harm.
    #[arg(skip)]
    pub warnings: Vec<String>,
    /// The options of an NNI manager, where the arguments were those of NNI's own keeper.
    #[arg(skip)]
    pub legacy: Option<Legacy>,
}

/// A format to look for in output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Collect {
    /// `name=value` text.
    Text,
    /// JSON objects on lines of their own.
    Json,
    /// Neither.
    None,
}

/// The choice whether output is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogCollection {
    /// Only its end, the last 64 KiB of each stream.
    #[default]
    None,
    /// All of it, beside metrics.
    Http,
}

/// A way in which NNI's SDK reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SdkWay {
    /// With its marker on standard output.
    #[default]
    Stdout,
    /// With its command channel.
    Http,
}

/// A platform that reads exit codes in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ExitCodeMap {
    /// 200 for a failure that may pass, 210 for one that will not.
    Frameworkcontroller,
    /// 143 for a trial that was asked to end, whatever it then returned: a Job takes 0 for a success and most other codes
    /// for a failure of the trial.
    Kubernetes,
}

/// Reads the command line, or prints why it cannot (or what was asked for) and returns the exit code.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    match words.get(1..) {
        Some(rest) if legacy::is_legacy(rest) => return parse_legacy(rest),
        _ => {}
    }
    parse_own(words)
}

/// The words of NNI's keeper, as a run of the agent.
fn parse_legacy(words: &[OsString]) -> Result<Cli, ExitCode> {
    let mut legacy = legacy::parse(words).map_err(|error| {
        writeln!(io::stderr(), "trialkeeper: error: {error}").ok();
        ExitCode::from(KEEPER_FAULT)
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
        None => by_table(words),
    }
}

fn by_table(words: Vec<OsString>) -> Result<Cli, ExitCode> {
    let words = complete(words);
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
            args.warnings = stray::sentences(&mut command, set);
            if args.print_config {
                let run = matches.subcommand_matches("run");
                let shown = run.map(|run| config_file::origins(&Cli::command(), run, &settings));
                let strays = args.warnings.iter().map(|warning| format!("# {warning}\n"));
                let shown = shown.into_iter().chain(strays).collect::<String>();
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
            // A closed stderr or stdout changes nothing about the code.
            refusal.print().ok();
            // clap calls a request for help an error too; its own code for real ones, 2, is the trial's.
            let code = if refusal.use_stderr() { KEEPER_FAULT } else { 0 };
            Err(ExitCode::from(code))
        }
    }
}

/// The table of flags, with the variables that count.
fn table(words: &[OsString]) -> clap::Command {
    let heed = |arg: Arg| match arg.get_env() {
        Some(name) if !origin::counts(name, words) => arg.env(Resettable::Reset),
        _ => arg,
    };
    Cli::command().mut_subcommands(|command| command.mut_args(heed))
}

/// Puts in the `run` that `trialkeeper [options] -- CMD` leaves out.
fn complete(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
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
