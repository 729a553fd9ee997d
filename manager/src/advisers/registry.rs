//! Asks an interpreter where NNI keeps its configuration under it. Runs neither NNI nor an algorithm.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The time that the interpreter may take. It imports nothing but its standard library.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest answer: a path.
const MAX_ANSWER_BYTES: u64 = 8192;

/// Prints the folder as NNI finds it (nni 3.0, `nni/runtime/config.py`), and makes none; nothing where NNI is not installed.
const FIND: &str = "import os, sys
from importlib.util import find_spec
from pathlib import Path
if find_spec('nni'):
    given = os.getenv('NNI_CONFIG_DIR')
    own = sys.prefix != sys.base_prefix or Path(sys.prefix, 'conda-meta').is_dir()
    found = given if given is not None else Path(sys.prefix, 'nni') if own else Path.home() / '.config/nni'
    sys.stdout.buffer.write(b'found ' + os.fsencode(os.path.abspath(found)))
else:
    sys.stdout.buffer.write(b'none')";

/// Finds NNI's configuration folder under `python`, which may not exist yet. An error says why there is none.
pub fn find_nni_config(python: &Path) -> Result<PathBuf, String> {
    let shown = python.display();
    let mut child = Command::new(python)
        .args(["-c", FIND])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{shown} cannot be started: {error}"))?;
    let (send, answer) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        // Ends with the child, or when nothing holds the pipe any more.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = output.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes).map(|_| bytes);
            drop(send.send(read));
        });
    }
    let answer = answer.recv_timeout(ANSWER_TIMEOUT);
    // It has answered, or is too late; in either case it has nothing left to do.
    drop(child.kill());
    drop(child.wait());
    let bytes = match answer {
        Ok(read) => read.map_err(|error| format!("{shown} cannot be read: {error}"))?,
        Err(_) => return Err(format!("{shown} took more than {} s", ANSWER_TIMEOUT.as_secs())),
    };
    folder_of(&bytes).map_err(|problem| format!("{shown} {problem}"))
}

/// The folder that [`FIND`] printed.
fn folder_of(answer: &[u8]) -> Result<PathBuf, &'static str> {
    use std::os::unix::ffi::OsStrExt as _;
    match answer.strip_prefix(b"found ") {
        Some(path) if path.starts_with(b"/") => Ok(std::ffi::OsStr::from_bytes(path).into()),
        None if answer == b"none" => {
            Err("has no package `nni`; set `pythonInterpreter` to one that has it")
        }
        Some(_) | None => Err("does not say where NNI keeps its configuration"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_path_or_says_that_nni_is_absent() {
        #[rustfmt::skip]
        let table: [(&[u8], Result<&str, &str>); 5] = [
            (b"found /home/a/.config/nni", Ok("/home/a/.config/nni")),
            (b"none",                      Err("has no package `nni`; set `pythonInterpreter` to one that has it")),
            (b"",                          Err("does not say where NNI keeps its configuration")),
            (b"found relative",            Err("does not say where NNI keeps its configuration")),
            (b"\xff\xfe",                  Err("does not say where NNI keeps its configuration")),
        ];
        for (answer, expected) in table {
            assert_eq!(folder_of(answer), expected.map(PathBuf::from), "{answer:?}");
        }
    }

    #[test]
    fn an_interpreter_that_cannot_be_started_is_named() {
        let problem = find_nni_config(Path::new("/nowhere/python")).unwrap_err();
        assert!(problem.starts_with("/nowhere/python cannot be started: "), "{problem}");
    }
}
