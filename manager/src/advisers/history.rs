//! PURE: the messages that were sent to an adviser's program, so that a restarted program can receive them again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde_json::Value;
use trial_protocol::{MetricValue, TrialJobId};

use super::{AdviserRequest, Sample};
use crate::job_state::JobState;
use crate::search::search_space::Parameters;

/// The known history of a trial.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TrialHistory {
    pub(super) trial: TrialJobId,
    pub(super) proposal: Option<u64>,
    pub(super) parameters: Parameters,
    /// The intermediate results by position.
    pub(super) steps: BTreeMap<u64, MetricValue>,
    pub(super) end: Option<PastTrialEnd>,
}

/// The end of a trial.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PastTrialEnd {
    pub(super) state: JobState,
    pub(super) result: Option<MetricValue>,
}

/// The messages that were sent, and the requests that are unanswered.
#[derive(Debug)]
pub(super) struct History {
    pub(super) space: Value,
    pub(super) imported: Vec<Sample>,
    pub(super) trials: Vec<TrialHistory>,
    positions: HashMap<TrialJobId, usize>,
    /// The requested proposals, oldest first.
    pub(super) open_requests: VecDeque<u64>,
    /// The requested proposals that the program cannot answer at present.
    pub(super) refused_requests: VecDeque<u64>,
}

impl History {
    pub(super) fn new(space: Value) -> Self {
        Self {
            space,
            imported: Vec::new(),
            trials: Vec::new(),
            positions: HashMap::new(),
            open_requests: VecDeque::new(),
            refused_requests: VecDeque::new(),
        }
    }

    /// Records a request. Returns `false` if the request repeats known facts and must not be forwarded.
    pub(super) fn record(&mut self, request: &AdviserRequest) -> bool {
        match request {
            AdviserRequest::Propose { id } => self.open_requests.push_back(*id),
            AdviserRequest::Launched { trial, proposal, parameters } => {
                if self.positions.contains_key(trial) {
                    return false;
                }
                self.positions.insert(trial.clone(), self.trials.len());
                self.trials.push(TrialHistory {
                    trial: trial.clone(),
                    proposal: *proposal,
                    parameters: parameters.clone(),
                    steps: BTreeMap::new(),
                    end: None,
                });
            }
            AdviserRequest::Step { trial, sequence, value } => {
                let Some(past) = self.trial_mut(trial).filter(|past| past.end.is_none()) else {
                    return false;
                };
                return past.steps.insert(*sequence, value.clone()).is_none();
            }
            AdviserRequest::Ended { trial, state, result } => {
                let Some(past) = self.trial_mut(trial).filter(|past| past.end.is_none()) else {
                    return false;
                };
                past.end = Some(PastTrialEnd { state: *state, result: result.clone() });
            }
            AdviserRequest::Import(samples) => self.imported.extend(samples.iter().cloned()),
            AdviserRequest::Space(space) => self.space = space.clone(),
        }
        true
    }

    /// Returns the history of a trial.
    pub(super) fn trial(&self, trial: &TrialJobId) -> Option<&TrialHistory> {
        self.trials.get(*self.positions.get(trial)?)
    }

    fn trial_mut(&mut self, trial: &TrialJobId) -> Option<&mut TrialHistory> {
        self.trials.get_mut(*self.positions.get(trial)?)
    }

    /// Removes and returns the oldest requested proposal, to which the next parameters belong.
    pub(super) fn next_open_request(&mut self) -> Option<u64> {
        self.refused_requests.pop_front().or_else(|| self.open_requests.pop_front())
    }

    /// Moves the oldest requested proposal to the refused ones, because the program has no parameters for it.
    pub(super) fn refuse_request(&mut self) {
        if let Some(id) = self.open_requests.pop_front() {
            self.refused_requests.push_back(id);
        }
    }
}

/// The result of a step of the conversation: the messages to send, and the events that were received.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ConversationStep {
    /// The messages to the program.
    pub(super) messages: Vec<String>,
    /// The events for the experiment.
    pub(super) events: Vec<super::AdviserEvent>,
    /// The program's notes for its user.
    pub(super) notes: Vec<String>,
    /// `true` if the program is ready for requests.
    pub(super) ready: bool,
    /// A description of proposed parameters that cannot be tried, for example "parameters that are not an object: 7".
    /// A new request would not help.
    pub(super) unusable_proposal: Option<String>,
    /// `true` if the message is from the assessor: it has finished some of its work.
    pub(super) is_from_assessor: bool,
}

/// A protocol for a program. Every process has a new conversation.
pub(super) trait Conversation: Send {
    /// Returns the first messages.
    fn first_messages(&mut self, history: &mut History) -> ConversationStep;

    /// Returns the messages for a request that the history has recorded.
    fn handle_request(
        &mut self,
        request: &AdviserRequest,
        history: &mut History,
    ) -> ConversationStep;

    /// Processes a message of the program. The error describes a message that was not understood.
    fn handle_message(
        &mut self,
        text: &str,
        history: &mut History,
    ) -> Result<ConversationStep, String>;

    /// Returns the number of messages that the assessor has not yet processed, if the program reports it.
    fn unprocessed(&self) -> usize {
        0
    }

    /// Returns the messages to send after a short time without requests.
    fn idle_messages(&mut self) -> ConversationStep;

    /// Returns the messages to send to a program that has not answered for some time.
    fn reminder_messages(&mut self) -> ConversationStep;

    /// Returns the last messages.
    fn last_messages(&mut self) -> ConversationStep;
}
