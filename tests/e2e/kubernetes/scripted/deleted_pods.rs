//! Pods that are deleted: by the cluster, by a user, or together with their Framework.

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{BOUND, Finished, Outcome, Running, TestBed, wait_for};

use super::{command, search};

/// A trial whose first run waits to be deleted. Its second run reports and succeeds.
const TWICE: &str = r#"
n=$(cat "$TEST_BED/tries" 2>/dev/null); n=$((n + 1)); echo $n >"$TEST_BED/tries"
[ $n = 2 ] || exec sleep 600
echo "score=$n""#;

/// Starts a search. Returns the manager and the name of the pod, once the first trial runs.
fn start_one(bed: &TestBed, kube: &Kube, retries: u32) -> (Running, String) {
    let search = search(bed, kube, TWICE, 1).with("maxTrialRetries", retries);
    let manager = bed.start(&mut command(bed, &search));
    wait_for("the trial to run", BOUND, || (bed.read("tries") == "1\n").then_some(()));
    let pod = kube.all("pods").remove(0)["metadata"]["name"].as_str().unwrap().to_owned();
    (manager, pod)
}

fn trial(bed: &TestBed, words: &[&str]) -> Finished {
    let mut command = bed.manager();
    command.arg("trial").args(words).arg("--data-dir").arg(bed.data());
    bed.start(&mut command).finish(BOUND)
}

/// Returns the output of `trial why` without line breaks.
pub(super) fn why(bed: &TestBed) -> String {
    let explanation = String::from_utf8(trial(bed, &["why", "0"]).stdout).unwrap();
    explanation.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_disrupted_pod_is_preempted_with_the_cluster_s_message() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Pods);
    let (manager, pod) = start_one(&bed, &kube, 0);
    let words = "default-scheduler: preempting to accommodate a higher priority pod";
    kube.disrupt(&pod, "PreemptionByScheduler", words);
    let search = Outcome::of(manager.finish(BOUND));
    let why = format!(
        "its pod was removed: a pod of higher priority needed its resources (PreemptionByScheduler: {words})"
    );
    let message = format!("SYS_CANCELED (exit code 143): {why}");
    assert!(search.stderr.contains(&message), "{}", search.stderr);
    kube.wait_until_empty();

    let explanation = self::why(&bed);
    let platform = format!("platform PreemptionByScheduler: {words}");
    for part in ["cause preempted", "class transient", &platform] {
        assert!(explanation.contains(part), "{part:?} is not in {explanation}");
    }
    let found = trial(&bed, &["ls", "--cause", "preempted", "--output", "json"]);
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let found = found.get("trials").unwrap_or(&found);
    assert_eq!(found[0]["message"], json!(why), "{found}");
}

#[test]
fn disrupted_and_deleted_trials_are_tried_again() {
    for (case, reason) in [("drained", Some("EvictionByEvictionAPI")), ("deleted", None)] {
        let bed = TestBed::new();
        let kube = Kube::start(bed.folder(), |_| Behavior::Pods);
        let (manager, pod) = start_one(&bed, &kube, 1);
        match reason {
            Some(reason) => kube.disrupt(&pod, reason, "Eviction API: evicting"),
            None => kube.delete("pods", &pod),
        }
        let search = Outcome::of(manager.finish(BOUND));
        search.expect_done(1, 0);
        assert_eq!(search.trial(0).final_result, 2, "{case}");
        // Both causes are transient.
        let cause = if reason.is_some() {
            "its pod was removed: "
        } else {
            "the trial's pod was deleted, but not by the manager"
        };
        let explanation = why(&bed);
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
    let kube = Kube::start(bed.folder(), |_| Behavior::Pods);
    let (manager, pod) = start_one(&bed, &kube, 0);
    let framework = pod.split('-').next().unwrap();
    kube.delete("frameworks", framework);
    let search = Outcome::of(manager.finish(BOUND));
    search.expect_done(0, 1);
    assert!(
        search.stderr.contains("FAILED: its Framework was deleted, but not by the manager"),
        "{}",
        search.stderr
    );
    bed.wait_until_empty();
    kube.wait_until_empty();
}
