//! The parts that all pages share: the viewer, the frame around the content, and the headers that restrict a page to
//! showing itself.

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use maud::{DOCTYPE, Markup, html};

use super::super::access::log_in::LogIn;
use super::super::{Error, percent};
use super::assets::page_scripts;
use super::base::{Site, site, url};
use super::display;
use super::parts::KnownParts;

/// Allows only the portal's own style, scripts and data. No frame may contain a page, and no form leads elsewhere.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The maximum length of an address to which the login returns, in bytes.
const MAX_RETURN_PATH_BYTES: usize = 2000;

/// The name of the page whose charts uPlot draws.
const CURVES_PAGE: &str = "trial";
/// The name of the page with a long table.
const LIST_PAGE: &str = "trials";
/// The id of the element after that table.
const LIST_END: &str = "list-end";

/// The paths and names of an experiment's pages.
const EXPERIMENT_PAGES: &[(&str, &str)] = &[
    ("/", "Overview"),
    ("/trials", "Trials"),
    ("/plots", "Plots"),
    ("/configuration", "Configuration"),
    ("/api", "API"),
];

/// A user who may see a page.
#[derive(Debug, Clone)]
pub(in crate::api) struct Viewer {
    /// The experiment to which the pages belong. `None` in a home, or if the viewer may not see it.
    pub(in crate::api) experiment: Option<String>,
    /// `true` if the viewer may also make changes.
    pub(in crate::api) may_change: bool,
    /// The path of the requested page.
    pub(super) path: String,
    /// The path with its query, if the viewer may want to return to it after the login.
    pub(super) return_path: Option<String>,
    /// The parts of the page that the browser already has.
    pub(in crate::api) known_parts: KnownParts,
}

impl Viewer {
    /// Creates a viewer of this page who has not logged in.
    pub(super) fn unknown(path: &str) -> Self {
        let (path, known_parts) = (path.to_owned(), KnownParts::default());
        Self { experiment: None, may_change: false, path, return_path: None, known_parts }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Viewer
where
    LogIn: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let LogIn { authenticator, .. } = LogIn::from_ref(state);
        match authenticator.admit(&Method::GET, &parts.headers) {
            Ok(_) => Ok(Self {
                experiment: authenticator.experiment().map(ToString::to_string),
                may_change: authenticator.admit(&Method::POST, &parts.headers).is_ok(),
                path: parts.uri.path().to_owned(),
                return_path: Some(parts.uri.to_string()),
                known_parts: KnownParts::read(&parts.headers),
            }),
            Err(Error::Unauthorized(_)) => {
                Err(Redirect::to(&login_path(Some(&parts.uri.to_string()))).into_response())
            }
            Err(error) => Err(refusal(&error)),
        }
    }
}

/// Returns the address of the login page, which returns to one of the portal's pages.
fn login_path(return_path: Option<&str>) -> String {
    match return_path.map(local_path).filter(|page| *page != "/") {
        Some(page) => url(&format!("/login?next={}", percent::encode(page))),
        None => url("/login"),
    }
}

/// Returns `page` if it is the path of one of the portal's pages, otherwise the first page. Browsers drop control
/// characters and read a backslash as a slash. Two slashes would lead to another host.
pub(super) fn local_path(page: &str) -> &str {
    let ours = page.starts_with('/')
        && !page.starts_with("//")
        && page.len() <= MAX_RETURN_PATH_BYTES
        && page.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if ours { page } else { "/" }
}

/// Returns the states of trials in plain words as JSON, for the scripts.
fn state_words() -> String {
    serde_json::to_string(&display::all_states()).unwrap_or_default()
}

/// Renders a page with the given title. A page with a script has a `name`: that of the script, `page-name.js`.
pub(in crate::api) fn page(
    viewer: &Viewer,
    title: &str,
    name: Option<&str>,
    content: &Markup,
) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // This script runs before the first paint, so that no page flashes in the other theme.
                script src=(url("/assets/theme.js")) {}
                title {
                    // An experiment without a name has its id as the title.
                    (title) " · " (viewer.experiment.as_deref().filter(|id| *id != title).unwrap_or("TrialKeeper"))
                }
                link rel="icon" href=(url("/assets/icon.svg"));
                @if name == Some(CURVES_PAGE) { link rel="stylesheet" href=(url("/assets/uplot.css")); }
                link rel="stylesheet" href=(url("/assets/portal.css"));
                // Without it, a browser lays out a long table several times while it reads it.
                @if name == Some(LIST_PAGE) { link rel="expect" href={ "#" (LIST_END) } blocking="render"; }
                @if let Some(name) = name {
                    @for script in page_scripts(name) {
                        link rel="modulepreload" href=(url(&format!("/assets/{script}")));
                    }
                    @if name == CURVES_PAGE { script src=(url("/assets/uplot.js")) defer {} }
                    script type="module" src=(url("/assets/portal.js")) {}
                }
            }
            body data-page=[name] data-base=(url("")) data-experiment=[viewer.experiment.as_deref()] data-states=[name.map(|_| state_words())] {
                a.skip href="#content" { "Skip to content" }
                (page_header(viewer))
                main #content tabindex="-1" { (content) }
            }
        }
    };
    with_headers(StatusCode::OK, page)
}

/// Renders the end of a list, for which the browser waits before it draws the page.
pub(super) fn list_end() -> Markup {
    html! { span id=(LIST_END) {} }
}

/// Renders the header of every page: its links, the choice of a theme, and the link to log in or out.
fn page_header(viewer: &Viewer) -> Markup {
    let place = |path: &str, name: &str| {
        let here = viewer.path == path || path != "/" && viewer.path.starts_with(path);
        html! { a href=(url(path)) aria-current=[here.then_some("page")] { (name) } }
    };
    let site = site();
    let pages: &[(&str, &str)] = match site {
        Site::Home => &[("/", "Experiments"), ("/api", "API")],
        Site::Manager | Site::WithinHome(_) => EXPERIMENT_PAGES,
    };
    html! {
        header {
            nav aria-label="Pages" {
                @if let Site::WithinHome(home) = &site { a.up href=(home) { "Experiments" } }
                strong {
                    span { "TrialKeeper" }
                    @if let Some(experiment) = &viewer.experiment { " " code { (experiment) } }
                }
                @for (path, name) in pages { (place(path, name)) }
                label.theme hidden {
                    span.hidden { "Theme " }
                    select #theme {
                        option value="" { "System" }
                        option value="light" { "Light" }
                        option value="dark" { "Dark" }
                    }
                }
                @if viewer.may_change {
                    form.session method="post" action=(url("/logout")) { button.plain { "Log out" } }
                } @else {
                    @let here = (viewer.path == "/login").then_some("page");
                    a.session href=(login_path(viewer.return_path.as_deref())) aria-current=[here] { "Log in" }
                }
            }
            p #connection role="status" {}
        }
    }
}

/// Renders a time as an age, with the exact time in the tooltip. The script shows the exact time in the user's own
/// time zone.
pub(in crate::api) fn time(at_ms: i64, now_ms: i64) -> Markup {
    let exact = super::display::moment(at_ms);
    let machine = exact.replace(' ', "T") + "Z";
    html! { time datetime=(machine) title={ (exact) " UTC" } { (super::display::ago(at_ms, now_ms)) } }
}

/// Renders a time to the second, in UTC. The script shows it in the user's own time zone.
pub(in crate::api) fn exact_time(at_ms: i64) -> Markup {
    let exact = super::display::moment(at_ms);
    let machine = exact.replace(' ', "T") + "Z";
    html! { time.exact datetime=(machine) { (exact) } }
}

/// Renders the name of the time zone. The script replaces it with the user's own.
pub(in crate::api) fn time_zone() -> Markup {
    html! { span.zone { "UTC" } }
}

/// Renders a refusal as a page.
pub(in crate::api) fn refusal(error: &Error) -> Response {
    let (status, _, detail) = error.parts();
    refusal_page(status, &detail)
}

/// Converts a refusal in JSON to a page: the refusal of an address or a form that a part outside the portal could not
/// parse.
pub(in crate::api) async fn refused_as_page(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "application/problem+json") {
        return response;
    }
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
    let problem: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    refusal_page(status, problem["detail"].as_str().unwrap_or_default())
}

fn refusal_page(status: StatusCode, detail: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("Refused");
    let viewer = Viewer::unknown("");
    let content = html! {
        h1 { (title) }
        p { (super::display::sentence(&super::display::sanitize(detail))) }
        p { a href=(url("/")) { @if site() == Site::Home { "Go to the experiments" } @else { "Go to the overview" } } }
    };
    let mut response = page(&viewer, title, None, &content);
    *response.status_mut() = status;
    response
}

fn with_headers(status: StatusCode, page: Markup) -> Response {
    let mut response = (status, Html(page.into_string())).into_response();
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, PAGE_POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "same-origin");
    set(header::CACHE_CONTROL, "no-store");
    response
}

/// A refusal as a page, for handlers.
pub(in crate::api) struct PageRefusal(Error);

impl<E: Into<Error>> From<E> for PageRefusal {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for PageRefusal {
    fn into_response(self) -> Response {
        if matches!(self.0, Error::Unauthorized(_)) {
            return Redirect::to(&url("/login")).into_response();
        }
        refusal(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_login_returns_only_to_pages_of_the_portal() {
        let long = format!("/{}", "x".repeat(MAX_RETURN_PATH_BYTES));
        #[rustfmt::skip]
        let table = [
            ("/trials?q=a%26b&sort=final", "/trials?q=a%26b&sort=final"), ("/trials/t1", "/trials/t1"), ("/", "/"),
            ("", "/"), ("trials", "/"), ("//evil.example", "/"), ("/\\evil.example", "/"), ("\\\\evil.example", "/"),
            ("/\t/evil.example", "/"), ("/\n/evil.example", "/"), ("\t//evil.example", "/"), (" //evil.example", "/"),
            ("https://evil.example", "/"), ("https:evil.example", "/"), ("javascript:alert(1)", "/"), ("/a\r\nSet-Cookie: x", "/"),
            ("/caf\u{e9}", "/"), (long.as_str(), "/"),
        ];
        for (page, leads_to) in table {
            assert_eq!(local_path(page), leads_to, "{page:?}");
        }
        assert_eq!(login_path(Some("/trials?q=a%26b")), "/login?next=%2Ftrials%3Fq%3Da%2526b");
        assert_eq!(
            (login_path(Some("/")), login_path(None)),
            ("/login".to_owned(), "/login".to_owned())
        );
    }
}
