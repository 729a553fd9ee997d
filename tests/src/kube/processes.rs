//! The kubelet without containers: a pod is a process of this machine. Mount paths are replaced by the
//! folders of the volumes.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::kubelet::AssignedPod;
use super::objects::string_at;
use super::{Shared, volumes};

/// Starts a pod's main container.
pub(super) fn start(shared: &Shared, pod: &AssignedPod) -> Result<Child, String> {
    let container = pod.main_container();
    let made = volumes::create_volumes(shared, &pod.spec, &pod.folder)?;
    let mut mounts = Vec::new();
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let name = string_at(mount, "/name");
        let (_, place) =
            made.iter().find(|(known, _)| *known == name).ok_or(format!("no volume {name}"))?;
        mounts.push((string_at(mount, "/mountPath"), place));
    }
    // Longest path first, so that the most specific mount is found.
    mounts.sort_by_key(|(mounted, _)| std::cmp::Reverse(mounted.len()));
    // Converts a path in the pod to a path of this machine.
    let to_host_path = |text: &str| {
        for (mounted, place) in &mounts {
            if let Some(rest) = text.strip_prefix(mounted.as_str())
                && (rest.is_empty() || rest.starts_with('/'))
            {
                return format!("{}{rest}", place.display());
            }
        }
        text.to_owned()
    };
    // Kubernetes' replacements, as far as the manager uses them.
    let plain = |text: &str| to_host_path(&text.replace("$$", "$"));
    let words: Vec<String> = container["command"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(plain)
        .collect();
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let work = pod.folder.join("work");
    std::fs::create_dir_all(&work).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&work).env_clear();
    for name in ["PATH", "LLVM_PROFILE_FILE"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // Marks the processes of the test bed.
    command.env("TEST_BED", &shared.folder);
    command.envs(pod.environment.iter().map(|(name, value)| (*name, value)));
    for variable in container["env"].as_array().into_iter().flatten() {
        command.env(string_at(variable, "/name"), plain(&string_at(variable, "/value")));
    }
    let (stdout, stderr) = pod.create_log(container)?;
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    command.spawn().map_err(|error| format!("{program}: {error}"))
}
