//! Reads the pods of a workload from the cluster.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use trial_protocol::AttemptId;

use super::STATE_POLL_INTERVAL;
use super::context::ServiceContext;
use crate::training_service::kubernetes::client::PODS;
use crate::training_service::kubernetes::manifest;

/// The time by which the watch of the pods may lag behind a listing of them.
const MAX_WATCH_LAG: Duration = Duration::from_secs(10);

/// Reads the pods of a workload from the cluster.
#[derive(Clone)]
pub(super) struct PodReader {
    context: Arc<ServiceContext>,
}

impl PodReader {
    pub(super) fn new(context: Arc<ServiceContext>) -> Self {
        Self { context }
    }

    /// Lists the current pods of a workload. `None`: the service is closing.
    pub(super) async fn list(&self, name: &str) -> Option<Vec<Value>> {
        let attempt = self.context.tracker().attempt_of(name)?;
        let selector = self.selector(name, &attempt);
        self.context.retry_until_done(name, || self.context.cluster().list(PODS, &selector)).await
    }

    /// Returns the current pods of a workload, together with the last observation of those that are gone.
    pub(super) async fn list_with_ended(&self, name: &str) -> Option<Vec<Value>> {
        if let Some(pod) = self.context.tracker().only_ended_pod(name) {
            return Some(vec![pod]);
        }
        let pods = self.list(name).await?;
        let until = Instant::now() + MAX_WATCH_LAG;
        while self.context.tracker().pods().has_unobserved_end(name, &pods)
            && Instant::now() < until
        {
            self.context.pause(STATE_POLL_INTERVAL).await?;
        }
        Some(self.context.tracker().pods().with_ended_pods(name, pods))
    }

    /// Returns the pod that reports the trial's metrics and the name of its container.
    pub(super) async fn reporting_pod(&self, name: &str) -> Option<(String, String)> {
        let (kind, spec) = (self.context.kind(), self.context.spec());
        let container = manifest::reporting_container(self.context.workload_settings());
        if let Some(pod) = kind.reporting_pod(spec, name, &[]) {
            return Some((pod, container));
        }
        let attempt = self.context.tracker().attempt_of(name)?;
        let selector = self.selector(name, &attempt);
        let pods = self.context.cluster().list_names(PODS, &selector).await.ok()?;
        Some((kind.reporting_pod(spec, name, &pods)?, container))
    }

    /// Returns the selector for the pods of a workload.
    fn selector(&self, name: &str, attempt: &AttemptId) -> String {
        let experiment =
            manifest::experiment_selector(&self.context.workload_settings().experiment);
        format!("{experiment},{}", self.context.kind().pod_selector(name, attempt))
    }
}
