//! The command line: reads arguments, calls [`app`](crate::app), shows what comes back. Exit codes are
//! decided here and nowhere else.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use trial_protocol::ExperimentId;

use crate::app::What;
use crate::config;
use crate::util::layout::ExperimentDir;

mod ask;
mod clean;
mod conformance;
mod doctor;
mod experiment;
mod export;
mod follow;
mod man;
mod nni_node;
mod open;
mod out;
mod progress;
mod report;
mod run;
mod screen;
mod serve;
mod signals;
mod spark;
mod suggest;
mod table;
mod top;
mod trial;
mod upkeep;

/// The experiment is done and at least one trial succeeded.
const DONE: u8 = 0;
/// The experiment is done and no trial succeeded, or it goes on only once something is mended; or another command failed.
const NOTHING_SUCCEEDED: u8 = 1;
/// The configuration, an argument or the machine does not allow the experiment to begin.
const BAD_INPUT: u8 = 2;
/// The manager that ran the experiment failed; the next one goes on.
const FAULT: u8 = 3;
/// Stopped on request; the experiment can be resumed. 128 + SIGINT, as a shell shows it.
const INTERRUPTED: u8 = 130;
/// Ended by TERM and left to the next manager, its trials running. 128 + SIGTERM.
const LEFT: u8 = 143;

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
        /// Experiment file, YAML or JSON, in NNI's form; `-` stands for standard input.
        file: PathBuf,
        /// Id of the experiment: up to 32 of A-Z, a-z, 0-9, `_` and `-` [default: eight random letters and digits].
        #[arg(long)]
        id: Option<ExperimentId>,
        /// Go on serving the pages and the API when the search has ended, until interrupted or stopped. One that is
        /// stopped before its end is not served any further.
        #[arg(long, env = "TRIAL_MANAGER_KEEP_SERVING")]
        keep_serving: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Resume an interrupted experiment.
    Resume {
        /// Its id, as `run` showed it.
        id: String,
        /// Go on serving the pages and the API when the search has ended, until interrupted or stopped. One that is
        /// stopped before its end is not served any further.
        #[arg(long, env = "TRIAL_MANAGER_KEEP_SERVING")]
        keep_serving: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Check whether an experiment file can run here: the file, its code, the place where its trials run.
    ///
    /// Exit code: 0 if nothing fails, 1 if something does, 2 if the file is refused.
    Doctor {
        /// Experiment file, YAML or JSON, in NNI's form; `-` stands for standard input.
        file: PathBuf,
        /// Also run one real trial of the search, for at most five minutes; nothing of it is kept.
        #[arg(long)]
        probe: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Delete everything that an experiment left in its cluster. Its results stay.
    Clean {
        /// Id of the experiment.
        id: ExperimentId,
        /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
        #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
        data_dir: Option<PathBuf>,
        #[command(flatten)]
        cluster: clean::ClusterArgs,
    },
    /// Try whether a plugin does all that a training service must.
    Conformance {
        /// File with the plugin's settings, JSON or YAML.
        #[arg(long, value_name = "FILE")]
        settings: Option<PathBuf>,
        /// The agent program [default: `trialkeeper` beside this program, else in PATH].
        #[arg(long, env = "TRIAL_MANAGER_AGENT")]
        agent: Option<PathBuf>,
        /// Only the cases that contain this text.
        #[arg(long, value_name = "TEXT", default_value = "")]
        case: String,
        /// The plugin and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// List, show, stop, export or remove experiments, and change their limits.
    #[command(subcommand, alias = "experiments")]
    Experiment(experiment::ExperimentCommand),
    /// List and show trials, print their output, stop them, run them again.
    #[command(subcommand, alias = "trials")]
    Trial(trial::TrialCommand),
    /// Show a trial's metrics.
    Metrics {
        /// Which, by its id or its number.
        trial: ask::named::TrialName,
        /// Only the metric of this name.
        #[arg(long = "name", id = "metric", value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        asked: ask::OutputArgs,
    },
    /// Watch a search: its numbers, and the trials that run with their curves, memory and GPUs.
    Top {
        /// Which; the same as --experiment.
        id: Option<ExperimentId>,
        #[command(flatten)]
        place: ask::ExperimentArgs,
    },
    /// Show the portal in the browser, logged in; without a browser, print an address that lets one in.
    Open {
        /// Which; the same as --experiment.
        id: Option<ExperimentId>,
        /// Print the address in any case.
        #[arg(long)]
        print: bool,
        #[command(flatten)]
        place: ask::ExperimentArgs,
    },
    /// Show the pages of all experiments on this machine, or of one without a manager, until interrupted.
    Serve {
        /// The only one to show; the same as --experiment.
        id: Option<ExperimentId>,
        /// Address to listen on.
        #[arg(long, default_value = "127.0.0.1", env = "TRIAL_MANAGER_HOST")]
        host: String,
        /// Port to listen on; 0 picks a free one.
        #[arg(long, default_value_t = 8080, env = "TRIAL_MANAGER_PORT")]
        port: u16,
        #[command(flatten)]
        place: ask::ExperimentArgs,
    },
    /// Propose parameters for a loop of the user's own: a built-in tuner that speaks the lines of docs/ask-and-tell.md.
    Suggest {
        /// The tuner, such as TPE.
        tuner: String,
    },
    /// Print what a shell needs to complete this program's arguments.
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write pages for man(1) into a folder, one for each command.
    #[command(hide = true)]
    Man {
        /// The folder; it is made if it is missing.
        folder: PathBuf,
    },
    /// Print a file, YAML or JSON, as JSON; nothing is checked.
    #[command(hide = true)]
    ToJson {
        /// Such as an experiment file.
        file: PathBuf,
    },
    /// List the experiments on this machine, as `experiment ls` does.
    #[command(hide = true, alias = "list")]
    Ls {
        #[command(flatten)]
        asked: ask::OutputArgs,
    },
    /// Print the version of this program.
    Version,
    /// Stand in for NNI's manager: take the arguments with which NNI's client starts Node, and an experiment over REST.
    #[command(hide = true)]
    NniNode {
        /// As NNI's client passes them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
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

/// The treatment of running trials on SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnTerm {
    /// They are stopped, as by Ctrl-C.
    Stop,
    /// They run on, and the next `resume` takes them over: for a manager that is moved and started again.
    Leave,
}

#[derive(Debug, Args)]
struct Common {
    /// Address to listen on [default: 127.0.0.1 if trials run on this machine, else all addresses].
    #[arg(long, env = "TRIAL_MANAGER_HOST")]
    host: Option<String>,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8080, env = "TRIAL_MANAGER_PORT")]
    port: u16,
    /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
    #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The format of the results on standard output.
    #[arg(long, short, value_enum, default_value_t = ask::Format::Table)]
    output: ask::Format,
    /// The agent program [default: `trialkeeper` beside this program, else in PATH].
    #[arg(long, env = "TRIAL_MANAGER_AGENT")]
    agent: Option<PathBuf>,
    /// Serve images that still carry NNI's own keeper on this port (NNI's convention: port + 1). Every client that
    /// reaches it can report for a known trial: it knows no tokens.
    #[arg(long, env = "TRIAL_MANAGER_LEGACY_PORT")]
    legacy_port: Option<u16>,
    /// Seconds that an agent may be silent before its trial is LOST; it speaks at least three times as often.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(3..=86_400),
        env = "TRIAL_MANAGER_LEASE"
    )]
    lease: u64,
    /// A certificate of your own, with the chain behind it, in PEM form; read again when it changes.
    /// Everything is encrypted then, on a loopback address too.
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "TRIAL_MANAGER_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Its key, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "TRIAL_MANAGER_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// The authority that agents are to check it against, in PEM form [default: the public ones].
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "TRIAL_MANAGER_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// The manager's address for trials on other machines: a host, host:port, or the URL of what stands in front of it
    /// [default: a guess, which is printed].
    #[arg(long, env = "TRIAL_MANAGER_ADVERTISE")]
    advertise: Option<String>,
    /// Serve everything below this path, too, such as /search: for a reverse proxy that passes paths on unchanged.
    #[arg(long, value_name = "PATH", value_parser = url_prefix, env = "TRIAL_MANAGER_URL_PREFIX")]
    url_prefix: Option<String>,
    /// The treatment of running trials on SIGTERM.
    #[arg(
        long,
        value_enum,
        default_value_t = OnTerm::Stop,
        env = "TRIAL_MANAGER_ON_TERM",
        help = "What happens to running trials on SIGTERM: stop or leave"
    )]
    on_term: OnTerm,
}

/// Reads a path: with a slash at its head and none at its end.
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
    ask::complete::answer(Cli::command);
    start_log();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { BAD_INPUT } else { DONE };
            // A closed terminal is no reason to fail.
            drop(error.print());
            return ExitCode::from(code);
        }
    };
    let invocation = match answer_at_once(cli.command) {
        ControlFlow::Continue(invocation) => invocation,
        ControlFlow::Break(code) => return code,
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(invocation.answer());
            // Whatever had to be done is done. A thread that looks up the name of a server can hang for minutes.
            runtime.shutdown_timeout(std::time::Duration::from_secs(1));
            ExitCode::from(code)
        }
        Err(error) => fail(&error, NOTHING_SUCCEEDED),
    }
}

fn start_log() {
    let level = log_level();
    // Libraries log as errors what the manager tries again. Where it matters what to do about one, the manager says so
    // itself.
    let libraries = if level >= Level::DEBUG { level.into() } else { LevelFilter::OFF };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        .finish()
        .with(Targets::new().with_default(libraries).with_target("trial_manager", level))
        .init();
}

/// Answers a command that needs no runtime, and breaks with its exit code. Continues with any other.
fn answer_at_once(command: Command) -> ControlFlow<ExitCode, Invocation> {
    let invocation = match command {
        Command::Doctor { file, probe, common } => Invocation::Doctor(file, probe, common),
        Command::Clean { id, data_dir, cluster } => {
            return ControlFlow::Break(clean::clean(&data_dir_of(data_dir, &id), &id, cluster));
        }
        Command::Run { file, id, keep_serving, common } => match config::load(&file) {
            Ok(spec) => {
                let spec = Box::new(spec);
                let what = match id {
                    Some(id) => What::Named(id, spec),
                    None => What::New(spec),
                };
                Invocation::Run(common, what, keep_serving)
            }
            Err(error) => return ControlFlow::Break(fail(&error, BAD_INPUT)),
        },
        Command::Resume { id, keep_serving, common } => {
            Invocation::Run(common, What::Resume(id), keep_serving)
        }
        Command::Experiment(command) => Invocation::Experiment(command),
        Command::Ls { asked } => {
            Invocation::Experiment(experiment::ExperimentCommand::Ls { asked })
        }
        Command::Version => {
            let line = format!("trial-manager {}\n", env!("CARGO_PKG_VERSION"));
            return ControlFlow::Break(printed(out::written(line.as_bytes())));
        }
        Command::Man { folder } => {
            let written = man::write(Cli::command(), &folder).map_err(ask::Error::Output);
            return ControlFlow::Break(printed(written));
        }
        Command::ToJson { file } => return ControlFlow::Break(print_as_json(&file)),
        Command::Trial(command) => Invocation::Trial(command),
        Command::Metrics { trial, name, asked } => Invocation::Metrics(trial, name, asked),
        Command::Top { id, place } => Invocation::Top(place.of(id)),
        Command::Open { id, print, place } => Invocation::Open(print, place.of(id)),
        Command::Serve { id, host, port, place } => Invocation::Serve(host, port, place.of(id)),
        Command::Completions { shell } => {
            let program = std::env::args().next().unwrap_or_default();
            let script = ask::complete::script(shell, &program).map_err(ask::Error::Output);
            let written = script.and_then(|script| out::written(script.as_bytes()));
            return ControlFlow::Break(printed(written));
        }
        Command::Conformance { settings, agent, case, command } => {
            Invocation::Conformance(settings, agent, case, command)
        }
        Command::Suggest { tuner } => return ControlFlow::Break(suggest::suggest(&tuner)),
        Command::NniNode { arguments } => Invocation::NniNode(arguments),
        Command::Backup { id, to, data_dir } => {
            return ControlFlow::Break(upkeep::backup(&data_dir_of(data_dir, &id), &id, &to));
        }
        Command::Check { id, data_dir } => {
            return ControlFlow::Break(upkeep::check(&data_dir_of(data_dir, &id), &id));
        }
    };
    ControlFlow::Continue(invocation)
}

/// Prints a file, YAML or JSON, as JSON.
fn print_as_json(file: &Path) -> ExitCode {
    match config::read(file) {
        Ok(document) => printed(out::written(format!("{document}\n").as_bytes())),
        Err(error) => fail(&error, BAD_INPUT),
    }
}

/// A command that takes a while.
enum Invocation {
    Run(Common, What, bool),
    Doctor(PathBuf, bool, Common),
    Conformance(Option<PathBuf>, Option<PathBuf>, String, Vec<String>),
    Experiment(experiment::ExperimentCommand),
    Trial(trial::TrialCommand),
    Metrics(ask::named::TrialName, Option<String>, ask::OutputArgs),
    Top(ask::ExperimentArgs),
    Open(bool, ask::ExperimentArgs),
    Serve(String, u16, ask::ExperimentArgs),
    NniNode(Vec<String>),
}

impl Invocation {
    async fn answer(self) -> u8 {
        match self {
            Self::Run(common, what, keep_serving) => {
                Box::pin(run::run(common, what, keep_serving)).await
            }
            Self::Conformance(settings, agent, case, command) => {
                conformance::conformance(settings.as_deref(), agent, &case, command).await
            }
            Self::Doctor(file, probe, common) => {
                Box::pin(doctor::doctor(&file, probe, common)).await
            }
            Self::Experiment(command) => experiment::experiment(command).await,
            Self::Trial(command) => trial::trial(command).await,
            Self::Metrics(trial, name, asked) => {
                trial::metrics(&trial, name.as_deref(), &asked).await
            }
            Self::Top(place) => top::top(&place).await,
            Self::Open(print, place) => open::open(&place, print).await,
            Self::Serve(host, port, place) => serve::serve(&place, &host, port).await,
            Self::NniNode(arguments) => Box::pin(nni_node::nni_node(&arguments)).await,
        }
    }
}

/// Returns the exit code of a command that only writes.
fn printed(written: Result<(), ask::Error>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::from(DONE),
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
    // It may quote a file, or a manager elsewhere.
    let lines: Vec<_> =
        crate::util::errors::chain(error).lines().map(progress::printable).collect();
    eprintln!("trial-manager: {}", lines.join("\n"));
}

fn log_level() -> Level {
    let wanted = std::env::var("TRIAL_MANAGER_LOG").ok();
    wanted.and_then(|level| level.parse().ok()).unwrap_or(Level::WARN)
}

fn data_dir_of(given: Option<PathBuf>, id: &ExperimentId) -> ExperimentDir {
    ExperimentDir::new(&data_dir(given), id)
}

/// `--data-dir`, or the XDG base directory for user data (XDG Base Directory Specification 0.8). Absolute, since
/// processes that the manager starts run elsewhere.
fn data_dir(given: Option<PathBuf>) -> PathBuf {
    let absolute = |variable: &str| {
        std::env::var_os(variable)
            .filter(|text| !text.is_empty())
            .map(|text: OsString| PathBuf::from(text))
    };
    let folder = given.unwrap_or_else(|| {
        let xdg = absolute("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let home = || absolute("HOME").map(|home| home.join(".local").join("share"));
        xdg.or_else(home).unwrap_or_else(|| PathBuf::from(".")).join("trialkeeper")
    });
    // Fails without a name or a working directory; the user of the folder says so.
    std::path::absolute(&folder).unwrap_or(folder)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
