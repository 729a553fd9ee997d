//! PURE: the remedy for a pod that the cluster refuses, derived from the API server's message. Only the text of the
//! message distinguishes rights, profiles and quotas.

/// The controller that drops newer fields of a pod and has its own role in `deploy/`.
const FRAMEWORK_CONTROLLER: &str = "FrameworkController";

/// Returns the remedy for a pod of `controller` that the API server refused with this message. `None`: the message is
/// clear enough.
fn advice(message: &str, controller: &str) -> Option<String> {
    if message.contains("cannot create resource \"pods\"") {
        let remedy = if controller == FRAMEWORK_CONTROLLER {
            ": deploy/frameworkcontroller has a role that is enough"
        } else {
            ": its installation lacks a role"
        };
        return Some(format!(
            "the account that makes pods, that of {controller}, has no right to{remedy}"
        ));
    }
    let says = |words: &[&str]| words.iter().all(|word| message.contains(word));
    #[rustfmt::skip]
    let table: [(&[&str], &str); 11] = [
        (&["violates PodSecurity", "init-pytorch"],
            "the training operator puts the container `init-pytorch` into workers, which the profile `restricted` forbids: `kubectl label --overwrite namespace NAMESPACE pod-security.kubernetes.io/enforce=baseline` lets them in, and so does a trial of a `master` alone"),
        (&["violates PodSecurity \"restricted", "seccompProfile"],
            "the namespace enforces the Pod Security profile `restricted`, whose `seccompProfile` FrameworkController drops: `kubectl label --overwrite namespace NAMESPACE pod-security.kubernetes.io/enforce=baseline` lets trials in"),
        (&["violates PodSecurity"],
            "the namespace's Pod Security profile forbids what the template asks for: leave that out, or `kubectl label --overwrite namespace NAMESPACE pod-security.kubernetes.io/enforce=...` with a profile that allows it"),
        (&["service account", "not found"],
            "`serviceAccountName` names an account that is not in the namespace: `kubectl create serviceaccount` makes it"),
        (&["failed quota", "must specify"],
            "a quota of the namespace asks that every container say how much it wants: set `cpuNumber` and `memorySize` of each role, and the same in other containers of a template"),
        (&["exceeded quota"],
            "`kubectl describe quota` shows what is used: ask for less, or for a larger quota"),
        (&["no PriorityClass"],
            "`priorityClassName` of the template names a class that is not there: `kubectl get priorityclass` shows those that are"),
        (&["usage per Container"],
            "a LimitRange of the namespace bounds it (`kubectl describe limitrange`): change `cpuNumber` or `memorySize`"),
        (&["usage per Pod"],
            "a LimitRange of the namespace bounds it (`kubectl describe limitrange`): change `cpuNumber` or `memorySize`"),
        (&["security context constraint"],
            "set `runAsUser` to one of the namespace's range, or have the cluster choose by a template whose `securityContext` is empty"),
        (&["admission webhook"],
            "a webhook of the cluster's refuses it: who runs the cluster knows what it wants, and how trials are excepted"),
    ];
    let applies =
        |advice: &str| controller == FRAMEWORK_CONTROLLER || !advice.contains(FRAMEWORK_CONTROLLER);
    let row = table.into_iter().find(|(words, advice)| says(words) && applies(advice));
    row.map(|(_, advice)| advice.to_owned())
}

/// Returns the refusal of a pod of `controller`, followed by the remedy.
pub fn with_advice(message: String, controller: &str) -> String {
    match advice(&message, controller) {
        Some(advice) => format!("{message}; {advice}"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        // Messages of API servers of Kubernetes 1.25 to 1.36.
        #[rustfmt::skip]
        let table = [
            ("pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": seccompProfile (pod or container \"framework\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")", Some("enforce=baseline")),
            ("pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)", Some("leave that out")),
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
            let whole = with_advice(message.to_owned(), FRAMEWORK_CONTROLLER);
            assert!(whole.starts_with(message), "{whole}");
            match part {
                Some(part) => assert!(whole[message.len()..].contains(part), "{whole}"),
                None => assert_eq!(whole, message),
            }
        }
    }

    #[test]
    fn advice_names_the_controller_that_was_refused() {
        let message = |what: &str| format!("pods \"x\" is forbidden: {what}");
        let seccomp = message("violates PodSecurity \"restricted:latest\": seccompProfile (…)");
        let right = message("User \"u\" cannot create resource \"pods\" in API group \"\"");
        for message in [seccomp, right] {
            let of_job = with_advice(message.clone(), "the cluster's Job controller");
            assert!(of_job.len() > message.len(), "{of_job}");
            assert!(!of_job.contains(FRAMEWORK_CONTROLLER), "{of_job}");
            assert!(with_advice(message, FRAMEWORK_CONTROLLER).contains(FRAMEWORK_CONTROLLER));
        }
    }
}
