//! PURE: the pod of one role, which runs the trial's command under its agent.

pub(super) mod container;
mod environment;
mod init_containers;
mod volumes;

use serde_json::{Value, json};

use self::container::complete_container;
pub(in crate::training_service::kubernetes) use self::container::take_token_from_variable;
use self::environment::set_environment;
pub(in crate::training_service::kubernetes) use self::environment::{
    set_variable, set_variable_from_field,
};
use self::init_containers::{barrier_container, installer_container};
use self::volumes::{
    agent_image_volume, shared_disk_parts, spool_and_access_volumes, volume_of_mount,
    written_claims,
};
use super::{WorkloadSettings, cache, registry_secret_name, set_default};
use crate::config::kubernetes::{AgentSource, KubernetesSpec, RoleSpec};
use crate::training_service::TrialJobSpec;
use crate::training_service::kubernetes::shared_disk::SharedDisk;

/// The sum of the agent's own time limits (20 s for the trial, 2 s for its output, 5 s for delivery) and a margin.
pub(super) const MIN_GRACE_S: u64 = 30;
/// The folder of a pod's own files.
const POD_FOLDER: &str = "/trialkeeper";
/// The folder with the token and the manager's address.
const ACCESS_FOLDER: &str = "/run/trialkeeper";
/// The folder where `frameworkbarrier` writes its results.
const BARRIER_FOLDER: &str = "/mnt/frameworkbarrier";

/// Labels and annotations that protect a pod from other controllers. Service meshes must not add a sidecar, since it
/// would outlive the trial and keep its pod from ending. The cluster's autoscaler, or Karpenter, must not evict the pod
/// to free its node, since the trial would start over.
const PROTECTING_ANNOTATIONS: [(&str, &[&str], &str); 4] = [
    ("sidecar.istio.io/inject", &["labels", "annotations"], "false"),
    ("linkerd.io/inject", &["annotations"], "disabled"),
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", &["annotations"], "false"),
    ("karpenter.sh/do-not-disrupt", &["annotations"], "true"),
];

/// Returns a pod's grace period in seconds: the template's value, but at least the time that its agent needs.
pub(in crate::training_service::kubernetes) fn grace_period(pod: &Value) -> u64 {
    pod["terminationGracePeriodSeconds"].as_u64().unwrap_or(0).max(MIN_GRACE_S)
}

/// Adds the labels and annotations that protect a pod, unless its template sets them.
pub(in crate::training_service::kubernetes) fn protect_from_controllers(metadata: &mut Value) {
    for (name, places, value) in PROTECTING_ANNOTATIONS {
        let is_set = ["labels", "annotations"].iter().any(|place| !metadata[place][name].is_null());
        for place in places.iter().filter(|_| !is_set) {
            set_default(&mut metadata[place], name, Value::from(value));
        }
    }
}

/// Completes a pod's spec.
pub(in crate::training_service::kubernetes) fn complete_pod(
    pod: &mut Value,
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    position: usize,
) {
    let spec = &settings.spec;
    // A kubelet that restarts a failed trial in place would hide the failure.
    pod["restartPolicy"] = Value::from("Never");
    pod["terminationGracePeriodSeconds"] = Value::from(grace_period(pod));
    if pod["hostNetwork"] == true {
        // By default, a pod on the host's network uses the node's DNS, which does not resolve Services such as the
        // manager's.
        set_default(pod, "dnsPolicy", Value::from("ClusterFirstWithHostNet"));
    }
    let writes_claim = matches!(settings.shared_disk, Some(SharedDisk::Template))
        || !written_claims(settings).is_empty();
    set_default(pod, "securityContext", pod_security_context(spec, writes_claim));
    match &spec.service_account {
        Some(name) => pod["serviceAccountName"] = Value::from(name.as_str()),
        // No trial needs the cluster's API unless the user configures an account.
        None if pod["serviceAccountName"].is_null() && spec.barrier_image.is_none() => {
            set_default(pod, "automountServiceAccountToken", Value::Bool(false));
        }
        None => {}
    }
    if !spec.node_selector.is_empty() {
        let labels = spec.node_selector.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str())));
        super::merge(&mut pod["nodeSelector"], labels.collect());
    }
    append(pod, "tolerations", spec.tolerations.iter().cloned());
    let own_name = || registry_secret_name(&settings.experiment, &role.name);
    let own = role.registry_auth.is_some().then(own_name);
    let secrets = spec.image_pull_secrets.iter().cloned().chain(own);
    append(pod, "imagePullSecrets", secrets.map(|name| json!({"name": name})));
    append(pod, "volumes", spool_and_access_volumes(settings, job));
    append(pod, "volumes", shared_disk_parts(settings, job, role).volumes);
    append(pod, "volumes", spec.mounts.iter().map(|mount| volume_of_mount(mount, settings)));
    let (init, policy) = ("initContainers", spec.image_pull_policy.as_deref());
    match &spec.agent {
        AgentSource::Copy(image) => append(pod, init, [installer_container(image, policy, role)]),
        AgentSource::Volume(image) => append(pod, "volumes", [agent_image_volume(image, policy)]),
        AgentSource::Auto | AgentSource::Image => {}
    }
    if let Some(image) = &spec.barrier_image {
        append(pod, init, [barrier_container(image, role)]);
        append(pod, "volumes", [json!({"name": "frameworkbarrier-volume", "emptyDir": {}})]);
    }
    if !pod["containers"].is_array() {
        pod["containers"] = json!([{}]);
    }
    if let Some(folder) = &spec.cache {
        let (volume, place) = cache::volume_parts(folder, &pod["volumes"]);
        append(pod, "volumes", volume);
        append(&mut pod["containers"][0], "volumeMounts", [place]);
    }
    let grace = grace_period(pod);
    complete_container(&mut pod["containers"][0], settings, job, role, position);
    set_environment(&mut pod["containers"][0], settings, job, role, grace);
}

/// Sets the agent's folders if the trials share a mounted disk. It must run after the variable with the pod's number is
/// set, since Kubernetes expands only variables that were defined before.
pub(in crate::training_service::kubernetes) fn set_output_folders(
    container: &mut Value,
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
) {
    for (name, value) in shared_disk_parts(settings, job, role).environment {
        set_variable(container, name, &value);
    }
}

/// Returns the security context of a pod under the profile "restricted". Some controllers drop `seccompProfile` and
/// `fsGroupChangePolicy`, and their pods get neither. With `writes_claim`, the pod may write to a new
/// disk, which belongs to root and which the pod can only access through a group. Otherwise, `fsGroup` is absent, since
/// the kubelet would change the group of every file on all of the template's volumes. It does so once for each volume,
/// instead of once for each pod, with `OnRootMismatch`.
fn pod_security_context(spec: &KubernetesSpec, writes_claim: bool) -> Value {
    let user = spec.run_as_user;
    if user == 0 {
        return json!({"runAsUser": 0});
    }
    let mut context = json!({"runAsNonRoot": true, "runAsUser": user, "runAsGroup": user});
    if writes_claim {
        context["fsGroup"] = Value::from(user);
    }
    let keeps_all = !spec.workload.drops_new_pod_fields();
    if writes_claim && keeps_all {
        context["fsGroupChangePolicy"] = Value::from("OnRootMismatch");
    }
    if keeps_all {
        context["seccompProfile"] = json!({"type": "RuntimeDefault"});
    }
    context
}

/// Appends to a list, which may not exist yet.
pub(in crate::training_service::kubernetes) fn append(
    object: &mut Value,
    field: &str,
    more: impl IntoIterator<Item = Value>,
) {
    let more: Vec<Value> = more.into_iter().collect();
    if more.is_empty() {
        return;
    }
    match object[field].as_array_mut() {
        Some(list) => list.extend(more),
        None => object[field] = Value::Array(more),
    }
}
