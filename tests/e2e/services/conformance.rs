//! The scenario that every training service must pass: the conformance test of plugins, on a plugin whose platform is a
//! manager with the service, and the ends of trials. Tests of one service's own features and errors are in its own
//! module.

use std::process::Command;

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Machines, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT};

use super::plugin::repository_root;

/// The cases of the conformance test that depend on the kind of Kubernetes object. All kinds share the rest of the
/// code.
const KIND_CASES: [&str; 4] =
    ["exit code of a job", "gracefully", "finds its jobs again", "while no process ran"];

/// Creates a module for each service, with a test for each part of the scenario.
macro_rules! services {
    ($($(#[$needs:meta])? $module:ident: $service:literal, $cases:expr;)*) => {$(
        mod $module {
            #[test]
            $(#[$needs])?
            fn a_trial_has_its_code_and_its_command_s_exit_code() {
                super::check_trial_ends($service);
            }

            #[test]
            $(#[$needs])?
            fn a_manager_on_the_service_passes_the_conformance_test() {
                super::check_conformance($service, $cases);
            }
        }
    )*};
}

// For Kubernetes, every kind of object that the scripted API server supports. Without a text, all cases run.
services! {
    local: "local", &[];
    frameworks: "frameworkcontroller", &super::KIND_CASES;
    jobs: "Job", &[];
    queued_jobs: "Job in a queue", &super::KIND_CASES;
    job_sets: "JobSet", &super::KIND_CASES;
    tf_jobs: "TFJob", &super::KIND_CASES;
    pytorch_jobs: "PyTorchJob", &super::KIND_CASES;
    xgboost_jobs: "XGBoostJob", &super::KIND_CASES;
    paddle_jobs: "PaddleJob", &super::KIND_CASES;
    train_jobs: "TrainJob", &super::KIND_CASES;
    #[ignore = "needs sshd"]
    remote: "remote", &[];
}

/// A bed with a training service.
struct ServiceBed {
    bed: TestBed,
    service: &'static str,
    kube: Option<Kube>,
}

impl ServiceBed {
    fn new(service: &'static str) -> Self {
        let bed = TestBed::new();
        let kube = (!["local", "remote"].contains(&service)).then(|| {
            let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
            kube.set_queue_quota(2);
            kube.create_queue("team");
            kube.write_kubeconfig(&bed.path("kubeconfig"));
            kube
        });
        Self { bed, service, kube }
    }

    fn search(&self, command: &str, trials: u32) -> Search {
        let section = self.section();
        Search::new(command, trials).with("objective", "score").with("trainingService", section)
    }

    /// Returns the section of a service whose trials have one process, or one pod that reports.
    fn section(&self) -> Value {
        let mut section = self.platform_section();
        if self.kube.is_some() {
            section["kubeconfig"] = json!(self.bed.path("kubeconfig").display().to_string());
        }
        section
    }

    fn platform_section(&self) -> Value {
        let role = json!({"name": "worker", "dockerImage": "any"});
        let code = self.bed.path("code");
        let replica = json!({"replicas": 1, "dockerImage": "any", "codeDirectory": code});
        match self.service {
            "local" => json!({"platform": "local"}),
            "frameworkcontroller" => {
                json!({"platform": "frameworkcontroller", "taskRoles": [role]})
            }
            "Job" => json!({"platform": "kubernetes", "dockerImage": "any"}),
            "Job in a queue" => {
                json!({"platform": "kubernetes", "dockerImage": "any", "queue": "team"})
            }
            "JobSet" => {
                let never = json!({"minFailedTaskCount": 1, "minSucceedTaskCount": -1});
                let server = json!({
                    "name": "ps", "dockerImage": "any", "command": "exec sleep 600",
                    "frameworkAttemptCompletionPolicy": never,
                });
                json!({"platform": "kubernetes", "taskRoles": [role, server]})
            }
            "TFJob" => {
                json!({"platform": "kubeflow", "operator": "tf-operator", "worker": replica})
            }
            "PyTorchJob" => {
                json!({"platform": "kubeflow", "operator": "pytorch-operator", "master": replica})
            }
            "XGBoostJob" => {
                json!({"platform": "kubeflow", "operator": "xgboost-operator", "master": replica})
            }
            "PaddleJob" => {
                json!({"platform": "kubeflow", "operator": "paddle-operator", "worker": replica})
            }
            "TrainJob" => json!({"platform": "trainer", "dockerImage": "any"}),
            "remote" => {
                let mut machine = Machines::new(&self.bed).add("one");
                machine["maxTrialNumber"] = json!(MAX_TRIALS);
                // The same grace period as that of the conformance test.
                let conf =
                    self.bed.read("one.conf").replace("SetEnv ", "SetEnv TRIALKEEPER_GRACE=3s ");
                self.bed.write("one.conf", &conf);
                json!({"platform": "remote", "machineList": [machine]})
            }
            other => panic!("{other}: unknown service"),
        }
    }

    /// Starts a command. Pods are processes of this machine, so they reach the manager over loopback.
    fn start(&self, mut command: Command) -> RunningProgram {
        if self.kube.is_some() {
            command.args(["--host", "127.0.0.1"]);
        }
        self.bed.start(&mut command)
    }

    /// Checks that no process runs and no object remains.
    fn expect_clean(&self) {
        self.bed.wait_until_empty();
        if let Some(kube) = &self.kube {
            kube.wait_until_empty();
        }
    }
}

/// The most concurrent trials in the conformance test: many at once, and the one that keeps the search running.
const MAX_TRIALS: usize = 30;
/// The number of cases that run at a time.
const PARALLEL_CASES: &str = "6";

/// The variable with which all cases run on every service. They take over a minute for each kind of object.
const ALL_CASES_VARIABLE: &str = "TRIALKEEPER_TEST_ALL_CASES";

/// Runs the conformance test of plugins on a plugin whose platform is a manager with this service.
fn check_conformance(service: &'static str, cases: &[&str]) {
    let cases = if std::env::var_os(ALL_CASES_VARIABLE).is_some() { &[] } else { cases };
    let service_bed = ServiceBed::new(service);
    let bed = &service_bed.bed;
    bed.write("code/data.txt", "");
    let section = service_bed.section();
    let kube = service_bed.kube.as_ref().inspect(|kube| kube.set_queue_quota(1000));
    let settings = json!({
        "manager": bed.manager_command().get_program().to_str(),
        "arguments": kube.map_or(json!([]), |_| json!(["--host", "127.0.0.1"])),
        "experiment": {
            "trialCodeDirectory": bed.path("code"), "trialConcurrency": MAX_TRIALS,
            "maxTrialNumber": 1000, "trainingService": section,
        },
        "waits": kube.is_some(),
    });
    let settings = bed.write("settings.json", &settings.to_string());
    let mut command = bed.manager_command();
    command.args(["conformance", "--parallel", PARALLEL_CASES, "--settings"]).arg(settings);
    command.args(cases.iter().flat_map(|case| ["--case", *case]));
    let module = format!("PYTHONPATH={}", repository_root().join("python/src").display());
    let program = repository_root().join("tests/e2e/services/manager_service.py");
    command.args(["--", "env", &module, "python3"]).arg(program);
    let finished = bed.start(command.current_dir(bed.folder())).finish(WAIT_TIMEOUT * 2);
    let stdout = String::from_utf8(finished.stdout).unwrap();
    assert_eq!(finished.code, Some(0), "{stdout}{}", finished.stderr);
    // Pods' agents cannot be killed from outside: the lock is the trial's.
    let skipped = stdout.lines().filter(|line| line.starts_with("- ")).count();
    let expected = usize::from(kube.is_some() && cases.is_empty());
    assert_eq!(skipped, expected, "{stdout}");
    service_bed.expect_clean();
}

/// A trial that ends by its number: with a result, a failure, a signal, or a missing program.
const ENDING_TRIAL: &str = r#"case $NNI_TRIAL_SEQ_ID in
0) cat data.txt && echo "score=$TRIALKEEPER_PARAM_x" ;;
1) echo "ValueError: no" >&2; exit 3 ;;
2) kill -9 $$ ;;
*) exec no-such-program ;;
esac"#;

fn check_trial_ends(service: &'static str) {
    let service_bed = ServiceBed::new(service);
    service_bed.bed.write("code/data.txt", "what the trial reads\n");
    let search = service_bed.search(ENDING_TRIAL, 4).with("trialConcurrency", 2);
    let search =
        Outcome::parse(service_bed.start(search.command(&service_bed.bed)).finish(WAIT_TIMEOUT));
    search.expect_done(1, 3);
    assert_eq!(search.trial(0).final_result, search.trial(0).parameters["x"]);
    for (sequence, reason) in [(1, "exit code 3"), (2, "exit code 137"), (3, "exit code 127")] {
        let message = format!("trial {sequence} ({}) FAILED ({reason})", search.trial(sequence).id);
        assert!(search.stderr.contains(&message), "{message:?} is not in {}", search.stderr);
    }
    assert!(search.stderr.contains("ValueError: no"), "{}", search.stderr);
    service_bed.expect_clean();
}
