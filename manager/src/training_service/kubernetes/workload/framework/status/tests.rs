//! Tests against every recording of a real controller, step by step.

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn recording(case: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/frameworkcontroller")
        .join(format!("{case}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{case}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the phases of the recorded Framework, version by version, without repetitions.
fn recorded_phases(case: &str) -> Vec<WorkloadPhase> {
    let frameworks = recording(case).into_iter().filter(|step| step["kind"] == "framework");
    let mut standings: Vec<WorkloadPhase> =
        frameworks.map(|step| read(&step, ("worker", 0))).collect();
    standings.dedup();
    standings
}

#[test]
fn every_recorded_end_is_read() {
    #[rustfmt::skip]
    let table = [
        ("ok5",                       true,  Some(0),   "the pod succeeded"),
        ("nniok",                     true,  Some(0),   "the pod succeeded"),
        ("create-then-start",         true,  Some(0),   "the pod succeeded"),
        ("fake-gpu",                  true,  Some(0),   "the pod succeeded"),
        ("taskretry",                 true,  Some(0),   "the pod succeeded"),
        ("tworoles",                  true,  Some(0),   "the pod succeeded"),
        ("tworolesall",               true,  Some(0),   "the pod succeeded"),
        ("fail5",                     false, Some(7),   "the container ended with exit code 7"),
        ("retry",                     false, Some(9),   "the container ended with exit code 9"),
        ("tworolesfail",              false, Some(1),   "the container ended with exit code 1"),
        ("badcmd",                    false, Some(128), "the container ended with exit code 128 (StartError)"),
        ("oom",                       false, Some(137), "out of memory: the pod was killed for using more than `memorySize`"),
        ("oomchild",                  false, Some(137), "out of memory: the pod was killed for using more than `memorySize`"),
        ("oom-fc-without-config",     false, Some(137), "out of memory: the pod was killed for using more than `memorySize`"),
        ("badpod",                    false, None,      "the cluster refuses the pod: Pod \"@NAME@-worker-0\" is invalid: spec.containers[0].image"),
        ("pod-deleted-externally",    false, None,      "the trial's pod was deleted, but not by the manager"),
        ("stop-running",              false, None,      "stopped on request"),
        ("stop-trap",                 false, None,      "stopped on request"),
        ("stop-while-pending",        false, None,      "stopped on request"),
        ("fancy-transient-then-stop", false, None,      "stopped on request"),
    ];
    for (case, succeeded, exit_code, message) in table {
        let last = recorded_phases(case).pop();
        let Some(WorkloadPhase::Completed(outcome)) = last else {
            panic!("{case} ends as {last:?}")
        };
        assert_eq!((outcome.succeeded, outcome.exit_code), (succeeded, exit_code), "{case}");
        assert_eq!(outcome.cause, case.starts_with("oom").then_some(Cause::OomKernel), "{case}");
        assert!(outcome.message.starts_with(message), "{case}: {}", outcome.message);
    }
}

#[test]
fn a_framework_whose_pods_have_not_all_started_is_starting() {
    let status = |states: &[&str]| {
        let tasks: Vec<Value> = states.iter().map(|state| json!({"state": state})).collect();
        let roles = json!([{"name": "worker", "taskStatuses": tasks}, {"name": "ps", "taskStatuses": null}]);
        json!({"status": {"state": "AttemptRunning", "attemptStatus": {"taskRoleStatuses": roles}}})
    };
    #[rustfmt::skip]
    let table: [(&[&str], WorkloadPhase); 5] = [
        (&["AttemptRunning", "AttemptPreparing"],       WorkloadPhase::Starting),
        (&["AttemptCreationPending", "AttemptRunning"], WorkloadPhase::Starting),
        (&["AttemptRunning", "AttemptRunning"],         WorkloadPhase::Running),
        (&["AttemptDeletionPending", "Completed"],      WorkloadPhase::Running),
        (&[],                                           WorkloadPhase::Running),
    ];
    for (states, stands) in table {
        assert_eq!(read(&status(states), ("worker", 0)), stands, "{states:?}");
    }
    // The recording of a pod that the controller retries.
    let again = [WorkloadPhase::Running, WorkloadPhase::Starting, WorkloadPhase::Running];
    assert!(recorded_phases("taskretry").windows(3).any(|seen| seen == again));
}

#[test]
fn a_framework_that_never_ends_is_never_completed() {
    #[rustfmt::skip]
    let table = [
        ("toobig",            WorkloadPhase::Waiting),
        ("badimage",          WorkloadPhase::Waiting),
        ("fake-gpu-too-many", WorkloadPhase::Waiting),
        ("nnifail",           WorkloadPhase::Running),
    ];
    for (case, stands) in table {
        let seen = recorded_phases(case);
        assert_eq!(seen.last(), Some(&stands), "{case}");
        assert!(!seen.iter().any(|phase| matches!(phase, WorkloadPhase::Completed(_))), "{case}");
    }
}

#[test]
fn the_phases_of_a_framework_follow_in_order() {
    let (unseen, waiting, running, ending) = (
        WorkloadPhase::Unseen,
        WorkloadPhase::Waiting,
        WorkloadPhase::Running,
        WorkloadPhase::Ending,
    );
    let seen = recorded_phases("ok5");
    assert_eq!(seen[..4], [unseen.clone(), waiting.clone(), running.clone(), ending.clone()]);
    assert_eq!(seen.len(), 5);
    // A command that does not exist never runs. A second attempt waits and runs again.
    assert!(!recorded_phases("badcmd").contains(&running));
    let retried = recorded_phases("retry");
    let runs = retried.iter().filter(|phase| **phase == running).count();
    assert_eq!(runs, 3, "{retried:?}");
    assert!(matches!(retried.last(), Some(WorkloadPhase::Completed(_))));
}

#[test]
fn a_compressed_status_is_read() {
    let roles = json!([{"name": "worker", "taskStatuses": [{"index": 3, "attemptStatus": {
        "completionStatus": {"code": 9, "pod": {"containers": [
            {"name": "init", "code": 0}, {"name": "framework", "code": 9, "message": "x\nNo disk.\n"},
        ]}},
    }}]}]);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, roles.to_string().as_bytes()).unwrap();
    let packed = STANDARD.encode(packed.finish().unwrap());
    let framework = json!({"status": {"state": "Completed", "attemptStatus": {
        "taskRoleStatuses": null,
        "taskRoleStatusesCompressed": packed,
        "completionStatus": {
            "code": 9, "phrase": "ContainerUnrecognizedFailed", "type": {"name": "Failed"},
            "trigger": {"taskRoleName": "worker", "taskIndex": 3, "message": ""},
        },
    }}});
    let WorkloadPhase::Completed(outcome) = read(&framework, ("worker", 0)) else { panic!() };
    assert_eq!(outcome.exit_code, Some(9));
    assert_eq!(outcome.message, "worker 3: the container ended with exit code 9: No disk.");
}

#[test]
fn the_message_of_the_agents_verdict_is_read_from_the_termination_message() {
    let verdict = json!({
        "cause": "exit", "class": "user_error", "confidence": "certain",
        "message": "ValueError: bad learning rate", "evidence": {},
    });
    let read_verdict: Result<Verdict, _> = serde_json::from_value(verdict.clone());
    assert!(read_verdict.is_ok(), "{read_verdict:?}");
    let framework = json!({"status": {"state": "Completed", "attemptStatus": {"completionStatus": {
        "code": 1, "type": {"name": "Failed"}, "trigger": null,
        "pod": {"containers": [{"name": "framework", "code": 1, "message": verdict.to_string()}]},
    }}}});
    let WorkloadPhase::Completed(outcome) = read(&framework, ("worker", 0)) else { panic!() };
    assert_eq!(outcome.message, "ValueError: bad learning rate");
}

/// Returns the outcome of a pod that ended with this verdict in its termination log.
fn outcome_with_verdict(
    code: i64,
    attributes: &Value,
    container: Value,
    verdict: &Value,
) -> WorkloadOutcome {
    let mut container = container;
    container["name"] = json!("framework");
    container["message"] = Value::from(verdict.to_string());
    let framework = json!({"status": {"state": "Completed", "attemptStatus": {"completionStatus": {
        "code": code, "type": {"name": "Failed", "attributes": attributes}, "trigger": null,
        "phrase": if code == -1000 { "PodEvicted" } else { "" },
        "pod": {"containers": [container]},
    }}}});
    let WorkloadPhase::Completed(outcome) = read(&framework, ("worker", 0)) else { panic!() };
    outcome
}

#[test]
fn the_platforms_statement_outranks_a_guess_of_the_agent() {
    let ahead = json!({
        "cause": "signal", "class": "transient", "confidence": "possible", "message": "went away",
        "evidence": {"cgroup_memory_peak_bytes": 6 << 20, "memory_limit_bytes": 8 << 20},
    });
    let stopped = json!({
        "cause": "stopped", "class": "none", "confidence": "certain", "exit": {"signal": 15},
        "message": "SIGTERM reached trialkeeper from outside", "evidence": {},
    });
    let saw = json!({
        "cause": "exit", "class": "user-error", "confidence": "certain", "exit": {"code": 3},
        "message": "The trial exited with code 3", "evidence": {},
    });
    let oom = "out of memory: the pod was killed for using more than `memorySize`";
    let figures = format!("{oom} (a few seconds before: at most 6 MiB of 8 MiB)");
    let killed = json!({"code": 137, "reason": "OOMKilled"});
    let term = json!({"code": 143, "reason": "Error"});
    let (permanent, transient) = (Some(Class::Permanent), Some(Class::Transient));
    #[rustfmt::skip]
    let table = [
        (-1200, json!(["Permanent"]), &killed, &ahead,   figures.as_str(),      permanent),
        // This controller lacks its usual configuration.
        (137,   json!([]),            &killed, &ahead,   figures.as_str(),      permanent),
        (-1000, json!(["Transient"]), &term,   &stopped, "its pod was removed: the cluster ended it (PodEvicted)", transient),
        (143,   json!([]),            &term,   &stopped, "SIGTERM reached trialkeeper from outside", None),
        (3,     json!([]),            &json!({"code": 3}), &saw, "The trial exited with code 3", None),
    ];
    for (code, attributes, container, verdict, message, class) in table {
        assert!(serde_json::from_value::<Verdict>(verdict.clone()).is_ok(), "{verdict}");
        let outcome = outcome_with_verdict(code, &attributes, container.clone(), verdict);
        assert_eq!((outcome.message.as_str(), outcome.class), (message, class), "{code}");
    }
}

#[test]
fn the_message_of_a_refused_pod_names_the_remedy() {
    let message = "pods \"x\" is forbidden: error looking up service account lab/y: serviceaccount \"y\" not found";
    let answer = json!({"ErrStatus": {"status": "Failure", "message": message, "reason": "Forbidden", "code": 403}});
    let framework = json!({"status": {"state": "Completed", "attemptStatus": {"completionStatus": {
        "code": -200, "phrase": "PodCreationPermanentError", "diagnostics": format!("Failed to create Pod: {answer}"),
        "type": {"name": "Failed", "attributes": ["Permanent"]},
        "trigger": {"taskRoleName": "worker", "taskIndex": 0},
    }}}});
    let WorkloadPhase::Completed(outcome) = read(&framework, ("worker", 0)) else { panic!() };
    let prefix = format!("the cluster refuses the pod: {message}; ");
    let advice = outcome.message.strip_prefix(&prefix).unwrap_or_default();
    assert!(advice.contains("kubectl create serviceaccount"), "{}", outcome.message);
}

#[test]
fn the_reason_of_a_pod_that_its_node_ended_is_read() {
    // The kubelet ends the pod: its containers are killed, or are no longer known.
    let pod = |reason: &str, message: &str, containers: &Value| json!({"reason": reason, "message": message, "containers": containers});
    let killed = json!([{"name": "framework", "code": 137, "reason": "Error"}]);
    let low = "The node was low on resource: memory.";
    let own = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ";
    let (permanent, transient) = (Some(Class::Permanent), Some(Class::Transient));
    #[rustfmt::skip]
    let table = [
        (-1000, "Transient", pod("Evicted", low, &killed),               "its pod was removed: its node ran low on resources (Evicted: The node", transient, true),
        // This controller lacks its usual configuration.
        (137,   "",          pod("Evicted", low, &killed),               "its pod was removed: its node ran low on resources (Evicted: The node", transient, true),
        (-300,  "",          pod("NodeLost", "", &json!([])),            "its pod was removed: its node is gone (NodeLost)",         transient, true),
        (143,   "Transient", pod("Terminated", "shutdown", &killed),     "its pod was removed: its node was shut down (Terminated",  transient, true),
        (-1003, "Transient", json!(null),                                "its pod was removed: the cluster ended it (Phrase)",       transient, true),
        // A retry would use as much again.
        (-1000, "Transient", pod("Evicted", own, &killed),               "the pod was evicted: Pod ephemeral local storage usage",      permanent, false),
        (-1002, "Transient", pod("OutOfcpu", "not enough cpu", &json!([])), "the pod's node refused it: not enough cpu",                transient, false),
        (-101,  "Transient", json!(null),                                "the trial's pod was deleted, but not by the manager",                            transient, false),
    ];
    for (code, attribute, pod, message, class, is_taken) in table {
        let own = json!({"code": code, "pod": pod});
        let tasks = json!([{"index": 0, "attemptStatus": {"completionStatus": own}}]);
        let framework = json!({"status": {"state": "Completed", "attemptStatus": {
            "taskRoleStatuses": [{"name": "worker", "taskStatuses": tasks}],
            "completionStatus": {
                "code": code, "phrase": "Phrase", "diagnostics": "",
                "type": {"name": "Failed", "attributes": [attribute]},
                "trigger": {"taskRoleName": "worker", "taskIndex": 0},
            },
        }}});
        let WorkloadPhase::Completed(outcome) = read(&framework, ("worker", 0)) else { panic!() };
        assert!(outcome.message.starts_with(message), "{code}: {}", outcome.message);
        assert_eq!(
            (outcome.class, outcome.disruption.is_some()),
            (class, is_taken),
            "{code} {pod}"
        );
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z]{0,12}".prop_map(Value::from),
        Just(Value::from("Completed")),
    ];
    let names = prop_oneof![
        Just("state".to_owned()),
        Just("status".to_owned()),
        Just("attemptStatus".to_owned()),
        Just("completionStatus".to_owned()),
        Just("taskRoleStatuses".to_owned()),
        Just("taskRoleStatusesCompressed".to_owned()),
        Just("trigger".to_owned()),
        Just("pod".to_owned()),
        Just("containers".to_owned()),
        Just("code".to_owned()),
        "[a-z]{1,6}".prop_map(String::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((names.clone(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn random_objects_never_panic(object in any_json(), status in any_json()) {
        read(&object, ("worker", 0));
        read(&json!({"status": {"state": "Completed", "attemptStatus": status}}), ("worker", 0));
        crate::training_service::kubernetes::pending_reason::pod_reason(&object);
        crate::training_service::kubernetes::pending_reason::pod_reason(&json!({"status": status}));
        crate::training_service::kubernetes::pending_reason::event_problem(&object);
    }
}

#[test]
fn the_message_names_a_failed_container_other_than_the_trials() {
    let failed = |containers: Value| {
        let completion = json!({
            "code": 210, "phrase": "ContainerPermanentFailed", "type": {"name": "Failed"},
            "pod": {"containers": containers},
        });
        let status =
            json!({"state": "Completed", "attemptStatus": {"completionStatus": completion}});
        let phase = read(&json!({"status": status}), ("worker", 0));
        let WorkloadPhase::Completed(outcome) = phase else { panic!("{phase:?}") };
        outcome.message
    };
    let barrier = json!({"name": "frameworkbarrier", "code": 210, "reason": "Error", "message": "no Framework\n"});
    assert_eq!(
        failed(json!([barrier, {"name": "framework", "code": 0}])),
        "the container frameworkbarrier ended with exit code 210: no Framework"
    );
    // A container that the cluster adds is listed after the trial's, or before it.
    let (trial, mesh) =
        (json!({"name": "framework", "code": 7}), json!({"name": "mesh", "code": 0}));
    for containers in [json!([trial, mesh]), json!([mesh, trial])] {
        assert_eq!(failed(containers), "the container ended with exit code 7");
    }
}
