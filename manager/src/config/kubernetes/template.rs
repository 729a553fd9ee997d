//! The user's own Framework or Job, from a separate file or from the experiment file. The manager completes it. The
//! parts that the manager relies on are checked fully. The rest is only checked against the types of Kubernetes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::kind::{DEFAULT_ROLE_NAME, WorkloadKind};
use super::syntax::{check_image, is_framework_name, parse_typed, refuse_unknown_fields};
use crate::config::document;
use crate::config::path_base::PathBase;
use crate::config::section::resolve_path;
use crate::config::section::{Problem, Section};

/// A Framework in the form that its controller reads.
#[derive(Deserialize)]
struct FrameworkDocument {
    #[expect(dead_code, reason = "only the types of its fields matter")]
    metadata: Option<Metadata>,
    spec: Option<Spec>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only the types of its fields matter")]
struct Metadata {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    description: Option<String>,
    execution_type: Option<String>,
    retry_policy: Option<RetryPolicy>,
    task_roles: Option<Vec<Role>>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Role {
    name: Option<String>,
    task_number: Option<u64>,
    /// Checked by the reader of the experiment file's field of the same name.
    framework_attempt_completion_policy: Option<Value>,
    task: Option<Task>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    retry_policy: Option<RetryPolicy>,
    pod_graceful_deletion_timeout_sec: Option<i64>,
    pod: Option<PodTemplateSpec>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct RetryPolicy {
    fancy_retry_policy: Option<bool>,
    max_retry_count: Option<i32>,
}

/// Reads the template of a section from the file `configPath`, or from the field `template`.
pub(super) fn read(
    workload: WorkloadKind,
    fields: &mut Section,
    base: PathBase<'_>,
) -> Result<Option<Value>, Problem> {
    let template = read_template(workload, fields, base)?;
    fields.record("template", &template);
    Ok(template)
}

fn read_template(
    workload: WorkloadKind,
    fields: &mut Section,
    base: PathBase<'_>,
) -> Result<Option<Value>, Problem> {
    let inline = fields.take("template");
    let Some(file) = fields.unrecorded_string("configPath")? else {
        return inline.map(|template| with_roles(workload, template)).transpose();
    };
    if inline.is_some() {
        return Err(fields.problem("configPath", "is given besides `template`; keep one of them"));
    }
    let path = resolve_path(&file, base);
    let bytes = std::fs::read(&path).map_err(|error| {
        fields.problem("configPath", format!("{} cannot be read: {error}", path.display()))
    })?;
    let read = document::parse(&bytes)
        .map_err(|what| Problem::new("the template", what).in_other_file(&path))?;
    let kind = workload.template_kind();
    if read.get("kind").and_then(Value::as_str) != Some(kind) {
        let what = format!("{} is not an object of kind {kind}", path.display());
        return Err(fields.problem("configPath", what));
    }
    with_roles(workload, read).map(Some).map_err(|problem| problem.in_other_file(&path))
}

/// Converts a Job's template to the form of a Framework's, in which its pod template belongs to the only role.
fn with_roles(workload: WorkloadKind, template: Value) -> Result<Value, Problem> {
    let spec = template.get("spec");
    let is_stored = spec.is_some_and(|spec| spec.get("taskRoles").is_some());
    if !workload.has_one_role() || is_stored {
        return Ok(template);
    }
    let members = spec.and_then(Value::as_object);
    let others = members.into_iter().flat_map(|members| members.keys());
    if let Some(other) = others.clone().find(|field| *field != "template") {
        let what = "is not taken from a template, because TrialKeeper sets it; leave it out";
        return Err(Problem::new(format!("the template, spec.{other}"), what));
    }
    let Some(pod) = spec.and_then(|spec| spec.get("template")) else {
        return Err(Problem::new(
            "the template, spec.template",
            "is missing; it is the Job's pod template",
        ));
    };
    Ok(json!({
        "metadata": template["metadata"],
        "spec": {"taskRoles": [{"name": DEFAULT_ROLE_NAME, "task": {"pod": pod}}]},
    }))
}

/// Refuses fields of a template that would have no effect. Fields of a pod that this version does not know have one,
/// unless the controller drops them: the API server may be newer, and reports the fields that it does not know.
fn check_fields(workload: WorkloadKind, given: &Value, spec: &Spec) -> Result<(), Problem> {
    let at = "the template, spec";
    if workload.drops_new_pod_fields() {
        let problem = format!("unknown field; {} would drop it", workload.controller());
        return refuse_unknown_fields(at, given, spec, &problem);
    }
    let mut given = given.clone();
    let roles = given.get_mut("taskRoles").and_then(Value::as_array_mut);
    for role in roles.into_iter().flatten() {
        if let Some(task) = role.get_mut("task").and_then(Value::as_object_mut) {
            task.shift_remove("pod");
        }
    }
    refuse_unknown_fields(
        at,
        &given,
        spec,
        "unknown field; only the fields of the pod reach the cluster",
    )
}

/// The label or annotation by which Kueue starts a Job with fewer pods (Kueue 0.19, `pkg/controller/jobs/job`).
const PARTIAL_ADMISSION: &str = "kueue.x-k8s.io/job-min-parallelism";

/// Refuses a template that lets Kueue start a trial with fewer of its `pods`.
pub(super) fn check_partial_admission(template: &Value, pods: u64) -> Result<(), Problem> {
    let roles = template.pointer("/spec/taskRoles").and_then(Value::as_array);
    let of_pods = roles.into_iter().flatten().filter_map(|role| role.pointer("/task/pod"));
    let metadata = std::iter::once(template).chain(of_pods).map(|object| &object["metadata"]);
    for members in metadata {
        let has = |field: &&str| members[*field].get(PARTIAL_ADMISSION).is_some();
        if let Some(field) = ["annotations", "labels"].into_iter().find(has).filter(|_| pods > 1) {
            let what = format!(
                "`{PARTIAL_ADMISSION}` lets Kueue start a trial with fewer than its {pods} pods, which would wait for the \
                 missing ones; leave it out, or set `taskNumber` to the number of pods that you want"
            );
            return Err(Problem::new(format!("the template, metadata.{field}"), what));
        }
    }
    Ok(())
}

/// Returns the roles of a template by name, after a check of the parts that the manager relies on.
pub(super) fn read_roles(
    workload: WorkloadKind,
    template: Option<&Value>,
) -> Result<Vec<(String, Value)>, Problem> {
    let Some(template) = template else { return Ok(Vec::new()) };
    let framework: FrameworkDocument =
        parse_typed("the template", template).map_err(|problem| Problem {
            path: problem.path.replacen("template.", "template, ", 1),
            ..problem
        })?;
    if let Some(spec) = &framework.spec {
        check_fields(workload, &template["spec"], spec)?;
    }
    let at = "the template, spec.taskRoles";
    let roles = template.pointer("/spec/taskRoles").and_then(Value::as_array);
    let Some(roles) = roles.filter(|roles| !roles.is_empty()) else {
        return Err(Problem::new(at, "is missing; a Framework has at least one task role"));
    };
    let mut found = Vec::new();
    for (i, role) in roles.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let Some(name) =
            role.get("name").and_then(Value::as_str).filter(|name| is_framework_name(name))
        else {
            let what = "needs a name of lower-case letters and digits";
            return Err(Problem::new(format!("{at}.name"), what));
        };
        let at = format!("{at}.task.pod.spec");
        let list = |field: &str| {
            role.pointer(&format!("/task/pod/spec/{field}")).and_then(Value::as_array)
        };
        for field in ["initContainers", "containers"] {
            for (j, container) in list(field).into_iter().flatten().enumerate() {
                if let Some(Err(what)) = container["image"].as_str().map(check_image) {
                    return Err(Problem::new(format!("{at}.{field}[{j}].image"), what));
                }
            }
        }
        match list("containers").map_or(0, Vec::len) {
            1 => found.push((name.to_owned(), role.clone())),
            count => {
                let what = format!(
                    "has {count} containers and must have exactly one, the trial's; what else a pod needs \
                     may be an init container, or belongs into another role"
                );
                return Err(Problem::new(format!("{at}.containers"), what));
            }
        }
    }
    Ok(found)
}
