//! Deletes the remains of an experiment from a cluster.

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;
use trial_protocol::ExperimentId;

use super::client::{self, Cluster, PODS, Resource, SECRETS};
use super::workload::{Workload, workload};
use super::{MAX_RETRY_PAUSE, manifest};
use crate::config::kubernetes::WorkloadKind;
use crate::util::backoff::Backoff;

/// The time limit for deleted pods to disappear.
const DELETION_TIMEOUT: Duration = Duration::from_mins(2);
/// The interval between checks for remaining pods.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Deletes all objects of an experiment from its namespace, for every kind of workload.
pub async fn clean_all(cluster: &Cluster, experiment: &ExperimentId) -> Result<(), client::Error> {
    let mut kinds = Vec::new();
    for &kind in WorkloadKind::ALL {
        // An account for one kind of workload need not have rights for another kind.
        for resource in kinds_of(workload(kind)) {
            if client::with_retries(|| cluster.is_allowed("delete", resource)).await? {
                kinds.push(resource);
            }
        }
    }
    clean(cluster, experiment, &kinds).await
}

/// Returns the kinds of objects of a workload in the order of their deletion. The shared objects must outlive the
/// trials.
pub fn kinds_of(workload: &dyn Workload) -> impl Iterator<Item = Resource> {
    let shared = workload.shared_kinds().iter().map(|(resource, _)| *resource);
    std::iter::once(workload.resource()).chain(shared)
}

/// Deletes every object of a kind that `selector` matches, with one request. If the account lacks `deletecollection`,
/// which the roles that operators install do not include, sends one request for each object.
pub async fn delete_all(
    cluster: &Cluster,
    kind: Resource,
    selector: &str,
) -> Result<(), client::Error> {
    match cluster.delete_all(kind, selector).await {
        Err(client::Error::NotAllowed { .. }) => {}
        done => return done,
    }
    for name in cluster.list_names(kind, selector).await? {
        cluster.delete(kind, &name).await?;
    }
    Ok(())
}

/// Deletes the objects of these kinds and the Secrets of an experiment, and waits until they are gone.
pub async fn clean(
    cluster: &Cluster,
    experiment: &ExperimentId,
    kinds: &[Resource],
) -> Result<(), client::Error> {
    let selector = manifest::experiment_selector(experiment);
    for kind in kinds.iter().copied().chain([SECRETS]) {
        let mut backoff = Backoff::new(Duration::from_millis(100), MAX_RETRY_PAUSE);
        loop {
            let tried = match delete_all(cluster, kind, &selector).await {
                Ok(()) => cluster.list_names(kind, &selector).await,
                Err(error) => Err(error),
            };
            match tried {
                Ok(left) if left.is_empty() => break,
                Ok(left) => debug!("{} objects are still going", left.len()),
                // The kind was removed together with its controller and all of its objects.
                Err(client::Error::NotFound { .. }) => break,
                Err(error) if error.is_temporary() => debug!("{error}; trying again"),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }
    Ok(())
}

/// Waits until no pod of an experiment exists, and returns `false` if some remain after the time limit. Each pod has
/// its own grace period.
pub async fn wait_until_pods_gone(
    cluster: &Cluster,
    experiment: &ExperimentId,
) -> Result<bool, client::Error> {
    let selector = manifest::experiment_selector(experiment);
    let pods = || cluster.list_names(PODS, &selector);
    let began = Instant::now();
    while !client::with_retries(pods).await?.is_empty() {
        if began.elapsed() > DELETION_TIMEOUT {
            return Ok(false);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(true)
}
