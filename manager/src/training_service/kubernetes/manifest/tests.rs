//! Tests of the objects: against the rules of the controller and of Kubernetes, and one object against its reviewed
//! form.

mod bootstrap;
mod restricted;

use std::path::Path;

use serde_json::json;

use super::*;
use crate::config::TrainingServiceSpec;
use crate::config::kubernetes::is_framework_name;
use crate::training_service::kubernetes::workload::framework::{Framework, framework};
use crate::training_service::kubernetes::workload::{Workload as _, workload};
use crate::training_service::{Token, parameter_record};

pub(in crate::training_service::kubernetes) fn job() -> TrialJobSpec {
    TrialJobSpec {
        experiment: ExperimentId::new("abcd1234").unwrap(),
        trial: trial_protocol::TrialJobId::new("k3f9a").unwrap(),
        attempt: AttemptId::new("k3f9a-2").unwrap(),
        sequence: 5,
        command: "unused".to_owned(),
        parameter_record: parameter_record(Some(5), &json!({"lr": 0.1, "what": "$(HOME) {{x}}"})),
        token: Token("secret-token".to_owned()),
    }
}

/// Builds the settings from a section `trainingService` of an experiment file.
pub(in crate::training_service::kubernetes) fn workload_settings(
    section: &Value,
) -> WorkloadSettings {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("experiment.yml");
    let document = json!({
        "trialCommand": "echo lr=$(( 1 )) {{lr}}",
        "trialConcurrency": 1,
        "searchSpace": {"lr": {"_type": "uniform", "_value": [0, 1]}, "what": {"_type": "choice", "_value": ["a"]}},
        "tuner": {"name": "Random"},
        "trainingService": section,
    });
    std::fs::write(&file, document.to_string()).unwrap();
    let spec = crate::config::load(&file).unwrap();
    // The stored form reads back as the same specification.
    let again = crate::config::from_canonical(&spec.canonical).unwrap();
    assert_eq!(again.training_service, spec.training_service);
    let TrainingServiceSpec::Kubernetes(spec) = spec.training_service else { panic!() };
    WorkloadSettings {
        experiment: ExperimentId::new("abcd1234").unwrap(),
        container_name: workload(spec.workload).container_name(),
        spec: *spec,
        namespace: "lab".to_owned(),
        agents: AgentSettings::default(),
        has_ca: true,
        shared_disk: None,
        cached_files: None,
    }
}

#[test]
fn mounts_are_volumes_of_the_pod_and_of_the_trials_container() {
    let mut section = one_role();
    section["mounts"] = json!([{"name": "images", "path": "/data", "claimName": "imagenet"}]);
    let made = framework(&workload_settings(&section), &job());
    let pod = made.pointer("/spec/taskRoles/0/task/pod/spec").unwrap();
    let named = |list: &Value| {
        list.as_array().unwrap().iter().find(|it| it["name"] == "data-images").cloned().unwrap()
    };
    let source = json!({"claimName": "imagenet", "readOnly": true});
    let claim = json!({"persistentVolumeClaim": source, "name": "data-images"});
    assert_eq!(named(&pod["volumes"]), claim);
    let place = json!({"name": "data-images", "mountPath": "/data", "readOnly": true});
    assert_eq!(named(&pod["containers"][0]["volumeMounts"]), place);
}

/// Returns the security context and the data volumes of a pod whose section has these mounts and fields.
fn security_context_and_data_volumes(
    platform: &str,
    mounts: &Value,
    more: &Value,
) -> (Value, Vec<Value>) {
    let mut section = json!({"platform": platform, "mounts": mounts});
    section["taskRoles"] = json!([{"name": "worker", "dockerImage": "i"}]);
    super::merge(&mut section, more.as_object().unwrap().clone());
    let settings = workload_settings(&section);
    let pods = workload(settings.spec.workload).example_pods(&settings);
    let spec = &pods[0].1["spec"];
    let volumes = spec["volumes"].as_array().unwrap().iter();
    let data = volumes.filter(|volume| volume["name"].as_str().unwrap().starts_with("data-"));
    (spec["securityContext"].clone(), data.cloned().collect())
}

#[test]
fn a_claim_is_mounted_for_reading_unless_its_pod_writes_to_it() {
    let mount = |name: &str, claim: &str, read_only: bool| {
        let path = format!("/{name}");
        json!({"name": name, "path": path, "claimName": claim, "readOnly": read_only})
    };
    let (none, cache) = (json!({}), json!({"cache": {"claimName": "c"}}));
    #[rustfmt::skip]
    let table = [
        (json!([mount("a", "c", true)]),                          &none,  &[true][..],   false),
        (json!([mount("a", "c", true), mount("b", "d", false)]),  &none,  &[true, false], true),
        (json!([mount("a", "c", true), mount("b", "c", false)]),  &none,  &[false, false], true),
        (json!([mount("a", "c", true), mount("b", "d", true)]),   &cache, &[false, true], true),
    ];
    for (mounts, more, expected, writes) in table {
        for platform in ["kubernetes", "trainer", "frameworkcontroller"] {
            let (context, volumes) = security_context_and_data_volumes(platform, &mounts, more);
            let read_only = |it: &Value| it["persistentVolumeClaim"]["readOnly"] == true;
            let read_only: Vec<bool> = volumes.iter().map(read_only).collect();
            assert_eq!(read_only, expected, "{platform}: {mounts}");
            let group = if writes { json!(65532) } else { Value::Null };
            assert_eq!(context["fsGroup"], group, "{platform}: {mounts}");
            // FrameworkController would drop the policy.
            let is_dropped = !writes || platform == "frameworkcontroller";
            let policy = if is_dropped { Value::Null } else { json!("OnRootMismatch") };
            assert_eq!(context["fsGroupChangePolicy"], policy, "{platform}: {mounts}");
        }
    }
}

fn one_role() -> Value {
    json!({
        "platform": "frameworkcontroller",
        "agent": "image",
        "taskRoles": [{
            "name": "worker", "dockerImage": "python:3.12", "taskNumber": 1,
            "gpuNumber": 0, "cpuNumber": 0.5, "memorySize": "8gb",
        }],
    })
}

fn pod(framework: &Value, role: usize) -> Value {
    framework["spec"]["taskRoles"][role]["task"]["pod"]["spec"].clone()
}

fn variable_value(pod: &Value, name: &str) -> Option<String> {
    let list = pod["containers"][0]["env"].as_array().unwrap();
    let found: Vec<&Value> = list.iter().filter(|known| known["name"] == name).collect();
    assert!(found.len() <= 1, "{name} is set twice");
    found.first().map(|known| known["value"].as_str().unwrap().to_owned())
}

#[test]
fn the_manifest_of_a_framework_matches_the_reviewed_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/training_service/kubernetes/manifest/tests/one-role.json");
    let made = framework(&workload_settings(&one_role()), &job());
    let known: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(
        made,
        known,
        "the manifest has changed; it is now\n{}",
        serde_json::to_string_pretty(&made).unwrap()
    );
}

#[test]
fn names_follow_the_rules_of_the_controller() {
    let experiment = |id: &str| ExperimentId::new(id).unwrap();
    let attempt = |id: &str| AttemptId::new(id).unwrap();
    let plain = workload_name(&experiment("abcd1234"), &attempt("k3f9a-2"));
    assert_eq!(plain, "tkabcd1234k3f9a2");
    // Ids of an older NNI have capitals and dashes. Two of them must not get the same name.
    let names = [
        workload_name(&experiment("Ab"), &attempt("x-1")),
        workload_name(&experiment("ab"), &attempt("x-1")),
        workload_name(&experiment("ab"), &attempt("X-1")),
        workload_name(&experiment("ab"), &attempt("x-1-1")),
    ];
    for (i, name) in names.iter().enumerate() {
        assert!(is_framework_name(name), "{name}");
        assert!(!names[..i].contains(name), "{names:?}");
    }
}

#[test]
fn the_framework_contains_no_secret_and_no_field_that_the_controller_drops() {
    let made = framework(&workload_settings(&one_role()), &job());
    let text = made.to_string();
    assert!(!text.contains("secret-token") && !text.contains(&STANDARD.encode("secret-token")));
    // The controller drops these fields silently.
    for field in
        ["seccompProfile", "resizePolicy", "setHostnameAsFQDN", "\"ephemeral\"", "\"status\""]
    {
        assert!(!text.contains(field), "{field}");
    }
    let secret = token_secret(&workload_settings(&one_role()), &job());
    assert_eq!(secret["data"]["token"], STANDARD.encode("secret-token"));
    assert_eq!(secret["metadata"]["labels"][EXPERIMENT_LABEL], "abcd1234");
}

#[test]
fn kubernetes_expands_nothing_in_the_users_texts() {
    let made = pod(&framework(&workload_settings(&one_role()), &job()), 0);
    assert_eq!(made["containers"][0]["command"][3], "echo lr=$$(( 1 )) 0.1");
    let record: Value = serde_json::from_str(
        &variable_value(&made, "TRIALKEEPER_PARAMETERS").unwrap().replace("$$", "$"),
    )
    .unwrap();
    assert_eq!(record["parameters"]["what"], "$(HOME) {{x}}");
    // The agent fetches a record that is too long for a variable.
    let mut long = job();
    long.parameter_record =
        parameter_record(Some(5), &json!({"lr": "x".repeat(LONG_PARAMETER_CHARS)}));
    let made = pod(&framework(&workload_settings(&one_role()), &long), 0);
    assert_eq!(variable_value(&made, "TRIALKEEPER_PARAMETERS"), None);
    assert_eq!(variable_value(&made, "TRIALKEEPER_FETCH").as_deref(), Some("code,parameters"));
}

const LONG_PARAMETER_CHARS: usize = 40 << 10;

#[test]
fn gpus_are_requested_hidden_or_unchanged() {
    let with = |gpus: Value| {
        let mut section = one_role();
        section["taskRoles"][0]["gpuNumber"] = gpus;
        pod(&framework(&workload_settings(&section), &job()), 0)
    };
    let limits = "/containers/0/resources/limits/nvidia.com~1gpu";
    let two = with(json!(2));
    assert_eq!(two.pointer(limits), Some(&json!("2")));
    assert_eq!(variable_value(&two, "NVIDIA_VISIBLE_DEVICES"), None);
    let none = with(json!(0));
    assert_eq!(none.pointer(limits), None);
    assert_eq!(variable_value(&none, "NVIDIA_VISIBLE_DEVICES").as_deref(), Some("void"));
    let unsaid = with(Value::Null);
    assert_eq!(unsaid.pointer(limits), None);
    assert_eq!(variable_value(&unsaid, "NVIDIA_VISIBLE_DEVICES"), None);
}

#[test]
fn several_roles_receive_the_names_of_all_roles() {
    let made = framework(
        &workload_settings(&json!({
            "platform": "frameworkcontroller",
            "agentImage": "registry/agent:1",
            "metricsFrom": "worker:1",
            "startUpDeadline": "45m",
            "taskRoles": [
                {"name": "ps", "dockerImage": "a", "command": "serve", "frameworkAttemptCompletionPolicy":
                    {"minFailedTaskCount": 1, "minSucceededTaskCount": -1}},
                {"name": "worker", "dockerImage": "b", "taskNumber": 2, "command": "work", "frameworkAttemptCompletionPolicy":
                    {"minFailedTaskCount": 1, "minSucceedTaskCount": 2}},
            ],
        })),
        &job(),
    );
    let roles = &made["spec"]["taskRoles"];
    assert_eq!(roles[0]["frameworkAttemptCompletionPolicy"]["minSucceededTaskCount"], -1);
    assert_eq!(roles[1]["frameworkAttemptCompletionPolicy"]["minSucceededTaskCount"], 2);
    assert_eq!(roles[1]["taskNumber"], 2);
    for (position, line) in [(0, "serve"), (1, "work")] {
        let pod = pod(&made, position);
        assert_eq!(variable_value(&pod, "TRIALKEEPER_ROLES").as_deref(), Some("ps:1,worker:2"));
        assert_eq!(variable_value(&pod, "TRIALKEEPER_METRICS_FROM").as_deref(), Some("worker:1"));
        // The start deadline applies, whatever the agent's own limit is.
        assert_eq!(variable_value(&pod, "TRIALKEEPER_START_TIMEOUT").as_deref(), Some("2700s"));
        let install = &pod["initContainers"][0];
        assert_eq!(install["image"], "registry/agent:1");
        assert_eq!(install["command"], json!(["trialkeeper", "install", "/trialkeeper/bin"]));
        let command = json!(["/trialkeeper/bin/trialkeeper", "run", "--shell", line]);
        assert_eq!(pod["containers"][0]["command"], command);
        let template = &made["spec"]["taskRoles"][position]["task"]["pod"]["metadata"]["labels"];
        assert_eq!(
            template[EXPERIMENT_LABEL], "abcd1234",
            "the controller does not copy labels to its pods"
        );
    }
}

#[test]
fn a_template_keeps_its_own_fields() {
    let made = framework(
        &workload_settings(&json!({
            "platform": "frameworkcontroller",
            "runAsUser": 1000,
            "template": {
                "apiVersion": "frameworkcontroller.microsoft.com/v1", "kind": "Framework",
                "metadata": {"name": "mine", "resourceVersion": "7", "uid": "u", "labels": {"team": "vision"}, "annotations": {"a": "b"}},
                "spec": {"retryPolicy": {"fancyRetryPolicy": true, "maxRetryCount": 1}, "taskRoles": [{
                    "name": "trainer", "taskNumber": 2,
                    "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 1, "minSucceededTaskCount": 1},
                    "task": {"pod": {"metadata": {"labels": {"tier": "gold"}}, "spec": {
                        "restartPolicy": "OnFailure", "priorityClassName": "high",
                        "securityContext": {"runAsUser": 7},
                        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
                        "containers": [{
                            "name": "main", "image": "trainer:1", "command": ["python3", "train me.py"],
                            "args": ["--lr", "{{lr}}"],
                            "env": [{"name": "MODE", "value": "fast"}, {"name": "TRIALKEEPER_TRIAL", "value": "forged"}],
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                            "resources": {"limits": {"example.com/fpga": "1"}},
                        }],
                    }}},
                }]},
                "status": {"state": "Completed"},
            },
        })),
        &job(),
    );
    assert_eq!(made.get("status"), None, "the controller would accept a status");
    assert_eq!(made["metadata"]["name"], "tkabcd1234k3f9a2");
    assert_eq!(made["metadata"]["labels"]["team"], "vision");
    assert_eq!(made["metadata"]["labels"][EXPERIMENT_LABEL], "abcd1234");
    assert_eq!(made["metadata"]["annotations"]["a"], "b");
    assert_eq!(made["metadata"].get("resourceVersion"), None, "a new object has no version");
    assert_eq!(made["spec"]["retryPolicy"]["maxRetryCount"], 1);
    assert_eq!(made["spec"]["taskRoles"][0]["taskNumber"], 2);
    assert_eq!(made["spec"]["taskRoles"][0]["task"]["pod"]["metadata"]["labels"]["tier"], "gold");
    let pod = pod(&made, 0);
    assert_eq!(pod["restartPolicy"], "Never", "another policy would hide every failure");
    assert_eq!(pod["priorityClassName"], "high");
    assert_eq!(pod["securityContext"], json!({"runAsUser": 7}));
    assert_eq!(pod["volumes"].as_array().unwrap().len(), 3);
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "trainer:1");
    assert_eq!(container.get("args"), None);
    assert_eq!(container["command"][4], "python3 'train me.py' --lr 0.1");
    assert_eq!(container["resources"]["limits"]["example.com/fpga"], "1");
    assert_eq!(variable_value(&pod, "MODE").as_deref(), Some("fast"));
    assert_eq!(variable_value(&pod, "TRIALKEEPER_TRIAL").as_deref(), Some("k3f9a"));
}

#[test]
fn a_controller_retries_only_if_the_template_says_so() {
    let template = |framework: Value, task: Value| {
        let containers = json!([{"name": "main", "image": "trainer:1"}]);
        let task = json!({"retryPolicy": task, "pod": {"spec": {"containers": containers}}});
        let role = json!({"name": "worker", "taskNumber": 1, "task": task});
        let spec = json!({"retryPolicy": framework, "taskRoles": [role]});
        json!({"platform": "frameworkcontroller", "template": {"kind": "Framework", "spec": spec}})
    };
    let (never, once) = (json!({"maxRetryCount": 0}), json!({"maxRetryCount": 1}));
    let fancy = json!({"fancyRetryPolicy": true});
    #[rustfmt::skip]
    let table = [
        (one_role(),                           false),
        (template(Value::Null, Value::Null),   false),
        (template(never.clone(), never.clone()), false),
        (template(once.clone(), never.clone()), true),
        (template(never.clone(), once),        true),
        (template(never, fancy),               true),
    ];
    for (section, expected) in table {
        assert_eq!(has_retries(&workload_settings(&section).spec), expected, "{section}");
    }
}

#[test]
fn a_shared_disk_is_mounted_and_holds_the_trials_folder() {
    let mut settings = workload_settings(&one_role());
    settings.shared_disk =
        Some(SharedDisk::Nfs { server: "nas".to_owned(), path: "/export".to_owned() });
    let pod = pod(&framework(&settings, &job()), 0);
    assert_eq!(pod["volumes"][2]["nfs"], json!({"server": "nas", "path": "/export"}));
    assert_eq!(pod["containers"][0]["volumeMounts"][2]["mountPath"], "/tmp/mount");
    let folder = variable_value(&pod, "TRIALKEEPER_OUTPUT_DIR");
    assert_eq!(folder.as_deref(), Some("/tmp/mount/nni/abcd1234/k3f9a"));
    assert_eq!(
        variable_value(&pod, "TRIALKEEPER_SPOOL_DIR").as_deref(),
        Some("/trialkeeper/spool")
    );
}

#[test]
fn the_experiments_secret_leads_to_the_manager() {
    let secret =
        experiment_secret(&workload_settings(&one_role()), "https://10.0.0.7:8080", Some("PEM"));
    assert_eq!(secret["metadata"]["name"], "tkabcd1234");
    assert_eq!(secret["data"]["manager.url"], STANDARD.encode("https://10.0.0.7:8080\n"));
    assert_eq!(secret["data"]["ca.pem"], STANDARD.encode("PEM"));
}

#[test]
fn a_templates_grace_period_is_respected() {
    let section = |seconds: Value| {
        json!({
            "platform": "frameworkcontroller",
            "template": {"kind": "Framework", "spec": {"taskRoles": [{
                "name": "worker", "taskNumber": 1,
                "task": {"pod": {"spec": {
                    "terminationGracePeriodSeconds": seconds,
                    "containers": [{"name": "main", "image": "trainer:1"}],
                }}},
            }]}},
        })
    };
    for (written, seconds, trial) in
        [(json!(300), 300, "290s"), (json!(5), 30, "20s"), (Value::Null, 30, "20s")]
    {
        let settings = workload_settings(&section(written));
        assert_eq!(grace_period(&settings.spec), Duration::from_secs(seconds));
        let pod = pod(&framework(&settings, &job()), 0);
        assert_eq!(pod["terminationGracePeriodSeconds"], seconds);
        assert_eq!(variable_value(&pod, "TRIALKEEPER_GRACE").as_deref(), Some(trial));
    }
}

#[test]
fn values_of_a_template_outrank_the_defaults() {
    let with = |metadata: Value, changes: &Value, more: &Value| {
        let env = json!([
            {"name": "TRIALKEEPER_GRACE", "value": "3s"}, {"name": "USER", "value": "me"},
            {"name": "TRIALKEEPER_TRIAL", "value": "forged"},
        ]);
        let mut pod = json!({"containers": [{"name": "main", "image": "trainer:1", "env": env}]});
        super::merge(&mut pod, changes.as_object().unwrap().clone());
        let mut task = json!({"pod": {"metadata": metadata, "spec": pod}});
        super::merge(&mut task, more.as_object().unwrap().clone());
        let roles = json!([{"name": "worker", "taskNumber": 1, "task": task}]);
        let template = json!({"kind": "Framework", "spec": {"taskRoles": roles}});
        let section = json!({"platform": "frameworkcontroller", "template": template});
        framework(&workload_settings(&section), &job())["spec"]["taskRoles"][0]["task"].clone()
    };
    let plain = with(Value::Null, &json!({}), &json!({}));
    let metadata = &plain["pod"]["metadata"];
    assert_eq!(metadata["labels"]["sidecar.istio.io/inject"], "false");
    assert_eq!(metadata["annotations"]["sidecar.istio.io/inject"], "false");
    assert_eq!(metadata["annotations"]["linkerd.io/inject"], "disabled");
    let evict = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    assert_eq!(metadata["annotations"][evict], "false", "an eviction would restart the trial");
    let disrupt = "karpenter.sh/do-not-disrupt";
    assert_eq!(metadata["annotations"][disrupt], "true", "a consolidation would, too");
    assert_eq!(plain["podGracefulDeletionTimeoutSec"], 30 + 600);
    let pod = &plain["pod"]["spec"];
    assert_eq!(pod.get("dnsPolicy"), None);
    assert_eq!(
        pod["securityContext"].get("fsGroup"),
        None,
        "the groups of files on its claims do not change"
    );
    assert_eq!(variable_value(pod, "TRIALKEEPER_GRACE").as_deref(), Some("3s"));
    assert_eq!(variable_value(pod, "USER").as_deref(), Some("me"));
    assert_eq!(variable_value(pod, "TRIALKEEPER_TRIAL").as_deref(), Some("k3f9a"));

    let meshed = json!({"labels": {"sidecar.istio.io/inject": "true"}, "annotations": {"linkerd.io/inject": "enabled", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "karpenter.sh/do-not-disrupt": "false"}});
    let network = json!({"hostNetwork": true});
    let own = with(meshed.clone(), &network, &json!({"podGracefulDeletionTimeoutSec": 5}));
    assert_eq!(own["pod"]["metadata"]["annotations"]["linkerd.io/inject"], "enabled");
    assert_eq!(own["pod"]["metadata"]["annotations"][evict], "true");
    assert_eq!(own["pod"]["metadata"]["annotations"][disrupt], "false");
    assert_eq!(own["pod"]["metadata"]["labels"]["sidecar.istio.io/inject"], "true");
    assert_eq!(own["podGracefulDeletionTimeoutSec"], 5);
    assert_eq!(own["pod"]["spec"]["dnsPolicy"], "ClusterFirstWithHostNet");
    let named = json!({"hostNetwork": true, "dnsPolicy": "Default"});
    let own = with(Value::Null, &named, &json!({}));
    assert_eq!(own["pod"]["spec"]["dnsPolicy"], "Default");
}

#[test]
fn a_pod_with_a_claim_gets_its_group() {
    let mut settings = workload_settings(&one_role());
    settings.shared_disk = Some(SharedDisk::Claim { name: "disk".to_owned() });
    let pod = pod(&framework(&settings, &job()), 0);
    assert_eq!(pod["securityContext"]["fsGroup"], 65532);
    assert_eq!(
        variable_value(&pod, "TRIALKEEPER_ROTATE_BYTES"),
        None,
        "the user can read the output"
    );
}

#[test]
fn the_barrier_may_write_to_its_own_folder() {
    let mut section = one_role();
    section["barrierImage"] = json!("frameworkcontroller/frameworkbarrier:v1.0.0");
    section["taskRoles"][0]["taskNumber"] = json!(2);
    let pod = pod(&framework(&workload_settings(&section), &job()), 0);
    let barrier = &pod["initContainers"][0];
    assert_eq!(barrier["securityContext"]["runAsUser"], 0);
    assert_eq!(barrier["securityContext"]["runAsNonRoot"], false);
    assert_eq!(barrier["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    // The agent sets the variables for ranks and ports, which the barrier reads.
    assert_eq!(variable_value(&pod, "TRIALKEEPER_ROLES").as_deref(), Some("worker:2"));
    let line = pod["containers"][0]["command"][3].as_str().unwrap();
    assert!(line.starts_with(". /mnt/frameworkbarrier/injector.sh && "), "{line}");
}

#[test]
fn the_pod_of_a_dry_run_is_the_one_that_the_controller_creates() {
    let mut section = one_role();
    section["template"] = json!({"spec": {"taskRoles": [{"name": "worker", "task": {"pod": {"spec": {
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 7},
        "hostname": "{{FC_TASKROLE_NAME}}-{{FC_TASK_INDEX}}",
        "containers": [{"name": "main", "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}],
    }}}}]}});
    let [(role, pod)] = &Framework.example_pods(&workload_settings(&section))[..] else { panic!() };
    assert_eq!((role.as_str(), &pod["kind"]), ("worker", &json!("Pod")));
    assert_eq!(pod["metadata"]["name"], "tkabcd1234example1-worker-0");
    assert_eq!(pod["metadata"]["namespace"], "lab");
    assert_eq!(
        pod["spec"]["securityContext"],
        json!({"runAsUser": 7}),
        "the controller drops the other fields"
    );
    assert_eq!(pod["spec"]["containers"][0]["securityContext"], json!({}));
    assert_eq!(pod["spec"]["hostname"], "0-0");
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"], "8192Mi");
}
