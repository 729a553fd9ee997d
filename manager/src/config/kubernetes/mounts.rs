//! PURE: `mounts`, additional volumes such as data sets for the pods of every role.

use serde_json::{Value, json};

use super::kind::WorkloadKind;
use super::syntax;
use crate::config::document::describe_kind;
use crate::config::section::{Problem, Section};
use crate::config::units;

/// An additional volume in the trials' pods.
#[derive(Debug, Clone, PartialEq)]
pub struct MountSpec {
    /// `name`: a DNS label, unique in the section.
    pub name: String,
    /// `path`: the absolute path in the pod.
    pub path: String,
    /// `readOnly`. The default is `true`, except for an `emptyDir`.
    pub read_only: bool,
    /// The volume in the form of a pod's `volumes`, without its name.
    pub volume: Value,
}

impl MountSpec {
    /// Returns the name of the mounted claim. `None`: the volume is not a claim.
    pub fn claim(&self) -> Option<&str> {
        self.volume.pointer("/persistentVolumeClaim/claimName")?.as_str()
    }
}

/// The fields, in the order of the canonical form.
pub(super) const FIELDS: [&str; 8] =
    ["name", "path", "claimName", "nfs", "emptyDir", "image", "hostPath", "readOnly"];
const VOLUME_SOURCES: [&str; 5] = ["claimName", "nfs", "emptyDir", "image", "hostPath"];
/// The longest name: a volume's name has at most 63 characters, and begins with `data-`.
const MAX_MOUNT_NAME_LENGTH: usize = 58;
/// The folders of the agent and of the shared storage, which no mount may use.
const RESERVED_FOLDERS: [&str; 5] =
    ["/trialkeeper", "/trialkeeper-agent", "/trialkeeper-cache", "/run/trialkeeper", "/tmp/mount"];

/// Reads the mounts.
pub(super) fn read(
    workload: WorkloadKind,
    host_path_allowed: bool,
    fields: &mut Section,
) -> Result<Vec<MountSpec>, Problem> {
    let Some(value) = fields.take("mounts") else { return Ok(Vec::new()) };
    let Value::Array(list) = value else {
        let what = format!("expected a list of volumes, found {}", describe_kind(&value));
        return Err(fields.problem("mounts", what));
    };
    let (mut mounts, mut recorded) = (Vec::<MountSpec>::new(), Vec::new());
    for (i, value) in list.into_iter().enumerate() {
        let mut section =
            Section::open(&format!("{}[{i}]", fields.field_path("mounts")), value, &FIELDS)?;
        let mount = read_mount(workload, host_path_allowed, &mut section)?;
        for (field, taken) in [
            ("name", mounts.iter().any(|known| known.name == mount.name)),
            ("path", mounts.iter().any(|known| known.path == mount.path)),
        ] {
            if taken {
                return Err(section.problem(field, "is used by another mount"));
            }
        }
        mounts.push(mount);
        recorded.push(section.into_canonical());
    }
    fields.record("mounts", recorded);
    Ok(mounts)
}

fn read_mount(
    workload: WorkloadKind,
    host_path_allowed: bool,
    fields: &mut Section,
) -> Result<MountSpec, Problem> {
    let needed = |fields: &mut Section, field: &str| {
        fields.string(field)?.ok_or_else(|| fields.problem(field, "is missing; a mount needs it"))
    };
    let name = needed(fields, "name")?;
    if syntax::check_namespace(&name).is_err() || name.len() > MAX_MOUNT_NAME_LENGTH {
        let what = format!(
            "`{name}` is not a valid volume name: at most {MAX_MOUNT_NAME_LENGTH} lower-case letters, digits and dashes are allowed"
        );
        return Err(fields.problem("name", what));
    }
    let path = needed(fields, "path")?;
    let path = check_absolute_path(fields, "path", path)?;
    let inside =
        |of: &str| path == of || path.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'));
    if path == "/" || RESERVED_FOLDERS.iter().any(|reserved| inside(reserved)) {
        return Err(fields.problem(
            "path",
            format!("`{path}` is a folder of TrialKeeper or of the image; choose another folder"),
        ));
    }
    let given: Vec<&str> =
        VOLUME_SOURCES.into_iter().filter(|source| fields.peek(source).is_some()).collect();
    let [source] = given.as_slice() else {
        let what = format!("needs exactly one of {}", VOLUME_SOURCES.join(", "));
        return Err(Problem::new(fields.path(), what));
    };
    let (source, written) = (*source, fields.peek(source).cloned());
    let volume = read_volume(workload, host_path_allowed, source, fields)?;
    fields.ignore(&VOLUME_SOURCES);
    fields.record(source, written);
    let read_only_field = fields.boolean("readOnly")?;
    match (source, read_only_field) {
        ("emptyDir", Some(true)) => {
            return Err(
                fields.problem("readOnly", "is not useful for an `emptyDir`, which begins empty")
            );
        }
        ("image", Some(false)) => {
            return Err(fields.problem("readOnly", "is always true for an `image`"));
        }
        _ => {}
    }
    let read_only = read_only_field.unwrap_or(source != "emptyDir");
    fields.record("readOnly", read_only);
    Ok(MountSpec { name, path, read_only, volume })
}

fn read_volume(
    workload: WorkloadKind,
    host_path_allowed: bool,
    source: &str,
    fields: &mut Section,
) -> Result<Value, Problem> {
    if source == "nfs" {
        let value = fields.take("nfs").unwrap_or_default();
        let mut nfs = Section::open(&fields.field_path("nfs"), value, &["server", "path"])?;
        let Some(server) = nfs.string("server")? else {
            return Err(nfs.problem("server", "is missing; it is a host name or an address"));
        };
        let Some(path) = nfs.string("path")? else {
            return Err(nfs.problem("path", "is missing; it is the exported path"));
        };
        let path = check_absolute_path(&nfs, "path", path)?;
        return Ok(json!({"nfs": {"server": server, "path": path}}));
    }
    if source == "emptyDir" {
        let size = fields.take("emptyDir").unwrap_or_default();
        let mib =
            units::parse_memory_mib(&size).map_err(|what| fields.problem("emptyDir", what))?;
        return Ok(json!({"emptyDir": {"sizeLimit": format!("{mib}Mi")}}));
    }
    let text = fields.string(source)?.unwrap_or_default();
    match source {
        "claimName" => {
            syntax::check_object_name(&text).map_err(|what| fields.problem(source, what))?;
            Ok(json!({"persistentVolumeClaim": {"claimName": text}}))
        }
        "image" if workload.drops_new_pod_fields() => {
            let what = format!(
                "is unknown to {}, which drops it; `platform: kubernetes` supports it",
                workload.controller()
            );
            Err(fields.problem(source, what))
        }
        "image" => {
            syntax::check_image(&text).map_err(|what| fields.problem(source, what))?;
            Ok(json!({"image": {"reference": text}}))
        }
        _ => {
            let path = check_host_path(fields, text, host_path_allowed)?;
            // Without a type, a node that lacks the folder would create an empty one.
            Ok(json!({"hostPath": {"path": path, "type": "Directory"}}))
        }
    }
}

/// Returns the value `path` of the field `hostPath`, if the section allows folders of nodes.
pub(super) fn check_host_path(
    fields: &Section,
    path: String,
    allowed: bool,
) -> Result<String, Problem> {
    if !allowed {
        let what = "gives trials access to a folder of the node; `allowHostPath: true` in `trainingService` allows it, and `claimName` is safer";
        return Err(fields.problem("hostPath", what));
    }
    check_absolute_path(fields, "hostPath", path)
}

fn check_absolute_path(fields: &Section, field: &str, path: String) -> Result<String, Problem> {
    if path.starts_with('/') && !path.split('/').any(|part| part == "..") {
        return Ok(path);
    }
    Err(fields.problem(field, format!("`{path}` is not an absolute path without `..`")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{document, load_kubernetes_spec, load_with_template};
    use super::*;

    fn experiment_file(platform: &str, mounts: &Value) -> String {
        let section = json!({
            "platform": platform, "mounts": mounts, "allowHostPath": platform == "kubernetes",
            "taskRoles": [{"name": "w", "dockerImage": "i"}],
        });
        document(&section).to_string()
    }

    #[test]
    fn every_source_is_a_volume() {
        let mounts = json!([
            {"name": "a", "path": "/a", "claimName": "data"},
            {"name": "b", "path": "/b", "nfs": {"server": "s", "path": "/x"}, "readOnly": false},
            {"name": "c", "path": "/c", "emptyDir": "2gb"},
            {"name": "d", "path": "/d", "image": "registry/data:1"},
            {"name": "e", "path": "/e", "hostPath": "/mnt/e"},
        ]);
        let read = load_kubernetes_spec(&experiment_file("kubernetes", &mounts)).mounts;
        let seen: Vec<(bool, Value)> = read.into_iter().map(|m| (m.read_only, m.volume)).collect();
        let expected = [
            (true, json!({"persistentVolumeClaim": {"claimName": "data"}})),
            (false, json!({"nfs": {"server": "s", "path": "/x"}})),
            (false, json!({"emptyDir": {"sizeLimit": "2048Mi"}})),
            (true, json!({"image": {"reference": "registry/data:1"}})),
            (true, json!({"hostPath": {"path": "/mnt/e", "type": "Directory"}})),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn jobs_of_the_training_operator_support_mounts() {
        let section = json!({
            "platform": "kubeflow", "operator": "tf-operator",
            "worker": {"replicas": 1, "dockerImage": "i", "command": "c"},
            "mounts": [{"name": "a", "path": "/a", "claimName": "data"}],
        });
        assert_eq!(load_kubernetes_spec(&document(&section).to_string()).mounts[0].path, "/a");
    }

    #[test]
    fn stored_mounts_are_read() {
        let mounts = json!([{"name": "c", "path": "/c", "emptyDir": "2gb"}, {"name": "e", "path": "/e", "hostPath": "/e"}]);
        let whole = load_with_template(&experiment_file("kubernetes", &mounts), "").unwrap();
        let mut section = whole.canonical["trainingService"].clone();
        section.as_object_mut().unwrap().remove("trialCodeDirectory");
        let again = load_with_template(&document(&section).to_string(), "").unwrap();
        assert_eq!(again.training_service, whole.training_service);
    }

    #[test]
    fn bad_mounts_are_refused() {
        let two = json!([{"name": "a", "path": "/a", "claimName": "c"}, {"name": "a", "path": "/b", "claimName": "c"}]);
        #[rustfmt::skip]
        let table = [
            ("kubernetes", json!({}), "mounts: expected a list of volumes"),
            ("kubernetes", json!([{"path": "/a", "claimName": "c"}]), "mounts[0].name: is missing"),
            ("kubernetes", json!([{"name": "A.b", "path": "/a", "claimName": "c"}]), "`A.b` is not a valid volume name"),
            ("kubernetes", json!([{"name": "a", "path": "a", "claimName": "c"}]), "`a` is not an absolute path"),
            ("kubernetes", json!([{"name": "a", "path": "/tmp/mount/x", "claimName": "c"}]), "is a folder of TrialKeeper or of the image"),
            ("kubernetes", json!([{"name": "a", "path": "/trialkeeper-cache", "claimName": "c"}]), "is a folder of TrialKeeper or of the image"),
            ("kubernetes", json!([{"name": "a", "path": "/a"}]), "mounts[0]: needs exactly one of claimName"),
            ("kubernetes", json!([{"name": "a", "path": "/a", "claimName": "c", "image": "i"}]), "mounts[0]: needs exactly one of claimName"),
            ("kubernetes", json!([{"name": "a", "path": "/a", "emptyDir": "1gb", "readOnly": true}]), "readOnly: is not useful"),
            ("kubernetes", json!([{"name": "a", "path": "/a", "image": "i", "readOnly": false}]), "readOnly: is always true"),
            ("kubernetes", two, "mounts[1].name: is used by another mount"),
            ("frameworkcontroller", json!([{"name": "a", "path": "/a", "image": "i"}]), "image: is unknown to FrameworkController"),
            ("frameworkcontroller", json!([{"name": "a", "path": "/a", "hostPath": "/a"}]), "`allowHostPath: true` in `trainingService` allows it"),
        ];
        for (platform, mounts, expected) in table {
            let problem = load_with_template(&experiment_file(platform, &mounts), "").unwrap_err();
            assert!(problem.contains(expected), "{expected:?} is not in {problem}");
        }
    }
}
