//! NNI's unchanged Python package, with `trial-manager` as a replacement of its Node server.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{FinishedProgram, TestBed, WAIT_TIMEOUT, nni_python, wait_for};

/// A search on this machine, and the operations of NNI's API.
const LOCAL_SEARCH: &str = r"
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

/// The three methods to return to an experiment, and their results.
const RETURN_TO_EXPERIMENT: &str = r"
import json, sys, time
from nni.experiment import Experiment

port, seen = int(sys.argv[1]), []
experiment = Experiment('local')
experiment.config.trial_command = 'python3 trial.py'
experiment.config.trial_code_directory = '.'
experiment.config.search_space = {'x': {'_type': 'uniform', '_value': [0, 1]}}
experiment.config.tuner.name = 'Random'
experiment.config.max_trial_number = 500
experiment.config.trial_concurrency = 1
experiment.start(port)
while not experiment.export_data():
    time.sleep(0.1)
connected = Experiment.connect(port)
seen.append([connected.id == experiment.id, connected.get_status()])
experiment.stop()
viewed = Experiment.view(experiment.id, port, non_blocking=True)
seen.append([viewed.get_status(), len(viewed.export_data()) > 0])
viewed.stop()
resumed = Experiment(None, experiment.id)
resumed.resume(port, wait_completion=False)
resumed.update_max_trial_number(len(resumed.list_trial_jobs()))
seen.append([resumed.id == experiment.id, resumed._wait_completion()])
resumed.stop()
def extend(experiment):
    number = len(experiment.list_trial_jobs()) + 1
    experiment.update_max_trial_number(number)
    while len(experiment.export_data()) < number or experiment.get_status() != 'DONE':
        time.sleep(0.1)
again = Experiment(None, experiment.id)
again.resume(port)
extend(again)
ended = again.list_trial_jobs()[0]
again.kill_trial_job(ended.trialJobId)
seen.append([again.get_status(), again.get_trial_job(ended.trialJobId).status == ended.status])
extend(again)
again.stop()
print(json.dumps(seen))
";

const TRIAL_SCRIPT: &str = "import nni\nnni.report_final_result(nni.get_next_parameter()['x'])\n";

/// The unchanged FrameworkController example of NNI's documentation. The test adds the lines that it omits.
const DOCUMENTED_EXAMPLE: &str =
    include_str!("../../fixtures/nni/documented_frameworkcontroller.py");

/// The space of [`CONFIGURATION`].
const SEARCH_SPACE: &str = r#"{"x": {"_type": "uniform", "_value": [0, 1]}}"#;

const CONFIGURATION: &str = "\
searchSpaceFile: space.json
trialCommand: python3 trial.py
trialCodeDirectory: .
trialConcurrency: 1
maxTrialNumber: 2
tuner: {name: Random}
trainingService: {platform: local}
";

/// Returns a port that was free, and whose next port was free, too.
fn free_port() -> u16 {
    wait_for("two free ports", WAIT_TIMEOUT, || {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        TcpListener::bind(("127.0.0.1", port.checked_add(1)?)).ok().map(|_| port)
    })
}

/// Returns `python -m trialkeeper.nni` in the bed's folder, with `home` as the home directory.
fn nni_command(bed: &TestBed, python: &Path, words: &[&str]) -> Command {
    fs::create_dir_all(bed.path("home")).unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/src");
    let mut path = std::ffi::OsString::from(python.parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let mut command = Command::new(python);
    command.args(["-m", "trialkeeper.nni"]).args(words).current_dir(bed.folder());
    command.env("HOME", bed.path("home")).env("PATH", path).env("PYTHONPATH", package);
    command.env("TRIALKEEPER_PROGRAMS", bed.program_folder());
    command
}

fn finish(bed: &TestBed, command: &mut Command) -> (FinishedProgram, String) {
    let finished = bed.start(command).finish(WAIT_TIMEOUT);
    let output = String::from_utf8_lossy(&finished.stdout).into_owned();
    (finished, output)
}

/// Returns a free port, and a listener on the next one.
fn port_before_used_one() -> (TcpListener, u16) {
    loop {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port() - 1;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return (taken, port);
        }
    }
}

/// Returns the only entry of NNI's list of experiments.
fn experiment_entry(bed: &TestBed) -> Value {
    let list: Value = serde_json::from_str(&bed.read("home/nni-experiments/.experiment")).unwrap();
    list.as_object().unwrap().values().next().unwrap().clone()
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_python_api_runs_steers_and_stops_a_search() {
    let python = nni_python();
    let bed = TestBed::new();
    bed.write("trial.py", TRIAL_SCRIPT);
    bed.write("search.py", LOCAL_SEARCH);
    let port = free_port().to_string();
    let (finished, output) = finish(&bed, &mut nni_command(&bed, &python, &["search.py", &port]));
    assert_eq!(finished.code, Some(0), "{output}{}", finished.stderr);
    let seen: Value =
        serde_json::from_str(output.lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    let expected = json!({
        "done": true, "id": true, "status": "DONE", "port": true, "results": 3,
        "states": ["SUCCEEDED", "SUCCEEDED", "SUCCEEDED"],
    });
    assert_eq!(seen, expected);
    assert_eq!(experiment_entry(&bed)["status"], "STOPPED");
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_python_api_connects_to_views_and_resumes_an_experiment() {
    let python = nni_python();
    let bed = TestBed::new();
    bed.write("trial.py", TRIAL_SCRIPT);
    bed.write("search.py", RETURN_TO_EXPERIMENT);
    let port = free_port().to_string();
    let (finished, output) = finish(&bed, &mut nni_command(&bed, &python, &["search.py", &port]));
    assert_eq!(finished.code, Some(0), "{output}{}", finished.stderr);
    let seen: Value =
        serde_json::from_str(output.lines().find(|line| line.starts_with("[[")).unwrap()).unwrap();
    let expected = json!([[true, "RUNNING"], ["VIEWED", true], [true, true], ["DONE", true]]);
    assert_eq!(seen, expected);
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn nnictl_creates_resumes_views_and_stops_experiments() {
    let python = nni_python();
    let bed = TestBed::new();
    bed.write("trial.py", TRIAL_SCRIPT);
    bed.write("config.yml", CONFIGURATION);
    bed.write("space.json", SEARCH_SPACE);
    let ctl = |line: &str| {
        let words: Vec<&str> = ["nnictl"].into_iter().chain(line.split(' ')).collect();
        let (finished, output) = finish(&bed, &mut nni_command(&bed, &python, &words));
        assert_eq!(finished.code, Some(0), "nnictl {line}: {output}{}", finished.stderr);
        output
    };
    let port = free_port();
    let output = ctl(&format!("create -c config.yml -p {port}"));
    assert!(output.contains("Web portal URLs"), "{output}");
    let id = experiment_entry(&bed)["id"].as_str().unwrap().to_owned();
    wait_for("the search to be done", WAIT_TIMEOUT, || {
        (experiment_entry(&bed)["status"] == "DONE").then_some(())
    });
    assert!(ctl("experiment list").contains(&format!("Id: {id}")));
    assert!(ctl("experiment status").contains("\"status\":\"DONE\""));
    assert_eq!(ctl("trial ls").matches("SUCCEEDED").count(), 2);
    assert!(ctl("config show").contains("\"maxTrialNumber\": 2"));
    ctl("experiment export -t json -f out.json");
    assert_eq!(bed.read("out.json").matches("trialJobId").count(), 2);
    assert!(ctl(&format!("stop {id}")).contains("Stop experiment success"));
    assert_eq!(experiment_entry(&bed)["status"], "STOPPED");
    // The next port may belong to another program, because the trials run on this machine.
    assert!(ctl(&format!("experiment save {id} --path saved")).contains("success"));
    let (_taken, port) = port_before_used_one();
    ctl(&format!("resume {id} -p {port}"));
    assert!(ctl("experiment show").contains(&id));
    // As in NNI, a search that is done continues with a wider limit.
    ctl(&format!("update trialnum {id} --value 3"));
    let trials = || ctl("trial ls").matches("SUCCEEDED").count();
    wait_for("another trial", WAIT_TIMEOUT, || (trials() == 3).then_some(()));
    ctl("stop -a");
    ctl(&format!("view {id} -p {}", free_port()));
    assert!(ctl("experiment status").contains("VIEWED"));
    ctl("stop");
    assert_eq!(experiment_entry(&bed)["status"], "STOPPED");
    bed.wait_until_empty();
}

/// The documented example on a scripted cluster. `changes` are inserted before its last line.
struct DocumentedExample {
    bed: TestBed,
    kube: Kube,
}

impl DocumentedExample {
    /// Creates the example. `sdk` is the script of the pods' image, which provides the `nni` that the trial
    /// imports.
    fn new(sdk: &str, changes: &str) -> Self {
        let bed = TestBed::new();
        let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
        kube.write_kubeconfig(&bed.path("kubeconfig"));
        bed.write("trial.py", TRIAL_SCRIPT);
        bed.write("model.py", sdk);
        let before = "search_space = {'x': {'_type': 'uniform', '_value': [0, 1]}}\n";
        let run = format!("{changes}experiment.run({})", free_port());
        let example = DOCUMENTED_EXAMPLE.replace("experiment.run(8080)", &run);
        bed.write("search.py", &format!("{before}{example}"));
        Self { bed, kube }
    }

    /// Runs the example. Returns its output with the manager's log.
    fn run(&self, command: &mut Command) -> String {
        command.env("KUBECONFIG", self.bed.path("kubeconfig"));
        command.env("TRIAL_MANAGER_HOST", "127.0.0.1");
        let (finished, output) = finish(&self.bed, command);
        let log = self.bed.path("home/nni-experiments/_latest/log/nnimanager.log");
        let log = fs::read_to_string(log).unwrap_or_default();
        let output = format!("{output}{}{log}", finished.stderr);
        assert_eq!(finished.code, Some(0), "{output}");
        let frameworks = self.kube.created_objects("frameworks");
        assert_eq!(frameworks.len(), 10 + 1, "the additional one tests the controller: {output}");
        self.bed.wait_until_empty();
        output
    }

    /// Returns the specification of the last pod.
    fn pod(&self) -> Value {
        let frameworks = self.kube.created_objects("frameworks");
        let framework = frameworks.last().unwrap();
        framework["spec"]["taskRoles"][0]["task"]["pod"]["spec"].clone()
    }

    fn expect_nfs_and_limits(&self) {
        let pod = self.pod();
        let volumes = pod["volumes"].as_array().unwrap();
        let share = volumes.iter().find_map(|volume| volume.get("nfs")).unwrap();
        assert_eq!(*share, json!({"server": "10.20.30.40", "path": "/mnt/nfs/nni"}));
        let limits = &pod["containers"][0]["resources"]["limits"];
        assert_eq!(limits["memory"], "4096Mi", "{limits}");
        assert_eq!(limits["nvidia.com/gpu"], "1", "{limits}");
    }
}

/// Returns a command with `trialkeeper-nni` from its source, in the bed's folder. NNI's package is not
/// installed in this Python.
fn trialkeeper_nni_command(bed: &TestBed, words: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(words).current_dir(bed.folder()).env("HOME", bed.path("home"));
    command.env("PYTHONPATH", python_path()).env("TRIALKEEPER_PROGRAMS", bed.program_folder());
    command.env("TRIAL_MANAGER_DATA_DIR", bed.data_folder());
    command
}

fn python_path() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    format!("{0}/python/src:{0}/python/nni/src", root.display())
}

/// Returns a pod's script that runs `trial.py` with the SDK of `trialkeeper-nni`.
fn script_with_own_sdk() -> String {
    format!(
        "import runpy, sys\nsys.path[:0] = '{}'.split(':')\nrunpy.run_path('trial.py')\n",
        python_path()
    )
}

/// Returns a pod's script that runs `trial.py` with NNI's SDK.
fn script_with_nni_sdk(python: &Path) -> String {
    let python = python.display();
    format!("import os\nos.execv('{python}', ['{python}', 'trial.py'])\n")
}

/// A change that replaces NFS by Azure, and sets an account for the pods.
const AZURE_CHANGES: &str = "\
from nni.experiment import K8sAzureStorageConfig
storage = K8sAzureStorageConfig()
storage.azure_account = 'account'
storage.azure_share = 'share'
storage.key_vault_name = 'vault'
storage.key_vault_key = 'key'
experiment.config.training_service.storage = storage
experiment.config.training_service.service_account_name = 'trials'
";

#[test]
#[ignore = "needs NNI from PyPI"]
fn the_documented_frameworkcontroller_example_runs_unchanged() {
    let python = nni_python();
    let example = DocumentedExample::new(&script_with_nni_sdk(&python), "");
    let output = example.run(&mut nni_command(&example.bed, &python, &["search.py"]));
    assert!(output.contains("DONE: 10 trials, 10 succeeded"), "{output}");
    assert!(output.contains("`gpuNumber` is taken as `gpu_number`"), "{output}");
    example.expect_nfs_and_limits();
}

#[test]
fn the_documented_example_runs_without_nni_s_package() {
    let example = DocumentedExample::new(&script_with_own_sdk(), "");
    let output = example.run(&mut trialkeeper_nni_command(&example.bed, &["search.py"]));
    assert_eq!(output.matches("`gpuNumber` is taken as `gpu_number`").count(), 1, "{output}");
    example.expect_nfs_and_limits();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn the_documented_example_runs_with_azure_and_an_account() {
    let python = nni_python();
    let of_nni = DocumentedExample::new(&script_with_nni_sdk(&python), AZURE_CHANGES);
    let from_nni = nni_command(&of_nni.bed, &python, &["search.py"]);
    let of_trialkeeper = DocumentedExample::new(&script_with_own_sdk(), AZURE_CHANGES);
    let command = trialkeeper_nni_command(&of_trialkeeper.bed, &["search.py"]);
    for (example, mut command) in [(of_nni, from_nni), (of_trialkeeper, command)] {
        // A replacement of Azure's command line, which returns the key of a vault.
        example.bed.write_script("tools/az", "#!/bin/sh\necho a2V5\n");
        let mut path = example.bed.path("tools").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap());
        command.env("PATH", path);
        example.run(&mut command);
        let pod = example.pod();
        assert_eq!(pod["serviceAccountName"], "trials");
        let volumes = pod["volumes"].as_array().unwrap();
        let share = volumes.iter().find_map(|volume| volume.get("azureFile")).unwrap();
        assert_eq!(share["shareName"], "share", "{share}");
    }
}

#[test]
fn trialkeeper_s_nnictl_runs_a_search_on_kubeflow() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    kube.remove_framework_kind();
    kube.write_kubeconfig(&bed.path("kubeconfig"));
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../manager/fixtures/config/kubeflow_v1.yml");
    let file = fs::read_to_string(file).unwrap();
    // Only the manager's address is specific to the site.
    bed.write("config-kubeflow-tf.yml", &file.replace("10.10.10.10", "127.0.0.1"));
    bed.write("ss.json", r#"{"x": {"_type": "uniform", "_value": [0, 1]}}"#);
    bed.write("trial.py", TRIAL_SCRIPT);
    bed.write("dist_mnist.py", &script_with_own_sdk());
    let ctl = |line: &str, code: i32| {
        let words: Vec<&str> = ["-m", "nni.nnictl"].into_iter().chain(line.split(' ')).collect();
        let mut command = trialkeeper_nni_command(&bed, &words);
        command.env("KUBECONFIG", bed.path("kubeconfig"));
        command.env("TRIAL_MANAGER_HOST", "127.0.0.1");
        let (finished, output) = finish(&bed, &mut command);
        let output = format!("{output}{}", finished.stderr);
        assert_eq!(finished.code, Some(code), "nnictl {line}: {output}");
        output
    };
    let port = free_port();
    // Scripts for NNI begin with `stop`, which must succeed without an experiment.
    assert!(ctl("stop", 0).contains("There is no experiment running"));
    let output = ctl(&format!("create -c config-kubeflow-tf.yml -p {port}"), 0);
    assert!(output.contains("Successfully started experiment!"), "{output}");
    assert!(ctl("log stderr", 0).contains("experiment "));
    assert!(ctl("log stdout", 0).contains("Experiment start time"));
    let status = || ctl("experiment status", 0);
    wait_for("the search to be done", WAIT_TIMEOUT, || status().contains("\"DONE\"").then_some(()));
    assert_eq!(ctl("trial ls", 0).matches("\"SUCCEEDED\"").count(), 5);
    assert!(ctl("experiment list", 0).contains("Platform: kubeflow"));
    assert!(ctl("stop", 0).contains("Stop experiment success"));
    kube.wait_until_empty();
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_failed_start_is_reported_and_leaves_no_process() {
    let python = nni_python();
    let bed = TestBed::new();
    bed.write("trial.py", TRIAL_SCRIPT);
    bed.write("config.yml", &CONFIGURATION.replace("Random", "Rndom"));
    bed.write("space.json", SEARCH_SPACE);
    let port = free_port().to_string();
    let create = ["nnictl", "create", "-c", "config.yml", "-p", &port];
    let (finished, output) = finish(&bed, &mut nni_command(&bed, &python, &create));
    assert_ne!(finished.code, Some(0));
    assert!(output.contains("tuner.name"), "{output}{}", finished.stderr);
    bed.wait_until_empty();

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut node = bed.manager_command();
    node.args(["nni-node", "/p/main.js", "--port", &port, "--experiment-id", "abc"]);
    node.args(["--action", "create", "--experiments-directory"]).arg(bed.data_folder());
    let finished = bed.start(&mut node).finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(2));
    assert!(
        finished.stderr.contains(&format!("cannot listen on port {port}")),
        "{}",
        finished.stderr
    );
}
