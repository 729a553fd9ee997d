//! A part that was out of reach at the start and cannot join the running search. It gets no trial. `resume` checks it
//! again.

use std::sync::Arc;

use async_trait::async_trait;
use trial_protocol::{AttemptId, TrialJobId};

use crate::training_service::platform::{BoxError, CheckedPlatform, StartContext};
use crate::training_service::{Adopted, FreeRoom, SubmitError, TrainingService, TrialJobSpec};

/// The part, with the reason for its absence.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct AbsentPart(pub(super) String);

#[async_trait]
impl CheckedPlatform for AbsentPart {
    async fn start(
        self: Box<Self>,
        _context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError> {
        Ok(Arc::new(*self))
    }
}

#[async_trait]
impl TrainingService for AbsentPart {
    async fn submit(&self, _job: &TrialJobSpec) -> Result<(), SubmitError> {
        Err(SubmitError::new(self.clone()))
    }

    async fn adopt(&self, _trial: &TrialJobId, _attempt: &AttemptId) -> Adopted {
        Adopted::Unknown
    }

    async fn recover(&self, _trial: &TrialJobId) {}

    async fn stop(&self, _trial: &TrialJobId) {}

    fn free_room(&self) -> FreeRoom {
        FreeRoom::Unreachable(format!("{}; `resume` tries again", self.0))
    }

    async fn close(&self) {}
}
