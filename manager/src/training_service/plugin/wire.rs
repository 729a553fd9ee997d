//! PURE: messages to and from a plugin in JSON-RPC 2.0, one object a line. `docs/plugins.md` explains the members.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trial_protocol::{AttemptId, Class, ExperimentId, TrialJobId};

/// The longest message, in bytes with its newline.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// The longest text for the user that is kept, in characters.
const MAX_TEXT_CHARS: usize = 4_000;
/// The pause before a submit is repeated for lack of room, unless the plugin names one.
const ROOM_RETRY_PAUSE: Duration = Duration::from_secs(30);
/// The pause before a request that the platform could not serve is repeated, unless the plugin names one.
const PLATFORM_RETRY_PAUSE: Duration = Duration::from_secs(15);
/// The longest pause that a plugin may ask for.
const MAX_RETRY_PAUSE: Duration = Duration::from_hours(1);

/// The unique key of an attempt. A retry is another attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct AttemptKey {
    pub(super) experiment: ExperimentId,
    pub(super) trial: TrialJobId,
    pub(super) attempt: AttemptId,
}

/// A line from a plugin.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Message {
    /// The answer to the request with this id.
    Answer { id: u64, result: Result<Value, Refusal> },
    /// A job is gone.
    Gone(Box<GoneMessage>),
    /// A job waits.
    Waits(JobWaitMessage),
    /// There may be room for jobs again.
    Room,
    /// A line for the log.
    Log(String),
    /// A notification that this version does not know.
    Unknown(String),
}

/// The end of a job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct GoneMessage {
    pub(super) key: AttemptKey,
    /// The end of the job's first process. A missing member means that it is unknown.
    #[serde(default)]
    pub(super) exit: ProcessExit,
    #[serde(default)]
    pub(super) reason: GoneReason,
    /// The prospect of a retry. A missing member means that it is unknown.
    #[serde(default)]
    pub(super) class: Option<Class>,
    /// A message for the user.
    #[serde(default)]
    pub(super) message: Option<String>,
    /// The fate of the agent's remaining reports.
    #[serde(default)]
    pub(super) spool: SpoolFate,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) struct ProcessExit {
    #[serde(default)]
    pub(super) code: Option<i32>,
    #[serde(default)]
    pub(super) signal: Option<i32>,
}

impl ProcessExit {
    /// Returns the exit code in the form that a shell shows.
    pub(super) fn shell_code(self) -> Option<i32> {
        self.code.or_else(|| self.signal?.checked_add(128))
    }
}

/// The reason why a job is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GoneReason {
    Exit,
    Cancelled,
    Timeout,
    Oom,
    Preempted,
    NodeLost,
    StartFailed,
    Revoked,
    /// An unknown reason, or a word that this version does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The fate of the reports that an agent could not deliver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SpoolFate {
    /// The reports wait for `recover`.
    Left,
    /// There are no reports, they are lost, or their fate is unknown.
    #[default]
    #[serde(other)]
    Settled,
}

/// The reason why a job does not run yet.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct JobWaitMessage {
    pub(super) key: AttemptKey,
    /// The reason, for the user.
    pub(super) why: String,
}

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refusal {
    /// A message for the user.
    pub(super) message: String,
    pub(super) remedy: Remedy,
}

/// The remedy for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// No remedy: a retry and the next attempt would be refused, too.
    None,
    /// A new attempt.
    NextAttempt,
    /// The same request, once there is room or after the pause. Nothing was created.
    Room(Duration),
    /// The same request after the pause. The refused one may have had its effect.
    Later(Duration),
    /// No remedy is needed: the attempt was cancelled before it was submitted.
    Cancelled,
    /// Other settings in the experiment file.
    OtherSettings,
    /// Another version of the plugin or of the manager.
    OtherVersion,
}

/// A line that is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    /// The line is not a JSON object, and may be output of the plugin.
    #[error(
        "is not a JSON object; a plugin must not print to its standard output, so print to standard error instead"
    )]
    NoObject,
    #[error("has neither an id nor a method")]
    NoMessage,
    #[error("has a {method} that cannot be read: {why}")]
    Members { method: String, why: String },
}

/// Returns a request as a line.
pub(super) fn request_line(id: u64, method: &str, params: &Value) -> String {
    format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// Reads a line.
pub(super) fn read_message(line: &[u8]) -> Result<Message, MessageError> {
    let message: Value = serde_json::from_slice(line).map_err(|_| MessageError::NoObject)?;
    let Value::Object(mut message) = message else { return Err(MessageError::NoObject) };
    if let Some(id) = message.get("id").and_then(Value::as_u64) {
        let result = match message.remove("error") {
            Some(error) => Err(read_refusal(&error)),
            None => Ok(message.remove("result").unwrap_or_default()),
        };
        return Ok(Message::Answer { id, result });
    }
    let params = message.remove("params").unwrap_or_default();
    let method = message.get("method").and_then(Value::as_str).ok_or(MessageError::NoMessage)?;
    let bad = |error: serde_json::Error| MessageError::Members {
        method: method.to_owned(),
        why: error.to_string(),
    };
    Ok(match method {
        "gone" => {
            let mut gone: GoneMessage = serde_json::from_value(params).map_err(bad)?;
            gone.message = gone.message.map(|message| display_text(&message));
            Message::Gone(Box::new(gone))
        }
        "waits" => {
            let mut waits: JobWaitMessage = serde_json::from_value(params).map_err(bad)?;
            waits.why = display_text(&waits.why);
            Message::Waits(waits)
        }
        "room" => Message::Room,
        "log" => Message::Log(display_text(params["message"].as_str().unwrap_or_default())),
        other => Message::Unknown(display_text(other)),
    })
}

fn read_refusal(error: &Value) -> Refusal {
    let message = display_text(error["message"].as_str().unwrap_or("the plugin gave no reason"));
    let data = &error["data"];
    let pause = |usual: Duration| {
        data["after_ms"].as_u64().map_or(usual, Duration::from_millis).min(MAX_RETRY_PAUSE)
    };
    let remedy = match (error["code"].as_i64(), data["class"].as_str()) {
        (Some(-32001 | -32009), _) => Remedy::None,
        (Some(-32003), _) => Remedy::Room(pause(ROOM_RETRY_PAUSE)),
        (Some(-32004 | -32010), _) => Remedy::Later(pause(PLATFORM_RETRY_PAUSE)),
        (Some(-32006), _) => Remedy::Cancelled,
        (Some(-32007), _) => Remedy::OtherVersion,
        (Some(-32008), _) => Remedy::OtherSettings,
        (Some(-32002 | -32005), _) => Remedy::NextAttempt,
        (_, Some("permanent")) => Remedy::None,
        (_, Some("room")) => Remedy::Room(pause(ROOM_RETRY_PAUSE)),
        (_, Some("later")) => Remedy::Later(pause(PLATFORM_RETRY_PAUSE)),
        _ => Remedy::NextAttempt,
    };
    Refusal { message, remedy }
}

/// Returns a text for display: shortened, and on one line.
fn display_text(text: &str) -> String {
    let tame = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(MAX_TEXT_CHARS).map(tame).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_of_line_is_read() {
        let key = json!({"experiment": "e", "trial": "t", "attempt": "t-1"});
        let read = |message: Value| super::read_message(message.to_string().as_bytes());
        let answer = read(json!({"jsonrpc": "2.0", "id": 3, "result": {"known": true}}));
        assert_eq!(answer, Ok(Message::Answer { id: 3, result: Ok(json!({"known": true})) }));
        let gone = json!({"method": "gone", "params": {"key": key, "exit": {"signal": 9},
            "reason": "node_lost", "class": "transient", "message": "a\nb", "spool": "left"}});
        let Ok(Message::Gone(gone)) = read(gone) else { panic!("it is gone") };
        assert_eq!((gone.exit.shell_code(), gone.reason), (Some(137), GoneReason::NodeLost));
        assert_eq!((gone.class, gone.spool), (Some(Class::Transient), SpoolFate::Left));
        assert_eq!(gone.message.as_deref(), Some("a b"));
        let short =
            json!({"method": "gone", "params": {"key": key, "reason": "abducted", "class": "new"}});
        let Ok(Message::Gone(gone)) = read(short) else { panic!("it is gone") };
        assert_eq!(
            (gone.exit.shell_code(), gone.reason, gone.class),
            (None, GoneReason::Unknown, Some(Class::Other))
        );
        let waits = read(json!({"method": "waits", "params": {"key": key, "why": "quota"}}));
        assert!(matches!(waits, Ok(Message::Waits(waits)) if waits.why == "quota"));
        assert_eq!(read(json!({"method": "room", "params": {"free": 1}})), Ok(Message::Room));
        assert_eq!(
            read(json!({"method": "log", "params": {"message": "x"}})),
            Ok(Message::Log("x".into()))
        );
        assert_eq!(read(json!({"method": "later"})), Ok(Message::Unknown("later".into())));
    }

    #[test]
    fn lines_that_are_not_messages_are_refused() {
        #[rustfmt::skip]
        let table: [(&[u8], &str); 6] = [
            (b"loading model...",          "is not a JSON object"),
            (b"[]",                        "is not a JSON object"),
            (b"\xff\x00",                  "is not a JSON object"),
            (b"{}",                        "has neither"),
            (br#"{"id": -1}"#,             "has neither"),
            (br#"{"method": "gone", "params": {"key": {"trial": "../x"}}}"#, "has a gone that cannot be read"),
        ];
        for (line, expected) in table {
            let refused = read_message(line).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }

    #[test]
    fn the_remedy_follows_from_the_refusal() {
        let seconds = Duration::from_secs;
        #[rustfmt::skip]
        let table = [
            (json!({"code": -32001}),                                  Remedy::None),
            (json!({"code": -32009}),                                  Remedy::None),
            (json!({"code": -32002}),                                  Remedy::NextAttempt),
            (json!({"code": -32603}),                                  Remedy::NextAttempt),
            (json!({"code": -32003}),                                  Remedy::Room(seconds(30))),
            (json!({"code": -32003, "data": {"after_ms": 2000}}),      Remedy::Room(seconds(2))),
            (json!({"code": -32004}),                                  Remedy::Later(seconds(15))),
            (json!({"code": -32010, "data": {"after_ms": u64::MAX}}),  Remedy::Later(seconds(3600))),
            (json!({"code": -32006}),                                  Remedy::Cancelled),
            (json!({"code": -32007}),                                  Remedy::OtherVersion),
            (json!({"code": -32008}),                                  Remedy::OtherSettings),
            (json!({"code": 7, "data": {"class": "permanent"}}),       Remedy::None),
            (json!({"code": 7, "data": {"class": "later"}}),           Remedy::Later(seconds(15))),
            (json!({"code": "x"}),                                     Remedy::NextAttempt),
            (json!(null),                                              Remedy::NextAttempt),
        ];
        for (error, expected) in table {
            assert_eq!(read_refusal(&error).remedy, expected, "{error}");
        }
    }

    proptest! {
        #[test]
        fn random_lines_never_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(read_message(&line));
        }

        #[test]
        fn random_members_never_panic(
            method in "gone|waits|room|log|[a-z]{0,5}",
            value in prop_oneof![Just(json!(null)), Just(json!([])), Just(json!({"key": 1})), any::<i64>().prop_map(Value::from)],
            id in prop::option::of(any::<i64>()),
        ) {
            let line = json!({"id": id, "method": method, "params": value, "error": value});
            drop(read_message(line.to_string().as_bytes()));
        }

        #[test]
        fn a_request_is_one_line(method in "[a-z_]{1,9}", text in ".*", id in any::<u64>()) {
            let line = request_line(id, &method, &json!({"text": text}));
            prop_assert_eq!(line.matches('\n').count(), 1);
            let back: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&back["params"]["text"], &json!(text));
            prop_assert_eq!(back["id"].as_u64(), Some(id));
        }
    }
}
