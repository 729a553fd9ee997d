//! `trial logs -f`: follows a trial's output until the trial ends. After a lost connection, it continues at the same
//! place, with the same manager or the next one. While the trial's agent does not report, it prints the output of the
//! trial's pod on standard error. That text is not yet part of the trial's output.

use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};
use trial_protocol::TrialJobId;

use super::selection::{Error, ExperimentArgs};
use crate::api::client::{self, Client};

/// The time between two attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// The number of attempts in a row without a new event before the command fails.
const MAX_RECONNECTS: u32 = 30;

/// The reason why a stream of events ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// The trial has ended, or the reader of standard output has exited.
    Ended,
    /// The connection broke, or no manager runs that could add events.
    Interrupted,
}

/// Prints one stream of a trial's output.
pub(super) async fn follow(
    experiment_args: &ExperimentArgs,
    mut client: Client,
    trial: &TrialJobId,
    stream: &str,
) -> Result<(), Error> {
    let mut experiment_args = experiment_args.clone();
    if experiment_args.manager.is_none() {
        // The default experiment may be another one after this experiment has ended.
        experiment_args.experiment = Some(experiment_args.dir().await?.0);
    }
    let mut tries = 0;
    let mut seen = None;
    let had_manager = matches!(client, Client::Remote { .. });
    loop {
        let before = seen.clone();
        let end = print_events(&client, trial, stream, &mut seen).await;
        tries = if seen == before { tries + 1 } else { 0 };
        let may_retry = had_manager && tries < MAX_RECONNECTS;
        match end {
            Ok(StreamEnd::Ended) => return Ok(()),
            Ok(StreamEnd::Interrupted) if !may_retry && matches!(client, Client::InProcess(_)) => {
                return Err(Error::NotRunning(experiment_args.dir().await?.0));
            }
            Ok(StreamEnd::Interrupted) => {}
            // An event was received before, so the trial exists and only the connection failed.
            Err(error) if seen.is_none() || !may_retry => return Err(error.into()),
            Err(_) => {}
        }
        sleep(RECONNECT_PAUSE).await;
        client = experiment_args.client().await?;
    }
}

/// Prints the events after `seen` until the stream ends, and updates `seen`.
async fn print_events(
    client: &Client,
    trial: &TrialJobId,
    stream: &str,
    seen: &mut Option<String>,
) -> Result<StreamEnd, client::Error> {
    let after = seen.as_deref().map(|id| format!("?after={id}")).unwrap_or_default();
    let mut lines = client.request_lines(&format!("/api/v1/trials/{trial}/events{after}")).await?;
    let (mut event, mut id) = (String::new(), None);
    let mut is_first_note = true;
    loop {
        let line = match client {
            Client::Remote { .. } => lines.next().await,
            // A store without a manager does not change, so all its events arrive immediately.
            Client::InProcess(_) => timeout(RECONNECT_PAUSE, lines.next()).await.unwrap_or(None),
        };
        let Some(line) = line else { return Ok(StreamEnd::Interrupted) };
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut event);
            if event == "end" {
                return Ok(StreamEnd::Ended);
            }
        } else if let Some(data) = line.strip_prefix("data: ").filter(|_| event == "log") {
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            let text = data.get("text").and_then(Value::as_str).unwrap_or_default();
            if data.get("stream").and_then(Value::as_str) == Some(stream) && !print_piece(text) {
                return Ok(StreamEnd::Ended);
            }
        } else if let Some(data) = line.strip_prefix("data: ").filter(|_| event == "unheard") {
            if std::mem::replace(&mut is_first_note, false) {
                print_note("the trial's agent does not report; the output of its job:\n");
            }
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            let text = |field: &str| data.get(field).and_then(Value::as_str).unwrap_or_default();
            print_note(text("text"));
            if !text("why").is_empty() {
                print_note(&format!("{}\n", text("why")));
            }
        } else if let Some(value) = line.strip_prefix("id: ") {
            id = Some(value.to_owned());
        } else if line.is_empty() && id.is_some() {
            // Only a complete event counts as seen.
            *seen = id.take();
        }
    }
}

/// Prints a piece of the output. Returns `false` if the reader of standard output has exited.
fn print_piece(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// Prints a note on standard error.
fn print_note(text: &str) {
    // Ignored: standard error may be closed.
    std::io::stderr().lock().write_all(text.as_bytes()).ok();
}
