//! What is looked at before anything is submitted: the cluster, the namespace, the kind, our rights, and
//! whether `FrameworkController` is at work. Everything that is wrong is said at once.

use std::time::Duration;

use trial_protocol::ExperimentId;

use super::client::{Cluster, Error, Kind, a_few_times};
use super::manifest::{self, Common};
use super::refused;

/// How long the controller may take to notice a new Framework; 20 ms are usual.
const NOTICE: Duration = Duration::from_secs(15);

/// How long a namespace that was just made may be without its service account, for instance.
const SETTLED: Duration = Duration::from_secs(2);

/// What we do to what, and cannot do without.
const NEEDED: [(Kind, &[&str]); 4] = [
    (Kind::Framework, &["get", "list", "watch", "create", "patch", "delete", "deletecollection"]),
    (Kind::Secret, &["list", "create", "patch", "deletecollection"]),
    (Kind::Pod, &["list", "watch"]),
    (Kind::Event, &["list", "watch"]),
];

/// What stands in the way of trials.
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
        /// Which API server.
        server: String,
        /// Which namespace.
        namespace: String,
    },
    /// The kind Framework is not known.
    #[error(
        "the cluster at {server} does not know Frameworks: FrameworkController is not installed there (docs/kubernetes.md says how)"
    )]
    NoFrameworks {
        /// Which API server.
        server: String,
    },
    /// Rights are missing.
    #[error(
        "the account of the kubeconfig may not do this in the namespace `{namespace}`: {missing} (deploy/ has a role with all that is needed)"
    )]
    NoRights {
        /// Which namespace.
        namespace: String,
        /// Verbs and objects.
        missing: String,
    },
    /// The cluster would not take a trial's pod.
    #[error("a pod of the role `{role}` could not be made: {}", refused::with_advice(.why.to_string()))]
    NoPod {
        /// Which role.
        role: String,
        /// What it said.
        why: Error,
    },
    /// Nobody takes notice of Frameworks.
    #[error(
        "FrameworkController takes no notice of a new Framework in the namespace `{namespace}` within {NOTICE:?}: does its pod run, and does it watch that namespace?"
    )]
    NoController {
        /// Which namespace.
        namespace: String,
    },
}

/// Looks whether trials can be run.
pub async fn check(cluster: &Cluster) -> Result<(), Refusal> {
    let (server, namespace) = (cluster.server().to_owned(), cluster.namespace().to_owned());
    if a_few_times(|| cluster.has_namespace()).await? == Some(false) {
        return Err(Refusal::NoNamespace { server, namespace });
    }
    let mut missing = Vec::new();
    for (kind, verbs) in NEEDED {
        let mut lacking = Vec::new();
        for verb in verbs {
            if !a_few_times(|| cluster.may(verb, kind)).await? {
                lacking.push(*verb);
            }
        }
        if !lacking.is_empty() {
            missing.push(format!("{} {}s", lacking.join(", "), format!("{kind:?}").to_lowercase()));
        }
    }
    if !missing.is_empty() {
        return Err(Refusal::NoRights { namespace, missing: missing.join("; ") });
    }
    let none = || cluster.names(Kind::Framework, "trialkeeper/experiment=none");
    match a_few_times(none).await {
        Ok(_) => Ok(()),
        Err(Error::NotFound { .. }) => Err(Refusal::NoFrameworks { server }),
        Err(error) => Err(error.into()),
    }
}

impl Refusal {
    /// Whether others may have what is missing, and give it back.
    pub fn is_quota(&self) -> bool {
        matches!(self, Self::NoPod { why, .. } if why.is_quota())
    }
}

/// Looks whether the cluster would take a trial's pods, if we may ask it: `FrameworkController` makes them, and tells
/// nobody but its log why one was refused. `None`: it would, or we may not ask.
pub async fn pods(cluster: &Cluster, common: &Common) -> Result<Option<Refusal>, Error> {
    if !a_few_times(|| cluster.may("create", Kind::Pod)).await? {
        return Ok(None);
    }
    for (role, pod) in manifest::pods(common) {
        let ask = || a_few_times(|| cluster.try_out(Kind::Pod, &pod));
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
                return Ok(Some(Refusal::NoPod { role, why }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Looks whether `FrameworkController` is at work: makes a Framework that starts no pod, and sees whether
/// its status is filled in.
pub async fn controller(cluster: &Cluster, experiment: &ExperimentId) -> Result<(), Refusal> {
    let probe = manifest::probe(experiment, cluster.namespace());
    let name = probe.pointer("/metadata/name").and_then(|name| name.as_str()).unwrap_or_default();
    a_few_times(|| cluster.create(Kind::Framework, &probe)).await?;
    let noticed = tokio::time::timeout(NOTICE, noticed(cluster, name)).await;
    // Whatever came of it, nothing is left.
    let deleted = a_few_times(|| cluster.delete(Kind::Framework, name)).await;
    match noticed {
        Err(_) => Err(Refusal::NoController { namespace: cluster.namespace().to_owned() }),
        Ok(seen) => {
            seen?;
            deleted?;
            Ok(())
        }
    }
}

async fn noticed(cluster: &Cluster, name: &str) -> Result<(), Error> {
    let mut pause = Duration::from_millis(20);
    loop {
        let found = a_few_times(|| cluster.get(Kind::Framework, name)).await?;
        let state = found.and_then(|found| found.body.pointer("/status/state").cloned());
        if state.is_some_and(|state| state.is_string()) {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
