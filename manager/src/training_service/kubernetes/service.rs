//! The service that submits, stops and watches the trials of an experiment on a cluster. It carries out the decisions of
//! the tracker.

mod actions;
mod missing_pod;
mod queue_positions;
mod watch_clock;
mod watcher;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};
use trial_protocol::{AttemptId, TrialJobId};

use self::watch_clock::WatchClock;
use self::watcher::Watched;
use super::cleanup::clean;
use super::client::{Cluster, PODS, Resource, SECRETS};
use super::manifest::Common;
use super::tracker::{Act, Tracker};
use super::workload::{Workload, workload};
use super::{FIRST_PAUSE, LONGEST_PAUSE, cleanup, client, manifest, preflight};
use crate::config::kubernetes::{HandOver, KubernetesSpec};
use crate::training_service::completion::TrialCompletion;
use crate::training_service::{
    Adopted, FreeRoom, JobEvents, Output, SubmitError, TrainingService, TrialJobSpec, VerdictTrust,
};
use crate::util::backoff::Backoff;

/// The greatest number of concurrent requests.
const MAX_REQUESTS: usize = 16;
/// The time limit for the cleanup at the end.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The time after which a stopping manager gives up waiting for an unreachable cluster. The two constants below are the
/// interval between the checks and the time limit of one check.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(10);
const REACH_POLL_INTERVAL: Duration = Duration::from_secs(2);
const REACH_TIMEOUT: Duration = Duration::from_secs(5);

/// The first and the longest pause between two requests for the remaining pods of a deleted workload. Most pods end
/// within a second, and hundreds of stopped trials may wait at a time for the end of a long grace period.
const POD_POLL: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];
/// The time after which a pod of a deleted workload counts as left behind if nothing has deleted it. The garbage
/// collector needs about a second.
const ORPHAN_TIME: Duration = Duration::from_secs(10);
/// The time that the pods of a deleted workload may take beyond their own grace period.
const POD_MARGIN: Duration = Duration::from_mins(1);
/// The interval between checks of the tracker's own state.
const STATE_POLL: Duration = Duration::from_millis(25);
/// The pause of the timekeeper, whose deadlines are seconds away. Every event may move one closer, and each look at the
/// deadlines reads all workloads: without the pause, hundreds of concurrent trials cost a fifth of the processor time.
const TIMEKEEPER_PAUSE: Duration = Duration::from_millis(250);

/// The time by which the watch of the pods may lag behind a listing of them.
const WATCH_LAG: Duration = Duration::from_secs(10);

/// The time after the end of the search in which the workloads of ended trials may terminate on their own.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(15);

/// The time limit for the first listing of the cluster, during which a resumed search waits. After it, the trials of an
/// earlier manager count as running until the listing shows them.
const FIRST_LISTING_TIMEOUT: Duration = Duration::from_secs(30);

/// The message of an interrupted submission.
const SUBMISSION_INTERRUPTED: &str = "the manager ended before the trial was submitted";

/// The settings of a [`KubernetesService`].
pub struct Settings {
    /// The cluster that runs the trials.
    pub cluster: Cluster,
    /// The settings that all trials share.
    pub common: Common,
    /// The objects that all trials share. They exist at the start, and the service creates them again if they
    /// disappear.
    pub shared: Vec<(Resource, serde_json::Value)>,
    /// The reason why the cluster is out of reach at the start, if it is. The shared objects are then written later.
    pub outage: Option<String>,
    /// The channel that receives news of jobs.
    pub events: JobEvents,
}

/// A training service that runs trials as Kubernetes objects of one kind.
#[derive(Clone)]
pub struct KubernetesService {
    shared: Arc<Shared>,
}

struct Shared {
    kind: &'static dyn Workload,
    settings: Settings,
    /// The time until which an adoption waits for the first listing.
    adoption_deadline: Instant,
    tracker: Mutex<Tracker>,
    clock: Mutex<WatchClock>,
    /// Becomes `true` after the first complete listing of the cluster.
    listed: watch::Sender<bool>,
    /// Wakes the timekeeper when a deadline may have moved closer.
    nearer: Notify,
    /// Counts requests to end attempts.
    stop_requests: watch::Sender<u64>,
    /// The reason for no longer waiting for the cluster, if there is one.
    left: OnceLock<String>,
    requests: Semaphore,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl KubernetesService {
    /// Starts the watches and submits nothing.
    pub fn start(settings: Settings) -> Self {
        let kind = workload(settings.common.spec.workload);
        let now = Instant::now();
        let mut clock = WatchClock::new(now);
        let is_away = settings.outage.is_some();
        if is_away {
            clock.interrupt(now);
        }
        let shared = Arc::new(Shared {
            kind,
            tracker: Mutex::new(tracker(kind, &settings.common.spec)),
            settings,
            adoption_deadline: if is_away { now } else { now + FIRST_LISTING_TIMEOUT },
            clock: Mutex::new(clock),
            listed: watch::Sender::new(false),
            nearer: Notify::new(),
            stop_requests: watch::Sender::new(0),
            left: OnceLock::new(),
            requests: Semaphore::new(MAX_REQUESTS),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let queued = shared.settings.common.spec.queue.is_some();
        let watched = [Watched::Workload, Watched::Pod, Watched::Event];
        for watched in watched.into_iter().chain(queued.then_some(Watched::Queue)) {
            let task = Arc::clone(&shared);
            shared.tasks.spawn(async move {
                let closing = task.closing.clone();
                closing.run_until_cancelled(task.watch(watched)).await;
            });
        }
        if let Some(queue) = shared.settings.common.spec.queue.clone() {
            let task = Arc::clone(&shared);
            shared.tasks.spawn(async move {
                let closing = task.closing.clone();
                closing.run_until_cancelled(task.follow_positions(queue)).await;
            });
        }
        if is_away {
            let task = Arc::clone(&shared);
            shared.tasks.spawn(async move {
                let write = Box::pin(task.write_shared_objects());
                task.closing.run_until_cancelled(write).await;
            });
        }
        let timer = Arc::clone(&shared);
        shared.tasks.spawn(async move {
            let closing = timer.closing.clone();
            closing.run_until_cancelled(timer.keep_time()).await;
        });
        Self { shared }
    }
}

#[async_trait]
impl TrainingService for KubernetesService {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        let shared = &self.shared;
        let name = manifest::workload_name(&shared.settings.common.experiment, &job.attempt);
        shared.tracker().submit(&name, job.trial.clone(), job.attempt.clone(), shared.now());
        shared.nearer.notify_one();
        let (task, job) = (Arc::clone(shared), job.clone());
        shared.tasks.spawn(async move {
            let mut may_exist = false;
            let outcome = task.create_objects(&name, &job, &mut may_exist).await;
            let is_given_up = outcome.is_err();
            let mut acts = task.tracker().handle_submission(&name, outcome, task.now());
            if is_given_up && may_exist {
                acts.push(Act::Discard(name));
            }
            task.perform(acts);
        });
        Ok(())
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> Adopted {
        let mut listed = self.shared.listed.subscribe();
        // Hundreds of trials share the time limit. The sender lives as long as this service.
        let first_listing = listed.wait_for(|listed| *listed);
        drop(tokio::time::timeout_at(self.shared.adoption_deadline, first_listing).await);
        let name = manifest::workload_name(&self.shared.settings.common.experiment, attempt);
        let (adopted, acts) = self.shared.tracker().adopt(&name, trial, attempt, self.shared.now());
        self.shared.nearer.notify_one();
        self.shared.perform(acts);
        adopted
    }

    fn end_unadopted(&self) {
        self.shared.tracker().end_unadopted(self.shared.now());
        self.shared.nearer.notify_one();
    }

    async fn recover(&self, _trial: &TrialJobId) {
        // An agent's remaining reports disappear with its pod. The agent therefore waits for the manager before it
        // ends.
    }

    async fn stop(&self, trial: &TrialJobId) {
        let acts = self.shared.tracker().stop_trial(trial, self.shared.now());
        self.shared.nearer.notify_one();
        self.shared.stop_requests.send_modify(|count| *count += 1);
        self.shared.perform(acts);
    }

    async fn finish(&self, trial: &TrialJobId) {
        let spec = &self.shared.settings.common.spec;
        let has_one_pod = !self.shared.kind.completion(spec).has_several_pods();
        // Without rules, the trial's other pods may run on, and the controller may start another pod after this one.
        if self.completion(trial).is_some() || has_one_pod && !manifest::has_retries(spec) {
            let acts = self.shared.tracker().finish(trial, self.shared.now());
            self.shared.nearer.notify_one();
            self.shared.perform(acts);
        }
    }

    fn completion(&self, _trial: &TrialJobId) -> Option<TrialCompletion> {
        let spec = &self.shared.settings.common.spec;
        // Retries are the controller's.
        let is_wanted = spec.hand_over == HandOver::Verdict && !manifest::has_retries(spec);
        is_wanted.then(|| self.shared.kind.completion(spec))
    }

    async fn hand_over(&self, trial: &TrialJobId, trust: VerdictTrust) -> bool {
        let (is_accepted, acts) = self.shared.tracker().hand_over(trial, trust, self.shared.now());
        self.shared.nearer.notify_one();
        self.shared.perform(acts);
        is_accepted
    }

    fn mark_running(&self, trial: &TrialJobId) {
        self.shared.tracker().mark_running(trial);
        self.shared.nearer.notify_one();
    }

    async fn output(
        &self,
        trial: &TrialJobId,
        ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        let name = self.shared.tracker().running_workload(trial)?;
        let cluster = &self.shared.settings.cluster;
        let (pod, container) = self.shared.reporter(&name).await?;
        match cluster.follow_lines(&pod, &container, ago).await {
            Ok(output) => Some(Ok(output)),
            Err(error @ client::Error::NotAllowed { .. }) => Some(Err(format!(
                "{error}; with `get` on `pods/log` it would be shown here (deploy/rights); `kubectl -n {} logs {pod} -c \
                 {container}` shows it to who may",
                cluster.namespace()
            ))),
            // The container has not started, or no longer exists.
            Err(error) => {
                debug!("{pod}: {error}");
                None
            }
        }
    }

    fn free_room(&self) -> FreeRoom {
        match self.shared.first_outage() {
            Some(why) => FreeRoom::Unreachable(why.to_owned()),
            None => FreeRoom::Unknown,
        }
    }

    async fn out_of_reach(&self) {
        let cluster = &self.shared.settings.cluster;
        let mut since = None;
        loop {
            tokio::time::sleep(REACH_POLL_INTERVAL).await;
            // Nothing there delays the stop, and another service may still stop its trials.
            if self.shared.tracker().workload_count() == 0 {
                since = None;
                continue;
            }
            let why = match tokio::time::timeout(
                REACH_TIMEOUT,
                cluster.may("delete", self.shared.kind.resource()),
            )
            .await
            {
                Ok(Ok(true)) => {
                    since = None;
                    continue;
                }
                Ok(Ok(false)) => format!(
                    "the account no longer has the right to stop {}",
                    self.shared.kind.resource().plural
                ),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("the cluster at {} does not answer", cluster.server()),
            };
            if since.get_or_insert_with(Instant::now).elapsed() >= OUTAGE_TIMEOUT {
                drop(self.shared.left.set(why));
                return;
            }
        }
    }

    async fn close(&self) {
        // The agents deliver the rest of the output in this time.
        let until = Instant::now() + HAND_OVER_TIMEOUT;
        while self.shared.left.get().is_none()
            && self.shared.tracker().has_handed_over()
            && Instant::now() < until
        {
            tokio::time::sleep(STATE_POLL).await;
        }
        self.shared.closing.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        let experiment = &self.shared.settings.common.experiment;
        if let Some(why) = self.shared.left.get().map(String::as_str).or(self.shared.first_outage())
        {
            let kind = self.shared.kind.resource().kind;
            let (objects, namespace) =
                (self.shared.tracker().workload_count(), self.shared.settings.cluster.namespace());
            warn!(
                "{why}; left in its namespace `{namespace}`: {objects} {kind}s and their Secrets, with the label \
                 {}. Once it can be reached, `trial-manager resume {experiment}` goes on, or \
                 `trial-manager clean {experiment}` deletes them",
                manifest::selector(experiment)
            );
            return;
        }
        let kinds: Vec<_> = cleanup::kinds_of(self.shared.kind).collect();
        let cleaned = clean(&self.shared.settings.cluster, experiment, &kinds);
        let trouble = match tokio::time::timeout(CLEANUP_TIMEOUT, cleaned).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the deletion is not complete after {CLEANUP_TIMEOUT:?}"),
        };
        warn!(
            "objects of the experiment may remain in the cluster: {trouble}; delete them with `trial-manager clean {experiment}`"
        );
    }
}

/// Creates a tracker for workloads with these settings.
fn tracker(kind: &'static dyn Workload, spec: &KubernetesSpec) -> Tracker {
    let pods = spec.roles.iter().map(|role| role.task_number).sum();
    Tracker::new(kind, spec.start_up_deadline, manifest::grace(spec))
        .with_queue(spec.queue.is_some())
        .with_pods(pods)
}

impl Shared {
    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> MutexGuard<'_, WatchClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.clock().now(Instant::now())
    }

    /// Returns the reason why the cluster was out of reach at the start, until the cluster answers. The start has already
    /// reported it.
    fn first_outage(&self) -> Option<&str> {
        self.settings.outage.as_deref().filter(|_| !*self.listed.borrow())
    }

    /// Writes the shared objects once the cluster answers. An earlier manager may have had another address.
    async fn write_shared_objects(&self) {
        let mut listed = self.listed.subscribe();
        // The sender lives as long as this service.
        drop(listed.wait_for(|listed| *listed).await);
        let Settings { cluster, shared, .. } = &self.settings;
        for (resource, object) in shared {
            let write = || cluster.put(*resource, object);
            if self.until_done("the objects of the experiment", write).await.is_none() {
                return;
            }
        }
        info!("the cluster at {} answers; waiting trials are submitted", cluster.server());
    }

    /// Repeats a request until it succeeds, even after a refusal. A new permission may not have reached the API server
    /// yet, and giving up would leave a pod running. `None`: the service is closing.
    async fn until_done<T, F: Future<Output = Result<T, client::Error>>>(
        &self,
        name: &str,
        request: impl Fn() -> F,
    ) -> Option<T> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut last_trouble = self.first_outage().unwrap_or_default().to_owned();
        loop {
            let error = match self.closing.run_until_cancelled(self.request(&request)).await? {
                Ok(done) => return Some(done),
                Err(error) => error.to_string(),
            };
            if error != last_trouble {
                warn!("{name}: {error}; trying again");
                last_trouble = error;
            }
            let pause = tokio::time::sleep(backoff.next_pause());
            self.closing.run_until_cancelled(pause).await?;
        }
    }

    async fn request<T, F: Future<Output = Result<T, client::Error>>>(
        &self,
        request: impl Fn() -> F,
    ) -> Result<T, client::Error> {
        // The semaphore is never closed.
        let _permit = self.requests.acquire().await;
        request().await
    }

    /// Creates the objects of an attempt. An object that already exists comes from a manager that crashed or from a
    /// lost answer. Sets `may_exist` if an answer about the workload was lost, since the cluster may have created it.
    async fn create_objects(
        self: &Arc<Self>,
        name: &str,
        job: &TrialJobSpec,
        may_exist: &mut bool,
    ) -> Result<(), String> {
        let common = &self.settings.common;
        let objects = [
            (SECRETS, manifest::token_secret(common, job)),
            (self.kind.resource(), self.kind.manifest(common, job)),
        ];
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut next, mut is_lost) = (0, false);
        while let Some((kind, object)) = objects.get(next) {
            let mut stop_requests = self.stop_requests.subscribe();
            // A watch has shown the workload, although no answer confirmed its creation. After its deletion, another
            // request would create it again.
            if self.tracker().is_made(name) {
                return Ok(());
            }
            if self.tracker().is_stop_requested(name) {
                return Err("the trial was stopped before it was submitted".to_owned());
            }
            let request = self.request(|| self.create(*kind, object, is_lost));
            let Some(answer) = self.closing.run_until_cancelled(request).await else {
                return Err(SUBMISSION_INTERRUPTED.to_owned());
            };
            let Err(error) = answer else {
                (next, is_lost) = (next + 1, false);
                continue;
            };
            *may_exist |= *kind == self.kind.resource() && error.is_temporary();
            let needs_shared = error.is_not_found() || self.kind.lacks_shared(&error.to_string());
            // The preflight checks showed that the account has the rights, so a quota is exhausted or an object was
            // removed since. The trial is not at fault and waits for at most `startUpDeadline`.
            if !needs_shared && !error.is_recoverable() {
                return Err(format!("the trial could not be submitted: {error}"));
            }
            let report = self.report_refusal(name, &error, is_lost);
            if self.closing.run_until_cancelled(report).await.is_none() {
                return Err(SUBMISSION_INTERRUPTED.to_owned());
            }
            if needs_shared {
                (next, is_lost) = (0, true);
            }
            // The sender lives as long as this service.
            let pause = backoff.next_pause();
            let slept = async {
                drop(tokio::time::timeout(pause, stop_requests.changed()).await);
            };
            if self.closing.run_until_cancelled(slept).await.is_none() {
                return Err(SUBMISSION_INTERRUPTED.to_owned());
            }
        }
        Ok(())
    }

    /// Creates an object of an attempt, after the shared objects if those may be missing.
    async fn create(
        &self,
        kind: Resource,
        object: &serde_json::Value,
        is_lost: bool,
    ) -> Result<(), client::Error> {
        let Settings { cluster, shared, .. } = &self.settings;
        for (kind, object) in shared.iter().filter(|_| is_lost) {
            cluster.put(*kind, object).await?;
        }
        cluster.create(kind, object).await
    }

    /// Reports the reason why an attempt waits when the cluster refuses its objects. `is_known`: the same refusal was
    /// reported before.
    async fn report_refusal(self: &Arc<Self>, name: &str, error: &client::Error, is_known: bool) {
        if error.is_not_found() && is_known {
            return;
        }
        let mut why = error.to_string();
        if error.is_not_found()
            && let Err(refusal) = preflight::presence(&self.settings.cluster, self.kind).await
        {
            why = refusal.to_string();
        }
        let mut acts = self.tracker().set_wait_reason(name, Some(why));
        if error.is_quota() {
            acts.extend(self.tracker().delete_old_workloads());
        }
        self.perform(acts);
    }

    /// Returns the selector for the pods of a workload.
    fn pod_selector(&self, name: &str, attempt: &AttemptId) -> String {
        let experiment = manifest::selector(&self.settings.common.experiment);
        format!("{experiment},{}", self.kind.pod_label(name, attempt))
    }

    /// Lists the current pods of a workload. `None`: the service is closing.
    async fn pods_of(&self, name: &str) -> Option<Vec<serde_json::Value>> {
        let attempt = self.tracker().attempt_of(name)?;
        let cluster = &self.settings.cluster;
        let selector = self.pod_selector(name, &attempt);
        self.until_done(name, || cluster.list(PODS, &selector)).await
    }

    /// Returns the current pods of a workload, together with the last observation of those that are gone.
    async fn pods_and_ended(&self, name: &str) -> Option<Vec<serde_json::Value>> {
        if let Some(pod) = self.tracker().only_pod(name) {
            return Some(vec![pod]);
        }
        let pods = self.pods_of(name).await?;
        let until = Instant::now() + WATCH_LAG;
        while self.tracker().lacks_end(name, &pods) && Instant::now() < until {
            let pause = tokio::time::sleep(STATE_POLL);
            self.closing.run_until_cancelled(pause).await?;
        }
        Some(self.tracker().with_ended_pods(name, pods))
    }

    /// Returns the pod that reports the trial's metrics and the name of its container.
    async fn reporter(&self, name: &str) -> Option<(String, String)> {
        let Settings { cluster, common, .. } = &self.settings;
        let container = manifest::reporting_container(common);
        if let Some(pod) = self.kind.reporter(&common.spec, name, &[]) {
            return Some((pod, container));
        }
        let attempt = self.tracker().attempt_of(name)?;
        let selector = self.pod_selector(name, &attempt);
        let pods = cluster.names(PODS, &selector).await.ok()?;
        Some((self.kind.reporter(&common.spec, name, &pods)?, container))
    }

    /// Returns the names of the containers in which trials run.
    fn trial_containers(&self) -> Vec<String> {
        manifest::trial_containers(&self.settings.common.spec, self.kind.container())
    }

    /// Returns the time in which pods must end after a stop request.
    fn ending_time(&self) -> Duration {
        manifest::grace(&self.settings.common.spec) + POD_MARGIN
    }

    /// Waits for the tracker's deadlines and carries out the resulting actions.
    async fn keep_time(self: Arc<Self>) {
        loop {
            let next = self.tracker().next_deadline();
            let due = async {
                match next {
                    Some(at) => {
                        let moment = self.clock().moment_of(at, Instant::now());
                        tokio::time::sleep_until(moment).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.nearer.notified() => {}
            }
            let acts = self.tracker().tick(self.now());
            self.perform(acts);
            tokio::time::sleep(TIMEKEEPER_PAUSE).await;
        }
    }
}
