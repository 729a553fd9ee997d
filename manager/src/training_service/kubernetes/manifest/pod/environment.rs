//! PURE: the environment of the trial's container: the settings of the agent, and variables for the trial.

use serde_json::{Value, json};

use super::{ACCESS_FOLDER, POD_FOLDER, WorkloadSettings, append};
use crate::config::kubernetes::{KubernetesSpec, RoleSpec};
use crate::training_service::TrialJobSpec;
use crate::training_service::agent_arguments::{AgentArguments, AgentPath};

/// The time for which an agent keeps its pod while the manager does not answer. Undelivered data is lost with the pod.
const FLUSH_TIMEOUT: &str = "10m";
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
pub(super) fn set_variable_from_secret(
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

pub(super) fn set_environment(
    container: &mut Value,
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    grace: u64,
) {
    let spec = &settings.spec;
    let mut variables = common_variables(grace);
    if settings.shared_disk.is_none() {
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
    merge_environment(container, agent_variables(settings, job));
    merge_environment(container, variables);
}

/// Returns the settings of a job's agent as variables.
fn agent_variables(settings: &WorkloadSettings, job: &TrialJobSpec) -> Vec<(String, String)> {
    let spec = &settings.spec;
    let arguments = AgentArguments {
        settings: &settings.agents,
        job,
        platform: spec.workload.platform(),
        requests_output: true,
        serves_sdk: false,
    };
    let path = |path| match path {
        AgentPath::ManagerUrl => Some(format!("{ACCESS_FOLDER}/manager.url")),
        AgentPath::Authority => settings.has_ca.then(|| format!("{ACCESS_FOLDER}/ca.pem")),
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
