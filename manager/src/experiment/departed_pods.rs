//! The pods that have left their trials: ended, deleted, or taken away. Where pods meet, they are no members any more.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trial_protocol::TrialJobId;

/// The pods that have left, by trial; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct DepartedPods(Arc<Mutex<HashMap<TrialJobId, HashSet<String>>>>);

impl DepartedPods {
    /// Enters a pod by its own id.
    pub fn enter(&self, trial: &TrialJobId, incarnation: String) {
        self.lock().entry(trial.clone()).or_default().insert(incarnation);
    }

    /// Returns whether a pod has left.
    pub fn has(&self, trial: &TrialJobId, incarnation: &str) -> bool {
        self.lock().get(trial).is_some_and(|pods| pods.contains(incarnation))
    }

    /// Forgets the pods of a trial that has ended.
    pub fn forget(&self, trial: &TrialJobId) {
        self.lock().remove(trial);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TrialJobId, HashSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
