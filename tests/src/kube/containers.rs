//! The kubelet with Docker. It runs a pod's init containers in order and then its main container, with the
//! user, group, rights, limits, volumes, variables and command that Kubernetes would give them. Pods use this
//! machine's network.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::kubelet::{AssignedPod, ContainerEnd, StartProblem};
use super::objects::string_at;
use super::{Shared, volumes};

/// The label of a scripted cluster's containers.
const CONTAINER_LABEL: &str = "trialkeeper-tests";
/// The number of bytes of a failed container's output that Kubernetes keeps as its message.
const MAX_MESSAGE_BYTES: usize = 2048;

/// Runs a pod's init containers, and starts its main container. The returned process ends with the container.
pub(super) fn start(shared: &Shared, pod: &AssignedPod) -> Result<Child, StartProblem> {
    let other = |problem: String| {
        StartProblem::Ended(vec![ContainerEnd::not_started(pod.main_container(), &problem)])
    };
    let mounts = volumes::create_volumes(shared, &pod.spec, &pod.folder).map_err(other)?;
    let mut done = Vec::new();
    for container in pod.init_containers() {
        create_container(shared, pod, container, &mounts)?;
        drop(attach(pod, container).map_err(other)?.wait());
        let end = collect_end(pod, container);
        let failed = end.code != 0;
        done.push(end);
        if failed {
            return Err(StartProblem::Ended(done));
        }
    }
    create_container(shared, pod, pod.main_container(), &mounts)?;
    attach(pod, pod.main_container()).map_err(other)
}

/// Returns the ends of a pod's containers.
pub(super) fn container_ends(pod: &AssignedPod) -> Vec<ContainerEnd> {
    // The init containers succeeded, otherwise the main one would not have started.
    let inits =
        pod.init_containers().map(|container| ContainerEnd::new(container, 0, "Completed", ""));
    inits.chain([collect_end(pod, pod.main_container())]).collect()
}

/// Returns a container's name in Docker, which is unique for each try of a pod.
fn container_name(pod: &AssignedPod, container: &Value) -> String {
    format!("{}.{}", pod.name, string_at(container, "/name"))
}

/// Returns the file of a container's termination message.
fn message_file(pod: &AssignedPod, container: &Value) -> PathBuf {
    pod.folder.join(format!("{}.termination", string_at(container, "/name")))
}

/// Creates a container.
#[expect(clippy::too_many_lines, reason = "one sequence, in the order of the real server")]
fn create_container(
    shared: &Shared,
    pod: &AssignedPod,
    container: &Value,
    volumes: &[(String, PathBuf)],
) -> Result<(), StartProblem> {
    let waiting_problem = |reason: &str, message: String| {
        let why = json!({"waiting": {"reason": reason, "message": message}});
        let shown = json!({"name": container["name"], "image": container["image"], "state": why});
        StartProblem::NeverStarts(json!({"phase": "Pending", "containerStatuses": [shown]}))
    };
    let image = string_at(container, "/image");
    let Ok(own_user) = run_docker(&["image", "inspect", "--format", "{{.Config.User}}", &image])
    else {
        return Err(waiting_problem(
            "ErrImagePull",
            format!("failed to pull image \"{image}\": not found"),
        ));
    };
    // A container's setting has priority over its pod's.
    let security = |field: &str| {
        let own = &container["securityContext"][field];
        if own.is_null() { &pod.spec["securityContext"][field] } else { own }
    };
    let user = security("runAsUser").as_u64().map(|user| user.to_string());
    let effective = user.clone().unwrap_or(own_user.trim().to_owned());
    let is_root = ["", "0", "root"].contains(&effective.split(':').next().unwrap_or_default());
    if security("runAsNonRoot") == true && is_root {
        let problem = "container has runAsNonRoot and image will run as root";
        return Err(waiting_problem("CreateContainerConfigError", problem.to_owned()));
    }
    let name = container_name(pod, container);
    let mut words: Vec<String> =
        ["create", "--name", &name, "--network", "host"].map(str::to_owned).to_vec();
    let mut add = |option: &str, value: String| words.push(format!("{option}={value}"));
    add("--label", format!("{CONTAINER_LABEL}={}", shared.folder.display()));
    if let Some(user) = user {
        let group = security("runAsGroup").as_u64().unwrap_or(0);
        add("--user", format!("{user}:{group}"));
    }
    if let Some(group) = pod.spec.pointer("/securityContext/fsGroup") {
        add("--group-add", group.to_string());
    }
    for right in security("capabilities")["drop"].as_array().into_iter().flatten() {
        add("--cap-drop", right.as_str().unwrap_or_default().to_owned());
    }
    if security("allowPrivilegeEscalation") == false {
        add("--security-opt", "no-new-privileges".to_owned());
    }
    if security("readOnlyRootFilesystem") == true {
        add("--read-only", "true".to_owned());
    }
    if let Some(memory) = container.pointer("/resources/limits/memory").and_then(Value::as_str) {
        let memory = memory.replace("Mi", "m");
        add("--memory", memory.clone());
        add("--memory-swap", memory);
    }
    if let Some(cpu) = container.pointer("/resources/limits/cpu").and_then(Value::as_str) {
        let cores = match cpu.strip_suffix('m') {
            Some(thousandths) => thousandths.parse().unwrap_or(1000.0) / 1000.0,
            None => cpu.parse::<f64>().unwrap_or(1.0),
        };
        add("--cpus", cores.to_string());
    }
    if let Some(work) = container["workingDir"].as_str() {
        add("--workdir", work.to_owned());
    }
    let message = message_file(pod, container);
    let made = File::create(&message)
        .and_then(|_| fs::set_permissions(&message, Permissions::from_mode(0o666)));
    made.unwrap_or_else(|error| panic!("{}: {error}", message.display()));
    add("--volume", format!("{}:/dev/termination-log", message.display()));
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let Some((_, place)) = volumes.iter().find(|(known, _)| mount["name"] == known.as_str())
        else {
            return Err(waiting_problem(
                "CreateContainerConfigError",
                format!("no volume {}", mount["name"]),
            ));
        };
        let end = if mount["readOnly"] == true { ":ro" } else { "" };
        add("--volume", format!("{}:{}{end}", place.display(), string_at(mount, "/mountPath")));
    }
    let given = pod.environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    let mut known: Vec<(String, String)> = given.collect();
    for variable in container["env"].as_array().into_iter().flatten() {
        let value = expand_references(&string_at(variable, "/value"), &known);
        known.push((string_at(variable, "/name"), value));
    }
    for (name, value) in &known {
        add("--env", format!("{name}={value}"));
    }
    let list = |field: &str| -> Vec<String> {
        let words = container[field].as_array().into_iter().flatten();
        words.map(|word| expand_references(word.as_str().unwrap_or_default(), &known)).collect()
    };
    let (command, arguments) = (list("command"), list("args"));
    if let Some(program) = command.first() {
        add("--entrypoint", program.clone());
    }
    words.push(image);
    words.extend(command.into_iter().skip(1).chain(arguments));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run_docker(&words).map_err(|problem| waiting_problem("CreateContainerError", problem))?;
    Ok(())
}

/// Returns a container's end, and removes the container.
fn collect_end(pod: &AssignedPod, container: &Value) -> ContainerEnd {
    let name = container_name(pod, container);
    let state = run_docker(&["inspect", "--format", "{{json .State}}", &name]).unwrap_or_default();
    let state: Value = serde_json::from_str(&state).unwrap_or_default();
    drop(run_docker(&["rm", "--force", &name]));
    let error = string_at(&state, "/Error");
    if !error.is_empty() {
        return ContainerEnd::not_started(container, &error);
    }
    let code = state["ExitCode"].as_i64().unwrap_or(137);
    let mut message = fs::read_to_string(message_file(pod, container)).unwrap_or_default();
    if message.is_empty() && code != 0 {
        let log = fs::read(pod.log_file(container)).unwrap_or_default();
        message = String::from_utf8_lossy(&log[log.len().saturating_sub(MAX_MESSAGE_BYTES)..])
            .into_owned();
    }
    let reason = match code {
        0 => "Completed",
        _ if state["OOMKilled"] == true => "OOMKilled",
        _ => "Error",
    };
    ContainerEnd::new(container, code, reason, &message)
}

/// Sends SIGTERM to the pod's container, and SIGKILL after the grace period.
pub(super) fn stop(pod: &AssignedPod) {
    let name = container_name(pod, pod.main_container());
    let grace = pod.spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30).to_string();
    let mut command = Command::new("docker");
    command.args(["stop", "--time", &grace, &name]);
    drop(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn());
}

/// Starts a container. The returned process ends with it.
fn attach(pod: &AssignedPod, container: &Value) -> Result<Child, String> {
    let (stdout, stderr) = pod.create_log(container)?;
    let mut command = Command::new("docker");
    command.args(["start", "--attach", &container_name(pod, container)]);
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    command.spawn().map_err(|error| format!("docker: {error}"))
}

/// Removes every container of a scripted cluster.
pub(super) fn remove_all(folder: &Path) {
    let filter = format!("label={CONTAINER_LABEL}={}", folder.display());
    let left = run_docker(&["ps", "--all", "--quiet", "--filter", &filter]).unwrap_or_default();
    for container in left.split_whitespace() {
        drop(run_docker(&["rm", "--force", container]));
    }
}

fn run_docker(words: &[&str]) -> Result<String, String> {
    let done = Command::new("docker").args(words).stdin(Stdio::null()).output();
    let done = done.map_err(|error| format!("docker: {error}"))?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&done.stderr).trim().to_owned())
    }
}

/// Expands references as Kubernetes does: a known `$(NAME)`, and `$$` for `$`.
fn expand_references(text: &str, known: &[(String, String)]) -> String {
    let mut whole = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        whole.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            whole.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))
        {
            match known.iter().rev().find(|(known, _)| known == name) {
                Some((_, value)) => whole.push_str(value),
                None => whole.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            whole.push('$');
        }
    }
    whole + rest
}
