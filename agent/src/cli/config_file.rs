//! The settings file of `run`: lines `name = value`, a flat subset of TOML, with the flags' names.
//!
//! A setting becomes the default of its flag. Flags and variables therefore take precedence without further code.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::PathBuf;

use clap::builder::OsStr as ClapStr;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// Pairs of flags that exclude each other. If a source sets one of them, sources of lower precedence must not set the
/// other.
const CONFLICTING_FLAGS: [(&str, &str); 2] = [("manager", "manager_file"), ("shell", "command")];

/// Flags that a settings file must not set.
const NOT_IN_A_FILE: [&str; 4] = ["command", "config", "print_config", "help"];

/// The settings of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    path: PathBuf,
    values: Vec<Setting>,
}

/// One setting of a file.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    /// The flag's id: its name with underscores.
    id: String,
    line: usize,
    /// The values; several for a list.
    values: Vec<String>,
}

impl Settings {
    /// Returns the line that sets `id`, if the file has one.
    pub(super) fn place_of(&self, id: &str) -> Option<String> {
        let setting = self.values.iter().find(|setting| setting.id == id)?;
        Some(format!("line {} of {}", setting.line, self.path.display()))
    }

    /// Parses `text`, the content of the file at `path`.
    pub(super) fn of(path: impl Into<PathBuf>, text: &str) -> Result<Self, String> {
        Ok(Self { path: path.into(), values: parse(text)? })
    }
}

/// Reads the settings file, if the command line or the environment names one.
pub(super) fn find(
    command: impl FnOnce() -> Command,
    words: &[OsString],
) -> Result<Settings, clap::Error> {
    let mentioned = words.iter().any(|word| word.as_encoded_bytes().starts_with(b"--config"));
    if !mentioned && std::env::var_os("TRIALKEEPER_CONFIG").is_none() {
        // The usual case. Parsing the command line twice would delay the trial.
        return Ok(Settings::default());
    }
    // The other arguments may be invalid, or need the file. They are checked later.
    let matches = command().ignore_errors(true).try_get_matches_from(words);
    let run = matches.as_ref().ok().and_then(|matches| matches.subcommand_matches("run"));
    let path = run.and_then(|run| run.try_get_one::<PathBuf>("config").ok().flatten());
    let Some(path) = path else { return Ok(Settings::default()) };
    let refused = |what: String| {
        let message = format!("{}: {what}\n", path.display());
        clap::Error::raw(ErrorKind::ValueValidation, message)
    };
    let text = std::fs::read_to_string(path).map_err(|source| refused(source.to_string()))?;
    Settings::of(path, &text).map_err(refused)
}

/// Makes the settings the defaults of their flags.
pub(super) fn apply(
    command: Command,
    settings: &Settings,
    words: &[OsString],
) -> Result<Command, clap::Error> {
    if settings.values.is_empty() {
        return Ok(command);
    }
    let matches = command.clone().ignore_errors(true).try_get_matches_from(words);
    let run = matches.as_ref().ok().and_then(|matches| matches.subcommand_matches("run"));
    let mut command = command;
    for Setting { id, line, values } in &settings.values {
        let known = command.find_subcommand("run").is_some_and(|run| is_setting_flag(run, id));
        if !known {
            let path = settings.path.display();
            let message = format!("{path}, line {line}: there is no setting {id:?}\n");
            return Err(clap::Error::raw(ErrorKind::UnknownArgument, message));
        }
        if !run.is_some_and(|run| is_outranked(run, id)) {
            let values = values.clone();
            command = command.mut_subcommand("run", |run| {
                run.mut_arg(id, |arg| arg.default_values(values.into_iter().map(ClapStr::from)))
            });
        }
    }
    Ok(command)
}

fn is_setting_flag(run: &Command, id: &str) -> bool {
    !NOT_IN_A_FILE.contains(&id) && run.get_arguments().any(|arg| arg.get_id() == id)
}

fn is_outranked(run: &ArgMatches, id: &str) -> bool {
    let explicit = |id: &str| {
        let source = run.try_contains_id(id).ok().and_then(|_| run.value_source(id));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    conflicting_setting(id).is_some_and(explicit)
}

/// Returns the setting that must not be set together with `id`.
pub(super) fn conflicting_setting(id: &str) -> Option<&'static str> {
    let pairs = CONFLICTING_FLAGS.into_iter().flat_map(|(one, other)| [(one, other), (other, one)]);
    pairs.into_iter().find(|(one, _)| *one == id).map(|(_, other)| other)
}

/// Returns the setting that clap refuses together with `id`. Each pair is declared at its first flag.
pub(super) fn excluded_setting(id: &str) -> Option<&'static str> {
    CONFLICTING_FLAGS.into_iter().find(|(one, _)| *one == id).map(|(_, other)| other)
}

/// PURE: returns each setting, with its value and the origin of the value.
pub(super) fn origins(command: &Command, run: &ArgMatches, settings: &Settings) -> String {
    let mut text = String::new();
    let arguments = command.find_subcommand("run").into_iter().flat_map(Command::get_arguments);
    for arg in arguments.filter(|arg| has_setting(arg)) {
        let id = arg.get_id().as_str();
        let name = id.replace('_', "-");
        let raw =
            run.get_raw(id).map(|values| values.map(OsStr::to_string_lossy).collect::<Vec<_>>());
        let origin = match run.value_source(id) {
            Some(ValueSource::CommandLine) => "flag".to_owned(),
            Some(ValueSource::EnvVariable) => {
                arg.get_env().unwrap_or_default().to_string_lossy().into_owned()
            }
            Some(_) if settings.values.iter().any(|setting| setting.id == id) => {
                settings.path.display().to_string()
            }
            _ => "default".to_owned(),
        };
        let written = match raw.as_deref() {
            None => writeln!(text, "# {name} is not set"),
            Some([value]) => writeln!(text, "{name} = {value:?}  # {origin}"),
            Some(values) => writeln!(text, "{name} = {values:?}  # {origin}"),
        };
        written.expect("writing to a String cannot fail");
    }
    text
}

fn has_setting(arg: &Arg) -> bool {
    arg.get_long().is_some() && !NOT_IN_A_FILE.contains(&arg.get_id().as_str())
}

/// PURE: parses the lines of a file. Values are strings, numbers, `true` or `false`, and lists of strings.
fn parse(text: &str) -> Result<Vec<Setting>, String> {
    let mut settings: Vec<Setting> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let refused = |what: &str| format!("line {number}: {what}");
        let (name, value) =
            line.split_once('=').ok_or_else(|| refused("name = value is expected"))?;
        let id = name.trim().replace('-', "_");
        if settings.iter().any(|setting| setting.id == id) {
            return Err(refused(&format!("{:?} is set twice", name.trim())));
        }
        let values = read_value(value.trim()).ok_or_else(|| {
            refused("a \"string\", a number, true, false or a [\"list\"] is expected after =")
        })?;
        settings.push(Setting { id, line: number, values });
    }
    Ok(settings)
}

fn read_value(text: &str) -> Option<Vec<String>> {
    let is_end = |rest: &str| rest.trim_start().is_empty() || rest.trim_start().starts_with('#');
    if let Some(literal) = text.strip_prefix('\'') {
        let (literal, rest) = literal.split_once('\'')?;
        return is_end(rest).then(|| vec![literal.to_owned()]);
    }
    // All other TOML values on one line are JSON.
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
    let value = values.next()?.ok()?;
    if !is_end(text.get(values.byte_offset()..)?) {
        return None;
    }
    let one = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        serde_json::Value::Bool(on) => Some(on.to_string()),
        serde_json::Value::Null | serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
            None
        }
    };
    match value.as_array() {
        Some(items) => items.iter().map(one).collect(),
        None => Some(vec![one(&value)?]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_read_as_toml_writes_them() {
        #[rustfmt::skip]
        let table: [(&str, Option<&[&str]>); 13] = [
            (r#""20s""#,                Some(&["20s"])),
            (r#""a # b" # comment"#,    Some(&["a # b"])),
            (r#""a \"b\"""#,            Some(&["a \"b\""])),
            (r"'C:\n' # literal",       Some(&["C:\\n"])),
            ("5",                       Some(&["5"])),
            ("true",                    Some(&["true"])),
            (r#"["a", "b"]"#,           Some(&["a", "b"])),
            ("[]",                      Some(&[])),
            ("bare",                    None),
            ("",                        None),
            (r#""open"#,                None),
            (r#""a" b"#,                None),
            ("{}",                      None),
        ];
        for (text, values) in table {
            let read = read_value(text);
            let read: Option<Vec<&str>> =
                read.as_ref().map(|values| values.iter().map(String::as_str).collect());
            assert_eq!(read.as_deref(), values, "{text}");
        }
    }

    #[test]
    fn errors_name_their_line() {
        #[rustfmt::skip]
        let table = [
            ("# fine\n\ngrace = \"1s\"\n", None),
            ("grace \"1s\"",              Some("line 1: name = value")),
            ("\n[run]",                  Some("line 2: name = value")),
            ("a = 1\na = 2",             Some("line 2: \"a\" is set twice")),
            ("a = b",                    Some("line 1: a \"string\"")),
        ];
        for (text, fault) in table {
            let read = parse(text);
            match fault {
                None => assert!(read.is_ok(), "{text:?}: {read:?}"),
                Some(fault) => {
                    assert!(read.as_ref().unwrap_err().starts_with(fault), "{text:?}: {read:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn random_settings_files_never_panic(text in "(.|\n)*") {
            drop(parse(&text));
        }
    }
}
