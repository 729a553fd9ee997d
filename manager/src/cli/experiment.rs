//! The command `experiment`: queries a manager or a store, and prints the answers as tables, JSON or YAML.

mod description;
mod list;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Subcommand};
use serde_json::{Value, json};
use trial_protocol::ExperimentId;

use super::export::ExportForm;
use super::limits::LimitArgs;
use super::selection::paging::{all_metrics, find_trials, origins};
use super::selection::{Error, ExperimentArgs, Format, OutputArgs, experiments};
use super::terminal::description::PAGE_MEMBER;
use super::terminal::output::{print_value, text_style, write_stdout};
use super::terminal::plain_text::pluralize;
use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, data_dir, export, print_error, upkeep};
use crate::api::client;
use crate::api::home::read_summaries;
use crate::config;
use crate::experiment::state::ExperimentState;
use crate::store::Store;
use crate::util::clock::{Clock as _, SystemClock};
use crate::util::layout::ExperimentDir;
use crate::view::{self, ExperimentSummary};

/// The subcommands of `experiment`.
#[derive(Debug, Subcommand)]
pub(super) enum ExperimentCommand {
    /// List the experiments on this machine, or the experiment of --manager.
    #[command(alias = "list")]
    Ls {
        #[command(flatten)]
        options: OutputArgs,
    },
    /// Show the state of an experiment: counts, causes of failure and the best trial.
    Show {
        /// Id of the experiment; same as --experiment.
        id: Option<ExperimentId>,
        #[command(flatten)]
        options: OutputArgs,
    },
    /// Stop an experiment and its trials; `resume` continues it.
    Stop {
        /// Id of the experiment; same as --experiment.
        id: Option<ExperimentId>,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Change the limits of a running experiment.
    #[command(group(ArgGroup::new("limits").required(true).multiple(true).args([
        "trial_concurrency",
        "max_trial_number",
        "max_experiment_duration",
    ])))]
    Limit {
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Import results of other searches for an experiment's tuner.
    Import {
        /// JSON or YAML file with the results: a list of {"parameter": ..., "value": ...} as in NNI, or the output of
        /// `export --format json`.
        file: PathBuf,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Change the search space of a running experiment.
    Update {
        /// File with the new search space (JSON or YAML).
        #[arg(long, value_name = "FILE")]
        search_space: PathBuf,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Export the results of an experiment.
    Export {
        /// Id of the experiment; same as --experiment.
        id: Option<ExperimentId>,
        /// Format of the export.
        #[arg(long = "format", alias = "form", value_name = "FORMAT", value_enum, default_value_t = ExportForm::Csv)]
        form: ExportForm,
        /// Path to write to: a file for csv and json, a new folder for tensorboard and mlflow [default: `-`, standard
        /// output].
        #[arg(long)]
        to: Option<PathBuf>,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Write a report of an experiment as a self-contained HTML file.
    Report {
        /// Id of the experiment; same as --experiment.
        id: Option<ExperimentId>,
        /// File to write to [default: `-`, standard output].
        #[arg(long)]
        to: Option<PathBuf>,
        #[command(flatten)]
        experiment_args: ExperimentArgs,
    },
    /// Remove an experiment that does not run, with all its data.
    Rm {
        /// Id of the experiment.
        id: ExperimentId,
        /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
        #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
        data_dir: Option<PathBuf>,
    },
}

/// Executes a subcommand and returns the exit code.
pub(super) async fn experiment(command: ExperimentCommand) -> u8 {
    let done = match command {
        ExperimentCommand::Ls { options } => list(&options).await,
        ExperimentCommand::Show { id, options } => {
            show_experiment(&options.for_experiment(id)).await
        }
        ExperimentCommand::Stop { id, experiment_args } => {
            send_request(
                &experiment_args.for_experiment(id),
                "POST",
                "/api/v1/experiment/stop",
                None,
            )
            .await
        }
        ExperimentCommand::Limit { limits, experiment_args } => {
            send_request(&experiment_args, "PATCH", "/api/v1/experiment", Some(&limits.body()))
                .await
        }
        ExperimentCommand::Import { file, experiment_args } => {
            send_file(&experiment_args, "POST", "/api/v1/experiment/import", &file).await
        }
        ExperimentCommand::Update { search_space, experiment_args } => {
            send_file(&experiment_args, "PUT", "/api/v1/experiment/search-space", &search_space)
                .await
        }
        ExperimentCommand::Export { id, form, to, experiment_args } => {
            return export_results(form, to, &experiment_args.for_experiment(id)).await;
        }
        ExperimentCommand::Report { id, to, experiment_args } => {
            write_report(to, &experiment_args.for_experiment(id)).await
        }
        ExperimentCommand::Rm { id, data_dir } => return upkeep::remove(&id, data_dir),
    };
    exit_code(done)
}

pub(super) fn exit_code(done: Result<(), Error>) -> u8 {
    match done {
        Ok(()) => EXIT_DONE,
        Err(error) => {
            print_error(&error);
            if error.is_usage() { EXIT_BAD_INPUT } else { EXIT_FAILED }
        }
    }
}

/// The fields of an experiment in a list, in addition to its address and its counts.
const LISTED_FIELDS: [&str; 7] =
    ["id", "name", "state", "created_at_ms", "ended_at_ms", "trouble", "max_trial_number"];

async fn list(options: &OutputArgs) -> Result<(), Error> {
    if let Some(url) = &options.experiment_args.manager {
        let shown = options
            .experiment_args
            .client()
            .await?
            .request_json("GET", "/api/v1/experiment", None)
            .await?;
        let listed = listed_by_manager(shown, url);
        return print_value(options.output, &Value::Array(vec![listed]), list::experiments);
    }
    let data_dir = data_dir(options.experiment_args.data_dir.clone());
    let found = experiments(&data_dir).await;
    let summaries = read_summaries(&data_dir, SystemClock.now_ms()).await.into_iter();
    let summaries: HashMap<_, _> = summaries.map(|summary| (summary.id.clone(), summary)).collect();
    let rows = found.into_iter().map(|found| match found.row {
        Ok(Some(row)) => {
            let dir = ExperimentDir::new(&data_dir, &found.id);
            let open = Store::is_open_to_write(&dir.database());
            let url = || std::fs::read_to_string(dir.manager_url()).ok();
            let (state, trouble) = if view::is_interrupted(row.ended_at_ms, open) {
                let notice = view::missing_manager_notice(found.id.as_str());
                (view::INTERRUPTED_STATE.to_owned(), Some(notice))
            } else {
                (row.state, row.trouble)
            };
            let mut listed = json!({
                "id": found.id,
                "name": row.canonical.get("experimentName"),
                "state": state,
                "url": (open == Some(true)).then(url).flatten().map(|url| url.trim().to_owned()),
                "created_at_ms": row.created_at_ms,
                "ended_at_ms": row.ended_at_ms,
                "trouble": trouble,
            });
            let summary = summaries.get(found.id.as_str());
            // Counts of a record that cannot be read are no facts.
            if let Some(summary) = summary.filter(|summary| summary.state != "UNREADABLE") {
                add_summary(&mut listed, summary);
            }
            listed
        }
        Ok(None) => json!({"id": found.id, "state": "EMPTY"}),
        Err(error) => json!({"id": found.id, "state": "UNREADABLE", "trouble": error.to_string()}),
    });
    print_value(options.output, &rows.collect(), list::experiments)
}

/// Adds the counts and the best result to an experiment in a list, and the reruns that wait for a `resume`.
fn add_summary(listed: &mut Value, summary: &ExperimentSummary) {
    let ExperimentSummary { id, trials, succeeded, failed, running, .. } = summary;
    let waiting = trials.saturating_sub(summary.ended);
    if summary.state == ExperimentState::Done.as_str() && waiting > 0 {
        let trials = pluralize(waiting, "trial");
        let sentence = format!("{trials} waiting to run again: run `trial-manager resume {id}`");
        listed["trouble"] = json!(sentence);
    }
    for (name, count) in
        [("trials", trials), ("succeeded", succeeded), ("failed", failed), ("running", running)]
    {
        listed[name] = json!(count);
    }
    listed["max_trial_number"] = json!(summary.max_trial_number);
    listed["metric"] = json!(summary.metric);
    listed["best"] = json!(summary.best);
}

/// Returns a manager's experiment as an experiment in a list.
fn listed_by_manager(mut shown: Value, url: &str) -> Value {
    let count = |state: &str| shown["counts"][state].as_u64().unwrap_or(0);
    let (succeeded, failed) = (count("SUCCEEDED"), count("FAILED"));
    let running = count("RUNNING") + count("LOST");
    let metric = [&shown["objective"], &shown["chosen_objective"]];
    let metric = metric.into_iter().find(|name| name.is_string()).cloned();
    let best = &shown["best"];
    let value = [&best["estimate"]["mean"], &best["final"]["default"], &best["final"]];
    let value = value.into_iter().find(|value| value.is_number());
    let best =
        value.map(|value| json!({"id": best["id"], "sequence": best["sequence"], "value": value}));
    let trials = shown["trials"].clone();
    let Some(members) = shown.as_object_mut() else { return shown };
    members.retain(|name, _| LISTED_FIELDS.contains(&name.as_str()));
    for (name, value) in [
        ("url", json!(url)),
        ("trials", trials),
        ("succeeded", json!(succeeded)),
        ("failed", json!(failed)),
        ("running", json!(running)),
        ("metric", json!(metric)),
        ("best", json!(best)),
    ] {
        members.insert(name.to_owned(), value);
    }
    shown
}

async fn show_experiment(options: &OutputArgs) -> Result<(), Error> {
    let mut shown = options
        .experiment_args
        .client()
        .await?
        .request_json("GET", "/api/v1/experiment", None)
        .await?;
    if matches!(options.output, Format::Table)
        && text_style().links
        && let Ok((_, url)) = options.experiment_args.portal().await
    {
        shown[PAGE_MEMBER] = url.into();
    }
    print_value(options.output, &shown, description::experiment)
}

async fn send_request(
    experiment_args: &ExperimentArgs,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<(), Error> {
    experiment_args.manager().await?.request_json(method, path, body).await?;
    Ok(())
}

/// Sends the content of a file to the manager. If the manager refuses the content, the error names the file.
async fn send_file(
    experiment_args: &ExperimentArgs,
    method: &str,
    path: &str,
    file: &Path,
) -> Result<(), Error> {
    let document = config::read_document(file)?;
    match experiment_args.manager().await?.request_json(method, path, Some(&document)).await {
        Ok(_) => Ok(()),
        Err(client::Error::Refused { status: 400, detail }) => {
            Err(config::Error { file: file.to_owned(), location: None, problem: detail }.into())
        }
        Err(error) => Err(error.into()),
    }
}

async fn write_report(to: Option<PathBuf>, experiment_args: &ExperimentArgs) -> Result<(), Error> {
    let page = experiment_args.client().await?.request_bytes("GET", "/report.html", None).await?;
    match to.filter(|to| to != Path::new("-")) {
        None => write_stdout(&page),
        Some(path) => {
            std::fs::write(&path, &page).map_err(|source| Error::WriteFile { path, source })
        }
    }
}

async fn export_results(
    form: ExportForm,
    to: Option<PathBuf>,
    experiment_args: &ExperimentArgs,
) -> u8 {
    let to = to.as_deref().filter(|to| *to != Path::new("-"));
    let written = async {
        let client = experiment_args.client().await?;
        let trials = find_trials(&client, "sort=sequence", None).await?;
        let mut origins = origins(&client).await?;
        let mut writer = match export::Writer::new(form, to) {
            Ok(writer) => writer,
            Err(error) => return Ok(Err(error)),
        };
        for mut trial in trials {
            let id = trial.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
            if let (Some(Value::Object(origin)), Some(trial)) =
                (origins.remove(&id), trial.as_object_mut())
            {
                trial.extend(origin);
            }
            let metrics = match form {
                ExportForm::Csv => Vec::new(),
                ExportForm::Json | ExportForm::Tensorboard | ExportForm::Mlflow => {
                    all_metrics(&client, &id, None).await?
                }
            };
            if let Err(error) = writer.add(&(trial, metrics)) {
                return Ok(Err(error));
            }
        }
        Ok::<_, Error>(writer.finish())
    };
    match written.await {
        Ok(Ok(())) => EXIT_DONE,
        Ok(Err(error)) => {
            print_error(&error);
            EXIT_BAD_INPUT
        }
        Err(error) => exit_code(Err(error)),
    }
}

#[cfg(test)]
mod tests;
