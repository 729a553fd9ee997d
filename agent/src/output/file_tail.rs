//! Follows growing files by offset, and feeds the collectors that read files.
//!
//! This is the I/O for the pure [`collect`](crate::collect). It opens, seeks, reads and remembers its position, but
//! decides nothing about metrics. The caller chooses the time: when notify reports a change, or every second or so
//! without such reports. An absent file may appear *later*. A file that was replaced, truncated or rewritten (as
//! `open(path, "w")` does, once an epoch) is read from its beginning, like another file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::OFlag;
use trial_protocol::Stream;

use crate::collect::{
    CollectSpec, EventFileReader, Finding, MetricFileReader, Source, StreamScanner,
};
use crate::util::numbers::to_u64;

mod tags;

use tags::TagFolders;

/// The maximum number of bytes of one file per read, so that a large old file does not delay the others.
const PORTION_BYTES: u64 = 256 * 1024;

/// The number of bytes before the current position that are compared at the next read. If they have changed, the file
/// was rewritten.
const COMPARED_BYTES: usize = 256;

/// The limits of event files: the depth below a directory, the number of files that are read, and the number of an
/// earlier run's files that are still followed.
const MAX_EVENT_DIR_DEPTH: usize = 4;
const MAX_EVENT_FILES: usize = 1024;
const MAX_EARLIER_EVENT_FILES: usize = 64;

/// A growing file.
#[derive(Debug)]
pub struct FileTail {
    path: PathBuf,
    offset: u64,
    /// Device and inode of the file that `offset` belongs to.
    identity: Option<(u64, u64)>,
    /// The bytes before `offset`, at most [`COMPARED_BYTES`].
    last_bytes: Vec<u8>,
}

/// The result of a read, in addition to the bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TailProgress {
    /// `true` if the bytes belong to another file than the previous ones, and start at its beginning.
    pub replaced: bool,
    /// `true` if more bytes are available now.
    pub more: bool,
}

impl FileTail {
    /// Returns a tail that starts at the beginning of the file at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), offset: 0, identity: None, last_bytes: Vec::new() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves to the current end of the file. Reads only the bytes that are needed to recognise a rewrite.
    pub fn skip(&mut self) {
        // A file that cannot be opened now is reported when it is read.
        let Ok((file, metadata)) = open(&self.path) else { return };
        let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX).min(COMPARED_BYTES);
        let mut last_bytes = vec![0; length];
        let before = metadata.len() - u64::try_from(length).unwrap_or(0);
        if file.read_exact_at(&mut last_bytes, before).is_ok() {
            self.identity = Some(identity(&metadata));
            (self.offset, self.last_bytes) = (metadata.len(), last_bytes);
        }
    }

    /// Moves to `offset`, if the file exists.
    fn begin_at(&mut self, offset: u64) {
        if let Ok((_, metadata)) = open(&self.path) {
            (self.identity, self.offset) = (Some(identity(&metadata)), offset);
        }
    }

    /// Returns whether the last bytes read are still in the file.
    fn still_has_last_bytes(&self, file: &File) -> bool {
        let mut bytes = [0; COMPARED_BYTES];
        let bytes = &mut bytes[..self.last_bytes.len()];
        let before = self.offset - u64::try_from(self.last_bytes.len()).unwrap_or(0);
        file.read_exact_at(bytes, before).is_ok() && bytes == self.last_bytes
    }

    fn store_last_bytes(&mut self, read: &[u8]) {
        let kept = COMPARED_BYTES.saturating_sub(read.len()).min(self.last_bytes.len());
        self.last_bytes.drain(..self.last_bytes.len() - kept);
        self.last_bytes.extend_from_slice(&read[read.len().saturating_sub(COMPARED_BYTES)..]);
    }

    /// Replaces the content of `buffer` with the bytes written since the last read, or a portion of them.
    pub fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<TailProgress> {
        buffer.clear();
        let (mut file, metadata) = match open(&self.path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(TailProgress::default());
            }
            Err(error) => return Err(error),
        };
        let identity = Some(identity(&metadata));
        let is_same = self.identity == identity
            && self.offset <= metadata.len()
            && self.still_has_last_bytes(&file);
        let replaced = self.identity.is_some() && !is_same;
        if !is_same {
            self.identity = identity;
            self.offset = 0;
            self.last_bytes.clear();
        }
        if self.offset == metadata.len() {
            return Ok(TailProgress { replaced, more: false });
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let read = file.take(PORTION_BYTES).read_to_end(buffer)?;
        self.store_last_bytes(buffer);
        self.offset = self.offset.saturating_add(to_u64(read));
        Ok(TailProgress { replaced, more: self.offset < metadata.len() })
    }
}

fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // A pipe without a writer must not block the agent, which this flag prevents.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok((file, metadata))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// A reader of a file's bytes.
trait FileReader {
    fn feed(&mut self, bytes: &[u8], found: &mut Vec<Finding>);
    fn finish(&mut self, found: &mut Vec<Finding>);
}

macro_rules! impl_file_reader {
    ($($type:ty),*) => {$(
        impl FileReader for $type {
            fn feed(&mut self, bytes: &[u8], found: &mut Vec<Finding>) {
                Self::feed(self, bytes, found);
            }

            fn finish(&mut self, found: &mut Vec<Finding>) {
                Self::finish(self, found);
            }
        }
    )*};
}

impl_file_reader!(MetricFileReader, EventFileReader, StreamScanner);

/// A file with the reader of its kind.
#[derive(Debug)]
struct FollowedFile<R> {
    tail: FileTail,
    reader: R,
    new_reader: fn(&CollectSpec) -> R,
    /// `true` if the file could not be read. The error is reported once until a read succeeds.
    failing: bool,
}

impl<R: FileReader> FollowedFile<R> {
    fn new(path: PathBuf, spec: &CollectSpec, new_reader: fn(&CollectSpec) -> R) -> Self {
        Self { tail: FileTail::new(path), reader: new_reader(spec), new_reader, failing: false }
    }

    fn poll(&mut self, spec: &CollectSpec, buffer: &mut Vec<u8>, found: &mut Vec<Finding>) {
        loop {
            let progress = match self.tail.read(buffer) {
                Ok(progress) => progress,
                Err(error) => {
                    if !self.failing {
                        let path = self.tail.path().display();
                        tracing::warn!(%path, %error, "cannot read a metric file; will try again");
                    }
                    self.failing = true;
                    return;
                }
            };
            self.failing = false;
            if progress.replaced {
                self.reader.finish(found);
                self.reader = (self.new_reader)(spec);
            }
            self.reader.feed(buffer, found);
            if !progress.more {
                return;
            }
        }
    }
}

/// The files that contain metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileSpec {
    /// NNI's metric file, `$NNI_SYS_DIR/.nni/metrics`.
    pub metric_file: Option<PathBuf>,
    /// Files of lines as on stdout: JSON objects, `name=value`, and the user's patterns.
    pub line_files: Vec<PathBuf>,
    /// Directories with `TensorBoard` event files, at most four levels deep.
    pub event_dirs: Vec<PathBuf>,
}

/// The followed files of one trial.
#[derive(Debug)]
pub struct FileCollectors {
    spec: CollectSpec,
    metric_file: Option<FollowedFile<MetricFileReader>>,
    line_files: Vec<FollowedFile<StreamScanner>>,
    event_dirs: Vec<PathBuf>,
    event_files: BTreeMap<PathBuf, FollowedFile<EventFileReader>>,
    /// Event files that are skipped.
    skipped_event_files: BTreeSet<PathBuf>,
    tags: TagFolders,
    many_files_reported: bool,
    buffer: Vec<u8>,
}

impl FileCollectors {
    /// Returns collectors for the files in `files`, none of which need exist yet.
    pub fn new(spec: &CollectSpec, files: FileSpec) -> Self {
        let line_files = files.line_files.into_iter();
        let fresh_lines = |spec: &CollectSpec| StreamScanner::new(spec, Stream::Stdout);
        Self {
            metric_file: files
                .metric_file
                .map(|path| FollowedFile::new(path, spec, |_| MetricFileReader::new())),
            line_files: line_files.map(|path| FollowedFile::new(path, spec, fresh_lines)).collect(),
            event_dirs: files.event_dirs,
            event_files: BTreeMap::new(),
            skipped_event_files: BTreeSet::new(),
            tags: TagFolders::default(),
            many_files_reported: false,
            spec: spec.clone(),
            buffer: Vec::new(),
        }
    }

    /// Skips the existing content, which belongs to an earlier run.
    pub fn skip(&mut self) {
        if let Some(file) = &mut self.metric_file {
            file.tail.skip();
        }
        self.line_files.iter_mut().for_each(|file| file.tail.skip());
        let mut earlier = self.list_event_files();
        // Usually the last files by name are the latest. One of them may still grow.
        let kept = earlier.split_off(earlier.len().saturating_sub(MAX_EARLIER_EVENT_FILES));
        self.skipped_event_files.extend(earlier);
        for path in kept {
            self.follow_event_file(path).tail.skip();
        }
    }

    /// Returns NNI's file and the files of lines, each with the offset up to which it was skipped or read.
    pub fn offsets(&self) -> Vec<(PathBuf, u64)> {
        let tails = self.metric_file.iter().map(|file| &file.tail);
        let tails = tails.chain(self.line_files.iter().map(|file| &file.tail));
        tails.map(|tail| (tail.path.clone(), tail.offset)).collect()
    }

    /// Moves to these offsets, and skips event files that were not written after `since`.
    pub fn begin_at(&mut self, offsets: &[(PathBuf, u64)], since: SystemTime) {
        let tails = self.metric_file.iter_mut().map(|file| &mut file.tail);
        for tail in tails.chain(self.line_files.iter_mut().map(|file| &mut file.tail)) {
            if let Some((_, offset)) = offsets.iter().find(|(path, _)| *path == tail.path) {
                tail.begin_at(*offset);
            }
        }
        let is_earlier = |path: &PathBuf| {
            fs::metadata(path).and_then(|metadata| metadata.modified()).is_ok_and(|at| at < since)
        };
        self.skipped_event_files.extend(self.list_event_files().into_iter().filter(is_earlier));
    }

    /// Reads the bytes written since the last poll and appends their findings.
    pub fn poll(&mut self, found: &mut Vec<Finding>) {
        self.find_event_files(found);
        let Self { spec, buffer, .. } = self;
        if let Some(file) = &mut self.metric_file {
            file.poll(spec, buffer, found);
        }
        for file in &mut self.line_files {
            file.poll(spec, buffer, found);
        }
        for (path, file) in &mut self.event_files {
            let before = found.len();
            file.poll(spec, buffer, found);
            let folder = path.parent().unwrap_or(path);
            let root = self.event_dirs.iter().find(|dir| folder.starts_with(dir));
            for finding in &mut found[before..] {
                if let Finding::Metric(metric) = finding {
                    let tag = std::mem::take(&mut metric.name);
                    metric.name =
                        self.tags.metric_name(tag, folder, root.map_or(folder, PathBuf::as_path));
                }
            }
        }
        // Freed, because the buffer is large in relation to the agent's other memory.
        self.buffer = Vec::new();
    }

    /// Reads the rest after the trial's end, including a last line without a newline.
    pub fn finish(&mut self, found: &mut Vec<Finding>) {
        self.poll(found);
        if let Some(file) = &mut self.metric_file {
            file.reader.finish(found);
        }
        for file in &mut self.line_files {
            file.reader.finish(found);
        }
        for file in self.event_files.values_mut() {
            file.reader.finish(found);
        }
    }

    fn find_event_files(&mut self, found: &mut Vec<Finding>) {
        for path in self.list_event_files() {
            if self.event_files.contains_key(&path) || self.skipped_event_files.contains(&path) {
                continue;
            }
            if self.event_files.len() < MAX_EVENT_FILES {
                self.follow_event_file(path);
            } else if !std::mem::replace(&mut self.many_files_reported, true) {
                let why = format!("of more than {MAX_EVENT_FILES} event files, some are not read");
                let path = path.as_os_str().as_encoded_bytes();
                found.push(Finding::unreadable(Source::Events, path, why));
            }
        }
    }

    fn follow_event_file(&mut self, path: PathBuf) -> &mut FollowedFile<EventFileReader> {
        let followed = FollowedFile::new(path.clone(), &self.spec, |_| EventFileReader::new());
        self.event_files.entry(path).or_insert(followed)
    }

    /// Returns all event files, sorted by name.
    fn list_event_files(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for dir in &self.event_dirs {
            append_event_files(dir, MAX_EVENT_DIR_DEPTH, &mut paths);
        }
        paths.sort();
        paths
    }
}

/// Appends the event files in `dir` and in directories below it, `depth` levels in all. Does not follow links, so there is no
/// cycle.
fn append_event_files(dir: &Path, depth: usize, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 1 {
            append_event_files(&entry.path(), depth - 1, paths);
        } else if kind.is_file() && entry.file_name().to_string_lossy().contains("tfevents") {
            paths.push(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
