//! The hand-over of a trial when the agent itself fails: the same process, with the same id and the same
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
use crate::trial::guard::Guard;
use crate::trial::reap;

/// The word that makes the program hold a trial.
pub const FALLBACK_WORD: &str = "--hold";

/// The signals of a broken program; an abort is also how a thread tells the main one.
const FAULTS: [c_int; 5] = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The image of this program: a link that holds even if the file was replaced or deleted.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The state to hand over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandOver {
    /// The trial's process.
    pub pid: i32,
    /// From a request to end to the kill, in milliseconds.
    pub grace_ms: u64,
    /// From the end of the trial's own process to the end of everything, in milliseconds.
    pub drain_ms: u64,
    /// The output directory.
    pub dir: Option<PathBuf>,
    /// A file for the verdict in short.
    pub termination_log: Option<PathBuf>,
    /// Names of variables whose values are masked in the verdict; they are in the environment still.
    pub secret_variables: Vec<String>,
    /// `true` if the exit code is to tell the verdict's class.
    pub mapped: bool,
    /// The state that changes while the trial runs. [`arm`] takes the outputs from it, the rest is told when it comes.
    pub live: Live,
}

/// The part of an estate that changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Live {
    /// The sources of the trial's standard output and error, while they are open.
    pub outputs: [Option<RawFd>; 2],
    /// `true` if the trial was asked to end before.
    pub stopping: bool,
    /// The wait status of the trial's own process, if it was reaped before.
    pub status: Option<i32>,
    /// The guard's process, and the agent's end of its pipe.
    pub guard: Option<(i32, RawFd)>,
}

struct HandOverPlan {
    process: i32,
    /// The paths of this program: the second is tried where the first fails.
    programs: [CString; 2],
    words: Vec<CString>,
    outputs: [Option<Opened>; 2],
    /// The spool's lock.
    claim: Option<RawFd>,
}

/// A descriptor, and the inode behind it: when it is closed, its number may soon be something else's.
struct Opened {
    number: RawFd,
    inode: libc::ino_t,
}

/// The number of words that stay the same, and of numbers that change; and a null.
const FIXED: usize = 9;
const LIVE: usize = 6;
const WORDS: usize = FIXED + LIVE + 1;

/// A number in decimal that ends with a NUL.
type Decimal = [u8; 12];

static PLAN: AtomicPtr<HandOverPlan> = AtomicPtr::new(ptr::null_mut());

/// The exit code, once the trial has ended; -1 before.
static HANDED_OVER: AtomicI32 = AtomicI32::new(-1);

/// `true` if the trial was asked to end.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// The guard's process and the agent's end of its pipe, -1 while there is none.
static GUARD: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

impl HandOver {
    /// Returns the state that stays the same, as words of a command line.
    fn words(&self) -> Vec<CString> {
        let path = |path: &Option<PathBuf>| {
            path.as_deref().map(Path::as_os_str).map(OsStr::as_bytes).unwrap_or_default().to_vec()
        };
        let words: [Vec<u8>; FIXED] = [
            b"trialkeeper".to_vec(),
            FALLBACK_WORD.into(),
            self.pid.to_string().into_bytes(),
            self.grace_ms.to_string().into_bytes(),
            self.drain_ms.to_string().into_bytes(),
            i32::from(self.mapped).to_string().into_bytes(),
            path(&self.dir),
            path(&self.termination_log),
            self.secret_variables.join(",").into_bytes(),
        ];
        // A path with a NUL in it was never opened either.
        words.into_iter().map(|word| CString::new(word).unwrap_or_default()).collect()
    }

    /// Reads what a fault wrote, from the word after [`FALLBACK_WORD`] on.
    pub fn read(words: &[impl AsRef<OsStr>]) -> Option<Self> {
        let [pid, grace, drain, mapped, dir, termination_log, secrets, live @ ..] = words else {
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
            mapped: text(mapped)? == "1",
            live: Live::of(live.try_into().ok()?),
        })
    }
}

impl Live {
    /// -1 is nothing.
    fn numbers(&self) -> [i32; LIVE] {
        let [stdout, stderr] = self.outputs;
        let [guard, pipe] = [self.guard.map(|(process, _)| process), self.guard.map(|two| two.1)];
        let none = |number: Option<i32>| number.unwrap_or(-1);
        let stopping = i32::from(self.stopping);
        [none(stdout), none(stderr), stopping, none(self.status), none(guard), none(pipe)]
    }

    fn of([stdout, stderr, stopping, status, guard, pipe]: [i32; LIVE]) -> Self {
        let fd = |number: RawFd| Some(number).filter(|number| *number > 2);
        Self {
            outputs: [fd(stdout), fd(stderr)],
            stopping: stopping == 1,
            status: Some(status).filter(|status| *status >= 0),
            guard: Some(guard).filter(|process| *process > 1).zip(fd(pipe)),
        }
    }
}

impl Opened {
    fn at(number: RawFd) -> Option<Self> {
        Some(Self { number, inode: inode(number)? })
    }

    fn still(&self) -> Option<RawFd> {
        (inode(self.number) == Some(self.inode)).then_some(self.number)
    }
}

/// The inode behind a descriptor, if it is open. May be called in the handler of a signal.
fn inode(number: RawFd) -> Option<libc::ino_t> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    #[expect(unsafe_code, reason = "nix wants a descriptor that is known to be open")]
    // SAFETY: it takes any number, and fills in what it is given unless it fails.
    unsafe {
        (libc::fstat(number, found.as_mut_ptr()) == 0).then(|| found.assume_init().st_ino)
    }
}

/// Writes a number without allocating.
fn decimal(number: i32) -> Decimal {
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

/// From now on a fault of the agent hands the trial over, and the `claim` on the spool with it.
pub fn arm(estate: &HandOver, claim: Option<RawFd>) {
    // Without /proc, the name that the agent was started with must do.
    let named = std::env::args_os().next().unwrap_or_default();
    let programs = [OWN_PROGRAM.as_bytes(), named.as_bytes()];
    let plan = HandOverPlan {
        process: nix::unistd::getpid().as_raw(),
        programs: programs.map(|name| CString::new(name).unwrap_or_default()),
        words: estate.words(),
        outputs: estate.live.outputs.map(|output| output.and_then(Opened::at)),
        claim,
    };
    // Never freed: a fault may come at any time.
    let before = PLAN.swap(Box::into_raw(Box::new(plan)), Ordering::AcqRel);
    if before.is_null() {
        listen();
    }
}

/// The trial was asked to end: its holder then sees to that.
pub fn stopping() {
    STOPPING.store(true, Ordering::Release);
}

/// The trial has a guard from now on.
pub fn guarded(guard: &Guard) {
    let (process, pipe) = guard.parts();
    GUARD[1].store(pipe, Ordering::Release);
    GUARD[0].store(process.cast_signed(), Ordering::Release);
}

/// The trial has ended, and this is the code to exit with, whatever happens to the agent from now on.
pub fn disarm(code: u8) {
    HANDED_OVER.store(i32::from(code), Ordering::Release);
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
    let code = HANDED_OVER.load(Ordering::Acquire);
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
        // A child of the agent's between fork and exec.
        return;
    }
    #[expect(unsafe_code, reason = "what is allowed in the handler of a signal has no safe names")]
    // SAFETY: only calls that POSIX allows in a handler of a signal, with valid arguments. The words end with a null
    // and point into texts of their own. `environ` is the C library's and never changes (`set_var` is denied in this
    // workspace). The set is initialised by `sigfillset`.
    unsafe {
        // Not `gettid()`: std names it as a weak symbol, and a static program has it as a null pointer then.
        if libc::syscall(libc::SYS_gettid) != libc::c_long::from(plan.process) {
            // The kernel gives it to the main thread, which never blocks it, whatever that one waits for. Another
            // thread's may come when that one has followed the first: the new program knows it by its sender.
            libc::kill(plan.process, libc::SIGABRT);
            loop {
                libc::pause();
            }
        }
        // A mask outlives the new program's start: no signal is lost on the way.
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
        let live = plan.live();
        let [stdout, stderr] = live.outputs;
        let pipe = live.guard.map(|(_, pipe)| pipe);
        for fd in [stdout, stderr, pipe, plan.claim].into_iter().flatten() {
            libc::fcntl(fd, libc::F_SETFD, 0);
        }
        let numbers = live.numbers().map(decimal);
        let live = numbers.iter().map(|number| number.as_ptr().cast());
        let words = plan.words.iter().map(|word| word.as_ptr()).chain(live);
        let mut pointers: [*const c_char; WORDS] = [ptr::null(); WORDS];
        pointers.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        for program in &plan.programs {
            libc::execve(program.as_ptr(), pointers.as_ptr(), environ.cast());
        }
        // No memory, or no such file any more: then the kernel ends the trial with the agent.
        libc::_exit(125);
    }
}

impl HandOverPlan {
    fn live(&self) -> Live {
        let [process, pipe] = GUARD.each_ref().map(|number| number.load(Ordering::Acquire));
        Live {
            outputs: self.outputs.each_ref().map(|output| output.as_ref().and_then(Opened::still)),
            stopping: STOPPING.load(Ordering::Acquire),
            status: reap::trial_status(),
            guard: (process > 0).then_some((process, pipe)),
        }
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

/// A descriptor that the program before left open for this one, unless one of its threads has closed it in the last
/// moment.
pub fn inherited(number: RawFd) -> Option<OwnedFd> {
    inode(number)?;
    #[expect(unsafe_code, reason = "a number on the command line names a descriptor")]
    // SAFETY: it is open, and the program that executed this one told its number. Nothing here was opened under it,
    // since this is called before anything is opened.
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
    fn a_hand_over_is_read_as_it_was_written() {
        let live = Live {
            outputs: [Some(5), None],
            stopping: true,
            status: Some(0),
            guard: Some((1 << 22, 9)),
        };
        let full = HandOver {
            pid: 7,
            grace_ms: 20_000,
            drain_ms: 2_000,
            dir: Some("/a b/c".into()),
            termination_log: None,
            secret_variables: vec!["A".to_owned(), "B".to_owned()],
            mapped: true,
            live,
        };
        for estate in [full, HandOver { pid: 2, ..HandOver::default() }] {
            let numbers = estate.live.numbers().map(decimal);
            let live = numbers.iter().map(|number| CStr::from_bytes_until_nul(number).unwrap());
            let words = estate.words();
            assert_eq!(words.len(), FIXED);
            let words: Vec<&OsStr> = words[2..]
                .iter()
                .map(CString::as_c_str)
                .chain(live)
                .map(|word| OsStr::from_bytes(word.to_bytes()))
                .collect();
            assert_eq!(HandOver::read(&words), Some(estate));
        }
        for broken in [&["x"; 13][..], &["7"; 12], &[]] {
            assert_eq!(HandOver::read(broken), None, "{broken:?}");
        }
        // A pid that would mean all processes, or the first one, is no trial's.
        for pid in ["-1", "0", "1"] {
            let mut words = ["1"; 13];
            words[0] = pid;
            assert_eq!(HandOver::read(&words), None, "{pid}");
        }
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 7, 10, -1, 4_194_304, i32::MAX, i32::MIN] {
            let text = decimal(number);
            let text = CStr::from_bytes_until_nul(&text).unwrap();
            assert_eq!(text.to_str().unwrap(), number.to_string());
        }
    }

    #[test]
    fn a_descriptor_that_was_closed_and_opened_anew_is_another() {
        let (first, _other) = std::io::pipe().unwrap();
        let opened = Opened::at(first.as_raw_fd()).unwrap();
        assert_eq!(opened.still(), Some(first.as_raw_fd()));
        let (second, _other) = std::io::pipe().unwrap();
        let moved = Opened { number: second.as_raw_fd(), ..opened };
        assert_eq!(moved.still(), None);
    }
}
