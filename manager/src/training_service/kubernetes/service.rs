//! The service that submits, stops and watches the trials of an experiment on a cluster. It carries out the decisions
//! of the tracker.

mod action_runner;
mod context;
mod missing_pod;
mod pod_reader;
mod queue_positions;
mod submitter;
mod timekeeper;
mod watch_clock;
mod watcher;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tracing::{debug, warn};
use trial_protocol::{AttemptId, TrialJobId};

use self::action_runner::ActionRunner;
use self::context::ServiceContext;
use self::pod_reader::PodReader;
use self::queue_positions::follow_positions;
use self::submitter::Submitter;
use self::timekeeper::run_deadlines;
use self::watcher::Watcher;
use super::cleanup::clean;
use super::client::{Cluster, Resource};
use super::manifest::WorkloadSettings;
use super::tracker::TrackerAction;
use super::{cleanup, client, manifest};
use crate::config::kubernetes::HandOver;
use crate::training_service::completion::TrialCompletion;
use crate::training_service::{
    AdoptionResult, FreeRoom, JobNewsSender, Output, SubmitError, TrainingService, TrialJobSpec,
    VerdictCertainty,
};

/// The time limit for the cleanup at the end.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The time after which a stopping manager gives up waiting for an unreachable cluster. The two constants below are the
/// interval between the checks and the time limit of one check.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(10);
const REACH_POLL_INTERVAL: Duration = Duration::from_secs(2);
const REACH_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval between checks of the state of the tracker.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The time after the end of the search in which the workloads of ended trials may terminate on their own.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(15);

/// The time limit for the first listing of the cluster, during which a resumed search waits. After it, the trials of an
/// earlier manager count as running until the listing shows them.
const FIRST_LISTING_TIMEOUT: Duration = Duration::from_secs(30);

/// The settings of a [`KubernetesService`].
pub struct Settings {
    /// The cluster that runs the trials.
    pub cluster: Cluster,
    /// The settings that all trials share.
    pub workload_settings: WorkloadSettings,
    /// The objects that all trials share. They exist at the start, and the service creates them again if they
    /// disappear.
    pub shared_objects: Vec<(Resource, serde_json::Value)>,
    /// The reason why the cluster is out of reach at the start, if it is. The shared objects are then written later.
    pub outage: Option<String>,
    /// The channel that receives news of jobs.
    pub events: JobNewsSender,
}

/// A training service that runs trials as Kubernetes objects of one kind.
pub struct KubernetesService {
    context: Arc<ServiceContext>,
    runner: ActionRunner,
    submitter: Submitter,
    pods: PodReader,
    /// The time until which an adoption waits for the first listing.
    adoption_deadline: Instant,
    /// The reason for no longer waiting for the cluster, if there is one.
    unreachable_reason: OnceLock<String>,
}

impl KubernetesService {
    /// Starts the watches and submits nothing.
    pub fn start(settings: Settings) -> Self {
        let now = Instant::now();
        let is_away = settings.outage.is_some();
        let context = Arc::new(ServiceContext::new(settings, now));
        let pods = PodReader::new(Arc::clone(&context));
        let runner = ActionRunner::new(Arc::clone(&context), pods.clone());
        let submitter = Submitter::new(Arc::clone(&context), runner.clone());
        Watcher::start(&context, &runner);
        if let Some(queue) = context.spec().queue.clone() {
            let positions = follow_positions(Arc::clone(&context), runner.clone(), queue);
            context.spawn_until_closing(positions);
        }
        if is_away {
            context.spawn_until_closing(submitter.clone().write_shared_objects());
        }
        context.spawn_until_closing(run_deadlines(Arc::clone(&context), runner.clone()));
        let adoption_deadline = if is_away { now } else { now + FIRST_LISTING_TIMEOUT };
        Self {
            context,
            runner,
            submitter,
            pods,
            adoption_deadline,
            unreachable_reason: OnceLock::new(),
        }
    }

    /// Carries out actions of the tracker that may have moved a deadline closer.
    fn perform(&self, actions: Vec<TrackerAction>) {
        self.context.wake_timekeeper();
        self.runner.perform(actions);
    }
}

#[async_trait]
impl TrainingService for KubernetesService {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        self.submitter.submit(job);
        Ok(())
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> AdoptionResult {
        let context = &self.context;
        // Hundreds of trials share the time limit.
        let first_listing = context.wait_until_listed();
        drop(tokio::time::timeout_at(self.adoption_deadline, first_listing).await);
        let name = manifest::workload_name(&context.workload_settings().experiment, attempt);
        let (adopted, actions) = context.tracker().adopt(&name, trial, attempt, context.now());
        self.perform(actions);
        adopted
    }

    fn end_unadopted(&self) {
        self.context.tracker().end_unadopted(self.context.now());
        self.context.wake_timekeeper();
    }

    async fn recover_reports(&self, _trial: &TrialJobId) {
        // An agent's remaining reports disappear with its pod. The agent therefore waits for the manager before it
        // ends.
    }

    async fn stop(&self, trial: &TrialJobId) {
        let actions = self.context.tracker().stop_trial(trial, self.context.now());
        self.submitter.check_stop_requests();
        self.perform(actions);
    }

    async fn finish(&self, trial: &TrialJobId) {
        let (context, spec) = (&self.context, self.context.spec());
        let has_one_pod = !context.kind().completion(spec).has_several_pods();
        // Without rules, the trial's other pods may run on, and the controller may start another pod after this one.
        if self.completion(trial).is_some() || has_one_pod && !manifest::has_retries(spec) {
            let actions = context.tracker().finish(trial, context.now());
            self.perform(actions);
        }
    }

    fn completion(&self, _trial: &TrialJobId) -> Option<TrialCompletion> {
        let spec = self.context.spec();
        // Retries are the controller's.
        let is_wanted = spec.hand_over == HandOver::Verdict && !manifest::has_retries(spec);
        is_wanted.then(|| self.context.kind().completion(spec))
    }

    async fn accept_verdict_end(&self, trial: &TrialJobId, certainty: VerdictCertainty) -> bool {
        let context = &self.context;
        let (is_accepted, actions) =
            context.tracker().accept_verdict_end(trial, certainty, context.now());
        self.perform(actions);
        is_accepted
    }

    fn mark_running(&self, trial: &TrialJobId) {
        self.context.tracker().mark_running(trial);
        self.context.wake_timekeeper();
    }

    async fn output(
        &self,
        trial: &TrialJobId,
        ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        let name = self.context.tracker().running_workload(trial)?;
        let cluster = self.context.cluster();
        let (pod, container) = self.pods.reporting_pod(&name).await?;
        match cluster.follow_lines(&pod, &container, ago).await {
            Ok(output) => Some(Ok(output)),
            Err(error @ client::Error::NotAllowed { .. }) => Some(Err(format!(
                "{error}; to see the output here, grant `get` on `pods/log` (deploy/rights); an account with this right can \
                 also run `kubectl -n {} logs {pod} -c {container}`",
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
        match self.context.first_outage() {
            Some(why) => FreeRoom::Unreachable(why.to_owned()),
            None => FreeRoom::Unknown,
        }
    }

    async fn wait_until_out_of_reach(&self) {
        let (cluster, resource) = (self.context.cluster(), self.context.kind().resource());
        let mut since = None;
        loop {
            tokio::time::sleep(REACH_POLL_INTERVAL).await;
            // Nothing there delays the stop, and another service may still stop its trials.
            if self.context.tracker().workload_count() == 0 {
                since = None;
                continue;
            }
            let may_delete = cluster.is_allowed("delete", resource);
            let why = match tokio::time::timeout(REACH_TIMEOUT, may_delete).await {
                Ok(Ok(true)) => {
                    since = None;
                    continue;
                }
                Ok(Ok(false)) => {
                    format!("the account no longer has the right to stop {}", resource.plural)
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("the cluster at {} does not answer", cluster.server()),
            };
            if since.get_or_insert_with(Instant::now).elapsed() >= OUTAGE_TIMEOUT {
                drop(self.unreachable_reason.set(why));
                return;
            }
        }
    }

    async fn close(&self) {
        // The agents deliver the rest of the output in this time.
        let until = Instant::now() + HAND_OVER_TIMEOUT;
        let context = &self.context;
        while self.unreachable_reason.get().is_none()
            && context.tracker().has_handed_over()
            && Instant::now() < until
        {
            tokio::time::sleep(STATE_POLL_INTERVAL).await;
        }
        context.close().await;
        let experiment = &context.workload_settings().experiment;
        if let Some(why) =
            self.unreachable_reason.get().map(String::as_str).or(context.first_outage())
        {
            let kind = context.kind().resource().kind;
            let (objects, namespace) =
                (context.tracker().workload_count(), context.cluster().namespace());
            warn!(
                "{why}; left in its namespace `{namespace}`: {objects} {kind}s and their Secrets, with the label \
                 {}. Once it can be reached, `trial-manager resume {experiment}` goes on, or \
                 `trial-manager clean {experiment}` deletes them",
                manifest::experiment_selector(experiment)
            );
            return;
        }
        let kinds: Vec<_> = cleanup::kinds_of(context.kind()).collect();
        let cleaned = clean(context.cluster(), experiment, &kinds);
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
