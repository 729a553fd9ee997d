//! PURE: the headers of a request -> where it comes from, and whom it asks for.

use core::net::IpAddr;

use axum::http::{HeaderMap, header};

/// Returns whether a request bears a mark of browsers, which no page can take off.
pub(super) fn of_a_browser(headers: &HeaderMap) -> bool {
    let marks = [header::ORIGIN, header::REFERER, header::COOKIE];
    marks.iter().any(|mark| headers.contains_key(mark))
        || headers.keys().any(|name| name.as_str().starts_with("sec-"))
}

/// Returns whether a request was not made by another site's page. A browser says where a change comes from and
/// lets no page say it; programs say nothing.
pub(super) fn of_our_own_page(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    origin.is_some_and(|origin| host.is_some_and(|host| origin.eq_ignore_ascii_case(host)))
}

/// Returns whether the request asks for this machine by a name that no other machine can have.
pub(super) fn names_this_machine(headers: &HeaderMap) -> bool {
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
