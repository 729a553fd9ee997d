//! PURE: converts a verdict to the forms that platforms read: Kubernetes' termination message and
//! `FrameworkController`'s exit codes.

use trial_protocol::{Class, Verdict};

use super::phrases;

/// The maximum size of a termination message in Kubernetes, in bytes.
pub const TERMINATION_MESSAGE_BYTES: usize = 4096;

/// The sizes of the tails of standard error and output to try in turn, in bytes.
const TAIL_SIZES: [(usize, usize); 8] =
    [(3072, 1024), (2048, 512), (1536, 256), (1024, 128), (512, 0), (256, 0), (128, 0), (0, 0)];

/// The maximum number of named leftover processes if space is short.
const MAX_PUBLISHED_LEFTOVERS: usize = 8;

/// The maximum size of a text that must be cut, in bytes.
const CUT_TEXT_BYTES: usize = 512;

/// Returns the verdict as at most [`TERMINATION_MESSAGE_BYTES`] of complete JSON. Tails shrink first (output before
/// errors), then GPU readings are removed, then names of leftovers, then the message's end.
pub fn termination_message(verdict: &Verdict) -> String {
    let mut short = verdict.clone();
    for (stderr, stdout) in TAIL_SIZES {
        short.evidence.stderr_tail =
            phrases::last_lines_of(verdict.evidence.stderr_tail.as_bytes(), stderr);
        short.evidence.stdout_tail =
            phrases::last_lines_of(verdict.evidence.stdout_tail.as_bytes(), stdout);
        if let Some(json) = to_json_if_fitting(&short) {
            return json;
        }
    }
    short.evidence.gpus.clear();
    short.evidence.gpu_idle_ms.clear();
    if let Some(json) = to_json_if_fitting(&short) {
        return json;
    }
    short.evidence.leftovers.truncate(MAX_PUBLISHED_LEFTOVERS);
    for leftover in &mut short.evidence.leftovers {
        truncate_text(leftover, 64);
    }
    if let Some(json) = to_json_if_fitting(&short) {
        return json;
    }
    truncate_text(&mut short.message, CUT_TEXT_BYTES);
    // An escaped character has at most six bytes. 512 characters of the message and 8 x 64 of the leftovers may still
    // be too many; without the leftovers, they fit.
    to_json_if_fitting(&short).unwrap_or_else(|| {
        short.evidence.leftovers.clear();
        to_json_if_fitting(&short)
            .expect("512 characters, escaped, and a dozen numbers are below 4096 bytes")
    })
}

/// Returns the exit code for `FrameworkController`, which decides about retries by it: 200 is transient, 210 is
/// permanent, and any other code is the trial's own (its `pkg/apis/frameworkcontroller/v1/completion.go`).
///
/// A user error counts as permanent, because a repeated command fails again. Code 201 is a conflict between frameworks
/// over a gang of machines, which an agent in one pod cannot detect. A trial that ended as intended keeps its code. A
/// reserved code (200 to 219) that the trial itself chose is replaced.
pub fn exit_code_for_frameworkcontroller(class: Class, code: u8) -> u8 {
    match class {
        Class::Transient => 200,
        Class::UserError | Class::Permanent => 210,
        Class::None | Class::Other if (200..=219).contains(&code) => 210,
        Class::None | Class::Other => code,
    }
}

fn to_json_if_fitting(verdict: &Verdict) -> Option<String> {
    let json = serde_json::to_string(verdict).expect("a verdict is always valid JSON");
    (json.len() <= TERMINATION_MESSAGE_BYTES).then_some(json)
}

fn truncate_text(text: &mut String, max_bytes: usize) {
    text.truncate(text.floor_char_boundary(max_bytes));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trial_protocol::{Cause, Confidence, Evidence, GpuSample};

    use super::*;

    fn verdict(message: String, evidence: Evidence) -> Verdict {
        Verdict {
            cause: Cause::Exit,
            class: Class::UserError,
            confidence: Confidence::Certain,
            exit: None,
            message,
            stop: None,
            duration_ms: Some(u64::MAX),
            evidence,
        }
    }

    fn read(json: &str) -> Verdict {
        assert!(json.len() <= TERMINATION_MESSAGE_BYTES, "{}", json.len());
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_short_verdict_is_published_whole() {
        let stderr_tail = "ValueError: x\n".to_owned();
        let whole =
            verdict("It failed.".to_owned(), Evidence { stderr_tail, ..Evidence::default() });
        assert_eq!(read(&termination_message(&whole)), whole);
    }

    #[test]
    fn output_shrinks_before_errors_and_errors_before_facts() {
        let line = "0123456789\n".repeat(360);
        let gpu = GpuSample { name: Some("NVIDIA H200".to_owned()), ..GpuSample::default() };
        let evidence = Evidence {
            stdout_tail: line.clone(),
            stderr_tail: line,
            gpus: vec![gpu; 4],
            leftovers: vec!["17 sleep".to_owned()],
            ..Evidence::default()
        };
        let read = read(&termination_message(&verdict("It failed.".to_owned(), evidence)));
        let (errors, output) = (read.evidence.stderr_tail.len(), read.evidence.stdout_tail.len());
        assert!(errors > 1_500 && output > 0 && output < errors, "{errors}, {output}");
        assert_eq!(read.evidence.gpus.len(), 4);
        assert_eq!(read.evidence.leftovers, ["17 sleep"]);
    }

    #[test]
    fn classes_become_frameworkcontrollers_codes() {
        #[rustfmt::skip]
        let table = [
            ("success",                 Class::None,      0,   0),
            ("a wanted end",            Class::None,      143, 143),
            ("a transient failure",     Class::Transient, 137, 200),
            ("a user error",            Class::UserError, 1,   210),
            ("a permanent failure",     Class::Permanent, 137, 210),
            ("a class from the future", Class::Other,     7,   7),
            ("a reserved code",         Class::None,      200, 210),
        ];
        for (case, class, code, expected) in table {
            assert_eq!(exit_code_for_frameworkcontroller(class, code), expected, "{case}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn the_message_of_a_random_verdict_is_whole(
            message in ".{0,3000}",
            stdout_tail in "(?s).{0,3000}",
            stderr_tail in "[\u{0}-\u{1f}x]{0,5000}",
            leftovers in proptest::collection::vec(".{0,300}", 0..40),
            gpus in 0..40_usize,
            idle in proptest::collection::btree_map(".{0,50}", any::<u64>(), 0..40),
        ) {
            let name = Some("\u{1}".repeat(50));
            let gpus = vec![GpuSample { name, ..GpuSample::default() }; gpus];
            let evidence =
                Evidence { stdout_tail, stderr_tail, leftovers, gpus, gpu_idle_ms: idle, ..Evidence::default() };
            read(&termination_message(&verdict(message, evidence)));
        }
    }
}
