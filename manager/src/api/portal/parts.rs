//! PURE: the parts of a page that change, each named by a digest of its content. A page that keeps itself up to date
//! says which parts it has, and the server sends those empty. So only new parts are sent, and the server alone decides
//! the order, whatever was sorted, filtered or renamed meanwhile.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use maud::{Markup, html};

/// The header with the parts that a page has, as words: it is there to see what changed of it.
const HEADER: &str = "trial-manager-has";
/// Bytes of a digest: 48 bits do not happen to be the same, and a thousand rows' fit into a header.
const DIGEST: usize = 6;

/// The parts that the browser has of the page that it asks for.
#[derive(Debug, Clone, Default)]
pub(in crate::api) struct Has(Option<HashSet<String>>);

/// A part, and the digest that it is known by.
pub(in crate::api) struct PagePart {
    /// The digest, for the attribute `data-part`.
    pub(in crate::api) mark: String,
    /// The content; empty where the browser has it.
    pub(in crate::api) content: Markup,
}

impl Has {
    /// As the request says.
    pub(in crate::api) fn read(headers: &HeaderMap) -> Self {
        let words = headers.get(HEADER).and_then(|value| value.to_str().ok());
        Self(words.map(|words| words.split_ascii_whitespace().map(str::to_owned).collect()))
    }

    /// Returns whether the page is there, so that what never changes of it need not be made.
    pub(in crate::api) fn page(&self) -> bool {
        self.0.is_some()
    }

    /// A part that holds this.
    pub(in crate::api) fn part(&self, content: Markup) -> PagePart {
        let mut hasher = DefaultHasher::new();
        content.0.hash(&mut hasher);
        let mark = BASE64_URL_SAFE_NO_PAD.encode(&hasher.finish().to_le_bytes()[..DIGEST]);
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
        let said = |text: &str| Markup::from(maud::PreEscaped(text.to_owned()));
        let fresh = Has::default().part(said("<td>1</td>"));
        assert_eq!((fresh.content.0.as_str(), fresh.mark.len()), ("<td>1</td>", 8));
        let mut headers = HeaderMap::new();
        let has = format!(" other  {} ", fresh.mark);
        headers.insert(HEADER, HeaderValue::try_from(has).unwrap());
        let has = Has::read(&headers);
        let (same, changed) = (has.part(said("<td>1</td>")), has.part(said("<td>2</td>")));
        assert_eq!((same.content.0.as_str(), same.mark), ("", fresh.mark.clone()));
        assert_eq!(changed.content.0, "<td>2</td>");
        assert_ne!(changed.mark, fresh.mark);
        assert!(has.page() && !Has::read(&HeaderMap::new()).page());
    }
}
