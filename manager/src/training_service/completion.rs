//! PURE: the rules by which the ends of a trial's pods end the trial. The agents report the ends before the platform
//! does, and also while the platform's controller is down.

/// The identity of a replica. If a pod replaces another one, both are the same replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplicaId {
    /// The role of the pod.
    pub role: String,
    /// The number of the pod in its role.
    pub index: u64,
}

/// The end of a pod's command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodResult {
    /// The command succeeded.
    Succeeded,
    /// The command failed.
    Failed,
    /// The manager's request, or a rule of the manager, ended the command.
    Requested,
    /// A signal that the manager did not request ended the command. Its sender is unknown: a queue, a drained node, or
    /// the controller after the end of another pod.
    Signaled,
}

/// The condition for a role's pods to make their trial succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleSuccess {
    /// The role does not decide.
    Never,
    /// The first pod has succeeded.
    First,
    /// This number of pods has succeeded.
    Count(u64),
}

/// The pods of a role, and the conditions under which they end their trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleCompletion {
    /// The name of the role.
    pub role: String,
    /// The number of its pods.
    pub pods: u64,
    /// The number of failed pods that makes the trial fail. `None`: failures do not decide.
    pub min_failed: Option<u64>,
    /// The condition for success.
    pub success: RoleSuccess,
}

/// The rules by which the pods of a trial end it. The first rule that holds decides. If all pods have ended and no rule
/// holds, the trial has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialCompletion {
    /// The roles, at least one.
    pub roles: Vec<RoleCompletion>,
    /// The pod whose metrics are the trial's.
    pub main: ReplicaId,
}

/// The end of a trial that follows from its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletionDecision {
    /// The trial has succeeded.
    Succeeded,
    /// This pod has made the trial fail.
    Failed(ReplicaId),
    /// The manager ended the trial.
    Requested,
    /// The platform knows the reason.
    Unexplained,
}

impl TrialCompletion {
    /// Returns the rules for a trial with one pod.
    pub fn of_one_pod(main: ReplicaId) -> Self {
        let role = RoleCompletion {
            role: main.role.clone(),
            pods: 1,
            min_failed: Some(1),
            success: RoleSuccess::Count(1),
        };
        Self { roles: vec![role], main }
    }

    /// Returns whether the trial has several pods.
    pub fn has_several_pods(&self) -> bool {
        self.roles.iter().map(|role| role.pods).sum::<u64>() > 1
    }

    /// Returns the end that follows from the ends of pods, in their order. `None`: the end is undecided.
    pub fn decide(&self, ends: &[(ReplicaId, PodResult)]) -> Option<CompletionDecision> {
        let by_rule = (1..=ends.len()).find_map(|count| self.decide_by_last(&ends[..count]));
        by_rule.or_else(|| self.has_every_pod_ended(ends).then_some(CompletionDecision::Succeeded))
    }

    /// Returns the end for which the last of these ends is the reason.
    fn decide_by_last(&self, ends: &[(ReplicaId, PodResult)]) -> Option<CompletionDecision> {
        let ((replica, result), _) = ends.split_last()?;
        let role = self.roles.iter().find(|role| role.has_pod(replica))?;
        let number = |counts: fn(PodResult) -> bool| {
            let own = ends.iter().filter(|(pod, result)| role.has_pod(pod) && counts(*result));
            u64::try_from(own.count()).unwrap_or(u64::MAX)
        };
        let has_failed = |result| matches!(result, PodResult::Failed | PodResult::Signaled);
        let fails = || role.min_failed.is_some_and(|least| number(has_failed) >= least);
        match result {
            PodResult::Requested if *replica == self.main => Some(CompletionDecision::Requested),
            // Only the main pod gets requests of the manager. Another pod is stopped with its job.
            PodResult::Requested => None,
            PodResult::Failed => fails().then(|| CompletionDecision::Failed(replica.clone())),
            PodResult::Signaled => fails().then_some(CompletionDecision::Unexplained),
            PodResult::Succeeded => {
                let succeeded = number(|result| result == PodResult::Succeeded);
                let is_done = match role.success {
                    RoleSuccess::Never => false,
                    RoleSuccess::First => replica.index == 0,
                    RoleSuccess::Count(least) => succeeded >= least,
                };
                is_done.then_some(CompletionDecision::Succeeded)
            }
        }
    }

    /// Returns whether the commands of all pods have ended.
    pub fn has_every_pod_ended(&self, ends: &[(ReplicaId, PodResult)]) -> bool {
        self.roles.iter().all(|role| {
            let own = ends.iter().filter(|(pod, _)| role.has_pod(pod));
            u64::try_from(own.count()).is_ok_and(|own| own == role.pods)
        })
    }
}

impl RoleCompletion {
    fn has_pod(&self, pod: &ReplicaId) -> bool {
        pod.role == self.role && pod.index < self.pods
    }
}

#[cfg(test)]
mod tests {
    use super::PodResult::{Failed, Requested, Signaled, Succeeded};
    use super::*;

    fn replica(name: &str) -> ReplicaId {
        let (role, index) = name.split_once(':').unwrap();
        ReplicaId { role: role.to_owned(), index: index.parse().unwrap() }
    }

    fn role(
        role: &str,
        pods: u64,
        min_failed: Option<u64>,
        success: RoleSuccess,
    ) -> RoleCompletion {
        RoleCompletion { role: role.to_owned(), pods, min_failed, success }
    }

    /// Returns the rules of these roles. The first worker reports the metrics.
    fn completion(roles: &[RoleCompletion]) -> TrialCompletion {
        TrialCompletion { roles: roles.to_vec(), main: replica("worker:0") }
    }

    /// The rules, the ends of pods in order, and the expected end. The flag tells that all commands have ended.
    type Row<'a> =
        (&'a TrialCompletion, &'a [(&'a str, PodResult)], Option<CompletionDecision>, bool);

    #[test]
    fn the_first_rule_that_holds_decides() {
        let ps = role("ps", 1, Some(1), RoleSuccess::Never);
        let one = completion(&[role("worker", 1, Some(1), RoleSuccess::Count(1))]);
        let all = completion(&[role("worker", 2, Some(1), RoleSuccess::Never)]);
        let set = completion(&[role("worker", 2, Some(1), RoleSuccess::Count(2)), ps.clone()]);
        let any = completion(&[role("worker", 3, Some(2), RoleSuccess::Count(1))]);
        let tensorflow = completion(&[role("worker", 2, Some(1), RoleSuccess::First), ps]);
        let lenient = completion(&[role("worker", 2, None, RoleSuccess::Never)]);
        let failed = |pod: &str| Some(CompletionDecision::Failed(replica(pod)));
        let (succeeded, requested) =
            (Some(CompletionDecision::Succeeded), Some(CompletionDecision::Requested));
        let (unexplained, open) = (Some(CompletionDecision::Unexplained), None);
        let [w0, w1, w2, p0] = ["worker:0", "worker:1", "worker:2", "ps:0"];
        #[rustfmt::skip]
        let table: &[Row<'_>] = &[
            (&one,        &[],                                                   open.clone(),        false),
            (&one,        &[(w0, Succeeded)],                                    succeeded.clone(),   true),
            (&one,        &[(w0, Failed)],                                       failed(w0),          true),
            (&one,        &[(w0, Requested)],                                    requested.clone(),   true),
            (&one,        &[(w0, Signaled)],                                     unexplained.clone(), true),
            (&all,        &[(w1, Succeeded)],                                    open.clone(),        false),
            (&all,        &[(w1, Succeeded), (w0, Succeeded)],                   succeeded.clone(),   true),
            (&all,        &[(w0, Succeeded), (w1, Failed)],                      failed(w1),          true),
            // The controller stops the others after the failure.
            (&all,        &[(w1, Failed), (w0, Signaled)],                       failed(w1),          true),
            // A drained node is the reason, and the other pod fails for the loss of its peer.
            (&all,        &[(w1, Signaled), (w0, Failed)],                       unexplained.clone(), true),
            (&all,        &[(w0, Requested), (w1, Signaled)],                    requested.clone(),   true),
            (&all,        &[(w1, Requested), (w0, Succeeded)],                   succeeded.clone(),   true),
            (&set,        &[(w0, Succeeded)],                                    open.clone(),        false),
            (&set,        &[(w0, Succeeded), (w1, Succeeded)],                   succeeded.clone(),   false),
            (&set,        &[(w0, Succeeded), (w1, Succeeded), (p0, Signaled)],   succeeded.clone(),   true),
            (&set,        &[(p0, Failed), (w0, Signaled), (w1, Signaled)],       failed(p0),          true),
            (&set,        &[(p0, Succeeded)],                                    open.clone(),        false),
            (&any,        &[(w2, Failed)],                                       open.clone(),        false),
            (&any,        &[(w2, Failed), (w1, Succeeded)],                      succeeded.clone(),   false),
            (&any,        &[(w2, Failed), (w0, Failed)],                         failed(w0),          false),
            (&any,        &[(w2, Failed), (w0, Signaled)],                       unexplained,         false),
            (&tensorflow, &[(w1, Succeeded)],                                    open.clone(),        false),
            (&tensorflow, &[(w0, Succeeded)],                                    succeeded.clone(),   false),
            (&tensorflow, &[(w0, Succeeded), (w1, Signaled), (p0, Signaled)],    succeeded.clone(),   true),
            (&lenient,    &[(w0, Failed), (w1, Failed)],                         succeeded,           true),
            // The trial has no such pod.
            (&one,        &[("judge:0", Failed), ("worker:7", Signaled)],        open,                false),
        ];
        for (completion, ends, end, is_over) in table {
            let ends: Vec<_> = ends.iter().map(|(pod, result)| (replica(pod), *result)).collect();
            assert_eq!(completion.decide(&ends), *end, "{completion:?} {ends:?}");
            assert_eq!(completion.has_every_pod_ended(&ends), *is_over, "{completion:?} {ends:?}");
        }
    }
}
