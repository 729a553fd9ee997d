//! The commands `trial` and `metrics`: query a manager or a store, and print the answers as tables, JSON or YAML.

mod description;
mod explanation;
mod list;

use std::io::Write as _;

use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use trial_protocol::{ExperimentId, TrialJobId};

pub(super) use self::explanation::explanation;
use super::experiment::exit_code;
use super::selection::paging::{all_metrics, find_trials, origins};
use super::selection::trial_name::TrialName;
use super::selection::{Error, ExperimentArgs, Format, OutputArgs};
use super::terminal::cells::{list_items, member_text, moment};
use super::terminal::description::PAGE_MEMBER;
use super::terminal::output::{print_value, text_style, write_stdout};
use super::terminal::plain_text::{pluralize, printable};
use super::terminal::table::{ColumnFit, table};
use super::terminal::text_style::TextStyle;
use super::{follow, integer, print_error};
use crate::api::client::{self, Client};
use crate::api::percent;
use crate::app;
use crate::search::user_point;

/// The level of an agent's log. Each level includes the levels before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Level {
    /// Failures only.
    Error,
    /// Also warnings.
    Warn,
    /// Also the actions of the agent.
    Info,
    /// Also details, such as each failed attempt to send reports.
    Debug,
}

/// The subcommands of `trial`.
#[derive(Debug, Subcommand)]
pub(super) enum TrialCommand {
    /// List trials.
    #[command(alias = "list")]
    Ls {
        /// Id of the experiment; same as --experiment.
        id: Option<ExperimentId>,
        /// Show only trials in these states, such as FAILED,RUNNING. Case is ignored.
        #[arg(long)]
        state: Option<String>,
        /// Show only trials whose verdict has this cause, such as oom-cuda. Use unknown for trials without a verdict.
        #[arg(long)]
        cause: Option<String>,
        /// Show only trials that contain this text.
        #[arg(long = "contains", alias = "holds", value_name = "TEXT")]
        contains: Option<String>,
        /// Show only trials that match this expression, such as 'lr < 0.01 and state == failed'.
        #[arg(long, value_name = "EXPRESSION")]
        filter: Option<String>,
        /// Sort by sequence, id, state, final, latest, started, ended, duration, parameters.NAME or metrics.NAME.
        #[arg(long, default_value = "sequence")]
        sort: String,
        /// Sort in descending order.
        #[arg(long)]
        descending: bool,
        /// Maximum number of trials to show.
        #[arg(long, value_parser = integer::<usize>(0..=u64::MAX), allow_negative_numbers = true)]
        limit: Option<usize>,
        #[command(flatten)]
        options: OutputArgs,
    },
    /// Show the details of a trial.
    Show {
        /// Id or number of the trial.
        trial: TrialName,
        #[command(flatten)]
        options: OutputArgs,
    },
    /// Explain the state of a trial: verdict, evidence and timeline.
    Why {
        /// Id or number of the trial.
        trial: TrialName,
        #[command(flatten)]
        options: OutputArgs,
    },
    /// Print the output of a trial.
    Logs {
        /// Id or number of the trial.
        trial: TrialName,
        /// Follow the output until the trial ends.
        #[arg(long, short)]
        follow: bool,
        /// Print standard error instead of standard output.
        #[arg(long)]
        stderr: bool,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// List the files of a trial on the manager's machine, and their folder.
    Files {
        /// Id or number of the trial.
        trial: TrialName,
        #[command(flatten)]
        options: OutputArgs,
    },
    /// Stop trials.
    #[command(alias = "kill")]
    Stop {
        /// Ids or numbers of the trials.
        #[arg(required = true)]
        trials: Vec<TrialName>,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Make the agents of trials send the log lines that they still buffer.
    Flush {
        /// Ids or numbers of the trials.
        #[arg(required = true)]
        trials: Vec<TrialName>,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Set the log level of the agents of trials.
    LogLevel {
        /// Least severe level that the agents log.
        #[arg(value_enum)]
        level: Level,
        /// Ids or numbers of the trials.
        #[arg(required = true)]
        trials: Vec<TrialName>,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Add a trial with parameters of your own, which runs before the tuner's next trials.
    ///
    /// The tuner also receives its result. Prints the id of the trial.
    Add {
        /// Parameter and its value, which is JSON or plain text. Repeat the option for each parameter. Parameters
        /// that are not set are drawn from the search space.
        #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
        set: Vec<(String, Value)>,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Rerun trials that have ended: now, or with the next `resume` if the experiment has no manager.
    #[command(alias = "retry")]
    Rerun {
        /// Ids or numbers of the trials.
        #[arg(required_unless_present = "failed")]
        trials: Vec<TrialName>,
        /// Rerun all failed trials.
        #[arg(long)]
        failed: bool,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
}

/// Executes a subcommand and returns the exit code.
pub(super) async fn trial(command: TrialCommand) -> u8 {
    let done = match command {
        TrialCommand::Ls {
            id,
            state,
            cause,
            contains,
            filter,
            sort,
            descending,
            limit,
            options,
        } => {
            let options = options.for_experiment(id);
            let mut query = format!("sort={}", percent::encode(&sort));
            if descending {
                query.push_str("&order=desc");
            }
            let filters = [("state", state), ("cause", cause), ("q", contains), ("filter", filter)];
            for (name, value) in filters {
                query.extend(value.map(|value| format!("&{name}={}", percent::encode(&value))));
            }
            trials(&options, &query, limit).await
        }
        TrialCommand::Show { trial, options } => {
            show_trial(&options, &trial, description::trial).await
        }
        TrialCommand::Why { trial, options } => show_trial(&options, &trial, explanation).await,
        TrialCommand::Logs { trial, follow, stderr, experiment_args } => {
            logs(&experiment_args, &trial, follow, if stderr { "stderr" } else { "stdout" }).await
        }
        TrialCommand::Files { trial, options } => files(&options, &trial).await,
        TrialCommand::Stop { trials, experiment_args } => {
            request_for_each(&experiment_args, trials, "stop", None).await
        }
        TrialCommand::Flush { trials, experiment_args } => {
            request_for_each(&experiment_args, trials, "flush", None).await
        }
        TrialCommand::LogLevel { level, trials, experiment_args } => {
            let level = level.to_possible_value().map(|word| word.get_name().to_owned());
            request_for_each(
                &experiment_args,
                trials,
                "log-level",
                Some(&json!({ "level": level })),
            )
            .await
        }
        TrialCommand::Add { set, experiment_args } => add(&experiment_args, set).await,
        TrialCommand::Rerun { trials, failed, experiment_args } => {
            rerun(&experiment_args, &trials, failed).await
        }
    };
    exit_code(done)
}

/// Parses `NAME=VALUE`.
fn setting(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            Ok((name.to_owned(), user_point::parse_written_value(value)))
        }
        Some(_) | None => Err("expected NAME=VALUE, such as lr=0.01".to_owned()),
    }
}

async fn add(experiment_args: &ExperimentArgs, set: Vec<(String, Value)>) -> Result<(), Error> {
    let mut parameters = Map::new();
    for (name, value) in set {
        if parameters.insert(name.clone(), value).is_some() {
            return Err(Error::SetTwice(name));
        }
    }
    let body = json!({ "parameters": parameters });
    let answer = experiment_args
        .manager()
        .await?
        .request_json("POST", "/api/v1/trials", Some(&body))
        .await?;
    let id = answer.get("id").and_then(Value::as_str).unwrap_or_default();
    write_stdout(format!("{id}\n").as_bytes())
}

/// Shows all metrics of a trial, or only those with the given `name`, and returns the exit code.
pub(super) async fn metrics(trial: &TrialName, name: Option<&str>, options: &OutputArgs) -> u8 {
    let shown = async {
        let client = options.experiment_args.client().await?;
        let id = trial.find(&client).await?;
        let found = all_metrics(&client, id.as_str(), name).await?;
        if let Some(name) = name.filter(|_| found.is_empty()) {
            let note = format!("trial {id} has no metric `{}`", printable(name));
            // Ignored: standard error may be closed.
            drop(writeln!(std::io::stderr().lock(), "{note}; omit --name to list its metrics"));
        }
        print_value(options.output, &Value::Array(found), metric_table)
    };
    exit_code(shown.await)
}

async fn trials(options: &OutputArgs, query: &str, limit: Option<usize>) -> Result<(), Error> {
    let client = options.experiment_args.client().await?;
    let mut rows = find_trials(&client, query, limit).await?;
    // The table shows places only if they differ, so a single trial needs none.
    if matches!(options.output, Format::Table) && rows.len() > 1 {
        let mut origins = origins(&client).await?;
        for trial in &mut rows {
            let origin = trial.get("id").and_then(Value::as_str).and_then(|id| origins.remove(id));
            if let (Some(Value::Object(origin)), Some(trial)) = (origin, trial.as_object_mut()) {
                trial.extend(origin);
            }
        }
    }
    if matches!(options.output, Format::Table) && text_style().links {
        link_pages(&mut rows, &options.experiment_args).await;
    }
    print_value(options.output, &Value::Array(rows), list::trials)
}

/// Adds to each trial the address of its page, if a manager or another server serves it.
async fn link_pages(trials: &mut [Value], experiment_args: &ExperimentArgs) {
    let Ok((_, url)) = experiment_args.portal().await else { return };
    for trial in trials {
        if let Some(id) = trial.get("id").and_then(Value::as_str) {
            trial[PAGE_MEMBER] = Value::from(format!("{url}/trials/{id}"));
        }
    }
}

async fn show_trial(
    options: &OutputArgs,
    trial: &TrialName,
    table: impl FnOnce(&Value, TextStyle) -> String,
) -> Result<(), Error> {
    let client = options.experiment_args.client().await?;
    let path = format!("/api/v1/trials/{}", trial.find(&client).await?);
    let mut answer = client.request_json("GET", &path, None).await?;
    if matches!(options.output, Format::Table) && text_style().links {
        link_pages(std::slice::from_mut(&mut answer), &options.experiment_args).await;
    }
    print_value(options.output, &answer, table)
}

async fn logs(
    experiment_args: &ExperimentArgs,
    trial: &TrialName,
    follow: bool,
    stream: &str,
) -> Result<(), Error> {
    let client = experiment_args.client().await?;
    let trial = trial.find(&client).await?;
    if follow {
        return follow::follow(experiment_args, client, &trial, stream).await;
    }
    let path = format!("/api/v1/trials/{trial}/log/{stream}");
    let bytes = client.request_bytes("GET", &path, None).await?;
    write_stdout(&bytes)
}

async fn files(options: &OutputArgs, trial: &TrialName) -> Result<(), Error> {
    let client = options.experiment_args.client().await?;
    let path = format!("/api/v1/trials/{}/files", trial.find(&client).await?);
    let answer = client.request_json("GET", &path, None).await?;
    print_value(options.output, &answer, file_table)
}

async fn request_for_each(
    experiment_args: &ExperimentArgs,
    trials: Vec<TrialName>,
    verb: &str,
    body: Option<&Value>,
) -> Result<(), Error> {
    let client = experiment_args.manager().await?;
    let ids = TrialName::find_all(&trials, &client).await?;
    send_for_each(&client, &ids, verb, body).await
}

/// Sends the request `verb` for each trial, also after the manager refused one of them. Prints all refusals except the
/// last one, which it returns.
async fn send_for_each(
    client: &Client,
    trials: &[TrialJobId],
    verb: &str,
    body: Option<&Value>,
) -> Result<(), Error> {
    let mut refused: Option<Error> = None;
    for trial in trials {
        match client.request_json("POST", &format!("/api/v1/trials/{trial}/{verb}"), body).await {
            Ok(_) => {}
            Err(error @ client::Error::Refused { status: 404 | 409, .. }) => {
                if let Some(before) = refused.replace(error.into()) {
                    print_error(&before);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    refused.map_or(Ok(()), Err)
}

/// Requests another run of ended trials, or marks them for the next `resume` if the experiment has no manager.
async fn rerun(
    experiment_args: &ExperimentArgs,
    trials: &[TrialName],
    failed: bool,
) -> Result<(), Error> {
    let client = experiment_args.client().await?;
    let ids = if failed {
        let failed = find_trials(&client, "state=FAILED", None).await?;
        let ids =
            failed.iter().filter_map(|trial| TrialJobId::new(trial.get("id")?.as_str()?).ok());
        ids.collect()
    } else {
        TrialName::find_all(trials, &client).await?
    };
    let note = if ids.is_empty() {
        "no trial has failed".to_owned()
    } else if matches!(client, Client::Remote { .. }) {
        return send_for_each(&client, &ids, "rerun", None).await;
    } else {
        let (experiment, dir) = experiment_args.dir().await?;
        app::rerun_trials(&dir, &ids).await.map_err(app::Error::from)?;
        let (trials, them) =
            (pluralize(ids.len(), "trial"), if ids.len() == 1 { "it" } else { "them" });
        format!("marked {trials} to rerun; `trial-manager resume {experiment}` runs {them}")
    };
    // Ignored: standard error may be closed.
    drop(writeln!(std::io::stderr().lock(), "{note}"));
    Ok(())
}

/// Returns the list of a trial's metrics.
fn metric_table(all: &Value, style: TextStyle) -> String {
    let rows = all.as_array().into_iter().flatten().map(|one| {
        ["name", "type", "step", "value"].into_iter().map(|name| member_text(one, name)).collect()
    });
    let heads = [
        ("metric", ColumnFit::Text),
        ("type", ColumnFit::Text),
        ("step", ColumnFit::Number),
        ("value", ColumnFit::Text),
    ];
    table(heads, rows, style)
}

/// Returns the list of a trial's files, and their folder.
fn file_table(all: &Value, style: TextStyle) -> String {
    let rows = list_items(all, "files").map(|one| {
        vec![member_text(one, "name"), member_text(one, "bytes"), moment(one, "modified_ms")]
    });
    let heads =
        [("file", ColumnFit::Text), ("bytes", ColumnFit::Number), ("changed", ColumnFit::Text)];
    let more = if all["cut"] == true { "and more\n" } else { "" };
    format!("{}{more}in {}\n", table(heads, rows, style), member_text(all, "folder"))
}

#[cfg(test)]
mod tests;
