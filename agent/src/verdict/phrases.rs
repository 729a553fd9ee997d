//! PURE: finds known phrases about the cause of the end in the last lines of a trial's output. Only the tail is
//! searched: an error that the trial survived is not the cause of its end.

use memchr::memmem;

use crate::collect::{METRIC_MARKER, ansi};

/// The number of bytes of a tail that are searched: enough for a Python traceback and the lines around it.
const SEARCHED_BYTES: usize = 16 * 1024;

/// The maximum length of a quoted last line, in characters.
const QUOTED_CHARS: usize = 300;

/// The maximum number of lines after the first line of an exception that ended the trial.
const MAX_EXCEPTION_LINES: usize = 8;

/// A hint at the cause of the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hint {
    /// The GPU's memory was exhausted.
    GpuMemory,
    /// A GPU disappeared or failed.
    GpuLost,
    /// A disk, or shared memory, is full.
    DiskFull,
    /// A process of the trial was killed.
    ChildKilled,
    /// A shell did not find a program.
    NotFound,
    /// A shell could not execute a program.
    NotExecutable,
}

/// The phrases, grouped by the programs that print them. In a line with several phrases, the first one here counts.
const HINT_PHRASES: [(&str, Hint); 36] = [
    // PyTorch.
    ("torch.OutOfMemoryError", Hint::GpuMemory),
    ("torch.cuda.OutOfMemoryError", Hint::GpuMemory),
    ("CUDA out of memory", Hint::GpuMemory),
    ("HIP out of memory", Hint::GpuMemory),
    ("CUDA error: out of memory", Hint::GpuMemory),
    ("CUBLAS_STATUS_ALLOC_FAILED", Hint::GpuMemory),
    ("CUDNN_STATUS_ALLOC_FAILED", Hint::GpuMemory),
    // TensorFlow.
    ("OOM when allocating tensor", Hint::GpuMemory),
    ("CUDA_ERROR_OUT_OF_MEMORY", Hint::GpuMemory),
    ("failed to allocate memory [Op:", Hint::GpuMemory),
    // JAX and XLA.
    ("RESOURCE_EXHAUSTED: Out of memory", Hint::GpuMemory),
    ("RESOURCE_EXHAUSTED: XLA:", Hint::GpuMemory),
    // CuPy, Numba, XGBoost and the CUDA runtime itself.
    ("cupy.cuda.memory.OutOfMemoryError", Hint::GpuMemory),
    ("cudaErrorMemoryAllocation", Hint::GpuMemory),
    ("bad_alloc: cudaError", Hint::GpuMemory),
    // The CUDA runtime and the driver.
    ("GPU is lost", Hint::GpuLost),
    ("has fallen off the bus", Hint::GpuLost),
    ("uncorrectable ECC error", Hint::GpuLost),
    ("cudaErrorDevicesUnavailable", Hint::GpuLost),
    ("cudaErrorECCUncorrectable", Hint::GpuLost),
    ("CUDA_ERROR_ECC_UNCORRECTABLE", Hint::GpuLost),
    ("CUDA-capable device(s) is/are busy or unavailable", Hint::GpuLost),
    ("Failed to initialize NVML: Unknown Error", Hint::GpuLost),
    // The C library's messages for ENOSPC and EDQUOT.
    ("No space left on device", Hint::DiskFull),
    ("Disk quota exceeded", Hint::DiskFull),
    ("[Errno 28]", Hint::DiskFull),
    // PyTorch's data loader, Python's process pool, joblib.
    ("is killed by signal: Killed", Hint::ChildKilled),
    ("is killed by signal: 9", Hint::ChildKilled),
    ("terminated abruptly while the future was", Hint::ChildKilled),
    ("TerminatedWorkerError", Hint::ChildKilled),
    // Shells: dash, bash, busybox.
    ("command not found", Hint::NotFound),
    (": not found", Hint::NotFound),
    ("No such file or directory", Hint::NotFound),
    ("Permission denied", Hint::NotExecutable),
    ("Exec format error", Hint::NotExecutable),
    ("cannot execute", Hint::NotExecutable),
];

/// Returns the hint of the last phrase in `tail` that belongs to one of the `asked` hints: the last phrase is nearest
/// to the end.
pub(super) fn find_hint(tail: &[u8], asked: &[Hint]) -> Option<Hint> {
    let tail = &tail[tail.len().saturating_sub(SEARCHED_BYTES)..];
    let phrases = HINT_PHRASES.iter().filter(|(_, hint)| asked.contains(hint));
    let places = phrases.filter_map(|(phrase, hint)| {
        let place = memmem::rfind(tail, phrase.as_bytes())?;
        // Of several phrases on one line, the first in the table counts.
        let line = memchr::memrchr(b'\n', &tail[..place]).map_or(0, |newline| newline + 1);
        Some((line, *hint))
    });
    let last = places.reduce(|best, next| if next.0 > best.0 { next } else { best });
    last.map(|(_, hint)| hint)
}

/// Returns the first line of the exception in the Python traceback that ends `tail`. Some exceptions have several
/// lines, such as those of a failed CUDA kernel, and only the first line names the error.
pub(super) fn find_exception(tail: &[u8]) -> Option<String> {
    let traceback = &tail[memmem::rfind(tail, b"Traceback (most recent call last):")?..];
    let mut lines = traceback.trim_ascii_end().split(|byte| *byte == b'\n');
    let line = lines.find(|line| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or(line);
        !name.contains(&b' ') && (name.ends_with(b"Error") || name.ends_with(b"Exception"))
    })?;
    // Much output after the exception shows that the trial survived it.
    if lines.count() > MAX_EXCEPTION_LINES { None } else { last_line(line) }
}

/// Returns the last line with text for the user, without colours and control characters, at most [`QUOTED_CHARS`] long.
pub(super) fn last_line(tail: &[u8]) -> Option<String> {
    let words = |line: &&[u8]| {
        let line = line.trim_ascii();
        // NNI's metric lines are for programs.
        !line.is_empty() && !line.starts_with(METRIC_MARKER)
    };
    let line = tail.rsplit(|byte| *byte == b'\n').find(words)?;
    // Of a progress bar, only the last state counts.
    let line = line.trim_ascii();
    let state = line.rsplit(|byte| *byte == b'\r').next().unwrap_or(line);
    let plain = ansi::strip(state);
    let text = String::from_utf8_lossy(&plain);
    let shown: String = text.chars().filter(|c| !c.is_control()).take(QUOTED_CHARS).collect();
    (!shown.is_empty()).then_some(shown)
}

/// Returns the last lines of `bytes`, at most `max_bytes` of text, from the beginning of a line if possible.
pub(super) fn last_lines_of(bytes: &[u8], max_bytes: usize) -> String {
    let cut = bytes.len().saturating_sub(max_bytes);
    let mut kept = &bytes[cut..];
    if cut > 0 && bytes[cut - 1] != b'\n' {
        let line = memchr::memchr(b'\n', kept).map_or(0, |newline| newline + 1);
        if line < kept.len() {
            kept = &kept[line..];
        }
        // Without a newline, at least a partial character is removed.
        let half = kept.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        kept = &kept[half..];
    }
    let text = String::from_utf8_lossy(kept);
    // An invalid byte becomes a character of three bytes.
    let over = text.ceil_char_boundary(text.len().saturating_sub(max_bytes));
    text[over..].to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Hint; 6] = [
        Hint::GpuMemory,
        Hint::GpuLost,
        Hint::DiskFull,
        Hint::ChildKilled,
        Hint::NotFound,
        Hint::NotExecutable,
    ];

    #[test]
    fn the_last_phrase_counts() {
        #[rustfmt::skip]
        let table: [(&str, &str, Option<Hint>); 12] = [
            ("nothing",               "",                                                                     None),
            ("an ordinary error",     "Traceback:\nValueError: x\n",                                          None),
            ("PyTorch",               "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",  Some(Hint::GpuMemory)),
            ("TensorFlow",            "ResourceExhaustedError: OOM when allocating tensor with shape[9]",     Some(Hint::GpuMemory)),
            ("JAX",                   "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9",      Some(Hint::GpuMemory)),
            ("a full disk",           "OSError: [Errno 28] No space left on device: 'x'",                     Some(Hint::DiskFull)),
            ("a data loader",         "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", Some(Hint::ChildKilled)),
            ("a lost GPU",            "CUDA error: uncorrectable ECC error encountered",                      Some(Hint::GpuLost)),
            ("dash",                  "sh: 1: nosuch: not found",                                             Some(Hint::NotFound)),
            ("bash",                  "bash: ./x: Permission denied",                                         Some(Hint::NotExecutable)),
            ("one survived",          "CUDA out of memory, trying half\nNo space left on device\n",           Some(Hint::DiskFull)),
            ("and the other way",     "No space left on device\nCUDA out of memory\n",                        Some(Hint::GpuMemory)),
        ];
        for (case, tail, expected) in table {
            assert_eq!(find_hint(tail.as_bytes(), &ALL), expected, "{case}");
        }
        let long_ago = format!("CUDA out of memory\n{}", "fine\n".repeat(4_000));
        assert_eq!(find_hint(long_ago.as_bytes(), &ALL), None);
        let both = b"CUDA out of memory\nNo such file or directory\n";
        assert_eq!(find_hint(both, &[Hint::GpuMemory]), Some(Hint::GpuMemory));
    }

    #[test]
    fn the_last_line_is_the_last_with_text() {
        let metric = [b"bad\n", METRIC_MARKER, b"{}'\n"].concat();
        #[rustfmt::skip]
        let table: [(&str, &[u8], Option<&str>); 8] = [
            ("nothing",            b"",                          None),
            ("white space",        b" \n\n",                     None),
            ("a traceback",        b"Trace\n  x\nKeyError: 3\n", Some("KeyError: 3")),
            ("a progress bar",     b"1%\r2%\r\n",                Some("2%")),
            ("control characters", b"a\x1b[0m\x07b",             Some("ab")),
            ("no text",            b"\xffx",                     Some("\u{fffd}x")),
            ("a metric of NNI's",  &metric,                      Some("bad")),
            ("metrics only",       &metric[4..],                 None),
        ];
        for (case, tail, expected) in table {
            assert_eq!(last_line(tail).as_deref(), expected, "{case}");
        }
    }

    #[test]
    fn the_exception_is_that_of_the_last_traceback() {
        let traceback =
            "Traceback (most recent call last):\n  File \"t.py\", line 1\n    x: Error\n";
        let cuda = "torch.AcceleratorError: CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'\n\nCompile with\n";
        let long_ago = format!("KeyError: 3\n{}", "fine\n".repeat(9));
        #[rustfmt::skip]
        let table: [(&str, &str, Option<&str>); 8] = [
            ("one line",             "KeyError: 3\n",                         Some("KeyError: 3")),
            ("no message",           "AssertionError\n",                      Some("AssertionError")),
            ("several lines",        cuda,                                    Some("torch.AcceleratorError: CUDA error: device-side assert triggered")),
            ("a line of another",    "INFO: bye\nmy.OwnException: x\nend\n",  Some("my.OwnException: x")),
            ("two tracebacks",       "KeyError: 3\n\nTraceback (most recent call last):\n  y\nValueError: 4\n", Some("ValueError: 4")),
            ("an unusual name",      "KeyboardInterrupt\n",                   None),
            ("a survived exception", &long_ago,                               None),
            ("words that end so",    "this is no Error: x\n",                 None),
        ];
        for (case, end, expected) in table {
            assert_eq!(
                find_exception(format!("{traceback}{end}").as_bytes()).as_deref(),
                expected,
                "{case}"
            );
        }
        assert_eq!(find_exception(b"KeyError: 3\n"), None);
    }

    #[test]
    fn a_tail_begins_with_a_line() {
        #[rustfmt::skip]
        let table: [(&str, &str, usize, &str); 6] = [
            ("short enough",       "one\ntwo\n",  20, "one\ntwo\n"),
            ("cut in a line",      "one\ntwo\n",  6,  "two\n"),
            ("cut at a line",      "one\ntwo\n",  4,  "two\n"),
            ("one long line",      "abcdef",      3,  "def"),
            ("a newline last",     "abcdef\n",    3,  "ef\n"),
            ("half a character",   "aé",          1,  ""),
        ];
        for (case, bytes, max, expected) in table {
            assert_eq!(last_lines_of(bytes.as_bytes(), max), expected, "{case}");
        }
    }

    proptest! {
        #[test]
        fn the_tail_of_random_bytes_is_bounded(bytes: Vec<u8>, max in 0..100_usize) {
            prop_assert!(last_lines_of(&bytes, max).len() <= max);
            find_hint(&bytes, &ALL);
            for line in [last_line(&bytes), find_exception(&bytes)].into_iter().flatten() {
                prop_assert!(line.chars().count() <= QUOTED_CHARS);
            }
        }
    }
}
