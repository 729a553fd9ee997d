//! The pods that have left their trials: ended, deleted or removed by the platform. They are no longer members of the
//! trial's rendezvous.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trial_protocol::TrialJobId;

/// The pods that have left, by trial. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct DepartedPods(Arc<Mutex<HashMap<TrialJobId, HashSet<String>>>>);

impl DepartedPods {
    /// Adds a pod by its unique id.
    pub fn insert(&self, trial: &TrialJobId, incarnation: String) {
        self.lock().entry(trial.clone()).or_default().insert(incarnation);
    }

    /// Returns whether a pod has left.
    pub fn contains(&self, trial: &TrialJobId, incarnation: &str) -> bool {
        self.lock().get(trial).is_some_and(|pods| pods.contains(incarnation))
    }

    /// Removes the pods of an ended trial.
    pub fn remove_trial(&self, trial: &TrialJobId) {
        self.lock().remove(trial);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TrialJobId, HashSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
