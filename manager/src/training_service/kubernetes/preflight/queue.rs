//! Checks the queue and the priority class that an experiment names before anything is submitted.

use super::Refusal;
use crate::config::kubernetes::KubernetesSpec;
use crate::training_service::kubernetes::client::{Cluster, Error, with_retries};
use crate::training_service::kubernetes::kueue;

/// Returns the supported version of Kueue's API that the cluster serves. `None`: it serves no supported version.
pub async fn served_version(cluster: &Cluster) -> Result<Option<&'static str>, Error> {
    for version in kueue::VERSIONS {
        let none = || cluster.names(kueue::workloads(version), "trialkeeper/experiment=none");
        match with_retries(none).await {
            Ok(_) => return Ok(Some(version)),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Refuses a missing queue or priority class, as far as the account may read them. Returns a warning if the queue
/// currently admits no trials, which then wait.
pub async fn check(cluster: &Cluster, spec: &KubernetesSpec) -> Result<Option<String>, Refusal> {
    let Some(name) = &spec.queue else { return Ok(None) };
    let Some(version) = served_version(cluster).await? else { return Ok(None) };
    if let Some(class) = &spec.priority_class {
        let resource = kueue::priority_classes(version);
        match with_retries(|| cluster.has_cluster_wide(resource, class)).await {
            Ok(false) => return Err(Refusal::NoPriorityClass { class: class.clone() }),
            // Not an error, because few accounts may read cluster-wide objects.
            Ok(true) | Err(Error::NotAllowed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let resource = kueue::local_queues(version);
    if !with_retries(|| cluster.may("get", resource)).await? {
        return Ok(None);
    }
    match with_retries(|| cluster.get_whole(resource, name)).await? {
        Some(queue) => Ok(kueue::inactive(&queue)
            .map(|why| format!("trials will wait for the LocalQueue `{name}`: {why}"))),
        None => {
            Err(Refusal::NoQueue { namespace: cluster.namespace().to_owned(), queue: name.clone() })
        }
    }
}
