//! Kubeflow's training operator. The status of each job takes the steps that were recorded on a real cluster.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::controller::{Behavior, POLL_INTERVAL};
use super::kubelet::Pod;
use super::objects::string_at;
use super::{Shared, admission};

/// A kind: plural, name, field of the roles, and container name.
type TrainingKind = (&'static str, &'static str, &'static str, &'static str);

const TRAINING_KINDS: [TrainingKind; 4] = [
    ("tfjobs", "TFJob", "tfReplicaSpecs", "tensorflow"),
    ("pytorchjobs", "PyTorchJob", "pytorchReplicaSpecs", "pytorch"),
    ("xgboostjobs", "XGBoostJob", "xgbReplicaSpecs", "xgboost"),
    ("paddlejobs", "PaddleJob", "paddleReplicaSpecs", "paddle"),
];

/// Follows jobs until the server ends.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut known = HashSet::new();
    while !shared.is_ending.load(Ordering::SeqCst) {
        for kind in
            TRAINING_KINDS.into_iter().filter(|_| shared.controllers_running.load(Ordering::SeqCst))
        {
            for job in shared.objects.list(kind.0) {
                if known.insert(string_at(&job, "/metadata/uid")) {
                    let shared = Arc::clone(shared);
                    std::thread::spawn(move || {
                        TrainingJobRun::new(&shared, kind, job).run_to_end();
                    });
                }
            }
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// One job.
struct TrainingJobRun<'a> {
    shared: &'a Arc<Shared>,
    kind: TrainingKind,
    name: String,
    job: Value,
    /// The conditions. A changed condition moves to the end.
    conditions: Vec<Value>,
    /// If set, the status is as bad as [`Behavior::ProcessesWithRacedStatus`] describes.
    has_raced_status: bool,
    /// If set, the pods are containers. Otherwise they are processes.
    in_containers: bool,
}

/// A pod of the job and its role.
struct Replica {
    pod: Pod,
    role: String,
    /// If set, the end of this pod ends the job.
    is_deciding: bool,
}

impl<'a> TrainingJobRun<'a> {
    fn new(shared: &'a Arc<Shared>, kind: TrainingKind, job: Value) -> Self {
        let name = string_at(&job, "/metadata/name");
        let behavior = (shared.behavior)(&job);
        let (has_raced_status, in_containers) =
            (behavior == Behavior::ProcessesWithRacedStatus, behavior == Behavior::Containers);
        Self { shared, kind, name, job, conditions: Vec::new(), has_raced_status, in_containers }
    }

    fn run_to_end(mut self) {
        while !self.is_gone() {
            if self.is_suspended() {
                self.wait_for_resumption();
                continue;
            }
            let mut replicas = self.start_replicas();
            if replicas.is_empty() {
                // If a pod cannot be created, the real operator reports it only in an event.
                return;
            }
            if !self.has_raced_status {
                self.set_condition("Created", "True", "is created.");
            }
            self.set_status(&replicas);
            if replicas.iter().all(|replica| replica.pod.is_running()) {
                self.set_condition("Running", "True", "is running.");
                self.set_status(&replicas);
            }
            let decided = self.wait_for_decision(&mut replicas);
            // The reason is `cleanPodPolicy: Running`, a deleted job, or a preemption by a queue.
            while replicas.iter().any(|replica| replica.pod.code.is_none()) {
                for replica in &mut replicas {
                    replica.pod.request_end(self.shared);
                    replica.pod.poll(self.shared, |_| ());
                }
                std::thread::park_timeout(POLL_INTERVAL);
            }
            while decided && !self.is_gone() {
                for replica in replicas.iter().filter(|replica| replica.pod.is_end_requested) {
                    self.shared.objects.remove("pods", &replica.pod.name);
                }
                std::thread::park_timeout(POLL_INTERVAL);
            }
            for replica in &replicas {
                self.shared.objects.remove("pods", &replica.pod.name);
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
        while self.is_suspended() && !self.is_gone() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
        self.set_condition("Suspended", "False", "is resumed.");
        self.set_status(&[]);
    }

    /// Waits for the end of the deciding pod, and reports it. Returns `false` if the job was deleted or
    /// suspended before.
    fn wait_for_decision(&mut self, replicas: &mut [Replica]) -> bool {
        while !self.is_gone() && !self.is_suspended() {
            let is_terminating = |replica: &Replica| {
                replica.pod.code.is_none() && replica.pod.is_being_deleted(self.shared)
            };
            // The operator reports a deleted pod as failed at once, while its process still runs.
            let deleted = replicas.iter().position(is_terminating);
            for replica in replicas.iter_mut() {
                self.poll_pod(&mut replica.pod);
            }
            if !self.shared.controllers_running.load(Ordering::SeqCst) {
                std::thread::park_timeout(POLL_INTERVAL);
                continue;
            }
            let codes = || replicas.iter().map(|replica| replica.pod.code);
            let failed = codes().position(|code| code.is_some_and(|code| code != 0));
            let succeeded =
                replicas.iter().any(|replica| replica.is_deciding && replica.pod.code == Some(0));
            let all_ended = codes().all(|code| code.is_some());
            if self.has_raced_status && !all_ended && deleted.is_none() {
                std::thread::park_timeout(POLL_INTERVAL);
                continue;
            }
            if succeeded && self.has_raced_status {
                self.set_condition("Succeeded", "True", "successfully completed.");
            }
            if let Some(at) = deleted.or(failed) {
                self.clear_running();
                let role = replicas[at].role.clone();
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
            self.set_status(replicas);
            return true;
        }
        false
    }

    fn start_replicas(&self) -> Vec<Replica> {
        let roles = self.job["spec"][self.kind.2].as_object().cloned().unwrap_or_default();
        let first = if roles.contains_key("Master") { "Master" } else { "Worker" };
        let mut replicas = Vec::new();
        for (role, template) in &roles {
            for index in 0..template["replicas"].as_u64().unwrap_or(1) {
                let is_deciding = role == first && index == 0;
                let pod = self.start_pod(role, template, index);
                replicas.extend(pod.map(|pod| Replica { pod, role: role.clone(), is_deciding }));
            }
        }
        replicas
    }

    fn start_pod(&self, role: &str, replica: &Value, index: u64) -> Option<Pod> {
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
        Some(Pod::start(self.shared, &pod, self.in_containers, ""))
    }

    /// Checks if a pod has ended or was asked to end.
    fn poll_pod(&self, pod: &mut Pod) {
        if pod.is_being_deleted(self.shared) {
            pod.request_end(self.shared);
        }
        pod.poll(self.shared, |_| ());
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

    fn set_status(&self, replicas: &[Replica]) {
        let mut counts = json!({});
        for replica in replicas {
            let what = match replica.pod.code {
                None if !replica.pod.is_running() => continue,
                None => "active",
                Some(0) => "succeeded",
                Some(_) => "failed",
            };
            let count = counts[&replica.role][what].as_u64().unwrap_or(0);
            counts[&replica.role][what] = Value::from(count + 1);
        }
        let mut conditions = self.conditions.clone();
        if self.has_raced_status {
            conditions.reverse();
        }
        let status = json!({"conditions": conditions, "replicaStatuses": counts});
        drop(self.shared.objects.change(self.kind.0, &self.name, |it| it["status"] = status));
    }

    fn is_gone(&self) -> bool {
        self.shared.is_gone(self.kind.0, &self.job)
    }

    fn is_suspended(&self) -> bool {
        self.shared.is_suspended(self.kind.0, &self.name).unwrap_or(false)
    }
}
