//! The section `trainingService` of the platforms on Kubernetes. `frameworkcontroller` has NNI 3.0's
//! `FrameworkControllerConfig`, the fields of its v1 form, and TrialKeeper's own. `kubernetes` has the same fields, and
//! those of a single role at the section's own level. `kubeflow` has NNI 3.0's `KubeflowConfig`.
//!
//! The reader also reads files that the section names (a template), and contacts no cluster.

mod cache;
mod kind;
mod kubeflow;
mod mounts;
mod role;
mod storage;
mod syntax;
mod template;
#[cfg(test)]
mod tests;
mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

pub use self::cache::CacheSpec;
pub use self::kind::WorkloadKind;
pub use self::mounts::MountSpec;
pub use self::role::{CompletionPolicy, RoleSpec};
pub use self::storage::StorageSpec;
pub use self::syntax::is_framework_name;
use super::TrainingServiceSpec;
use super::document::describe_kind;
use super::path_base::PathBase;
use super::section::{Problem, Section};
use super::services::inherited::{
    SNAPSHOT_IS_REQUIRED, Service, ServiceFields, ServiceSection, TopLevel, missing_command,
};
use crate::util::nearest::suggest_names;

/// The default time limit for the start of a trial's pods, long enough for large images.
const DEFAULT_START_UP_DEADLINE: Duration = Duration::from_mins(30);
/// The default time limit for trials that wait in a queue. It is shorter than Kueue's, which evicts a trial that has
/// not started within 30 minutes, and requeues it without a limit.
const QUEUED_START_UP_DEADLINE: Duration = Duration::from_mins(25);
/// The default user id of trials. It belongs to no particular user, and is not root.
const DEFAULT_USER_ID: u64 = 65_532;

/// The own fields of NNI 3.0, `configPath` and `uploadRetryCount` of v1, and TrialKeeper's, in the order of the
/// canonical form.
pub(super) const FIELDS: [&str; 27] = [
    "storage",
    "serviceAccountName",
    "configPath",
    "template",
    "taskRoles",
    "reuseMode",
    "uploadRetryCount",
    "namespace",
    "kubeconfig",
    "context",
    "advertise",
    "agent",
    "agentImage",
    "imagePullPolicy",
    "imagePullSecrets",
    "nodeSelector",
    "tolerations",
    "runAsUser",
    "startUpDeadline",
    "handOver",
    "metricsFrom",
    "barrierImage",
    "queue",
    "priorityClass",
    "mounts",
    "allowHostPath",
    "cache",
];

/// The specification of trials as objects on Kubernetes.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesSpec {
    /// The kind of object that runs an attempt.
    pub workload: WorkloadKind,
    /// `queue` (TrialKeeper's): the `LocalQueue` of Kueue in which trials wait. `None`: no queue.
    pub queue: Option<String>,
    /// `priorityClass` (TrialKeeper's): the `WorkloadPriorityClass` of Kueue. `None`: the queue's default.
    pub priority_class: Option<String>,
    /// `kubeconfig` (TrialKeeper's): the file that describes the cluster. `None`: `KUBECONFIG`, `~/.kube/config`, or
    /// the pod that runs the manager.
    pub kubeconfig: Option<PathBuf>,
    /// `context` (TrialKeeper's). `None`: the kubeconfig's current one.
    pub context: Option<String>,
    /// `namespace`. `None`: the namespace of the context, or `default`.
    pub namespace: Option<String>,
    /// `serviceAccountName` of the pods.
    pub service_account: Option<String>,
    /// `mounts` (TrialKeeper's): additional volumes, such as data sets.
    pub mounts: Vec<MountSpec>,
    /// `cache` (TrialKeeper's): the folder where pods keep the agent and the code for later pods. `None`: no cache.
    pub cache: Option<CacheSpec>,
    /// `storage`: the storage from which the pods get the code.
    pub storage: StorageSpec,
    /// `taskRoles`, at least one.
    pub roles: Vec<RoleSpec>,
    /// The Framework in `configPath` (TrialKeeper's: `template`), to be completed.
    pub template: Option<Value>,
    /// `agent` and `agentImage` (TrialKeeper's).
    pub agent: AgentSource,
    /// `advertise` (TrialKeeper's), or else `nniManagerIp`: the manager's address for pods.
    pub advertise: Option<String>,
    /// `imagePullPolicy` (TrialKeeper's).
    pub image_pull_policy: Option<String>,
    /// `imagePullSecrets` (TrialKeeper's): names of secrets in the namespace.
    pub image_pull_secrets: Vec<String>,
    /// `nodeSelector` (TrialKeeper's).
    pub node_selector: BTreeMap<String, String>,
    /// `tolerations` (TrialKeeper's), in the form of Kubernetes.
    pub tolerations: Vec<Value>,
    /// `runAsUser` (TrialKeeper's): the pods' user id. 0 is root.
    pub run_as_user: u64,
    /// `startUpDeadline` (TrialKeeper's): the time limit for the start of a pod. After it, the trial has failed.
    pub start_up_deadline: Duration,
    /// `handOver` (TrialKeeper's): the event after which the next trial may be submitted.
    pub hand_over: HandOver,
    /// `metricsFrom` (TrialKeeper's): the role and index of the pod that reports the trial's metrics.
    pub metrics_from: (String, u64),
    /// `barrierImage` (TrialKeeper's): the image of `frameworkbarrier`, by which pods wait for one another. `None`: the
    /// pods wait for one another through the manager.
    pub barrier_image: Option<String>,
}

/// The event after which the next trial may be submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOver {
    /// `handOver: verdict`: the agent has reported the end of its command. Its pod terminates meanwhile.
    Verdict,
    /// `handOver: object`: the object and its pods have ended.
    Object,
}

impl ServiceSection for KubernetesSpec {
    fn advertise(&self) -> Option<&str> {
        self.advertise.as_deref()
    }

    fn needs_code(&self) -> bool {
        self.storage.needs_code()
    }

    fn pods_of_trial(&self) -> u64 {
        self.roles.iter().map(|role| role.task_number).sum()
    }

    fn set_code_snapshot(&mut self, wanted: bool) -> Result<(), &'static str> {
        match (wanted, self.needs_code()) {
            (true, true) | (false, false) => Ok(()),
            (true, false) => Err(
                "is true, but trials take the code from `trainingService.storage`; leave one of the two fields out",
            ),
            (false, true) => Err(SNAPSHOT_IS_REQUIRED),
        }
    }

    fn limit_start_up(&mut self, limit: Duration) {
        self.start_up_deadline = self.start_up_deadline.min(limit);
    }
}

/// The source of the agent in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentSource {
    /// `agent: auto`: the image's own `trialkeeper`, or else the manager's, which the pod fetches.
    Auto,
    /// `agent: image`: the image contains a `trialkeeper`.
    Image,
    /// `agent: copy`: an init container of this image copies it.
    Copy(String),
    /// `agent: volume`: this image is mounted into the pod.
    Volume(String),
}

/// Reads the section of `platform: kubeflow`.
pub(super) fn read_kubeflow_section(value: Value, top: TopLevel<'_>) -> Result<Service, Problem> {
    let mut converted = kubeflow::convert(value)?;
    let value = converted.section.take();
    let mut service = read_section(converted.workload, value, top)
        .map_err(|problem| converted.translate_problem(problem))?;
    if let TrainingServiceSpec::Kubernetes(spec) = &service.spec
        && matches!(spec.storage, StorageSpec::Pvc { claim: None, .. })
    {
        let what = "is missing; no template mounts the claim in a job of the training operator";
        return Err(Problem::new("trainingService.storage.claimName", what));
    }
    for (path, _) in &mut service.commands {
        *path = converted.file_path(path);
    }
    for (field, value) in converted.stored_fields {
        service.canonical[field] = value;
    }
    Ok(service)
}

/// Reads the section of the other platforms on Kubernetes.
pub(super) fn read_section(
    workload: WorkloadKind,
    value: Value,
    top: TopLevel<'_>,
) -> Result<Service, Problem> {
    let value = workload::with_roles(workload, value);
    let (mut fields, inherited) = ServiceFields::open(workload.platform(), value, &FIELDS, top)?;
    let (spec, paths) = read_spec(workload, &mut fields, &inherited, top.base)?;
    let own = spec.roles.iter().map(|role| role.command.clone());
    let commands = paths.into_iter().zip(own).collect();
    let main = spec.roles.iter().find(|role| role.name == spec.metrics_from.0);
    let Some(command) = main.map(|role| role.command.clone()) else {
        return Err(missing_command());
    };
    Ok(Service {
        command,
        commands,
        code: inherited.code,
        gpus: inherited.gpus,
        spec: TrainingServiceSpec::Kubernetes(Box::new(spec)),
        canonical: Value::Object(fields.into_canonical()),
    })
}

/// Reads the platforms' own fields. Returns the fields that hold the roles' commands, too.
fn read_spec(
    workload: WorkloadKind,
    fields: &mut Section,
    inherited: &ServiceFields,
    base: PathBase<'_>,
) -> Result<(KubernetesSpec, Vec<String>), Problem> {
    let storage = storage::read(fields, base)?;
    let service_account = read_checked(fields, "serviceAccountName", syntax::check_object_name)?;
    let pods = PodFields::read(workload, fields, inherited, base)?;
    fields.boolean_or("reuseMode", true)?;
    // Kept without effect: NNI limits its uploads, but TrialKeeper repeats them until they succeed or the manager is
    // stopped.
    fields.integer("uploadRetryCount", 0)?;
    let cluster = ClusterFields::read(fields, base)?;
    let agent = read_agent_source(pods.workload, fields)?;
    let settings = PodSettings::read(fields)?;
    let metrics_from = read_metrics_from(fields, pods.metrics, &pods.roles)?;
    let barrier_image = read_checked(fields, "barrierImage", syntax::check_image)?;
    let queue = read_checked(fields, "queue", syntax::check_object_name)?;
    let priority_class = read_checked(fields, "priorityClass", syntax::check_object_name)?;
    let host_path_allowed = fields.boolean("allowHostPath")?.unwrap_or(false);
    let mounts = mounts::read(pods.workload, host_path_allowed, fields)?;
    let cache = cache::read(fields, host_path_allowed, &agent, storage.needs_code())?;
    let kueue = (queue.as_deref(), priority_class.as_deref());
    workload::check_fields(pods.workload, fields, kueue, barrier_image.as_deref())?;
    let spec = KubernetesSpec {
        workload: pods.workload,
        queue,
        priority_class,
        kubeconfig: cluster.kubeconfig,
        context: cluster.context,
        namespace: cluster.namespace,
        service_account,
        mounts,
        cache,
        storage,
        roles: pods.roles,
        template: pods.template,
        agent,
        advertise: cluster.advertise.or_else(|| inherited.ip.clone()),
        image_pull_policy: settings.image_pull_policy,
        image_pull_secrets: settings.image_pull_secrets,
        node_selector: settings.node_selector,
        tolerations: settings.tolerations,
        run_as_user: settings.run_as_user,
        start_up_deadline: settings.start_up_deadline,
        hand_over: settings.hand_over,
        metrics_from,
        barrier_image,
    };
    Ok((spec, pods.paths))
}

/// The pods of a trial.
struct PodFields {
    workload: WorkloadKind,
    template: Option<Value>,
    roles: Vec<RoleSpec>,
    /// The field that holds the command of each role.
    paths: Vec<String>,
    /// The value of `metricsFrom` in the file.
    metrics: Option<String>,
}

impl PodFields {
    fn read(
        workload: WorkloadKind,
        fields: &mut Section,
        inherited: &ServiceFields,
        base: PathBase<'_>,
    ) -> Result<Self, Problem> {
        let template = template::read(workload, fields, base)?;
        let metrics = fields.string("metricsFrom")?;
        let main =
            metrics.as_deref().map(|name| name.split_once(':').map_or(name, |(name, _)| name));
        let (roles, paths) =
            role::read(workload, fields, inherited, template.as_ref(), main, base)?;
        let workload = workload::workload_for_roles(workload, &roles);
        workload::check_roles(workload, fields, &roles, template.is_some())?;
        if let Some(template) = &template {
            let pods = roles.iter().map(|role| role.task_number).sum();
            template::check_partial_admission(template, pods)?;
        }
        Ok(Self { workload, template, roles, paths, metrics })
    }
}

/// The connection to the cluster, and the address of the manager for its pods.
struct ClusterFields {
    namespace: Option<String>,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    advertise: Option<String>,
}

impl ClusterFields {
    fn read(fields: &mut Section, base: PathBase<'_>) -> Result<Self, Problem> {
        Ok(Self {
            namespace: read_checked(fields, "namespace", syntax::check_namespace)?,
            kubeconfig: fields.absolute_path("kubeconfig", base)?,
            context: fields.string("context")?,
            advertise: fields.string("advertise")?,
        })
    }
}

/// The settings that the pods of all roles have in common.
struct PodSettings {
    image_pull_policy: Option<String>,
    image_pull_secrets: Vec<String>,
    node_selector: BTreeMap<String, String>,
    tolerations: Vec<Value>,
    run_as_user: u64,
    start_up_deadline: Duration,
    hand_over: HandOver,
}

impl PodSettings {
    fn read(fields: &mut Section) -> Result<Self, Problem> {
        let policies = ["Always", "IfNotPresent", "Never"];
        Ok(Self {
            image_pull_policy: read_one_of(fields, "imagePullPolicy", &policies)?,
            image_pull_secrets: read_names(fields, "imagePullSecrets")?,
            node_selector: read_labels(fields, "nodeSelector")?,
            tolerations: read_tolerations(fields, "tolerations")?,
            run_as_user: fields.integer_or("runAsUser", 0, DEFAULT_USER_ID)?,
            start_up_deadline: read_start_up_deadline(fields)?,
            hand_over: read_hand_over(fields)?,
        })
    }
}

/// Reads `startUpDeadline`. The default depends on a queue.
fn read_start_up_deadline(fields: &mut Section) -> Result<Duration, Problem> {
    let is_queued = fields.peek("queue").is_some();
    let default = if is_queued { QUEUED_START_UP_DEADLINE } else { DEFAULT_START_UP_DEADLINE };
    Ok(fields.duration("startUpDeadline")?.unwrap_or(default))
}

/// Reads `handOver`.
fn read_hand_over(fields: &mut Section) -> Result<HandOver, Problem> {
    match read_one_of(fields, "handOver", &["verdict", "object"])?.as_deref() {
        Some("object") => Ok(HandOver::Object),
        Some(_) | None => Ok(HandOver::Verdict),
    }
}

fn read_agent_source(workload: WorkloadKind, fields: &mut Section) -> Result<AgentSource, Problem> {
    let way = read_one_of(fields, "agent", &["auto", "image", "copy", "volume"])?;
    let image = read_checked(fields, "agentImage", syntax::check_image)?;
    match (way.as_deref(), image) {
        (None | Some("copy"), Some(image)) => Ok(AgentSource::Copy(image)),
        (Some("volume"), _) if workload.drops_new_pod_fields() => {
            let controller = workload.controller();
            let what = format!(
                "{controller} does not support image volumes; `copy` has nearly the same effect"
            );
            Err(fields.problem("agent", what))
        }
        (Some("volume"), Some(image)) => Ok(AgentSource::Volume(image)),
        (Some("copy" | "volume"), None) => {
            Err(fields.problem("agentImage", "is missing; name an image that has a `trialkeeper`"))
        }
        (Some(way), Some(_)) => {
            Err(fields.problem("agentImage", format!("has no meaning with `agent: {way}`")))
        }
        (Some("image"), None) => Ok(AgentSource::Image),
        (None | Some(_), None) => Ok(AgentSource::Auto),
    }
}

/// Reads `metricsFrom`: `role:index` or `role`. The default is the first task of the first role whose success makes the
/// trial succeed. The first role of all may be a parameter server, which only ends after the workers are done.
fn read_metrics_from(
    fields: &Section,
    written: Option<String>,
    roles: &[RoleSpec],
) -> Result<(String, u64), Problem> {
    let Some(written) = written else {
        let deciding = roles.iter().find(|role| role.policy.min_succeeded > 0);
        let role = deciding.or(roles.first());
        return Ok((role.map(|role| role.name.clone()).unwrap_or_default(), 0));
    };
    let (name, index) = written.split_once(':').unwrap_or((&written, "0"));
    let role = roles.iter().find(|role| role.name == name);
    let Some(role) = role else {
        let advice = suggest_names(name, roles.iter().map(|role| role.name.as_str()));
        return Err(fields.problem("metricsFrom", format!("`{name}` is not a task role; {advice}")));
    };
    match index.parse::<u64>() {
        Ok(index) if index < role.task_number => Ok((role.name.clone(), index)),
        _ => {
            let last = role.task_number - 1;
            let what = format!("expected `{name}:0` to `{name}:{last}`, found `{written}`");
            Err(fields.problem("metricsFrom", what))
        }
    }
}

/// Reads a field with a check by the rules of Kubernetes.
fn read_checked(
    fields: &mut Section,
    field: &str,
    check: fn(&str) -> Result<(), String>,
) -> Result<Option<String>, Problem> {
    let text = fields.string_or_unset(field)?;
    match text.as_deref().map(check) {
        Some(Err(what)) => Err(fields.problem(field, what)),
        Some(Ok(())) | None => Ok(text),
    }
}

fn read_one_of(
    fields: &mut Section,
    field: &str,
    known: &[&str],
) -> Result<Option<String>, Problem> {
    let Some(word) = fields.string(field)? else { return Ok(None) };
    if known.contains(&word.as_str()) {
        return Ok(Some(word));
    }
    let advice = suggest_names(&word, known.iter().copied());
    Err(fields.problem(field, format!("`{word}` is not known; {advice}")))
}

/// Reads a list of object names.
fn read_names(fields: &mut Section, field: &str) -> Result<Vec<String>, Problem> {
    let Some(value) = fields.take(field) else { return Ok(Vec::new()) };
    let list = value.as_array().and_then(|list| {
        list.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    });
    let Some(list) = list else {
        let what = format!("expected a list of names, found {}", describe_kind(&value));
        return Err(fields.problem(field, what));
    };
    for (i, name) in list.iter().enumerate() {
        syntax::check_object_name(name)
            .map_err(|what| fields.problem(&format!("{field}[{i}]"), what))?;
    }
    fields.record(field, Some(&list).filter(|list| !list.is_empty()));
    Ok(list)
}

fn read_labels(fields: &mut Section, field: &str) -> Result<BTreeMap<String, String>, Problem> {
    let Some(value) = fields.take(field) else { return Ok(BTreeMap::new()) };
    let texts = value.as_object().and_then(|members| {
        let text =
            |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        members.iter().map(text).collect::<Option<BTreeMap<_, _>>>()
    });
    let Some(texts) = texts else {
        let what = format!("expected labels with values in quotes, found {}", json!(value));
        return Err(fields.problem(field, what));
    };
    for (name, value) in &texts {
        syntax::check_label_name(name)
            .and_then(|()| syntax::check_label_value(value))
            .map_err(|what| fields.problem(field, what))?;
    }
    fields.record(field, Some(&texts).filter(|texts| !texts.is_empty()));
    Ok(texts)
}

fn read_tolerations(fields: &mut Section, field: &str) -> Result<Vec<Value>, Problem> {
    match fields.take(field) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => {
            for (i, toleration) in list.iter().enumerate() {
                syntax::check_toleration(
                    &format!("{}[{i}]", fields.field_path(field)),
                    toleration,
                )?;
            }
            fields.record(field, Some(&list).filter(|list| !list.is_empty()));
            Ok(list)
        }
        Some(other) => Err(fields.problem(
            field,
            format!("expected a list of objects, found {}", describe_kind(&other)),
        )),
    }
}
