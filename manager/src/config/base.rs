//! The base folder of an experiment's relative paths, and the requirement that files exist. A new experiment must name
//! existing files. A stored experiment is read without that requirement, because its results often outlive its code.

use std::path::Path;

/// The base folder of relative paths, and the requirement that files exist.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base<'a> {
    pub(super) folder: &'a Path,
    requires_files: bool,
}

impl<'a> Base<'a> {
    /// Returns the base of an experiment whose files must exist.
    pub(super) fn requiring_files(folder: &'a Path) -> Self {
        Self { folder, requires_files: true }
    }

    /// Returns the base of a stored experiment, whose paths are absolute and whose files need not exist any more.
    pub(super) fn stored() -> Self {
        Self { folder: Path::new("/"), requires_files: false }
    }

    /// Returns whether a directory that must exist is missing.
    pub(super) fn lacks_folder(self, path: &Path) -> bool {
        self.requires_files && !path.is_dir()
    }

    /// Returns whether a file that must exist is missing.
    pub(super) fn lacks_file(self, path: &Path) -> bool {
        self.requires_files && !path.is_file()
    }
}
