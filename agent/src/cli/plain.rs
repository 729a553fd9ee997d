//! PURE: parses the most common command lines, `trialkeeper [run] [--FLAG VALUE]... [--] CMD`. They have the flags and
//! variables that a program sets when it starts many trials. For these lines, clap's table of fifty flags takes longer
//! to build than a trial takes to start. The table also leaves a quarter of a megabyte of memory behind that is never
//! used again.
//!
//! Both readers use the same [flags](super::flags), and a test compares their results. Lines that this module does not
//! understand are left to clap, which reports errors.

use std::ffi::{OsStr, OsString};

use clap::Command;

use super::flags::{FlagGroup, VARIABLE_PREFIX};
use super::{RunArgs, config_file};

/// Returns the run that `words` and the variables describe, or `None` if this module cannot parse them.
pub(super) fn run(
    words: &[OsString],
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Option<RunArgs> {
    let (has_run_word, mut rest) = match words.get(1..)? {
        [run, rest @ ..] if run == "run" => (true, rest),
        rest => (false, rest),
    };
    let (mut run, command) = (RunArgs::default(), Command::default());
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
        let (group, id) = find(&mut run, |id| is_flag(flag, id))?;
        if given.contains(&id) || value.is_empty() {
            return None;
        }
        group.set_text(&command, id, value)?;
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
        let setting = &name.to_str()?[VARIABLE_PREFIX.len()..];
        let (group, id) = find(&mut run, |id| is_variable(setting, id))?;
        if !value.is_empty() && !given.contains(&id) {
            group.set_text(&command, id, value.to_str()?)?;
            given.push(id);
        }
    }
    let has_conflict =
        |id: &str| config_file::conflicting_setting(id).is_some_and(|other| given.contains(&other));
    let alone = run.trial.shell.is_some() == run.command.is_empty();
    (alone && !given.iter().any(|id| has_conflict(id))).then_some(run)
}

/// Returns the flag whose id `is_meant` accepts, and its group.
fn find(
    run: &mut RunArgs,
    is_meant: impl Fn(&str) -> bool,
) -> Option<(&mut dyn FlagGroup, &'static str)> {
    run.groups().into_iter().find_map(|group| {
        let id = group.ids().iter().find(|id| is_meant(id))?;
        Some((group, *id))
    })
}

fn is_flag(flag: &str, id: &str) -> bool {
    flag.bytes().eq(id.bytes().map(|byte| if byte == b'_' { b'-' } else { byte }))
}

fn is_variable(setting: &str, id: &str) -> bool {
    setting.bytes().eq(id.bytes().map(|byte| byte.to_ascii_uppercase()))
}

/// Returns whether the variable `name` may set a flag.
pub(super) fn has_agent_prefix(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(VARIABLE_PREFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use proptest::prelude::*;

    use super::*;

    /// A valid text for each flag with a value, and an invalid one, if there is any.
    #[rustfmt::skip]
    const TEXTS: [(&str, &str, Option<&str>); 50] = [
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
        ("exit_code_map",   "kubernetes",               Some("slurm")),
        ("log_collection",  "http",                     Some("HTTP")),
        ("log_line_bytes",  "4096",                     Some("0")),
        ("log_rate",        "0",                        Some("0x1")),
        ("mask_env",        "TOKEN,KEY",                None),
        ("parameters",      "{\"parameters\": {\"x\": \"=\"}}", None),
        ("collect",         "json",                     Some("json,xml")),
        ("metric_pattern",  "loss (?<loss>[0-9.]+)\n(?<x>.),", Some("(")),
        ("metric_file",     "a:b c",                    None),
        ("tensorboard",     "runs",                     None),
        ("sdk_channel",     "http",                     Some("tcp")),
        ("objective",       "val=loss",                 None),
        ("direction",       "minimize",                 Some("down")),
        ("grace",           "1.5m",                     Some("soon")),
        ("drain",           "0",                        Some("1y")),
        ("flush",           "60s",                      Some("s")),
        ("heartbeat",       "500ms",                    Some("1ms")),
        ("sample_interval", "0",                        Some("1ms")),
        ("gpu_program",     "none",                     None),
        ("stall_after",     "1h",                       Some("h")),
        ("gpu_idle_after",  "0",                        Some("never")),
        ("gpu_hang_after",  "1d",                       Some("1w")),
        ("fetch",           "parameters,code",          Some("code,,code")),
        ("code_dir",        "/code",                    None),
        ("code_archive",    "/e/code.tar.gz",           None),
        ("code_base",       "/e/code-base",             None),
        ("start_timeout",   "601s",                     Some("s600")),
        ("role",            "worker",                   None),
        ("role_index",      "1",                        Some("4294967296")),
        ("incarnation",     "u-1",                      None),
        ("roles",           "worker:2,ps:1:2222",       Some("worker")),
        ("metrics_from",    "worker:0",                 Some("worker")),
        ("pod_ip",          "10.0.0.1",                 Some("10.0.0")),
        ("listen",          "[::]:9464",                Some("9464")),
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
    fn every_flag_with_a_value_is_plain() {
        let command = super::super::Cli::command();
        let run = command.find_subcommand("run").unwrap();
        let takes_values = |id: &&str| {
            let flag = run.get_arguments().find(|arg| arg.get_id() == *id).expect(id);
            flag.get_action().takes_values()
        };
        let mut args = RunArgs::default();
        let groups = args.groups();
        let ids = groups.iter().flat_map(|group| group.ids()).copied().filter(takes_values);
        assert_eq!(ids.collect::<Vec<_>>(), TEXTS.map(|(id, ..)| id));
    }

    #[test]
    fn each_setting_is_parsed_as_by_clap() {
        for (id, good, bad) in TEXTS {
            let command: &[&str] = if id == "shell" { &[] } else { &["--", "x"] };
            let line = |flags: &[&str]| -> Vec<OsString> {
                let all = [&["trialkeeper", "run"], flags, command].concat();
                all.into_iter().map(OsString::from).collect()
            };
            let (flag, name) = (format!("--{}", id.replace('_', "-")), id.to_uppercase());
            let variable = format!("{VARIABLE_PREFIX}{name}");
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
