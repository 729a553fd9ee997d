//! Completions, as the shells themselves find them.

use std::process::Command;

use trialkeeper_tests::TestBed;

/// What Bash offers for the last of these words.
fn offered(bed: &TestBed, words: &[&str]) -> Vec<String> {
    let (Some(last), Some(before)) = (words.last(), words.get(words.len().wrapping_sub(2))) else {
        panic!("two words at least: {words:?}")
    };
    let script = format!(
        "source <('{}' completions bash); COMP_WORDS=({}); COMP_CWORD={}; \
         _trial__manager trial-manager '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        bed.programs().join("trial-manager").display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
    );
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("it is text");
    said.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_below_the_first_word() {
    let bed = TestBed::new();
    #[rustfmt::skip]
    let table: [(&[&str], &[&str]); 5] = [
        (&["trial-manager", "exp"],                           &["experiment"]),
        (&["trial-manager", "trial", "l"],                    &["log-level", "logs", "ls"]),
        (&["trial-manager", "experiment", "sh"],              &["show"]),
        (&["trial-manager", "trial", "ls", "--st"],           &["--state"]),
        (&["trial-manager", "experiment", "export", "--fo"],  &["--format"]),
    ];
    for (words, expected) in table {
        let mut offered = offered(&bed, words);
        offered.sort();
        assert_eq!(offered, expected, "{words:?}");
    }
}

#[test]
fn what_people_type_first_is_taken() {
    let bed = TestBed::new();
    #[rustfmt::skip]
    let table: [(&[&str], &str); 6] = [
        (&["version"],               "trial-manager "),
        (&["ls"],                    ""),
        (&["list"],                  ""),
        (&["experiments", "list"],   ""),
        (&["experiment", "ls"],      ""),
        (&["completions", "bash"],   "_trial__manager"),
    ];
    for (words, expected) in table {
        let mut command = bed.manager();
        let output = command.args(words).env("TRIAL_MANAGER_DATA_DIR", bed.data()).output();
        let output = output.expect("it can be started");
        let (said, why) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        assert_eq!(output.status.code(), Some(0), "{words:?}: {why}");
        assert!(String::from_utf8_lossy(&said).starts_with(expected), "{words:?}");
    }
}
