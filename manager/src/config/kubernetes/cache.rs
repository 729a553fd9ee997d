//! PURE: `cache`, a folder that outlives pods and holds the agent and the code that earlier pods fetched.

use serde_json::{Value, json};

use super::mounts::check_host_path;
use super::{AgentSource, syntax};
use crate::config::section::{Problem, Section};

/// The folder of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheSpec {
    /// `hostPath`: a folder on each node.
    HostPath(String),
    /// `claimName`: a claim in the namespace.
    Claim(String),
}

impl CacheSpec {
    /// Returns the volume in the form of a pod's `volumes`, without its name.
    pub fn volume(&self) -> Value {
        match self {
            Self::HostPath(path) => json!({"hostPath": {"path": path}}),
            Self::Claim(name) => json!({"persistentVolumeClaim": {"claimName": name}}),
        }
    }
}

/// Reads the field `cache`. It is refused if the manager delivers neither the agent nor the code.
pub(super) fn read(
    fields: &mut Section,
    host_path_allowed: bool,
    agent: &AgentSource,
    needs_code: bool,
) -> Result<Option<CacheSpec>, Problem> {
    let Some(value) = fields.take("cache") else { return Ok(None) };
    if *agent != AgentSource::Auto && !needs_code {
        let what = "would stay empty: neither the agent nor the code comes from the manager";
        return Err(fields.problem("cache", what));
    }
    let mut cache = Section::open(&fields.field_path("cache"), value, &["claimName", "hostPath"])?;
    let spec = match (cache.string("claimName")?, cache.string("hostPath")?) {
        (Some(name), None) => {
            syntax::check_object_name(&name).map_err(|what| cache.problem("claimName", what))?;
            CacheSpec::Claim(name)
        }
        (None, Some(path)) => {
            CacheSpec::HostPath(check_host_path(&cache, path, host_path_allowed)?)
        }
        (Some(_), Some(_)) | (None, None) => {
            return Err(Problem::new(cache.path(), "needs one of claimName, hostPath"));
        }
    };
    fields.record("cache", cache.into_canonical());
    Ok(Some(spec))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{document, load_kubernetes_spec, load_with_template};
    use super::*;

    /// Returns an experiment file of a platform, with changes to its section.
    fn experiment_file(platform: &str, changes: &Value) -> String {
        let mut section = if platform == "kubeflow" {
            let worker = json!({"replicas": 1, "dockerImage": "i", "command": "c"});
            json!({"platform": platform, "operator": "tf-operator", "worker": worker})
        } else {
            json!({"platform": platform, "taskRoles": [{"name": "worker", "dockerImage": "i"}]})
        };
        for (field, value) in changes.as_object().unwrap() {
            section[field] = value.clone();
        }
        document(&section).to_string()
    }

    #[test]
    fn every_platform_supports_a_cache_and_reads_its_stored_form() {
        for platform in ["kubernetes", "frameworkcontroller", "kubeflow", "trainer"] {
            #[rustfmt::skip]
            let table = [
                (json!({}), None),
                (json!({"cache": {"claimName": "agents"}}), Some(CacheSpec::Claim("agents".to_owned()))),
                (json!({"cache": {"host_path": "/var/cache/tk"}, "allowHostPath": true}),
                    Some(CacheSpec::HostPath("/var/cache/tk".to_owned()))),
                (json!({"cache": {"claimName": "agents"}, "agent": "image"}), Some(CacheSpec::Claim("agents".to_owned()))),
            ];
            for (changes, cache) in table {
                let file = experiment_file(platform, &changes);
                assert_eq!(load_kubernetes_spec(&file).cache, cache, "{platform}");
                let whole = load_with_template(&file, "").unwrap();
                let mut stored = whole.canonical["trainingService"].clone();
                stored.as_object_mut().unwrap().remove("trialCodeDirectory");
                let again = load_with_template(&document(&stored).to_string(), "").unwrap();
                assert_eq!(again.training_service, whole.training_service, "{platform}");
            }
        }
    }

    #[test]
    fn an_unusable_cache_is_refused() {
        #[rustfmt::skip]
        let table = [
            (json!({"cache": "/c"}), "cache: expected fields (claimName, hostPath), found the string \"/c\""),
            (json!({"cache": {}}), "cache: needs one of claimName, hostPath"),
            (json!({"cache": {"claimName": "c", "hostPath": "/c"}}), "cache: needs one of claimName, hostPath"),
            (json!({"cache": {"claimNames": "c"}}), "cache.claimNames: unknown field; did you mean `claimName`?"),
            (json!({"cache": {"claimName": "My Claim"}}), "cache.claimName: `My Claim` is not a valid name"),
            (json!({"cache": {"claimName": 1}}), "cache.claimName: expected a string"),
            (json!({"cache": {"hostPath": "/c"}}), "cache.hostPath: gives trials access to a folder of the node; `allowHostPath: true`"),
            (json!({"cache": {"hostPath": "c"}, "allowHostPath": true}), "cache.hostPath: `c` is not an absolute path"),
            (json!({"cache": {"hostPath": "/a/../b"}, "allowHostPath": true}), "cache.hostPath: `/a/../b` is not an absolute path"),
            (json!({"cache": {"claimName": "c"}, "agent": "image", "storage": "image"}), "cache: would stay empty"),
            (json!({"cach": {"claimName": "c"}}), "cach: unknown field; did you mean `cache`?"),
        ];
        for platform in ["kubernetes", "frameworkcontroller", "kubeflow", "trainer"] {
            for (changes, expected) in &table {
                let problem =
                    load_with_template(&experiment_file(platform, changes), "").unwrap_err();
                let expected = format!("trainingService.{expected}");
                assert!(problem.starts_with(&expected), "{platform}: {expected:?}: {problem}");
            }
        }
    }
}
