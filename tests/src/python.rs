//! Python interpreters with NNI and with Optuna. Each environment is created once per checkout.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the Python interpreter of a virtual environment with the requirements of `examples/digits`. The
/// first call creates the environment below `target`.
///
/// # Panics
///
/// If `PyPI` cannot be reached. A test that calls this function must be ignored.
pub fn nni_python() -> PathBuf {
    example_python("digits", "nni-venv")
}

/// Returns the interpreter of an environment with the requirements of `examples/optuna`, as [`nni_python`]
/// does.
pub fn optuna_python() -> PathBuf {
    example_python("optuna", "optuna-venv")
}

fn example_python(example: &str, folder: &str) -> PathBuf {
    let requirements = repository_root().join("examples").join(example).join("requirements.txt");
    create_environment(&target_folder().join(folder), &requirements)
        .unwrap_or_else(|reason| panic!("{reason}"))
}

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The target directory of cargo, which also holds the environments and tools that tests download.
pub(crate) fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository_root().join("target"), PathBuf::from)
}

fn create_environment(folder: &Path, requirements: &Path) -> Result<PathBuf, String> {
    let describe = |error: std::io::Error| format!("{}: {error}", folder.display());
    let wanted = fs::read_to_string(requirements).map_err(describe)?;
    fs::create_dir_all(folder).map_err(describe)?;
    // Test processes run in parallel: the first builds the environment, and the others wait. The lock file is
    // beside the folder because `venv --clear` empties the folder.
    let lock = File::create(folder.with_extension("lock")).map_err(describe)?;
    lock.lock().map_err(describe)?;

    let python = folder.join("bin/python");
    let done = folder.join("requirements-met");
    if fs::read_to_string(&done).is_ok_and(|met| met == wanted) {
        return Ok(python);
    }
    run_command(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))
        .map_err(|reason| format!("python3 cannot make a virtual environment: {reason}"))?;
    run_command(
        Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements),
    )
    .map_err(|reason| {
        let what = requirements.display();
        format!("pip cannot install {what} (is PyPI reachable?): {reason}")
    })?;
    fs::write(&done, wanted).map_err(describe)?;
    Ok(python)
}

/// Runs a command. On failure, the error contains the last lines of its standard error.
pub(crate) fn run_command(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = stderr.lines().rev().take(5).collect();
    Err(format!("{}: {}", output.status, tail.into_iter().rev().collect::<Vec<_>>().join(" / ")))
}
