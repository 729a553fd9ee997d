//! The checks before anything is submitted: the cluster, the namespace, the kind, the account's rights, and the kind's
//! controller. All problems are reported at once.

pub mod admission_changes;
pub mod queue;

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use self::admission_changes::{Change, Consequence};
use super::admission_advice;
use super::client::{Cluster, EVENTS, Error, PODS, Resource, SECRETS, with_retries};
use super::kueue;
use super::manifest::WorkloadSettings;
use super::workload::Workload;
use crate::config::kubernetes::WorkloadKind;
use crate::util::backoff::Backoff;

/// The time limit for the controller to notice a new object. The usual time is 20 ms.
const CONTROLLER_NOTICE_TIMEOUT: Duration = Duration::from_secs(15);

/// The time for which a new namespace may be incomplete. For example, it may lack its service account.
const NAMESPACE_SETTLE_TIME: Duration = Duration::from_secs(2);

/// The requests that the manager needs for every kind of workload.
const REQUIRED_RIGHTS: [(Resource, &[&str]); 3] = [
    (SECRETS, &["list", "create", "patch", "deletecollection"]),
    (PODS, &["list", "watch"]),
    (EVENTS, &["list", "watch"]),
];

/// The requests that the manager needs for trials that wait in a queue of Kueue.
const QUEUE_RIGHTS: (Resource, &[&str]) = (kueue::workloads("v1beta1"), &["list", "watch"]);

/// A reason why trials cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The cluster did not answer as expected.
    #[error(transparent)]
    Cluster(#[from] Error),
    /// The namespace does not exist.
    #[error(
        "the cluster at {server} has no namespace `{namespace}`; create it with `kubectl create namespace {namespace}`, or set `namespace` in the experiment file to another one"
    )]
    NoNamespace {
        /// The API server.
        server: String,
        /// The namespace.
        namespace: String,
    },
    /// The cluster does not serve the kind.
    #[error("the cluster at {server} does not serve {kind}s: {installation}{served}")]
    NoSuchKind {
        /// The API server.
        server: String,
        /// The kind.
        kind: &'static str,
        /// The missing component, and the remedy.
        installation: String,
        /// The kinds that the cluster serves, as the end of the sentence.
        served: String,
    },
    /// The account lacks rights.
    #[error(
        "the account of the kubeconfig lacks these rights in the namespace `{namespace}`: {missing}; `kubectl apply -n {namespace} -k deploy/rights` creates an account with all required rights"
    )]
    NoRights {
        /// The namespace.
        namespace: String,
        /// The missing verbs and objects.
        missing: String,
    },
    /// The cluster refuses a trial's pod.
    #[error("a pod of the role `{role}` could not be created: {}", admission_advice::with_advice(.why.to_string(), *.workload))]
    PodRefused {
        /// The role.
        role: String,
        /// The kind of the trial's object.
        workload: WorkloadKind,
        /// The server's answer.
        why: Error,
    },
    /// The cluster refuses the object that runs a trial.
    #[error("the {kind} of a trial could not be created: {}{}", admission_advice::with_advice(.why.to_string(), *.workload), unknown_field_remedy(.why))]
    ObjectRefused {
        /// The kind of the refused object.
        kind: &'static str,
        /// The kind of the trial's object.
        workload: WorkloadKind,
        /// The server's answer.
        why: Error,
    },
    /// The policies of the cluster change a trial's objects.
    #[error(
        "the cluster changes the objects of trials so that no trial could run: {changes}; ask its administrator for an exception for objects with the label `trialkeeper/experiment`"
    )]
    ObjectsChanged {
        /// The changes.
        changes: String,
    },
    /// The experiment's queue does not exist.
    #[error(
        "the namespace `{namespace}` has no LocalQueue `{queue}`, which `queue` in the experiment file names; `kubectl -n {namespace} get localqueues` lists the existing ones"
    )]
    NoQueue {
        /// The namespace.
        namespace: String,
        /// The queue.
        queue: String,
    },
    /// The experiment's priority class does not exist.
    #[error(
        "the cluster has no WorkloadPriorityClass `{class}`, which `priorityClass` in the experiment file names, and with an unknown class Kueue never starts a trial; `kubectl get workloadpriorityclasses` lists the existing ones"
    )]
    NoPriorityClass {
        /// The class.
        class: String,
    },
    /// No controller notices new objects of the kind.
    #[error(
        "{controller} has not noticed a new {kind} in the namespace `{namespace}` within {CONTROLLER_NOTICE_TIMEOUT:?}: {hint}"
    )]
    NoController {
        /// The controller.
        controller: &'static str,
        /// The kind.
        kind: &'static str,
        /// The namespace.
        namespace: String,
        /// A question about the probable reasons.
        hint: &'static str,
    },
}

/// Checks whether the cluster can run trials.
pub async fn check_cluster(
    cluster: &Cluster,
    workload: &dyn Workload,
    queued: bool,
) -> Result<(), Refusal> {
    let (server, namespace) = (cluster.server().to_owned(), cluster.namespace().to_owned());
    // This check precedes that of the rights, because an account without rights for a kind can still see that the
    // kind does not exist.
    check_kind_exists(cluster, workload).await?;
    let mut missing = Vec::new();
    let own = (workload.resource(), workload.verbs());
    let queue = queued.then_some(QUEUE_RIGHTS);
    let shared = workload.shared_kinds().iter().copied();
    for (resource, verbs) in std::iter::once(own).chain(shared).chain(REQUIRED_RIGHTS).chain(queue)
    {
        let mut lacking = Vec::new();
        for verb in verbs {
            if !with_retries(|| cluster.is_allowed(verb, resource)).await? {
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
    let none = || cluster.list_names(workload.resource(), "trialkeeper/experiment=none");
    match with_retries(none).await {
        Ok(_) if queued => {
            let version = queue::served_kueue_version(cluster).await?;
            version.map(drop).ok_or(Refusal::NoSuchKind {
                server,
                kind: "Workload",
                served: String::new(),
                installation: "Kueue is not installed there, or serves neither v1beta2 nor v1beta1; leave `queue` out, or install it (https://kueue.sigs.k8s.io)"
                    .to_owned(),
            })
        }
        Ok(_) => Ok(()),
        Err(Error::NotFound { .. }) => Err(missing_kind_refusal(cluster, workload).await),
        Err(error) => Err(error.into()),
    }
}

/// Checks that the namespace and the kind exist.
pub async fn check_kind_exists(cluster: &Cluster, workload: &dyn Workload) -> Result<(), Refusal> {
    if with_retries(|| cluster.has_namespace()).await? == Some(false) {
        let (server, namespace) = (cluster.server().to_owned(), cluster.namespace().to_owned());
        return Err(Refusal::NoNamespace { server, namespace });
    }
    if with_retries(|| cluster.is_served(workload.resource())).await? {
        Ok(())
    } else {
        Err(missing_kind_refusal(cluster, workload).await)
    }
}

/// Returns the refusal for a kind that the cluster does not serve, with the kinds that it does serve.
async fn missing_kind_refusal(cluster: &Cluster, workload: &dyn Workload) -> Refusal {
    let mut served: Vec<String> = Vec::new();
    for &kind in WorkloadKind::ALL {
        if cluster.is_served(super::workload::workload(kind).resource()).await.unwrap_or(false) {
            served.push(format!("{} (`platform: {}`)", kind.object(), kind.platform()));
        }
    }
    let served = match served.as_slice() {
        [] => String::new(),
        served => format!("; it serves these kinds that can run trials: {}", served.join(", ")),
    };
    Refusal::NoSuchKind {
        server: cluster.server().to_owned(),
        kind: workload.resource().kind,
        installation: workload.installation_advice(),
        served,
    }
}

/// Returns the remedy for a field that the cluster does not support. The text is empty for any other error.
fn unknown_field_remedy(why: &Error) -> &'static str {
    if why.is_unknown_field() {
        "; this cluster's version does not support that field: leave it out of the template, or upgrade the cluster"
    } else {
        ""
    }
}

impl Refusal {
    /// Returns whether a quota is exhausted, whose resources other users may release.
    pub fn is_quota_exhausted(&self) -> bool {
        matches!(self, Self::PodRefused { why, .. } | Self::ObjectRefused { why, .. } if why.is_quota_exhausted())
    }
}

/// The result of a dry run: the changes that the cluster makes, or its refusal.
type DryRunResult = Result<Vec<Change>, Refusal>;

/// Checks that the cluster accepts the object that runs a trial, and that the kind's controller is at work. Returns
/// harmless changes that the cluster makes to trials, for the user.
pub async fn check_workload(
    cluster: &Cluster,
    workload: &dyn Workload,
    settings: &WorkloadSettings,
) -> Result<Vec<String>, Refusal> {
    let examples = workload.example_objects(settings);
    let mut changes = Vec::new();
    for done in [
        dry_run_objects(cluster, workload, &examples).await?,
        dry_run_pods(cluster, workload, settings).await?,
    ] {
        match done {
            Ok(found) => changes.extend(found),
            // Other users may release the missing resources.
            Err(refusal) if refusal.is_quota_exhausted() => warn!("{refusal}"),
            Err(refusal) => return Err(refusal),
        }
    }
    let mut notes = report_changes(changes)?;
    notes.extend(check_controller(cluster, workload, settings).await?);
    Ok(notes)
}

/// Warns of the changes that the cluster makes to the objects of trials, and returns the harmless ones. Refuses changes
/// with which no trial could run.
fn report_changes(mut changes: Vec<Change>) -> Result<Vec<String>, Refusal> {
    // The same policy may apply to a trial's object and to its pods.
    changes.sort();
    changes.dedup();
    let fatal = changes.iter().filter(|change| change.consequence == Consequence::Fatal);
    let fatal: Vec<&str> = fatal.map(|change| change.text.as_str()).collect();
    if !fatal.is_empty() {
        return Err(Refusal::ObjectsChanged { changes: fatal.join("; ") });
    }
    let mut notes = Vec::new();
    for Change { consequence, text } in changes {
        let sentence = format!("the cluster changes the objects of trials: {text}");
        if consequence == Consequence::Warning {
            warn!("{sentence}");
        } else {
            info!("{sentence}");
            notes.push(sentence);
        }
    }
    Ok(notes)
}

/// Checks with a dry run that the cluster accepts objects of a trial, with all their fields. No changes are returned if
/// the cluster does not support the dry run.
async fn dry_run_objects(
    cluster: &Cluster,
    workload: &dyn Workload,
    examples: &[(Resource, Value)],
) -> Result<DryRunResult, Error> {
    let mut changes = Vec::new();
    for (resource, object) in examples {
        let ask = || cluster.dry_run(*resource, object);
        match retry_until_shared_objects_are_seen(workload, ask).await {
            Ok(answered) => changes.extend(admission_changes::find_changes(object, &answered)),
            // A webhook does not support dry runs.
            Err(Error::Refused { message, .. }) if message.contains("dry run") => {}
            Err(why @ (Error::NotAllowed { .. } | Error::Refused { .. })) => {
                let (kind, workload) = (resource.kind, workload.kind());
                return Ok(Err(Refusal::ObjectRefused { kind, workload, why }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(changes))
}

/// Checks with a dry run that the cluster accepts a trial's pods, if the account may create pods. The check matters
/// because a controller creates the pods, and some controllers report a refusal only in their log. No changes are
/// returned if the account lacks the right.
pub async fn dry_run_pods(
    cluster: &Cluster,
    workload: &dyn Workload,
    settings: &WorkloadSettings,
) -> Result<DryRunResult, Error> {
    let mut changes = Vec::new();
    if !with_retries(|| cluster.is_allowed("create", PODS)).await? {
        return Ok(Ok(changes));
    }
    for (role, pod) in workload.example_pods(settings) {
        let ask = || with_retries(|| cluster.dry_run(PODS, &pod));
        let mut answer = ask().await;
        if matches!(answer, Err(Error::NotAllowed { .. })) {
            tokio::time::sleep(NAMESPACE_SETTLE_TIME).await;
            answer = ask().await;
        }
        match answer {
            Ok(answered) => changes.extend(admission_changes::find_changes(&pod, &answered)),
            // A webhook does not support dry runs.
            Err(Error::Refused { message, .. }) if message.contains("dry run") => {}
            Err(why @ (Error::NotAllowed { .. } | Error::Refused { .. })) => {
                return Ok(Err(Refusal::PodRefused { role, workload: workload.kind(), why }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(changes))
}

/// Checks that the kind's controller is at work: creates an object that starts no pod, and waits until the controller
/// fills in its status. Returns harmless changes of the cluster to the objects that could not be checked before.
async fn check_controller(
    cluster: &Cluster,
    workload: &dyn Workload,
    settings: &WorkloadSettings,
) -> Result<Vec<String>, Refusal> {
    let experiment = &settings.experiment;
    let probe = workload.probe_object(experiment, cluster.namespace());
    let name = probe.pointer("/metadata/name").and_then(|name| name.as_str()).unwrap_or_default();
    let shared = workload.shared_probe_objects(experiment, cluster.namespace());
    let created = create_probe(cluster, workload, &shared, &probe).await;
    let noticed = match &created {
        Ok(()) => {
            tokio::time::timeout(
                CONTROLLER_NOTICE_TIMEOUT,
                wait_until_noticed(cluster, workload, name),
            )
            .await
        }
        Err(_) => Ok(Ok(())),
    };
    let examples =
        if created.is_ok() { workload.example_objects_with_probe(settings) } else { Vec::new() };
    let tried = dry_run_objects(cluster, workload, &examples).await;
    // The probe must not remain, whatever the result.
    let mut deleted = with_retries(|| cluster.delete(workload.resource(), name)).await;
    for (resource, _) in &shared {
        deleted = deleted.and(with_retries(|| cluster.delete(*resource, name)).await);
    }
    match created {
        // A policy or a quota refuses the probe. This does not apply to trials, whose object has passed the dry run.
        Err(error @ (Error::NotAllowed { .. } | Error::Refused { .. })) => {
            let controller = workload.controller();
            warn!(
                "cannot check whether {controller} is at work, because the object for this check was refused: {error}"
            );
        }
        created => created?,
    }
    let seen = noticed.map_err(|_| Refusal::NoController {
        controller: workload.controller(),
        kind: workload.resource().kind,
        namespace: cluster.namespace().to_owned(),
        hint: workload.unnoticed_hint(),
    })?;
    seen?;
    deleted?;
    match tried? {
        Ok(changes) => report_changes(changes),
        Err(refusal) if refusal.is_quota_exhausted() => {
            warn!("{refusal}");
            Ok(Vec::new())
        }
        Err(refusal) => Err(refusal),
    }
}

/// Creates the probe, after the objects that it needs.
async fn create_probe(
    cluster: &Cluster,
    workload: &dyn Workload,
    shared: &[(Resource, Value)],
    probe: &Value,
) -> Result<(), Error> {
    for (resource, object) in shared {
        with_retries(|| cluster.create(*resource, object)).await?;
    }
    retry_until_shared_objects_are_seen(workload, || cluster.create(workload.resource(), probe))
        .await
}

/// Repeats a request until each webhook sees the shared objects, which may be new.
async fn retry_until_shared_objects_are_seen<T, F: Future<Output = Result<T, Error>>>(
    workload: &dyn Workload,
    request: impl Fn() -> F,
) -> Result<T, Error> {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    let deadline = Instant::now() + CONTROLLER_NOTICE_TIMEOUT;
    loop {
        match with_retries(&request).await {
            Err(error)
                if workload.is_missing_shared_object(&error.to_string())
                    && Instant::now() < deadline => {}
            answer => return answer,
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

async fn wait_until_noticed(
    cluster: &Cluster,
    workload: &dyn Workload,
    name: &str,
) -> Result<(), Error> {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    loop {
        let found = with_retries(|| cluster.get(workload.resource(), name)).await?;
        if found.is_some_and(|found| workload.is_noticed(&found.body)) {
            return Ok(());
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}
