//! PURE: the ends of the commands of an attempt's pods, as their agents report them. They decide the end of the trial
//! before its job ends.

use std::collections::{HashMap, HashSet};

use trial_protocol::{AttemptId, Class, Verdict};

use super::ending;
use crate::training_service::completion::{
    CompletionDecision, PodResult, ReplicaId, TrialCompletion,
};
use crate::training_service::{JobEnd, VerdictCertainty};
use crate::util::ids;

/// The ends of the pods' commands, in the order in which they were reported.
#[derive(Debug, Default)]
pub struct PodEnds {
    ends: Vec<CommandEnd>,
    /// The present pod of each replica but the main one.
    present_pods: HashMap<ReplicaId, String>,
    /// The earlier pods of the replicas.
    past_pods: HashSet<(ReplicaId, String)>,
}

/// The end of a pod's command.
#[derive(Debug)]
struct CommandEnd {
    replica: ReplicaId,
    result: PodResult,
    exit_code: Option<i32>,
    message: String,
    class: Class,
}

impl PodEnds {
    /// Handles a report of a pod that is not the main one. Returns the pod's replica, unless a later pod has
    /// replaced it.
    pub fn observe(&mut self, pod: ids::OtherPod) -> Option<ReplicaId> {
        let ids::OtherPod { role, index, run } = pod;
        let replica = ReplicaId { role, index };
        if self.past_pods.contains(&(replica.clone(), run.clone())) {
            return None;
        }
        let earlier = self.present_pods.insert(replica.clone(), run.clone());
        if let Some(earlier) = earlier.filter(|earlier| *earlier != run) {
            self.past_pods.insert((replica.clone(), earlier));
            self.remove(&replica);
        }
        Some(replica)
    }

    /// Records the end of a pod's command.
    pub fn record(&mut self, replica: ReplicaId, verdict: &Verdict) {
        self.remove(&replica);
        self.ends.push(CommandEnd {
            replica,
            result: ending::pod_result(verdict),
            exit_code: verdict.exit.map(|exit| i32::from(exit.shell_code())),
            message: verdict.message.clone(),
            class: verdict.class,
        });
    }

    /// Removes the end of a pod's command, because another pod replaces it.
    pub fn remove(&mut self, replica: &ReplicaId) {
        self.ends.retain(|end| end.replica != *replica);
    }

    /// Forgets all ends, because other pods will run the attempt from its beginning.
    pub fn restart(&mut self) {
        self.ends.clear();
        self.past_pods.extend(self.present_pods.drain());
    }

    /// Returns whether a pod that is not the main one has reported.
    pub fn has_others(&self) -> bool {
        !self.present_pods.is_empty()
    }

    /// Returns the attempts under which the other pods of the `submitted` attempt report, each with whether its command
    /// runs.
    pub fn others(&self, submitted: &AttemptId) -> Vec<(AttemptId, bool)> {
        let others = self.present_pods.iter().filter_map(|(replica, run)| {
            let ReplicaId { role, index } = replica;
            let attempt = AttemptId::new(format!("{submitted}{run}-{role}-{index}")).ok()?;
            Some((attempt, !self.has_ended(replica)))
        });
        others.collect()
    }

    /// Returns whether a pod's command has ended.
    pub fn has_ended(&self, replica: &ReplicaId) -> bool {
        self.ends.iter().any(|end| end.replica == *replica)
    }

    /// Returns the end of the trial that follows from these ends. `None`: none follows yet.
    pub fn decide(&self, completion: &TrialCompletion) -> Option<DecidedEnd> {
        let results: Vec<_> =
            self.ends.iter().map(|end| (end.replica.clone(), end.result)).collect();
        let end = completion.decide(&results)?;
        let is_over = completion.has_every_pod_ended(&results);
        let signaled = results.iter().any(|(_, result)| *result == PodResult::Signaled);
        let certainty = match &end {
            CompletionDecision::Unexplained => return None,
            CompletionDecision::Failed(_) if !completion.has_several_pods() => {
                VerdictCertainty::Final
            }
            CompletionDecision::Failed(_) if signaled => VerdictCertainty::FailedAndStopped,
            CompletionDecision::Failed(_) => VerdictCertainty::Failed,
            CompletionDecision::Succeeded | CompletionDecision::Requested => {
                VerdictCertainty::Final
            }
        };
        Some(DecidedEnd { end, is_over, certainty })
    }

    /// Returns the end of a job that follows from a decided end. The main pod's own verdict explains the rest.
    pub fn job_end(&self, decided: &DecidedEnd, completion: &TrialCompletion) -> JobEnd {
        match &decided.end {
            CompletionDecision::Succeeded => {
                JobEnd { succeeded: true, exit_code: Some(0), ..JobEnd::default() }
            }
            CompletionDecision::Failed(replica) if *replica != completion.main => {
                let Some(pod) = self.ends.iter().find(|end| end.replica == *replica) else {
                    return JobEnd::default();
                };
                let message = format!("{} {}: {}", replica.role, replica.index, pod.message);
                let (exit_code, class) = (pod.exit_code, Some(pod.class));
                JobEnd { exit_code, message: Some(message), class, ..JobEnd::default() }
            }
            CompletionDecision::Failed(_)
            | CompletionDecision::Requested
            | CompletionDecision::Unexplained => JobEnd::default(),
        }
    }
}

/// The end of a trial that its agents' verdicts decide.
#[derive(Debug, PartialEq, Eq)]
pub struct DecidedEnd {
    /// The end.
    pub end: CompletionDecision,
    /// Set if the commands of all pods have ended.
    pub is_over: bool,
    /// The reliability of the end.
    pub certainty: VerdictCertainty,
}
