//! The programs under test, built from the sources as they stand.
//!
//! Cargo builds a package's programs for that package's own integration tests only, and these tests belong to
//! neither program. They ask cargo themselves, so that no test ever meets a missing or a stale program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The packages whose programs are tested; each program has its package's name.
const PACKAGES: [&str; 2] = ["trialkeeper", "trial-manager"];

/// Names a folder with other programs to test, such as a release's. Nothing is built then.
const FOLDER_VARIABLE: &str = "TRIALKEEPER_TEST_PROGRAMS";

/// Returns the folder that holds both programs, which are built at the first call of this process.
///
/// # Panics
///
/// If the programs do not compile, with the compiler's messages on standard error.
pub(crate) fn programs() -> &'static Path {
    // A failure is kept: each test would wait for the same compiler's messages again.
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match std::env::var_os(FOLDER_VARIABLE) {
        Some(folder) => given(Path::new(&folder)),
        None => build(),
    });
    folder.as_deref().unwrap_or_else(|problem| panic!("{problem}"))
}

fn given(folder: &Path) -> Result<PathBuf, String> {
    match PACKAGES.iter().find(|program| !folder.join(program).exists()) {
        Some(program) => Err(format!("{FOLDER_VARIABLE}: no {program} in {}", folder.display())),
        None => Ok(folder.canonicalize().expect("the folder of an existing program exists")),
    }
}

/// Builds the programs with the profile of this test. When nothing has changed this takes about 0.3 s.
fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--locked", "--message-format=json-render-diagnostics"]);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    // With this package beside them, they are built with the features of `cargo test --workspace`, and nothing is built twice.
    let packages = PACKAGES.iter().copied().chain([env!("CARGO_PKG_NAME")]);
    command.args(packages.flat_map(|package| ["--package", package]));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let built = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let built = built.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !built.status.success() {
        return Err(format!("the programs cannot be built: {command:?}: {}", built.status));
    }
    let program = executables(&built.stdout)
        .find(|path| path.ends_with("trial-manager"))
        .expect("cargo names each program that it has built or found up to date");
    Ok(program.parent().expect("a program lies in a folder").to_owned())
}

/// Reads the paths of programs from cargo's messages.
/// Source: <https://doc.rust-lang.org/cargo/reference/external-tools.html#artifact-messages>.
fn executables(messages: &[u8]) -> impl Iterator<Item = PathBuf> {
    messages.split(|byte| *byte == b'\n').filter_map(|line| {
        let message: serde_json::Value = serde_json::from_slice(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    })
}
