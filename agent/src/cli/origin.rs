//! The origins of values: the variables that take effect, and the source of a refused value. A user who set a variable,
//! or a line of the settings file, needs to see that source and not the flag.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory};

use super::Cli;
use super::config_file::{self, Settings};
use super::flags::VARIABLE_PREFIX;

/// Adds the variable or the file's line to the error, if the value came from there. `is_set` returns whether the
/// caller's environment has a variable.
pub(super) fn name_origins(
    mut error: clap::Error,
    command: &Command,
    words: &[OsString],
    settings: &Settings,
    is_set: impl Fn(&OsStr) -> bool,
) -> clap::Error {
    let chosen = words.get(1).and_then(|word| word.to_str());
    let Some(command) = chosen.and_then(|name| command.find_subcommand(name)) else {
        return error;
    };
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        let Some(ContextValue::String(shown)) = error.get(kind) else { continue };
        let Some(flag) = shown.split(' ').next().and_then(|word| word.strip_prefix("--")) else {
            continue;
        };
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag));
        let elsewhere = |_: &&Arg| !is_given(words, flag);
        let origin = arg.filter(elsewhere).and_then(|arg| match arg.get_env() {
            Some(name) if is_set(name) => Some(name.to_string_lossy().into_owned()),
            _ => settings.place_of(arg.get_id().as_str()),
        });
        if let Some(origin) = origin {
            let text = format!("{origin} ({shown})");
            error.insert(kind, ContextValue::String(text));
        }
    }
    error
}

/// Adds advice to the error if a trial's command was given in the place of a command of the agent.
pub(super) fn with_advice(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) {
        let advice =
            format!("to run it as a trial's command, write 'trialkeeper run -- {word} ...'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    error
}

/// Returns whether a variable takes effect if it is set. An empty variable does not, because templates leave such
/// variables for absent values. Nor does a variable that contradicts a flag among the words, because flags take
/// precedence.
pub(super) fn is_effective(name: &OsStr, words: &[OsString]) -> bool {
    let Some(value) = std::env::var_os(name) else { return true };
    let setting = name.to_str().and_then(|name| name.strip_prefix(VARIABLE_PREFIX));
    let other =
        setting.and_then(|setting| config_file::conflicting_setting(&setting.to_lowercase()));
    !value.is_empty() && !other.is_some_and(|other| is_flag(words, other))
}

/// Returns whether a flag sets `id`. Parsing takes long, so the function parses only words that look like the flag.
/// They may be the trial's own.
fn is_flag(words: &[OsString], id: &str) -> bool {
    let read = || Cli::command().ignore_errors(true).try_get_matches_from(words).ok();
    let of_flag = |matches: ArgMatches| {
        let (_, chosen) = matches.subcommand()?;
        chosen.try_contains_id(id).ok()?;
        Some(chosen.value_source(id)? == ValueSource::CommandLine)
    };
    is_given(words, &id.replace('_', "-")) && read().and_then(of_flag) == Some(true)
}

/// Returns whether the flag is among the agent's own words, which precede the trial's.
fn is_given(words: &[OsString], flag: &str) -> bool {
    let ours = words.iter().take_while(|word| *word != "--");
    ours.filter_map(|word| word.to_str()?.strip_prefix("--"))
        .any(|word| word.split('=').next() == Some(flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_command_in_the_place_of_an_agent_command_is_refused_with_advice() {
        let parsed = Cli::command().try_get_matches_from(["trialkeeper", "python", "x"]);
        let message = with_advice(parsed.unwrap_err()).to_string();
        assert!(message.contains("trialkeeper run -- python ..."), "{message}");
        let other = Cli::command().try_get_matches_from(["trialkeeper", "run", "--graze"]);
        let message = with_advice(other.unwrap_err()).to_string();
        assert!(
            message.contains("--grace") && !message.contains("as a trial's command"),
            "{message}"
        );
    }

    #[test]
    fn the_error_for_a_refused_value_names_its_origin() {
        let settings = Settings::of("keeper.toml", "\nheartbeat = \"soon\"\n").unwrap();
        #[rustfmt::skip]
        let table: [(&[&str], &[&str], &str); 7] = [
            (&["--grace", "soon", "--", "x"],               &[],                     "value 'soon' for '--grace <TIME>'"),
            (&["--grace=soon", "--", "x"],                  &["TRIALKEEPER_GRACE"],  "value 'soon' for '--grace <TIME>'"),
            (&["--", "x", "--grace", "soon"],               &["TRIALKEEPER_GRACE"],  "value 'soon' for 'TRIALKEEPER_GRACE (--grace <TIME>)'"),
            (&["--", "x"],                                  &["TRIALKEEPER_LISTEN"], "value 'soon' for 'TRIALKEEPER_LISTEN (--listen <ADDR>)'"),
            (&["--", "x"],                                  &["TRIALKEEPER_COLLECT"], "value 'soon' for 'TRIALKEEPER_COLLECT (--collect <KINDS>)'"),
            (&["--", "x"],                                  &["heartbeat"],          "value 'soon' for 'line 2 of keeper.toml (--heartbeat <TIME>)'"),
            (&["--manager", "http://a", "--manager-file", "b", "--", "x"], &[],      "'--manager <URL>' cannot be used with '--manager-file <FILE>'"),
        ];
        for (line, set, expected) in table {
            let words: Vec<_> =
                ["trialkeeper", "run"].iter().chain(line).map(OsString::from).collect();
            // clap's default stands for a variable or a line of the file: all three are values that are not among the
            // words.
            let mut command = Cli::command();
            for name in set {
                let flag = name.trim_start_matches("TRIALKEEPER_").to_lowercase();
                command = command.mut_subcommand("run", |run| {
                    run.mut_arg(flag, |arg| arg.default_value("soon"))
                });
            }
            let error = command.clone().try_get_matches_from(&words).unwrap_err();
            let is_set = |name: &OsStr| set.iter().any(|set| name == *set);
            let named = name_origins(error, &command, &words, &settings, is_set).to_string();
            assert!(named.contains(expected), "{line:?}: {named}");
        }
    }
}
