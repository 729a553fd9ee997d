//! Tests of the trial's environment, as tables.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;

fn environment_inputs(parameters: &Parameters) -> EnvironmentInputs<'_> {
    EnvironmentInputs {
        platform: None,
        experiment: None,
        trial: None,
        sequence: None,
        output_dir: None,
        fallback_dir: None,
        code_dir: None,
        parameters,
        parameters_file: None,
        reports_file: None,
        peers: &[],
        run_mark: "r1",
    }
}

/// Returns the trial's whole environment.
fn trial_environment(
    inherited: &[(&str, &str)],
    inputs: &EnvironmentInputs<'_>,
) -> BTreeMap<String, String> {
    let inherited: Vec<_> = inherited
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)))
        .collect();
    let changes = changes(&inherited, inputs);
    let kept = inherited.into_iter().filter(|(name, _)| !changes.remove.contains(name));
    kept.chain(changes.set.clone())
        .map(|(name, value)| (name.into_string().unwrap(), value.into_string().unwrap()))
        .collect()
}

#[test]
fn a_flag_outranks_the_caller_and_the_caller_the_default() {
    let none = Parameters::none();
    let plain = environment_inputs(&none);
    let flags = EnvironmentInputs {
        platform: Some("frameworkcontroller"),
        experiment: Some("e"),
        trial: Some("t"),
        sequence: Some(7),
        output_dir: Some(Path::new("/flag")),
        fallback_dir: Some(Path::new("/flag")),
        code_dir: Some(Path::new("/code")),
        ..plain
    };
    let default = EnvironmentInputs { fallback_dir: Some(Path::new("/runs/1")), ..plain };
    let caller = [
        ("NNI_PLATFORM", "kubeflow"),
        ("NNI_EXP_ID", "caller"),
        ("NNI_TRIAL_JOB_ID", "job"),
        ("NNI_TRIAL_SEQ_ID", "3"),
        ("NNI_SYS_DIR", "/sys"),
        ("NNI_OUTPUT_DIR", "/out"),
        ("NNI_CODE_DIR", "/their/code"),
        ("PYTHONUNBUFFERED", ""),
        ("REUSE_MODE", "false"),
    ];
    #[rustfmt::skip]
    let table = [
        // variable            inherited? inputs     value
        ("NNI_PLATFORM",       false, &plain,   Some("local")),
        ("NNI_PLATFORM",       true,  &plain,   Some("kubeflow")),
        ("NNI_PLATFORM",       true,  &flags,   Some("frameworkcontroller")),
        ("NNI_EXP_ID",         false, &plain,   Some("standalone")),
        ("NNI_EXP_ID",         true,  &plain,   Some("caller")),
        ("NNI_EXP_ID",         true,  &flags,   Some("e")),
        ("NNI_TRIAL_JOB_ID",   true,  &plain,   Some("job")),
        ("NNI_TRIAL_JOB_ID",   true,  &flags,   Some("t")),
        ("NNI_TRIAL_SEQ_ID",   false, &plain,   Some("0")),
        ("NNI_TRIAL_SEQ_ID",   true,  &plain,   Some("3")),
        ("NNI_TRIAL_SEQ_ID",   true,  &flags,   Some("7")),
        ("NNI_SYS_DIR",        false, &plain,   None),
        ("NNI_SYS_DIR",        false, &default, Some("/runs/1")),
        ("NNI_SYS_DIR",        true,  &default, Some("/sys")),
        ("NNI_SYS_DIR",        true,  &flags,   Some("/flag")),
        ("NNI_OUTPUT_DIR",     true,  &default, Some("/out")),
        ("NNI_OUTPUT_DIR",     true,  &flags,   Some("/flag")),
        ("TRIALKEEPER_OUTPUT_DIR", false, &plain,   None),
        ("TRIALKEEPER_OUTPUT_DIR", false, &default, Some("/runs/1")),
        ("TRIALKEEPER_OUTPUT_DIR", true,  &default, Some("/out")),
        ("TRIALKEEPER_OUTPUT_DIR", true,  &flags,   Some("/flag")),
        ("NNI_CODE_DIR",       false, &flags,   Some("/code")),
        ("NNI_CODE_DIR",       true,  &flags,   Some("/their/code")),
        ("PYTHONUNBUFFERED",   false, &plain,   Some("1")),
        ("PYTHONUNBUFFERED",   true,  &plain,   Some("")),
        ("REUSE_MODE",         true,  &plain,   Some("true")),
        ("MULTI_PHASE",        false, &plain,   Some("false")),
    ];
    for (name, inherit, inputs, value) in table {
        let inherited: &[_] = if inherit { &caller } else { &[] };
        let seen = trial_environment(inherited, inputs);
        assert_eq!(seen.get(name).map(String::as_str), value, "{name}, inherited: {inherit}");
    }
}

#[test]
fn the_file_of_reports_is_beside_the_files_of_nni() {
    let none = Parameters::none();
    let reports_file = Some("reports");
    let own = EnvironmentInputs {
        fallback_dir: Some(Path::new("/runs/1")),
        reports_file,
        ..environment_inputs(&none)
    };
    let no_dir = EnvironmentInputs { reports_file, ..environment_inputs(&none) };
    let not_read = EnvironmentInputs { reports_file: None, ..own };
    let callers: &[_] = &[("NNI_SYS_DIR", "/sys")];
    let table = [
        (&own, [].as_slice(), Some("/runs/1/reports")),
        (&own, callers, Some("/sys/reports")),
        (&no_dir, &[], None),
        (&not_read, callers, None),
    ];
    for (inputs, inherited, value) in table {
        let seen = trial_environment(inherited, inputs);
        assert_eq!(seen.get("TRIALKEEPER_REPORTS_FILE").map(String::as_str), value);
    }
}

#[test]
fn parameters_are_set_in_every_form() {
    let parameters = Parameters::parse(
        r#"{"parameter_id": 1, "parameters":
            {"lr": 0.1, "optimizer": "adam", "deep/er key": {"a": [1, null]}, "on": true, "nul": "a\u0000b"}}"#,
    )
    .unwrap();
    let inputs = EnvironmentInputs {
        parameters_file: Some(Path::new("/o/parameters.json")),
        ..environment_inputs(&parameters)
    };
    let seen = trial_environment(&[], &inputs);
    #[rustfmt::skip]
    let table = [
        ("TRIALKEEPER_PARAM_lr",          Some("0.1")),
        ("TRIALKEEPER_PARAM_optimizer",   Some("adam")),
        ("TRIALKEEPER_PARAM_deep_er_key", Some(r#"{"a":[1,null]}"#)),
        ("TRIALKEEPER_PARAM_on",          Some("true")),
        ("TRIALKEEPER_PARAM_nul",         None),
        ("TRIALKEEPER_PARAMETERS_FILE",   Some("/o/parameters.json")),
    ];
    for (name, value) in table {
        assert_eq!(seen.get(name).map(String::as_str), value, "{name}");
    }
    let whole: Value = serde_json::from_str(&seen["TRIALKEEPER_PARAMETERS"]).unwrap();
    assert_eq!(whole, Value::Object(parameters.values));
}

#[test]
fn settings_of_the_agent_do_not_reach_the_trial() {
    let none = Parameters::none();
    let inherited =
        [("TRIALKEEPER_MANAGER", "http://x"), ("TRIALKEEPER_TOKEN_FILE", "/t"), ("PATH", "/bin")];
    let seen = trial_environment(&inherited, &environment_inputs(&none));
    assert!(
        !seen.contains_key("TRIALKEEPER_MANAGER") && !seen.contains_key("TRIALKEEPER_TOKEN_FILE")
    );
    assert_eq!(seen["PATH"], "/bin");
}

#[test]
fn values_too_long_for_exec_are_only_in_the_file() {
    let long = format!(r#"{{"text": "{}"}}"#, "x".repeat(MAX_VALUE_BYTES));
    let parameters = Parameters::parse(&long).unwrap();
    let seen = trial_environment(&[], &environment_inputs(&parameters));
    assert!(!seen.contains_key("TRIALKEEPER_PARAMETERS"));
    assert_eq!(seen["TRIALKEEPER_PARAM_text"].len(), MAX_VALUE_BYTES);
}

#[test]
fn many_long_values_are_only_in_the_file() {
    let text = "x".repeat(MAX_VALUE_BYTES / 2);
    let entries: Vec<_> = (0..40).map(|n| format!(r#""p{n}": "{text}""#)).collect();
    let parameters = Parameters::parse(&format!("{{{}}}", entries.join(","))).unwrap();
    let seen = trial_environment(&[], &environment_inputs(&parameters));
    let taken = seen.iter().filter(|(name, _)| name.starts_with("TRIALKEEPER_PARAM_"));
    let sizes: Vec<_> = taken.map(|(name, value)| name.len() + value.len()).collect();
    assert_eq!(sizes.len(), 10);
    assert!(sizes.iter().sum::<usize>() <= MAX_TOTAL_BYTES);
}

#[test]
fn parameters_that_share_a_variable_are_reported() {
    let of = |text: &str| Parameters::parse(text).unwrap();
    assert_eq!(name_collisions(&of(r#"{"a.b": 1, "a": 2, "a_b": 3}"#)), [("a.b", "a_b")]);
    assert_eq!(name_collisions(&of(r#"{"a.b": 1, "a.c": 2}"#)), []);
}
