//! The agent's own messages: one recognisable line each, never on stdout.
//!
//! A small subscriber. `tracing-subscriber` would add 200 KB to a program that is part of every image, for spans and
//! filters that are not used here.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::libc::PIPE_BUF;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use trial_protocol::LogLevel;

use crate::util::clock::Clock;

/// Starts to print messages. With `verbose` of two or more, the agent's actions are printed, too; otherwise only
/// warnings.
///
/// If the log file cannot be opened, messages go to stderr, with a warning.
pub fn start(file: Option<&Path>, verbose: u8, clock: Arc<dyn Clock>) {
    let mut options = OpenOptions::new();
    // The trial must not wait for the reader of a pipe. Text that does not fit into the pipe is dropped.
    options.create(true).append(true).custom_flags(nix::libc::O_NONBLOCK);
    let opened = file.map(|path| (path, options.open(path)));
    let (file, trouble) = match opened {
        None => (None, None),
        Some((_, Ok(file))) => (Some(file), None),
        Some((path, Err(source))) => (None, Some((path, source))),
    };
    set_level(if verbose >= 2 { LogLevel::Info } else { LogLevel::Warn });
    // Ignored: the subscriber can be set only once, and a second start in one process (a test) keeps the first.
    tracing::subscriber::set_global_default(LineSubscriber { file, clock }).ok();
    if let Some((path, source)) = trouble {
        tracing::warn!("cannot open the log file {}: {source}", path.display());
    }
}

/// The maximum time to wait for the reader of the agent's messages.
pub const PRINT_WAIT: Duration = Duration::from_millis(20);

/// `true` if the reader of stderr did not read at the last attempt.
static STDERR_STALLED: AtomicBool = AtomicBool::new(false);

/// Writes to stderr as far as its reader reads, because a stalled reader must not delay the supervision of the trial.
/// Text that was not read within `max_wait` is dropped. The agent waits for a stalled reader only once, until it reads
/// again. A closed stderr is ignored.
pub fn print(text: &str, max_wait: Duration) {
    let stderr = io::stderr();
    let max_wait = if STDERR_STALLED.load(Ordering::Relaxed) { Duration::ZERO } else { max_wait };
    let until = Instant::now() + max_wait;
    for part in text.as_bytes().chunks(PIPE_BUF) {
        let left = until.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
        let stalled = poll(&mut fds, left) == Ok(0);
        STDERR_STALLED.store(stalled, Ordering::Relaxed);
        if stalled || (&stderr).write_all(part).is_err() {
            return;
        }
    }
}

/// The level from which messages are printed, in the encoding of [`level_number`]. The manager may change it.
static LOG_LEVEL: AtomicU8 = AtomicU8::new(2);

fn level_number(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// Prints messages from this level on. Returns `false` for a level that this build does not support.
pub fn set_level(level: LogLevel) -> bool {
    let level = match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Other => return false,
    };
    LOG_LEVEL.store(level_number(level), Ordering::Relaxed);
    // Makes call sites that ran before there was a subscriber check again.
    tracing::callsite::rebuild_interest_cache();
    true
}

/// Writes one line per event.
struct LineSubscriber {
    file: Option<File>,
    clock: Arc<dyn Clock>,
}

impl Subscriber for LineSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        level_number(*metadata.level()) <= LOG_LEVEL.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText(String::new());
        event.record(&mut text);
        let word = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        // A single write, so that lines of several threads do not mix. A failure cannot be reported.
        match &self.file {
            Some(file) => {
                let now = self.clock.now_ms();
                let (seconds, millis) = (now.div_euclid(1000), now.rem_euclid(1000));
                let line = format!("{seconds}.{millis:03} {word}{}\n", text.0);
                let mut file: &File = file;
                file.write_all(line.as_bytes()).ok();
            }
            None => {
                let line = format!("trialkeeper: {word}{}\n", text.0);
                print(&line, PRINT_WAIT);
            }
        }
    }

    // The agent does not use spans, and those of libraries are not printed.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The message, followed by the fields as `name=value`.
struct EventText(String);

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => {
                let rest = std::mem::take(&mut self.0);
                write!(self.0, "{value:?}{rest}")
            }
            name => write!(self.0, " {name}={value:?}"),
        };
        written.expect("writing to a String cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::clock::SystemClock;

    #[test]
    fn a_line_has_the_message_first_and_its_fields() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = Some(File::create(&path).unwrap());
        let lines = LineSubscriber { file, clock: Arc::new(SystemClock) };
        tracing::subscriber::with_default(lines, || {
            tracing::warn!(pid = 7, name = "x", "it {}", "broke");
            let info = |what: &str| tracing::info!("{what}");
            info("not shown");
            assert!(set_level(LogLevel::Info));
            info("shown");
            assert!(!set_level(LogLevel::Other));
            assert!(set_level(LogLevel::Warn));
            info("not shown any more");
        });
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<_> =
            text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect();
        assert_eq!(lines, ["warning: it broke pid=7 name=x", "shown"]);
    }
}
