//! Tests of missing files and folders: the error names the field in the form that the user wrote.

use super::*;

#[test]
fn a_secret_is_accepted_in_a_private_file_and_kept_in_its_own() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("experiment.yml");
    let write = |service: &Value, mode: u32| {
        std::fs::write(&file, document_with(&json!({"trainingService": service})).to_string())
            .unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        load(&file).map_err(|error| error.to_string())
    };
    let machine = json!({"host": "h", "password": "pass word", "sshPassphrase": "pp"});
    let remote =
        |machine: &Value| json!({"platform": "remote", "machineList": [{"host": "g"}, machine]});
    let mut spec = write(&remote(&machine), 0o600).unwrap();
    assert_eq!(spec.private_file, Some(file.canonicalize().unwrap()));
    let taken = spec.take_secrets(Path::new("/e/passwords"));
    let taken: Vec<_> =
        taken.iter().map(|file| (file.path.to_str().unwrap(), file.text.reveal())).collect();
    let files = ["/e/passwords/1-passwordFile", "/e/passwords/1-sshPassphraseFile"];
    assert_eq!(taken, [(files[0], "pass word"), (files[1], "pp")]);
    let recorded = &spec.canonical["trainingService"]["machineList"][1];
    assert_eq!(
        *recorded,
        json!({
            "host": "h", "passwordFile": files[0], "sshPassphraseFile": files[1], "knownHosts": recorded["knownHosts"],
            "useActiveGpu": false, "maxTrialNumberPerGpu": 1, "name": "h",
        })
    );
    assert!(!format!("{spec:?}").contains("pass word"), "no message shows the secret");
    let parts = json!([{"platform": "local"}, remote(&machine)]);
    let mut spec = write(&parts, 0o600).unwrap();
    assert_eq!(spec.take_secrets(Path::new("/e"))[0].path, Path::new("/e/1/1-passwordFile"));
    assert_eq!(write(&remote(&json!({"host": "h"})), 0o644).unwrap().private_file, None);

    let field = "trainingService.machineList[1]";
    let chmod = format!(
        "{field}.password: other users can read this secret; run `chmod 600 {}`",
        file.display()
    );
    for mode in [0o640, 0o604, 0o644] {
        let refused = write(&remote(&machine), mode).unwrap_err();
        assert!(refused.contains(&chmod), "{refused}");
    }
    let both = remote(&json!({"host": "h", "password": "pass word", "passwordFile": "x"}));
    let refused = write(&both, 0o600).unwrap_err();
    assert!(
        refused.contains(&format!("{field}.passwordFile: is given besides `password`")),
        "{refused}"
    );
    let posted = from_client(document_with(&json!({
        "trainingService": remote(&json!({"host": "h", "password": "pass word"})), "trialCodeDirectory": "/",
    })));
    assert_eq!(posted.unwrap().take_secrets(Path::new("/e")).len(), 1);
}

#[test]
fn a_missing_file_is_reported_with_its_field() {
    let own = |section: &str| json!({section: {"className": "m.C", "codeDirectory": "none"}});
    let remote =
        json!({"platform": "remote", "machineList": [{"host": "h", "sshKeyFile": "none"}]});
    let secret = |field: &str| {
        let machine = json!({"host": "h", field: "none"});
        json!({"trainingService": {"platform": "remote", "machineList": [machine]}})
    };
    let cluster = |fields: Value| {
        let mut service = json!({"platform": "frameworkcontroller"});
        service.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"trainingService": service})
    };
    #[rustfmt::skip]
    let v2 = [
        (json!({"searchSpace": null, "searchSpaceFile": "none"}),     "searchSpaceFile: "),
        (json!({"trialCodeDirectory": "none"}),                       "trialCodeDirectory: "),
        (json!({"pythonInterpreter": "none/python"}),                 "pythonInterpreter: "),
        (own("tuner"),                                                "tuner.codeDirectory: "),
        (own("assessor"),                                             "assessor.codeDirectory: "),
        (json!({"tuner": null, "advisor": {"className": "m.C", "codeDirectory": "none"}}), "advisor.codeDirectory: "),
        (json!({"trainingService": remote}), "trainingService.machineList[0].sshKeyFile: "),
        (secret("passwordFile"), "trainingService.machineList[0].passwordFile: "),
        (secret("sshPassphraseFile"), "trainingService.machineList[0].sshPassphraseFile: "),
        (cluster(json!({"configPath": "none.yml"})),                  "trainingService.configPath: "),
    ];
    for (changes, field) in v2 {
        let problem = load_text(&document_with(&changes).to_string()).unwrap_err();
        assert!(problem.contains(field) && problem.contains("none"), "{field} {problem}");
    }

    let v1 = json!({
        "trialConcurrency": 1, "trainingServicePlatform": "local",
        "searchSpace": {"x": {"_type": "randint", "_value": [0, 9]}},
        "tuner": {"builtinTunerName": "Random"}, "trial": {"command": "true", "codeDir": "."},
    });
    let class = json!({"classFileName": "m.py", "className": "C", "codeDir": "none"});
    #[rustfmt::skip]
    let table = [
        (json!({"searchSpace": null, "searchSpacePath": "none"}),     "searchSpacePath: "),
        (json!({"trial": {"command": "true", "codeDir": "none"}}),    "trial.codeDir: "),
        (json!({"pythonInterpreter": "none/python"}),                 "pythonInterpreter: "),
        (json!({"tuner": class}),                                     "tuner.codeDir: "),
        (json!({"assessor": class}),                                  "assessor.codeDir: "),
        (json!({"tuner": null, "advisor": class}),                    "advisor.codeDir: "),
        (json!({"trainingServicePlatform": "remote", "machineList": [{"ip": "h", "username": "u", "sshKeyPath": "none"}]}), "machineList[0].sshKeyPath: "),
        (json!({"trainingServicePlatform": "frameworkcontroller", "trial": {"codeDir": ".", "taskRoles": [{"name": "w", "command": "c", "image": "i"}]}, "frameworkcontrollerConfig": {"storage": "nfs", "nfs": {"server": "s", "path": "/p"}, "configPath": "none.yml"}}), "frameworkcontrollerConfig.configPath: "),
    ];
    for (changes, field) in table {
        let mut document = v1.clone();
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        let problem = load_text(&document.to_string()).unwrap_err();
        assert!(problem.contains(field) && problem.contains("none"), "{field} {problem}");
    }
}

#[test]
fn the_search_space_that_a_client_sends_with_the_path_of_its_file_counts() {
    let file = document_with(
        &json!({"searchSpaceFile": "/nowhere/space.json", "trialCodeDirectory": "/"}),
    );
    let spec = from_client(file.clone()).unwrap();
    assert_eq!(spec.search_space.as_json(), &file["searchSpace"]);
    assert_eq!(spec.canonical.get("searchSpaceFile"), None);
}

#[test]
fn an_advisor_in_the_section_of_the_tuner_is_an_advisor() {
    let folder = tempfile::tempdir().unwrap();
    let text = "class Mine(MsgDispatcherBase):\n    pass\n";
    std::fs::write(folder.path().join("mine.py"), text).unwrap();
    let class = json!({"className": "mine.Mine", "codeDirectory": folder.path()});
    let spec =
        from_client(document_with(&json!({"tuner": class, "trialCodeDirectory": "/"}))).unwrap();
    assert!(matches!(spec.tuner, TunerChoice::Nni { advisor: true, .. }), "{:?}", spec.tuner);
    assert_eq!(spec.canonical["advisor"]["className"], "mine.Mine");
    assert_eq!(from_canonical(&spec.canonical).unwrap(), spec);
}

#[test]
fn a_number_that_nnis_client_reads_as_a_text_is_a_number() {
    let file = document_with(&json!({
        "searchSpace": {"lr": {"_type": "loguniform", "_value": ["1e-4", "1e-1"]}},
        "tuner": {"name": "GP", "classArgs": {"alpha": "1e-6"}}, "trialCodeDirectory": "/",
    }));
    let spec = from_client(file).unwrap();
    let expected = json!({"lr": {"_type": "loguniform", "_value": [0.0001, 0.1]}});
    assert_eq!(spec.canonical["searchSpace"], expected);
}

#[test]
fn a_stored_experiment_is_read_after_its_files_have_gone() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let remote =
        json!({"platform": "remote", "machineList": [{"host": "h", "sshKeyFile": path("file")}]});
    let class = json!({"className": "m.C", "codeDirectory": path("folder")});
    let local = json!({"platform": "local", "trialCodeDirectory": path("folder")});
    #[rustfmt::skip]
    let table = [
        (json!({"trialCodeDirectory": path("folder")}), "trialCodeDirectory: "),
        (json!({"trainingService": local}),             "trainingService.trialCodeDirectory: "),
        (json!({"tuner": class}),                       "tuner.codeDirectory: "),
        (json!({"assessor": class}),                    "assessor.codeDirectory: "),
        (json!({"pythonInterpreter": path("file")}),    "pythonInterpreter: "),
        (json!({"trainingService": remote}),            "trainingService.machineList[0].sshKeyFile: "),
        (json!({"searchSpace": null, "searchSpaceFile": path("space")}), ""),
    ];
    for (changes, field) in table {
        std::fs::create_dir_all(directory.path().join("folder")).unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        std::fs::write(
            directory.path().join("space"),
            r#"{"lr": {"_type": "uniform", "_value": [0, 1]}}"#,
        )
        .unwrap();
        let mut document = document_with(&json!({"trialCodeDirectory": directory.path()}));
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        let spec = load_text(&document.to_string()).unwrap();
        check_stored_files(&spec.canonical).unwrap();
        std::fs::remove_dir(directory.path().join("folder")).unwrap();
        std::fs::remove_file(directory.path().join("file")).unwrap();
        std::fs::remove_file(directory.path().join("space")).unwrap();
        assert_eq!(from_canonical(&spec.canonical).unwrap(), spec, "{field}");
        // The trials cannot start without these files, but the stored form contains the search space.
        match check_stored_files(&spec.canonical) {
            Ok(()) => assert_eq!(field, ""),
            Err(error) => assert!(!field.is_empty() && error.problem.contains(field), "{error}"),
        }
    }
}
