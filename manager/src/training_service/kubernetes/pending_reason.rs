//! PURE: the reason why a trial waits, from the status of its pod and from events about it.

use serde_json::Value;

use super::status_fields::{find_condition, has_field, shortened_field};
use crate::util::excerpt::shortened;

/// Returns the reason why a pod waits. `None`: the pod runs, or starts without a problem.
pub fn pod_reason(pod: &Value) -> Option<String> {
    let status = pod.get("status")?;
    let unscheduled = find_condition(status, "PodScheduled").filter(|condition| {
        has_field(condition, "status", "False") && has_field(condition, "reason", "Unschedulable")
    });
    if let Some(condition) = unscheduled {
        return Some(format!(
            "no node can take its pod: {}",
            shortened_field(condition, "message")
        ));
    }
    if is_gated(pod) {
        return Some(format!("its pod must not be scheduled yet: {}", gates_phrase(pod)));
    }
    for (field, init) in [("initContainerStatuses", true), ("containerStatuses", false)] {
        for container in status.get(field).and_then(Value::as_array).into_iter().flatten() {
            if let Some(why) = container_reason(container, init) {
                return Some(why);
            }
        }
    }
    None
}

/// The scheduling gate of a pod that waits in a queue of Kueue by itself.
const KUEUE_GATE: &str = "kueue.x-k8s.io/admission";

/// Returns whether a pod has scheduling gates, with which no scheduler considers it.
pub fn is_gated(pod: &Value) -> bool {
    let scheduled = pod.get("status").and_then(|status| find_condition(status, "PodScheduled"));
    scheduled.is_some_and(|it| {
        has_field(it, "status", "False") && has_field(it, "reason", "SchedulingGated")
    })
}

/// Returns a phrase for the scheduling gates of a pod.
fn gates_phrase(pod: &Value) -> String {
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    let names = gates.into_iter().flatten().map(|gate| shortened_field(gate, "name"));
    let names: Vec<String> = names.collect();
    if names.iter().any(|name| name == KUEUE_GATE) {
        return "Kueue holds it in a queue (`kubectl get workloads` shows its Workload)".to_owned();
    }
    let names = shortened(&names.join(", "));
    format!("a controller of the cluster must remove its scheduling gates first ({names})")
}

fn container_reason(container: &Value, init: bool) -> Option<String> {
    let name = shortened_field(container, "name");
    if init
        && name == "frameworkbarrier"
        && container.pointer("/state/running").is_some_and(Value::is_object)
    {
        return Some("its pod waits for the other pods of the trial (frameworkbarrier)".to_owned());
    }
    let waiting = container.pointer("/state/waiting")?;
    let (reason, message) =
        (shortened_field(waiting, "reason"), shortened_field(waiting, "message"));
    let image = shortened_field(container, "image");
    // Between two tries, the kubelet reports a pause and, since Kubernetes 1.31, its cause.
    let message = match message.split_once(": ErrImagePull: ") {
        _ if reason != "ImagePullBackOff" => message,
        Some((_, why)) => why.to_owned(),
        None => String::new(),
    };
    let what = match reason.as_str() {
        "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" => {
            format!("the image {image} cannot be pulled")
        }
        "ErrImageNeverPull" => {
            format!("the image {image} is not on the node, and its pull policy forbids pulling it")
        }
        "InvalidImageName" => format!("{image} is not a valid image name"),
        "ImageInspectError" => format!("the image {image} cannot be used"),
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            format!("the container {name} cannot be created")
        }
        "CrashLoopBackOff" => format!("the container {name} fails repeatedly"),
        // `ContainerCreating` and `PodInitializing`: the pod is starting.
        _ => return None,
    };
    Some(if message.is_empty() && reason == "ImagePullBackOff" {
        what
    } else if message.is_empty() {
        format!("{what} ({reason})")
    } else {
        format!("{what}: {message}")
    })
}

/// Returns the pod that an event is about and its problem. `None`: the event reports no problem.
pub fn event_problem(event: &Value) -> Option<(String, String)> {
    let about = event.get("involvedObject")?;
    if !has_field(about, "kind", "Pod") || !has_field(event, "type", "Warning") {
        return None;
    }
    let (reason, message) = (shortened_field(event, "reason"), shortened_field(event, "message"));
    let what = match reason.as_str() {
        "FailedScheduling" => "no node can take its pod",
        "FailedMount" | "FailedAttachVolume" => "a volume of its pod cannot be mounted",
        "FailedCreatePodSandBox" | "FailedPodSandBoxStatus" => "its pod cannot be set up",
        "UnexpectedAdmissionError" | "OutOfcpu" | "OutOfmemory" | "OutOfpods" => {
            "its node refused the pod"
        }
        "NodeNotReady" => "its node is not ready",
        // The pod's own status has better reports of image pulls. Other reasons are not problems (`DNSConfigForming`).
        _ => return None,
    };
    Some((shortened_field(about, "name"), format!("{what}: {message}")))
}

/// The cluster's refusal to create a pod of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRefusal {
    /// The controller's message.
    pub message: String,
    /// Set if a rule of the cluster denies the pod and denied it before, so that further attempts would also fail.
    pub is_denied: bool,
}

/// The reasons of events about a workload whose controller could not create a pod, the pod's Service, or the object that
/// creates the pod.
const REFUSAL_REASONS: [&str; 6] = [
    "FailedCreate",
    "FailedCreatePod",
    "FailedCreateService",
    "JobCreationFailed",
    "HeadlessServiceCreationFailed",
    "TrainJobResourcesCreationFailed",
];

/// The words of rules that deny a pod: Pod Security, webhooks, policies, `LimitRange`s, `OpenShift`'s constraints, and
/// quotas for which the pod lacks a limit.
const DENIAL_PHRASES: [&str; 7] = [
    "violates PodSecurity",
    "denied the request",
    "denied request",
    " per Container is ",
    " per Pod is ",
    "security context constraint",
    "failed quota",
];

/// The events about a workload that can explain why it lacks a pod at present.
#[derive(Debug)]
pub struct CurrentEvents<'a> {
    /// The kind of the workload.
    pub kind: &'a str,
    /// The unique id of the workload, if known.
    pub id: Option<&'a str>,
    /// The time at which its newest pod was created. A refusal before that time no longer holds.
    pub since: Option<&'a str>,
}

impl CurrentEvents<'_> {
    /// Returns whether these events include one.
    pub fn has_event(&self, event: &Value) -> bool {
        let about = &event["involvedObject"];
        let id = about["uid"].as_str().filter(|_| has_field(about, "kind", self.kind));
        let is_of_another = id.zip(self.id).is_some_and(|(id, own)| id != own);
        let since = self.since.map(|since| since.chars().take(TIMESTAMP_CHARS).collect::<String>());
        !is_of_another && since.is_none_or(|since| last_time(event) >= since)
    }
}

/// Returns the newest refusal of a pod among events about its workload.
pub fn newest_pod_refusal(events: &[Value]) -> Option<PodRefusal> {
    let refusals = events
        .iter()
        .filter(|event| REFUSAL_REASONS.iter().any(|it| has_field(event, "reason", it)));
    let (denials, others): (Vec<&Value>, Vec<&Value>) = refusals.partition(|it| is_denial(it));
    let newest = denials.iter().chain(&others).max_by_key(|event| last_time(event))?;
    let first = denials.iter().map(|event| first_time(event)).min();
    // One try can be denied while a rule changes. Later tries show that the rule stays.
    let is_repeated = first.is_some_and(|first| first < last_time(newest));
    Some(PodRefusal {
        message: shortened_field(newest, "message"),
        is_denied: is_denial(newest) && is_repeated,
    })
}

/// Returns whether a rule of the cluster denies the pod, as opposed to a state that may pass.
fn is_denial(event: &Value) -> bool {
    let message = event.get("message").and_then(Value::as_str).unwrap_or_default();
    let passes = ["failed calling webhook", "exceeded quota"];
    DENIAL_PHRASES.iter().any(|words| message.contains(words))
        && !passes.iter().any(|words| message.contains(words))
}

/// Returns the time at which an event first happened, to the second, in a form that sorts by time.
fn first_time(event: &Value) -> String {
    event_time(event, &["/firstTimestamp", "/eventTime", "/metadata/creationTimestamp"])
}

/// Returns the time at which an event last happened.
fn last_time(event: &Value) -> String {
    let last = event_time(event, &["/series/lastObservedTime", "/lastTimestamp"]);
    if last.is_empty() { first_time(event) } else { last }
}

fn event_time(event: &Value, places: &[&str]) -> String {
    let mut found = places.iter().filter_map(|place| event.pointer(place)?.as_str());
    // The parts of a second are left out, since not every field has them: `2026-11-23T17:00:38`.
    found.next().unwrap_or_default().chars().take(TIMESTAMP_CHARS).collect()
}

/// The length of a time without the parts of a second.
const TIMESTAMP_CHARS: usize = 19;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::training_service::kubernetes::manifest::workload_of;

    fn recorded_pods(case: &str) -> Vec<Value> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/frameworkcontroller")
            .join(format!("{case}.jsonl"));
        let text = std::fs::read_to_string(path).unwrap();
        let steps = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        steps.filter(|step| step["kind"] == "pod").collect()
    }

    #[test]
    fn the_reasons_of_recorded_pods_are_read() {
        #[rustfmt::skip]
        let table = [
            ("ok5",               None),
            ("oom",               None),
            ("toobig",            Some("no node can take its pod: 0/1 nodes are available: 1 Insufficient cpu")),
            ("fake-gpu-too-many", Some("no node can take its pod: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu")),
            ("badimage",          Some("the image ")),
        ];
        for (case, expected) in table {
            let whys: Vec<String> = recorded_pods(case).iter().filter_map(pod_reason).collect();
            match expected {
                None => assert_eq!(whys, Vec::<String>::new(), "{case}"),
                Some(start) => {
                    assert!(!whys.is_empty(), "{case}");
                    assert!(whys.iter().all(|why| why.starts_with(start)), "{case}: {whys:?}");
                }
            }
        }
    }

    #[test]
    fn repeated_image_pulls_have_one_reason() {
        let why = |reason: &str, message: &str| {
            let state = json!({"waiting": {"reason": reason, "message": message}});
            let container = json!({"name": "framework", "image": "a:1", "state": state});
            pod_reason(&json!({"status": {"containerStatuses": [container]}})).unwrap()
        };
        let first = why("ErrImagePull", "no such host");
        assert_eq!(first, "the image a:1 cannot be pulled: no such host");
        let pause = "Back-off pulling image \"a:1\": ErrImagePull: no such host";
        assert_eq!(why("ImagePullBackOff", pause), first);
        // The message before Kubernetes 1.31 has fewer details than the known one.
        let pause = why("ImagePullBackOff", "Back-off pulling image \"a:1\"");
        assert!(first.starts_with(&pause), "{pause}");
    }

    #[test]
    fn a_pod_at_the_barrier_waits_for_the_other_pods() {
        let at = |name: &str, state: &str| {
            let container = json!({"name": name, "image": "any", "state": {state: {}}});
            pod_reason(&json!({"status": {"initContainerStatuses": [container]}}))
        };
        let waits = at("frameworkbarrier", "running").unwrap();
        assert!(waits.starts_with("its pod waits for the other pods"), "{waits}");
        assert_eq!(at("frameworkbarrier", "terminated"), None);
        assert_eq!(at("setup", "running"), None, "an init container of the template runs");
    }

    #[test]
    fn a_pod_with_scheduling_gates_waits_for_the_controller_of_the_gates() {
        let pod = |status: &str, gate: &str| {
            json!({
                "spec": {"schedulingGates": [{"name": gate}]},
                "status": {"conditions": [
                    {"type": "PodScheduled", "status": status, "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"},
                ]},
            })
        };
        #[rustfmt::skip]
        let table = [
            (pod("False", "kueue.x-k8s.io/admission"), Some("its pod must not be scheduled yet: Kueue holds it in a queue (`kubectl get workloads` shows its Workload)")),
            (pod("False", "example.org/wait"),         Some("its pod must not be scheduled yet: a controller of the cluster must remove its scheduling gates first (example.org/wait)")),
            (pod("True", "example.org/wait"),          None),
        ];
        for (pod, expected) in table {
            assert_eq!(pod_reason(&pod).as_deref(), expected, "{pod}");
            assert_eq!(is_gated(&pod), expected.is_some(), "{pod}");
        }
    }

    /// Returns the recorded events.
    fn recorded_events(case: &str) -> Vec<Value> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/kubernetes")
            .join(format!("{case}.jsonl"));
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let events = lines.filter(|line| line["kind"] == "Event");
        events.map(|line| line["object"].clone()).collect()
    }

    #[test]
    fn the_reason_for_a_missing_pod_is_read_from_the_controllers_event() {
        #[rustfmt::skip]
        let table = [
            ("tfjob/quota-refuses-pod",           "is forbidden: exceeded quota: none", false),
            ("pytorchjob/podsecurity-restricted", "container \"init-pytorch\" must set", true),
            ("job/podsecurity-restricted",        "violates PodSecurity \"restricted:latest\"", true),
            // The controller of a JobSet could not create the Job that creates the pods.
            ("trainjob/deadline",                 "job \"deadline-node-0\" creation failed", false),
        ];
        for (case, words, is_denied) in table {
            let events = recorded_events(case);
            let refused = newest_pod_refusal(&events).unwrap();
            assert!(refused.message.contains(words), "{case}: {refused:?}");
            assert_eq!(refused.is_denied, is_denied, "{case}: {refused:?}");
            // The first try alone shows no permanent refusal.
            let of_first =
                events.iter().find_map(|event| newest_pod_refusal(std::slice::from_ref(event)));
            assert!(!of_first.unwrap().is_denied, "{case}");
        }
        assert_eq!(newest_pod_refusal(&recorded_events("tfjob/exit1")), None);
        // The training operator creates no pod before its Service.
        let service = json!({"reason": "FailedCreateService", "message": "services \"t-worker-0\" is forbidden"});
        assert!(newest_pod_refusal(&[service]).is_some());
    }

    #[test]
    fn only_a_repeated_denial_is_permanent() {
        let webhook = "admission webhook \"validation.gatekeeper.sh\" denied the request: no";
        let policy = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        let limit =
            "pods \"x\" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi";
        let absent = "failed quota: q: must specify limits.cpu for: trial";
        let quota = "pods \"x\" is forbidden: exceeded quota: q";
        let down = "failed calling webhook \"mpod.kb.io\": connection refused";
        let account = "error looking up service account lab/x: serviceaccount \"x\" not found";
        let at = |second: u32| format!("2026-11-23T17:00:{second:02}Z");
        let event = |message: &str, first: u32, last: u32| json!({"reason": "FailedCreate", "message": message, "firstTimestamp": at(first), "lastTimestamp": at(last)});
        let mut series = event(webhook, 1, 1);
        series["series"] = json!({"count": 2, "lastObservedTime": "2026-11-23T17:00:09.500000Z"});
        #[rustfmt::skip]
        let table = [
            (vec![event(webhook, 1, 1)],                         false),
            (vec![event(webhook, 1, 9)],                         true),
            (vec![event(webhook, 1, 1), event(webhook, 1, 1)],   false),
            (vec![event(webhook, 1, 1), event(webhook, 2, 2)],   true),
            (vec![series],                                       true),
            (vec![event(policy, 1, 9)],                          true),
            (vec![event(limit, 1, 9)],                           true),
            (vec![event(absent, 1, 9)],                          true),
            (vec![event(quota, 1, 9)],                           false),
            (vec![event(down, 1, 9)],                            false),
            (vec![event(account, 1, 9)],                         false),
            // The newest event counts, in any order.
            (vec![event(webhook, 1, 5), event(quota, 1, 9)],     false),
            (vec![event(webhook, 1, 9), event(quota, 1, 5)],     true),
        ];
        for (events, expected) in table {
            assert_eq!(newest_pod_refusal(&events).unwrap().is_denied, expected, "{events:?}");
        }
    }

    #[test]
    fn a_refusal_of_an_earlier_pod_or_object_explains_nothing() {
        let denial = |uid: &str, last: u32| {
            json!({
                "reason": "FailedCreate",
                "message": "admission webhook \"v\" denied the request: no",
                "involvedObject": {"kind": "Job", "name": "tkx", "uid": uid},
                "firstTimestamp": "2026-11-23T17:00:01Z",
                "lastTimestamp": format!("2026-11-23T17:00:{last:02}Z"),
            })
        };
        let pod = Some("2026-11-23T17:00:10Z");
        #[rustfmt::skip]
        let table = [
            ("Job",    Some("u"), None, denial("u", 9),  true),
            ("Job",    None,      None, denial("u", 9),  true),
            // An earlier object had the same name.
            ("Job",    Some("v"), None, denial("u", 9),  false),
            // The object that creates the pods is another than the workload.
            ("JobSet", Some("v"), None, denial("u", 9),  true),
            // A pod was created since.
            ("Job",    Some("u"), pod,  denial("u", 9),  false),
            ("Job",    Some("u"), pod,  denial("u", 10), true),
            ("Job",    Some("u"), pod,  denial("u", 30), true),
        ];
        for (kind, id, since, event, expected) in table {
            let current = CurrentEvents { kind, id, since };
            assert_eq!(current.has_event(&event), expected, "{current:?} {event}");
        }
    }

    #[test]
    fn only_events_about_problems_are_reported() {
        let event = |kind: &str, reason: &str| {
            json!({
                "type": kind, "reason": reason, "message": "because",
                "involvedObject": {"kind": "Pod", "name": "tkabcd1234k3f9a1-worker-0"},
            })
        };
        let (pod, why) = event_problem(&event("Warning", "FailedMount")).unwrap();
        assert_eq!(workload_of(&pod), "tkabcd1234k3f9a1");
        assert_eq!(why, "a volume of its pod cannot be mounted: because");
        assert_eq!(event_problem(&event("Normal", "FailedMount")), None);
        assert_eq!(event_problem(&event("Warning", "MissingClusterDNS")), None);
    }
}
