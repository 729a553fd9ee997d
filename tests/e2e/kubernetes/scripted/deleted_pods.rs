//! Pods that are deleted: by the cluster, by a user, or together with their Framework.

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, RunningProgram, TestBed, WAIT_TIMEOUT, wait_for};

use super::{
    run_command, run_trial_command, search, search_with_service, service_section, trial_why,
};

/// A trial whose first run waits to be deleted. Its second run reports and succeeds.
const RETRIED_TRIAL: &str = r#"
n=$(cat "$TEST_BED/tries" 2>/dev/null); n=$((n + 1)); echo $n >"$TEST_BED/tries"
[ $n = 2 ] || exec sleep 600
echo "score=$n""#;

/// Starts a search. Returns the manager and the name of the pod, once the first trial runs.
fn start_one(bed: &TestBed, kube: &Kube, retries: u32) -> (RunningProgram, String) {
    let search = search(bed, kube, RETRIED_TRIAL, 1).with("maxTrialRetries", retries);
    let manager = bed.start(&mut run_command(bed, &search));
    wait_for("the trial to run", WAIT_TIMEOUT, || (bed.read("tries") == "1\n").then_some(()));
    let pod = kube.list("pods").remove(0)["metadata"]["name"].as_str().unwrap().to_owned();
    (manager, pod)
}

#[test]
fn a_disrupted_pod_is_preempted_with_the_cluster_s_message() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let (manager, pod) = start_one(&bed, &kube, 0);
    let words = "default-scheduler: preempting to accommodate a higher priority pod";
    kube.disrupt_pod(&pod, "PreemptionByScheduler", words);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    let why = format!(
        "its pod was removed: a pod of higher priority needed its resources (PreemptionByScheduler: {words})"
    );
    let message = format!("SYS_CANCELED (exit code 143): {why}");
    assert!(search.stderr.contains(&message), "{}", search.stderr);
    kube.wait_until_empty();

    let explanation = trial_why(&bed);
    let platform = format!("platform PreemptionByScheduler: {words}");
    for part in ["cause preempted", "class transient", &platform] {
        assert!(explanation.contains(part), "{part:?} is not in {explanation}");
    }
    let found = run_trial_command(&bed, &["ls", "--cause", "preempted", "--output", "json"]);
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let found = found.get("trials").unwrap_or(&found);
    assert_eq!(found[0]["message"], json!(why), "{found}");
}

#[test]
fn disrupted_and_deleted_trials_are_tried_again() {
    for (case, reason) in [("drained", Some("EvictionByEvictionAPI")), ("deleted", None)] {
        let bed = TestBed::new();
        let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
        let (manager, pod) = start_one(&bed, &kube, 1);
        match reason {
            Some(reason) => kube.disrupt_pod(&pod, reason, "Eviction API: evicting"),
            None => kube.delete_object("pods", &pod),
        }
        let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
        search.expect_done(1, 0);
        assert_eq!(search.trial(0).final_result, 2, "{case}");
        // Both causes are transient.
        let cause = if reason.is_some() {
            "its pod was removed: "
        } else {
            "the trial's pod was deleted, but not by the manager"
        };
        let explanation = trial_why(&bed);
        assert!(
            explanation.contains(cause) && explanation.contains("it is tried again (1 of 1)"),
            "{explanation}"
        );
        kube.wait_until_empty();
    }
}

#[test]
fn a_deleted_framework_ends_its_pods() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let (manager, pod) = start_one(&bed, &kube, 0);
    let framework = pod.split('-').next().unwrap();
    kube.delete_object("frameworks", framework);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    search.expect_done(0, 1);
    assert!(
        search.stderr.contains("FAILED: its Framework was deleted, but not by the manager"),
        "{}",
        search.stderr
    );
    bed.wait_until_empty();
    kube.wait_until_empty();
}

/// A trial of two pods. The first pod fails when it loses the second one, which ends after the first one's agent. The
/// next attempt succeeds.
const PEER_TRIAL: &str = r#"
cd "$TEST_BED"
[ ! -e again ] || { echo score=1; exit 0; }
if [ "$TRIALKEEPER_ROLE_INDEX" = 1 ]; then
    trap ': >again; rm peer; while kill -0 "$(cat agent)"; do sleep 0.05; done; exit 143' TERM
    : >peer
    while :; do sleep 0.05; done
fi
echo $PPID >agent
until [ -e peer ]; do sleep 0.05; done
: >up
while [ -e peer ]; do sleep 0.05; done
exit 1"#;

#[test]
fn a_pod_that_fails_because_its_peer_was_deleted_does_not_fail_the_trial() {
    for hand_over in ["verdict", "object"] {
        println!("{hand_over}");
        let bed = TestBed::new();
        let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
        let own = json!({"platform": "kubernetes", "dockerImage": "any", "taskNumber": 2});
        let section = service_section(&bed, own, &json!({"handOver": hand_over}));
        let search =
            search_with_service(&bed, &kube, PEER_TRIAL, 1, section).with("maxTrialRetries", 1);
        let manager = bed.start(&mut run_command(&bed, &search));
        wait_for("both pods to run", WAIT_TIMEOUT, || bed.path("up").exists().then_some(()));
        let pods = kube.list("pods").into_iter();
        let mut names = pods.filter_map(|pod| Some(pod["metadata"]["name"].as_str()?.to_owned()));
        let second = names.find(|name| name.contains("-1-")).expect("the second pod runs");
        kube.delete_object("pods", &second);
        let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
        search.expect_done(1, 0);
        let explanation = trial_why(&bed);
        let lost = format!("its pod {second} was deleted, but not by the manager, and another pod");
        for part in [lost.as_str(), "it is tried again (1 of 1)"] {
            assert!(explanation.contains(part), "{part:?} is not in {explanation}");
        }
        kube.wait_until_empty();
    }
}
