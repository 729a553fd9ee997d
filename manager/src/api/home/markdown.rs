//! PURE: renders notes, written in a part of Markdown, as passive HTML: paragraphs, headings, lists, code,
//! quotations, emphasis, and links to other sites by http and https. Everything else stays text.

use maud::{Markup, html};

/// Returns a note as HTML.
pub(super) fn render(note: &str) -> Markup {
    let lines: Vec<&str> = note.lines().collect();
    let mut rest = lines.as_slice();
    let mut blocks = Vec::new();
    while let Some((first, after)) = rest.split_first() {
        if first.trim().is_empty() {
            rest = after;
        } else if first.trim_start().starts_with("```") {
            let end = after.iter().position(|line| line.trim_start().starts_with("```"));
            let code = &after[..end.unwrap_or(after.len())];
            blocks.push(html! { pre { code { (code.join("\n")) } } });
            rest = end.map_or(&[], |end| &after[end + 1..]);
        } else if let Some((level, text)) = heading(first) {
            // The page itself uses the first levels.
            blocks.push(match level {
                1 => html! { h3 { (render_inline(text)) } },
                2 => html! { h4 { (render_inline(text)) } },
                _ => html! { h5 { (render_inline(text)) } },
            });
            rest = after;
        } else {
            let kind = BlockKind::of(first);
            let count = rest
                .iter()
                .take_while(|line| {
                    !line.trim().is_empty()
                        && BlockKind::of(line) == kind
                        && heading(line).is_none()
                        && !line.trim_start().starts_with("```")
                })
                .count();
            let (own, after) = rest.split_at(count.max(1));
            blocks.push(kind.render_block(own));
            rest = after;
        }
    }
    html! { @for block in blocks { (block) } }
}

/// A kind of adjacent lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Paragraph,
    Items,
    Numbers,
    Quotation,
}

impl BlockKind {
    fn of(line: &str) -> Self {
        let line = line.trim_start();
        if list_item(line).is_some() {
            Self::Items
        } else if numbered_item(line).is_some() {
            Self::Numbers
        } else if line.starts_with('>') {
            Self::Quotation
        } else {
            Self::Paragraph
        }
    }

    fn render_block(self, lines: &[&str]) -> Markup {
        let all = |each: fn(&str) -> Option<&str>| -> Vec<Markup> {
            lines
                .iter()
                .map(|line| render_inline(each(line.trim_start()).unwrap_or(line)))
                .collect()
        };
        match self {
            Self::Items => html! { ul { @for one in all(list_item) { li { (one) } } } },
            Self::Numbers => html! { ol { @for one in all(numbered_item) { li { (one) } } } },
            Self::Quotation => {
                let inner =
                    |line: &&str| line.trim_start().trim_start_matches('>').trim().to_owned();
                let text: Vec<_> = lines.iter().map(inner).collect();
                html! { blockquote { p { (render_inline(&text.join(" "))) } } }
            }
            Self::Paragraph => html! { p { (render_inline(&lines.join("\n"))) } },
        }
    }
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level) && text.starts_with(' ')).then(|| (level, text.trim()))
}

fn list_item(line: &str) -> Option<&str> {
    ["- ", "* ", "+ "].into_iter().find_map(|mark| line.strip_prefix(mark))
}

fn numbered_item(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = line.len() - rest.len();
    rest.strip_prefix(". ").filter(|_| (1..=9).contains(&digits))
}

/// Renders the marks within a line: `code`, **strong**, *emphasis*, [name](address) and bare addresses.
fn render_inline(text: &str) -> Markup {
    let mut parts: Vec<Markup> = Vec::new();
    let (mut plain, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        match read_mark(rest) {
            Some((markup, after)) => {
                let before = std::mem::take(&mut plain);
                parts.extend([html! { (before) }, markup]);
                rest = after;
            }
            None => {
                plain.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    html! { @for part in parts { (part) } (plain) }
}

/// Returns the marked text at the beginning of `text`, and the rest.
fn read_mark(text: &str) -> Option<(Markup, &str)> {
    let within = |open: &str, close: &str| {
        let (inner, after) = text.strip_prefix(open)?.split_once(close)?;
        (!inner.trim().is_empty()).then_some((inner, after))
    };
    if let Some((inner, after)) = within("`", "`") {
        return Some((html! { code { (inner) } }, after));
    }
    if let Some((inner, after)) = within("**", "**") {
        return Some((html! { strong { (inner) } }, after));
    }
    if let Some((inner, after)) = within("*", "*").filter(|(inner, _)| !inner.starts_with(' ')) {
        return Some((html! { em { (inner) } }, after));
    }
    if let Some((name, after)) = within("[", "](")
        && let Some((address, after)) = after.split_once(')')
    {
        return is_web(address).then(|| (render_link(address, name), after));
    }
    if is_web(text) {
        let end = text.find(|c: char| c.is_whitespace() || "<>\"'`)".contains(c));
        let (address, after) = text.split_at(end.unwrap_or(text.len()));
        return Some((render_link(address, address), after));
    }
    None
}

fn is_web(address: &str) -> bool {
    ["https://", "http://"].into_iter().any(|scheme| {
        address.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme))
    })
}

fn render_link(address: &str, name: &str) -> Markup {
    html! { a href=(address) rel="noopener noreferrer nofollow" { (name) } }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn notes_are_rendered_as_html() {
        #[rustfmt::skip]
        let table = [
            ("# Plan\ntry *less* **noise**", "<h3>Plan</h3><p>try <em>less</em> <strong>noise</strong></p>"),
            ("- a\n- `b*c*`\n\n1. x", "<ul><li>a</li><li><code>b*c*</code></li></ul><ol><li>x</li></ol>"),
            ("```\n<b>\n```\nend", "<pre><code>&lt;b&gt;</code></pre><p>end</p>"),
            ("> said\n> so", "<blockquote><p>said so</p></blockquote>"),
            ("see [it](https://a.example/x) ", "<p>see <a href=\"https://a.example/x\" rel=\"noopener noreferrer nofollow\">it</a> </p>"),
            ("2 * 3 * 4", "<p>2 * 3 * 4</p>"),
        ];
        for (note, page) in table {
            assert_eq!(render(note).into_string(), page);
        }
    }

    #[test]
    fn notes_contain_no_active_content() {
        for note in [
            "<script>alert(1)</script>",
            "[x](javascript:alert(1))",
            "[x](data:text/html,y)",
            "<img src=x onerror=y>",
            "![a](b)",
        ] {
            let page = render(note).into_string();
            assert!(
                !page.contains("<script")
                    && !page.contains("href=\"j")
                    && !page.contains("<img")
                    && !page.contains("href=\"d"),
                "{page}"
            );
        }
    }

    proptest! {
        #[test]
        fn random_notes_are_rendered_as_text(note in any::<String>()) {
            let page = render(&note).into_string();
            prop_assert!(!page.contains("<script") && !page.contains("javascript:\""));
        }
    }
}
