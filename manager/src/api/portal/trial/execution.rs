//! The execution of a trial: its command, the events and attempts, and the files that it left.

use maud::{Markup, html};
use trial_protocol::TrialJobId;

use super::super::super::user::files as trial_files;
use super::super::super::{Shared, percent};
use super::super::base::url;
use super::super::display;
use super::super::page::{exact_time, time_zone};
use crate::job_state::JobState;
use crate::util::shell::command_line;
use crate::view::TrialDetail;

pub(super) fn command(detail: &TrialDetail) -> Markup {
    html! {
        h2 { "Command" }
        @if let Some(command) = &detail.command {
            pre.file tabindex="0" { (display::sanitize(&command_line(command))) }
            @if let Some(version) = &detail.agent_version { p.hint { "Started by trialkeeper " (display::sanitize(version)) } }
        } @else {
            p.hint { "The command has not been started." }
        }
    }
}

pub(super) fn timeline(detail: &TrialDetail) -> Markup {
    html! {
        h2 { "Timeline" }
        div.scroll tabindex="0" role="region" aria-label="Timeline" {
            table.cards {
                thead { tr { th scope="col" { "Time (" (time_zone()) ")" } th scope="col" { "Source" } th scope="col" { "Event" } th scope="col" { "Reason" } th scope="col" { "Attempt" } } }
                tbody {
                    @for entry in &detail.timeline {
                        tr {
                            td { (exact_time(entry.at_ms)) }
                            td { (entry.by) }
                            td { (event_words(&entry.what)) }
                            td.why { (entry.message.as_deref().map(display::sanitize).unwrap_or_default()) }
                            td data-label="attempt" { code { (entry.attempt) } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns an event of the timeline in words. The manager names the states of trials as the API does.
fn event_words(what: &str) -> String {
    let state = what.parse::<JobState>();
    state.map_or_else(|_| display::sanitize(what), |state| display::state(state).to_owned())
}

/// Renders the attempts, if there are several: the rest of the page describes a single one.
pub(super) fn attempts(detail: &TrialDetail) -> Markup {
    if detail.attempts.len() < 2 {
        return Markup::default();
    }
    html! {
        h2 { "Attempts" }
        div.scroll tabindex="0" role="region" aria-label="Attempts" {
        table.cards {
            thead { tr { th scope="col" { "Attempt" } th scope="col" { "Last report (" (time_zone()) ")" } th scope="col" { "Ended" } } }
            tbody {
                @for attempt in &detail.attempts {
                    tr {
                        td { code { (attempt.attempt) } }
                        td { (exact_time(attempt.last_heard_ms)) }
                        td { @if attempt.ended { "yes" } @else { "no" } }
                    }
                }
            }
        }
        }
    }
}

/// Renders the files that a trial left on the manager's machine, if any.
pub(super) async fn files(shared: &Shared, id: &TrialJobId) -> Markup {
    let Some(found) = trial_files(shared, id).await.ok().filter(|found| !found.files.is_empty())
    else {
        return Markup::default();
    };
    let address =
        |name: &str| url(&format!("/api/v1/trials/{id}/file?name={}", percent::encode(name)));
    html! {
        h2 { "Files" }
        p.hint { "In " code { (display::sanitize(&found.folder)) } @if found.cut { "; the list is incomplete" } }
        div.scroll tabindex="0" role="region" aria-label="Files" {
            table.cards {
                thead { tr { th scope="col" { "File" } th.number scope="col" { "Bytes" } th scope="col" { "Changed (" (time_zone()) ")" } } }
                tbody {
                    @for file in &found.files {
                        tr {
                            td { a href=(address(&file.name)) download { (display::sanitize(&file.name)) } }
                            td.number { (file.bytes) }
                            td { (exact_time(file.modified_ms)) }
                        }
                    }
                }
            }
        }
    }
}
