//! Checks the queue and the priority class that an experiment names before anything is submitted.

use std::time::Duration;

use tracing::warn;

use super::Refusal;
use crate::config::kubernetes::KubernetesSpec;
use crate::training_service::kubernetes::client::{Cluster, Error, with_retries};
use crate::training_service::kubernetes::kueue;

/// The time after which Kueue evicts a trial whose pods are not ready, unless its administrator sets another.
const PODS_READY_TIMEOUT: Duration = Duration::from_mins(30);

/// Returns a warning if Kueue evicts trials before their own deadline. `None`: the deadline comes first.
fn deadline_warning(spec: &KubernetesSpec) -> Option<String> {
    spec.queue.as_ref().filter(|_| spec.start_up_deadline >= PODS_READY_TIMEOUT)?;
    let minutes = spec.start_up_deadline.as_secs() / 60;
    Some(format!(
        "`startUpDeadline` is {minutes} minutes, but by default Kueue takes back a trial whose pods are not ready after \
         {} minutes and tries it again: set a shorter time, or a trial that cannot start waits in the queue again and \
         again before it fails",
        PODS_READY_TIMEOUT.as_secs() / 60
    ))
}

/// Returns the supported version of Kueue's API that the cluster serves. `None`: it serves no supported version.
pub async fn served_kueue_version(cluster: &Cluster) -> Result<Option<&'static str>, Error> {
    for version in kueue::API_VERSIONS {
        let none = || cluster.list_names(kueue::workloads(version), "trialkeeper/experiment=none");
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
pub async fn check_queue(
    cluster: &Cluster,
    spec: &KubernetesSpec,
) -> Result<Option<String>, Refusal> {
    let Some(name) = &spec.queue else { return Ok(None) };
    if let Some(warning) = deadline_warning(spec) {
        warn!("{warning}");
    }
    let Some(version) = served_kueue_version(cluster).await? else { return Ok(None) };
    if let Some(class) = &spec.priority_class {
        let resource = kueue::priority_classes(version);
        match with_retries(|| cluster.has_cluster_wide_object(resource, class)).await {
            Ok(false) => return Err(Refusal::NoPriorityClass { class: class.clone() }),
            // Not an error, because few accounts may read cluster-wide objects.
            Ok(true) | Err(Error::NotAllowed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let resource = kueue::local_queues(version);
    if !with_retries(|| cluster.is_allowed("get", resource)).await? {
        return Ok(None);
    }
    match with_retries(|| cluster.get_complete_object(resource, name)).await? {
        Some(queue) => Ok(kueue::inactive_reason(&queue)
            .map(|why| format!("trials will wait for the LocalQueue `{name}`: {why}"))),
        None => {
            Err(Refusal::NoQueue { namespace: cluster.namespace().to_owned(), queue: name.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::training_service::kubernetes::manifest::tests::workload_settings;

    #[test]
    fn a_deadline_that_comes_after_kueues_is_warned_about() {
        #[rustfmt::skip]
        let table = [
            (json!({"queue": "q"}),                           None),
            (json!({"queue": "q", "startUpDeadline": "29m"}), None),
            (json!({"queue": "q", "startUpDeadline": "30m"}), Some("`startUpDeadline` is 30 minutes")),
            (json!({"queue": "q", "startUpDeadline": "2h"}),  Some("`startUpDeadline` is 120 minutes")),
            (json!({"startUpDeadline": "2h"}),                None),
        ];
        for (changes, expected) in table {
            let mut section = json!({"platform": "kubernetes", "dockerImage": "i"});
            for (field, value) in changes.as_object().unwrap() {
                section[field] = value.clone();
            }
            let warning = deadline_warning(&workload_settings(&section).spec);
            assert_eq!(warning.is_some(), expected.is_some(), "{section}: {warning:?}");
            let start = expected.unwrap_or_default();
            assert!(warning.unwrap_or_default().starts_with(start), "{section}");
        }
    }
}
