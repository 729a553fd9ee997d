//! The Job controller. The status of each Job takes the steps that were recorded on a real cluster.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::controller::{self, Behavior, POLL_INTERVAL};
use super::kubelet::Pod;
use super::objects::string_at;
use super::{Shared, admission};

mod timed_job;

/// The image of every pod, as containerd resolves it. Source: a recording.
const IMAGE_ID: &str = "docker.io/library/busybox@sha256:6bbe308258ea66c2b513502dabadee037ae0f2668a352966f0000e94c9034019";
/// The exit codes that a Job's failure policy does not match. They count towards its back-off limit.
const UNMATCHED_CODES: [i64; 3] = [0, 137, 143];

/// Follows Jobs until the server ends.
pub(super) fn run(shared: &Arc<Shared>) {
    let (mut after, mut known) = (0, HashSet::new());
    while !shared.is_ending.load(Ordering::SeqCst) {
        let cuts = shared.objects.watch_cuts();
        let new = match shared.objects.next_change("jobs", after, cuts, POLL_INTERVAL * 20) {
            Ok(Some(change)) => {
                after = change.version;
                if change.kind == "ADDED" { vec![Value::clone(&change.object)] } else { Vec::new() }
            }
            Ok(None) => Vec::new(),
            // The history was dropped, but the present objects are still listed.
            Err(newest) => {
                after = newest;
                shared.objects.list("jobs")
            }
        };
        for job in new {
            if known.insert(string_at(&job, "/metadata/uid")) {
                let shared = Arc::clone(shared);
                std::thread::spawn(move || match (shared.behavior)(&job) {
                    Behavior::TimedJob { code, speed } => {
                        timed_job::run_timed_job(&shared, &job, code, speed);
                    }
                    Behavior::PacedProcesses => {
                        JobRun { is_paced: true, ..JobRun::new(&shared, job) }.run_to_end();
                    }
                    Behavior::Containers => {
                        JobRun { in_containers: true, ..JobRun::new(&shared, job) }.run_to_end();
                    }
                    Behavior::Recorded(..)
                    | Behavior::Processes
                    | Behavior::ProcessesWithRacedStatus => {
                        JobRun::new(&shared, job).run_to_end();
                    }
                });
            }
        }
    }
}

/// One Job.
struct JobRun<'a> {
    shared: &'a Arc<Shared>,
    name: String,
    job: Value,
    /// The number of pods created so far, so that all names differ.
    created_pods: usize,
    /// Set if a pod was refused and an event reported it.
    is_refusal_reported: bool,
    /// If set, the steps take the times measured on a real cluster.
    is_paced: bool,
    /// If set, the pods are containers. Otherwise they are processes.
    in_containers: bool,
}

impl<'a> JobRun<'a> {
    fn new(shared: &'a Arc<Shared>, job: Value) -> Self {
        Self {
            shared,
            name: string_at(&job, "/metadata/name"),
            job,
            created_pods: 0,
            is_refusal_reported: false,
            is_paced: false,
            in_containers: false,
        }
    }

    /// Waits for the time of a step.
    fn pause_for_step(&self, ms: u64) {
        if self.is_paced {
            self.shared.pause(Duration::from_millis(ms));
        }
    }

    fn run_to_end(mut self) {
        while !self.is_gone() {
            if self.is_suspended() {
                let condition = [("Suspended", "True", "JobSuspended", "Job suspended")];
                self.set_status(&condition, &json!({"active": 0}));
                while self.is_suspended() && !self.is_gone() {
                    std::thread::park_timeout(POLL_INTERVAL);
                }
                continue;
            }
            if self.run_pods() {
                return;
            }
        }
    }

    /// Runs the pods to their end. Returns `false` if the Job was suspended.
    fn run_pods(&mut self) -> bool {
        let count = self.job.pointer("/spec/completions").and_then(Value::as_u64);
        let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(1);
        let mut pods: Vec<Pod> = Vec::new();
        let mut asked = false;
        loop {
            if pods.len() < count && !asked {
                self.create_missing_pods(&mut pods, count);
            }
            for pod in &mut pods {
                self.poll_pod(pod, asked);
            }
            let works = self.shared.controllers_running.load(Ordering::SeqCst);
            let failed = pods.iter().position(|pod| pod.code.is_some_and(|code| code != 0));
            let failed = failed.filter(|_| works);
            let wanted = !self.is_gone() && !self.is_suspended();
            if (!wanted || failed.is_some()) && !asked {
                asked = true;
                for pod in &mut pods {
                    pod.request_end(self.shared);
                }
            }
            let is_whole = pods.len() == count || asked;
            if is_whole && pods.iter().all(|pod| pod.code.is_some()) {
                if self.is_gone() || self.is_suspended() {
                    for pod in &pods {
                        self.shared.objects.remove("pods", &pod.name);
                    }
                    return self.is_gone();
                }
                if !works {
                    std::thread::park_timeout(POLL_INTERVAL);
                    continue;
                }
                self.pause_for_step(timed_job::JOB_DECISION_MS);
                self.report_end(&pods, failed);
                return true;
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Creates the missing pods, as far as the namespace's quota permits.
    fn create_missing_pods(&mut self, pods: &mut Vec<Pod>, count: usize) {
        let quota = self.shared.pod_quota.load(Ordering::SeqCst);
        let free_quota = quota.saturating_sub(self.shared.objects.list("pods").len());
        let (ready, active) = (pods.len(), count.min(pods.len().saturating_add(free_quota)));
        if active < count && !std::mem::replace(&mut self.is_refusal_reported, true) {
            let words = format!(
                "Error creating: pods \"{}-{active}-x\" is forbidden: exceeded quota: small, requested: pods=1, used: \
                 pods={quota}, limited: pods={quota}",
                self.name
            );
            controller::create_event(self.shared, ("Job", &self.name), "FailedCreate", &words);
        }
        if ready < active {
            self.set_status(&[], &json!({"active": active, "ready": ready}));
            pods.extend((ready..active).filter_map(|index| self.start_pod(index)));
            let ready = pods.iter().filter(|pod| pod.is_running()).count();
            self.set_status(&[], &json!({"active": active, "ready": ready}));
        }
    }

    fn start_pod(&mut self, index: usize) -> Option<Pod> {
        let suffixes = ["pcm7m", "w2x9k", "q5r8t", "h4j6n", "z3b7v", "d9f2g"];
        let indexed =
            self.job.pointer("/spec/completionMode").is_some_and(|mode| mode == "Indexed");
        let suffix = suffixes[self.created_pods % suffixes.len()];
        let number = if indexed { format!("{index}-{suffix}") } else { suffix.to_owned() };
        let name = format!("{}-{number}", self.name);
        self.created_pods += 1;
        let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "status": {"phase": "Pending"}});
        object["metadata"] = self.job["spec"]["template"]["metadata"].clone();
        object["metadata"]["name"] = Value::from(name.as_str());
        object["metadata"]["namespace"] = Value::from("lab");
        object["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] =
            Value::from(index.to_string());
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "batch/v1", "kind": "Job", "name": self.name, "controller": true,
            "uid": self.job["metadata"]["uid"],
        }]);
        object["spec"] = self.job["spec"]["template"]["spec"].clone();
        // A pod on a node gets a grace period when it is deleted.
        object["spec"]["nodeName"] = Value::from("node1");
        admission::expect_valid(&object);
        self.pause_for_step(timed_job::POD_CREATION_MS);
        let pod = self.shared.objects.create("pods", object).ok()?;
        self.pause_for_step(timed_job::CONTAINER_START_MS);
        Some(Pod::start(self.shared, &pod, self.in_containers, IMAGE_ID))
    }

    /// Checks if a pod has ended or was asked to end.
    fn poll_pod(&self, pod: &mut Pod, asked: bool) {
        if !asked && pod.is_being_deleted(self.shared) {
            pod.request_end(self.shared);
        }
        pod.poll(self.shared, |ms| self.pause_for_step(ms));
    }

    fn report_end(&self, pods: &[Pod], failed: Option<usize>) {
        let (target, end, reason, message) = match failed.map(|at| &pods[at]) {
            None => {
                let message = "Reached expected number of succeeded pods".to_owned();
                ("SuccessCriteriaMet", "Complete", "CompletionsReached", message)
            }
            Some(pod) => {
                let code = pod.code.unwrap_or(1);
                if UNMATCHED_CODES.contains(&code) {
                    let message = "Job has reached the specified backoff limit".to_owned();
                    ("FailureTarget", "Failed", "BackoffLimitExceeded", message)
                } else {
                    let message = format!(
                        "Container trial for pod lab/{} failed with exit code {code} matching FailJob rule at index 1",
                        pod.name
                    );
                    ("FailureTarget", "Failed", "PodFailurePolicy", message)
                }
            }
        };
        let first = (target, "True", reason, message.as_str());
        self.set_status(&[first], &json!({"active": 0}));
        // Deleted pods are removed before the Job is finished.
        for pod in pods {
            if pod.is_being_deleted(self.shared) {
                self.shared.objects.remove("pods", &pod.name);
            }
        }
        self.set_status(&[first, (end, "True", reason, message.as_str())], &json!({}));
    }

    fn is_gone(&self) -> bool {
        self.shared.is_gone("jobs", &self.job)
    }

    fn is_suspended(&self) -> bool {
        self.shared.is_suspended("jobs", &self.name).unwrap_or(false)
    }

    fn set_status(&self, conditions: &[(&str, &str, &str, &str)], counts: &Value) {
        let conditions = conditions.iter().map(|(kind, status, reason, message)| {
            json!({"type": kind, "status": status, "reason": reason, "message": message})
        });
        let mut status = counts.clone();
        status["conditions"] = Value::Array(conditions.collect());
        drop(self.shared.objects.change("jobs", &self.name, |object| object["status"] = status));
    }
}
