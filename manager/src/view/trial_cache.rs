//! All trials in memory. The store numbers every step of every trial, and every report after a trial's end. A refresh
//! reads the changes since the last known number. It also reads how many reports of trials that have not ended are
//! stored.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::Mutex;

use super::TrialSummary;
use crate::config::ExperimentSpec;
use crate::job_state::JobState;
use crate::search::goals::Goals;
use crate::search::repeats::Estimate;
use crate::store::{self, Queries};

/// The number of changes that are read at once.
const CHANGES_AT_ONCE: u32 = 10_000;

/// The trials at one moment, by position.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The trials.
    pub trials: Vec<Arc<TrialSummary>>,
    /// The number of the newest change in the snapshot.
    pub through: i64,
    /// The highest [`TrialSummary::revision`].
    pub revision: u64,
    /// The number of trials of each point; 0 and 1 mean the same.
    pub repeats: u64,
    by_id: HashMap<String, usize>,
}

impl Snapshot {
    /// Returns the trial at this position of the experiment.
    pub fn at(&self, sequence: u64) -> Option<&TrialSummary> {
        let at = self.trials.binary_search_by_key(&sequence, |trial| trial.sequence).ok()?;
        self.trials.get(at).map(AsRef::as_ref)
    }

    /// Returns the trial with this id.
    pub fn find(&self, id: &str) -> Option<&TrialSummary> {
        self.by_id.get(id).and_then(|at| self.trials.get(*at)).map(AsRef::as_ref)
    }
}

/// The store of the trials in memory; cheap to clone.
#[derive(Debug, Clone)]
pub struct TrialCache {
    queries: Queries,
    objective: Option<String>,
    goals: Goals,
    snapshot: Arc<Mutex<Arc<Snapshot>>>,
}

impl TrialCache {
    /// Creates an empty cache over a store. `objective` is the configured metric.
    pub fn new(queries: Queries, objective: Option<String>) -> Self {
        Self { queries, objective, goals: Goals::default(), snapshot: Arc::default() }
    }

    /// Creates the empty cache of an experiment.
    pub fn of_experiment(queries: Queries, spec: &ExperimentSpec) -> Self {
        let empty = Snapshot { repeats: spec.trial_repeats, ..Snapshot::default() };
        Self {
            goals: spec.goals.clone(),
            snapshot: Arc::new(Mutex::new(Arc::new(empty))),
            ..Self::new(queries, spec.objective.clone())
        }
    }

    /// Returns the configured metric.
    pub fn objective(&self) -> Option<&str> {
        self.objective.as_deref()
    }

    /// Returns the goals other than the objective.
    pub fn goals(&self) -> &Goals {
        &self.goals
    }

    /// Brings the trials up to date and returns them.
    pub async fn refresh(&self) -> Result<Arc<Snapshot>, store::Error> {
        let mut kept = self.snapshot.lock().await;
        let mut through = kept.through;
        let mut changed: HashMap<i64, i64> = HashMap::new();
        loop {
            let steps = self.queries.changes(through, CHANGES_AT_ONCE).await?;
            let Some(last) = steps.last() else { break };
            through = last.number;
            changed.extend(steps.iter().map(|step| (step.trial, step.number)));
        }
        let live = kept.trials.iter().filter(|trial| !trial.state.is_final());
        let live: HashMap<_, _> =
            live.map(|trial| (trial.key, (trial.facts_through, trial.change))).collect();
        for (key, stored) in self.queries.facts_through(live.keys().copied().collect()).await? {
            if let Some((known, change)) = live.get(&key)
                && *known != stored
            {
                changed.entry(key).or_insert(*change);
            }
        }
        if changed.is_empty() {
            return Ok(Arc::clone(&kept));
        }
        let keys: BTreeSet<i64> = changed.keys().copied().collect();
        let objective = self.objective.iter().map(String::as_str);
        let names = objective.chain(self.goals.metrics()).map(str::to_owned).collect();
        let summaries = self.queries.summaries(keys.into_iter().collect(), names).await?;
        // If a reader still has the last snapshot, it is copied; otherwise it is changed in place.
        let snapshot = Arc::make_mut(&mut kept);
        snapshot.through = through;
        snapshot.revision += 1;
        for summary in summaries {
            let change = changed.get(&summary.key).copied().unwrap_or(through);
            let aim = (self.objective.as_deref(), &self.goals);
            let mut trial = TrialSummary::new(summary, aim, change, snapshot.revision);
            match snapshot.by_id.get(&trial.id) {
                Some(at) => {
                    trial.keep_latest(&snapshot.trials[*at]);
                    snapshot.trials[*at] = Arc::new(trial);
                }
                None => {
                    snapshot.by_id.insert(trial.id.clone(), snapshot.trials.len());
                    snapshot.trials.push(Arc::new(trial));
                }
            }
        }
        if snapshot.repeats > 1 {
            set_estimates(snapshot);
        }
        if !snapshot.trials.is_sorted_by_key(|trial| trial.sequence) {
            snapshot.trials.sort_by_key(|trial| trial.sequence);
            let places = snapshot.trials.iter().enumerate();
            snapshot.by_id = places.map(|(at, trial)| (trial.id.clone(), at)).collect();
        }
        Ok(Arc::clone(&kept))
    }
}

/// Sets in each trial the common results of all trials with the same parameters.
fn set_estimates(snapshot: &mut Snapshot) {
    let mut points: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, trial) in snapshot.trials.iter().enumerate() {
        if trial.state == JobState::Succeeded {
            points.entry(trial.parameters.to_string()).or_default().push(at);
        }
    }
    for trials in points.into_values() {
        let numbers = trials.iter().filter_map(|at| snapshot.trials[*at].number());
        let estimate = Estimate::new(&numbers.collect::<Vec<_>>(), snapshot.repeats);
        for at in trials {
            if snapshot.trials[at].estimate != estimate {
                let trial = Arc::make_mut(&mut snapshot.trials[at]);
                (trial.estimate, trial.revision) = (estimate, snapshot.revision);
            }
        }
    }
}
