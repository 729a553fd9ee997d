//! The settings for finding a run's metrics. They are kept in its folder, so that the metrics can be found again in its
//! files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use trial_protocol::Direction;

use crate::collect::{CollectSpec, Finding};
use crate::output::file_tail::{FileCollectors, FileSpec};
use crate::output::run_dir::COLLECTORS_FILE;
use crate::util::secrets::Secrets;

/// The metric file of NNI's SDK, below a run's folder.
pub const SDK_METRIC_FILE: &str = ".nni/metrics";

/// The file of the Python module `trialkeeper`, which writes its reports there if the trial's output is redirected.
/// Below a run's folder, in a folder of its own, because each write to a watched folder wakes the watcher.
pub const REPORTS_FILE: &str = ".trialkeeper/reports";

/// The time by which a file may seem older than its writing, because a file system reads its clock less often than the
/// agent.
const FILE_TIME_TOLERANCE: Duration = Duration::from_millis(50);

/// The collectors of a run, their files, and the initial offsets in the files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CollectorsFile {
    /// The collectors and their settings.
    pub collect: CollectSpec,
    /// NNI's file and the files of lines, each with its length before the run.
    pub files: Vec<(PathBuf, u64)>,
    /// Directories of event files.
    pub event_dirs: Vec<PathBuf>,
    /// The start of the run, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

impl CollectorsFile {
    /// Returns the content of the file, or `None` if all values are the defaults. `dir` is the run's folder.
    pub fn to_json(&self, dir: &Path, secrets: &Secrets) -> Option<Vec<u8>> {
        let own = [SDK_METRIC_FILE, REPORTS_FILE].map(|name| (dir.join(name), 0));
        let files: Vec<_> = self.files.iter().filter(|file| !own.contains(file)).collect();
        if self.collect == CollectSpec::default() && files.is_empty() && self.event_dirs.is_empty()
        {
            return None;
        }
        let text = |text: &str| secrets.mask_text(text.to_owned());
        let path = |path: &Path| text(&absolute(path).to_string_lossy());
        let CollectSpec { objective, direction, text: name_value, json_lines, patterns, .. } =
            &self.collect;
        let value = json!({
            "objective": objective.as_deref().map(text),
            "direction": direction.map(Direction::as_str),
            "text": name_value,
            "json": json_lines,
            "patterns": patterns.iter().map(|pattern| text(pattern.as_str())).collect::<Vec<_>>(),
            "files": files.iter().map(|(file, from)| json!([path(file), from])).collect::<Vec<_>>(),
            "tensorboard": self.event_dirs.iter().map(|dir| path(dir)).collect::<Vec<_>>(),
            "since_ms": self.since_ms,
        });
        Some(value.to_string().into_bytes())
    }

    /// Reads the file in the run's folder `dir`. Without the file, returns the defaults.
    pub fn read_in(dir: &Path) -> Self {
        let bytes = fs::read(dir.join(COLLECTORS_FILE)).unwrap_or_default();
        let mut collectors =
            serde_json::from_slice(&bytes).map(|map| Self::parse(&map)).unwrap_or_default();
        // The folder may have been moved since the run.
        for name in [SDK_METRIC_FILE, REPORTS_FILE] {
            if !collectors.files.iter().any(|(file, _)| file.ends_with(name) && file.exists()) {
                collectors.files.push((dir.join(name), 0));
            }
        }
        collectors
    }

    fn parse(map: &Map<String, Value>) -> Self {
        let is_on = |name: &str| map.get(name).and_then(Value::as_bool) != Some(false);
        let list =
            |name: &str| map.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let patterns = list("patterns");
        let patterns = patterns.iter().filter_map(|pattern| pattern.as_str()?.parse().ok());
        let file = |file: Value| Some((file.get(0)?.as_str()?.into(), file.get(1)?.as_u64()?));
        let dirs = list("tensorboard").into_iter();
        Self {
            collect: CollectSpec {
                objective: map.get("objective").and_then(Value::as_str).map(str::to_owned),
                direction: map
                    .get("direction")
                    .and_then(Value::as_str)
                    .and_then(|it| it.parse().ok()),
                text: is_on("text"),
                json_lines: is_on("json"),
                patterns: patterns.collect(),
                variables: Vec::new(),
                parameters: Vec::new(),
            },
            files: list("files").into_iter().filter_map(file).collect(),
            event_dirs: dirs.filter_map(|dir| Some(dir.as_str()?.into())).collect(),
            since_ms: map.get("since_ms").and_then(Value::as_u64).unwrap_or_default(),
        }
    }

    /// Appends the findings that the run's files contain.
    pub fn read_files(&self, found: &mut Vec<Finding>) {
        let is_sdk = |file: &PathBuf| file.ends_with(SDK_METRIC_FILE);
        let (sdk, lines) = self.files.iter().map(|(file, _)| file.clone()).partition(is_sdk);
        let (sdk, line_files): (Vec<_>, _) = (sdk, lines);
        let event_dirs = self.event_dirs.clone();
        let files = FileSpec { metric_file: sdk.into_iter().next(), line_files, event_dirs };
        let mut collectors = FileCollectors::new(&self.collect, files);
        let since = UNIX_EPOCH + Duration::from_millis(self.since_ms);
        collectors.begin_at(&self.files, since.checked_sub(FILE_TIME_TOLERANCE).unwrap_or(since));
        collectors.finish(found);
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_collectors_file_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let none = Secrets::new([]);
        let own = [SDK_METRIC_FILE, REPORTS_FILE].map(|name| (dir.path().join(name), 0));
        let plain =
            CollectorsFile { files: own.to_vec(), since_ms: 7, ..CollectorsFile::default() };
        assert_eq!(plain.to_json(dir.path(), &none), None);
        assert_eq!(CollectorsFile::read_in(dir.path()).files, own);

        let file = CollectorsFile {
            collect: CollectSpec {
                objective: Some("auc".to_owned()),
                direction: Some(Direction::Minimize),
                text: false,
                json_lines: true,
                patterns: vec![r"auc: (?P<auc>\S+)".parse().unwrap()],
                variables: Vec::new(),
                parameters: Vec::new(),
            },
            files: vec![("/a/lines.txt".into(), 12)],
            event_dirs: vec!["/a/logs".into()],
            since_ms: 7,
        };
        let keep = |file: &CollectorsFile, secrets| {
            let json = file.to_json(dir.path(), secrets).unwrap();
            fs::write(dir.path().join(COLLECTORS_FILE), &json).unwrap();
            String::from_utf8(json).unwrap()
        };
        keep(&file, &none);
        let [sdk, reports] = own;
        let files = vec![("/a/lines.txt".into(), 12), sdk, reports];
        assert_eq!(CollectorsFile::read_in(dir.path()), CollectorsFile { files, ..file.clone() });

        let json = keep(&file, &Secrets::new([b"lines.txt".to_vec()]));
        assert!(json.contains("***") && !json.contains("lines.txt"), "{json}");

        for broken in ["", "[]", "{", r#"{"files": [1, ["x"]], "patterns": ["("], "text": 1}"#] {
            fs::write(dir.path().join(COLLECTORS_FILE), broken).unwrap();
            assert_eq!(
                CollectorsFile::read_in(dir.path()),
                CollectorsFile::read_in(&dir.path().join("absent")).with_files_in(dir.path())
            );
        }
    }

    impl CollectorsFile {
        /// Returns the collectors with the files in another folder.
        fn with_files_in(mut self, dir: &Path) -> Self {
            self.files = [SDK_METRIC_FILE, REPORTS_FILE].map(|name| (dir.join(name), 0)).to_vec();
            self
        }
    }
}
