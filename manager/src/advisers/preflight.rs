//! Checks that the classes and programs of a tuner or an assessor outside the manager are there, and runs none of them.
//! The user should learn before the search begins that one is missing.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::unistd::{AccessFlags, access};
use tokio::process::Command;
use tokio::time::timeout;

use super::{Algorithm, ClassSource};

/// The time that modules may take to load: those of deep learning take their time.
const IMPORT_TIMEOUT: Duration = Duration::from_mins(2);

/// Loads NNI, and a class as NNI does (nni 3.0, `nni/runtime/common.py`): arguments are the folder and the name, or nothing.
const LOAD: &str = "import importlib, sys, nni
if sys.argv[2:]:
    sys.path.append(sys.argv[1])
    module, _, name = sys.argv[2].rpartition('.')
    getattr(importlib.import_module(module), name)";

/// Loads what `python` is to run of `algorithm`; an error says what Python said.
pub async fn look(
    python: &str,
    algorithm: &Algorithm,
    secret_variables: &[String],
) -> Result<(), String> {
    let mut command = Command::new(python);
    for name in secret_variables {
        command.env_remove(name);
    }
    command.args(["-c", LOAD]);
    if let ClassSource::Class { class, code } = &algorithm.source {
        command.arg(code).arg(class);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let ran = timeout(IMPORT_TIMEOUT, command.output()).await;
    let ran = ran.map_err(|_| format!("{python} took more than {} s", IMPORT_TIMEOUT.as_secs()))?;
    let output = ran.map_err(|error| {
        format!(
            "{python} cannot be started: {error}; set `pythonInterpreter` to one that has `nni`"
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
    Err(format!("{python} cannot load {}: {last}", algorithm.name()))
}

/// Looks for the program of `words` as starting it from the folder `code` does (execvp(3)).
pub fn look_for(words: &[String], code: &Path) -> Result<(), String> {
    look_for_program(words.first().map_or("", String::as_str), code)
        .map_err(|problem| format!("{problem}; correct `tuner.command`"))
}

/// Looks for a program as a shell in the folder `code` would: from `PATH`, or from `code` if it has a slash.
pub fn look_for_program(program: &str, code: &Path) -> Result<(), String> {
    let runs = |file: &Path| file.is_file() && access(file, AccessFlags::X_OK).is_ok();
    let (found, from) = if program.contains('/') {
        (runs(&code.join(program)), code.display().to_string())
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = std::env::split_paths(&path);
        (folders.any(|folder| runs(&code.join(folder).join(program))), "PATH".to_owned())
    };
    if found {
        return Ok(());
    }
    Err(format!("`{program}` is no program that can be run (from {from})"))
}
