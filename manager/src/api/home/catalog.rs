//! The experiments of a data directory with their summaries. An experiment is read again only if its files have
//! changed. The summaries are stored for the next start of the home.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;
use trial_protocol::ExperimentId;

use super::Home;
use crate::config;
use crate::store::Store;
use crate::util::errors::error_chain;
use crate::util::files::{create_private_folder, write_file};
use crate::util::layout::{ExperimentDir, HomeDir};
use crate::view::{self, ExperimentSummary, TrialCache};

/// The maximum number of experiments that are read at the same time.
const MAX_CONCURRENT_READS: usize = 8;
/// The minimum time between two writes of the summaries.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum length of a note, in bytes.
pub(super) const MAX_NOTE_BYTES: usize = 12 << 10;

/// The size and time of a file. A change of either means that the file was written.
type FileStamp = (u64, i64, i64);

/// The state of an experiment's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ExperimentStamp {
    database: FileStamp,
    /// The write-ahead log. `None` if it is missing or empty.
    log: Option<FileStamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct CachedSummary {
    stamp: ExperimentStamp,
    summary: ExperimentSummary,
}

/// A user's notes about an experiment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Annotation {
    /// `true` if the normal list omits the experiment.
    #[serde(default)]
    pub(super) archived: bool,
    /// The text, in Markdown.
    #[serde(default)]
    pub(super) notes: String,
    /// The tags that replace the recorded ones. `None` if the recorded tags count.
    #[serde(default)]
    pub(super) tags: Option<Vec<String>>,
}

/// An experiment in the list.
#[derive(Debug, Clone)]
pub(super) struct CatalogEntry {
    pub(super) summary: ExperimentSummary,
    /// `true` if the experiment has neither ended nor been interrupted.
    pub(super) is_running: bool,
    pub(super) annotation: Annotation,
}

impl CatalogEntry {
    /// Returns the tags with which users find the experiment.
    pub(super) fn tags(&self) -> &[String] {
        self.annotation.tags.as_deref().unwrap_or(&self.summary.tags)
    }
}

/// The experiments and the notes about them.
pub(super) struct Catalog {
    data_dir: PathBuf,
    dir: HomeDir,
    summaries: Mutex<(BTreeMap<String, CachedSummary>, Option<Instant>)>,
    annotations: RwLock<BTreeMap<String, Annotation>>,
}

impl Catalog {
    /// Creates the catalog of a data directory from the stored summaries and notes. Unreadable summaries are made
    /// again.
    pub(super) fn new(data_dir: &Path, dir: &HomeDir) -> Self {
        let kept = std::fs::read(dir.summaries()).ok();
        let known = kept.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let files = std::fs::read_dir(dir.notes()).into_iter().flatten().flatten();
        let annotations = files.filter_map(|file| {
            let path = file.path();
            let is_note = path.extension().is_some_and(|extension| extension == "json");
            let id = path.file_stem()?.to_str().filter(|_| is_note)?.to_owned();
            Some((id, serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?))
        });
        let annotations = RwLock::new(annotations.collect());
        let (data_dir, dir) = (data_dir.to_owned(), dir.clone());
        Self { data_dir, dir, summaries: Mutex::new((known, None)), annotations }
    }

    /// Returns the notes about an experiment.
    pub(super) async fn annotation(&self, id: &ExperimentId) -> Annotation {
        self.annotations.read().await.get(id.as_str()).cloned().unwrap_or_default()
    }

    /// Stores notes about an experiment. The experiment's own folder does not contain them.
    pub(super) async fn annotate(
        &self,
        id: &ExperimentId,
        annotation: Annotation,
    ) -> std::io::Result<()> {
        let mut annotations = self.annotations.write().await;
        let folder = self.dir.notes();
        let text = serde_json::to_string_pretty(&annotation)?;
        create_private_folder(&folder)?;
        write_file(&folder.join(format!("{id}.json")), 0o600, &text)?;
        annotations.insert(id.to_string(), annotation);
        Ok(())
    }

    /// Returns all experiments in their present state.
    pub(super) async fn refresh(&self, home: &Home) -> Vec<CatalogEntry> {
        self.refresh_from(Some(home), home.0.clock.now_ms()).await
    }

    /// Returns all experiments in their present state. `home` keeps the stores of running experiments open for the next
    /// reading.
    pub(super) async fn refresh_from(&self, home: Option<&Home>, now_ms: i64) -> Vec<CatalogEntry> {
        let mut guard = self.summaries.lock().await;
        let (known, saved) = &mut *guard;
        let data_dir = self.data_dir.clone();
        let found = tokio::task::spawn_blocking(move || scan(&data_dir)).await.unwrap_or_default();
        let before = known.len();
        known.retain(|id, _| found.contains_key(id));
        let mut changed = known.len() != before;
        let stale = found
            .iter()
            .filter(|(id, stamp)| known.get(*id).is_none_or(|known| known.stamp != **stamp));
        let stale: Vec<_> = stale.map(|(id, stamp)| (id.clone(), *stamp)).collect();
        let reads = futures_util::stream::iter(stale).map(|(id, stamp)| async move {
            let summary = self.read(home, &id, now_ms).await;
            (id, CachedSummary { stamp, summary })
        });
        let mut reads = Box::pin(reads.buffer_unordered(MAX_CONCURRENT_READS));
        while let Some((id, read)) = reads.next().await {
            changed = true;
            known.insert(id, read);
        }
        if changed && saved.is_none_or(|at| at.elapsed() >= SAVE_INTERVAL) {
            *saved = Some(Instant::now());
            // The file is only a cache. Without it, the next home reads every experiment again.
            let text = serde_json::to_string(known).unwrap_or_default();
            if let Err(error) = write_file(&self.dir.summaries(), 0o600, &text) {
                tracing::debug!("cannot store the summaries: {error}");
            }
        }
        let annotations = self.annotations.read().await;
        let entry = |(id, known): (&String, &CachedSummary)| {
            let summary = known.summary.clone();
            let annotation = annotations.get(id).cloned().unwrap_or_default();
            CatalogEntry { summary, is_running: false, annotation }
        };
        let entries: Vec<_> = known.iter().map(entry).collect();
        drop((annotations, guard));
        let data_dir = self.data_dir.clone();
        let marked = tokio::task::spawn_blocking(move || mark_running(&data_dir, entries)).await;
        marked.unwrap_or_default()
    }

    /// Reads an experiment. If a manager runs it, a home keeps its store open, because it will soon be read again.
    async fn read(&self, home: Option<&Home>, id: &str, now_ms: i64) -> ExperimentSummary {
        let unreadable = |problem: String| ExperimentSummary::unreadable(id, problem);
        let Ok(id) = ExperimentId::new(id) else {
            return unreadable("its folder's name is not an id".to_owned());
        };
        let read = async {
            if let Some(home) = home
                && let Some(open) = home.find_open(&id).await
            {
                return summary(&open.store, &open.trial_cache, now_ms).await;
            }
            let database = ExperimentDir::new(&self.data_dir, &id).database();
            let store = Store::open_to_read(&database).map_err(|error| error_chain(&error))?;
            let row = store.experiment().row().await.map_err(|error| error_chain(&error))?;
            let row = row.ok_or("the experiment is not stored yet")?;
            let spec =
                config::from_canonical(&row.canonical).map_err(|error| error_chain(&error))?;
            let lives = row.ended_at_ms.is_none() && store.database().has_writer() == Some(true);
            if lives
                && let Some(home) = home
                && let Ok(open) = home.experiment(&id).await
            {
                return summary(&open.store, &open.trial_cache, now_ms).await;
            }
            let trial_cache = TrialCache::of_experiment(store.queries().clone(), &spec);
            summary(&store, &trial_cache, now_ms).await
        };
        read.await.unwrap_or_else(unreadable)
    }
}

async fn summary(
    store: &Store,
    trial_cache: &TrialCache,
    now_ms: i64,
) -> Result<ExperimentSummary, String> {
    let row = store.experiment().row().await.map_err(|error| error_chain(&error))?;
    let row = row.ok_or("the experiment is not stored yet")?;
    let spec = config::from_canonical(&row.canonical).map_err(|error| error_chain(&error))?;
    let snapshot = trial_cache.refresh().await.map_err(|error| error_chain(&error))?;
    let shown = view::experiment_view(&row, &spec, &snapshot, &[], row.elapsed_ms, now_ms);
    Ok(ExperimentSummary::new(&row, &shown))
}

/// Returns the experiments of a folder, each with the state of its files.
fn scan(data_dir: &Path) -> BTreeMap<String, ExperimentStamp> {
    let folders = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
    // A folder of NNI's client contains a link `_latest`.
    let folders = folders.filter(|folder| folder.file_type().is_ok_and(|kind| kind.is_dir()));
    let found = folders.filter_map(|folder| {
        let id = ExperimentId::new(folder.file_name().to_str()?).ok()?;
        let database = ExperimentDir::new(data_dir, &id).database();
        let stamp = |file: Metadata| (file.size(), file.mtime(), file.mtime_nsec());
        // Opening a named pipe would block.
        let own = stamp(std::fs::metadata(&database).ok().filter(Metadata::is_file)?);
        let log = std::fs::metadata(database.with_extension("db-wal")).ok().map(stamp);
        Some((
            id.to_string(),
            ExperimentStamp { database: own, log: log.filter(|(bytes, ..)| *bytes > 0) },
        ))
    });
    found.collect()
}

/// Determines which of the readable experiments that have not ended run, and which are interrupted.
fn mark_running(data_dir: &Path, mut entries: Vec<CatalogEntry>) -> Vec<CatalogEntry> {
    for entry in &mut entries {
        let summary = &mut entry.summary;
        if summary.ended_at_ms.is_some() || summary.state == "UNREADABLE" {
            continue;
        }
        let Ok(id) = ExperimentId::new(summary.id.clone()) else { continue };
        let database = ExperimentDir::new(data_dir, &id).database();
        let open = Store::is_open_to_write(&database);
        if view::is_interrupted(summary.ended_at_ms, open) {
            view::INTERRUPTED_STATE.clone_into(&mut summary.state);
            summary.trouble = Some(view::missing_manager_notice(&summary.id));
        } else {
            entry.is_running = true;
        }
    }
    entries
}
