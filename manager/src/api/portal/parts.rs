//! PURE: the parts of a page that change, each named by a digest of its content. A page that updates itself names the
//! parts that it has, and the server sends those empty. So only new parts are sent. The server alone decides the
//! order, whatever was sorted, filtered or renamed meanwhile.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use maud::{Markup, html};

/// The header with the digests of the parts that a page has. Its presence marks the update of a page.
const PARTS_HEADER: &str = "trial-manager-has";
/// The number of bytes of a digest. With 48 bits, a collision is unlikely, and the digests of a thousand rows fit
/// into a header.
const DIGEST_BYTES: usize = 6;

/// The parts that the browser has of the requested page.
#[derive(Debug, Clone, Default)]
pub(in crate::api) struct KnownParts(Option<HashSet<String>>);

/// A part and its digest.
pub(in crate::api) struct PagePart {
    /// The digest, for the attribute `data-part`.
    pub(in crate::api) mark: String,
    /// The content. Empty if the browser already has it.
    pub(in crate::api) content: Markup,
}

impl KnownParts {
    /// Reads the digests from a request.
    pub(in crate::api) fn read(headers: &HeaderMap) -> Self {
        let words = headers.get(PARTS_HEADER).and_then(|value| value.to_str().ok());
        Self(words.map(|words| words.split_ascii_whitespace().map(str::to_owned).collect()))
    }

    /// Returns whether the browser already shows the page, so that its constant content need not be rendered.
    pub(in crate::api) fn has_page(&self) -> bool {
        self.0.is_some()
    }

    /// Creates a part with this content.
    pub(in crate::api) fn part(&self, content: Markup) -> PagePart {
        let mut hasher = DefaultHasher::new();
        content.0.hash(&mut hasher);
        let mark = BASE64_URL_SAFE_NO_PAD.encode(&hasher.finish().to_le_bytes()[..DIGEST_BYTES]);
        let known = self.0.as_ref().is_some_and(|known| known.contains(&mark));
        PagePart {
            mark,
            content: if known {
                html! {}
            } else {
                content
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn parts_that_a_page_has_are_sent_empty() {
        let markup = |text: &str| Markup::from(maud::PreEscaped(text.to_owned()));
        let fresh = KnownParts::default().part(markup("<td>1</td>"));
        assert_eq!((fresh.content.0.as_str(), fresh.mark.len()), ("<td>1</td>", 8));
        let mut headers = HeaderMap::new();
        let has = format!(" other  {} ", fresh.mark);
        headers.insert(PARTS_HEADER, HeaderValue::try_from(has).unwrap());
        let has = KnownParts::read(&headers);
        let (same, changed) = (has.part(markup("<td>1</td>")), has.part(markup("<td>2</td>")));
        assert_eq!((same.content.0.as_str(), same.mark), ("", fresh.mark.clone()));
        assert_eq!(changed.content.0, "<td>2</td>");
        assert_ne!(changed.mark, fresh.mark);
        assert!(has.has_page() && !KnownParts::read(&HeaderMap::new()).has_page());
    }
}
