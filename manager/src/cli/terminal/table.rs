//! PURE: tables of text that fit the width of a terminal.

use unicode_width::UnicodeWidthStr;

use super::text_style::{MAX_SENTENCE_WIDTH, MIN_SENTENCE_WIDTH, TextStyle, wrap};

/// The number of blanks between two columns.
const COLUMN_GAP: usize = 3;

/// The layout of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum ColumnFit {
    /// Text in full length, aligned left.
    Text,
    /// Text in full length, aligned right.
    Number,
    /// Text in full length, aligned left, with a hyperlink to the row's page.
    Link,
    /// Text in full length, in the colour of the state.
    State,
    /// Text that wraps at blanks if the line would be too long.
    Sentence,
    /// A column that is left out if all its cells are empty, or if the line would be too long. The rightmost such
    /// column is left out first.
    Optional,
    /// A column that is aligned right, and left out after all [`ColumnFit::Optional`] columns.
    OptionalNumber,
}

impl ColumnFit {
    fn is_optional(self) -> bool {
        matches!(self, Self::Optional | Self::OptionalNumber)
    }
}

/// A table under construction.
#[derive(Debug)]
pub(in crate::cli) struct Columns {
    heads: Vec<(String, ColumnFit)>,
    rows: Vec<Vec<String>>,
    /// The addresses of the rows' pages. Empty for a row without a page.
    pages: Vec<String>,
}

impl Columns {
    /// Creates a table without rows. Headings and cells must contain only printable characters.
    pub(in crate::cli) fn new(
        heads: impl IntoIterator<Item = (impl Into<String>, ColumnFit)>,
    ) -> Self {
        let heads = heads.into_iter().map(|(name, fit)| (name.into(), fit));
        Self { heads: heads.collect(), rows: Vec::new(), pages: Vec::new() }
    }

    /// Adds a row with one cell for each heading. A cell may have several lines.
    pub(in crate::cli) fn push(&mut self, row: Vec<String>) {
        self.push_linked(row, String::new());
    }

    /// Adds a row whose [`ColumnFit::Link`] cell is a hyperlink to `page`.
    pub(in crate::cli) fn push_linked(&mut self, row: Vec<String>, page: String) {
        self.rows.push(row);
        self.pages.push(page);
    }

    /// Returns the table, and the number of [`ColumnFit::Optional`] columns that were left out for lack of space.
    pub(in crate::cli) fn render(mut self, style: TextStyle) -> (String, usize) {
        let (widths, left_out) = self.fit(style.width);
        let total = widths.iter().sum::<usize>() + COLUMN_GAP * widths.len().saturating_sub(1) + 2;
        let heads: Vec<_> = self.heads.iter().map(|(name, _)| name.clone()).collect();
        let mut text = self.lines((&heads, ""), &widths, TextStyle::default());
        text.push_str(&"─".repeat(total));
        text.push('\n');
        for (row, page) in self.rows.iter().zip(&self.pages) {
            text.push_str(&self.lines((row, page), &widths, style));
        }
        (text, left_out)
    }

    /// Removes the columns that do not fit. Returns the widths of the others, and the number of removed
    /// [`ColumnFit::Optional`] columns.
    fn fit(&mut self, width: Option<usize>) -> (Vec<usize>, usize) {
        for at in (0..self.heads.len()).rev() {
            let mut cells = self.rows.iter().filter_map(|row| row.get(at));
            if self.heads[at].1.is_optional() && cells.all(String::is_empty) {
                let _ = self.remove(at);
            }
        }
        let natural = |columns: &Self, at: usize| {
            let cells = columns.rows.iter().filter_map(|row| row.get(at));
            let lines = cells.flat_map(|cell| cell.lines()).map(UnicodeWidthStr::width);
            lines.chain([columns.heads[at].0.width()]).max().unwrap_or(0)
        };
        let mut widths: Vec<_> = (0..self.heads.len()).map(|at| natural(self, at)).collect();
        let is_sentence = |at: usize, columns: &Self| columns.heads[at].1 == ColumnFit::Sentence;
        let least = |at: usize, width: usize, columns: &Self| {
            if is_sentence(at, columns) { width.min(MIN_SENTENCE_WIDTH) } else { width }
        };
        let mut left_out = 0;
        let most = width.unwrap_or(usize::MAX);
        loop {
            let narrowest = widths.iter().enumerate().map(|(at, width)| least(at, *width, self));
            // A line begins with a blank, and the rule below the heading ends with one.
            let gaps = COLUMN_GAP * widths.len().saturating_sub(1) + 2;
            let spare = most.checked_sub(narrowest.sum::<usize>() + gaps);
            let rightmost =
                |wanted: ColumnFit| self.heads.iter().rposition(|(_, fit)| *fit == wanted);
            let optional =
                rightmost(ColumnFit::Optional).or_else(|| rightmost(ColumnFit::OptionalNumber));
            match (spare, optional) {
                (None, Some(at)) => {
                    let fit = self.remove(at);
                    widths.remove(at);
                    left_out += usize::from(fit == ColumnFit::Optional);
                }
                (spare, _) => {
                    let mut spare = spare.unwrap_or(0);
                    for (at, width) in widths.iter_mut().enumerate() {
                        if is_sentence(at, self) {
                            let narrow = (*width).min(MIN_SENTENCE_WIDTH);
                            let more =
                                spare.min((*width).min(MAX_SENTENCE_WIDTH).saturating_sub(narrow));
                            (*width, spare) = (narrow + more, spare - more);
                        }
                    }
                    return (widths, left_out);
                }
            }
        }
    }

    /// Removes a column and returns its layout.
    fn remove(&mut self, at: usize) -> ColumnFit {
        let (_, fit) = self.heads.remove(at);
        for row in self.rows.iter_mut().filter(|row| at < row.len()) {
            row.remove(at);
        }
        fit
    }

    /// Returns the lines of a row.
    fn lines(&self, (row, page): (&[String], &str), widths: &[usize], style: TextStyle) -> String {
        let cells: Vec<Vec<String>> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| cell.lines().flat_map(|line| wrap(line, *width)).collect())
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let mut text = String::new();
        for at in 0..height {
            let mut line = String::from(" ");
            for (column, (_, fit)) in self.heads.iter().enumerate() {
                let (Some(cell), Some(width)) = (cells.get(column), widths.get(column)) else {
                    break;
                };
                if column > 0 {
                    line.push_str(&" ".repeat(COLUMN_GAP));
                }
                let part = cell.get(at).map(String::as_str).unwrap_or_default();
                let pad = " ".repeat(width.saturating_sub(part.width()));
                match fit {
                    ColumnFit::Number | ColumnFit::OptionalNumber => line.push_str(&(pad + part)),
                    ColumnFit::State => line.push_str(&(style.paint(part, part) + &pad)),
                    ColumnFit::Link => line.push_str(&(style.link(page, part) + &pad)),
                    ColumnFit::Text | ColumnFit::Sentence | ColumnFit::Optional => {
                        line.push_str(&(part.to_owned() + &pad));
                    }
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Returns a table whose rows have no pages.
pub(in crate::cli) fn table(
    heads: impl IntoIterator<Item = (&'static str, ColumnFit)>,
    rows: impl Iterator<Item = Vec<String>>,
    style: TextStyle,
) -> String {
    let mut columns = Columns::new(heads);
    rows.for_each(|row| columns.push(row));
    columns.render(style).0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table() -> Columns {
        let heads = [
            ("trial", ColumnFit::Number),
            ("state", ColumnFit::State),
            ("why", ColumnFit::Sentence),
            ("lr", ColumnFit::Optional),
            ("act", ColumnFit::Optional),
        ];
        let mut table = Columns::new(heads);
        table.push(
            ["3", "FAILED", "the trial exited with code 3 and said nothing", "0.1", "relu"]
                .map(str::to_owned)
                .into(),
        );
        table.push(["12", "SUCCEEDED", "", "0.2", "tanh"].map(str::to_owned).into());
        table
    }

    #[test]
    fn a_narrow_table_drops_parameters_and_then_wraps_sentences() {
        let shown = |width| {
            let (text, left_out) =
                table().render(TextStyle { width, colours: false, links: false });
            (text.lines().map(str::to_owned).collect::<Vec<_>>(), left_out)
        };
        let (wide, none) = shown(None);
        assert_eq!(none, 0);
        assert_eq!(
            wide,
            [
                " trial   state       why                                             lr    act",
                "────────────────────────────────────────────────────────────────────────────────",
                "     3   FAILED      the trial exited with code 3 and said nothing   0.1   relu",
                "    12   SUCCEEDED                                                   0.2   tanh",
            ]
        );
        let (narrow, left_out) = shown(Some(54));
        assert_eq!(left_out, 1);
        assert_eq!(
            narrow[2..4],
            [
                "     3   FAILED      the trial exited with code   0.1",
                "                     3 and said nothing"
            ]
        );
        let (narrowest, left_out) = shown(Some(10));
        assert_eq!(left_out, 2);
        assert_eq!(narrowest.len(), 5, "{narrowest:#?}");
    }

    #[test]
    fn states_have_colours_if_the_style_has() {
        let (text, _) = table().render(TextStyle { width: None, colours: true, links: false });
        assert!(text.contains("\u{1b}[31mFAILED\u{1b}[0m      the trial"), "{text:?}");
        assert!(text.contains("\u{1b}[32mSUCCEEDED\u{1b}[0m"), "{text:?}");
    }

    proptest! {
        #[test]
        fn a_table_fits_the_width_and_keeps_every_word(width in 40usize..200, why in "[a-zé漢]{1,9}( [a-z]{1,9}){0,30}") {
            let heads = [("id", ColumnFit::Text), ("why", ColumnFit::Sentence), ("x", ColumnFit::Optional)];
            let mut table = Columns::new(heads);
            table.push(vec!["abc".to_owned(), why.clone(), "1".to_owned()]);
            let (text, _) = table.render(TextStyle { width: Some(width), colours: false, links: false });
            prop_assert!(text.lines().all(|line| line.width() <= width), "{text}");
            let words: Vec<_> = text.split_whitespace().collect();
            prop_assert!(why.split(' ').all(|word| words.contains(&word)), "{text}");
        }
    }

    #[test]
    fn an_id_links_to_its_page_if_the_terminal_supports_links() {
        let shown = |page: &str, links: bool| {
            let mut table = Columns::new([("id", ColumnFit::Link), ("n", ColumnFit::Number)]);
            table.push_linked(vec!["abc".to_owned(), "7".to_owned()], page.to_owned());
            let (text, _) = table.render(TextStyle { links, ..TextStyle::default() });
            text.lines().last().unwrap().to_owned()
        };
        let page = "http://127.0.0.1:8080/trials/abc";
        let link = format!(" \u{1b}]8;;{page}\u{1b}\\abc\u{1b}]8;;\u{1b}\\   7");
        #[rustfmt::skip]
        let table = [
            (page,                true,  link.as_str()),
            (page,                false, " abc   7"),
            ("",                  true,  " abc   7"),
            ("http://x/\u{1b}\\a", true,  " abc   7"),
        ];
        for (page, links, expected) in table {
            assert_eq!(shown(page, links), expected, "{page:?}");
        }
    }
}
