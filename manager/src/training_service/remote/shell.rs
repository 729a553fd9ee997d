//! PURE: words and folders in the scripts that machines run, and the command that runs a script.

use crate::config::MachineSpec;

/// The mark of the lines that TrialKeeper's scripts print, which a login shell's banner does not have.
pub(super) const MARK: &str = "tk:";

/// Quotes a text as one word of a Bourne shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The characters that a quoted word of a login shell may not contain, and their stand-ins. A C shell does not accept
/// line breaks and exclamation marks there, and `fish` reads a backslash before a quote or a backslash.
const UNQUOTABLE: [(char, char); 4] =
    [('\'', '\u{1}'), ('\n', '\u{2}'), ('\\', '\u{3}'), ('!', '\u{4}')];

/// Returns the command that runs a script in a Bourne shell, whatever the login shell is. The first line of the output
/// is empty, because a login shell may print text without a line break first.
pub(super) fn command(script: &str) -> String {
    let mut encoded = format!("echo\n{script}");
    for (character, stand_in) in UNQUOTABLE {
        encoded = encoded.replace(character, &stand_in.to_string());
    }
    let decode = r#"tr "\001\002\003\004" "\047\012\134\041""#;
    let run = format!(r#"script=$1; shift; eval "$(printf %s "$script" | {decode})""#);
    format!("exec /bin/sh -c '{run}' /bin/sh '{encoded}'")
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

    /// A script with all characters that some shell does not accept in quotes, and a document in itself.
    const SCRIPT: &str = r#"# It's a comment!
word='a '\''quoted'\'' word\\'; printf '%s\n' "$word" "é!" "$(cat)"
for number in 1 2; do
  echo "$number"
done; exec "$@" echo "last \"word\""
"#;

    fn expect_in(shell: &str) {
        use std::io::Write as _;
        let mut login = std::process::Command::new(shell);
        login.args(["-c", &command(SCRIPT)]).env("HOME", "/nonexistent");
        let pipe = std::process::Stdio::piped;
        let login = login.stdin(pipe()).stdout(pipe()).spawn();
        let mut login = login.unwrap_or_else(|error| panic!("{shell}: {error}"));
        login.stdin.take().unwrap().write_all(b"the input").unwrap();
        let output = login.wait_with_output().unwrap();
        let expected = "\na 'quoted' word\\\\\né!\nthe input\n1\n2\nlast \"word\"\n";
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{shell}");
        let mut failing = std::process::Command::new(shell);
        let output = failing.args(["-c", &command("\nexec no-such-program")]).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.starts_with("/bin/sh: "), "{shell}: {message}");
    }

    #[test]
    fn a_script_runs_whatever_the_login_shell_is() {
        expect_in("sh");
        expect_in("bash");
    }

    #[test]
    #[ignore = "needs zsh and fish"]
    fn a_script_runs_if_zsh_or_fish_is_the_login_shell() {
        expect_in("zsh");
        expect_in("fish");
    }

    #[test]
    #[ignore = "needs tcsh"]
    fn a_script_runs_if_a_c_shell_is_the_login_shell() {
        expect_in("tcsh");
    }

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
