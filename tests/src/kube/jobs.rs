//! The Job controller and its kubelet. Each Job's pods run as processes of this machine, and its status takes
//! the steps that were recorded on a real cluster.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::controller::{self, Behavior};
use super::objects::{is_being_deleted, text};
use super::volumes::Mounted;
use super::{Shared, admission, processes};

mod player;

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The image of every pod, as containerd resolves it. Source: a recording.
const IMAGE_ID: &str = "docker.io/library/busybox@sha256:6bbe308258ea66c2b513502dabadee037ae0f2668a352966f0000e94c9034019";
/// The exit codes that a Job's failure policy does not match. They count towards its back-off limit.
const UNMATCHED_CODES: [i32; 3] = [0, 137, 143];

/// Follows Jobs until the server ends.
pub(super) fn run(shared: &Arc<Shared>) {
    let (mut after, mut known) = (0, HashSet::new());
    while !shared.ended.load(Ordering::SeqCst) {
        let cuts = shared.objects.cuts();
        let new = match shared.objects.next("jobs", after, cuts, POLL_INTERVAL * 20) {
            Ok(Some(change)) => {
                after = change.version;
                if change.kind == "ADDED" { vec![Value::clone(&change.object)] } else { Vec::new() }
            }
            Ok(None) => Vec::new(),
            // The history was dropped, but the present objects are still listed.
            Err(newest) => {
                after = newest;
                shared.objects.list("jobs")
            }
        };
        for job in new {
            if known.insert(text(&job, "/metadata/uid")) {
                let shared = Arc::clone(shared);
                std::thread::spawn(move || match (shared.behavior)(&job) {
                    Behavior::Timed { code, speed } => player::play(&shared, &job, code, speed),
                    Behavior::Paced => Run { paced: true, ..Run::new(&shared, job) }.play(),
                    Behavior::Recorded(..)
                    | Behavior::Pods
                    | Behavior::Raced
                    | Behavior::Containers => {
                        Run::new(&shared, job).play();
                    }
                });
            }
        }
    }
}

/// One Job.
struct Run<'a> {
    shared: &'a Arc<Shared>,
    name: String,
    job: Value,
    /// The number of pods created so far, so that all names differ.
    made: usize,
    /// Set if a pod was refused and an event reported it.
    refused: bool,
    /// If set, the steps take the times measured on a real cluster.
    paced: bool,
}

/// A pod of the Job.
struct Pod {
    name: String,
    child: Child,
    code: Option<i32>,
    mounted: Mounted,
}

impl<'a> Run<'a> {
    fn new(shared: &'a Arc<Shared>, job: Value) -> Self {
        Self {
            shared,
            name: text(&job, "/metadata/name"),
            job,
            made: 0,
            refused: false,
            paced: false,
        }
    }

    /// Waits for the time of a step.
    fn pace(&self, ms: u64) {
        if self.paced {
            self.shared.pause(Duration::from_millis(ms));
        }
    }

    fn play(mut self) {
        while !self.is_over() {
            if self.is_suspended() {
                let condition = [("Suspended", "True", "JobSuspended", "Job suspended")];
                self.set_status(&condition, &json!({"active": 0}));
                while self.is_suspended() && !self.is_over() {
                    std::thread::park_timeout(POLL_INTERVAL);
                }
                continue;
            }
            if self.pods_to_their_end() {
                return;
            }
        }
    }

    /// Runs the pods to their end. Returns `false` if the Job was suspended.
    fn pods_to_their_end(&mut self) -> bool {
        let count = self.job.pointer("/spec/completions").and_then(Value::as_u64);
        let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(1);
        let mut pods: Vec<Pod> = Vec::new();
        let mut asked = false;
        loop {
            if pods.len() < count && !asked {
                self.make(&mut pods, count);
            }
            for pod in &mut pods {
                self.poll(pod, asked);
            }
            let works = self.shared.controller.load(Ordering::SeqCst);
            let failed = pods.iter().position(|pod| pod.code.is_some_and(|code| code != 0));
            let failed = failed.filter(|_| works);
            let wanted = !self.is_over() && !self.is_suspended();
            if (!wanted || failed.is_some()) && !asked {
                asked = true;
                for pod in &pods {
                    self.end(pod);
                }
            }
            let is_whole = pods.len() == count || asked;
            if is_whole && pods.iter().all(|pod| pod.code.is_some()) {
                if self.is_over() || self.is_suspended() {
                    for pod in &pods {
                        self.shared.objects.remove("pods", &pod.name);
                    }
                    return self.is_over();
                }
                if !works {
                    std::thread::park_timeout(POLL_INTERVAL);
                    continue;
                }
                self.pace(player::DECIDED_MS);
                self.finish(&pods, failed);
                return true;
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Creates the missing pods, as far as the namespace's quota permits.
    fn make(&mut self, pods: &mut Vec<Pod>, count: usize) {
        let quota = self.shared.pod_quota.load(Ordering::SeqCst);
        let room = quota.saturating_sub(self.shared.objects.list("pods").len());
        let (ready, active) = (pods.len(), count.min(pods.len().saturating_add(room)));
        if active < count && !std::mem::replace(&mut self.refused, true) {
            let words = format!(
                "Error creating: pods \"{}-{active}-x\" is forbidden: exceeded quota: small, requested: pods=1, used: \
                 pods={quota}, limited: pods={quota}",
                self.name
            );
            controller::event(self.shared, ("Job", &self.name), "FailedCreate", &words);
        }
        if ready < active {
            self.set_status(&[], &json!({"active": active, "ready": ready}));
            pods.extend((ready..active).filter_map(|index| self.start(index)));
            self.set_status(&[], &json!({"active": active, "ready": active}));
        }
    }

    fn start(&mut self, index: usize) -> Option<Pod> {
        let letters = ["pcm7m", "w2x9k", "q5r8t", "h4j6n", "z3b7v", "d9f2g"];
        let indexed =
            self.job.pointer("/spec/completionMode").is_some_and(|mode| mode == "Indexed");
        let letters = letters[self.made % letters.len()];
        let number = if indexed { format!("{index}-{letters}") } else { letters.to_owned() };
        let name = format!("{}-{number}", self.name);
        self.made += 1;
        let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "status": {"phase": "Pending"}});
        object["metadata"] = self.job["spec"]["template"]["metadata"].clone();
        object["metadata"]["name"] = Value::from(name.as_str());
        object["metadata"]["namespace"] = Value::from("lab");
        object["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] =
            Value::from(index.to_string());
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "batch/v1", "kind": "Job", "name": self.name, "controller": true,
            "uid": self.job["metadata"]["uid"],
        }]);
        object["spec"] = self.job["spec"]["template"]["spec"].clone();
        // A pod on a node gets a grace period when it is deleted.
        object["spec"]["nodeName"] = Value::from("node1");
        admission::expect_valid(&object);
        self.pace(player::POD_MS);
        let pod = self.shared.objects.create("pods", object).ok()?;
        self.pace(player::START_MS);
        let mut spec = pod["spec"].clone();
        fill_in_fields(self.shared, &mut spec, &pod);
        let folder = self.shared.folder.join("pods").join(&name);
        let child = processes::start(self.shared, &spec, &folder, Vec::new());
        let child = child.unwrap_or_else(|problem| panic!("{name}: {problem}"));
        let running = json!({"name": "trial", "state": {"running": {}}, "imageID": IMAGE_ID});
        self.set_pod_status(&name, json!({"phase": "Running", "containerStatuses": [running]}));
        let mounted = Mounted::new(spec, folder);
        Some(Pod { name, child, code: None, mounted })
    }

    /// Checks if a pod has ended or was asked to end.
    fn poll(&self, pod: &mut Pod, asked: bool) {
        if pod.code.is_some() {
            return;
        }
        pod.mounted.renew(self.shared);
        if !asked
            && self.shared.objects.inspect("pods", &pod.name, is_being_deleted).unwrap_or(true)
        {
            self.end(pod);
        }
        let Ok(Some(status)) = pod.child.try_wait() else { return };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let reason = if code == 0 { "Completed" } else { "Error" };
        let terminated =
            json!({"exitCode": code, "reason": reason, "startedAt": "2026-11-23T00:00:00Z"});
        let container =
            json!({"name": "trial", "state": {"terminated": terminated}, "imageID": IMAGE_ID});
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        // The kubelet reports the container's end first, and the pod's phase about a second later.
        self.pace(player::TERMINATED_MS);
        self.set_pod_status(
            &pod.name,
            json!({"phase": "Running", "containerStatuses": [container]}),
        );
        self.pace(player::PHASE_MS);
        self.set_pod_status(&pod.name, json!({"phase": phase, "containerStatuses": [container]}));
        leave_node(self.shared, &pod.name);
        pod.code = Some(code);
    }

    /// Asks a pod to end, as the kubelet does.
    fn end(&self, pod: &Pod) {
        if pod.code.is_some() {
            return;
        }
        let deleted = |object: &mut Value| {
            object["metadata"]["deletionTimestamp"] = Value::from("2026-11-23T00:00:00Z");
        };
        drop(self.shared.objects.change("pods", &pod.name, deleted));
        let pid = i32::try_from(pod.child.id()).expect("a process id is a positive i32");
        // Ignored: the process may have ended.
        let _gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }

    fn finish(&self, pods: &[Pod], failed: Option<usize>) {
        let (target, end, reason, message) = match failed.map(|at| &pods[at]) {
            None => {
                let message = "Reached expected number of succeeded pods".to_owned();
                ("SuccessCriteriaMet", "Complete", "CompletionsReached", message)
            }
            Some(pod) => {
                let code = pod.code.unwrap_or(1);
                if UNMATCHED_CODES.contains(&code) {
                    let message = "Job has reached the specified backoff limit".to_owned();
                    ("FailureTarget", "Failed", "BackoffLimitExceeded", message)
                } else {
                    let message = format!(
                        "Container trial for pod lab/{} failed with exit code {code} matching FailJob rule at index 1",
                        pod.name
                    );
                    ("FailureTarget", "Failed", "PodFailurePolicy", message)
                }
            }
        };
        let first = (target, "True", reason, message.as_str());
        self.set_status(&[first], &json!({"active": 0}));
        // Deleted pods are removed before the Job is finished.
        for pod in pods {
            if self.shared.objects.inspect("pods", &pod.name, is_being_deleted) == Some(true) {
                self.shared.objects.remove("pods", &pod.name);
            }
        }
        self.set_status(&[first, (end, "True", reason, message.as_str())], &json!({}));
    }

    fn is_over(&self) -> bool {
        let over = self.shared.objects.inspect("jobs", &self.name, |now| {
            is_being_deleted(now)
                || now.pointer("/metadata/uid") != self.job.pointer("/metadata/uid")
        });
        self.shared.ended.load(Ordering::SeqCst) || over.unwrap_or(true)
    }

    fn is_suspended(&self) -> bool {
        let suspended = |now: &Value| now.pointer("/spec/suspend") == Some(&Value::Bool(true));
        self.shared.objects.inspect("jobs", &self.name, suspended).unwrap_or(false)
    }

    fn set_status(&self, conditions: &[(&str, &str, &str, &str)], counts: &Value) {
        let conditions = conditions.iter().map(|(kind, status, reason, message)| {
            json!({"type": kind, "status": status, "reason": reason, "message": message})
        });
        let mut status = counts.clone();
        status["conditions"] = Value::Array(conditions.collect());
        drop(self.shared.objects.change("jobs", &self.name, |object| object["status"] = status));
    }

    fn set_pod_status(&self, pod: &str, status: Value) {
        let change = |object: &mut Value| {
            let conditions = object.pointer("/status/conditions").cloned();
            object["status"] = status;
            if let Some(conditions) = conditions {
                object["status"]["conditions"] = conditions;
            }
        };
        drop(self.shared.objects.change("pods", pod, change));
    }
}

/// Clears the node of a pod whose containers have ended, so that a deletion is immediate.
pub(super) fn leave_node(shared: &Shared, pod: &str) {
    let leave = |object: &mut Value| {
        drop(object["spec"].as_object_mut().and_then(|spec| spec.remove("nodeName")));
    };
    drop(shared.objects.change("pods", pod, leave));
}

/// Replaces variables that refer to fields of the pod or to Secrets by their values.
pub(super) fn fill_in_fields(shared: &Shared, spec: &mut Value, pod: &Value) {
    let variables = spec.pointer_mut("/containers/0/env").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        if let Some(source) = variable.pointer("/valueFrom/secretKeyRef") {
            let secret = shared.objects.get("secrets", &text(source, "/name")).unwrap_or_default();
            let value = BASE64_STANDARD
                .decode(text(&secret["data"], &format!("/{}", text(source, "/key"))));
            let value = String::from_utf8(value.unwrap_or_default()).unwrap_or_default();
            *variable = json!({"name": variable["name"], "value": value});
            continue;
        }
        let value = match variable.pointer("/valueFrom/fieldRef/fieldPath").and_then(Value::as_str)
        {
            None => continue,
            Some("metadata.uid") => text(pod, "/metadata/uid"),
            Some("metadata.annotations['batch.kubernetes.io/job-completion-index']") => {
                text(pod, "/metadata/annotations/batch.kubernetes.io~1job-completion-index")
            }
            Some("metadata.labels['training.kubeflow.org/replica-index']") => {
                text(pod, "/metadata/labels/training.kubeflow.org~1replica-index")
            }
            Some(other) => panic!("the scripted kubelet does not support the field {other}"),
        };
        *variable = json!({"name": variable["name"], "value": value});
    }
}
