//! Applies the manager's directives, and the stop rules for times without a connection to the manager.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;
use trial_protocol::{Directive, DirectiveBody, StopReason};

use super::intake::Intake;
use super::loop_state::LoopState;
use super::streams::TrialStreams;
use crate::supervise::phase::Event;
use crate::supervise::rules::RuleViolation;
use crate::util::log;
use crate::verdict::StopBy;

/// Applies a directive. `grace` is the trial's own, for a stop directive without one.
pub(super) fn apply(
    directive: Directive,
    grace: Duration,
    intake: &mut Intake,
    streams: &TrialStreams,
    state: &mut LoopState,
) -> Option<Event> {
    match directive.body {
        DirectiveBody::Stop { reason, grace_ms } => {
            let grace = grace_ms.map_or(grace, Duration::from_millis);
            return Some(request_stop(state, reason, grace));
        }
        // Spooled reports are always delivered at once, so only the log needs a flush.
        DirectiveBody::Flush => {
            streams.ship_logs(false);
            info!("sending buffered output, as the manager directs");
        }
        DirectiveBody::LogLevel { level } => {
            if log::set_level(level) {
                info!("log level set to {level:?}, as the manager directs");
            } else {
                refuse(intake, directive.id);
            }
        }
        DirectiveBody::StopRules { rules, lease_ms } => {
            let now = Instant::now().into_std();
            intake.rules().replace(rules, Duration::from_millis(lease_ms), now);
            return check_running_time(intake, grace, state);
        }
        DirectiveBody::Unknown => refuse(intake, directive.id),
    }
    None
}

fn refuse(intake: &Intake, id: u64) {
    let message = format!("this agent version does not support directive {id}");
    intake.note("directive-refused", message);
}

/// Returns the time of the next rule on the running time.
pub(super) fn next_due(intake: &mut Intake, state: &LoopState) -> Option<Instant> {
    if state.ending.stop.is_some() {
        return None;
    }
    let (started, now) = (state.started.into_std(), Instant::now().into_std());
    intake.rules().next_due(started, now).map(Instant::from_std)
}

/// Stops a trial that has exceeded a limit on its running time.
pub(super) fn check_running_time(
    intake: &mut Intake,
    grace: Duration,
    state: &mut LoopState,
) -> Option<Event> {
    let (started, now) = (state.started.into_std(), Instant::now().into_std());
    let reason = intake.rules().overdue_reason(started, now)?;
    Some(request_stop(state, reason, grace))
}

/// Stops a trial whose metrics have violated a rule.
pub(super) fn check_metrics(
    intake: &mut Intake,
    grace: Duration,
    state: &mut LoopState,
) -> Option<Event> {
    let RuleViolation { reason, why } = intake.take_violation()?;
    if reason == StopReason::EarlyStop && state.ending.stop.is_none() {
        // The manager stores the note as the reason of the stop.
        intake.note("early-stop", why);
    }
    Some(request_stop(state, reason, grace))
}

fn request_stop(state: &mut LoopState, reason: StopReason, grace: Duration) -> Event {
    state.record_stop(StopBy::Manager(reason));
    Event::StopRequested { grace }
}
