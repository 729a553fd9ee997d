//! The kubelet: runs a pod's containers, or a process of this machine in their place.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::objects::{is_being_deleted, string_at};
use super::{Shared, containers, processes, volumes};

/// The time from a container's end to the kubelet's report, and from there to the pod's phase. Measured on
/// Kubernetes 1.36.
pub(super) const TERMINATED_MS: u64 = 300;
pub(super) const PHASE_MS: u64 = 1_100;

/// A pod that is assigned to the node.
pub(super) struct AssignedPod {
    /// The name. It differs between the tries of one pod.
    pub(super) name: String,
    /// The specification, without references to fields or Secrets.
    pub(super) spec: Value,
    /// The folder of the volumes and of the output.
    pub(super) folder: PathBuf,
    /// The variables that every container has in addition to those of the specification.
    pub(super) environment: Vec<(&'static str, String)>,
    /// If set, the containers run in Docker. Otherwise, the main one runs as a process.
    pub(super) in_containers: bool,
}

impl AssignedPod {
    /// Runs the init containers, and starts the main container.
    pub(super) fn start(self, shared: &Shared) -> Result<RunningPod, StartProblem> {
        let child = if self.in_containers {
            shared.has_containers.store(true, Ordering::SeqCst);
            containers::start(shared, &self)?
        } else {
            let main = self.main_container();
            processes::start(shared, &self).map_err(|problem| {
                StartProblem::Ended(vec![ContainerEnd::not_started(main, &problem)])
            })?
        };
        Ok(RunningPod {
            pod: self,
            child,
            is_end_requested: false,
            volumes_renewed_at: Instant::now(),
        })
    }

    /// Returns the main container.
    pub(super) fn main_container(&self) -> &Value {
        &self.spec["containers"][0]
    }

    /// Returns the init containers.
    pub(super) fn init_containers(&self) -> impl Iterator<Item = &Value> {
        self.spec["initContainers"].as_array().into_iter().flatten()
    }

    /// Returns the file of a container's output. The main container's has the same name in every pod.
    pub(super) fn log_file(&self, container: &Value) -> PathBuf {
        let is_main = container["name"] == self.main_container()["name"];
        let name = if is_main {
            "log".to_owned()
        } else {
            format!("{}.log", string_at(container, "/name"))
        };
        self.folder.join(name)
    }

    /// Creates the file of a container's output. Returns a handle for each of its two streams.
    pub(super) fn create_log(&self, container: &Value) -> Result<(File, File), String> {
        let file = File::create(self.log_file(container)).map_err(|error| error.to_string())?;
        let second = file.try_clone().map_err(|error| error.to_string())?;
        Ok((file, second))
    }
}

/// The reason why a pod does not run.
pub(super) enum StartProblem {
    /// The pod never starts. Its status contains the reason.
    NeverStarts(Value),
    /// The pod has ended, with these ends of its containers.
    Ended(Vec<ContainerEnd>),
}

/// A pod whose main container runs.
pub(super) struct RunningPod {
    pod: AssignedPod,
    /// The process, or a client of Docker that ends with the container.
    child: Child,
    /// If set, the pod was asked to end.
    is_end_requested: bool,
    /// The time of the last update of the volumes.
    volumes_renewed_at: Instant,
}

impl RunningPod {
    /// Returns the ends of the containers, if the main container has ended. Until then, updates the volumes
    /// periodically.
    pub(super) fn poll(&mut self, shared: &Shared) -> Option<Vec<ContainerEnd>> {
        if self.volumes_renewed_at.elapsed() > volumes::UPDATE_INTERVAL {
            volumes::update_volumes(shared, &self.pod.spec, &self.pod.folder);
            self.volumes_renewed_at = Instant::now();
        }
        let status = self.child.try_wait().ok()??;
        Some(if self.pod.in_containers {
            containers::container_ends(&self.pod)
        } else {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            let reason = if code == 0 { "Completed" } else { "Error" };
            vec![ContainerEnd::new(self.pod.main_container(), code.into(), reason, "")]
        })
    }

    /// Asks the pod to end, once. Docker kills a container after the pod's grace period.
    pub(super) fn terminate(&mut self) {
        if std::mem::replace(&mut self.is_end_requested, true) {
            return;
        }
        if self.pod.in_containers {
            containers::stop(&self.pod);
        } else {
            self.signal(Signal::SIGTERM);
        }
    }

    /// Kills the process. Containers are left to Docker.
    pub(super) fn kill(&self) {
        if !self.pod.in_containers {
            self.signal(Signal::SIGKILL);
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id is a positive i32");
        // Ignored: the process may have ended.
        let _gone = kill(Pid::from_raw(pid), signal);
    }
}

/// The end of a container.
#[derive(Debug, Clone)]
pub(super) struct ContainerEnd {
    name: String,
    /// The exit code.
    pub(super) code: i64,
    /// The reason as the kubelet names it.
    pub(super) reason: &'static str,
    message: String,
}

impl ContainerEnd {
    /// Creates the end of a container of the specification.
    pub(super) fn new(container: &Value, code: i64, reason: &'static str, message: &str) -> Self {
        Self { name: string_at(container, "/name"), code, reason, message: message.to_owned() }
    }

    /// Creates the end of a container that could not be started.
    pub(super) fn not_started(container: &Value, problem: &str) -> Self {
        Self::new(container, 128, "StartError", problem)
    }

    /// Returns the end in the form of `FrameworkController`'s status.
    pub(super) fn framework_status(&self) -> Value {
        json!({"name": self.name, "code": self.code, "reason": self.reason, "message": self.message})
    }

    /// Returns the end in the form of a pod's status.
    fn pod_status(&self, image_id: &str) -> Value {
        let mut terminated = json!({
            "exitCode": self.code, "reason": self.reason, "startedAt": "2026-11-23T00:00:00Z",
        });
        if !self.message.is_empty() {
            terminated["message"] = Value::from(self.message.as_str());
        }
        json!({"name": self.name, "state": {"terminated": terminated}, "imageID": image_id})
    }
}

/// A pod of an object whose controller reads the pod's status.
pub(super) struct Pod {
    /// The name.
    pub(super) name: String,
    /// The exit code that decides the phase, once the pod has ended.
    pub(super) code: Option<i64>,
    /// If set, the pod was asked to end.
    pub(super) is_end_requested: bool,
    spec: Value,
    /// `None`: the containers cannot start, or the pod has ended.
    running: Option<RunningPod>,
    /// The image of the main container, as the container runtime resolves it.
    image_id: &'static str,
}

impl Pod {
    /// Starts a pod that was created.
    pub(super) fn start(
        shared: &Shared,
        object: &Value,
        in_containers: bool,
        image_id: &'static str,
    ) -> Self {
        let (name, mut spec) = (string_at(object, "/metadata/name"), object["spec"].clone());
        fill_in_fields(shared, &mut spec, object);
        let folder = shared.folder.join("pods").join(&name);
        let mut pod =
            Self { name, code: None, is_end_requested: false, spec, running: None, image_id };
        let assigned = AssignedPod {
            name: pod.name.clone(),
            spec: pod.spec.clone(),
            folder,
            environment: Vec::new(),
            in_containers,
        };
        match assigned.start(shared) {
            Ok(running) => {
                let main = json!({
                    "name": pod.spec["containers"][0]["name"], "state": {"running": {}}, "imageID": image_id,
                });
                pod.set_status(shared, json!({"phase": "Running", "containerStatuses": [main]}));
                pod.running = Some(running);
            }
            Err(StartProblem::NeverStarts(status)) => pod.set_status(shared, status),
            Err(StartProblem::Ended(ends)) => pod.set_ended(shared, &ends, |_| ()),
        }
        pod
    }

    /// Checks if the pod has ended. `pause` waits for the time of a step in milliseconds.
    pub(super) fn poll(&mut self, shared: &Shared, pause: impl Fn(u64)) {
        if self.code.is_some() {
            return;
        }
        let Some(running) = &mut self.running else {
            // A pod without a started container ends as soon as it is deleted.
            if self.is_end_requested {
                self.code = Some(143);
            }
            return;
        };
        if let Some(ends) = running.poll(shared) {
            self.set_ended(shared, &ends, pause);
        }
    }

    /// Returns `true` while the main container runs.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Asks the pod to end, as for a deletion.
    pub(super) fn request_end(&mut self, shared: &Shared) {
        if self.code.is_some() || std::mem::replace(&mut self.is_end_requested, true) {
            return;
        }
        let deleted = |object: &mut Value| {
            object["metadata"]["deletionTimestamp"] = Value::from("2026-11-23T00:00:00Z");
        };
        drop(shared.objects.change("pods", &self.name, deleted));
        if let Some(running) = &mut self.running {
            running.terminate();
        }
    }

    /// Returns `true` if the pod is being deleted or is gone.
    pub(super) fn is_being_deleted(&self, shared: &Shared) -> bool {
        shared.objects.inspect("pods", &self.name, is_being_deleted).unwrap_or(true)
    }

    /// Reports the end. The kubelet reports the containers' ends first, and the phase about a second later.
    fn set_ended(&mut self, shared: &Shared, ends: &[ContainerEnd], pause: impl Fn(u64)) {
        let code = ends.iter().map(|end| end.code).find(|code| *code != 0).unwrap_or(0);
        pause(TERMINATED_MS);
        self.set_status(shared, self.ended_status("Running", ends));
        pause(PHASE_MS);
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        self.set_status(shared, self.ended_status(phase, ends));
        clear_node(shared, &self.name);
        (self.code, self.running) = (Some(code), None);
    }

    fn ended_status(&self, phase: &str, ends: &[ContainerEnd]) -> Value {
        let main = &self.spec["containers"][0]["name"];
        let shown = |is_main: bool| -> Vec<Value> {
            let ends = ends.iter().filter(|end| (*main == end.name.as_str()) == is_main);
            ends.map(|end| end.pod_status(self.image_id)).collect()
        };
        json!({"phase": phase, "containerStatuses": shown(true), "initContainerStatuses": shown(false)})
    }

    /// Sets the status. The conditions stay.
    fn set_status(&self, shared: &Shared, status: Value) {
        let change = |object: &mut Value| {
            let conditions = object.pointer("/status/conditions").cloned();
            object["status"] = status;
            if let Some(conditions) = conditions {
                object["status"]["conditions"] = conditions;
            }
        };
        drop(shared.objects.change("pods", &self.name, change));
    }
}

/// Clears the node of a pod whose containers have ended, so that a deletion is immediate.
fn clear_node(shared: &Shared, pod: &str) {
    let leave = |object: &mut Value| {
        drop(object["spec"].as_object_mut().and_then(|spec| spec.remove("nodeName")));
    };
    drop(shared.objects.change("pods", pod, leave));
}

/// Replaces variables that refer to fields of the pod or to Secrets by their values.
fn fill_in_fields(shared: &Shared, spec: &mut Value, pod: &Value) {
    let mut containers = Vec::new();
    for (field, all) in spec.as_object_mut().expect("a specification is a map") {
        if ["containers", "initContainers"].contains(&field.as_str()) {
            containers.extend(all.as_array_mut().into_iter().flatten());
        }
    }
    let variables = containers.into_iter().filter_map(|container| container["env"].as_array_mut());
    for variable in variables.flatten() {
        if let Some(source) = variable.pointer("/valueFrom/secretKeyRef") {
            let secret =
                shared.objects.get("secrets", &string_at(source, "/name")).unwrap_or_default();
            let value = BASE64_STANDARD
                .decode(string_at(&secret["data"], &format!("/{}", string_at(source, "/key"))));
            let value = String::from_utf8(value.unwrap_or_default()).unwrap_or_default();
            *variable = json!({"name": variable["name"], "value": value});
            continue;
        }
        let value = match variable.pointer("/valueFrom/fieldRef/fieldPath").and_then(Value::as_str)
        {
            None => continue,
            Some("metadata.uid") => string_at(pod, "/metadata/uid"),
            Some("metadata.annotations['batch.kubernetes.io/job-completion-index']") => {
                string_at(pod, "/metadata/annotations/batch.kubernetes.io~1job-completion-index")
            }
            Some("metadata.labels['training.kubeflow.org/replica-index']") => {
                string_at(pod, "/metadata/labels/training.kubeflow.org~1replica-index")
            }
            Some(other) => panic!("the scripted kubelet does not support the field {other}"),
        };
        *variable = json!({"name": variable["name"], "value": value});
    }
}
