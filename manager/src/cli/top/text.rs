//! PURE: a text that may be longer than the screen, such as a trial's output: scrolling and search.

use crate::cli::terminal::plain_text::printable;
use crate::cli::terminal::screen::Key;
use crate::cli::terminal::text_style::TextStyle;

/// The part of a text that is shown, and the search in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TextView {
    /// The number of lines below the last shown line.
    below: usize,
    /// The number of lines that were shown last, which a page key scrolls.
    height: usize,
    /// The text to search for. Empty without a search.
    search: String,
    /// The direction to the match that becomes visible next. `None` if the user scrolls.
    jump: Option<ScrollDirection>,
}

/// A direction in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScrollDirection {
    Up,
    Down,
}

impl TextView {
    /// Returns the view of the end of a text, or of its beginning.
    pub(super) fn at(is_end: bool) -> Self {
        Self { below: if is_end { 0 } else { usize::MAX }, ..Self::default() }
    }

    /// Returns whether the view shows the end of the text, and new lines as they come.
    pub(super) fn is_at_end(&self) -> bool {
        self.below == 0
    }

    /// Searches for a text, upwards from the last shown line.
    pub(super) fn search_for(&mut self, text: &str) {
        self.search = text.to_lowercase();
        self.jump = Some(ScrollDirection::Up).filter(|_| !self.search.is_empty());
    }

    /// Processes a key that scrolls or continues a search. Returns `false` for any other key.
    pub(super) fn press(&mut self, key: Key) -> bool {
        let page = self.height.saturating_sub(1).max(1);
        self.below = match key {
            Key::Up | Key::Char('k') => self.below.saturating_add(1),
            Key::Down | Key::Char('j') => self.below.saturating_sub(1),
            Key::PageUp => self.below.saturating_add(page),
            Key::PageDown => self.below.saturating_sub(page),
            Key::Home | Key::Char('g') => usize::MAX,
            Key::End | Key::Char('G') => 0,
            Key::Char('n' | 'N') => {
                let direction =
                    if key == Key::Char('n') { ScrollDirection::Up } else { ScrollDirection::Down };
                self.jump = Some(direction).filter(|_| !self.search.is_empty());
                // The match at the last shown line has been seen.
                match direction {
                    ScrollDirection::Up => self.below.saturating_add(1),
                    ScrollDirection::Down => self.below.saturating_sub(1),
                }
            }
            Key::Interrupt | Key::Enter | Key::Escape | Key::Backspace | Key::Char(_) => {
                return false;
            }
        };
        true
    }

    /// Returns the shown lines of a text, at most `height`, and the number of lines below them.
    pub(super) fn lines(
        &mut self,
        text: &str,
        height: usize,
        style: TextStyle,
    ) -> (Vec<String>, usize) {
        let width = style.width.unwrap_or(super::DEFAULT_WIDTH).max(1);
        let all: Vec<_> =
            text.lines().flat_map(|line| split_line(&printable(line), width)).collect();
        let is_match =
            |line: &String| !self.search.is_empty() && line.to_lowercase().contains(&self.search);
        self.height = height;
        if all.is_empty() {
            // Before the text is loaded, the number of its lines is unknown, so the position stays.
            return (Vec::new(), 0);
        }
        let most = all.len().saturating_sub(height);
        self.below = self.below.min(most);
        // The position of the last shown line.
        let last = all.len().saturating_sub(self.below + 1);
        let found = match self.jump.take() {
            Some(ScrollDirection::Up) => all.iter().take(last + 1).rposition(is_match),
            Some(ScrollDirection::Down) => {
                all.iter().skip(last).position(is_match).map(|ahead| last + ahead)
            }
            None => None,
        };
        if let Some(at) = found {
            self.below = all.len().saturating_sub(at + 1).min(most);
        }
        let end = all.len() - self.below;
        let shown = all[end.saturating_sub(height)..end].iter().map(|line| {
            let is_marked = style.colours && is_match(line);
            if is_marked { format!("\u{1b}[7m{line}\u{1b}[0m") } else { line.clone() }
        });
        (shown.collect(), self.below)
    }
}

/// Splits a line into pieces of at most `width` characters.
fn split_line(line: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = line.chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
    if letters.is_empty() {
        return vec![String::new()];
    }
    letters.chunks(width).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first and the last shown line, after a key.
    fn pressed(view: &mut TextView, key: Key) -> (String, String) {
        view.press(key);
        let text: Vec<_> = (0..100).map(|at| format!("line {at}")).collect();
        let text = text.join("\n");
        let (lines, below) = view.lines(&text, 10, TextStyle::default());
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[9], format!("line {}", 99 - below));
        (lines[0].clone(), lines[9].clone())
    }

    #[test]
    fn a_text_scrolls_by_lines_and_pages_within_its_ends() {
        let mut view = TextView::at(true);
        #[rustfmt::skip]
        let table = [
            (Key::Char('x'), 90, 99), (Key::Up, 89, 98), (Key::PageUp, 80, 89), (Key::Char('j'), 81, 90), (Key::Home, 0, 9),
            (Key::PageUp, 0, 9), (Key::PageDown, 9, 18), (Key::Char('G'), 90, 99), (Key::PageDown, 90, 99),
        ];
        for (key, first, last) in table {
            let expected = (format!("line {first}"), format!("line {last}"));
            assert_eq!(pressed(&mut view, key), expected, "{key:?}");
        }
        assert!(view.is_at_end());
        let mut view = TextView::at(false);
        assert_eq!(view.lines("", 10, TextStyle::default()), (Vec::new(), 0));
        assert_eq!(pressed(&mut view, Key::Char('x')).0, "line 0");
        assert!(!view.is_at_end());
    }

    #[test]
    fn a_search_goes_up_from_the_end_and_back() {
        let mut view = TextView::at(true);
        view.search_for("LINE 1 ");
        pressed(&mut view, Key::Char('x'));
        assert!(view.is_at_end(), "an absent text moves nothing");
        view.search_for(" 4");
        for (key, last) in [('x', 49), ('n', 48), ('n', 47), ('N', 48), ('N', 49)] {
            assert_eq!(pressed(&mut view, Key::Char(key)).1, format!("line {last}"), "{key}");
        }
        let style = TextStyle { colours: true, ..TextStyle::default() };
        let (lines, _) = view.lines("a 4\nb\n", 10, style);
        assert_eq!(lines, ["\u{1b}[7ma 4\u{1b}[0m", "b"]);
    }
}
