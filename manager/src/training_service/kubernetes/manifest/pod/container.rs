//! PURE: the container that runs the trial's command under the agent.

use serde_json::{Value, json};

use super::super::cache::{self, CachedFiles};
use super::super::{parameters, set_default};
use super::environment::set_variable_from_secret;
use super::volumes::{container_mount, shared_disk_parts};
use super::{ACCESS_FOLDER, BARRIER_FOLDER, POD_FOLDER, WorkloadSettings, append};
use crate::config::kubernetes::{AgentSource, RoleSpec};
use crate::config::render_command;
use crate::training_service::TrialJobSpec;

/// The folder where the agent's image is mounted, and the path of the agent in the image that `Dockerfile.trial`
/// builds.
const AGENT_FOLDER: &str = "/trialkeeper-agent";
const INSTALLED_AGENT: &str = "/usr/local/bin/trialkeeper";
/// The first port of the first role, the same as in NNI.
const FIRST_PORT: usize = 4000;
/// A script that fetches the agent, if the image lacks it, and executes it. `$1` is the trial's command, and `$2` is a
/// folder.
pub(in crate::training_service::kubernetes::manifest) const BOOTSTRAP_SCRIPT: &str =
    include_str!("../bootstrap.sh");
/// A script that writes an attempt's token from a variable to the agent's token file, and executes the command that
/// follows.
const TOKEN_SCRIPT: &str = include_str!("../token.sh");

pub(super) fn complete_container(
    container: &mut Value,
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    position: usize,
) {
    let spec = &settings.spec;
    set_default(container, "name", Value::from(settings.container_name));
    if let Some(image) = &role.image {
        container["image"] = Value::from(image.as_str());
    }
    if let Some(policy) = &spec.image_pull_policy {
        container["imagePullPolicy"] = Value::from(policy.as_str());
    }
    let mut line = render_command(&role.command, &parameters(job));
    if spec.barrier_image.is_some() {
        // The script reads the ports that the agent sets.
        line = format!(". {BARRIER_FOLDER}/injector.sh && {line}");
    }
    // Kubernetes expands `$(NAME)` and reads `$$` as `$` here.
    let line = line.replace('$', "$$");
    container["command"] = agent_command(settings, &line);
    if matches!(spec.agent, AgentSource::Volume(_)) {
        let mount =
            json!({"name": "trialkeeper-agent", "mountPath": AGENT_FOLDER, "readOnly": true});
        append(container, "volumeMounts", [mount]);
    }
    if let Some(container) = container.as_object_mut() {
        container.shift_remove("args");
    }
    let mounts = [
        json!({"name": "trialkeeper", "mountPath": POD_FOLDER}),
        json!({"name": "trialkeeper-access", "mountPath": ACCESS_FOLDER, "readOnly": true}),
    ];
    append(container, "volumeMounts", mounts);
    let volume_parts = shared_disk_parts(settings, job, role);
    append(container, "volumeMounts", volume_parts.mounts);
    append(container, "volumeMounts", spec.mounts.iter().map(container_mount));
    if spec.barrier_image.is_some() {
        let mount = json!({"name": "frameworkbarrier-volume", "mountPath": BARRIER_FOLDER});
        append(container, "volumeMounts", [mount]);
    }
    if spec.roles.len() > 1 || role.task_number > 1 {
        set_default(container, "ports", json!([{"containerPort": FIRST_PORT + position}]));
    }
    set_default(container, "securityContext", container_security_context());
    set_resources(container, role);
}

/// Returns the command that runs a shell line under the agent. A script fetches the files that neither the image nor
/// the cache has.
fn agent_command(settings: &WorkloadSettings, line: &str) -> Value {
    let agent = match &settings.spec.agent {
        AgentSource::Auto | AgentSource::Image => "trialkeeper".to_owned(),
        AgentSource::Copy(_) => format!("{POD_FOLDER}/bin/trialkeeper"),
        AgentSource::Volume(_) => format!("{AGENT_FOLDER}{INSTALLED_AGENT}"),
    };
    let cached = settings.cached_files.as_ref();
    if cached.is_none() && settings.spec.agent != AgentSource::Auto {
        return json!([agent, "run", "--shell", line]);
    }
    let functions = if cached.is_some() { cache::CACHE_SCRIPT } else { "" };
    let script = format!("{functions}{BOOTSTRAP_SCRIPT}").replace('$', "$$");
    let mut words = vec!["/bin/sh", "-c", &script, &agent, line, POD_FOLDER];
    if let Some(CachedFiles { agent, code }) = cached {
        let sums = [agent, code].map(|sum| sum.as_deref().unwrap_or_default());
        words.push(cache::CACHE_FOLDER);
        words.extend(sums);
    }
    json!(words)
}

/// Makes a container take its trial's token from a variable instead of a volume.
pub(in crate::training_service::kubernetes) fn take_token_from_variable(
    container: &mut Value,
    secret: &str,
) {
    set_variable_from_secret(container, "TRIALKEEPER_TOKEN", (secret, "token"));
    let script = TOKEN_SCRIPT.replace('$', "$$");
    let mut words = vec![json!("/bin/sh"), json!("-c"), json!(script), json!("trialkeeper")];
    words.extend(container["command"].as_array().cloned().unwrap_or_default());
    container["command"] = Value::Array(words);
}

/// Sets CPU, memory and GPUs. The limits equal the requests.
pub(super) fn set_resources(container: &mut Value, role: &RoleSpec) {
    let wanted = [
        ("cpu", role.cpu.clone()),
        ("memory", role.memory_mib.map(|mib| format!("{mib}Mi"))),
        ("nvidia.com/gpu", role.gpus.filter(|gpus| *gpus > 0).map(|gpus| gpus.to_string())),
    ];
    for (name, amount) in wanted {
        let Some(amount) = amount else { continue };
        for bound in ["requests", "limits"] {
            set_default(&mut container["resources"], bound, json!({}));
            container["resources"][bound][name] = Value::from(amount.as_str());
        }
    }
}

/// Returns the security context of a container under the profile "restricted".
pub(super) fn container_security_context() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}
