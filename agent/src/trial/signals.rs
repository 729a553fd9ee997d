//! The signals that the agent handles, as one stream.
//!
//! Invariant: a signal that was set to "ignore" when the agent started (`nohup`, a shell's `&`) stays ignored, for the
//! agent and for the trial. TERM is the exception: a supervisor that cannot be stopped is of no use.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The signals to listen to, besides the end of children.
const HANDLED_SIGNALS: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// `SI_KERNEL` of `signalfd_siginfo.ssi_code` (`man 2 sigaction`).
const SI_KERNEL: i32 = 0x80;

/// The stream of signals.
#[derive(Debug)]
pub struct Signals {
    fd: AsyncFd<SignalFd>,
    /// Read and not yet told.
    waiting: VecDeque<ReceivedSignal>,
}

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedSignal {
    /// Some child of the agent has ended.
    Child,
    /// A signal that a process sent.
    Sent(Signal, SignalSource),
}

/// The sender of a signal (`man 2 signalfd`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalSource {
    /// Its process; 0 for one that this container cannot see, such as the container's runtime.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The kernel itself, as for a key that was pressed.
    pub kernel: bool,
}

impl Signals {
    /// Starts to listen; must be called inside the runtime, on the main thread while it is the only one. What was held
    /// back before is heard.
    pub fn listen() -> Result<Self, io::Error> {
        let ignored = std::fs::read_to_string("/proc/self/status")
            .map(|status| ignored(&status))
            .unwrap_or_default();
        let handled = HANDLED_SIGNALS
            .into_iter()
            .filter(|handled| *handled == Signal::SIGTERM || ignored & bit(*handled) == 0);
        let fd = block_signals(handled, SfdFlags::SFD_NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "it trusts any type; this one keeps its descriptor, and needs no `unsafe`"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { fd, waiting: VecDeque::new() })
    }

    /// The next signal, a child's end before others. Several of one kind may arrive as one, as signals do.
    pub async fn next(&mut self) -> ReceivedSignal {
        loop {
            self.read();
            if let Some(caught) = self.waiting.pop_front() {
                return caught;
            }
            match self.fd.readable().await {
                // Nothing was there: the next readiness is news.
                Ok(mut ready) => ready.clear_ready(),
                // The runtime is shutting down.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Waits for a signal that asks the agent to end. May be dropped at any time.
    pub async fn wait_for_stop_signal(&mut self) {
        let asks = |caught| {
            matches!(
                caught,
                ReceivedSignal::Sent(Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP, _)
            )
        };
        while !asks(self.next().await) {}
    }

    fn read(&mut self) {
        while let Ok(Some(found)) = self.fd.get_ref().read_signal() {
            let number = i32::try_from(found.ssi_signo).unwrap_or(0);
            match Signal::try_from(number) {
                Ok(Signal::SIGCHLD) => self.waiting.push_front(ReceivedSignal::Child),
                Ok(signal) => {
                    let kernel = found.ssi_code == SI_KERNEL;
                    let sender = SignalSource { pid: found.ssi_pid, uid: found.ssi_uid, kernel };
                    self.waiting.push_back(ReceivedSignal::Sent(signal, sender));
                }
                Err(_) => {}
            }
        }
    }
}

/// Signals that wait until they are read: none that comes meanwhile is lost, and none ends the agent.
#[derive(Debug)]
pub struct BlockedSignals(SignalFd);

impl BlockedSignals {
    /// Holds back the signals that the agent handles, and lets all others through.
    pub fn begin() -> Result<Self, io::Error> {
        Ok(Self(block_signals(HANDLED_SIGNALS.into_iter(), SfdFlags::empty())?))
    }
}

impl AsFd for BlockedSignals {
    /// Readable when one of them has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks `handled` and the end of children, so that they are read and not delivered. Unblocks all others: the agent's
/// parent may have blocked some, and a blocked TERM is never heard. But for TTOU, with which a terminal stops a
/// background process that writes to it, as the agent does while the trial has the terminal. Threads that are started
/// later have the same mask; a thread that blocked less would be ended by a signal for the agent.
fn block_signals(
    handled: impl Iterator<Item = Signal>,
    flags: SfdFlags,
) -> Result<SignalFd, io::Error> {
    let mut held: SigSet = handled.collect();
    held.add(Signal::SIGCHLD);
    let mut mask = held;
    mask.add(Signal::SIGTTOU);
    mask.thread_set_mask()?;
    Ok(SignalFd::with_flags(&held, flags | SfdFlags::SFD_CLOEXEC)?)
}

/// Lets every signal through, for the trial: one system call, so that a child may make it before its exec.
pub fn unblock_all() {
    // As above.
    SigSet::empty().thread_set_mask().ok();
}

/// The signal's number.
#[expect(clippy::as_conversions, reason = "a field-less enum's discriminant; there is no From")]
pub fn number(signal: Signal) -> i32 {
    signal as i32
}

/// Returns a signal's number as a byte: the kernel's are small.
pub fn byte(signal: Signal) -> u8 {
    u8::try_from(number(signal)).expect("signals are numbered up to 64")
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
