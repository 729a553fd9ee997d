//! Tests of the commands other than `run`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use serde_json::{Value, json};

use crate::test_agent::{TestAgent, trialkeeper_command, with_default_signals};

fn trialkeeper(words: &[&str]) -> Output {
    trialkeeper_command().args(words).output().unwrap()
}

#[test]
fn a_runs_directory_can_be_inspected() {
    let ended =
        TestAgent::shell(&["--parameters", r#"{"lr": 0.1}"#], "echo loss=0.5; echo loss=0.25")
            .run();
    let dir = ended.path("out");
    let dir = dir.to_str().unwrap();
    let from_spool: Value =
        serde_json::from_slice(&trialkeeper(&["inspect", dir, "--output", "json"]).stdout).unwrap();
    assert_eq!(from_spool["parameters"], json!({"lr": 0.1}));
    assert_eq!(from_spool["verdict"]["cause"], "succeeded");
    assert_eq!(from_spool["final"]["value"], 0.25);
    assert_eq!(from_spool["intermediate"].as_array().unwrap().len(), 2);
    assert_eq!(from_spool["files"], json!({"stdout": 19, "stderr": 0}));

    // If a manager acknowledged everything, the spool is empty and only the output contains the metrics.
    fs::remove_dir_all(ended.path("out/spool")).unwrap();
    let from_output: Value =
        serde_json::from_slice(&trialkeeper(&["inspect", dir, "--output", "json"]).stdout).unwrap();
    for member in ["final", "intermediate", "verdict"] {
        assert_eq!(from_output[member], from_spool[member], "{member}");
    }
    let text = String::from_utf8(trialkeeper(&["inspect", dir]).stdout).unwrap();
    assert!(text.lines().any(|line| line == "metric      loss = 0.25"), "{text}");
}

#[test]
fn inspect_reads_the_spool_until_a_manager_has_accepted_reports() {
    let options = ["--manager", "http://127.0.0.1:9", "--flush", "0s"];
    let ids = ["--experiment", "e", "--trial", "t", "--attempt", "a"];
    let ended = TestAgent::shell(&[&options[..], &ids].concat(), "echo loss=0.5").run();
    let dir = ended.path("out");
    let final_value = || {
        let output = trialkeeper(&["inspect", dir.to_str().unwrap(), "--output", "json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["final"]["value"].clone()
    };
    // Only the spool contains the metric now, like one of the SDK's HTTP channel.
    fs::write(dir.join("stdout"), "loss=0.25\n").unwrap();
    assert_eq!(final_value(), 0.5);
    fs::write(dir.join("spool/a/facts.ack"), "0\n").unwrap();
    assert_eq!(final_value(), 0.25);
}

#[test]
fn inspect_finds_the_same_metrics_without_the_spool() {
    let options = ["--metric-pattern", r"auc is (?P<auc>\S+)", "--objective", "auc"];
    let options = [&options[..], &["--collect", "none", "--metric-file", "more"]].concat();
    let options = [&options[..], &["--tensorboard", "logs", "--mask-env", "KEY"]].concat();
    let line = "echo loss=0.5; echo auc is 0.75; echo auc is 0.25 >> more; \
                cp events logs/events.out.tfevents.2.new; touch logs/events.out.tfevents.2.new";
    let mut agent = TestAgent::shell(&options, line);
    agent.command.env("KEY", "very-secret");
    let path = |name: &str| agent.dir.path().join(name);
    let events = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tfevents/tensorboardx.bin");
    fs::copy(events, path("events")).unwrap();
    fs::write(path("more"), "auc is 0.125\n").unwrap();
    fs::create_dir(path("logs")).unwrap();
    fs::copy(events, path("logs/events.out.tfevents.1.old")).unwrap();
    let old = fs::File::options().write(true).open(path("logs/events.out.tfevents.1.old"));
    old.unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let ended = agent.run();
    let dir = ended.path("out");
    let shown = || -> Value {
        let output = trialkeeper(&["inspect", dir.to_str().unwrap(), "--output", "json"]);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let sorted = |shown: &Value| {
        let mut values: Vec<_> = shown["intermediate"].as_array().unwrap().iter().collect();
        let name = |value: &&Value| (value["name"].to_string(), value["value"].to_string());
        values.sort_by_key(name);
        values.iter().map(name).collect::<Vec<_>>()
    };
    let from_spool = shown();
    assert_eq!(from_spool["final"]["name"], "auc");
    fs::remove_dir_all(dir.join("spool")).unwrap();
    let from_output = shown();
    assert_eq!(sorted(&from_output), sorted(&from_spool));
    assert_eq!(from_output["final"]["name"], "auc");
    let auc = sorted(&from_output).into_iter().filter(|(name, _)| name == "\"auc\"").count();
    assert_eq!(auc, 2, "{from_output}");

    // The next run in the same directory has no collectors of its own.
    let mut next = trialkeeper_command();
    next.args(["run", "--output-dir"]).arg(&dir).args(["--", "echo", "loss=1"]);
    assert!(next.output().unwrap().status.success());
    assert!(!dir.join("collectors.json").exists());
}

#[test]
fn another_directory_cannot_be_inspected() {
    let dir = tempfile::tempdir().unwrap();
    let output = trialkeeper(&["inspect", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn the_program_installs_itself() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("a/b");
    assert_eq!(trialkeeper(&["install", target.to_str().unwrap()]).status.code(), Some(0));
    let copy = target.join("trialkeeper");
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1, "there is no other file");
    let output =
        with_default_signals(&copy).args(["version", "--output", "json"]).output().unwrap();
    let version: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&version["name"], &version["version"]),
        (&json!("trialkeeper"), &json!(env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn each_shell_has_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = trialkeeper(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("detach-on-death"), "{shell}");
    }
}

/// Returns the line of `--print-config` for `name`.
fn setting(ended: &crate::test_agent::EndedAgent, name: &str) -> String {
    let line = ended.stdout().lines().find(|line| line.starts_with(&format!("{name} = ")));
    line.unwrap_or_else(|| panic!("no {name} in {} {}", ended.stdout(), ended.stderr)).to_owned()
}

#[test]
fn each_setting_comes_from_its_highest_source() {
    let mut agent = TestAgent::new(&["--config", "keeper.toml", "--drain", "3s", "--print-config"]);
    let file =
        "# a comment\ngrace = \"1s\"\ndrain = \"1s\"\nflush = \"1s\"\ndetach-on-death = true\n";
    fs::write(agent.dir.path().join("keeper.toml"), file).unwrap();
    agent.command.env("TRIALKEEPER_FLUSH", "2s").env("TRIALKEEPER_DRAIN", "2s");
    let ended = agent.run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    #[rustfmt::skip]
    let table = [
        ("drain",           r#"drain = "3s"  # flag"#),
        ("flush",           r#"flush = "2s"  # TRIALKEEPER_FLUSH"#),
        ("grace",           r#"grace = "1s"  # keeper.toml"#),
        ("detach-on-death", r#"detach-on-death = "true"  # keeper.toml"#),
        ("heartbeat",       r#"heartbeat = "5s"  # default"#),
    ];
    for (name, line) in table {
        assert_eq!(setting(&ended, name), line);
    }
    assert!(!ended.path("out").exists(), "nothing was run");
}

#[test]
fn a_flag_outranks_a_conflicting_variable() {
    #[rustfmt::skip]
    let table: [(&[&str], _, _); 3] = [
        (&["--manager-file", "m"],        ("TRIALKEEPER_MANAGER", "http://a"), r#"manager-file = "m"  # flag"#),
        (&["--manager", "http://b"],      ("TRIALKEEPER_MANAGER_FILE", "f"),   r#"manager = "http://b"  # flag"#),
        // The flag belongs to the trial's command.
        (&["x", "--manager", "http://b"], ("TRIALKEEPER_MANAGER_FILE", "f"),   r#"manager-file = "f"  # TRIALKEEPER_MANAGER_FILE"#),
    ];
    for (words, (name, value), line) in table {
        let mut agent = TestAgent::new(&[&["--print-config"], words].concat());
        agent.command.env(name, value);
        let ended = agent.run();
        assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.stderr);
        let named = ended.stdout().lines().filter(|line| line.starts_with("manager"));
        assert_eq!(named.collect::<Vec<_>>(), [line], "{words:?}");
        assert!(!ended.stdout().contains(" is unknown"), "{words:?}: {}", ended.stdout());
    }
}

#[test]
fn an_invalid_variable_is_named() {
    #[rustfmt::skip]
    let table = [
        ("TRIALKEEPER_GRACE",       "5 parsecs", "'5 parsecs' for 'TRIALKEEPER_GRACE (--grace <TIME>)'"),
        ("TRIALKEEPER_SPOOL_BYTES", "256M",      "'256M' for 'TRIALKEEPER_SPOOL_BYTES (--spool-bytes <N>)'"),
        ("TRIALKEEPER_SHELL",       "echo a",    "cannot be used with 'TRIALKEEPER_SHELL (--shell <LINE>)'"),
    ];
    for (name, value, fault) in table {
        let mut agent = TestAgent::new(&["--", "true"]);
        agent.command.env(name, value);
        let ended = agent.run();
        assert_eq!(ended.code, Some(125), "{name}");
        assert!(ended.stderr.contains(fault), "{name}: {}", ended.stderr);
    }
}

#[test]
fn a_settings_file_applies_and_its_errors_are_named() {
    let run = |text: &str| {
        let agent = TestAgent::new(&["--config", "keeper.toml", "--", "true"]);
        fs::write(agent.dir.path().join("keeper.toml"), text).unwrap();
        agent.run()
    };
    let ended = run("verbose = 1\nmanager = \"http://127.0.0.1:9\"\n");
    assert!(ended.stderr.contains("--experiment is needed with a manager"), "{}", ended.stderr);
    for (text, fault) in [
        ("gracee = \"1s\"", "keeper.toml, line 1: there is no setting \"gracee\""),
        ("grace = soon", "keeper.toml: line 1: a \"string\""),
        ("grace = \"soon\"", "'soon' for 'line 1 of keeper.toml (--grace <TIME>)'"),
        ("command = [\"x\"]", "there is no setting"),
    ] {
        let ended = run(text);
        assert_eq!(ended.code, Some(125), "{text}");
        assert!(ended.stderr.contains(fault), "{text}: {}", ended.stderr);
    }
}

#[test]
fn a_misspelt_variable_is_only_reported_once() {
    let mut agent = TestAgent::shell(&[], "exit 3");
    agent.command.env("TRIALKEEPER_MANGER", "http://m");
    // Kubernetes sets these variables in every pod beside a Service called `trialkeeper`.
    agent.command.env("TRIALKEEPER_SERVICE_HOST", "10.0.0.1").env("TRIALKEEPER_SERVICE_PORT", "80");
    agent.command.env("TRIALKEEPER_PORT", "tcp://10.0.0.1:80");
    let ended = agent.run();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let warnings: Vec<_> = ended.stderr.lines().filter(|line| line.contains("warning")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let sentence = "the variable TRIALKEEPER_MANGER is unknown; did you mean TRIALKEEPER_MANAGER?";
    assert!(warnings[0].ends_with(sentence), "{warnings:?}");
}

#[test]
fn an_empty_variable_counts_as_none() {
    let mut agent = TestAgent::shell(&[], "exit 3");
    for name in ["MANAGER", "GRACE", "PARAMETERS", "COLLECT", "CONFIG", "STOP_ON_STALL", "MANGER"] {
        agent.command.env(format!("TRIALKEEPER_{name}"), "");
    }
    let ended = agent.run();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(!ended.stderr.contains("warning"), "{}", ended.stderr);
}
