//! PURE: the section of `platform: kubeflow`, NNI's `KubeflowConfig`. A trial is a job of the training operator, and
//! its roles are fields of the section. The section is converted to one with `taskRoles`, as the other kinds have it.

use serde_json::{Map, Value};

use super::kind::WorkloadKind;
use super::role::RoleSpec;
use crate::config::section::{Problem, Section};
use crate::util::nearest::{normalize_name, suggest_names};

/// A kind of the training operator, with its name and its roles in an experiment file.
#[derive(Debug)]
struct OperatorKind {
    /// The value of `operator`: the name of the kind's former operator. Today, one operator serves all kinds.
    operator: &'static str,
    workload: WorkloadKind,
    /// The roles of the kind.
    roles: &'static [&'static str],
    /// The required role.
    required_role: &'static str,
}

/// Every kind. NNI has the first two.
const OPERATOR_KINDS: [OperatorKind; 4] = [
    OperatorKind {
        operator: "tf-operator",
        workload: WorkloadKind::TfJob,
        roles: &["worker", "ps"],
        required_role: "worker",
    },
    OperatorKind {
        operator: "pytorch-operator",
        workload: WorkloadKind::PyTorchJob,
        roles: &["master", "worker"],
        required_role: "master",
    },
    OperatorKind {
        operator: "xgboost-operator",
        workload: WorkloadKind::XgBoostJob,
        roles: &["master", "worker"],
        required_role: "master",
    },
    OperatorKind {
        operator: "paddle-operator",
        workload: WorkloadKind::PaddleJob,
        roles: &["master", "worker"],
        required_role: "worker",
    },
];

/// The roles that a section may have, first the one that decides the end of the trial.
const OPERATOR_ROLES: [&str; 3] = ["master", "worker", "ps"];

/// The versions in NNI's files. Today's clusters serve only v1, which the manager sends for all of them.
const OPERATOR_API_VERSIONS: [&str; 4] = ["v1alpha2", "v1beta1", "v1beta2", "v1"];

/// The fields of a role: NNI's, and `privateRegistryAuthPath` of its v1 form.
pub(super) const ROLE_FIELDS: [&str; 8] = [
    "replicas",
    "command",
    "gpuNumber",
    "cpuNumber",
    "memorySize",
    "dockerImage",
    "codeDirectory",
    "privateRegistryAuthPath",
];

/// Fields that only other kinds have.
const UNSUPPORTED_FIELDS: [(&str, &str); 3] = [
    (
        "configPath",
        "is a field of FrameworkController; a job of the training operator has no template",
    ),
    ("template", "has no meaning here; a job of the training operator has no template"),
    (
        "barrierImage",
        "is a field of FrameworkController; pods of the training operator wait for one another through the manager",
    ),
];

/// A section in the common form.
#[derive(Debug)]
pub(super) struct ConvertedSection {
    pub(super) workload: WorkloadKind,
    pub(super) section: Value,
    /// `operator` and `apiVersion` in their stored form.
    pub(super) stored_fields: Vec<(&'static str, Value)>,
    /// Maps paths in the common form to paths in the experiment file.
    file_paths: Vec<(String, String)>,
}

impl ConvertedSection {
    /// Converts a problem of the common form to the terms of the section.
    pub(super) fn translate_problem(&self, problem: Problem) -> Problem {
        let others =
            problem.others.into_iter().map(|other| self.translate_problem(other)).collect();
        Problem { path: self.file_path(&problem.path), others, ..problem }
    }

    /// Returns the path in the experiment file for a path in the common form.
    pub(super) fn file_path(&self, path: &str) -> String {
        let below = |shared: &str| {
            path.strip_prefix(shared).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let found = self
            .file_paths
            .iter()
            .filter_map(|(shared, own)| Some((shared.len(), format!("{own}{}", below(shared)?))));
        found.max_by_key(|(length, _)| *length).map_or_else(|| path.to_owned(), |(_, own)| own)
    }
}

/// Converts a section of `platform: kubeflow`.
pub(super) fn convert(section: Value) -> Result<ConvertedSection, Problem> {
    let at = |field: &str| format!("trainingService.{field}");
    let Value::Object(mut members) = section else {
        return Err(Problem::new("trainingService", "expected fields, found another value"));
    };
    let kind = find_kind(take_field(&mut members, "operator"))?;
    let version = check_api_version(take_field(&mut members, "apiVersion"))?;
    for (field, what) in UNSUPPORTED_FIELDS {
        if take_field(&mut members, field).is_some() {
            return Err(Problem::new(at(field), what));
        }
    }
    let mut file_paths = Vec::new();
    let mut roles = Vec::new();
    let mut code: Option<(String, Value)> = None;
    for role in OPERATOR_ROLES {
        let Some(value) = take_field(&mut members, role) else { continue };
        let path = at(role);
        if !kind.roles.contains(&role) {
            return Err(Problem::new(path, unknown_role(kind, role)));
        }
        let (entry, own_code) = convert_role(role, &path, value)?;
        if let Some(own) = own_code {
            match &code {
                Some((first, known)) if *known != own => {
                    let what = format!(
                        "differs from `{first}`; the pods of a trial share one code directory"
                    );
                    return Err(Problem::new(format!("{path}.codeDirectory"), what));
                }
                Some(_) => {}
                None => code = Some((format!("{path}.codeDirectory"), own)),
            }
        }
        let shared = at(&format!("taskRoles[{}]", roles.len()));
        file_paths.push((format!("{shared}.taskNumber"), format!("{path}.replicas")));
        file_paths.push((shared, path));
        roles.push(entry);
    }
    // The stored form of a section has its roles in the common form.
    let is_stored = has_field(&members, "taskRoles") && roles.is_empty();
    if !is_stored {
        if !roles.iter().any(|role| role["name"] == kind.required_role) {
            return Err(Problem::new(at(kind.required_role), missing_role(kind)));
        }
        members.insert("taskRoles".to_owned(), Value::Array(roles));
    }
    if let Some((path, code)) = code {
        take_field(&mut members, "trialCodeDirectory");
        file_paths.push((at("trialCodeDirectory"), path));
        members.insert("trialCodeDirectory".to_owned(), code);
    }
    let stored_fields =
        vec![("operator", Value::from(kind.operator)), ("apiVersion", Value::from(version))];
    Ok(ConvertedSection {
        workload: kind.workload,
        section: Value::Object(members),
        stored_fields,
        file_paths,
    })
}

fn find_kind(operator: Option<Value>) -> Result<&'static OperatorKind, Problem> {
    let path = "trainingService.operator";
    let words = OPERATOR_KINDS.iter().map(|kind| kind.operator);
    match operator {
        Some(Value::String(word)) => {
            OPERATOR_KINDS.iter().find(|kind| kind.operator == word).ok_or_else(|| {
                Problem::new(
                    path,
                    format!("`{word}` is not known; {}", suggest_names(&word, words)),
                )
            })
        }
        Some(other) => Err(Problem::new(path, format!("expected a string, found {other}"))),
        None => {
            let what = "is missing; `tf-operator` runs trials as TFJobs, `pytorch-operator` as PyTorchJobs";
            Err(Problem::new(path, what))
        }
    }
}

fn check_api_version(written: Option<Value>) -> Result<String, Problem> {
    let path = "trainingService.apiVersion";
    match written {
        None => Ok("v1".to_owned()),
        Some(Value::String(word)) if OPERATOR_API_VERSIONS.contains(&word.as_str()) => Ok(word),
        Some(Value::String(word)) => {
            let what =
                format!("`{word}` is not known; {}", suggest_names(&word, OPERATOR_API_VERSIONS));
            Err(Problem::new(path, what))
        }
        Some(other) => Err(Problem::new(path, format!("expected a string, found {other}"))),
    }
}

/// Returns a role as an entry of `taskRoles`, and its code directory.
fn convert_role(role: &str, path: &str, value: Value) -> Result<(Value, Option<Value>), Problem> {
    let mut fields = Section::open(path, value, &ROLE_FIELDS)?;
    let code = fields.take("codeDirectory");
    let mut entry = Map::from_iter([("name".to_owned(), Value::from(role))]);
    for field in ROLE_FIELDS {
        let name = if field == "replicas" { "taskNumber" } else { field };
        entry.extend(fields.take(field).map(|value| (name.to_owned(), value)));
    }
    Ok((Value::Object(entry), code))
}

fn unknown_role(kind: &OperatorKind, role: &str) -> String {
    let object = kind.workload.object();
    let roles: Vec<String> = kind.roles.iter().map(|role| format!("`{role}`")).collect();
    format!(
        "a {object} (`operator: {}`) has no `{role}`; its roles are {}",
        kind.operator,
        roles.join(" and ")
    )
}

fn missing_role(kind: &OperatorKind) -> String {
    format!(
        "is missing; a {} (`operator: {}`) cannot run without it",
        kind.workload.object(),
        kind.operator
    )
}

/// Refuses roles that the kind does not support. A `TFJob` with an unknown role would never end.
pub(super) fn check_roles(
    workload: WorkloadKind,
    fields: &Section,
    roles: &[RoleSpec],
) -> Result<(), Problem> {
    let Some(kind) = OPERATOR_KINDS.iter().find(|kind| kind.workload == workload) else {
        return Ok(());
    };
    for (i, role) in roles.iter().enumerate() {
        let field = format!("taskRoles[{i}]");
        if !kind.roles.contains(&role.name.as_str()) {
            return Err(fields.problem(&field, unknown_role(kind, &role.name)));
        }
        if role.name == "master" && role.task_number != 1 {
            let what =
                format!("a {} has one master, found {}", workload.object(), role.task_number);
            return Err(fields.problem(&format!("{field}.taskNumber"), what));
        }
    }
    if roles.iter().any(|role| role.name == kind.required_role) {
        return Ok(());
    }
    Err(fields.problem(kind.required_role, missing_role(kind)))
}

fn has_field(members: &Map<String, Value>, field: &str) -> bool {
    members.keys().any(|key| normalize_name(key) == normalize_name(field))
}

/// Takes a field in any spelling. A `null` counts as absent.
fn take_field(members: &mut Map<String, Value>, field: &str) -> Option<Value> {
    let key = members.keys().find(|key| normalize_name(key) == normalize_name(field))?.clone();
    members.shift_remove(&key).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::StorageSpec;
    use super::super::tests::{document, load_kubernetes_spec, load_with_template};
    use super::*;

    /// Returns the document of a section, with changes.
    fn kubeflow_document(changes: &Value) -> String {
        let worker = json!({"replicas": 1, "dockerImage": "i", "codeDirectory": "."});
        let mut section = json!({"platform": "kubeflow", "operator": "tf-operator", "apiVersion": "v1", "worker": worker});
        for (field, value) in changes.as_object().unwrap() {
            section[field] = value.clone();
        }
        section.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        document(&section).to_string()
    }

    #[test]
    fn nnis_v2_form_and_its_stored_form_are_read() {
        let worker = json!({
            "replicas": 2, "command": "python3 w.py", "gpuNumber": 1, "cpuNumber": 4,
            "memorySize": "8 gb", "dockerImage": "w:1", "codeDirectory": ".",
        });
        let ps = json!({"replicas": 1, "command": "python3 ps.py", "gpu_number": 0, "dockerImage": "p:1", "codeDirectory": "."});
        let written = kubeflow_document(&json!({
            "apiVersion": "v1beta2", "ps": ps, "worker": worker, "reuseMode": false, "namespace": "lab",
            "storage": {"storageType": "nfs", "server": "10.0.0.1", "path": "/nni"},
        }));
        let read = load_kubernetes_spec(&written);
        assert_eq!(read.workload, WorkloadKind::TfJob);
        let roles: Vec<(&str, u64, &str)> = read
            .roles
            .iter()
            .map(|role| (role.name.as_str(), role.task_number, role.command.as_str()))
            .collect();
        assert_eq!(roles, [("worker", 2, "python3 w.py"), ("ps", 1, "python3 ps.py")]);
        assert_eq!((read.roles[0].gpus, read.roles[0].memory_mib), (Some(1), Some(8192)));
        assert_eq!(read.metrics_from, ("worker".to_owned(), 0));

        let whole = load_with_template(&written, "").unwrap();
        let mut stored = whole.canonical["trainingService"].clone();
        assert_eq!(
            (&stored["operator"], &stored["apiVersion"]),
            (&json!("tf-operator"), &json!("v1beta2"))
        );
        stored.as_object_mut().unwrap().remove("trialCodeDirectory");
        let again = load_with_template(&document(&stored).to_string(), "").unwrap();
        assert_eq!(again.training_service, whole.training_service);
    }

    /// Returns NNI's own example file from its documentation.
    fn legacy_document() -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path.join("fixtures/config/kubeflow_v1.yml")).unwrap()
    }

    #[test]
    fn nnis_v1_form_is_read_unchanged() {
        let whole = load_with_template(&legacy_document(), "").unwrap();
        assert_eq!(whole.max_trial_number, Some(5));
        let read = load_kubernetes_spec(&legacy_document());
        assert_eq!(read.workload, WorkloadKind::TfJob);
        let nfs =
            StorageSpec::Nfs { server: "10.10.10.11".to_owned(), path: "/var/nfs/nni".to_owned() };
        assert_eq!((read.storage, read.advertise.as_deref()), (nfs, Some("10.10.10.10")));
        let [worker] = &read.roles[..] else { panic!("{:?}", read.roles) };
        assert_eq!((worker.name.as_str(), worker.task_number), ("worker", 1));
        assert_eq!(
            (worker.gpus, worker.cpu.as_deref(), worker.memory_mib),
            (Some(1), Some("1"), Some(8192))
        );
        assert_eq!(
            (worker.image.as_deref(), worker.command.as_str()),
            (Some("msranni/nni:latest"), "python3 dist_mnist.py")
        );
        for version in ["v1alpha2", "v1beta1", "v1beta2"] {
            let older =
                legacy_document().replace("apiVersion: v1", &format!("apiVersion: {version}"));
            assert_eq!(load_kubernetes_spec(&older).workload, WorkloadKind::TfJob, "{version}");
        }
    }

    #[test]
    fn errors_of_a_v1_file_have_its_terms() {
        #[rustfmt::skip]
        let table = [
            ("replicas: 1",            "replicas: 0",             "trial.worker.replicas: expected an integer of at least 1"),
            ("    image: msranni/nni:latest\n", "",               "trial.worker.image: is missing"),
            ("    command: python3 dist_mnist.py\n", "",          "trial.command: is missing"),
            ("worker:",                "master:",                 "trial.master: a TFJob (`operator: tf-operator`) has no `master`"),
            ("worker:",                "ps:",                     "trial.worker: is missing; a TFJob"),
            ("tf-operator",            "pytorch-operator",        "trial.master: is missing; a PyTorchJob"),
            ("operator: tf-operator",  "reuse: true",             "kubeflowConfig.operator: is missing"),
            ("apiVersion: v1",         "apiVersion: v3",          "kubeflowConfig.apiVersion: `v3` is not known"),
            ("codeDir: .",             "codeDir: nowhere",        "trial.codeDir: "),
            ("storage: nfs", "storage: pvc", "kubeflowConfig.pvc.claimName: is missing; no template mounts the claim"),
            ("    path: /var/nfs/nni\n", "",                      "kubeflowConfig.nfs.path: is missing"),
        ];
        for (good, bad, expected) in table {
            let problem =
                load_with_template(&legacy_document().replace(good, bad), "").unwrap_err();
            assert!(problem.starts_with(expected), "{expected:?} is not the start of {problem:?}");
        }
    }

    #[test]
    fn an_operator_selects_the_kind_and_the_reporting_role() {
        let role =
            |replicas: u64| json!({"replicas": replicas, "dockerImage": "i", "codeDirectory": "."});
        #[rustfmt::skip]
        let table = [
            ("tf-operator",      json!({}),                                         WorkloadKind::TfJob,      "worker"),
            ("pytorch-operator", json!({"master": role(1)}),                        WorkloadKind::PyTorchJob, "master"),
            ("pytorch-operator", json!({"master": role(1), "worker": null}),        WorkloadKind::PyTorchJob, "master"),
            ("xgboost-operator", json!({"master": role(1)}),                        WorkloadKind::XgBoostJob, "master"),
            ("paddle-operator",  json!({}),                                         WorkloadKind::PaddleJob,  "worker"),
        ];
        for (operator, mut changes, kind, reports) in table {
            changes["operator"] = json!(operator);
            let read = load_kubernetes_spec(&kubeflow_document(&changes));
            assert_eq!((read.workload, read.metrics_from.0.as_str()), (kind, reports), "{changes}");
        }
    }

    #[test]
    fn fields_that_a_kind_lacks_are_refused_with_their_paths() {
        let role = json!({"replicas": 1, "dockerImage": "i", "codeDirectory": "."});
        let two = json!({"replicas": 2, "dockerImage": "i"});
        let elsewhere = json!({"replicas": 1, "dockerImage": "i", "codeDirectory": ".."});
        #[rustfmt::skip]
        let table = [
            (json!({"operator": null}),            "trainingService.operator: is missing"),
            (json!({"operator": "tf_operator"}),   "trainingService.operator: `tf_operator` is not known; did you mean `tf-operator`?"),
            (json!({"apiVersion": "v2"}),          "trainingService.apiVersion: `v2` is not known"),
            (json!({"master": role}),              "trainingService.master: a TFJob (`operator: tf-operator`) has no `master`; its roles are `worker` and `ps`"),
            (json!({"worker": null, "ps": role}),  "trainingService.worker: is missing; a TFJob"),
            (json!({"worker": null}),              "trainingService.worker: is missing; a TFJob"),
            (json!({"operator": "pytorch-operator"}), "trainingService.master: is missing; a PyTorchJob"),
            (json!({"operator": "pytorch-operator", "master": role, "ps": role}), "trainingService.ps: a PyTorchJob"),
            (json!({"operator": "pytorch-operator", "master": two}), "trainingService.master.replicas: a PyTorchJob has one master, found 2"),
            (json!({"ps": elsewhere}),             "trainingService.ps.codeDirectory: differs from `trainingService.worker.codeDirectory`"),
            (json!({"worker": {"replicas": 0, "dockerImage": "i"}}), "trainingService.worker.replicas: expected an integer of at least 1"),
            (json!({"worker": {"replicas": 1}}),   "trainingService.worker.dockerImage: is missing"),
            (json!({"worker": {"dockerImage": "i", "taskNumber": 1}}), "trainingService.worker.taskNumber: unknown field"),
            (json!({"worker": {"dockerImage": "i", "codeDirectory": "nowhere"}}), "trainingService.worker.codeDirectory: "),
            (json!({"evaluator": role}),           "trainingService.evaluator: unknown field"),
            (json!({"taskRoles": [{"name": "foo", "dockerImage": "i"}], "worker": null}), "trainingService.taskRoles[0]: a TFJob"),
            (json!({"configPath": "f.yml"}),       "trainingService.configPath: is a field of FrameworkController"),
            (json!({"barrierImage": "i"}),         "trainingService.barrierImage: is a field of FrameworkController"),
            (json!({"priorityClass": "p"}),        "trainingService.priorityClass: has no meaning without `queue`"),
        ];
        for (changes, expected) in table {
            let problem = load_with_template(&kubeflow_document(&changes), "").unwrap_err();
            assert!(problem.starts_with(expected), "{expected:?} is not the start of {problem:?}");
        }
    }
}
