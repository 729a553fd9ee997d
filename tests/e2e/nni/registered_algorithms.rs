//! Algorithms that NNI's `nnictl algo register` has registered, used by their names.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, nni_python};

/// A tuner that proposes 0, 1, 2 and so on, and records its arguments.
const TUNER_SCRIPT: &str = r#"
from nni.tuner import Tuner

class Counter(Tuner):
    def __init__(self, record, step, start=0):
        self.next, self.step = start, step
        with open(record, "a") as file:
            file.write(f"made with {step}\n")

    def update_search_space(self, space):
        pass

    def generate_parameters(self, parameter_id, **kwargs):
        self.next += self.step
        return {"x": self.next}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        pass
"#;

const REGISTRATION: &str =
    "{algoType: tuner, builtinName: counter, className: counting.Counter, classArgs: {step: 2}}";

fn stdout_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_tuner_that_nnictl_registered_is_used_by_its_name() {
    let python = nni_python();
    let bed = TestBed::new();
    bed.write("installed/counting.py", TUNER_SCRIPT);
    let registration = bed.write("counter.yml", REGISTRATION);
    let settings = [("NNI_CONFIG_DIR", bed.path("nni")), ("PYTHONPATH", bed.path("installed"))];
    let words = ["-m", "nni.tools.nnictl.nnictl", "algo", "register", "--meta_path"];
    stdout_of(Command::new(&python).args(words).arg(registration).envs(settings.clone()));
    let args = json!({"record": bed.path("record")});
    let search = Search::new("echo score=$TRIALKEEPER_PARAM_x", 2)
        .with("pythonInterpreter", python.to_str().unwrap())
        .with("tuner", json!({"name": "Counter", "classArgs": args}));
    let running = bed.start(search.command(&bed).envs(settings));
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    assert_eq!((outcome.state.as_str(), outcome.code), ("DONE", 0), "{outcome:#?}");
    let tried: Vec<_> = outcome.trials.iter().map(|trial| trial.parameters["x"].clone()).collect();
    assert_eq!(tried, [json!(2), json!(4)]);
    assert_eq!(bed.read("record"), "made with 2\n");
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn the_registry_that_nni_reads_is_named_for_every_kind_of_installation() {
    let python = nni_python();
    let bed = TestBed::new();
    let python_output =
        |python: &Path, what: &str| stdout_of(Command::new(python).args(["-c", what]));
    let packages = python_output(&python, "import nni; print(nni.__path__[0].rpartition('/')[0])");
    let base = PathBuf::from(python_output(&python, "import sys; print(sys._base_executable)"));
    // A virtual environment that imports NNI from its installation.
    let venv = bed.path("venv");
    stdout_of(Command::new(&base).args(["-m", "venv", "--without-pip"]).arg(&venv));
    let own = venv.join("bin/python");
    let site = python_output(&own, "import sysconfig; print(sysconfig.get_path('purelib'))");
    std::fs::write(Path::new(&site).join("nni.pth"), &packages).unwrap();
    let home = bed.path("home");
    std::fs::create_dir_all(&home).unwrap();
    let table = [
        ("a virtual environment", &own, vec![("HOME", home.clone())]),
        ("a user's", &base, vec![("HOME", home.clone()), ("PYTHONPATH", packages.into())]),
        ("a folder that is set", &own, vec![("HOME", home), ("NNI_CONFIG_DIR", bed.path("set"))]),
    ];
    let mut seen = Vec::new();
    for (case, python, settings) in table {
        let nni = "from nni.runtime.config import get_config_directory as f; print(f())";
        let folder = stdout_of(Command::new(python).args(["-c", nni]).envs(settings.clone()));
        let search = Search::new("true", 1)
            .with("pythonInterpreter", python.to_str().unwrap())
            .with("tuner", json!({"name": "counter"}));
        let refused = bed.start(search.command(&bed).envs(settings)).finish(WAIT_TIMEOUT);
        let file = format!("{folder}/registered_algorithms.yml");
        assert_eq!(refused.code, Some(2), "{case}: {}", refused.stderr);
        assert!(refused.stderr.contains(&file), "{case}: {file}: {}", refused.stderr);
        seen.push(folder);
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2], "{seen:?}");
}
