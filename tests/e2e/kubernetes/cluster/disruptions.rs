//! Trials that the cluster holds back or removes: in a queue, for a higher priority, and on a drained node.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use trialkeeper_tests::{Outcome, RunningProgram, TestBed, wait_for};

use super::{
    CLUSTER_TIMEOUT, Cluster, on_each_kind, on_kinds, start_on_data_folder, wait_for_running_trial,
};

/// The kinds whose integration Kueue enables by default.
const QUEUED_KINDS: [&str; 3] = ["Job", "JobSet", "TrainJob"];

impl Cluster {
    /// Runs `kubectl` with this input, and returns its output. `None`: it is missing, or it failed.
    fn kubectl(&self, words: &[&str], input: &Value) -> Option<String> {
        let mut kubectl = Command::new("kubectl");
        kubectl.args(["--kubeconfig", &self.kubeconfig]).args(words);
        kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = kubectl.spawn().ok()?;
        let text = input.to_string();
        // The error of a program that has ended shows in its status.
        drop(child.stdin.take()?.write_all(text.as_bytes()));
        let output = child.wait_with_output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the queue of the cluster, with room for one trial.
    fn queue(&self) -> String {
        if let Some((kube, _)) = &self.scripted {
            kube.create_queue("team");
            kube.set_queue_quota(1);
            return "team".to_owned();
        }
        std::env::var("TRIALKEEPER_TEST_QUEUE").expect("TRIALKEEPER_TEST_QUEUE names a queue")
    }

    /// Makes the queue preempt the running trial for a workload of higher priority, which ends after some seconds.
    fn preempt(&self, queue: &str) {
        if let Some((kube, _)) = &self.scripted {
            kube.set_queue_quota(0);
            return;
        }
        let priority = std::env::var("TRIALKEEPER_TEST_PRIORITY");
        let priority = priority.expect("TRIALKEEPER_TEST_PRIORITY names a priority class");
        let resources = json!({"cpu": "100m", "memory": "128Mi"});
        let container = json!({
            "name": "main", "image": self.image, "command": ["sleep", "5"],
            "resources": {"requests": resources, "limits": resources},
        });
        let pod = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"generateName": "trialkeeper-test-", "labels": {
                "kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": priority,
            }},
            "spec": {"suspend": true, "ttlSecondsAfterFinished": 60, "template": pod},
        });
        assert!(self.kubectl(&["create", "-f", "-"], &job).is_some(), "no workload was created");
    }

    /// Gives the room of the preempting workload back.
    fn end_preemption(&self) {
        if let Some((kube, _)) = &self.scripted {
            // Kueue admits a workload again only after its pods have ended.
            wait_for("the end of the pods", CLUSTER_TIMEOUT, || {
                kube.list("pods").is_empty().then_some(())
            });
            kube.set_queue_quota(1);
        }
    }

    /// Returns a pod of an experiment that runs, and its node.
    fn running_pod(&self, id: &str) -> (String, String) {
        let found = |pods: Vec<Value>| {
            let runs = |pod: &Value| {
                pod["status"]["phase"] == "Running"
                    && pod["metadata"]["deletionTimestamp"].is_null()
            };
            let pod = pods.into_iter().find(|pod| pod.to_string().contains(id) && runs(pod))?;
            let text = |at: &str| pod.pointer(at).and_then(Value::as_str).map(str::to_owned);
            text("/metadata/name").zip(text("/spec/nodeName"))
        };
        wait_for("a running pod", CLUSTER_TIMEOUT, || {
            if let Some((kube, _)) = &self.scripted {
                return found(kube.list("pods"));
            }
            let label = format!("trialkeeper/experiment={id}");
            let words = ["get", "pods", "--selector", &label, "--output", "json"];
            let pods: Value = serde_json::from_str(&self.kubectl(&words, &Value::Null)?).ok()?;
            found(pods["items"].as_array()?.clone())
        })
    }

    /// Drains the node of a pod as far as the pod is concerned: closes the node to new pods, and evicts the pod.
    /// Returns the node, if it is closed.
    fn drain(&self, (pod, node): &(String, String)) -> Option<String> {
        if let Some((kube, _)) = &self.scripted {
            kube.disrupt_pod(pod, "EvictionByEvictionAPI", "Eviction API: evicting");
            return None;
        }
        let closed = self.kubectl(&["cordon", node], &Value::Null);
        assert!(closed.is_some(), "the node {node} cannot be closed");
        let words = ["config", "view", "--minify", "--output", "jsonpath={..namespace}"];
        let namespace = self.kubectl(&words, &Value::Null).filter(|name| !name.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
        let evicted = self.kubectl(&["create", "--raw", &path, "-f", "-"], &eviction);
        if evicted.is_none() {
            self.uncordon(node);
        }
        assert!(evicted.is_some(), "the pod {pod} cannot be evicted");
        Some(node.clone())
    }

    fn uncordon(&self, node: &str) {
        let opened = self.kubectl(&["uncordon", node], &Value::Null);
        assert!(opened.is_some(), "the node {node} stays closed: run `kubectl uncordon {node}`");
    }

    /// Returns whether the account may drain nodes.
    fn can_drain(&self) -> bool {
        let is_permitted = |words: &[&str]| self.kubectl(words, &Value::Null).is_some();
        self.scripted.is_some()
            || is_permitted(&["auth", "can-i", "patch", "nodes"])
                && is_permitted(&["auth", "can-i", "create", "pods", "--subresource", "eviction"])
    }
}

/// A trial of some seconds that reports its number of seconds so far.
const STEADY_TRIAL: &str = "for i in 1 2 3 4 5 6 7 8; do echo \"score=$i\"; sleep 1; done";

/// Waits until the output of a manager has this text.
fn wait_for_text(manager: &RunningProgram, text: &str) {
    wait_for(text, CLUSTER_TIMEOUT, || manager.stderr().contains(text).then_some(()));
}

#[test]
#[ignore = "needs a cluster with a queue"]
fn trials_wait_for_one_another_in_a_queue() {
    on_kinds(&QUEUED_KINDS, |cluster| {
        let queue = cluster.queue();
        let bed = TestBed::new();
        let mut service = cluster.service_section(&json!([cluster.role("worker")]));
        service["queue"] = json!(queue);
        let search = cluster
            .single_role_search("echo \"score={{x}}\"; sleep 2", 2)
            .with("trialConcurrency", 2);
        let search = cluster.run(&bed, &search.with("trainingService", service));
        search.expect_done(2, 0);
        assert!(search.stderr.contains("waits: "), "{}", search.stderr);
    });
}

#[test]
#[ignore = "needs a cluster with a queue and a priority class"]
fn a_trial_that_is_preempted_runs_again_from_its_beginning() {
    on_kinds(&QUEUED_KINDS, |cluster| {
        let queue = cluster.queue();
        let bed = TestBed::new();
        let mut service = cluster.service_section(&json!([cluster.role("worker")]));
        service["queue"] = json!(queue);
        let search = cluster.single_role_search(STEADY_TRIAL, 1).with("trainingService", service);
        let manager = cluster.start(&bed, &search);
        wait_for_running_trial(&bed);
        cluster.preempt(&queue);
        wait_for_text(&manager, "its queue took the trial back");
        cluster.end_preemption();
        let search = Outcome::parse(manager.finish(CLUSTER_TIMEOUT));
        search.expect_done(1, 0);
        let all: Vec<Value> = (1..=8).map(Value::from).collect();
        assert_eq!(search.trials[0].intermediate, all, "the results must be those of one pod");
        cluster.expect_clean(&bed);
    });
}

#[test]
#[ignore = "needs a cluster whose nodes the account may drain"]
fn a_trial_on_a_drained_node_is_tried_again() {
    on_each_kind(|cluster| {
        assert!(cluster.can_drain(), "the account may not drain nodes");
        let bed = TestBed::new();
        let search = cluster.single_role_search(STEADY_TRIAL, 1).with("maxTrialRetries", 1);
        let manager = cluster.start(&bed, &search);
        let id = wait_for_running_trial(&bed);
        let pod = cluster.running_pod(&id);
        let closed = cluster.drain(&pod);
        let explains = |text: &str| {
            let output =
                start_on_data_folder(&bed, &["trial", "why", "0"]).finish(CLUSTER_TIMEOUT).stdout;
            let output = String::from_utf8_lossy(&output).into_owned();
            let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
            output.contains(text).then_some(())
        };
        wait_for("another try", CLUSTER_TIMEOUT, || explains("it is tried again (1 of 1)"));
        if let Some(node) = closed {
            cluster.uncordon(&node);
        }
        let search = Outcome::parse(manager.finish(CLUSTER_TIMEOUT));
        search.expect_done(1, 0);
        let all: Vec<Value> = (1..=8).map(Value::from).collect();
        assert_eq!(search.trials[0].intermediate, all, "the results must be those of one attempt");
        assert!(explains("EvictionByEvictionAPI").is_some(), "the reason of the first end is lost");
        cluster.expect_clean(&bed);
    });
}
