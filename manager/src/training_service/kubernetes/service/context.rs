//! The state that the parts of the service share: the settings, the tracker and its clock, the number of concurrent
//! requests, and the end of the service.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::Settings;
use super::watch_clock::WatchClock;
use crate::config::kubernetes::KubernetesSpec;
use crate::training_service::kubernetes::client::{self, Cluster};
use crate::training_service::kubernetes::manifest::{self, WorkloadSettings};
use crate::training_service::kubernetes::tracker::Tracker;
use crate::training_service::kubernetes::workload::{Workload, workload};
use crate::training_service::kubernetes::{FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE};
use crate::util::backoff::Backoff;

/// The greatest number of concurrent requests.
const MAX_REQUESTS: usize = 16;

/// The state that the parts of the service share.
pub(super) struct ServiceContext {
    kind: &'static dyn Workload,
    settings: Settings,
    tracker: Mutex<Tracker>,
    clock: Mutex<WatchClock>,
    /// Becomes `true` after the first complete listing of the cluster.
    listed: watch::Sender<bool>,
    /// Wakes the timekeeper when a deadline may have moved closer.
    nearer: Notify,
    requests: Semaphore,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl ServiceContext {
    /// Creates the state of a service that starts at `now`.
    pub(super) fn new(settings: Settings, now: Instant) -> Self {
        let kind = workload(settings.workload_settings.spec.workload);
        let mut clock = WatchClock::new(now);
        if settings.outage.is_some() {
            clock.interrupt(now);
        }
        Self {
            kind,
            tracker: Mutex::new(tracker(kind, &settings.workload_settings.spec)),
            settings,
            clock: Mutex::new(clock),
            listed: watch::Sender::new(false),
            nearer: Notify::new(),
            requests: Semaphore::new(MAX_REQUESTS),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Returns the kind of the trials' objects.
    pub(super) fn kind(&self) -> &'static dyn Workload {
        self.kind
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.settings.cluster
    }

    /// Returns the settings that all trials share.
    pub(super) fn workload_settings(&self) -> &WorkloadSettings {
        &self.settings.workload_settings
    }

    pub(super) fn spec(&self) -> &KubernetesSpec {
        &self.settings.workload_settings.spec
    }

    /// Returns the names of the containers in which trials run.
    pub(super) fn trial_containers(&self) -> Vec<String> {
        manifest::trial_containers(self.spec(), self.kind.container_name())
    }

    pub(super) fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> MutexGuard<'_, WatchClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time of the tracker's clock.
    pub(super) fn now(&self) -> Duration {
        self.clock().now(Instant::now())
    }

    /// Returns the moment at which the tracker's clock shows `at`, if the watch is not interrupted before.
    pub(super) fn moment_of(&self, at: Duration) -> Instant {
        self.clock().moment_of(at, Instant::now())
    }

    /// Stops the tracker's clock, because the watch of the workloads was interrupted.
    pub(super) fn stop_clock(&self) {
        self.clock().interrupt(Instant::now());
    }

    /// Lets the tracker's clock go on, because the watch of the workloads has shown something.
    pub(super) fn resume_clock(&self) {
        let was_stopped = self.clock().resume(Instant::now());
        if was_stopped {
            self.wake_timekeeper();
        }
    }

    /// Wakes the timekeeper, because a deadline may have moved closer.
    pub(super) fn wake_timekeeper(&self) {
        self.nearer.notify_one();
    }

    /// Waits until a deadline may have moved closer.
    pub(super) async fn wait_for_nearer_deadline(&self) {
        self.nearer.notified().await;
    }

    /// Records that the cluster has answered with a complete listing.
    pub(super) fn mark_listed(&self) {
        self.listed.send_if_modified(|was| !std::mem::replace(was, true));
    }

    /// Waits for the first complete listing of the cluster.
    pub(super) async fn wait_until_listed(&self) {
        // The sender lives as long as the service.
        drop(self.listed.subscribe().wait_for(|listed| *listed).await);
    }

    /// Returns the reason why the cluster was out of reach at the start, until the cluster answers. The start has
    /// already reported it.
    pub(super) fn first_outage(&self) -> Option<&str> {
        self.settings.outage.as_deref().filter(|_| !*self.listed.borrow())
    }

    /// Repeats a request until it succeeds, even after a refusal. A new permission may not have reached the API server
    /// yet, and giving up would leave a pod running. `None`: the service is closing.
    pub(super) async fn retry_until_done<T, F: Future<Output = Result<T, client::Error>>>(
        &self,
        name: &str,
        request: impl Fn() -> F,
    ) -> Option<T> {
        let mut backoff = Backoff::new(FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE);
        let mut last_trouble = self.first_outage().unwrap_or_default().to_owned();
        loop {
            let error = match self.until_closing(self.request(&request)).await? {
                Ok(done) => return Some(done),
                Err(error) => error.to_string(),
            };
            if error != last_trouble {
                warn!("{name}: {error}; trying again");
                last_trouble = error;
            }
            self.pause(backoff.next_pause()).await?;
        }
    }

    /// Sends a request when the number of concurrent requests permits it.
    pub(super) async fn request<T, F: Future<Output = Result<T, client::Error>>>(
        &self,
        request: impl Fn() -> F,
    ) -> Result<T, client::Error> {
        // The semaphore is never closed.
        let _permit = self.requests.acquire().await;
        request().await
    }

    /// Waits for this time. `None`: the service is closing.
    pub(super) async fn pause(&self, pause: Duration) -> Option<()> {
        self.until_closing(tokio::time::sleep(pause)).await
    }

    /// Returns the result of a future. `None`: the service is closing.
    pub(super) async fn until_closing<F: Future>(&self, future: F) -> Option<F::Output> {
        self.closing.run_until_cancelled(future).await
    }

    /// Runs a task that the end of the service awaits.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Runs a task that the end of the service cancels.
    pub(super) fn spawn_until_closing(&self, task: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        self.tasks.spawn(async move {
            closing.run_until_cancelled(task).await;
        });
    }

    /// Cancels the tasks, and waits for their ends.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Creates a tracker for workloads with these settings.
fn tracker(kind: &'static dyn Workload, spec: &KubernetesSpec) -> Tracker {
    let pods = spec.roles.iter().map(|role| role.task_number).sum();
    Tracker::new(kind, spec.start_up_deadline, manifest::grace_period(spec))
        .with_queue(spec.queue.is_some())
        .with_pods(pods)
}
