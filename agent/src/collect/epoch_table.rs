//! PURE: reads the table that fastai prints: a line of names from `epoch` to `time`, then a line of numbers per epoch.
//!
//! ```text
//! epoch     train_loss  valid_loss  accuracy  time
//! 0         0.512345    0.423456    0.831234  00:05
//! ```
//!
//! A row must match the names: a whole number, as many numbers as names, and a clock. Ordinary text between two rows is
//! therefore not taken for a row. A line with neither `epoch` nor a colon need not be read.

use trial_protocol::MetricValue;

use super::{MAX_NAME_BYTES, text};

/// The first name of every table.
pub(super) const FIRST_COLUMN: &[u8] = b"epoch";

/// The last name of every table.
const LAST_COLUMN: &str = "time";

/// The maximum number of columns.
const MAX_COLUMNS: usize = 64;

/// The current table.
#[derive(Debug, Default)]
pub(super) struct EpochTable {
    /// The names without the first and the last. Empty if no table has begun.
    names: Vec<String>,
}

impl EpochTable {
    /// Reads a line of text, and calls `found` with name, epoch and value of each number in a row. Returns `false` if
    /// the line is not part of a table.
    pub(super) fn read(
        &mut self,
        line: &[u8],
        mut found: impl FnMut(&str, u64, MetricValue),
    ) -> bool {
        let line = line.trim_ascii();
        let begins = line.starts_with(FIRST_COLUMN);
        let is_row = || !self.names.is_empty() && line.first().is_some_and(u8::is_ascii_digit);
        if !begins && !is_row() {
            return false;
        }
        let Ok(line) = std::str::from_utf8(line) else { return false };
        let cells: Vec<&str> = line.split_ascii_whitespace().take(MAX_COLUMNS + 1).collect();
        let (Some((first, inner)), true) = (cells.split_first(), cells.len() <= MAX_COLUMNS) else {
            return false;
        };
        let Some((last, inner)) = inner.split_last() else { return false };
        if begins {
            let is_name =
                |name: &&str| name.len() <= MAX_NAME_BYTES && text::parse_number(name).is_none();
            let is_header = first.as_bytes() == FIRST_COLUMN
                && *last == LAST_COLUMN
                && !inner.is_empty()
                && inner.iter().all(is_name);
            if is_header {
                self.names = inner.iter().map(|name| (*name).to_owned()).collect();
            }
            return is_header;
        }
        let numbers: Vec<Option<MetricValue>> =
            inner.iter().map(|cell| text::parse_number(cell)).collect();
        // fastai prints `None` for a value that was not measured.
        let is_number = |(cell, number): (&&str, &Option<_>)| number.is_some() || *cell == "None";
        let (Ok(epoch), true) = (first.parse(), is_clock(last) && inner.len() == self.names.len())
        else {
            return false;
        };
        if !inner.iter().zip(&numbers).all(is_number) {
            return false;
        }
        for (name, value) in self.names.iter().zip(numbers) {
            if let Some(value) = value {
                found(name, epoch, value);
            }
        }
        true
    }
}

/// Returns whether a cell is a time such as `00:05` or `1:02:03`.
fn is_clock(cell: &str) -> bool {
    cell.contains(':')
        && cell.split(':').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(lines: &[&str]) -> Vec<(String, u64, String)> {
        let mut table = EpochTable::default();
        let mut all = Vec::new();
        for line in lines {
            table.read(line.as_bytes(), |name, epoch, value| {
                all.push((name.to_owned(), epoch, value.as_json().to_string()));
            });
        }
        all
    }

    /// Lines, and the name, the epoch and the value of each metric in them.
    type Row<'a> = (&'a [&'a str], &'a [(&'a str, u64, &'a str)]);

    #[test]
    fn a_row_is_read_only_if_it_matches_the_names() {
        let names = "epoch     train_loss  accuracy  time    ";
        #[rustfmt::skip]
        let table: [Row<'_>; 11] = [
            (&[names, "0         0.5         0.81      00:05   "],     &[("train_loss", 0, "0.5"), ("accuracy", 0, "0.81")]),
            (&[names, "a warning: 3 of 4", "1 0.5 0.81 1:00:05"],      &[("train_loss", 1, "0.5"), ("accuracy", 1, "0.81")]),
            (&[names, "0 0.5 None 00:05"],                             &[("train_loss", 0, "0.5")]),
            (&["0 0.5 0.81 00:05"],                                    &[]),
            (&[names, "0 0.5 00:05"],                                  &[]),
            (&[names, "0 0.5 0.81 0.9 00:05"],                         &[]),
            (&[names, "0 0.5 0.81 5"],                                 &[]),
            (&[names, "0 0.5 high 00:05"],                             &[]),
            (&[names, "0.5 0.5 0.81 00:05"],                           &[]),
            (&["epoch train_loss accuracy", "0 0.5 00:05"],            &[]),
            (&["epoch 1 loss 0.5 time", "0 1 2 3 00:05"],              &[]),
        ];
        for (lines, expected) in table {
            let expected: Vec<_> =
                expected.iter().map(|(n, e, v)| ((*n).to_owned(), *e, (*v).to_owned())).collect();
            assert_eq!(read(lines), expected, "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn random_lines_of_a_table_never_panic(lines in prop::collection::vec("(epoch|[0-9]+)?[ a-z0-9:.\\x00é]{0,60}", 0..6)) {
            let mut table = EpochTable::default();
            table.read(b"epoch a time", |_, _, _| ());
            for line in lines {
                table.read(line.as_bytes(), |name, _, value| {
                    assert!(!name.is_empty() && value.number().is_some());
                });
            }
        }
    }
}
