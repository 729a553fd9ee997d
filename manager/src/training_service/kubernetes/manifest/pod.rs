//! PURE: the pod of one role, which runs the trial's command under its agent.

use serde_json::{Value, json};

use super::cache::CachedFiles;
use super::{
    WorkloadSettings, cache, experiment_object_name, parameters, registry_secret_name, set_default,
    workload_name,
};
use crate::config::kubernetes::{AgentSource, CacheSpec, KubernetesSpec, MountSpec, RoleSpec};
use crate::config::render_command;
use crate::training_service::TrialJobSpec;
use crate::training_service::agent_arguments::{AgentArguments, AgentPath};
use crate::training_service::kubernetes::shared_disk::{self, SharedDisk};

/// The sum of the agent's own time limits (20 s for the trial, 2 s for its output, 5 s for delivery) and a margin.
pub(super) const MIN_GRACE_S: u64 = 30;
/// The time for which an agent keeps its pod while the manager does not answer. Undelivered data is lost with the pod.
const FLUSH_TIMEOUT: &str = "10m";
/// The folder of a pod's own files.
const POD_FOLDER: &str = "/trialkeeper";
/// The folder where the agent's image is mounted, and the path of the agent in the image that `Dockerfile.trial`
/// builds.
const AGENT_FOLDER: &str = "/trialkeeper-agent";
const INSTALLED_AGENT: &str = "/usr/local/bin/trialkeeper";
/// The folder with the token and the manager's address.
const ACCESS_FOLDER: &str = "/run/trialkeeper";
/// The first port of the first role, the same as in NNI.
const FIRST_PORT: usize = 4000;
/// The folder where `frameworkbarrier` writes its results.
const BARRIER_FOLDER: &str = "/mnt/frameworkbarrier";
/// The largest record of parameters that is passed in a variable, which can hold 128 KiB. The agent fetches longer ones
/// from the manager.
const MAX_INLINE_BYTES: usize = 32 << 10;

/// The part of a pod's grace period that remains for the agent after its trial. It includes 2 s for the output, 5 s for
/// delivery and a margin.
const AGENT_END_S: u64 = 10;
/// The size at which the agent rotates each stream of output that cannot be read after the pod. The pod keeps twice
/// this size per stream. The kubelet evicts a pod that exceeds its `ephemeral-storage` limit or its node's disk.
const ROTATE_BYTES: u64 = 16 << 20;
/// The size limit of the spool for a manager that does not answer, for the same reason.
const SPOOL_BYTES: u64 = 64 << 20;
/// The limit for the output of each stream that goes to the manager, in bytes a second. The manager keeps all of it.
const LOG_RATE: u64 = 1 << 20;
/// Agent variables that a template may set. They are limits, and affect neither the agent's identity nor the manager's
/// address.
const LIMIT_VARIABLES: [&str; 5] = [
    "TRIALKEEPER_GRACE",
    "TRIALKEEPER_START_TIMEOUT",
    "TRIALKEEPER_ROTATE_BYTES",
    "TRIALKEEPER_SPOOL_BYTES",
    "TRIALKEEPER_LOG_RATE",
];
/// Labels and annotations that protect a pod from other controllers. Service meshes must not add a sidecar, since it
/// would outlive the trial and keep its pod from ending. The cluster's autoscaler, or Karpenter, must not evict the pod
/// to free its node, since the trial would start over.
const PROTECTING_ANNOTATIONS: [(&str, &[&str], &str); 4] = [
    ("sidecar.istio.io/inject", &["labels", "annotations"], "false"),
    ("linkerd.io/inject", &["annotations"], "disabled"),
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", &["annotations"], "false"),
    ("karpenter.sh/do-not-disrupt", &["annotations"], "true"),
];

/// A script that fetches the agent, if the image lacks it, and executes it. `$1` is the trial's command, and `$2` is a
/// folder.
pub(super) const BOOTSTRAP_SCRIPT: &str = include_str!("bootstrap.sh");

/// A script that writes an attempt's token from a variable to the agent's token file, and executes the command that
/// follows.
pub(super) const TOKEN_SCRIPT: &str = include_str!("token.sh");

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

/// Removes the fields that the controller drops, so that a dry run checks the pod that the controller would create.
pub(in crate::training_service::kubernetes) fn remove_dropped_fields(pod: &mut Value) {
    let lists = ["initContainers", "containers"];
    let containers = lists.map(|list| pod[list].as_array().map_or(0, Vec::len));
    let containers = lists.iter().zip(containers);
    let containers =
        containers.flat_map(|(list, count)| (0..count).map(move |i| format!("/{list}/{i}")));
    for place in std::iter::once(String::new()).chain(containers.collect::<Vec<_>>()) {
        let context = pod.pointer_mut(&format!("{place}/securityContext"));
        if let Some(context) = context.and_then(Value::as_object_mut) {
            context.shift_remove("seccompProfile");
        }
    }
}

/// Replaces the controller's placeholders, such as `{{FC_TASK_INDEX}}`, with text that is valid in a name.
pub(in crate::training_service::kubernetes) fn fill_placeholders(value: &mut Value) {
    match value {
        Value::String(text) => {
            while let Some((before, rest)) = text.split_once("{{FC_")
                && let Some((_, after)) = rest.split_once("}}")
            {
                *text = format!("{before}0{after}");
            }
        }
        Value::Array(list) => list.iter_mut().for_each(fill_placeholders),
        Value::Object(members) => members.values_mut().for_each(fill_placeholders),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Completes a pod's spec.
pub(in crate::training_service::kubernetes) fn complete_pod(
    pod: &mut Value,
    common: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    position: usize,
) {
    let spec = &common.spec;
    // A kubelet that restarts a failed trial in place would hide the failure.
    pod["restartPolicy"] = Value::from("Never");
    pod["terminationGracePeriodSeconds"] = Value::from(grace_period(pod));
    if pod["hostNetwork"] == true {
        // By default, a pod on the host's network uses the node's DNS, which does not resolve Services such as the
        // manager's.
        set_default(pod, "dnsPolicy", Value::from("ClusterFirstWithHostNet"));
    }
    let writes_claim = matches!(common.shared_disk, Some(SharedDisk::Template))
        || !written_claims(common).is_empty();
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
    let own =
        role.registry_auth.is_some().then(|| registry_secret_name(&common.experiment, &role.name));
    let secrets = spec.image_pull_secrets.iter().cloned().chain(own);
    append(pod, "imagePullSecrets", secrets.map(|name| json!({"name": name})));
    append(pod, "volumes", spool_and_access_volumes(common, job));
    append(pod, "volumes", shared_disk_parts(common, job, role).volumes);
    append(pod, "volumes", spec.mounts.iter().map(|mount| volume_of_mount(mount, common)));
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
    complete_container(&mut pod["containers"][0], common, job, role, position);
    set_environment(&mut pod["containers"][0], common, job, role, grace);
}

/// Sets the agent's folders if the trials share a mounted disk. It must run after the variable with the pod's number is
/// set, since Kubernetes expands only variables that were defined before.
pub(in crate::training_service::kubernetes) fn set_output_folders(
    container: &mut Value,
    common: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
) {
    for (name, value) in shared_disk_parts(common, job, role).environment {
        set_variable(container, name, &value);
    }
}

fn complete_container(
    container: &mut Value,
    common: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    position: usize,
) {
    let spec = &common.spec;
    set_default(container, "name", Value::from(common.container_name));
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
    container["command"] = agent_command(common, &line);
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
    let volume_parts = shared_disk_parts(common, job, role);
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
fn agent_command(common: &WorkloadSettings, line: &str) -> Value {
    let agent = match &common.spec.agent {
        AgentSource::Auto | AgentSource::Image => "trialkeeper".to_owned(),
        AgentSource::Copy(_) => format!("{POD_FOLDER}/bin/trialkeeper"),
        AgentSource::Volume(_) => format!("{AGENT_FOLDER}{INSTALLED_AGENT}"),
    };
    let cached = common.cached_files.as_ref();
    if cached.is_none() && common.spec.agent != AgentSource::Auto {
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

/// Returns the volume of a mount in the experiment file. The node mounts a claim for reading only, as a `ReadOnlyMany`
/// claim requires, unless the pod writes to the same claim elsewhere.
fn volume_of_mount(mount: &MountSpec, common: &WorkloadSettings) -> Value {
    let mut volume = mount.volume.clone();
    volume["name"] = Value::from(volume_name(mount));
    if mount.claim().is_some_and(|claim| !written_claims(common).contains(&claim)) {
        volume["persistentVolumeClaim"]["readOnly"] = Value::Bool(true);
    }
    volume
}

/// Returns the claims to which the pods write.
fn written_claims(common: &WorkloadSettings) -> Vec<&str> {
    let spec = &common.spec;
    let share = match &common.shared_disk {
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

/// Returns the position of a mount in the trial's container.
fn container_mount(mount: &MountSpec) -> Value {
    json!({"name": volume_name(mount), "mountPath": mount.path, "readOnly": mount.read_only})
}

/// Returns a volume name that differs from TrialKeeper's own volumes.
fn volume_name(mount: &MountSpec) -> String {
    format!("data-{}", mount.name)
}

/// Returns the parts of the shared disk, if there is one.
fn shared_disk_parts(
    common: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
) -> shared_disk::VolumeParts {
    let Some(share) = &common.shared_disk else { return shared_disk::VolumeParts::default() };
    let several = common.spec.roles.iter().map(|role| role.task_number).sum::<u64>() > 1;
    let index = several.then_some(common.spec.workload.pod_index());
    shared_disk::volume_parts(share, (&job.experiment, &job.trial), &role.name, index, POD_FOLDER)
}

/// Sets a variable and replaces any previous value.
pub(in crate::training_service::kubernetes) fn set_variable(
    container: &mut Value,
    name: &str,
    value: &str,
) {
    replace_variable(container, name, json!({"name": name, "value": value}));
}

/// Sets a variable to the value of a field of the pod.
pub(in crate::training_service::kubernetes) fn set_variable_from_field(
    container: &mut Value,
    name: &str,
    field: &str,
) {
    let source = json!({"fieldRef": {"fieldPath": field}});
    replace_variable(container, name, json!({"name": name, "valueFrom": source}));
}

/// Sets a variable to a value from a Secret.
pub(in crate::training_service::kubernetes) fn set_variable_from_secret(
    container: &mut Value,
    name: &str,
    (secret, key): (&str, &str),
) {
    let source = json!({"secretKeyRef": {"name": secret, "key": key}});
    replace_variable(container, name, json!({"name": name, "valueFrom": source}));
}

fn replace_variable(container: &mut Value, name: &str, variable: Value) {
    if let Some(list) = container["env"].as_array_mut() {
        list.retain(|known| known["name"] != name);
    }
    append(container, "env", [variable]);
}

/// Sets CPU, memory and GPUs. The limits equal the requests.
fn set_resources(container: &mut Value, role: &RoleSpec) {
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

/// Returns the settings of a job's agent as variables.
fn agent_variables(common: &WorkloadSettings, job: &TrialJobSpec) -> Vec<(String, String)> {
    let spec = &common.spec;
    let arguments = AgentArguments {
        settings: &common.agents,
        job,
        platform: spec.workload.platform(),
        sends_output: true,
    };
    let path = |path| match path {
        AgentPath::ManagerUrl => Some(format!("{ACCESS_FOLDER}/manager.url")),
        AgentPath::Authority => common.has_ca.then(|| format!("{ACCESS_FOLDER}/ca.pem")),
        AgentPath::Token => Some(token_file(spec)),
        AgentPath::Output => Some(format!("{POD_FOLDER}/run")),
        // The spool and the log are in the folder of the output, and variables name the files that the agent fetches.
        AgentPath::Spool
        | AgentPath::Parameters
        | AgentPath::CodeArchive
        | AgentPath::CodeBase
        | AgentPath::Log => None,
    };
    let variable =
        |flag: &str| flag.replacen("--", "TRIALKEEPER_", 1).replace('-', "_").to_uppercase();
    let arguments = arguments.render(str::to_owned, path).into_iter();
    arguments.map(|(flag, value)| (variable(flag), value)).collect()
}

/// Returns the limits of every agent, and the variables of its user.
fn common_variables(grace: u64) -> Vec<(&'static str, String)> {
    vec![
        ("TRIALKEEPER_FLUSH", FLUSH_TIMEOUT.to_owned()),
        ("TRIALKEEPER_GRACE", format!("{}s", grace - AGENT_END_S)),
        ("TRIALKEEPER_SPOOL_BYTES", SPOOL_BYTES.to_string()),
        ("TRIALKEEPER_LOG_RATE", LOG_RATE.to_string()),
        // A user id without an account has no home directory, and the image's home may be read-only.
        ("HOME", POD_FOLDER.to_owned()),
        // Such a user has no name either, which libraries need (`getpass.getuser()`, and therefore torch.compile).
        ("USER", "trial".to_owned()),
        ("LOGNAME", "trial".to_owned()),
    ]
}

fn set_environment(
    container: &mut Value,
    common: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    grace: u64,
) {
    let spec = &common.spec;
    let mut variables = common_variables(grace);
    if common.shared_disk.is_none() {
        variables.push(("TRIALKEEPER_ROTATE_BYTES", ROTATE_BYTES.to_string()));
    }
    let record = job.parameter_record.to_string();
    let inline = record.len() <= MAX_INLINE_BYTES;
    let mut fetched = Vec::new();
    if spec.storage.needs_code() {
        fetched.push("code");
    }
    if inline {
        variables.push(("TRIALKEEPER_PARAMETERS", record));
    } else {
        fetched.push("parameters");
    }
    if !fetched.is_empty() {
        variables.push(("TRIALKEEPER_FETCH", fetched.join(",")));
    }
    if spec.roles.iter().map(|role| role.task_number).sum::<u64>() > 1 {
        let (main, index) = &spec.metrics_from;
        variables.push(("TRIALKEEPER_METRICS_FROM", format!("{main}:{index}")));
        // The pods wait for one another as long as a trial may take to start, which includes more than fetching the
        // code.
        let patience = spec.start_up_deadline.as_secs().max(1);
        variables.push(("TRIALKEEPER_START_TIMEOUT", format!("{patience}s")));
        let roles = spec.roles.iter().map(|role| format!("{}:{}", role.name, role.task_number));
        variables.push(("TRIALKEEPER_ROLES", roles.collect::<Vec<_>>().join(",")));
    }
    if role.gpus == Some(0) {
        // The first value means no GPU to the container runtime, the second to CUDA.
        variables.push(("NVIDIA_VISIBLE_DEVICES", "void".to_owned()));
        variables.push(("CUDA_VISIBLE_DEVICES", String::new()));
    }
    merge_environment(container, agent_variables(common, job));
    merge_environment(container, variables);
}

/// Adds `variables` to the container's environment from the template.
fn merge_environment<N: AsRef<str>>(container: &mut Value, variables: Vec<(N, String)>) {
    let has = |known: &Value, name: &str| known["name"] == name;
    let mut whole = container["env"].as_array().cloned().unwrap_or_default();
    for (name, value) in variables {
        let name = name.as_ref();
        // Only the template's values for the home, the GPUs and the agent's limits take precedence.
        if whole.iter().any(|known| has(known, name)) {
            if !name.starts_with("TRIALKEEPER_") || LIMIT_VARIABLES.contains(&name) {
                continue;
            }
            whole.retain(|known| !has(known, name));
        }
        whole.push(json!({"name": name, "value": value.replace('$', "$$")}));
    }
    container["env"] = Value::Array(whole);
}

/// Returns the path of the file from which the agent reads its trial's token.
fn token_file(spec: &KubernetesSpec) -> String {
    let folder = if spec.workload.shares_pod_template() { POD_FOLDER } else { ACCESS_FOLDER };
    format!("{folder}/token")
}

/// Returns the folder for the agent and its spool, and a volume that projects the two Secrets into one folder.
/// Kubernetes updates that folder when a Secret changes, and agents read it again. A template that all trials share
/// cannot name one trial's own Secret.
fn spool_and_access_volumes(common: &WorkloadSettings, job: &TrialJobSpec) -> [Value; 2] {
    let own = (!common.spec.workload.shares_pod_template())
        .then(|| workload_name(&common.experiment, &job.attempt));
    let sources = std::iter::once(experiment_object_name(&common.experiment)).chain(own);
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
fn agent_image_volume(image: &str, pull_policy: Option<&str>) -> Value {
    let mut volume = json!({"name": "trialkeeper-agent", "image": {"reference": image}});
    if let Some(policy) = pull_policy {
        volume["image"]["pullPolicy"] = Value::from(policy);
    }
    volume
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

fn installer_container(image: &str, pull_policy: Option<&str>, role: &RoleSpec) -> Value {
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

fn barrier_container(image: &str, role: &RoleSpec) -> Value {
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

/// Returns the security context of a container under the profile "restricted".
fn container_security_context() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
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
