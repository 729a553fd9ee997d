//! Imports the classes of an external tuner or assessor without creating them, and searches for its program. Users thus
//! learn of a missing one before the search begins.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::unistd::{AccessFlags, access};
use tokio::process::Command;
use tokio::time::timeout;

use super::{Algorithm, ClassSource};

/// The maximum time for loading modules. Deep learning modules load slowly.
const IMPORT_TIMEOUT: Duration = Duration::from_mins(2);

/// Imports NNI, and a class as NNI does (nni 3.0, `nni/runtime/common.py`). The arguments are the folder and the
/// class name, or nothing.
const IMPORT_SCRIPT: &str = "import importlib, sys, nni
if sys.argv[2:]:
    sys.path.append(sys.argv[1])
    module, _, name = sys.argv[2].rpartition('.')
    getattr(importlib.import_module(module), name)";

/// Imports with `python` the modules that `algorithm` needs. The error contains Python's message.
pub async fn import_modules(
    python: &str,
    algorithm: &Algorithm,
    secret_variables: &[String],
) -> Result<(), String> {
    let mut command = Command::new(python);
    for name in secret_variables {
        command.env_remove(name);
    }
    command.args(["-c", IMPORT_SCRIPT]);
    if let ClassSource::Class { class, code } = &algorithm.source {
        command.arg(code).arg(class);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let ran = timeout(IMPORT_TIMEOUT, command.output()).await;
    let ran = ran.map_err(|_| format!("{python} took more than {} s", IMPORT_TIMEOUT.as_secs()))?;
    let output = ran.map_err(|error| {
        format!(
            "{python} cannot be started: {error}; set `pythonInterpreter` to an interpreter with the package `nni`"
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no error message");
    let remedy = if last.contains("No module named 'nni'") {
        "; install the wheel trialkeeper-nni (docs/python.md), or name an interpreter that has it in `pythonInterpreter`"
    } else {
        ""
    };
    Err(format!("{python} cannot load {}: {last}{remedy}", algorithm.name()))
}

/// Looks up the program of `words` as execvp(3) does when it is started in the folder `code`.
pub fn find_command(words: &[String], code: &Path) -> Result<(), String> {
    find_program(words.first().map_or("", String::as_str), code)
        .map_err(|problem| format!("{problem}; correct `tuner.command`"))
}

/// Looks up a program as a shell in the folder `code` would: in `PATH`, or relative to `code` if its name contains a
/// slash.
pub fn find_program(program: &str, code: &Path) -> Result<(), String> {
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
    Err(format!("`{program}` is not an executable program (searched in {from})"))
}
