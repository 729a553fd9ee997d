//! Builds the programs under test from the current sources.
//!
//! Cargo builds a package's programs only for that package's own integration tests. These tests are in a
//! package of their own, so they call cargo. A test therefore never runs a missing or outdated program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The packages whose programs are tested. Each program is named after its package.
const PACKAGES: [&str; 2] = ["trialkeeper", "trial-manager"];

/// The environment variable that names a folder of programs to test, such as those of a release. If it is
/// set, nothing is built.
const FOLDER_VARIABLE: &str = "TRIALKEEPER_TEST_PROGRAMS";

/// Returns the folder of both programs. The first call in a process builds them.
///
/// # Panics
///
/// If the programs do not compile. The compiler's messages are on standard error.
pub(crate) fn program_folder() -> &'static Path {
    // Also caches a failure. Otherwise each test would wait for the same compiler errors.
    static PROGRAM_FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = PROGRAM_FOLDER.get_or_init(|| match std::env::var_os(FOLDER_VARIABLE) {
        Some(folder) => check_folder(Path::new(&folder)),
        None => build_programs(),
    });
    folder.as_deref().unwrap_or_else(|problem| panic!("{problem}"))
}

fn check_folder(folder: &Path) -> Result<PathBuf, String> {
    match PACKAGES.iter().find(|program| !folder.join(program).exists()) {
        Some(program) => Err(format!("{FOLDER_VARIABLE}: no {program} in {}", folder.display())),
        None => Ok(folder.canonicalize().expect("the folder of an existing program exists")),
    }
}

/// Builds the programs with the profile of this test. If nothing has changed, this takes about 0.3 s.
fn build_programs() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--locked", "--message-format=json-render-diagnostics"]);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    // Including this package gives the programs the features of `cargo test --workspace`, so nothing is built
    // twice.
    let packages = PACKAGES.iter().copied().chain([env!("CARGO_PKG_NAME")]);
    command.args(packages.flat_map(|package| ["--package", package]));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    // `cargo test` describes this package in variables. Build scripts that watch them, such as that of `ring`,
    // would run again, and everything that depends on them would be compiled again.
    for (name, _) in std::env::vars_os() {
        let describes = |prefix| name.to_string_lossy().starts_with(prefix);
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].into_iter().any(describes) {
            command.env_remove(name);
        }
    }
    let built = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let built = built.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !built.status.success() {
        return Err(format!("the programs cannot be built: {command:?}: {}", built.status));
    }
    let program = parse_executables(&built.stdout)
        .find(|path| path.ends_with("trial-manager"))
        .expect("cargo reports each program, also one that is up to date");
    Ok(program.parent().expect("a program has a parent folder").to_owned())
}

/// Reads the paths of programs from cargo's messages.
/// Source: <https://doc.rust-lang.org/cargo/reference/external-tools.html#artifact-messages>.
fn parse_executables(messages: &[u8]) -> impl Iterator<Item = PathBuf> {
    messages.split(|byte| *byte == b'\n').filter_map(|line| {
        let message: serde_json::Value = serde_json::from_slice(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    })
}
