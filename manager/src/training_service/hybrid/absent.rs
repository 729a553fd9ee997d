//! A part that was out of reach at the start and cannot join the running search. It gets no trial, and its earlier trials
//! count as running. `resume` checks it again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tracing::warn;
use trial_protocol::{AttemptId, TrialJobId};

use crate::training_service::platform::{BoxError, CheckedPlatform, StartContext};
use crate::training_service::{Adopted, FreeRoom, SubmitError, TrainingService, TrialJobSpec};

/// The time that a stopping manager gives the trials at the other parts. Trials at this part cannot be stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason for the absence of a part, which its message names.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct AbsentPart(pub(super) String);

#[async_trait]
impl CheckedPlatform for AbsentPart {
    async fn start(
        self: Box<Self>,
        context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError> {
        let experiment = context.id.to_string();
        let (trials, adopted) = (Mutex::default(), Notify::new());
        Ok(Arc::new(AbsentService { reason: *self, experiment, trials, adopted }))
    }
}

/// The service of an absent part.
struct AbsentService {
    reason: AbsentPart,
    experiment: String,
    /// The trials that an earlier manager submitted to the part.
    trials: Mutex<BTreeSet<TrialJobId>>,
    adopted: Notify,
}

impl AbsentService {
    fn trials(&self) -> MutexGuard<'_, BTreeSet<TrialJobId>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl TrainingService for AbsentService {
    async fn submit(&self, _job: &TrialJobSpec) -> Result<(), SubmitError> {
        Err(SubmitError::new(self.reason.clone()))
    }

    async fn adopt(&self, trial: &TrialJobId, _attempt: &AttemptId) -> Adopted {
        // The job may run, and it must not run twice.
        self.trials().insert(trial.clone());
        self.adopted.notify_one();
        Adopted::Alive
    }

    async fn recover(&self, _trial: &TrialJobId) {}

    async fn stop(&self, _trial: &TrialJobId) {}

    async fn out_of_reach(&self) {
        if self.trials().is_empty() {
            self.adopted.notified().await;
        }
        tokio::time::sleep(STOP_TIMEOUT).await;
    }

    fn free_room(&self) -> FreeRoom {
        FreeRoom::Unreachable(format!("{}; `resume` tries again", self.reason))
    }

    async fn close(&self) {
        let (trials, experiment) = (self.trials().len(), &self.experiment);
        if trials > 0 {
            warn!(
                "{}; {trials} of its trials may still run there. Once it can be used, `trial-manager resume {experiment}` \
                 continues them, or `trial-manager clean {experiment}` removes them",
                self.reason
            );
        }
    }
}
