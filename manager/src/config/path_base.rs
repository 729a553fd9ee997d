//! The base folder of an experiment's relative paths, and the requirement that files exist. A new experiment must name
//! existing files. A stored experiment is read without that requirement, because its results often outlive its code.

use std::path::Path;

/// The base folder of relative paths, and the requirement that files exist.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathBase<'a> {
    pub(super) folder: &'a Path,
    requires_files: bool,
    /// The experiment file, if other users can read it.
    exposed_file: Option<&'a Path>,
}

impl<'a> PathBase<'a> {
    /// Returns the base of an experiment whose files must exist.
    pub(super) fn requiring_files(folder: &'a Path) -> Self {
        Self { folder, requires_files: true, exposed_file: None }
    }

    /// Returns the base of a stored experiment, whose paths are absolute and whose files need not exist any more.
    pub(super) fn for_stored_experiment() -> Self {
        Self { folder: Path::new("/"), requires_files: false, exposed_file: None }
    }

    /// Returns the base of an experiment in a file that other users can read.
    pub(super) fn with_exposed_file(self, file: &'a Path) -> Self {
        Self { exposed_file: Some(file), ..self }
    }

    /// Returns the experiment file, if other users can read it.
    pub(super) fn exposed_file(self) -> Option<&'a Path> {
        self.exposed_file
    }

    /// Returns whether a directory that must exist is missing.
    pub(super) fn is_folder_missing(self, path: &Path) -> bool {
        self.requires_files && !path.is_dir()
    }

    /// Returns whether a file that must exist is missing.
    pub(super) fn is_file_missing(self, path: &Path) -> bool {
        self.requires_files && !path.is_file()
    }
}
