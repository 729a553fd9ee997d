//! PURE: the protocol between the manager and NNI's dispatcher (NNI 3.0: `nni/runtime/msg_dispatcher.py`,
//! `nni/runtime/tuner_command_channel`).
//!
//! # Order of messages
//!
//! The dispatcher has two queues and two threads. A trial's end (`EN`) and its intermediate results pass through one
//! queue, all other messages through the other. If an end overtakes its final result, NNI's tuners fail. So the
//! manager holds an end back until the dispatcher has answered a request for parameters (`GE`) that was sent after
//! the result. The answer proves that the result has been processed. If no parameters are needed, the manager
//! requests some anyway and keeps them for the next proposal.
//!
//! # Identifiers of proposals
//!
//! The dispatcher numbers its proposals itself, from 0 in every process, and advisors give them names. The manager
//! assigns these identifiers to its requested proposals, oldest first. A trial of an earlier process has no such
//! identifier: the manager sends `null`, as NNI's manager does for a trial with a user's parameters.
//!
//! # Work of the assessor
//!
//! NNI's dispatcher reports its assessor's work only if a trial should stop. TrialKeeper's dispatcher (`nni.py`) also
//! sends, as `_done_`, the number of ends and intermediate results that the assessor has processed.

use std::collections::{HashMap, VecDeque};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trial_protocol::TrialJobId;

use super::history::{Conversation, ConversationStep, History, PastTrialEnd, TrialHistory};
use super::{AdviserEvent, AdviserRequest};
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::search::tuner::Proposal;

/// The algorithms that the dispatcher runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct DispatcherRoles {
    pub(super) tunes: bool,
    pub(super) assesses: bool,
    pub(super) advisor: bool,
}

/// A conversation with a dispatcher.
#[derive(Debug)]
pub(super) struct NniConversation {
    roles: DispatcherRoles,
    ready: bool,
    /// The numbers of requests that were sent, and of answers that were received.
    parameter_requests: u64,
    answers: u64,
    /// The ends that are held back, each with the number of answers for which it waits.
    held_ends: VecDeque<(u64, String)>,
    /// Received parameters for which no proposal is requested yet.
    unused_parameters: VecDeque<(Value, Parameters)>,
    /// The dispatcher's identifiers of the manager's proposals.
    parameter_ids: HashMap<u64, Value>,
    /// The number of ends and intermediate results that were sent.
    sent_values: u64,
    /// The number of those messages that the assessor has processed. `None` if this dispatcher does not report it.
    processed_values: Option<u64>,
}

/// A frame in either direction.
#[derive(Deserialize)]
struct Frame {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    content: Option<String>,
}

/// The parameters of a proposal, as the dispatcher sends them.
#[derive(Deserialize)]
struct Record {
    parameter_id: Value,
    parameters: Value,
}

fn frame(kind: &str, content: &str) -> String {
    json!({ "type": kind, "content": content }).to_string()
}

impl NniConversation {
    pub(super) fn new(roles: DispatcherRoles) -> Self {
        Self {
            roles,
            ready: false,
            parameter_requests: 0,
            answers: 0,
            held_ends: VecDeque::new(),
            unused_parameters: VecDeque::new(),
            parameter_ids: HashMap::new(),
            sent_values: 0,
            processed_values: None,
        }
    }

    fn request_parameters(&mut self) -> String {
        self.parameter_requests += 1;
        frame("GE", "1")
    }

    /// Returns the dispatcher's identifier of a trial. `None` if the dispatcher did not propose the trial.
    fn parameter_id(&self, past: &TrialHistory) -> Option<&Value> {
        self.parameter_ids.get(&past.proposal?)
    }

    fn step_message(
        &mut self,
        past: &TrialHistory,
        sequence: u64,
        value: &Value,
    ) -> Option<String> {
        let name = self.parameter_id(past).cloned();
        // An advisor fails on trials that it did not propose.
        if !self.roles.assesses || (self.roles.advisor && name.is_none()) {
            return None;
        }
        self.sent_values += 1;
        Some(metric_frame(past, name.as_ref(), "PERIODICAL", sequence, value))
    }

    /// Returns the messages about a trial's end. An end must not overtake its final result, so it is held back if there
    /// is a result.
    fn end_messages(&mut self, past: &TrialHistory, end: &PastTrialEnd) -> Vec<String> {
        let name = self.parameter_id(past).cloned();
        let mut messages = Vec::new();
        // NNI's tuners remove a trial that has failed, so an additional result would be wrong.
        let result = end.result.as_ref().filter(|_| end.state == JobState::Succeeded);
        if let Some(value) = result.filter(|_| self.roles.tunes) {
            match &name {
                Some(name) => {
                    messages.push(metric_frame(past, Some(name), "FINAL", 0, value.as_json()));
                }
                None if past.proposal.is_some() => {
                    messages.push(import_frame([(&past.parameters, value.as_json())].into_iter()));
                }
                // A trial with a user's parameters: NNI's tuners ignore it by default.
                None => messages.push(metric_frame(past, None, "FINAL", 0, value.as_json())),
            }
        }
        // For a trial that the dispatcher did not propose, its tuner may fail on an unsuccessful end. Its assessor
        // uses only successful trials, and an advisor none.
        let good = end.state == JobState::Succeeded && !self.roles.advisor;
        let concerned = self.roles.assesses || past.proposal.is_none();
        if name.is_none() && !(good && concerned) {
            return messages;
        }
        let source = if name.is_some() { "algorithm" } else { "customized" };
        let record = json!({
            "parameter_id": name,
            "parameter_source": source,
            "parameters": past.parameters,
            "parameter_index": 0,
        });
        let end = json!({
            "trial_job_id": past.trial.as_str(),
            "event": end.state.as_str(),
            "hyper_params": record.to_string(),
        });
        let end = frame("EN", &end.to_string());
        if messages.is_empty() {
            self.sent_values += 1;
            messages.push(end);
        } else {
            // Only the answer to a request that is not sent yet proves that the result has been processed.
            self.held_ends.push_back((self.parameter_requests + 1, end));
        }
        messages
    }

    /// Removes and returns the ends of trials whose results have been processed.
    fn take_released_ends(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        while let Some((after, _)) = self.held_ends.front()
            && *after <= self.answers
        {
            messages.extend(self.held_ends.pop_front().map(|(_, end)| end));
            self.sent_values += 1;
        }
        messages
    }

    /// Returns the messages for everything that happened before this dispatcher started.
    fn replay_messages(&mut self, history: &mut History) -> Vec<String> {
        let mut messages = Vec::new();
        if self.roles.tunes {
            let imported =
                history.imported.iter().map(|known| (&known.parameters, known.value.as_json()));
            let ended = history.trials.iter().filter_map(|past| {
                let end = past.end.as_ref().filter(|end| end.state == JobState::Succeeded)?;
                Some((&past.parameters, end.result.as_ref()?.as_json()))
            });
            let known: Vec<_> = imported.chain(ended).collect();
            if !known.is_empty() {
                messages.push(import_frame(known.into_iter()));
            }
        }
        if self.roles.assesses && !self.roles.advisor {
            // The earlier results of running trials are sent first: results that an assessor accepted must not be
            // compared with trials that ended later. Their latest results are sent last, to be compared with all
            // ended trials.
            let (run, ended): (Vec<_>, Vec<_>) =
                history.trials.iter().partition(|past| past.end.is_none());
            let latest =
                |past: &TrialHistory| past.steps.last_key_value().map(|(sequence, _)| *sequence);
            for past in &run {
                for (sequence, value) in past.steps.range(..latest(past).unwrap_or(0)) {
                    messages.extend(self.step_message(past, *sequence, value.as_json()));
                }
            }
            for past in ended.into_iter().filter(|past| !past.steps.is_empty()) {
                for (sequence, value) in &past.steps {
                    messages.extend(self.step_message(past, *sequence, value.as_json()));
                }
                if let Some(end) = &past.end {
                    // The result was imported above.
                    messages.extend(
                        self.end_messages(past, &PastTrialEnd { state: end.state, result: None }),
                    );
                }
            }
            for past in run {
                if let Some((sequence, value)) = past.steps.last_key_value() {
                    messages.extend(self.step_message(past, *sequence, value.as_json()));
                }
            }
        }
        for _ in 0..history.open_requests.len() {
            messages.push(self.request_parameters());
        }
        messages
    }

    /// Processes received parameters. They belong to a requested proposal, or are kept for the next request.
    fn handle_proposal(&mut self, content: &str, history: &mut History) -> ConversationStep {
        let broken = |what| ConversationStep {
            unusable_proposal: Some(what),
            ..ConversationStep::default()
        };
        let Record { parameter_id, parameters } = match serde_json::from_str(content) {
            Ok(record) => record,
            // Python may write NaN, which is not valid JSON. Another request would not help.
            Err(error) => {
                return broken(format!("parameters that cannot be read ({error}): {content}"));
            }
        };
        let Value::Object(parameters) = parameters else {
            return broken(format!("parameters that are not an object: {parameters}"));
        };
        self.answers = self.parameter_requests.min(self.answers + 1);
        let mut step =
            ConversationStep { messages: self.take_released_ends(), ..ConversationStep::default() };
        step.events.push(match history.next_open_request() {
            Some(id) => {
                self.parameter_ids.insert(id, parameter_id);
                AdviserEvent::Proposed { id, proposal: Proposal::Parameters(parameters) }
            }
            None => {
                self.unused_parameters.push_back((parameter_id, parameters));
                AdviserEvent::Ready
            }
        });
        step
    }
}

impl Conversation for NniConversation {
    fn first_messages(&mut self, history: &mut History) -> ConversationStep {
        ConversationStep {
            messages: vec![frame("IN", &history.space.to_string())],
            ..ConversationStep::default()
        }
    }

    fn handle_request(
        &mut self,
        request: &AdviserRequest,
        history: &mut History,
    ) -> ConversationStep {
        let mut step = ConversationStep::default();
        if !self.ready {
            return step; // The replay of the history will contain the request.
        }
        match request {
            AdviserRequest::Propose { .. } => match self.unused_parameters.pop_front() {
                Some((name, parameters)) => {
                    if let Some(id) = history.next_open_request() {
                        self.parameter_ids.insert(id, name);
                        let proposal = Proposal::Parameters(parameters);
                        step.events.push(AdviserEvent::Proposed { id, proposal });
                    }
                }
                None => step.messages.push(self.request_parameters()),
            },
            AdviserRequest::Launched { .. } => {}
            AdviserRequest::Step { trial, sequence, value } => {
                let past = history.trial(trial);
                step.messages.extend(
                    past.and_then(|past| self.step_message(past, *sequence, value.as_json())),
                );
            }
            AdviserRequest::Ended { trial, .. } => {
                if let Some(past) = history.trial(trial)
                    && let Some(end) = &past.end
                {
                    step.messages = self.end_messages(past, end);
                }
            }
            AdviserRequest::Import(samples) => {
                let known = samples.iter().map(|known| (&known.parameters, known.value.as_json()));
                step.messages.push(import_frame(known));
            }
            AdviserRequest::Space(space) => {
                // These proposals are from the old space and were not requested yet.
                self.unused_parameters.clear();
                step.messages.push(frame("SS", &space.to_string()));
            }
        }
        step
    }

    fn handle_message(
        &mut self,
        text: &str,
        history: &mut History,
    ) -> Result<ConversationStep, String> {
        let Frame { kind, content } =
            serde_json::from_str(text).map_err(|error| format!("no frame ({error})"))?;
        let content = content.unwrap_or_default();
        match kind.as_str() {
            "ID" => {
                let messages = if self.ready { Vec::new() } else { self.replay_messages(history) };
                self.ready = true;
                Ok(ConversationStep { messages, ready: true, ..ConversationStep::default() })
            }
            "TR" => Ok(self.handle_proposal(&content, history)),
            "NO" => {
                self.answers = self.parameter_requests.min(self.answers + 1);
                history.refuse_request();
                Ok(ConversationStep {
                    messages: self.take_released_ends(),
                    ..ConversationStep::default()
                })
            }
            "KI" => {
                let id: String = serde_json::from_str(&content).map_err(|error| {
                    format!("a request to stop a trial without its id ({error})")
                })?;
                let trial = TrialJobId::new(id).map_err(|error| error.to_string())?;
                let events = vec![AdviserEvent::StopTrial { trial, reason: None }];
                Ok(ConversationStep { events, ..ConversationStep::default() })
            }
            "_done_" => {
                let count = content.parse().map_err(|error| format!("no count ({error})"))?;
                self.processed_values = Some(count);
                Ok(ConversationStep { is_from_assessor: true, ..ConversationStep::default() })
            }
            "ER" => Ok(ConversationStep { notes: vec![content], ..ConversationStep::default() }),
            // After the farewell, the process exits.
            "_bye_" | "_nop_" => Ok(ConversationStep::default()),
            other => Err(format!("a message of the unknown type `{other}`")),
        }
    }

    fn unprocessed(&self) -> usize {
        let left = self.processed_values.map_or(0, |count| self.sent_values.saturating_sub(count));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    fn idle_messages(&mut self) -> ConversationStep {
        let mut step = ConversationStep::default();
        if self.ready
            && self.held_ends.back().is_some_and(|(after, _)| *after > self.parameter_requests)
        {
            step.messages.push(self.request_parameters());
        }
        step
    }

    fn reminder_messages(&mut self) -> ConversationStep {
        // The dispatcher checks its threads for failures only when it receives a message.
        ConversationStep {
            messages: vec![json!({"type": "PI"}).to_string()],
            ..ConversationStep::default()
        }
    }

    fn last_messages(&mut self) -> ConversationStep {
        let end = json!({"type": "TE"}).to_string();
        let bye = json!({"type": "_bye_", "reason": "the experiment has ended"}).to_string();
        ConversationStep { messages: vec![end, bye], ..ConversationStep::default() }
    }
}

/// Returns a metric as the trial's SDK writes it: the value is JSON within JSON.
fn metric_frame(
    past: &TrialHistory,
    name: Option<&Value>,
    kind: &str,
    sequence: u64,
    value: &Value,
) -> String {
    let content = json!({
        "parameter_id": name,
        "trial_job_id": past.trial.as_str(),
        "type": kind,
        "sequence": sequence,
        "value": python_json(value),
    });
    frame("ME", &content.to_string())
}

/// Returns the message with imported results. Each value is a text, which the dispatcher parses as JSON.
fn import_frame<'a>(known: impl Iterator<Item = (&'a Parameters, &'a Value)>) -> String {
    let list: Vec<Value> = known
        .map(|(parameters, value)| json!({"parameter": parameters, "value": python_json(value)}))
        .collect();
    frame("FD", &Value::Array(list).to_string())
}

/// Writes JSON as Python reads it. Floats that JSON cannot represent, which are strings in `value`, become bare
/// words.
pub(super) fn python_json(value: &Value) -> String {
    let members = |members: &Map<String, Value>| {
        let members = members
            .iter()
            .map(|(name, value)| format!("{}: {}", Value::from(name.as_str()), python_json(value)));
        members.collect::<Vec<_>>().join(", ")
    };
    match value {
        Value::String(word) if matches!(word.as_str(), "NaN" | "Infinity" | "-Infinity") => {
            word.clone()
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python_json).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(object) => format!("{{{}}}", members(object)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}
