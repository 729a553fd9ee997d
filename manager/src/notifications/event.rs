//! The notifications as JSON, which is the same for a server and for a program.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use trial_protocol::{ExperimentId, TrialJobId};

use crate::config::EventKind;
use crate::config::NotificationsSpec;
use crate::store::NewNotification;
use crate::util::ids;

/// The subject of a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotificationSubject {
    /// The experiment's id.
    pub id: ExperimentId,
    /// `experimentName`.
    pub name: Option<String>,
}

/// The best trial of the search.
#[derive(Debug, Clone, PartialEq)]
pub struct BestResult {
    /// The trial's id.
    pub trial: TrialJobId,
    /// The trial's position in the experiment.
    pub sequence: u64,
    /// The trial's result.
    pub number: f64,
    /// The trial's parameters.
    pub parameters: Value,
}

/// A change of the store's health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthChange {
    /// The store cannot be written, for this reason.
    Degraded(String),
    /// The store can be written again.
    Recovered,
}

/// An event of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    /// A unique and permanent identifier.
    pub id: String,
    /// The kind.
    pub kind: EventKind,
    /// The complete message.
    pub value: Value,
    at_ms: i64,
}

impl Notification {
    fn new(
        kind: EventKind,
        about: &NotificationSubject,
        text: &str,
        at_ms: i64,
        more: Value,
    ) -> Self {
        let id = ids::new_event_id();
        let mut value = json!({
            "id": id,
            "event": kind.as_str(),
            "text": text,
            "at_ms": at_ms,
            "experiment": {"id": about.id, "name": about.name},
        });
        if let (Some(members), Value::Object(more)) = (value.as_object_mut(), more) {
            members.extend(more);
        }
        Self { id, kind, value, at_ms }
    }

    /// Converts the notification for the store. `None` if the event is not among those that the user selected.
    pub fn into_stored(self, spec: &NotificationsSpec) -> Option<NewNotification> {
        let Self { id, kind, value, at_ms } = self;
        let webhook = spec.webhook.as_ref().map(|_| super::WEBHOOK_CHANNEL);
        let command = spec.command.as_ref().map(|_| super::COMMAND_CHANNEL);
        let channels = webhook.into_iter().chain(command).collect();
        let new = NewNotification { id, channels, event: value, at_ms };
        spec.events.contains(&kind).then_some(new)
    }
}

/// Creates a notification that the experiment has ended in `state`, with the number of trials in each state.
pub fn ended(
    about: &NotificationSubject,
    state: &str,
    trials: &BTreeMap<&'static str, u64>,
    best: Option<&BestResult>,
    at_ms: i64,
) -> Notification {
    let all: u64 = trials.values().sum();
    let succeeded = trials.get("SUCCEEDED").copied().unwrap_or(0);
    let of_them = format!("{succeeded} of {all} trials succeeded");
    let won = best.map_or_else(String::new, |BestResult { trial, sequence, number, .. }| {
        format!("; the best is trial {sequence} ({trial}) with {number}")
    });
    let text = format!("{} is {state}: {of_them}{won}", display_name(about));
    let mut more = json!({"state": state, "trials": trials});
    if let Some(BestResult { trial, sequence, number, parameters }) = best {
        more["best"] = json!({
            "trial": trial, "sequence": sequence, "result": number, "parameters": parameters,
        });
    }
    Notification::new(EventKind::ExperimentEnded, about, &text, at_ms, more)
}

/// Creates a notification that too many failures hold the search. `why` is a message for users.
pub fn held(about: &NotificationSubject, why: &str, at_ms: i64) -> Notification {
    let text = format!("{}: {why}", display_name(about));
    Notification::new(EventKind::FailureBudgetReached, about, &text, at_ms, json!({}))
}

/// Creates a notification of a problem of the external tuner or assessor `name`; `None` means that the problem is
/// solved.
pub fn trouble(
    about: &NotificationSubject,
    name: &str,
    trouble: Option<&str>,
    at_ms: i64,
) -> Notification {
    match trouble {
        Some(why) => {
            let text = format!("{}: {why}", display_name(about));
            Notification::new(EventKind::TunerTrouble, about, &text, at_ms, json!({"problem": why}))
        }
        None => {
            let text = format!("{}: {name} answers again", display_name(about));
            Notification::new(EventKind::TunerRecovered, about, &text, at_ms, json!({}))
        }
    }
}

/// Creates a notification that the store cannot be written, or can be written again.
pub fn health(about: &NotificationSubject, news: &HealthChange, at_ms: i64) -> Notification {
    match news {
        HealthChange::Degraded(why) => {
            let text = format!(
                "{}: {why}; until this is solved, no trial is started or ended",
                display_name(about)
            );
            Notification::new(
                EventKind::ManagerDegraded,
                about,
                &text,
                at_ms,
                json!({"problem": why}),
            )
        }
        HealthChange::Recovered => {
            let text = format!("{}: the database can be written again", display_name(about));
            Notification::new(EventKind::ManagerRecovered, about, &text, at_ms, json!({}))
        }
    }
}

fn display_name(about: &NotificationSubject) -> String {
    match &about.name {
        Some(name) => format!("experiment {} ({name})", about.id),
        None => format!("experiment {}", about.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> NotificationSubject {
        NotificationSubject {
            id: ExperimentId::new("abcdefgh").unwrap(),
            name: Some("digits".to_owned()),
        }
    }

    #[test]
    fn an_experiment_end_names_its_outcome_and_its_best_result() {
        let best = BestResult {
            trial: TrialJobId::new("a1b2c").unwrap(),
            sequence: 7,
            number: 0.5,
            parameters: json!({"x": 1}),
        };
        let trials = [("FAILED", 1), ("SUCCEEDED", 9)].into();
        let mut event = ended(&about(), "DONE", &trials, Some(&best), 5);
        assert_eq!(event.value["id"], json!(event.id));
        event.value["id"] = json!("same");
        let expected = json!({
            "id": "same",
            "event": "experiment_ended",
            "text": "experiment abcdefgh (digits) is DONE: 9 of 10 trials succeeded; the best is trial 7 (a1b2c) with 0.5",
            "at_ms": 5,
            "experiment": {"id": "abcdefgh", "name": "digits"},
            "state": "DONE",
            "trials": {"FAILED": 1, "SUCCEEDED": 9},
            "best": {"trial": "a1b2c", "sequence": 7, "result": 0.5, "parameters": {"x": 1}},
        });
        assert_eq!(event.value, expected);
    }

    #[test]
    fn only_selected_events_are_stored_once_for_each_channel() {
        let mut spec = NotificationsSpec {
            events: vec![EventKind::FailureBudgetReached],
            webhook: None,
            command: Some("true".to_owned()),
        };
        let kept = held(&about(), "why", 5).into_stored(&spec).unwrap();
        assert_eq!(
            (kept.channels.as_slice(), kept.at_ms),
            ([super::super::COMMAND_CHANNEL].as_slice(), 5)
        );
        spec.events = vec![EventKind::ManagerDegraded];
        assert_eq!(held(&about(), "why", 5).into_stored(&spec), None);
    }
}
