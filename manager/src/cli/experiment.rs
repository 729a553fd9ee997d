//! `experiment`, `trial` and `metrics`: asked of whoever answers, shown as a table or as data.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Subcommand, ValueEnum};
use serde_json::{Value, json};
use trial_protocol::{ExperimentId, TrialJobId};

use super::ask::{Asked, Error, Place, experiments};
use super::follow;
use super::named::TrialName;
use super::out::{print, written};
use super::pages::{all_metrics, code_of, escaped, found};
use super::progress::counted;
use super::table;
use super::table::columns::TextStyle;
use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, data_dir, export, show, upkeep};
use crate::api::client::{self, Client};
use crate::app;
use crate::config;
use crate::layout::ExperimentDir;
use crate::store::Store;
use crate::view;

/// Something about an experiment.
#[derive(Debug, Subcommand)]
pub(super) enum ExperimentCommand {
    /// List the experiments on this machine, or the one of --manager.
    #[command(alias = "list")]
    Ls {
        #[command(flatten)]
        asked: Asked,
    },
    /// Show how an experiment stands.
    Show {
        /// Which; the same as --experiment.
        id: Option<ExperimentId>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Stop an experiment's trials and leave it resumable.
    Stop {
        /// Which; the same as --experiment.
        id: Option<ExperimentId>,
        #[command(flatten)]
        place: Place,
    },
    /// Bound an experiment that runs otherwise.
    #[command(group(ArgGroup::new("limits").required(true).multiple(true)))]
    Limit {
        /// Trials at a time.
        #[arg(long, value_name = "N", group = "limits")]
        trial_concurrency: Option<u64>,
        /// Trials in all.
        #[arg(long, value_name = "N", group = "limits")]
        max_trial_number: Option<u64>,
        /// Running time, such as 90m.
        #[arg(long, value_name = "TIME", group = "limits")]
        max_experiment_duration: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Let an experiment's tuner learn results from elsewhere.
    Import {
        /// A list of {"parameter": ..., "value": ...} as NNI has it, or what `export --format json` wrote. JSON or YAML.
        file: PathBuf,
        #[command(flatten)]
        place: Place,
    },
    /// Change what an experiment that runs searches.
    Update {
        /// File with the search space from now on, JSON or YAML.
        #[arg(long, value_name = "FILE")]
        search_space: PathBuf,
        #[command(flatten)]
        place: Place,
    },
    /// Write what an experiment found.
    Export {
        /// Which; the same as --experiment.
        id: Option<ExperimentId>,
        /// The format.
        #[arg(long = "format", alias = "form", value_name = "FORMAT", value_enum, default_value_t = ExportForm::Csv)]
        form: ExportForm,
        /// Where to: a file for csv and json, a new folder for tensorboard and mlflow [default: standard
        /// output, as does `-`].
        #[arg(long)]
        to: Option<PathBuf>,
        #[command(flatten)]
        place: Place,
    },
    /// Remove an experiment that does not run, with all it recorded.
    Rm {
        /// Which.
        id: ExperimentId,
        /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
        #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
        data_dir: Option<PathBuf>,
    },
}

/// Forms of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportForm {
    /// A line per trial.
    Csv,
    /// Every trial with every metric.
    Json,
    /// A folder that `tensorboard --logdir` shows.
    Tensorboard,
    /// A folder that `mlflow ui --backend-store-uri` shows.
    Mlflow,
}

/// How talkative an agent's log is; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Level {
    /// What failed.
    Error,
    /// And what looks wrong.
    Warn,
    /// And what the agent does.
    Info,
    /// And every try.
    Debug,
}

/// Something about a trial.
#[derive(Debug, Subcommand)]
pub(super) enum TrialCommand {
    /// List trials.
    #[command(alias = "list")]
    Ls {
        /// Of which experiment; the same as --experiment.
        id: Option<ExperimentId>,
        /// Only these states, such as FAILED,RUNNING, in any case.
        #[arg(long)]
        state: Option<String>,
        /// Only trials whose verdict has this cause, such as oom-cuda; unknown: those without a verdict.
        #[arg(long)]
        cause: Option<String>,
        /// Only trials that contain this text.
        #[arg(long = "contains", alias = "holds", value_name = "TEXT")]
        holds: Option<String>,
        /// Sorted by sequence, id, state, final, latest, started, ended, duration or parameters.NAME.
        #[arg(long, default_value = "sequence")]
        sort: String,
        /// The largest first.
        #[arg(long)]
        descending: bool,
        /// At most so many.
        #[arg(long)]
        limit: Option<usize>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Show one trial.
    Show {
        /// Which, by its id or its number.
        trial: TrialName,
        #[command(flatten)]
        asked: Asked,
    },
    /// Say why a trial stands where it does: verdict, evidence, timeline.
    Why {
        /// Which, by its id or its number.
        trial: TrialName,
        #[command(flatten)]
        asked: Asked,
    },
    /// Print a trial's output.
    Logs {
        /// Which, by its id or its number.
        trial: TrialName,
        /// Go on as it grows, until the trial ends.
        #[arg(long, short)]
        follow: bool,
        /// Standard error instead of standard output.
        #[arg(long)]
        stderr: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Stop trials.
    Kill {
        /// Which, by their ids or numbers.
        #[arg(required = true)]
        trials: Vec<TrialName>,
        #[command(flatten)]
        place: Place,
    },
    /// Have the agents of trials send what they still gather.
    Flush {
        /// Which, by their ids or numbers.
        #[arg(required = true)]
        trials: Vec<TrialName>,
        #[command(flatten)]
        place: Place,
    },
    /// Have the agents of trials log from a level on, until they are told otherwise.
    LogLevel {
        /// From which level on.
        #[arg(value_enum)]
        level: Level,
        /// Which, by their ids or numbers.
        #[arg(required = true)]
        trials: Vec<TrialName>,
        #[command(flatten)]
        place: Place,
    },
    /// Run trials that have ended once more: now, or by `resume` where nobody runs the experiment.
    Retry {
        /// Which, by their ids or numbers.
        #[arg(required_unless_present = "failed")]
        trials: Vec<TrialName>,
        /// All that failed.
        #[arg(long)]
        failed: bool,
        #[command(flatten)]
        place: Place,
    },
}

/// Does something about an experiment and returns the exit code.
pub(super) async fn experiment(command: ExperimentCommand) -> u8 {
    let done = match command {
        ExperimentCommand::Ls { asked } => list(&asked).await,
        ExperimentCommand::Show { id, asked } => about(&asked.of(id)).await,
        ExperimentCommand::Stop { id, place } => {
            change(&place.of(id), "POST", "/api/v1/experiment/stop", None).await
        }
        ExperimentCommand::Limit {
            trial_concurrency,
            max_trial_number,
            max_experiment_duration,
            place,
        } => {
            let limits = json!({
                "trial_concurrency": trial_concurrency,
                "max_trial_number": max_trial_number,
                "max_experiment_duration": max_experiment_duration,
            });
            change(&place, "PATCH", "/api/v1/experiment", Some(&limits)).await
        }
        ExperimentCommand::Import { file, place } => {
            give(&place, "POST", "/api/v1/experiment/import", &file).await
        }
        ExperimentCommand::Update { search_space, place } => {
            give(&place, "PUT", "/api/v1/experiment/search-space", &search_space).await
        }
        ExperimentCommand::Export { id, form, to, place } => {
            return exported(form, to, &place.of(id)).await;
        }
        ExperimentCommand::Rm { id, data_dir } => return upkeep::remove(&id, data_dir),
    };
    told(done)
}

/// Does something about trials and returns the exit code.
pub(super) async fn trial(command: TrialCommand) -> u8 {
    let done = match command {
        TrialCommand::Ls { id, state, cause, holds, sort, descending, limit, asked } => {
            let asked = asked.of(id);
            let mut query = format!("sort={}", escaped(&sort));
            if descending {
                query.push_str("&order=desc");
            }
            for (name, value) in [("state", state), ("cause", cause), ("q", holds)] {
                query.extend(value.map(|value| format!("&{name}={}", escaped(&value))));
            }
            trials(&asked, &query, limit).await
        }
        TrialCommand::Show { trial, asked } => one(&asked, &trial, table::trial).await,
        TrialCommand::Why { trial, asked } => one(&asked, &trial, table::why).await,
        TrialCommand::Logs { trial, follow, stderr, place } => {
            logs(&place, &trial, follow, if stderr { "stderr" } else { "stdout" }).await
        }
        TrialCommand::Kill { trials, place } => each(&place, trials, "kill", None).await,
        TrialCommand::Flush { trials, place } => each(&place, trials, "flush", None).await,
        TrialCommand::LogLevel { level, trials, place } => {
            let level = level.to_possible_value().map(|word| word.get_name().to_owned());
            each(&place, trials, "log-level", Some(&json!({ "level": level }))).await
        }
        TrialCommand::Retry { trials, failed, place } => retry(&place, &trials, failed).await,
    };
    told(done)
}

/// Shows a trial's metrics and returns the exit code.
pub(super) async fn metrics(trial: &TrialName, asked: &Asked) -> u8 {
    let shown = async {
        let client = asked.place.client().await?;
        let id = trial.find(&client).await?;
        let found = all_metrics(&client, id.as_str()).await?;
        print(asked.output, &Value::Array(found), table::metrics)
    };
    told(shown.await)
}

fn told(done: Result<(), Error>) -> u8 {
    match done {
        Ok(()) => DONE,
        Err(error) => {
            show(&error);
            if error.is_usage() { BAD_INPUT } else { NOTHING_SUCCEEDED }
        }
    }
}

/// What a list says of an experiment, beside its address.
const LISTED: [&str; 6] = ["id", "name", "state", "created_at_ms", "ended_at_ms", "trouble"];

async fn list(asked: &Asked) -> Result<(), Error> {
    if let Some(url) = &asked.place.manager {
        let mut one = asked.place.client().await?.ask("GET", "/api/v1/experiment", None).await?;
        if let Some(members) = one.as_object_mut() {
            members.retain(|name, _| LISTED.contains(&name.as_str()));
            members.insert("url".to_owned(), url.as_str().into());
        }
        return print(asked.output, &Value::Array(vec![one]), table::experiments);
    }
    let data_dir = data_dir(asked.place.data_dir.clone());
    let found = experiments(&data_dir).await;
    let rows = found.into_iter().map(|found| match found.row {
        Ok(Some(row)) => {
            let dir = ExperimentDir::new(&data_dir, &found.id);
            let open = Store::is_open_to_write(&dir.database());
            let url = || std::fs::read_to_string(dir.manager_url()).ok();
            json!({
                "id": found.id,
                "name": row.canonical.get("experimentName"),
                "state": row.state,
                "url": (open == Some(true)).then(url).flatten().map(|url| url.trim().to_owned()),
                "created_at_ms": row.created_at_ms,
                "ended_at_ms": row.ended_at_ms,
                // That nobody runs it, or what its manager noted.
                "trouble": view::left(&row, open).or(row.trouble),
            })
        }
        Ok(None) => json!({"id": found.id, "state": "EMPTY"}),
        Err(error) => json!({"id": found.id, "state": "UNREADABLE", "trouble": error.to_string()}),
    });
    print(asked.output, &rows.collect(), table::experiments)
}

async fn about(asked: &Asked) -> Result<(), Error> {
    let shown = asked.place.client().await?.ask("GET", "/api/v1/experiment", None).await?;
    print(asked.output, &shown, table::experiment)
}

async fn change(
    place: &Place,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<(), Error> {
    place.manager().await?.ask(method, path, body).await?;
    Ok(())
}

/// Hands over what a file holds. A refusal names the file.
async fn give(place: &Place, method: &str, path: &str, file: &Path) -> Result<(), Error> {
    let document = config::read(file)?;
    match place.manager().await?.ask(method, path, Some(&document)).await {
        Ok(_) => Ok(()),
        Err(client::Error::Refused { status: 400, detail }) => {
            Err(config::Error { file: file.to_owned(), at: None, problem: detail }.into())
        }
        Err(error) => Err(error.into()),
    }
}

async fn trials(asked: &Asked, query: &str, limit: Option<usize>) -> Result<(), Error> {
    let rows = found(&asked.place.client().await?, query, limit).await?;
    print(asked.output, &Value::Array(rows), table::trials)
}

async fn one(
    asked: &Asked,
    trial: &TrialName,
    table: impl FnOnce(&Value, TextStyle) -> String,
) -> Result<(), Error> {
    let client = asked.place.client().await?;
    let path = format!("/api/v1/trials/{}", trial.find(&client).await?);
    let answer = client.ask("GET", &path, None).await?;
    print(asked.output, &answer, table)
}

async fn logs(place: &Place, trial: &TrialName, follow: bool, stream: &str) -> Result<(), Error> {
    let client = place.client().await?;
    let trial = trial.find(&client).await?;
    if follow {
        return follow::follow(place, client, &trial, stream).await;
    }
    let path = format!("/api/v1/trials/{trial}/log/{stream}");
    let bytes = client.bytes("GET", &path, None).await?;
    written(&bytes)
}

async fn each(
    place: &Place,
    trials: Vec<TrialName>,
    verb: &str,
    body: Option<&Value>,
) -> Result<(), Error> {
    let client = place.manager().await?;
    let ids = TrialName::find_all(&trials, &client).await?;
    ask_each(&client, &ids, verb, body).await
}

/// Asks it of each trial. The refusal of one keeps nothing from the others; each is shown, the last one by whoever asked.
async fn ask_each(
    client: &Client,
    trials: &[TrialJobId],
    verb: &str,
    body: Option<&Value>,
) -> Result<(), Error> {
    let mut refused: Option<Error> = None;
    for trial in trials {
        match client.ask("POST", &format!("/api/v1/trials/{trial}/{verb}"), body).await {
            Ok(_) => {}
            Err(error @ client::Error::Refused { status: 404 | 409, .. }) => {
                if let Some(before) = refused.replace(error.into()) {
                    show(&before);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    refused.map_or(Ok(()), Err)
}

/// Has ended trials run once more: now by their manager, or, where nobody runs the experiment, by the next `resume`.
async fn retry(place: &Place, trials: &[TrialName], failed: bool) -> Result<(), Error> {
    let client = place.client().await?;
    let ids = if failed {
        let failed = found(&client, "state=FAILED", None).await?;
        let ids =
            failed.iter().filter_map(|trial| TrialJobId::new(trial.get("id")?.as_str()?).ok());
        ids.collect()
    } else {
        TrialName::find_all(trials, &client).await?
    };
    if matches!(client, Client::Far { .. }) {
        return ask_each(&client, &ids, "retry", None).await;
    }
    let (experiment, dir) = place.dir().await?;
    app::again(&dir, &ids).await.map_err(app::Error::from)?;
    let marked = match ids.len() {
        0 => "no trial has failed".to_owned(),
        count => {
            let (trials, them) = (counted(count, "trial"), if count == 1 { "it" } else { "them" });
            format!("{trials} to run once more; `trial-manager resume {experiment}` runs {them}")
        }
    };
    // A closed standard error is no reason to fail.
    drop(writeln!(std::io::stderr().lock(), "{marked}"));
    Ok(())
}

async fn exported(form: ExportForm, to: Option<PathBuf>, place: &Place) -> u8 {
    let to = to.as_deref().filter(|to| *to != Path::new("-"));
    let written = async {
        let client = place.client().await?;
        let trials = found(&client, "sort=sequence", None).await?;
        let mut writer = match export::Writer::new(form, to) {
            Ok(writer) => writer,
            Err(error) => return Ok(Err(error)),
        };
        let experiment = client.ask("GET", "/api/v1/experiment", None).await?;
        for mut trial in trials {
            let id = trial.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
            if let Some(sha256) = code_of(&client, &experiment, &id).await? {
                trial["code_sha256"] = sha256;
            }
            let metrics = match form {
                ExportForm::Csv => Vec::new(),
                ExportForm::Json | ExportForm::Tensorboard | ExportForm::Mlflow => {
                    all_metrics(&client, &id).await?
                }
            };
            if let Err(error) = writer.add(&(trial, metrics)) {
                return Ok(Err(error));
            }
        }
        Ok::<_, Error>(writer.finish())
    };
    match written.await {
        Ok(Ok(())) => DONE,
        Ok(Err(error)) => {
            show(&error);
            BAD_INPUT
        }
        Err(error) => told(Err(error)),
    }
}
