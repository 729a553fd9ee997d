//! Carries out the tracker's actions with requests to the cluster.

use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;
use tracing::warn;
use trial_protocol::AttemptId;

use super::watcher::Watched;
use super::{ORPHAN_TIME, POD_POLL, STATE_POLL, Settings, Shared};
use crate::training_service::kubernetes::client::{PODS, SECRETS};
use crate::training_service::kubernetes::outcome::WorkloadOutcome;
use crate::training_service::kubernetes::tracker::Act;
use crate::training_service::kubernetes::workload::StopRequest;
use crate::training_service::kubernetes::{cleanup, manifest, pod_end};
use crate::util::backoff::Backoff;

impl Shared {
    /// Carries out the tracker's actions. Requests run in tasks of their own, and each returns the actions that follow.
    pub(super) fn perform(self: &Arc<Self>, acts: Vec<Act>) {
        for act in acts {
            if let Act::Report(news) = act {
                // The receiver lives as long as the experiment, and later news has no use.
                drop(self.settings.events.send(news));
                continue;
            }
            let shared = Arc::clone(self);
            self.tasks.spawn(async move {
                let acts = shared.carry_out(act).await;
                shared.perform(acts);
            });
        }
    }

    async fn carry_out(self: &Arc<Self>, act: Act) -> Vec<Act> {
        match act {
            Act::Report(_) => Vec::new(),
            Act::Stop(name) => self.stop_workload(&name).await,
            Act::ReadOutput(name) => self.read_output(&name).await,
            Act::QueryMissingPod(name) => self.query_missing_pod(&name).await,
            Act::Delete(name) => self.delete_workload(&name).await,
            Act::Discard(name) => {
                let (cluster, resource) = (&self.settings.cluster, self.kind.resource());
                self.until_done(&name, || cluster.delete(resource, &name)).await;
                Vec::new()
            }
            Act::ReadEnd(name) => self.read_end(&name).await,
            Act::WatchQueue => {
                let watch = Arc::clone(self).watch(Watched::Queue);
                self.closing.run_until_cancelled(watch).await;
                Vec::new()
            }
            Act::Inspect(name, outcome) => self.inspect(&name, outcome).await,
            Act::AwaitPods(name) => self.await_pods(&name).await,
            Act::Tidy(attempts) => self.tidy(&attempts).await,
        }
    }

    async fn stop_workload(&self, name: &str) -> Vec<Act> {
        let (cluster, resource) = (&self.settings.cluster, self.kind.resource());
        let exists = match self.kind.stop() {
            StopRequest::Patch(stop) => {
                self.until_done(name, || cluster.merge(resource, name, &stop)).await
            }
            StopRequest::Delete => self.until_done(name, || cluster.delete(resource, name)).await,
        };
        if exists == Some(false) {
            self.tracker().handle_deleted_workload(name)
        } else {
            Vec::new()
        }
    }

    /// Deletes a workload that did not stop.
    async fn delete_workload(&self, name: &str) -> Vec<Act> {
        let (cluster, resource) = (&self.settings.cluster, self.kind.resource());
        warn!("the {} {name} did not end within its time limit; deleting it", resource.kind);
        let done = self.until_done(name, || cluster.delete(resource, name)).await;
        if done.is_some() { self.tracker().handle_deleted_workload(name) } else { Vec::new() }
    }

    /// Reads the last line of a pod whose agent does not report.
    async fn read_output(&self, name: &str) -> Vec<Act> {
        // The preflight checks do not require the right to read logs. Without the right, the message names a command
        // with which the user can read them.
        let output = match self.reporter(name).await {
            Some((pod, container)) => self.settings.cluster.last_lines(&pod, &container).await,
            None => Ok(String::new()),
        };
        let output = output.unwrap_or_default();
        let last_line = output.lines().rfind(|line| !line.trim().is_empty()).map(str::trim);
        self.tracker().handle_silent_agent(name, last_line)
    }

    /// Reads the end of a workload from its pods, if its controller does not complete it.
    async fn read_end(&self, name: &str) -> Vec<Act> {
        let Some(pods) = self.pods_and_ended(name).await else { return Vec::new() };
        let trial = self.trial_containers();
        let remains = pods.iter().any(|pod| pod_end::outlives_trial(pod, &trial));
        let has_running = pods.iter().any(|pod| !pod_end::has_ended(pod));
        let pods = pods.into_iter().map(|pod| pod_end::without_other_containers(pod, &trial));
        let pods: Vec<_> = pods.collect();
        let spec = &self.settings.common.spec;
        let Some(outcome) = self.kind.settle(spec, &pods) else { return Vec::new() };
        if remains && !has_running {
            let mut acts = self.tracker().complete_end(name, outcome);
            warn!(
                "the trial of {name} has ended, but another container runs on in its pod, as when a service mesh added \
                 it; deleting the {}",
                self.kind.resource().kind
            );
            acts.push(Act::Discard(name.to_owned()));
            return acts;
        }
        let why = format!(
            "{} has not written this end: it may be down, or Kueue's webhook, which is called for every pod, does not \
             answer; the end is read from the pods",
            self.kind.controller()
        );
        warn!("{name}: {why}");
        self.tracker().settle_end(name, outcome, &why, has_running)
    }

    /// Adds the explanation of the pods to the outcome of a workload.
    async fn inspect(&self, name: &str, outcome: WorkloadOutcome) -> Vec<Act> {
        if self.kind.ends_before_pods() && self.await_ends(name).await.is_none() {
            return Vec::new();
        }
        if !outcome.needs_pods {
            return self.tracker().complete_end(name, outcome);
        }
        let Some(pods) = self.pods_and_ended(name).await else { return Vec::new() };
        let outcome = self.kind.explain(&self.settings.common.spec, outcome, &pods);
        self.tracker().complete_end(name, outcome)
    }

    /// Waits until the pods of a workload have ended whose controller ends them after the workload. `None`: the service is
    /// closing.
    async fn await_ends(&self, name: &str) -> Option<()> {
        let until = Instant::now() + self.ending_time();
        while self.tracker().has_running_pods(name) && Instant::now() < until {
            self.closing.run_until_cancelled(tokio::time::sleep(STATE_POLL)).await?;
        }
        Some(())
    }

    /// Waits until the pods of a deleted workload are gone.
    async fn await_pods(&self, name: &str) -> Vec<Act> {
        // The time begins with the first answer: while the API server was away, no pod could be stopped.
        let mut begun: Option<Instant> = None;
        let [first, longest] = POD_POLL;
        let mut backoff = Backoff::new(first, longest);
        let mut may_delete = true;
        while let Some(pods) = self.pods_of(name).await
            && !pods.is_empty()
            && begun.get_or_insert_with(Instant::now).elapsed() < self.ending_time()
        {
            if may_delete && begun.is_some_and(|begun| begun.elapsed() >= ORPHAN_TIME) {
                may_delete = self.delete_orphans(&pods).await;
            }
            let pause = tokio::time::sleep(backoff.next_pause());
            if self.closing.run_until_cancelled(pause).await.is_none() {
                break;
            }
        }
        self.tracker().end_deleted_workload(name)
    }

    /// Deletes the pods that the garbage collector leaves, as after `kubectl delete --cascade=orphan`. Returns `false` if
    /// the cluster refuses this. The account need not have the right.
    async fn delete_orphans(&self, pods: &[Value]) -> bool {
        for pod in pod_end::undeleted(pods) {
            warn!("{pod}: its object is gone, and the pod remains; deleting the pod");
            if let Err(error) = self.request(|| self.settings.cluster.delete(PODS, pod)).await {
                warn!("{pod}: {error}; its command may run beside the trial's next attempt");
                return false;
            }
        }
        true
    }

    /// Deletes the remains of attempts that ended long ago.
    async fn tidy(&self, attempts: &[AttemptId]) -> Vec<Act> {
        let Settings { cluster, common, .. } = &self.settings;
        let selector = manifest::selector_of(&common.experiment, attempts);
        for kind in [self.kind.resource(), SECRETS] {
            self.until_done("old", || cleanup::delete_all(cluster, kind, &selector)).await;
        }
        Vec::new()
    }
}
