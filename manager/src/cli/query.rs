//! `experiment`, `trial` and `metrics`: asked of whoever answers, shown as a table or as data.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use trial_protocol::{ExperimentId, TrialJobId};

use super::ask::{Error, Format, Place, experiments};
use super::table;
use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, data_dir, export, show, upkeep};
use crate::api::client::{self, Client};
use crate::config;

/// Trials that are asked for at a time.
const PAGE: usize = 1000;

/// Something about an experiment.
#[derive(Debug, Subcommand)]
pub(super) enum ExperimentCommand {
    /// List the experiments on this machine.
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Show how an experiment stands.
    Show {
        #[command(flatten)]
        place: Place,
    },
    /// Stop an experiment's trials and leave it resumable.
    Stop {
        #[command(flatten)]
        place: Place,
    },
    /// Bound an experiment that runs otherwise.
    Limit {
        /// Trials at a time.
        #[arg(long)]
        trial_concurrency: Option<u64>,
        /// Trials in all.
        #[arg(long)]
        max_trial_number: Option<u64>,
        /// Running time, such as 90m.
        #[arg(long)]
        max_experiment_duration: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Let an experiment's tuner learn results from elsewhere.
    Import {
        /// A list of {"parameter": ..., "value": ...} as NNI has it, or what `export --form json` wrote. JSON or YAML.
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
        /// In which form.
        #[arg(long, value_enum, default_value_t = ExportForm::Csv)]
        form: ExportForm,
        /// Where to: a file for csv and json, a new folder for tensorboard and mlflow [default: standard
        /// output].
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
    Ls {
        /// Only these states, such as FAILED,RUNNING.
        #[arg(long)]
        state: Option<String>,
        /// Only trials whose verdict has this cause, such as oom-cuda; unknown: those without a verdict.
        #[arg(long)]
        cause: Option<String>,
        /// Only trials that hold this text.
        #[arg(long)]
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
        place: Place,
    },
    /// Show one trial.
    Show {
        /// Which.
        trial: TrialJobId,
        #[command(flatten)]
        place: Place,
    },
    /// Say why a trial stands where it does: verdict, evidence, timeline.
    Why {
        /// Which.
        trial: TrialJobId,
        #[command(flatten)]
        place: Place,
    },
    /// Print a trial's output.
    Logs {
        /// Which.
        trial: TrialJobId,
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
        /// Which.
        #[arg(required = true)]
        trials: Vec<TrialJobId>,
        #[command(flatten)]
        place: Place,
    },
    /// Have the agents of trials send what they still gather.
    Flush {
        /// Which.
        #[arg(required = true)]
        trials: Vec<TrialJobId>,
        #[command(flatten)]
        place: Place,
    },
    /// Have the agents of trials log from a level on, until they are told otherwise.
    LogLevel {
        /// From which level on.
        #[arg(value_enum)]
        level: Level,
        /// Which.
        #[arg(required = true)]
        trials: Vec<TrialJobId>,
        #[command(flatten)]
        place: Place,
    },
    /// Run trials that have ended once more.
    Retry {
        /// Which.
        #[arg(required_unless_present = "failed")]
        trials: Vec<TrialJobId>,
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
        ExperimentCommand::Ls { place } => list(&place).await,
        ExperimentCommand::Show { place } => about(&place).await,
        ExperimentCommand::Stop { place } => {
            change(&place, "POST", "/api/v1/experiment/stop", None).await
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
        ExperimentCommand::Export { form, to, place } => return exported(form, to, &place).await,
        ExperimentCommand::Rm { id, data_dir } => return upkeep::remove(&id, data_dir),
    };
    told(done)
}

/// Does something about trials and returns the exit code.
pub(super) async fn trial(command: TrialCommand) -> u8 {
    let done = match command {
        TrialCommand::Ls { state, cause, holds, sort, descending, limit, place } => {
            let mut query = format!("sort={}", escaped(&sort));
            if descending {
                query.push_str("&order=desc");
            }
            for (name, value) in [("state", state), ("cause", cause), ("q", holds)] {
                query.extend(value.map(|value| format!("&{name}={}", escaped(&value))));
            }
            trials(&place, &query, limit).await
        }
        TrialCommand::Show { trial, place } => one(&place, &trial, table::trial).await,
        TrialCommand::Why { trial, place } => one(&place, &trial, table::why).await,
        TrialCommand::Logs { trial, follow, stderr, place } => {
            logs(&place, &trial, follow, if stderr { "stderr" } else { "stdout" }).await
        }
        TrialCommand::Kill { trials, place } => each(&place, trials, "kill", None).await,
        TrialCommand::Flush { trials, place } => each(&place, trials, "flush", None).await,
        TrialCommand::LogLevel { level, trials, place } => {
            let level = level.to_possible_value().map(|word| word.get_name().to_owned());
            each(&place, trials, "log-level", Some(&json!({ "level": level }))).await
        }
        TrialCommand::Retry { trials, failed: false, place } => {
            each(&place, trials, "retry", None).await
        }
        TrialCommand::Retry { failed: true, place, .. } => retry_failed(&place).await,
    };
    told(done)
}

/// Shows a trial's metrics and returns the exit code.
pub(super) async fn metrics(trial: &TrialJobId, place: &Place) -> u8 {
    let asked = async {
        let client = place.client().await?;
        let found = all_metrics(&client, trial.as_str()).await?;
        print(place.output, &Value::Array(found), table::metrics)
    };
    told(asked.await)
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

/// Prints what a program reads, or what `table` makes of it.
fn print(format: Format, value: &Value, table: impl FnOnce(&Value) -> String) -> Result<(), Error> {
    let text = match format {
        Format::Table => table(value),
        Format::Json => format!("{value:#}\n"),
        Format::Yaml => serde_saphyr::to_string(value).unwrap_or_default(),
    };
    written(text.as_bytes())
}

/// Writes on standard output. A reader that has gone is no error; a full disk is.
fn written(bytes: &[u8]) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::Output(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn list(place: &Place) -> Result<(), Error> {
    let found = experiments(&data_dir(place.data_dir.clone())).await;
    let rows = found.into_iter().map(|found| match found.row {
        Ok(Some(row)) => json!({
            "id": found.id,
            "name": row.canonical.get("experimentName"),
            "state": row.state,
            "created_at_ms": row.created_at_ms,
            "ended_at_ms": row.ended_at_ms,
        }),
        Ok(None) => json!({"id": found.id, "state": "EMPTY"}),
        Err(error) => json!({"id": found.id, "state": "UNREADABLE", "problem": error.to_string()}),
    });
    print(place.output, &rows.collect(), table::experiments)
}

async fn about(place: &Place) -> Result<(), Error> {
    let shown = place.client().await?.ask("GET", "/api/v1/experiment", None).await?;
    print(place.output, &shown, table::experiment)
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
            Err(config::Error { file: file.to_owned(), problem: detail }.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// All trials that a query finds, at most `limit`.
async fn found(client: &Client, query: &str, limit: Option<usize>) -> Result<Vec<Value>, Error> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut rows = Vec::new();
    let mut cursor = String::new();
    while rows.len() < limit {
        let page = PAGE.min(limit - rows.len());
        let path = format!("/api/v1/trials?{query}&limit={page}&cursor={cursor}");
        let answer = client.ask("GET", &path, None).await?;
        rows.extend(answer.get("trials").and_then(Value::as_array).into_iter().flatten().cloned());
        let Some(next) = answer.get("next").and_then(Value::as_str) else { break };
        next.clone_into(&mut cursor);
    }
    Ok(rows)
}

async fn trials(place: &Place, query: &str, limit: Option<usize>) -> Result<(), Error> {
    let rows = found(&place.client().await?, query, limit).await?;
    print(place.output, &Value::Array(rows), table::trials)
}

async fn one(
    place: &Place,
    trial: &TrialJobId,
    table: impl FnOnce(&Value) -> String,
) -> Result<(), Error> {
    let path = format!("/api/v1/trials/{trial}");
    let answer = place.client().await?.ask("GET", &path, None).await?;
    print(place.output, &answer, table)
}

async fn logs(place: &Place, trial: &TrialJobId, follow: bool, stream: &str) -> Result<(), Error> {
    let client = place.client().await?;
    if !follow {
        let path = format!("/api/v1/trials/{trial}/log/{stream}");
        let bytes = client.bytes("GET", &path, None).await?;
        return written(&bytes);
    }
    let mut lines = client.lines(&format!("/api/v1/trials/{trial}/events")).await?;
    let mut event = String::new();
    while let Some(line) = lines.next().await {
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut event);
        } else if let Some(data) = line.strip_prefix("data: ")
            && event == "log"
        {
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            let text = data.get("text").and_then(Value::as_str).unwrap_or_default();
            if data.get("stream").and_then(Value::as_str) == Some(stream) {
                let mut stdout = std::io::stdout().lock();
                if stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_err() {
                    break;
                }
            }
        }
    }
    Ok(())
}

async fn each(
    place: &Place,
    trials: Vec<TrialJobId>,
    verb: &str,
    body: Option<&Value>,
) -> Result<(), Error> {
    let client = place.manager().await?;
    for trial in trials {
        client.ask("POST", &format!("/api/v1/trials/{trial}/{verb}"), body).await?;
    }
    Ok(())
}

async fn retry_failed(place: &Place) -> Result<(), Error> {
    let client = place.manager().await?;
    for trial in found(&client, "state=FAILED", None).await? {
        let id = trial.get("id").and_then(Value::as_str).unwrap_or_default();
        client.ask("POST", &format!("/api/v1/trials/{id}/retry"), None).await?;
    }
    Ok(())
}

/// All metrics of a trial's current attempt.
pub(super) async fn all_metrics(client: &Client, trial: &str) -> Result<Vec<Value>, Error> {
    let mut metrics = Vec::new();
    let mut after = -1;
    loop {
        let path = format!("/api/v1/trials/{trial}/metrics?limit=10000&after={after}");
        let page = client.ask("GET", &path, None).await?;
        metrics
            .extend(page.get("metrics").and_then(Value::as_array).into_iter().flatten().cloned());
        match page.get("next").and_then(Value::as_i64) {
            Some(next) => after = next,
            None => return Ok(metrics),
        }
    }
}

async fn exported(form: ExportForm, to: Option<PathBuf>, place: &Place) -> u8 {
    let gathered = async {
        let client = place.client().await?;
        let trials = found(&client, "sort=sequence", None).await?;
        let mut whole = Vec::with_capacity(trials.len());
        for trial in trials {
            let id = trial.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
            let metrics = match form {
                ExportForm::Csv => Vec::new(),
                ExportForm::Json | ExportForm::Tensorboard | ExportForm::Mlflow => {
                    all_metrics(&client, &id).await?
                }
            };
            whole.push((trial, metrics));
        }
        Ok::<_, Error>(whole)
    };
    let trials = match gathered.await {
        Ok(trials) => trials,
        Err(error) => return told(Err(error)),
    };
    match export::write(form, to.as_deref(), &trials) {
        Ok(()) => DONE,
        Err(error) => {
            show(&error);
            BAD_INPUT
        }
    }
}

/// Percent-encoded (RFC 3986, section 2.1).
fn escaped(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~,".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").unwrap_or_default();
        }
        escaped
    })
}
