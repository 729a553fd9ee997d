//! PURE: the containers that run before the trial.

use serde_json::{Value, json};

use super::container::{container_security_context, set_resources};
use super::{BARRIER_FOLDER, POD_FOLDER};
use crate::config::kubernetes::RoleSpec;

pub(super) fn installer_container(
    image: &str,
    pull_policy: Option<&str>,
    role: &RoleSpec,
) -> Value {
    let mut container = json!({
        "name": "trialkeeper",
        "image": image,
        "command": ["trialkeeper", "install", format!("{POD_FOLDER}/bin")],
        "volumeMounts": [{"name": "trialkeeper", "mountPath": POD_FOLDER}],
        "resources": init_container_resources(role),
        "securityContext": container_security_context(),
    });
    if let Some(policy) = pull_policy {
        container["imagePullPolicy"] = Value::from(policy);
    }
    container
}

pub(super) fn barrier_container(image: &str, role: &RoleSpec) -> Value {
    json!({
        "name": "frameworkbarrier",
        "image": image,
        "volumeMounts": [{"name": "frameworkbarrier-volume", "mountPath": BARRIER_FOLDER}],
        "resources": init_container_resources(role),
        // The barrier writes next to its own program, in a folder that belongs to root.
        "securityContext": {
            "runAsUser": 0,
            "runAsNonRoot": false,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

/// Returns the resources of a container that runs before the trial: the trial's own, which cost nothing, since the
/// containers do not run at the same time. Smaller ones could be below the minimum of a `LimitRange`. A quota of the
/// namespace may require requests and limits of every container.
fn init_container_resources(role: &RoleSpec) -> Value {
    let mut container = json!({});
    let (cpu, memory_mib) = (role.cpu.clone(), role.memory_mib);
    let (cpu, memory_mib) = (cpu.or_else(|| Some("100m".to_owned())), memory_mib.or(Some(64)));
    set_resources(&mut container, &RoleSpec { cpu, memory_mib, gpus: None, ..role.clone() });
    container["resources"].take()
}
