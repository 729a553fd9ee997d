//! PURE: the progress of a workload towards running pods.

use std::time::Duration;

/// The progress of a workload towards running pods.
#[derive(Debug)]
pub(super) struct StartProgress {
    /// The time since which the workload waits for a pod. `None`: its pods run.
    waits_since: Option<Duration>,
    /// The time that the workload had waited for pods when its queue evicted it.
    waited: Duration,
    /// The time since which the pods run. `None` also after the tracker has asked for a silent agent's output.
    runs_since: Option<Duration>,
    /// The number of pod places that have had a pod since the workload may run.
    places: u64,
    /// Set if the workload has run, or may have, since its queue last evicted it.
    has_run: bool,
    /// Set if an agent has reported that the trial runs, until the queue evicts the workload.
    is_reported_running: bool,
}

impl StartProgress {
    /// Creates the progress of a workload whose wait begins at `waits_since`.
    pub(super) fn new(waits_since: Option<Duration>, places: u64, may_have_run: bool) -> Self {
        Self {
            waits_since,
            waited: Duration::ZERO,
            runs_since: None,
            places,
            has_run: may_have_run,
            is_reported_running: false,
        }
    }

    pub(super) fn waits_since(&self) -> Option<Duration> {
        self.waits_since
    }

    /// Returns the time since which the pods run without a known sign of an agent.
    pub(super) fn runs_since(&self) -> Option<Duration> {
        self.runs_since
    }

    pub(super) fn place_count(&self) -> u64 {
        self.places
    }

    /// Returns whether the trial has started, whatever the status of its workload shows: its pods may be not ready or
    /// terminating. `has_all_pods`: every pod has started.
    pub(super) fn is_over(&self, has_all_pods: bool) -> bool {
        self.is_reported_running || self.has_run && self.waits_since.is_some() && has_all_pods
    }

    /// Returns the time by which the pods must start, if they have `start_up` for it.
    pub(super) fn deadline(&self, start_up: Duration) -> Option<Duration> {
        Some(self.waits_since? + start_up.saturating_sub(self.waited))
    }

    /// Records the number of places that have had a pod. Returns whether it has grown.
    pub(super) fn record_places(&mut self, places: u64) -> bool {
        std::mem::replace(&mut self.places, places) < places
    }

    /// Records that pods have run.
    pub(super) fn record_run(&mut self) {
        self.has_run = true;
    }

    /// Records that an agent has reported the run of its trial.
    pub(super) fn record_report(&mut self) {
        self.is_reported_running = true;
    }

    /// Begins the wait for pods, unless it has begun.
    pub(super) fn begin_wait(&mut self, now: Duration) {
        self.waits_since = self.waits_since.or(Some(now));
        self.runs_since = None;
    }

    /// Begins the wait again, if the workload waits.
    pub(super) fn restart_wait(&mut self, now: Duration) {
        self.waits_since = self.waits_since.map(|_| now);
    }

    /// Ends the wait, because all pods run. Returns whether the workload waited.
    pub(super) fn begin_run(&mut self, now: Duration) -> bool {
        (self.has_run, self.waited) = (true, Duration::ZERO);
        let has_waited = self.waits_since.take().is_some();
        if has_waited {
            self.runs_since = Some(now);
        }
        has_waited
    }

    /// Ends the wait or the run, because the workload ends.
    pub(super) fn end(&mut self) {
        (self.waits_since, self.runs_since) = (None, None);
    }

    /// Stops the wait for a sign of the agent.
    pub(super) fn ignore_silence(&mut self) {
        self.runs_since = None;
    }

    /// Ends the wait or the run, because a queue holds the workload back. Returns whether the workload may have run.
    pub(super) fn suspend(&mut self, now: Duration) -> bool {
        let waited = self.waits_since.take().map(|since| now.saturating_sub(since));
        // A workload without any pod was in the queue from the start.
        self.waited += waited.filter(|_| self.places > 0).unwrap_or_default();
        (self.runs_since, self.places, self.is_reported_running) = (None, 0, false);
        std::mem::take(&mut self.has_run)
    }
}
