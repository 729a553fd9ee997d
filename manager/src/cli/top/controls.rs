//! PURE: the controls of `top`: the list of trials, the selected trial, and the text that is shown of it.

use super::text::TextView;
use crate::api::percent;
use crate::cli::terminal::screen::Key;

/// The lists of trials, each as words and as states of the API.
const STATE_FILTERS: [(&str, &str); 4] = [
    ("that run", "RUNNING,LOST"),
    ("that wait", "WAITING"),
    ("that failed", "FAILED"),
    ("of all states", ""),
];
/// The sort orders, each as words and as a query of the API. The first order is the default.
const SORT_ORDERS: [(&str, &str); 4] = [
    ("newest first", "sort=sequence&order=desc"),
    ("largest latest result first", "sort=latest&order=desc"),
    ("smallest latest result first", "sort=latest&order=asc"),
    ("longest first", "sort=duration&order=desc"),
];

/// The lines of the help.
pub(super) const HELP_LINES: [&str; 17] = [
    "keys",
    "",
    "↑ ↓ j k       select a trial, or scroll a text",
    "PgUp PgDn     move by a page",
    "Home End g G  move to the beginning or the end",
    "Enter l       show or hide the trial's output",
    "e             switch between stdout and stderr",
    "w             explain the trial's state",
    "s             sort: newest, largest, smallest, longest",
    "v             view running, waiting, failed or all trials",
    "/             filter, such as lr < 0.01; in a text, search",
    "n N           move to the next match above or below",
    "K             stop the trial, after a confirmation",
    "R             rerun an ended trial, after a confirmation",
    "o             open the trial's page, and show its address",
    "? h           show this help",
    "q Ctrl-C      quit; the search continues",
];
/// The keys that the last line names beside a list, as far as there is room.
const LIST_KEYS: [&str; 8] =
    ["Enter output", "w why", "v view", "/ filter", "s sort", "K stop", "R rerun", "o open"];
/// The keys that the last line names below a text.
const TEXT_KEYS: [&str; 5] = ["PgUp PgDn scroll", "/ search", "e other stream", "w why", "o open"];

/// A text about a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Stdout,
    Stderr,
    /// The explanation of the trial's state.
    Why,
}

impl Content {
    /// Returns the name of the text.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Why => "state",
        }
    }
}

/// The part of the screen below the search's numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Pane {
    /// The list of trials.
    #[default]
    Trials,
    /// A text about a trial.
    Text {
        /// The id of the trial.
        trial: String,
        content: Content,
    },
    /// The help, which lists the keys.
    Help,
}

/// A change that the user has to confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrialAction {
    Stop,
    Rerun,
}

/// The effect of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyEffect {
    /// Redraw the screen.
    Draw,
    /// Load the state again, because the key changed the query.
    Reload,
    /// Change the trial with this id.
    Change(TrialAction, String),
    /// Open the page of the trial with this id.
    Open(String),
    /// Quit the program.
    Quit,
}

/// A text that the user types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Filter,
    Search,
}

/// The trials of the list.
#[derive(Debug, Clone, Copy)]
pub(super) struct List<'a> {
    /// The ids of the first trials, in the order of the list.
    pub(super) ids: &'a [String],
    /// The number of all trials.
    pub(super) total: usize,
}

/// The state of the controls.
#[derive(Debug, Clone, Default)]
pub(super) struct Controls {
    list: usize,
    order: usize,
    filter: String,
    /// The text while the user types it. `None` if keys are commands.
    typed: Option<(Input, String)>,
    /// The change that the user has to confirm, and the id of its trial.
    question: Option<(TrialAction, String)>,
    /// The selected row. `None` if the user has not selected any.
    pub(super) row: Option<usize>,
    /// The id of the selected trial, which stays selected when the list changes.
    selected: Option<String>,
    /// The first visible row.
    pub(super) first: usize,
    /// The number of visible rows.
    pub(super) visible: usize,
    pub(super) pane: Pane,
    pub(super) text: TextView,
}

impl Controls {
    /// Returns the query of the API for the list.
    pub(super) fn query(&self) -> String {
        let filter = percent::encode(&self.filter);
        format!(
            "state={}&{}&filter={filter}",
            STATE_FILTERS[self.list].1, SORT_ORDERS[self.order].1
        )
    }

    /// Returns the description of the listed trials.
    pub(super) fn list_words(&self) -> &'static str {
        STATE_FILTERS[self.list].0
    }

    /// Processes a key.
    pub(super) fn press(&mut self, key: Key, list: List<'_>) -> KeyEffect {
        if key == Key::Interrupt {
            return KeyEffect::Quit;
        }
        if let Some((input, typed)) = self.typed.take() {
            return self.type_text(input, typed, key);
        }
        if let Some((change, trial)) = self.question.take() {
            let is_confirmed = key == Key::Char('y');
            return if is_confirmed { KeyEffect::Change(change, trial) } else { KeyEffect::Draw };
        }
        if matches!(self.pane, Pane::Text { .. }) && self.text.press(key) {
            return KeyEffect::Draw;
        }
        let page = self.visible.max(1);
        match key {
            Key::Char('q' | 'Q') => KeyEffect::Quit,
            Key::Char('?' | 'h') => self.toggle_pane(Pane::Help),
            Key::Escape => self.toggle_pane(Pane::Trials),
            Key::Char('/') => self.begin_to_type(),
            Key::Char('s') => {
                self.order = (self.order + 1) % SORT_ORDERS.len();
                self.select_none()
            }
            Key::Char('v') => {
                self.list = (self.list + 1) % STATE_FILTERS.len();
                self.select_none()
            }
            Key::Char('e') => self.switch_stream(),
            Key::Char('w') => self.show(Content::Why, list),
            Key::Enter | Key::Char('l') => self.toggle_output(list),
            Key::Char('K') => self.ask_to_confirm(TrialAction::Stop, list),
            Key::Char('R') => self.ask_to_confirm(TrialAction::Rerun, list),
            Key::Char('o') => self.subject(list).map_or(KeyEffect::Draw, KeyEffect::Open),
            Key::Down | Key::Char('j') => self.select(list, |at| at + 1),
            Key::Up | Key::Char('k') => self.select(list, |at| at.saturating_sub(1)),
            Key::PageDown => self.select(list, |at| at.saturating_add(page)),
            Key::PageUp => self.select(list, |at| at.saturating_sub(page)),
            Key::Home | Key::Char('g') => self.select(list, |_| 0),
            Key::End | Key::Char('G') => self.select(list, |_| usize::MAX),
            Key::Backspace | Key::Char(_) | Key::Interrupt => KeyEffect::Draw,
        }
    }

    /// Returns the first visible row, if `visible` of `total` rows fit. The selected row is visible.
    pub(super) fn scroll(&mut self, visible: usize, total: usize) -> usize {
        self.visible = visible;
        if let Some(row) = self.row {
            let row = row.min(total.saturating_sub(1));
            self.first = self.first.clamp((row + 1).saturating_sub(visible), row);
            self.row = Some(row);
        }
        self.first = self.first.min(total.saturating_sub(visible));
        self.first
    }

    /// Keeps the selected trial selected after the list has changed.
    pub(super) fn follow(&mut self, list: List<'_>) {
        let found = self.selected.as_ref().and_then(|id| list.ids.iter().position(|one| one == id));
        if let (Some(row), Some(at)) = (self.row, found) {
            // The trial stays on the same line of the screen.
            self.first = (self.first + at).saturating_sub(row);
            self.row = Some(at);
        } else {
            self.selected = self.row.and_then(|row| list.ids.get(row)).cloned();
        }
    }

    /// Returns the last line of the screen, which has room for `width` columns.
    pub(super) fn key_line(&self, width: usize) -> String {
        match (&self.typed, &self.question) {
            (Some((Input::Filter, typed)), _) => return format!("filter: {typed}▏"),
            (Some((Input::Search, typed)), _) => return format!("search: {typed}▏"),
            (_, Some((TrialAction::Stop, trial))) => {
                return format!("stop trial {trial}? y stops it, any other key does not");
            }
            (_, Some((TrialAction::Rerun, trial))) => {
                return format!("rerun trial {trial}? y reruns it, any other key does not");
            }
            (None, None) => {}
        }
        if let Pane::Text { .. } = self.pane {
            return append_fitting_keys("Escape goes back".to_owned(), &TEXT_KEYS, width);
        }
        let mut words = vec!["q quits, ? helps".to_owned()];
        if self.list > 0 {
            words.push(format!("trials {}", STATE_FILTERS[self.list].0));
        }
        if self.order > 0 {
            words.push(SORT_ORDERS[self.order].0.to_owned());
        }
        if !self.filter.is_empty() {
            words.push(format!("only {}", self.filter));
        }
        append_fitting_keys(words.join("   "), &LIST_KEYS, width)
    }

    /// Returns the trial to which a key applies: the one whose text is shown, or else the selected one.
    fn subject(&self, list: List<'_>) -> Option<String> {
        match &self.pane {
            Pane::Text { trial, .. } => Some(trial.clone()),
            Pane::Trials | Pane::Help => {
                let lowest = list.ids.len().saturating_sub(1);
                list.ids.get(self.row.unwrap_or(self.first).min(lowest)).cloned()
            }
        }
    }

    fn ask_to_confirm(&mut self, change: TrialAction, list: List<'_>) -> KeyEffect {
        self.question = self.subject(list).map(|trial| (change, trial));
        KeyEffect::Draw
    }

    fn select(&mut self, list: List<'_>, to: impl Fn(usize) -> usize) -> KeyEffect {
        let lowest = list.total.saturating_sub(1);
        let row = match self.row {
            Some(row) => to(row).min(lowest),
            // The first key selects the first visible row, unless it moves to an end.
            None if to(0) == usize::MAX => lowest,
            None => self.first.min(lowest),
        };
        self.row = Some(row);
        self.selected = list.ids.get(row).cloned();
        KeyEffect::Draw
    }

    fn select_none(&mut self) -> KeyEffect {
        (self.row, self.selected, self.first) = (None, None, 0);
        KeyEffect::Reload
    }

    fn toggle_pane(&mut self, pane: Pane) -> KeyEffect {
        self.pane = if self.pane == pane { Pane::Trials } else { pane };
        KeyEffect::Draw
    }

    fn toggle_output(&mut self, list: List<'_>) -> KeyEffect {
        match &self.pane {
            Pane::Text { content: Content::Stdout | Content::Stderr, .. } => {
                self.toggle_pane(Pane::Trials)
            }
            Pane::Text { .. } | Pane::Trials | Pane::Help => self.show(Content::Stdout, list),
        }
    }

    fn show(&mut self, content: Content, list: List<'_>) -> KeyEffect {
        let Some(trial) = self.subject(list) else { return KeyEffect::Draw };
        // The newest output is the most interesting; an explanation is read from its beginning.
        self.text = TextView::at(content != Content::Why);
        self.pane = Pane::Text { trial, content };
        KeyEffect::Reload
    }

    fn switch_stream(&mut self) -> KeyEffect {
        let Pane::Text { content, .. } = &mut self.pane else { return KeyEffect::Draw };
        let is_stdout = *content == Content::Stdout;
        *content = if is_stdout { Content::Stderr } else { Content::Stdout };
        self.text = TextView::at(true);
        KeyEffect::Reload
    }

    fn begin_to_type(&mut self) -> KeyEffect {
        self.typed = Some(match self.pane {
            Pane::Text { .. } => (Input::Search, String::new()),
            Pane::Trials | Pane::Help => (Input::Filter, self.filter.clone()),
        });
        KeyEffect::Draw
    }

    fn type_text(&mut self, input: Input, mut typed: String, key: Key) -> KeyEffect {
        match key {
            Key::Enter if input == Input::Search => {
                self.text.search_for(&typed);
                return KeyEffect::Draw;
            }
            Key::Enter => {
                typed.trim().clone_into(&mut self.filter);
                return self.select_none();
            }
            Key::Escape => return KeyEffect::Draw,
            Key::Backspace => drop(typed.pop()),
            Key::Char(letter) => typed.push(letter),
            Key::Up | Key::Down | Key::PageUp | Key::PageDown => {}
            Key::Home | Key::End | Key::Interrupt => {}
        }
        self.typed = Some((input, typed));
        KeyEffect::Draw
    }
}

/// Returns a line with as many keys as fit after `line`.
fn append_fitting_keys(line: String, keys: &[&str], width: usize) -> String {
    keys.iter().fold(line, |line, key| {
        let longer = format!("{line}   {key}");
        if longer.chars().count() <= width { longer } else { line }
    })
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
        let list = List { ids: &ids, total: 3 };
        keys.chars().map(|letter| controls.press(key(letter), list)).collect()
    }

    #[test]
    fn keys_select_a_trial_and_change_it_after_a_confirmation() {
        let mut controls = Controls::default();
        assert_eq!(
            press(&mut controls, "Kn").last(),
            Some(&KeyEffect::Draw),
            "another key than y does not stop the trial"
        );
        press(&mut controls, "jjK");
        assert!(controls.key_line(80).starts_with("stop trial b?"), "{}", controls.key_line(80));
        let change = |change, trial: &str| KeyEffect::Change(change, trial.to_owned());
        assert_eq!(press(&mut controls, "y"), [change(TrialAction::Stop, "b")]);
        assert_eq!(press(&mut controls, "o"), [KeyEffect::Open("b".to_owned())]);
        press(&mut controls, "jjjjjjjR");
        assert_eq!(controls.row, Some(2), "no further than the last");
        assert!(controls.key_line(80).starts_with("rerun trial c?"), "{}", controls.key_line(80));
        assert_eq!(press(&mut controls, "y"), [change(TrialAction::Rerun, "c")]);
        press(&mut controls, "g");
        assert_eq!(controls.row, Some(0));
        press(&mut controls, "G");
        assert_eq!(controls.row, Some(2));
        assert_eq!(press(&mut controls, "xyz q").last(), Some(&KeyEffect::Quit));
        let (mut none, list) = (Controls::default(), List { ids: &[], total: 0 });
        for key in ['K', 'y', 'R', 'y', 'o', 'l', 'w', 'j', 'G'] {
            assert_eq!(none.press(Key::Char(key), list), KeyEffect::Draw, "there is no trial");
        }
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
        assert!(controls.key_line(60).ends_with("only lr < 1"), "{}", controls.key_line(60));
        press(&mut controls, "/q?\u{1b}");
        assert_eq!(controls.query(), wanted, "a cancelled filter has no effect");
        press(&mut controls, "jl");
        let text = |content| Pane::Text { trial: "a".to_owned(), content };
        assert_eq!(controls.pane, text(Content::Stdout));
        press(&mut controls, "e");
        assert_eq!(controls.pane, text(Content::Stderr));
        press(&mut controls, "/oom\n");
        assert_eq!(controls.query(), wanted, "a search in a text filters nothing");
        press(&mut controls, "w");
        assert_eq!(controls.pane, text(Content::Why));
        press(&mut controls, "\u{1b}?");
        assert_eq!(controls.pane, Pane::Help);
        let list = List { ids: &[], total: 0 };
        assert_eq!(controls.press(Key::Interrupt, list), KeyEffect::Quit);
    }

    #[test]
    fn the_selected_trial_stays_visible_and_selected() {
        let ids: Vec<_> = (0..100).map(|at| format!("t{at}")).collect();
        let list = List { ids: &ids, total: 100 };
        let mut controls = Controls::default();
        assert_eq!(controls.scroll(10, 100), 0);
        #[rustfmt::skip]
        let table = [
            (Key::Down, 0, 0), (Key::PageDown, 10, 1), (Key::PageDown, 20, 11), (Key::Up, 19, 11), (Key::PageUp, 9, 9),
            (Key::End, 99, 90), (Key::PageDown, 99, 90), (Key::Home, 0, 0), (Key::PageDown, 10, 1),
        ];
        for (key, row, first) in table {
            controls.press(key, list);
            assert_eq!(controls.scroll(10, 100), first, "{key:?}");
            assert_eq!(controls.row, Some(row), "{key:?}");
        }
        // Two new trials are first in the list.
        let newer: Vec<_> = ["n1".to_owned(), "n2".to_owned()].into_iter().chain(ids).collect();
        controls.follow(List { ids: &newer, total: 102 });
        assert_eq!((controls.row, controls.scroll(10, 102)), (Some(12), 3));
        // The trial has left the list.
        controls.follow(List { ids: &newer[..5], total: 5 });
        assert_eq!((controls.scroll(10, 5), controls.row), (0, Some(4)));
    }

    #[test]
    fn the_help_and_the_last_line_fit_a_narrow_terminal() {
        assert!(HELP_LINES.iter().all(|line| line.chars().count() <= 60));
        let mut controls = Controls::default();
        assert_eq!(controls.key_line(20), "q quits, ? helps");
        assert_eq!(
            controls.key_line(60),
            "q quits, ? helps   Enter output   w why   v view   / filter"
        );
        press(&mut controls, "l");
        assert_eq!(controls.key_line(60), "Escape goes back   PgUp PgDn scroll   / search   w why");
    }
}
