//! Files and folders that only their owner may read, written whole.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Makes a folder and those above it that are missing, for their owner only, whatever the umask is.
pub fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file whole: a reader sees the old text or the new one. `mode` holds from the first moment.
pub fn write_file(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&temporary, path)
}
