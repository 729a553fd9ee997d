//! The kubelet: a pod is a process of this machine, in a folder of its own that stands for its volumes.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::controller::{Stage, stopped};
use super::objects::text;

const LOOK: Duration = Duration::from_millis(5);
/// How often volumes are renewed. The real kubelet takes a minute.
const RENEWAL: Duration = Duration::from_millis(300);

struct Pod {
    name: String,
    role: String,
    index: u64,
    child: Child,
    code: Option<i32>,
    /// How often the controller has tried it again.
    again: u64,
}

/// Runs a Framework's pods to their end.
pub(super) fn run(stage: &Stage<'_>) {
    for state in ["AttemptCreationPending", "AttemptCreationRequested", "AttemptPreparing"] {
        if !stage.stand(json!({"state": state, "attemptStatus": {"completionStatus": null}})) {
            return;
        }
    }
    let roles = stage.framework.pointer("/spec/taskRoles").and_then(Value::as_array);
    let roles = roles.cloned().unwrap_or_default();
    let mut pods = Vec::new();
    for role in &roles {
        for index in 0..role["taskNumber"].as_u64().unwrap_or(1) {
            let name = stage.pod(role, index, &json!({"phase": "Pending"}));
            let child = match start(stage, role, index, (&name, 0)) {
                Ok(child) => child,
                Err(problem) => {
                    end(stage, &role["name"], index, 128, "StartError", &problem);
                    return;
                }
            };
            pods.push(Pod { name, role: text(role, "/name"), index, child, code: None, again: 0 });
        }
    }
    for pod in &pods {
        let change = |object: &mut Value| object["status"] = json!({"phase": "Running"});
        drop(stage.shared.objects.change("pods", &pod.name, change));
    }
    stage.stand(json!({"state": "AttemptRunning", "attemptStatus": {"completionStatus": null}}));

    let mut renewed = Instant::now();
    let decided = loop {
        if renewed.elapsed() > RENEWAL {
            renew(stage, &roles, &pods);
            renewed = Instant::now();
        }
        for pod in &mut pods {
            if pod.code.is_none() {
                pod.code = pod.child.try_wait().ok().flatten().map(|status| {
                    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
                });
                try_again(stage, &roles, pod);
            }
        }
        if let Some(decided) = decide(&roles, &pods) {
            break Some(decided);
        }
        if stage.is_unwanted() {
            break None;
        }
        std::thread::park_timeout(LOOK);
    };
    end_all(&mut pods);
    stage.drop_pods();
    match decided {
        None => drop(stage.stand(stopped())),
        Some((pod, _)) => {
            let Pod { role, index, code, .. } = &pods[pod];
            end(stage, &Value::from(role.as_str()), *index, code.unwrap_or(1), "Error", "");
        }
    }
}

/// Starts a pod that failed again, with new volumes, as often as its task's policy says.
fn try_again(stage: &Stage<'_>, roles: &[Value], pod: &mut Pod) {
    let role = roles.iter().find(|role| text(role, "/name") == pod.role);
    let most = role.and_then(|role| role.pointer("/task/retryPolicy/maxRetryCount")?.as_u64());
    if let Some(role) = role
        && pod.code.is_some_and(|code| code != 0)
        && pod.again < most.unwrap_or(0)
        && let Ok(child) = start(stage, role, pod.index, (&pod.name, pod.again + 1))
    {
        (pod.child, pod.code, pod.again) = (child, None, pod.again + 1);
    }
}

/// The pod that decides, and whether it does so well: the completion policy of each role.
fn decide(roles: &[Value], pods: &[Pod]) -> Option<(usize, bool)> {
    for role in roles {
        let name = text(role, "/name");
        let policy = &role["frameworkAttemptCompletionPolicy"];
        let bound =
            |field: &str| usize::try_from(policy[field].as_i64().unwrap_or(-1)).unwrap_or(0);
        let ended = |well: bool| {
            let of_role = pods.iter().enumerate().filter(|(_, pod)| pod.role == name);
            of_role.filter(move |(_, pod)| pod.code.is_some_and(|code| (code == 0) == well))
        };
        for (field, well) in [("minFailedTaskCount", false), ("minSucceededTaskCount", true)] {
            let bound = bound(field);
            if bound > 0 && ended(well).count() >= bound {
                return ended(well).next_back().map(|(at, _)| (at, well));
            }
        }
    }
    let all = pods.iter().all(|pod| pod.code.is_some());
    (all && !pods.is_empty()).then_some((pods.len() - 1, true))
}

fn end(stage: &Stage<'_>, role: &Value, index: u64, code: i32, reason: &str, message: &str) {
    let (phrase, kind) = if code == 0 {
        ("Succeeded", "Succeeded")
    } else {
        ("ContainerUnrecognizedFailed", "Failed")
    };
    let reason = if code == 0 { "Completed" } else { reason };
    let container =
        json!({"name": "framework", "code": code, "reason": reason, "message": message});
    stage.stand(json!({
        "state": "Completed",
        "attemptStatus": {
            "completionStatus": {
                "code": code, "phrase": phrase, "diagnostics": "",
                "type": {"name": kind, "attributes": []},
                "trigger": {"taskRoleName": role, "taskIndex": index, "message": ""},
            },
            "taskRoleStatuses": [{"name": role, "taskStatuses": [{
                "index": index,
                "attemptStatus": {"completionStatus": {
                    "code": code, "phrase": phrase,
                    "pod": {"containers": [container]},
                }},
            }]}],
        },
    }));
}

/// SIGTERM, and after the pods' 30 s SIGKILL.
fn end_all(pods: &mut [Pod]) {
    let begun = Instant::now();
    for pod in pods.iter().filter(|pod| pod.code.is_none()) {
        signal(pod, Signal::SIGTERM);
    }
    while pods.iter_mut().any(|pod| pod.code.is_none() && matches!(pod.child.try_wait(), Ok(None)))
    {
        if begun.elapsed() > Duration::from_secs(30) {
            for pod in pods.iter() {
                signal(pod, Signal::SIGKILL);
            }
        }
        std::thread::park_timeout(LOOK);
    }
}

fn signal(pod: &Pod, signal: Signal) {
    let pid = i32::try_from(pod.child.id()).expect("a process id is a positive i32");
    // It may have ended meanwhile.
    let _gone = kill(Pid::from_raw(pid), signal);
}

/// Where the volumes of a pod's present try are.
fn folder_of(stage: &Stage<'_>, (name, again): (&str, u64)) -> PathBuf {
    let name = if again == 0 { name.to_owned() } else { format!("{name}.{again}") };
    stage.shared.folder.join("pods").join(name)
}

/// Starts a pod's container.
fn start(
    stage: &Stage<'_>,
    role: &Value,
    index: u64,
    (name, again): (&str, u64),
) -> Result<Child, String> {
    let spec = role.pointer("/task/pod/spec").cloned().unwrap_or_default();
    let folder = folder_of(stage, (name, again));
    let container = &spec["containers"][0];
    let mounts = mount(stage, &spec, container, &folder)?;
    // A path in the pod, on this machine.
    let here = |text: &str| {
        for (mounted, place) in &mounts {
            if let Some(rest) = text.strip_prefix(mounted.as_str())
                && (rest.is_empty() || rest.starts_with('/'))
            {
                return format!("{}{rest}", place.display());
            }
        }
        text.to_owned()
    };
    // Kubernetes' own replacements, as far as they are used.
    let plain = |text: &str| here(&text.replace("$$", "$"));
    let words: Vec<String> = container["command"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(plain)
        .collect();
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let work = folder.join("work");
    std::fs::create_dir_all(&work).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&work).env_clear();
    for name in ["PATH", "LLVM_PROFILE_FILE"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // Whose processes these are.
    command.env("TEST_BED", &stage.shared.folder);
    command.env("FC_FRAMEWORK_NAME", &stage.name).env("FC_POD_NAME", name);
    command.env("FC_FRAMEWORK_ATTEMPT_ID", "0").env("FC_TASK_ATTEMPT_ID", again.to_string());
    command.env("FC_TASKROLE_NAME", text(role, "/name")).env("FC_TASK_INDEX", index.to_string());
    for variable in container["env"].as_array().into_iter().flatten() {
        command.env(text(variable, "/name"), plain(&text(variable, "/value")));
    }
    let log = File::create(folder.join("log")).map_err(|error| error.to_string())?;
    let again = log.try_clone().map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(log).stderr(again);
    command.spawn().map_err(|error| format!("{program}: {error}"))
}

/// Makes the container's volumes: where each is mounted, and where it is; the longest path first.
fn mount(
    stage: &Stage<'_>,
    spec: &Value,
    container: &Value,
    folder: &Path,
) -> Result<Vec<(String, PathBuf)>, String> {
    let mut mounts = Vec::new();
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let name = text(mount, "/name");
        let place = folder.join("volumes").join(&name);
        std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
        let volumes = spec["volumes"].as_array();
        let volume =
            volumes.and_then(|list| list.iter().find(|volume| volume["name"] == name.as_str()));
        let volume = volume.ok_or(format!("no volume {name}"))?;
        project(stage, volume, &place)?;
        mounts.push((text(mount, "/mountPath"), place));
    }
    mounts.sort_by_key(|(mounted, _)| std::cmp::Reverse(mounted.len()));
    Ok(mounts)
}

/// Writes a volume's Secrets into its folder.
fn project(stage: &Stage<'_>, volume: &Value, place: &Path) -> Result<(), String> {
    let sources = volume.pointer("/projected/sources").and_then(Value::as_array);
    for source in sources.into_iter().flatten() {
        let name = text(source, "/secret/name");
        let secret =
            stage.shared.objects.get("secrets", &name).ok_or(format!("no secret {name}"))?;
        for (key, value) in secret["data"].as_object().into_iter().flatten() {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(value.as_str().unwrap_or_default())
                .map_err(|error| error.to_string())?;
            // Whole or not at all, as the kubelet does.
            let (part, whole) = (place.join(format!(".{key}.part")), place.join(key));
            std::fs::write(&part, bytes).map_err(|error| error.to_string())?;
            std::fs::rename(&part, &whole).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Renews what the pods' volumes hold, as the kubelet does from time to time.
fn renew(stage: &Stage<'_>, roles: &[Value], pods: &[Pod]) {
    for pod in pods.iter().filter(|pod| pod.code.is_none()) {
        let role = roles.iter().find(|role| text(role, "/name") == pod.role);
        let volumes = role.and_then(|role| role.pointer("/task/pod/spec/volumes")?.as_array());
        for volume in volumes.into_iter().flatten() {
            let place = folder_of(stage, (&pod.name, pod.again)).join("volumes");
            // A Secret that was deleted leaves what it was.
            drop(project(stage, volume, &place.join(text(volume, "/name"))));
        }
    }
}
