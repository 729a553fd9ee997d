//! PURE: the controls of `top`: the list of trials, the selected trial, and its output.

use crate::api::percent;
use crate::cli::screen::Key;

/// The number of rows that a page key moves.
const PAGE: usize = 10;

/// The lists of trials, each as words and as states of the API.
const LISTS: [(&str, &str); 4] = [
    ("that run", "RUNNING,LOST"),
    ("that wait", "WAITING"),
    ("that failed", "FAILED"),
    ("of all states", ""),
];
/// The sort orders, each as words and as a query of the API. The first order is the default.
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
    "↑ ↓ j k      select a trial",
    "PgUp PgDn    move by ten trials",
    "Enter l      show or hide the trial's output",
    "e            switch between stdout and stderr",
    "s            sort: newest, largest, smallest, longest",
    "v            view running, waiting, failed or all trials",
    "/            filter, such as lr < 0.01; empty shows all",
    "K            stop the trial, after a confirmation",
    "?            show this help",
    "q Ctrl-C     quit; the search continues",
];

/// The part of the screen below the search's numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Pane {
    /// The list of trials.
    #[default]
    Trials,
    /// A trial's output.
    Output {
        /// The id of the trial.
        trial: String,
        /// `stdout` or `stderr`.
        stream: &'static str,
    },
    /// The help, which lists the keys.
    Help,
}

/// The effect of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyEffect {
    /// Redraw the screen.
    Draw,
    /// Load the state again, because the key changed the query.
    Reload,
    /// Stop the trial with this id.
    Stop(String),
    /// Quit the program.
    Quit,
}

/// The state of the controls.
#[derive(Debug, Clone, Default)]
pub(super) struct Controls {
    list: usize,
    order: usize,
    filter: String,
    /// The filter while the user types it. `None` if keys are commands.
    typed: Option<String>,
    /// The id of the trial whose stop the user has to confirm.
    question: Option<String>,
    /// The selected row. `None` if the user has not selected any.
    pub(super) row: Option<usize>,
    pub(super) pane: Pane,
}

impl Controls {
    /// Returns the query of the API for the list.
    pub(super) fn query(&self) -> String {
        let filter = percent::encoded(&self.filter);
        format!("state={}&{}&filter={filter}", LISTS[self.list].1, ORDERS[self.order].1)
    }

    /// Processes a key. `ids` are the trials in the order of the list.
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
            Key::Char('?' | 'h') => self.toggle_pane(Pane::Help),
            Key::Escape => self.toggle_pane(Pane::Trials),
            Key::Char('/') => {
                self.typed = Some(self.filter.clone());
                KeyEffect::Draw
            }
            Key::Char('s') => {
                self.order = (self.order + 1) % ORDERS.len();
                KeyEffect::Reload
            }
            Key::Char('v') => {
                self.list = (self.list + 1) % LISTS.len();
                self.row = None;
                KeyEffect::Reload
            }
            Key::Char('e') => self.switch_stream(),
            Key::Enter | Key::Char('l') => self.toggle_output(ids),
            Key::Char('K') => {
                self.question = self.selected(ids);
                KeyEffect::Draw
            }
            Key::Down | Key::Char('j') => self.select(ids, |at| at + 1),
            Key::Up | Key::Char('k') => self.select(ids, |at| at.saturating_sub(1)),
            Key::PageDown => self.select(ids, |at| at + PAGE),
            Key::PageUp => self.select(ids, |at| at.saturating_sub(PAGE)),
            Key::Backspace | Key::Char(_) | Key::Interrupt => KeyEffect::Draw,
        }
    }

    /// Returns the last line of the screen.
    pub(super) fn hint(&self) -> String {
        if let Some(typed) = &self.typed {
            return format!("filter: {typed}▏");
        }
        if let Some(trial) = &self.question {
            return format!("stop trial {trial}? y stops it, any other key does not");
        }
        let mut words = vec!["q quits, ? helps".to_owned()];
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

    fn selected(&self, ids: &[String]) -> Option<String> {
        ids.get(self.row.unwrap_or(0).min(ids.len().saturating_sub(1))).cloned()
    }

    fn select(&mut self, ids: &[String], to: impl Fn(usize) -> usize) -> KeyEffect {
        let last = ids.len().saturating_sub(1);
        // The first key selects the first row.
        self.row = Some(self.row.map_or(0, |at| to(at).min(last)));
        KeyEffect::Draw
    }

    fn toggle_pane(&mut self, pane: Pane) -> KeyEffect {
        self.pane = if self.pane == pane { Pane::Trials } else { pane };
        KeyEffect::Draw
    }

    fn toggle_output(&mut self, ids: &[String]) -> KeyEffect {
        self.pane = match (&self.pane, self.selected(ids)) {
            (Pane::Trials | Pane::Help, Some(trial)) => Pane::Output { trial, stream: "stdout" },
            (Pane::Output { .. }, _) | (_, None) => Pane::Trials,
        };
        KeyEffect::Reload
    }

    fn switch_stream(&mut self) -> KeyEffect {
        let Pane::Output { stream, .. } = &mut self.pane else { return KeyEffect::Draw };
        *stream = if *stream == "stdout" { "stderr" } else { "stdout" };
        KeyEffect::Reload
    }

    fn type_filter(&mut self, mut typed: String, key: Key) -> KeyEffect {
        match key {
            Key::Enter => {
                typed.trim().clone_into(&mut self.filter);
                self.row = None;
                return KeyEffect::Reload;
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
    fn keys_select_a_trial_and_stop_it_after_a_confirmation() {
        let mut controls = Controls::default();
        assert_eq!(
            press(&mut controls, "Kn").last(),
            Some(&KeyEffect::Draw),
            "another key than y does not stop the trial"
        );
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
    fn keys_sort_and_filter_the_list_and_show_a_trials_output() {
        let mut controls = Controls::default();
        let usual = "state=RUNNING,LOST&sort=sequence&order=desc&filter=";
        assert_eq!(controls.query(), usual);
        press(&mut controls, "/lr < 12\u{8}\n");
        press(&mut controls, "ssvv");
        let wanted = "state=FAILED&sort=latest&order=asc&filter=lr%20%3C%201";
        assert_eq!(controls.query(), wanted);
        assert!(controls.hint().ends_with("only lr < 1"), "{}", controls.hint());
        press(&mut controls, "/q?\u{1b}");
        assert_eq!(controls.query(), wanted, "a cancelled filter has no effect");
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
