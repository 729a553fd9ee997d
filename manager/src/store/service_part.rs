//! SQL of the training services of attempts, for experiments with several services.

use rusqlite::{OptionalExtension as _, params};
use serde::Serialize;
use trial_protocol::{AttemptId, TrialJobId};
use utoipa::ToSchema;

use super::{Error, Store};

/// One of several training services of an experiment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ServicePart {
    /// The position in the list `trainingService`, from 0.
    pub index: usize,
    /// The service's `platform`.
    pub platform: String,
}

/// The training service of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptPart {
    /// The trial's key in the store.
    pub trial: i64,
    /// The attempt's identifier, as the manager chose it.
    pub attempt: String,
    /// The service.
    pub part: ServicePart,
}

impl Store {
    /// Records the training service to which an attempt is submitted. A later record replaces an earlier one, because
    /// the first service may have refused the attempt.
    pub async fn record_part(
        &self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        part: ServicePart,
    ) -> Result<(), Error> {
        let (trial, attempt) = (trial.clone(), attempt.clone());
        let index = i64::try_from(part.index).unwrap_or(i64::MAX);
        self.write(move |c| {
            c.prepare_cached(
                "INSERT OR REPLACE INTO attempt_training_service (trial, attempt, part, platform) \
                 SELECT key, ?, ?, ? FROM trial WHERE id = ?",
            )?
            .execute(params![
                attempt.as_str(),
                index,
                part.platform,
                trial.as_str()
            ])?;
            Ok(())
        })
        .await
    }

    /// Returns the training service of an attempt. `None` if the experiment has only one.
    pub async fn part_of(
        &self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<ServicePart>, Error> {
        let (trial, attempt) = (trial.clone(), attempt.clone());
        self.read(move |c| {
            let mut statement = c.prepare_cached(
                "SELECT s.part, s.platform FROM attempt_training_service s \
                 JOIN trial t ON t.key = s.trial WHERE t.id = ? AND s.attempt = ?",
            )?;
            let found = statement.query_row(params![trial.as_str(), attempt.as_str()], |row| {
                Ok(ServicePart { index: index(row.get(0)?), platform: row.get(1)? })
            });
            Ok(found.optional()?)
        })
        .await
    }

    /// Returns the training services of all attempts.
    pub async fn attempt_parts(&self) -> Result<Vec<AttemptPart>, Error> {
        self.read(|c| {
            let mut statement = c.prepare_cached(
                "SELECT trial, attempt, part, platform FROM attempt_training_service",
            )?;
            let rows = statement.query_map([], |row| {
                let part = ServicePart { index: index(row.get(2)?), platform: row.get(3)? };
                Ok(AttemptPart { trial: row.get(0)?, attempt: row.get(1)?, part })
            })?;
            Ok(rows.collect::<Result<Vec<_>, _>>()?)
        })
        .await
    }
}

fn index(stored: i64) -> usize {
    usize::try_from(stored).unwrap_or(usize::MAX)
}
