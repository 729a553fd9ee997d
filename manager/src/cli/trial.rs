//! The commands `trial` and `metrics`: ask a manager or a store, and show the answers as tables or as data.

use std::io::Write as _;

use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use trial_protocol::{ExperimentId, TrialJobId};

use super::ask::named::TrialName;
use super::ask::pages::{all_metrics, found, origins};
use super::ask::{Error, ExperimentArgs, Format, OutputArgs};
use super::experiment::exit_code;
use super::out::{print, text_style, written};
use super::progress::counted;
use super::table::columns::TextStyle;
use super::{follow, show, table};
use crate::api::client::{self, Client};
use crate::api::percent;
use crate::app;
use crate::search::own_point;

/// The detail of an agent's log; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Level {
    /// Failures only.
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
        /// The experiment; the same as --experiment.
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
        /// Only trials that an expression chooses, such as 'lr < 0.01 and state == failed'.
        #[arg(long, value_name = "EXPRESSION")]
        filter: Option<String>,
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
        asked: OutputArgs,
    },
    /// Show one trial.
    Show {
        /// Which, by its id or its number.
        trial: TrialName,
        #[command(flatten)]
        asked: OutputArgs,
    },
    /// Say why a trial stands where it does: verdict, evidence, timeline.
    Why {
        /// Which, by its id or its number.
        trial: TrialName,
        #[command(flatten)]
        asked: OutputArgs,
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
        place: ExperimentArgs,
    },
    /// List the files that a trial left, and their folder.
    Files {
        /// Which, by its id or its number.
        trial: TrialName,
        #[command(flatten)]
        asked: OutputArgs,
    },
    /// Stop trials.
    Kill {
        /// Which, by their ids or numbers.
        #[arg(required = true)]
        trials: Vec<TrialName>,
        #[command(flatten)]
        place: ExperimentArgs,
    },
    /// Have the agents of trials send what they still gather.
    Flush {
        /// Which, by their ids or numbers.
        #[arg(required = true)]
        trials: Vec<TrialName>,
        #[command(flatten)]
        place: ExperimentArgs,
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
        place: ExperimentArgs,
    },
    /// Run a point of your own, before what the tuner proposes next. The tuner learns its result.
    Add {
        /// A parameter and its value, JSON or a plain text; once for each. Those that are not named are drawn from the
        /// search space.
        #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
        set: Vec<(String, Value)>,
        #[command(flatten)]
        place: ExperimentArgs,
    },
    /// Run trials that have ended once more: now, or by `resume` where the experiment has no manager.
    Retry {
        /// Which, by their ids or numbers.
        #[arg(required_unless_present = "failed")]
        trials: Vec<TrialName>,
        /// All that failed.
        #[arg(long)]
        failed: bool,
        #[command(flatten)]
        place: ExperimentArgs,
    },
}

/// Does something about trials and returns the exit code.
pub(super) async fn trial(command: TrialCommand) -> u8 {
    let done = match command {
        TrialCommand::Ls { id, state, cause, holds, filter, sort, descending, limit, asked } => {
            let asked = asked.of(id);
            let mut query = format!("sort={}", percent::encoded(&sort));
            if descending {
                query.push_str("&order=desc");
            }
            let filters = [("state", state), ("cause", cause), ("q", holds), ("filter", filter)];
            for (name, value) in filters {
                query.extend(value.map(|value| format!("&{name}={}", percent::encoded(&value))));
            }
            trials(&asked, &query, limit).await
        }
        TrialCommand::Show { trial, asked } => one(&asked, &trial, table::trial).await,
        TrialCommand::Why { trial, asked } => one(&asked, &trial, table::why).await,
        TrialCommand::Logs { trial, follow, stderr, place } => {
            logs(&place, &trial, follow, if stderr { "stderr" } else { "stdout" }).await
        }
        TrialCommand::Files { trial, asked } => files(&asked, &trial).await,
        TrialCommand::Kill { trials, place } => each(&place, trials, "kill", None).await,
        TrialCommand::Flush { trials, place } => each(&place, trials, "flush", None).await,
        TrialCommand::LogLevel { level, trials, place } => {
            let level = level.to_possible_value().map(|word| word.get_name().to_owned());
            each(&place, trials, "log-level", Some(&json!({ "level": level }))).await
        }
        TrialCommand::Add { set, place } => add(&place, set).await,
        TrialCommand::Retry { trials, failed, place } => retry(&place, &trials, failed).await,
    };
    exit_code(done)
}

/// Reads `NAME=VALUE`.
fn setting(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), own_point::written(value))),
        Some(_) | None => Err("expected NAME=VALUE, such as lr=0.01".to_owned()),
    }
}

async fn add(place: &ExperimentArgs, set: Vec<(String, Value)>) -> Result<(), Error> {
    let parameters: Map<String, Value> = set.into_iter().collect();
    let body = json!({ "parameters": parameters });
    let answer = place.manager().await?.ask("POST", "/api/v1/trials", Some(&body)).await?;
    let id = answer.get("id").and_then(Value::as_str).unwrap_or_default();
    written(format!("{id}\n").as_bytes())
}

/// Shows a trial's metrics, all or those of one `name`, and returns the exit code.
pub(super) async fn metrics(trial: &TrialName, name: Option<&str>, asked: &OutputArgs) -> u8 {
    let shown = async {
        let client = asked.place.client().await?;
        let id = trial.find(&client).await?;
        let found = all_metrics(&client, id.as_str(), name).await?;
        print(asked.output, &Value::Array(found), table::metrics)
    };
    exit_code(shown.await)
}

async fn trials(asked: &OutputArgs, query: &str, limit: Option<usize>) -> Result<(), Error> {
    let client = asked.place.client().await?;
    let mut rows = found(&client, query, limit).await?;
    // One trial has nothing to be compared with.
    if matches!(asked.output, Format::Table) && rows.len() > 1 {
        let mut origins = origins(&client).await?;
        for trial in &mut rows {
            let origin = trial.get("id").and_then(Value::as_str).and_then(|id| origins.remove(id));
            if let (Some(Value::Object(origin)), Some(trial)) = (origin, trial.as_object_mut()) {
                trial.extend(origin);
            }
        }
    }
    if matches!(asked.output, Format::Table) && text_style().links {
        link_pages(&mut rows, &asked.place).await;
    }
    print(asked.output, &Value::Array(rows), table::trials)
}

/// Tells each trial where its page is, if a manager or a server shows it.
async fn link_pages(trials: &mut [Value], place: &ExperimentArgs) {
    let Ok((_, url)) = place.portal().await else { return };
    for trial in trials {
        if let Some(id) = trial.get("id").and_then(Value::as_str) {
            trial[table::PAGE] = Value::from(format!("{url}/trials/{id}"));
        }
    }
}

async fn one(
    asked: &OutputArgs,
    trial: &TrialName,
    table: impl FnOnce(&Value, TextStyle) -> String,
) -> Result<(), Error> {
    let client = asked.place.client().await?;
    let path = format!("/api/v1/trials/{}", trial.find(&client).await?);
    let answer = client.ask("GET", &path, None).await?;
    print(asked.output, &answer, table)
}

async fn logs(
    place: &ExperimentArgs,
    trial: &TrialName,
    follow: bool,
    stream: &str,
) -> Result<(), Error> {
    let client = place.client().await?;
    let trial = trial.find(&client).await?;
    if follow {
        return follow::follow(place, client, &trial, stream).await;
    }
    let path = format!("/api/v1/trials/{trial}/log/{stream}");
    let bytes = client.bytes("GET", &path, None).await?;
    written(&bytes)
}

async fn files(asked: &OutputArgs, trial: &TrialName) -> Result<(), Error> {
    let client = asked.place.client().await?;
    let path = format!("/api/v1/trials/{}/files", trial.find(&client).await?);
    let answer = client.ask("GET", &path, None).await?;
    print(asked.output, &answer, table::files)
}

async fn each(
    place: &ExperimentArgs,
    trials: Vec<TrialName>,
    verb: &str,
    body: Option<&Value>,
) -> Result<(), Error> {
    let client = place.manager().await?;
    let ids = TrialName::find_all(&trials, &client).await?;
    ask_each(&client, &ids, verb, body).await
}

/// Asks it of each trial. The others are still processed when one is refused; each refusal is shown, the last one by
/// the caller.
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

/// Has ended trials run once more: now by their manager, or, where there is none, by the next `resume`.
async fn retry(place: &ExperimentArgs, trials: &[TrialName], failed: bool) -> Result<(), Error> {
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
