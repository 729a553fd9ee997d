//! `trial logs -f`: a trial's output as it grows, until the trial ends. After a lost connection it continues where it
//! was, with the same manager or the next one. While an agent is silent, the output of its pod goes to standard error:
//! it is not the trial's output yet.

use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};
use trial_protocol::TrialJobId;

use super::ask::{Error, ExperimentArgs};
use crate::api::client::{self, Client};

/// Time between two tries to go on, and how many are made.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
const TRIES: u32 = 30;

/// The end of the look at a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing more will come, or no reader wants it.
    Over,
    /// The stream broke, or no manager is there to add to it.
    Cut,
}

/// Prints one stream of a trial's output.
pub(super) async fn follow(
    place: &ExperimentArgs,
    mut client: Client,
    trial: &TrialJobId,
    stream: &str,
) -> Result<(), Error> {
    let mut place = place.clone();
    if place.manager.is_none() {
        // Once it has ended, another may be the one that is meant by nothing.
        place.experiment = Some(place.dir().await?.0);
    }
    let mut tries = 0;
    let mut seen = None;
    let was_run = matches!(client, Client::Far { .. });
    loop {
        let before = seen.clone();
        let looked = look(&client, trial, stream, &mut seen).await;
        tries = if seen == before { tries + 1 } else { 0 };
        let patient = was_run && tries < TRIES;
        match looked {
            Ok(Look::Over) => return Ok(()),
            Ok(Look::Cut) if !patient && matches!(client, Client::Near(_)) => {
                return Err(Error::NotRunning(place.dir().await?.0));
            }
            Ok(Look::Cut) => {}
            // Of what was there a moment ago, only the way to it can be missing.
            Err(error) if seen.is_none() || !patient => return Err(error.into()),
            Err(_) => {}
        }
        sleep(RECONNECT_PAUSE).await;
        client = place.client().await?;
    }
}

/// Prints what comes after the event `seen`, as long as it comes.
async fn look(
    client: &Client,
    trial: &TrialJobId,
    stream: &str,
    seen: &mut Option<String>,
) -> Result<Look, client::Error> {
    let after = seen.as_deref().map(|id| format!("?after={id}")).unwrap_or_default();
    let mut lines = client.lines(&format!("/api/v1/trials/{trial}/events{after}")).await?;
    let (mut event, mut id) = (String::new(), None);
    let mut heard = true;
    loop {
        let line = match client {
            Client::Far { .. } => lines.next().await,
            // A store without a writer has nothing more to tell than it tells at once.
            Client::Near(_) => timeout(RECONNECT_PAUSE, lines.next()).await.unwrap_or(None),
        };
        let Some(line) = line else { return Ok(Look::Cut) };
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut event);
            if event == "end" {
                return Ok(Look::Over);
            }
        } else if let Some(data) = line.strip_prefix("data: ").filter(|_| event == "log") {
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            let text = data.get("text").and_then(Value::as_str).unwrap_or_default();
            if data.get("stream").and_then(Value::as_str) == Some(stream) && !printed(text) {
                return Ok(Look::Over);
            }
        } else if let Some(data) = line.strip_prefix("data: ").filter(|_| event == "unheard") {
            if std::mem::replace(&mut heard, false) {
                tell("nothing is heard of its agent; its pod prints:\n");
            }
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            let text = |field: &str| data.get(field).and_then(Value::as_str).unwrap_or_default();
            tell(text("text"));
            if !text("why").is_empty() {
                tell(&format!("{}\n", text("why")));
            }
        } else if let Some(told) = line.strip_prefix("id: ") {
            id = Some(told.to_owned());
        } else if line.is_empty() && id.is_some() {
            // Only what came whole was seen.
            *seen = id.take();
        }
    }
}

/// Prints a piece; returns whether the output has a reader.
fn printed(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// Says something beside the output.
fn tell(text: &str) {
    // A closed terminal needs no message.
    std::io::stderr().lock().write_all(text.as_bytes()).ok();
}
