//! Tests of the list form of `trainingService`, and of NNI's first form of it.

use super::*;

fn service(parts: &Value) -> Result<ExperimentSpec, String> {
    load_text(&document_with(&json!({"trainingService": parts})).to_string())
}

fn parts_of(spec: &ExperimentSpec) -> Vec<(String, Option<usize>, bool)> {
    let TrainingServiceSpec::Hybrid(hybrid) = &spec.training_service else {
        panic!("{:?}", spec.training_service);
    };
    let parts = hybrid.parts.iter();
    parts
        .map(|part| (part.platform.clone(), part.limit, part.spec.section().needs_code()))
        .collect()
}

#[test]
fn several_training_services_are_read() {
    let remote = json!({"platform": "remote", "machineList": [{"host": "h"}]});
    let spec = service(&json!([
        {"platform": "local", "trial_concurrency": 2},
        remote,
        {"platform": "plugin", "command": ["./s"], "trialConcurrency": null, "nniManagerIp": "10.0.0.1"},
    ]))
    .unwrap();
    let own = |name: &str, limit| (name.to_owned(), limit, true);
    // Trials on this machine run the same copy of the code as the others.
    assert_eq!(parts_of(&spec), [own("local", Some(2)), own("remote", None), own("plugin", None)]);
    let section = spec.training_service.section();
    assert_eq!((section.is_local(), section.has_remote_trials()), (true, true));
    assert_eq!(section.advertise(), Some("10.0.0.1"));
    assert_eq!(stored_platform(&spec.canonical), "hybrid");
    assert_eq!(from_canonical(&spec.canonical).unwrap(), spec);

    let here = service(&json!([{"platform": "local"}, {"platform": "local"}])).unwrap();
    let alone = |needs_code| ("local".to_owned(), None, needs_code);
    assert_eq!(parts_of(&here), [alone(false), alone(false)]);
    assert!(!here.training_service.section().has_remote_trials());
    let copied = document_with(&json!({
        "trainingService": [{"platform": "local"}, {"platform": "local"}], "codeSnapshot": true,
    }));
    assert_eq!(parts_of(&load_text(&copied.to_string()).unwrap()), [alone(true), alone(true)]);
}

#[test]
fn a_problem_with_a_part_names_its_place_in_the_list() {
    let local = json!({"platform": "local"});
    let kubernetes = json!({
        "platform": "kubernetes", "dockerImage": "i",
        "storage": {"storageType": "nfs", "server": "s", "path": "/p"},
    });
    #[rustfmt::skip]
    let table = [
        (json!([]),                                         "trainingService: is an empty list"),
        (json!([local, 7]),                                 "trainingService[1]: expected fields"),
        (json!([local, {}]),                                "trainingService[1].platform: is missing"),
        (json!([local, {"platform": "aml"}]),               "trainingService[1].platform: `aml` is not supported"),
        (json!([local, {"platform": "local", "x": 1}]),     "trainingService[1].x: unknown field"),
        (json!([local, {"platform": "plugin"}]),            "trainingService[1].command: is missing"),
        (json!([{"platform": "remote", "machineList": [{"host": "h", "sshKeyFile": "none"}]}]),
                                                            "trainingService[0].machineList[0].sshKeyFile: "),
        (json!([{"platform": "local", "trialConcurrency": 0}]), "trainingService[0].trialConcurrency: expected a whole number of at least 1, found 0"),
        (json!([local, {"platform": "local", "trialCommand": "other"}]), "trainingService[1].trialCommand: differs from that of trainingService[0]"),
        (json!([local, {"platform": "local", "trialCodeDirectory": "/"}]), "trainingService[1].trialCodeDirectory: differs"),
        (json!([[local]]),                                  "trainingService[0]: expected fields"),
        (json!([kubernetes, local, kubernetes]),            "trainingService[2].platform: is on Kubernetes, as is trainingService[0]"),
        (json!({"platform": "hybrid"}),                     "trainingService.platform: `hybrid` is not a platform; list several platforms"),
    ];
    for (parts, problem) in table {
        let error = service(&parts).unwrap_err();
        assert!(error.contains(problem), "{parts}: {error}");
    }
    let elsewhere = document_with(&json!({
        "trainingService": [local, {"platform": "plugin", "command": ["s"]}], "codeSnapshot": false,
    }));
    let error = load_text(&elsewhere.to_string()).unwrap_err();
    assert!(error.starts_with("codeSnapshot: is false, but trials on other machines"), "{error}");
}

#[test]
fn a_legacy_hybrid_file_is_read() {
    let document = |changes: &Value| {
        let mut document = json!({
            "trialConcurrency": 1, "trainingServicePlatform": "hybrid",
            "hybridConfig": {"trainingServicePlatforms": ["local", "remote"]},
            "searchSpace": {"x": {"_type": "randint", "_value": [0, 9]}},
            "tuner": {"builtinTunerName": "Random"}, "trial": {"command": "true", "codeDir": "."},
            "localConfig": {"maxTrialNumPerGpu": 1},
            "machineList": [{"ip": "h", "username": "u"}],
        });
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        load_text(&document.to_string())
    };
    let spec = document(&json!({})).unwrap();
    let names: Vec<_> = parts_of(&spec).into_iter().map(|part| part.0).collect();
    assert_eq!(names, ["local", "remote"]);
    let platforms = |list: Value| json!({"hybridConfig": {"trainingServicePlatforms": list}});
    let pai = |trial: Value| {
        json!({
            "hybridConfig": {"trainingServicePlatforms": ["local", "pai"]}, "machineList": null,
            "paiConfig": {"host": "pai", "userName": "me", "token": "t"}, "trial": trial,
        })
    };
    let mut trial = json!({
        "command": "true", "codeDir": ".", "cpuNum": 2, "memoryMB": 512, "image": "torch",
        "nniManagerNFSMountPath": "/data", "containerNFSMountPath": "/mnt/data", "paiStorageConfigName": "disk",
    });
    let spec = document(&pai(trial.clone())).unwrap();
    let names: Vec<_> = parts_of(&spec).into_iter().map(|part| part.0).collect();
    assert_eq!(names, ["local", "pai"]);
    let part = &spec.canonical["trainingService"][1];
    assert_eq!(
        (&part["host"], &part["trialCpuNumber"], &part["dockerImage"]),
        (&json!("https://pai"), &json!(2), &json!("torch"))
    );
    trial.as_object_mut().unwrap().remove("cpuNum");
    let error = document(&pai(trial)).unwrap_err();
    assert!(error.contains("trial.cpuNum: is missing"), "{error}");
    let field = "hybridConfig.trainingServicePlatforms";
    #[rustfmt::skip]
    let table = [
        (json!({"hybridConfig": null}),       format!("{field}: expected a list of platforms")),
        (platforms(json!("local")),           format!("{field}: expected a list of platforms")),
        (platforms(json!([])),                format!("{field}: ")),
        (platforms(json!(["local", "aml"])),  format!("{field}[1]: `aml` is not supported")),
        (platforms(json!(["kubeflow"])),      format!("{field}[0]: `kubeflow` is not supported in this list")),
        (platforms(json!(["local"])),         format!("machineList: belongs to a platform that `{field}` does not name")),
        (json!({"localConfig": {"gpus": 1}}), "localConfig.gpus: unknown field".to_owned()),
        (json!({"machineList": [{"ip": "h", "username": "u", "sshKeyPath": "none"}]}), "machineList[0].sshKeyPath: ".to_owned()),
    ];
    for (changes, problem) in table {
        let error = document(&changes).unwrap_err();
        assert!(error.contains(&problem), "{changes}: {error}");
    }
}
