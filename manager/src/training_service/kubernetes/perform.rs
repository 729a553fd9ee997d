//! Carries out the tracker's actions with requests to the cluster.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

use super::client::SECRETS;
use super::tracker::Act;
use super::watching::Watched;
use super::workload::StopRequest;
use super::{POD_POLL, Settings, Shared, cleanup, manifest};

impl Shared {
    /// Carries out the tracker's actions. Requests run in tasks of their own.
    #[expect(clippy::too_many_lines, reason = "an arm for each act")]
    pub(super) fn perform(self: &Arc<Self>, acts: Vec<Act>) {
        for act in acts {
            let shared = Arc::clone(self);
            match act {
                // The receiver lives as long as the experiment, and later news has no use.
                Act::Report(news) => drop(self.settings.events.send(news)),
                Act::Stop(name) => drop(self.tasks.spawn(async move {
                    let cluster = &shared.settings.cluster;
                    let resource = shared.kind.resource();
                    let done = match shared.kind.stop() {
                        StopRequest::Patch(stop) => {
                            let patch = || cluster.merge(resource, &name, &stop);
                            shared.until_done(&name, patch).await
                        }
                        StopRequest::Delete => {
                            shared.until_done(&name, || cluster.delete(resource, &name)).await
                        }
                    };
                    if done == Some(false) {
                        let acts = shared.tracker().handle_deleted_workload(&name);
                        shared.perform(acts);
                    }
                })),
                Act::ReadOutput(name) => drop(self.tasks.spawn(async move {
                    // The preflight checks do not require the right to read logs. Without the right, the message names
                    // a command with which the user can read them.
                    let last_line = match shared.reporter(&name).await {
                        Some((pod, container)) => {
                            shared.settings.cluster.last_lines(&pod, &container).await
                        }
                        None => Ok(String::new()),
                    };
                    let last_line = last_line.unwrap_or_default();
                    let last_line = last_line.lines().rfind(|line| !line.trim().is_empty()).map(str::trim);
                    let acts = shared.tracker().handle_silent_agent(&name, last_line);
                    shared.perform(acts);
                })),
                Act::QueryMissingPod(name) => drop(self.tasks.spawn(async move {
                    let why = shared.missing_pod_reason(&name).await;
                    let acts = shared.tracker().handle_missing_pod(&name, why);
                    shared.perform(acts);
                })),
                Act::Delete(name) => drop(self.tasks.spawn(async move {
                    let resource = shared.kind.resource();
                    let kind = resource.kind;
                    warn!("the {kind} {name} did not end within its time limit; deleting it");
                    let cluster = &shared.settings.cluster;
                    let done = shared.until_done(&name, || cluster.delete(resource, &name));
                    if done.await.is_some() {
                        let acts = shared.tracker().handle_deleted_workload(&name);
                        shared.perform(acts);
                    }
                })),
                Act::Discard(name) => drop(self.tasks.spawn(async move {
                    let (cluster, resource) = (&shared.settings.cluster, shared.kind.resource());
                    shared.until_done(&name, || cluster.delete(resource, &name)).await;
                })),
                Act::WatchQueue => drop(self.tasks.spawn(async move {
                    let closing = shared.closing.clone();
                    closing.run_until_cancelled(shared.watch(Watched::Queue)).await;
                })),
                Act::ReadEnd(name) => drop(self.tasks.spawn(async move {
                    let Some(pods) = shared.pods_and_ended(&name).await else { return };
                    let spec = &shared.settings.common.spec;
                    let Some(outcome) = shared.kind.settle(spec, &pods) else { return };
                    warn!(
                        "{} has decided how {name} ends and cannot say so, as when a webhook does not answer (Kueue's \
                         is asked about every pod); its pods say how it ended",
                        shared.kind.controller()
                    );
                    let acts = shared.tracker().complete_end(&name, outcome);
                    shared.perform(acts);
                })),
                Act::Inspect(name, outcome) => drop(self.tasks.spawn(async move {
                    let Some(pods) = shared.pods_and_ended(&name).await else { return };
                    let spec = &shared.settings.common.spec;
                    let outcome = shared.kind.explain(spec, outcome, &pods);
                    let acts = shared.tracker().complete_end(&name, outcome);
                    shared.perform(acts);
                })),
                Act::AwaitPods(name) => drop(self.tasks.spawn(async move {
                    let until = Instant::now() + shared.ending_time();
                    while let Some(pods) = shared.pods_of(&name).await
                        && !pods.is_empty()
                        && Instant::now() < until
                    {
                        let pause = tokio::time::sleep(POD_POLL);
                        if shared.closing.run_until_cancelled(pause).await.is_none() {
                            break;
                        }
                    }
                    let acts = shared.tracker().end_deleted_workload(&name);
                    shared.perform(acts);
                })),
                Act::Tidy(attempts) => drop(self.tasks.spawn(async move {
                    let Settings { cluster, common, .. } = &shared.settings;
                    let selector = manifest::selector_of(&common.experiment, &attempts);
                    for kind in [shared.kind.resource(), SECRETS] {
                        shared.until_done("old", || cleanup::delete_all(cluster, kind, &selector)).await;
                    }
                })),
            }
        }
    }
}
