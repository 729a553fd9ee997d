//! PURE: the section `notifications`: the events, and the server or command that receives them. The section names the
//! sources of secrets, which are read only when needed.

use std::path::PathBuf;

use serde_json::Value;

use super::document::describe_kind;
use super::path_base::PathBase;
use super::section::{Problem, Section};
use crate::util::nearest::suggest_names;

/// The fields, in the order of the canonical form.
pub(super) const FIELDS: [&str; 8] = [
    "webhookUrl",
    "webhookUrlFile",
    "webhookUrlVariable",
    "webhookTokenFile",
    "webhookTokenVariable",
    "webhookCaFile",
    "command",
    "events",
];

/// An event that causes a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The experiment is done, or was stopped.
    ExperimentEnded,
    /// Failures hold the search (`maxConsecutiveFailures`).
    FailureBudgetReached,
    /// An external tuner or assessor has a problem.
    TunerTrouble,
    /// The external tuner or assessor works again.
    TunerRecovered,
    /// The store cannot be written.
    ManagerDegraded,
    /// The manager can write its database again.
    ManagerRecovered,
}

impl EventKind {
    /// All events, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::ExperimentEnded,
        Self::FailureBudgetReached,
        Self::TunerTrouble,
        Self::TunerRecovered,
        Self::ManagerDegraded,
        Self::ManagerRecovered,
    ];

    /// Returns the word for the event in files and notifications.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExperimentEnded => "experiment_ended",
            Self::FailureBudgetReached => "failure_budget_reached",
            Self::TunerTrouble => "tuner_trouble",
            Self::TunerRecovered => "tuner_recovered",
            Self::ManagerDegraded => "manager_degraded",
            Self::ManagerRecovered => "manager_recovered",
        }
    }
}

/// The recipients and the events of notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotificationsSpec {
    /// `events`: the events to report, or all if absent.
    pub events: Vec<EventKind>,
    /// The server that receives notifications.
    pub webhook: Option<WebhookSpec>,
    /// `command`: a line for `/bin/sh -c`, run in the trials' code directory.
    pub command: Option<String>,
}

/// A server that receives notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookSpec {
    /// The source of the URL.
    pub url: SecretSource,
    /// The source of the bearer token. `None`: the server needs none.
    pub token: Option<SecretSource>,
    /// `webhookCaFile`: additional certificate authorities in PEM form.
    pub ca_file: Option<PathBuf>,
}

/// The source of a text that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// A text in the experiment file, which must not be a secret.
    Inline(String),
    /// The first line of this file.
    File(PathBuf),
    /// This variable of the manager's environment.
    Variable(String),
}

impl NotificationsSpec {
    /// Returns the variables of the manager's environment that hold secrets. Only the manager may read them. Trials,
    /// tuners and assessors start without them.
    pub fn secret_variables(&self) -> Vec<String> {
        let Some(WebhookSpec { url, token, ca_file: _ }) = &self.webhook else { return Vec::new() };
        let variable = |source: &SecretSource| match source {
            SecretSource::Variable(name) => Some(name.clone()),
            SecretSource::Inline(_) | SecretSource::File(_) => None,
        };
        [Some(url), token.as_ref()].into_iter().flatten().filter_map(variable).collect()
    }
}

/// Reads the section.
pub(super) fn read_notifications(
    top: &mut Section,
    base: PathBase<'_>,
) -> Result<Option<NotificationsSpec>, Problem> {
    let Some(given) = top.take("notifications") else { return Ok(None) };
    let mut section = Section::open("notifications", given, &FIELDS)?;
    let url = section.string("webhookUrl")?.map(SecretSource::Inline);
    let url = read_secret_source(&mut section, "webhookUrl", url, base)?;
    if let Some(SecretSource::Inline(url)) = &url
        && !(url.starts_with("https://") || url.starts_with("http://"))
    {
        return Err(section.problem("webhookUrl", "must begin with http:// or https://"));
    }
    // The error must not contain the address, which may be a secret.
    if let Some(SecretSource::Inline(url)) = &url
        && let Err(error) = reqwest::Url::parse(url)
    {
        return Err(section.problem("webhookUrl", format!("is not a URL: {error}")));
    }
    // The file may not contain the token itself.
    let token = read_secret_source(&mut section, "webhookToken", None, base)?;
    let ca_file = section.absolute_path("webhookCaFile", base)?;
    let command = section.string("command")?;
    let events = read_events(&mut section)?;
    let webhook = match (url, token, ca_file) {
        (Some(url), token, ca_file) => Some(WebhookSpec { url, token, ca_file }),
        (None, None, None) => None,
        (None, _, _) => {
            let problem = "is missing: give webhookUrl, webhookUrlFile or webhookUrlVariable";
            return Err(section.problem("webhookUrl", problem));
        }
    };
    if webhook.is_none() && command.is_none() {
        let problem = "has no channel; give a webhookUrl (or webhookUrlFile, webhookUrlVariable) or a command";
        return Err(Problem::new("notifications", problem));
    }
    top.record("notifications", section.into_canonical());
    Ok(Some(NotificationsSpec { events, webhook, command }))
}

/// Reads `NAMEFile` and `NAMEVariable`, of which only one may be set, and none beside the source that is `given`.
fn read_secret_source(
    section: &mut Section,
    name: &str,
    given: Option<SecretSource>,
    base: PathBase<'_>,
) -> Result<Option<SecretSource>, Problem> {
    let (in_file, in_variable) = (format!("{name}File"), format!("{name}Variable"));
    let mut found: Vec<SecretSource> = given.into_iter().collect();
    found.extend(section.absolute_path(&in_file, base)?.map(SecretSource::File));
    found.extend(section.string(&in_variable)?.map(SecretSource::Variable));
    if found.len() > 1 {
        let problem = format!("is given twice: one of {name}, {in_file} and {in_variable}");
        return Err(section.problem(name, problem));
    }
    Ok(found.pop())
}

/// Reads `events`, and records all of them if the field is absent.
fn read_events(section: &mut Section) -> Result<Vec<EventKind>, Problem> {
    let events = parse_events(section)?;
    let words: Vec<_> = events.iter().map(|event| event.as_str()).collect();
    section.record("events", words);
    Ok(events)
}

fn parse_events(section: &mut Section) -> Result<Vec<EventKind>, Problem> {
    let words: Vec<_> = EventKind::ALL.iter().map(|event| event.as_str()).collect();
    let list = match section.take("events") {
        None => return Ok(EventKind::ALL.to_vec()),
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(other) => {
            let problem =
                format!("expected a list of {}, found {}", words.join(", "), describe_kind(&other));
            return Err(section.problem("events", problem));
        }
    };
    let mut events = Vec::new();
    for item in list {
        let word = item.as_str().unwrap_or_default();
        let Some(event) = EventKind::ALL.into_iter().find(|event| event.as_str() == word) else {
            let advice = suggest_names(word, words.iter().copied());
            let problem = format!("{} is not an event; {advice}", describe_kind(&item));
            return Err(section.problem("events", problem));
        };
        if !events.contains(&event) {
            events.push(event);
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the specification, if there is one, and its canonical form.
    fn read(given: &Value) -> Result<(Option<NotificationsSpec>, Value), Problem> {
        let mut top = Section::open("", json!({"notifications": given}), &["notifications"])?;
        let spec =
            read_notifications(&mut top, PathBase::requiring_files(std::path::Path::new("/e")))?;
        let canonical = top.into_canonical().remove("notifications").unwrap_or_default();
        Ok((spec, canonical))
    }

    #[test]
    fn the_section_is_read_and_made_canonical() {
        let given = json!({
            "webhook_url_file": "hook", "webhookTokenVariable": "HOOK_TOKEN",
            "command": "mail -s done me", "events": ["experiment_ended"],
        });
        let (spec, canonical) = read(&given).unwrap();
        let webhook = WebhookSpec {
            url: SecretSource::File("/e/hook".into()),
            token: Some(SecretSource::Variable("HOOK_TOKEN".to_owned())),
            ca_file: None,
        };
        let command = Some("mail -s done me".to_owned());
        let events = vec![EventKind::ExperimentEnded];
        let wanted = NotificationsSpec { events, webhook: Some(webhook), command };
        assert_eq!(spec, Some(wanted));
        assert_eq!(
            read(&canonical).unwrap(),
            (spec, canonical),
            "the canonical form is read unchanged"
        );
        let (spec, _) = read(&json!({"command": "true"})).unwrap();
        assert_eq!(spec.unwrap().events, EventKind::ALL);
        assert_eq!(read(&Value::Null).unwrap(), (None, Value::Null));
    }

    #[test]
    fn bad_notification_settings_are_refused_by_field() {
        #[rustfmt::skip]
        let table = [
            (json!({}),                                        "notifications", "has no channel"),
            (json!({"events": ["experiment_ended"]}),          "notifications", "has no channel"),
            (json!({"command": ""}),                           "notifications.command", "must not be empty"),
            (json!({"webhookUrl": "example.org"}),             "notifications.webhookUrl", "http://"),
            (json!({"webhookUrl": "https://"}),                "notifications.webhookUrl", "is not a URL: empty host"),
            (json!({"webhookUrl": "http://h:port/s3cret"}),    "notifications.webhookUrl", "is not a URL: invalid port number"),
            (json!({"webhookUrl": "http://h", "webhookUrlFile": "f"}), "notifications.webhookUrl", "given twice"),
            (json!({"webhookTokenFile": "f"}),                 "notifications.webhookUrl", "is missing"),
            (json!({"command": "true", "events": []}),         "notifications.events", "a list of"),
            (json!({"command": "true", "events": ["ended"]}),  "notifications.events", "is not an event"),
            (json!({"command": "true", "event": ["x"]}),       "notifications.event", "unknown field"),
            (json!("mail"),                                    "notifications", "expected fields"),
        ];
        for (given, path, what) in table {
            let problem = read(&given).unwrap_err();
            assert_eq!(problem.path, path, "{given}");
            assert!(problem.message.contains(what), "{given}: {}", problem.message);
        }
    }
}
