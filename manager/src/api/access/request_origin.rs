//! The origin of a request according to its headers: its token, a browser or a program, the portal's page or another
//! site's.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::super::Error;

/// Returns the bearer token of a request.
pub(in crate::api) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the password of a request with the scheme `Basic`, whatever the user name.
pub(in crate::api) fn basic_password(headers: &HeaderMap) -> Option<String> {
    let (scheme, pair) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let pair = scheme.eq_ignore_ascii_case("basic").then(|| BASE64_STANDARD.decode(pair.trim()))?;
    let pair = String::from_utf8(pair.ok()?).ok()?;
    pair.split_once(':').map(|(_, password)| password.to_owned())
}

/// Returns whether a request has a header that browsers send and that no page can remove.
pub(in crate::api) fn is_from_browser(headers: &HeaderMap) -> bool {
    let marks = [header::ORIGIN, header::REFERER, header::COOKIE];
    marks.iter().any(|mark| headers.contains_key(mark))
        || headers.keys().any(|name| name.as_str().starts_with("sec-"))
}

/// Refuses requests of browsers, on listeners that only serve programs. Any page can make a browser send a simple
/// request there.
pub(in crate::api) async fn refuse_browsers(request: Request, next: Next) -> Response {
    if is_from_browser(request.headers()) {
        let detail = "this port is only for NNI's keeper; requests of browsers are refused";
        return Error::Forbidden(detail.to_owned()).into_response();
    }
    next.run(request).await
}

/// Returns whether a request was not made by another site's page. A browser reports the origin of a change, and no
/// page can forge it. Programs report none.
pub(in crate::api) fn is_not_cross_site(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    origin.is_some_and(|origin| host.is_some_and(|host| origin.eq_ignore_ascii_case(host)))
}

/// Returns whether the request's host is a name that no other machine can have.
pub(in crate::api) fn has_local_host(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else {
        return false;
    };
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host }
    });
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
