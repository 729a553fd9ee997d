//! One object of an experiment file: its fields by name, in any case and with or without underscores. Each field is
//! checked for its type, and an unknown field is an error.
//!
//! The reader of a field also records its value in the canonical form of the object.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::document::describe_kind;
use super::path_base::PathBase;
use super::{Error, Location, foreign, units};
use crate::util::nearest::{nearest, normalize_name, suggest_names};

/// The greatest number of problems that are reported.
pub(super) const MAX_PROBLEMS: usize = 20;

/// A problem with a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// The path of the field, such as `trainingService.gpuIndices`.
    pub(super) path: String,
    /// The problem, and the allowed values.
    pub(super) message: String,
    /// The file that contains the field, if it is not the experiment file.
    pub(super) file: Option<PathBuf>,
    /// The location of the field in its file. `None`: unknown, or the whole file.
    pub(super) location: Option<Location>,
    /// Further problems with fields of the same object.
    pub(super) others: Vec<Self>,
}

impl Problem {
    pub(super) fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: problem.into(),
            file: None,
            location: None,
            others: Vec::new(),
        }
    }

    /// Returns the problem as one of the same field in another file.
    pub(super) fn in_other_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// Returns the error of an experiment file with this problem.
    pub(super) fn into_error(self, experiment: &Path) -> Error {
        Self::combine_into_error(vec![self], experiment)
    }

    /// Returns the error of an experiment file with these problems, at least one. Problems beyond [`MAX_PROBLEMS`] are
    /// left out.
    pub(super) fn combine_into_error(problems: Vec<Self>, experiment: &Path) -> Error {
        let mut problems: Vec<Self> = problems.into_iter().flat_map(Self::split_problems).collect();
        let more = if problems.len() > MAX_PROBLEMS { "more than " } else { "" };
        problems.truncate(MAX_PROBLEMS);
        if problems.len() == 1 {
            let Self { path, message, file, location, .. } = problems.remove(0);
            let file = file.unwrap_or_else(|| experiment.to_owned());
            return Error { file, location, problem: format!("{path}: {message}") };
        }
        let lines = problems.iter().map(|Self { path, message, file, location, .. }| {
            let file = file.as_ref().map(|file| format!("{}: ", file.display()));
            let at = location.map(|at| format!("{at}: "));
            format!("\n  {}{}{path}: {message}", file.unwrap_or_default(), at.unwrap_or_default())
        });
        let lines: Vec<_> = lines.collect();
        let problem = format!("{more}{} problems{}", lines.len(), lines.concat());
        Error { file: experiment.to_owned(), location: None, problem }
    }

    /// Splits the problem and the others of its object into separate problems.
    pub(super) fn split_problems(mut self) -> Vec<Self> {
        let others = std::mem::take(&mut self.others);
        std::iter::once(self).chain(others.into_iter().flat_map(Self::split_problems)).collect()
    }
}

/// Common wrong names of fields, normalized, and the field that is meant. They are NNI's older names, those of
/// `tk.search` in Python, and common first guesses. The terms of other tools are in `foreign`.
const FIELD_SYNONYMS: [(&str, &str); 12] = [
    ("name", "experimentName"),
    ("maxtrials", "maxTrialNumber"),
    ("maxevals", "maxTrialNumber"),
    ("gpunumber", "trialGpuNumber"),
    ("concurrency", "trialConcurrency"),
    ("builtintunername", "name"),
    ("builtinassessorname", "name"),
    ("builtinadvisorname", "name"),
    ("maxexecduration", "maxExperimentDuration"),
    ("searchspacepath", "searchSpaceFile"),
    ("maxtrialnumpergpu", "maxTrialNumberPerGpu"),
    ("maxtrialnumpergpu", "trainingService.maxTrialNumberPerGpu"),
];

/// Returns the advice to write a string as the field that names the object, such as `{name: TPE}`. Empty for other
/// values and objects.
fn object_advice(value: &Value, known: &[&str]) -> String {
    match (value, known.first()) {
        (Value::String(text), Some(field @ (&"name" | &"platform" | &"metric" | &"host"))) => {
            format!("; write {{{field}: {text}}}")
        }
        _ => String::new(),
    }
}

/// Returns the advice for a value that looks like an integer and is none.
fn integer_advice(value: &Value) -> &'static str {
    match value {
        Value::String(text) if text.trim().parse::<u64>().is_ok() => "; remove the quotes",
        Value::Number(number) => match number.as_f64().filter(|real| real.fract() == 0.0) {
            Some(real) if !number.is_f64() || real < 0.0 => "",
            Some(real) if real > 9_007_199_254_740_992.0 => "; the number is too large",
            Some(_) => "; write it in digits, without a point or an exponent",
            None => "",
        },
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => "",
    }
}

/// A known field of a section.
#[derive(Debug)]
struct Field {
    name: &'static str,
    /// The value in the file, until a reader takes it. `None`: the file does not have the field.
    file_value: Option<Value>,
    /// The value in the canonical form. `Null`: the canonical form does not have the field.
    canonical_value: Value,
    is_read: bool,
}

/// The fields of one object under their proper names.
#[derive(Debug)]
pub(super) struct Section {
    path: String,
    /// The known fields, in the order of the canonical form.
    fields: Vec<Field>,
}

impl Section {
    /// Opens an object whose fields are among `known`. The canonical form has the fields in this order.
    pub(super) fn open(path: &str, value: Value, known: &[&'static str]) -> Result<Self, Problem> {
        let Value::Object(members) = value else {
            let found = describe_kind(&value);
            return Err(if path.is_empty() {
                let what = "expected a mapping of fields, such as `trialConcurrency: 2`, found";
                Problem::new("the file", format!("{what} {found}"))
            } else {
                let example = object_advice(&value, known);
                let known = known.join(", ");
                Problem::new(path, format!("expected fields ({known}), found {found}{example}"))
            });
        };
        let field =
            |name| Field { name, file_value: None, canonical_value: Value::Null, is_read: false };
        let fields = known.iter().copied().map(field).collect();
        let mut section = Self { path: path.to_owned(), fields };
        let mut unknown = Vec::new();
        for (key, value) in members {
            let plain = normalize_name(&key);
            let Some(field) =
                section.fields.iter_mut().find(|field| normalize_name(field.name) == plain)
            else {
                unknown.push(key);
                continue;
            };
            if field.file_value.is_some() {
                let name = field.name;
                return Err(section
                    .problem(name, format!("is given twice, here as `{key}`; keep one of them")));
            }
            field.file_value = Some(value);
        }
        section.refuse_unknown(&unknown, known)
    }

    /// Returns the section, unless it has unknown fields. Each problem names the intended or most similar field. The
    /// last problem without a known meaning lists all allowed fields.
    fn refuse_unknown(self, unknown: &[String], known: &[&str]) -> Result<Self, Problem> {
        let last = unknown.iter().rposition(|key| self.suggested_field(key, known).is_none());
        let mut problems = unknown.iter().enumerate().map(|(i, key)| {
            let allowed = || known.iter().copied();
            let advice = match self.suggested_field(key, known) {
                Some(name) => format!("; here it is `{name}`"),
                None if last == Some(i) => format!("; {}", suggest_names(key, allowed())),
                None => nearest(key, allowed())
                    .map(|name| format!("; did you mean `{name}`?"))
                    .unwrap_or_default(),
            };
            Problem::new(self.field_path(key), format!("unknown field{advice}"))
        });
        let Some(mut first) = problems.next() else {
            drop(problems);
            return Ok(self);
        };
        first.others = problems.collect();
        Err(first)
    }

    /// Returns the field among `known`, or the member of one, for a name of an older version or of another tool.
    fn suggested_field(&self, key: &str, known: &[&str]) -> Option<&'static str> {
        let plain = normalize_name(key);
        let older = FIELD_SYNONYMS.iter().filter(|(word, _)| *word == plain).map(|(_, name)| name);
        let theirs = || foreign::counterpart(key).filter(|_| self.path.is_empty());
        let is_known =
            |name: &&str| name.split('.').next().is_some_and(|name| known.contains(&name));
        older.copied().find(is_known).or_else(theirs).filter(is_known)
    }

    /// Returns the path of this section, which is empty at the top.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the path of a field of this section.
    pub(super) fn field_path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn field_mut(&mut self, name: &str) -> Option<&mut Field> {
        self.fields.iter_mut().find(|field| field.name == name)
    }

    /// Returns a reference to a field. A `null` counts as absent.
    pub(super) fn peek(&self, name: &str) -> Option<&Value> {
        let field = self.fields.iter().find(|field| field.name == name)?;
        field.file_value.as_ref().filter(|value| !value.is_null())
    }

    /// Returns `true` for a field whose value in the file is `null`.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name && field.file_value == Some(Value::Null))
    }

    /// Takes a field unchanged, without a record. A `null` counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        let field = self.field_mut(name)?;
        field.is_read = true;
        field.file_value.take().filter(|value| !value.is_null())
    }

    /// Marks fields as read that have no effect here, whatever their values are.
    pub(super) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.take(name);
        }
    }

    /// Records the value of a field in the canonical form, in place of the file's own and of an earlier record. The
    /// canonical form omits a field whose value is `null`.
    pub(super) fn record(&mut self, name: &str, value: impl Serialize) {
        self.take(name);
        let field = self.field_mut(name);
        debug_assert!(field.is_some(), "`{name}` is not among the known fields");
        if let Some(field) = field {
            field.canonical_value = json!(value);
        }
    }

    /// Returns the canonical form: the recorded values, in the order of the known fields.
    pub(super) fn into_canonical(self) -> Map<String, Value> {
        let unread = self.fields.iter().filter(|field| !field.is_read);
        let unread: Vec<&str> = unread.map(|field| field.name).collect();
        debug_assert!(unread.is_empty(), "no reader takes {unread:?} of `{}`", self.path);
        let recorded = self.fields.into_iter().filter(|field| !field.canonical_value.is_null());
        recorded.map(|field| (field.name.to_owned(), field.canonical_value)).collect()
    }

    /// Returns the recorded values of these fields.
    pub(super) fn recorded(&self, names: &[&str]) -> Map<String, Value> {
        let recorded = self.fields.iter().filter(|field| names.contains(&field.name));
        let recorded = recorded.filter(|field| !field.canonical_value.is_null());
        recorded.map(|field| (field.name.to_owned(), field.canonical_value.clone())).collect()
    }

    /// Reads a string that is not empty.
    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let text = self.unrecorded_string(name)?;
        self.record(name, &text);
        Ok(text)
    }

    /// Reads a string with a default.
    pub(super) fn string_or(&mut self, name: &str, default: &str) -> Result<String, Problem> {
        let text = self.unrecorded_string(name)?.unwrap_or_else(|| default.to_owned());
        self.record(name, &text);
        Ok(text)
    }

    /// Reads a string without a record: a secret, or the name of a file whose content is recorded.
    pub(super) fn unrecorded_string(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text)),
            Some(Value::String(_)) => Err(self.problem(name, "must not be empty")),
            Some(other) => {
                let hint =
                    if other.is_number() || other.is_boolean() { "; put it in quotes" } else { "" };
                Err(self.problem(
                    name,
                    format!("expected a string, found {}{hint}", describe_kind(&other)),
                ))
            }
        }
    }

    /// Reads a string. An empty one counts as absent, because NNI's own loader writes `""` for an unset field.
    pub(super) fn string_or_unset(&mut self, name: &str) -> Result<Option<String>, Problem> {
        if self.peek(name).and_then(Value::as_str) == Some("") {
            self.take(name);
        }
        self.string(name)
    }

    /// Reads a path, and records it as an absolute one.
    pub(super) fn absolute_path(
        &mut self,
        name: &str,
        base: PathBase<'_>,
    ) -> Result<Option<PathBuf>, Problem> {
        let path = self.unrecorded_string(name)?.map(|path| resolve_path(&path, base));
        self.record(name, path.as_ref().map(|path| path.to_string_lossy()));
        Ok(path)
    }

    /// Reads `true` or `false`.
    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        let value = match self.take(name) {
            None => None,
            Some(Value::Bool(value)) => Some(value),
            Some(other) => {
                let problem = format!("expected true or false, found {}", describe_kind(&other));
                return Err(self.problem(name, problem));
            }
        };
        self.record(name, value);
        Ok(value)
    }

    /// Reads `true` or `false` with a default.
    pub(super) fn boolean_or(&mut self, name: &str, default: bool) -> Result<bool, Problem> {
        let value = self.boolean(name)?.unwrap_or(default);
        self.record(name, value);
        Ok(value)
    }

    /// Reads an integer of at least `least`.
    pub(super) fn integer(&mut self, name: &str, least: u64) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(number) = value.as_u64().filter(|number| *number >= least) else {
            let (found, advice) = (describe_kind(&value), integer_advice(&value));
            let problem = format!("expected an integer of at least {least}, found {found}{advice}");
            return Err(self.problem(name, problem));
        };
        self.record(name, number);
        Ok(Some(number))
    }

    /// Reads an integer of at least `least` with a default.
    pub(super) fn integer_or(
        &mut self,
        name: &str,
        least: u64,
        default: u64,
    ) -> Result<u64, Problem> {
        let number = self.integer(name, least)?.unwrap_or(default);
        self.record(name, number);
        Ok(number)
    }

    /// Reads a finite number.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<f64>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(number) = value.as_f64().filter(|number| number.is_finite()) else {
            return Err(
                self.problem(name, format!("expected a number, found {}", describe_kind(&value)))
            );
        };
        self.record(name, number);
        Ok(Some(number))
    }

    /// Reads a duration, and records its value in the file unchanged.
    pub(super) fn duration(&mut self, name: &str) -> Result<Option<Duration>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let duration =
            units::parse_duration(&value).map_err(|problem| self.problem(name, problem))?;
        self.record(name, value);
        Ok(Some(duration))
    }

    /// Reads an amount of memory, and records it in MiB.
    pub(super) fn memory_mib(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let memory =
            units::parse_memory_mib(&value).map_err(|problem| self.problem(name, problem))?;
        self.record(name, memory);
        Ok(Some(memory))
    }

    /// Reads GPU indices: a list, one integer, or `"0,1"`.
    pub(super) fn indices(&mut self, name: &str) -> Result<Option<Vec<u64>>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let indices: Option<Vec<u64>> = match &value {
            Value::String(text) => text.split(',').map(|part| part.trim().parse().ok()).collect(),
            Value::Array(list) => list.iter().map(Value::as_u64).collect(),
            Value::Number(number) => number.as_u64().map(|index| vec![index]),
            Value::Null | Value::Bool(_) | Value::Object(_) => None,
        };
        let Some(indices) = indices else {
            let problem =
                format!("expected indices from 0, such as [0, 1] or \"0,1\", found {value}");
            return Err(self.problem(name, problem));
        };
        if let Some((_, twice)) =
            indices.iter().enumerate().find(|(i, n)| indices[..*i].contains(n))
        {
            return Err(self.problem(name, format!("names the index {twice} twice")));
        }
        self.record(name, &indices);
        Ok(Some(indices))
    }

    /// Returns the problem of a field that is given besides another, where only one of them may be given.
    pub(super) fn given_besides(&self, name: &str, other: &str) -> Problem {
        self.problem(name, format!("is given besides `{other}`; keep one of them"))
    }

    /// Returns a problem with one field of this section.
    pub(super) fn problem(&self, name: &str, problem: impl Into<String>) -> Problem {
        Problem::new(self.field_path(name), problem)
    }
}

/// The fields that may be at the top level or in the training service.
pub(super) struct InheritableFields {
    pub(super) command: Option<String>,
    pub(super) code: Option<PathBuf>,
    pub(super) gpus: Option<u32>,
    pub(super) ip: Option<String>,
    pub(super) debug: Option<bool>,
}

impl InheritableFields {
    pub(super) fn read(section: &mut Section, base: PathBase<'_>) -> Result<Self, Problem> {
        let command = section.string_or_unset("trialCommand")?;
        if command.as_ref().is_some_and(|command| command.contains('\0')) {
            return Err(section.problem("trialCommand", "must not contain a NUL character"));
        }
        let code = section.string_or_unset("trialCodeDirectory")?;
        let gpus = section.integer("trialGpuNumber", 0)?.map(|gpus| {
            u32::try_from(gpus)
                .map_err(|_| section.problem("trialGpuNumber", format!("{gpus} GPUs are too many")))
        });
        Ok(Self {
            command,
            code: code.map(|code| resolve_path(&code, base)),
            gpus: gpus.transpose()?,
            ip: section.string_or_unset("nniManagerIp")?,
            debug: section.boolean("debug")?,
        })
    }
}

/// Returns an absolute path without `.`, `..` and symbolic links, as far as it exists. `~` is the home directory.
pub(super) fn resolve_path(path: &str, base: PathBase<'_>) -> PathBuf {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => match home() {
            Some(home) => home.join(rest.trim_start_matches('/')),
            None => PathBuf::from(path),
        },
        _ => PathBuf::from(path),
    };
    let mut resolved = PathBuf::from("/");
    for part in base.folder.join(path).components() {
        match part {
            Component::RootDir | Component::Prefix(_) | Component::CurDir => {}
            Component::ParentDir => {
                resolved.pop();
            }
            Component::Normal(name) => {
                resolved.push(name);
                if let Ok(real) = std::fs::canonicalize(&resolved) {
                    resolved = real;
                }
            }
        }
    }
    resolved
}
