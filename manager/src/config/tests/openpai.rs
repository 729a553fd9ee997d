//! Tests of files for `OpenPAI`: NNI's fields, and the errors that name them.

use super::*;

fn document(changes: &Value) -> Value {
    let mut document = json!({
        "searchSpace": {"x": {"_type": "randint", "_value": [0, 9]}},
        "trialCommand": "true", "trialConcurrency": 1, "tuner": {"name": "Random"}, "trialGpuNumber": 2,
        "trainingService": {
            "platform": "openpai", "host": "pai.example.org", "username": "me", "token": "abc",
            "trialCpuNumber": 4, "trialMemorySize": "8gb", "dockerImage": "python:3.12", "virtualCluster": null,
            "storageConfigName": "nfs", "localStorageMountPoint": "/mnt/here",
            "containerStorageMountPoint": "/mnt/nfs", "reuseMode": true,
        },
    });
    for (name, value) in changes.as_object().unwrap() {
        document["trainingService"][name] = value.clone();
    }
    document
}

#[test]
fn nnis_fields_become_the_settings_of_the_plugin() {
    let (_folder, file) = write_experiment_file(&document(&json!({})).to_string());
    let spec = load(&file).unwrap();
    let TrainingServiceSpec::Plugin(plugin) = &spec.training_service else { panic!("{spec:?}") };
    assert_eq!(plugin.command[1..], ["-m", "trialkeeper.openpai"]);
    assert_eq!(plugin.api_server.as_deref(), Some("https://pai.example.org"));
    let settings = json!({
        "host": "https://pai.example.org", "username": "me", "token": "abc", "dockerImage": "python:3.12",
        "trialCpuNumber": 4, "trialMemorySize": 8192, "storageConfigName": "nfs",
        "localStorageMountPoint": "/mnt/here", "containerStorageMountPoint": "/mnt/nfs",
    });
    assert_eq!(plugin.settings, settings);
    assert_eq!(spec.trial_gpu_number, Some(2));
    assert_eq!(spec.canonical["trainingService"]["platform"], "openpai");
    assert_eq!(from_canonical(&spec.canonical).unwrap(), spec);
}

#[test]
fn a_users_own_job_needs_no_sizes_and_contains_the_command() {
    let job = json!({
        "protocolVersion": 2, "type": "job", "name": "theirs",
        "taskRoles": {"worker": {"commands": ["cd code", "python3 t.py"]}, "ps": {"instances": 3}},
    });
    let mut document = document(&json!({
        "openpaiConfig": job, "trialCpuNumber": null, "trialMemorySize": null, "dockerImage": null,
    }));
    document["trialCommand"] = Value::Null;
    let (_folder, file) = write_experiment_file(&document.to_string());
    let spec = load(&file).unwrap();
    assert_eq!(spec.trial_command, "cd code\npython3 t.py");
    assert_eq!(spec.canonical["trainingService"]["openpaiConfig"], job);
    assert_eq!(from_canonical(&spec.canonical).unwrap(), spec);
    document["trialCommand"] = json!("mine");
    assert_eq!(load_text(&document.to_string()).unwrap().trial_command, "mine");
}

#[test]
fn problems_are_reported_with_nnis_field() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yml");
    std::fs::write(&file, "protocolVersion: 1\n").unwrap();
    let role =
        |role: Value| json!({"openpaiConfig": {"protocolVersion": 2, "taskRoles": {"w": role}}});
    #[rustfmt::skip]
    let table = [
        (json!({"host": null}),                     "trainingService.host: is missing; the address of OpenPAI"),
        (json!({"host": "ftp://pai"}),              "trainingService.host: `ftp://pai` is not an address such as https"),
        (json!({"host": "https://"}),               "trainingService.host: `https://` is not an address"),
        (json!({"username": null}),                 "trainingService.username: is missing"),
        (json!({"userName": "me"}),                 "trainingService.username: is given twice"),
        (json!({"token": null}),                    "trainingService.token: is missing; set it, or better a `tokenFile`"),
        (json!({"tokenFile": "t"}),                 "trainingService.tokenFile: is given besides `token`"),
        (json!({"trialCpuNumber": null}),           "trainingService.trialCpuNumber: is missing; for example 4"),
        (json!({"trialCpuNumber": 0}),              "trainingService.trialCpuNumber: expected an integer of at least 1"),
        (json!({"trialMemorySize": null}),          "trainingService.trialMemorySize: is missing; for example 8gb"),
        (json!({"trialMemorySize": "8x"}),          "trainingService.trialMemorySize: expected an amount of memory"),
        (json!({"storageConfigName": null}),        "trainingService.storageConfigName: is missing"),
        (json!({"localStorageMountPoint": null}),   "trainingService.localStorageMountPoint: is missing"),
        (json!({"containerStorageMountPoint": "m"}), "trainingService.containerStorageMountPoint: expected an absolute path"),
        (json!({"storage": "nfs"}),                 "trainingService.storage: unknown field"),
        (json!({"openpaiConfigFile": "/none/job.yml"}), "trainingService.openpaiConfigFile: /none/job.yml: cannot be read"),
        (json!({"openpaiConfigFile": file}),        "trainingService.openpaiConfigFile: needs `protocolVersion: 2`"),
        (json!({"openpaiConfigFile": "f", "openpaiConfig": {}}), "trainingService.openpaiConfigFile: is given besides"),
        (json!({"openpaiConfig": []}),              "trainingService.openpaiConfig: expected a job of OpenPAI's protocol 2, found a list"),
        (json!({"openpaiConfig": {"protocolVersion": 2}}), "trainingService.openpaiConfig: needs `taskRoles`"),
        (role(json!("python3")),                    "trainingService.openpaiConfig: taskRoles.w: expected fields, found the string"),
        (role(json!({"instances": 2})),             "trainingService.openpaiConfig: taskRoles.w.instances: must be 1 in the first role"),
    ];
    for (changes, message) in table {
        let problem = load_text(&document(&changes).to_string()).unwrap_err();
        assert!(problem.starts_with(message), "{changes}: {problem}");
    }
}
