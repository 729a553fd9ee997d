//! Extractors of a request's query, path and body. A refusal names the problem.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::Uri;
use axum::http::request::Parts;
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use trial_protocol::TrialJobId;

use super::super::{Error, Shared};

/// The maximum size of the body of a change, in bytes.
const BODY_LIMIT: usize = 64 << 10;
/// The maximum size of a list of results, in bytes: about 50,000 results.
const LARGE_BODY_LIMIT: usize = 16 << 20;

/// A checked query of a request.
pub(in crate::api) struct CheckedQuery<T>(pub(in crate::api) T);

impl<T: DeserializeOwned> CheckedQuery<T> {
    /// Reads the query of an address.
    pub(in crate::api) fn of(uri: &Uri) -> Result<Self, Error> {
        let query = Query::try_from_uri(uri);
        let Query(query) = query.map_err(|error| {
            use std::error::Error as _;
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Error::BadRequest(format!("the query cannot be read: {}", with_expected_type(&why)))
        })?;
        Ok(Self(query))
    }

    /// Reads a query from its text.
    pub(in crate::api) fn of_text(query: &str) -> Result<Self, Error> {
        let uri = format!("/?{query}").parse::<Uri>();
        Self::of(&uri.map_err(|_| Error::BadRequest("the query cannot be read".to_owned()))?)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for CheckedQuery<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        Self::of(&parts.uri)
    }
}

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(in crate::api) enum SortOrder {
    /// The smallest value comes first.
    #[serde(rename = "asc")]
    Ascending,
    /// The largest value comes first.
    #[serde(rename = "desc")]
    Descending,
}

impl SortOrder {
    /// Returns the word of the query.
    pub(in crate::api) fn as_str(self) -> &'static str {
        match self {
            Self::Ascending => "asc",
            Self::Descending => "desc",
        }
    }
}

/// Reads a field of a query, for `deserialize_with`. An empty field counts as absent, since forms send those too.
pub(in crate::api) fn deserialize_filled<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let text = Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty());
    text.map(|text| T::deserialize(text.into_deserializer())).transpose()
}

/// Replaces the standard library's words about an unreadable number by the expected type.
fn with_expected_type(why: &str) -> String {
    let faults = ["invalid digit found in string", "cannot parse integer from empty string"];
    let unfit =
        ["number too large to fit in target type", "number too small to fit in target type"];
    let fault = faults.iter().map(|fault| (*fault, "expected a whole number"));
    let unfit = unfit.iter().map(|fault| (*fault, "expected a smaller number"));
    let mut all = fault.chain(unfit);
    let found = all.find_map(|(fault, expected)| Some((why.strip_suffix(fault)?, expected)));
    found.map_or_else(|| why.to_owned(), |(path, expected)| format!("{path}{expected}"))
}

/// The trial that a path names by its id or its number. The id counts if a trial has it. The store checks whether the
/// trial exists.
pub(in crate::api) struct TrialPath(pub(in crate::api) TrialJobId);

impl FromRequestParts<Shared> for TrialPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Error> {
        let path = Path::<Vec<(String, String)>>::from_request_parts(parts, shared).await;
        let Path(parts) = path.map_err(|error| Error::BadRequest(error.body_text()))?;
        let named = parts.into_iter().find(|(name, _)| name == "trial");
        let (_, name) = named.ok_or(Error::NotFound)?;
        let read_id =
            |id: &str| TrialJobId::new(id).map_err(|error| Error::BadRequest(error.to_string()));
        let id = read_id(&name)?;
        let Ok(number) = name.parse::<u64>() else { return Ok(Self(id)) };
        let trials = shared.state.trial_cache.refresh().await?;
        match trials.at(number).filter(|_| trials.find(&name).is_none()) {
            Some(trial) => Ok(Self(read_id(&trial.id)?)),
            None => Ok(Self(id)),
        }
    }
}

/// Reads a request's JSON body. An empty body means `{}`.
pub(in crate::api) async fn json_body<T: DeserializeOwned>(request: Request) -> Result<T, Error> {
    json_body_within(request, BODY_LIMIT).await
}

/// Reads a list of results or a search space for a tuner: like [`json_body`], but with a higher limit.
pub(in crate::api) async fn large_json_body(request: Request) -> Result<Value, Error> {
    json_body_within(request, LARGE_BODY_LIMIT).await
}

async fn json_body_within<T: DeserializeOwned>(
    request: Request,
    limit_bytes: usize,
) -> Result<T, Error> {
    let body = axum::body::Bytes::from_request(
        request.map(|body| axum::body::Body::new(http_body_util::Limited::new(body, limit_bytes))),
        &(),
    );
    let bytes = body.await.map_err(|_| Error::TooLarge { limit_bytes })?;
    let text = if bytes.is_empty() { b"{}" } else { bytes.as_ref() };
    let refused = |error: String| Error::BadRequest(format!("the body cannot be read: {error}"));
    let mut json = serde_json::Deserializer::from_slice(text);
    // The error names the path of the wrong field.
    let read = serde_path_to_error::deserialize(&mut json);
    let read = read.map_err(|error| refused(error.to_string()))?;
    json.end().map_err(|error| refused(error.to_string()))?;
    Ok(read)
}

/// Returns a number of a query, if it is in the allowed range.
pub(in crate::api) fn number_within(
    name: &str,
    asked: Option<u32>,
    usual: u32,
    most: u32,
) -> Result<u32, Error> {
    let number = asked.unwrap_or(usual);
    if (1..=most).contains(&number) {
        return Ok(number);
    }
    Err(Error::BadRequest(format!("{name} must be from 1 to {most}, not {number}")))
}
