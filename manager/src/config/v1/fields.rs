//! The fields of the v1 form, and their names in the v2 form.

/// Maps v1 names to v2 names, which may be equal.
pub(super) type Renames = &'static [(&'static str, &'static str)];

/// The fields of the top level whose values are the same in both forms.
pub(super) const COMMON_FIELDS: Renames = &[
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
pub(super) const V1_TOP_LEVEL_FIELDS: [&str; 18] = [
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
pub(super) const PLATFORM_SECTIONS: [(&str, &str); 11] = [
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

/// The fields of `trial` for [`PAI_TRIAL_FIELDS`]'s platform before NNI 3.0, which ignores them.
pub(super) const IGNORED_TRIAL_FIELDS: [&str; 5] =
    ["shmMB", "authFile", "portList", "dataDir", "outputDir"];

/// The roles of a trial, which only two platforms have.
pub(super) const TRIAL_ROLES: [&str; 4] = ["taskRoles", "worker", "ps", "master"];

/// The fields of an algorithm before NNI 3.0, which ignores them.
pub(super) const IGNORED_ALGORITHM_FIELDS: [&str; 2] = ["gpuNum", "checkpointDir"];

/// The fields of a user's class, which have no effect besides the name of a built-in algorithm.
pub(super) const CLASS_FIELDS: [&str; 3] = ["codeDir", "classFileName", "className"];

/// The field of a cluster before NNI 3.0, which ignores it.
pub(super) const IGNORED_CLUSTER_FIELDS: [&str; 1] = ["kubernetesServer"];

/// The fields of `paiConfig` that NNI 3.0 ignores.
pub(super) const IGNORED_PAI_FIELDS: [&str; 3] = ["password", "maxTrialNumPerGpu", "useActiveGpu"];

/// The field of a machine that NNI 3.0 ignores.
pub(super) const IGNORED_MACHINE_FIELDS: [&str; 1] = ["preCommand"];

pub(super) const TRIAL_FIELDS: Renames =
    &[("command", "trialCommand"), ("codeDir", "trialCodeDirectory"), ("gpuNum", "trialGpuNumber")];

pub(super) const LOCAL_FIELDS: Renames = &[
    ("gpuIndices", "gpuIndices"),
    ("maxTrialNumPerGpu", "maxTrialNumberPerGpu"),
    ("useActiveGpu", "useActiveGpu"),
];

pub(super) const REMOTE_FIELDS: Renames =
    &[("reuse", "reuseMode"), ("machinePatience", "machinePatience")];

pub(super) const MACHINE_FIELDS: Renames = &[
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

pub(super) const PAI_FIELDS: Renames = &[
    ("host", "host"),
    ("userName", "username"),
    ("token", "token"),
    ("reuse", "reuseMode"),
    // TrialKeeper's fields, which have the same names in both forms.
    ("tokenFile", "tokenFile"),
    ("caFile", "caFile"),
];

/// The fields of `trial` that may also be in `paiConfig`.
pub(super) const PAI_RESOURCE_FIELDS: Renames =
    &[("gpuNum", "trialGpuNumber"), ("cpuNum", "trialCpuNumber"), ("memoryMB", "trialMemorySize")];

/// The fields of `trial` on `OpenPAI`.
pub(super) const PAI_TRIAL_FIELDS: Renames = &[
    ("cpuNum", "trialCpuNumber"),
    ("memoryMB", "trialMemorySize"),
    ("image", "dockerImage"),
    ("virtualCluster", "virtualCluster"),
    ("paiStorageConfigName", "storageConfigName"),
    ("nniManagerNFSMountPath", "localStorageMountPoint"),
    ("containerNFSMountPath", "containerStorageMountPoint"),
    ("paiConfigPath", "openpaiConfigFile"),
];

pub(super) const ROLE_FIELDS: Renames = &[
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

pub(super) const POLICY_FIELDS: Renames = &[
    ("minFailedTaskCount", "minFailedTaskCount"),
    ("minSucceededTaskCount", "minSucceedTaskCount"),
    ("minSucceedTaskCount", "minSucceedTaskCount"),
];

pub(super) const CLUSTER_FIELDS: Renames = &[
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

pub(super) const STORAGE_FIELDS: [&str; 5] = ["storage", "nfs", "azureStorage", "keyVault", "pvc"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::services::remote;
    use crate::config::{check, kubernetes};

    /// Fields that the v1 form has elsewhere, such as in `trial`, or lacks.
    const ELSEWHERE: [&str; 11] = [
        "experimentType",
        "trialCommand",
        "trialCodeDirectory",
        "trialGpuNumber",
        "tunerGpuIndices",
        "tuner",
        "advisor",
        "assessor",
        "trainingService",
        "storage",
        "taskRoles",
    ];

    #[test]
    fn every_field_can_be_in_a_v1_file() {
        let sections: [(&[&str], Renames); 3] = [
            (&check::FIELDS, COMMON_FIELDS),
            (&kubernetes::FIELDS, CLUSTER_FIELDS),
            (&remote::MACHINE_FIELDS, MACHINE_FIELDS),
        ];
        for (fields, renames) in sections {
            for field in fields.iter().filter(|field| !ELSEWHERE.contains(field)) {
                assert!(renames.iter().any(|(_, v2)| v2 == field), "{field} is missing");
            }
        }
    }
}
