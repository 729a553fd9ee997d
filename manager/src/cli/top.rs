//! `top`: shows a running search on a terminal: its numbers, and the running trials with their curves, memory and GPUs.
//! It redraws the screen every second. Without a terminal, it prints the content once.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::Value;
use trial_protocol::ExperimentId;
use unicode_width::UnicodeWidthChar as _;

use super::ask::{Error, ExperimentArgs};
use super::out::{text_style, write_stdout};
use super::progress::printable;
use super::screen::{Screen, ScreenAction, Size};
use super::signals::Signals;
use super::spark::CURVE;
use super::table::columns::TextStyle;
use super::table::shorten;
use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, print_error};
use crate::api::client::{self, Client};
use crate::util::clock::{Clock as _, SystemClock};
use crate::util::errors::chain;

mod controls;
mod head;
mod list;

use controls::{Controls, HELP, KeyEffect, Pane};
use list::ListedTrial;

/// The time between two updates of the screen.
const DRAW_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of trials in the list.
const ROWS: usize = 20;
/// The number of trials that are loaded concurrently.
const AT_ONCE: usize = 4;
/// The number of bytes at the end of a trial's output that are loaded.
const OUTPUT: usize = 32 << 10;
/// The width of a terminal that does not report its size, in columns.
const USUAL_WIDTH: usize = 80;

/// Shows the search until it ends, the user presses q, or a signal arrives. Returns the exit code.
pub(super) async fn top(place: &ExperimentArgs) -> u8 {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            print_error(&error);
            return NOTHING_SUCCEEDED;
        }
    };
    let watched = tokio::select! {
        watched = watch(place) => watched,
        _ = signals.next() => Ok(()),
    };
    match watched {
        Ok(()) => DONE,
        Err(error) => {
            print_error(&error);
            if error.is_usage() { BAD_INPUT } else { NOTHING_SUCCEEDED }
        }
    }
}

async fn watch(place: &ExperimentArgs) -> Result<(), Error> {
    let mut client = place.client().await?;
    let mut controls = Controls::default();
    let mut drawing = Drawing::load(&client, &controls).await?;
    let Some(mut screen) = Screen::take().map_err(Error::Output)? else {
        return write_stdout(drawing.text(TextStyle::default()).as_bytes());
    };
    // The default experiment may be another one after this experiment has ended.
    let mut place = place.clone();
    if place.manager.is_none() {
        place.experiment = Some(drawing.id.clone());
    }
    let mut lost = None;
    // The time until the next update. A key may set it to 0.
    let mut pause = DRAW_INTERVAL;
    let quit = loop {
        let frame = drawing.frame(&controls, lost.as_deref(), screen.size());
        screen.draw(&frame).map_err(Error::Output)?;
        if !drawing.may_change {
            break false;
        }
        let next = async {
            tokio::time::sleep(pause).await;
            update(&place, &mut client, &controls).await
        };
        let act = tokio::select! {
            next = next => {
                pause = DRAW_INTERVAL;
                match next {
                    Ok(next) => (drawing, lost) = (next, None),
                    Err(error) => lost = Some(chain(&error)),
                }
                continue;
            }
            act = screen.act() => act,
        };
        let ScreenAction::Pressed(key) = act else { continue };
        match controls.press(key, &drawing.ids()) {
            KeyEffect::Quit => break true,
            KeyEffect::Draw => {}
            KeyEffect::Reload => pause = Duration::ZERO,
            KeyEffect::Stop(trial) => {
                lost = stop(&client, &trial).await.err().as_ref().map(|error| chain(error));
            }
        }
    };
    drop(screen);
    // After the end of the search, the last state stays on the terminal.
    if quit { Ok(()) } else { write_stdout(drawing.text(text_style()).as_bytes()) }
}

/// Requests the stop of a trial.
async fn stop(client: &Client, trial: &str) -> Result<(), client::Error> {
    client.ask("POST", &format!("/api/v1/trials/{trial}/kill"), None).await.map(drop)
}

/// Loads the current state. If the manager cannot be reached, selects a new source: the manager may have ended, or
/// restarted with another address.
async fn update(
    place: &ExperimentArgs,
    client: &mut Client,
    controls: &Controls,
) -> Result<Drawing, Error> {
    match Drawing::load(client, controls).await {
        Err(Error::Client(client::Error::Unreachable { .. })) => {
            *client = place.client().await?;
            Drawing::load(client, controls).await
        }
        updated => updated,
    }
}

/// The content of the screen.
struct Drawing {
    id: ExperimentId,
    /// The experiment as the API describes it.
    experiment: Value,
    /// The first trials of the list, at most [`ROWS`].
    rows: Vec<ListedTrial>,
    /// The number of trials in the list.
    running: usize,
    /// The end of the output of the selected trial. Empty if its output is not shown.
    output: String,
    /// `true` if the state may still change.
    may_change: bool,
}

impl Drawing {
    async fn load(client: &Client, controls: &Controls) -> Result<Self, Error> {
        let experiment = client.ask("GET", "/api/v1/experiment", None).await?;
        let id = experiment.get("id").and_then(Value::as_str).unwrap_or_default();
        let id = ExperimentId::new(id).map_err(Error::Named)?;
        let path = format!("/api/v1/trials?{}&limit={ROWS}", controls.query());
        let found = client.ask("GET", &path, None).await?;
        let total = found.get("total").and_then(Value::as_u64).unwrap_or(0);
        let trials = found.get("trials").and_then(Value::as_array).cloned().unwrap_or_default();
        let ended = experiment.get("ended_at_ms").is_some_and(|at| !at.is_null());
        // An experiment without a manager does not change.
        let left = matches!(client, Client::Near(_))
            && experiment.get("trouble").is_some_and(|trouble| !trouble.is_null());
        let may_change = !ended && !left;
        let now_ms = may_change.then(|| SystemClock.now_ms());
        let rows = stream::iter(trials).map(|trial| load_trial(client, trial, now_ms));
        let rows: Vec<Result<_, Error>> = rows.buffered(AT_ONCE).collect().await;
        Ok(Self {
            id,
            experiment,
            rows: rows.into_iter().collect::<Result<_, _>>()?,
            running: usize::try_from(total).unwrap_or(usize::MAX),
            output: output(client, &controls.pane).await?,
            may_change,
        })
    }

    /// Returns the ids of the trials, in the order of the list.
    fn ids(&self) -> Vec<String> {
        self.rows.iter().map(ListedTrial::id).collect()
    }

    /// Returns the whole content, without a limit on the number of lines.
    fn text(&self, style: TextStyle) -> String {
        let head = head::head(&self.experiment, style).join("\n");
        let table = self.table(style).map(|table| format!("\n{table}")).unwrap_or_default();
        format!("{head}\n{table}")
    }

    /// Returns the table of trials, or `None` if there are no trials.
    fn table(&self, style: TextStyle) -> Option<String> {
        (!self.rows.is_empty()).then(|| list::render(&self.rows, style))
    }

    /// Returns the lines of the screen. If it has too few rows, the least important lines of both parts are left out.
    /// `lost` is the error of the last update, if it failed.
    fn frame(&self, controls: &Controls, lost: Option<&str>, size: Size) -> Vec<String> {
        let style = TextStyle { width: Some(size.columns), ..text_style() };
        let room = size.rows.saturating_sub(1);
        let mut lines = match &controls.pane {
            Pane::Trials => self.list(controls, style, room),
            Pane::Output { trial, stream } => self.tail(trial, stream, style, room),
            Pane::Help => HELP.into_iter().take(room).map(str::to_owned).collect(),
        };
        let hint = controls.hint();
        lines.push(match lost {
            Some(why) => format!("{hint}; trying again: {}", printable(why)),
            None => shorten(&printable(&hint), size.columns),
        });
        lines.iter().map(|line| cut(line, size.columns)).collect()
    }

    /// Returns the lines for the search's numbers and the list of trials.
    fn list(&self, controls: &Controls, style: TextStyle, room: usize) -> Vec<String> {
        let table = self.table(style).unwrap_or_default();
        let mut table: Vec<String> = table.lines().map(str::to_owned).collect();
        if let Some(heading) = table.first_mut().filter(|_| style.colours) {
            *heading = format!("\u{1b}[1m{heading}\u{1b}[0m");
        }
        if let Some(row) = controls.row.and_then(|row| table.get_mut(row.saturating_add(2))) {
            let rest: String = row.chars().skip(1).collect();
            *row = if style.colours {
                format!("\u{1b}[7m▸{rest}\u{1b}[0m")
            } else {
                format!("▸{rest}")
            };
        }
        let wanted = if table.is_empty() { 0 } else { table.len() + 1 };
        let head = head::head(&self.experiment, style);
        // At least four lines: an empty line, two lines of heading, and a trial.
        let below = wanted.min((room / 2).max(4).max(room.saturating_sub(head.len()))).min(room);
        let mut lines: Vec<String> = head.into_iter().take(room - below).collect();
        if below > 1 {
            let trials = (below - 1).saturating_sub(2);
            let has_rest = self.running > trials && below > 4;
            let room = trials - usize::from(has_rest).min(trials);
            // The list scrolls, so that the selected trial is visible.
            let first = controls.row.map_or(0, |row| row.saturating_sub(room.saturating_sub(1)));
            lines.push(String::new());
            lines.extend(table.iter().take((below - 1).min(2)).cloned());
            lines.extend(table.iter().skip(2 + first).take(room).cloned());
            let left = self.running.saturating_sub(first + room);
            if left > 0 && has_rest {
                lines.push(format!(" … and {left} more"));
            }
        }
        lines
    }

    /// Returns the last lines of a trial's output.
    fn tail(&self, trial: &str, stream: &str, style: TextStyle, room: usize) -> Vec<String> {
        let width = style.width.unwrap_or(USUAL_WIDTH).max(1);
        let wrapped = self.output.lines().flat_map(|line| pieces(&printable(line), width));
        let wrapped: Vec<String> = wrapped.collect();
        let from = wrapped.len().saturating_sub(room.saturating_sub(1));
        let title =
            format!("{stream} of trial {trial}; Escape goes back, e shows the other stream");
        [title].into_iter().chain(wrapped.into_iter().skip(from)).take(room).collect()
    }
}

/// Splits a line into pieces of at most `width` characters.
fn pieces(line: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = line.chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
    if letters.is_empty() {
        return vec![String::new()];
    }
    letters.chunks(width).map(|piece| piece.iter().collect()).collect()
}

/// Loads the end of the output of the selected trial, if its output is shown.
async fn output(client: &Client, pane: &Pane) -> Result<String, Error> {
    let Pane::Output { trial, stream } = pane else { return Ok(String::new()) };
    let path = format!("/api/v1/trials/{trial}/log?stream={stream}&tail={OUTPUT}");
    let part = client.ask("GET", &path, None).await?;
    Ok(part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned())
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

/// Loads the curve and the latest sample of a listed trial.
async fn load_trial(
    client: &Client,
    trial: Value,
    now_ms: Option<i64>,
) -> Result<ListedTrial, Error> {
    let id = trial.get("id").and_then(Value::as_str).unwrap_or_default();
    let base = format!("/api/v1/trials/{id}");
    let curve = format!("{base}/metrics?type=intermediate&points={CURVE}");
    let curve = client.ask("GET", &curve, None).await?;
    let samples = client.ask("GET", &format!("{base}/samples?points=4"), None).await?;
    Ok(ListedTrial::new(trial, &curve, &samples, now_ms))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::list::tests::plain;
    use super::*;

    #[test]
    fn a_screen_shows_as_much_as_fits() {
        let drawing = |head: usize, running: usize| Drawing {
            id: ExperimentId::new("e").unwrap(),
            experiment: json!({
                "id": "e", "state": "RUNNING", "trouble": vec!["x"; head.saturating_sub(2)].join("\n"),
            }),
            rows: (0..running.min(ROWS)).map(|at| plain(at, &at.to_string())).collect(),
            running,
            output: "one\n".repeat(99) + "last\t\u{1b}",
            may_change: true,
        };
        let shown = |drawing: &Drawing, columns, rows| {
            drawing.frame(&Controls::default(), None, Size { columns, rows })
        };
        for (head, running) in [(3, 0), (14, 2), (40, 200)] {
            for rows in 0..60 {
                for columns in [1, 20, 500] {
                    let lines = shown(&drawing(head, running), columns, rows);
                    assert!(lines.len() <= rows.max(1), "{head}, {running}, {rows}: {lines:#?}");
                    assert!(lines.iter().all(|line| line.chars().count() <= columns), "{lines:#?}");
                }
            }
        }
        let all = shown(&drawing(3, 2), 80, 24);
        assert_eq!(all.len(), 3 + 1 + 4 + 1, "{all:#?}");
        assert_eq!((all[0].as_str(), all[8].as_str()), ("e  running", "q quits, ? helps"));
        let few = shown(&drawing(14, 30), 80, 17);
        assert_eq!(few.len(), 17, "{few:#?}");
        assert_eq!(few[7], "x");
        // An empty line, two lines of heading, four trials, and the number of the other trials.
        assert_eq!(few[15], " … and 26 more", "{few:#?}");
        let lost = drawing(3, 2).frame(
            &Controls::default(),
            Some("gone\u{1b}"),
            Size { columns: 80, rows: 24 },
        );
        assert_eq!(lost[8], "q quits, ? helps; trying again: gone\u{fffd}");
    }

    #[test]
    fn the_selected_trial_is_visible_and_its_output_ends_with_the_last_line() {
        let row = |at: usize| plain(at, &format!("t{at}"));
        let drawing = Drawing {
            id: ExperimentId::new("e").unwrap(),
            experiment: json!({"id": "e", "state": "RUNNING"}),
            rows: (0..ROWS).map(row).collect(),
            running: 30,
            output: "one\n".repeat(99) + "last\t\u{1b}",
            may_change: true,
        };
        let mut controls = Controls::default();
        for at in [0, 7, ROWS - 1] {
            controls.row = Some(at);
            for rows in [8, 12, 60] {
                let lines = drawing.frame(&controls, None, Size { columns: 60, rows });
                let pointed: Vec<_> = lines.iter().filter(|line| line.contains('▸')).collect();
                let is_it =
                    |line: &String| line.split_whitespace().any(|word| word == format!("t{at}"));
                assert!(pointed.len() == 1 && is_it(pointed[0]), "{at}, {rows}: {lines:#?}");
                assert!(lines.len() <= rows, "{lines:#?}");
            }
        }
        controls.pane = Pane::Output { trial: "t3".to_owned(), stream: "stdout" };
        let lines = drawing.frame(&controls, None, Size { columns: 3, rows: 6 });
        assert_eq!(lines[1..5], ["one", "one", "las", "t \u{fffd}"], "{lines:#?}");
    }
}
