//! Trials as Frameworks of Microsoft's `FrameworkController` on Kubernetes, each pod's command under an agent.
//!
//! Names are derived and creating is idempotent, so that nothing is submitted twice; states come from
//! watches, one per kind of object and experiment; what is decided about them is [`tracker`]'s.

pub mod client;
pub mod manifest;
pub mod preflight;
pub mod refused;
pub mod status;
pub mod taken;
pub mod tracker;
pub mod why;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use self::client::{Cluster, Kind, Seen};
use self::manifest::Common;
use self::status::Standing;
use self::tracker::{Act, Tracker};
use super::{Adopted, Error, JobEvents, Output, TrainingService, TrialJobSpec};

/// Requests that may be under way at a time.
const REQUESTS: usize = 16;
/// Longest pause between two tries of a request.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// How long tidying up at the end is tried.
const CLEANING: Duration = Duration::from_secs(30);
/// How long pods that are going are waited for.
const GOING: Duration = Duration::from_mins(2);
/// Who wants to leave waits so long for a cluster that does nothing that it is asked. It is asked this often, and may take
/// this long to answer.
const AWAY: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(5);

/// Of a submission that did not come to its end.
const LEFT: &str = "the manager ended before it was submitted";

/// What a [`KubernetesService`] works with.
pub struct Settings {
    /// Where.
    pub cluster: Cluster,
    /// What all its Frameworks have in common.
    pub common: Common,
    /// Where news of jobs goes.
    pub events: JobEvents,
}

/// Runs trials as Frameworks.
#[derive(Clone)]
pub struct KubernetesService {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    tracker: Mutex<Tracker>,
    began: Instant,
    /// Whether everything in the cluster was seen once.
    listed: watch::Sender<bool>,
    /// A deadline may be nearer than it was.
    nearer: Notify,
    /// Counts what somebody wanted ended.
    cancelled: watch::Sender<u64>,
    /// Why nobody waits for the cluster any more, if that is so.
    left: OnceLock<String>,
    requests: Semaphore,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl KubernetesService {
    /// Begins to watch; nothing is submitted.
    pub fn start(settings: Settings) -> Self {
        let shared = Arc::new(Shared {
            tracker: Mutex::new(Tracker::new(
                settings.common.spec.start_up_deadline,
                manifest::grace(&settings.common.spec),
            )),
            settings,
            began: Instant::now(),
            listed: watch::Sender::new(false),
            nearer: Notify::new(),
            cancelled: watch::Sender::new(0),
            left: OnceLock::new(),
            requests: Semaphore::new(REQUESTS),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        for kind in [Kind::Framework, Kind::Pod, Kind::Event] {
            let watcher = Arc::clone(&shared);
            shared.tasks.spawn(async move {
                let closing = watcher.closing.clone();
                closing.run_until_cancelled(watcher.watch(kind)).await;
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
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), Error> {
        let shared = &self.shared;
        let name = manifest::framework_name(&shared.settings.common.experiment, &job.attempt);
        shared.tracker().submit(&name, job.trial.clone(), job.attempt.clone(), shared.now());
        shared.nearer.notify_one();
        let (task, job) = (Arc::clone(shared), job.clone());
        shared.tasks.spawn(async move {
            let outcome = task.make(&name, &job).await;
            let acts = task.tracker().submitted(&name, outcome, task.now());
            task.perform(acts);
        });
        Ok(())
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> Adopted {
        let mut listed = self.shared.listed.subscribe();
        // The sender lives as long as we do.
        drop(listed.wait_for(|listed| *listed).await);
        let name = manifest::framework_name(&self.shared.settings.common.experiment, attempt);
        let (adopted, acts) = self.shared.tracker().adopt(&name, trial, attempt, self.shared.now());
        self.shared.nearer.notify_one();
        self.shared.perform(acts);
        adopted
    }

    async fn recover(&self, _trial: &TrialJobId) {
        // What an agent leaves behind goes with its pod; that is why it waits for the manager before.
    }

    async fn cancel(&self, trial: &TrialJobId) {
        let acts = self.shared.tracker().cancel(trial, self.shared.now());
        self.shared.nearer.notify_one();
        self.shared.cancelled.send_modify(|count| *count += 1);
        self.shared.perform(acts);
    }

    async fn finish(&self, trial: &TrialJobId) {
        // Pods beside the first have their own time, and one that the controller may start again is not the last.
        if manifest::has_one_pod(&self.shared.settings.common.spec) {
            let acts = self.shared.tracker().finish(trial, self.shared.now());
            self.shared.nearer.notify_one();
            self.shared.perform(acts);
        }
    }

    async fn output(
        &self,
        trial: &TrialJobId,
        ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        let name = self.shared.tracker().running(trial)?;
        let Settings { cluster, common, .. } = &self.shared.settings;
        let (pod, container) = manifest::reporter(&common.spec, &name);
        match cluster.follow_lines(&pod, &container, ago).await {
            Ok(output) => Some(Ok(output)),
            Err(error @ client::Error::NotAllowed { .. }) => Some(Err(format!(
                "{error}; with `get` on `pods/log` it would be shown here (deploy/rights); `kubectl -n {} logs {pod} -c \
                 {container}` shows it to who may",
                cluster.namespace()
            ))),
            // Its container has not started, or has gone.
            Err(error) => {
                debug!("{pod}: {error}");
                None
            }
        }
    }

    async fn out_of_reach(&self) {
        let cluster = &self.shared.settings.cluster;
        let mut since = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let why =
                match tokio::time::timeout(ANSWER, cluster.may("patch", Kind::Framework)).await {
                    Ok(Ok(true)) => {
                        since = None;
                        continue;
                    }
                    Ok(Ok(false)) => "the account may not stop Frameworks any more".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("the cluster at {} does not answer", cluster.server()),
                };
            if since.get_or_insert_with(Instant::now).elapsed() >= AWAY {
                drop(self.shared.left.set(why));
                return;
            }
        }
    }

    async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        let experiment = &self.shared.settings.common.experiment;
        if let Some(why) = self.shared.left.get() {
            let (frameworks, namespace) =
                (self.shared.tracker().made(), self.shared.settings.cluster.namespace());
            warn!(
                "{why}; left in its namespace `{namespace}`: {frameworks} Frameworks and their Secrets, with the label \
                 {}. Once it can be reached, `trial-manager resume {experiment}` goes on, or \
                 `trial-manager clean {experiment}` deletes them",
                manifest::selector(experiment)
            );
            return;
        }
        let cleaned = clean(&self.shared.settings.cluster, experiment);
        let trouble = match tokio::time::timeout(CLEANING, cleaned).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it is not done after {CLEANING:?}"),
        };
        warn!(
            "the cluster is not clean: {trouble}; `trial-manager clean {experiment}` tries again"
        );
    }
}

/// Deletes everything of an experiment's from its namespace, and waits until it is gone.
pub async fn clean(cluster: &Cluster, experiment: &ExperimentId) -> Result<(), client::Error> {
    let selector = manifest::selector(experiment);
    for kind in [Kind::Framework, Kind::Secret] {
        let mut pause = Duration::from_millis(100);
        loop {
            let tried = match cluster.delete_all(kind, &selector).await {
                Ok(()) => cluster.names(kind, &selector).await,
                Err(error) => Err(error),
            };
            match tried {
                Ok(left) if left.is_empty() => break,
                Ok(left) => debug!("{} objects are still going", left.len()),
                // The kind went with its controller, and with it all that was of it.
                Err(client::Error::NotFound { .. }) => break,
                Err(error) if error.may_pass() => debug!("{error}; trying again"),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
    Ok(())
}

/// Waits until no pod of an experiment's is left: each has its own time to end. `false`: some still are.
pub async fn gone(cluster: &Cluster, experiment: &ExperimentId) -> Result<bool, client::Error> {
    let selector = manifest::selector(experiment);
    let pods = || cluster.names(Kind::Pod, &selector);
    let began = Instant::now();
    while !client::a_few_times(pods).await?.is_empty() {
        if began.elapsed() > GOING {
            return Ok(false);
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(true)
}

impl Shared {
    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Does what the tracker wants done; requests in tasks of their own.
    fn perform(self: &Arc<Self>, acts: Vec<Act>) {
        for act in acts {
            let shared = Arc::clone(self);
            match act {
                // The receiver lives as long as the experiment; after it nobody needs to know.
                Act::Tell(news) => drop(self.settings.events.send(news)),
                Act::Stop(name) => drop(self.tasks.spawn(async move {
                    let stop = json!({"spec": {"executionType": "Stop"}});
                    let cluster = &shared.settings.cluster;
                    let done =
                        shared.until_done(&name, || cluster.merge(Kind::Framework, &name, &stop));
                    if done.await == Some(false) {
                        let acts = shared.tracker().framework_gone(&name);
                        shared.perform(acts);
                    }
                })),
                Act::Listen(name) => drop(self.tasks.spawn(async move {
                    let Settings { cluster, common, .. } = &shared.settings;
                    let (pod, container) = manifest::reporter(&common.spec, &name);
                    // The right to see it is not asked for; without it a person is told how to look.
                    let said = cluster.last_lines(&pod, &container).await.unwrap_or_default();
                    let said = said.lines().rfind(|line| !line.trim().is_empty()).map(str::trim);
                    let acts = shared.tracker().unheard(&name, said);
                    shared.perform(acts);
                })),
                Act::Ask(name) => drop(self.tasks.spawn(async move {
                    let Settings { cluster, common, .. } = &shared.settings;
                    // Who may not ask has been told where to look.
                    if let Ok(Some(refusal)) = preflight::pods(cluster, common).await {
                        let why = format!("FrameworkController cannot make its pod: {refusal}");
                        let acts = shared.tracker().podless(&name, why);
                        shared.perform(acts);
                    }
                })),
                Act::Delete(name) => drop(self.tasks.spawn(async move {
                    warn!("the Framework {name} did not end within its time; deleting it");
                    let cluster = &shared.settings.cluster;
                    let done = shared.until_done(&name, || cluster.delete(Kind::Framework, &name));
                    if done.await.is_some() {
                        let acts = shared.tracker().framework_gone(&name);
                        shared.perform(acts);
                    }
                })),
                Act::Tidy(attempts) => drop(self.tasks.spawn(async move {
                    let Settings { cluster, common, .. } = &shared.settings;
                    let selector = manifest::selector_of(&common.experiment, &attempts);
                    for kind in [Kind::Framework, Kind::Secret] {
                        shared.until_done("old", || cluster.delete_all(kind, &selector)).await;
                    }
                })),
            }
        }
    }

    /// Repeats a request until it is done, also when it is refused: who may do it now may not have been told so yet,
    /// and giving up would leave a pod running. `None`: we are closing.
    async fn until_done<T, F: Future<Output = Result<T, client::Error>>>(
        &self,
        name: &str,
        request: impl Fn() -> F,
    ) -> Option<T> {
        let mut pause = Duration::from_millis(250);
        let mut last_trouble = None;
        loop {
            match self.closing.run_until_cancelled(self.request(&request)).await? {
                Ok(done) => return Some(done),
                Err(error) if last_trouble.as_ref() != Some(&error) => {
                    warn!("{name}: {error}; trying again");
                    last_trouble = Some(error);
                }
                Err(_) => {}
            }
            self.closing.run_until_cancelled(tokio::time::sleep(pause)).await?;
            pause = (pause * 2).min(LONGEST_PAUSE);
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

    /// Makes an attempt's objects. What is there already was made by us, before a crash or an answer that
    /// was lost.
    async fn make(self: &Arc<Self>, name: &str, job: &TrialJobSpec) -> Result<(), String> {
        let Settings { cluster, common, .. } = &self.settings;
        let objects = [
            (Kind::Secret, manifest::token_secret(common, job)),
            (Kind::Framework, manifest::framework(common, job)),
        ];
        for (kind, object) in &objects {
            let mut pause = Duration::from_millis(250);
            loop {
                let mut cancelled = self.cancelled.subscribe();
                if self.tracker().is_unwanted(name) {
                    return Err("it was stopped before it was submitted".to_owned());
                }
                let request = self.request(|| cluster.create(*kind, object));
                let Some(answer) = self.closing.run_until_cancelled(request).await else {
                    return Err(LEFT.to_owned());
                };
                match answer {
                    Ok(()) => break,
                    // We may do it, as was seen at the start: a refusal is something that has run out since. The
                    // trial has done nothing wrong and waits, as long as `startUpDeadline` says.
                    Err(error) if error.may_be_mended() => {
                        let mut acts = self.tracker().waits(name, Some(error.to_string()));
                        if error.is_quota() {
                            acts.extend(self.tracker().make_room());
                        }
                        self.perform(acts);
                    }
                    Err(error) => return Err(format!("it could not be submitted: {error}")),
                }
                // The sender lives as long as we do.
                let slept = async {
                    drop(tokio::time::timeout(pause, cancelled.changed()).await);
                };
                if self.closing.run_until_cancelled(slept).await.is_none() {
                    return Err(LEFT.to_owned());
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        Ok(())
    }

    /// Follows all objects of a kind.
    async fn watch(self: Arc<Self>, kind: Kind) {
        let Settings { cluster, common, .. } = &self.settings;
        let selector = manifest::selector(&common.experiment);
        let (labels, fields) = match kind {
            Kind::Framework | Kind::Secret | Kind::Pod => (Some(selector.as_str()), None),
            // Events have no labels of ours.
            Kind::Event => (None, Some("involvedObject.kind=Pod,type=Warning")),
        };
        let (role, index) = &common.spec.metrics_from;
        let mut seen = cluster.watch(kind, labels, fields);
        let mut last_trouble = String::new();
        while let Some(seen) = seen.next().await {
            let mut tracker = self.tracker();
            let acts = match (kind, seen) {
                (_, Seen::Trouble(trouble)) => {
                    drop(tracker);
                    if trouble != last_trouble {
                        warn!("watching {kind:?}s: {trouble}; trying again");
                        last_trouble = trouble;
                    }
                    continue;
                }
                (Kind::Framework, Seen::Begin) => {
                    tracker.listing();
                    Vec::new()
                }
                (Kind::Framework, Seen::Complete) => tracker.listing_done(),
                (Kind::Framework, Seen::There(thing)) => {
                    let standing = status::read(&thing.body, (role.as_str(), *index));
                    let runs = standing == Standing::Running;
                    let acts = tracker.framework(&thing.name, standing, self.now());
                    if runs {
                        self.nearer.notify_one();
                    }
                    acts
                }
                (Kind::Framework, Seen::Gone(thing)) => tracker.framework_gone(&thing.name),
                (Kind::Pod, Seen::There(pod)) => {
                    tracker.pod(&pod.name, why::of_pod(&pod.body), taken::of_pod(&pod.body))
                }
                (Kind::Event, Seen::There(event)) => match why::of_event(&event.body) {
                    Some((pod, why)) => tracker.waits(why::framework_of(&pod), Some(why)),
                    None => Vec::new(),
                },
                (Kind::Pod | Kind::Event | Kind::Secret, _) => Vec::new(),
            };
            let listed = tracker.is_listed();
            drop(tracker);
            if listed {
                self.listed.send_if_modified(|was| !std::mem::replace(was, true));
            }
            self.perform(acts);
        }
    }

    /// Lets the tracker's deadlines pass.
    async fn keep_time(self: Arc<Self>) {
        loop {
            let next = self.tracker().next_deadline();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.began + at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.nearer.notified() => {}
            }
            let acts = self.tracker().tick(self.now());
            self.perform(acts);
        }
    }
}
