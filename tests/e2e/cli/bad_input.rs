//! Invalid input gives exit code 2 and a message that names the cause. The manager neither panics nor hangs.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, seed};

/// Runs a command that must be refused, and checks its message.
#[track_caller]
fn expect_refused(bed: &TestBed, command: &mut Command, words: &[&str]) {
    let finished = bed.start(command).finish(WAIT_TIMEOUT);
    let stderr = &finished.stderr;
    assert_eq!(finished.code, Some(2), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&finished.stdout), "", "standard output must be empty");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not named in: {stderr}");
    }
}

fn search_over(space: Value) -> Search {
    Search::new("true", 1).with("searchSpace", space)
}

#[test]
fn an_invalid_experiment_is_refused_with_the_field_s_name() {
    let good = Search::new("true", 1);
    #[rustfmt::skip]
    let table: [(&str, Search, &[&str]); 21] = [
        ("unknown field",          good.clone().with("trialComand", "true"),          &["experiment.yml", "trialComand"]),
        ("unknown nested field",   good.clone().with("trainingService", json!({"platform": "local", "gpus": 1})), &["experiment.yml", "gpus"]),
        ("no trialConcurrency",    good.clone().without("trialConcurrency"),          &["experiment.yml", "trialConcurrency"]),
        ("concurrency of 0",       good.clone().with("trialConcurrency", 0),          &["trialConcurrency", "1"]),
        ("concurrency as text",    good.clone().with("trialConcurrency", "two"),      &["trialConcurrency"]),
        ("no command",             good.clone().without("trialCommand"),              &["trialCommand"]),
        ("no trials",              good.clone().with("maxTrialNumber", 0),            &["maxTrialNumber"]),
        ("a bad duration",         good.clone().with("maxExperimentDuration", "soon"), &["maxExperimentDuration", "soon"]),
        ("no code directory",      good.clone().with("trialCodeDirectory", "nowhere"), &["trialCodeDirectory", "nowhere"]),
        ("no search space",        good.clone().without("searchSpace"),               &["searchSpace"]),
        ("no such space file",     good.clone().without("searchSpace").with("searchSpaceFile", "space.json"), &["searchSpaceFile", "space.json"]),
        ("no tuner",               good.clone().without("tuner"),                     &["tuner"]),
        ("unknown tuner",          good.clone().with("tuner", json!({"name": "Oracle"})), &["tuner", "Oracle", "Random"]),
        ("unknown mode",           good.clone().with("tuner", json!({"name": "Random", "classArgs": {"optimize_mode": "best"}})), &["optimize_mode", "best", "maximize"]),
        ("no training service",    good.clone().without("trainingService"),           &["trainingService"]),
        ("unknown platform",       good.clone().with("trainingService", json!({"platform": "moon"})), &["platform", "moon", "local"]),
        ("unknown type",           search_over(json!({"x": {"_type": "gauss", "_value": [0, 1]}})), &["searchSpace", "x", "gauss"]),
        ("an inverted range",      search_over(json!({"x": {"_type": "uniform", "_value": [1, 0]}})), &["searchSpace", "x"]),
        ("a logarithm of 0",       search_over(json!({"lr": {"_type": "loguniform", "_value": [0, 1]}})), &["searchSpace", "lr"]),
        ("no choice",              search_over(json!({"x": {"_type": "choice", "_value": []}})), &["searchSpace", "x"]),
        ("an unknown placeholder", Search::new("echo {{z}}", 1),                      &["trialCommand", "z"]),
    ];
    for (case, search, words) in table {
        let bed = TestBed::new();
        println!("{case}");
        expect_refused(&bed, &mut search.command(&bed), words);
        assert!(
            !bed.data_folder().exists()
                || fs::read_dir(bed.data_folder()).unwrap().next().is_none(),
            "{case}"
        );
    }
}

#[test]
fn an_invalid_file_is_refused_with_its_name() {
    #[rustfmt::skip]
    let table: [(_, Option<&[u8]>, &[&str]); 6] = [
        ("a missing file",   None,                                   &["experiment.yml", "No such file"]),
        ("an empty file",    Some(b""),                              &["experiment.yml"]),
        ("not YAML",         Some(b"trialCommand: [\n  - {a: b\n"),  &["experiment.yml", "line"]),
        ("not a mapping",    Some(b"- just\n- a list\n"),            &["experiment.yml"]),
        ("not UTF-8",        Some(b"trialCommand: \xff\xfe\n"),      &["experiment.yml"]),
        ("a field twice",    Some(b"maxTrialNumber: 1\nmaxTrialNumber: 2\n"), &["experiment.yml", "maxTrialNumber"]),
    ];
    for (case, bytes, words) in table {
        let bed = TestBed::new();
        println!("{case}");
        let file = bed.path("experiment.yml");
        if let Some(bytes) = bytes {
            fs::write(&file, bytes).unwrap();
        }
        expect_refused(
            &bed,
            bed.manager_command().arg("run").arg(file).args(["--port", "0"]),
            words,
        );
    }
    let bed = TestBed::new();
    let folder = bed.folder().to_str().unwrap();
    expect_refused(
        &bed,
        bed.manager_command().arg("run").arg(folder).args(["--port", "0"]),
        &[folder],
    );
}

#[test]
fn an_invalid_field_is_refused_with_its_line() {
    let text = "trialConcurrency: 1\ntrialComand: x\nsearchSpace: {}\n";
    let bed = TestBed::new();
    let file = bed.write("experiment.yml", text);
    let line = "line 2, column 1: trialComand: unknown field; did you mean `trialCommand`?";
    expect_refused(
        &bed,
        bed.manager_command().arg("run").arg(&file).args(["--port", "0"]),
        &[line],
    );
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" run - --port 0 <\"$1\""]);
    command.arg(bed.manager_command().get_program()).arg(file);
    expect_refused(&bed, &mut command, &["standard input", line]);
}

#[test]
fn a_port_in_use_is_named() {
    let bed = TestBed::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let file = Search::new("true", 1).write(&bed);
    let mut command = bed.manager_command();
    command.arg("run").arg(file).args(["--port", &port, "--data-dir"]).arg(bed.data_folder());
    expect_refused(&bed, &mut command, &[&format!("127.0.0.1:{port}"), "in use"]);
}

#[test]
fn a_legacy_port_in_use_leaves_no_experiment() {
    let bed = TestBed::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut command = Search::new("true", 1).command(&bed);
    expect_refused(&bed, command.args(["--legacy-port", &port]), &[&port, "in use"]);
    let left = fs::read_dir(bed.data_folder()).map_or(0, Iterator::count);
    assert_eq!(left, 0, "a resume would continue a search that cannot start");
}

#[test]
fn an_experiment_without_a_record_is_not_resumed() {
    // First, the manager was killed directly after it created its database. Then, an experiment with trials
    // lost its record.
    for trials_began in [false, true] {
        let bed = TestBed::new();
        let database = seed::create_store(&bed.data_folder(), "abcd1234", 0, 0, 1).unwrap();
        let store = rusqlite::Connection::open(&database).unwrap();
        store.execute("DELETE FROM experiment", []).unwrap();
        drop(store);
        let secret = bed.data_folder().join("abcd1234").join("secret");
        if trials_began {
            fs::write(&secret, "x").unwrap();
        } else {
            fs::remove_file(&secret).ok();
        }
        let mut command = bed.manager_command();
        command.args(["resume", "abcd1234", "--port", "0", "--data-dir"]).arg(bed.data_folder());
        let message = if trials_began {
            "the record of experiment abcd1234 is lost"
        } else {
            "no experiment abcd1234"
        };
        expect_refused(&bed, &mut command, &[message]);
        assert_eq!(
            database.exists(),
            trials_began,
            "only an experiment without trials may be removed"
        );
    }
}

#[test]
fn an_unwritable_data_directory_is_named() {
    let bed = TestBed::new();
    let file = Search::new("true", 1).write(&bed);
    // Even root cannot create a folder below a file or in /proc.
    let below_a_file = bed.write("plain", "").join("data");
    for data in [below_a_file.as_path(), Path::new("/proc/trialkeeper")] {
        let mut command = bed.manager_command();
        command.arg("run").arg(&file).args(["--port", "0", "--data-dir"]).arg(data);
        expect_refused(&bed, &mut command, &[data.to_str().unwrap()]);
    }
}

#[test]
fn resume_refuses_an_unknown_experiment() {
    let bed = TestBed::new();
    for (id, words) in [("nobody", ["nobody"]), ("../etc", ["../etc"])] {
        let mut command = bed.manager_command();
        command.args(["resume", id, "--port", "0", "--data-dir"]).arg(bed.data_folder());
        expect_refused(&bed, &mut command, &words);
    }
}

#[test]
fn a_bad_command_line_is_refused() {
    let bed = TestBed::new();
    #[rustfmt::skip]
    let table: [(&[&str], &str); 9] = [
        (&["run"],                                    "FILE"),
        (&["run", "e.yml", "--output", "xml"],        "xml"),
        (&["run", "e.yml", "--port", "70000"],        "expected a number from 0 to 65535"),
        (&["run", "e.yml", "--port", "http"],         "expected a number from 0 to 65535"),
        (&["run", "e.yml", "--port", "-1"],           "expected a number from 0 to 65535"),
        (&["run", "e.yml", "--lease", "1m"],          "expected a number from 3 to 86400"),
        (&["experiment", "limit", "--max-trial-number", "0"], "expected a number of at least 1"),
        (&["trial", "ls", "--limit", "few"],          "expected a number of at least 0"),
        (&["walk"],                                   "walk"),
    ];
    for (words, named) in table {
        expect_refused(&bed, bed.manager_command().args(words), &[named]);
    }
}

#[test]
fn an_experiment_is_read_from_standard_input() {
    let bed = TestBed::new();
    let piped = |text: &str| {
        bed.write("given", text);
        let manager = bed.manager_command();
        let mut command = Command::new("sh");
        let line = "exec \"$0\" run - --port 0 --output json --data-dir data <given";
        command.args(["-c", line]).arg(manager.get_program()).current_dir(bed.folder()).env_clear();
        command.envs(manager.get_envs().filter_map(|(name, value)| Some((name, value?))));
        bed.start(&mut command).finish(WAIT_TIMEOUT)
    };
    let refused = piped("trialCommand: [");
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("standard input: line 1"), "{}", refused.stderr);
    // Relative paths are relative to the working directory.
    Search::new("test -f ../given && echo score=1", 1).write(&bed);
    Outcome::parse(piped(&bed.read("experiment.yml"))).expect_done(1, 0);
}
