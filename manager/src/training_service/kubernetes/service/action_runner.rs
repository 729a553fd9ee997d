//! Carries out the tracker's actions with requests to the cluster.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;
use trial_protocol::AttemptId;

use super::STATE_POLL_INTERVAL;
use super::context::ServiceContext;
use super::missing_pod::query_missing_pod;
use super::pod_reader::PodReader;
use crate::training_service::kubernetes::client::{PODS, SECRETS};
use crate::training_service::kubernetes::outcome::WorkloadOutcome;
use crate::training_service::kubernetes::tracker::TrackerAction;
use crate::training_service::kubernetes::workload::StopRequest;
use crate::training_service::kubernetes::{cleanup, manifest, pod_end};
use crate::util::backoff::Backoff;

/// The first and the longest pause between two requests for the remaining pods of a deleted workload. Most pods end
/// within a second, and hundreds of stopped trials may wait at a time for the end of a long grace period.
const POD_POLL_PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];
/// The time after which a pod of a deleted workload counts as left behind if nothing has deleted it. The garbage
/// collector needs about a second.
const ORPHAN_TIME: Duration = Duration::from_secs(10);
/// The time that the pods of a deleted workload may take beyond their own grace period.
const POD_MARGIN: Duration = Duration::from_mins(1);

/// Carries out the tracker's actions.
#[derive(Clone)]
pub(super) struct ActionRunner {
    context: Arc<ServiceContext>,
    pods: PodReader,
    /// Wakes the watch of the queues when the tracker needs it.
    queue_watch: Arc<Notify>,
}

impl ActionRunner {
    pub(super) fn new(context: Arc<ServiceContext>, pods: PodReader) -> Self {
        Self { context, pods, queue_watch: Arc::new(Notify::new()) }
    }

    /// Waits until the tracker needs a watch of the queues.
    pub(super) async fn queue_watch_requested(&self) {
        self.queue_watch.notified().await;
    }

    /// Carries out the tracker's actions. Requests run in tasks of their own, and each returns the actions that follow.
    pub(super) fn perform(&self, actions: Vec<TrackerAction>) {
        for action in actions {
            if let TrackerAction::Report(news) = action {
                // The receiver lives as long as the experiment, and later news has no use.
                drop(self.context.settings().events.send(news));
                continue;
            }
            let runner = self.clone();
            self.context.spawn(async move {
                let actions = runner.perform_one(action).await;
                runner.perform(actions);
            });
        }
    }

    async fn perform_one(&self, action: TrackerAction) -> Vec<TrackerAction> {
        match action {
            TrackerAction::Report(_) => Vec::new(),
            TrackerAction::Stop(name) => self.stop_workload(&name).await,
            TrackerAction::ReadOutput(name) => self.read_output(&name).await,
            TrackerAction::QueryMissingPod(name) => query_missing_pod(&self.context, &name).await,
            TrackerAction::DeleteUnstopped(name) => self.delete_unstopped(&name).await,
            TrackerAction::DeleteLeftover(name) => {
                self.delete(&name).await;
                Vec::new()
            }
            TrackerAction::ConcludeFromPods(name) => self.conclude_from_pods(&name).await,
            TrackerAction::WatchQueue => {
                self.queue_watch.notify_one();
                Vec::new()
            }
            TrackerAction::ExplainFromPods(name, outcome) => {
                self.explain_from_pods(&name, outcome).await
            }
            TrackerAction::AwaitPods(name) => self.wait_until_pods_gone(&name).await,
            TrackerAction::DeleteRemains(attempts) => self.delete_remains(&attempts).await,
        }
    }

    async fn stop_workload(&self, name: &str) -> Vec<TrackerAction> {
        let (cluster, resource) = (self.context.cluster(), self.context.kind().resource());
        let exists = match self.context.kind().stop_request() {
            StopRequest::Patch(stop) => {
                self.context
                    .retry_until_done(name, || cluster.merge_patch(resource, name, &stop))
                    .await
            }
            StopRequest::Delete => self.delete(name).await,
        };
        if exists == Some(false) {
            self.context.tracker().handle_deleted_workload(name)
        } else {
            Vec::new()
        }
    }

    /// Deletes a workload that did not stop.
    async fn delete_unstopped(&self, name: &str) -> Vec<TrackerAction> {
        let kind = self.context.kind().resource().kind;
        warn!("the {kind} {name} did not end within its time limit; deleting it");
        match self.delete(name).await {
            Some(_) => self.context.tracker().handle_deleted_workload(name),
            None => Vec::new(),
        }
    }

    /// Deletes a workload. Returns whether it existed. `None`: the service is closing.
    async fn delete(&self, name: &str) -> Option<bool> {
        let (cluster, resource) = (self.context.cluster(), self.context.kind().resource());
        self.context.retry_until_done(name, || cluster.delete(resource, name)).await
    }

    /// Reads the last line of a pod whose agent does not report.
    async fn read_output(&self, name: &str) -> Vec<TrackerAction> {
        // The preflight checks do not require the right to read logs. Without the right, the message names a command
        // with which the user can read them.
        let output = match self.pods.reporting_pod(name).await {
            Some((pod, container)) => self.context.cluster().last_lines(&pod, &container).await,
            None => Ok(String::new()),
        };
        let output = output.unwrap_or_default();
        let last_line = output.lines().rfind(|line| !line.trim().is_empty()).map(str::trim);
        self.context.tracker().handle_silent_agent(name, last_line)
    }

    /// Reads the end of a workload from its pods, if its controller does not complete it.
    async fn conclude_from_pods(&self, name: &str) -> Vec<TrackerAction> {
        let Some(pods) = self.pods.list_with_ended(name).await else { return Vec::new() };
        let kind = self.context.kind();
        let trial = self.context.trial_containers();
        let remains = pods.iter().any(|pod| pod_end::has_outlived_trial(pod, &trial));
        let has_running = pods.iter().any(|pod| !pod_end::has_ended(pod));
        let pods = pods.into_iter().map(|pod| pod_end::without_other_containers(pod, &trial));
        let pods: Vec<_> = pods.collect();
        let Some(outcome) = kind.outcome_from_pods(self.context.spec(), &pods, &trial) else {
            return Vec::new();
        };
        if remains && !has_running {
            let mut actions = self.context.tracker().complete_end(name, outcome);
            warn!(
                "the trial of {name} has ended, but another container runs on in its pod, as when a service mesh added \
                 it; deleting the {}",
                kind.resource().kind
            );
            actions.push(TrackerAction::DeleteLeftover(name.to_owned()));
            return actions;
        }
        let why = format!(
            "{} has not written this end: it may be down, or Kueue's webhook, which is called for every pod, does not \
             answer; the end is read from the pods",
            kind.controller()
        );
        warn!("{name}: {why}");
        self.context.tracker().end_from_pods(name, outcome, &why, has_running)
    }

    /// Adds the explanation of the pods to the outcome of a workload.
    async fn explain_from_pods(&self, name: &str, outcome: WorkloadOutcome) -> Vec<TrackerAction> {
        if self.context.kind().can_end_before_pods()
            && self.wait_until_pods_ended(name).await.is_none()
        {
            return Vec::new();
        }
        if !outcome.needs_pods {
            return self.context.tracker().complete_end(name, outcome);
        }
        let Some(pods) = self.pods.list_with_ended(name).await else { return Vec::new() };
        let trial = self.context.trial_containers();
        let outcome = self.context.kind().explain_outcome(outcome, &pods, &trial);
        self.context.tracker().complete_end(name, outcome)
    }

    /// Waits until the pods of a workload have ended whose controller ends them after the workload. `None`: the service
    /// is closing.
    async fn wait_until_pods_ended(&self, name: &str) -> Option<()> {
        let until = Instant::now() + self.ending_time();
        while self.context.tracker().pods().has_running(name) && Instant::now() < until {
            self.context.pause(STATE_POLL_INTERVAL).await?;
        }
        Some(())
    }

    /// Waits until the pods of a deleted workload are gone.
    async fn wait_until_pods_gone(&self, name: &str) -> Vec<TrackerAction> {
        // The time begins with the first answer: while the API server was away, no pod could be stopped.
        let mut begun: Option<Instant> = None;
        let [first, longest] = POD_POLL_PAUSES;
        let mut backoff = Backoff::new(first, longest);
        let mut may_delete = true;
        while let Some(pods) = self.pods.list(name).await
            && !pods.is_empty()
            && begun.get_or_insert_with(Instant::now).elapsed() < self.ending_time()
        {
            if may_delete && begun.is_some_and(|begun| begun.elapsed() >= ORPHAN_TIME) {
                may_delete = self.delete_orphans(&pods).await;
            }
            if self.context.pause(backoff.next_pause()).await.is_none() {
                break;
            }
        }
        self.context.tracker().end_deleted_workload(name)
    }

    /// Deletes the pods that the garbage collector leaves, as after `kubectl delete --cascade=orphan`. Returns `false`
    /// if the cluster refuses this. The account need not have the right.
    async fn delete_orphans(&self, pods: &[Value]) -> bool {
        for pod in pod_end::undeleted_names(pods) {
            warn!("{pod}: its object is gone, and the pod remains; deleting the pod");
            if let Err(error) =
                self.context.request(|| self.context.cluster().delete(PODS, pod)).await
            {
                warn!("{pod}: {error}; its command may run beside the trial's next attempt");
                return false;
            }
        }
        true
    }

    /// Deletes the remains of attempts that ended long ago.
    async fn delete_remains(&self, attempts: &[AttemptId]) -> Vec<TrackerAction> {
        let cluster = self.context.cluster();
        let selector =
            manifest::attempts_selector(&self.context.workload_settings().experiment, attempts);
        for resource in [self.context.kind().resource(), SECRETS] {
            let delete = || cleanup::delete_all(cluster, resource, &selector);
            self.context.retry_until_done("old", delete).await;
        }
        Vec::new()
    }

    /// Returns the time in which pods must end after a stop request.
    fn ending_time(&self) -> Duration {
        manifest::grace_period(self.context.spec()) + POD_MARGIN
    }
}
