//! SQL of the container images of attempts.

use rusqlite::{OptionalExtension as _, params};
use trial_protocol::{AttemptId, TrialJobId};

use super::{Error, Store};

impl Store {
    /// Records the images of attempts, all or none. A later record replaces an earlier one, because a recreated pod
    /// may have pulled another image.
    pub async fn record_images(
        &self,
        images: Vec<(TrialJobId, AttemptId, String)>,
    ) -> Result<(), Error> {
        self.write(move |c| {
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
    pub async fn image_of(
        &self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<String>, Error> {
        let (trial, attempt) = (trial.clone(), attempt.clone());
        self.read(move |c| {
            let mut statement = c.prepare_cached(
                "SELECT i.image FROM attempt_image i JOIN trial t ON t.key = i.trial \
                 WHERE t.id = ? AND i.attempt = ?",
            )?;
            let found =
                statement.query_row(params![trial.as_str(), attempt.as_str()], |row| row.get(0));
            Ok(found.optional()?)
        })
        .await
    }
}
