//! The names of trials on the command line: an id, or the number that tables and messages show. If a text is both, it
//! is the id.

use std::str::FromStr;

use serde_json::Value;
use trial_protocol::{IdError, TrialJobId};

use super::Error;
use super::paging;
use crate::api::client::{self, Client};

/// A trial's id, or its number: `a1b2c`, `0`, `#0`.
#[derive(Debug, Clone)]
pub(in crate::cli) struct TrialName(String);

impl FromStr for TrialName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if trial_number(text).is_none() {
            TrialJobId::new(text)?;
        }
        Ok(Self(text.to_owned()))
    }
}

impl TrialName {
    /// Returns the id of the trial. Does not check that the trial exists if the text is an id but not a number: the
    /// next request reports that.
    pub(in crate::cli) async fn find(&self, client: &Client) -> Result<TrialJobId, Error> {
        let id = TrialJobId::new(self.0.as_str());
        let Some(number) = trial_number(&self.0) else { return id.map_err(Error::InvalidId) };
        if let Ok(id) = id {
            match client.request_json("GET", &format!("/api/v1/trials/{id}"), None).await {
                Ok(_) => return Ok(id),
                Err(client::Error::Refused { status: 404, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let up_to = usize::try_from(number).ok().and_then(|number| number.checked_add(1));
        let trials = paging::find_trials(client, "sort=sequence", up_to).await?;
        let found = trials
            .iter()
            .find(|trial| trial.get("sequence").and_then(Value::as_u64) == Some(number));
        let id = found.and_then(|trial| trial.get("id")?.as_str());
        let id = id.ok_or(Error::NoNumber { number, trials: trials.len() })?;
        TrialJobId::new(id).map_err(Error::InvalidId)
    }

    /// Returns the ids of several trials.
    pub(in crate::cli) async fn find_all(
        names: &[Self],
        client: &Client,
    ) -> Result<Vec<TrialJobId>, Error> {
        let mut ids = Vec::with_capacity(names.len());
        for name in names {
            ids.push(name.find(client).await?);
        }
        Ok(ids)
    }
}

fn trial_number(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('#').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_an_id_names_a_trial() {
        #[rustfmt::skip]
        let table = [
            // text      is valid, number
            ("a1b2c",    true,  None),
            ("0",        true,  Some(0)),
            ("#12",      true,  Some(12)),
            ("12a",      true,  None),
            ("#",        false, None),
            ("#a",       false, None),
            ("-1",       false, None),
            ("../t",     false, None),
            ("",         false, None),
        ];
        for (text, good, expected) in table {
            assert_eq!(text.parse::<TrialName>().is_ok(), good, "{text:?}");
            assert_eq!(trial_number(text), expected, "{text:?}");
        }
    }
}
