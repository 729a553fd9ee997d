//! The trial's output directory: found or created before the trial starts, with the trial's parameters in it.
//!
//! The trial waits only for this directory, because NNI's SDK reads its parameters from it. If the directory cannot be
//! written, a temporary one replaces it. If that fails too, the trial runs without a directory.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use trial_protocol::Verdict;

use crate::trial::parameters::Parameters;
use crate::util::dates::civil_date;

/// The requested directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirRequest {
    /// This directory, created if absent.
    Dir(PathBuf),
    /// A new one below `trialkeeper-runs` in the current directory.
    New {
        /// The current time, in milliseconds since the Unix epoch.
        now_ms: i64,
        /// A random number that distinguishes runs started in the same second.
        random: u64,
    },
}

/// The prepared run directory.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDir {
    /// The absolute path of the directory. `None`: no directory is writable.
    pub path: Option<PathBuf>,
    /// The verdict of an earlier attempt in the directory.
    pub earlier_verdict: Option<Verdict>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Name of the file with the verdict.
pub const VERDICT_FILE: &str = "verdict.json";

/// Name of the file with the verdict of the previous attempt.
const EARLIER_VERDICT_FILE: &str = "verdict.json.1";

/// Name of the file with the parameters as one plain JSON object.
pub const PARAMETERS_FILE: &str = "parameters.json";

/// Name of the file with the collectors of the run's metrics, if the user configured any.
pub const COLLECTORS_FILE: &str = "collectors.json";

/// Creates the directory and writes the parameters into it. An existing record is replaced only if parameters are
/// `given`. A `private` directory is accessible only to its owner, whatever the umask. A pod's directory on shared
/// storage is not private.
pub fn prepare(wanted: &DirRequest, parameters: &Parameters, given: bool, private: bool) -> RunDir {
    let first = match wanted {
        DirRequest::Dir(dir) => dir.clone(),
        DirRequest::New { now_ms, random } => {
            Path::new("trialkeeper-runs").join(new_run_name(*now_ms, *random))
        }
    };
    let mut warnings = Vec::new();
    let mode = if private { 0o700 } else { 0o777 };
    match create_and_fill(&first, parameters, given, mode) {
        Ok(PreparedDir { path, is_new }) => {
            let earlier_verdict = if is_new { None } else { take_earlier_verdict(&path) };
            return RunDir { path: Some(path), earlier_verdict, warnings };
        }
        Err(source) => {
            warnings.push(format!(
                "cannot write the output directory {} ({source}); a temporary one is used",
                first.display()
            ));
        }
    }
    let temporary = tempfile::Builder::new()
        .prefix("trialkeeper-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir();
    match temporary.and_then(|dir| create_and_fill(&dir.keep(), parameters, given, 0o700)) {
        Ok(PreparedDir { path, .. }) => {
            warnings.push(format!("files of this trial are in {}", path.display()));
            RunDir { path: Some(path), earlier_verdict: None, warnings }
        }
        Err(source) => {
            warnings.push(format!(
                "cannot write {} either ({source}); no files are kept",
                std::env::temp_dir().display()
            ));
            RunDir { path: None, earlier_verdict: None, warnings }
        }
    }
}

/// A directory with the parameters in it.
struct PreparedDir {
    path: PathBuf,
    /// `true` if the directory was just created, so that no other process can have used it.
    is_new: bool,
}

fn create_and_fill(
    dir: &Path,
    parameters: &Parameters,
    given: bool,
    mode: u32,
) -> Result<PreparedDir, io::Error> {
    let path = std::path::absolute(dir)?;
    let make = || fs::DirBuilder::new().mode(mode).create(&path);
    let is_new = match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Only the run's own directory is private. Other users may share the folders above it.
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            make()
        }
        outcome => outcome,
    }
    .is_ok();
    let record = path.join("parameter.cfg");
    let plain = path.join(PARAMETERS_FILE);
    if is_new {
        fs::write(record, &parameters.record)?;
        fs::write(plain, parameters.to_json())?;
    } else {
        fs::create_dir_all(&path)?;
        // The manager or an earlier attempt may have written the record.
        if given || !record.try_exists()? {
            replace_file(&record, parameters.record.as_bytes())?;
        }
        replace_file(&plain, parameters.to_json().as_bytes())?;
    }
    Ok(PreparedDir { path, is_new })
}

/// Returns the verdict of an earlier attempt, and renames its file. Readers then find only the verdict of this attempt.
fn take_earlier_verdict(dir: &Path) -> Option<Verdict> {
    let (path, aside) = (dir.join(VERDICT_FILE), dir.join(EARLIER_VERDICT_FILE));
    let bytes = fs::read(&path).ok()?;
    if let Err(source) = fs::rename(&path, &aside) {
        tracing::warn!("cannot rename the earlier verdict: {source}");
    }
    serde_json::from_slice(&bytes).ok()
}

/// Writes a file so that a reader sees either the old content or the new one, never a part.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), io::Error> {
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let written = fs::File::create(&part).and_then(|mut file| file.write_all(bytes));
    let replaced = written.and_then(|()| fs::rename(&part, path));
    if replaced.is_err() {
        // Ignored: a partial file that cannot be removed either has no remedy.
        fs::remove_file(&part).ok();
    }
    replaced
}

/// PURE: returns `yyyymmdd-hhmmss-xxxx`, in UTC.
fn new_run_name(now_ms: i64, random: u64) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let seconds = now_ms.div_euclid(1000);
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, date) = civil_date(day);
    let suffix: String = (0..4)
        .map(|n| usize::try_from(random >> (5 * n) & 31).expect("five bits fit"))
        .map(|index| char::from(LETTERS[index]))
        .collect();
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{date:02}-{hour:02}{minute:02}{second:02}-{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Observations, conclude};

    #[test]
    fn a_new_name_contains_the_time_and_a_random_suffix() {
        #[rustfmt::skip]
        let table = [
            (0,                 0,        "19700101-000000-aaaa"),
            (1_709_164_799_999, 0b1,      "20240228-235959-baaa"),
            (1_709_164_800_000, 31 << 15, "20240229-000000-aaa9"),
            (1_795_132_800_000, u64::MAX, "20261120-000000-9999"),
            (-1,                0,        "19691231-235959-aaaa"),
        ];
        for (now_ms, random, name) in table {
            assert_eq!(new_run_name(now_ms, random), name);
        }
    }

    #[test]
    fn a_directory_gets_the_parameters_and_keeps_an_earlier_record() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let parameters = Parameters::parse(r#"{"x": 1}"#).unwrap();
        let wanted = DirRequest::Dir(dir.clone());
        let first = prepare(&wanted, &parameters, true, true);
        assert_eq!(
            first,
            RunDir { path: Some(dir.clone()), earlier_verdict: None, warnings: vec![] }
        );
        let record = fs::read_to_string(dir.join("parameter.cfg")).unwrap();
        assert_eq!(Parameters::parse(&record).unwrap(), parameters);
        assert_eq!(fs::read_to_string(dir.join(PARAMETERS_FILE)).unwrap(), r#"{"x":1}"#);

        let verdict = conclude(&Observations::default());
        fs::write(dir.join(VERDICT_FILE), serde_json::to_vec(&verdict).unwrap()).unwrap();
        let second = prepare(&wanted, &Parameters::none(), false, true);
        assert_eq!(second.earlier_verdict, Some(verdict));
        assert!(!dir.join(VERDICT_FILE).exists() && dir.join(EARLIER_VERDICT_FILE).exists());
        assert_eq!(fs::read_to_string(dir.join("parameter.cfg")).unwrap(), record);

        let other = Parameters::parse(r#"{"x": 2}"#).unwrap();
        prepare(&wanted, &other, true, true);
        assert_eq!(fs::read_to_string(dir.join("parameter.cfg")).unwrap(), other.record);
    }

    #[test]
    fn an_unwritable_directory_is_replaced_by_a_temporary_one() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let made = prepare(&DirRequest::Dir(file.join("below")), &Parameters::none(), false, true);
        let path = made.path.unwrap();
        assert!(path.join("parameter.cfg").exists());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(made.warnings.len(), 2, "{:?}", made.warnings);
        fs::remove_dir_all(path).unwrap();
    }
}
