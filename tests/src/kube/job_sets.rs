//! The `JobSet` controller: creates a Job for each role, and ends the `JobSet` by its policies and its Jobs.
//! The Job controller creates the pods.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::controller::POLL_INTERVAL;
use super::objects::{Deletion, is_condition_true, new_condition, string_at};
use super::{Shared, admission};

/// Follows `JobSet`s until the server ends.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut known = HashSet::new();
    while !shared.is_ending.load(Ordering::SeqCst) {
        let works = shared.controllers_running.load(Ordering::SeqCst);
        for set in shared.objects.list("jobsets").into_iter().filter(|_| works) {
            if known.insert(string_at(&set, "/metadata/uid")) {
                let shared = Arc::clone(shared);
                std::thread::spawn(move || {
                    JobSetRun { name: string_at(&set, "/metadata/name"), shared, set }.run_to_end();
                });
            }
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// One `JobSet`.
struct JobSetRun {
    shared: Arc<Shared>,
    name: String,
    set: Value,
}

impl JobSetRun {
    fn run_to_end(&self) {
        let suspended = self.is_suspended();
        let jobs = self.roles().map(|role| self.create_job(role, suspended));
        // The real controller repeats a refused request, and writes no status until it succeeds.
        let Ok(jobs) = jobs.collect::<Result<Vec<String>, String>>() else { return };
        let mut written = Value::Null;
        while !self.is_gone() {
            if !self.shared.controllers_running.load(Ordering::SeqCst) {
                std::thread::park_timeout(POLL_INTERVAL);
                continue;
            }
            let suspended = self.is_suspended();
            for job in &jobs {
                self.set_suspended(job, suspended);
            }
            let now: Vec<Value> =
                jobs.iter().filter_map(|job| self.shared.objects.get("jobs", job)).collect();
            let end = self.end_condition(&now);
            let mut status = Self::role_counts(&now);
            if suspended {
                status["conditions"] = json!([new_condition(
                    "Suspended",
                    "True",
                    "SuspendedJobs",
                    "jobset is suspended"
                )]);
            }
            if let Some(end) = &end {
                status["conditions"] = json!([end]);
                status["terminalState"] = end["type"].clone();
            }
            if status != written {
                written = status.clone();
                let set_status = |object: &mut Value| object["status"] = status;
                drop(self.shared.objects.change("jobsets", &self.name, set_status));
            }
            if end.is_some() {
                // Running Jobs are deleted. Ended ones stay, so that clients can read them.
                for job in now.iter().filter(|job| {
                    !is_condition_true(job, "Complete") && !is_condition_true(job, "Failed")
                }) {
                    self.shared.objects.delete(
                        "jobs",
                        &string_at(job, "/metadata/name"),
                        Deletion::default(),
                    );
                }
                return;
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    fn roles(&self) -> impl Iterator<Item = &Value> {
        self.set["spec"]["replicatedJobs"].as_array().into_iter().flatten()
    }

    /// Creates the Job of a role and returns its name, unless the API server refuses the Job.
    fn create_job(&self, role: &Value, suspended: bool) -> Result<String, String> {
        let name = format!("{}-{}-0", self.name, string_at(role, "/name"));
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "lab"}});
        job["metadata"]["labels"] = json!({
            "jobset.sigs.k8s.io/jobset-name": self.name,
            "jobset.sigs.k8s.io/replicatedjob-name": role["name"],
        });
        job["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": self.name, "controller": true,
            "uid": self.set["metadata"]["uid"],
        }]);
        job["spec"] = role["template"]["spec"].clone();
        job["spec"]["suspend"] = Value::Bool(suspended);
        if job["spec"]["completionMode"].is_null() {
            // The default of JobSet's webhook.
            job["spec"]["completionMode"] = json!("Indexed");
        }
        job["spec"]["template"]["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] =
            Value::from(self.name.as_str());
        admission::admit_job(&mut job)?;
        drop(self.shared.objects.create("jobs", job));
        Ok(name)
    }

    fn set_suspended(&self, job: &str, suspend: bool) {
        let is = |job: &Value| job["spec"]["suspend"] == suspend;
        if self.shared.objects.inspect("jobs", job, is) == Some(false) {
            let change = |job: &mut Value| job["spec"]["suspend"] = Value::Bool(suspend);
            drop(self.shared.objects.change("jobs", job, change));
        }
    }

    /// Returns the condition that ends the `JobSet`, if it has ended.
    fn end_condition(&self, jobs: &[Value]) -> Option<Value> {
        if let Some(failed) = jobs.iter().find(|job| is_condition_true(job, "Failed")) {
            let message = format!(
                "jobset failed due to reaching max number of restarts (first failed job: {})",
                string_at(failed, "/metadata/name")
            );
            return Some(new_condition("Failed", "True", "ReachedMaxRestarts", &message));
        }
        let policy = &self.set["spec"]["successPolicy"];
        let targets = policy["targetReplicatedJobs"].as_array();
        let role = "/metadata/labels/jobset.sigs.k8s.io~1replicatedjob-name";
        let counts = |job: &&Value| {
            targets.is_none_or(|targets| job.pointer(role).is_some_and(|it| targets.contains(it)))
        };
        let mut decide = jobs.iter().filter(counts).map(|job| is_condition_true(job, "Complete"));
        let done = if policy["operator"] == "Any" {
            decide.any(|done| done)
        } else {
            jobs.len() == self.roles().count() && decide.all(|done| done)
        };
        done.then(|| {
            new_condition("Completed", "True", "AllJobsCompleted", "jobset completed successfully")
        })
    }

    /// Returns the status of the Jobs of each role. As on a real cluster, the order differs from the
    /// specification's.
    fn role_counts(jobs: &[Value]) -> Value {
        let roles = jobs.iter().rev().map(|job| {
            let count = |field: &str| job["status"][field].as_u64().unwrap_or(0);
            let (active, ready) = (count("active"), count("ready"));
            let wanted = job["spec"]["parallelism"].as_u64().unwrap_or(1);
            let ended = |kind: &str| u64::from(is_condition_true(job, kind));
            json!({
                "name": job["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"],
                "active": u64::from(active > 0),
                "ready": u64::from(active > 0 && ready >= wanted),
                "succeeded": ended("Complete"),
                "failed": ended("Failed"),
                "suspended": u64::from(job["spec"]["suspend"] == true),
            })
        });
        json!({"restarts": 0, "replicatedJobsStatus": roles.collect::<Vec<_>>()})
    }

    fn is_gone(&self) -> bool {
        self.shared.is_gone("jobsets", &self.set)
    }

    fn is_suspended(&self) -> bool {
        // A set that is gone must not resume its Jobs.
        self.shared.is_suspended("jobsets", &self.name).unwrap_or(true)
    }
}
