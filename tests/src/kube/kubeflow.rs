//! Kubeflow's training operator and its kubelet. Each job's pods run as processes of this machine, and its
//! status takes the steps that were recorded on a real cluster.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::controller::Behavior;
use super::jobs::{fill_in_fields, leave_node};
use super::objects::{is_being_deleted, text};
use super::volumes::Mounted;
use super::{Shared, admission, processes};

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A kind: plural, name, field of the roles, and container name.
type Kind = (&'static str, &'static str, &'static str, &'static str);

const KINDS: [Kind; 4] = [
    ("tfjobs", "TFJob", "tfReplicaSpecs", "tensorflow"),
    ("pytorchjobs", "PyTorchJob", "pytorchReplicaSpecs", "pytorch"),
    ("xgboostjobs", "XGBoostJob", "xgbReplicaSpecs", "xgboost"),
    ("paddlejobs", "PaddleJob", "paddleReplicaSpecs", "paddle"),
];

/// Follows jobs until the server ends.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut known = HashSet::new();
    while !shared.ended.load(Ordering::SeqCst) {
        for kind in KINDS.into_iter().filter(|_| shared.controller.load(Ordering::SeqCst)) {
            for job in shared.objects.list(kind.0) {
                if known.insert(text(&job, "/metadata/uid")) {
                    let shared = Arc::clone(shared);
                    std::thread::spawn(move || Run::new(&shared, kind, job).play());
                }
            }
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// One job.
struct Run<'a> {
    shared: &'a Arc<Shared>,
    kind: Kind,
    name: String,
    job: Value,
    /// The conditions. A changed condition moves to the end.
    conditions: Vec<Value>,
    /// If set, the status is as bad as [`Behavior::Raced`] describes.
    raced: bool,
}

/// A pod of the job.
struct Pod {
    name: String,
    role: String,
    child: Child,
    code: Option<i32>,
    /// If set, the end of this pod ends the job.
    decides: bool,
    asked: bool,
    mounted: Mounted,
}

impl<'a> Run<'a> {
    fn new(shared: &'a Arc<Shared>, kind: Kind, job: Value) -> Self {
        let name = text(&job, "/metadata/name");
        let raced = (shared.behavior)(&job) == Behavior::Raced;
        Self { shared, kind, name, job, conditions: Vec::new(), raced }
    }

    fn play(mut self) {
        while !self.is_over() {
            if self.is_suspended() {
                self.wait_for_resumption();
                continue;
            }
            let mut pods = self.start();
            if pods.is_empty() {
                // If a pod cannot be created, the real operator reports it only in an event.
                return;
            }
            if !self.raced {
                self.set_condition("Created", "True", "is created.");
            }
            self.set_status(&pods);
            self.set_condition("Running", "True", "is running.");
            self.set_status(&pods);
            let decided = self.until_decided(&mut pods);
            // The reason is `cleanPodPolicy: Running`, a deleted job, or a preemption by a queue.
            while pods.iter().any(|pod| pod.code.is_none()) {
                for pod in &mut pods {
                    self.end(pod);
                    self.poll(pod);
                }
                std::thread::park_timeout(POLL_INTERVAL);
            }
            while decided && !self.is_over() {
                for pod in pods.iter().filter(|pod| pod.asked) {
                    self.shared.objects.remove("pods", &pod.name);
                }
                std::thread::park_timeout(POLL_INTERVAL);
            }
            for pod in &pods {
                self.shared.objects.remove("pods", &pod.name);
            }
        }
    }

    /// Reports that the job is suspended, and waits until it is resumed.
    fn wait_for_resumption(&mut self) {
        if !self.conditions.iter().any(|known| known["type"] == "Created") {
            self.set_condition("Created", "True", "is created.");
        }
        let reason = format!("{}Suspended", self.kind.1);
        for condition in self.conditions.iter_mut().filter(|known| known["type"] == "Running") {
            condition["status"] = Value::from("False");
            condition["reason"] = Value::from(reason.as_str());
        }
        self.set_condition("Suspended", "True", "is suspended.");
        self.set_status(&[]);
        while self.is_suspended() && !self.is_over() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
        self.set_condition("Suspended", "False", "is resumed.");
        self.set_status(&[]);
    }

    /// Waits for the end of the deciding pod, and reports it. Returns `false` if the job was deleted or
    /// suspended before.
    fn until_decided(&mut self, pods: &mut [Pod]) -> bool {
        while !self.is_over() && !self.is_suspended() {
            let going = |pod: &Pod| {
                pod.code.is_none()
                    && self
                        .shared
                        .objects
                        .inspect("pods", &pod.name, is_being_deleted)
                        .unwrap_or(true)
            };
            // The operator reports a deleted pod as failed at once, while its process still runs.
            let deleted = pods.iter().position(going);
            for pod in pods.iter_mut() {
                self.poll(pod);
            }
            if !self.shared.controller.load(Ordering::SeqCst) {
                std::thread::park_timeout(POLL_INTERVAL);
                continue;
            }
            let failed = pods.iter().position(|pod| pod.code.is_some_and(|code| code != 0));
            let succeeded = pods.iter().any(|pod| pod.decides && pod.code == Some(0));
            let all_ended = pods.iter().all(|pod| pod.code.is_some());
            if self.raced && !all_ended && deleted.is_none() {
                std::thread::park_timeout(POLL_INTERVAL);
                continue;
            }
            if succeeded && self.raced {
                self.set_condition("Succeeded", "True", "successfully completed.");
            }
            if let Some(at) = deleted.or(failed) {
                self.clear_running();
                let role = pods[at].role.clone();
                self.set_condition(
                    "Failed",
                    "True",
                    &format!("has failed because 1 {role} replica(s) failed."),
                );
            } else if succeeded {
                self.clear_running();
                self.set_condition("Succeeded", "True", "successfully completed.");
            } else {
                std::thread::park_timeout(POLL_INTERVAL);
                continue;
            }
            self.set_status(pods);
            return true;
        }
        false
    }

    fn start(&self) -> Vec<Pod> {
        let roles = self.job["spec"][self.kind.2].as_object().cloned().unwrap_or_default();
        let first = if roles.contains_key("Master") { "Master" } else { "Worker" };
        let mut pods = Vec::new();
        for (role, replica) in &roles {
            for index in 0..replica["replicas"].as_u64().unwrap_or(1) {
                let decides = role == first && index == 0;
                pods.extend(self.pod(role, replica, index, decides));
            }
        }
        pods
    }

    fn pod(&self, role: &str, replica: &Value, index: u64, decides: bool) -> Option<Pod> {
        let lower = role.to_lowercase();
        let name = format!("{}-{lower}-{index}", self.name);
        let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "status": {"phase": "Pending"}});
        object["metadata"] = replica["template"]["metadata"].clone();
        object["metadata"]["name"] = Value::from(name.as_str());
        object["metadata"]["namespace"] = Value::from("lab");
        for (label, value) in [("replica-index", index.to_string()), ("replica-type", lower)] {
            object["metadata"]["labels"][format!("training.kubeflow.org/{label}")] =
                Value::from(value);
        }
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "kubeflow.org/v1", "kind": self.kind.1, "name": self.name,
            "controller": true, "uid": self.job["metadata"]["uid"],
        }]);
        object["spec"] = replica["template"]["spec"].clone();
        // A pod on a node gets a grace period when it is deleted.
        object["spec"]["nodeName"] = Value::from("node1");
        object["spec"]["restartPolicy"] = replica["restartPolicy"].clone();
        let container = &object["spec"]["containers"][0]["name"];
        assert_eq!(*container, self.kind.3, "the operator's webhook requires this name");
        admission::expect_valid(&object);
        let pod = self.shared.objects.create("pods", object).ok()?;
        let mut spec = pod["spec"].clone();
        fill_in_fields(self.shared, &mut spec, &pod);
        let folder = self.shared.folder.join("pods").join(&name);
        let child = processes::start(self.shared, &spec, &folder, Vec::new());
        let child = child.unwrap_or_else(|problem| panic!("{name}: {problem}"));
        self.set_pod_status(&name, json!({"phase": "Running"}));
        let (role, mounted) = (role.to_owned(), Mounted::new(spec, folder));
        Some(Pod { name, role, child, code: None, decides, asked: false, mounted })
    }

    /// Checks if a pod has ended or was asked to end.
    fn poll(&self, pod: &mut Pod) {
        if pod.code.is_some() {
            return;
        }
        pod.mounted.renew(self.shared);
        if self.shared.objects.inspect("pods", &pod.name, is_being_deleted).unwrap_or(true) {
            self.end(pod);
        }
        let Ok(Some(status)) = pod.child.try_wait() else { return };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let reason = if code == 0 { "Completed" } else { "Error" };
        let terminated =
            json!({"exitCode": code, "reason": reason, "startedAt": "2026-11-23T00:00:00Z"});
        let container = json!({"name": self.kind.3, "state": {"terminated": terminated}});
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        self.set_pod_status(
            &pod.name,
            json!({"phase": "Running", "containerStatuses": [container]}),
        );
        self.set_pod_status(&pod.name, json!({"phase": phase, "containerStatuses": [container]}));
        leave_node(self.shared, &pod.name);
        pod.code = Some(code);
    }

    /// Asks a pod to end, as the kubelet does.
    fn end(&self, pod: &mut Pod) {
        if pod.code.is_some() || std::mem::replace(&mut pod.asked, true) {
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

    /// Sets the condition Running to false. Its place and its reason do not change.
    fn clear_running(&mut self) {
        for condition in self.conditions.iter_mut().filter(|known| known["type"] == "Running") {
            condition["status"] = Value::from("False");
        }
    }

    fn set_condition(&mut self, kind: &str, status: &str, words: &str) {
        let (object, name) = (self.kind.1, &self.name);
        let reason = if status == "False" { "Resumed" } else { kind };
        self.conditions.retain(|known| known["type"] != kind);
        self.conditions.push(json!({
            "type": kind, "status": status, "reason": format!("{object}{reason}"),
            "message": format!("{object} lab/{name} {words}"),
        }));
    }

    fn set_status(&self, pods: &[Pod]) {
        let mut counts = json!({});
        for pod in pods {
            let what = match pod.code {
                None => "active",
                Some(0) => "succeeded",
                Some(_) => "failed",
            };
            let count = counts[&pod.role][what].as_u64().unwrap_or(0);
            counts[&pod.role][what] = Value::from(count + 1);
        }
        let mut conditions = self.conditions.clone();
        if self.raced {
            conditions.reverse();
        }
        let status = json!({"conditions": conditions, "replicaStatuses": counts});
        drop(self.shared.objects.change(self.kind.0, &self.name, |it| it["status"] = status));
    }

    fn is_over(&self) -> bool {
        let over = self.shared.objects.inspect(self.kind.0, &self.name, |now| {
            is_being_deleted(now)
                || now.pointer("/metadata/uid") != self.job.pointer("/metadata/uid")
        });
        self.shared.ended.load(Ordering::SeqCst) || over.unwrap_or(true)
    }

    fn is_suspended(&self) -> bool {
        let suspended =
            |now: &Value| now.pointer("/spec/runPolicy/suspend") == Some(&Value::Bool(true));
        self.shared.objects.inspect(self.kind.0, &self.name, suspended).unwrap_or(false)
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
