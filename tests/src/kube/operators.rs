//! Validates the objects of operators, as their webhooks do. The rules are those that a manifest of the manager could
//! break. Source: `pkg/webhooks` of `JobSet` 0.12, of Kubeflow Trainer 2.3, and of the training operator 1.9.

use serde_json::{Map, Value};

use super::admission::check_dns_label;
use super::objects::string_at;

/// The kinds of the training operator: the plural, the field with the roles, the permitted roles, and the container
/// of a role. The first role must have one pod, if it is a master.
const TRAINING_JOBS: [(&str, &str, &[&str], &str); 4] = [
    ("tfjobs", "tfReplicaSpecs", &["Chief", "Master", "Worker", "PS", "Evaluator"], "tensorflow"),
    ("pytorchjobs", "pytorchReplicaSpecs", &["Master", "Worker"], "pytorch"),
    ("xgboostjobs", "xgbReplicaSpecs", &["Master", "Worker"], "xgboost"),
    ("paddlejobs", "paddleReplicaSpecs", &["Master", "Worker"], "paddle"),
];

/// Returns an error if the webhook of a kind would refuse the object. Other kinds are not checked.
pub(super) fn admit(plural: &str, object: &Value) -> Result<(), String> {
    match plural {
        "jobsets" => admit_job_set(object),
        "trainingruntimes" => admit_runtime(object),
        _ => match TRAINING_JOBS.iter().find(|(known, ..)| *known == plural) {
            Some((_, field, roles, container)) => {
                admit_training_job(object, field, roles, container)
            }
            None => Ok(()),
        },
    }
}

fn admit_job_set(set: &Value) -> Result<(), String> {
    let name = string_at(set, "/metadata/name");
    let jobs = set["spec"]["replicatedJobs"].as_array().map_or(&[][..], Vec::as_slice);
    for job in jobs {
        let role = string_at(job, "/name");
        let last = |count: &Value| count.as_u64().unwrap_or(1).saturating_sub(1);
        let (replicas, pods) =
            (last(&job["replicas"]), last(&job["template"]["spec"]["completions"]));
        let pod = format!("{name}-{role}-{replicas}-{pods}-abcde");
        check_dns_label(&pod, "pod names generated for this JobSet")?;
    }
    let policy = &set["spec"]["successPolicy"];
    if !policy.is_null() && policy["operator"] != "All" && policy["operator"] != "Any" {
        return Err(format!("spec.successPolicy.operator: Unsupported value: {policy}"));
    }
    let targets = policy["targetReplicatedJobs"].as_array().into_iter().flatten();
    match targets.into_iter().find(|target| !jobs.iter().any(|job| job["name"] == **target)) {
        Some(target) => Err(format!("invalid replicatedJob name {target} does not appear")),
        None => Ok(()),
    }
}

fn admit_runtime(runtime: &Value) -> Result<(), String> {
    let at = "spec.template.spec.replicatedJobs";
    let jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"].as_array();
    let trains = |job: &&Value| {
        job["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
            == "trainer"
    };
    let job = jobs.into_iter().flatten().find(trains).ok_or(format!("{at}: no trainer"))?;
    if job["replicas"].as_u64().is_some_and(|replicas| replicas != 1) {
        return Err(format!("{at}.replicas: Invalid value: always must be 1"));
    }
    check_container(&job["template"]["spec"]["template"], "node", at)
}

fn admit_training_job(
    job: &Value,
    field: &str,
    known: &[&str],
    container: &str,
) -> Result<(), String> {
    check_dns_label(&string_at(job, "/metadata/name"), "metadata")?;
    let at = format!("spec.{field}");
    let none = Map::new();
    let roles = job["spec"][field].as_object().unwrap_or(&none);
    if roles.is_empty() {
        return Err(format!("{at}: Required value"));
    }
    for (role, replica) in roles {
        if !known.contains(&role.as_str()) {
            return Err(format!("{at}: Unsupported value: {role:?}"));
        }
        if role == "Master" && replica["replicas"] != 1 {
            return Err(format!("{at}[Master].replicas: Invalid value: must be 1"));
        }
        if replica["replicas"].as_u64().is_none_or(|replicas| replicas == 0) {
            return Err(format!("{at}[{role}].replicas: Invalid value: must be 1 or more"));
        }
        let restart = &replica["restartPolicy"];
        if !["Always", "OnFailure", "Never", "ExitCode"].iter().any(|word| restart == word) {
            return Err(format!("{at}[{role}].restartPolicy: Unsupported value: {restart}"));
        }
        check_container(&replica["template"], container, &format!("{at}[{role}]"))?;
    }
    if field == "xgbReplicaSpecs" && !roles.contains_key("Master") {
        return Err(format!("{at}: Required value: a Master"));
    }
    Ok(())
}

/// Returns an error if no container of a pod has this name, or one has no image.
fn check_container(pod: &Value, name: &str, at: &str) -> Result<(), String> {
    let containers = pod["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice);
    if containers.iter().any(|container| string_at(container, "/image").is_empty()) {
        return Err(format!("{at}.containers.image: Required value"));
    }
    if containers.iter().any(|container| container["name"] == name) {
        return Ok(());
    }
    Err(format!("{at}.containers: Required value: must have a container with name {name}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_objects_are_refused_as_by_their_webhooks() {
        let pod = |name: &str| json!({"spec": {"containers": [{"name": name, "image": "i"}]}});
        let set = |role: &str, target: &str| {
            let job = json!({"name": role, "replicas": 1, "template": {"spec": {"completions": 2, "template": pod("trial")}}});
            let policy = json!({"operator": "Any", "targetReplicatedJobs": [target]});
            json!({"metadata": {"name": "tka"}, "spec": {"replicatedJobs": [job], "successPolicy": policy}})
        };
        let runtime = |replicas: u64, container: &str| {
            let labels = json!({"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"});
            let template =
                json!({"metadata": {"labels": labels}, "spec": {"template": pod(container)}});
            let job = json!({"name": "node", "replicas": replicas, "template": template});
            json!({"spec": {"template": {"spec": {"replicatedJobs": [job]}}}})
        };
        let training = |field: &str, role: &str, replicas: u64, container: &str| {
            let replica =
                json!({"replicas": replicas, "restartPolicy": "Never", "template": pod(container)});
            json!({"metadata": {"name": "tka"}, "spec": {field: {role: replica}}})
        };
        let long = "r".repeat(60);
        let tf = |role: &str, replicas: u64, container: &str| {
            training("tfReplicaSpecs", role, replicas, container)
        };
        #[rustfmt::skip]
        let table = [
            ("jobsets",          set("worker", "worker"),                                  None),
            ("jobsets",          set("worker", "ps"),                                      Some("does not appear")),
            ("jobsets",          set(&long, &long),                                        Some("must be a DNS label")),
            ("trainingruntimes", runtime(1, "node"),                                       None),
            ("trainingruntimes", runtime(2, "node"),                                       Some("always must be 1")),
            ("trainingruntimes", runtime(1, "trial"),                                      Some("name node")),
            ("tfjobs",           tf("Worker", 2, "tensorflow"),                            None),
            ("tfjobs",           tf("Worker", 0, "tensorflow"),                            Some("1 or more")),
            ("tfjobs",           tf("Worker", 1, "trial"),                                 Some("name tensorflow")),
            ("tfjobs",           tf("worker", 1, "tensorflow"),                            Some("Unsupported value: \"worker\"")),
            ("pytorchjobs",      training("pytorchReplicaSpecs", "Master", 2, "pytorch"),  Some("must be 1")),
            ("xgboostjobs",      training("xgbReplicaSpecs", "Worker", 1, "xgboost"),      Some("a Master")),
            ("paddlejobs",       training("paddleReplicaSpecs", "Worker", 1, "paddle"),    None),
            ("jobs",             json!({}),                                                None),
        ];
        for (plural, object, expected) in table {
            let judged = admit(plural, &object);
            let part = expected.unwrap_or_default();
            let found = judged.as_ref().err().cloned().unwrap_or_default();
            assert!(
                judged.is_ok() == expected.is_none() && found.contains(part),
                "{object}: {found}"
            );
        }
    }
}
