//! Snapshots of the command line's output: every help text, every reading command and every common mistake,
//! on a small reproducible store. `TRIALKEEPER_TEST_RENEW=1` rewrites the snapshots.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;
use trialkeeper_tests::{Gate, Search, Snapshots, TestBed, WAIT_TIMEOUT, seed, wait_for};

/// Runs the manager. Returns its exit code and both streams in the form of the snapshots.
fn output_of(bed: &TestBed, words: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = bed.manager_command();
    // The variable's value would appear in help texts.
    command.args(words).env_remove("TRIAL_MANAGER_AGENT").env("TZ", "UTC");
    command.envs(variables.iter().copied());
    let finished = bed.start(&mut command).finish(WAIT_TIMEOUT);
    let mut text = String::from("$");
    for (name, value) in variables {
        write!(text, " {name}={value}").unwrap();
    }
    writeln!(text, " {}", [&["trial-manager"], words].concat().join(" ")).unwrap();
    writeln!(text, "exit code: {:?}", finished.code.unwrap()).unwrap();
    writeln!(text, "--- standard output").unwrap();
    text.push_str(&String::from_utf8(finished.stdout).unwrap());
    writeln!(text, "--- standard error").unwrap();
    text.push_str(&finished.stderr);
    text.replace(&bed.data_folder().display().to_string(), "DATA")
        .replace(&bed.folder().display().to_string(), "FOLDER")
}

/// Creates a store with six trials. The second trial failed.
fn create_small_store(bed: &TestBed) {
    seed::create_store(&bed.data_folder(), "small", 6, 3, 10).unwrap();
}

/// Returns the commands that a help text lists.
fn listed_commands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter_map(|line| {
        // The second line of a description is indented further.
        line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?.split(' ').next()
    });
    names.filter(|name| *name != "help").map(ToOwned::to_owned).collect()
}

#[test]
fn every_help_text_is_as_recorded() {
    let bed = TestBed::new();
    let mut snapshots = Snapshots::new("cli/help");
    let mut left: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(path) = left.pop() {
        let mut words: Vec<&str> = path.iter().map(String::as_str).collect();
        words.push("--help");
        let text = output_of(&bed, &words, &[]);
        let name = if path.is_empty() { "trial-manager".to_owned() } else { path.join("-") };
        snapshots.compare(&name, &text);
        left.extend(
            listed_commands(&text).into_iter().map(|name| [path.clone(), vec![name]].concat()),
        );
    }
    let version = output_of(&bed, &["--version"], &[]);
    snapshots.compare("version-flag", &version.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    snapshots.finish();
}

#[test]
fn output_to_a_pipe_is_never_coloured() {
    let bed = TestBed::new();
    for colour in [("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1"), ("TERM", "xterm-256color")] {
        for words in [&["--help"][..], &["trial", "sow"], &["experiment", "show"], &["run", "none"]]
        {
            let text = output_of(&bed, words, &[colour]);
            assert!(!text.contains('\u{1b}'), "{text}");
        }
    }
}

#[test]
fn a_stored_experiment_is_shown_as_recorded() {
    let bed = TestBed::new();
    create_small_store(&bed);
    let data = bed.data_folder().display().to_string();
    let place = [("TRIAL_MANAGER_DATA_DIR", data.as_str())];
    let mut snapshots = Snapshots::new("cli/read");
    let shown = [
        ("experiment-ls", "experiment ls"),
        ("experiment-show", "experiment show"),
        ("experiment-show-named", "experiment show small"),
        ("trial-ls", "trial ls"),
        ("trial-ls-named", "trial ls small --limit 1"),
        ("trial-ls-sorted", "trial ls --sort final --descending --limit 2"),
        ("trial-ls-failed", "trial ls --state FAILED"),
        ("trial-ls-holds", "trial ls --contains elu"),
        ("trial-show", "trial show t00001"),
        ("trial-show-failed", "trial show t00002"),
        ("trial-why", "trial why t00001"),
        ("trial-why-failed", "trial why t00002"),
        ("metrics", "metrics t00001"),
    ];
    for (name, line) in shown {
        for form in ["table", "json", "yaml"] {
            let words: Vec<_> = line.split(' ').chain(["-o", form]).collect();
            snapshots.compare(&format!("{name}-{form}"), &output_of(&bed, &words, &place));
        }
    }
    for (name, line) in [
        ("trial-logs", "trial logs t00001"),
        ("trial-logs-stderr", "trial logs t00001 --stderr"),
        ("experiment-export-csv", "experiment export --format csv"),
        ("experiment-export-json", "experiment export --format json"),
        ("experiment-export-folder", "experiment export --format mlflow --to mlflow"),
        ("experiment-export-events", "experiment export --format tensorboard --to tensorboard"),
        ("check", "check small"),
        ("top", "top"),
        ("resume", "resume small --port 0"),
        ("resume-json", "resume small --port 0 -o json"),
        ("resume-yaml", "resume small --port 0 -o yaml"),
        ("backup", "backup small copy.db"),
        ("clean", "clean small"),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        snapshots.compare(name, &output_of(&bed, &words, &place));
    }
    for (name, folder) in [("folder", "mlflow"), ("events", "tensorboard")] {
        let mut files = String::new();
        append_tree(&bed.path(folder), "", &mut files);
        snapshots.compare(&format!("experiment-export-{name}-files"), &files);
    }
    // Commands that change the experiment run last.
    for (name, line) in [
        ("trial-rerun", "trial rerun t00001"),
        ("trial-rerun-failed", "trial rerun --failed"),
        ("experiment-show-marked", "experiment show"),
        ("experiment-rm", "experiment rm small"),
        ("experiment-ls-empty", "experiment ls"),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        snapshots.compare(name, &output_of(&bed, &words, &place));
    }
    snapshots.finish();
}

/// A search with one running trial, on a machine with a GPU. The manager was killed.
#[test]
fn a_running_experiment_is_shown_as_recorded() {
    let bed = TestBed::new();
    create_small_store(&bed);
    let store = rusqlite::Connection::open(bed.data_folder().join("small/trialkeeper.db")).unwrap();
    let sample = json!({"kind": "sample", "process": {"memory_bytes": 1_500_000_000},
        "cgroup": {"memory_bytes": 3_000_000_000_u64, "memory_limit_bytes": 4_000_000_000_u64},
        "gpus": [{"utilization_percent": 87, "memory_used_bytes": 9_000_000_000_u64}]});
    store
        .execute("UPDATE report SET body = ? WHERE attempt = 4 AND lane = 1", [sample.to_string()])
        .unwrap();
    store
        .execute_batch(
            "UPDATE experiment SET state = 'RUNNING', ended_at_ms = NULL, elapsed_ms = 0;
             UPDATE trial SET state = 'RUNNING', ended_at_ms = NULL, exit_code = NULL WHERE key = 4;
             DELETE FROM report WHERE attempt = 4 AND (kind = 'ended' OR lane = 0 AND sums_up = 1);",
        )
        .unwrap();
    drop(store);
    let data = bed.data_folder().display().to_string();
    let place = [("TRIAL_MANAGER_DATA_DIR", data.as_str())];
    let mut snapshots = Snapshots::new("cli/run");
    for (name, line) in [
        ("top", "top"),
        ("experiment-ls", "experiment ls"),
        ("trial-show", "trial show 3"),
        ("trial-logs-followed", "trial logs -f 3"),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        snapshots.compare(name, &output_of(&bed, &words, &place));
    }
    bed.write("code/trial.sh", "echo score=1\n");
    bed.write(
        "experiment.yml",
        "trialCommand: sh trial.sh\ntrialCodeDirectory: code\ntrialConcurrency: 1\nmaxTrialNumber: 1\n\
         searchSpace: {x: {_type: uniform, _value: [0, 1]}}\ntuner: {name: Random}\ntrainingService: {platform: local}\n",
    );
    snapshots
        .compare("doctor", &output_of(&bed, &["doctor", "experiment.yml", "--port", "0"], &place));
    let probed = output_of(&bed, &["doctor", "experiment.yml", "--probe", "--port", "0"], &place);
    let took =
        probed.split("reported: score 1 after ").nth(1).and_then(|rest| rest.split(' ').next());
    let took = format!("after {} s", took.expect("the probe's trial has a result"));
    snapshots.compare("doctor-probe", &probed.replace(&took, "after SECONDS s"));
    let amiss =
        output_of(&bed, &["doctor", "experiment.yml", "--agent", "nowhere", "--probe"], &place);
    snapshots.compare("doctor-amiss", &amiss);
    let words = ["doctor", "experiment.yml", "--agent", "nowhere", "--probe", "-o", "json"];
    snapshots.compare("doctor-amiss-json", &output_of(&bed, &words, &place));
    snapshots.finish();
}

/// The answers of all commands that need a manager: one that runs a search, or one that serves a stored
/// search.
#[test]
fn commands_that_need_a_manager_print_the_recorded_output() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write("results.json", r#"[{"parameter": {"x": 0.5}, "value": 0.25}]"#);
    bed.write("space.json", r#"{"x": {"_type": "uniform", "_value": [0, 2]}}"#);
    let data = bed.data_folder().display().to_string();
    let browser = bed.write_script("browser", "#!/bin/sh\n").display().to_string();
    let place = [("TRIAL_MANAGER_DATA_DIR", data.as_str()), ("BROWSER", browser.as_str())];
    let search = Search::new("echo score=1; read _ <../gate", 9).start(&bed);
    let (folder, url) = wait_for("the manager to listen", WAIT_TIMEOUT, || {
        Some((bed.find_experiment_folder()?, bed.find_manager_url()?))
    });
    let id = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let trial = wait_for("the first trial to run", WAIT_TIMEOUT, || {
        let (_, list) = trialkeeper_tests::http_get(&url, "/api/v1/trials?state=RUNNING")?;
        let list: serde_json::Value = serde_json::from_str(&list).ok()?;
        Some(list["trials"][0]["id"].as_str()?.to_owned())
    });
    let mut snapshots = Snapshots::new("cli/steer");
    let words = ["trial", "stop", "0", "--manager", &url];
    snapshots.compare("no-token", &output_of(&bed, &words, &place).replace(&url, "URL"));
    let other = bed.write("other.token", "0123456789abcdefghij").display().to_string();
    let words = [&words[..], &["--token-file", &other]].concat();
    snapshots.compare("wrong-token", &output_of(&bed, &words, &place).replace(&url, "URL"));
    for (name, line) in [
        ("experiment-limit", "experiment limit --trial-concurrency 1 --max-trial-number 8"),
        ("experiment-import", "experiment import results.json"),
        ("experiment-update", "experiment update --search-space space.json"),
        ("trial-flush", "trial flush 0"),
        ("trial-log-level", "trial log-level debug 0"),
        ("open", "open"),
        ("open-print", "open --print"),
        ("trial-stop", "trial stop 0"),
        ("experiment-stop", "experiment stop"),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let text = output_of(&bed, &words, &place).replace(&url, "URL").replace(&id, "EXPERIMENT");
        snapshots.compare(name, &without_tickets(&text.replace(&trial, "TRIAL")));
    }
    let ended = search.finish(WAIT_TIMEOUT);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    drop(gate);
    // Two experiments of which neither runs, so the served one must be named.
    create_small_store(&bed);
    let (serving, url) = bed.serve("small");
    snapshots.compare(
        "open-shown",
        &without_tickets(
            &output_of(&bed, &["open", "--print", "-e", "small"], &place).replace(&url, "URL"),
        ),
    );
    serving.signal(nix::sys::signal::Signal::SIGTERM);
    let served = serving.finish(WAIT_TIMEOUT);
    assert_eq!((served.code, served.stdout), (Some(0), vec![]));
    snapshots.compare("serve", &served.stderr.replace(&url, "URL"));
    snapshots.finish();
}

/// Replaces tickets, which are random.
fn without_tickets(text: &str) -> String {
    let mut parts = text.split("?ticket=");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, rest| {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        format!("{shown}?ticket=TICKET{}", &rest[end..])
    })
}

/// Lists every file below a folder with its content, sorted by name.
fn append_tree(folder: &Path, prefix: &str, into: &mut String) {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    for name in names {
        let path = folder.join(&name);
        let shown = format!("{prefix}{}", name.to_str().unwrap());
        if path.is_dir() {
            append_tree(&path, &format!("{shown}/"), into);
        } else {
            let bytes = std::fs::read(&path).unwrap();
            let held = String::from_utf8(bytes);
            let held = held.unwrap_or_else(|bytes| bytes.as_bytes().escape_ascii().to_string());
            writeln!(into, "{shown}: {}", held.trim_end()).unwrap();
        }
    }
}

#[test]
fn common_mistakes_print_the_recorded_messages() {
    let bed = TestBed::new();
    let mut snapshots = Snapshots::new("cli/mistake");
    let data = bed.data_folder().display().to_string();
    let place = [("TRIAL_MANAGER_DATA_DIR", data.as_str())];
    let nothing = output_of(&bed, &["experiment", "show"], &place);
    snapshots.compare("no-experiment", &nothing);
    create_small_store(&bed);
    for (name, line) in [
        ("nothing", ""),
        ("unknown-command", "trial sow"),
        ("unknown-form", "trial ls -o xml"),
        ("unknown-experiment", "experiment show -e other"),
        ("unknown-experiment-checked", "check other"),
        ("unknown-experiment-copied", "backup other copy.db"),
        ("unknown-experiment-removed", "experiment rm other"),
        ("unknown-trial", "trial show t99999"),
        ("unknown-trial-why", "trial why t99999"),
        ("unknown-trial-logs", "trial logs t99999"),
        ("unknown-trial-metrics", "metrics t99999"),
        ("unknown-metric", "metrics t00001 --name colour"),
        ("bad-trial", "trial show ../t"),
        ("unknown-state", "trial ls --state LOST_AND_FOUND"),
        ("unknown-order", "trial ls --sort colour"),
        ("unknown-parameter", "trial ls --sort parameters.colour"),
        ("unknown-cause", "trial ls --cause bad-luck"),
        ("no-limit", "experiment limit"),
        ("no-form", "trial logs t00001 -o json"),
        ("no-trial-to-stop", "trial stop"),
        ("not-running", "trial stop t00001"),
        ("nothing-to-stop", "experiment stop"),
        ("nothing-to-limit", "experiment limit --trial-concurrency 2"),
        ("nothing-to-flush", "trial flush t00001"),
        ("nothing-to-log", "trial log-level debug t00001"),
        ("no-results-to-import", "experiment import absent.json"),
        ("no-space-to-search", "experiment update --search-space absent.json"),
        ("no-port-to-serve-on", "serve --host 203.0.113.1 --port 1"),
        ("not-served", "open --print"),
        ("folder-wanted", "experiment export --format tensorboard"),
        ("export-in-vain", "experiment export --format csv --to absent/out.csv"),
        ("no-file", "run absent.yaml"),
        ("parameter-set-twice", "trial add --set x=1 --set x=2"),
    ] {
        let words: Vec<_> = line.split(' ').filter(|word| !word.is_empty()).collect();
        snapshots.compare(name, &output_of(&bed, &words, &place));
    }
    let empty = bed.data_folder().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("trialkeeper.db"), "").unwrap();
    snapshots.compare("empty-database", &output_of(&bed, &["trial", "ls", "-e", "empty"], &place));
    snapshots.finish();
}

#[test]
fn a_wrong_value_of_a_variable_is_reported_with_its_name() {
    let bed = TestBed::new();
    let note = "The value is that of the variable TRIAL_MANAGER_PORT.";
    let wrong = [("TRIAL_MANAGER_PORT", "abc")];
    let text = output_of(&bed, &["resume", "any"], &wrong);
    assert!(text.contains("invalid value 'abc'") && text.contains(note), "{text}");
    let text = output_of(&bed, &["resume", "any", "--port=abc"], &wrong);
    assert!(text.contains("invalid value 'abc'") && !text.contains(note), "{text}");
}

#[test]
fn an_unknown_log_level_is_reported_with_the_allowed_levels() {
    let bed = TestBed::new();
    let text = output_of(&bed, &["version"], &[("TRIAL_MANAGER_LOG", "loud")]);
    let warning = "TRIAL_MANAGER_LOG is `loud`; allowed: error, warn, info, debug, trace";
    assert!(text.contains(warning), "{text}");
    let text = output_of(&bed, &["version"], &[("TRIAL_MANAGER_LOG", "info")]);
    assert!(text.ends_with("--- standard error\n"), "{text}");
}
