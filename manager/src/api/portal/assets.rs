//! The style, the scripts and the pictures. They are parts of this program, each with a digest, so that browsers can
//! cache them.

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::super::Error;

/// The name, the media type and the content of each file.
const ASSETS: [(&str, &str, &str); 32] = [
    ("portal.css", "text/css", include_str!("../../../portal/portal.css")),
    ("portal.js", "text/javascript", include_str!("../../../portal/portal.js")),
    ("updates.js", "text/javascript", include_str!("../../../portal/updates.js")),
    ("selection.js", "text/javascript", include_str!("../../../portal/selection.js")),
    ("page-overview.js", "text/javascript", include_str!("../../../portal/page-overview.js")),
    ("page-plots.js", "text/javascript", include_str!("../../../portal/page-plots.js")),
    ("page-trials.js", "text/javascript", include_str!("../../../portal/page-trials.js")),
    ("page-trial.js", "text/javascript", include_str!("../../../portal/page-trial.js")),
    (
        "page-trial-comparison.js",
        "text/javascript",
        include_str!("../../../portal/page-trial-comparison.js"),
    ),
    ("page-experiments.js", "text/javascript", include_str!("../../../portal/page-experiments.js")),
    (
        "page-experiment-comparison.js",
        "text/javascript",
        include_str!("../../../portal/page-experiment-comparison.js"),
    ),
    ("charts.js", "text/javascript", include_str!("../../../portal/charts.js")),
    ("curves.js", "text/javascript", include_str!("../../../portal/curves.js")),
    ("charts-file.js", "text/javascript", include_str!("../../../portal/charts-file.js")),
    ("log.js", "text/javascript", include_str!("../../../portal/log.js")),
    ("parallel.js", "text/javascript", include_str!("../../../portal/parallel.js")),
    ("parallel-lines.js", "text/javascript", include_str!("../../../portal/parallel-lines.js")),
    ("theme.js", "text/javascript", include_str!("../../../portal/theme.js")),
    ("points.js", "text/javascript", include_str!("../../../portal/points.js")),
    ("plots-bars.js", "text/javascript", include_str!("../../../portal/plots-bars.js")),
    ("plots-search.js", "text/javascript", include_str!("../../../portal/plots-search.js")),
    ("plots-surface.js", "text/javascript", include_str!("../../../portal/plots-surface.js")),
    ("plots-scale.js", "text/javascript", include_str!("../../../portal/plots-scale.js")),
    ("plots-frame.js", "text/javascript", include_str!("../../../portal/plots-frame.js")),
    ("plots-kinds.js", "text/javascript", include_str!("../../../portal/plots-kinds.js")),
    ("plots-contour.js", "text/javascript", include_str!("../../../portal/plots-contour.js")),
    ("plots-curves.js", "text/javascript", include_str!("../../../portal/plots-curves.js")),
    ("plots-pareto.js", "text/javascript", include_str!("../../../portal/plots-pareto.js")),
    ("plots-timeline.js", "text/javascript", include_str!("../../../portal/plots-timeline.js")),
    ("uplot.css", "text/css", include_str!("../../../portal/uplot.min.css")),
    ("uplot.js", "text/javascript", include_str!("../../../portal/uplot.min.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../../portal/icon.svg")),
];

/// Returns the script of a page, and all scripts that it and `portal.js` import. Browsers load them in advance, without
/// waiting for the scripts that import them.
pub(super) fn page_scripts(page: &str) -> Vec<&'static str> {
    let page = format!("page-{page}.js");
    let find = |wanted: &str| ASSETS.iter().find(|(name, ..)| *name == wanted);
    let mut scripts: Vec<_> = ["portal.js", page.as_str()].into_iter().filter_map(find).collect();
    let mut next = 0;
    while let Some((_, _, source)) = scripts.get(next) {
        for imported in imports(source).filter_map(find) {
            if !scripts.contains(&imported) {
                scripts.push(imported);
            }
        }
        next += 1;
    }
    scripts.into_iter().skip(1).map(|(name, ..)| *name).collect()
}

/// Returns the names of the files that a script imports: `charts.js` for `import { draw } from "./charts.js";`.
fn imports(script: &str) -> impl Iterator<Item = &str> {
    let imports = script.lines().filter(|line| line.starts_with("import "));
    imports.filter_map(|line| line.split_once("from \"./")?.1.strip_suffix("\";"))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_imported_script_exists() {
        for (name, _, source) in ASSETS.iter().filter(|(name, ..)| *name != "uplot.js") {
            assert_eq!(imports(source).count(), source.matches("from \"").count(), "{name}");
            for imported in imports(source) {
                assert!(ASSETS.iter().any(|(known, ..)| *known == imported), "{name}: {imported}");
            }
        }
    }

    #[test]
    fn a_page_needs_its_script_and_those_that_it_imports() {
        let mut scripts = page_scripts("trial");
        scripts.sort_unstable();
        let expected = [
            "charts.js",
            "curves.js",
            "log.js",
            "page-trial.js",
            "points.js",
            "selection.js",
            "updates.js",
        ];
        assert_eq!(scripts, expected);
    }
}
