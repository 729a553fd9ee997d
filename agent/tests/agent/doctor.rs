//! Tests of `trialkeeper doctor`.

use std::process::Output;

use serde_json::Value;

use crate::test_agent::trialkeeper_command;

fn doctor(words: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = trialkeeper_command();
    command.arg("doctor").args(words).args(["--gpu-program", "no-such-program"]);
    command.current_dir(dir.path()).output().unwrap()
}

fn check_state<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name).unwrap();
    check["state"].as_str().unwrap()
}

#[test]
fn doctor_checks_the_machine_also_without_a_manager() {
    let output = doctor(&["--output", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["ok"]), (Some(0), &Value::Bool(true)), "{report}");
    assert_eq!(check_state(&report, "manager"), "skipped");
    assert_ne!(check_state(&report, "spool"), "fail");
}

#[test]
fn the_first_failed_check_decides_the_exit_code() {
    let output = doctor(&["--manager", "http://no-such-host.invalid", "--output", "table"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.ends_with("\nFirst failure: name.\n"), "{text}");
    let output = doctor(&["--output-dir", "/proc/none", "--output", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert_eq!(report["first_failure"], "output directory");
}
