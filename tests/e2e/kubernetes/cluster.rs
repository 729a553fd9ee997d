//! Searches on a cluster whose pods are containers, once for each kind of object that it serves.
//!
//! The environment selects the cluster.
//!
//! * A real cluster with the real controllers: `TRIALKEEPER_TEST_KUBECONFIG` is a kubeconfig, and
//!   `TRIALKEEPER_TEST_ADVERTISE` is the address (or address and port) at which pods reach this machine.
//!
//! * The scripted cluster with Docker as its kubelet: `TRIALKEEPER_TEST_DOCKER` is set.
//!
//! * The scripted cluster whose pods are processes: `TRIALKEEPER_TEST_PROCESSES` is set. It checks these
//!   tests themselves, as far as they need no container.
//!
//! `TRIALKEEPER_TEST_KINDS` restricts the kinds, for instance to `Job,JobSet`.
//!
//! Some tests need more of a cluster. A run on a cluster that lacks it leaves them out by name (`--skip NAME`):
//!
//! * `cluster::containers::` needs pods that are containers, and `TRIALKEEPER_TEST_AGENT_IMAGE`.
//!
//! * `a_request_that_no_node_can_meet` needs a real cluster, whose scheduler and admission decide.
//!
//! * On a real cluster, `in_a_queue` and `preempted` need `TRIALKEEPER_TEST_QUEUE`, a `LocalQueue` of Kueue with room
//!   for one pod of 0.1 CPU and 128 MiB. `preempted` also needs `TRIALKEEPER_TEST_PRIORITY`, a `WorkloadPriorityClass`
//!   above the default, for whose workloads the queue preempts others.
//!
//! * On a real cluster, `drained_node` needs an account that may patch nodes and create `pods/eviction`.
//!
//! For the first two, `TRIALKEEPER_TEST_IMAGE` is an image with `sh` and `python3` that can be pulled without
//! a login. `TRIALKEEPER_TEST_AGENT_IMAGE` is an image built from it with `Dockerfile.trial`.
//! The optional `TRIAL_MANAGER_AGENT` is the agent that pods fetch. A static agent (`cargo static`, used if
//! it exists) runs in any image.

mod containers;
mod disruptions;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, RunningProgram, Search, TestBed, wait_for};

/// Pulling an image may take long.
const CLUSTER_TIMEOUT: std::time::Duration = std::time::Duration::from_mins(10);

/// The kinds of objects that run trials: kind, API version, plural.
const KINDS: [(&str, &str, &str); 8] = [
    ("Framework", "frameworkcontroller.microsoft.com/v1", "frameworks"),
    ("Job", "batch/v1", "jobs"),
    ("JobSet", "jobset.x-k8s.io/v1alpha2", "jobsets"),
    ("TFJob", "kubeflow.org/v1", "tfjobs"),
    ("PyTorchJob", "kubeflow.org/v1", "pytorchjobs"),
    ("XGBoostJob", "kubeflow.org/v1", "xgboostjobs"),
    ("PaddleJob", "kubeflow.org/v1", "paddlejobs"),
    ("TrainJob", "trainer.kubeflow.org/v1alpha1", "trainjobs"),
];

/// Runs a test once for each kind that the cluster serves.
fn on_each_kind(test: impl Fn(&Cluster)) {
    on_kinds(&KINDS.map(|(kind, ..)| kind), test);
}

/// Runs a test once for each of these kinds that the cluster serves and `TRIALKEEPER_TEST_KINDS` contains. It must be
/// at least one.
fn on_kinds(kinds: &[&str], test: impl Fn(&Cluster)) {
    let mut cluster = Cluster::from_environment();
    let chosen = std::env::var("TRIALKEEPER_TEST_KINDS").unwrap_or_default();
    let is_chosen = |kind| chosen.is_empty() || chosen.split(',').any(|name| name == kind);
    let mut tested = 0;
    for (kind, version, plural) in KINDS {
        if kinds.contains(&kind) && is_chosen(kind) && cluster.has_kind(version, plural) {
            cluster.kind = kind;
            print_kind(kind);
            test(&cluster);
            tested += 1;
        }
    }
    assert!(
        tested > 0,
        "the cluster serves none of {kinds:?}, or TRIALKEEPER_TEST_KINDS omits them"
    );
}

/// The cluster of the environment.
struct Cluster {
    /// The kind that runs the trials now.
    kind: &'static str,
    kubeconfig: String,
    image: String,
    /// If set, the pods are containers.
    contains: bool,
    agent_image: Option<String>,
    advertise: String,
    scripted: Option<(Kube, TempDir)>,
    /// A lock that lets only one test run at a time: the port may be fixed, and a test cluster is small.
    _lock: File,
}

impl Cluster {
    /// Finds the cluster of the environment.
    fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let needed = |name| variable(name).unwrap_or_else(|| panic!("{name} is not set"));
        let real = variable("TRIALKEEPER_TEST_KUBECONFIG");
        let contains = variable("TRIALKEEPER_TEST_DOCKER").is_some();
        let wanted = contains || variable("TRIALKEEPER_TEST_PROCESSES").is_some();
        assert!(
            real.is_some() || wanted,
            "neither TRIALKEEPER_TEST_KUBECONFIG nor TRIALKEEPER_TEST_DOCKER is set"
        );
        let image = if real.is_some() || contains {
            needed("TRIALKEEPER_TEST_IMAGE")
        } else {
            "any".to_owned()
        };
        let cluster_lock =
            File::create(std::env::temp_dir().join("trialkeeper-test-cluster.lock")).unwrap();
        cluster_lock.lock().unwrap();
        let (kubeconfig, advertise, scripted) = if let Some(kubeconfig) = real {
            let kubeconfig = fs::canonicalize(&kubeconfig);
            let kubeconfig =
                kubeconfig.unwrap_or_else(|error| panic!("TRIALKEEPER_TEST_KUBECONFIG: {error}"));
            (kubeconfig, needed("TRIALKEEPER_TEST_ADVERTISE"), None)
        } else {
            let folder = tempfile::tempdir().unwrap();
            let behavior = if contains { Behavior::Containers } else { Behavior::Processes };
            let kube = Kube::start(folder.path(), move |_| behavior.clone());
            let kubeconfig = folder.path().join("kubeconfig");
            kube.write_kubeconfig(&kubeconfig);
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            (kubeconfig, free.to_string(), Some((kube, folder)))
        };
        Self {
            kind: "Job",
            kubeconfig: kubeconfig.display().to_string(),
            image,
            contains: contains || scripted.is_none(),
            agent_image: variable("TRIALKEEPER_TEST_AGENT_IMAGE"),
            advertise,
            scripted,
            _lock: cluster_lock,
        }
    }

    fn role(&self, name: &str) -> Value {
        json!({
            "name": name, "dockerImage": self.image, "taskNumber": 1,
            "cpuNumber": 0.1, "memorySize": "128mb",
        })
    }

    /// Returns `true` if the cluster serves a kind.
    fn has_kind(&self, version: &str, plural: &str) -> bool {
        if self.scripted.is_some() {
            return true;
        }
        let mut kubectl = Command::new("kubectl");
        kubectl.args([
            "--kubeconfig",
            &self.kubeconfig,
            "get",
            "--raw",
            &format!("/apis/{version}"),
        ]);
        let output = kubectl.output().expect("kubectl is installed");
        let known: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let known = known["resources"].as_array().into_iter().flatten();
        known.into_iter().any(|resource| resource["name"] == plural)
    }

    /// Returns the section for trials with these roles, as objects of the kind.
    fn service_section(&self, roles: &Value) -> Value {
        let mut service = json!({
            "kubeconfig": self.kubeconfig, "imagePullPolicy": "IfNotPresent", "startUpDeadline": "5m",
        });
        let mut roles = roles.as_array().cloned().unwrap_or_default();
        if self.kind == "JobSet" && roles.len() == 1 {
            let mut server = roles[0].clone();
            server["name"] = json!("ps");
            server["command"] = json!("sleep 600");
            roles.push(server);
        }
        let operator = match self.kind {
            "TFJob" => "tf-operator",
            "PyTorchJob" => "pytorch-operator",
            "XGBoostJob" => "xgboost-operator",
            "PaddleJob" => "paddle-operator",
            _ => {
                service["platform"] = json!(match self.kind {
                    "Framework" => "frameworkcontroller",
                    "TrainJob" => "trainer",
                    _ => "kubernetes",
                });
                service["taskRoles"] = json!(roles);
                return service;
            }
        };
        (service["platform"], service["operator"]) = (json!("kubeflow"), json!(operator));
        for mut role in roles {
            let name = match (self.kind, role["name"].take()) {
                ("PyTorchJob" | "XGBoostJob", _) => "master".to_owned(),
                (_, name) => name.as_str().unwrap_or_default().to_owned(),
            };
            let fields = role.as_object_mut().unwrap();
            fields.remove("name");
            let pods = fields.remove("taskNumber").unwrap_or(json!(1));
            fields.insert("replicas".to_owned(), pods);
            service[name] = role;
        }
        service
    }

    fn search(&self, command: &str, trials: u32, roles: &Value) -> Search {
        let search = Search::new(command, trials).with("objective", "score");
        search.with("trainingService", self.service_section(roles))
    }

    fn single_role_search(&self, command: &str, trials: u32) -> Search {
        self.search(command, trials, &json!([self.role("worker")]))
    }

    /// Adds the address to listen on, and the agent for pods.
    fn add_addresses(&self, command: &mut Command) {
        let port = self.advertise.rsplit_once(':').map(|(_, port)| port);
        let port = port.filter(|port| port.parse::<u16>().is_ok()).unwrap_or("0");
        command.args(["--port", port, "--advertise", &self.advertise]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let target = format!("target/{}-unknown-linux-musl", std::env::consts::ARCH);
        let fixed = root.join(target).join("dist/trialkeeper");
        if std::env::var_os("TRIAL_MANAGER_AGENT").is_none() && fixed.is_file() {
            command.arg("--agent").arg(fixed);
        }
    }

    fn start(&self, bed: &TestBed, search: &Search) -> RunningProgram {
        let mut command = bed.manager_command();
        command.arg("run").arg(search.write(bed));
        self.start_manager(bed, command)
    }

    fn resume(&self, bed: &TestBed, id: &str) -> RunningProgram {
        let mut command = bed.manager_command();
        command.args(["resume", id]);
        self.start_manager(bed, command)
    }

    fn start_manager(&self, bed: &TestBed, mut command: Command) -> RunningProgram {
        command.args(["--output", "json", "--data-dir"]).arg(bed.data_folder());
        self.add_addresses(&mut command);
        bed.start(&mut command)
    }

    fn run(&self, bed: &TestBed, search: &Search) -> Outcome {
        let outcome = Outcome::parse(self.start(bed, search).finish(CLUSTER_TIMEOUT));
        self.expect_clean(bed);
        outcome
    }

    fn expect_containers(&self) {
        assert!(self.contains, "the pods of this cluster are not containers");
    }

    /// Waits until the cluster contains no object of this bed's experiments.
    fn expect_clean(&self, bed: &TestBed) {
        for folder in fs::read_dir(bed.data_folder()).into_iter().flatten().flatten() {
            let id = folder.file_name().into_string().unwrap();
            wait_for("a clean cluster", CLUSTER_TIMEOUT, || {
                self.remaining_objects(&id).is_empty().then_some(())
            });
        }
    }

    /// Returns the remaining objects of an experiment: those with its label, and the controller's own by
    /// their names.
    fn remaining_objects(&self, id: &str) -> Vec<String> {
        if let Some((kube, _)) = &self.scripted {
            let kinds = KINDS.iter().map(|(_, _, plural)| *plural);
            let kinds = kinds.chain(["trainingruntimes", "secrets", "pods", "configmaps"]);
            let all = kinds.flat_map(|kind| kube.list(kind));
            let names = all.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
            return names.filter(|name| name.contains(id)).collect();
        }
        let listed = |kind: &str, label: &str| {
            let mut kubectl = Command::new("kubectl");
            kubectl.args(["--kubeconfig", &self.kubeconfig, "get", kind, "--output", "name"]);
            kubectl.args(["--selector", label]);
            let output = kubectl.output().expect("kubectl is installed");
            // An account that may run trials may lack the right to list all kinds.
            let names = String::from_utf8_lossy(&output.stdout).into_owned();
            names.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let own = format!("trialkeeper/experiment={id}");
        let kinds = KINDS.iter().filter(|(_, version, plural)| self.has_kind(version, plural));
        let mut kinds: Vec<String> = kinds
            .map(|(_, version, plural)| {
                format!("{plural}.{}", version.split('/').next().unwrap_or_default())
            })
            .collect();
        kinds.extend(["secrets", "pods"].map(str::to_owned));
        let maps = listed("configmaps", "FC_FRAMEWORK_NAME");
        let maps = maps.into_iter().filter(|name| name.contains(id));
        listed(&kinds.join(","), &own).into_iter().chain(maps).collect()
    }
}

fn print_kind(kind: &str) {
    #[expect(clippy::print_stderr, reason = "a failure belongs to one kind")]
    {
        eprintln!("as {kind}s");
    }
}

/// Waits until a trial runs, and returns the experiment's id.
fn wait_for_running_trial(bed: &TestBed) -> String {
    wait_for("a trial to run", CLUSTER_TIMEOUT, || {
        let folder = bed.find_experiment_folder()?;
        let database = rusqlite::Connection::open_with_flags(
            folder.join("trialkeeper.db"),
            rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
        );
        let query = "SELECT count(*) FROM trial WHERE state = 'RUNNING'";
        let count: i64 = database.ok()?.query_row(query, [], |row| row.get(0)).ok()?;
        (count > 0).then(|| bed.experiment_id())
    })
}

#[test]
#[ignore = "needs a cluster"]
fn trials_succeed_and_the_best_one_is_reported() {
    on_each_kind(|cluster| {
        let bed = TestBed::new();
        bed.write("code/train.py", "import sys\nprint('score=%s' % sys.argv[1], flush=True)\n");
        let search =
            cluster.single_role_search("python3 train.py {{x}}", 3).with("trialConcurrency", 2);
        let search = cluster.run(&bed, &search);
        search.expect_done(3, 0);
        for trial in &search.trials {
            assert_eq!(trial.final_result, trial.parameters["x"], "{trial:?}");
        }
    });
}

#[test]
#[ignore = "needs a cluster"]
fn a_failure_has_its_exit_code() {
    on_each_kind(|cluster| {
        let bed = TestBed::new();
        let search =
            cluster.run(&bed, &cluster.single_role_search("echo 'ValueError: no' >&2; exit 7", 1));
        search.expect_done(0, 1);
        assert!(search.stderr.contains("FAILED (exit code 7)"), "{}", search.stderr);
        assert!(search.stderr.contains("ValueError: no"), "{}", search.stderr);
    });
}

#[test]
#[ignore = "needs a real cluster"]
fn a_request_that_no_node_can_meet_is_reported() {
    on_each_kind(|cluster| {
        assert!(cluster.scripted.is_none(), "the scripted cluster does not schedule or admit pods");
        let role = cluster.role("worker");
        let mut large = role.clone();
        large["gpuNumber"] = json!(999);
        for (role, changes, code, message) in [
            (large, json!({}), 1, "Insufficient nvidia.com/gpu"),
            // The error comes at once. If the account may not test pods, it comes when no pod of the trial
            // can be created.
            (role, json!({"serviceAccountName": "nobody.there"}), 2, "service account"),
        ] {
            let bed = TestBed::new();
            let mut service = cluster.service_section(&json!([role]));
            service["startUpDeadline"] = json!("45s");
            for (name, value) in changes.as_object().unwrap() {
                service[name] = value.clone();
            }
            let search = cluster.single_role_search("true", 1).with("trainingService", service);
            let finished = cluster.start(&bed, &search).finish(CLUSTER_TIMEOUT);
            assert!([Some(1), Some(code)].contains(&finished.code), "{}", finished.stderr);
            assert!(finished.stderr.contains(message), "{message:?} is not in {}", finished.stderr);
        }
    });
}

#[test]
#[ignore = "needs a cluster"]
fn two_roles_find_each_other_and_the_first_one_reports() {
    on_kinds(&["Framework", "JobSet", "TFJob"], |cluster| {
        let bed = TestBed::new();
        let (mut worker, mut server) = (cluster.role("worker"), cluster.role("ps"));
        worker["command"] = json!("test -n \"$FB_PS_ADDRESSES\" && echo \"score={{x}}\"");
        server["command"] = json!("echo score=99; sleep 600");
        let search = cluster.run(&bed, &cluster.search("true", 1, &json!([worker, server])));
        search.expect_done(1, 0);
        assert_eq!(search.trials[0].final_result, search.trials[0].parameters["x"]);
    });
}

#[test]
#[ignore = "needs a cluster"]
fn a_search_that_is_stopped_leaves_a_clean_cluster_and_can_be_resumed() {
    on_each_kind(|cluster| {
        let bed = TestBed::new();
        let manager =
            cluster.start(&bed, &cluster.single_role_search("sleep 15; echo \"score={{x}}\"", 1));
        let id = wait_for_running_trial(&bed);
        manager.signal(Signal::SIGINT);
        let finished = manager.finish(CLUSTER_TIMEOUT);
        assert_eq!(finished.code, Some(130), "{}", finished.stderr);
        assert!(!finished.stderr.contains("may remain in the cluster"), "{}", finished.stderr);
        cluster.expect_clean(&bed);
        Outcome::parse(cluster.resume(&bed, &id).finish(CLUSTER_TIMEOUT)).expect_done(1, 0);
    });
}

#[test]
#[ignore = "needs a cluster"]
fn a_manager_that_was_killed_adopts_its_pods() {
    on_each_kind(|cluster| {
        let bed = TestBed::new();
        let steady = "for i in 1 2 3 4 5 6; do echo \"score=$i\"; sleep 3; done";
        let manager = cluster.start(&bed, &cluster.single_role_search(steady, 1));
        let id = wait_for_running_trial(&bed);
        manager.signal(Signal::SIGKILL);
        drop(manager.finish(CLUSTER_TIMEOUT));
        let search = Outcome::parse(cluster.resume(&bed, &id).finish(CLUSTER_TIMEOUT));
        search.expect_done(1, 0);
        let all: Vec<Value> = (1..=6).map(Value::from).collect();
        assert_eq!(search.trials[0].intermediate, all, "a metric is lost, or the trial ran twice");
    });
}

/// Starts a command on this bed's data folder.
fn start_on_data_folder(bed: &TestBed, words: &[&str]) -> RunningProgram {
    let mut command = bed.manager_command();
    command.args(words).arg("--data-dir").arg(bed.data_folder());
    bed.start(&mut command)
}

#[test]
#[ignore = "needs a cluster"]
fn clean_removes_the_objects_of_a_killed_manager() {
    on_each_kind(|cluster| {
        let bed = TestBed::new();
        let manager = cluster
            .start(&bed, &cluster.single_role_search("sleep 600", 2).with("trialConcurrency", 2));
        let id = wait_for_running_trial(&bed);
        manager.signal(Signal::SIGKILL);
        drop(manager.finish(CLUSTER_TIMEOUT));
        assert!(!cluster.remaining_objects(&id).is_empty(), "the trials must keep running");
        let cleaned = start_on_data_folder(&bed, &["clean", &id]).finish(CLUSTER_TIMEOUT);
        assert_eq!(cleaned.code, Some(0), "{}", cleaned.stderr);
        cluster.expect_clean(&bed);
    });
}

#[test]
#[ignore = "needs a cluster"]
fn a_running_trial_is_followed_and_another_is_stopped() {
    on_each_kind(|cluster| {
        let bed = TestBed::new();
        // The first trial prints lines and ends. The second never ends.
        let line = "if [ \"$NNI_TRIAL_SEQ_ID\" = 1 ]; then sleep 600; fi; \
                for i in 1 2 3 4 5; do echo \"line $i\"; sleep 1; done; echo \"score={{x}}\"";
        let search = cluster.single_role_search(line, 2).with("trialConcurrency", 2);
        let manager = cluster.start(&bed, &search);
        wait_for_running_trial(&bed);
        let followed = start_on_data_folder(&bed, &["trial", "logs", "-f", "0"]);
        let stopped = wait_for("the second trial", CLUSTER_TIMEOUT, || {
            let running = start_on_data_folder(
                &bed,
                &["trial", "ls", "--state", "RUNNING", "--output", "json"],
            );
            let stdout = running.finish(CLUSTER_TIMEOUT).stdout;
            let all: Value = serde_json::from_slice(&stdout).ok()?;
            let all = all.get("trials").unwrap_or(&all).as_array()?.clone();
            all.iter()
                .any(|trial| trial["sequence"] == 1)
                .then(|| start_on_data_folder(&bed, &["trial", "stop", "1"]))
        });
        assert_eq!(stopped.finish(CLUSTER_TIMEOUT).code, Some(0));
        let search = Outcome::parse(manager.finish(CLUSTER_TIMEOUT));
        assert!(search.stderr.contains("USER_CANCELED"), "{}", search.stderr);
        let followed = followed.finish(CLUSTER_TIMEOUT);
        let stdout = String::from_utf8_lossy(&followed.stdout).into_owned();
        assert_eq!(followed.code, Some(0), "{}", followed.stderr);
        for line in ["line 1\n", "line 5\n", "score="] {
            assert!(stdout.contains(line), "{line:?} is not in {stdout}");
        }
        cluster.expect_clean(&bed);
    });
}

#[test]
#[ignore = "needs a cluster"]
fn a_probe_runs_like_a_trial() {
    on_each_kind(|cluster| {
        let bed = TestBed::new();
        let mut command = bed.manager_command();
        command
            .arg("doctor")
            .arg(cluster.single_role_search("echo score=1", 1).write(&bed))
            .arg("--probe");
        cluster.add_addresses(&mut command);
        let finished = bed.start(&mut command).finish(CLUSTER_TIMEOUT);
        let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
        assert_eq!(finished.code, Some(0), "{stdout}{}", finished.stderr);
        assert!(stdout.contains("ok    probe  a trial ran, and its agent reported"), "{stdout}");
        cluster.expect_clean(&bed);
    });
}
