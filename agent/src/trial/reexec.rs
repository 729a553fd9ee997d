//! Hands the trial over when the agent itself fails. The agent's process executes itself again as a minimal supervisor
//! (`run/fallback.rs`), which only waits for the trial's end. The process keeps its id and its children.
//!
//! Invariants:
//!
//! * A fault is a panic, an abort, or a signal for a broken program (SIGSEGV and similar), on any thread. No fault ends
//!   the trial, or the agent before the trial.
//! * Only the main thread executes the new program. If another thread did, the kernel would regard the main thread as
//!   dead and send the trial its parent-death signal.
//! * Between the fault and the new program, the agent allocates, locks and unwinds nothing, because any data may be
//!   corrupt. [`arm`] prepares everything beforehand.

use std::ffi::{CString, OsStr, c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use nix::libc;

use crate::cli::AGENT_FAULT;
use crate::trial::guard::{Guard, OWN_PROGRAM};
use crate::trial::reap;

/// The argument with which the agent executes itself as its fallback.
pub const FALLBACK_FLAG: &str = "--fallback";

/// The signals of a broken program. A failing thread also sends SIGABRT to the main thread.
const FAULT_SIGNALS: [c_int; 5] =
    [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The state to hand over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReexecState {
    /// The trial's process.
    pub pid: i32,
    /// The grace between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// The time from the end of the trial's own process to the end of its whole tree, in milliseconds.
    pub drain_ms: u64,
    /// The output directory.
    pub dir: Option<PathBuf>,
    /// A file for the short form of the verdict.
    pub termination_log: Option<PathBuf>,
    /// Names of variables whose values are masked in the verdict. The values are still in the environment.
    pub secret_variables: Vec<String>,
    /// `true` if the exit code must reflect the verdict's class.
    pub maps_exit_code: bool,
    /// The state that changes while the trial runs. [`arm`] takes only the outputs from it; the rest is updated
    /// separately.
    pub live: LiveState,
}

/// The part of the hand-over that changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveState {
    /// The sources of the trial's standard output and error, while they are open.
    pub outputs: [Option<RawFd>; 2],
    /// `true` if the trial was already requested to stop.
    pub stopping: bool,
    /// The wait status of the trial's own process, if it was already reaped.
    pub status: Option<i32>,
    /// The guard's process, and the agent's end of its pipe.
    pub guard: Option<(i32, RawFd)>,
}

struct ReexecPlan {
    process: i32,
    /// The paths of this program. The second is used if the first fails.
    programs: [CString; 2],
    words: Vec<CString>,
    outputs: [Option<OpenDescriptor>; 2],
    /// The descriptor of the spool's lock.
    spool_lock: Option<RawFd>,
}

/// A descriptor and its inode. After a close, the same number may refer to another file.
struct OpenDescriptor {
    number: RawFd,
    inode: libc::ino_t,
}

/// The numbers of fixed arguments, of changing numbers, and of all arguments with the terminating null.
const FIXED_ARGUMENT_COUNT: usize = 9;
const LIVE_ARGUMENT_COUNT: usize = 6;
const ARGUMENT_COUNT: usize = FIXED_ARGUMENT_COUNT + LIVE_ARGUMENT_COUNT + 1;

/// A decimal number that ends with a NUL.
type Decimal = [u8; 12];

static REEXEC_PLAN: AtomicPtr<ReexecPlan> = AtomicPtr::new(ptr::null_mut());

/// The exit code after the trial's end; -1 before.
static FINAL_EXIT_CODE: AtomicI32 = AtomicI32::new(-1);

/// `true` if the trial was requested to stop.
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

/// The guard's process and the agent's end of its pipe; -1 if there is no guard.
static GUARD_NUMBERS: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

impl ReexecState {
    /// Returns the fixed state as command-line arguments.
    fn words(&self) -> Vec<CString> {
        let path = |path: &Option<PathBuf>| {
            path.as_deref().map(Path::as_os_str).map(OsStr::as_bytes).unwrap_or_default().to_vec()
        };
        let words: [Vec<u8>; FIXED_ARGUMENT_COUNT] = [
            b"trialkeeper".to_vec(),
            FALLBACK_FLAG.into(),
            self.pid.to_string().into_bytes(),
            self.grace_ms.to_string().into_bytes(),
            self.drain_ms.to_string().into_bytes(),
            i32::from(self.maps_exit_code).to_string().into_bytes(),
            path(&self.dir),
            path(&self.termination_log),
            self.secret_variables.join(",").into_bytes(),
        ];
        // A path that contains a NUL was never opened.
        words.into_iter().map(|word| CString::new(word).unwrap_or_default()).collect()
    }

    /// Parses the arguments after [`FALLBACK_FLAG`].
    pub fn read(words: &[impl AsRef<OsStr>]) -> Option<Self> {
        let [pid, grace, drain, maps_exit_code, dir, termination_log, secrets, live @ ..] = words
        else {
            return None;
        };
        let text = |word: &dyn AsRef<OsStr>| word.as_ref().to_str().map(str::to_owned);
        let path = |word: &dyn AsRef<OsStr>| {
            Some(PathBuf::from(word.as_ref())).filter(|path| !path.as_os_str().is_empty())
        };
        let live: Vec<i32> =
            live.iter().map(|word| text(word)?.parse().ok()).collect::<Option<_>>()?;
        Some(Self {
            pid: text(pid)?.parse().ok().filter(|pid| *pid > 1)?,
            grace_ms: text(grace)?.parse().ok()?,
            drain_ms: text(drain)?.parse().ok()?,
            dir: path(dir),
            termination_log: path(termination_log),
            secret_variables: text(secrets)?
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            maps_exit_code: text(maps_exit_code)? == "1",
            live: LiveState::from_numbers(live.try_into().ok()?),
        })
    }
}

impl LiveState {
    /// Returns the state as numbers; -1 means absent.
    fn to_numbers(self) -> [i32; LIVE_ARGUMENT_COUNT] {
        let [stdout, stderr] = self.outputs;
        let [guard, pipe] = [self.guard.map(|(process, _)| process), self.guard.map(|two| two.1)];
        let none = |number: Option<i32>| number.unwrap_or(-1);
        let stopping = i32::from(self.stopping);
        [none(stdout), none(stderr), stopping, none(self.status), none(guard), none(pipe)]
    }

    fn from_numbers(
        [stdout, stderr, stopping, status, guard, pipe]: [i32; LIVE_ARGUMENT_COUNT],
    ) -> Self {
        let fd = |number: RawFd| Some(number).filter(|number| *number > 2);
        Self {
            outputs: [fd(stdout), fd(stderr)],
            stopping: stopping == 1,
            status: Some(status).filter(|status| *status >= 0),
            guard: Some(guard).filter(|process| *process > 1).zip(fd(pipe)),
        }
    }
}

impl OpenDescriptor {
    fn from_number(number: RawFd) -> Option<Self> {
        Some(Self { number, inode: inode(number)? })
    }

    fn unless_reused(&self) -> Option<RawFd> {
        (inode(self.number) == Some(self.inode)).then_some(self.number)
    }
}

/// Returns the inode of a descriptor, if it is open. Async-signal-safe.
fn inode(number: RawFd) -> Option<libc::ino_t> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    #[expect(unsafe_code, reason = "nix requires an open descriptor")]
    // SAFETY: `fstat` accepts any number, and fills in the buffer unless it fails.
    unsafe {
        (libc::fstat(number, found.as_mut_ptr()) == 0).then(|| found.assume_init().st_ino)
    }
}

/// Formats a number without allocating.
fn format_decimal(number: i32) -> Decimal {
    let mut text = [0; 12];
    let mut left = number.unsigned_abs();
    let mut digits = [0; 10];
    let mut count = 0;
    for digit in &mut digits {
        *digit = b'0' + u8::try_from(left % 10).unwrap_or(0);
        left /= 10;
        count += 1;
        if left == 0 {
            break;
        }
    }
    let sign: &[u8] = if number < 0 { b"-" } else { b"" };
    let bytes = sign.iter().chain(digits.iter().take(count).rev());
    text.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    text
}

/// Prepares the hand-over: from now on a fault of the agent hands over the trial, and `spool_lock`, the spool's lock.
pub fn arm(state: &ReexecState, spool_lock: Option<RawFd>) {
    // Without /proc, the name with which the agent was started is used.
    let named = std::env::args_os().next().unwrap_or_default();
    let programs = [OWN_PROGRAM.as_bytes(), named.as_bytes()];
    let plan = ReexecPlan {
        process: nix::unistd::getpid().as_raw(),
        programs: programs.map(|name| CString::new(name).unwrap_or_default()),
        words: state.words(),
        outputs: state.live.outputs.map(|output| output.and_then(OpenDescriptor::from_number)),
        spool_lock,
    };
    // Never freed, because a fault may occur at any time.
    let before = REEXEC_PLAN.swap(Box::into_raw(Box::new(plan)), Ordering::AcqRel);
    if before.is_null() {
        install_handlers();
    }
}

/// Records that the trial was requested to stop, so that the fallback completes the stop.
pub fn record_stop() {
    STOP_REQUESTED.store(true, Ordering::Release);
}

/// Records that the trial has a guard.
pub fn record_guard(guard: &Guard) {
    let (process, pipe) = guard.pid_and_pipe();
    GUARD_NUMBERS[1].store(pipe, Ordering::Release);
    GUARD_NUMBERS[0].store(process.cast_signed(), Ordering::Release);
}

/// Records that the trial has ended, and the agent's exit code. A later fault exits with this code.
pub fn disarm(code: u8) {
    FINAL_EXIT_CODE.store(i32::from(code), Ordering::Release);
}

/// Treats every panic as a fault, even in a build whose panics unwind.
pub fn watch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.payload_as_str().unwrap_or("a panic");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!("a fault in trialkeeper, at {place}: {what}");
        reexec();
        #[expect(clippy::exit, reason = "there is no trial, and execution cannot continue")]
        std::process::exit(i32::from(AGENT_FAULT));
    }));
}

/// Hands the trial over. Returns only if there is no trial.
///
/// On a thread other than the main thread, the call never returns: it stops the thread.
pub fn reexec() {
    let code = FINAL_EXIT_CODE.load(Ordering::Acquire);
    if code >= 0 {
        #[expect(
            unsafe_code,
            reason = "std's exit runs handlers, which is forbidden in a broken program"
        )]
        // SAFETY: it takes a number and does not return.
        unsafe {
            libc::_exit(code)
        }
    }
    let plan = REEXEC_PLAN.load(Ordering::Acquire);
    #[expect(unsafe_code, reason = "the plan is never freed")]
    // SAFETY: it is null or came from `Box::into_raw` in `arm`, is never freed and never changed.
    let Some(plan) = (unsafe { plan.as_ref() }) else { return };
    if nix::unistd::getpid().as_raw() != plan.process {
        // A child of the agent between fork and exec.
        return;
    }
    #[expect(unsafe_code, reason = "async-signal-safe functions have no safe wrappers")]
    // SAFETY: only async-signal-safe calls with valid arguments. The arguments end with a null and point into separate
    // texts. `environ` belongs to the C library and never changes (`set_var` is denied in this workspace). The set is
    // initialised by `sigfillset`.
    unsafe {
        // Not `gettid()`: std declares it as a weak symbol, which is a null pointer in a static program.
        if libc::syscall(libc::SYS_gettid) != libc::c_long::from(plan.process) {
            // The main thread never blocks SIGABRT, so the kernel delivers it there, whatever that thread waits for.
            // The signal of another failing thread may arrive after the new program has started. That program
            // recognises it by its sender.
            libc::kill(plan.process, libc::SIGABRT);
            loop {
                libc::pause();
            }
        }
        // A signal mask survives the exec, so no signal is lost in between.
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
        let live = plan.live_state();
        let [stdout, stderr] = live.outputs;
        let pipe = live.guard.map(|(_, pipe)| pipe);
        for fd in [stdout, stderr, pipe, plan.spool_lock].into_iter().flatten() {
            libc::fcntl(fd, libc::F_SETFD, 0);
        }
        let numbers = live.to_numbers().map(format_decimal);
        let live = numbers.iter().map(|number| number.as_ptr().cast());
        let words = plan.words.iter().map(|word| word.as_ptr()).chain(live);
        let mut pointers: [*const c_char; ARGUMENT_COUNT] = [ptr::null(); ARGUMENT_COUNT];
        pointers.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        for program in &plan.programs {
            libc::execve(program.as_ptr(), pointers.as_ptr(), environ.cast());
        }
        // No memory, or the file no longer exists: the kernel ends the trial with the agent.
        libc::_exit(125);
    }
}

impl ReexecPlan {
    fn live_state(&self) -> LiveState {
        let [process, pipe] = GUARD_NUMBERS.each_ref().map(|number| number.load(Ordering::Acquire));
        LiveState {
            outputs: self
                .outputs
                .each_ref()
                .map(|output| output.as_ref().and_then(OpenDescriptor::unless_reused)),
            stopping: STOP_REQUESTED.load(Ordering::Acquire),
            status: reap::trial_status(),
            guard: (process > 0).then_some((process, pipe)),
        }
    }
}

#[expect(unsafe_code, reason = "the C library's environment")]
unsafe extern "C" {
    static environ: *const *const c_char;
}

extern "C" fn handle_fault(signal: c_int) {
    reexec();
    #[expect(unsafe_code, reason = "to end by the signal's default action")]
    // SAFETY: both may be called in a handler of a signal.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Installs the handlers of faults.
fn install_handlers() {
    for signal in FAULT_SIGNALS {
        #[expect(unsafe_code, reason = "installing a signal handler is unsafe")]
        // SAFETY: a zeroed `sigaction` is valid, and `handle_fault` is async-signal-safe. SA_ONSTACK needs an alternate
        // stack, which std sets for each of its threads.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(c_int) = handle_fault;
            #[expect(clippy::as_conversions, reason = "the C type of a handler is a number")]
            let handler = handler as libc::sighandler_t;
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// Returns a descriptor that this process's previous program left open, unless another of its threads closed it at the
/// last moment.
pub fn take_inherited(number: RawFd) -> Option<OwnedFd> {
    inode(number)?;
    #[expect(unsafe_code, reason = "a number on the command line names a descriptor")]
    // SAFETY: the descriptor is open, and the previous program passed its number. This program has not opened anything
    // under this number, since this is called first.
    unsafe {
        Some(OwnedFd::from_raw_fd(number))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_hand_over_survives_a_round_trip() {
        let live = LiveState {
            outputs: [Some(5), None],
            stopping: true,
            status: Some(0),
            guard: Some((1 << 22, 9)),
        };
        let full = ReexecState {
            pid: 7,
            grace_ms: 20_000,
            drain_ms: 2_000,
            dir: Some("/a b/c".into()),
            termination_log: None,
            secret_variables: vec!["A".to_owned(), "B".to_owned()],
            maps_exit_code: true,
            live,
        };
        for state in [full, ReexecState { pid: 2, ..ReexecState::default() }] {
            let numbers = state.live.to_numbers().map(format_decimal);
            let live = numbers.iter().map(|number| CStr::from_bytes_until_nul(number).unwrap());
            let words = state.words();
            assert_eq!(words.len(), FIXED_ARGUMENT_COUNT);
            let words: Vec<&OsStr> = words[2..]
                .iter()
                .map(CString::as_c_str)
                .chain(live)
                .map(|word| OsStr::from_bytes(word.to_bytes()))
                .collect();
            assert_eq!(ReexecState::read(&words), Some(state));
        }
        for broken in [&["x"; 13][..], &["7"; 12], &[]] {
            assert_eq!(ReexecState::read(broken), None, "{broken:?}");
        }
        // A pid that would mean all processes, or PID 1, is never a trial's.
        for pid in ["-1", "0", "1"] {
            let mut words = ["1"; 13];
            words[0] = pid;
            assert_eq!(ReexecState::read(&words), None, "{pid}");
        }
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 7, 10, -1, 4_194_304, i32::MAX, i32::MIN] {
            let text = format_decimal(number);
            let text = CStr::from_bytes_until_nul(&text).unwrap();
            assert_eq!(text.to_str().unwrap(), number.to_string());
        }
    }

    #[test]
    fn a_reused_descriptor_is_detected() {
        let (first, _other) = std::io::pipe().unwrap();
        let opened = OpenDescriptor::from_number(first.as_raw_fd()).unwrap();
        assert_eq!(opened.unless_reused(), Some(first.as_raw_fd()));
        let (second, _other) = std::io::pipe().unwrap();
        let moved = OpenDescriptor { number: second.as_raw_fd(), ..opened };
        assert_eq!(moved.unless_reused(), None);
    }
}
