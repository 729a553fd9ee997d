//! The record of an attempt, in a file. The server writes the file before it acts on the attempt.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Job;

/// The content of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    pub(crate) key: Value,
    /// The job, written before its start. Without a handle, the job may be running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job: Option<Job>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handle: Option<String>,
    pub(crate) cancelled: bool,
    /// The end, as reported to the manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gone: Option<Value>,
}

/// The record of an attempt.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    pub(crate) entry: Entry,
    /// The last reported reason to wait.
    pub(crate) reported_wait: Option<String>,
    /// The time at which a job that does not stop is stopped by force.
    pub(crate) force_at: Option<Instant>,
}

impl Record {
    /// Reads the record of an attempt. A missing file is an empty record.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let entry = match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Entry::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { path: path.to_owned(), entry, reported_wait: None, force_at: None })
    }

    /// Changes the record. Writes it to disk before changing it in memory.
    pub(crate) fn write(&mut self, change: impl FnOnce(&mut Entry)) -> io::Result<()> {
        let mut entry = self.entry.clone();
        change(&mut entry);
        let new = self.path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(&entry)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.entry = entry;
        Ok(())
    }

    /// Deletes the record.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.entry = Entry::default();
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Returns the handle and the job if the job was started and has not ended.
    pub(crate) fn running_job(&self) -> Option<(&str, &Job)> {
        let Entry { job, handle, gone, .. } = &self.entry;
        gone.is_none().then_some(handle.as_deref().zip(job.as_ref())).flatten()
    }
}
