//! axe-core, which looks at a page for whom it leaves out. It is fetched from npm once per checkout: its code (MPL-2.0) is
//! no part of this repository, and nothing but a test runs it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::python::{run, target};

/// The package, of one version for ever.
const PACKAGE: &str = "axe-core@4.10.2";

/// Returns its program, for a page.
///
/// # Panics
///
/// If npm cannot fetch it: a test that calls this is ignored as one that needs npm.
pub fn axe() -> String {
    fetched(&target().join(PACKAGE)).unwrap_or_else(|reason| panic!("{reason}"))
}

fn fetched(folder: &Path) -> Result<String, String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    let program = folder.join("package/axe.min.js");
    if let Ok(text) = fs::read_to_string(&program) {
        return Ok(text);
    }
    // Whoever else fetches it has a folder of its own; the first to be done stays.
    let parent = folder.parent().expect("it lies in the target folder");
    let own = tempfile::tempdir_in(parent).map_err(told)?;
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", PACKAGE, "--pack-destination"]).arg(own.path());
    run(pack.current_dir(own.path())).map_err(|reason| {
        format!("npm cannot fetch {PACKAGE} (is npm there, and its registry?): {reason}")
    })?;
    let archive = own.path().join(format!("{}.tgz", PACKAGE.replace('@', "-")));
    run(Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(own.path()))?;
    drop(fs::rename(own.path(), folder));
    fs::read_to_string(program).map_err(told)
}
