//! Shell completion: of commands and options, and of the ids, states and names that exist.
//!
//! The script that `completions` prints makes the shell run this program, with [`COMPLETION_VARIABLE`] set and the
//! words typed so far as arguments. The shell waits for the answer, so the program leaves out values that would take
//! too long to find.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use clap::{Arg, Command, Parser};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use serde_json::Value;

use super::paging::find_trials;
use super::{ExperimentArgs, experiments};
use crate::cli::data_dir;
use crate::job_state::JobState;
use crate::view;
use crate::view::table::Column;

/// The environment variable in which the script passes the name of the shell.
const COMPLETION_VARIABLE: &str = "TRIAL_MANAGER_COMPLETE";
/// The name of the program on the command line.
const PROGRAM_NAME: &str = "trial-manager";
/// The maximum time that a shell waits for a manager or a store.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of trials whose ids are offered.
const MAX_TRIALS: usize = 1_000;

/// Answers a shell and exits the program, if a shell requested a completion.
pub(in crate::cli) fn complete_if_requested(command: fn() -> Command) {
    CompleteEnv::with_factory(move || with_values(command()))
        .var(COMPLETION_VARIABLE)
        .bin(PROGRAM_NAME)
        .complete();
}

/// Returns the completion script of a shell. `program` is the path by which this program was called.
///
/// # Errors
///
/// The library does not support the shell. This cannot happen for the shells of the command line.
pub(in crate::cli) fn script(shell: clap_complete::Shell, program: &str) -> io::Result<String> {
    let shells = Shells::builtins();
    let shell = shells.completer(&shell.to_string()).ok_or(io::ErrorKind::Unsupported)?;
    let mut script = Vec::new();
    shell.write_registration(
        COMPLETION_VARIABLE,
        PROGRAM_NAME,
        PROGRAM_NAME,
        program,
        &mut script,
    )?;
    String::from_utf8(script).map_err(io::Error::other)
}

/// Adds completers to the arguments of all commands.
fn with_values(command: Command) -> Command {
    let command = command.mut_args(with_value);
    let names: Vec<_> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_values))
}

fn with_value(arg: Arg) -> Arg {
    let values: fn() -> Vec<CompletionCandidate> = match arg.get_id().as_str() {
        "experiment" | "id" => experiment_ids,
        "trial" | "trials" => trial_ids,
        "state" => || JobState::ALL.map(|state| CompletionCandidate::new(state.as_str())).into(),
        "cause" => causes,
        "sort" => columns,
        "metric" => metric_names,
        _ => return arg,
    };
    arg.add(ArgValueCompleter::new(move |typed: &OsStr| last_of_list(typed, values())))
}

/// PURE: returns the values that complete the last entry of a list such as `FAILED,RUN`. The comparison ignores case.
fn last_of_list(typed: &OsStr, values: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let (before, last) = typed
        .rsplit_once(',')
        .map_or(("", typed), |(before, last)| (&typed[..=before.len()], last));
    let matches = |value: &CompletionCandidate| {
        let value = value.get_value().as_encoded_bytes();
        value.get(..last.len()).is_some_and(|start| start.eq_ignore_ascii_case(last.as_bytes()))
    };
    values.into_iter().filter(matches).map(|value| value.add_prefix(before)).collect()
}

fn experiment_ids() -> Vec<CompletionCandidate> {
    let found = query_in_time(async |experiment_args| {
        experiments(&data_dir(experiment_args.data_dir)).await
    });
    let described = found.unwrap_or_default().into_iter().rev().map(|found| {
        let row = found.row.ok().flatten();
        let name = row.as_ref().and_then(|row| row.canonical.get("experimentName")?.as_str());
        let text = row.as_ref().map(|row| format!("{} {}", row.state, name.unwrap_or_default()));
        // A name must not contain control sequences for the terminal.
        let text = text
            .map(|text| text.replace(|c: char| c.is_control() || view::is_direction_mark(c), " "));
        CompletionCandidate::new(found.id.as_str())
            .help(text.map(|text| text.trim_end().to_owned().into()))
    });
    described.collect()
}

fn trials() -> Vec<Value> {
    let answer = query_in_time(async |experiment_args| {
        let client = experiment_args.client().await.ok()?;
        find_trials(&client, "sort=sequence&order=desc", Some(MAX_TRIALS)).await.ok()
    });
    answer.flatten().unwrap_or_default()
}

fn trial_ids() -> Vec<CompletionCandidate> {
    let described = trials().into_iter().filter_map(|trial| {
        let state = trial["state"].as_str().unwrap_or_default();
        let text = format!("trial {}, {state}", trial["sequence"]);
        Some(CompletionCandidate::new(trial["id"].as_str()?).help(Some(text.into())))
    });
    described.collect()
}

fn causes() -> Vec<CompletionCandidate> {
    let mut causes: Vec<_> =
        trials().iter().filter_map(|trial| Some(trial["cause"].as_str()?.to_owned())).collect();
    causes.sort();
    causes.dedup();
    causes.into_iter().map(CompletionCandidate::new).collect()
}

fn metric_names() -> Vec<CompletionCandidate> {
    newest_metric_names().into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the names of the metrics of the newest trial that has metrics.
fn newest_metric_names() -> Vec<String> {
    let answer = query_in_time(async |experiment_args| {
        let client = experiment_args.client().await.ok()?;
        let trials =
            find_trials(&client, "sort=sequence&order=desc", Some(MAX_TRIALS)).await.ok()?;
        let newest = trials.iter().find(|trial| !trial["metric"].is_null())?;
        let path = format!("/api/v1/trials/{}/metrics?points=4", newest["id"].as_str()?);
        client.request_json("GET", &path, None).await.ok()
    });
    let page = answer.flatten().unwrap_or_default();
    let metrics = page["metrics"].as_array().into_iter().flatten();
    let names = metrics.filter_map(|one| one["name"].as_str());
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    // A name must not contain control sequences for the terminal.
    names.retain(|name| !name.contains(|c: char| c.is_control() || view::is_direction_mark(c)));
    names
}

fn columns() -> Vec<CompletionCandidate> {
    let trials = trials();
    let parameters = trials.first().map(|trial| view::flatten_parameters(&trial["parameters"]));
    let parameters = parameters.into_iter().flatten().map(|(name, _)| format!("parameters.{name}"));
    let columns = Column::NAMES.map(str::to_owned).into_iter().chain(parameters);
    let columns =
        columns.chain(newest_metric_names().into_iter().map(|name| format!("metrics.{name}")));
    columns.map(CompletionCandidate::new).collect()
}

/// Runs a query for the experiment that the words typed so far select. Returns `None` if the answer takes too long.
fn query_in_time<T>(question: impl AsyncFnOnce(ExperimentArgs) -> T) -> Option<T> {
    let experiment_args = parse_selection(std::env::args_os())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answered = runtime
        .block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, question(experiment_args)).await });
    runtime.shutdown_background();
    answered.ok()
}

/// A command line with only the options that select an experiment.
#[derive(Debug, Parser)]
struct SelectionArgs {
    #[command(flatten)]
    experiment_args: ExperimentArgs,
}

/// PURE except for environment variables: returns the experiment that the words of a command line select.
fn parse_selection(words: impl Iterator<Item = OsString>) -> Option<ExperimentArgs> {
    const FLAGS: [&str; 5] =
        ["--experiment", "--data-dir", "--manager", "--token-file", "--ca-file"];
    let mut kept = vec![OsString::from(PROGRAM_NAME)];
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let is_flag = text == "-e" || FLAGS.contains(&text.as_ref());
        let is_whole = FLAGS.iter().any(|flag| {
            text.strip_prefix(flag).is_some_and(|value| value.starts_with('=') && value.len() > 1)
        });
        if is_whole {
            kept.push(word);
        } else if is_flag && let Some(value) = words.next_if(|value| !value.is_empty()) {
            kept.extend([word, value]);
        }
    }
    SelectionArgs::try_parse_from(kept).ok().map(|words| words.experiment_args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_select_the_experiment() {
        #[rustfmt::skip]
        let table: [(&[&str], Option<&str>, Option<&str>); 6] = [
            (&["trial-manager", "trial", "show", ""],                        None,        None),
            (&["trial-manager", "trial", "show", "-e", "abc", ""],           Some("abc"), None),
            (&["trial-manager", "trial", "show", "--experiment=abc", "0"],   Some("abc"), None),
            (&["trial-manager", "ls", "--data-dir", "/d", "--experiment"],   None,        Some("/d")),
            (&["trial-manager", "trial", "show", "--experiment", ""],        None,        None),
            (&["trial-manager", "trial", "show", "--data-dir=/d", "-x", "1"], None,       Some("/d")),
        ];
        for (words, experiment, folder) in table {
            let experiment_args = parse_selection(words.iter().map(OsString::from)).unwrap();
            let id = experiment_args.experiment.as_ref().map(ToString::to_string);
            assert_eq!(id.as_deref(), experiment, "{words:?}");
            assert_eq!(experiment_args.data_dir.as_deref().and_then(|path| path.to_str()), folder);
        }
        assert!(parse_selection(["-e", "not/an id"].into_iter().map(OsString::from)).is_none());
    }

    #[test]
    fn the_last_entry_of_a_list_is_completed() {
        let offered = |typed: &str| -> Vec<String> {
            let values = ["FAILED", "RUNNING"].map(CompletionCandidate::new).into();
            let offered = last_of_list(OsStr::new(typed), values);
            offered.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
        };
        #[rustfmt::skip]
        let table: [(&str, &[&str]); 6] = [
            ("",            &["FAILED", "RUNNING"]),
            ("r",           &["RUNNING"]),
            ("FAILED,",     &["FAILED,FAILED", "FAILED,RUNNING"]),
            ("FAILED,RU",   &["FAILED,RUNNING"]),
            ("x",           &[]),
            ("FAILEDé",     &[]),
        ];
        for (typed, expected) in table {
            assert_eq!(offered(typed), expected, "{typed:?}");
        }
    }
}
