//! The style, the scripts and the pictures. They are parts of this program, each with a digest, so that browsers can
//! cache them.

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::super::Error;

/// The name, the media type and the content of each file.
const ASSETS: [(&str, &str, &str); 25] = [
    ("portal.css", "text/css", include_str!("../../../portal/portal.css")),
    ("portal.js", "text/javascript", include_str!("../../../portal/portal.js")),
    ("charts.js", "text/javascript", include_str!("../../../portal/charts.js")),
    ("charts-file.js", "text/javascript", include_str!("../../../portal/charts-file.js")),
    ("log.js", "text/javascript", include_str!("../../../portal/log.js")),
    ("parallel.js", "text/javascript", include_str!("../../../portal/parallel.js")),
    ("parallel-lines.js", "text/javascript", include_str!("../../../portal/parallel-lines.js")),
    ("theme.js", "text/javascript", include_str!("../../../portal/theme.js")),
    ("points.js", "text/javascript", include_str!("../../../portal/points.js")),
    ("plots.js", "text/javascript", include_str!("../../../portal/plots.js")),
    ("plots-bars.js", "text/javascript", include_str!("../../../portal/plots-bars.js")),
    ("plots-search.js", "text/javascript", include_str!("../../../portal/plots-search.js")),
    ("plots-surface.js", "text/javascript", include_str!("../../../portal/plots-surface.js")),
    ("plots-scale.js", "text/javascript", include_str!("../../../portal/plots-scale.js")),
    ("plots-frame.js", "text/javascript", include_str!("../../../portal/plots-frame.js")),
    ("plots-kinds.js", "text/javascript", include_str!("../../../portal/plots-kinds.js")),
    ("plots-contour.js", "text/javascript", include_str!("../../../portal/plots-contour.js")),
    ("plots-compare.js", "text/javascript", include_str!("../../../portal/plots-compare.js")),
    ("plots-curves.js", "text/javascript", include_str!("../../../portal/plots-curves.js")),
    ("plots-pareto.js", "text/javascript", include_str!("../../../portal/plots-pareto.js")),
    ("plots-timeline.js", "text/javascript", include_str!("../../../portal/plots-timeline.js")),
    ("plots-trials.js", "text/javascript", include_str!("../../../portal/plots-trials.js")),
    ("uplot.css", "text/css", include_str!("../../../portal/uplot.min.css")),
    ("uplot.js", "text/javascript", include_str!("../../../portal/uplot.min.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../../portal/icon.svg")),
];

/// `GET /assets/{name}`: sends a file. The files reveal nothing about the experiment, so they need no token.
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Error> {
    let found = ASSETS.iter().find(|(known, ..)| *known == name);
    let (_, kind, text) = found.ok_or(Error::NotFound)?;
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let tag = format!("\"{}\"", BASE64_URL_SAFE_NO_PAD.encode(&digest.as_ref()[..12]));
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known == tag.as_str());
    let (status, text) =
        if known { (StatusCode::NOT_MODIFIED, "") } else { (StatusCode::OK, *text) };
    let mut response = (status, text).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    Ok(response)
}
