//! The signals that request the end of the program.
//!
//! Invariant: a signal that was set to "ignore" when the program started (`nohup`, a shell's `&`) stays ignored. TERM
//! is the exception, so that the program can always be stopped.

use std::future::pending;
use std::io;
use std::time::Duration;

use nix::libc::SIGXFSZ;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// The time in which further signals repeat the first one. GNU `timeout` signals the process and then its process
/// group, and a wrapper passes on a signal that the terminal sends to both. A second Ctrl-C of a user comes later.
const REPEAT_INTERVAL: Duration = Duration::from_millis(50);

/// A signal that requests the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum EndSignal {
    /// TERM, usually from a service manager or a cluster.
    Terminate,
    /// INT or HUP, usually from a terminal.
    Interrupt,
}

/// A receiver of TERM, and of INT and HUP unless they are ignored.
pub(in crate::cli) struct Signals {
    terminate: Signal,
    interrupt: Option<Signal>,
    hang_up: Option<Signal>,
    /// The time of the last signal that was not a repetition.
    last: Option<Instant>,
}

impl Signals {
    /// Starts to listen for the signals.
    pub(in crate::cli) fn new() -> io::Result<Self> {
        let ignored = std::fs::read_to_string("/proc/self/status")
            .map(|status| ignored_mask(&status))
            .unwrap_or_default();
        let unless_ignored =
            |kind| if is_in(ignored, kind) { Ok(None) } else { signal(kind).map(Some) };
        // With a handler, a write beyond the limit of a file's size fails like one to a full disk. Without it, the
        // signal would end the manager. Programs that the manager starts do not inherit the handler.
        drop(signal(SignalKind::from_raw(SIGXFSZ))?);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: unless_ignored(SignalKind::interrupt())?,
            hang_up: unless_ignored(SignalKind::hangup())?,
            last: None,
        })
    }

    /// Waits for the next signal that does not only repeat the previous one.
    pub(in crate::cli) async fn next(&mut self) -> EndSignal {
        loop {
            let signal = tokio::select! {
                _ = self.terminate.recv() => EndSignal::Terminate,
                () = receive_if_some(&mut self.interrupt) => EndSignal::Interrupt,
                () = receive_if_some(&mut self.hang_up) => EndSignal::Interrupt,
            };
            let now = Instant::now();
            if !is_repetition(self.last, now) {
                self.last = Some(now);
                return signal;
            }
        }
    }
}

/// PURE: returns whether a signal only repeats the `last` one that counted. Repetitions do not extend the interval, so
/// a user who keeps pressing Ctrl-C is heard.
fn is_repetition(last: Option<Instant>, now: Instant) -> bool {
    last.is_some_and(|last| now.saturating_duration_since(last) <= REPEAT_INTERVAL)
}

async fn receive_if_some(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

/// PURE: returns the mask of ignored signals in the text of `/proc/self/status` (bit n-1 is signal n), or 0 if unknown.
fn ignored_mask(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn is_in(mask: u64, kind: SignalKind) -> bool {
    let bit = u32::try_from(kind.as_raw_value() - 1).unwrap_or(u32::MAX);
    mask.checked_shr(bit).is_some_and(|rest| rest & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_at_the_same_time_count_as_one() {
        #[rustfmt::skip]
        let table: [(&str, &[u64], &[u64]); 4] = [
            ("GNU timeout signals the process and its group", &[0, 0],          &[0]),
            ("wrappers are slower",                           &[0, 5, 30],      &[0]),
            ("a user presses Ctrl-C twice",                   &[0, 150],        &[0, 150]),
            ("a program repeats it very often",               &[0, 20, 40, 60], &[0, 60]),
        ];
        let began = Instant::now();
        for (case, times, expected) in table {
            let mut last = None;
            let mut counted = Vec::new();
            for ms in times {
                let now = began + Duration::from_millis(*ms);
                if !is_repetition(last, now) {
                    last = Some(now);
                    counted.push(*ms);
                }
            }
            assert_eq!(counted, expected, "{case}");
        }
    }

    #[test]
    fn the_ignored_mask_is_read() {
        // With `nohup`; below, with a shell's `&`.
        let nohup =
            ignored_mask("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n");
        assert!(is_in(nohup, SignalKind::hangup()) && !is_in(nohup, SignalKind::interrupt()));
        let background = ignored_mask("SigIgn:\t0000000000000006\n");
        assert!(is_in(background, SignalKind::interrupt()));
        assert!(!is_in(background, SignalKind::hangup()));
        for broken in ["", "SigIgn:", "SigIgn:\tzz"] {
            assert_eq!(ignored_mask(broken), 0, "{broken:?}");
        }
    }
}
