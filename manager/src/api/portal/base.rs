//! The path below which the portal's pages are: empty at a manager's own address, `/e/ID` in the home of a data
//! directory, or the path that a reverse proxy sends in `X-Forwarded-Prefix`.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

use crate::api::PREFIX_HEADER;

/// The maximum length of a prefix, in bytes.
const MAX_PREFIX_BYTES: usize = 200;

/// The site to which a page belongs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::api) enum Site {
    /// The pages of one experiment, at its manager's own address.
    #[default]
    Manager,
    /// The pages of one experiment within a home. The text is the home's address.
    WithinHome(String),
    /// The pages of the home of a data directory.
    Home,
}

#[derive(Debug, Clone, Default)]
struct Base {
    prefix: String,
    site: Site,
}

tokio::task_local! {
    static BASE: Base;
}

fn base() -> Base {
    BASE.try_with(Base::clone).unwrap_or_default()
}

/// Returns the address of one of the portal's pages from the path of its route. Every link, form and redirection uses
/// this function.
pub(in crate::api) fn url(path: &str) -> String {
    format!("{}{path}", base().prefix)
}

/// Returns the site to which the present response belongs.
pub(in crate::api) fn site() -> Site {
    base().site
}

/// Makes every address on a page begin with the prefix in the request.
pub(in crate::api) async fn with_prefix(request: Request, next: Next) -> Response {
    let Some(prefix) = requested_prefix(&request) else { return next.run(request).await };
    BASE.scope(Base { prefix, ..base() }, next.run(request)).await
}

/// Makes every address on a page of a home begin with the prefix in the request.
pub(in crate::api) async fn with_home_prefix(request: Request, next: Next) -> Response {
    let base = Base { prefix: requested_prefix(&request).unwrap_or_default(), site: Site::Home };
    BASE.scope(base, next.run(request)).await
}

/// Renders `answer`, a page of an experiment, with addresses that begin with `path` of a home.
pub(in crate::api) async fn within_home<F: Future>(path: &str, answer: F) -> F::Output {
    let base = Base { prefix: url(path), site: Site::WithinHome(url("/")) };
    BASE.scope(base, answer).await
}

fn requested_prefix(request: &Request) -> Option<String> {
    let named = request.headers().get(PREFIX_HEADER).and_then(|value| value.to_str().ok());
    named.and_then(parse_prefix)
}

/// Returns a prefix without its last slash. `None` if no address of this host can begin with it.
fn parse_prefix(named: &str) -> Option<String> {
    let named = named.trim_end_matches('/');
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte);
    let good = named.starts_with('/')
        && !named.starts_with("//")
        && named.len() <= MAX_PREFIX_BYTES
        && named.bytes().all(is_plain);
    good.then(|| named.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_path_of_this_host() {
        let long = format!("/{}", "x".repeat(MAX_PREFIX_BYTES));
        #[rustfmt::skip]
        let table = [
            ("/e/k3f9", Some("/e/k3f9")), ("/a/b/", Some("/a/b")), ("", None), ("/", None), ("e", None),
            ("//evil.example", None), ("/\\evil.example", None), ("/a b", None), ("/\"x", None), ("https://a", None), (&long, None),
        ];
        for (named, base) in table {
            assert_eq!(parse_prefix(named).as_deref(), base, "{named}");
        }
    }

    #[tokio::test]
    async fn addresses_are_below_the_prefix() {
        assert_eq!((url("/trials"), site()), ("/trials".to_owned(), Site::Manager));
        let inside = within_home("/e/x", async { (url("/trials"), site()) });
        assert_eq!(inside.await, ("/e/x/trials".to_owned(), Site::WithinHome("/".to_owned())));
    }
}
