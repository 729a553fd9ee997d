//! The content of the screen: the state that is loaded, and its lines.

use std::ops::Range;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::Value;
use trial_protocol::ExperimentId;
use unicode_width::UnicodeWidthChar as _;

use super::controls::{Content, Controls, HELP_LINES, List, Pane};
use super::list::ListedTrial;
use super::{head, list};
use crate::api::client::Client;
use crate::cli::selection::Error;
use crate::cli::terminal::cells::shorten;
use crate::cli::terminal::output::text_style;
use crate::cli::terminal::plain_text::{pluralize, printable};
use crate::cli::terminal::screen::Size;
use crate::cli::terminal::sparkline::MAX_SPARKLINE_CHARS;
use crate::cli::terminal::text_style::TextStyle;
use crate::cli::trial::explanation;
use crate::util::clock::{Clock as _, SystemClock};

/// The maximum number of trials in a response of the API.
const TRIALS_PER_PAGE: usize = 1000;
/// The number of trials that are loaded concurrently.
const MAX_CONCURRENT_LOADS: usize = 4;
/// The number of bytes at the end of a trial's output that are loaded.
const OUTPUT_BYTES: usize = 256 << 10;

/// The content of the screen.
pub(super) struct ScreenContent {
    pub(super) id: ExperimentId,
    /// The experiment as the API describes it.
    experiment: Value,
    /// The first trials of the list, at least up to the visible ones.
    rows: Vec<ListedTrial>,
    /// The ids of `rows`.
    ids: Vec<String>,
    /// The number of trials in the list.
    total: usize,
    /// The rows whose curves and samples are loaded.
    detailed: Range<usize>,
    /// The text about a trial that is shown. Empty if none is.
    text: String,
    /// The source of the text.
    pane: Pane,
    /// `true` if the state may still change.
    pub(super) may_change: bool,
}

impl ScreenContent {
    /// Loads the state for a screen of `rows` rows. `before` is the last state.
    pub(super) async fn load(
        client: &Client,
        controls: &Controls,
        rows: usize,
        before: Option<&Self>,
    ) -> Result<Self, Error> {
        let experiment = client.request_json("GET", "/api/v1/experiment", None).await?;
        let id = experiment.get("id").and_then(Value::as_str).unwrap_or_default();
        let id = ExperimentId::new(id).map_err(Error::InvalidId)?;
        // One more screen, so that a page key needs no wait.
        let detailed = controls.first..controls.first.saturating_add(rows);
        let (trials, total) = trials(client, controls, detailed.end.saturating_add(rows)).await?;
        let ended = experiment.get("ended_at_ms").is_some_and(|at| !at.is_null());
        // An experiment without a manager does not change.
        let left = matches!(client, Client::InProcess(_))
            && experiment.get("trouble").is_some_and(|trouble| !trouble.is_null());
        let may_change = !ended && !left;
        let now_ms = may_change.then(|| SystemClock.now_ms());
        let rows = trials.into_iter().enumerate().map(|(at, trial)| {
            let is_detailed = detailed.contains(&at);
            async move {
                if is_detailed {
                    load_trial(client, trial, now_ms).await
                } else {
                    Ok(ListedTrial::new(trial, &Value::Null, &Value::Null, now_ms))
                }
            }
        });
        let rows: Vec<Result<_, Error>> =
            stream::iter(rows).buffered(MAX_CONCURRENT_LOADS).collect().await;
        let rows = rows.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            id,
            experiment,
            ids: rows.iter().map(ListedTrial::id).collect(),
            rows,
            total,
            detailed,
            text: text(client, controls, before).await?,
            pane: controls.pane.clone(),
            may_change,
        })
    }

    /// Returns the trials of the list.
    pub(super) fn list(&self) -> List<'_> {
        List { ids: &self.ids, total: self.total }
    }

    /// Returns whether a visible row is not loaded in detail.
    pub(super) fn lacks_rows(&self, controls: &Controls) -> bool {
        let end = controls.first.saturating_add(controls.visible).min(self.total);
        controls.first < self.detailed.start || end > self.detailed.end
    }

    /// Returns the whole content, without a limit on the number of lines.
    pub(super) fn text(&self, style: TextStyle) -> String {
        let head = head::head(&self.experiment, style).join("\n");
        let table = list::render(&self.rows[..self.rows.len().min(self.detailed.end)], style);
        let left = self.total.saturating_sub(self.detailed.end);
        let rest = if left > 0 { format!(" … and {left} more\n") } else { String::new() };
        let table = if self.rows.is_empty() { String::new() } else { format!("\n{table}{rest}") };
        format!("{head}\n{table}")
    }

    /// Returns the lines of the screen. If it has too few rows, the least important lines of both parts are left out.
    pub(super) fn frame(
        &self,
        controls: &mut Controls,
        message: Option<&Message>,
        size: Size,
    ) -> Vec<String> {
        let style = TextStyle { width: Some(size.columns), ..text_style() };
        let room = size.rows.saturating_sub(1);
        let mut lines = match controls.pane.clone() {
            Pane::Trials => self.list_lines(controls, style, room),
            Pane::Text { trial, content } => {
                self.text_lines(controls, (&trial, content), style, room)
            }
            Pane::Help => HELP_LINES.into_iter().take(room).map(str::to_owned).collect(),
        };
        let hint = printable(&controls.key_line(size.columns));
        lines.push(match message {
            Some(Message::Unreachable(why)) => {
                format!("q quits, ? helps; trying again: {}", printable(why))
            }
            Some(Message::Note(note)) => printable(note),
            None => shorten(&hint, size.columns),
        });
        lines.iter().map(|line| cut(line, size.columns)).collect()
    }

    /// Returns the lines for the search's numbers and the list of trials.
    fn list_lines(&self, controls: &mut Controls, style: TextStyle, room: usize) -> Vec<String> {
        let head = head::head(&self.experiment, style);
        // An empty line, two lines of heading, and a line for each trial.
        let wanted = if self.total == 0 { 2 } else { self.total.saturating_add(3) };
        // At least four lines: an empty line, two lines of heading, and a trial.
        let below = wanted.min((room / 2).max(4).max(room.saturating_sub(head.len()))).min(room);
        let mut lines: Vec<String> = head.into_iter().take(room - below).collect();
        if below < 2 {
            return lines;
        }
        lines.push(String::new());
        if self.total == 0 {
            lines.push(format!("no trials {}; v shows others", controls.list_words()));
            return lines;
        }
        let trials = below.saturating_sub(3);
        let has_rest = self.total > trials && below > 4;
        let visible = trials - usize::from(has_rest).min(trials);
        let first = controls.scroll(visible, self.total);
        let end = first.saturating_add(visible);
        let shown = self.rows.get(first..end.min(self.rows.len())).unwrap_or_default();
        let table = list::render(shown, style);
        let mut table: Vec<String> = table.lines().take(below - 1).map(str::to_owned).collect();
        if let Some(heading) = table.first_mut().filter(|_| style.colours) {
            *heading = format!("\u{1b}[1m{heading}\u{1b}[0m");
        }
        let selected = controls.row.and_then(|row| row.checked_sub(first));
        if let Some(row) = selected.and_then(|at| table.get_mut(at.saturating_add(2))) {
            let rest: String = row.chars().skip(1).collect();
            *row = if style.colours {
                format!("\u{1b}[7m▸{rest}\u{1b}[0m")
            } else {
                format!("▸{rest}")
            };
        }
        lines.extend(table);
        if has_rest {
            lines.push(rest_line(first, self.total.saturating_sub(end)));
        }
        lines
    }

    /// Returns the lines for a text about a trial.
    fn text_lines(
        &self,
        controls: &mut Controls,
        (trial, content): (&str, Content),
        style: TextStyle,
        room: usize,
    ) -> Vec<String> {
        let text = if self.pane == controls.pane { self.text.as_str() } else { "" };
        let (shown, below) = controls.text.lines(text, room.saturating_sub(1), style);
        let rest = format!(", {} below", pluralize(below, "line"));
        let rest = if below > 0 { rest } else { String::new() };
        let title = format!("{} of trial {trial}{rest}", content.name());
        let title = if style.colours { format!("\u{1b}[1m{title}\u{1b}[0m") } else { title };
        [title].into_iter().chain(shown).take(room).collect()
    }
}

/// A message below the list.
pub(super) enum Message {
    /// The manager cannot be reached, for this reason.
    Unreachable(String),
    /// The effect of a key, until the next key.
    Note(String),
}

impl Message {
    pub(super) fn is_note(&self) -> bool {
        matches!(self, Self::Note(_))
    }
}

/// Returns the line with the numbers of trials above and below the visible ones.
fn rest_line(above: usize, below: usize) -> String {
    match (above, below) {
        (0, below) => format!(" … and {below} more"),
        (above, 0) => format!(" … {above} above"),
        (above, below) => format!(" … {above} above, {below} below"),
    }
}

/// Returns the first `width` columns of a line that may contain colours.
fn cut(line: &str, width: usize) -> String {
    let (mut shown, mut left, mut is_code, mut has_codes) = (String::new(), width, false, false);
    for character in line.chars() {
        if character == '\u{1b}' {
            (is_code, has_codes) = (true, true);
        }
        let columns = if is_code { 0 } else { character.width().unwrap_or(0) };
        is_code &= character != 'm';
        match left.checked_sub(columns) {
            Some(rest) => left = rest,
            None => break,
        }
        shown.push(character);
    }
    if has_codes {
        shown.push_str("\u{1b}[0m");
    }
    shown
}

/// Loads at least the first `wanted` trials of the list, and the number of all its trials.
async fn trials(
    client: &Client,
    controls: &Controls,
    wanted: usize,
) -> Result<(Vec<Value>, usize), Error> {
    let (mut trials, mut total, mut cursor) = (Vec::new(), 0, String::new());
    while trials.len() < wanted {
        let limit = TRIALS_PER_PAGE.min(wanted - trials.len());
        let path = format!("/api/v1/trials?{}&limit={limit}&cursor={cursor}", controls.query());
        let found = client.request_json("GET", &path, None).await?;
        total = found.get("total").and_then(Value::as_u64).unwrap_or(0);
        trials.extend(found.get("trials").and_then(Value::as_array).into_iter().flatten().cloned());
        let Some(next) = found.get("next").and_then(Value::as_str) else { break };
        next.clone_into(&mut cursor);
    }
    Ok((trials, usize::try_from(total).unwrap_or(usize::MAX)))
}

/// Loads the text about a trial, if one is shown. Output that the user scrolls back stays as it is.
async fn text(
    client: &Client,
    controls: &Controls,
    before: Option<&ScreenContent>,
) -> Result<String, Error> {
    let Pane::Text { trial, content } = &controls.pane else { return Ok(String::new()) };
    let same = before.filter(|before| before.pane == controls.pane);
    if let Some(same) = same.filter(|_| !controls.text.is_at_end()) {
        return Ok(same.text.clone());
    }
    let base = format!("/api/v1/trials/{trial}");
    if *content == Content::Why {
        let found = client.request_json("GET", &base, None).await?;
        return Ok(explanation(&found, TextStyle { colours: false, ..text_style() }));
    }
    let path = format!("{base}/log?stream={}&tail={OUTPUT_BYTES}", content.name());
    let part = client.request_json("GET", &path, None).await?;
    Ok(part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned())
}

/// Loads the curve and the latest sample of a listed trial.
async fn load_trial(
    client: &Client,
    trial: Value,
    now_ms: Option<i64>,
) -> Result<ListedTrial, Error> {
    let id = trial.get("id").and_then(Value::as_str).unwrap_or_default();
    let base = format!("/api/v1/trials/{id}");
    let curve = format!("{base}/metrics?type=intermediate&points={MAX_SPARKLINE_CHARS}");
    let curve = client.request_json("GET", &curve, None).await?;
    let samples = client.request_json("GET", &format!("{base}/samples?points=4"), None).await?;
    Ok(ListedTrial::new(trial, &curve, &samples, now_ms))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::list::tests::numbered_trial;
    use super::*;

    fn screen_content(experiment: Value, total: usize) -> ScreenContent {
        let ids: Vec<_> = (0..total).map(|at| format!("t{at}")).collect();
        ScreenContent {
            id: ExperimentId::new("e").unwrap(),
            experiment,
            rows: ids.iter().enumerate().map(|(at, id)| numbered_trial(at, id)).collect(),
            ids,
            total,
            detailed: 0..total,
            text: String::new(),
            pane: Pane::Trials,
            may_change: true,
        }
    }

    fn with_head(head: usize, total: usize) -> ScreenContent {
        let trouble = vec!["x"; head.saturating_sub(2)].join("\n");
        screen_content(json!({"id": "e", "state": "RUNNING", "trouble": trouble}), total)
    }

    #[test]
    fn a_screen_shows_as_much_as_fits() {
        let shown = |content: &ScreenContent, columns, rows| {
            content.frame(&mut Controls::default(), None, Size { columns, rows })
        };
        for (head, running) in [(3, 0), (14, 2), (40, 200)] {
            for rows in 0..60 {
                for columns in [1, 20, 500] {
                    let lines = shown(&with_head(head, running), columns, rows);
                    assert!(lines.len() <= rows.max(1), "{head}, {running}, {rows}: {lines:#?}");
                    assert!(lines.iter().all(|line| line.chars().count() <= columns), "{lines:#?}");
                }
            }
        }
        let all = shown(&with_head(3, 2), 20, 24);
        assert_eq!(all.len(), 3 + 1 + 4 + 1, "{all:#?}");
        assert_eq!((all[0].as_str(), all[8].as_str()), ("e  running", "q quits, ? helps"));
        let few = shown(&with_head(14, 30), 80, 17);
        assert_eq!(few.len(), 17, "{few:#?}");
        assert_eq!(few[7], "x");
        // An empty line, two lines of heading, four trials, and the number of the other trials.
        assert_eq!(few[15], " … and 26 more", "{few:#?}");
        // A high terminal shows more trials.
        let high = shown(&with_head(3, 200), 80, 100);
        assert_eq!(high.len(), 100, "{high:#?}");
        assert_eq!(high[98], " … and 108 more", "{high:#?}");
        let none = shown(&with_head(3, 0), 80, 24);
        assert_eq!(none[4], "no trials that run; v shows others", "{none:#?}");
        let lost = with_head(3, 2).frame(
            &mut Controls::default(),
            Some(&Message::Unreachable("gone\u{1b}".to_owned())),
            Size { columns: 80, rows: 24 },
        );
        assert_eq!(lost[8], "q quits, ? helps; trying again: gone\u{fffd}");
    }

    #[test]
    fn the_selected_trial_is_visible() {
        let content = screen_content(json!({"id": "e", "state": "RUNNING"}), 90);
        let mut controls = Controls::default();
        for at in [0, 7, 89, 40] {
            controls.row = Some(at);
            for rows in [8, 12, 60] {
                let lines = content.frame(&mut controls, None, Size { columns: 60, rows });
                let pointed: Vec<_> = lines.iter().filter(|line| line.contains('▸')).collect();
                let is_it =
                    |line: &String| line.split_whitespace().any(|word| word == format!("t{at}"));
                assert!(pointed.len() == 1 && is_it(pointed[0]), "{at}, {rows}: {lines:#?}");
                assert!(lines.len() <= rows, "{lines:#?}");
            }
        }
        controls.row = Some(50);
        let lines = content.frame(&mut controls, None, Size { columns: 60, rows: 20 });
        assert_eq!(lines[18], " … 38 above, 39 below", "{lines:#?}");
    }

    #[test]
    fn rows_are_loaded_when_they_become_visible() {
        let at = |first, visible| {
            let mut controls = Controls::default();
            (controls.first, controls.visible) = (first, visible);
            controls
        };
        let whole = screen_content(json!({"id": "e", "state": "RUNNING"}), 90);
        let content = ScreenContent { detailed: 10..30, ..whole };
        for (first, visible, expected) in
            [(10, 20, false), (9, 20, true), (11, 20, true), (0, 5, true), (85, 20, true)]
        {
            assert_eq!(content.lacks_rows(&at(first, visible)), expected, "{first}, {visible}");
        }
        let few = ScreenContent { total: 12, ..content };
        assert!(!few.lacks_rows(&at(10, 40)));
    }

    #[test]
    fn the_output_ends_with_the_last_line() {
        let mut controls = Controls::default();
        let pane = Pane::Text { trial: "t3".to_owned(), content: Content::Stdout };
        controls.pane = pane.clone();
        let text = "one\n".repeat(99) + "last\t\u{1b}";
        let content = ScreenContent { text, pane, ..screen_content(json!({"id": "e"}), 9) };
        let lines = content.frame(&mut controls, None, Size { columns: 3, rows: 6 });
        assert_eq!(lines[1..5], ["one", "one", "las", "t \u{fffd}"], "{lines:#?}");
        controls.text.press(crate::cli::terminal::screen::Key::Up);
        let lines = content.frame(&mut controls, None, Size { columns: 60, rows: 6 });
        assert_eq!(lines[0], "stdout of trial t3, 1 line below");
    }
}
