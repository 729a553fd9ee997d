//! The fast path for a trial that ends before there is anything to observe. It needs neither a thread nor a spool.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use crate::trial::reap::Reaper;
use crate::trial::signals::BlockedSignals;

/// The maximum running time of a silent trial on the fast path, and the time for which the agent leaves the processor
/// to it.
const LONGEST_FAST_RUN: Duration = Duration::from_millis(20);
const FIRST_POLL_DELAY: Duration = Duration::from_millis(1);

/// Waits for the end of a short trial. Returns `None` if the trial prints something, a signal other than SIGCHLD arrives, or
/// [`LONGEST_FAST_RUN`] is over: the trial must then be supervised. Calls `meanwhile` after [`FIRST_POLL_DELAY`].
/// Returns the status only if the trial has exited without a signal, has printed nothing, and has left no process, and
/// if `nothing_else` returns `true`: the trial left nothing else to read.
pub(super) fn wait_for_short_trial(
    signals: &BlockedSignals,
    outputs: &[Option<OwnedFd>; 2],
    exit: &mut oneshot::Receiver<ExitStatus>,
    reaper: &Reaper,
    meanwhile: impl FnOnce(),
    nothing_else: impl FnOnce() -> bool,
) -> Option<ExitStatus> {
    // Without a pipe, the agent could not detect the end of the stream.
    let mut open: Vec<&OwnedFd> = outputs.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let [at_once, brief] = [FIRST_POLL_DELAY, LONGEST_FAST_RUN]
        .map(|time| PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO));
    let mut meanwhile = Some(meanwhile);
    loop {
        let timeout = if meanwhile.is_some() { at_once } else { brief };
        let Some((signalled, printed)) = poll_streams(Some(signals), &mut open, timeout) else {
            meanwhile.take()?();
            continue;
        };
        if printed {
            return None;
        }
        if signalled {
            let left = reaper.reap_ended();
            let status = exit.try_recv().ok()?;
            let (_, printed) = poll_streams(None, &mut open, PollTimeout::ZERO).unwrap_or_default();
            let alone = !left && open.is_empty();
            if status.code().is_some() && alone && !printed && nothing_else() {
                return Some(status);
            }
            // A later caller waits for the same status.
            let (tell, again) = oneshot::channel();
            tell.send(status).ok();
            *exit = again;
            return None;
        }
    }
}

/// Waits for a signal, for output, or for the end of a stream, which is removed from `open`. Returns whether a signal
/// arrived, and whether there is output. `None`: the timeout passed.
fn poll_streams(
    signals: Option<&BlockedSignals>,
    open: &mut Vec<&OwnedFd>,
    timeout: PollTimeout,
) -> Option<(bool, bool)> {
    let wanted = signals.map(AsFd::as_fd).into_iter().chain(open.iter().map(|fd| fd.as_fd()));
    let mut fds: Vec<_> = wanted.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    if poll(&mut fds, timeout).ok()? == 0 {
        return None;
    }
    let seen = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::POLLIN);
    let readable = |fd: &PollFd<'_>| seen(fd).contains(PollFlags::POLLIN);
    let streams = &fds[usize::from(signals.is_some())..];
    let found = (signals.is_some() && readable(&fds[0]), streams.iter().any(readable));
    let ended: Vec<bool> = streams.iter().map(|fd| !seen(fd).is_empty()).collect();
    let mut ended = ended.into_iter();
    open.retain(|_| !ended.next().unwrap_or(false));
    Some(found)
}
