//! PURE: the end of a pod, from its status, for kinds whose objects do not state it.
//!
//! The order of the checks follows the behaviour of real clusters (Kubernetes 1.36). First comes a removal by the
//! platform, then an end by the kubelet for excessive usage, the container's own end, and last a deletion. An eviction
//! for the pod's own disk usage and a deletion by hand set no `DisruptionTarget`.

use serde_json::Value;
use trial_protocol::{Cause, Class, Confidence, Verdict};

use super::disruption::{self, Disruption};
use crate::util::excerpt::shortened;

/// Exit codes of a process that was terminated or killed.
const STOP_EXIT_CODES: [i64; 2] = [137, 143];

/// The end of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEnd {
    /// The exit code of the trial's container, if it ran.
    pub exit_code: Option<i32>,
    /// The reason, for the user.
    pub message: String,
    /// The prospect of a retry, if it is known.
    pub class: Option<Class>,
    /// The cause, if it is certain.
    pub cause: Option<Cause>,
    /// The platform's statement, if it removed the pod.
    pub disruption: Option<Disruption>,
}

impl PodEnd {
    /// Creates an end without a certain cause or a disruption.
    fn new(exit_code: Option<i32>, message: String, class: Option<Class>) -> Self {
        Self { exit_code, message, class, cause: None, disruption: None }
    }
}

/// Reads the end of a pod whose trial runs in a container with one of these names. `None`: according to its status, the
/// pod has not ended.
pub fn read(pod: &Value, trial: &[String]) -> Option<PodEnd> {
    let status = pod.get("status")?;
    let decisive = deciding_container(status, trial);
    let terminated = decisive.and_then(|container| container.pointer("/state/terminated"));
    let field = |name: &str| terminated.and_then(|terminated| terminated.get(name));
    let text = |name: &str| field(name).and_then(Value::as_str).unwrap_or_default().trim();
    let of_pod = |name: &str| status.get(name).and_then(Value::as_str).unwrap_or_default().trim();
    let code = field("exitCode").and_then(Value::as_i64);
    let never_ran = text("reason") == "ContainerStatusUnknown" && field("startedAt").is_none();
    let exit_code = code.filter(|_| !never_ran).and_then(|code| i32::try_from(code).ok());
    let end = |message: String, class| Some(PodEnd::new(exit_code, message, class));

    if let Some(ended) = ended_by_platform(pod, exit_code) {
        return Some(ended);
    }
    let deleted = pod.pointer("/metadata/deletionTimestamp").is_some();
    let other = other_container_name(decisive, trial);
    match (code, text("reason")) {
        (Some(_), "OOMKilled") if other.is_none() => {
            let message = "out of memory: the pod was killed for using more than `memorySize`";
            let cause = Some(Cause::OomKernel);
            let end = end(message.to_owned(), Some(Class::Permanent));
            end.map(|end| PodEnd { cause, ..end })
        }
        (Some(_), "StartError") => {
            let command = match other {
                Some(name) => format!("the command of the container {name}"),
                None => "the command".to_owned(),
            };
            let message = format!("{command} could not be started: {}", shortened(text("message")));
            end(message, Some(Class::Permanent))
        }
        (Some(_), _) if never_ran && deleted => end(
            "the pod was deleted before its container started".to_owned(),
            Some(Class::Transient),
        ),
        // The first is the kubelet's, and the second the container runtime's.
        (Some(_), "ContainerStatusUnknown" | "Unknown") => end(
            "the pod's node lost the container: was the node restarted?".to_owned(),
            Some(Class::Transient),
        ),
        (Some(code), _) if deleted && STOP_EXIT_CODES.contains(&code) => {
            end("the trial's pod was deleted".to_owned(), Some(Class::Transient))
        }
        (Some(code), reason) => {
            let what = match other {
                Some(name) => format!("the container {name}"),
                None => "the container".to_owned(),
            };
            end(container_end_message(&what, code, reason, text("message")), None)
        }
        (None, _) if of_pod("phase") == "Failed" => {
            let class = is_refused_by_node(of_pod("reason")).then_some(Class::Transient);
            end(message_without_failed_container(of_pod("reason"), of_pod("message")), class)
        }
        (None, _) => None,
    }
}

/// Reads the end of a pod that the platform has removed or ended, regardless of its containers.
fn ended_by_platform(pod: &Value, exit_code: Option<i32>) -> Option<PodEnd> {
    let of_pod = |name: &str| {
        pod.pointer(&format!("/status/{name}")).and_then(Value::as_str).unwrap_or_default().trim()
    };
    if let Some(disruption) = disruption::of_pod(pod) {
        let end = PodEnd::new(exit_code, disruption.why.clone(), Some(Class::Transient));
        return Some(PodEnd { disruption: Some(disruption), ..end });
    }
    let message = if disruption::is_over_own_limit(of_pod("reason"), of_pod("message")) {
        format!("the pod was evicted: {}", shortened(of_pod("message")))
    } else if of_pod("reason") == "DeadlineExceeded" {
        "the pod ran longer than its `activeDeadlineSeconds`".to_owned()
    } else {
        return None;
    };
    Some(PodEnd::new(exit_code, message, Some(Class::Permanent)))
}

/// Returns the name of a container that is not the trial's.
fn other_container_name<'a>(container: Option<&'a Value>, trial: &[String]) -> Option<&'a str> {
    let name = container.and_then(|container| container["name"].as_str());
    name.filter(|name| !trial.is_empty() && trial.iter().all(|own| own != name))
}

/// Returns the reason for the failure of a pod of which no container failed.
fn message_without_failed_container(reason: &str, message: &str) -> String {
    let why = [reason, message].into_iter().filter(|part| !part.is_empty());
    let why = shortened(&why.collect::<Vec<_>>().join(": "));
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    format!("the pod failed although none of its containers failed{why}")
}

/// Returns whether a kubelet gives this reason for a pod that it does not admit. Another node may take the pod, or the
/// same node later.
fn is_refused_by_node(reason: &str) -> bool {
    let reasons =
        ["UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "NodePorts"];
    reason.starts_with("OutOf") || reasons.contains(&reason)
}

/// Returns whether a pod has ended, or at least a container that may have decided the end.
pub fn has_ended(pod: &Value) -> bool {
    read(pod, &[]).is_some()
}

/// Returns whether all containers of a pod have started.
pub fn has_started(pod: &Value) -> bool {
    let containers = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    let has_started = |container: &Value| {
        let states = ["/state/running", "/state/terminated"].into_iter();
        states.filter_map(|state| container.pointer(state)).any(Value::is_object)
    };
    containers.is_some_and(|list| !list.is_empty() && list.iter().all(has_started))
}

/// Returns whether a pod runs on although its trial has ended, because another container runs in it. The cluster may
/// have added that container, as a service mesh does.
pub fn has_outlived_trial(pod: &Value, trial: &[String]) -> bool {
    let is_running = pod.pointer("/status/phase").is_some_and(|phase| phase == "Running");
    let is_deleted = pod.pointer("/metadata/deletionTimestamp").is_some();
    is_running && !is_deleted && trial_exit_code(pod, trial).is_some()
}

/// Returns a pod that [`has_outlived_trial`] as it would be without the other container. Any other pod is unchanged.
pub fn without_other_containers(mut pod: Value, trial: &[String]) -> Value {
    if has_outlived_trial(&pod, trial) {
        let phase = if trial_exit_code(&pod, trial) == Some(0) { "Succeeded" } else { "Failed" };
        pod["status"]["phase"] = Value::from(phase);
    }
    pod
}

/// Returns the exit code of the container in which a trial has ended.
fn trial_exit_code(pod: &Value, trial: &[String]) -> Option<i64> {
    let containers = pod.pointer("/status/containerStatuses")?.as_array()?;
    let is_trial = |container: &&Value| trial.iter().any(|name| container["name"] == *name);
    containers.iter().find(is_trial)?.pointer("/state/terminated/exitCode")?.as_i64()
}

/// Returns the names of the pods that run and that nothing has deleted.
pub fn undeleted_names(pods: &[Value]) -> impl Iterator<Item = &str> {
    let is_over = |pod: &Value| {
        let phase = pod.pointer("/status/phase").and_then(Value::as_str);
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let is_deleted = |pod: &Value| pod.pointer("/metadata/deletionTimestamp").is_some();
    let left = pods.iter().filter(move |pod| !is_over(pod) && !is_deleted(pod));
    left.filter_map(|pod| pod.pointer("/metadata/name")?.as_str())
}

/// Returns the observed fields of a pod, together with its name.
pub fn observed_fields(name: &str, body: &Value) -> Value {
    let mut seen = body.clone();
    seen["metadata"]["name"] = Value::from(name);
    seen
}

/// Returns the deciding container, which has ended: the trial's, or else a failed one, init containers last. A sidecar
/// is an init container that runs beside the trial and is stopped after it.
fn deciding_container<'a>(status: &'a Value, trial: &[String]) -> Option<&'a Value> {
    let list = |name: &str| status.get(name).and_then(Value::as_array).into_iter().flatten();
    let is_trial = |container: &&Value| trial.iter().any(|name| container["name"] == *name);
    let own = list("containerStatuses").find(is_trial);
    if own.is_some_and(|own| own.pointer("/state/running").is_some()) {
        return None;
    }
    let has_ended = |container: &&'a Value| container.pointer("/state/terminated").is_some();
    let failed = |container: &&'a Value| {
        container.pointer("/state/terminated/exitCode") != Some(&Value::from(0))
    };
    let beside: Vec<&Value> = list("containerStatuses").filter(has_ended).collect();
    own.filter(has_ended)
        .or_else(|| beside.iter().copied().find(failed))
        .or_else(|| list("initContainerStatuses").filter(has_ended).find(failed))
        .or_else(|| beside.last().copied())
}

/// Returns the reason for a container's end: its agent's message if that is certain, or else the exit code.
fn container_end_message(what: &str, code: i64, reason: &str, output: &str) -> String {
    if let Ok(verdict) = serde_json::from_str::<Verdict>(output)
        && verdict.exit.is_some()
        && verdict.cause != Cause::Stopped
        && verdict.confidence == Confidence::Certain
    {
        return shortened(&verdict.message);
    }
    let reason = match reason {
        "" | "Error" | "Completed" => String::new(),
        other => format!(" ({other})"),
    };
    let last = output.lines().rfind(|line| !line.trim().is_empty() && !line.starts_with('{'));
    let last = last.map(|line| format!(": {}", shortened(line.trim()))).unwrap_or_default();
    format!("{what} ended with exit code {code}{reason}{last}")
}

#[cfg(test)]
mod tests;
