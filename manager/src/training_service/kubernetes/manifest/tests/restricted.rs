//! The pods of every kind against the rules of the Pod Security profile `restricted`, as its admission controller
//! checks them.

use serde_json::{Value, json};

use super::workload_settings;
use crate::config::kubernetes::StorageSpec;
use crate::training_service::kubernetes::manifest::{WorkloadSettings, storage_secret_name};
use crate::training_service::kubernetes::shared_disk::SharedDisk;
use crate::training_service::kubernetes::workload::workload;

/// The kinds of volumes that the profile allows.
const ALLOWED_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Returns the rules of the profile that a pod violates, sorted, each volume by its kind.
fn violations(pod: &Value) -> Vec<String> {
    let spec = &pod["spec"];
    let mut found = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[field] == true {
            found.push(field.to_owned());
        }
    }
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let kinds = volume.as_object().unwrap().keys().filter(|kind| *kind != "name");
        found.extend(kinds.filter(|kind| !ALLOWED_VOLUMES.contains(&kind.as_str())).cloned());
    }
    let own = &spec["securityContext"];
    if own["runAsUser"] == 0 {
        found.push("runAsUser".to_owned());
    }
    let lists = ["initContainers", "containers"].map(|list| spec[list].as_array());
    for container in lists.into_iter().flatten().flatten() {
        found.extend(violations_of_container(container, own).into_iter().map(str::to_owned));
    }
    found.sort();
    found.dedup();
    found
}

/// Returns the rules that a container violates in a pod with this security context.
fn violations_of_container(container: &Value, pod: &Value) -> Vec<&'static str> {
    let own = &container["securityContext"];
    let effective = |field: &str| if own[field].is_null() { &pod[field] } else { &own[field] };
    let dropped = own.pointer("/capabilities/drop").and_then(Value::as_array);
    let profile = &effective("seccompProfile")["type"];
    let ports = container["ports"].as_array().into_iter().flatten();
    [
        ("privileged", own["privileged"] == true),
        ("allowPrivilegeEscalation", own["allowPrivilegeEscalation"] != false),
        ("capabilities", !dropped.is_some_and(|list| list.contains(&json!("ALL")))),
        ("capabilities", !own["capabilities"]["add"].is_null()),
        ("runAsNonRoot", effective("runAsNonRoot") != true),
        ("runAsUser", own["runAsUser"] == 0),
        ("seccompProfile", profile != "RuntimeDefault" && profile != "Localhost"),
        ("hostPort", ports.into_iter().any(|port| !port["hostPort"].is_null())),
    ]
    .into_iter()
    .filter_map(|(rule, is_violated)| is_violated.then_some(rule))
    .collect()
}

/// Returns a section of each platform and shape.
fn sections() -> Vec<Value> {
    let role = |name: &str| json!({"name": name, "dockerImage": "i", "command": "c"});
    let job = json!({"replicas": 1, "dockerImage": "i", "command": "c"});
    vec![
        json!({"platform": "kubernetes", "dockerImage": "i"}),
        json!({"platform": "kubernetes", "dockerImage": "i", "taskNumber": 2}),
        json!({"platform": "kubernetes", "taskRoles": [role("worker"), role("ps")]}),
        json!({"platform": "trainer", "dockerImage": "i"}),
        json!({"platform": "kubeflow", "operator": "tf-operator", "worker": job, "ps": job}),
        json!({"platform": "kubeflow", "operator": "pytorch-operator", "master": job}),
        json!({"platform": "frameworkcontroller", "taskRoles": [role("worker")]}),
    ]
}

/// Returns the settings of a section, with the disk of its storage.
fn settings_with_disk(section: &Value) -> WorkloadSettings {
    let settings = workload_settings(section);
    let shared_disk = match settings.spec.storage.clone() {
        StorageSpec::Nfs { server, path } => Some(SharedDisk::Nfs { server, path }),
        StorageSpec::Pvc { claim, .. } => claim.map(|name| SharedDisk::Claim { name }),
        StorageSpec::Azure { share, .. } => {
            Some(SharedDisk::AzureFile { secret: storage_secret_name(&settings.experiment), share })
        }
        StorageSpec::Http | StorageSpec::Image => None,
    };
    WorkloadSettings { shared_disk, ..settings }
}

/// Asserts that the pods of a section violate exactly these rules.
fn assert_violations(section: &Value, expected: &[&str]) {
    let settings = settings_with_disk(section);
    let pods = workload(settings.spec.workload).example_pods(&settings);
    assert!(!pods.is_empty(), "{section}");
    let mut expected = expected.to_vec();
    if section["platform"] == "frameworkcontroller" {
        // Its controller drops the field.
        expected.push("seccompProfile");
    }
    expected.sort_unstable();
    expected.dedup();
    for (role, pod) in pods {
        assert_eq!(violations(&pod), expected, "{role} of {section}");
    }
}

fn with_changes(section: &Value, changes: &Value) -> Value {
    let mut section = section.clone();
    for (field, value) in changes.as_object().unwrap() {
        section[field] = value.clone();
    }
    section
}

#[test]
fn pods_meet_restricted_except_for_the_volumes_and_users_that_the_docs_name() {
    #[rustfmt::skip]
    let table = [
        (json!({}), &[][..]),
        (json!({"storage": "image"}), &[]),
        (json!({"storage": {"storageType": "pvc", "path": "/x", "claimName": "c"}}), &[]),
        (json!({"storage": {"storageType": "nfs", "server": "s", "path": "/x"}}), &["nfs"]),
        (json!({"storage": {"storageType": "azureStorage", "azureAccount": "a", "azureShare": "s"}}), &["azureFile"]),
        (json!({"mounts": [{"name": "a", "path": "/a", "claimName": "c"}, {"name": "b", "path": "/b", "emptyDir": "1gb"}]}), &[]),
        (json!({"mounts": [{"name": "a", "path": "/a", "claimName": "c", "readOnly": false}]}), &[]),
        (json!({"mounts": [{"name": "a", "path": "/a", "nfs": {"server": "s", "path": "/x"}}]}), &["nfs"]),
        (json!({"mounts": [{"name": "a", "path": "/a", "hostPath": "/x"}], "allowHostPath": true}), &["hostPath"]),
        (json!({"cache": {"claimName": "c"}}), &[]),
        (json!({"cache": {"hostPath": "/x"}, "allowHostPath": true}), &["hostPath"]),
        (json!({"runAsUser": 0}), &["runAsNonRoot", "runAsUser", "seccompProfile"]),
    ];
    let agents = [
        json!({}),
        json!({"agent": "image"}),
        json!({"agent": "copy", "agentImage": "a"}),
        json!({"agent": "volume", "agentImage": "a"}),
    ];
    for section in sections() {
        for agent in &agents {
            if section["platform"] == "frameworkcontroller" && agent["agent"] == "volume" {
                continue;
            }
            for (changes, expected) in &table {
                assert_violations(&with_changes(&with_changes(&section, agent), changes), expected);
            }
        }
        if section["platform"] != "frameworkcontroller" {
            let image = json!({"mounts": [{"name": "a", "path": "/a", "image": "i"}]});
            assert_violations(&with_changes(&section, &image), &[]);
        }
    }
}
