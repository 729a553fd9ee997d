//! PURE: words and folders in the scripts that machines run.

use crate::config::MachineSpec;

/// The mark of the lines that TrialKeeper's scripts print, which a login shell's banner does not have.
pub(super) const MARK: &str = "tk:";

/// Quotes a text as one word of a Bourne shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the folders of agents and of experiments, as words of a shell.
pub(super) fn folders(machine: &MachineSpec) -> (String, String) {
    match &machine.directory {
        Some(folder) => (quoted(&format!("{folder}/agent")), quoted(folder)),
        None => (
            r#""${XDG_CACHE_HOME:-$HOME/.cache}/trialkeeper/agent""#.to_owned(),
            r#""$HOME/.local/share/trialkeeper/remote""#.to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_shell_reads_back_what_was_quoted(text in "[^\0]*") {
            let line = format!("printf %s {}", quoted(&text));
            let output = std::process::Command::new("/bin/sh").args(["-c", &line]).output().unwrap();
            prop_assert_eq!(output.stdout, text.into_bytes());
        }
    }
}
