//! PURE: the ask-and-tell protocol, one JSON object per line (`docs/ask-and-tell.md`).

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trial_protocol::{MetricValue, TrialJobId};

use super::history::{Conversation, ConversationStep, History, TrialHistory};
use super::{AdviserEvent, AdviserRequest};
use crate::search::search_space::Parameters;
use crate::search::tuner::Proposal;

/// The version of the protocol in the greeting.
const PROTOCOL_VERSION: u64 = 1;

/// A conversation with a program.
#[derive(Debug)]
pub(super) struct AskAndTell {
    greeting: Map<String, Value>,
    ready: bool,
}

/// A line that a program may print.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Ready,
    Proposal { id: u64, parameters: Parameters },
    Wait { id: u64 },
    Exhausted { id: u64 },
    Stop { trial: TrialJobId, reason: Option<String> },
    Log { message: String },
}

impl AskAndTell {
    pub(super) fn new(greeting: Map<String, Value>) -> Self {
        Self { greeting, ready: false }
    }

    fn answer_step(
        id: u64,
        proposal: Proposal,
        history: &mut History,
    ) -> Result<ConversationStep, String> {
        let Some(place) = history.open_requests.iter().position(|open| *open == id) else {
            return Err(format!("an answer for proposal {id}, which was not requested"));
        };
        history.open_requests.remove(place);
        Ok(ConversationStep {
            events: vec![AdviserEvent::Proposed { id, proposal }],
            ..ConversationStep::default()
        })
    }

    fn replay_messages(history: &History) -> Vec<String> {
        let mut messages = Vec::new();
        if !history.imported.is_empty() {
            messages.push(request_line(&AdviserRequest::Import(history.imported.clone()), history));
        }
        for past in &history.trials {
            messages.push(launched_line(past));
            messages.extend(
                past.steps.iter().map(|(sequence, value)| step_line(past, *sequence, value)),
            );
            messages.extend(past.end.is_some().then(|| ended_line(past)));
        }
        messages.extend(history.open_requests.iter().map(|id| propose_line(*id)));
        messages
    }
}

impl Conversation for AskAndTell {
    fn first_messages(&mut self, history: &mut History) -> ConversationStep {
        let mut hello = json!({"type": "hello", "protocol": PROTOCOL_VERSION});
        if let Some(members) = hello.as_object_mut() {
            members.extend(self.greeting.clone());
            members.insert("search_space".to_owned(), history.space.clone());
        }
        ConversationStep { messages: vec![hello.to_string()], ..ConversationStep::default() }
    }

    fn handle_request(
        &mut self,
        request: &AdviserRequest,
        history: &mut History,
    ) -> ConversationStep {
        let messages = if self.ready { vec![request_line(request, history)] } else { Vec::new() };
        ConversationStep { messages, ..ConversationStep::default() }
    }

    fn handle_message(
        &mut self,
        text: &str,
        history: &mut History,
    ) -> Result<ConversationStep, String> {
        let line = match serde_json::from_str(text) {
            Ok(line) => line,
            Err(error) => {
                // A line that is not a message of the protocol may be for another reader, and is only reported. An
                // unusable proposal is an error.
                let given: Value = serde_json::from_str(text).unwrap_or_default();
                let proposal = given["type"] == "proposal" && given["id"].is_u64();
                let Some(parameters) = given.get("parameters").filter(|_| proposal) else {
                    return Err(error.to_string());
                };
                let what = format!("parameters that are not an object: {parameters}");
                return Ok(ConversationStep {
                    unusable_proposal: Some(what),
                    ..ConversationStep::default()
                });
            }
        };
        match line {
            Line::Ready => {
                let messages = if self.ready { Vec::new() } else { Self::replay_messages(history) };
                self.ready = true;
                Ok(ConversationStep { messages, ready: true, ..ConversationStep::default() })
            }
            Line::Proposal { id, parameters } => {
                Self::answer_step(id, Proposal::Parameters(parameters), history)
            }
            Line::Wait { id } => Self::answer_step(id, Proposal::Wait, history),
            Line::Exhausted { id } => Self::answer_step(id, Proposal::Exhausted, history),
            Line::Stop { trial, reason } => Ok(ConversationStep {
                events: vec![AdviserEvent::StopTrial { trial, reason }],
                ..ConversationStep::default()
            }),
            Line::Log { message } => {
                Ok(ConversationStep { notes: vec![message], ..ConversationStep::default() })
            }
        }
    }

    fn idle_messages(&mut self) -> ConversationStep {
        ConversationStep::default()
    }

    fn reminder_messages(&mut self) -> ConversationStep {
        ConversationStep::default()
    }

    fn last_messages(&mut self) -> ConversationStep {
        ConversationStep {
            messages: vec![json!({"type": "end"}).to_string()],
            ..ConversationStep::default()
        }
    }
}

/// Returns a request as a line of the protocol.
fn request_line(request: &AdviserRequest, history: &History) -> String {
    let known = |trial| history.trial(trial);
    match request {
        AdviserRequest::Propose { id } => propose_line(*id),
        AdviserRequest::Launched { trial, .. } => {
            known(trial).map(launched_line).unwrap_or_default()
        }
        AdviserRequest::Step { trial, sequence, value } => {
            known(trial).map(|past| step_line(past, *sequence, value)).unwrap_or_default()
        }
        AdviserRequest::Ended { trial, .. } => known(trial).map(ended_line).unwrap_or_default(),
        AdviserRequest::Import(samples) => {
            let samples: Vec<Value> = samples
                .iter()
                .map(|known| json!({"parameters": known.parameters, "value": number_as_json(&known.value)}))
                .collect();
            json!({"type": "import", "samples": samples}).to_string()
        }
        AdviserRequest::Space(space) => {
            json!({"type": "search_space", "search_space": space}).to_string()
        }
    }
}

fn propose_line(id: u64) -> String {
    json!({"type": "propose", "id": id}).to_string()
}

fn launched_line(past: &TrialHistory) -> String {
    json!({
        "type": "launched",
        "trial": past.trial.as_str(),
        "id": past.proposal,
        "parameters": past.parameters,
    })
    .to_string()
}

fn step_line(past: &TrialHistory, sequence: u64, value: &MetricValue) -> String {
    json!({
        "type": "intermediate",
        "trial": past.trial.as_str(),
        "id": past.proposal,
        "sequence": sequence,
        "value": number_as_json(value),
    })
    .to_string()
}

fn ended_line(past: &TrialHistory) -> String {
    let end = past.end.as_ref();
    json!({
        "type": "ended",
        "trial": past.trial.as_str(),
        "id": past.proposal,
        "parameters": past.parameters,
        "state": end.map(|end| end.state.as_str()),
        "value": end.and_then(|end| end.result.as_ref()).map(number_as_json),
    })
    .to_string()
}

/// Returns a value as a JSON number, or as `NaN`, `Infinity` or `-Infinity`; `null` if the value is not numeric.
fn number_as_json(value: &MetricValue) -> Value {
    value.number().map_or(Value::Null, |number| MetricValue::from(number).as_json().clone())
}
