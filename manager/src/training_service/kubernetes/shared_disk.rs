//! PURE: the shared disk of all trials' pods, in the form of parts of a pod. The disk is an NFS export, a claim or an
//! Azure file share.
//!
//! The disk holds a trial's directory (output, code and the trial's own files), which therefore outlives the pod. Pods
//! fetch their code from the manager themselves. The manager's machine need not mount the disk, which would need root.
//! The spool stays on the pod's own disk, because it needs locks and fast writes.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use trial_protocol::{ExperimentId, TrialJobId};

/// The mount point, the same as in NNI, because templates and training programs of NNI's users rely on it.
pub const MOUNT_PATH: &str = "/tmp/mount";

/// The name of the volume, the same as in NNI.
const VOLUME_NAME: &str = "nni-vol";

/// The disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedDisk {
    /// An NFS export.
    Nfs {
        /// The host name or address.
        server: String,
        /// The exported path.
        path: String,
    },
    /// A persistent volume claim in the pods' namespace.
    Claim {
        /// The name of the claim.
        name: String,
    },
    /// An Azure file share.
    AzureFile {
        /// The name of the Secret with the account, see [`azure_secret_data`].
        secret: String,
        /// The name of the share.
        share: String,
    },
    /// A volume that the user's template mounts at [`MOUNT_PATH`].
    Template,
}

/// The parts of a pod that mount the disk.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VolumeParts {
    /// The entries for the pod's `volumes`.
    pub volumes: Vec<Value>,
    /// The entries for the container's `volumeMounts`.
    pub mounts: Vec<Value>,
    /// The entries for the container's `env`, which set the agent's folders.
    pub environment: Vec<(&'static str, String)>,
}

/// Returns the parts for the pods of one role of a trial. `index` stands for a pod's number in its role, if the trial
/// has several pods. `own` is a folder on the pod's own disk.
pub fn volume_parts(
    share: &SharedDisk,
    (experiment, trial): (&ExperimentId, &TrialJobId),
    role: &str,
    index: Option<&str>,
    own: &str,
) -> VolumeParts {
    let source = match share {
        SharedDisk::Nfs { server, path } => Some(json!({"nfs": {"server": server, "path": path}})),
        SharedDisk::Claim { name } => Some(json!({"persistentVolumeClaim": {"claimName": name}})),
        SharedDisk::AzureFile { secret, share } => Some(json!({
            "azureFile": {"secretName": secret, "shareName": share, "readOnly": false},
        })),
        SharedDisk::Template => None,
    };
    let volumes = source.map(|mut volume| {
        volume["name"] = Value::from(VOLUME_NAME);
        volume
    });
    let mounts = volumes.is_some().then(|| json!({"name": VOLUME_NAME, "mountPath": MOUNT_PATH}));
    // The folder of a trial is the same as in NNI. Each of several pods has its own folder in it, so that no pod
    // overwrites the files of another.
    let mut folder = format!("{MOUNT_PATH}/nni/{experiment}/{trial}");
    if let Some(index) = index {
        folder = format!("{folder}/{role}-{index}");
    }
    let environment =
        vec![("TRIALKEEPER_OUTPUT_DIR", folder), ("TRIALKEEPER_SPOOL_DIR", format!("{own}/spool"))];
    VolumeParts {
        volumes: volumes.into_iter().collect(),
        mounts: mounts.into_iter().collect(),
        environment,
    }
}

/// Returns the `data` of the Secret with which a kubelet mounts an Azure file share.
pub fn azure_secret_data(account: &str, key: &str) -> Map<String, Value> {
    let encoded = |text: &str| Value::from(BASE64_STANDARD.encode(text));
    let data = [("azurestorageaccountname", account), ("azurestorageaccountkey", key)];
    data.into_iter().map(|(name, text)| (name.to_owned(), encoded(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_is_mounted_as_in_nni() {
        let (experiment, trial) = (ExperimentId::new("e").unwrap(), TrialJobId::new("t").unwrap());
        let owned = |text: &str| text.to_owned();
        #[rustfmt::skip]
        let table = [
            (SharedDisk::Nfs { server: owned("nas"), path: owned("/export") },
             Some(json!({"nfs": {"server": "nas", "path": "/export"}, "name": "nni-vol"}))),
            (SharedDisk::Claim { name: owned("data") },
             Some(json!({"persistentVolumeClaim": {"claimName": "data"}, "name": "nni-vol"}))),
            (SharedDisk::AzureFile { secret: owned("s"), share: owned("files") },
             Some(json!({"azureFile": {"secretName": "s", "shareName": "files", "readOnly": false}, "name": "nni-vol"}))),
            (SharedDisk::Template, None),
        ];
        for (share, volume) in table {
            let volume_parts =
                volume_parts(&share, (&experiment, &trial), "worker", None, "/trialkeeper");
            let mount = json!({"name": "nni-vol", "mountPath": "/tmp/mount"});
            assert_eq!(
                volume_parts.mounts,
                volume.iter().map(|_| mount.clone()).collect::<Vec<_>>()
            );
            assert_eq!(volume_parts.volumes, volume.into_iter().collect::<Vec<_>>());
            let environment = [
                ("TRIALKEEPER_OUTPUT_DIR", owned("/tmp/mount/nni/e/t")),
                ("TRIALKEEPER_SPOOL_DIR", owned("/trialkeeper/spool")),
            ];
            assert_eq!(volume_parts.environment, environment);
        }
        let several = volume_parts(
            &SharedDisk::Template,
            (&experiment, &trial),
            "ps",
            Some("$(INDEX)"),
            "/own",
        );
        assert_eq!(several.environment[0].1, "/tmp/mount/nni/e/t/ps-$(INDEX)");
    }

    #[test]
    fn the_secret_of_an_azure_share_has_the_names_that_the_kubelet_requires() {
        let data = azure_secret_data("account", "a2V5");
        assert_eq!(data["azurestorageaccountname"], "YWNjb3VudA==");
        assert_eq!(data["azurestorageaccountkey"], "YTJWNQ==");
    }
}
