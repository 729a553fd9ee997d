//! PURE: everything that an adviser's program was told, so that its successor can be told it again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde_json::Value;
use trial_protocol::{MetricValue, TrialJobId};

use super::{Order, Sample};
use crate::job_state::JobState;
use crate::search::search_space::Parameters;

/// One trial, as far as it is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Past {
    pub(super) trial: TrialJobId,
    pub(super) proposal: Option<u64>,
    pub(super) parameters: Parameters,
    /// Intermediate results by their position.
    pub(super) steps: BTreeMap<u64, MetricValue>,
    pub(super) end: Option<PastEnd>,
}

/// The end of a trial.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PastEnd {
    pub(super) state: JobState,
    pub(super) result: Option<MetricValue>,
}

/// The messages that were sent, and the requests that were not answered.
#[derive(Debug)]
pub(super) struct History {
    pub(super) space: Value,
    pub(super) imported: Vec<Sample>,
    pub(super) trials: Vec<Past>,
    places: HashMap<TrialJobId, usize>,
    /// Proposals that are wanted, oldest first.
    pub(super) asks: VecDeque<u64>,
    /// Proposals that were asked for, and that the program has nothing for just now.
    pub(super) refused: VecDeque<u64>,
}

impl History {
    pub(super) fn new(space: Value) -> Self {
        Self {
            space,
            imported: Vec::new(),
            trials: Vec::new(),
            places: HashMap::new(),
            asks: VecDeque::new(),
            refused: VecDeque::new(),
        }
    }

    /// Takes an order in; `false` if it says nothing new, and must not be passed on.
    pub(super) fn take(&mut self, order: &Order) -> bool {
        match order {
            Order::Propose { id } => self.asks.push_back(*id),
            Order::Launched { trial, proposal, parameters } => {
                if self.places.contains_key(trial) {
                    return false;
                }
                self.places.insert(trial.clone(), self.trials.len());
                self.trials.push(Past {
                    trial: trial.clone(),
                    proposal: *proposal,
                    parameters: parameters.clone(),
                    steps: BTreeMap::new(),
                    end: None,
                });
            }
            Order::Step { trial, sequence, value } => {
                let Some(past) = self.of(trial).filter(|past| past.end.is_none()) else {
                    return false;
                };
                return past.steps.insert(*sequence, value.clone()).is_none();
            }
            Order::Ended { trial, state, result } => {
                let Some(past) = self.of(trial).filter(|past| past.end.is_none()) else {
                    return false;
                };
                past.end = Some(PastEnd { state: *state, result: result.clone() });
            }
            Order::Import(samples) => self.imported.extend(samples.iter().cloned()),
            Order::Space(space) => self.space = space.clone(),
        }
        true
    }

    /// Returns the past of a trial.
    pub(super) fn past(&self, trial: &TrialJobId) -> Option<&Past> {
        self.trials.get(*self.places.get(trial)?)
    }

    fn of(&mut self, trial: &TrialJobId) -> Option<&mut Past> {
        self.trials.get_mut(*self.places.get(trial)?)
    }

    /// The proposal that parameters are for: the one that is wanted longest.
    pub(super) fn next_ask(&mut self) -> Option<u64> {
        self.refused.pop_front().or_else(|| self.asks.pop_front())
    }

    /// The program has nothing to propose for the one that is wanted longest.
    pub(super) fn refuse(&mut self) {
        if let Some(id) = self.asks.pop_front() {
            self.refused.push_back(id);
        }
    }
}

/// The messages to send, and the answers that were understood.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Turn {
    /// To the program.
    pub(super) say: Vec<String>,
    /// To the experiment.
    pub(super) said: Vec<super::AdviserEvent>,
    /// Remarks of the program for its user.
    pub(super) notes: Vec<String>,
    /// It has come far enough to be asked.
    pub(super) ready: bool,
    /// It has proposed what cannot be tried, and nothing better is to be hoped for: "what is no object: 7".
    pub(super) broken: Option<String>,
    /// Its assessor, and not its tuner, has spoken: it is through with something that it was told.
    pub(super) seen: bool,
}

/// One way to talk to a program. A new one for every process.
pub(super) trait Conversation: Send {
    /// The first words.
    fn greet(&mut self, history: &mut History) -> Turn;

    /// Passes an order on that the history has taken in.
    fn tell(&mut self, order: &Order, history: &mut History) -> Turn;

    /// Takes in what the program says. An error is what was not understood.
    fn hear(&mut self, text: &str, history: &mut History) -> Result<Turn, String>;

    /// Returns the number of messages that its assessor is not through with, as far as it says so.
    fn unseen(&self) -> usize {
        0
    }

    /// For a moment nothing was ordered.
    fn idle(&mut self) -> Turn;

    /// Returns the messages that wake a program that has not answered for some time.
    fn nudge(&mut self) -> Turn;

    /// The last words.
    fn part(&mut self) -> Turn;
}
