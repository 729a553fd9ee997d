//! SQL of the manager's own records about attempts: the version of the code, the container image, and the training
//! service of experiments with several.

use std::collections::HashMap;

use rusqlite::{OptionalExtension as _, params};
use serde::Serialize;
use trial_protocol::{AttemptId, TrialJobId};
use utoipa::ToSchema;

use super::database::Database;
use super::error::Error;
use super::readers::read_unsigned;
use crate::code_archive::version::CodeVersion;

/// A version of the code, and the trials whose current attempt started with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeRow {
    /// The version.
    pub version: CodeVersion,
    /// The positions of the trials in their experiment, in ascending order.
    pub trials: Vec<u64>,
}

/// The code of all attempts for which it was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptCodes {
    /// The versions, by their keys in the store.
    pub versions: HashMap<i64, CodeVersion>,
    /// The trial's key in the store, the attempt, and the version's key.
    pub attempts: Vec<(i64, String, i64)>,
}

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

/// The manager's own records about attempts.
#[derive(Clone, Debug)]
pub struct AttemptRecords {
    database: Database,
}

impl AttemptRecords {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Records the code version with which attempts were started. A second record for an attempt changes nothing.
    pub async fn record_code(
        &self,
        attempts: Vec<(TrialJobId, AttemptId)>,
        version: CodeVersion,
    ) -> Result<(), Error> {
        self.database.write(move |c| {
            let document = serde_json::to_string(&version).unwrap_or_default();
            c.prepare_cached("INSERT OR IGNORE INTO code_version (sha256, document) VALUES (?, ?)")?
                .execute(params![version.sha256, document])?;
            let mut insert = c.prepare_cached(
                "INSERT OR IGNORE INTO attempt_code (trial, attempt, code) \
                 SELECT t.key, ?, v.key FROM trial t, code_version v WHERE t.id = ? AND v.sha256 = ?",
            )?;
            for (trial, attempt) in &attempts {
                insert.execute(params![attempt.as_str(), trial.as_str(), version.sha256])?;
            }
            Ok(())
        })
        .await
    }

    /// Returns the code version with which an attempt was started. `None` if it was not recorded.
    pub async fn code(
        &self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<CodeVersion>, Error> {
        let (trial, attempt) = (trial.clone(), attempt.clone());
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(
                    "SELECT v.document FROM attempt_code a JOIN code_version v ON v.key = a.code \
                 JOIN trial t ON t.key = a.trial WHERE t.id = ? AND a.attempt = ?",
                )?;
                let found = statement.query_row(params![trial.as_str(), attempt.as_str()], |row| {
                    row.get::<_, String>(0)
                });
                Ok(found.optional()?.and_then(|text| serde_json::from_str(&text).ok()))
            })
            .await
    }

    /// Returns the code of all attempts for which it was recorded.
    pub async fn all_codes(&self) -> Result<AttemptCodes, Error> {
        self.database
            .read(|c| {
                let mut versions = c.prepare_cached("SELECT key, document FROM code_version")?;
                let rows = versions
                    .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?
                    .collect::<Result<Vec<_>, _>>()?;
                let parsed = rows.into_iter().filter_map(|(key, document)| {
                    serde_json::from_str(&document).ok().map(|version| (key, version))
                });
                let versions = parsed.collect();
                let mut attempts =
                    c.prepare_cached("SELECT trial, attempt, code FROM attempt_code")?;
                let attempts = attempts
                    .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(AttemptCodes { versions, attempts })
            })
            .await
    }

    /// Returns the first `limit` versions of the code, in the order in which they were first recorded. Trials are
    /// listed only if there are several versions.
    pub async fn code_versions(&self, limit: u32) -> Result<Vec<CodeRow>, Error> {
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(
                    "SELECT key, document FROM code_version ORDER BY key LIMIT ?",
                )?;
                let rows = statement
                    .query_map([limit], |row| {
                        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
                    })?
                    .collect::<Result<Vec<_>, _>>()?;
                let mut trials = c.prepare_cached(
                    "SELECT t.sequence FROM attempt_code a JOIN trial t ON t.key = a.trial \
                 WHERE a.code = ? AND a.attempt = t.attempt ORDER BY t.sequence",
                )?;
                let several = rows.len() > 1;
                let mut versions = Vec::new();
                for (key, document) in rows {
                    let Ok(version) = serde_json::from_str(&document) else { continue };
                    let mut sequences = Vec::new();
                    let mut found = trials.query([key])?;
                    while let Some(row) = found.next()?.filter(|_| several) {
                        sequences.push(read_unsigned(row, "sequence")?);
                    }
                    versions.push(CodeRow { version, trials: sequences });
                }
                Ok(versions)
            })
            .await
    }

    /// Records the images of attempts, all or none. A later record replaces an earlier one, because a recreated pod
    /// may have pulled another image.
    pub async fn record_images(
        &self,
        images: Vec<(TrialJobId, AttemptId, String)>,
    ) -> Result<(), Error> {
        self.database
            .write(move |c| {
                let mut statement = c.prepare_cached(
                    "INSERT OR REPLACE INTO attempt_image (trial, attempt, image) \
                 SELECT key, ?, ? FROM trial WHERE id = ?",
                )?;
                for (trial, attempt, image) in &images {
                    statement.execute(params![attempt.as_str(), image, trial.as_str()])?;
                }
                Ok(())
            })
            .await
    }

    /// Returns the image of an attempt. `None` if it was not recorded.
    pub async fn image(
        &self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<String>, Error> {
        let (trial, attempt) = (trial.clone(), attempt.clone());
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(
                    "SELECT i.image FROM attempt_image i JOIN trial t ON t.key = i.trial \
                 WHERE t.id = ? AND i.attempt = ?",
                )?;
                let found = statement
                    .query_row(params![trial.as_str(), attempt.as_str()], |row| row.get(0));
                Ok(found.optional()?)
            })
            .await
    }

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
        self.database
            .write(move |c| {
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
    pub async fn part(
        &self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<ServicePart>, Error> {
        let (trial, attempt) = (trial.clone(), attempt.clone());
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(
                    "SELECT s.part, s.platform FROM attempt_training_service s \
                 JOIN trial t ON t.key = s.trial WHERE t.id = ? AND s.attempt = ?",
                )?;
                let found = statement.query_row(params![trial.as_str(), attempt.as_str()], |row| {
                    Ok(ServicePart { index: to_index(row.get(0)?), platform: row.get(1)? })
                });
                Ok(found.optional()?)
            })
            .await
    }

    /// Returns the training services of all attempts.
    pub async fn all_parts(&self) -> Result<Vec<AttemptPart>, Error> {
        self.database
            .read(|c| {
                let mut statement = c.prepare_cached(
                    "SELECT trial, attempt, part, platform FROM attempt_training_service",
                )?;
                let rows = statement.query_map([], |row| {
                    let part = ServicePart { index: to_index(row.get(2)?), platform: row.get(3)? };
                    Ok(AttemptPart { trial: row.get(0)?, attempt: row.get(1)?, part })
                })?;
                Ok(rows.collect::<Result<Vec<_>, _>>()?)
            })
            .await
    }
}

fn to_index(stored: i64) -> usize {
    usize::try_from(stored).unwrap_or(usize::MAX)
}
