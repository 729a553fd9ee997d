//! The export of results in formats of other programs: CSV, JSON, and the folders of TensorBoard and MLflow. This
//! module only writes the trials that the caller passes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::Value;

use crate::view;
use crate::view::curve::points_of;
use crate::view::export::{format_value, json_entry, member_text, trials_csv};

/// The formats of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportForm {
    /// One line for each trial.
    Csv,
    /// All trials with all their metrics.
    Json,
    /// Folder for `tensorboard --logdir`.
    Tensorboard,
    /// Folder for `mlflow ui --backend-store-uri`.
    Mlflow,
}

/// A trial, as in the API's list, and its metrics.
type Trial = (Value, Vec<Value>);

/// The reason why an export failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The format needs a folder.
    #[error("this format needs a folder; name a new folder with --to")]
    NeedsFolder,
    /// The folder already exists.
    #[error("{} already exists; name a new folder with --to", .0.display())]
    Exists(PathBuf),
    /// A file or folder cannot be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A writer of trials, one after the other, so that it holds the metrics of only one trial in memory. A file gets its
/// final name when it is complete.
pub(super) struct Writer {
    form: ExportForm,
    /// `None`: standard output.
    to: Option<PathBuf>,
    out: ExportTarget,
    /// The trials of a CSV file, whose columns depend on all of them.
    lines: Vec<Value>,
    has_begun: bool,
}

/// The destination of an export.
enum ExportTarget {
    Folder,
    File(BufWriter<fs::File>),
    Stdout(io::Stdout),
}

impl ExportTarget {
    fn write(&mut self, text: &str) -> io::Result<()> {
        match self {
            Self::Folder => {}
            Self::File(file) => file.write_all(text.as_bytes())?,
            // Ignored: the reader of standard output may have exited.
            Self::Stdout(stdout) => drop(stdout.write_all(text.as_bytes())),
        }
        Ok(())
    }
}

impl Writer {
    /// Creates a writer to `to`, or else to standard output.
    pub(super) fn new(form: ExportForm, to: Option<&Path>) -> Result<Self, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Write { path, source }
        };
        let is_text = matches!(form, ExportForm::Csv | ExportForm::Json);
        let out = match to {
            None if is_text => ExportTarget::Stdout(io::stdout()),
            None => return Err(Error::NeedsFolder),
            Some(to) if is_text => {
                let file = fs::File::create(partial_path(to)).map_err(failed(to))?;
                ExportTarget::File(BufWriter::new(file))
            }
            Some(to) if to.exists() => return Err(Error::Exists(to.to_owned())),
            Some(to) => {
                fs::create_dir_all(to).map_err(failed(to))?;
                if form == ExportForm::Mlflow {
                    write_mlflow_experiment(to).map_err(failed(to))?;
                }
                ExportTarget::Folder
            }
        };
        Ok(Self { form, to: to.map(Path::to_owned), out, lines: Vec::new(), has_begun: false })
    }

    /// Writes a trial.
    pub(super) fn add(&mut self, trial: &Trial) -> Result<(), Error> {
        let folder = self.to.as_deref().unwrap_or(Path::new("-"));
        let written = match self.form {
            ExportForm::Csv => {
                self.lines.push(trial.0.clone());
                Ok(())
            }
            ExportForm::Json => {
                let before = if self.has_begun { ",\n" } else { "[\n" };
                self.out
                    .write(before)
                    .and_then(|()| self.out.write(&json_entry(&trial.0, &trial.1)))
            }
            ExportForm::Tensorboard => write_tensorboard_trial(folder, trial),
            ExportForm::Mlflow => write_mlflow_trial(folder, trial),
        };
        self.has_begun = true;
        written.map_err(self.failed())
    }

    /// Completes the export.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        let end = match self.form {
            ExportForm::Csv => trials_csv(&self.lines),
            ExportForm::Json => if self.has_begun { "\n]\n" } else { "[]\n" }.to_owned(),
            ExportForm::Tensorboard | ExportForm::Mlflow => String::new(),
        };
        let written = self.out.write(&end);
        written
            .and_then(|()| {
                if let (ExportTarget::File(file), Some(to)) = (&mut self.out, &self.to) {
                    file.flush()?;
                    fs::rename(partial_path(to), to)?;
                }
                Ok(())
            })
            .map_err(self.failed())
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = self.to.clone().unwrap_or_else(|| PathBuf::from("-"));
        move |source| Error::Write { path, source }
    }
}

/// Returns the name of a file while it is incomplete. A device or a pipe keeps its name.
fn partial_path(to: &Path) -> PathBuf {
    if fs::metadata(to).is_ok_and(|about| !about.is_file()) {
        return to.to_owned();
    }
    let mut name = to.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

/// Returns the names of the curves that a metric belongs to, each with the metric's number for that curve.
fn curve_numbers(metric: &Value) -> Vec<(String, f64)> {
    points_of(member_text(metric, "name"), metric.get("value").unwrap_or(&Value::Null))
}

/// Writes a trial's folder with one event file (TensorFlow, `core/lib/io/record_writer.h`, `util/event.proto`).
fn write_tensorboard_trial(to: &Path, (trial, metrics): &Trial) -> io::Result<()> {
    let sequence = trial.get("sequence").and_then(Value::as_u64).unwrap_or(0);
    let folder = to.join(format!("{sequence:05}-{}", member_text(trial, "id")));
    fs::create_dir_all(&folder)?;
    let mut bytes = Vec::new();
    let begun = trial.get("created_at_ms").and_then(Value::as_i64).unwrap_or(0);
    let mut first = encode_event(begun, 0);
    append_delimited(&mut first, 3, b"brain.Event:2");
    append_record(&mut bytes, &first);
    for metric in metrics {
        let at_ms = metric.get("observed_at_ms").and_then(Value::as_i64).unwrap_or(begun);
        let step = metric.get("step").and_then(Value::as_u64).unwrap_or(0);
        let last = if member_text(metric, "type") == "final" { "/final" } else { "" };
        let mut summary = Vec::new();
        for (name, number) in curve_numbers(metric) {
            let mut value = Vec::new();
            append_delimited(&mut value, 1, format!("{name}{last}").as_bytes());
            value.push(2 << 3 | 5);
            // TensorBoard stores numbers in single precision.
            value.extend(number.to_string().parse::<f32>().unwrap_or(f32::NAN).to_le_bytes());
            append_delimited(&mut summary, 1, &value);
        }
        if summary.is_empty() {
            continue;
        }
        let mut event = encode_event(at_ms, step);
        append_delimited(&mut event, 5, &summary);
        append_record(&mut bytes, &event);
    }
    fs::write(folder.join(format!("events.out.tfevents.{}.trialkeeper", begun / 1000)), bytes)?;
    Ok(())
}

/// Returns an event with its time and step.
fn encode_event(at_ms: i64, step: u64) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    let seconds: f64 = format!("{}.{:03}", at_ms / 1000, at_ms % 1000).parse().unwrap_or(0.0);
    event.extend(seconds.to_le_bytes());
    event.push(2 << 3);
    append_varint(&mut event, step);
    event
}

fn append_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(0x80 | u8::try_from(value & 0x7f).unwrap_or(0));
        value >>= 7;
    }
    into.push(u8::try_from(value).unwrap_or(0));
}

/// Appends a field of bytes (protobuf's wire type 2).
fn append_delimited(into: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    into.push(field << 3 | 2);
    append_varint(into, u64::try_from(bytes.len()).unwrap_or(0));
    into.extend_from_slice(bytes);
}

fn append_record(into: &mut Vec<u8>, data: &[u8]) {
    let masked = |bytes: &[u8]| {
        let crc = crc32c::crc32c(bytes);
        (crc.rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes()
    };
    let length = u64::try_from(data.len()).unwrap_or(0).to_le_bytes();
    into.extend(length);
    into.extend(masked(&length));
    into.extend_from_slice(data);
    into.extend(masked(data));
}

/// Writes the experiment of MLflow's file store (mlflow, `store/tracking/file_store.py`). Each trial is a run of it.
fn write_mlflow_experiment(to: &Path) -> io::Result<()> {
    let experiment = to.join("0");
    fs::create_dir_all(&experiment)?;
    let meta =
        "artifact_location: ''\nexperiment_id: '0'\nlifecycle_stage: active\nname: Default\n";
    fs::write(experiment.join("meta.yaml"), meta)
}

/// Writes a trial as a run of MLflow's file store.
fn write_mlflow_trial(to: &Path, (trial, metrics): &Trial) -> io::Result<()> {
    let experiment = to.join("0");
    let id = member_text(trial, "id");
    let name = format!("{id}/{}", trial.get("created_at_ms").unwrap_or(&Value::Null));
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let run = digest.as_ref()[..16].iter().fold(String::new(), |mut run, byte| {
        write!(run, "{byte:02x}").unwrap_or_default();
        run
    });
    let folder = experiment.join(&run);
    for inner in ["metrics", "params", "tags", "artifacts"] {
        fs::create_dir_all(folder.join(inner))?;
    }
    let status = match member_text(trial, "state") {
        "SUCCEEDED" => 3,
        "FAILED" => 4,
        "RUNNING" | "LOST" => 1,
        "WAITING" => 2,
        _ => 5,
    };
    let time = |name: &str| trial.get(name).and_then(Value::as_i64);
    let end = time("ended_at_ms").map_or_else(|| "null".to_owned(), |at| at.to_string());
    let start = time("started_at_ms").or(time("created_at_ms")).unwrap_or(0);
    let meta = format!(
        "artifact_uri: ''\nend_time: {end}\nentry_point_name: ''\nexperiment_id: '0'\n\
         lifecycle_stage: active\nrun_id: {run}\nrun_name: {id}\nrun_uuid: {run}\nsource_name: ''\n\
         source_type: 4\nsource_version: ''\nstart_time: {start}\nstatus: {status}\ntags: []\nuser_id: ''\n"
    );
    fs::write(folder.join("meta.yaml"), meta)?;
    write_mlflow_tags(&folder.join("tags"), trial)?;
    let none = Value::Null;
    for (name, value) in view::flatten_parameters(trial.get("parameters").unwrap_or(&none)) {
        fs::write(folder.join("params").join(file_name(&name)), format_value(value))?;
    }
    let mut curves: BTreeMap<String, String> = BTreeMap::new();
    for metric in metrics {
        let at_ms = metric.get("observed_at_ms").and_then(Value::as_i64).unwrap_or(start);
        let step = metric.get("step").and_then(Value::as_u64).unwrap_or(0);
        for (name, number) in curve_numbers(metric) {
            let name = curve_name(&name, member_text(metric, "type") == "final");
            let word = match number {
                n if n.is_nan() => "nan".to_owned(),
                n if n.is_infinite() => if n > 0.0 { "inf" } else { "-inf" }.to_owned(),
                n => n.to_string(),
            };
            let curve = curves.entry(name).or_default();
            writeln!(curve, "{at_ms} {word} {step}").unwrap_or_default();
        }
    }
    for (name, lines) in curves {
        fs::write(folder.join("metrics").join(name), lines)?;
    }
    Ok(())
}

/// Writes the tags of a run. A tag has MLflow's own name (`mlflow/utils/mlflow_tags.py`) if there is one.
fn write_mlflow_tags(folder: &Path, trial: &Value) -> io::Result<()> {
    for (tag, name) in [
        ("mlflow.runName", "id"),
        ("mlflow.source.git.commit", "git_commit"),
        ("mlflow.source.git.branch", "git_branch"),
        ("mlflow.source.git.dirty", "git_dirty"),
        ("trialkeeper.gitDiffSha256", "git_diff_sha256"),
        ("trialkeeper.codeSha256", "code_sha256"),
        ("trialkeeper.host", "host"),
    ] {
        let value = trial.get(name).map(format_value).unwrap_or_default();
        if !value.is_empty() {
            fs::write(folder.join(tag), value)?;
        }
    }
    Ok(())
}

/// Returns the name of the file for a metric's intermediate or final results.
fn curve_name(name: &str, is_final: bool) -> String {
    const FINAL_SUFFIX: &str = ".final";
    match name.strip_suffix(FINAL_SUFFIX) {
        _ if is_final => file_name(&format!("{name}{FINAL_SUFFIX}")),
        // An intermediate result whose own name ends with `.final`.
        Some(rest) => format!("{}_u2e_final", file_name(rest)),
        None => file_name(name),
    }
}

/// Returns a file name that is unique for `name` and stays in its folder. Characters that some file systems refuse are
/// written as `_u` HEX `_`.
fn file_name(name: &str) -> String {
    let mut file = String::new();
    for (at, c) in name.char_indices() {
        // An `_` that would read as an escape is escaped, too. So is a leading dot, so that no name leaves the folder.
        let taken = c == '_' && is_escape(&name[at..]) || at == 0 && ". ".contains(c);
        if (c.is_ascii_alphanumeric() || "-_. ".contains(c)) && !taken {
            file.push(c);
        } else {
            write!(file, "_u{:x}_", u32::from(c)).unwrap_or_default();
        }
    }
    if file.is_empty() {
        return "_u_".to_owned();
    }
    if file.len() > MAX_NAME_CHARS {
        let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        file.truncate(MAX_NAME_CHARS);
        file.push_str("_u-");
        for byte in &digest.as_ref()[..8] {
            write!(file, "{byte:02x}").unwrap_or_default();
        }
    }
    file
}

/// The maximum length of a file name before a digest replaces the rest.
const MAX_NAME_CHARS: usize = 200;

/// Returns whether `text` begins with an escape `_u` HEX `_`.
fn is_escape(text: &str) -> bool {
    let digits = text
        .strip_prefix("_u")
        .map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    digits.is_some_and(|rest| rest.starts_with(['_', '-']))
}

#[cfg(test)]
mod tests;
