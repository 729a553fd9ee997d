//! The small commands: `install`, `completions`, `version`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use tokio::runtime::Runtime;
use trial_protocol::{VERSION_NEWEST, VERSION_OLDEST};

use crate::cli::{AGENT_FAULT, Cli, Output};
use crate::trial::guard::OWN_PROGRAM;
use crate::util::errors::chain;

/// Copies this program into `dir` and prints the path of the copy.
pub fn install(dir: &Path) -> ExitCode {
    match copy_into(dir) {
        Ok(path) => print(&format!("{}\n", path.display())),
        Err(source) => {
            let message =
                format!("trialkeeper: error: cannot install into {}: {source}\n", dir.display());
            io::stderr().write_all(message.as_bytes()).ok();
            ExitCode::from(AGENT_FAULT)
        }
    }
}

fn copy_into(dir: &Path) -> Result<PathBuf, io::Error> {
    fs::create_dir_all(dir)?;
    let path = dir.join("trialkeeper");
    let part = dir.join(format!(".trialkeeper.{}.part", std::process::id()));
    // A reader sees a complete program or none, even while another container runs the old one.
    let copied = fs::copy(OWN_PROGRAM, &part)
        .and_then(|_| fs::set_permissions(&part, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&part, &path));
    if let Err(source) = copied {
        fs::remove_file(&part).ok();
        return Err(source);
    }
    Ok(path)
}

/// Prints the completion script for a shell.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "trialkeeper", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints the version.
pub fn version(output: Output) -> ExitCode {
    let version = env!("CARGO_PKG_VERSION");
    print(&match output {
        Output::Text => format!("trialkeeper {version}\n"),
        Output::Json => {
            let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
            let protocol = serde_json::json!({"oldest": VERSION_OLDEST, "newest": VERSION_NEWEST});
            let value = serde_json::json!({
                "name": "trialkeeper", "version": version, "protocol": protocol, "target": target,
            });
            format!("{value}\n")
        }
    })
}

/// Creates the runtime of a command, or returns the exit code of the failure.
pub fn create_runtime() -> Result<Runtime, ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        tracing::error!("{}", chain(&error));
        ExitCode::from(AGENT_FAULT)
    })
}

/// Prints the requested output on stdout. If that fails, the exit code reports it.
pub fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(AGENT_FAULT),
    }
}
