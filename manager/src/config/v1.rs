//! PURE: converts the v1 (legacy) form to the v2 form of the same fields, after NNI 3.0's
//! `nni/experiment/config/convert.py`. It keeps fields that NNI's converter loses, such as the namespace.

use serde_json::{Map, Value, json};

use super::section::{Problem, Section};
use super::service;
use crate::util::nearest::folded;

/// A document in v2 form, and the v1 paths of its fields.
#[derive(Debug)]
pub(super) struct ConvertedDocument {
    pub(super) v2: Value,
    /// Maps v2 paths to v1 paths, also of fields that the document does not have. The last entry for a path counts.
    names: Vec<(String, String)>,
    /// The v1 paths of the fields that have no effect.
    pub(super) ignored: Vec<String>,
}

/// Examples in messages, in the terms of v2 and of v1.
const EXAMPLES: [(&str, &str); 2] =
    [("{name: Random}", "{builtinTunerName: Random}"), ("dockerImage: ", "image: ")];

impl ConvertedDocument {
    /// Converts a problem of the v2 form to the terms of v1: its path, and the fields that its text names in
    /// backquotes.
    pub(super) fn original(&self, problem: Problem) -> Problem {
        let pieces = problem.what.split('`').enumerate();
        let pieces = pieces.map(|(i, piece)| match i % 2 {
            1 => self.path(piece),
            _ => EXAMPLES.iter().fold(piece.to_owned(), |text, (v2, v1)| text.replace(v2, v1)),
        });
        let what = pieces.collect::<Vec<_>>().join("`");
        let others = problem.others.into_iter().map(|other| self.original(other)).collect();
        Problem { path: self.path(&problem.path), what, others, ..problem }
    }

    /// Returns the v1 path for a v2 path.
    fn path(&self, path: &str) -> String {
        let below = |v2: &str| {
            path.strip_prefix(v2).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let found = self.names.iter().filter_map(|(v2, v1)| Some((v2.len(), v1, below(v2)?)));
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
    let mut members = document.as_object()?.iter();
    members.find(|(key, _)| folded(key) == "trainingserviceplatform").map(|(_, value)| value)
}

/// Refuses a platform that is not built in. This check precedes that of the fields, because those of such a platform
/// are unknown.
pub(super) fn check_platform(document: &Value) -> Result<(), Problem> {
    let Some(name) = platform_of(document).filter(|name| !name.is_null()) else { return Ok(()) };
    if name == service::HYBRID {
        return Ok(()); // The platforms of a hybrid experiment are checked in its list.
    }
    service::check_platform("trainingServicePlatform", Some(name)).map(|_| ())
}

/// Maps v1 names to v2 names, which may be equal.
type Renames = &'static [(&'static str, &'static str)];

/// The fields of the top level whose values are the same in both forms.
const COMMON: Renames = &[
    ("experimentName", "experimentName"),
    ("trialConcurrency", "trialConcurrency"),
    ("maxExecDuration", "maxExperimentDuration"),
    ("maxTrialNum", "maxTrialNumber"),
    ("maxTrialDuration", "maxTrialDuration"),
    ("searchSpacePath", "searchSpaceFile"),
    ("searchSpace", "searchSpace"),
    ("nniManagerIp", "nniManagerIp"),
    ("logDir", "experimentWorkingDirectory"),
    ("debug", "debug"),
    ("logLevel", "logLevel"),
    ("useAnnotation", "useAnnotation"),
    ("sharedStorage", "sharedStorage"),
    // TrialKeeper's fields, which have the same names in both forms.
    ("objective", "objective"),
    ("objectives", "objectives"),
    ("constraints", "constraints"),
    ("codeSnapshot", "codeSnapshot"),
    ("recordPackages", "recordPackages"),
    ("trialRepeats", "trialRepeats"),
    ("pythonInterpreter", "pythonInterpreter"),
    ("tunerPatience", "tunerPatience"),
    ("targetMetric", "targetMetric"),
    ("maxConsecutiveFailures", "maxConsecutiveFailures"),
    ("maxTrialRetries", "maxTrialRetries"),
    ("notifications", "notifications"),
    ("initialTrials", "initialTrials"),
    ("owner", "owner"),
    ("tags", "tags"),
];

/// The other fields of the top level.
const TOP: [&str; 18] = [
    "authorName",
    "description",
    "trainingServicePlatform",
    "multiPhase",
    "multiThread",
    "versionCheck",
    "logCollection",
    "tuner",
    "assessor",
    "advisor",
    "trial",
    "localConfig",
    "remoteConfig",
    "hybridConfig",
    "machineList",
    "kubeflowConfig",
    "paiConfig",
    "frameworkcontrollerConfig",
];

/// The sections of the platforms, each with its platform. NNI 3.0 ignores the sections of the others.
const SECTIONS: [(&str, &str); 11] = [
    ("localConfig", "local"),
    ("remoteConfig", "remote"),
    ("machineList", "remote"),
    ("paiConfig", "openpai"),
    ("kubeflowConfig", "kubeflow"),
    ("frameworkcontrollerConfig", "frameworkcontroller"),
    // Platforms of NNI that are not built in.
    ("paiYarnConfig", "paiYarn"),
    ("amlConfig", "aml"),
    ("dltsConfig", "dlts"),
    ("dlcConfig", "dlc"),
    ("adlConfig", "adl"),
];

/// The fields of `trial` for [`PAI_TRIAL`]'s platform before NNI 3.0, which ignores them.
const OLD_TRIAL: [&str; 5] = ["shmMB", "authFile", "portList", "dataDir", "outputDir"];

/// The roles of a trial, which only two platforms have.
const ROLES: [&str; 4] = ["taskRoles", "worker", "ps", "master"];

/// The fields of an algorithm before NNI 3.0, which ignores them.
const OLD_ALGORITHM: [&str; 2] = ["gpuNum", "checkpointDir"];

/// The fields of `paiConfig` that NNI 3.0 ignores.
const OLD_PAI: [&str; 3] = ["password", "maxTrialNumPerGpu", "useActiveGpu"];

/// The field of a machine that NNI 3.0 ignores.
const OLD_MACHINE: [&str; 1] = ["preCommand"];

const TRIAL: Renames =
    &[("command", "trialCommand"), ("codeDir", "trialCodeDirectory"), ("gpuNum", "trialGpuNumber")];

const LOCAL: Renames = &[
    ("gpuIndices", "gpuIndices"),
    ("maxTrialNumPerGpu", "maxTrialNumberPerGpu"),
    ("useActiveGpu", "useActiveGpu"),
];

const REMOTE: Renames = &[("reuse", "reuseMode"), ("machinePatience", "machinePatience")];

const MACHINE: Renames = &[
    ("ip", "host"),
    ("port", "port"),
    ("username", "user"),
    ("passwd", "password"),
    ("sshKeyPath", "sshKeyFile"),
    ("passphrase", "sshPassphrase"),
    ("gpuIndices", "gpuIndices"),
    ("maxTrialNumPerGpu", "maxTrialNumberPerGpu"),
    ("useActiveGpu", "useActiveGpu"),
    ("pythonPath", "pythonPath"),
    // A field of TrialKeeper.
    ("name", "name"),
    ("knownHosts", "knownHosts"),
    ("proxyJump", "proxyJump"),
    ("sshOptions", "sshOptions"),
    ("remoteDirectory", "remoteDirectory"),
    ("maxTrialNumber", "maxTrialNumber"),
    ("passwordFile", "passwordFile"),
    ("sshPassphraseFile", "sshPassphraseFile"),
];

const PAI: Renames = &[
    ("host", "host"),
    ("userName", "username"),
    ("token", "token"),
    ("reuse", "reuseMode"),
    // TrialKeeper's fields, which have the same names in both forms.
    ("tokenFile", "tokenFile"),
    ("caFile", "caFile"),
];

/// The fields of `trial` that may also be in `paiConfig`.
const PAI_RESOURCES: Renames =
    &[("gpuNum", "trialGpuNumber"), ("cpuNum", "trialCpuNumber"), ("memoryMB", "trialMemorySize")];

/// The fields of `trial` on `OpenPAI`.
const PAI_TRIAL: Renames = &[
    ("cpuNum", "trialCpuNumber"),
    ("memoryMB", "trialMemorySize"),
    ("image", "dockerImage"),
    ("virtualCluster", "virtualCluster"),
    ("paiStorageConfigName", "storageConfigName"),
    ("nniManagerNFSMountPath", "localStorageMountPoint"),
    ("containerNFSMountPath", "containerStorageMountPoint"),
    ("paiConfigPath", "openpaiConfigFile"),
];

const ROLE: Renames = &[
    ("name", "name"),
    ("replicas", "replicas"),
    ("taskNum", "taskNumber"),
    ("command", "command"),
    ("gpuNum", "gpuNumber"),
    ("cpuNum", "cpuNumber"),
    ("memoryMB", "memorySize"),
    ("image", "dockerImage"),
    ("privateRegistryAuthPath", "privateRegistryAuthPath"),
    ("frameworkAttemptCompletionPolicy", "frameworkAttemptCompletionPolicy"),
];

const POLICY: Renames = &[
    ("minFailedTaskCount", "minFailedTaskCount"),
    ("minSucceededTaskCount", "minSucceedTaskCount"),
    ("minSucceedTaskCount", "minSucceedTaskCount"),
];

const CLUSTER: Renames = &[
    ("operator", "operator"),
    ("apiVersion", "apiVersion"),
    ("serviceAccountName", "serviceAccountName"),
    ("reuse", "reuseMode"),
    ("namespace", "namespace"),
    ("configPath", "configPath"),
    ("uploadRetryCount", "uploadRetryCount"),
    // TrialKeeper's fields, which have the same names in both forms.
    ("kubeconfig", "kubeconfig"),
    ("context", "context"),
    ("advertise", "advertise"),
    ("agent", "agent"),
    ("agentImage", "agentImage"),
    ("imagePullPolicy", "imagePullPolicy"),
    ("imagePullSecrets", "imagePullSecrets"),
    ("nodeSelector", "nodeSelector"),
    ("tolerations", "tolerations"),
    ("runAsUser", "runAsUser"),
    ("startUpDeadline", "startUpDeadline"),
    ("handOver", "handOver"),
    ("mounts", "mounts"),
    ("allowHostPath", "allowHostPath"),
    ("cache", "cache"),
    ("metricsFrom", "metricsFrom"),
    ("barrierImage", "barrierImage"),
    ("queue", "queue"),
    ("priorityClass", "priorityClass"),
    ("template", "template"),
];

const STORAGE: [&str; 5] = ["storage", "nfs", "azureStorage", "keyVault", "pvc"];

/// Converts a v1 document.
pub(super) fn convert(document: Value) -> Result<ConvertedDocument, Problem> {
    let mut converter = Converter::default();
    let v2 = converter.document(document)?;
    let Converter { possible: mut names, names: given, ignored } = converter;
    names.extend(given);
    Ok(ConvertedDocument { v2: Value::Object(v2), names, ignored })
}

#[derive(Default)]
struct Converter {
    /// Maps v2 paths to v1 paths of possible fields.
    possible: Vec<(String, String)>,
    /// Maps v2 paths to v1 paths of fields that the document has.
    names: Vec<(String, String)>,
    /// The v1 paths of the fields that have no effect.
    ignored: Vec<String>,
}

impl Converter {
    fn document(&mut self, mut document: Value) -> Result<Map<String, Value>, Problem> {
        self.ignore_other_platforms(&mut document);
        let known: Vec<&str> = firsts(COMMON).into_iter().chain(TOP).collect();
        let mut v1 = Section::open("", document, &known)?;
        let platform = v1.string("trainingServicePlatform")?.unwrap_or_else(|| "local".to_owned());
        self.name("trainingService.platform", "trainingServicePlatform");
        self.possible(TRIAL, "trial", "");
        self.name("trainingService.taskRoles", "trial.taskRoles");
        let (config, known) = match platform.as_str() {
            "frameworkcontroller" => ("frameworkcontrollerConfig", CLUSTER),
            "kubeflow" => ("kubeflowConfig", CLUSTER),
            "pai" | "openpai" => ("paiConfig", PAI),
            _ => ("localConfig", LOCAL),
        };
        self.possible(known, config, "trainingService");
        if known == PAI {
            self.possible(PAI_TRIAL, "trial", "trainingService");
        } else if known == CLUSTER {
            self.name("trainingService.storage", &format!("{config}.storage"));
            self.name("trainingService.storage.storageType", &format!("{config}.storage"));
        }
        if v1.boolean("multiPhase")? == Some(true) {
            return Err(v1.fault("multiPhase", "multi-phase trials are no longer supported"));
        }
        let mut v2 = Map::new();
        self.rename(&mut v1, "", COMMON, &mut v2);
        let mut service = json!({"platform": platform}).as_object().cloned().unwrap_or_default();
        if let Some(trial) = v1.take("trial") {
            self.trial(trial, &mut v2, &mut service)?;
        }
        for kind in ["tuner", "assessor", "advisor"] {
            // NNI takes an empty section for none.
            let algorithm =
                v1.take(kind).filter(|it| it.as_object().is_none_or(|it| !it.is_empty()));
            if let Some(algorithm) = algorithm {
                self.algorithm(kind, algorithm, &mut v2)?;
            }
        }
        if platform == service::HYBRID {
            service.remove("platform");
            let parts = self.hybrid(&mut v1, &mut service)?;
            v2.insert("trainingService".to_owned(), Value::Array(parts));
            return Ok(v2);
        }
        self.local_fields(&mut v1, "trainingService", &mut service)?;
        self.remote_fields(&mut v1, "trainingService", &mut service)?;
        self.pai_fields(&mut v1, "trainingService", &mut service)?;
        for field in ["kubeflowConfig", "frameworkcontrollerConfig"] {
            if let Some(config) = v1.take(field) {
                self.cluster(field, config, &mut service)?;
            }
        }
        v2.insert("trainingService".to_owned(), Value::Object(service));
        Ok(v2)
    }

    /// Removes the sections of platforms on which the experiment does not run. A hybrid experiment runs on several.
    fn ignore_other_platforms(&mut self, document: &mut Value) {
        let platform = platform_of(document).and_then(Value::as_str).unwrap_or("local").to_owned();
        let platform = if platform == "pai" { "openpai" } else { platform.as_str() };
        if !SECTIONS.iter().any(|(_, of)| *of == platform) {
            return;
        }
        let others = SECTIONS.iter().filter(|(_, of)| *of != platform);
        let others: Vec<&str> = others.map(|(section, _)| *section).collect();
        self.ignore("", document, &others);
    }

    /// Removes fields that have no effect from an object.
    fn ignore(&mut self, path: &str, value: &mut Value, names: &[&str]) {
        let Some(members) = value.as_object_mut() else { return };
        let is_ignored = |key: &str| names.iter().any(|name| folded(name) == folded(key));
        let dot = if path.is_empty() { "" } else { "." };
        let given = members.keys().filter(|key| is_ignored(key));
        self.ignored.extend(given.map(|key| format!("{path}{dot}{key}")));
        members.retain(|key, _| !is_ignored(key));
    }

    /// Returns the parts of a hybrid experiment: the platforms that `hybridConfig` names.
    /// `trial` has the fields of the section `trial` for `OpenPAI`.
    fn hybrid(
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
        self.name("trainingService", NAMES);
        let mut parts = Vec::new();
        for (i, name) in names.iter().enumerate() {
            service::check_platform(&format!("{NAMES}[{i}]"), Some(&json!(name)))?;
            let path = format!("trainingService[{i}]");
            self.name(&format!("{path}.platform"), &format!("{NAMES}[{i}]"));
            let mut part = json!({"platform": name}).as_object().cloned().unwrap_or_default();
            match name.as_str() {
                "local" => self.local_fields(v1, &path, &mut part)?,
                "remote" => self.remote_fields(v1, &path, &mut part)?,
                "pai" | "openpai" => {
                    for (old, new) in PAI_TRIAL {
                        self.name(&format!("{path}.{new}"), &format!("trial.{old}"));
                        part.extend(trial.remove_entry(*new));
                    }
                    self.pai_fields(v1, &path, &mut part)?;
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
        let of_no_part = PAI_TRIAL.iter().filter(|(_, new)| trial.contains_key(*new));
        self.ignored.extend(of_no_part.map(|(old, _)| format!("trial.{old}")));
        let fields = ["localConfig", "remoteConfig", "machineList", "paiConfig"];
        let Some(field) = fields.iter().find(|field| v1.peek(field).is_some()) else {
            return Ok(parts);
        };
        let problem = format!("belongs to a platform that `{NAMES}` does not name");
        Err(Problem::new(*field, problem))
    }

    fn local_fields(
        &mut self,
        v1: &mut Section,
        path: &str,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        self.renamed_section(v1, "localConfig", LOCAL, path, service)
    }

    fn remote_fields(
        &mut self,
        v1: &mut Section,
        path: &str,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        self.renamed_section(v1, "remoteConfig", REMOTE, path, service)?;
        if let Some(Value::Array(machines)) = v1.take("machineList") {
            let machines = machines.into_iter().enumerate().map(|(i, mut machine)| {
                let at = format!("machineList[{i}]");
                self.ignore(&at, &mut machine, &OLD_MACHINE);
                self.object(&at, &format!("{path}.{at}"), machine, MACHINE)
            });
            let machines: Result<Vec<Value>, Problem> = machines.collect();
            service.insert("machineList".to_owned(), Value::Array(machines?));
        }
        Ok(())
    }

    fn pai_fields(
        &mut self,
        v1: &mut Section,
        path: &str,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        let Some(mut config) = v1.take("paiConfig") else { return Ok(()) };
        self.ignore("paiConfig", &mut config, &OLD_PAI);
        let known: Vec<&str> = firsts(PAI).into_iter().chain(firsts(PAI_RESOURCES)).collect();
        let mut config = Section::open("paiConfig", config, &known)?;
        self.rename(&mut config, path, PAI, service);
        self.rename(&mut config, path, PAI_RESOURCES, service);
        // The error for a missing field names the usual place.
        self.possible(TRIAL, "trial", path);
        self.possible(PAI_TRIAL, "trial", path);
        Ok(())
    }

    fn renamed_section(
        &mut self,
        v1: &mut Section,
        field: &str,
        known: Renames,
        path: &str,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        if let Some(config) = v1.take(field) {
            let mut config = Section::open(field, config, &firsts(known))?;
            self.rename(&mut config, path, known, service);
        }
        Ok(())
    }

    fn trial(
        &mut self,
        mut trial: Value,
        v2: &mut Map<String, Value>,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        let mut known =
            vec!["command", "codeDir", "gpuNum", "nasMode", "taskRoles", "worker", "ps", "master"];
        match service.get("platform").and_then(Value::as_str) {
            Some("pai" | "openpai") => {
                known.extend(firsts(PAI_TRIAL));
                self.ignore("trial", &mut trial, &ROLES);
            }
            Some(service::HYBRID) => known.extend(firsts(PAI_TRIAL)),
            Some("local" | "remote") => {
                self.ignore("trial", &mut trial, &firsts(PAI_TRIAL));
                self.ignore("trial", &mut trial, &ROLES);
            }
            Some(_) | None => self.ignore("trial", &mut trial, &firsts(PAI_TRIAL)),
        }
        self.ignore("trial", &mut trial, &OLD_TRIAL);
        let mut trial = Section::open("trial", trial, &known)?;
        self.rename(&mut trial, "", TRIAL, v2);
        self.rename(&mut trial, "trainingService", PAI_TRIAL, service);
        let roles = trial.take("taskRoles");
        if let Some(Value::Array(roles)) = roles {
            let roles = roles.into_iter().enumerate().map(|(i, role)| {
                let at = format!("taskRoles[{i}]");
                self.role(&format!("trial.{at}"), &format!("trainingService.{at}"), role)
            });
            let roles = roles.collect::<Result<Vec<Value>, Problem>>()?;
            if !v2.contains_key("trialCommand")
                && let Some(role) = roles.first()
            {
                self.name("trialCommand", "trial.taskRoles[0].command");
                v2.extend(role.get("command").map(|it| ("trialCommand".to_owned(), it.clone())));
            }
            service.insert("taskRoles".to_owned(), Value::Array(roles));
        } else if let Some(other) = roles {
            service.insert("taskRoles".to_owned(), other);
        }
        for name in ["worker", "ps", "master"] {
            let path = format!("trainingService.{name}");
            self.name(&path, &format!("trial.{name}"));
            self.name(&format!("{path}.codeDirectory"), "trial.codeDir");
            self.possible(ROLE, &format!("trial.{name}"), &path);
            if let Some(role) = trial.take(name) {
                let mut role = self.role(&format!("trial.{name}"), &path, role)?;
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

    fn role(&mut self, v1_path: &str, v2_path: &str, role: Value) -> Result<Value, Problem> {
        let mut role = self.object(v1_path, v2_path, role, ROLE)?;
        if let Some(policy) = role.get_mut("frameworkAttemptCompletionPolicy") {
            let v1_path = format!("{v1_path}.frameworkAttemptCompletionPolicy");
            let v2_path = format!("{v2_path}.frameworkAttemptCompletionPolicy");
            *policy = self.object(&v1_path, &v2_path, policy.take(), POLICY)?;
        }
        Ok(role)
    }

    fn algorithm(
        &mut self,
        kind: &str,
        mut algorithm: Value,
        v2: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        self.ignore(kind, &mut algorithm, &OLD_ALGORITHM);
        let builtin = match kind {
            "tuner" => "builtinTunerName",
            "assessor" => "builtinAssessorName",
            _ => "builtinAdvisorName",
        };
        let known = [
            builtin,
            "codeDir",
            "classFileName",
            "className",
            "classArgs",
            "includeIntermediateResults",
            "gpuIndices",
        ];
        let mut v1 = Section::open(kind, algorithm, &known)?;
        let mut named = Map::new();
        self.rename(&mut v1, "", &[("gpuIndices", "tunerGpuIndices")], v2);
        if let Some(name) = v1.take(builtin) {
            self.name(&format!("{kind}.name"), &v1.at(builtin));
            named.insert("name".to_owned(), name);
        } else {
            let (file, class) = (v1.string("classFileName")?, v1.string("className")?);
            let Some((file, class)) = file.zip(class) else {
                let problem =
                    format!("needs `{builtin}`, or `codeDir`, `classFileName` and `className`");
                return Err(Problem::new(kind, problem));
            };
            let Some(module) = file.strip_suffix(".py") else {
                return Err(v1.fault("classFileName", format!("`{file}` does not end in .py")));
            };
            named.insert("className".to_owned(), Value::from(format!("{module}.{class}")));
            self.name(&format!("{kind}.codeDirectory"), &v1.at("codeDir"));
            named.insert("codeDirectory".to_owned(), v1.take("codeDir").unwrap_or(json!(".")));
        }
        if let Some(arguments) = v1.take("classArgs") {
            named.insert("classArgs".to_owned(), arguments);
        }
        v2.insert(kind.to_owned(), Value::Object(named));
        Ok(())
    }

    fn cluster(
        &mut self,
        field: &str,
        config: Value,
        service: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        let known: Vec<&str> = firsts(CLUSTER).into_iter().chain(STORAGE).collect();
        let mut v1 = Section::open(field, config, &known)?;
        self.rename(&mut v1, "trainingService", CLUSTER, service);
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
            if folded(name) == folded(&kind) {
                self.possible(renames, &v1.at(name), "trainingService.storage");
            }
            if let Some(part) = part {
                let mut part = Section::open(&v1.at(name), part, &firsts(renames))?;
                self.rename(&mut part, "trainingService.storage", renames, &mut storage);
            }
        }
        service.insert("storage".to_owned(), Value::Object(storage));
        Ok(())
    }

    /// Converts an object whose fields are only renamed.
    fn object(
        &mut self,
        v1_path: &str,
        v2_path: &str,
        value: Value,
        renames: Renames,
    ) -> Result<Value, Problem> {
        let mut v1 = Section::open(v1_path, value, &firsts(renames))?;
        let mut v2 = Map::new();
        self.rename(&mut v1, v2_path, renames, &mut v2);
        Ok(Value::Object(v2))
    }

    /// Records the v1 path of a field.
    fn name(&mut self, v2: &str, v1: &str) {
        self.names.push((v2.to_owned(), v1.to_owned()));
    }

    /// Records the v1 paths of possible fields, which the error for a missing field names.
    fn possible(&mut self, renames: Renames, v1_path: &str, v2_path: &str) {
        let at = |path: &str, name: &str| {
            if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
        };
        let names = renames.iter().map(|(old, new)| (at(v2_path, new), at(v1_path, old)));
        self.possible.extend(names);
    }

    /// Moves fields, and records their v1 paths.
    fn rename(
        &mut self,
        v1: &mut Section,
        v2_path: &str,
        renames: Renames,
        v2: &mut Map<String, Value>,
    ) {
        self.possible(renames, v1.path(), v2_path);
        for (old, new) in renames {
            if let Some(value) = v1.take(old) {
                let dot = if v2_path.is_empty() { "" } else { "." };
                self.name(&format!("{v2_path}{dot}{new}"), &v1.at(old));
                v2.insert((*new).to_owned(), value);
            }
        }
    }
}

fn firsts(renames: Renames) -> Vec<&'static str> {
    renames.iter().map(|(old, _)| *old).collect()
}
