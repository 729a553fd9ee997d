//! Finds out from the cluster why a workload has no pod.

use super::{Settings, Shared, admission_advice, pending_reason, preflight};

impl Shared {
    /// Returns the reason why a workload has no pod: its controller's message, or else the cluster's answer to a dry
    /// run. `None`: neither names a reason, or the account may not ask.
    pub(super) async fn missing_pod_reason(&self, name: &str) -> Option<String> {
        let Settings { cluster, common, .. } = &self.settings;
        let controller = self.kind.controller();
        let mut message = None;
        for (kind, owner) in self.kind.pod_owners(&common.spec, name) {
            let warnings = cluster.warnings(kind, &owner).await.unwrap_or_default();
            message =
                message.or_else(|| warnings.iter().rev().find_map(pending_reason::of_refused_pod));
        }
        let refusal = match &message {
            Some(words) => admission_advice::with_advice(words.clone(), controller),
            // A controller that has not examined the workload has not tried to create a pod.
            None if !self.tracker().is_examined(name) => return None,
            None => preflight::pods(cluster, self.kind, common).await.ok()??.to_string(),
        };
        Some(format!("{controller} cannot create its pod: {refusal}"))
    }
}
