//! The scenario that every training service must pass. Tests of one service's own features and errors are in
//! its own module.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{BOUND, Gate, Machines, Outcome, Running, Search, TestBed, wait_for};

/// Creates a module for each service, with a test for each part of the scenario.
macro_rules! services {
    ($($(#[$needs:meta])? $module:ident: $service:literal;)*) => {$(
        mod $module {
            #[test]
            $(#[$needs])?
            fn a_trial_has_its_code_and_its_command_s_exit_code() {
                super::run_to_ends($service);
            }

            #[test]
            $(#[$needs])?
            fn a_resumed_manager_finds_its_trials() {
                super::resume_after_signal($service);
            }

            #[test]
            $(#[$needs])?
            fn a_stop_ends_only_its_trial() {
                super::stop_one($service);
            }
        }
    )*};
}

// For Kubernetes, every kind of object that the scripted API server supports.
services! {
    local: "local";
    frameworks: "frameworkcontroller";
    jobs: "Job";
    queued_jobs: "Job in a queue";
    job_sets: "JobSet";
    tf_jobs: "TFJob";
    pytorch_jobs: "PyTorchJob";
    xgboost_jobs: "XGBoostJob";
    paddle_jobs: "PaddleJob";
    train_jobs: "TrainJob";
    plugin: "plugin";
    #[ignore = "needs sshd"]
    remote: "remote";
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
        let kube = (!["local", "plugin", "remote"].contains(&service)).then(|| {
            let kube = Kube::start(bed.folder(), |_| Behavior::Pods);
            kube.set_quota(2);
            kube.create_queue("team");
            kube.kubeconfig(&bed.path("kubeconfig"));
            kube
        });
        Self { bed, service, kube }
    }

    fn search(&self, command: &str, trials: u32) -> Search {
        let mut section = self.section();
        if self.kube.is_some() {
            section["kubeconfig"] = json!(self.bed.path("kubeconfig").display().to_string());
        }
        Search::new(command, trials).with("objective", "score").with("trainingService", section)
    }

    /// Returns the section of a service whose trials have one process, or one pod that reports.
    fn section(&self) -> Value {
        let role = json!({"name": "worker", "dockerImage": "any"});
        let replica = json!({"replicas": 1, "dockerImage": "any", "codeDirectory": "code"});
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
            "plugin" => super::plugin::processes(),
            "remote" => {
                let machine = Machines::new(&self.bed).add("one");
                json!({"platform": "remote", "machineList": [machine]})
            }
            other => panic!("{other}: unknown service"),
        }
    }

    /// Starts a command. Pods are processes of this machine, so they reach the manager over loopback.
    fn start(&self, mut command: Command) -> Running {
        if self.kube.is_some() {
            command.args(["--host", "127.0.0.1"]);
        }
        self.bed.start(&mut command)
    }

    fn id(&self) -> String {
        let folder = fs::read_dir(self.bed.data()).unwrap().next().unwrap().unwrap();
        folder.file_name().into_string().unwrap()
    }

    /// Checks that no process runs and no object remains.
    fn expect_clean(&self) {
        self.bed.wait_until_empty();
        if let Some(kube) = &self.kube {
            kube.wait_until_empty();
        }
    }
}

/// A trial that ends by its number: with a result, a failure, a signal, or a missing program.
const ENDS: &str = r#"case $NNI_TRIAL_SEQ_ID in
0) cat data.txt && echo "score=$TRIALKEEPER_PARAM_x" ;;
1) echo "ValueError: no" >&2; exit 3 ;;
2) kill -9 $$ ;;
*) exec no-such-program ;;
esac"#;

fn run_to_ends(service: &'static str) {
    let service_bed = ServiceBed::new(service);
    service_bed.bed.write("code/data.txt", "what the trial reads\n");
    let search = service_bed.search(ENDS, 4).with("trialConcurrency", 2);
    let search = Outcome::of(service_bed.start(search.command(&service_bed.bed)).finish(BOUND));
    search.expect_done(1, 3);
    assert_eq!(search.trial(0).final_result, search.trial(0).parameters["x"]);
    for (sequence, reason) in [(1, "exit code 3"), (2, "exit code 137"), (3, "exit code 127")] {
        let message = format!("trial {sequence} ({}) FAILED ({reason})", search.trial(sequence).id);
        assert!(search.stderr.contains(&message), "{message:?} is not in {}", search.stderr);
    }
    assert!(search.stderr.contains("ValueError: no"), "{}", search.stderr);
    service_bed.expect_clean();
}

/// A trial that records its start, takes two steps through the gate, and cleans up on TERM.
const STEADY: &str = r#"
trap 'echo cleaned >>"$TEST_BED/cleaned"; exit 143' TERM
echo started >>"$TEST_BED/started"
for step in 1 2; do read _ <"$TEST_BED/gate"; echo "score=$step"; done"#;

/// Starts a search whose two trials run and wait at the gate.
fn start_two(service_bed: &ServiceBed) -> Running {
    let search = service_bed.search(STEADY, 2).with("trialConcurrency", 2);
    let manager = service_bed.start(search.command(&service_bed.bed));
    wait_for("two trials to start", BOUND, || {
        (service_bed.bed.read("started").lines().count() == 2).then_some(())
    });
    manager
}

fn resume_after_signal(service: &'static str) {
    for (signal, code, starts) in [(Signal::SIGINT, Some(130), 4), (Signal::SIGKILL, None, 2)] {
        let service_bed = ServiceBed::new(service);
        let bed = &service_bed.bed;
        let gate = Gate::new(&bed.path("gate"));
        let manager = start_two(&service_bed);
        let id = service_bed.id();
        manager.signal(signal);
        let finished = manager.finish(BOUND);
        assert_eq!(finished.code, code, "{signal}: {}", finished.stderr);
        if signal == Signal::SIGINT {
            assert_eq!(bed.read("cleaned").lines().count(), 2, "a trial could not clean up");
            service_bed.expect_clean();
        }
        gate.open(4);
        let manager = service_bed.start(Outcome::resume_command(bed, &id));
        let search = Outcome::of(manager.finish(BOUND));
        search.expect_done(2, 0);
        let all = [1, 2].map(Value::from);
        assert!(search.trials.iter().all(|trial| trial.intermediate == all), "{search:#?}");
        assert_eq!(bed.read("started").lines().count(), starts, "{signal}");
        service_bed.expect_clean();
    }
}

fn stop_one(service: &'static str) {
    let service_bed = ServiceBed::new(service);
    let bed = &service_bed.bed;
    let gate = Gate::new(&bed.path("gate"));
    let manager = start_two(&service_bed);
    let mut stop = bed.manager();
    stop.args(["trial", "kill", "0", "--data-dir"]).arg(bed.data());
    let stopped = bed.start(&mut stop).finish(BOUND);
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
    wait_for("the trial to be stopped", BOUND, || {
        (bed.read("cleaned").lines().count() == 1).then_some(())
    });
    gate.open(2);
    let search = Outcome::of(manager.finish(BOUND));
    #[rustfmt::skip]
    let ends = [
        (0, "USER_CANCELED", vec![]),
        (1, "SUCCEEDED",     vec![json!(1), json!(2)]),
    ];
    for (sequence, state, steps) in ends {
        let trial = search.trial(sequence);
        assert_eq!((trial.state.as_str(), &trial.intermediate), (state, &steps), "{search:#?}");
    }
    assert_eq!(search.trials.len(), 2, "{search:#?}");
    for what in [("started", 2), ("cleaned", 1)] {
        assert_eq!(bed.read(what.0).lines().count(), what.1, "{}", what.0);
    }
    service_bed.expect_clean();
}
