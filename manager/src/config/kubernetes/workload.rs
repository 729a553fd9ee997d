//! The kinds of Kubernetes objects that an experiment file can ask for, and what of the section fits each.

use serde_json::{Map, Value, json};

use super::role::{Policy, RoleSpec};
use crate::config::section::{Problem, Section};
use crate::nearest::folded;

/// The kind of object that runs an attempt of a trial job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    /// A Framework of Microsoft's `FrameworkController`.
    Framework,
    /// A Job of `batch/v1`.
    Job,
}

/// Fields of a role that may stand in the section itself where there is one role.
const ROLE_FIELDS: [&str; 7] = [
    "dockerImage",
    "taskNumber",
    "command",
    "gpuNumber",
    "cpuNumber",
    "memorySize",
    "privateRegistryAuthPath",
];

/// The name of the only role where the file gives none.
pub(super) const ROLE: &str = "worker";

impl WorkloadKind {
    /// The platform's name in the experiment file.
    pub fn platform(self) -> &'static str {
        match self {
            Self::Framework => "frameworkcontroller",
            Self::Job => "kubernetes",
        }
    }

    /// The kind of object that a template of the user's is.
    pub(super) fn template_kind(self) -> &'static str {
        match self {
            Self::Framework => "Framework",
            Self::Job => "Job",
        }
    }

    /// What is known of a cluster where nothing stands in the way.
    pub fn good_news(self) -> &'static str {
        match self {
            Self::Framework => {
                "it answers, knows Frameworks, grants the rights; FrameworkController is at work"
            }
            Self::Job => "it answers, grants the rights, and its Job controller is at work",
        }
    }
}

/// Returns the section with `taskRoles`: a Job has one role, whose fields may stand in the section itself.
pub(super) fn with_roles(workload: WorkloadKind, section: Value) -> Value {
    let Value::Object(members) = section else { return section };
    let names: Vec<String> = members.keys().map(|key| folded(key)).collect();
    let has = |field: &str| names.iter().any(|name| *name == folded(field));
    if workload != WorkloadKind::Job || has("taskRoles") || has("template") || has("configPath") {
        return Value::Object(members);
    }
    let is_role_field = |key: &str| ROLE_FIELDS.iter().any(|field| folded(field) == folded(key));
    let (mut role, mut rest): (Map<_, _>, Map<_, _>) =
        members.into_iter().partition(|(key, _)| is_role_field(key));
    role.insert("name".to_owned(), Value::from(ROLE));
    rest.insert("taskRoles".to_owned(), json!([role]));
    Value::Object(rest)
}

/// Refuses roles that the kind cannot have.
pub(super) fn check_roles(
    workload: WorkloadKind,
    fields: &Section,
    roles: &[RoleSpec],
) -> Result<(), Problem> {
    if workload == WorkloadKind::Framework {
        return Ok(());
    }
    if roles.len() > 1 {
        let what = format!(
            "has {} roles, and a Job has one; `platform: frameworkcontroller` runs trials of several roles",
            roles.len()
        );
        return Err(fields.fault("taskRoles", what));
    }
    let usual = |role: &RoleSpec| {
        let all = i64::try_from(role.task_number).unwrap_or(i64::MAX);
        role.policy == Policy { min_failed: 1, min_succeeded: all }
    };
    if roles.iter().any(|role| !usual(role)) {
        let what = "a Job fails with its first failed pod and succeeds when all have succeeded; leave \
                    `frameworkAttemptCompletionPolicy` out";
        return Err(fields.fault("taskRoles[0].frameworkAttemptCompletionPolicy", what));
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
    match workload {
        WorkloadKind::Framework => {
            let set = queued.into_iter().find(|(_, value)| value.is_some());
            set.map_or(Ok(()), |(field, _)| {
                let what = "is Kueue's, which queues no Frameworks; `platform: kubernetes` has it";
                Err(fields.fault(field, what))
            })
        }
        WorkloadKind::Job if barrier_image.is_some() => Err(fields
            .fault("barrierImage", "is FrameworkController's; pods of a Job meet at the manager")),
        WorkloadKind::Job if priority_class.is_some() && queue.is_none() => {
            Err(fields.fault("priorityClass", "has no meaning without `queue`"))
        }
        WorkloadKind::Job => Ok(()),
    }
}
