//! Tests of the changes, as a table of policies.

use serde_json::json;

use super::Consequence::{Fatal, Note, Warning};
use super::*;
use crate::config::kubernetes::WorkloadKind;
use crate::training_service::kubernetes::manifest::tests::workload_settings;
use crate::training_service::kubernetes::workload::workload;

/// Returns the changes that a policy makes to the first example of a kind: its object, or the pod of a kind without
/// one. Null removes a field.
fn changes_of_policy(section: &Value, policy: &[(&str, Value)]) -> Vec<Change> {
    let settings = workload_settings(section);
    let kind = workload(settings.spec.workload);
    let objects = kind.example_objects(&settings).into_iter().map(|(_, object)| object);
    let pods = kind.example_pods(&settings).into_iter().map(|(_, pod)| pod);
    let sent = objects.chain(pods).next().unwrap();
    let mut answered = sent.clone();
    for (path, value) in policy {
        let (parent, field) = path.rsplit_once('/').unwrap();
        let parent = answered.pointer_mut(parent).unwrap_or_else(|| panic!("{path}: {sent:#}"));
        let field = field.replace("~1", "/");
        match (value, parent) {
            (Value::Null, Value::Object(members)) => drop(members.shift_remove(&field)),
            (value, Value::Array(list)) if field == "-" => list.push(value.clone()),
            (value, Value::Array(list)) => list[field.parse::<usize>().unwrap()] = value.clone(),
            (value, parent) => parent[field] = value.clone(),
        }
    }
    find_changes(&sent, &answered)
}

fn job_section() -> Value {
    json!({"platform": "kubernetes", "dockerImage": "busybox"})
}

#[test]
fn a_policy_is_judged_by_its_consequence_for_trials() {
    #[rustfmt::skip]
    let table = [
        ("MultiKueue",                 "/spec/managedBy",               json!("kueue.x-k8s.io/multikueue"),    Some((Fatal,   "`managedBy: kueue.x-k8s.io/multikueue`: no controller"))),
        ("the usual controller",       "/spec/managedBy",               json!("kubernetes.io/job-controller"), None),
        ("a gate",                     "/spec/suspend",                 json!(true),                           Some((Warning, "`suspend: true` without a queue: trials wait until another controller"))),
        ("the default of suspend",     "/spec/suspend",                 json!(false),                          None),
        ("a time to live",             "/spec/ttlSecondsAfterFinished", json!(60),                             Some((Warning, "deletes it 60 s after its end"))),
        ("a deadline",                 "/spec/activeDeadlineSeconds",   json!(3600),                           Some((Warning, "ends each trial after 3600 s"))),
        ("retries",                    "/spec/backoffLimit",            json!(6),                              Some((Warning, "`backoffLimit: 6`"))),
        ("fewer pods",                 "/spec/parallelism",             json!(0),                              Some((Fatal,   "`parallelism: 0` instead of 1"))),
        ("a default",                  "/spec/completionMode",          json!("NonIndexed"),                   None),
        ("a label of its own",         "/metadata/labels/team",         json!("a"),                            None),
        ("no label of the manager",    "/metadata/labels/trialkeeper~1trial", json!(null),                     Some((Fatal,   "`trialkeeper/trial` becomes nothing"))),
        ("annotations",                "/metadata/annotations",         json!({"a": "b"}),                     None),
        ("a pod's deadline",           "/spec/template/spec/activeDeadlineSeconds",   json!(60),                             Some((Warning, "ends each trial after 60 s"))),
        ("restarts",                   "/spec/template/spec/restartPolicy",           json!("OnFailure"),                    Some((Fatal,   "`restartPolicy: OnFailure`: a failed trial"))),
        ("a mirror",                   "/spec/template/spec/containers/0/image",      json!("mirror/busybox"),               Some((Note,    "the image `mirror/busybox` instead of `busybox`"))),
        ("another command",            "/spec/template/spec/containers/0/command",    json!(["sleep", "1"]),                 Some((Fatal,   "another command of the container `trial`"))),
        ("a sidecar",                  "/spec/template/spec/containers/-",            json!({"name": "mesh", "image": "m"}), Some((Warning, "the container `mesh`"))),
        ("a native sidecar",           "/spec/template/spec/initContainers",          json!([{"name": "mesh", "image": "m", "restartPolicy": "Always"}]), None),
        ("a default limit",            "/spec/template/spec/containers/0/resources",  json!({"limits": {"memory": "512Mi", "cpu": "1"}, "requests": {"memory": "1Mi"}}), Some((Warning, "a limit of 512Mi of memory"))),
        ("a shorter grace period",     "/spec/template/spec/terminationGracePeriodSeconds", json!(5),                        Some((Warning, "`terminationGracePeriodSeconds: 5` instead of 30"))),
        ("a longer grace period",      "/spec/template/spec/terminationGracePeriodSeconds", json!(90),                       None),
        ("a choice of nodes",          "/spec/template/spec/nodeSelector",            json!({"pool": "spot"}),               None),
        ("tolerations",                "/spec/template/spec/tolerations",             json!([{"key": "spot", "operator": "Exists"}]), None),
        ("a variable and a volume",    "/spec/template/spec/volumes/-",               json!({"name": "ca", "configMap": {"name": "ca"}}), None),
    ];
    for (case, path, value, expected) in table {
        let found = changes_of_policy(&job_section(), &[(path, value)]);
        match (found.as_slice(), expected) {
            ([], None) => {}
            ([change], Some((consequence, part))) => {
                assert_eq!(change.consequence, consequence, "{case}: {change:?}");
                assert!(change.text.contains(part), "{case}: {change:?}");
            }
            (found, _) => panic!("{case}: {found:?}"),
        }
    }
    // A program of the cluster may start the agent.
    let settings = workload_settings(&job_section());
    let (_, sent) = workload(WorkloadKind::Job).example_objects(&settings).remove(0);
    let mut answered = sent.clone();
    let container = answered.pointer_mut("/spec/template/spec/containers/0").unwrap();
    container["args"] = container["command"].take();
    container["command"] = json!(["/vault/env", "/bin/sh"]);
    assert_eq!(find_changes(&sent, &answered), []);
}

#[test]
fn a_queue_that_the_cluster_chooses_is_named() {
    let label = "/metadata/labels/kueue.x-k8s.io~1queue-name";
    let found = changes_of_policy(
        &job_section(),
        &[("/spec/suspend", json!(true)), (label, json!("default"))],
    );
    let [Change { consequence: Note, text }] = found.as_slice() else { panic!("{found:?}") };
    assert!(text.contains("`kueue.x-k8s.io/queue-name: default`"), "{text}");
    let queued = json!({"platform": "kubernetes", "dockerImage": "i", "queue": "mine"});
    assert_eq!(changes_of_policy(&queued, &[]), []);
    let found = changes_of_policy(&queued, &[(label, json!("other"))]);
    let [Change { consequence: Warning, text }] = found.as_slice() else { panic!("{found:?}") };
    assert!(text.starts_with("`queue: mine` becomes `other`"), "{text}");
}

#[test]
fn each_kind_s_own_fields_are_judged() {
    let roles = json!([{"name": "worker", "taskNumber": 2, "dockerImage": "i", "command": "c"}, {"name": "ps", "dockerImage": "i", "command": "c"}]);
    let tf = json!({"platform": "kubeflow", "operator": "tf-operator", "worker": {"replicas": 2, "dockerImage": "i", "command": "c"}});
    let fc = json!({"platform": "frameworkcontroller", "taskRoles": [{"name": "worker", "dockerImage": "i"}]});
    let set = json!({"platform": "kubernetes", "taskRoles": roles});
    let trainer = json!({"platform": "trainer", "dockerImage": "i"});
    #[rustfmt::skip]
    let table = [
        (&set,     "/spec/managedBy",                                      json!("other"),     "`managedBy: other`"),
        (&set,     "/spec/replicatedJobs/0/template/spec/parallelism",     json!(1),           "`parallelism: 1` instead of 2"),
        (&set,     "/spec/replicatedJobs/1/template/spec/template/spec/restartPolicy", json!("OnFailure"), "`restartPolicy: OnFailure`"),
        (&tf,      "/spec/runPolicy/managedBy",                            json!("other"),     "`managedBy: other`"),
        (&tf,      "/spec/runPolicy/suspend",                              json!(true),        "`suspend: true` without a queue"),
        (&tf,      "/spec/tfReplicaSpecs/Worker/replicas",                 json!(1),           "`replicas: 1` instead of 2"),
        (&tf,      "/spec/tfReplicaSpecs/Worker/restartPolicy",            json!("OnFailure"), "`restartPolicy: OnFailure`"),
        (&tf,      "/spec/tfReplicaSpecs/Worker/template/spec/containers/0/image", json!("m"), "the image `m` instead of `i`"),
        (&fc,      "/spec/restartPolicy",                                  json!("Always"),    "`restartPolicy: Always`"),
        (&trainer, "/spec/template/spec/replicatedJobs/0/template/spec/template/spec/restartPolicy", json!("OnFailure"), "`restartPolicy: OnFailure`"),
    ];
    for (section, path, value, part) in table {
        let found = changes_of_policy(section, &[(path, value)]);
        assert!(found.len() == 1 && found[0].text.contains(part), "{path}: {found:?}");
    }
}

#[test]
fn an_unchanged_object_has_no_changes() {
    for &kind in WorkloadKind::ALL {
        let platform = kind.platform();
        let section = match kind {
            WorkloadKind::TfJob => {
                json!({"platform": platform, "operator": "tf-operator", "worker": {"replicas": 1, "dockerImage": "i", "command": "c"}})
            }
            WorkloadKind::PyTorchJob => {
                json!({"platform": platform, "operator": "pytorch-operator", "master": {"replicas": 1, "dockerImage": "i", "command": "c"}})
            }
            WorkloadKind::Framework => {
                json!({"platform": platform, "taskRoles": [{"name": "worker", "dockerImage": "i"}]})
            }
            WorkloadKind::Job | WorkloadKind::TrainJob => {
                json!({"platform": platform, "dockerImage": "i"})
            }
            WorkloadKind::JobSet | WorkloadKind::XgBoostJob | WorkloadKind::PaddleJob => continue,
        };
        assert_eq!(changes_of_policy(&section, &[]), [], "{section}");
    }
}
