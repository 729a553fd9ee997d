//! The kinds of objects that run trials, and the scenarios that they share. The file of a kind names its scenarios and
//! contains the tests that are particular to it.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{
    TRIAL, expect_parameters_as_results, run, run_command, search_with_service, service_section,
    show_trial, start_cluster, trial_why,
};

/// A trial that records its start and runs until it is stopped.
pub(super) const ENDLESS_TRIAL: &str = "echo up >>\"$TEST_BED/up\"; exec sleep 600";

/// A trial that records its start, waits until the file `go` exists, and reports.
pub(super) const WAITING_TRIAL: &str =
    "echo up >>\"$TEST_BED/up\"; until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";

/// A kind of object that runs trials.
pub(super) struct WorkloadKind {
    pub(super) plural: &'static str,
    /// The beginning of the names of the kind's rights, as `Kube::used_rights` returns them.
    pub(super) rights: &'static str,
    /// The number of pods that run the trial's command.
    pub(super) pods: usize,
    /// Returns the section `trainingService` for a trial's command, without the fields that name the cluster.
    pub(super) section: fn(command: &str) -> Value,
}

pub(super) const FRAMEWORK: WorkloadKind = WorkloadKind {
    plural: "frameworks",
    rights: "frameworkcontroller.microsoft.com/",
    pods: 1,
    section: |_| json!({"platform": "frameworkcontroller", "taskRoles": [{"name": "worker", "dockerImage": "any"}]}),
};

pub(super) const JOB: WorkloadKind = WorkloadKind {
    plural: "jobs",
    rights: "batch/",
    pods: 1,
    section: |_| json!({"platform": "kubernetes", "dockerImage": "any"}),
};

/// A `JobSet` of two workers, and a parameter server that does not end.
pub(super) const JOB_SET: WorkloadKind = WorkloadKind {
    plural: "jobsets",
    rights: "jobset.x-k8s.io/jobsets ",
    pods: 2,
    section: |command| {
        let serve = "echo up >>\"$TEST_BED/served\"; exec sleep 600";
        let never = json!({"minFailedTaskCount": 1, "minSucceedTaskCount": -1});
        json!({"platform": "kubernetes", "metricsFrom": "worker", "taskRoles": [
            {"name": "ps", "dockerImage": "any", "command": serve, "frameworkAttemptCompletionPolicy": never},
            {"name": "worker", "dockerImage": "any", "taskNumber": 2, "command": command},
        ]})
    },
};

pub(super) const TF_JOB: WorkloadKind = WorkloadKind {
    plural: "tfjobs",
    rights: "kubeflow.org/tfjobs ",
    pods: 1,
    section: |_| {
        json!({
            "platform": "kubeflow", "operator": "tf-operator", "apiVersion": "v1",
            "worker": {"replicas": 1, "dockerImage": "any"},
        })
    },
};

pub(super) const TRAIN_JOB: WorkloadKind = WorkloadKind {
    plural: "trainjobs",
    rights: "trainer.kubeflow.org/",
    pods: 1,
    section: |_| json!({"platform": "trainer", "dockerImage": "any"}),
};

/// A case, the change of the cluster, and the words of the manager's error.
type Refusal<'a> = (&'a str, fn(&Kube), &'a [&'a str]);

impl WorkloadKind {
    /// Returns a search whose trials are objects of this kind. `changes` apply to the section `trainingService`.
    pub(super) fn search(
        &self,
        bed: &TestBed,
        kube: &Kube,
        command: &str,
        trials: u32,
        changes: &Value,
    ) -> Search {
        let section = service_section(bed, (self.section)(command), changes);
        search_with_service(bed, kube, command, trials, section)
    }

    /// Starts a search of one trial.
    pub(super) fn start(
        &self,
        bed: &TestBed,
        kube: &Kube,
        command: &str,
        changes: &Value,
    ) -> RunningProgram {
        bed.start(&mut run_command(bed, &self.search(bed, kube, command, 1, changes)))
    }

    /// Runs one search for each row of a table, on a cluster that is changed first. Each is refused with these
    /// words, and leaves no object.
    #[expect(clippy::print_stdout, reason = "the line names the failed case")]
    pub(super) fn expect_refusals(&self, table: &[Refusal<'_>]) {
        for (case, change, words) in table {
            println!("{case}");
            let bed = TestBed::new();
            let kube = start_cluster(&bed);
            change(&kube);
            expect_refusal(&bed, &self.search(&bed, &kube, "true", 1, &json!({})), words);
            kube.wait_until_empty();
        }
    }
}

/// Runs a search that the manager refuses before it submits anything, with these words.
pub(super) fn expect_refusal(bed: &TestBed, search: &Search, words: &[&str]) {
    let finished = bed.start(&mut run_command(bed, search)).finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is not in {}", finished.stderr);
    }
}

/// Returns `true` for an object of a trial, and `false` for one that tests the controller.
pub(super) fn is_of_trial(object: &Value) -> bool {
    object.pointer("/metadata/labels/trialkeeper~1trial").is_some()
}

/// Returns the name of the trial's object.
pub(super) fn trial_object_name(kube: &Kube, plural: &str) -> String {
    let object = kube.list(plural).into_iter().find(is_of_trial).expect("the trial is submitted");
    object["metadata"]["name"].as_str().expect("an object has a name").to_owned()
}

/// Waits until the trial's command was started `times` times, in all pods together.
pub(super) fn wait_for_starts(bed: &TestBed, times: usize) {
    bed.wait_for_lines("up", times);
}

/// Waits until the first trial has a state.
pub(super) fn wait_for_state(bed: &TestBed, state: &str) {
    wait_for(state, WAIT_TIMEOUT, || (show_trial(bed)["state"] == state).then_some(()));
}

/// Takes the quota of a running trial of `pods` pods away, and gives it back once the pods are gone. The trial
/// runs [`WAITING_TRIAL`], or a command like it.
pub(super) fn preempt_once(bed: &TestBed, kube: &Kube, running: &RunningProgram, pods: usize) {
    wait_for_starts(bed, pods);
    wait_for_state(bed, "RUNNING");
    kube.set_queue_quota(0);
    running.wait_for_stderr("its queue took the trial back");
    wait_for("the end of the pods", WAIT_TIMEOUT, || kube.list("pods").is_empty().then_some(()));
    kube.set_queue_quota(1);
    wait_for_starts(bed, 2 * pods);
    bed.write("go", "");
}

/// Declares a test of a kind for each of these scenarios.
macro_rules! test_scenarios {
    ($kind:ident: $($scenario:ident),+ $(,)?) => {
        $(
            #[test]
            fn $scenario() {
                use crate::kubernetes::scripted::scenarios::{self, $kind};
                scenarios::$scenario(&$kind);
            }
        )+
    };
}
pub(super) use test_scenarios;

pub(super) fn a_search_runs_to_its_end_and_leaves_a_clean_cluster(kind: &WorkloadKind) {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    if kind.plural != FRAMEWORK.plural {
        kube.remove_framework_kind();
    }
    let search = kind.search(&bed, &kube, TRIAL, 4, &json!({})).with("trialConcurrency", 2);
    let outcome = run(&bed, &search);
    outcome.expect_done(4, 0);
    expect_parameters_as_results(&outcome);
    kube.wait_until_empty();
    // Two requests per trial, and a constant number for the search.
    let requests = kube.requests();
    let count = |what: &str| requests.iter().filter(|request| *request == what).count();
    let created = count(&format!("POST {}", kind.plural));
    assert_eq!(created, 4 + 1, "the additional one tests the controller: {requests:?}");
    let secrets = count("POST secrets");
    assert_eq!(secrets, 4 + 1, "the additional one is the experiment's: {requests:?}");
    assert_eq!(count(&format!("PATCH {}", kind.plural)), 0, "{requests:?}");
}

pub(super) fn a_failing_trial_has_its_exit_code_and_output(kind: &WorkloadKind) {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo 'ValueError: no' >&2; exit 3";
    let outcome = run(&bed, &kind.search(&bed, &kube, line, 1, &json!({})));
    outcome.expect_done(0, 1);
    for words in ["FAILED (exit code 3)", "ValueError: no"] {
        assert!(outcome.stderr.contains(words), "{words:?} is not in {}", outcome.stderr);
    }
    kube.wait_until_empty();
}

pub(super) fn the_image_of_a_trial_is_shown(kind: &WorkloadKind) {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    run(&bed, &kind.search(&bed, &kube, "echo score=1", 1, &json!({}))).expect_done(1, 0);
    let trial = show_trial(&bed);
    let image = trial["image"].as_str().expect("the image is known");
    assert!(image.starts_with("docker.io/library/busybox@sha256:6bbe3082"), "{image}");
}

pub(super) fn an_interrupted_search_ends_its_trial_and_all_pods(kind: &WorkloadKind) {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = kind.start(&bed, &kube, ENDLESS_TRIAL, &json!({}));
    wait_for_starts(&bed, kind.pods);
    running.signal(Signal::SIGINT);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    bed.wait_until_empty();
    kube.wait_until_empty();
}

pub(super) fn an_evicted_trial_is_tried_again(kind: &WorkloadKind) {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let search = kind.search(&bed, &kube, WAITING_TRIAL, 1, &json!({})).with("maxTrialRetries", 1);
    let running = bed.start(&mut run_command(&bed, &search));
    wait_for_starts(&bed, kind.pods);
    let pod = kube.list("pods")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    kube.disrupt_pod(&pod, "EvictionByEvictionAPI", "Eviction API: evicting");
    wait_for_starts(&bed, 2 * kind.pods);
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    assert_eq!(outcome.trial(0).final_result, json!(1));
    let explanation = trial_why(&bed);
    for words in ["EvictionByEvictionAPI", "it is tried again (1 of 1)"] {
        assert!(explanation.contains(words), "{words:?} is not in {explanation}");
    }
    kube.wait_until_empty();
}

pub(super) fn a_resumed_manager_adopts_the_trial_of_a_killed_one(kind: &WorkloadKind) {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = kind.start(&bed, &kube, WAITING_TRIAL, &json!({}));
    wait_for_starts(&bed, kind.pods);
    running.signal(Signal::SIGKILL);
    drop(running.finish(WAIT_TIMEOUT));
    let mut resume = Outcome::resume_command(&bed, &bed.experiment_id());
    let running = bed.start(resume.args(["--host", "127.0.0.1"]));
    bed.write("go", "");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    assert_eq!(bed.read("up").lines().count(), kind.pods, "the trial must keep running");
    kube.wait_until_empty();
}

pub(super) fn a_queue_admits_preempts_and_readmits_a_trial(kind: &WorkloadKind) {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.create_queue("team");
    kube.set_queue_quota(0);
    let running = kind.start(&bed, &kube, WAITING_TRIAL, &json!({"queue": "team"}));
    running.wait_for_stderr("it waits in its queue");
    let object = kube.get(kind.plural, &trial_object_name(&kube, kind.plural)).unwrap();
    let is_suspended = |field| object.pointer(field) == Some(&json!(true));
    assert!(["/spec/suspend", "/spec/runPolicy/suspend"].into_iter().any(is_suspended), "{object}");
    assert_eq!(kube.list("pods"), Vec::<Value>::new());
    kube.set_queue_quota(1);
    preempt_once(&bed, &kube, &running, kind.pods);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}

pub(super) fn the_deployed_role_suffices(kind: &WorkloadKind) {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let mut rights = crate::kubernetes::deploy::manager_rights();
    rights.retain(|right| right.starts_with('/') || right.starts_with(kind.rights));
    kube.limit_rights(rights);
    run(&bed, &kind.search(&bed, &kube, "echo score=1", 1, &json!({}))).expect_done(1, 0);
    kube.wait_until_empty();
}
