//! Tests of pod ends that are not in the recordings of Jobs, and of arbitrary statuses.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn terminated(code: i64, reason: &str, message: &str) -> Value {
    json!({"status": {"phase": "Failed", "containerStatuses": [
        {"name": "trial", "state": {"terminated": {"exitCode": code, "reason": reason, "message": message, "startedAt": "2026-11-23T16:34:10Z"}}},
    ]}})
}

#[test]
fn the_end_of_a_pod_is_read_from_its_status() {
    let mut deleted = terminated(143, "Error", "");
    deleted["metadata"] = json!({"deletionTimestamp": "2026-11-23T16:34:10Z"});
    let mut expired = terminated(143, "Error", "");
    expired["status"]["reason"] = json!("DeadlineExceeded");
    let mut never = terminated(137, "ContainerStatusUnknown", "");
    let state = never.pointer_mut("/status/containerStatuses/0/state/terminated").unwrap();
    state.as_object_mut().unwrap().remove("startedAt");
    let lost = never.clone();
    never["metadata"] = json!({"deletionTimestamp": "2026-11-23T16:34:10Z"});
    let with_init = |mut pod: Value, code: u64, reason: &str| {
        let state = json!({"terminated": {"exitCode": code, "reason": reason}});
        pod["status"]["initContainerStatuses"] = json!([{"name": "aside", "state": state}]);
        pod
    };
    let with_other = |mut pod: Value, code: u64| {
        let state = json!({"terminated": {"exitCode": code, "reason": "Error", "startedAt": "2026-11-23T16:34:10Z"}});
        let containers = pod["status"]["containerStatuses"].as_array_mut().unwrap();
        containers.insert(0, json!({"name": "other", "state": state}));
        pod
    };
    let at = |phase: &str, state: Value| json!({"status": {"phase": phase, "containerStatuses": [{"name": "trial", "state": state}]}});
    let waits = || at("Failed", json!({"waiting": {"reason": "PodInitializing"}}));
    let runs = || at("Running", json!({"running": {}}));
    #[rustfmt::skip]
    let table = [
        (terminated(3, "Error", ""),              Some((Some(3),   "the container ended with exit code 3", None))),
        (terminated(3, "Error", "bad\nno data\n"), Some((Some(3),  "the container ended with exit code 3: no data", None))),
        (terminated(0, "Completed", ""),          Some((Some(0),   "the container ended with exit code 0", None))),
        (terminated(137, "OOMKilled", ""),        Some((Some(137), "out of memory: the pod was killed for using more than `memorySize`", Some(Class::Permanent)))),
        (deleted,                                 Some((Some(143), "the trial's pod was deleted", Some(Class::Transient)))),
        (never,                                   Some((None,      "the pod was deleted before its container started", Some(Class::Transient)))),
        (lost,                                    Some((None,      "the pod's node lost the container: was the node restarted?", Some(Class::Transient)))),
        (terminated(255, "Unknown", ""),          Some((Some(255), "the pod's node lost the container: was the node restarted?", Some(Class::Transient)))),
        (with_init(waits(), 5, "Error"),          Some((Some(5),   "the container aside ended with exit code 5", None))),
        // `memorySize` is the limit of the trial's container only.
        (with_init(waits(), 137, "OOMKilled"),    Some((Some(137), "the container aside ended with exit code 137 (OOMKilled)", None))),
        (with_init(waits(), 128, "StartError"),   Some((Some(128), "the command of the container aside could not be started: ", Some(Class::Permanent)))),
        // The kubelet stops a sidecar after the trial. Other containers may have failed earlier.
        (with_init(terminated(1, "Error", ""), 143, "Error"), Some((Some(1), "the container ended with exit code 1", None))),
        (with_init(terminated(0, "Completed", ""), 143, "Error"), Some((Some(0), "the container ended with exit code 0", None))),
        (with_other(terminated(1, "Error", ""), 2), Some((Some(1), "the container ended with exit code 1", None))),
        (with_init(runs(), 0, "Completed"),                    None),
        (with_other(runs(), 2),                   None),
        (json!({"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no"}}),
                                                  Some((None,      "the pod failed although none of its containers failed: UnexpectedAdmissionError: no", Some(Class::Transient)))),
        (expired,                                 Some((Some(143), "the pod ran longer than its `activeDeadlineSeconds`", Some(Class::Permanent)))),
        (json!({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}}),
                                                  Some((None,      "the pod ran longer than its `activeDeadlineSeconds`", Some(Class::Permanent)))),
        (json!({"status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}}), None),
        (json!({}),                               None),
    ];
    for (pod, expected) in table {
        let end = read(&pod, &["trial".to_owned()]);
        let found = end.as_ref().map(|end| (end.exit_code, end.message.as_str(), end.class));
        assert_eq!(found, expected, "{pod}");
    }
}

#[test]
fn a_pod_outlives_its_trial_if_only_another_container_runs() {
    let pod = |phase: &str, trial: Value| {
        json!({
            "status": {"phase": phase, "containerStatuses": [
                {"name": "istio-proxy", "state": {"running": {}}}, {"name": "trial", "state": trial},
            ]},
        })
    };
    let ended = |code: u8| json!({"terminated": {"exitCode": code}});
    let trial = ["trial".to_owned()];
    #[rustfmt::skip]
    let table = [
        (pod("Running",   json!({"running": {}})),              false, "Running"),
        (pod("Running",   json!({"waiting": {}})),              false, "Running"),
        (pod("Running",   ended(0)),                            true,  "Succeeded"),
        (pod("Running",   ended(137)),                          true,  "Failed"),
        (pod("Failed",    ended(137)),                          false, "Failed"),
        (json!({"status": {"phase": "Running"}}),               false, "Running"),
    ];
    for (pod, outlives, phase) in table {
        assert_eq!(has_outlived_trial(&pod, &trial), outlives, "{pod}");
        assert!(!has_outlived_trial(&pod, &[]), "{pod}");
        assert_eq!(without_other_containers(pod, &trial)["status"]["phase"], phase);
    }
    let going = json!({"metadata": {"deletionTimestamp": "2026-11-23T00:00:00Z"}, "status": pod("Running", ended(0))["status"]});
    assert!(!has_outlived_trial(&going, &trial), "its other containers end soon");
}

proptest! {
    #[test]
    fn random_statuses_never_panic(text in "[a-zA-Z]{0,12}", code in any::<i64>(), odd in any::<bool>()) {
        let state = if odd { json!(text) } else { json!({"terminated": {"exitCode": code, "reason": text, "message": [text]}}) };
        let pod = json!({"status": {"phase": text, "reason": code, "containerStatuses": [{"state": state}, 7]}});
        if let Some(end) = read(&pod, &["trial".to_owned()]) {
            prop_assert!(!end.message.is_empty());
        }
    }
}

#[test]
fn only_running_pods_that_nothing_has_deleted_are_left_behind() {
    let pod = |name: &str, phase: &str, deleted: Option<&str>| {
        let mut metadata = json!({"name": name});
        if let Some(deleted) = deleted {
            metadata["deletionTimestamp"] = json!(deleted);
        }
        json!({"metadata": metadata, "status": {"phase": phase}})
    };
    let pods = [
        pod("a", "Running", None),
        pod("b", "Running", Some("2026-11-23T00:00:00Z")),
        pod("c", "Succeeded", None),
        pod("d", "Pending", None),
    ];
    assert_eq!(undeleted_names(&pods).collect::<Vec<_>>(), ["a", "d"]);
}
