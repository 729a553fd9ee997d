//! axe-core, which looks at a page for whom it leaves out. It is fetched from npm once per checkout: its code (MPL-2.0) is
//! no part of this repository, and nothing but a test runs it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::python::{run, target};

/// Set to anything: tests that need npm's package fail where npm cannot be reached, instead of being skipped.
const REQUIRED: &str = "TRIALKEEPER_TEST_NEED_NPM";
/// The package, of one version for ever.
const PACKAGE: &str = "axe-core@4.10.2";

/// Its program, for a page. `None`, with the reason printed, where it cannot be had.
pub fn axe() -> Option<String> {
    match fetched(&target().join(PACKAGE)) {
        Ok(program) => Some(program),
        Err(reason) => {
            assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, but {reason}");
            #[expect(clippy::print_stderr, reason = "a skipped test says why")]
            {
                eprintln!("skipped: {reason}");
            }
            None
        }
    }
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
