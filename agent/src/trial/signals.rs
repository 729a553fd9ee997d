//! The signals that the agent handles, as one stream.
//!
//! Invariant: a signal that was ignored when the agent started (`nohup`, a shell's `&`) stays ignored, for the agent
//! and for the trial. SIGTERM is the exception: the agent must always be stoppable.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The handled signals, besides SIGCHLD.
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
    /// Signals that were read and not yet returned.
    waiting: VecDeque<ReceivedSignal>,
}

/// A received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedSignal {
    /// A child of the agent has ended.
    Child,
    /// A signal that a process sent.
    Sent(Signal, SignalSource),
}

/// The sender of a signal (`man 2 signalfd`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalSource {
    /// Process id of the sender; 0 for a process outside this container, such as the container's runtime.
    pub pid: u32,
    /// User id of the sender.
    pub uid: u32,
    /// `true` if the kernel sent the signal, for example because a key was pressed.
    pub kernel: bool,
}

impl Signals {
    /// Starts to receive signals, including those blocked so far. Must be called inside the runtime, on the main thread
    /// and before any other thread exists.
    pub fn listen() -> Result<Self, io::Error> {
        let ignored = std::fs::read_to_string("/proc/self/status")
            .map(|status| signal_mask(&status, "SigIgn:"))
            .unwrap_or_default();
        let handled = HANDLED_SIGNALS
            .into_iter()
            .filter(|handled| *handled == Signal::SIGTERM || ignored & signal_bit(*handled) == 0);
        let fd = block_signals(handled, SfdFlags::SFD_NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "it accepts any type, but this one keeps its descriptor; the alternative needs `unsafe`"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { fd, waiting: VecDeque::new() })
    }

    /// Returns the next signal, the end of a child first. As usual for signals, several of one kind may be merged.
    pub async fn next(&mut self) -> ReceivedSignal {
        loop {
            self.read();
            if let Some(caught) = self.waiting.pop_front() {
                return caught;
            }
            match self.fd.readable().await {
                // No signal is queued, so wait for the next readiness.
                Ok(mut ready) => ready.clear_ready(),
                // The runtime is shutting down.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Waits for a signal that requests a stop while no trial is running, and returns it. Cancel-safe.
    pub async fn wait_for_stop_signal(&mut self) -> Signal {
        loop {
            if let ReceivedSignal::Sent(
                signal @ (Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGHUP),
                _,
            ) = self.next().await
            {
                return signal;
            }
        }
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

/// Blocked signals, which wait until they are read. No signal is lost meanwhile, and none ends the agent.
#[derive(Debug)]
pub struct BlockedSignals(SignalFd);

impl BlockedSignals {
    /// Blocks the signals that the agent handles, and unblocks all others.
    pub fn block() -> Result<Self, io::Error> {
        Ok(Self(block_signals(HANDLED_SIGNALS.into_iter(), SfdFlags::empty())?))
    }
}

impl AsFd for BlockedSignals {
    /// Readable when a blocked signal is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks `handled` and SIGCHLD, so that they can be read. Unblocks all others: the agent's parent may have blocked
/// some, and a blocked SIGTERM would never arrive. SIGTTOU stays blocked: with it, a terminal stops a background
/// process that writes to it, as the agent does while the trial has the terminal. Threads started later inherit the
/// mask; in a thread that blocked less, a signal would end the agent.
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

/// Unblocks every signal, for the trial. Makes one system call, so a child may call it before its exec.
pub fn unblock_all() {
    // The call cannot fail with a valid set.
    SigSet::empty().thread_set_mask().ok();
}

/// Returns the signal's number.
#[expect(clippy::as_conversions, reason = "a field-less enum's discriminant; there is no From")]
pub fn signal_number(signal: Signal) -> i32 {
    signal as i32
}

/// Returns a signal's number as a byte. Signal numbers are at most 64.
pub fn signal_byte(signal: Signal) -> u8 {
    u8::try_from(signal_number(signal)).expect("signals are numbered up to 64")
}

fn signal_bit(signal: Signal) -> u64 {
    1 << (signal_number(signal) - 1)
}

/// Returns whether process `pid` has a handler for SIGTERM.
pub fn handles_sigterm(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| signal_mask(&status, "SigCgt:") & signal_bit(Signal::SIGTERM) != 0)
}

/// PURE: returns a mask of signals in the text of `/proc/PID/status` (bit n-1 is signal n), or 0 if unknown.
fn signal_mask(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ignored_mask_is_read() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(
            signal_mask(status, "SigIgn:"),
            signal_bit(Signal::SIGHUP) | signal_bit(Signal::SIGPIPE)
        );
        for broken in ["", "SigIgn:", "SigIgn:\tzz"] {
            assert_eq!(signal_mask(broken, "SigIgn:"), 0, "{broken:?}");
        }
    }
}
