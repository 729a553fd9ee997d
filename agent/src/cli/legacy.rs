//! PURE: parses the command line of NNI's own keeper (NNI 3.0, `nni/tools/trial_tool/trial_keeper.py`). An image or a
//! script that was made for NNI's keeper starts this program instead.
//!
//! This module only parses; it does not interpret the values for a run. Unknown flags are no error, as in NNI's keeper,
//! because managers and keepers of different versions are combined.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The flags of NNI's keeper. Each takes a value.
const KEEPER_FLAGS: [&str; 13] = [
    "trial_command",
    "nnimanager_ip",
    "nnimanager_port",
    "nni_manager_version",
    "log_collection",
    "job_id_file",
    "hdfs_host",
    "pai_hdfs_host",
    "hdfs_output_dir",
    "pai_hdfs_output_dir",
    "pai_user_name",
    "nni_hdfs_exp_dir",
    "webhdfs_path",
];

/// The options of an NNI manager on its keeper's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NniKeeperArgs {
    /// The line for the shell.
    pub trial_command: OsString,
    /// Base URL of the manager's cluster server.
    pub manager: String,
    /// The manager's version. `None` means that it must not be compared.
    pub manager_version: Option<String>,
    /// `true` if the keeper sends the trial's lines in addition to its metrics.
    pub collect_logs: bool,
    /// A file for the keeper's process id.
    pub job_id_file: Option<PathBuf>,
    /// Warnings about arguments that are unknown or not supported.
    pub warnings: Vec<String>,
}

/// The error of a command line without a trial command.
#[derive(Debug, thiserror::Error)]
#[error("--trial_command is missing: the line for the shell")]
pub struct MissingTrialCommand;

/// Returns whether `words`, without the program's name, are those of NNI's keeper. Its flags have underscores, and the
/// agent's have none. The first word may be a flag that NNI's keeper does not know either. A flag that it knows must
/// come before any command.
pub fn is_legacy(words: &[OsString]) -> bool {
    let Some(first) = words.first() else { return false };
    let mut ours = words.iter().take_while(|word| *word != "--");
    first.as_bytes().starts_with(b"--") && ours.any(|word| known_flag(word).is_some())
}

/// Parses `words`, without the program's name.
pub fn parse(words: &[OsString]) -> Result<NniKeeperArgs, MissingTrialCommand> {
    let mut values: [Option<OsString>; KEEPER_FLAGS.len()] = Default::default();
    let mut warnings = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let Some((index, inline)) = known_flag(word) else {
            warnings.push(format!("{} is unknown and ignored", word.display()));
            continue;
        };
        // If a shell removed an empty value, the next flag must not be taken for the value.
        let next = || words.next_if(|word| known_flag(word).is_none()).cloned();
        match inline.map(OsStr::to_owned).or_else(next) {
            Some(value) => values[index] = Some(value),
            None => warnings.push(format!("--{} has no value and is ignored", KEEPER_FLAGS[index])),
        }
    }
    let [command, ip, port, version, log_collection, job_id_file, hdfs @ ..] = values;
    if hdfs.iter().flatten().any(|value| !value.is_empty()) {
        let text = "HDFS is not supported; the trial's files stay in its output directory";
        warnings.push(text.to_owned());
    }
    let text = |value: Option<OsString>| {
        value.map(|value| value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
    };
    let ip = text(ip).unwrap_or_else(|| "localhost".to_owned());
    let host = if ip.contains(':') && !ip.starts_with('[') { format!("[{ip}]") } else { ip };
    let port = text(port).unwrap_or_else(|| "8081".to_owned());
    // NNI's manager adds one pair of quotes too many: `"none"`, including the quotes, means none.
    let is_none = |value: String| value.trim_matches('"') == "none";
    Ok(NniKeeperArgs {
        trial_command: command.filter(|line| !line.is_empty()).ok_or(MissingTrialCommand)?,
        manager: format!("http://{host}:{port}"),
        manager_version: text(version),
        collect_logs: !text(log_collection).is_some_and(is_none),
        job_id_file: job_id_file.filter(|path| !path.is_empty()).map(PathBuf::from),
        warnings,
    })
}

/// Returns the index of `word` in [`KEEPER_FLAGS`], and the value after its `=`.
fn known_flag(word: &OsStr) -> Option<(usize, Option<&OsStr>)> {
    let flag = word.as_bytes().strip_prefix(b"--")?;
    // Compares byte by byte. `memchr` first queries the processor's features, which is slow on a virtual machine.
    let (name, value) = match flag.iter().position(|byte| *byte == b'=') {
        Some(equals) => (&flag[..equals], Some(OsStr::from_bytes(&flag[equals + 1..]))),
        None => (flag, None),
    };
    let index = KEEPER_FLAGS.iter().position(|known| known.as_bytes() == name)?;
    Some((index, value))
}

/// Returns the words of an equivalent run of the agent.
pub fn as_run(legacy: &NniKeeperArgs) -> Vec<OsString> {
    let shell = [b"--shell=", legacy.trial_command.as_bytes()].concat();
    ["trialkeeper".into(), "run".into(), OsString::from_vec(shell)].into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_arguments_of_nnis_keeper_are_recognised() {
        #[rustfmt::skip]
        let table: [(&[&str], _); 11] = [
            (&["--no_such", "1", "--trial_command", "x"], true),
            (&["--nosuch", "1", "--trial_command", "x"], true),
            (&["--nosuch", "1", "x"],             false),
            (&["--no_such", "--", "y", "--trial_command", "x"], false),
            (&["--trial_command", "x"],           true),
            (&["--trial_command=x"],              true),
            (&["--nnimanager_ip", "h", "--trial_command", "x"], true),
            (&["run", "--", "y", "--trial_command", "x"], false),
            (&["--", "y", "--trial_command", "x"], false),
            (&["--trial-command", "x"],           false),
            (&[],                                 false),
        ];
        for (line, legacy) in table {
            assert_eq!(is_legacy(&words(line)), legacy, "{line:?}");
        }
    }

    #[test]
    fn arguments_are_parsed_as_by_nnis_keeper_without_its_defects() {
        let plain = NniKeeperArgs {
            trial_command: "a | b".into(),
            manager: "http://localhost:8081".to_owned(),
            manager_version: None,
            collect_logs: true,
            job_id_file: None,
            warnings: Vec::new(),
        };
        let none = NniKeeperArgs { collect_logs: false, ..plain.clone() };
        let warned =
            |text: &str| NniKeeperArgs { warnings: vec![text.to_owned()], ..plain.clone() };
        let all = NniKeeperArgs {
            manager: "http://10.0.0.1:8999".to_owned(),
            manager_version: Some("3.0.0".to_owned()),
            job_id_file: Some("/tmp/id".into()),
            ..none.clone()
        };
        #[rustfmt::skip]
        let table: [(&str, &[&str], NniKeeperArgs); 11] = [
            ("defaults",              &[], plain.clone()),
            ("everything",            &["--nnimanager_ip", "10.0.0.1", "--nnimanager_port", "8999", "--nni_manager_version", "3.0.0", "--log_collection", "none", "--job_id_file", "/tmp/id"], all),
            ("an empty version",      &["--nni_manager_version", "", "--log_collection=http"], plain.clone()),
            ("none, quoted",          &["--log_collection", "\"none\""], none.clone()),
            ("none",                  &["--log_collection=none"], none.clone()),
            ("an address of colons",  &["--nnimanager_ip", "fd00::1"], NniKeeperArgs { manager: "http://[fd00::1]:8081".to_owned(), ..plain.clone() }),
            ("the last one counts",   &["--log_collection", "none", "--log_collection", "http"], plain.clone()),
            ("an unknown flag",       &["--no_such=1"], warned("--no_such=1 is unknown and ignored")),
            ("a value swallowed",     &["--nni_manager_version", "--log_collection", "http"], warned("--nni_manager_version has no value and is ignored")),
            ("a value at the end",    &["--nni_manager_version"], warned("--nni_manager_version has no value and is ignored")),
            ("HDFS",                  &["--pai_hdfs_host", "h"], warned("HDFS is not supported; the trial's files stay in its output directory")),
        ];
        for (case, line, expected) in table {
            let line = words(&[&["--trial_command", "a | b"], line].concat());
            assert_eq!(parse(&line).unwrap(), expected, "{case}");
        }
        let runs = as_run(&plain);
        assert_eq!(runs, ["trialkeeper", "run", "--shell=a | b"]);
    }

    #[test]
    fn a_command_line_without_a_command_is_refused() {
        for line in [&["--nnimanager_ip", "h"][..], &["--trial_command", ""], &["--trial_command"]]
        {
            assert!(parse(&words(line)).is_err(), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn random_words_of_an_old_keeper_never_panic(line: Vec<String>) {
            let line: Vec<_> = line.iter().map(OsString::from).collect();
            is_legacy(&line);
            drop(parse(&line));
        }
    }
}
