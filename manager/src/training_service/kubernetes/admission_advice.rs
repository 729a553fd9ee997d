//! PURE: the remedy for a pod that the cluster refuses, derived from the API server's message. Only the text of the
//! message distinguishes rights, profiles and quotas.

use crate::config::kubernetes::WorkloadKind;

/// Returns the remedy for a pod of a workload of this kind that the API server refused with this message. `None`: the
/// message is clear enough.
fn suggest_names(message: &str, kind: WorkloadKind) -> Option<String> {
    if message.contains("cannot create resource \"pods\"") {
        let controller = kind.controller();
        let remedy = if kind == WorkloadKind::Framework {
            ": deploy/frameworkcontroller has a sufficient role"
        } else {
            ": its installation lacks a role"
        };
        return Some(format!(
            "the account of {controller}, which creates the pods, lacks the right{remedy}"
        ));
    }
    let contains_all = |words: &[&str]| words.iter().all(|word| message.contains(word));
    #[rustfmt::skip]
    let table: [(&[&str], &str); 13] = [
        (&["violates PodSecurity", "init-pytorch"],
            "the training operator puts the container `init-pytorch` into workers, which the profile `restricted` forbids: run `kubectl label --overwrite namespace NAMESPACE pod-security.kubernetes.io/enforce=baseline`, or use a trial with only a `master`"),
        (&["violates PodSecurity \"restricted", "seccompProfile"],
            "the namespace enforces the Pod Security profile `restricted`, whose `seccompProfile` FrameworkController drops: run `kubectl label --overwrite namespace NAMESPACE pod-security.kubernetes.io/enforce=baseline`"),
        (&["violates PodSecurity", "runAsUser=0"],
            "the namespace's Pod Security profile forbids root: leave `runAsUser: 0` out (`barrierImage` needs it, too)"),
        (&["violates PodSecurity", "restricted volume type"],
            "the namespace's Pod Security profile allows no NFS export, Azure file share or folder of a node in a pod: use a claim (`claimName`), whose volume may be one, or `storage: http`"),
        (&["violates PodSecurity"],
            "the namespace's Pod Security profile forbids what the message names: leave the fields out of the template or the experiment file, or run `kubectl label --overwrite namespace NAMESPACE pod-security.kubernetes.io/enforce=...` with a profile that allows them"),
        (&["service account", "not found"],
            "`serviceAccountName` names an account that does not exist in the namespace: create it with `kubectl create serviceaccount`"),
        (&["failed quota", "must specify"],
            "a quota of the namespace requires requests and limits of every container: set `cpuNumber` and `memorySize` of each role, and the same in other containers of a template"),
        (&["exceeded quota"],
            "`kubectl describe quota` shows the usage: request less, or ask for a larger quota"),
        (&["no PriorityClass"],
            "`priorityClassName` of the template names a class that does not exist: `kubectl get priorityclass` lists the classes"),
        (&["usage per Container"],
            "a LimitRange of the namespace limits it (`kubectl describe limitrange`): change `cpuNumber` or `memorySize`"),
        (&["usage per Pod"],
            "a LimitRange of the namespace limits it (`kubectl describe limitrange`): change `cpuNumber` or `memorySize`"),
        (&["security context constraint"],
            "set `runAsUser` to a user of the namespace's range, or let the cluster choose one: use a template with an empty `securityContext`"),
        (&["admission webhook"],
            "a webhook of the cluster refuses the pod: ask the cluster's administrator for its rules, and for an exception for trials"),
    ];
    // The profile is only missing if the controller drops it.
    let applies =
        |words: &[&str]| kind.drops_new_pod_fields() || !words.contains(&"seccompProfile");
    let row = table.into_iter().find(|(words, _)| contains_all(words) && applies(words));
    row.map(|(_, advice)| advice.to_owned())
}

/// Returns the refusal of a pod of a workload of this kind, followed by the remedy.
pub fn with_advice(message: String, kind: WorkloadKind) -> String {
    match suggest_names(&message, kind) {
        Some(advice) => format!("{message}; {advice}"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_remedy() {
        // Messages of API servers of Kubernetes 1.25 to 1.36.
        #[rustfmt::skip]
        let table = [
            ("pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": seccompProfile (pod or container \"framework\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")", Some("enforce=baseline")),
            ("pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)", Some("leave the fields out")),
            ("pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": restricted volume types (volume \"nni-vol\" uses restricted volume type \"nfs\")", Some("`storage: http`")),
            ("pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": runAsNonRoot != true (pod or container \"trial\" must set securityContext.runAsNonRoot=true), runAsUser=0 (pod must not set runAsUser=0)", Some("leave `runAsUser: 0` out")),
            ("pods is forbidden: User \"system:serviceaccount:frameworkcontroller:frameworkcontroller\" cannot create resource \"pods\" in API group \"\" in the namespace \"lab\"", Some("deploy/frameworkcontroller")),
            ("pods \"x\" is forbidden: error looking up service account lab/nobody: serviceaccount \"nobody\" not found", Some("kubectl create serviceaccount")),
            ("pods \"x\" is forbidden: failed quota: q: must specify limits.cpu for: framework; requests.cpu for: framework", Some("`cpuNumber`")),
            ("pods \"x\" is forbidden: exceeded quota: q, requested: cpu=1, used: cpu=2, limited: cpu=2", Some("kubectl describe quota")),
            ("pods \"x\" is forbidden: no PriorityClass with name high was found", Some("kubectl get priorityclass")),
            ("pods \"x\" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi", Some("LimitRange")),
            ("pods \"x\" is forbidden: unable to validate against any security context constraint: [...]", Some("`runAsUser`")),
            ("admission webhook \"validate.kyverno.svc\" denied the request: no", Some("a webhook")),
            ("Pod \"x\" is invalid: spec.containers[0].image: Required value", None),
        ];
        for (message, part) in table {
            let whole = with_advice(message.to_owned(), WorkloadKind::Framework);
            assert!(whole.starts_with(message), "{whole}");
            match part {
                Some(part) => assert!(whole[message.len()..].contains(part), "{whole}"),
                None => assert_eq!(whole, message),
            }
        }
    }

    #[test]
    fn advice_names_the_refused_controller() {
        let message = |what: &str| format!("pods \"x\" is forbidden: {what}");
        let seccomp = message("violates PodSecurity \"restricted:latest\": seccompProfile (…)");
        let right = message("User \"u\" cannot create resource \"pods\" in API group \"\"");
        for message in [seccomp, right] {
            let of_job = with_advice(message.clone(), WorkloadKind::Job);
            assert!(of_job.len() > message.len(), "{of_job}");
            assert!(!of_job.contains("FrameworkController"), "{of_job}");
            let of_framework = with_advice(message, WorkloadKind::Framework);
            assert!(of_framework.contains("FrameworkController"), "{of_framework}");
        }
    }
}
