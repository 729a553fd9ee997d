//! Asks a Python interpreter for the folder of NNI's configuration. Runs neither NNI nor an algorithm.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The maximum time for the interpreter's answer. It imports only its standard library.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The maximum size of the answer, which is a path.
const MAX_ANSWER_BYTES: u64 = 8192;

/// Prints the folder as NNI determines it (nni 3.0, `nni/runtime/config.py`), without creating it. Prints `none` if
/// NNI is not installed.
const FIND_FOLDER_SCRIPT: &str = "import os, sys
from importlib.util import find_spec
from pathlib import Path
if find_spec('nni'):
    given = os.getenv('NNI_CONFIG_DIR')
    own = sys.prefix != sys.base_prefix or Path(sys.prefix, 'conda-meta').is_dir()
    found = given if given is not None else Path(sys.prefix, 'nni') if own else Path.home() / '.config/nni'
    sys.stdout.buffer.write(b'found ' + os.fsencode(os.path.abspath(found)))
else:
    sys.stdout.buffer.write(b'none')";

/// Returns NNI's configuration folder for `python`, which may not exist yet. The error gives the reason for a missing
/// folder.
pub fn find_nni_config(python: &Path) -> Result<PathBuf, String> {
    let shown = python.display();
    let mut child = Command::new(python)
        .args(["-c", FIND_FOLDER_SCRIPT])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{shown} cannot be started: {error}"))?;
    let (send, answer) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        // The thread ends with the child, or once all writers have closed the pipe.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = output.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes).map(|_| bytes);
            drop(send.send(read));
        });
    }
    let answer = answer.recv_timeout(ANSWER_TIMEOUT);
    // The child has answered or exceeded the time limit, so it is no longer needed.
    drop(child.kill());
    drop(child.wait());
    let bytes = match answer {
        Ok(read) => read.map_err(|error| format!("{shown} cannot be read: {error}"))?,
        Err(_) => return Err(format!("{shown} took more than {} s", ANSWER_TIMEOUT.as_secs())),
    };
    parse_folder(&bytes).map_err(|problem| format!("{shown} {problem}"))
}

/// Parses the folder that [`FIND_FOLDER_SCRIPT`] printed.
fn parse_folder(answer: &[u8]) -> Result<PathBuf, &'static str> {
    use std::os::unix::ffi::OsStrExt as _;
    match answer.strip_prefix(b"found ") {
        Some(path) if path.starts_with(b"/") => Ok(std::ffi::OsStr::from_bytes(path).into()),
        None if answer == b"none" => {
            Err("has no package `nni`; set `pythonInterpreter` to an interpreter with this package")
        }
        Some(_) | None => Err("did not print the folder of NNI's configuration"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_path_or_reports_that_nni_is_missing() {
        #[rustfmt::skip]
        let table: [(&[u8], Result<&str, &str>); 5] = [
            (b"found /home/a/.config/nni", Ok("/home/a/.config/nni")),
            (b"none",                      Err("has no package `nni`; set `pythonInterpreter` to an interpreter with this package")),
            (b"",                          Err("did not print the folder of NNI's configuration")),
            (b"found relative",            Err("did not print the folder of NNI's configuration")),
            (b"\xff\xfe",                  Err("did not print the folder of NNI's configuration")),
        ];
        for (answer, expected) in table {
            assert_eq!(parse_folder(answer), expected.map(PathBuf::from), "{answer:?}");
        }
    }

    #[test]
    fn the_error_names_an_interpreter_that_cannot_be_started() {
        let problem = find_nni_config(Path::new("/nowhere/python")).unwrap_err();
        assert!(problem.starts_with("/nowhere/python cannot be started: "), "{problem}");
    }
}
