//! Creates the objects of trials, and the objects that all trials share.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::info;

use super::Settings;
use super::action_runner::ActionRunner;
use super::context::ServiceContext;
use crate::training_service::TrialJobSpec;
use crate::training_service::kubernetes::client::{self, Resource, SECRETS};
use crate::training_service::kubernetes::tracker::TrackerAction;
use crate::training_service::kubernetes::{
    FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE, manifest, preflight,
};
use crate::util::backoff::Backoff;

/// The message of an interrupted submission.
const SUBMISSION_INTERRUPTED: &str = "the manager ended before the trial was submitted";

/// Creates the objects of trials, and the objects that all trials share.
#[derive(Clone)]
pub(super) struct Submitter {
    context: Arc<ServiceContext>,
    runner: ActionRunner,
    /// Counts requests to end attempts.
    stop_requests: watch::Sender<u64>,
}

impl Submitter {
    pub(super) fn new(context: Arc<ServiceContext>, runner: ActionRunner) -> Self {
        Self { context, runner, stop_requests: watch::Sender::new(0) }
    }

    /// Lets waiting submissions check whether their trials were stopped.
    pub(super) fn check_stop_requests(&self) {
        self.stop_requests.send_modify(|count| *count += 1);
    }

    /// Creates the objects of an attempt in a task of its own.
    pub(super) fn submit(&self, job: &TrialJobSpec) {
        let context = &self.context;
        let name = manifest::workload_name(&context.workload_settings().experiment, &job.attempt);
        context.tracker().add_attempt(&name, job.trial.clone(), job.attempt.clone(), context.now());
        context.wake_timekeeper();
        let (submitter, job) = (self.clone(), job.clone());
        context.spawn(async move {
            let mut may_exist = false;
            let outcome = submitter.create_objects(&name, &job, &mut may_exist).await;
            let is_given_up = outcome.is_err();
            let context = &submitter.context;
            let mut actions = context.tracker().handle_submission(&name, outcome, context.now());
            if is_given_up && may_exist {
                actions.push(TrackerAction::DeleteLeftover(name));
            }
            submitter.runner.perform(actions);
        });
    }

    /// Writes the shared objects once the cluster answers. An earlier manager may have had another address.
    pub(super) async fn write_shared_objects(self) {
        self.context.wait_until_listed().await;
        let Settings { cluster, shared_objects, .. } = self.context.settings();
        for (resource, object) in shared_objects {
            let write = || cluster.create_or_update(*resource, object);
            let written =
                self.context.retry_until_done("the objects of the experiment", write).await;
            if written.is_none() {
                return;
            }
        }
        info!("the cluster at {} answers; waiting trials are submitted", cluster.server());
    }

    /// Creates the objects of an attempt. An object that already exists comes from a manager that crashed or from a
    /// lost answer. Sets `may_exist` if an answer about the workload was lost, since the cluster may have created it.
    async fn create_objects(
        &self,
        name: &str,
        job: &TrialJobSpec,
        may_exist: &mut bool,
    ) -> Result<(), String> {
        let (context, kind) = (&self.context, self.context.kind());
        let interrupted = || SUBMISSION_INTERRUPTED.to_owned();
        let objects = [
            (SECRETS, manifest::token_secret(context.workload_settings(), job)),
            (kind.resource(), kind.manifest(context.workload_settings(), job)),
        ];
        let mut backoff = Backoff::new(FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE);
        let (mut next, mut is_lost) = (0, false);
        while let Some((resource, object)) = objects.get(next) {
            let mut stop_requests = self.stop_requests.subscribe();
            // A watch has shown the workload, although no answer confirmed its creation. After its deletion, another
            // request would create it again.
            if context.tracker().is_created(name) {
                return Ok(());
            }
            if context.tracker().is_stop_requested(name) {
                return Err("the trial was stopped before it was submitted".to_owned());
            }
            let request = context.request(|| self.create(*resource, object, is_lost));
            let answer = context.until_closing(request).await.ok_or_else(interrupted)?;
            let Err(error) = answer else {
                (next, is_lost) = (next + 1, false);
                continue;
            };
            *may_exist |= *resource == kind.resource() && error.is_temporary();
            let needs_shared =
                error.is_not_found() || kind.is_missing_shared_object(&error.to_string());
            // The preflight checks showed that the account has the rights, so a quota is exhausted or an object was
            // removed since. The trial is not at fault and waits for at most `startUpDeadline`.
            if !needs_shared && !error.is_recoverable() {
                return Err(format!("the trial could not be submitted: {error}"));
            }
            let report = self.report_refusal(name, &error, is_lost);
            context.until_closing(report).await.ok_or_else(interrupted)?;
            if needs_shared {
                (next, is_lost) = (0, true);
            }
            let pause = tokio::time::timeout(backoff.next_pause(), stop_requests.changed());
            // The pause ends early if any trial is stopped.
            drop(context.until_closing(pause).await.ok_or_else(interrupted)?);
        }
        Ok(())
    }

    /// Creates an object of an attempt, after the shared objects if those may be missing.
    async fn create(
        &self,
        resource: Resource,
        object: &serde_json::Value,
        is_lost: bool,
    ) -> Result<(), client::Error> {
        let Settings { cluster, shared_objects, .. } = self.context.settings();
        for (resource, object) in shared_objects.iter().filter(|_| is_lost) {
            cluster.create_or_update(*resource, object).await?;
        }
        cluster.create(resource, object).await
    }

    /// Reports the reason why an attempt waits when the cluster refuses its objects. `is_known`: the same refusal was
    /// reported before.
    async fn report_refusal(&self, name: &str, error: &client::Error, is_known: bool) {
        if error.is_not_found() && is_known {
            return;
        }
        let context = &self.context;
        let mut why = error.to_string();
        if error.is_not_found()
            && let Err(refusal) =
                preflight::check_kind_exists(context.cluster(), context.kind()).await
        {
            why = refusal.to_string();
        }
        let mut actions = context.tracker().set_wait_reason(name, Some(why));
        if error.is_quota_exhausted() {
            actions.extend(context.tracker().delete_old_workloads());
        }
        self.runner.perform(actions);
    }
}
