//! PURE: parses the most common command lines, `trialkeeper [run] [--FLAG VALUE]... [--] CMD`. They have the flags and
//! variables that a program sets when it starts many trials. For these lines, clap's table of fifty flags takes longer
//! to build than a trial takes to start. The table also leaves a quarter of a megabyte of memory behind that is never
//! used again.
//!
//! The result is the same as clap's; a test compares them. Lines that this module does not understand are left to clap,
//! which reports errors.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;

use super::values::{heartbeat, log_line_bytes, manager, rotate_bytes, sample_interval};
use super::{PodArgs, RunArgs, WatchArgs, config_file, defaults, duration};

/// The prefix of the agent's variables.
pub(super) const PREFIX: &str = "TRIALKEEPER_";

/// The id of a setting, and the function that applies its text to the run. The text is not empty. The function returns
/// `None` for an invalid text.
type Setting = (&'static str, fn(&mut RunArgs, &str) -> Option<()>);

const SETTINGS: [Setting; 32] = [
    ("shell", |run, text| put(&mut run.shell, Some(text.into()))),
    ("experiment", |run, text| put(&mut run.experiment, read(text))),
    ("trial", |run, text| put(&mut run.trial, read(text))),
    ("attempt", |run, text| put(&mut run.attempt, read(text))),
    ("sequence", |run, text| put(&mut run.sequence, read(text))),
    ("platform", |run, text| put(&mut run.platform, read(text))),
    ("manager", |run, text| put(&mut run.manager.manager, manager(text).ok())),
    ("manager_file", |run, text| put(&mut run.manager.manager_file, read(text))),
    ("token_file", |run, text| put(&mut run.manager.token_file, read(text))),
    ("ca_file", |run, text| put(&mut run.manager.ca_file, read(text))),
    ("output_dir", |run, text| put(&mut run.output_dir, read(text))),
    ("spool_dir", |run, text| put(&mut run.spool_dir, read(text))),
    ("spool_bytes", |run, text| set(&mut run.spool_bytes, read(text))),
    ("rotate_bytes", |run, text| put(&mut run.rotate_bytes, rotate_bytes(text).ok())),
    ("termination_log", |run, text| put(&mut run.termination_log, read(text))),
    ("log_collection", |run, text| set(&mut run.log_collection, choice(text))),
    ("log_line_bytes", |run, text| set(&mut run.log_line_bytes, log_line_bytes(text).ok())),
    ("log_rate", |run, text| set(&mut run.log_rate, read(text))),
    ("parameters", |run, text| put(&mut run.parameters, Some(text.into()))),
    ("objective", |run, text| put(&mut run.objective, read(text))),
    ("direction", |run, text| put(&mut run.direction, read(text))),
    ("grace", |run, text| set(&mut run.grace, duration(text).ok())),
    ("drain", |run, text| set(&mut run.drain, duration(text).ok())),
    ("flush", |run, text| set(&mut run.flush, duration(text).ok())),
    ("heartbeat", |run, text| set(&mut run.heartbeat, heartbeat(text).ok())),
    ("sample_interval", |run, text| {
        set(&mut run.watch.sample_interval, sample_interval(text).ok())
    }),
    ("code_archive", |run, text| put(&mut run.pod.code_archive, read(text))),
    ("code_base", |run, text| put(&mut run.pod.code_base, read(text))),
    ("start_timeout", |run, text| set(&mut run.pod.start_timeout, duration(text).ok())),
    ("fetch", |run, text| set(&mut run.pod.fetch, text.split(',').map(choice).collect())),
    ("roles", |run, text| set(&mut run.pod.roles, text.split(',').map(read).collect())),
    ("log_file", |run, text| put(&mut run.log_file, read(text))),
];

fn read<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn choice<T: ValueEnum>(text: &str) -> Option<T> {
    T::from_str(text, false).ok()
}

fn set<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

fn put<T>(place: &mut Option<T>, value: Option<T>) -> Option<()> {
    *place = Some(value?);
    Some(())
}

/// Returns the run that `words` and the variables describe, or `None` if this module cannot parse them.
pub(super) fn run(
    words: &[OsString],
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Option<RunArgs> {
    let (has_run_word, mut rest) = match words.get(1..)? {
        [run, rest @ ..] if run == "run" => (true, rest),
        rest => (false, rest),
    };
    let mut run = default_run();
    let mut given = Vec::new();
    while let [word, more @ ..] = rest
        && word.as_encoded_bytes().starts_with(b"-")
        && word != "--"
    {
        let flag = word.to_str()?.strip_prefix("--")?;
        let (flag, value, more) = match (flag.split_once('='), more) {
            (Some((flag, value)), _) => (flag, value, more),
            (None, [value, more @ ..]) if !value.as_encoded_bytes().starts_with(b"-") => {
                (flag, value.to_str()?, more)
            }
            (None, _) => return None,
        };
        let (id, apply) = SETTINGS.iter().find(|(id, _)| is_flag(flag, id))?;
        if given.contains(id) || value.is_empty() {
            return None;
        }
        apply(&mut run, value)?;
        given.push(id);
        rest = more;
    }
    run.command = match rest {
        [dashes, command @ ..] if dashes == "--" => command,
        command if has_run_word => command,
        _ => return None,
    }
    .to_vec();
    // Two settings that exclude each other are left to clap.
    for (name, value) in variables.into_iter().filter(|(name, _)| has_agent_prefix(name)) {
        let setting = &name.to_str()?[PREFIX.len()..];
        let (id, apply) = SETTINGS.iter().find(|(id, _)| is_variable(setting, id))?;
        if !value.is_empty() && !given.contains(id) {
            apply(&mut run, value.to_str()?)?;
            given.push(id);
        }
    }
    let has_conflict =
        |id: &str| config_file::conflicting_setting(id).is_some_and(|other| given.contains(&other));
    let alone = run.shell.is_some() == run.command.is_empty();
    (alone && !given.iter().any(|id| has_conflict(id))).then_some(run)
}

fn is_flag(flag: &str, id: &str) -> bool {
    flag.bytes().eq(id.bytes().map(|byte| if byte == b'_' { b'-' } else { byte }))
}

fn is_variable(setting: &str, id: &str) -> bool {
    setting.bytes().eq(id.bytes().map(|byte| byte.to_ascii_uppercase()))
}

/// Returns whether the variable `name` may set a flag.
pub(super) fn has_agent_prefix(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// Returns the defaults of all flags. All others are absent, empty or off by default.
fn default_run() -> RunArgs {
    let time = |text| duration(text).unwrap_or_default();
    let number = |text| read(text).unwrap_or_default();
    RunArgs {
        spool_bytes: number(defaults::SPOOL_BYTES),
        log_line_bytes: log_line_bytes(defaults::LOG_LINE_BYTES).unwrap_or_default(),
        log_rate: number(defaults::LOG_RATE),
        collect: defaults::COLLECT.split(',').filter_map(choice).collect(),
        grace: time(defaults::STOP_GRACE),
        drain: time(defaults::DRAIN),
        flush: time(defaults::FLUSH),
        heartbeat: time(defaults::HEARTBEAT),
        watch: WatchArgs {
            sample_interval: time(defaults::SAMPLE_INTERVAL),
            gpu_program: PathBuf::from(defaults::GPU_PROGRAM),
            stall_after: time(defaults::STALL_AFTER),
            gpu_idle_after: time(defaults::GPU_IDLE_AFTER),
            gpu_hang_after: time(defaults::GPU_HANG_AFTER),
            ..WatchArgs::default()
        },
        pod: PodArgs { start_timeout: time(defaults::START_TIMEOUT), ..PodArgs::default() },
        ..RunArgs::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A valid text for each setting, and an invalid one, if there is any.
    #[rustfmt::skip]
    const TEXTS: [(&str, &str, Option<&str>); SETTINGS.len()] = [
        ("shell",           "a | b",                    None),
        ("experiment",      "exp-1",                    Some("a/b")),
        ("trial",           "abcde",                    Some("..")),
        ("attempt",         "a-1",                      Some("a b")),
        ("sequence",        "7",                        Some("x")),
        ("platform",        "local",                    None),
        ("manager",         "http://10.0.0.1:8080",     Some("10.0.0.1:8080")),
        ("manager_file",    "/access/manager.url",      None),
        ("token_file",      "/access/token",            None),
        ("ca_file",         "/access/ca.pem",           None),
        ("output_dir",      "a b/run",                  None),
        ("spool_dir",       "/spool",                   None),
        ("spool_bytes",     "1048576",                  Some("1M")),
        ("rotate_bytes",    "104857600",                Some("1")),
        ("termination_log", "/dev/termination-log",     None),
        ("log_collection",  "http",                     Some("HTTP")),
        ("log_line_bytes",  "4096",                     Some("0")),
        ("log_rate",        "0",                        Some("0x1")),
        ("parameters",      "{\"parameters\": {\"x\": \"=\"}}", None),
        ("objective",       "val=loss",                 None),
        ("direction",       "minimize",                 Some("down")),
        ("grace",           "1.5m",                     Some("soon")),
        ("drain",           "0",                        Some("1y")),
        ("flush",           "60s",                      Some("s")),
        ("heartbeat",       "500ms",                    Some("1ms")),
        ("sample_interval", "0",                        Some("1ms")),
        ("code_archive",    "/e/code.tar.gz",           None),
        ("code_base",       "/e/code-base",             None),
        ("start_timeout",   "601s",                     Some("s600")),
        ("fetch",           "parameters,code",          Some("code,,code")),
        ("roles",           "worker:2,ps:1:2222",       Some("worker")),
        ("log_file",        "log",                      None),
    ];

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn plain(words: &[OsString], variables: &[(&str, &str)]) -> Option<String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        run(words, variables).map(|run| format!("{run:?}"))
    }

    /// Returns clap's result for the words, or `None` if clap refuses them.
    fn parse_with_clap(words: &[OsString]) -> Option<String> {
        let Ok(super::super::Cli { command: super::super::Command::Run(mut run) }) =
            super::super::parse_with_clap(words.to_vec())
        else {
            return None;
        };
        // Warnings about variables in the environment of the test.
        run.warnings.clear();
        Some(format!("{run:?}"))
    }

    #[test]
    fn a_plain_line_is_parsed_as_by_clap() {
        for line in [
            "trialkeeper run -- python -u train.py --grace 1",
            "trialkeeper run python -u train.py -- x",
            "trialkeeper -- run",
            "trialkeeper run run",
            "trialkeeper run -- -- x",
            "trialkeeper run --grace 1 --drain=2 python --grace 3",
            "trialkeeper --grace 1 -- x",
            "trialkeeper run --manager http://h --manager-file= -- x",
        ] {
            let words = words(line);
            assert_eq!(plain(&words, &[]).is_some(), !line.contains("-file="), "{line}");
            assert_eq!(plain(&words, &[]), parse_with_clap(&words), "{line}");
        }
    }

    #[test]
    fn each_setting_is_parsed_as_by_clap() {
        for ((id, good, bad), (known, _)) in TEXTS.into_iter().zip(SETTINGS) {
            assert_eq!(id, known);
            let command: &[&str] = if id == "shell" { &[] } else { &["--", "x"] };
            let line = |flags: &[&str]| -> Vec<OsString> {
                let all = [&["trialkeeper", "run"], flags, command].concat();
                all.into_iter().map(OsString::from).collect()
            };
            let (flag, name) = (format!("--{}", id.replace('_', "-")), id.to_uppercase());
            let variable = format!("{PREFIX}{name}");
            let expected = parse_with_clap(&line(&[&flag, good]));
            assert!(expected.is_some() && expected != parse_with_clap(&line(&[])), "{id}: {good}");
            assert_eq!(plain(&line(&[&flag, good]), &[]), expected, "{id}");
            assert_eq!(plain(&line(&[&format!("{flag}={good}")]), &[]), expected, "{id}");
            assert_eq!(plain(&line(&[]), &[(&variable, good)]), expected, "{id}");
            // A flag takes precedence over its variable, even over an invalid one. An empty variable has no effect.
            let (given, other) = (line(&[&flag, good]), bad.unwrap_or("other"));
            assert_eq!(plain(&given, &[(&variable, other)]), expected, "{id}");
            assert_eq!(plain(&given, &[(&variable, "")]), expected, "{id}");
            for bad in bad.into_iter().chain([""]) {
                let line = line(&[&format!("{flag}={bad}")]);
                assert_eq!(plain(&line, &[]), None, "{id}: {bad:?}");
                assert!(parse_with_clap(&line).is_none() || bad.is_empty(), "{id}: {bad:?}");
            }
        }
    }

    fn word() -> impl Strategy<Value = String> {
        let text = prop::sample::select(TEXTS.to_vec());
        prop_oneof![
            4 => text.clone().prop_map(|(id, ..)| format!("--{}", id.replace('_', "-"))),
            4 => text.clone().prop_map(|(_, good, _)| good.to_owned()),
            2 => text.prop_map(|(id, good, _)| format!("--{}={good}", id.replace('_', "-"))),
            2 => prop::sample::select(vec!["--", "run", "x", "-v", "-", "", "1", "--grace="])
                .prop_map(str::to_owned),
        ]
    }

    proptest! {
        #[test]
        fn the_plain_parser_agrees_with_clap(
            run in any::<bool>(),
            words in prop::collection::vec(word(), 0..6),
            command in any::<bool>(),
        ) {
            let run = run.then(|| "run".to_owned());
            let command = if command { vec!["--".to_owned(), "x".to_owned()] } else { Vec::new() };
            let whole = ["trialkeeper".to_owned()].into_iter().chain(run).chain(words).chain(command);
            let words: Vec<OsString> = whole.map(OsString::from).collect();
            if let Some(plain) = plain(&words, &[]) {
                prop_assert_eq!(Some(plain), parse_with_clap(&words));
            }
        }
    }

    #[test]
    fn other_lines_are_left_to_clap() {
        for line in [
            "trialkeeper",
            "trialkeeper run",
            "trialkeeper run --",
            "trialkeeper --",
            "trialkeeper x",
            "trialkeeper --grace 1 x",
            "trialkeeper run -v -- x",
            "trialkeeper run --help",
            "trialkeeper --help",
            "trialkeeper version",
            "trialkeeper run --grace",
            "trialkeeper run --grace -1 -- x",
            "trialkeeper run --grace 1 --grace 2 -- x",
            "trialkeeper run --log_rate 1 -- x",
            "trialkeeper run --shell x -- x",
            "trialkeeper run --manager http://h --manager-file x -- x",
            "trialkeeper run --config x -- x",
        ] {
            assert_eq!(plain(&words(line), &[]), None, "{line:?}");
        }
        let line = words("trialkeeper run --manager http://h -- x");
        for (name, value) in [
            ("TRIALKEEPER_MANAGER_FILE", "x"),
            ("TRIALKEEPER_GRAZE", "1"),
            ("TRIALKEEPER_grace", "1"),
            ("TRIALKEEPER_CONFIG", "x"),
            ("TRIALKEEPER_SHELL", "x"),
            ("TRIALKEEPER_", "x"),
        ] {
            assert_eq!(plain(&line, &[(name, value)]), None, "{name}");
        }
        assert!(plain(&line, &[("GRACE", "x"), ("TRIALKEEPER_MANAGER_FILE", "")]).is_some());
    }
}
