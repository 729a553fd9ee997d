//! The folder that an experiment's relative paths start from, and the files that must be there. A file that the user
//! writes now must name files that exist. An experiment that was stored earlier is read without them: its results are
//! there long after its code has gone.

use std::path::Path;

/// The folder of relative paths, and whether the files that they name must exist.
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

    /// Returns the base of a stored experiment, whose paths are absolute and whose files may have gone.
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
