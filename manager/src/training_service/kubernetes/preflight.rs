//! The checks before anything is submitted: the cluster, the namespace, the kind, our rights, and
//! whether the kind's controller is at work. Everything that is wrong is said at once.

pub mod queue;

use std::time::Duration;

use tracing::warn;
use trial_protocol::ExperimentId;

use super::admission_advice;
use super::client::{Cluster, EVENTS, Error, PODS, Resource, SECRETS, a_few_times};
use super::kueue;
use super::manifest::Common;
use super::workload::{KINDS, Workload};
use crate::util::backoff::Backoff;

/// The time in which the controller must notice a new object; 20 ms are usual.
const NOTICE: Duration = Duration::from_secs(15);

/// The time for which a new namespace may be without its service account, for instance.
const SETTLED: Duration = Duration::from_secs(2);

/// The requests for objects of every kind of workload that the manager cannot do without.
const NEEDED: [(Resource, &[&str]); 3] = [
    (SECRETS, &["list", "create", "patch", "deletecollection"]),
    (PODS, &["list", "watch"]),
    (EVENTS, &["list", "watch"]),
];

/// The same where trials wait in a queue of Kueue.
const QUEUE: (Resource, &[&str]) = (kueue::workloads("v1beta1"), &["list", "watch"]);

/// A reason why trials cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The cluster did not answer as it should.
    #[error(transparent)]
    Cluster(#[from] Error),
    /// There is no such namespace.
    #[error(
        "the cluster at {server} has no namespace `{namespace}`; `kubectl create namespace {namespace}` makes it, `namespace` in the experiment file names another"
    )]
    NoNamespace {
        /// The API server.
        server: String,
        /// The namespace.
        namespace: String,
    },
    /// The cluster does not serve the kind.
    #[error("the cluster at {server} does not know {kind}s: {installation}{served}")]
    NoSuchKind {
        /// The API server.
        server: String,
        /// The kind.
        kind: &'static str,
        /// The missing part, and the remedy.
        installation: &'static str,
        /// The kinds that it does serve, as the end of the sentence.
        served: String,
    },
    /// Rights are missing.
    #[error(
        "the account of the kubeconfig may not do this in the namespace `{namespace}`: {missing}; `kubectl apply -n {namespace} -k deploy/rights` makes an account that may do all that is needed"
    )]
    NoRights {
        /// The namespace.
        namespace: String,
        /// Verbs and objects.
        missing: String,
    },
    /// The cluster would not take a trial's pod.
    #[error("a pod of the role `{role}` could not be made: {}", admission_advice::with_advice(.why.to_string(), .controller))]
    NoPod {
        /// The role.
        role: String,
        /// The controller that makes the pods.
        controller: &'static str,
        /// The server's answer.
        why: Error,
    },
    /// The cluster would not take the object that a trial is.
    #[error("the {kind} of a trial could not be made: {}{}", admission_advice::with_advice(.why.to_string(), .controller), unknown_field(.why))]
    NoObject {
        /// The kind.
        kind: &'static str,
        /// The controller of the kind.
        controller: &'static str,
        /// The server's answer.
        why: Error,
    },
    /// The queue of the experiment is not there.
    #[error(
        "the namespace `{namespace}` has no LocalQueue `{queue}`, in which trials are to wait; `kubectl -n {namespace} get localqueues` lists those that it has, and `queue` in the experiment file names one"
    )]
    NoQueue {
        /// The namespace.
        namespace: String,
        /// The queue.
        queue: String,
    },
    /// The priority class of the experiment is not there.
    #[error(
        "the cluster has no WorkloadPriorityClass `{class}`, and Kueue lets a trial with an unknown one wait for ever; `kubectl get workloadpriorityclasses` lists those that it has, and `priorityClass` in the experiment file names one"
    )]
    NoPriorityClass {
        /// The class.
        class: String,
    },
    /// No controller takes notice of new objects of the kind.
    #[error(
        "{controller} takes no notice of a new {kind} in the namespace `{namespace}` within {NOTICE:?}: does its pod run, and does it watch that namespace?"
    )]
    NoController {
        /// The controller.
        controller: &'static str,
        /// The kind.
        kind: &'static str,
        /// The namespace.
        namespace: String,
    },
}

/// Looks whether trials can be run.
pub async fn check(
    cluster: &Cluster,
    workload: &dyn Workload,
    queued: bool,
) -> Result<(), Refusal> {
    let (server, namespace) = (cluster.server().to_owned(), cluster.namespace().to_owned());
    // Before the rights: an account that may do nothing with a kind may find that there is none.
    presence(cluster, workload).await?;
    let mut missing = Vec::new();
    let own = (workload.resource(), workload.verbs());
    let queue = queued.then_some(QUEUE);
    let shared = workload.shared_kinds().iter().copied();
    for (resource, verbs) in std::iter::once(own).chain(shared).chain(NEEDED).chain(queue) {
        let mut lacking = Vec::new();
        for verb in verbs {
            if !a_few_times(|| cluster.may(verb, resource)).await? {
                lacking.push(*verb);
            }
        }
        if !lacking.is_empty() {
            missing.push(format!("{} {}", lacking.join(", "), resource.plural));
        }
    }
    if !missing.is_empty() {
        return Err(Refusal::NoRights { namespace, missing: missing.join("; ") });
    }
    let none = || cluster.names(workload.resource(), "trialkeeper/experiment=none");
    match a_few_times(none).await {
        Ok(_) if queued => {
            let version = queue::served_version(cluster).await?;
            version.map(drop).ok_or(Refusal::NoSuchKind {
                server,
                kind: "Workload",
                served: String::new(),
                installation: "Kueue is not installed there, or serves neither v1beta2 nor v1beta1; leave `queue` out, or install it (https://kueue.sigs.k8s.io)",
            })
        }
        Ok(_) => Ok(()),
        Err(Error::NotFound { .. }) => Err(no_such_kind(cluster, workload).await),
        Err(error) => Err(error.into()),
    }
}

/// Looks whether the namespace is there, and the kind.
pub async fn presence(cluster: &Cluster, workload: &dyn Workload) -> Result<(), Refusal> {
    if a_few_times(|| cluster.has_namespace()).await? == Some(false) {
        let (server, namespace) = (cluster.server().to_owned(), cluster.namespace().to_owned());
        return Err(Refusal::NoNamespace { server, namespace });
    }
    if a_few_times(|| cluster.serves(workload.resource())).await? {
        Ok(())
    } else {
        Err(no_such_kind(cluster, workload).await)
    }
}

/// Returns the refusal of a kind that the cluster does not serve, with those that it does.
async fn no_such_kind(cluster: &Cluster, workload: &dyn Workload) -> Refusal {
    let mut served: Vec<String> = Vec::new();
    for &kind in KINDS {
        if cluster.serves(super::workload::workload(kind).resource()).await.unwrap_or(false) {
            served.push(format!("{} (`platform: {}`)", kind.object(), kind.platform()));
        }
    }
    let served = match served.as_slice() {
        [] => String::new(),
        served => format!("; of the kinds that run trials it serves {}", served.join(", ")),
    };
    Refusal::NoSuchKind {
        server: cluster.server().to_owned(),
        kind: workload.resource().kind,
        installation: workload.installation(),
        served,
    }
}

/// Returns what to do about a field that the cluster does not know; nothing where it knows all.
fn unknown_field(why: &Error) -> &'static str {
    if why.is_unknown_field() {
        "; this cluster's version does not know that field: leave it out of the template, or have the cluster brought up to date"
    } else {
        ""
    }
}

impl Refusal {
    /// Returns whether others may have what is missing, and give it back.
    pub fn is_quota(&self) -> bool {
        matches!(self, Self::NoPod { why, .. } | Self::NoObject { why, .. } if why.is_quota())
    }
}

/// Looks whether the cluster would take what a trial is, and whether the kind's controller is at work.
pub async fn all(
    cluster: &Cluster,
    workload: &dyn Workload,
    common: &Common,
) -> Result<(), Refusal> {
    for refusal in
        [objects(cluster, workload, common).await?, pods(cluster, workload, common).await?]
    {
        match refusal {
            // Others may give back what is missing.
            Some(refusal) if refusal.is_quota() => warn!("{refusal}"),
            Some(refusal) => return Err(refusal),
            None => {}
        }
    }
    controller(cluster, workload, &common.experiment).await
}

/// Looks whether the cluster would take the object that a trial is, and knows all its fields. `None`: it would, or cannot say.
async fn objects(
    cluster: &Cluster,
    workload: &dyn Workload,
    common: &Common,
) -> Result<Option<Refusal>, Error> {
    for (resource, object) in workload.examples(common) {
        match a_few_times(|| cluster.try_out(resource, &object)).await {
            Ok(()) => {}
            // A webhook that cannot be asked what if.
            Err(Error::Refused { message, .. }) if message.contains("dry run") => {}
            Err(why @ (Error::NotAllowed { .. } | Error::Refused { .. })) => {
                let (kind, controller) = (resource.kind, workload.controller());
                return Ok(Some(Refusal::NoObject { kind, controller, why }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Looks whether the cluster would take a trial's pods, if we may ask it: a controller makes them, and some say in their
/// log only why one was refused. `None`: it would, or we may not ask.
pub async fn pods(
    cluster: &Cluster,
    workload: &dyn Workload,
    common: &Common,
) -> Result<Option<Refusal>, Error> {
    if !a_few_times(|| cluster.may("create", PODS)).await? {
        return Ok(None);
    }
    for (role, pod) in workload.example_pods(common) {
        let ask = || a_few_times(|| cluster.try_out(PODS, &pod));
        let mut said = ask().await;
        if matches!(said, Err(Error::NotAllowed { .. })) {
            tokio::time::sleep(SETTLED).await;
            said = ask().await;
        }
        match said {
            Ok(()) => {}
            // A webhook that cannot be asked what if.
            Err(Error::Refused { message, .. }) if message.contains("dry run") => {}
            Err(why @ (Error::NotAllowed { .. } | Error::Refused { .. })) => {
                let controller = workload.controller();
                return Ok(Some(Refusal::NoPod { role, controller, why }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Looks whether the kind's controller is at work: makes an object that starts no pod, and sees whether its status is
/// filled in.
async fn controller(
    cluster: &Cluster,
    workload: &dyn Workload,
    experiment: &ExperimentId,
) -> Result<(), Refusal> {
    let probe = workload.probe(experiment, cluster.namespace());
    let name = probe.pointer("/metadata/name").and_then(|name| name.as_str()).unwrap_or_default();
    let shared = workload.shared_by_probe(experiment, cluster.namespace());
    for (resource, object) in &shared {
        a_few_times(|| cluster.create(*resource, object)).await?;
    }
    let made = a_few_times(|| cluster.create(workload.resource(), &probe)).await;
    let noticed = match made {
        Ok(()) => tokio::time::timeout(NOTICE, noticed(cluster, workload, name)).await,
        Err(error) => Ok(Err(error)),
    };
    // Whatever came of it, nothing is left.
    let mut deleted = a_few_times(|| cluster.delete(workload.resource(), name)).await;
    for (resource, _) in &shared {
        deleted = deleted.and(a_few_times(|| cluster.delete(*resource, name)).await);
    }
    match noticed {
        Err(_) => Err(Refusal::NoController {
            controller: workload.controller(),
            kind: workload.resource().kind,
            namespace: cluster.namespace().to_owned(),
        }),
        Ok(seen) => {
            seen?;
            deleted?;
            Ok(())
        }
    }
}

async fn noticed(cluster: &Cluster, workload: &dyn Workload, name: &str) -> Result<(), Error> {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    loop {
        let found = a_few_times(|| cluster.get(workload.resource(), name)).await?;
        if found.is_some_and(|found| workload.is_noticed(&found.body)) {
            return Ok(());
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}
