//! The command line: parses the arguments, calls [`app`](crate::app) and prints the results. Only this module and its
//! submodules choose exit codes.

use std::ffi::OsString;
use std::io::Write as _;
use std::num::IntErrorKind;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use trial_protocol::ExperimentId;

use self::terminal::{output, plain_text};
use crate::app::ExperimentStart;
use crate::config;
use crate::util::layout::ExperimentDir;

mod clean;
mod conformance;
mod doctor;
mod experiment;
mod export;
mod follow;
mod limits;
mod man;
mod nni_node;
mod open;
mod report;
mod run;
mod selection;
mod serve;
mod suggest;
mod terminal;
mod top;
mod trial;
mod upkeep;
mod variables;

/// The experiment is done and at least one trial succeeded.
const EXIT_DONE: u8 = 0;
/// The experiment is done without a successful trial, or is held until the user fixes the cause. For other commands:
/// the command failed.
const EXIT_FAILED: u8 = 1;
/// The configuration, an argument or the machine prevents the experiment from starting.
const EXIT_BAD_INPUT: u8 = 2;
/// The manager of the experiment failed. `resume` continues the experiment.
const EXIT_MANAGER_FAILED: u8 = 3;
/// The experiment was stopped on request and can be resumed. 128 + SIGINT, as in a shell.
const EXIT_INTERRUPTED: u8 = 130;
/// SIGTERM ended the manager but not the trials, which the next manager adopts. 128 + SIGTERM.
const EXIT_TRIALS_LEFT: u8 = 143;

/// Runs hyper-parameter searches: proposes parameters, runs trials and stores every result.
#[derive(Debug, Parser)]
#[command(name = "trial-manager", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an experiment from a file until it ends.
    Run {
        /// Experiment file (YAML or JSON, in NNI's format). Use `-` to read from standard input.
        file: PathBuf,
        /// Id of the new experiment: up to 32 characters of A-Z, a-z, 0-9, `_` and `-` [default: eight random letters
        /// and digits].
        #[arg(long)]
        id: Option<ExperimentId>,
        /// Keep serving the pages and the API after the experiment has ended, until interrupted or stopped. Has no
        /// effect if the experiment is stopped before it ends.
        #[arg(long, env = "TRIAL_MANAGER_KEEP_SERVING")]
        keep_serving: bool,
        #[command(flatten)]
        args: ManagerArgs,
    },
    /// Resume an interrupted experiment, or continue a finished one under higher limits.
    Resume {
        /// Id of the experiment, as printed by `run`.
        id: String,
        #[command(flatten)]
        limits: limits::LimitArgs,
        /// Keep serving the pages and the API after the experiment has ended, until interrupted or stopped. Has no
        /// effect if the experiment is stopped before it ends.
        #[arg(long, env = "TRIAL_MANAGER_KEEP_SERVING")]
        keep_serving: bool,
        #[command(flatten)]
        args: ManagerArgs,
    },
    /// Check whether an experiment can run: its file, its code and the place where its trials run.
    ///
    /// The exit code is 0 if no check fails, 1 if a check fails, and 2 if the file is not valid.
    Doctor {
        /// Experiment file (YAML or JSON, in NNI's format). Use `-` to read from standard input.
        file: PathBuf,
        /// Also run one real trial of the experiment, for at most five minutes. Its results are not kept.
        #[arg(long)]
        probe: bool,
        #[command(flatten)]
        args: ManagerArgs,
    },
    /// Stop the trials that an experiment without a manager left, and delete what it left elsewhere. Keeps its results.
    Clean {
        /// Id of the experiment.
        id: ExperimentId,
        /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
        #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
        data_dir: Option<PathBuf>,
        #[command(flatten)]
        cluster: clean::ClusterArgs,
    },
    /// Test whether a plugin meets all requirements of a training service.
    Conformance(conformance::ConformanceArgs),
    /// List, show, stop, change, export or remove experiments.
    #[command(subcommand, alias = "experiments")]
    Experiment(experiment::ExperimentCommand),
    /// List, show, add, stop or rerun trials, and print their output.
    #[command(subcommand, alias = "trials")]
    Trial(trial::TrialCommand),
    /// Show the metrics of a trial.
    Metrics {
        /// Id or number of the trial.
        trial: selection::trial_name::TrialName,
        /// Show only the metric with this name.
        #[arg(long = "name", id = "metric", value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        options: selection::OutputArgs,
    },
    /// Watch an experiment: its counts, and the curves, memory and GPUs of its running trials.
    Top {
        /// Id of the experiment; same as --experiment.
        id: Option<ExperimentId>,
        #[command(flatten)]
        place: selection::ExperimentArgs,
    },
    /// Open the portal in a browser, logged in.
    ///
    /// Without a browser on this machine, prints an address that logs one browser in.
    Open {
        /// Id of the experiment; same as --experiment.
        id: Option<ExperimentId>,
        /// Print the address instead of opening a browser.
        #[arg(long)]
        print: bool,
        #[command(flatten)]
        place: selection::ExperimentArgs,
    },
    /// Serve the pages of all experiments on this machine until interrupted.
    ///
    /// With an id, serves only the pages of that experiment, which does not need a manager.
    Serve {
        /// Id of the only experiment to serve; same as --experiment.
        id: Option<ExperimentId>,
        /// Address to listen on.
        #[arg(long, default_value = "127.0.0.1", env = "TRIAL_MANAGER_HOST")]
        host: String,
        #[command(flatten)]
        port: PortArg,
        #[command(flatten)]
        place: selection::ExperimentArgs,
    },
    /// Propose parameters for your own loop with a built-in tuner.
    ///
    /// Reads messages from standard input and writes the answers to standard output, one JSON object on each line.
    /// docs/ask-and-tell.md describes the protocol.
    Suggest {
        /// Name of the tuner, such as TPE.
        tuner: String,
    },
    /// Print the completion script for a shell.
    Completions {
        /// Name of the shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write manual pages for man(1) into a folder, one for each command.
    #[command(hide = true)]
    Man {
        /// Folder for the pages; created if it does not exist.
        folder: PathBuf,
    },
    /// Print a YAML or JSON file as JSON, without checking its content.
    #[command(hide = true)]
    ToJson {
        /// File to print, such as an experiment file.
        file: PathBuf,
    },
    /// List the experiments on this machine; same as `experiment ls`.
    #[command(hide = true, alias = "list")]
    Ls {
        #[command(flatten)]
        options: selection::OutputArgs,
    },
    /// Print the version of this program.
    Version,
    /// Replace NNI's manager: accept the arguments that NNI's client passes to Node, and an experiment over REST.
    #[command(hide = true)]
    NniNode {
        /// Arguments that NNI's client passes to Node.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Copy an experiment's database into a new file, also while its manager runs.
    Backup {
        /// Id of the experiment.
        id: ExperimentId,
        /// Path of the new file, which must not exist.
        to: PathBuf,
        /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
        #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
        data_dir: Option<PathBuf>,
    },
    /// Check an experiment's database and print each problem on a line.
    ///
    /// The exit code is 0 if there are no problems, 1 if there are problems, and 2 if the database cannot be read.
    Check {
        /// Id of the experiment.
        id: ExperimentId,
        /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
        #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
        data_dir: Option<PathBuf>,
    },
}

/// The effect of SIGTERM on running trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnTerm {
    /// Stop the trials, as Ctrl-C does.
    Stop,
    /// Keep the trials running; the next `resume` adopts them. Use this if the manager is restarted elsewhere.
    Leave,
}

#[derive(Debug, Args)]
struct PortArg {
    /// Port to listen on; 0 selects a free port.
    #[arg(
        long,
        default_value_t = 8080,
        value_parser = integer::<u16>(ANY_PORT),
        allow_negative_numbers = true,
        env = "TRIAL_MANAGER_PORT"
    )]
    port: u16,
}

#[derive(Debug, Args)]
struct ManagerArgs {
    /// Address to listen on [default: 127.0.0.1 if trials run on this machine, else all addresses].
    #[arg(long, env = "TRIAL_MANAGER_HOST")]
    host: Option<String>,
    #[command(flatten)]
    port: PortArg,
    /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
    #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Output format of the results.
    #[arg(long, short, value_enum, default_value_t = selection::Format::Table)]
    output: selection::Format,
    /// Path of the agent program [default: `trialkeeper` in the folder of this program, else in PATH].
    #[arg(long, env = "TRIAL_MANAGER_AGENT")]
    agent: Option<PathBuf>,
    /// Also accept reports from images that contain NNI's own keeper, on this port (NNI's convention: port + 1). These
    /// requests carry no tokens: any client that can connect to the port can report for a known trial.
    #[arg(
        long,
        value_parser = integer::<u16>(ANY_PORT),
        allow_negative_numbers = true,
        env = "TRIAL_MANAGER_LEGACY_PORT"
    )]
    legacy_port: Option<u16>,
    /// Seconds without a report from the agent after which its trial is LOST. An agent reports at least three times in
    /// this period.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = integer::<u64>(3..=86_400),
        allow_negative_numbers = true,
        env = "TRIAL_MANAGER_LEASE"
    )]
    lease: u64,
    /// File with your own TLS certificate and its chain, in PEM format; reloaded when it changes. With this option, the
    /// manager also encrypts connections on a loopback address.
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "TRIAL_MANAGER_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of --tls-cert, in PEM format.
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "TRIAL_MANAGER_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// File with the certificate authority with which agents verify --tls-cert, in PEM format [default: the public
    /// authorities].
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "TRIAL_MANAGER_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// Address of the manager for trials on other machines: a host, host:port, or the URL of a proxy in front of the
    /// manager [default: a guess, which is printed].
    #[arg(long, env = "TRIAL_MANAGER_ADVERTISE")]
    advertise: Option<String>,
    /// Also serve everything below this path, such as /search. For a reverse proxy that forwards paths unchanged.
    #[arg(long, value_name = "PATH", value_parser = url_prefix, env = "TRIAL_MANAGER_URL_PREFIX")]
    url_prefix: Option<String>,
    /// Effect of SIGTERM on running trials.
    #[arg(
        long,
        value_enum,
        default_value_t = OnTerm::Stop,
        env = "TRIAL_MANAGER_ON_TERM"
    )]
    on_term: OnTerm,
}

/// The numbers of ports. 0 selects a free one.
const ANY_PORT: RangeInclusive<u64> = 0..=65_535;

/// Returns the parser of an integer within a range. Its error names the range.
fn integer<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match *range.end() {
            u64::MAX if is_too_large(text) => {
                format!("expected a number of at most {}", u64::MAX)
            }
            u64::MAX => format!("expected a number of at least {}", range.start()),
            end => format!("expected a number from {} to {end}", range.start()),
        })
    }
}

fn is_too_large(text: &str) -> bool {
    text.parse::<u64>().is_err_and(|error| *error.kind() == IntErrorKind::PosOverflow)
}

/// Parses a URL path. The result has a leading slash and no trailing slash.
fn url_prefix(text: &str) -> Result<String, String> {
    let words = text.trim_matches('/');
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b))
    };
    if words.split('/').all(is_word) && !words.split('/').any(|word| [".", ".."].contains(&word)) {
        Ok(format!("/{words}"))
    } else {
        Err("expected words of letters, digits and `-_.~` between slashes, such as /search"
            .to_owned())
    }
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    selection::complete::complete_if_requested(Cli::command);
    start_log();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { EXIT_BAD_INPUT } else { EXIT_DONE };
            // Ignored: the output may be closed.
            drop(error.print());
            if let Some(name) = variables::variable_of(&error, &Cli::command()) {
                drop(writeln!(std::io::stderr(), "The value is that of the variable {name}."));
            }
            return ExitCode::from(code);
        }
    };
    let invocation = match run_without_runtime(cli.command) {
        ControlFlow::Continue(invocation) => invocation,
        ControlFlow::Break(code) => return code,
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(invocation.execute());
            // The command is complete. A thread that resolves a host name can block for minutes.
            runtime.shutdown_timeout(std::time::Duration::from_secs(1));
            ExitCode::from(code)
        }
        Err(error) => fail(&error, EXIT_FAILED),
    }
}

fn start_log() {
    let wanted = std::env::var("TRIAL_MANAGER_LOG").unwrap_or_default();
    let known = wanted.parse().ok();
    let level = known.unwrap_or(Level::WARN);
    // Libraries log errors for operations that the manager retries. If the user must act, the manager logs a message
    // of its own.
    let libraries = if level >= Level::DEBUG { level.into() } else { LevelFilter::OFF };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        .finish()
        .with(Targets::new().with_default(libraries).with_target("trial_manager", level))
        .init();
    if known.is_none() && !wanted.is_empty() {
        let wanted = plain_text::printable(&wanted);
        tracing::warn!(
            "TRIAL_MANAGER_LOG is `{wanted}`; allowed: error, warn, info, debug, trace. The level is warn"
        );
    }
}

/// Executes a command that needs no runtime and breaks with its exit code. Continues with all other commands.
fn run_without_runtime(command: Command) -> ControlFlow<ExitCode, Invocation> {
    let invocation = match command {
        Command::Doctor { file, probe, args } => Invocation::Doctor(file, probe, args),
        Command::Clean { id, data_dir, cluster } => {
            return ControlFlow::Break(clean::clean(&experiment_dir(data_dir, &id), &id, cluster));
        }
        Command::Run { file, id, keep_serving, args } => match config::load(&file) {
            Ok(spec) => {
                let spec = Box::new(spec);
                let what = match id {
                    Some(id) => ExperimentStart::NewWithId(id, spec),
                    None => ExperimentStart::New(spec),
                };
                Invocation::Run(args, what, keep_serving)
            }
            Err(error) => return ControlFlow::Break(fail(&error, EXIT_BAD_INPUT)),
        },
        Command::Resume { id, limits, keep_serving, args } => {
            let what = ExperimentStart::Resume(id, limits.new_limits());
            Invocation::Run(args, what, keep_serving)
        }
        Command::Experiment(command) => Invocation::Experiment(command),
        Command::Ls { options } => {
            Invocation::Experiment(experiment::ExperimentCommand::Ls { options })
        }
        Command::Version => {
            let line = format!("trial-manager {}\n", env!("CARGO_PKG_VERSION"));
            return ControlFlow::Break(exit_code_of_output(output::write_stdout(line.as_bytes())));
        }
        Command::Man { folder } => {
            let written = man::write(Cli::command(), &folder).map_err(selection::Error::Output);
            return ControlFlow::Break(exit_code_of_output(written));
        }
        Command::ToJson { file } => return ControlFlow::Break(print_as_json(&file)),
        Command::Trial(command) => Invocation::Trial(command),
        Command::Metrics { trial, name, options } => Invocation::Metrics(trial, name, options),
        Command::Top { id, place } => Invocation::Top(place.for_experiment(id)),
        Command::Open { id, print, place } => Invocation::Open(print, place.for_experiment(id)),
        Command::Serve { id, host, port, place } => {
            Invocation::Serve(host, port.port, place.for_experiment(id))
        }
        Command::Completions { shell } => {
            let program = std::env::args().next().unwrap_or_default();
            let script =
                selection::complete::script(shell, &program).map_err(selection::Error::Output);
            let written = script.and_then(|script| output::write_stdout(script.as_bytes()));
            return ControlFlow::Break(exit_code_of_output(written));
        }
        Command::Conformance(arguments) => Invocation::Conformance(arguments),
        Command::Suggest { tuner } => return ControlFlow::Break(suggest::suggest(&tuner)),
        Command::NniNode { arguments } => Invocation::NniNode(arguments),
        Command::Backup { id, to, data_dir } => {
            return ControlFlow::Break(upkeep::backup(&experiment_dir(data_dir, &id), &id, &to));
        }
        Command::Check { id, data_dir } => {
            return ControlFlow::Break(upkeep::check(&experiment_dir(data_dir, &id), &id));
        }
    };
    ControlFlow::Continue(invocation)
}

fn print_as_json(file: &Path) -> ExitCode {
    match config::read_document(file) {
        Ok(document) => {
            exit_code_of_output(output::write_stdout(format!("{document}\n").as_bytes()))
        }
        Err(error) => fail(&error, EXIT_BAD_INPUT),
    }
}

/// A command that needs the runtime.
enum Invocation {
    Run(ManagerArgs, ExperimentStart, bool),
    Doctor(PathBuf, bool, ManagerArgs),
    Conformance(conformance::ConformanceArgs),
    Experiment(experiment::ExperimentCommand),
    Trial(trial::TrialCommand),
    Metrics(selection::trial_name::TrialName, Option<String>, selection::OutputArgs),
    Top(selection::ExperimentArgs),
    Open(bool, selection::ExperimentArgs),
    Serve(String, u16, selection::ExperimentArgs),
    NniNode(Vec<String>),
}

impl Invocation {
    async fn execute(self) -> u8 {
        match self {
            Self::Run(args, what, keep_serving) => {
                Box::pin(run::run(args, what, keep_serving)).await
            }
            Self::Conformance(arguments) => conformance::conformance(arguments).await,
            Self::Doctor(file, probe, args) => Box::pin(doctor::doctor(&file, probe, args)).await,
            Self::Experiment(command) => experiment::experiment(command).await,
            Self::Trial(command) => trial::trial(command).await,
            Self::Metrics(trial, name, options) => {
                trial::metrics(&trial, name.as_deref(), &options).await
            }
            Self::Top(place) => top::top(&place).await,
            Self::Open(print, place) => open::open(&place, print).await,
            Self::Serve(host, port, place) => serve::serve(&place, &host, port).await,
            Self::NniNode(arguments) => Box::pin(nni_node::nni_node(&arguments)).await,
        }
    }
}

/// Returns the exit code of a command that only writes output.
fn exit_code_of_output(written: Result<(), selection::Error>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::from(EXIT_DONE),
        Err(error) => fail(&error, EXIT_FAILED),
    }
}

/// Prints an error with its causes and returns the exit code.
fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    print_error(error);
    ExitCode::from(code)
}

#[expect(clippy::print_stderr, reason = "this is the command line")]
fn print_error(error: &dyn std::error::Error) {
    // The message may quote a file or a remote manager, and so contain control characters.
    let lines: Vec<_> =
        crate::util::errors::error_chain(error).lines().map(plain_text::printable).collect();
    eprintln!("trial-manager: {}", lines.join("\n"));
}

fn experiment_dir(given: Option<PathBuf>, id: &ExperimentId) -> ExperimentDir {
    ExperimentDir::new(&data_dir(given), id)
}

/// Returns `--data-dir`, or `trialkeeper` in the XDG base directory for user data (XDG Base Directory Specification
/// 0.8). The path is absolute, because the manager's child processes have other working directories.
fn data_dir(given: Option<PathBuf>) -> PathBuf {
    let variable_path = |variable: &str| {
        std::env::var_os(variable)
            .filter(|text| !text.is_empty())
            .map(|text: OsString| PathBuf::from(text))
    };
    let folder = given.unwrap_or_else(|| {
        let xdg = variable_path("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let home = || variable_path("HOME").map(|home| home.join(".local").join("share"));
        xdg.or_else(home).unwrap_or_else(|| PathBuf::from(".")).join("trialkeeper")
    });
    // Fails if the path is empty or there is no working directory. The first use of the folder then reports the error.
    std::path::absolute(&folder).unwrap_or(folder)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_error_about_a_number_names_the_end_that_it_exceeds() {
        #[rustfmt::skip]
        let table = [
            ("0",                    "expected a number of at least 1"),
            ("-3",                   "expected a number of at least 1"),
            ("many",                 "expected a number of at least 1"),
            ("99999999999999999999", "expected a number of at most 18446744073709551615"),
        ];
        let parser = super::integer::<u64>(1..=u64::MAX);
        for (text, expected) in table {
            assert_eq!(parser(text).unwrap_err(), expected, "{text}");
        }
        assert_eq!(parser("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
