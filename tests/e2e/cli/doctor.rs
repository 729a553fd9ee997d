//! `trial-manager doctor` reports problems of an experiment before it starts.

use serde_json::json;
use trialkeeper_tests::{FinishedProgram, Search, TestBed, WAIT_TIMEOUT, nni_python};

fn run_doctor(bed: &TestBed, search: &Search, options: &[&str]) -> (Option<i32>, String, String) {
    let file = search.write(bed);
    let mut command = bed.manager_command();
    command.arg("doctor").arg(file).args(["--port", "0"]).args(options);
    command.arg("--data-dir").arg(bed.data_folder());
    let FinishedProgram { code, stdout, stderr } = bed.start(&mut command).finish(WAIT_TIMEOUT);
    (code, String::from_utf8(stdout).unwrap(), stderr)
}

#[test]
fn a_probe_runs_one_trial_and_prints_its_result() {
    let bed = TestBed::new();
    let marker = bed.path("told");
    let search = Search::new("echo ran >>../ran; echo score=0.25; echo score=0.5", 5)
        .with("objective", "score")
        .with("notifications", json!({"command": format!("touch {}", marker.display())}));
    let (code, stdout, stderr) = run_doctor(&bed, &search, &[]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("ok    place  this machine can run trials"), "{stdout}");
    assert!(!bed.path("ran").exists(), "a trial ran without `--probe`");

    let (code, stdout, stderr) = run_doctor(&bed, &search, &["--probe"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let expected = "ok    probe  a trial ran, and its agent reported: score 0.5 after ";
    assert!(stdout.contains(expected), "{stdout}");
    assert_eq!(bed.read("ran").lines().count(), 1);
    assert!(!marker.exists(), "a probe must not send notifications");
    assert!(!bed.data_folder().exists(), "a probe must leave no experiment");
    bed.wait_until_empty();
}

#[test]
fn a_probe_finds_a_trial_that_fails_and_one_without_a_result() {
    let bed = TestBed::new();
    #[rustfmt::skip]
    let table = [
        ("echo no such data set >&2; exit 3", ["-     probe      | no such data set", "FAIL  probe  the trial FAILED (exit code 3): "]),
        ("true",                              ["FAIL  probe  the trial succeeded and reported no final result", "no tuner can learn from it"]),
    ];
    for (command, expected) in table {
        let (code, stdout, stderr) = run_doctor(&bed, &Search::new(command, 5), &["--probe"]);
        assert_eq!(code, Some(1), "{command}: {stdout}{stderr}");
        for part in expected {
            assert!(stdout.contains(part), "{command}: {part:?} is not in {stdout}");
        }
    }
}

#[test]
fn doctor_names_the_missing_parts_of_an_experiment() {
    let bed = TestBed::new();
    let search = Search::new("true", 1);
    let (code, stdout, _) = run_doctor(&bed, &search, &["--agent", "nowhere", "--probe"]);
    assert_eq!(code, Some(1));
    assert!(stdout.contains("FAIL  place  there is no agent program nowhere"), "{stdout}");
    assert!(stdout.contains("-     probe  not run"), "{stdout}");

    // This agent program reports nothing.
    let program = bed.write_script("mute", "#!/bin/sh\nexit 3\n");
    let (code, stdout, _) =
        run_doctor(&bed, &search, &["--agent", program.to_str().unwrap(), "--probe"]);
    assert_eq!(code, Some(1));
    assert!(stdout.contains("FAIL  probe  "), "{stdout}");

    // No machine has so many GPUs.
    let local = json!({"platform": "local", "useActiveGpu": false});
    let search_with_gpus =
        search.clone().with("trialGpuNumber", 1_000_000).with("trainingService", local);
    let (code, stdout, _) = run_doctor(&bed, &search_with_gpus, &[]);
    assert_eq!(code, Some(1));
    let fault = "trialGpuNumber (`trial.gpuNum` in a version 1 file) is 1000000, but ";
    assert!(stdout.contains(&format!("FAIL  place  {fault}")), "{stdout}");
    let refused = bed.start(&mut search_with_gpus.command(&bed)).finish(WAIT_TIMEOUT);
    assert!(refused.code == Some(2) && refused.stderr.contains(fault), "{}", refused.stderr);
    assert!(
        !bed.data_folder().exists()
            || std::fs::read_dir(bed.data_folder()).unwrap().next().is_none(),
        "a refused experiment must leave nothing"
    );

    let (code, stdout, stderr) = run_doctor(&bed, &search.with("trialConcurrency", 0), &[]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("trialConcurrency"), "{stderr}");
}

#[test]
fn a_command_whose_program_does_not_exist_is_found_before_the_search() {
    let bed = TestBed::new();
    bed.write_script("code/train", "#!/bin/sh\n");
    #[rustfmt::skip]
    let table = [
        ("pyhton3 train.py",   Some("FAIL  trial  `pyhton3` is not an executable program (searched in PATH)")),
        ("./tarin",            Some("FAIL  trial  `./tarin` is not an executable program (searched in ")),
        ("./train --fast",     None),
        ("sh train",           None),
        ("cd x && ./anything", None),
    ];
    for (command, fault) in table {
        let (code, stdout, stderr) = run_doctor(&bed, &Search::new(command, 1), &[]);
        assert_eq!(code, Some(i32::from(fault.is_some())), "{command}: {stdout}{stderr}");
        assert!(stdout.contains(fault.unwrap_or("ok    place  ")), "{command}: {stdout}");
    }
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn doctor_loads_a_user_s_tuner() {
    let python = nni_python();
    let bed = TestBed::new();
    let source = "from nni.tuner import Tuner\nclass Mine(Tuner):\n    def update_search_space(self, space): pass\n    \
                def generate_parameters(self, number, **rest): return {'x': 1}\n    \
                def receive_trial_result(self, *all, **rest): pass\n";
    bed.write("code/mine.py", source);
    bed.write("code/broken.py", "import no_such_module\n");
    let check_class = |class: &str| {
        let search = Search::new("true", 1)
            .with("tuner", json!({"className": class, "codeDirectory": "code"}))
            .with("pythonInterpreter", python.to_str().unwrap());
        run_doctor(&bed, &search, &[])
    };
    let (code, stdout, stderr) = check_class("mine.Mine");
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("ok    tuner  mine.Mine can be run"), "{stdout}");
    assert!(stdout.contains("ok    tuner  mine.Mine proposes parameters"), "{stdout}");
    for (class, reason) in [
        ("broken.Mine", "No module named 'no_such_module'"),
        ("mine.Yours", "has no attribute 'Yours'"),
        ("absent.Mine", "No module named 'absent'"),
    ] {
        let (code, stdout, stderr) = check_class(class);
        assert_eq!(code, Some(1), "{class}: {stdout}{stderr}");
        assert!(stdout.contains("FAIL  tuner  ") && stdout.contains(reason), "{class}: {stdout}");
    }
}

#[test]
fn doctor_searches_a_tuner_s_program_in_its_working_directory() {
    let bed = TestBed::new();
    let answer = "#!/bin/sh\nread hello\necho '{\"type\": \"ready\"}'\nread propose\n\
                  echo '{\"type\": \"proposal\", \"id\": 0, \"parameters\": {\"x\": 1}}'\nread end\n";
    bed.write_script("code/search", answer);
    bed.write("code/no-program", "print()\n");
    for (program, fault) in [
        ("./search", None),
        // The program exists but is not a tuner.
        ("sh", Some("ok    tuner  sh can be run\nFAIL  tuner  ")),
        ("search", Some("(searched in PATH); correct `tuner.command`")),
        ("./no-program", Some("`./no-program` is not an executable program (searched in ")),
        ("/", Some("`/` is not an executable program")),
    ] {
        let search = Search::new("true", 1)
            .with("tuner", json!({"command": [program]}))
            .with("tunerPatience", "10s")
            .with("trialCodeDirectory", "code");
        let (code, stdout, stderr) = run_doctor(&bed, &search, &[]);
        assert_eq!(code, Some(i32::from(fault.is_some())), "{program}: {stdout}{stderr}");
        let expected = fault.unwrap_or("ok    tuner  ");
        assert!(stdout.contains(expected), "{program}: {stdout}");
    }
}

#[test]
fn settings_that_users_rarely_intend_have_a_warning() {
    let bed = TestBed::new();
    let space = json!({
        "x": {"_type": "uniform", "_value": [0, 1]},
        "size": {"_type": "choice", "_value": [16, 32, 16]},
        "step": {"_type": "quniform", "_value": [0, 1, 5]},
    });
    let search = Search::new("python3 trian.py", 5).with("searchSpace", space);
    let (code, stdout, stderr) = run_doctor(&bed, &search.without("maxTrialNumber"), &[]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    for warning in [
        "-     file   searchSpace: `size` has the option 16 twice",
        "-     file   searchSpace: the step of `step` leaves one value, 0",
        "-     file   the search has no end",
        "-     trial  `trialCommand` runs trian.py, which does not exist in ",
    ] {
        assert!(stdout.contains(warning), "{warning:?} is not in {stdout}");
    }
    // A sound experiment has none.
    bed.write("code/train.py", "");
    let (_, stdout, _) = run_doctor(&bed, &Search::new("python3 train.py", 5), &[]);
    assert_eq!(stdout.lines().filter(|line| line.starts_with('-')).count(), 0, "{stdout}");
}
