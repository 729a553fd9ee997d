//! axe-core, which checks a page's accessibility. It is fetched from npm once per checkout. Its code
//! (MPL-2.0) is not part of this repository, and only tests run it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::python::{run_command, target_folder};

/// The package, with a fixed version.
const AXE_PACKAGE: &str = "axe-core@4.10.2";

/// Returns axe-core's JavaScript, to be run in a page.
///
/// # Panics
///
/// If npm cannot fetch the package. A test that calls this function must be ignored.
pub fn axe_script() -> String {
    fetch_axe(&target_folder().join(AXE_PACKAGE)).unwrap_or_else(|reason| panic!("{reason}"))
}

fn fetch_axe(folder: &Path) -> Result<String, String> {
    let describe = |error: std::io::Error| format!("{}: {error}", folder.display());
    let program = folder.join("package/axe.min.js");
    if let Ok(text) = fs::read_to_string(&program) {
        return Ok(text);
    }
    // Each process fetches into its own folder, and the first to finish keeps its result.
    let parent = folder.parent().expect("the target folder is its parent");
    let own = tempfile::tempdir_in(parent).map_err(describe)?;
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", AXE_PACKAGE, "--pack-destination"]).arg(own.path());
    run_command(pack.current_dir(own.path())).map_err(|reason| {
        format!(
            "npm cannot fetch {AXE_PACKAGE} (is npm installed, and its registry reachable?): {reason}"
        )
    })?;
    let archive = own.path().join(format!("{}.tgz", AXE_PACKAGE.replace('@', "-")));
    run_command(Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(own.path()))?;
    drop(fs::rename(own.path(), folder));
    fs::read_to_string(program).map_err(describe)
}
