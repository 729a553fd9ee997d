//! Keeps the connection to a machine: one session after the other, without end, and the messages of each.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, sleep, sleep_until};
use tracing::{info, warn};

use super::session::{Session, SessionFiles};
use super::ssh::Ssh;
use super::{MANAGER_LINK, RemoteState};
use crate::util::backoff::Backoff;

/// The first and the longest pause between two attempts to reach a machine.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// The lifetime of a session after which the pauses begin anew.
const STEADY_SESSION: Duration = Duration::from_mins(1);
/// The time limit for a helper's answer. A helper that hangs counts as absent.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// The interval between checks of the answers and readings of memory and GPUs.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Waits until this time. Never returns for `None`.
pub(super) async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Keeps a session on a machine, without end.
pub(super) async fn keep_connected(state: &Arc<RemoteState>, number: usize) {
    let machine = &state.machines[number];
    let ssh = Ssh::new(machine, state.sockets.path(), number);
    let mut backoff = Backoff::new(RECONNECT_PAUSES.0, RECONNECT_PAUSES.1);
    loop {
        let begun = Instant::now();
        let why = match run_session(state, number, &ssh).await {
            Ok(why) | Err(why) => why,
        };
        warn!(machine = %machine.name, "not connected: {why}");
        state.assignments().record_disconnection(number, why, Instant::now());
        state.changed.notify_one();
        state.report_waits();
        if begun.elapsed() > STEADY_SESSION {
            backoff.reset();
        }
        sleep(backoff.next_pause()).await;
    }
}

/// Runs one session from its beginning to its end, and returns the reason for the end.
async fn run_session(state: &Arc<RemoteState>, number: usize, ssh: &Ssh) -> Result<String, String> {
    let (settings, machine) = (&state.settings, &state.machines[number]);
    let code = settings.dir.code_archive();
    let fences = state.records().unconfirmed_fences(&machine.name);
    let session_files = SessionFiles {
        experiment: settings.experiment.as_str(),
        agent: &settings.agent,
        agent_sha256: &state.agent_sha256,
        code: &code,
        code_sha256: &state.code_sha256,
        socket: &state.sockets.path().join(MANAGER_LINK),
        direct: settings.direct.as_ref(),
        fences: &fences,
    };
    let mut session = Session::open(ssh, machine, &session_files).await?;
    let (sender, mut outgoing) = mpsc::unbounded_channel();
    let too_few = {
        let mut assignments = state.assignments();
        let mut records = state.records();
        let confirmed = records.confirm_fences(&fences);
        confirmed.map_err(|error| {
            format!("cannot record the fences that {} confirmed: {error}", machine.name)
        })?;
        // The next session first fences attempts that were fenced during the start of this one.
        if !records.unconfirmed_fences(&machine.name).is_empty() {
            return Err("a trial there was fenced meanwhile".to_owned());
        }
        assignments.record_connection(number, &session.facts, sender)
    };
    info!(machine = %machine.name, "connected");
    state.warn_of_gpus(number, too_few);
    state.send_all_states(number);
    state.place_trials();
    let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
    loop {
        tokio::select! {
            line = session.lines.recv() => match line {
                Some(line) => state.handle_line(number, &line),
                None => return Ok(session.errors.append_to("the helper there ended".to_owned())),
            },
            Some(line) = outgoing.recv() => session.send(&line).await?,
            ended = session.control.wait_for_end() => return Ok(match ended {
                Ok(status) => format!("the connection was lost (ssh: {status})"),
                Err(error) => format!("the connection was lost: {error}"),
            }),
            now = checks.tick() => {
                let since = now.checked_sub(ANSWER_TIMEOUT);
                let hangs = since.and_then(|since| state.assignments().late_request(number, since));
                if let Some(method) = hangs {
                    let seconds = ANSWER_TIMEOUT.as_secs();
                    return Ok(format!("the helper there has not answered {method} for {seconds} s"));
                }
                state.assignments().request_reading(number);
            }
        }
    }
}
