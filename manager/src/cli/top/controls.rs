//! PURE: the user's way through `top`: the trials that are listed, the one that is pointed at, and its output.

use crate::api::percent;
use crate::cli::screen::Key;

/// Rows that a page key moves.
const PAGE: usize = 10;

/// The trials that are listed, as a word and as the API's states.
const LISTS: [(&str, &str); 4] = [
    ("that run", "RUNNING,LOST"),
    ("that wait", "WAITING"),
    ("that failed", "FAILED"),
    ("of all states", ""),
];
/// The columns to sort by, as a word and as the API's query. The first is the usual one.
const ORDERS: [(&str, &str); 4] = [
    ("newest first", "sort=sequence&order=desc"),
    ("largest latest result first", "sort=latest&order=desc"),
    ("smallest latest result first", "sort=latest&order=asc"),
    ("longest first", "sort=duration&order=desc"),
];

/// The lines of the help.
pub(super) const HELP: [&str; 12] = [
    "keys",
    "",
    "↑ ↓ j k      point at a trial",
    "PgUp PgDn    ten trials further",
    "Enter l      show its output, and leave it again",
    "e            standard error instead of standard output",
    "s            sort: newest, largest, smallest, longest",
    "v            running, waiting, failed or all trials",
    "/            filter: lr < 0.01; an empty one shows all",
    "K            stop the trial, after a question",
    "?            this help",
    "q Ctrl-C     end; the search goes on",
];

/// The part of the screen below the search's numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Pane {
    /// The list of trials.
    #[default]
    Trials,
    /// A trial's output.
    Output {
        /// Its id.
        trial: String,
        /// `stdout` or `stderr`.
        stream: &'static str,
    },
    /// The keys.
    Help,
}

/// The effect of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyEffect {
    /// The picture is drawn anew.
    Draw,
    /// Something else is looked at.
    Look,
    /// A trial is to be stopped.
    Stop(String),
    /// The end.
    Quit,
}

/// The state of the controls.
#[derive(Debug, Clone, Default)]
pub(super) struct Controls {
    list: usize,
    order: usize,
    filter: String,
    /// The filter that is being typed. `None`: keys are commands.
    typed: Option<String>,
    /// The trial that the user was asked about.
    question: Option<String>,
    /// The row that is pointed at. `None`: no key has pointed at any.
    pub(super) row: Option<usize>,
    pub(super) pane: Pane,
}

impl Controls {
    /// The API's query for the list.
    pub(super) fn query(&self) -> String {
        let filter = percent::encoded(&self.filter);
        format!("state={}&{}&filter={filter}", LISTS[self.list].1, ORDERS[self.order].1)
    }

    /// Takes a key. `ids` are the trials of the list as they are shown.
    pub(super) fn press(&mut self, key: Key, ids: &[String]) -> KeyEffect {
        if key == Key::Interrupt {
            return KeyEffect::Quit;
        }
        if let Some(typed) = self.typed.take() {
            return self.type_filter(typed, key);
        }
        if let Some(trial) = self.question.take() {
            return if key == Key::Char('y') { KeyEffect::Stop(trial) } else { KeyEffect::Draw };
        }
        match key {
            Key::Char('q' | 'Q') => KeyEffect::Quit,
            Key::Char('?' | 'h') => self.turn(Pane::Help),
            Key::Escape => self.turn(Pane::Trials),
            Key::Char('/') => {
                self.typed = Some(self.filter.clone());
                KeyEffect::Draw
            }
            Key::Char('s') => {
                self.order = (self.order + 1) % ORDERS.len();
                KeyEffect::Look
            }
            Key::Char('v') => {
                self.list = (self.list + 1) % LISTS.len();
                self.row = None;
                KeyEffect::Look
            }
            Key::Char('e') => self.other_stream(),
            Key::Enter | Key::Char('l') => self.turn_to_output(ids),
            Key::Char('K') => {
                self.question = self.pointed(ids);
                KeyEffect::Draw
            }
            Key::Down | Key::Char('j') => self.point(ids, |at| at + 1),
            Key::Up | Key::Char('k') => self.point(ids, |at| at.saturating_sub(1)),
            Key::PageDown => self.point(ids, |at| at + PAGE),
            Key::PageUp => self.point(ids, |at| at.saturating_sub(PAGE)),
            Key::Backspace | Key::Char(_) | Key::Interrupt => KeyEffect::Draw,
        }
    }

    /// The last line of the screen. `pointed` names the trial under the pointer.
    pub(super) fn hint(&self) -> String {
        if let Some(typed) = &self.typed {
            return format!("filter: {typed}▏");
        }
        if let Some(trial) = &self.question {
            return format!("stop trial {trial}? y stops it, any other key does not");
        }
        let mut words = vec!["q ends, ? helps".to_owned()];
        if self.list > 0 {
            words.push(format!("trials {}", LISTS[self.list].0));
        }
        if self.order > 0 {
            words.push(ORDERS[self.order].0.to_owned());
        }
        if !self.filter.is_empty() {
            words.push(format!("only {}", self.filter));
        }
        words.join("   ")
    }

    fn pointed(&self, ids: &[String]) -> Option<String> {
        ids.get(self.row.unwrap_or(0).min(ids.len().saturating_sub(1))).cloned()
    }

    fn point(&mut self, ids: &[String], to: impl Fn(usize) -> usize) -> KeyEffect {
        let last = ids.len().saturating_sub(1);
        // The first key points at the first row.
        self.row = Some(self.row.map_or(0, |at| to(at).min(last)));
        KeyEffect::Draw
    }

    fn turn(&mut self, pane: Pane) -> KeyEffect {
        self.pane = if self.pane == pane { Pane::Trials } else { pane };
        KeyEffect::Draw
    }

    fn turn_to_output(&mut self, ids: &[String]) -> KeyEffect {
        self.pane = match (&self.pane, self.pointed(ids)) {
            (Pane::Trials | Pane::Help, Some(trial)) => Pane::Output { trial, stream: "stdout" },
            (Pane::Output { .. }, _) | (_, None) => Pane::Trials,
        };
        KeyEffect::Look
    }

    fn other_stream(&mut self) -> KeyEffect {
        let Pane::Output { stream, .. } = &mut self.pane else { return KeyEffect::Draw };
        *stream = if *stream == "stdout" { "stderr" } else { "stdout" };
        KeyEffect::Look
    }

    fn type_filter(&mut self, mut typed: String, key: Key) -> KeyEffect {
        match key {
            Key::Enter => {
                typed.trim().clone_into(&mut self.filter);
                self.row = None;
                return KeyEffect::Look;
            }
            Key::Escape => return KeyEffect::Draw,
            Key::Backspace => drop(typed.pop()),
            Key::Char(letter) => typed.push(letter),
            Key::Up | Key::Down | Key::PageUp | Key::PageDown | Key::Interrupt => {}
        }
        self.typed = Some(typed);
        KeyEffect::Draw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(controls: &mut Controls, keys: &str) -> Vec<KeyEffect> {
        let ids = ["a", "b", "c"].map(str::to_owned);
        let key = |letter| match letter {
            '\n' => Key::Enter,
            '\u{1b}' => Key::Escape,
            '\u{8}' => Key::Backspace,
            letter => Key::Char(letter),
        };
        keys.chars().map(|letter| controls.press(key(letter), &ids)).collect()
    }

    #[test]
    fn keys_point_at_a_trial_and_stop_it_after_a_question() {
        let mut controls = Controls::default();
        assert_eq!(press(&mut controls, "Kn").last(), Some(&KeyEffect::Draw), "no is no");
        press(&mut controls, "jjK");
        assert!(controls.hint().starts_with("stop trial b?"), "{}", controls.hint());
        assert_eq!(press(&mut controls, "y"), [KeyEffect::Stop("b".to_owned())]);
        press(&mut controls, "jjjjjjj");
        assert_eq!(controls.row, Some(2), "no further than the last");
        assert_eq!(press(&mut controls, "xyz q").last(), Some(&KeyEffect::Quit));
        let mut none = Controls::default();
        assert_eq!(none.press(Key::Char('K'), &[]), KeyEffect::Draw);
        assert_eq!(none.press(Key::Char('y'), &[]), KeyEffect::Draw, "there is no trial to stop");
    }

    #[test]
    fn a_list_is_sorted_filtered_and_left_for_a_trials_output() {
        let mut controls = Controls::default();
        let usual = "state=RUNNING,LOST&sort=sequence&order=desc&filter=";
        assert_eq!(controls.query(), usual);
        press(&mut controls, "/lr < 12\u{8}\n");
        press(&mut controls, "ssvv");
        let wanted = "state=FAILED&sort=latest&order=asc&filter=lr%20%3C%201";
        assert_eq!(controls.query(), wanted);
        assert!(controls.hint().ends_with("only lr < 1"), "{}", controls.hint());
        press(&mut controls, "/q?\u{1b}");
        assert_eq!(controls.query(), wanted, "what was given up has no effect");
        press(&mut controls, "jl");
        let output = |stream| Pane::Output { trial: "a".to_owned(), stream };
        assert_eq!(controls.pane, output("stdout"));
        press(&mut controls, "e");
        assert_eq!(controls.pane, output("stderr"));
        press(&mut controls, "\u{1b}?");
        assert_eq!(controls.pane, Pane::Help);
        assert_eq!(controls.press(Key::Interrupt, &[]), KeyEffect::Quit);
    }
}
