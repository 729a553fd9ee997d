//! `top`: shows a running search on a terminal: its numbers, and the running trials with their curves, memory and GPUs.
//! It redraws the screen every second. Without a terminal, it prints the content once.

mod controls;
mod head;
mod list;
mod screen_content;
mod text;

use std::time::Duration;

use trial_protocol::ExperimentId;

use self::controls::{Controls, KeyEffect, TrialAction};
use self::screen_content::{Message, ScreenContent};
use super::open::start_browser_at;
use super::selection::{Error, ExperimentArgs};
use super::terminal::output::{text_style, write_stdout};
use super::terminal::screen::{Screen, ScreenAction};
use super::terminal::signals::Signals;
use super::terminal::text_style::TextStyle;
use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, print_error};
use crate::api::client::{self, Client};
use crate::util::errors::error_chain;

/// The time between two updates of the screen.
const DRAW_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of trials that are printed without a terminal.
const MAX_PRINTED_TRIALS: usize = 100;
/// The width of a terminal that does not report its size, in columns.
const DEFAULT_WIDTH: usize = 80;

/// Shows the search until it ends, the user presses q, or a signal arrives. Returns the exit code.
pub(super) async fn top(experiment_args: &ExperimentArgs) -> u8 {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            print_error(&error);
            return EXIT_FAILED;
        }
    };
    let watched = tokio::select! {
        watched = watch(experiment_args) => watched,
        _ = signals.next() => Ok(()),
    };
    match watched {
        Ok(()) => EXIT_DONE,
        Err(error) => {
            print_error(&error);
            if error.is_usage() { EXIT_BAD_INPUT } else { EXIT_FAILED }
        }
    }
}

async fn watch(experiment_args: &ExperimentArgs) -> Result<(), Error> {
    let mut client = experiment_args.client().await?;
    let mut controls = Controls::default();
    let Some(mut screen) = Screen::acquire().map_err(Error::Output)? else {
        let content = ScreenContent::load(&client, &controls, MAX_PRINTED_TRIALS, None).await?;
        return write_stdout(content.text(TextStyle::default()).as_bytes());
    };
    let mut content = ScreenContent::load(&client, &controls, screen.size().rows, None).await?;
    let experiment_args = select_experiment(experiment_args, &content.id);
    // The message below the list: the error of the last update, or the effect of a key.
    let mut message = None;
    // The time until the next update. A key may set it to 0.
    let mut pause = DRAW_INTERVAL;
    let quit = loop {
        let size = screen.size();
        let frame = content.frame(&mut controls, message.as_ref(), size);
        screen.draw(&frame).map_err(Error::Output)?;
        if !content.may_change {
            break false;
        }
        if content.lacks_rows(&controls) {
            pause = Duration::ZERO;
        }
        let next = async {
            tokio::time::sleep(pause).await;
            update(&experiment_args, &mut client, &controls, size.rows, &content).await
        };
        let action = tokio::select! {
            next = next => {
                pause = DRAW_INTERVAL;
                message = match next {
                    Ok(next) => {
                        content = next;
                        controls.follow(content.list());
                        message.filter(Message::is_note)
                    }
                    Err(error) => Some(Message::Unreachable(error_chain(&error))),
                };
                continue;
            }
            action = screen.next_action() => action,
        };
        let ScreenAction::Pressed(key) = action else { continue };
        message = message.filter(|message| !message.is_note());
        match controls.press(key, content.list()) {
            KeyEffect::Quit => break true,
            KeyEffect::Draw => {}
            KeyEffect::Reload => pause = Duration::ZERO,
            KeyEffect::Change(change, trial) => {
                message = Some(Message::Note(request(&client, change, &trial).await));
                pause = Duration::ZERO;
            }
            KeyEffect::Open(trial) => {
                message = Some(Message::Note(open_page(&experiment_args, &trial).await));
            }
        }
    };
    drop(screen);
    // After the end of the search, the last state stays on the terminal.
    if quit { Ok(()) } else { write_stdout(content.text(text_style()).as_bytes()) }
}

/// Returns the options that select this experiment. The default experiment may be another one after this one has
/// ended.
fn select_experiment(experiment_args: &ExperimentArgs, id: &ExperimentId) -> ExperimentArgs {
    let mut experiment_args = experiment_args.clone();
    if experiment_args.manager.is_none() {
        experiment_args.experiment = Some(id.clone());
    }
    experiment_args
}

/// Requests a change of a trial, and returns its effect in words.
async fn request(client: &Client, change: TrialAction, trial: &str) -> String {
    let (verb, effect) = match change {
        TrialAction::Stop => ("stop", "is being stopped"),
        TrialAction::Rerun => ("rerun", "will be rerun"),
    };
    match client.request_json("POST", &format!("/api/v1/trials/{trial}/{verb}"), None).await {
        Ok(_) => format!("trial {trial} {effect}"),
        Err(error) => error_chain(&error),
    }
}

/// Opens the page of a trial if the machine has a browser and a screen, and returns its address.
async fn open_page(experiment_args: &ExperimentArgs, trial: &str) -> String {
    match experiment_args.portal().await {
        Ok((_, url)) => {
            let page = format!("{url}/trials/{trial}");
            start_browser_at(&page);
            page
        }
        Err(error) => error_chain(&error),
    }
}

/// Loads the current state. If the manager cannot be reached, selects a new source: the manager may have ended, or
/// restarted with another address.
async fn update(
    experiment_args: &ExperimentArgs,
    client: &mut Client,
    controls: &Controls,
    rows: usize,
    before: &ScreenContent,
) -> Result<ScreenContent, Error> {
    match ScreenContent::load(client, controls, rows, Some(before)).await {
        Err(Error::Client(client::Error::Unreachable { .. })) => {
            *client = experiment_args.client().await?;
            ScreenContent::load(client, controls, rows, Some(before)).await
        }
        updated => updated,
    }
}
