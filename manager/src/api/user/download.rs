//! Files for downloading: the query that selects their content and format, and the response.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::Error;
use super::query_extractor::CheckedQuery;

/// The format of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::api) enum FileFormat {
    /// A table.
    #[default]
    Csv,
    /// A list or an object.
    Json,
}

impl FileFormat {
    /// Returns the ending of the file's name.
    fn extension(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
        }
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::Json => "application/json",
        })
    }
}

/// The query of a file.
#[derive(Debug)]
pub(in crate::api) struct FileQuery<T> {
    /// The format of the file.
    pub(in crate::api) format: FileFormat,
    /// The values of the repeated field, which selects entries of the list.
    pub(in crate::api) selected: Vec<String>,
    /// The other fields, which describe the list.
    pub(in crate::api) list: T,
}

impl<T: DeserializeOwned> FileQuery<T> {
    /// Reads a query that contains `format`, `repeated` once for each selected entry, and the fields of the list.
    pub(in crate::api) fn read(query: &str, repeated: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Format {
            #[serde(default)]
            format: FileFormat,
        }
        let name = |pair: &&str| pair.split_once('=').map(|(name, _)| name.to_owned());
        let is = |pair: &&str, wanted: &str| name(pair).is_some_and(|name| name == wanted);
        let (format, others): (Vec<_>, Vec<_>) =
            query.split('&').partition(|pair| is(pair, "format"));
        let (selected, list): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|pair| is(pair, repeated));
        let CheckedQuery(Format { format }) = CheckedQuery::of_text(&format.join("&"))?;
        let CheckedQuery(selected) =
            CheckedQuery::<Vec<(String, String)>>::of_text(&selected.join("&"))?;
        let CheckedQuery(list) = CheckedQuery::of_text(&list.join("&"))?;
        Ok(Self { format, selected: selected.into_iter().map(|(_, value)| value).collect(), list })
    }
}

/// Returns a file for downloading.
pub(in crate::api) fn attachment(
    name: &str,
    format: FileFormat,
    content: impl Into<Body>,
) -> Response {
    let mut response = content.into().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, format.content_type());
    let disposition = format!("attachment; filename=\"{name}.{}\"", format.extension());
    if let Ok(disposition) = HeaderValue::try_from(disposition) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_query_of_a_file_names_its_format_and_its_entries() {
        type Query = FileQuery<BTreeMap<String, String>>;
        let query = Query::read("trial=a&q=x&format=json&trial=b%2Dc", "trial").unwrap();
        assert_eq!(
            (query.format, query.selected),
            (FileFormat::Json, vec!["a".to_owned(), "b-c".to_owned()])
        );
        assert_eq!(query.list, BTreeMap::from([("q".to_owned(), "x".to_owned())]));
        assert_eq!(Query::read("", "trial").unwrap().format, FileFormat::Csv);
        let (_, _, problem, ..) = Query::read("format=xml", "trial").unwrap_err().parts();
        assert_eq!(
            problem,
            "the query cannot be read: format: unknown variant `xml`, expected `csv` or `json`"
        );
    }
}
