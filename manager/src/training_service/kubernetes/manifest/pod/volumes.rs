//! PURE: the volumes of a pod, and their positions in the trial's container.

use serde_json::{Value, json};

use super::super::{experiment_object_name, workload_name};
use super::{POD_FOLDER, WorkloadSettings};
use crate::config::kubernetes::{CacheSpec, MountSpec, RoleSpec};
use crate::training_service::TrialJobSpec;
use crate::training_service::kubernetes::shared_disk::{self, SharedDisk};

/// Returns the folder for the agent and its spool, and a volume that projects the two Secrets into one folder.
/// Kubernetes updates that folder when a Secret changes, and agents read it again. A template that all trials share
/// cannot name one trial's own Secret.
pub(super) fn spool_and_access_volumes(
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
) -> [Value; 2] {
    let own = (!settings.spec.workload.shares_pod_template())
        .then(|| workload_name(&settings.experiment, &job.attempt));
    let sources = std::iter::once(experiment_object_name(&settings.experiment)).chain(own);
    let sources: Vec<Value> = sources.map(|name| json!({"secret": {"name": name}})).collect();
    [
        json!({"name": "trialkeeper", "emptyDir": {}}),
        json!({
            "name": "trialkeeper-access",
            // Readable for every user, because a template may choose any. Only this pod has the folder.
            "projected": {"defaultMode": 0o444, "sources": sources},
        }),
    ]
}

/// Returns the volume that mounts the agent's image directly.
pub(super) fn agent_image_volume(image: &str, pull_policy: Option<&str>) -> Value {
    let mut volume = json!({"name": "trialkeeper-agent", "image": {"reference": image}});
    if let Some(policy) = pull_policy {
        volume["image"]["pullPolicy"] = Value::from(policy);
    }
    volume
}

/// Returns the parts of the shared disk, if there is one.
pub(super) fn shared_disk_parts(
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
) -> shared_disk::VolumeParts {
    let Some(share) = &settings.shared_disk else { return shared_disk::VolumeParts::default() };
    let several = settings.spec.roles.iter().map(|role| role.task_number).sum::<u64>() > 1;
    let index = several.then_some(settings.spec.workload.pod_index());
    shared_disk::volume_parts(share, (&job.experiment, &job.trial), &role.name, index, POD_FOLDER)
}

/// Returns the volume of a mount in the experiment file. The node mounts a claim for reading only, as a `ReadOnlyMany`
/// claim requires, unless the pod writes to the same claim elsewhere.
pub(super) fn volume_of_mount(mount: &MountSpec, settings: &WorkloadSettings) -> Value {
    let mut volume = mount.volume.clone();
    volume["name"] = Value::from(volume_name(mount));
    if mount.claim().is_some_and(|claim| !written_claims(settings).contains(&claim)) {
        volume["persistentVolumeClaim"]["readOnly"] = Value::Bool(true);
    }
    volume
}

/// Returns the position of a mount in the trial's container.
pub(super) fn container_mount(mount: &MountSpec) -> Value {
    json!({"name": volume_name(mount), "mountPath": mount.path, "readOnly": mount.read_only})
}

/// Returns a volume name that differs from TrialKeeper's own volumes.
fn volume_name(mount: &MountSpec) -> String {
    format!("data-{}", mount.name)
}

/// Returns the claims to which the pods write.
pub(super) fn written_claims(settings: &WorkloadSettings) -> Vec<&str> {
    let spec = &settings.spec;
    let share = match &settings.shared_disk {
        Some(SharedDisk::Claim { name }) => Some(name.as_str()),
        Some(SharedDisk::Nfs { .. } | SharedDisk::AzureFile { .. } | SharedDisk::Template)
        | None => None,
    };
    let cache = match &spec.cache {
        Some(CacheSpec::Claim(name)) => Some(name.as_str()),
        Some(CacheSpec::HostPath(_)) | None => None,
    };
    let mounts = spec.mounts.iter().filter(|mount| !mount.read_only);
    share.into_iter().chain(cache).chain(mounts.filter_map(MountSpec::claim)).collect()
}
