//! The `taskRoles`: groups of identical pods. Each is a list entry in the experiment file and an entry of the same name
//! in the user's template. The two complete each other.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::super::services::inherited::{ServiceFields, missing_command};
use super::kind::WorkloadKind;
use super::{syntax, template};
use crate::config::document::describe_kind;
use crate::config::path_base::PathBase;
use crate::config::section::{Problem, Section};
use crate::util::shell;

/// A group of identical pods.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleSpec {
    /// `name`: `^[a-z0-9]{1,63}$`.
    pub name: String,
    /// `taskNumber`, at least 1.
    pub task_number: u64,
    /// `dockerImage`. `None`: the template's image.
    pub image: Option<String>,
    /// `command`, or else the template's, or else the trial's, as a shell line.
    pub command: String,
    /// `gpuNumber`. `None`: GPUs are left unchanged. `Some(0)`: GPUs are hidden.
    pub gpus: Option<u64>,
    /// `cpuNumber` in the notation of Kubernetes: `4`, `500m`.
    pub cpu: Option<String>,
    /// `memorySize` in MiB.
    pub memory_mib: Option<u64>,
    /// `frameworkAttemptCompletionPolicy`.
    pub policy: CompletionPolicy,
    /// `privateRegistryAuthPath`: a docker configuration file with the registry's password.
    pub registry_auth: Option<PathBuf>,
}

/// The condition for the completion of a Framework. A value of -1 disables it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionPolicy {
    /// The number of failed tasks of the role that makes it fail.
    pub min_failed: i64,
    /// The number of successful tasks of the role that makes it succeed.
    pub min_succeeded: i64,
}

/// The fields, in the order of the canonical form.
pub(super) const FIELDS: [&str; 9] = [
    "name",
    "dockerImage",
    "taskNumber",
    "command",
    "gpuNumber",
    "cpuNumber",
    "memorySize",
    "frameworkAttemptCompletionPolicy",
    "privateRegistryAuthPath",
];

/// Reads the roles of the file and of its template, each with the field that holds its command.
pub(super) fn read(
    workload: WorkloadKind,
    fields: &mut Section,
    inherited: &ServiceFields,
    framework: Option<&Value>,
    main_role: Option<&str>,
    base: PathBase<'_>,
) -> Result<(Vec<RoleSpec>, Vec<String>), Problem> {
    let path = fields.field_path("taskRoles");
    let templates = template::read_roles(workload, framework)?;
    let listed = match fields.take("taskRoles") {
        Some(Value::Array(list)) if !list.is_empty() => list,
        None if !templates.is_empty() => {
            templates.iter().map(|(name, _)| json!({"name": name})).collect()
        }
        None => {
            let what = "is missing; for example [{name: worker, dockerImage: python:3.12-slim}]";
            return Err(Problem::new(path, what));
        }
        Some(Value::Array(_)) => return Err(Problem::new(path, "is empty; a trial needs a pod")),
        Some(other) => {
            return Err(Problem::new(
                path,
                format!("expected a list, found {}", describe_kind(&other)),
            ));
        }
    };
    let is_only = listed.len() == 1;
    let (mut roles, mut paths) = (Vec::<RoleSpec>::new(), Vec::new());
    let mut recorded = Vec::new();
    for (i, value) in listed.into_iter().enumerate() {
        let mut section = Section::open(&format!("{path}[{i}]"), value, &FIELDS)?;
        let is_first = i == 0;
        let context =
            RoleContext { inherited, templates: &templates, base, is_only, is_first, main_role };
        let (role, command_path) = read_role(&mut section, &context)?;
        if roles.iter().any(|known| known.name == role.name) {
            return Err(
                section.problem("name", format!("`{}` is the name of another role", role.name))
            );
        }
        roles.push(role);
        paths.push(command_path);
        recorded.push(section.into_canonical());
    }
    if let Some((name, _)) =
        templates.iter().find(|(name, _)| !roles.iter().any(|r| r.name == *name))
    {
        let what = format!("the template's role `{name}` is missing; list every role or none");
        return Err(Problem::new(path, what));
    }
    fields.record("taskRoles", recorded);
    Ok((roles, paths))
}

/// The context in which a role is read.
struct RoleContext<'a> {
    inherited: &'a ServiceFields,
    templates: &'a [(String, Value)],
    base: PathBase<'a>,
    /// Set if this is the only role.
    is_only: bool,
    /// Set if the role is the first.
    is_first: bool,
    /// The role that reports the metrics, if the file names it.
    main_role: Option<&'a str>,
}

fn read_role(
    fields: &mut Section,
    context: &RoleContext<'_>,
) -> Result<(RoleSpec, String), Problem> {
    let name = read_role_name(fields)?;
    let template = context.templates.iter().find(|(known, _)| *known == name).map(|(_, role)| role);
    let container = template.and_then(|role| role.pointer("/task/pod/spec/containers/0"));
    let image = fields.string("dockerImage")?;
    if image.is_none() && container.and_then(|c| c.get("image")).is_none() {
        let what = "is missing; name the image that the trial's program runs in";
        return Err(fields.problem("dockerImage", what));
    }
    if let Some(Err(what)) = image.as_deref().map(syntax::check_image) {
        return Err(fields.problem("dockerImage", what));
    }
    let in_template = template.and_then(|role| role.get("taskNumber")?.as_u64());
    let task_number = fields.integer_or("taskNumber", 1, in_template.unwrap_or(1))?;
    if task_number > 10_000 {
        let what = format!("{task_number} pods are too many; the maximum is 10000");
        return Err(fields.problem("taskNumber", what));
    }
    let own = fields.string("command")?.map(|command| (fields.field_path("command"), command));
    let inherited = context.inherited.command.clone();
    let command = own
        .or_else(|| Some((fields.field_path("command"), command_of(container?)?)))
        .or(inherited)
        .filter(|(_, command)| !command.trim().is_empty());
    let Some((command_path, command)) = command else {
        return Err(if context.is_only {
            missing_command()
        } else {
            fields.problem("command", "is missing")
        });
    };
    fields.record("command", &command);
    let gpus = fields.integer("gpuNumber", 0)?.or(context.inherited.gpus.map(u64::from));
    fields.record("gpuNumber", gpus);
    let cpu = read_cpu(fields)?;
    let memory_mib = fields.memory_mib("memorySize")?;
    let decides = context.main_role.map_or(context.is_first, |main_role| main_role == name);
    let policy = read_completion_policy(fields, template, task_number, decides)?;
    let registry_auth = fields.absolute_path("privateRegistryAuthPath", context.base)?;
    let role = RoleSpec {
        name,
        task_number,
        image,
        command,
        gpus,
        cpu,
        memory_mib,
        policy,
        registry_auth,
    };
    Ok((role, command_path))
}

/// Reads `name`, for which FrameworkController allows fewer values than Kubernetes.
fn read_role_name(fields: &mut Section) -> Result<String, Problem> {
    let Some(name) = fields.string("name")? else {
        return Err(fields.problem("name", "is missing; for example: worker"));
    };
    if !syntax::is_framework_name(&name) {
        let what = format!(
            "`{name}` is not allowed by FrameworkController: 1 to 63 lower-case letters and digits, nothing else"
        );
        return Err(fields.problem("name", what));
    }
    Ok(name)
}

/// Reads `cpuNumber`: a number, or an amount in the notation of Kubernetes.
fn read_cpu(fields: &mut Section) -> Result<Option<String>, Problem> {
    let Some(value) = fields.take("cpuNumber") else { return Ok(None) };
    let millis = match &value {
        Value::Number(number) => number.as_f64().map(|cores| cores * 1000.0),
        Value::String(text) => match text.strip_suffix('m') {
            Some(millis) => millis.parse().ok(),
            None => text.parse::<f64>().ok().map(|cores| cores * 1000.0),
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let amount = match millis.filter(|millis| (1.0..=1e9).contains(millis)) {
        Some(millis) if millis % 1000.0 == 0.0 => format!("{}", millis / 1000.0),
        Some(millis) => format!("{}m", millis.ceil()),
        None => {
            let what = format!(
                "expected cores such as 4, 0.5 or \"500m\", found {}",
                describe_kind(&value)
            );
            return Err(fields.problem("cpuNumber", what));
        }
    };
    fields.record("cpuNumber", &amount);
    Ok(Some(amount))
}

/// Reads `frameworkAttemptCompletionPolicy`.
fn read_completion_policy(
    fields: &mut Section,
    template: Option<&Value>,
    tasks: u64,
    decides: bool,
) -> Result<CompletionPolicy, Problem> {
    let field = "frameworkAttemptCompletionPolicy";
    let from_template = || template.and_then(|role| role.get(field).cloned());
    let policy = match fields.take(field).or_else(from_template) {
        Some(value) => parse_completion_policy(&fields.field_path(field), value)?,
        None => CompletionPolicy {
            min_failed: 1,
            // The trial succeeds when all pods of the reporting role have succeeded.
            min_succeeded: if decides { i64::try_from(tasks).unwrap_or(-1) } else { -1 },
        },
    };
    let CompletionPolicy { min_failed, min_succeeded } = policy;
    let recorded = json!({"minFailedTaskCount": min_failed, "minSucceedTaskCount": min_succeeded});
    fields.record(field, recorded);
    Ok(policy)
}

/// Reads a policy of the file or of the template.
fn parse_completion_policy(path: &str, value: Value) -> Result<CompletionPolicy, Problem> {
    let known = ["minFailedTaskCount", "minSucceedTaskCount", "minSucceededTaskCount"];
    let mut policy = Section::open(path, value, &known)?;
    let mut count = |name: &str| -> Result<Option<i64>, Problem> {
        let Some(value) = policy.take(name) else { return Ok(None) };
        match value.as_i64().filter(|count| *count >= -1) {
            Some(count) => Ok(Some(count)),
            None => {
                let what = format!(
                    "expected a number of tasks or -1 for never, found {}",
                    describe_kind(&value)
                );
                Err(policy.problem(name, what))
            }
        }
    };
    let failed = count("minFailedTaskCount")?;
    // NNI's v2 form has the first spelling. NNI's v1 form and FrameworkController have the second one.
    let (short, long) = (count("minSucceedTaskCount")?, count("minSucceededTaskCount")?);
    if short.is_some() && long.is_some() && short != long {
        return Err(policy.problem("minSucceededTaskCount", "differs from `minSucceedTaskCount`"));
    }
    Ok(CompletionPolicy {
        min_failed: failed.unwrap_or(-1),
        min_succeeded: short.or(long).unwrap_or(-1),
    })
}

/// Returns a container's command and arguments as a shell line.
fn command_of(container: &Value) -> Option<String> {
    let words = ["command", "args"].iter().filter_map(|field| container.get(*field)?.as_array());
    let words: Vec<&str> = words.flatten().filter_map(Value::as_str).collect();
    match words.as_slice() {
        [] => None,
        ["sh" | "/bin/sh", "-c", line] => Some((*line).to_owned()),
        words => Some(words.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ")),
    }
}

fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+.,:/@%={}".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { shell::quote(word) }
}
