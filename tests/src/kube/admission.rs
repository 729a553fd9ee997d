//! Fills in the defaults of Jobs and validates Jobs and their pods, as the API server does. The rules are those that a
//! manifest of the manager could break. Source: `pkg/apis/batch/v1/defaults.go`, `pkg/apis/batch/validation` and
//! `pkg/apis/core/validation` of Kubernetes 1.34.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::objects::string_at;

/// The maximum length of a label's value, and of a name that becomes one.
const MAX_LABEL_BYTES: usize = 63;

/// Fills in the defaults of a Job. Returns an error if the API server would refuse it.
pub(super) fn admit_job(job: &mut Value) -> Result<(), String> {
    let spec = &mut job["spec"];
    if spec["parallelism"].is_null() {
        if spec["completions"].is_null() {
            spec["completions"] = json!(1);
        }
        spec["parallelism"] = json!(1);
    }
    if spec["completionMode"].is_null() {
        spec["completionMode"] = json!("NonIndexed");
    }
    let spec = &job["spec"];
    if spec["completionMode"] == "Indexed" && spec["completions"].is_null() {
        return Err("spec.completions: Required value: when completion mode is Indexed".to_owned());
    }
    // The Job's name is a label of its pods.
    check_label_value(&string_at(job, "/metadata/name"), "metadata.name")?;
    admit_labels(&job["metadata"], "metadata")?;
    let pod = &spec["template"];
    match pod["spec"]["restartPolicy"].as_str() {
        Some("Never" | "OnFailure") => {}
        other => {
            let other = other.unwrap_or_default();
            return Err(format!(
                "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\", not {other:?}"
            ));
        }
    }
    admit_failure_policy(spec)?;
    admit_pod(pod).map_err(|problem| format!("spec.template.{problem}"))
}

fn admit_failure_policy(spec: &Value) -> Result<(), String> {
    let at = "spec.podFailurePolicy";
    let policy = &spec["podFailurePolicy"];
    if policy.is_null() {
        return Ok(());
    }
    if spec["template"]["spec"]["restartPolicy"] != "Never" {
        return Err(format!("{at}: Invalid value: only \"Never\" is supported for restartPolicy"));
    }
    let containers: HashSet<_> =
        list_items(&spec["template"]["spec"], &["containers", "initContainers"])
            .map(|container| container["name"].clone())
            .collect();
    let rules = policy["rules"].as_array().ok_or(format!("{at}.rules: Required value"))?;
    for rule in rules {
        let (codes, conditions) = (&rule["onExitCodes"], &rule["onPodConditions"]);
        if codes.is_null() == conditions.is_null() {
            return Err(format!(
                "{at}: specifying one of OnExitCodes and OnPodConditions is required"
            ));
        }
        let container = &codes["containerName"];
        if !container.is_null() && !containers.contains(container) {
            return Err(format!(
                "{at}: Invalid value: {container}: must be one of the container names"
            ));
        }
        let values: Vec<_> =
            codes["values"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        let is_ordered = values.windows(2).all(|pair| pair[0] < pair[1]);
        if !codes.is_null()
            && (values.is_empty() || !is_ordered || codes["operator"] == "In" && values[0] == 0)
        {
            return Err(format!(
                "{at}: Invalid value: {values:?}: must be ordered, unique, and without 0 for In"
            ));
        }
    }
    Ok(())
}

/// Returns an error if the API server would refuse the pod.
pub(super) fn admit_pod(pod: &Value) -> Result<(), String> {
    admit_labels(&pod["metadata"], "metadata")?;
    admit_pod_spec(&pod["spec"], "spec")
}

/// Panics if the API server would refuse the pod of a controller.
pub(super) fn expect_valid(pod: &Value) {
    if let Err(problem) = admit_pod(pod) {
        panic!("Pod {} is invalid: {problem}", pod["metadata"]["name"]);
    }
}

fn admit_pod_spec(spec: &Value, at: &str) -> Result<(), String> {
    let mut volumes = HashSet::new();
    for volume in list_items(spec, &["volumes"]) {
        let name = string_at(volume, "/name");
        let at = format!("{at}.volumes[{name}]");
        check_dns_label(&name, &at)?;
        let sources = volume.as_object().map_or(0, |members| members.len() - 1);
        if sources != 1 {
            return Err(format!(
                "{at}: Required value: must specify exactly one volume type, not {sources}"
            ));
        }
        if !volumes.insert(name) {
            return Err(format!("{at}: Duplicate value"));
        }
    }
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        return Err(format!("{at}.containers: Required value"));
    }
    let mut names = HashSet::new();
    for container in list_items(spec, &["containers", "initContainers"]) {
        let name = string_at(container, "/name");
        let at = format!("{at}.containers[{name}]");
        check_dns_label(&name, &at)?;
        if !names.insert(name) {
            return Err(format!("{at}: Duplicate value"));
        }
        let image = string_at(container, "/image");
        if image.is_empty() || image.trim() != image {
            return Err(format!("{at}.image: Required value"));
        }
        admit_mounts(container, &volumes, &at)?;
        admit_variables(container, &at)?;
    }
    Ok(())
}

fn admit_mounts(container: &Value, volumes: &HashSet<String>, at: &str) -> Result<(), String> {
    let mut paths = HashSet::new();
    for mount in list_items(container, &["volumeMounts"]) {
        let (name, path) = (string_at(mount, "/name"), string_at(mount, "/mountPath"));
        if !volumes.contains(&name) {
            return Err(format!("{at}.volumeMounts[{name}].name: Not found: {name:?}"));
        }
        if path.is_empty() || path.contains(':') || !paths.insert(path.clone()) {
            return Err(format!(
                "{at}.volumeMounts.mountPath: Invalid value: {path:?}: must be unique"
            ));
        }
    }
    Ok(())
}

fn admit_variables(container: &Value, at: &str) -> Result<(), String> {
    for variable in list_items(container, &["env"]) {
        let name = string_at(variable, "/name");
        let is_name =
            !name.is_empty() && name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=');
        if !is_name {
            return Err(format!("{at}.env.name: Invalid value: {name:?}"));
        }
        if !(variable["value"].is_null() || variable["value"].is_string()) {
            return Err(format!("{at}.env[{name}].value: must be of type string"));
        }
        if !string_at(variable, "/value").is_empty() && !variable["valueFrom"].is_null() {
            return Err(format!(
                "{at}.env[{name}].valueFrom: may not be specified when `value` is not empty"
            ));
        }
    }
    Ok(())
}

fn admit_labels(metadata: &Value, at: &str) -> Result<(), String> {
    for (name, value) in metadata["labels"].as_object().into_iter().flatten() {
        let at = format!("{at}.labels[{name}]");
        check_label_value(value.as_str().ok_or(format!("{at}: must be of type string"))?, &at)?;
    }
    Ok(())
}

fn check_label_value(value: &str, at: &str) -> Result<(), String> {
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let ends = [value.bytes().next(), value.bytes().last()];
    let fits = value.len() <= MAX_LABEL_BYTES
        && value.bytes().all(is_inner)
        && ends.into_iter().flatten().all(|b| b.is_ascii_alphanumeric());
    if fits {
        Ok(())
    } else {
        Err(format!("{at}: Invalid value: {value:?}: must be a label's value"))
    }
}

pub(super) fn check_dns_label(name: &str, at: &str) -> Result<(), String> {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let fits = (1..=MAX_LABEL_BYTES).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if fits {
        Ok(())
    } else {
        Err(format!("{at}.name: Invalid value: {name:?}: must be a DNS label"))
    }
}

fn list_items<'a>(object: &'a Value, lists: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    lists.iter().filter_map(|list| object[*list].as_array()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_jobs_are_refused_as_by_the_api_server() {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]});
        let with = |spec: Value| {
            let mut job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": pod}}});
            for (name, value) in spec.as_object().unwrap() {
                job["spec"][name] = value.clone();
            }
            admit_job(&mut job).map(|()| job["spec"]["completions"].clone())
        };
        let codes = |codes: Value| json!({"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}]}});
        #[rustfmt::skip]
        let table = [
            ("an empty Job runs one pod",      json!({}),                                               Ok(json!(1))),
            ("no completions are filled in",   json!({"parallelism": 0}),                               Ok(Value::Null)),
            ("indexes need completions",       json!({"parallelism": 0, "completionMode": "Indexed"}),  Err("spec.completions: Required")),
            ("indexes with completions",       json!({"completionMode": "Indexed", "completions": 2}),  Ok(json!(2))),
            ("ordered codes",                  codes(json!({"operator": "NotIn", "values": [0, 137]})), Ok(json!(1))),
            ("unordered codes",                codes(json!({"operator": "NotIn", "values": [137, 0]})), Err("ordered")),
            ("0 among codes",                  codes(json!({"operator": "In", "values": [0]})),         Err("ordered")),
            ("the code of another container",  codes(json!({"operator": "In", "values": [1], "containerName": "x"})), Err("container names")),
        ];
        for (case, spec, expected) in table {
            match (with(spec), expected) {
                (Ok(completions), Ok(expected)) => assert_eq!(completions, expected, "{case}"),
                (Err(message), Err(part)) => assert!(message.contains(part), "{case}: {message}"),
                (judged, _) => panic!("{case}: {judged:?}"),
            }
        }
    }

    #[test]
    fn invalid_pods_are_refused_as_by_the_api_server() {
        let judge = |volumes: Value, container: Value| {
            let mut whole = json!({"name": "main", "image": "i"});
            for (name, value) in container.as_object().unwrap() {
                whole[name] = value.clone();
            }
            admit_pod_spec(&json!({"volumes": volumes, "containers": [whole]}), "spec")
        };
        let (volume, mount) =
            (json!([{"name": "v", "emptyDir": {}}]), json!({"name": "v", "mountPath": "/v"}));
        #[rustfmt::skip]
        let table = [
            (json!([]),                                     json!({}),                                         None),
            (volume.clone(),                                json!({"volumeMounts": [mount]}),                  None),
            (json!([]),                                     json!({"volumeMounts": [mount]}),                  Some("Not found: \"v\"")),
            (volume,                                        json!({"volumeMounts": [mount, mount]}),           Some("must be unique")),
            (json!([{"name": "v"}]),                        json!({}),                                         Some("exactly one volume type, not 0")),
            (json!([{"name": "v_1", "emptyDir": {}}]),      json!({}),                                         Some("DNS label")),
            (json!([]),                                     json!({"image": " i"}),                            Some("image")),
            (json!([]),                                     json!({"name": "Main"}),                           Some("DNS label")),
            (json!([]),                                     json!({"env": [{"name": "A", "value": 1}]}),       Some("of type string")),
            (json!([]),                                     json!({"env": [{"name": "A=B", "value": "1"}]}),   Some("env.name")),
        ];
        for (volumes, container, expected) in table {
            let judged = judge(volumes, container.clone());
            match expected {
                None => assert_eq!(judged, Ok(()), "{container}"),
                Some(part) => assert!(
                    judged.as_ref().is_err_and(|e| e.contains(part)),
                    "{container}: {judged:?}"
                ),
            }
        }
    }
}
