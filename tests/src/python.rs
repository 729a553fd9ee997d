//! Pythons with NNI and with Optuna, made once per checkout.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the Python interpreter of a virtual environment with what `examples/digits` requires, made below `target` on
/// first use.
///
/// # Panics
///
/// If `PyPI` cannot be reached: a test that calls this is ignored as one that needs NNI from `PyPI`.
pub fn nni_python() -> PathBuf {
    python_for("digits", "nni-venv")
}

/// Returns the interpreter of an environment with what `examples/optuna` requires, as [`nni_python`] does.
pub fn optuna_python() -> PathBuf {
    python_for("optuna", "optuna-venv")
}

fn python_for(example: &str, folder: &str) -> PathBuf {
    let requirements = root().join("examples").join(example).join("requirements.txt");
    environment(&target().join(folder), &requirements).unwrap_or_else(|reason| panic!("{reason}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where what is made for tests may lie.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn environment(folder: &Path, requirements: &Path) -> Result<PathBuf, String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    let wanted = fs::read_to_string(requirements).map_err(told)?;
    fs::create_dir_all(folder).map_err(told)?;
    // Test processes run side by side; the first one builds, the others wait for it. The lock lies beside
    // the folder, which is emptied.
    let lock = File::create(folder.with_extension("lock")).map_err(told)?;
    lock.lock().map_err(told)?;

    let python = folder.join("bin/python");
    let done = folder.join("requirements-met");
    if fs::read_to_string(&done).is_ok_and(|met| met == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))
        .map_err(|reason| format!("python3 cannot make a virtual environment: {reason}"))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements))
        .map_err(|reason| {
            let what = requirements.display();
            format!("pip cannot install {what} (is PyPI reachable?): {reason}")
        })?;
    fs::write(&done, wanted).map_err(told)?;
    Ok(python)
}

/// Runs a command; an error is the end of what it said.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = said.lines().rev().take(5).collect();
    Err(format!("{}: {}", output.status, tail.into_iter().rev().collect::<Vec<_>>().join(" / ")))
}
