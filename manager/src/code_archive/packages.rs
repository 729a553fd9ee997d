//! Records the packages of the user's Python, as `pip freeze` lists them.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// The maximum run time of pip.
const PIP_TIMEOUT: Duration = Duration::from_mins(1);

/// Writes the package list of `python`, which is looked up from the folder `directory`, to `file`. Returns the number
/// of packages.
///
/// # Errors
///
/// Returns a message for the user if Python or pip cannot run, or the file cannot be written.
pub async fn record(
    python: &str,
    directory: &Path,
    file: &Path,
    secret_variables: &[String],
) -> Result<usize, String> {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "freeze", "--disable-pip-version-check"]).current_dir(directory);
    for name in secret_variables {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ran = timeout(PIP_TIMEOUT, command.output()).await;
    let ran = ran.map_err(|_| format!("pip took more than {} s", PIP_TIMEOUT.as_secs()))?;
    let output = ran.map_err(|error| format!("{python} cannot be started: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last =
            stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no error message");
        return Err(format!("{python} cannot list its packages: {last}"));
    }
    let written = tokio::fs::write(file, &output.stdout).await;
    written.map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}
