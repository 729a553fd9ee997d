//! The signals we hear, as one stream.
//!
//! Invariant: a signal that whoever started us had set to "ignore" (`nohup`, a shell's `&`) stays ignored,
//! for us and for the trial. TERM is the exception: a supervisor that cannot be stopped is of no use.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What we listen to, besides the end of children.
const HEARD: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// Everything we hear.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(Signal, Stream)>,
    children: Stream,
}

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caught {
    /// Some child of ours has ended.
    Child,
    /// Somebody sent this.
    Sent(Signal),
}

impl Signals {
    /// Starts to listen; must be called inside the runtime, and before the trial is started.
    pub fn listen() -> Result<Self, io::Error> {
        let ignored = std::fs::read_to_string("/proc/self/status")
            .map(|status| ignored(&status))
            .unwrap_or_default();
        let children = signal(SignalKind::child())?;
        let mut streams = Vec::with_capacity(HEARD.len());
        for heard in HEARD {
            if heard == Signal::SIGTERM || ignored & bit(heard) == 0 {
                let number: i32 = number(heard);
                streams.push((heard, signal(SignalKind::from_raw(number))?));
            }
        }
        Ok(Self { streams, children })
    }

    /// The next signal. Several of one kind may arrive as one, as signals do.
    pub async fn next(&mut self) -> Caught {
        poll_fn(|context| {
            if self.children.poll_recv(context).is_ready() {
                return Poll::Ready(Caught::Child);
            }
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(Caught::Sent(*signal));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Signals that wait until somebody listens: none that comes meanwhile is lost, and none ends us.
#[derive(Debug)]
pub struct HeldBack(SignalFd);

impl HeldBack {
    /// Holds back what we hear, and lets everything else through, see [`unblock_ours`].
    pub fn begin() -> Result<Self, io::Error> {
        let mut held: SigSet = HEARD.into_iter().collect();
        held.add(Signal::SIGCHLD);
        let mut mask = held;
        mask.add(Signal::SIGTTOU);
        mask.thread_set_mask()?;
        Ok(Self(SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Lets them come, all that did meanwhile too.
    pub fn end(self) {
        unblock_ours();
    }
}

impl AsFd for HeldBack {
    /// Readable when one of them has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets every signal through: whoever started us may have blocked some, and a blocked TERM is never heard. But for
/// TTOU, with which a terminal stops whoever speaks to it from the background, as we do while the trial has it.
/// Threads that are started later have the same mask.
pub fn unblock_ours() {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    // Fails only for an invalid argument, and there is none.
    mask.thread_set_mask().ok();
}

/// Lets every signal through, for the trial: one system call, so that it may be made between fork and exec.
pub fn unblock_all() {
    // As above.
    SigSet::empty().thread_set_mask().ok();
}

/// The signal's number.
#[expect(clippy::as_conversions, reason = "a field-less enum's discriminant; there is no From")]
pub fn number(signal: Signal) -> i32 {
    signal as i32
}

fn bit(signal: Signal) -> u64 {
    1 << (number(signal) - 1)
}

/// PURE: the mask of ignored signals in the text of `/proc/self/status` (bit n-1 is signal n), 0 if unknown.
fn ignored(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ignored_mask_is_read() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored(status), bit(Signal::SIGHUP) | bit(Signal::SIGPIPE));
        for broken in ["", "SigIgn:", "SigIgn:\tzz"] {
            assert_eq!(ignored(broken), 0, "{broken:?}");
        }
    }
}
