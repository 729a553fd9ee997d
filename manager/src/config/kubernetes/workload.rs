//! The checks of a section against the requested kind of object.

use serde_json::{Map, Value, json};

use super::kind::{DEFAULT_ROLE_NAME, WorkloadKind};
use super::kubeflow;
use super::role::{CompletionPolicy, RoleSpec};
use crate::config::section::{Problem, Section};
use crate::util::nearest::normalize_name;

/// The fields of a role that the section itself may have if there is one role.
const ROLE_FIELDS: [&str; 7] = [
    "dockerImage",
    "taskNumber",
    "command",
    "gpuNumber",
    "cpuNumber",
    "memorySize",
    "privateRegistryAuthPath",
];

/// The longest name of one of several roles. A pod's name consists of the trial's, the role's, two numbers and a
/// suffix.
const MAX_ROLE_NAME_LENGTH: usize = 16;
/// Returns the section with `taskRoles`. A Job and a `TrainJob` have one role, whose fields may be in the section
/// itself.
pub(super) fn with_roles(workload: WorkloadKind, section: Value) -> Value {
    let Value::Object(members) = section else { return section };
    let names: Vec<String> = members.keys().map(|key| normalize_name(key)).collect();
    let has = |field: &str| names.iter().any(|name| *name == normalize_name(field));
    if !workload.has_one_role() || has("taskRoles") {
        return Value::Object(members);
    }
    let is_role_field =
        |key: &str| ROLE_FIELDS.iter().any(|field| normalize_name(field) == normalize_name(key));
    let (mut role, mut rest): (Map<_, _>, Map<_, _>) =
        members.into_iter().partition(|(key, _)| is_role_field(key));
    role.insert("name".to_owned(), Value::from(DEFAULT_ROLE_NAME));
    rest.insert("taskRoles".to_owned(), json!([role]));
    Value::Object(rest)
}

/// Returns the kind that runs these roles. Several roles need a `JobSet` instead of a Job.
pub(super) fn workload_for_roles(workload: WorkloadKind, roles: &[RoleSpec]) -> WorkloadKind {
    if workload == WorkloadKind::Job && roles.len() > 1 { WorkloadKind::JobSet } else { workload }
}

/// Refuses roles that the kind does not support.
pub(super) fn check_roles(
    workload: WorkloadKind,
    fields: &Section,
    roles: &[RoleSpec],
    has_template: bool,
) -> Result<(), Problem> {
    match workload {
        WorkloadKind::Framework => return Ok(()),
        WorkloadKind::Job => {}
        WorkloadKind::TrainJob if roles.len() > 1 => {
            let what =
                "a TrainJob has one role; `platform: kubernetes` runs several roles as a JobSet";
            return Err(fields.problem("taskRoles", what));
        }
        WorkloadKind::TrainJob => {}
        WorkloadKind::JobSet if has_template => {
            let what = "has several roles, but the template is the pod of one role; leave out the roles or the template";
            return Err(fields.problem("taskRoles", what));
        }
        WorkloadKind::JobSet => return check_job_set(fields, roles),
        WorkloadKind::TfJob
        | WorkloadKind::PyTorchJob
        | WorkloadKind::XgBoostJob
        | WorkloadKind::PaddleJob => return kubeflow::check_roles(workload, fields, roles),
    }
    let usual = |role: &RoleSpec| {
        let all = i64::try_from(role.task_number).unwrap_or(i64::MAX);
        role.policy == CompletionPolicy { min_failed: 1, min_succeeded: all }
    };
    if roles.iter().any(|role| !usual(role)) {
        let what = format!(
            "a {} fails with its first failed pod and succeeds when all have succeeded; leave \
             `frameworkAttemptCompletionPolicy` out",
            workload.object()
        );
        return Err(fields.problem("taskRoles[0].frameworkAttemptCompletionPolicy", what));
    }
    Ok(())
}

/// Refuses roles that a `JobSet` does not support.
fn check_job_set(fields: &Section, roles: &[RoleSpec]) -> Result<(), Problem> {
    for (i, role) in roles.iter().enumerate() {
        if role.name.len() > MAX_ROLE_NAME_LENGTH {
            let what = format!(
                "`{}` is longer than {MAX_ROLE_NAME_LENGTH} letters: the names of a JobSet's pods contain it, and have 63 letters at most",
                role.name
            );
            return Err(fields.problem(&format!("taskRoles[{i}].name"), what));
        }
        let policy = format!("taskRoles[{i}].frameworkAttemptCompletionPolicy");
        if role.policy.min_failed != 1 {
            let what = "a JobSet fails with its first failed pod; `minFailedTaskCount` is 1";
            return Err(fields.problem(&policy, what));
        }
        let all = i64::try_from(role.task_number).unwrap_or(i64::MAX);
        if role.policy.min_succeeded == 0 || role.policy.min_succeeded > all {
            let what = format!("`minSucceedTaskCount` is 1 to {all} tasks, or -1 for never");
            return Err(fields.problem(&policy, what));
        }
    }
    Ok(())
}

/// Refuses fields that have no meaning for the kind.
pub(super) fn check_fields(
    workload: WorkloadKind,
    fields: &Section,
    (queue, priority_class): (Option<&str>, Option<&str>),
    barrier_image: Option<&str>,
) -> Result<(), Problem> {
    let queued = [("queue", queue), ("priorityClass", priority_class)];
    let set = queued.into_iter().find(|(_, value)| value.is_some());
    if let Some((field, _)) = set.filter(|_| !workload.has_queue()) {
        let what = format!(
            "is a field of Kueue, which does not queue {}s; use `platform: kubernetes`",
            workload.object()
        );
        return Err(fields.problem(field, what));
    }
    if barrier_image.is_some() && !workload.has_barrier() {
        let what = "is a field of FrameworkController; pods of a Job wait for one another through the manager";
        return Err(fields.problem("barrierImage", what));
    }
    if priority_class.is_some() && queue.is_none() {
        return Err(fields.problem("priorityClass", "has no meaning without `queue`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{document, load_kubernetes_spec, load_with_template};
    use super::*;

    const JOB_TEMPLATE: &str =
        "{spec: {containers: [{name: mine, image: i, command: [python3, t.py]}]}}";

    /// Returns the section of a Job, with changes.
    fn job_document(changes: &Value) -> String {
        let mut section = json!({"platform": "kubernetes", "dockerImage": "i"});
        for (field, value) in changes.as_object().unwrap() {
            section[field] = value.clone();
        }
        section.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        document(&section).to_string()
    }

    /// Asserts that the stored form of a file reads back as the same specification.
    fn assert_reads_again(file: &str, template: &str) {
        let whole = load_with_template(file, template).unwrap();
        let mut section = whole.canonical["trainingService"].clone();
        section.as_object_mut().unwrap().remove("trialCodeDirectory");
        let again = load_with_template(&document(&section).to_string(), "").unwrap();
        assert_eq!(again.training_service, whole.training_service);
    }

    #[test]
    fn a_jobs_role_may_be_in_the_section_itself() {
        let flat = json!({"taskNumber": 2, "gpuNumber": 1, "memory_size": "1gb", "queue": "q", "priorityClass": "p"});
        let read = load_kubernetes_spec(&job_document(&flat));
        assert_eq!(read.workload, WorkloadKind::Job);
        assert_eq!((read.queue.as_deref(), read.priority_class.as_deref()), (Some("q"), Some("p")));
        let role = &read.roles[0];
        assert_eq!((role.name.as_str(), role.task_number, role.gpus), ("worker", 2, Some(1)));
        assert_eq!((role.image.as_deref(), role.memory_mib), (Some("i"), Some(1024)));
        assert_reads_again(&job_document(&flat), "");
        let listed =
            json!({"platform": "kubernetes", "taskRoles": [{"name": "w", "dockerImage": "i"}]});
        assert_eq!(load_kubernetes_spec(&document(&listed).to_string()).roles[0].name, "w");
    }

    #[test]
    fn several_roles_need_a_job_set() {
        let roles = json!([
            {"name": "ps", "dockerImage": "i", "command": "c",
             "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 1, "minSucceedTaskCount": -1}},
            {"name": "worker", "dockerImage": "i", "taskNumber": 2},
        ]);
        let changes =
            json!({"taskRoles": roles, "dockerImage": null, "metricsFrom": "worker", "queue": "q"});
        let read = load_kubernetes_spec(&job_document(&changes));
        assert_eq!(read.workload, WorkloadKind::JobSet);
        let policies: Vec<CompletionPolicy> = read.roles.iter().map(|role| role.policy).collect();
        let policy = |min_succeeded| CompletionPolicy { min_failed: 1, min_succeeded };
        assert_eq!(policies, [policy(-1), policy(2)]);
        assert_reads_again(&job_document(&changes), "");
    }

    #[test]
    fn a_train_job_has_the_fields_of_a_job_and_one_role() {
        let trainer = |changes: &Value| {
            let mut changes = changes.clone();
            changes["platform"] = json!("trainer");
            job_document(&changes)
        };
        let flat = json!({"taskNumber": 2, "gpuNumber": 1, "queue": "q"});
        let read = load_kubernetes_spec(&trainer(&flat));
        assert_eq!((read.workload, read.queue.as_deref()), (WorkloadKind::TrainJob, Some("q")));
        assert_eq!((read.roles[0].name.as_str(), read.roles[0].task_number), ("worker", 2));
        assert_reads_again(&trainer(&flat), "");
        let template = format!(
            "kind: Job\nmetadata: {{labels: {{a: b}}}}\nspec: {{template: {JOB_TEMPLATE}}}\n"
        );
        let with = json!({"configPath": "framework.yml", "dockerImage": null});
        assert_reads_again(&trainer(&with), &template);
        let two = json!([{"name": "a", "dockerImage": "i"}, {"name": "b", "dockerImage": "i"}]);
        let policy = json!([{"name": "a", "dockerImage": "i", "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 2, "minSucceedTaskCount": 1}}]);
        #[rustfmt::skip]
        let table = [
            (json!({"taskRoles": two, "dockerImage": null}), "taskRoles: a TrainJob has one role; `platform: kubernetes` runs several"),
            (json!({"taskRoles": policy, "dockerImage": null}), "a TrainJob fails with its first failed pod"),
            (json!({"barrierImage": "i"}), "barrierImage: is a field of FrameworkController"),
        ];
        for (changes, expected) in table {
            let problem = load_with_template(&trainer(&changes), "").unwrap_err();
            assert!(problem.contains(expected), "{expected:?} is not in {problem}");
        }
    }

    #[test]
    fn only_the_pod_of_a_job_template_is_used() {
        let with = json!({"configPath": "framework.yml", "dockerImage": null});
        let good = format!(
            "kind: Job\nmetadata: {{labels: {{a: b}}}}\nspec: {{template: {JOB_TEMPLATE}}}\n"
        );
        assert_reads_again(&job_document(&with), &good);
        #[rustfmt::skip]
        let table = [
            ("kind: Framework\nspec: {}".to_owned(), "is not an object of kind Job"),
            ("kind: Job\nspec: {}".to_owned(), "the template, spec.template: is missing"),
            (format!("kind: Job\nspec: {{backoffLimit: 3, template: {JOB_TEMPLATE}}}"), "the template, spec.backoffLimit: is not taken from a template"),
        ];
        for (template, expected) in table {
            let problem = load_with_template(&job_document(&with), &template).unwrap_err();
            assert!(problem.contains(expected), "{expected:?} is not in {problem}");
        }
    }

    #[test]
    fn a_trial_of_several_pods_never_starts_with_fewer() {
        let minimum = "kueue.x-k8s.io/job-min-parallelism: \"1\"";
        let of = |field: &str| format!("{{{field}: {{{minimum}}}}}");
        let on_job = |field: &str| {
            format!("kind: Job\nmetadata: {}\nspec: {{template: {JOB_TEMPLATE}}}\n", of(field))
        };
        let on_pod = |field: &str| {
            let pod = JOB_TEMPLATE.replacen('{', &format!("{{metadata: {}, ", of(field)), 1);
            format!("kind: Job\nspec: {{template: {pod}}}\n")
        };
        #[rustfmt::skip]
        let table = [
            (on_job("annotations"), 2, Some("the template, metadata.annotations: `kueue.x-k8s.io/job-min-parallelism` lets Kueue start a trial with fewer than its 2 pods")),
            (on_job("labels"),      3, Some("the template, metadata.labels: ")),
            (on_pod("annotations"), 2, Some("the template, metadata.annotations: ")),
            (on_pod("labels"),      2, Some("the template, metadata.labels: ")),
            (on_job("annotations"), 1, None),
            (on_job("annotations").replace("min-parallelism", "other"), 2, None),
        ];
        for (template, pods, expected) in table {
            for platform in ["kubernetes", "trainer"] {
                let changes = json!({"platform": platform, "configPath": "framework.yml", "dockerImage": null, "taskNumber": pods});
                let problem = load_with_template(&job_document(&changes), &template).err();
                let text = problem.as_deref().unwrap_or_default();
                assert_eq!(problem.is_some(), expected.is_some(), "{template}: {text}");
                assert!(text.contains(expected.unwrap_or_default()), "{template}: {text}");
            }
        }
    }

    #[test]
    fn pod_fields_that_this_version_does_not_know_are_left_to_the_api_server() {
        let pod = "{spec: {newer: 1, containers: [{name: mine, image: i, command: [x], newest: {a: b}}]}}";
        for platform in ["kubernetes", "trainer"] {
            let changes =
                json!({"platform": platform, "configPath": "framework.yml", "dockerImage": null});
            let template = format!("kind: Job\nspec: {{template: {pod}}}\n");
            let whole = load_with_template(&job_document(&changes), &template).unwrap();
            let stored = &whole.canonical["trainingService"]["template"];
            let read = stored.pointer("/spec/taskRoles/0/task/pod/spec").unwrap();
            assert_eq!(read["newer"], 1, "{platform}");
            assert_eq!(read["containers"][0]["newest"], json!({"a": "b"}), "{platform}");
            assert_reads_again(&job_document(&changes), &template);
        }
        // The form of a Framework has fields beside the pod's.
        let role = json!({"name": "worker", "extra": 1, "task": {"pod": {"spec": {"containers": [{"image": "i"}]}}}});
        let beside = json!({"template": {"spec": {"taskRoles": [role]}}, "dockerImage": null});
        let problem = load_with_template(&job_document(&beside), "").unwrap_err();
        assert!(problem.contains("spec.taskRoles[0].extra: unknown field; only"), "{problem}");
    }

    #[test]
    fn fields_that_a_kind_lacks_are_refused() {
        let two = json!([{"name": "a", "dockerImage": "i", "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 1, "minSucceedTaskCount": 1}}, {"name": "b", "dockerImage": "i", "command": "c"}]);
        let changed = |at: &str, value: Value| {
            let mut roles = two.clone();
            *roles.pointer_mut(at).unwrap() = value;
            roles
        };
        let policy_at = "/0/frameworkAttemptCompletionPolicy";
        let never = changed(policy_at, json!({"minFailedTaskCount": -1, "minSucceedTaskCount": 1}));
        let none = changed(policy_at, json!({"minFailedTaskCount": 1, "minSucceedTaskCount": 0}));
        let named = changed("/0/name", json!(DEFAULT_ROLE_NAME));
        let long = changed("/1/name", json!("parameterserverss"));
        let pod =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "m", "image": "i"}]}}}});
        let policy = json!([{"name": "a", "dockerImage": "i", "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 2, "minSucceedTaskCount": 1}}]);
        let framework = json!({"platform": "frameworkcontroller", "queue": "q", "taskRoles": [{"name": "a", "dockerImage": "i"}], "dockerImage": null});
        #[rustfmt::skip]
        let table = [
            (json!({"dockerImage": null}), "dockerImage: is missing"),
            (json!({"taskRoles": never, "dockerImage": null}), "taskRoles[0].frameworkAttemptCompletionPolicy: a JobSet fails with its first failed pod"),
            (json!({"taskRoles": none, "dockerImage": null}), "`minSucceedTaskCount` is 1 to 1 tasks"),
            (json!({"taskRoles": long, "dockerImage": null}), "taskRoles[1].name: `parameterserverss` is longer than 16 letters"),
            (json!({"taskRoles": two, "dockerImage": null, "barrierImage": "i"}), "barrierImage: is a field of FrameworkController"),
            (json!({"taskRoles": named, "dockerImage": null, "template": pod}), "the template is the pod of one role"),
            (json!({"taskRoles": policy, "dockerImage": null}), "leave `frameworkAttemptCompletionPolicy` out"),
            (json!({"barrierImage": "i"}), "barrierImage: is a field of FrameworkController"),
            (json!({"priorityClass": "p"}), "priorityClass: has no meaning without `queue`"),
            (json!({"queue": "Not A Name"}), "trainingService.queue: "),
            (framework, "queue: is a field of Kueue"),
        ];
        for (changes, expected) in table {
            let problem = load_with_template(&job_document(&changes), "").unwrap_err();
            assert!(problem.contains(expected), "{expected:?} is not in {problem}");
        }
    }
}
