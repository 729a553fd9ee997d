//! SQL of the code versions with which attempts were started.

use std::collections::HashMap;

use rusqlite::{OptionalExtension as _, params};
use trial_protocol::{AttemptId, TrialJobId};

use super::read::unsigned;
use super::{Error, Store};
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

impl Store {
    /// Records the code version with which attempts were started. A second record for an attempt changes nothing.
    pub async fn record_code(
        &self,
        attempts: Vec<(TrialJobId, AttemptId)>,
        version: CodeVersion,
    ) -> Result<(), Error> {
        self.write(move |c| {
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
    pub async fn code_of(
        &self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<CodeVersion>, Error> {
        let (trial, attempt) = (trial.clone(), attempt.clone());
        self.read(move |c| {
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
    pub async fn attempt_codes(&self) -> Result<AttemptCodes, Error> {
        self.read(|c| {
            let mut versions = c.prepare_cached("SELECT key, document FROM code_version")?;
            let rows = versions
                .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?
                .collect::<Result<Vec<_>, _>>()?;
            let parsed = rows.into_iter().filter_map(|(key, document)| {
                serde_json::from_str(&document).ok().map(|version| (key, version))
            });
            let versions = parsed.collect();
            let mut attempts = c.prepare_cached("SELECT trial, attempt, code FROM attempt_code")?;
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
        self.read(move |c| {
            let mut statement =
                c.prepare_cached("SELECT key, document FROM code_version ORDER BY key LIMIT ?")?;
            let rows = statement
                .query_map([limit], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?
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
                    sequences.push(unsigned(row, "sequence")?);
                }
                versions.push(CodeRow { version, trials: sequences });
            }
            Ok(versions)
        })
        .await
    }
}
