//! Starts an adviser's program with its folder, its command line, its environment and its connection.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use tokio::process::{Child, Command};
use tracing::info;

use super::ask_and_tell::AskAndTell;
use super::history::Conversation;
use super::nni::{DispatcherRoles, NniConversation};
use super::wire::ProgramConnection;
use super::{ClassSource, Program, ProgramSettings};
use crate::util::ids;

/// The code that runs instead of `-m nni`, with the same arguments. Its own comments give the reason.
const NNI_START_SCRIPT: &str = include_str!("nni.py");

/// A program that was just started.
pub(super) struct StartedProgram {
    pub(super) child: Child,
    pub(super) connection: ProgramConnection,
    pub(super) program_name: String,
    /// The advice for a module that Python does not find.
    pub(super) module_advice: String,
    pub(super) conversation: Box<dyn Conversation>,
    /// The file of the program's output, and its length before the start.
    pub(super) output: (PathBuf, u64),
    pub(super) log: (PathBuf, u64),
}

/// Starts a program.
pub(super) async fn launch(setting: &ProgramSettings) -> Result<StartedProgram, String> {
    let in_dir = |error: io::Error| {
        format!("cannot prepare {} for the tuner: {error}", setting.dir.display())
    };
    let (logs, checkpoints) = (setting.dir.join("log"), setting.dir.join("checkpoint"));
    // A process of this manager or of an earlier one. It may have left a checkpoint.
    let has_predecessor = logs.exists();
    for folder in [&logs, &checkpoints] {
        fs::create_dir_all(folder).map_err(in_dir)?;
    }
    let output = setting.dir.join("output");
    let (log, sink) = (logs.join("dispatcher.log"), open_to_append(&output).map_err(in_dir)?);
    let (output_at, log_at) = (file_length(&output), file_length(&log));
    let errors = sink.try_clone().map_err(in_dir)?;

    let module_advice = advise_on_modules(&setting.program);
    let prepared = match &setting.program {
        Program::Nni { python, tuner, assessor, advisor } => {
            let (connection, url) =
                ProgramConnection::listen(&ids::new_secret_path()).await.map_err(in_dir)?;
            let roles = DispatcherRoles {
                tunes: tuner.is_some(),
                assesses: assessor.is_some() || *advisor,
                advisor: *advisor,
            };
            let params = experiment_parameters(setting, tuner.as_ref(), assessor.as_ref());
            let mut command = dispatcher_command(python, &params, &setting.dir, has_predecessor);
            command.stdout(Stdio::from(sink)).env("NNI_TUNER_COMMAND_CHANNEL", url);
            let program_name = format!("NNI's dispatcher (`{python} -m nni`)");
            PreparedCommand {
                command,
                connection,
                program_name,
                conversation: Box::new(NniConversation::new(roles)),
            }
        }
        Program::AskAndTell { command: words, greeting } => {
            let mut command = Command::new(words.first().map_or("", String::as_str));
            command
                .args(words.iter().skip(1))
                .current_dir(&setting.code)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let program_name = format!("the tuner's command (`{}`)", words.join(" "));
            let conversation = Box::new(AskAndTell::new(greeting.clone()));
            let connection = ProgramConnection::Closed;
            PreparedCommand { command, connection, program_name, conversation }
        }
    };
    let PreparedCommand { command, connection, program_name, conversation } = prepared;
    let mut child = spawn(setting, command, errors, &program_name)?;
    let connection = match (child.stdin.take(), child.stdout.take()) {
        (Some(input), Some(output)) => ProgramConnection::from_pipes(input, output),
        _ => connection,
    };
    info!("started {program_name}");
    let (output, log) = ((output, output_at), (log, log_at));
    Ok(StartedProgram { child, connection, program_name, module_advice, conversation, output, log })
}

/// Returns the command that runs NNI's dispatcher. The caller adds its output and the URL of the channel. With a
/// predecessor, the dispatcher calls `load_checkpoint` of the user's classes (NNI 3.0, `msg_dispatcher_base.py`).
fn dispatcher_command(python: &str, params: &str, dir: &Path, has_predecessor: bool) -> Command {
    let (logs, checkpoints) = (dir.join("log"), dir.join("checkpoint"));
    let mut command = Command::new(python);
    command
        .args(["-c", NNI_START_SCRIPT, "--exp_params", params])
        .current_dir(&logs)
        .stdin(Stdio::null())
        .env("SDK_PROCESS", "dispatcher")
        .env("NNI_MODE", if has_predecessor { "resume" } else { "start" })
        .env("NNI_CHECKPOINT_DIRECTORY", checkpoints)
        .env("NNI_LOG_DIRECTORY", logs)
        .env("NNI_LOG_LEVEL", "info")
        .env("NNI_INCLUDE_INTERMEDIATE_RESULTS", "false");
    command
}

/// A command that is ready to run, and its connection.
struct PreparedCommand {
    command: Command,
    connection: ProgramConnection,
    program_name: String,
    conversation: Box<dyn Conversation>,
}

/// Returns NNI's description of an experiment, as an argument for its dispatcher.
fn experiment_parameters(
    setting: &ProgramSettings,
    tuner: Option<&super::Algorithm>,
    assessor: Option<&super::Algorithm>,
) -> String {
    let mut params = json!({ "experimentName": setting.experiment });
    // The dispatcher requires a tuner. This one never receives a request.
    params["tuner"] = tuner.map_or(json!({"name": "Random"}), super::Algorithm::section);
    if let Some(assessor) = assessor {
        params["assessor"] = assessor.section();
    }
    BASE64_STANDARD.encode(params.to_string())
}

/// Starts a program without the manager's secrets. It has its own process group, so that only the manager handles a
/// Ctrl-C at the terminal.
fn spawn(
    setting: &ProgramSettings,
    mut command: Command,
    errors: File,
    program_name: &str,
) -> Result<Child, String> {
    for name in &setting.secret_variables {
        command.env_remove(name);
    }
    command.env("CUDA_VISIBLE_DEVICES", visible_devices(setting.gpus.as_deref()));
    command.stderr(Stdio::from(errors)).process_group(0).kill_on_drop(true);
    command.spawn().map_err(|error| {
        let advice = match &setting.program {
            Program::Nni { .. } => {
                "set `pythonInterpreter` to an interpreter with the package `nni`"
            }
            Program::AskAndTell { .. } => "correct `tuner.command`",
        };
        format!("{program_name} cannot be started: {error}; {advice}")
    })
}

/// The additional packages that NNI's algorithms need, as arguments of `pip` (its `setup.py`, `extras_require`). NNI
/// lists none for `NetworkMorphism`, whose modules import `torch`.
const PIP_PACKAGES: [(&str, &str); 4] = [
    ("SMAC", "'nni[smac]'"),
    ("PPO", "'nni[ppotuner]'"),
    ("DNGO", "'nni[dngo]'"),
    ("NetworkMorphism", "torch"),
];

/// Returns the advice for a module that the program's Python does not find.
fn advise_on_modules(program: &Program) -> String {
    let Program::Nni { python, tuner, .. } = program else { return String::new() };
    let extra = tuner.as_ref().and_then(|tuner| match &tuner.source {
        ClassSource::NniName(name) => PIP_PACKAGES.iter().find(|(known, _)| known == name),
        ClassSource::Class { .. } => None,
    });
    match extra {
        Some((name, packages)) => {
            format!("; `{python} -m pip install {packages}` installs the packages for {name}")
        }
        None => format!("; install it for {python}, or put it into `codeDirectory`"),
    }
}

fn visible_devices(gpus: Option<&[u64]>) -> String {
    let gpus: Vec<String> = gpus.unwrap_or_default().iter().map(u64::to_string).collect();
    gpus.join(",")
}

fn open_to_append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

/// Returns the size of a file in bytes; 0 if the file does not exist.
pub(super) fn file_length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::super::Algorithm;
    use super::*;

    #[test]
    fn the_advice_for_each_nni_algorithm_contains_its_pip_command() {
        #[rustfmt::skip]
        let table = [
            ("SMAC",            "`py -m pip install 'nni[smac]'`"),
            ("PPO",             "`py -m pip install 'nni[ppotuner]'`"),
            ("DNGO",            "`py -m pip install 'nni[dngo]'`"),
            ("NetworkMorphism", "`py -m pip install torch`"),
            ("Metis",           "install it for py"),
        ];
        for (name, expected) in table {
            let source = ClassSource::NniName(name.to_owned());
            let tuner = Some(Algorithm { source, class_args: Map::new() });
            let python = "py".to_owned();
            let program = Program::Nni { python, tuner, assessor: None, advisor: false };
            let advice = advise_on_modules(&program);
            assert!(advice.contains(expected), "{name}: {advice}");
        }
    }
}
