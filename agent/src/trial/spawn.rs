//! Starts a process without copying the agent's memory, like `posix_spawn`: the child borrows the memory until it
//! executes the program. A copy would take longer than all other parts of the trial's start.
//!
//! std does the same, but not for a child with a parent-death signal. Everything that allocates memory must happen
//! before the child exists. The child must only make system calls.

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, clone};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Pid, chdir, dup2_stderr, dup2_stdout, getpid, getppid, setpgid};

use super::TrialCommand;
use crate::trial::environment::EnvironmentChanges;
use crate::trial::reap;
use crate::trial::signals;
use crate::trial::terminal;

/// The size of the child's stack, in bytes. The child's calls are shallow and never recursive.
const CHILD_STACK_BYTES: usize = 16 * 1024;

/// The search path for programs if `PATH` is not set (`man 3 execvp`).
const DEFAULT_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

/// The shell for a script without an interpreter line, which the kernel cannot execute (`man 3 execvp`, on `ENOEXEC`).
const SHELL_PATH: &CStr = c"/bin/sh";

/// The child's standard output and error. `None`: the agent's.
pub(super) struct Outputs {
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

/// Starts the program as the leader of its own process group, and returns its pid after the exec. With `take_terminal`,
/// the group moves to the foreground of the agent's terminal. Only for [`reap::Reaper::spawn_with`].
pub(super) fn spawn(
    command: &TrialCommand,
    outputs: &Outputs,
    take_terminal: bool,
) -> Result<Pid, io::Error> {
    let environment = environment(env::vars_os(), &command.environment)?;
    let mut words = vec![to_c_string(&command.program)?];
    for argument in &command.arguments {
        words.push(to_c_string(argument)?);
    }
    let directory =
        command.directory.as_ref().map(|path| to_c_string(path.as_os_str())).transpose()?;
    let child = ChildSetup {
        variables: CStringPointers::new(&environment),
        directory: directory.as_deref(),
        parent: getpid(),
        die_with_agent: !command.detach_on_death,
        outputs,
        take_terminal,
    };
    let paths = candidate_paths(&command.program, &environment)?;
    let tried = AtomicUsize::new(0);
    let start = |paths: &[CString], words: &[CString]| {
        let words = CStringPointers::new(words);
        run_in_child(&|| child.execute_first(paths, &words, &tried))
    };
    let mut started = start(&paths, &words);
    if started == Err(Errno::ENOEXEC) {
        words[0] = paths[tried.load(Ordering::Acquire)].clone();
        words.insert(0, SHELL_PATH.to_owned());
        started = start(&words[..1], &words);
    }
    Ok(started?)
}

/// The data for the child, prepared before the child exists.
struct ChildSetup<'a> {
    variables: CStringPointers<'a>,
    directory: Option<&'a CStr>,
    /// The agent's pid.
    parent: Pid,
    /// `true` if the kernel kills the child when the agent is killed.
    die_with_agent: bool,
    outputs: &'a Outputs,
    take_terminal: bool,
}

impl ChildSetup<'_> {
    /// Executes the first program of `paths` that can be executed. Returns only on failure, with the reason; `tried` is
    /// then the index of the last path tried.
    fn execute_first(
        &self,
        paths: &[CString],
        words: &CStringPointers<'_>,
        tried: &AtomicUsize,
    ) -> Errno {
        if let Err(error) = self.set_up() {
            return error;
        }
        let mut reported_error = Errno::ENOENT;
        for (at, path) in paths.iter().enumerate() {
            tried.store(at, Ordering::Release);
            let error = execute(path, words, &self.variables);
            if error == Errno::EACCES {
                // A later path may work. If none does, this error is the most informative.
                reported_error = error;
            } else if error != Errno::ENOENT && error != Errno::ENOTDIR {
                return error;
            }
        }
        reported_error
    }

    fn set_up(&self) -> Result<(), Errno> {
        if let Some(stdout) = &self.outputs.stdout {
            dup2_stdout(stdout)?;
        }
        if let Some(stderr) = &self.outputs.stderr {
            dup2_stderr(stderr)?;
        }
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        if let Some(directory) = self.directory {
            chdir(directory)?;
        }
        if self.die_with_agent {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The agent may have been killed before `set_pdeathsig` took effect. The trial must not start then.
            if getppid() != self.parent {
                return Err(Errno::ESRCH);
            }
        }
        if self.take_terminal {
            terminal::take_foreground_in_child();
        }
        #[expect(unsafe_code, reason = "nix has no safe function to set a signal's action")]
        // SAFETY: the default action runs no code of this program. Rust programs ignore SIGPIPE, and the agent also
        // SIGXFSZ. Other programs do not expect that. A trial that ignores SIGTERM could not be stopped gracefully.
        unsafe {
            signal(Signal::SIGTERM, SigHandler::SigDfl)?;
            signal(Signal::SIGPIPE, SigHandler::SigDfl)?;
            signal(Signal::SIGXFSZ, SigHandler::SigDfl)?;
        }
        signals::unblock_all();
        Ok(())
    }
}

/// Runs `child` in a process that shares the agent's memory. This thread waits until that process has executed a
/// program or ended. `child` returns only on failure, with the reason.
fn run_in_child(child: &dyn Fn() -> Errno) -> Result<Pid, Errno> {
    let failed = AtomicI32::new(0);
    let mut stack = [0; CHILD_STACK_BYTES];
    let main = Box::new(|| {
        failed.store(error_number(child()), Ordering::Release);
        127
    });
    #[expect(unsafe_code, reason = "Rust cannot check memory that is shared with a process")]
    // SAFETY: with CLONE_VFORK this thread is suspended until the child has left the agent's memory. So the data that
    // the child borrows outlives it, and no thread shares its stack. Other threads continue, so the child must not lock
    // or allocate. The only function ever run here is `ChildSetup::execute_first`, which makes system calls with
    // prepared data and returns a number. The agent's signal handlers are for faults only.
    let pid = unsafe {
        clone(main, &mut stack, CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK, Some(libc::SIGCHLD))
    }?;
    match failed.load(Ordering::Acquire) {
        0 => Ok(pid),
        error => {
            reap::reap_failed_child(pid);
            Err(Errno::from_raw(error))
        }
    }
}

#[expect(clippy::as_conversions, reason = "a field-less enum's discriminant; there is no From")]
fn error_number(error: Errno) -> i32 {
    error as i32
}

/// Executes the program. Returns only on failure, with the reason.
fn execute(path: &CStr, words: &CStringPointers<'_>, variables: &CStringPointers<'_>) -> Errno {
    #[expect(unsafe_code, reason = "nix's function allocates, which is forbidden in this child")]
    // SAFETY: all strings end with a NUL and outlive the call, and both lists end with a null.
    unsafe {
        libc::execve(path.as_ptr(), words.0.as_ptr(), variables.0.as_ptr());
    }
    Errno::last()
}

/// A list of C strings with a terminating null, as for `execve`.
struct CStringPointers<'a>(Vec<*const c_char>, PhantomData<&'a CStr>);

impl<'a> CStringPointers<'a> {
    fn new(strings: &'a [CString]) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr());
        Self(pointers.chain([ptr::null()]).collect(), PhantomData)
    }
}

fn to_c_string(text: &OsStr) -> Result<CString, io::Error> {
    Ok(CString::new(text.as_bytes())?)
}

/// PURE: returns the variables `inherited` after the changes, each as `NAME=value`.
fn environment(
    inherited: impl Iterator<Item = (OsString, OsString)>,
    changes: &EnvironmentChanges,
) -> Result<Vec<CString>, io::Error> {
    let entry = |name: &OsStr, value: &OsStr| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let set = |name: &OsStr| changes.set.iter().any(|(other, _)| other == name);
    let mut variables = Vec::new();
    for (name, value) in inherited {
        if !changes.remove.contains(&name) && !set(&name) {
            variables.push(entry(&name, &value)?);
        }
    }
    for (at, (name, value)) in changes.set.iter().enumerate() {
        // If a name is set twice, the last value counts.
        if !changes.set[at + 1..].iter().any(|(other, _)| other == name) {
            variables.push(entry(name, value)?);
        }
    }
    Ok(variables)
}

/// PURE: returns the candidate paths of a program, in order (`man 3 execvp`).
fn candidate_paths(program: &OsStr, environment: &[CString]) -> Result<Vec<CString>, io::Error> {
    if program.is_empty() {
        return Ok(Vec::new());
    }
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![to_c_string(program)?]);
    }
    let path = environment.iter().find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="));
    let path = OsString::from_vec(path.unwrap_or(DEFAULT_PATH.as_bytes()).to_owned());
    env::split_paths(&path).map(|folder| to_c_string(folder.join(program).as_os_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(texts: &[&str]) -> Vec<CString> {
        texts.iter().map(|text| CString::new(*text).unwrap()).collect()
    }

    #[test]
    fn the_search_path_is_that_of_execvp() {
        #[rustfmt::skip]
        let table: [(&str, &[&str], &[&str]); 7] = [
            ("",       &["PATH=/a"],           &[]),
            ("/x",     &["PATH=/a"],           &["/x"]),
            ("./x",    &["PATH=/a"],           &["./x"]),
            ("x",      &["PATH=/a:/b/c"],      &["/a/x", "/b/c/x"]),
            // An empty entry is the current directory.
            ("x",      &["A=PATH=", "PATH=:/b"], &["x", "/b/x"]),
            ("x",      &["PATH="],             &["x"]),
            ("x",      &["XPATH=/a"],          &["/usr/local/bin/x", "/bin/x", "/usr/bin/x"]),
        ];
        for (program, variables, paths) in table {
            let found = candidate_paths(program.as_ref(), &strings(variables)).unwrap();
            assert_eq!(found, strings(paths), "{program} with {variables:?}");
        }
    }

    #[test]
    fn the_changes_apply_to_the_inherited_environment() {
        let pair = |(name, value): (&str, &str)| (OsString::from(name), OsString::from(value));
        let inherited = [("A", "1"), ("B", "2"), ("C", "=3")].map(pair);
        let changes = EnvironmentChanges {
            remove: vec!["B".into()],
            set: [("D", "4"), ("A", "5"), ("D", "6")].map(pair).to_vec(),
        };
        let variables = environment(inherited.into_iter(), &changes).unwrap();
        assert_eq!(variables, strings(&["C==3", "A=5", "D=6"]));
    }

    #[test]
    fn a_failed_child_returns_its_error() {
        for why in [Errno::ENOTDIR, Errno::EAGAIN] {
            assert_eq!(run_in_child(&|| why), Err(why));
        }
        let nothing = CStringPointers::new(&[]);
        let started = run_in_child(&|| execute(c"/no/such/program", &nothing, &nothing));
        assert_eq!(started, Err(Errno::ENOENT));
    }
}
