//! PURE: where a refused value came from. Whoever set a variable, or a line of the settings file, looks there and not
//! for a flag.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};

use super::config_file::Settings;

/// The refusal, with the variable or the file's line beside the flag, if the value came from there. `is_set` tells of the
/// caller's variables.
pub(super) fn name_origins(
    mut refusal: clap::Error,
    command: &Command,
    words: &[OsString],
    settings: &Settings,
    is_set: impl Fn(&OsStr) -> bool,
) -> clap::Error {
    let chosen = words.get(1).and_then(|word| word.to_str());
    let Some(command) = chosen.and_then(|name| command.find_subcommand(name)) else {
        return refusal;
    };
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        let Some(ContextValue::String(shown)) = refusal.get(kind) else { continue };
        let Some(flag) = shown.split(' ').next().and_then(|word| word.strip_prefix("--")) else {
            continue;
        };
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag));
        let given = |arg: &&Arg| !is_given(words, arg);
        let origin = arg.filter(given).and_then(|arg| match arg.get_env() {
            Some(name) if is_set(name) => Some(name.to_string_lossy().into_owned()),
            _ => settings.place_of(arg.get_id().as_str()),
        });
        if let Some(origin) = origin {
            let text = format!("{origin} ({shown})");
            refusal.insert(kind, ContextValue::String(text));
        }
    }
    refusal
}

/// Whether the flag is among the words before the trial's own.
fn is_given(words: &[OsString], arg: &Arg) -> bool {
    let ours = words.iter().take_while(|word| *word != "--");
    let flag = arg.get_long().unwrap_or_default();
    ours.filter_map(|word| word.to_str()?.strip_prefix("--"))
        .any(|word| word.split('=').next() == Some(flag))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    #[test]
    fn a_refused_value_is_named_by_where_it_was_set() {
        let settings = Settings::of("keeper.toml", "\nheartbeat = \"soon\"\n").unwrap();
        #[rustfmt::skip]
        let table: [(&[&str], &[&str], &str); 7] = [
            (&["--grace", "soon", "--", "x"],               &[],                     "value 'soon' for '--grace <TIME>'"),
            (&["--grace=soon", "--", "x"],                  &["TRIALKEEPER_GRACE"],  "value 'soon' for '--grace <TIME>'"),
            (&["--", "x", "--grace", "soon"],               &["TRIALKEEPER_GRACE"],  "value 'soon' for 'TRIALKEEPER_GRACE (--grace <TIME>)'"),
            (&["--", "x"],                                  &["TRIALKEEPER_LISTEN"], "value 'soon' for 'TRIALKEEPER_LISTEN (--listen <ADDR>)'"),
            (&["--", "x"],                                  &["TRIALKEEPER_COLLECT"], "value 'soon' for 'TRIALKEEPER_COLLECT (--collect <KINDS>)'"),
            (&["--", "x"],                                  &["heartbeat"],          "value 'soon' for 'line 2 of keeper.toml (--heartbeat <TIME>)'"),
            (&["--manager", "a", "--manager-file", "b", "--", "x"], &[],             "'--manager <URL>' cannot be used with '--manager-file <FILE>'"),
        ];
        for (line, set, expected) in table {
            let words: Vec<_> =
                ["trialkeeper", "run"].iter().chain(line).map(OsString::from).collect();
            // A variable, or a line of the file, is a value that is not among the words.
            let mut command = Cli::command();
            for name in set {
                let flag = name.trim_start_matches("TRIALKEEPER_").to_lowercase();
                command = command.mut_subcommand("run", |run| {
                    run.mut_arg(flag, |arg| arg.default_value("soon"))
                });
            }
            let refusal = command.clone().try_get_matches_from(&words).unwrap_err();
            let is_set = |name: &OsStr| set.iter().any(|set| name == *set);
            let named = name_origins(refusal, &command, &words, &settings, is_set).to_string();
            assert!(named.contains(expected), "{line:?}: {named}");
        }
    }
}
