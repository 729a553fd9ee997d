//! Answers made smaller for those who take them so: whole texts only, never a stream.

use std::io::Write as _;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;

use super::Error;

/// Smaller answers are not worth it, in bytes.
const WORTH: u64 = 1024;

/// Compresses what is a whole text, where the client says that it takes gzip.
pub(super) async fn gzip(request: Request, next: Next) -> Response {
    let accepts = request.headers().get(header::ACCEPT_ENCODING);
    let accepts = accepts.and_then(|value| value.to_str().ok());
    let accepts = accepts.is_some_and(|value| {
        let mut codings = value.split(',').map(|coding| coding.trim().replace(' ', ""));
        codings
            .any(|coding| coding == "gzip" || coding.starts_with("gzip;") && coding != "gzip;q=0")
    });
    let response = next.run(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_text = kind.starts_with("text/") || kind.contains("json") || kind.contains("svg");
    let size = response.body().size_hint().exact();
    if !accepts || !is_text || size.is_none_or(|size| size < WORTH) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(whole) = body.collect().await else { return Error::Stopping.into_response() };
    let whole = whole.to_bytes();
    let squeezed = tokio::task::spawn_blocking(move || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&whole).and_then(|()| encoder.finish())
    });
    let Ok(Ok(bytes)) = squeezed.await else { return Error::Stopping.into_response() };
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(parts, Body::from(bytes))
}
