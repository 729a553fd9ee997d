//! PURE: the listings of the workloads, which reveal changes that a watch missed.

use std::collections::HashSet;

/// The listings of the workloads.
#[derive(Debug, Default)]
pub(super) struct WorkloadListing {
    /// The workloads that were created before the current listing began, and that the listing has not shown yet.
    /// `None`: no listing is in progress.
    missing: Option<HashSet<String>>,
    has_completed: bool,
}

impl WorkloadListing {
    /// Begins a listing that should show these workloads.
    pub(super) fn begin(&mut self, expected: HashSet<String>) {
        self.missing = Some(expected);
    }

    /// Completes the listing, and returns the workloads that it has not shown.
    pub(super) fn complete(&mut self) -> HashSet<String> {
        self.has_completed = true;
        self.missing.take().unwrap_or_default()
    }

    /// Returns whether a complete listing has been seen.
    pub(super) fn has_completed(&self) -> bool {
        self.has_completed
    }

    /// Returns whether a workload that nothing has shown yet may belong to the experiment.
    pub(super) fn can_show_more(&self) -> bool {
        !self.has_completed || self.missing.is_some()
    }

    /// Returns whether the current listing has not shown an expected workload yet.
    pub(super) fn is_expected(&self, name: &str) -> bool {
        self.missing.as_ref().is_some_and(|missing| missing.contains(name))
    }

    /// Expects a workload in the current listing, if there is one.
    pub(super) fn add_expected(&mut self, name: &str) {
        if let Some(missing) = &mut self.missing {
            missing.insert(name.to_owned());
        }
    }

    /// Records that the cluster has shown a workload, or its end.
    pub(super) fn record_news(&mut self, name: &str) {
        if let Some(missing) = &mut self.missing {
            missing.remove(name);
        }
    }
}
