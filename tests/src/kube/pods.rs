//! The pods of a Framework: starts them, and reports their ends in the Framework's status.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Shared;
use super::controller::{FrameworkRun, POLL_INTERVAL, deleted_pod_status, stopped_status};
use super::http::{Request, TextPieces};
use super::kubelet::{AssignedPod, ContainerEnd, RunningPod, StartProblem};
use super::objects::{Deletion, is_being_deleted, string_at};

/// The default grace period of a pod.
const DEFAULT_GRACE_PERIOD: Duration = Duration::from_secs(30);
/// FrameworkController's code of a pod that another client deleted.
const DELETED_POD_CODE: i64 = -101;

/// A pod of a Framework.
struct FrameworkPod {
    name: String,
    /// The name of the role.
    role: String,
    /// The index in the role.
    index: u64,
    /// The number of retries so far.
    retries: u64,
    /// The specification, with the controller's placeholders replaced.
    spec: Value,
    /// `None`: the containers have not started.
    running: Option<RunningPod>,
    /// The ends of the containers, once they have ended.
    ends: Option<Vec<ContainerEnd>>,
    /// The time of the request to end, after the pod was deleted.
    end_requested_at: Option<Instant>,
    /// If set, the cluster has removed the pod.
    is_removed: bool,
}

impl FrameworkPod {
    fn new(run: &FrameworkRun<'_>, role: &Value, index: u64) -> Self {
        let (name, role_name) = (
            format!("{}-{}-{index}", run.name, string_at(role, "/name")),
            string_at(role, "/name"),
        );
        let spec = role.pointer("/task/pod/spec").map(Value::to_string).unwrap_or_default();
        let spec = spec
            .replace("{{FC_FRAMEWORK_NAME}}", &run.name)
            .replace("{{FC_TASKROLE_NAME}}", &role_name)
            .replace("{{FC_TASK_INDEX}}", &index.to_string());
        let spec = serde_json::from_str(&spec).expect("the specification stays valid JSON");
        Self {
            name,
            role: role_name,
            index,
            retries: 0,
            spec,
            running: None,
            ends: None,
            end_requested_at: None,
            is_removed: false,
        }
    }

    /// Returns the variables that the controller adds to every container.
    fn environment(&self, run: &FrameworkRun<'_>) -> Vec<(&'static str, String)> {
        vec![
            ("FC_FRAMEWORK_NAMESPACE", "lab".to_owned()),
            ("FC_FRAMEWORK_NAME", run.name.clone()),
            ("FC_FRAMEWORK_ATTEMPT_ID", "0".to_owned()),
            ("FC_TASKROLE_NAME", self.role.clone()),
            ("FC_TASK_INDEX", self.index.to_string()),
            ("FC_TASK_ATTEMPT_ID", self.retries.to_string()),
            ("FC_POD_NAME", self.name.clone()),
        ]
    }

    fn start(&mut self, run: &FrameworkRun<'_>) -> Result<(), StartProblem> {
        let name = match self.retries {
            0 => self.name.clone(),
            number => format!("{}.{number}", self.name),
        };
        let assigned = AssignedPod {
            folder: run.shared.folder.join("pods").join(&name),
            name,
            spec: self.spec.clone(),
            environment: self.environment(run),
            in_containers: run.in_containers,
        };
        self.running = Some(assigned.start(run.shared)?);
        Ok(())
    }

    /// Checks if the pod has ended.
    fn poll(&mut self, run: &FrameworkRun<'_>) {
        if self.ends.is_none() {
            self.ends = self.running.as_mut().and_then(|running| running.poll(run.shared));
        }
    }

    /// Returns `true` while a container runs.
    fn is_running(&self) -> bool {
        self.running.is_some() && self.ends.is_none()
    }

    /// Ends a deleted pod, as the kubelet does: asks the containers to end, kills them after the grace
    /// period, and removes the pod.
    fn apply_deletion(&mut self, run: &FrameworkRun<'_>) {
        if self.is_removed {
            return;
        }
        let grace = |pod: &Value| {
            let own = pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_u64);
            is_being_deleted(pod).then(|| Duration::from_secs(own.unwrap_or(30)))
        };
        let grace = match run.shared.objects.inspect("pods", &self.name, grace) {
            // The object is gone, so there is no grace period.
            None => Some(Duration::ZERO),
            Some(grace) if run.shared.is_ending.load(Ordering::SeqCst) => {
                grace.or(Some(DEFAULT_GRACE_PERIOD))
            }
            Some(grace) => grace,
        };
        let Some(grace) = grace else { return };
        let asked = self.end_requested_at.unwrap_or_else(Instant::now);
        self.end_requested_at = Some(asked);
        if let Some(running) = self.running.as_mut().filter(|_| self.ends.is_none()) {
            running.terminate();
            if asked.elapsed() >= grace {
                running.kill();
            }
        }
        if !self.is_running() {
            run.shared.objects.remove("pods", &self.name);
            self.is_removed = true;
        }
    }

    /// Returns the code of the container that decides. For a pod that another client deleted, it is the
    /// controller's code.
    fn code(&self) -> Option<i64> {
        if self.end_requested_at.is_some() {
            return self.is_removed.then_some(DELETED_POD_CODE);
        }
        let codes = self.ends.iter().flatten().map(|container| container.code);
        codes.max_by_key(|code| *code != 0)
    }
}

/// Deletes a pod for a reason of the cluster, which its conditions contain.
pub(super) fn disrupt_pod(shared: &Shared, pod: &str, reason: &str, message: &str) {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
    });
    let set_conditions = |object: &mut Value| object["status"]["conditions"] = json!([condition]);
    drop(shared.objects.change("pods", pod, set_conditions));
    shared.objects.delete("pods", pod, Deletion::default());
}

/// Runs a Framework's pods to their end.
#[expect(clippy::too_many_lines, reason = "one sequence, in the order of the real server")]
pub(super) fn run_pods(run: &FrameworkRun<'_>) {
    for state in ["AttemptCreationPending", "AttemptCreationRequested", "AttemptPreparing"] {
        if !run.set_status(json!({"state": state, "attemptStatus": {"completionStatus": null}})) {
            return;
        }
        if state == "AttemptCreationRequested" {
            run.create_attempt();
        }
    }
    let roles = run.framework.pointer("/spec/taskRoles").and_then(Value::as_array);
    let roles = roles.cloned().unwrap_or_default();
    let mut pods = Vec::new();
    for role in &roles {
        for index in 0..role["taskNumber"].as_u64().unwrap_or(1) {
            run.create_pod(role, index, &json!({"phase": "Pending"}));
            let mut pod = FrameworkPod::new(run, role, index);
            let bind = |object: &mut Value| object["spec"]["nodeName"] = Value::from("node1");
            drop(run.shared.objects.change("pods", &pod.name, bind));
            match pod.start(run) {
                Ok(()) => {}
                Err(StartProblem::Ended(containers)) => pod.ends = Some(containers),
                Err(StartProblem::NeverStarts(status)) => {
                    run.set_pod_status(&pod.name, &status);
                    run.wait_until_unwanted();
                }
            }
            pods.push(pod);
        }
    }
    if pods.iter().all(|pod| pod.running.is_some()) {
        for pod in &pods {
            run.set_pod_status(&pod.name, &json!({"phase": "Running"}));
        }
        run.set_status(
            json!({"state": "AttemptRunning", "attemptStatus": {"completionStatus": null}}),
        );
    }

    let decided = loop {
        for pod in &mut pods {
            pod.poll(run);
            pod.apply_deletion(run);
            restart_failed(run, &roles, pod);
        }
        let works = run.shared.controllers_running.load(Ordering::SeqCst);
        // After the deletion of the Framework, the state of its pods does not matter. Only a controller that runs
        // follows a request to stop.
        let is_ended = || run.is_being_deleted() || run.shared.is_ending.load(Ordering::SeqCst);
        let is_over = if works { run.is_unwanted() } else { is_ended() };
        if is_over {
            break None;
        }
        if let Some(decided) = deciding_pod(&roles, &pods).filter(|_| works) {
            break Some(decided);
        }
        std::thread::park_timeout(POLL_INTERVAL);
    };
    let status = match decided {
        None => stopped_status(),
        Some(pod) => completed_status(&pods[pod]),
    };
    let mut ending = status.clone();
    ending["state"] = Value::from("AttemptDeletionPending");
    run.set_status(ending);
    if !run.is_being_deleted() {
        run.delete_attempt();
    }
    while pods.iter().any(|pod| pod.is_running() || !pod.is_removed) {
        for pod in &mut pods {
            pod.poll(run);
            pod.apply_deletion(run);
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
    run.wait_until_attempt_is_gone();
    run.set_status(status);
}

/// Starts a failed pod again with new volumes, as often as its task's policy permits.
fn restart_failed(run: &FrameworkRun<'_>, roles: &[Value], pod: &mut FrameworkPod) {
    let role = roles.iter().find(|role| string_at(role, "/name") == pod.role);
    let most = role.and_then(|role| role.pointer("/task/retryPolicy/maxRetryCount")?.as_u64());
    let failed = pod.end_requested_at.is_none() && pod.code().is_some_and(|code| code != 0);
    if !failed || pod.retries >= most.unwrap_or(0) {
        return;
    }
    (pod.retries, pod.running, pod.ends) = (pod.retries + 1, None, None);
    if let Err(StartProblem::Ended(containers)) = pod.start(run) {
        pod.ends = Some(containers);
    }
}

/// Returns the pod that decides the end, by the completion policy of each role.
fn deciding_pod(roles: &[Value], pods: &[FrameworkPod]) -> Option<usize> {
    for role in roles {
        let name = string_at(role, "/name");
        let policy = &role["frameworkAttemptCompletionPolicy"];
        let bound =
            |field: &str| usize::try_from(policy[field].as_i64().unwrap_or(-1)).unwrap_or(0);
        let ended = |well: bool| {
            let of_role = pods.iter().enumerate().filter(|(_, pod)| pod.role == name);
            of_role.filter(move |(_, pod)| pod.code().is_some_and(|code| (code == 0) == well))
        };
        for (field, well) in [("minFailedTaskCount", false), ("minSucceededTaskCount", true)] {
            let bound = bound(field);
            if bound > 0 && ended(well).count() >= bound {
                return ended(well).next_back().map(|(at, _)| at);
            }
        }
    }
    let all = pods.iter().all(|pod| pod.code().is_some());
    (all && !pods.is_empty()).then(|| pods.len() - 1)
}

/// Returns the status of a Framework whose end a pod has decided.
fn completed_status(pod: &FrameworkPod) -> Value {
    if pod.is_removed {
        return deleted_pod_status(&pod.role, pod.index);
    }
    let containers = pod.ends.clone().unwrap_or_default();
    let exit = pod.code().unwrap_or(1);
    let is_oom_killed = containers.iter().any(|container| container.reason == "OOMKilled");
    let shown: Vec<Value> = containers.iter().map(ContainerEnd::framework_status).collect();
    let (code, phrase, kind) = match exit {
        0 => (0, "Succeeded", "Succeeded"),
        _ if is_oom_killed => (-1200, "ContainerDockerOOMKilled", "Failed"),
        code => (code, "ContainerUnrecognizedFailed", "Failed"),
    };
    json!({
        "state": "Completed",
        "attemptStatus": {
            "completionStatus": {
                "code": code, "phrase": phrase, "diagnostics": "",
                "type": {"name": kind, "attributes": []},
                "trigger": {"taskRoleName": pod.role, "taskIndex": pod.index, "message": ""},
            },
            "taskRoleStatuses": [{"name": pod.role, "taskStatuses": [{
                "index": pod.index,
                "attemptStatus": {"completionStatus": {
                    "code": code, "phrase": phrase,
                    "pod": {"containers": shown},
                }},
            }]}],
        },
    })
}

/// Returns the output of a pod that is a process: all of it, its last lines, or everything until its end.
/// (`sinceTime` is ignored, so such output begins at the start.)
pub(super) fn pod_log(
    shared: &Arc<Shared>,
    pod: &str,
    request: &Request,
) -> Result<TextPieces, String> {
    let waits = |_| format!("container in pod {pod} is waiting to start: ContainerCreating");
    let mut file = File::open(shared.folder.join("pods").join(pod).join("log")).map_err(waits)?;
    let (shared, pod) = (Arc::clone(shared), pod.to_owned());
    let lines = request.query("tailLines").and_then(|lines| lines.parse::<usize>().ok());
    let follow = request.query("follow") == Some("true");
    let mut all = Some(lines);
    Ok(Box::new(move || {
        loop {
            let is_present = !shared.is_ending.load(Ordering::SeqCst)
                && shared.objects.get("pods", &pod).is_some();
            let mut piece = Vec::new();
            file.read_to_end(&mut piece).ok()?;
            if let Some(Some(lines)) = all.take() {
                let ends = piece.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
                let from = ends.map(|(at, _)| at + 1).nth(lines).unwrap_or(0);
                piece.drain(..from);
            }
            if !piece.is_empty() {
                return Some(piece);
            }
            if !(follow && is_present) {
                return None;
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }))
}
