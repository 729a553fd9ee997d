//! What becomes of a trial when the agent itself fails: the same process, with the same id and the same
//! children, becomes `hold`, which does nothing but see the trial to its end.
//!
//! Invariants:
//!
//! * A fault is a panic, an abort, or a signal that a broken program gets (SEGV and its like), on any thread.
//!   None of them ends the trial, nor the agent before it.
//! * The main thread alone executes the program anew: when another thread does, the kernel takes the main
//!   thread for dead and sends the trial its parent-death signal.
//! * From the fault to the new program nothing is allocated, locked or unwound: whatever is broken stays
//!   untouched. All that is needed was made ready by [`arm`].

use std::ffi::{CString, OsStr, c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use nix::libc;

use crate::cli::KEEPER_FAULT;

/// The word that makes the program hold a trial.
pub const HOLD: &str = "--hold";

/// What a broken program gets; an abort is also how a thread tells the main one.
const FAULTS: [c_int; 5] = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The image of this program: a link that holds even if the file was replaced or deleted.
const OURSELVES: &str = "/proc/self/exe";

/// What there is to be held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Estate {
    /// The trial's process.
    pub pid: i32,
    /// From a request to end to the kill, in milliseconds.
    pub grace_ms: u64,
    /// From the end of the trial's own process to the end of everything, in milliseconds.
    pub drain_ms: u64,
    /// Where the trial's standard output and error come out.
    pub outputs: [Option<RawFd>; 2],
    /// The output directory.
    pub dir: Option<PathBuf>,
    /// A file for the verdict in short.
    pub termination_log: Option<PathBuf>,
    /// Whether the exit code is to tell the verdict's class.
    pub mapped: bool,
    /// Whether the trial was asked to end before.
    pub stopping: bool,
}

struct Plan {
    process: i32,
    program: CString,
    calm: Words,
    stopping: Words,
    keep: Vec<RawFd>,
}

/// A command line, ready to be executed.
struct Words {
    /// Points into `_texts`, and ends with a null.
    pointers: Vec<*const c_char>,
    _texts: Vec<CString>,
}

static PLAN: AtomicPtr<Plan> = AtomicPtr::new(ptr::null_mut());

/// The exit code, once the trial has ended; -1 before.
static OVER: AtomicI32 = AtomicI32::new(-1);

/// Whether the trial was asked to end.
static STOPPING: AtomicBool = AtomicBool::new(false);

impl Words {
    fn of(estate: &Estate) -> Self {
        let texts = estate.words();
        let pointers = texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
        Self { pointers, _texts: texts }
    }
}

impl Estate {
    /// As words of a command line.
    fn words(&self) -> Vec<CString> {
        let number = |fd: Option<RawFd>| fd.map_or(-1, i64::from).to_string();
        let path = |path: &Option<PathBuf>| {
            path.as_deref().map(Path::as_os_str).map(OsStr::as_bytes).unwrap_or_default().to_vec()
        };
        let words = [
            b"trialkeeper".to_vec(),
            HOLD.into(),
            self.pid.to_string().into_bytes(),
            self.grace_ms.to_string().into_bytes(),
            self.drain_ms.to_string().into_bytes(),
            number(self.outputs[0]).into_bytes(),
            number(self.outputs[1]).into_bytes(),
            i32::from(self.mapped).to_string().into_bytes(),
            i32::from(self.stopping).to_string().into_bytes(),
            path(&self.dir),
            path(&self.termination_log),
        ];
        // A path with a NUL in it was never opened either.
        words.into_iter().map(|word| CString::new(word).unwrap_or_default()).collect()
    }

    /// Reads what [`arm`] wrote, from the word after [`HOLD`] on.
    pub fn read(words: &[impl AsRef<OsStr>]) -> Option<Self> {
        let [pid, grace, drain, stdout, stderr, mapped, stopping, dir, termination_log] = words
        else {
            return None;
        };
        let text = |word: &dyn AsRef<OsStr>| word.as_ref().to_str().map(str::to_owned);
        let fd = |word: &dyn AsRef<OsStr>| -> Option<Option<RawFd>> {
            let number: RawFd = text(word)?.parse().ok()?;
            Some(Some(number).filter(|number| *number > 2))
        };
        let path = |word: &dyn AsRef<OsStr>| {
            Some(PathBuf::from(word.as_ref())).filter(|path| !path.as_os_str().is_empty())
        };
        Some(Self {
            pid: text(pid)?.parse().ok().filter(|pid| *pid > 1)?,
            grace_ms: text(grace)?.parse().ok()?,
            drain_ms: text(drain)?.parse().ok()?,
            outputs: [fd(stdout)?, fd(stderr)?],
            dir: path(dir),
            termination_log: path(termination_log),
            mapped: text(mapped)? == "1",
            stopping: text(stopping)? == "1",
        })
    }
}

/// From now on a fault of ours hands the trial over. `keep`: further descriptors that must not be closed then.
pub fn arm(estate: &Estate, keep: Option<RawFd>) {
    // Without /proc, the name that we were started with must do.
    let named = || std::env::args_os().next().and_then(|name| CString::new(name.as_bytes()).ok());
    let there = Path::new(OURSELVES).exists();
    let program = if there { CString::new(OURSELVES).ok() } else { named() };
    let plan = Plan {
        process: nix::unistd::getpid().as_raw(),
        program: program.unwrap_or_default(),
        calm: Words::of(estate),
        stopping: Words::of(&Estate { stopping: true, ..estate.clone() }),
        keep: estate.outputs.into_iter().flatten().chain(keep).collect(),
    };
    // Never freed: a fault may come at any time.
    let before = PLAN.swap(Box::into_raw(Box::new(plan)), Ordering::AcqRel);
    if before.is_null() {
        listen();
    }
}

/// The trial was asked to end: whoever holds it then sees to that.
pub fn stopping() {
    STOPPING.store(true, Ordering::Release);
}

/// The trial has ended, and this is the code to exit with, whatever happens to us from now on.
pub fn disarm(code: u8) {
    OVER.store(i32::from(code), Ordering::Release);
}

/// Makes every panic a fault, however the program was built: none unwinds.
pub fn watch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.payload_as_str().unwrap_or("a panic");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!("a fault in trialkeeper, at {place}: {what}");
        hand_over();
        #[expect(clippy::exit, reason = "there is no trial, and nobody can go on")]
        std::process::exit(i32::from(KEEPER_FAULT));
    }));
}

/// Hands the trial over, where there is one; returns where there is none.
///
/// On a thread that is not the main one it does not return either: the thread is stopped where it stands.
pub fn hand_over() {
    let code = OVER.load(Ordering::Acquire);
    if code >= 0 {
        #[expect(unsafe_code, reason = "std's exit runs handlers, which a broken program must not")]
        // SAFETY: it takes a number and does not return.
        unsafe {
            libc::_exit(code)
        }
    }
    let plan = PLAN.load(Ordering::Acquire);
    #[expect(unsafe_code, reason = "a plan that is never freed")]
    // SAFETY: it is null or came from `Box::into_raw` in `arm`, is never freed and never changed.
    let Some(plan) = (unsafe { plan.as_ref() }) else { return };
    if nix::unistd::getpid().as_raw() != plan.process {
        // A child of ours between fork and exec.
        return;
    }
    #[expect(unsafe_code, reason = "what is allowed in the handler of a signal has no safe names")]
    // SAFETY: only calls that POSIX allows in a handler of a signal, with valid arguments: the words end with a
    // null and point into texts of their own, `environ` is the C library's and nobody changes it
    // (`set_var` is denied in this workspace), and the set is initialised by `sigfillset`.
    unsafe {
        // Not `gettid()`: std names it as a weak symbol, and a static program has it as a null pointer then.
        if libc::syscall(libc::SYS_gettid) != libc::c_long::from(plan.process) {
            // The kernel gives it to the main thread, which never blocks it, whatever that one waits for.
            libc::kill(plan.process, libc::SIGABRT);
            loop {
                libc::pause();
            }
        }
        // A mask outlives the new program's start: no signal is lost on the way.
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
        // Another thread may have failed as well; its call must not reach the new program.
        libc::signal(libc::SIGABRT, libc::SIG_IGN);
        for fd in &plan.keep {
            libc::fcntl(*fd, libc::F_SETFD, 0);
        }
        let stopping = STOPPING.load(Ordering::Acquire);
        let words = if stopping { &plan.stopping } else { &plan.calm };
        libc::execve(plan.program.as_ptr(), words.pointers.as_ptr(), environ.cast());
        // No memory, or no such file any more: then the kernel ends the trial with us.
        libc::_exit(125);
    }
}

#[expect(unsafe_code, reason = "the C library's environment")]
unsafe extern "C" {
    static environ: *const *const c_char;
}

extern "C" fn fault(signal: c_int) {
    hand_over();
    #[expect(unsafe_code, reason = "to die of the signal, as if nobody had listened")]
    // SAFETY: both may be called in a handler of a signal.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Listens to faults.
fn listen() {
    for signal in FAULTS {
        #[expect(unsafe_code, reason = "a handler must keep to what is allowed in one")]
        // SAFETY: zeroes are a valid `sigaction`, and `fault` keeps to what is allowed in a handler. The
        // alternate stack that SA_ONSTACK asks for is set by std for every thread of its own.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(c_int) = fault;
            #[expect(clippy::as_conversions, reason = "a handler is handed over as a number")]
            let handler = handler as libc::sighandler_t;
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// A descriptor that the program before us left open for us.
pub fn inherited(number: RawFd) -> OwnedFd {
    #[expect(unsafe_code, reason = "a number on the command line names a descriptor")]
    // SAFETY: the program that executed this one kept it open and told its number; nothing here was opened
    // under it, since it was never free.
    unsafe {
        OwnedFd::from_raw_fd(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estate_is_read_as_it_was_written() {
        let full = Estate {
            pid: 7,
            grace_ms: 20_000,
            drain_ms: 2_000,
            outputs: [Some(5), None],
            dir: Some("/a b/c".into()),
            termination_log: None,
            mapped: true,
            stopping: true,
        };
        for estate in [full, Estate { pid: 2, ..Estate::default() }] {
            let words = estate.words();
            let words: Vec<_> =
                words[2..].iter().map(|word| OsStr::from_bytes(word.to_bytes())).collect();
            assert_eq!(Estate::read(&words), Some(estate));
        }
        for broken in [&["x"; 9][..], &["7"; 8], &[]] {
            assert_eq!(Estate::read(broken), None, "{broken:?}");
        }
        // A pid that would mean everybody, or the first process, is nobody's trial.
        let pids = ["-1", "0", "1"];
        for pid in pids {
            assert_eq!(Estate::read(&[pid, "1", "1", "3", "4", "0", "0", "", ""]), None, "{pid}");
        }
    }
}
