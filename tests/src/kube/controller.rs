//! A `FrameworkController`: follows Frameworks and writes their status, from a recording or from their pods.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::objects::{Deletion, FOREGROUND_FINALIZER, is_being_deleted, string_at};
use super::{Shared, admission, pods};

/// The interval between two checks for a change.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The behaviour of a workload.
#[derive(Debug, Clone, PartialEq)]
pub enum Behavior {
    /// Replays the recording of this name, faster by this factor. With factor 0, it makes no pauses.
    Recorded(String, u32),
    /// A Job takes the steps and times of a real one, faster by a factor, and ends with an exit code.
    TimedJob {
        /// The exit code of the container.
        code: i32,
        /// The factor of the speed.
        speed: u32,
    },
    /// The pods run as processes of this machine.
    Processes,
    /// Like [`Self::Processes`], but the steps of a Job take as long as on a real cluster.
    PacedProcesses,
    /// Like [`Self::Processes`], but a job of the training operator has the worst status that was seen on a real
    /// cluster. It never has the condition Created, and its conditions are in reverse order. If some pods
    /// succeeded and some failed, it is both succeeded and failed.
    ProcessesWithRacedStatus,
    /// The pods run as Docker containers.
    Containers,
}

/// Reads a recording: one step per line, with `name` instead of `@NAME@`.
pub fn read_recording(case: &str, name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/frameworkcontroller")
        .join(format!("{case}.jsonl"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .replace("@NAME@", name);
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Follows Frameworks until the server ends.
pub(super) fn run(shared: &Arc<Shared>) {
    let (mut after, mut known) = (0, HashSet::new());
    while !shared.is_ending.load(Ordering::SeqCst) {
        if !shared.controllers_running.load(Ordering::SeqCst) {
            std::thread::park_timeout(POLL_INTERVAL);
            continue;
        }
        let cuts = shared.objects.watch_cuts();
        let new = match shared.objects.next_change("frameworks", after, cuts, POLL_INTERVAL * 20) {
            Ok(Some(change)) => {
                after = change.version;
                if change.kind == "ADDED" { vec![Value::clone(&change.object)] } else { Vec::new() }
            }
            Ok(None) => Vec::new(),
            // The history was dropped, but the present objects are still listed.
            Err(newest) => {
                after = newest;
                shared.objects.list("frameworks")
            }
        };
        for framework in new {
            let works = shared.controllers_running.load(Ordering::SeqCst);
            if works && known.insert(string_at(&framework, "/metadata/uid")) {
                let shared = Arc::clone(shared);
                std::thread::spawn(move || follow_framework(&shared, &framework));
            }
        }
    }
}

fn follow_framework(shared: &Arc<Shared>, framework: &Value) {
    let name = string_at(framework, "/metadata/name");
    let mut run = FrameworkRun { shared, name, framework, in_containers: false };
    if string_at(framework, "/spec/executionType") == "Create" {
        run.set_status(json!({"state": "AttemptCreationPending"}));
        return;
    }
    match (shared.behavior)(framework) {
        Behavior::Recorded(case, speed) => run.replay_recording(&case, speed),
        Behavior::Processes
        | Behavior::PacedProcesses
        | Behavior::ProcessesWithRacedStatus
        | Behavior::TimedJob { .. } => {
            pods::run_pods(&run);
        }
        Behavior::Containers => {
            run.in_containers = true;
            shared.has_containers.store(true, Ordering::SeqCst);
            pods::run_pods(&run);
        }
    }
}

/// A Framework and its behaviour.
pub(super) struct FrameworkRun<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) name: String,
    pub(super) framework: &'a Value,
    /// If set, the pods are containers. Otherwise they are processes.
    pub(super) in_containers: bool,
}

impl FrameworkRun<'_> {
    /// Writes the status. Returns `false` if the Framework does not exist.
    pub(super) fn set_status(&self, status: Value) -> bool {
        let change = |object: &mut Value| object["status"] = status;
        self.shared.objects.change("frameworks", &self.name, change).is_ok()
    }

    /// Returns `true` if the Framework must end: it was stopped or deleted, or the server ends.
    pub(super) fn is_unwanted(&self) -> bool {
        let stops =
            |now: &Value| is_being_deleted(now) || string_at(now, "/spec/executionType") == "Stop";
        let stops = self.shared.objects.inspect("frameworks", &self.name, stops);
        self.shared.is_ending.load(Ordering::SeqCst) || stops.unwrap_or(true)
    }

    /// Returns `true` if the Framework is deleted or being deleted. The garbage collector then deletes its
    /// pods.
    pub(super) fn is_being_deleted(&self) -> bool {
        self.shared.objects.inspect("frameworks", &self.name, is_being_deleted).unwrap_or(true)
    }

    /// Creates the config map that owns the pods, if it does not exist. If the one of an earlier Framework of
    /// this name exists, waits until it is gone.
    pub(super) fn create_attempt(&self) {
        let is_current = self.shared.objects.inspect("configmaps", &self.attempt_name(), |map| {
            map.pointer("/metadata/ownerReferences/0/uid")
                == self.framework.pointer("/metadata/uid")
        });
        if is_current == Some(true) {
            return;
        }
        let owner = json!([{
            "apiVersion": self.framework["apiVersion"], "kind": "Framework", "name": self.name,
            "uid": self.framework["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
        }]);
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": self.attempt_name(), "namespace": "lab", "ownerReferences": owner,
                "finalizers": [FOREGROUND_FINALIZER], "labels": {"FC_FRAMEWORK_NAME": self.name},
            },
        });
        while self.shared.objects.create("configmaps", object.clone()).is_err()
            && !self.is_unwanted()
        {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    fn attempt_name(&self) -> String {
        format!("{}-attempt", self.name)
    }

    pub(super) fn wait_until_unwanted(&self) {
        while !self.is_unwanted() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Sets the status of a pod.
    pub(super) fn set_pod_status(&self, pod: &str, status: &Value) {
        let change = |object: &mut Value| object["status"] = status.clone();
        drop(self.shared.objects.change("pods", pod, change));
    }

    /// Creates a pod of a role from its template.
    pub(super) fn create_pod(&self, role: &Value, index: u64, status: &Value) {
        let role_name = string_at(role, "/name");
        let pod = format!("{}-{role_name}-{index}", self.name);
        let mut labels = role.pointer("/task/pod/metadata/labels").cloned().unwrap_or(json!({}));
        labels["FC_FRAMEWORK_NAME"] = Value::from(self.name.as_str());
        labels["FC_TASKROLE_NAME"] = Value::from(role_name);
        labels["FC_TASK_INDEX"] = Value::from(index.to_string());
        let owner = self.shared.objects.get("configmaps", &self.attempt_name());
        let owners = owner.map(|owner| {
            json!([{
                "apiVersion": "v1", "kind": "ConfigMap", "name": self.attempt_name(),
                "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
            }])
        });
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod, "namespace": "lab", "labels": labels, "ownerReferences": owners},
            "spec": role.pointer("/task/pod/spec"),
            "status": status,
        });
        admission::expect_valid(&object);
        drop(self.shared.objects.create("pods", object));
    }

    fn replay_recording(&self, case: &str, speed: u32) {
        let mut last = 0;
        for step in read_recording(case, &self.name) {
            let at = step["at"].as_u64().unwrap_or(0);
            if speed > 0 {
                self.shared.pause(Duration::from_millis(at.saturating_sub(last)) / speed);
            }
            last = at;
            if step["action"]
                .as_str()
                .is_some_and(|action| action == "stop" || action.starts_with("delete"))
            {
                self.wait_until_unwanted();
                continue;
            }
            if !step["event"].is_null() {
                let at = |field: &str| string_at(&step, &format!("/event/{field}"));
                create_event(self.shared, ("Pod", &at("pod")), &at("reason"), &at("message"));
                continue;
            }
            match string_at(&step, "/status/state").as_str() {
                // Also the start of a further attempt.
                "AttemptCreationRequested" => self.create_attempt(),
                "AttemptCompleted" | "Completed" => {
                    self.delete_attempt();
                    self.wait_until_attempt_is_gone();
                }
                _ => {}
            }
            match (string_at(&step, "/kind").as_str(), string_at(&step, "/type").as_str()) {
                ("framework", "ADDED" | "DELETED") => {}
                ("framework", _) if !self.set_status(step["status"].clone()) => {
                    // The Framework is gone, and its pods will follow.
                    self.delete_attempt();
                    return;
                }
                ("framework", _) => {}
                ("pod", "ADDED") => {
                    let name = string_at(&step, "/name");
                    let mut parts = name.split('-').skip(1);
                    let role = parts.next().unwrap_or_default().to_owned();
                    let index = parts.next().and_then(|index| index.parse().ok()).unwrap_or(0);
                    let roles = self.framework.pointer("/spec/taskRoles").and_then(Value::as_array);
                    let template =
                        roles.and_then(|roles| roles.iter().find(|r| r["name"] == role.as_str()));
                    let fallback = json!({"name": role});
                    self.create_pod(template.unwrap_or(&fallback), index, &step["status"]);
                }
                ("pod", "DELETED") => {
                    self.shared.objects.remove("pods", &string_at(&step, "/name"));
                }
                ("pod", _) => self.set_pod_status(&string_at(&step, "/name"), &step["status"]),
                _ => {}
            }
        }
        let ended = self.shared.objects.get("frameworks", &self.name);
        if ended.is_none_or(|object| string_at(&object, "/status/state") == "Completed") {
            return;
        }
        // The Framework stays in this state until it is stopped or deleted.
        self.wait_until_unwanted();
        self.delete_attempt();
        self.wait_until_attempt_is_gone();
        self.set_status(stopped_status());
    }

    /// Deletes the config map that owns the pods, and so the pods.
    pub(super) fn delete_attempt(&self) {
        self.shared.objects.delete("configmaps", &self.attempt_name(), Deletion::default());
    }

    /// Waits until the config map is gone.
    pub(super) fn wait_until_attempt_is_gone(&self) {
        let find_map = || self.shared.objects.inspect("configmaps", &self.attempt_name(), |_| ());
        while !self.shared.is_ending.load(Ordering::SeqCst) && find_map().is_some() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }
}

impl Shared {
    /// Waits for a time, or until the server ends.
    pub(super) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_ending.load(Ordering::SeqCst) {
            std::thread::park_timeout(
                until.saturating_duration_since(Instant::now()).min(POLL_INTERVAL * 10),
            );
        }
    }

    /// Returns whether a controller's work on an object is over: the object is deleted or replaced, or the server ends.
    pub(super) fn is_gone(&self, plural: &str, object: &Value) -> bool {
        let uid = object.pointer("/metadata/uid");
        let is_other = |now: &Value| is_being_deleted(now) || now.pointer("/metadata/uid") != uid;
        let over = self.objects.inspect(plural, &string_at(object, "/metadata/name"), is_other);
        self.is_ending.load(Ordering::SeqCst) || over.unwrap_or(true)
    }

    /// Returns whether an object is suspended. `None` if it does not exist. Kubeflow's training operator has the field
    /// in `runPolicy`.
    pub(super) fn is_suspended(&self, plural: &str, name: &str) -> Option<bool> {
        self.objects.inspect(plural, name, |object| {
            ["/spec/suspend", "/spec/runPolicy/suspend"]
                .iter()
                .any(|field| object.pointer(field) == Some(&Value::Bool(true)))
        })
    }
}

/// Deletes objects without an owner, until the server ends.
pub(super) fn run_garbage_collector(shared: &Arc<Shared>) {
    while !shared.is_ending.load(Ordering::SeqCst) {
        if !shared.objects.collect_garbage() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }
}

/// Returns the status of a Framework after another client deleted one of its pods.
pub(super) fn deleted_pod_status(role: &str, index: u64) -> Value {
    let completion = json!({
        "code": -101,
        "phrase": "PodExternalDeleted",
        "diagnostics": "Pod is being deleted by others",
        "type": {"name": "Failed", "attributes": ["Transient"]},
    });
    let mut whole = completion.clone();
    whole["trigger"] = json!({"taskRoleName": role, "taskIndex": index, "message": ""});
    let task = json!({"index": index, "attemptStatus": {"completionStatus": completion}});
    json!({
        "state": "Completed",
        "attemptStatus": {
            "completionStatus": whole,
            "taskRoleStatuses": [{"name": role, "taskStatuses": [task]}],
        },
    })
}

/// Returns the status of a Framework that was stopped on request.
pub(super) fn stopped_status() -> Value {
    json!({
        "state": "Completed",
        "attemptStatus": {"completionStatus": {
            "code": -210,
            "phrase": "StopFrameworkRequested",
            "diagnostics": "User has requested to stop the Framework",
            "type": {"name": "Failed", "attributes": ["Permanent"]},
            "trigger": null,
        }},
    })
}

/// Creates an event about an object.
pub(super) fn create_event(
    shared: &Shared,
    (kind, name): (&str, &str),
    reason: &str,
    message: &str,
) {
    let number = shared.objects.list("events").len();
    let object = json!({
        "apiVersion": "v1", "kind": "Event", "type": "Warning",
        "metadata": {"name": format!("{name}.{number}"), "namespace": "lab"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "lab"},
        "reason": reason, "message": message,
    });
    drop(shared.objects.create("events", object));
}
