//! The output on a trial's page, with the times of its lines.

use maud::{Markup, html};

use super::super::base::url;
use super::super::display;
use super::super::page::time_zone;
use crate::api::user::{LineTimeView, LogView};

/// Renders a stream of a trial's output, or the end of a long one.
pub(super) fn output_section(id: &str, stream: &str, name: &str, part: &LogView) -> Markup {
    html! {
        details open {
            summary { (name) }
            div.log-head {
                p.hint {
                    @if part.from > 0 { "The first " (part.from) " bytes are not shown. " }
                    a href={ (url("/api/v1/trials/")) (id) "/log/" (stream) } { "Full log" }
                    ", " a href={ (url("/api/v1/trials/")) (id) "/log/" (stream) } download={ (id) "-" (stream) ".txt" } { "download" }
                    label.times { input type="checkbox" data-times=(stream); " times (" (time_zone()) ")" }
                    label.follow hidden { input type="checkbox" checked data-follow=(stream); " follow" }
                }
            }
            pre.log id={ "log-" (stream) } tabindex="0" role="log" aria-label=(name) aria-live="off" { (timed_output(part)) }
        }
    }
}

/// Renders the mark with the time of a line.
fn time_mark(time: &LineTimeView) -> Markup {
    let exact = display::moment(time.observed_at_ms);
    let (day, clock) = exact.split_once(' ').unwrap_or_default();
    html! {
        time.at datetime={ (day) "T" (clock) "Z" } title={ (exact) " UTC" } data-at=(clock) {}
    }
}

/// Renders a part of the output with the times of its lines. The times are not part of the text: searching and
/// copying ignore them.
fn timed_output(part: &LogView) -> Markup {
    let mut lines = part.text.split_inclusive('\n');
    let mut at = 0;
    let mut until = |line: u64| {
        let mut text = String::new();
        while at < line
            && let Some(next) = lines.next()
        {
            text.push_str(next);
            at += 1;
        }
        display::sanitize(&text)
    };
    html! {
        @for time in &part.times {
            (until(time.line))
            (time_mark(time))
        }
        (until(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_has_the_times_of_its_lines() {
        let time = |line, observed_at_ms| LineTimeView { line, observed_at_ms };
        let times = vec![time(0, 0), time(2, 3_600_000), time(9, 7_200_000)];
        let part = LogView { text: "<a>\nb\nc".to_owned(), times, ..LogView::default() };
        let mark = |clock: &str| {
            format!(
                "<time class=\"at\" datetime=\"1970-01-01T{clock}Z\" title=\"1970-01-01 {clock} UTC\" data-at=\"{clock}\"></time>"
            )
        };
        let [first, second, last] = ["00:00:00", "01:00:00", "02:00:00"].map(mark);
        assert_eq!(
            timed_output(&part).into_string(),
            format!("{first}&lt;a&gt;\nb\n{second}c{last}")
        );
    }
}
