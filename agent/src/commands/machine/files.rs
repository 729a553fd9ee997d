//! Files and folders that only their owner may read, written atomically.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use serde_json::Value;

use super::{Refusal, invalid_params};

pub(super) fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(super) fn write_files(dir: &Path, files: &Value) -> Result<(), Refusal> {
    for file in files.as_array().into_iter().flatten() {
        let name = file["name"].as_str().filter(|name| !name.is_empty() && !name.contains('/'));
        let text = file["text"].as_str().ok_or_else(|| invalid_params("text"))?;
        write_file(&dir.join(name.ok_or_else(|| invalid_params("name"))?), text)?;
    }
    Ok(())
}

/// Writes a private file atomically: a reader sees the old text or the new one.
pub(super) fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)
}
