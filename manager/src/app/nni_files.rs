//! The files that `nnictl` reads in addition to the REST API, updated while an experiment runs: the experiment's
//! entry in `~/nni-experiments/.experiment`, and `db/nni.sqlite` in its folder.
//!
//! Source: nni 3.0, `nni/tools/nnictl/config_utils.py` and `common_utils.py`,
//! `ts/nni_manager/extensions/experiments_manager`.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize as _;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};
use trial_protocol::ExperimentId;

use crate::store::{ExperimentRow, Store, write_nni_profile};
use crate::util::clock::{Clock, SystemClock};
use crate::util::errors::error_chain;
use crate::util::files::write_file;
use crate::util::layout::ExperimentDir;

/// The minimum interval between checks of an experiment that changes continuously. Scripts call `nnictl config show`
/// right after `nnictl update`, so the interval is short. The files are written only if their content changes.
const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// The age of a stale lock file, which a program that died has left. Source: nni 3.0, `get_file_lock(…, stale=2)`.
const STALE_LOCK_AGE: Duration = Duration::from_secs(2);
/// The time to wait for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between checks of the lock.
const LOCK_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The files of an experiment for `nnictl`.
#[derive(Debug, Clone)]
pub struct NniFiles {
    /// The list of all experiments.
    list: PathBuf,
    data_dir: PathBuf,
    dir: ExperimentDir,
    id: ExperimentId,
    posted: Option<Value>,
}

impl NniFiles {
    /// Returns the files of an experiment below `data_dir`. `home` is the user's home directory. `posted` is the
    /// configuration that NNI's client sent; `None` if the experiment is resumed.
    pub fn new(home: &Path, data_dir: &Path, id: &ExperimentId, posted: Option<Value>) -> Self {
        Self {
            list: home.join("nni-experiments").join(".experiment"),
            data_dir: data_dir.to_owned(),
            dir: ExperimentDir::new(data_dir, id),
            id: id.clone(),
            posted,
        }
    }

    /// Writes both files whenever the experiment has changed. Never returns while the store is open.
    pub async fn follow(&self, store: &Store) {
        let mut commits = store.database().watch_commits();
        let mut written = None;
        loop {
            if let Ok(Some(row)) = store.experiment().row().await {
                let shown = (row.state.clone(), row.ended_at_ms, row.canonical.to_string());
                if written.as_ref() != Some(&shown) {
                    self.write(&row).await;
                    written = Some(shown);
                }
            }
            if commits.changed().await.is_err() {
                return;
            }
            sleep(WRITE_INTERVAL).await;
        }
    }

    /// Writes the last state: no manager runs the experiment any longer.
    pub async fn close(&self) {
        let now = SystemClock.now_ms();
        self.set_fields(&[("status", "STOPPED".into()), ("endTime", now.into())]).await;
    }

    /// Writes the status of an experiment without a manager, as NNI spells it.
    pub async fn set_status(&self, status: &str) {
        self.set_fields(&[("status", status.into())]).await;
    }

    async fn write(&self, row: &ExperimentRow) {
        let database = self.dir.path().join("db");
        let made =
            fs::create_dir_all(&database).map_err(|error| error_chain(&error)).and_then(|()| {
                let path = database.join("nni.sqlite");
                let posted = self.posted.as_ref();
                write_nni_profile(&path, &self.data_dir, row, posted)
                    .map_err(|error| error_chain(&error))
            });
        if let Err(problem) = made {
            tracing::warn!("nnictl will read an outdated configuration: {problem}");
        }
        let end = row.ended_at_ms.map_or_else(|| "N/A".into(), Value::from);
        self.set_fields(&[("status", row.state.as_str().into()), ("endTime", end)]).await;
    }

    /// Sets fields of the experiment's entry. Without an entry, nothing changes.
    async fn set_fields(&self, members: &[(&str, Value)]) {
        if !self.list.exists() {
            return;
        }
        let lock = match Lock::acquire(&self.list).await {
            Ok(lock) => lock,
            Err(error) => {
                tracing::warn!("{} cannot be locked: {error}", self.list.display());
                return;
            }
        };
        let changed = fs::read_to_string(&self.list).and_then(|text| {
            match update_entry(&text, self.id.as_str(), members) {
                Some(text) => write_file(&self.list, 0o644, &text),
                None => Ok(()),
            }
        });
        drop(lock);
        if let Err(error) = changed {
            tracing::warn!("{} cannot be changed: {error}", self.list.display());
        }
    }
}

/// PURE: returns the list with changed fields in one entry, formatted as NNI writes it. `None` if the entry does not
/// exist.
fn update_entry(text: &str, id: &str, members: &[(&str, Value)]) -> Option<String> {
    let mut list: Map<String, Value> = serde_json::from_str(text).ok()?;
    let entry = list.get_mut(id)?.as_object_mut()?;
    for (name, value) in members {
        entry.insert((*name).to_owned(), value.clone());
    }
    let mut written = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut written, format);
    list.serialize(&mut serializer).ok()?;
    String::from_utf8(written).ok()
}

/// NNI's lock of a file: a file beside it whose name ends with the holder's process id.
struct Lock(PathBuf);

impl Lock {
    async fn acquire(file: &Path) -> io::Result<Self> {
        let mut own = file.as_os_str().to_owned();
        own.push(format!(".lock.{}", std::process::id()));
        let own = PathBuf::from(own);
        let until = Instant::now() + LOCK_TIMEOUT;
        while is_held(file)? {
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sleep(LOCK_CHECK_INTERVAL).await;
        }
        // A lock file of an earlier process with the same id is stale.
        OpenOptions::new().write(true).create(true).truncate(true).open(&own)?;
        Ok(Self(own))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A lock file that cannot be removed soon becomes stale.
        drop(fs::remove_file(&self.0));
    }
}

/// Returns whether a program holds a lock of the file that is not stale.
fn is_held(file: &Path) -> io::Result<bool> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".lock.";
    let own = format!("{name}{}", std::process::id());
    for entry in fs::read_dir(file.parent().unwrap_or(Path::new(".")))? {
        let entry = entry?;
        let found = entry.file_name().to_string_lossy().into_owned();
        if !found.starts_with(&name) || found == own {
            continue;
        }
        // A lock file that was removed in the meantime is ignored.
        let age = entry.metadata().and_then(|lock| lock.modified()).map(|at| at.elapsed());
        if age.is_ok_and(|age| age.is_ok_and(|age| age < STALE_LOCK_AGE)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EXPERIMENT_LIST: &str =
        r#"{"a1": {"id": "a1", "status": "INITIALIZED", "port": 8080}, "b2": {"id": "b2"}}"#;

    #[test]
    fn only_the_entry_of_the_experiment_changes() {
        let text = update_entry(
            EXPERIMENT_LIST,
            "a1",
            &[("status", json!("DONE")), ("endTime", json!(5))],
        )
        .unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            list,
            json!({"a1": {"id": "a1", "status": "DONE", "port": 8080, "endTime": 5}, "b2": {"id": "b2"}})
        );
        assert!(text.starts_with("{\n    \"a1\": {\n        \"id\": \"a1\","), "{text}");
        for (text, id) in
            [(EXPERIMENT_LIST, "c3"), ("", "a1"), ("[]", "a1"), (r#"{"a1": 1}"#, "a1")]
        {
            assert_eq!(update_entry(text, id, &[("status", json!("DONE"))]), None, "{text}");
        }
    }

    #[tokio::test]
    async fn the_list_is_changed_as_soon_as_no_other_program_holds_its_lock() {
        let home = tempfile::tempdir().unwrap();
        let id = ExperimentId::new("a1").unwrap();
        let files = NniFiles::new(home.path(), home.path(), &id, None);
        files.set_status("ERROR").await;
        assert!(!files.list.exists(), "no list is created");
        fs::create_dir_all(files.list.parent().unwrap()).unwrap();
        fs::write(&files.list, EXPERIMENT_LIST).unwrap();
        let mut other = files.list.clone().into_os_string();
        other.push(".lock.1");
        fs::write(&other, "").unwrap();
        let changing = tokio::spawn(async move {
            files.set_status("ERROR").await;
            fs::read_to_string(&files.list).unwrap()
        });
        tokio::task::yield_now().await;
        assert!(!changing.is_finished());
        fs::remove_file(&other).unwrap();
        assert!(changing.await.unwrap().contains("ERROR"));
        assert_eq!(fs::read_dir(home.path().join("nni-experiments")).unwrap().count(), 1);
    }
}
