//! PURE: converts the v1 (legacy) form to the v2 form of the same fields, after NNI 3.0's
//! `nni/experiment/config/convert.py`. It keeps fields that NNI's converter loses, such as the namespace.

mod fields;

use serde_json::{Map, Value, json};

use self::fields::{
    CLASS_FIELDS, CLUSTER_FIELDS, COMMON_FIELDS, IGNORED_ALGORITHM_FIELDS, IGNORED_CLUSTER_FIELDS,
    IGNORED_MACHINE_FIELDS, IGNORED_PAI_FIELDS, IGNORED_TRIAL_FIELDS, LOCAL_FIELDS, MACHINE_FIELDS,
    PAI_FIELDS, PAI_RESOURCE_FIELDS, PAI_TRIAL_FIELDS, PLATFORM_SECTIONS, POLICY_FIELDS,
    REMOTE_FIELDS, ROLE_FIELDS, Renames, STORAGE_FIELDS, TRIAL_FIELDS, TRIAL_ROLES,
    V1_TOP_LEVEL_FIELDS,
};
use super::document::find_member;
use super::section::{Problem, Section};
use super::service;
use crate::util::nearest::normalize_name;

/// A document in v2 form, and the v1 paths of its fields.
#[derive(Debug)]
pub(super) struct ConvertedDocument {
    pub(super) v2: Value,
    /// Maps v2 paths to v1 paths, also of fields that the document does not have. The last entry for a path counts.
    v1_paths: Vec<(String, String)>,
    /// The v1 paths of the fields that have no effect.
    pub(super) ignored: Vec<String>,
}

/// The platforms whose fields the v1 form cannot express.
const PLATFORMS_OF_VERSION_2: [&str; 3] = ["plugin", "kubernetes", "trainer"];

/// Examples in messages, in the terms of v2 and of v1.
const MESSAGE_EXAMPLES: [(&str, &str); 2] =
    [("{name: Random}", "{builtinTunerName: Random}"), ("dockerImage: ", "image: ")];

impl ConvertedDocument {
    /// Converts a problem of the v2 form to the terms of v1: its path, and the fields that its text names in
    /// backquotes.
    pub(super) fn translate_problem(&self, problem: Problem) -> Problem {
        let pieces = problem.message.split('`').enumerate();
        let pieces = pieces.map(|(i, piece)| match i % 2 {
            1 => self.v1_path(piece),
            _ => MESSAGE_EXAMPLES
                .iter()
                .fold(piece.to_owned(), |text, (v2, v1)| text.replace(v2, v1)),
        });
        let message = pieces.collect::<Vec<_>>().join("`");
        let others =
            problem.others.into_iter().map(|other| self.translate_problem(other)).collect();
        Problem { path: self.v1_path(&problem.path), message, others, ..problem }
    }

    /// Returns the v1 path for a v2 path.
    fn v1_path(&self, path: &str) -> String {
        let below = |v2: &str| {
            path.strip_prefix(v2).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let found = self.v1_paths.iter().filter_map(|(v2, v1)| Some((v2.len(), v1, below(v2)?)));
        match found.max_by_key(|(length, ..)| *length) {
            Some((_, v1, rest)) => format!("{v1}{rest}"),
            None => path.to_owned(),
        }
    }
}

/// Returns whether a document is in v1 form.
pub(super) fn is_v1(document: &Value) -> bool {
    platform_of(document).is_some()
}

/// Returns the value of `trainingServicePlatform`, which only the v1 form has.
fn platform_of(document: &Value) -> Option<&Value> {
    find_member(document.as_object()?, "trainingServicePlatform")
}

/// Refuses a platform that is not built in, and a file of version 2 with a platform of version 1. This check precedes
/// that of the fields, because those of such a file are unknown.
pub(super) fn check_platform(document: &Value) -> Result<(), Problem> {
    let Some(name) = platform_of(document).filter(|name| !name.is_null()) else { return Ok(()) };
    if name == service::HYBRID_PLATFORM {
        return Ok(()); // The platforms of a hybrid experiment are checked in its list.
    }
    service::check_platform("trainingServicePlatform", Some(name))?;
    if let Some(name) = name.as_str().filter(|name| PLATFORMS_OF_VERSION_2.contains(name)) {
        let problem = format!(
            "`{name}` needs version 2 of the file, in which `trainingService` contains the platform: {{platform: {name}}}"
        );
        return Err(Problem::new("trainingServicePlatform", problem));
    }
    let has_member =
        |name| document.as_object().is_some_and(|members| find_member(members, name).is_some());
    if has_member("trialCommand") && !has_member("trial") {
        let problem = format!(
            "is a field of version 1 of the format, but `trialCommand` is one of version 2, in which \
             `trainingService` contains the platform: {{platform: {}}}",
            name.as_str().unwrap_or("local")
        );
        return Err(Problem::new("trainingServicePlatform", problem));
    }
    Ok(())
}

/// Converts a v1 document.
pub(super) fn convert(document: Value) -> Result<ConvertedDocument, Problem> {
    let mut converter = Converter::default();
    let v2 = converter.convert_document(document)?;
    let Converter { possible_paths: mut v1_paths, v1_paths: given, ignored } = converter;
    v1_paths.extend(given);
    Ok(ConvertedDocument { v2: Value::Object(v2), v1_paths, ignored })
}

#[derive(Default)]
struct Converter {
    /// Maps v2 paths to v1 paths of possible fields.
    possible_paths: Vec<(String, String)>,
    /// Maps v2 paths to v1 paths of fields that the document has.
    v1_paths: Vec<(String, String)>,
    /// The v1 paths of the fields that have no effect.
    ignored: Vec<String>,
}

impl Converter {
    fn convert_document(&mut self, mut document: Value) -> Result<Map<String, Value>, Problem> {
        self.ignore_other_platforms(&mut document);
        self.ignore("", &mut document, &["trainingService"]);
        let known: Vec<&str> =
            v1_names(COMMON_FIELDS).into_iter().chain(V1_TOP_LEVEL_FIELDS).collect();
        let mut v1 = Section::open("", document, &known)?;
        let platform = v1.string("trainingServicePlatform")?.unwrap_or_else(|| "local".to_owned());
        self.record_path("trainingService.platform", "trainingServicePlatform");
        self.record_possible_paths(TRIAL_FIELDS, "trial", "");
        self.record_path("trainingService.taskRoles", "trial.taskRoles");
        let (config, known) = match platform.as_str() {
            "frameworkcontroller" => ("frameworkcontrollerConfig", CLUSTER_FIELDS),
            "kubeflow" => ("kubeflowConfig", CLUSTER_FIELDS),
            "pai" | "openpai" => ("paiConfig", PAI_FIELDS),
            _ => ("localConfig", LOCAL_FIELDS),
        };
        self.record_possible_paths(known, config, "trainingService");
        if known == PAI_FIELDS {
            self.record_possible_paths(PAI_TRIAL_FIELDS, "trial", "trainingService");
        } else if known == CLUSTER_FIELDS {
            self.record_path("trainingService.storage", &format!("{config}.storage"));
            self.record_path("trainingService.storage.storageType", &format!("{config}.storage"));
        }
        if v1.boolean("multiPhase")? == Some(true) {
            return Err(v1.problem("multiPhase", "multi-phase trials are no longer supported"));
        }
        let mut v2 = Map::new();
        self.rename_fields(&mut v1, "", COMMON_FIELDS, &mut v2);
        let mut service = json!({"platform": platform}).as_object().cloned().unwrap_or_default();
        if let Some(trial) = v1.take("trial") {
            self.convert_trial(trial, &mut v2, &mut service)?;
        }
        for kind in ["tuner", "assessor", "advisor"] {
            // NNI takes an empty section for none.
            let algorithm =
                v1.take(kind).filter(|it| it.as_object().is_none_or(|it| !it.is_empty()));
            if let Some(algorithm) = algorithm {
                self.convert_algorithm(kind, algorithm, &mut v2)?;
            }
        }
        if platform == service::HYBRID_PLATFORM {
            service.remove("platform");
            let parts = self.convert_hybrid(&mut v1, &mut service)?;
            v2.insert("trainingService".to_owned(), Value::Array(parts));
            return Ok(v2);
        }
        self.convert_local_fields(&mut v1, "trainingService", &mut service)?;
        self.convert_remote_fields(&mut v1, "trainingService", &mut service)?;
        self.convert_pai_fields(&mut v1, "trainingService", &mut service)?;
        for field in ["kubeflowConfig", "frameworkcontrollerConfig"] {
            if let Some(config) = v1.take(field) {
                self.convert_cluster(field, config, &mut service)?;
            }
        }
        v2.insert("trainingService".to_owned(), Value::Object(service));
        Ok(v2)
    }

    /// Removes the sections of platforms on which the experiment does not run. A hybrid experiment runs on several.
    fn ignore_other_platforms(&mut self, document: &mut Value) {
        let platform = platform_of(document).and_then(Value::as_str).unwrap_or("local").to_owned();
        let platform = if platform == "pai" { "openpai" } else { platform.as_str() };
        if !PLATFORM_SECTIONS.iter().any(|(_, of)| *of == platform) {
            return;
        }
        let others = PLATFORM_SECTIONS.iter().filter(|(_, of)| *of != platform);
        let others: Vec<&str> = others.map(|(section, _)| *section).collect();
        self.ignore("", document, &others);
    }

    /// Removes fields that have no effect from an object.
    fn ignore(&mut self, path: &str, value: &mut Value, names: &[&str]) {
        let Some(members) = value.as_object_mut() else { return };
        let is_ignored =
            |key: &str| names.iter().any(|name| normalize_name(name) == normalize_name(key));
        let dot = if path.is_empty() { "" } else { "." };
        let given = members.keys().filter(|key| is_ignored(key));
        self.ignored.extend(given.map(|key| format!("{path}{dot}{key}")));
        members.retain(|key, _| !is_ignored(key));
    }

    /// Returns the parts of a hybrid experiment: the platforms that `hybridConfig` names.
    /// `trial` has the fields of the section `trial` for `OpenPAI`.
    fn convert_hybrid(
        &mut self,
        v1: &mut Section,
        trial: &mut Map<String, Value>,
    ) -> Result<Vec<Value>, Problem> {
        const NAMES: &str = "hybridConfig.trainingServicePlatforms";
        let expected =
            || Problem::new(NAMES, "expected a list of platforms, such as [local, remote]");
        let config = v1.take("hybridConfig").ok_or_else(expected)?;
        let mut config = Section::open("hybridConfig", config, &["trainingServicePlatforms"])?;
        let names = config.take("trainingServicePlatforms").ok_or_else(expected)?;
        let names: Vec<String> = serde_json::from_value(names).map_err(|_| expected())?;
        if names.is_empty() {
            return Err(expected());
        }
        self.record_path("trainingService", NAMES);
        let mut parts = Vec::new();
        for (i, name) in names.iter().enumerate() {
            service::check_platform(&format!("{NAMES}[{i}]"), Some(&json!(name)))?;
            let path = format!("trainingService[{i}]");
            self.record_path(&format!("{path}.platform"), &format!("{NAMES}[{i}]"));
            let mut part = json!({"platform": name}).as_object().cloned().unwrap_or_default();
            match name.as_str() {
                "local" => self.convert_local_fields(v1, &path, &mut part)?,
                "remote" => self.convert_remote_fields(v1, &path, &mut part)?,
                "pai" | "openpai" => {
                    for (old, new) in PAI_TRIAL_FIELDS {
                        self.record_path(&format!("{path}.{new}"), &format!("trial.{old}"));
                        part.extend(trial.remove_entry(*new));
                    }
                    self.convert_pai_fields(v1, &path, &mut part)?;
                }
                other => {
                    let problem = format!(
                        "`{other}` is not supported in this list; use the list form of `trainingService` of version 2"
                    );
                    return Err(Problem::new(format!("{NAMES}[{i}]"), problem));
                }
            }
            parts.push(Value::Object(part));
        }
        let of_no_part = PAI_TRIAL_FIELDS.iter().filter(|(_, new)| trial.contains_key(*new));
        self.ignored.extend(of_no_part.map(|(old, _)| format!("trial.{old}")));
        let fields = ["localConfig", "remoteConfig", "machineList", "paiConfig"];
        let Some(field) = fields.iter().find(|field| v1.peek(field).is_some()) else {
            return Ok(parts);
        };
        let problem = format!("belongs to a platform that `{NAMES}` does not name");
        Err(Problem::new(*field, problem))
    }

    fn convert_local_fields(
        &mut self,
        v1: &mut Section,
        path: &str,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        self.rename_section(v1, "localConfig", LOCAL_FIELDS, path, service)
    }

    fn convert_remote_fields(
        &mut self,
        v1: &mut Section,
        path: &str,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        self.rename_section(v1, "remoteConfig", REMOTE_FIELDS, path, service)?;
        if let Some(Value::Array(machines)) = v1.take("machineList") {
            let machines = machines.into_iter().enumerate().map(|(i, mut machine)| {
                let at = format!("machineList[{i}]");
                self.ignore(&at, &mut machine, &IGNORED_MACHINE_FIELDS);
                self.rename_object(&at, &format!("{path}.{at}"), machine, MACHINE_FIELDS)
            });
            let machines: Result<Vec<Value>, Problem> = machines.collect();
            service.insert("machineList".to_owned(), Value::Array(machines?));
        }
        Ok(())
    }

    fn convert_pai_fields(
        &mut self,
        v1: &mut Section,
        path: &str,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        let Some(mut config) = v1.take("paiConfig") else { return Ok(()) };
        self.ignore("paiConfig", &mut config, &IGNORED_PAI_FIELDS);
        let known: Vec<&str> =
            v1_names(PAI_FIELDS).into_iter().chain(v1_names(PAI_RESOURCE_FIELDS)).collect();
        let mut config = Section::open("paiConfig", config, &known)?;
        self.rename_fields(&mut config, path, PAI_FIELDS, service);
        self.rename_fields(&mut config, path, PAI_RESOURCE_FIELDS, service);
        // The error for a missing field names the usual place.
        self.record_possible_paths(TRIAL_FIELDS, "trial", path);
        self.record_possible_paths(PAI_TRIAL_FIELDS, "trial", path);
        Ok(())
    }

    fn rename_section(
        &mut self,
        v1: &mut Section,
        field: &str,
        known: Renames,
        path: &str,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        if let Some(config) = v1.take(field) {
            let mut config = Section::open(field, config, &v1_names(known))?;
            self.rename_fields(&mut config, path, known, service);
        }
        Ok(())
    }

    fn convert_trial(
        &mut self,
        mut trial: Value,
        v2: &mut Map<String, Value>,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        let mut known =
            vec!["command", "codeDir", "gpuNum", "nasMode", "taskRoles", "worker", "ps", "master"];
        match service.get("platform").and_then(Value::as_str) {
            Some("pai" | "openpai") => {
                known.extend(v1_names(PAI_TRIAL_FIELDS));
                self.ignore("trial", &mut trial, &TRIAL_ROLES);
            }
            Some(service::HYBRID_PLATFORM) => known.extend(v1_names(PAI_TRIAL_FIELDS)),
            Some("local" | "remote") => {
                self.ignore("trial", &mut trial, &v1_names(PAI_TRIAL_FIELDS));
                self.ignore("trial", &mut trial, &TRIAL_ROLES);
            }
            Some(_) | None => self.ignore("trial", &mut trial, &v1_names(PAI_TRIAL_FIELDS)),
        }
        self.ignore("trial", &mut trial, &IGNORED_TRIAL_FIELDS);
        let mut trial = Section::open("trial", trial, &known)?;
        self.rename_fields(&mut trial, "", TRIAL_FIELDS, v2);
        self.rename_fields(&mut trial, "trainingService", PAI_TRIAL_FIELDS, service);
        let roles = trial.take("taskRoles");
        if let Some(Value::Array(roles)) = roles {
            let roles = roles.into_iter().enumerate().map(|(i, role)| {
                let at = format!("taskRoles[{i}]");
                self.convert_role(&format!("trial.{at}"), &format!("trainingService.{at}"), role)
            });
            let roles = roles.collect::<Result<Vec<Value>, Problem>>()?;
            if !v2.contains_key("trialCommand")
                && let Some(role) = roles.first()
            {
                self.record_path("trialCommand", "trial.taskRoles[0].command");
                v2.extend(role.get("command").map(|it| ("trialCommand".to_owned(), it.clone())));
            }
            service.insert("taskRoles".to_owned(), Value::Array(roles));
        } else if let Some(other) = roles {
            service.insert("taskRoles".to_owned(), other);
        }
        for name in ["worker", "ps", "master"] {
            let path = format!("trainingService.{name}");
            self.record_path(&path, &format!("trial.{name}"));
            self.record_path(&format!("{path}.codeDirectory"), "trial.codeDir");
            self.record_possible_paths(ROLE_FIELDS, &format!("trial.{name}"), &path);
            if let Some(role) = trial.take(name) {
                let mut role = self.convert_role(&format!("trial.{name}"), &path, role)?;
                if let (Some(role), Some(code)) =
                    (role.as_object_mut(), v2.get("trialCodeDirectory"))
                {
                    role.insert("codeDirectory".to_owned(), code.clone());
                }
                service.insert(name.to_owned(), role);
            }
        }
        Ok(())
    }

    fn convert_role(
        &mut self,
        v1_path: &str,
        v2_path: &str,
        role: Value,
    ) -> Result<Value, Problem> {
        let mut role = self.rename_object(v1_path, v2_path, role, ROLE_FIELDS)?;
        if let Some(policy) = role.get_mut("frameworkAttemptCompletionPolicy") {
            let v1_path = format!("{v1_path}.frameworkAttemptCompletionPolicy");
            let v2_path = format!("{v2_path}.frameworkAttemptCompletionPolicy");
            *policy = self.rename_object(&v1_path, &v2_path, policy.take(), POLICY_FIELDS)?;
        }
        Ok(role)
    }

    fn convert_algorithm(
        &mut self,
        kind: &str,
        mut algorithm: Value,
        v2: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        self.ignore(kind, &mut algorithm, &IGNORED_ALGORITHM_FIELDS);
        let builtin = match kind {
            "tuner" => "builtinTunerName",
            "assessor" => "builtinAssessorName",
            _ => "builtinAdvisorName",
        };
        let [folder, file, class] = CLASS_FIELDS;
        let known =
            [builtin, folder, file, class, "classArgs", "includeIntermediateResults", "gpuIndices"];
        let mut v1 = Section::open(kind, algorithm, &known)?;
        let mut named = Map::new();
        self.rename_fields(&mut v1, "", &[("gpuIndices", "tunerGpuIndices")], v2);
        if let Some(name) = v1.take(builtin) {
            self.record_path(&format!("{kind}.name"), &v1.field_path(builtin));
            named.insert("name".to_owned(), name);
            let unused = CLASS_FIELDS.iter().filter(|field| v1.take(field).is_some());
            self.ignored.extend(unused.map(|field| format!("{kind}.{field}")));
        } else {
            let (file, class) = (v1.string("classFileName")?, v1.string("className")?);
            let Some((file, class)) = file.zip(class) else {
                let problem =
                    format!("needs `{builtin}`, or `codeDir`, `classFileName` and `className`");
                return Err(Problem::new(kind, problem));
            };
            let Some(module) = file.strip_suffix(".py") else {
                return Err(v1.problem("classFileName", format!("`{file}` does not end in .py")));
            };
            named.insert("className".to_owned(), Value::from(format!("{module}.{class}")));
            self.record_path(&format!("{kind}.codeDirectory"), &v1.field_path("codeDir"));
            named.insert("codeDirectory".to_owned(), v1.take("codeDir").unwrap_or(json!(".")));
        }
        if let Some(arguments) = v1.take("classArgs") {
            named.insert("classArgs".to_owned(), arguments);
        }
        v2.insert(kind.to_owned(), Value::Object(named));
        Ok(())
    }

    fn convert_cluster(
        &mut self,
        field: &str,
        mut config: Value,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        self.ignore(field, &mut config, &IGNORED_CLUSTER_FIELDS);
        let known: Vec<&str> = v1_names(CLUSTER_FIELDS).into_iter().chain(STORAGE_FIELDS).collect();
        let mut v1 = Section::open(field, config, &known)?;
        self.rename_fields(&mut v1, "trainingService", CLUSTER_FIELDS, service);
        let stated = v1.string("storage")?;
        let nfs = v1.take("nfs");
        let pvc = v1.take("pvc");
        let azure_storage = v1.take("azureStorage");
        let kind = stated.or_else(|| {
            let kind = match (&nfs, &pvc, &azure_storage) {
                (Some(_), _, _) => "nfs",
                (_, Some(_), _) => "pvc",
                (_, _, Some(_)) => "azureStorage",
                (None, None, None) => return None,
            };
            Some(kind.to_owned())
        });
        let Some(kind) = kind else { return Ok(()) };
        let mut storage = Map::from_iter([("storageType".to_owned(), Value::from(kind.as_str()))]);
        let azure: Renames = &[
            ("accountName", "azureAccount"),
            ("azureShare", "azureShare"),
            // A field of TrialKeeper.
            ("azureKeyFile", "azureKeyFile"),
        ];
        let vault: Renames = &[("vaultName", "keyVaultName"), ("name", "keyVaultKey")];
        let parts: [(&str, Option<Value>, Renames); 4] = [
            ("nfs", nfs, &[("server", "server"), ("path", "path")]),
            ("pvc", pvc, &[("path", "path"), ("claimName", "claimName")]),
            ("azureStorage", azure_storage, azure),
            ("keyVault", v1.take("keyVault"), vault),
        ];
        for (name, part, renames) in parts {
            if normalize_name(name) == normalize_name(&kind) {
                self.record_possible_paths(
                    renames,
                    &v1.field_path(name),
                    "trainingService.storage",
                );
            }
            if let Some(part) = part {
                let mut part = Section::open(&v1.field_path(name), part, &v1_names(renames))?;
                self.rename_fields(&mut part, "trainingService.storage", renames, &mut storage);
            }
        }
        service.insert("storage".to_owned(), Value::Object(storage));
        Ok(())
    }

    /// Converts an object whose fields are only renamed.
    fn rename_object(
        &mut self,
        v1_path: &str,
        v2_path: &str,
        value: Value,
        renames: Renames,
    ) -> Result<Value, Problem> {
        let mut v1 = Section::open(v1_path, value, &v1_names(renames))?;
        let mut v2 = Map::new();
        self.rename_fields(&mut v1, v2_path, renames, &mut v2);
        Ok(Value::Object(v2))
    }

    /// Records the v1 path of a field.
    fn record_path(&mut self, v2: &str, v1: &str) {
        self.v1_paths.push((v2.to_owned(), v1.to_owned()));
    }

    /// Records the v1 paths of possible fields, which the error for a missing field names.
    fn record_possible_paths(&mut self, renames: Renames, v1_path: &str, v2_path: &str) {
        let at = |path: &str, name: &str| {
            if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
        };
        let names = renames.iter().map(|(old, new)| (at(v2_path, new), at(v1_path, old)));
        self.possible_paths.extend(names);
    }

    /// Moves fields, and records their v1 paths.
    fn rename_fields(
        &mut self,
        v1: &mut Section,
        v2_path: &str,
        renames: Renames,
        v2: &mut Map<String, Value>,
    ) {
        self.record_possible_paths(renames, v1.path(), v2_path);
        for (old, new) in renames {
            if let Some(value) = v1.take(old) {
                let dot = if v2_path.is_empty() { "" } else { "." };
                self.record_path(&format!("{v2_path}{dot}{new}"), &v1.field_path(old));
                v2.insert((*new).to_owned(), value);
            }
        }
    }
}

fn v1_names(renames: Renames) -> Vec<&'static str> {
    renames.iter().map(|(old, _)| *old).collect()
}
