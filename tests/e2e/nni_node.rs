//! NNI's own Python package, unchanged, with `trial-manager` in the place of its Node server.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Kube, Play};
use trialkeeper_tests::{BOUND, Finished, TestBed, nni_python, wait_for};

/// A search on this machine, and what may be done with it, in NNI's words.
const LOCAL: &str = r"
import json, sys
from nni.experiment import Experiment

experiment = Experiment('local')
experiment.config.trial_command = 'python3 trial.py'
experiment.config.trial_code_directory = '.'
experiment.config.search_space = {'x': {'_type': 'uniform', '_value': [0, 1]}}
experiment.config.tuner.name = 'TPE'
experiment.config.tuner.class_args['optimize_mode'] = 'maximize'
experiment.config.max_trial_number = 2
experiment.config.trial_concurrency = 2
experiment.start(int(sys.argv[1]))
experiment.update_max_trial_number(3)
done = experiment._wait_completion()
print(json.dumps({
    'done': done,
    'id': experiment.get_experiment_profile()['id'] == experiment.id,
    'status': experiment.get_status(),
    'states': sorted(job.status for job in experiment.list_trial_jobs()),
    'results': len(experiment.export_data()),
    'port': experiment.get_experiment_metadata(experiment.id)['port'] == int(sys.argv[1]),
}))
experiment.stop()
";

const TRIAL: &str = "import nni\nnni.report_final_result(nni.get_next_parameter()['x'])\n";

/// The example of NNI's documentation for FrameworkController, word for word; what it leaves out stands before it.
const DOCUMENTED: &str = include_str!("../fixtures/nni/documented_frameworkcontroller.py");

const CONFIGURATION: &str = "\
searchSpace: {x: {_type: uniform, _value: [0, 1]}}
trialCommand: python3 trial.py
trialCodeDirectory: .
trialConcurrency: 1
maxTrialNumber: 2
tuner: {name: Random}
trainingService: {platform: local}
";

/// A port that was free a moment ago, and whose next one was, too.
fn free_port() -> u16 {
    wait_for("two free ports", BOUND, || {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        TcpListener::bind(("127.0.0.1", port.checked_add(1)?)).ok().map(|_| port)
    })
}

/// `python -m trialkeeper.nni` in the bed's folder, whose `home` is the home directory.
fn nni(bed: &TestBed, python: &Path, words: &[&str]) -> Command {
    fs::create_dir_all(bed.path("home")).unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/src");
    let mut path = std::ffi::OsString::from(python.parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let mut command = Command::new(python);
    command.args(["-m", "trialkeeper.nni"]).args(words).current_dir(bed.folder());
    command.env("HOME", bed.path("home")).env("PATH", path).env("PYTHONPATH", package);
    command.env("TRIALKEEPER_PROGRAMS", bed.programs());
    command
}

fn finish(bed: &TestBed, command: &mut Command) -> (Finished, String) {
    let finished = bed.start(command).finish(BOUND);
    let said = String::from_utf8_lossy(&finished.stdout).into_owned();
    (finished, said)
}

/// The one entry of NNI's list of experiments.
fn entry(bed: &TestBed) -> Value {
    let list: Value = serde_json::from_str(&bed.read("home/nni-experiments/.experiment")).unwrap();
    list.as_object().unwrap().values().next().unwrap().clone()
}

#[test]
fn nni_s_python_api_runs_steers_and_stops_a_search() {
    let Some(python) = nni_python() else { return };
    let bed = TestBed::new();
    bed.write("trial.py", TRIAL);
    bed.write("search.py", LOCAL);
    let port = free_port().to_string();
    let (finished, said) = finish(&bed, &mut nni(&bed, &python, &["search.py", &port]));
    assert_eq!(finished.code, Some(0), "{said}{}", finished.stderr);
    let told: Value =
        serde_json::from_str(said.lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    let expected = json!({
        "done": true, "id": true, "status": "DONE", "port": true, "results": 3,
        "states": ["SUCCEEDED", "SUCCEEDED", "SUCCEEDED"],
    });
    assert_eq!(told, expected);
    assert_eq!(entry(&bed)["status"], "STOPPED");
    bed.wait_until_empty();
}

#[test]
fn nnictl_creates_resumes_views_and_stops_experiments() {
    let Some(python) = nni_python() else { return };
    let bed = TestBed::new();
    bed.write("trial.py", TRIAL);
    bed.write("config.yml", CONFIGURATION);
    let ctl = |line: &str| {
        let words: Vec<&str> = ["nnictl"].into_iter().chain(line.split(' ')).collect();
        let (finished, said) = finish(&bed, &mut nni(&bed, &python, &words));
        assert_eq!(finished.code, Some(0), "nnictl {line}: {said}{}", finished.stderr);
        said
    };
    let port = free_port();
    let said = ctl(&format!("create -c config.yml -p {port}"));
    assert!(said.contains("Web portal URLs"), "{said}");
    let id = entry(&bed)["id"].as_str().unwrap().to_owned();
    wait_for("the search to be done", BOUND, || (entry(&bed)["status"] == "DONE").then_some(()));
    assert!(ctl("experiment list").contains(&format!("Id: {id}")));
    assert!(ctl("experiment status").contains("\"status\":\"DONE\""));
    assert_eq!(ctl("trial ls").matches("SUCCEEDED").count(), 2);
    assert!(ctl("config show").contains("\"maxTrialNumber\": 2"));
    ctl("experiment export -t json -f out.json");
    assert_eq!(bed.read("out.json").matches("trialJobId").count(), 2);
    assert!(ctl(&format!("stop {id}")).contains("Stop experiment success"));
    assert_eq!(entry(&bed)["status"], "STOPPED");
    ctl(&format!("resume {id} -p {}", free_port()));
    assert!(ctl("experiment show").contains(&id));
    ctl("stop -a");
    ctl(&format!("view {id} -p {}", free_port()));
    assert!(ctl("experiment status").contains("VIEWED"));
    ctl("stop");
    assert_eq!(entry(&bed)["status"], "STOPPED");
    bed.wait_until_empty();
}

#[test]
fn the_documented_frameworkcontroller_example_runs_word_for_word() {
    let Some(python) = nni_python() else { return };
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Play::Pods);
    kube.kubeconfig(&bed.path("kubeconfig"));
    bed.write("trial.py", TRIAL);
    // The pods' image has NNI.
    let python_of_image = python.display();
    bed.write(
        "model.py",
        &format!("import os\nos.execv('{python_of_image}', ['{python_of_image}', 'trial.py'])\n"),
    );
    let port = free_port();
    let before = "search_space = {'x': {'_type': 'uniform', '_value': [0, 1]}}\n";
    let example = DOCUMENTED.replace("run(8080)", &format!("run({port})"));
    bed.write("search.py", &format!("{before}{example}"));
    let mut command = nni(&bed, &python, &["search.py"]);
    command.env("KUBECONFIG", bed.path("kubeconfig")).env("TRIAL_MANAGER_HOST", "127.0.0.1");
    let (finished, said) = finish(&bed, &mut command);
    let log = bed.path("home/nni-experiments/_latest/log/nnimanager.log");
    let log = fs::read_to_string(log).unwrap_or_default();
    assert_eq!(finished.code, Some(0), "{said}{}{log}", finished.stderr);
    assert!(log.contains("DONE: 10 trials, 10 succeeded"), "{said}{log}");
    let frameworks = kube.made("frameworks");
    assert_eq!(frameworks.len(), 10 + 1, "one more is the look at the controller");
    let pod = &frameworks.last().unwrap()["spec"]["taskRoles"][0]["task"]["pod"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    let share = volumes.iter().find_map(|volume| volume.get("nfs")).unwrap();
    assert_eq!(*share, json!({"server": "10.20.30.40", "path": "/mnt/nfs/nni"}));
    let limits = &pod["containers"][0]["resources"]["limits"];
    assert_eq!(limits["memory"], "4096Mi", "{limits}");
    assert_eq!(limits["nvidia.com/gpu"], "1", "{limits}");
    bed.wait_until_empty();
}

#[test]
fn what_keeps_an_experiment_from_starting_reaches_the_user_and_nothing_stays() {
    let Some(python) = nni_python() else { return };
    let bed = TestBed::new();
    bed.write("trial.py", TRIAL);
    bed.write("config.yml", &CONFIGURATION.replace("Random", "Rndom"));
    let port = free_port().to_string();
    let create = ["nnictl", "create", "-c", "config.yml", "-p", &port];
    let (finished, said) = finish(&bed, &mut nni(&bed, &python, &create));
    assert_ne!(finished.code, Some(0));
    assert!(said.contains("tuner.name"), "{said}{}", finished.stderr);
    bed.wait_until_empty();

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut node = bed.manager();
    node.args(["nni-node", "/p/main.js", "--port", &port, "--experiment-id", "abc"]);
    node.args(["--action", "create", "--experiments-directory"]).arg(bed.data());
    let finished = bed.start(&mut node).finish(BOUND);
    assert_eq!(finished.code, Some(2));
    assert!(
        finished.stderr.contains(&format!("cannot listen on port {port}")),
        "{}",
        finished.stderr
    );
}
