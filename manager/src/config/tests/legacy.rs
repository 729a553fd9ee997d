//! Tests of files in NNI's first form: their conversion and their refusal.

use super::*;

#[test]
fn a_legacy_document_is_converted_as_in_nni_and_keeps_all_fields() {
    for case in nni_results("legacy") {
        let ours = v1::convert(case["v1"].clone()).unwrap().v2;
        let mut theirs = case["v2"].clone();
        let name = theirs["experimentName"].clone();
        if name == "fc" {
            theirs["trainingService"]["namespace"] = json!("lost by NNI");
        }
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn a_legacy_file_may_have_the_fields_that_nni_lacks() {
    let (directory, file) = write_experiment_file(
        "trialConcurrency: 1
maxTrialNum: 4
trainingServicePlatform: local
searchSpacePath: space.json
tuner: {builtinTunerName: TPE}
trial: {command: 'true', codeDir: ., gpuNum: 0}
objectives: [{metric: loss, direction: minimize}, {metric: score, direction: maximize}]
constraints: [{metric: memory, max: 2}]
codeSnapshot: true
recordPackages: true
trialRepeats: 2
",
    );
    let space = r#"{"x": {"_type": "choice", "_value": [1, 2]}}"#;
    std::fs::write(directory.path().join("space.json"), space).unwrap();
    let fields = load(&file).unwrap().canonical;
    for name in ["objectives", "constraints", "codeSnapshot", "recordPackages", "trialRepeats"] {
        assert!(!fields[name].is_null(), "{name}: {fields}");
    }
}

#[test]
fn a_legacy_file_is_read() {
    let (directory, file) = write_experiment_file(
        "authorName: me
trialConcurrency: 1
maxExecDuration: 2m
maxTrialNum: 3
trainingServicePlatform: local
searchSpacePath: space.json
useAnnotation: false
tuner: {builtinTunerName: GridSearch}
trial: {command: 'python3 t.py {{x}}', codeDir: ., gpuNum: 0}
pythonInterpreter: python3
targetMetric: 0.9
",
    );
    let space = r#"{"x": {"_type": "choice", "_value": [1, 2]}}"#;
    std::fs::write(directory.path().join("space.json"), space).unwrap();
    let spec = load(&file).unwrap();
    assert_eq!(spec.tuner.name(), "GridSearch");
    let ours = (spec.python_interpreter.as_deref(), spec.target_metric);
    assert_eq!(ours, (Some("python3"), Some(0.9)));
    assert_eq!((spec.max_trial_number, spec.trial_gpu_number), (Some(3), Some(0)));
    assert_eq!(spec.max_experiment_duration, Some(Duration::from_mins(2)));
    assert_eq!(from_canonical(&spec.canonical).unwrap(), spec);
}

#[test]
fn errors_of_a_legacy_file_have_its_terms() {
    let good = json!({
        "trialConcurrency": 1, "trainingServicePlatform": "local", "maxTrialNum": 2,
        "searchSpace": {"x": {"_type": "randint", "_value": [0, 9]}},
        "tuner": {"builtinTunerName": "Random"}, "trial": {"command": "true", "codeDir": "."}
    });
    #[rustfmt::skip]
    let table = [
        (json!({"maxTrialNum": 0}),                                    "maxTrialNum: expected an integer of at least 1, found 0"),
        (json!({"maxTrialNumber": 2}),                                 "maxTrialNumber: unknown field; did you mean `maxTrialNum`?"),
        (json!({"trial": {"command": "true", "codeDir": "nowhere"}}),  "trial.codeDir: "),
        (json!({"trial": {"comand": "true"}}),                         "trial.comand: unknown field; did you mean `command`?"),
        (json!({"tuner": {"builtinTunerName": "SNAC"}}),               "tuner.builtinTunerName: `SNAC` is not a tuner; did you mean `SMAC`?"),
        (json!({"tuner": {"name": "TPE"}}),                            "tuner.name: unknown field"),
        (json!({"tuner": {"type": "TPE", "classArgs": {"optimize_mode": "maximize"}}}), "tuner.type: unknown field"),
        (json!({"tuner": {"codeDir": "."}}),                           "tuner: needs `builtinTunerName`, or `codeDir`, `classFileName` and `className`"),
        (json!({"trainingServicePlatform": "aml"}),                    "trainingServicePlatform: `aml` is not supported; the platforms are local"),
        (json!({"trainingServicePlatform": "pai"}),                    "paiConfig.host: is missing"),
        (json!({"trainingServicePlatform": "pai", "paiConfig": {"host": "h", "userName": "u", "token": "t"}}), "trial.cpuNum: is missing; for example 4"),
        (json!({"trainingServicePlatform": "pai", "paiConfig": {"host": "h", "userName": "u"}}), "paiConfig.token: is missing"),
        (json!({"trainingServicePlatform": "pai", "paiConfig": {"host": "h", "userName": "u", "passWrd": "p"}}), "2 problems\n  line 1, column 205: paiConfig.token: is missing"),
        (json!({"trial": {"command": "true", "img": "i"}}),            "trial.img: unknown field"),
        (json!({"trial": {"command": "true", "gpuNum": 1}}),           "localConfig.useActiveGpu: is missing, because `trial.gpuNum` is above 0; write true if trials"),
        (json!({"trial": {"command": "true", "gpuNum": 1}, "localConfig": {"gpuIndices": "0"}}), "localConfig.useActiveGpu: is missing, because `trial.gpuNum` is above 0; write true if trials"),
        (json!({"localConfig": {"maxTrialNumPerGpu": 2}}),             "localConfig.maxTrialNumPerGpu: 2 has no meaning unless `trial.gpuNum` is above 0; remove it"),
        (json!({"trial": {"codeDir": "."}}),                           "trial.command: is missing; for example: python3 trial.py"),
        (json!({"trial": null}),                                       "trial.command: is missing"),
        (json!({"searchSpace": null}),                                 "searchSpace: is missing; give it here or in a `searchSpacePath`"),
        (json!({"searchSpacePath": "s.json"}),                         "searchSpacePath: "),
        (json!({"tuner": null}),                                       "tuner: is missing; for example {builtinTunerName: Random}"),
        (json!({"tuner": {"classFileName": "m.py", "className": "C", "codeDir": "none"}}), "tuner.codeDir: "),
        (json!({"trainingServicePlatform": "plugin"}),                 "trainingServicePlatform: `plugin` needs version 2 of the file, in which `trainingService` contains the platform: {platform: plugin}"),
        (json!({"trialCommand": "true", "trial": {"command": "true"}}), "trialCommand: unknown field"),
        (json!({"trainingServicePlatform": "frameworkcontroller"}),    "trial.taskRoles: is missing; for example [{name: worker, image: python:3.12-slim}]"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "trial": {"taskRoles": {"name": "w"}}}), "trial.taskRoles: expected a list, found an object"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "trial": {"taskRoles": [{"name": "w", "image": "i"}]}}), "trial.taskRoles[0].command: is missing"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "trial": {"taskRoles": [{"name": "w", "command": "c"}]}}), "trial.taskRoles[0].image: is missing"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "frameworkcontrollerConfig": {"storage": "nfs"}}), "frameworkcontrollerConfig.nfs.server: is missing"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "frameworkcontrollerConfig": {"storage": "ceph"}}), "frameworkcontrollerConfig.storage: `ceph` is not known"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "frameworkcontrollerConfig": {"nfs": {"server": "s"}}}), "frameworkcontrollerConfig.nfs.path: is missing"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "trial": {"codeDir": ".", "taskRoles": [{"name": "w", "command": "c", "image": "i"}]}, "frameworkcontrollerConfig": {"mounts": [{"name": "a"}]}}), "frameworkcontrollerConfig.mounts[0].path: is missing"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "trial": {"codeDir": ".", "taskRoles": [{"name": "w", "command": "c", "image": "i"}]}, "frameworkcontrollerConfig": {"cache": {"hostPath": "/c"}}}), "frameworkcontrollerConfig.cache.hostPath: gives trials access to a folder of the node"),
        (json!({"trainingServicePlatform": "frameworkcontroller", "trial": {"codeDir": ".", "taskRoles": [{"name": "w", "command": "c", "image": "i"}]}, "frameworkcontrollerConfig": {"allowHostPath": true, "cache": {"hostPath": "c"}}}), "frameworkcontrollerConfig.cache.hostPath: `c` is not an absolute path"),
        (json!({"multiPhase": true}),                                  "multiPhase: multi-phase trials are no longer supported"),
        (json!({"localConfig": {"gpuIndices": "0,x"}}),                "localConfig.gpuIndices: expected indices"),
    ];
    for (changes, message) in table {
        let mut document = good.clone();
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        let problem = load_text(&document.to_string()).unwrap_err();
        // Without further problems, the location is not part of the text.
        assert!(problem.starts_with(message), "{changes}: {problem}");
    }
}

#[test]
fn a_file_of_version_2_with_a_platform_of_version_1_is_explained() {
    let text = "{trainingServicePlatform: local, trialCommand: 'true', maxTrialNumber: 2}";
    let problem = load_text(text).unwrap_err();
    assert_eq!(
        problem,
        "trainingServicePlatform: is a field of version 1 of the format, but `trialCommand` is one of version 2, in \
         which `trainingService` contains the platform: {platform: local}"
    );
}

#[test]
fn an_unknown_field_of_a_legacy_file_does_not_hide_other_problems() {
    let text = "
trainingServicePlatform: local
trialConcurrency: x
colour: red
searchSpace: {x: {_type: randint, _value: [0, 9]}}
tuner: {builtinTunerNam: Random}
trial: {command: 'true', comand: x}
";
    let problem = load_text(text).unwrap_err();
    let lines: Vec<&str> = problem.lines().collect();
    #[rustfmt::skip]
    let expected = [
        "4 problems",
        "  line 3, column 1: trialConcurrency: expected an integer",
        "  line 4, column 1: colour: unknown field",
        "  line 6, column 9: tuner.builtinTunerNam: unknown field",
        "  line 7, column 26: trial.comand: unknown field",
    ];
    assert_eq!(lines.len(), expected.len(), "{problem}");
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{start}: {problem}");
    }
}

#[test]
fn fields_of_a_legacy_file_that_nni_ignores_have_no_effect() {
    let local = json!({
        "trialConcurrency": 1, "trainingServicePlatform": "local",
        "searchSpace": {"x": {"_type": "randint", "_value": [0, 9]}},
        "tuner": {"builtinTunerName": "Random"}, "trial": {"command": "true", "codeDir": "."}
    });
    let remote = |machine: Value| {
        let mut machine = machine;
        machine["ip"] = json!("h");
        machine["username"] = json!("u");
        json!({"trainingServicePlatform": "remote", "machineList": [machine]})
    };
    let pai = |config: Value| {
        let trial = json!({"command": "true", "codeDir": ".", "gpuNum": 0, "image": "i", "paiStorageConfigName": "s",
            "nniManagerNFSMountPath": ".", "containerNFSMountPath": "/m", "virtualCluster": "v", "shmMB": 64});
        let mut config = config;
        for (name, value) in [("userName", "u"), ("token", "t"), ("host", "h")] {
            config[name] = json!(value);
        }
        json!({"trainingServicePlatform": "pai", "paiConfig": config, "trial": trial})
    };
    let cluster = json!({
        "trainingServicePlatform": "kubeflow",
        "kubeflowConfig": {"operator": "tf-operator", "apiVersion": "v1", "kubernetesServer": "s"},
        "trial": {"codeDir": ".", "worker": {"replicas": 1, "command": "true", "gpuNum": 0, "cpuNum": 1, "memoryMB": 64, "image": "i"}},
    });
    #[rustfmt::skip]
    let table = [
        (json!({"tuner": {"builtinTunerName": "TPE", "gpuNum": 0, "checkpointDir": "/c"}}), "tuner.gpuNum tuner.checkpointDir"),
        (json!({"assessor": {"builtinAssessorName": "Medianstop", "gpuNum": 0}}),           "assessor.gpuNum"),
        (json!({"tuner": {"builtinTunerName": "TPE", "codeDir": "c", "classFileName": "m.py", "className": "C"}}), "tuner.codeDir tuner.classFileName tuner.className"),
        (json!({"trainingService": {"platform": "local"}}),                                 "trainingService"),
        (cluster,                                                                           "kubeflowConfig.kubernetesServer"),
        (json!({"assessor": {}, "advisor": {}}),                                            ""),
        (json!({"trial": {"command": "true", "codeDir": ".", "cpuNum": 1, "memoryMB": 8196, "image": "i", "dataDir": "d"}}), "trial.cpuNum trial.memoryMB trial.image trial.dataDir"),
        (json!({"machineList": [{"ip": "h"}], "paiConfig": {"host": "h"}, "amlConfig": {}}), "machineList paiConfig amlConfig"),
        (json!({"kubeflowConfig": {"operator": "o"}, "frameworkcontrollerConfig": {}}),      "kubeflowConfig frameworkcontrollerConfig"),
        (remote(json!({"preCommand": "source env"})),                                        "machineList[0].preCommand"),
        (pai(json!({"passWord": "p", "useActiveGpu": true, "cpuNum": 4, "memoryMB": 8196})), "paiConfig.passWord paiConfig.useActiveGpu trial.shmMB"),
    ];
    for (changes, ignored) in table {
        let mut document = local.clone();
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        let spec =
            load_text(&document.to_string()).unwrap_or_else(|error| panic!("{changes}: {error}"));
        let mut found = spec.ignored.clone();
        found.sort();
        let mut expected: Vec<_> = ignored.split_whitespace().collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "{changes}");
        let warning = spec.ignored_warning().unwrap_or_default();
        assert!(expected.iter().all(|field| warning.contains(&format!("`{field}`"))), "{warning}");
    }
}

#[test]
fn a_legacy_file_for_openpai_is_read() {
    let document = json!({
        "trialConcurrency": 1, "maxTrialNum": 2, "trainingServicePlatform": "pai", "nniManagerIp": "10.0.0.1",
        "searchSpace": {"x": {"_type": "randint", "_value": [0, 9]}}, "tuner": {"builtinTunerName": "TPE"},
        "paiConfig": {"userName": "me", "token": "t", "host": "http://pai", "reuse": true},
        "trial": {
            "command": "python3 t.py", "codeDir": ".", "gpuNum": 1, "cpuNum": 2, "memoryMB": 8196, "image": "i",
            "virtualCluster": "vc", "paiStorageConfigName": "nfs", "nniManagerNFSMountPath": "/mnt/here",
            "containerNFSMountPath": "/mnt/nfs",
        },
    });
    let spec = load_text(&document.to_string()).unwrap();
    let TrainingServiceSpec::Plugin(plugin) = &spec.training_service else { panic!("{spec:?}") };
    let expected = json!({
        "host": "http://pai", "username": "me", "token": "t", "dockerImage": "i", "trialCpuNumber": 2,
        "trialMemorySize": 8196, "virtualCluster": "vc", "storageConfigName": "nfs",
        "localStorageMountPoint": "/mnt/here", "containerStorageMountPoint": "/mnt/nfs",
    });
    assert_eq!((&plugin.settings, plugin.advertise.as_deref()), (&expected, Some("10.0.0.1")));
    assert_eq!((spec.trial_gpu_number, spec.trial_command.as_str()), (Some(1), "python3 t.py"));
}

#[test]
fn a_legacy_file_for_a_platform_that_is_not_built_in_names_the_platform() {
    let good = json!({
        "trialConcurrency": 1, "maxTrialNum": 2, "searchSpacePath": "search_space.json",
        "tuner": {"builtinTunerName": "TPE"},
    });
    #[rustfmt::skip]
    let table = [
        ("aml",      json!({"amlConfig": {"subscriptionId": "i", "computeTarget": "c"}, "trial": {"command": "true", "image": "i"}})),
        ("dlts",     json!({"dltsConfig": {"dashboard": "http://d"}})),
        ("dlc",      json!({"dlcConfig": {"type": "Worker"}})),
        ("paiYarn",  json!({"paiYarnConfig": {"host": "h"}})),
        ("adl",      json!({"trial": {"command": "true", "image": "i", "namespace": "n", "adaptive": true, "checkpoint": {"storageSize": "1Gi"}}})),
    ];
    for (platform, changes) in table {
        let mut document = good.clone();
        document["trainingServicePlatform"] = json!(platform);
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        let problem = load_text(&document.to_string()).unwrap_err();
        let has = "is not supported; the platforms are local, remote, plugin, openpai, kubernetes, kubeflow, trainer and frameworkcontroller, and a plugin connects any other system";
        assert_eq!(problem, format!("trainingServicePlatform: `{platform}` {has}"));
    }
}

#[test]
fn shared_storage_of_a_legacy_file_is_refused_with_the_alternatives() {
    let document = json!({
        "trialConcurrency": 1, "trainingServicePlatform": "local",
        "searchSpace": {"x": {"_type": "randint", "_value": [0, 9]}},
        "tuner": {"builtinTunerName": "Random"}, "trial": {"command": "true", "codeDir": "."},
        "sharedStorage": {"storageType": "NFS", "localMountPoint": "/mnt", "nfsServer": "s"},
    });
    let problem = load_text(&document.to_string()).unwrap_err();
    let expected = "sharedStorage: is not supported; mount the disk on every machine, or name a disk for pods in `trainingService.storage`";
    assert_eq!(problem, expected);
}
