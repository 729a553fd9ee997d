//! Tests of the section: against NNI's own files and against common mistakes.

use std::path::Path;

use serde_json::json;

use super::*;
use crate::config::tests::reference::expect_on_pages;
use crate::config::{ExperimentSpec, load};

pub(super) fn document(service: &Value) -> Value {
    json!({
        "trialCommand": "python3 t.py {{x}}",
        "trialConcurrency": 2,
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "tuner": {"name": "TPE"},
        "trainingService": service,
    })
}

pub(super) fn load_with_template(document: &str, template: &str) -> Result<ExperimentSpec, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("experiment.yml");
    std::fs::write(&file, document).unwrap();
    std::fs::write(folder.path().join("framework.yml"), template).unwrap();
    let search = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
    std::fs::write(folder.path().join("ss.json"), search.to_string()).unwrap();
    load(&file).map_err(|error| error.problem)
}

pub(super) fn load_kubernetes_spec(document: &str) -> KubernetesSpec {
    let spec = load_with_template(document, "").unwrap();
    let TrainingServiceSpec::Kubernetes(spec) = spec.training_service else { panic!() };
    *spec
}

/// Returns an example file of NNI.
fn nni_example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/config").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_example_in_deploy_is_read() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    #[rustfmt::skip]
    let table = [
        ("job",        WorkloadKind::Job,        None,             &[("worker", 1)][..]),
        ("queue",      WorkloadKind::Job,        Some("research"), &[("worker", 1)]),
        ("jobset",     WorkloadKind::JobSet,     None,             &[("ps", 1), ("worker", 2)]),
        ("kubeflow",   WorkloadKind::TfJob,      None,             &[("worker", 1)]),
        ("tensorflow", WorkloadKind::TfJob,      None,             &[("worker", 1)]),
        ("pytorch",    WorkloadKind::PyTorchJob, None,             &[("master", 1), ("worker", 2)]),
        ("trainer",    WorkloadKind::TrainJob,   None,             &[("worker", 2)]),
        ("manager",    WorkloadKind::Job,        None,             &[("worker", 1)]),
    ];
    for (folder, workload, queue, roles) in table {
        let whole = load(&deploy.join(folder).join("experiment.yml"));
        let whole = whole.unwrap_or_else(|error| panic!("{folder}: {error:?}"));
        assert!(whole.trial_code_directory.join("train.sh").is_file(), "{folder}");
        let TrainingServiceSpec::Kubernetes(spec) = whole.training_service else { panic!() };
        assert_eq!((spec.workload, spec.queue.as_deref()), (workload, queue), "{folder}");
        let of_file: Vec<(&str, u64)> =
            spec.roles.iter().map(|role| (role.name.as_str(), role.task_number)).collect();
        assert_eq!(of_file, roles, "{folder}");
    }
    let folders = std::fs::read_dir(&deploy).unwrap().flatten();
    let examples = folders.filter(|folder| folder.path().join("experiment.yml").is_file());
    assert_eq!(examples.count(), table.len(), "each example has a row");
}

#[test]
fn nnis_v2_form_is_read() {
    let spec = load_kubernetes_spec(&nni_example("frameworkcontroller_v2.yml"));
    assert_eq!(spec.namespace.as_deref(), Some("default"));
    assert_eq!(spec.service_account.as_deref(), Some("frameworkcontroller"));
    assert_eq!(spec.advertise.as_deref(), Some("127.0.0.1"));
    let nfs =
        StorageSpec::Nfs { server: "10.20.30.40".to_owned(), path: "/exports/nni".to_owned() };
    assert_eq!(spec.storage, nfs);
    let [role] = &spec.roles[..] else { panic!() };
    assert_eq!((role.name.as_str(), role.task_number), ("worker", 1));
    assert_eq!((role.gpus, role.cpu.as_deref(), role.memory_mib), (Some(0), Some("1"), Some(8192)));
    assert_eq!(role.policy, CompletionPolicy { min_failed: 1, min_succeeded: 1 });
}

#[test]
fn a_roles_command_counts_if_that_of_the_service_is_empty() {
    let role = json!({"name": "worker", "dockerImage": "i", "command": "python3 own.py {{x}}"});
    let service = json!({
        "platform": "frameworkcontroller", "trialCommand": "", "taskRoles": [role],
    });
    let mut document = document(&service);
    document.as_object_mut().unwrap().remove("trialCommand");
    assert_eq!(
        load_kubernetes_spec(&document.to_string()).roles[0].command,
        "python3 own.py {{x}}"
    );
}

#[test]
fn nnis_v1_form_is_read_and_keeps_what_nnis_converter_loses() {
    let spec = load_kubernetes_spec(
        &nni_example("frameworkcontroller_v1_noreuse.yml")
            .replace("namespace: default", "namespace: lab"),
    );
    assert_eq!(spec.namespace.as_deref(), Some("lab"));
    let [ps, worker] = &spec.roles[..] else { panic!() };
    assert_eq!(ps.policy, CompletionPolicy { min_failed: 1, min_succeeded: -1 });
    assert_eq!(worker.policy, CompletionPolicy { min_failed: 1, min_succeeded: 2 });
    assert_eq!((worker.task_number, worker.gpus, worker.memory_mib), (2, Some(1), Some(8192)));
    assert_eq!(ps.command, "python3 model2.py --role ps");
    assert_eq!(
        spec.metrics_from,
        ("worker".to_owned(), 0),
        "the role that decides the end; a parameter server never ends"
    );
}

#[test]
fn trialkeepers_fields_have_the_same_names_in_v1() {
    let task = "task: {pod: {spec: {containers: [{name: main, image: any}]}}}";
    let roles = format!("[{{name: ps, {task}}}, {{name: worker, {task}}}]");
    let template = format!(
        "template: {{kind: Framework, metadata: {{labels: {{team: vision}}}}, spec: {{taskRoles: {roles}}}}}"
    );
    let azure = "azureStorage: {accountName: account, azureShare: share, azureKeyFile: key}";
    let text = nni_example("frameworkcontroller_v1_noreuse.yml")
        .replace("storage: nfs", "storage: azureStorage")
        .replace(
            "nfs: {server: 10.20.30.40, path: /exports/nni}",
            &format!("{azure}\n  {template}"),
        )
        .replace("minSucceededTaskCount: 2", "minSucceedTaskCount: 2");
    let spec = load_kubernetes_spec(&text);
    let StorageSpec::Azure { key_file: Some(key_file), .. } = &spec.storage else { panic!() };
    assert!(key_file.ends_with("key"), "{key_file}");
    assert_eq!(spec.template.unwrap()["metadata"]["labels"]["team"], "vision");
    assert_eq!(spec.roles[1].policy, CompletionPolicy { min_failed: 1, min_succeeded: 2 });
}

#[test]
fn the_reporting_role_decides_the_end_of_the_trial() {
    let roles = json!([
        {"name": "ps", "dockerImage": "any"}, {"name": "worker", "dockerImage": "any", "taskNumber": 2},
    ]);
    let service =
        json!({"platform": "frameworkcontroller", "taskRoles": roles, "metricsFrom": "worker:1"});
    let spec = load_kubernetes_spec(&document(&service).to_string());
    let policies: Vec<i64> = spec.roles.iter().map(|role| role.policy.min_succeeded).collect();
    assert_eq!(
        policies,
        [-1, 2],
        "otherwise, the trial would wait for the end of a parameter server"
    );
    assert_eq!(spec.metrics_from, ("worker".to_owned(), 1));
}

#[test]
fn a_minimal_section_takes_the_defaults() {
    let spec = load_kubernetes_spec(
        &document(&json!({
            "platform": "frameworkcontroller",
            "taskRoles": [{"name": "worker", "dockerImage": "python:3.12"}],
        }))
        .to_string(),
    );
    assert_eq!(spec.storage, StorageSpec::Http);
    assert_eq!(spec.agent, AgentSource::Auto);
    assert_eq!(spec.run_as_user, DEFAULT_USER_ID);
    assert_eq!(spec.start_up_deadline, DEFAULT_START_UP_DEADLINE);
    assert_eq!(spec.roles[0].command, "python3 t.py {{x}}");
    assert_eq!(spec.roles[0].policy, CompletionPolicy { min_failed: 1, min_succeeded: 1 });
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_wrong_field_is_named() {
    let role = json!({"name": "worker", "dockerImage": "python"});
    let one = |field: &str, value: Value| {
        let mut role = role.clone();
        role[field] = value;
        json!({"taskRoles": [role]})
    };
    #[rustfmt::skip]
    let table = [
        (json!({"taskRoles": null}), "trainingService.taskRoles: is missing; for example [{name: worker"),
        (json!({"taskRoles": []}), "trainingService.taskRoles: is empty"),
        (json!({"taskRoles": [role, role]}), "trainingService.taskRoles[1].name: `worker` is the name of another role"),
        (one("name", json!("my-role")), "trainingService.taskRoles[0].name: `my-role` is not allowed by FrameworkController"),
        (one("dockerImage", json!("my image")), "trainingService.taskRoles[0].dockerImage: `my image` is not a valid image name"),
        (one("dockerImage", Value::Null), "trainingService.taskRoles[0].dockerImage: is missing"),
        (one("taskNumber", json!(0)), "trainingService.taskRoles[0].taskNumber: expected an integer of at least 1"),
        (one("cpuNumber", json!("many")), "trainingService.taskRoles[0].cpuNumber: expected cores such as 4"),
        (one("memorySize", json!("4x")), "trainingService.taskRoles[0].memorySize: expected an amount of memory"),
        (one("command", json!("t {{y}}")), "trainingService.taskRoles[0].command: {{y}} names no parameter"),
        (one("comand", json!("t")), "trainingService.taskRoles[0].comand: unknown field; did you mean `command`?"),
        (one("frameworkAttemptCompletionPolicy", json!({"minFailedTaskCount": -2})),
            "trainingService.taskRoles[0].frameworkAttemptCompletionPolicy.minFailedTaskCount: expected a number of tasks or -1"),
        (one("frameworkAttemptCompletionPolicy", json!({"minSucceedTaskCount": 1, "minSucceededTaskCount": 2})),
            "trainingService.taskRoles[0].frameworkAttemptCompletionPolicy.minSucceededTaskCount: differs"),
        (json!({"storage": "nfs"}), "trainingService.storage.server: is missing; a storage of type nfs needs it"),
        (json!({"storage": {"storageType": "nfs", "server": "s", "path": "x"}}), "trainingService.storage.path: `x` does not begin with a slash"),
        (json!({"storage": "s3"}), "trainingService.storage.storageType: `s3` is not known; allowed: http, image"),
        (json!({"storage": {"storageType": "azureStorage", "azureAccount": "a", "azureShare": "s", "keyVaultName": "v"}}),
            "trainingService.storage.keyVaultKey: is missing"),
        (json!({"storage": {"storageType": "nfs", "storage": "pvc", "server": "s", "path": "/x"}}),
            "trainingService.storage.storage: `pvc` differs from `storageType`, which is `nfs`"),
        (json!({"storage": {"storageType": "pvc", "path": "/x", "claimName": "My Claim"}}), "trainingService.storage.claimName: `My Claim` is not a valid name"),
        (json!({"namespace": "My Lab"}), "trainingService.namespace: `My Lab` is not a valid namespace"),
        (json!({"serviceAccountName": "Me"}), "trainingService.serviceAccountName: `Me` is not a valid name in Kubernetes"),
        (one("dockerImage", json!("Python:3")), "trainingService.taskRoles[0].dockerImage: `Python:3` is not a valid image name: `Python` has upper-case"),
        (json!({"agentImage": "a:b:c"}), "trainingService.agentImage: `a:b:c` is not a valid image name; a valid one is registry"),
        (json!({"barrierImage": "a b"}), "trainingService.barrierImage: `a b` is not a valid image name"),
        (json!({"imagePullSecrets": ["a", "B"]}), "trainingService.imagePullSecrets[1]: `B` is not a valid name in Kubernetes"),
        (json!({"imagePullSecrets": [1]}), "trainingService.imagePullSecrets: expected a list of names"),
        (json!({"agent": "copy"}), "trainingService.agentImage: is missing"),
        (json!({"agent": "volume", "agentImage": "a:1"}), "trainingService.agent: FrameworkController does not support image volumes"),
        (json!({"handOver": "never"}), "trainingService.handOver: `never` is not known"),
        (json!({"agent": "sidecar"}), "trainingService.agent: `sidecar` is not known"),
        (json!({"imagePullPolicy": "always"}), "trainingService.imagePullPolicy: `always` is not known; did you mean `Always`?"),
        (json!({"nodeSelector": {"gpu": true}}), "trainingService.nodeSelector: expected labels with values in quotes"),
        (json!({"nodeSelector": {"my gpu": "a"}}), "trainingService.nodeSelector: `my gpu` is not a valid label name"),
        (json!({"nodeSelector": {"gpu": "a b"}}), "trainingService.nodeSelector: `a b` is not a valid label value"),
        (json!({"tolerations": "all"}), "trainingService.tolerations: expected a list of objects"),
        (json!({"tolerations": ["all"]}), "trainingService.tolerations[0]: expected fields, found the string \"all\""),
        (json!({"tolerations": [{"operator": "Exists"}, {"keys": "a"}]}), "trainingService.tolerations[1].keys: unknown field; did you mean `key`?"),
        (json!({"tolerations": [{"key": 1}]}), "trainingService.tolerations[0].key: expected a string, found 1; put it in quotes"),
        (json!({"tolerations": [{"key": "a", "operator": "Exist"}]}), "trainingService.tolerations[0].operator: `Exist` is not known; did you mean `Exists`?"),
        (json!({"tolerations": [{"key": "a", "effect": "noSchedule"}]}), "trainingService.tolerations[0].effect: `noSchedule` is not known; did you mean `NoSchedule`?"),
        (json!({"tolerations": [{"effect": "NoSchedule"}]}), "trainingService.tolerations[0].key: is missing"),
        (json!({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}), "trainingService.tolerations[0].value: has no meaning"),
        (json!({"tolerations": [{"key": "a", "tolerationSeconds": 5}]}), "trainingService.tolerations[0].tolerationSeconds: needs the effect `NoExecute`"),
        (json!({"tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": "5"}]}),
            "trainingService.tolerations[0].tolerationSeconds: expected an integer, found the string \"5\""),
        (json!({"tolerations": [{"key": "a b"}]}), "trainingService.tolerations[0].key: `a b` is not a valid label name"),
        (json!({"startUpDeadline": "soon"}), "trainingService.startUpDeadline: expected a duration"),
        (json!({"metricsFrom": "wrker"}), "trainingService.metricsFrom: `wrker` is not a task role; did you mean `worker`?"),
        (json!({"metricsFrom": "worker:1"}), "trainingService.metricsFrom: expected `worker:0` to `worker:0`"),
        (json!({"configPath": "nowhere.yml"}), "trainingService.configPath: "),
        (json!({"kubeConfg": "x"}), "trainingService.kubeConfg: unknown field; did you mean `kubeconfig`?"),
    ];
    for (changes, message) in table {
        let mut service = json!({"platform": "frameworkcontroller", "taskRoles": [role]});
        for (name, value) in changes.as_object().unwrap() {
            service[name] = value.clone();
        }
        let problem = load_with_template(&document(&service).to_string(), "").unwrap_err();
        assert!(problem.starts_with(message), "{changes}: {problem}");
    }
}

#[test]
fn a_role_without_a_command_is_named() {
    let mut both = document(&json!({
        "platform": "frameworkcontroller",
        "taskRoles": [{"name": "a", "dockerImage": "i", "command": "x"}, {"name": "b", "dockerImage": "i"}],
    }));
    both["trialCommand"] = Value::Null;
    let problem = load_with_template(&both.to_string(), "").unwrap_err();
    assert_eq!(problem, "trainingService.taskRoles[1].command: is missing");
}

#[test]
fn a_template_completes_the_file() {
    let service = json!({"platform": "frameworkcontroller", "configPath": "framework.yml"});
    let mut document = document(&service);
    document["trialCommand"] = Value::Null;
    let template = "
kind: Framework
metadata: {name: mine}
spec:
  taskRoles:
  - name: trainer
    taskNumber: 3
    task: {pod: {spec: {containers: [{name: main, image: 'trainer:1', command: [sh, -c, 'run {{x}}']}]}}}
";
    let spec = load_with_template(&document.to_string(), template).unwrap();
    assert_eq!(spec.trial_command, "run {{x}}");
    let TrainingServiceSpec::Kubernetes(fc) = &spec.training_service else { panic!() };
    assert_eq!((fc.roles[0].name.as_str(), fc.roles[0].task_number), ("trainer", 3));
    assert_eq!(spec.training_service.section().pods_of_trial(), 3);
    assert!(
        spec.canonical["trainingService"]["template"].is_object(),
        "a resumed search does not need the file"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_template_is_checked_against_the_controllers_types() {
    let all = "
kind: Framework
metadata: {name: mine, creationTimestamp: null, managedFields: []}
spec:
  executionType: Start
  description: ''
  retryPolicy: {fancyRetryPolicy: false, maxRetryCount: 0}
  taskRoles:
  - name: a
    taskNumber: 1
    frameworkAttemptCompletionPolicy: {minFailedTaskCount: 1, minSucceededTaskCount: 1}
    task:
      podGracefulDeletionTimeoutSec: null
      retryPolicy: {fancyRetryPolicy: true, maxRetryCount: -2}
      pod:
        metadata: {creationTimestamp: null, labels: {limits: x}}
        spec:
          nodeSelector: {gpu: a100}
          overhead: {cpu: 1}
          volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 2Gi}}, {name: all, emptyDir: {}}]
          initContainers: [{name: i, image: busybox}]
          containers:
          - name: main
            image: 'any:1'
            env: [{name: A, value: '1'}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1}}}]
            ports: [{containerPort: 80}]
            livenessProbe: {httpGet: {port: http, path: /}}
            resources: {limits: {cpu: 4, memory: 8Gi, nvidia.com/gpu: 1}}
status: {state: Completed}
";
    let service = json!({"platform": "frameworkcontroller", "configPath": "framework.yml"});
    let document = document(&service).to_string();
    load_with_template(&document, all).unwrap();

    let role = "the template, spec.taskRoles[0]";
    let pod = format!("{role}.task.pod.spec");
    let main = format!("{pod}.containers[0]");
    #[rustfmt::skip]
    let changed = [
        ("taskNumber: 1", "taskNumber: two", format!("{role}.taskNumber: expected an integer of at least 0, found the string \"two\"")),
        ("maxRetryCount: 0", "maxRetryCount: '3'", "the template, spec.retryPolicy.maxRetryCount: expected an integer, found the string \"3\"".to_owned()),
        ("fancyRetryPolicy: true", "fancyRetryPolicy: 1", format!("{role}.task.retryPolicy.fancyRetryPolicy: expected true or false, found 1")),
        ("podGracefulDeletionTimeoutSec: null", "podGracefulDeletionTimeoutSec: 1m", format!("{role}.task.podGracefulDeletionTimeoutSec: expected an integer, found")),
        ("{minFailedTaskCount: 1,", "{minFailedTaskCount: one,", "trainingService.taskRoles[0].frameworkAttemptCompletionPolicy.minFailedTaskCount: expected a number of tasks".to_owned()),
        ("overhead: {cpu: 1}", "terminationGracePeriodSeconds: 60s", format!("{pod}.terminationGracePeriodSeconds: expected an integer, found the string \"60s\"")),
        ("overhead: {cpu: 1}", "hostNetwork: 'yes'", format!("{pod}.hostNetwork: expected true or false, found the string \"yes\"")),
        ("overhead: {cpu: 1}", "affinty: {}", format!("{pod}.affinty: unknown field; FrameworkController would drop it")),
        ("overhead: {cpu: 1}", "securityContext: {runAsUser: me}", format!("{pod}.securityContext.runAsUser: expected an integer, found")),
        ("gpu: a100", "gpu: true", format!("{pod}.nodeSelector.gpu: expected a string, found true; put it in quotes")),
        ("labels: {limits: x}", "labels: {limits: 1}", format!("{role}.task.pod.metadata.labels.limits: expected a string, found 1; put it in quotes")),
        ("value: '1'", "value: 1", format!("{main}.env[0].value: expected a string, found 1; put it in quotes")),
        ("memory: 8Gi", "memory: 8gb", format!("{main}.resources.limits.memory: expected an amount such as 4, 500m or 2Gi, found the string \"8gb\"")),
        ("sizeLimit: 2Gi", "sizeLimit: [2]", format!("{pod}.volumes[0].emptyDir.sizeLimit: expected an amount")),
        ("containerPort: 80", "containerPort: http", format!("{main}.ports[0].containerPort: expected an integer, found the string \"http\"")),
        ("            ports:", "            comand: [x]\n            ports:", format!("{main}.comand: unknown field")),
        ("image: 'any:1'", "image: Any", format!("{main}.image: `Any` is not a valid image name")),
        ("image: busybox", "image: 'busy box'", format!("{pod}.initContainers[0].image: `busy box` is not a valid image name")),
        ("executionType: Start", "dependsOn: x", "the template, spec.dependsOn: unknown field".to_owned()),
    ];
    for (from, to, message) in changed {
        assert!(all.contains(from), "{from}");
        let problem = load_with_template(&document, &all.replace(from, to)).unwrap_err();
        assert!(problem.starts_with(&message), "{to}: {problem}");
    }

    #[rustfmt::skip]
    let table = [
        ("kind: Pod", "trainingService.configPath: "),
        ("kind: Framework", "the template, spec.taskRoles: is missing"),
        ("kind: Framework\nspec: {taskRoles: [{name: A}]}", "the template, spec.taskRoles[0].name: needs a name"),
        ("kind: Framework\nspec: {taskRoles: [{name: a, task: {pod: {spec: {containers: [{image: x}, {image: z}]}}}}]}",
            "the template, spec.taskRoles[0].task.pod.spec.containers: has 2 containers and must have exactly one"),
        ("kind: [", "the template: line 1"),
        ("kind: Framework\nmetadata: x\nspec: {taskRoles: [{name: a}]}", "the template, metadata: expected fields, found the string \"x\""),
        ("kind: Framework\nspec: {taskRoles: [x]}", "the template, spec.taskRoles[0]: expected fields, found the string"),
        ("kind: Framework\nspec: {taskRoles: [{name: a, task: {pod: {metadata: x}}}]}", "the template, spec.taskRoles[0].task.pod.metadata: expected fields"),
        ("kind: Framework\nspec: {taskRoles: [{name: a, task: {pod: {spec: {volumes: {}, containers: [{image: x}]}}}}]}",
            "the template, spec.taskRoles[0].task.pod.spec.volumes: expected a list, found"),
        ("kind: Framework\nspec: {taskRoles: [{name: a, task: {pod: {spec: {containers: [{image: x, env: {A: b}}]}}}}]}",
            "the template, spec.taskRoles[0].task.pod.spec.containers[0].env: expected a list, found"),
        ("kind: Framework\nspec: {taskRoles: [{name: a, task: {pod: {spec: {containers: [x]}}}}]}",
            "the template, spec.taskRoles[0].task.pod.spec.containers[0]: expected fields, found"),
    ];
    for (template, message) in table {
        let problem = load_with_template(&document, template).unwrap_err();
        assert!(problem.starts_with(message), "{template}: {problem}");
    }
}

#[test]
fn every_field_is_on_a_page_about_kubernetes() {
    #[rustfmt::skip]
    let table: [(&[&str], &[&str]); 5] = [
        (&FIELDS,                &["frameworkcontroller.md", "kubernetes-jobs.md"]),
        (&role::FIELDS,          &["frameworkcontroller.md"]),
        (&storage::FIELDS,       &["frameworkcontroller.md"]),
        (&mounts::FIELDS,        &["kubernetes-jobs.md"]),
        (&kubeflow::ROLE_FIELDS, &["kubeflow.md"]),
    ];
    for (fields, pages) in table {
        expect_on_pages(fields, pages);
    }
}
