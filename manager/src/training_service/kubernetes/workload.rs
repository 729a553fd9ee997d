//! PURE: the kinds of Kubernetes objects that run an attempt of a trial job. A kind says how its object is made, what the
//! object's status means and how it is stopped; everything else is the same for all of them.
//!
//! To add one: a file with an implementation of [`Workload`], a variant of [`WorkloadKind`] and its row in the table
//! `workloads!`.

use std::fmt::Debug;

use serde_json::Value;
use trial_protocol::{AttemptId, ExperimentId};

use super::client::Resource;
use super::manifest::{ATTEMPT, Common, example};
use super::outcome::{JobPhase, Outcome};
use crate::config::kubernetes::{KubernetesSpec, WorkloadKind};
use crate::training_service::TrialJobSpec;

pub mod framework;
pub mod job;
pub mod job_set;
pub mod kubeflow;
#[cfg(test)]
mod recorded;
mod several_pods;
pub mod train_job;

/// A kind of object that runs an attempt. Every function is pure.
pub trait Workload: Debug + Send + Sync {
    /// The kind, as the API names it.
    fn resource(&self) -> Resource;

    /// Returns the requests for objects of the kind that the manager cannot do without.
    fn verbs(&self) -> &'static [&'static str];

    /// The kinds of [`Self::shared`], each with the requests that the manager cannot do without.
    fn shared_kinds(&self) -> &'static [(Resource, &'static [&'static str])] {
        &[]
    }

    /// The objects that all trials of an experiment need beside their own. They outlive the trials.
    fn shared(&self, _common: &Common) -> Vec<(Resource, Value)> {
        Vec::new()
    }

    /// Returns whether the cluster refuses an object with these words because one of [`Self::shared`] is not there.
    fn lacks_shared(&self, _refusal: &str) -> bool {
        false
    }

    /// Returns the objects that stand for a trial's in a dry run: those of [`Self::shared`], where they hold the pod.
    fn examples(&self, common: &Common) -> Vec<(Resource, Value)> {
        let trial = example(&common.experiment);
        vec![(self.resource(), self.manifest(common, &trial))]
    }

    /// Returns the label of the pods of an attempt, which the workload `name` runs, as a selector has it.
    fn pod_label(&self, _name: &str, attempt: &AttemptId) -> String {
        format!("{ATTEMPT}={attempt}")
    }

    /// The controller that makes its pods, as people call it.
    fn controller(&self) -> &'static str;

    /// Returns what is missing in a cluster that does not serve the kind, and the remedy.
    fn installation(&self) -> &'static str;

    /// The object for a job.
    fn manifest(&self, common: &Common, job: &TrialJobSpec) -> Value;

    /// One pod of each role as the controller would make it, by its role: for a dry run.
    fn example_pods(&self, common: &Common) -> Vec<(String, Value)>;

    /// Returns the phase of an object.
    fn phase(&self, object: &Value, spec: &KubernetesSpec) -> JobPhase;

    /// Completes an [`Outcome`] that [`Outcome::needs_pods`] with what the workload's pods show.
    fn explain(&self, spec: &KubernetesSpec, outcome: Outcome, pods: &[Value]) -> Outcome;

    /// Returns how a workload ended whose controller has decided so and does not complete it, by its pods. `None`: they do not
    /// say, or the kind's controller needs no other object for that.
    fn settle(&self, _spec: &KubernetesSpec, _pods: &[Value]) -> Option<Outcome> {
        None
    }

    /// Returns true if the kind's controller learns from Jobs how pods ended, and says nothing until they do.
    fn follows_jobs(&self) -> bool {
        false
    }

    /// The place of a pod among those of its workload: a pod that is made in the stead of another has that one's place. It is
    /// the pod's name, unless the controller makes up a part of that anew for each pod.
    fn place<'a>(&self, pod: &'a str) -> &'a str {
        pod
    }

    /// The objects whose events say why a pod of the workload `name` could not be made, each by its kind and name.
    fn pod_owners(&self, _spec: &KubernetesSpec, name: &str) -> Vec<(&'static str, String)> {
        vec![(self.resource().kind, name.to_owned())]
    }

    /// Returns the way in which the controller is asked to end the pods.
    fn stop(&self) -> StopRequest;

    /// The pod whose metrics are the trial's, among the pods of the workload `name`.
    fn reporter(&self, spec: &KubernetesSpec, name: &str, pods: &[String]) -> Option<String>;

    /// The name of the trial's container where the template gives none.
    fn container(&self) -> &'static str;

    /// An object that starts no pod, to see whether the controller takes notice.
    fn probe(&self, experiment: &ExperimentId, namespace: &str) -> Value;

    /// The objects that the probe needs beside it.
    fn shared_by_probe(
        &self,
        _experiment: &ExperimentId,
        _namespace: &str,
    ) -> Vec<(Resource, Value)> {
        Vec::new()
    }

    /// Returns whether the controller has taken notice of the probe.
    fn is_noticed(&self, probe: &Value) -> bool;
}

/// The one table of kinds: the list of all, and the implementation of each.
macro_rules! workloads {
    ($($kind:ident => $implementation:expr,)*) => {
        /// Every kind: what an experiment may have left in a cluster.
        pub const KINDS: &[WorkloadKind] = &[$(WorkloadKind::$kind),*];

        /// Returns the implementation of a kind.
        pub fn workload(kind: WorkloadKind) -> &'static dyn Workload {
            match kind {
                $(WorkloadKind::$kind => $implementation,)*
            }
        }
    };
}

workloads! {
    Framework => &framework::Framework,
    // Each before what it owns.
    TrainJob => &train_job::TrainJob,
    JobSet => &job_set::JobSet,
    Job => &job::Job,
    TfJob => &kubeflow::TF_JOB,
    PyTorchJob => &kubeflow::PYTORCH_JOB,
    XgBoostJob => &kubeflow::XGBOOST_JOB,
    PaddleJob => &kubeflow::PADDLE_JOB,
}

/// The labels with which Kueue takes a workload in, where a queue is wanted.
fn queue_labels(spec: &KubernetesSpec) -> impl Iterator<Item = (String, Value)> {
    let queue = [(QUEUE_LABEL, &spec.queue), (PRIORITY_LABEL, &spec.priority_class)];
    queue
        .into_iter()
        .filter_map(|(label, name)| Some((label.to_owned(), Value::from(name.as_deref()?))))
}

/// The label with the queue of Kueue's that a workload waits in.
const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// The label with the workload's priority in its queue.
const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";

/// A way to end a workload's pods.
#[derive(Debug, Clone, PartialEq)]
pub enum StopRequest {
    /// A merge patch; the object stays and says when it has ended.
    Patch(Value),
    /// The object is deleted; the workload has ended when its last pod is gone.
    Delete,
}
