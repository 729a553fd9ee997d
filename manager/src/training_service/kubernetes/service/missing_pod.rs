//! Finds out from the cluster why a workload has no pod.

use super::context::ServiceContext;
use crate::training_service::kubernetes::pending_reason::{CurrentEvents, PodRefusal};
use crate::training_service::kubernetes::tracker::TrackerAction;
use crate::training_service::kubernetes::{admission_advice, pending_reason, preflight};

/// Finds out why a workload has no pod, and passes the reason to the tracker.
pub(super) async fn query_missing_pod(context: &ServiceContext, name: &str) -> Vec<TrackerAction> {
    let refused = find_pod_refusal(context, name).await;
    let (is_denied, why) = match refused {
        Some(PodRefusal { message, is_denied }) => (is_denied, Some(message)),
        None => (false, None),
    };
    let controller = context.kind().controller();
    let why = match why {
        Some(words) => Some(admission_advice::with_advice(words, context.kind().kind())),
        None => dry_run_refusal(context, name).await,
    };
    let why = why.map(|why| format!("{controller} cannot create its pod: {why}"));
    match why {
        Some(why) if is_denied => context.tracker().handle_denied_pod(name, why, context.now()),
        why => context.tracker().handle_missing_pod(name, why),
    }
}

/// Returns the refusal of a pod that the controllers of a workload report in events. `None`: there is none, or the
/// account may not read events.
async fn find_pod_refusal(context: &ServiceContext, name: &str) -> Option<PodRefusal> {
    let mut warnings = Vec::new();
    for (kind, owner) in context.kind().pod_owners(context.spec(), name) {
        warnings.extend(context.cluster().list_warnings(kind, &owner).await.unwrap_or_default());
    }
    let tracker = context.tracker();
    let current = CurrentEvents {
        kind: context.kind().resource().kind,
        id: tracker.id_of(name),
        since: tracker.pods().newest_creation(name),
    };
    warnings.retain(|event| current.has_event(event));
    pending_reason::newest_pod_refusal(&warnings)
}

/// Returns the cluster's answer to a dry run. `None`: it refuses no pod, or the account may not ask.
async fn dry_run_refusal(context: &ServiceContext, name: &str) -> Option<String> {
    // A controller that has not examined the workload has not tried to create a pod.
    if !context.tracker().is_examined(name) {
        return None;
    }
    let (cluster, kind, settings) =
        (context.cluster(), context.kind(), context.workload_settings());
    Some(preflight::dry_run_pods(cluster, kind, settings).await.ok()?.err()?.to_string())
}
