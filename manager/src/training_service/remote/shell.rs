//! PURE: words and folders in the scripts that machines run, and the command that runs a script.

use crate::config::MachineSpec;
use crate::util::shell::quote;

/// The mark of the lines that TrialKeeper's scripts print, which a login shell's banner does not have.
pub(super) const LINE_MARK: &str = "tk:";

/// The programs that the scripts of a session use.
pub(super) const SESSION_TOOLS: [&str; 10] =
    ["sha256sum", "cat", "chmod", "dirname", "ln", "mkdir", "mv", "rm", "tr", "uname"];
/// The further programs that `doctor` and `clean` use.
pub(super) const FURTHER_TOOLS: [&str; 11] =
    ["awk", "date", "df", "find", "grep", "id", "mktemp", "readlink", "rmdir", "sed", "sleep"];

/// Returns the shell line that prints `lacks` with each missing program.
pub(super) fn missing_tools_script(tools: &[&str]) -> String {
    let tools = tools.join(" ");
    format!(
        r#"for tool in {tools}; do command -v $tool >/dev/null || echo "{LINE_MARK}lacks $tool"; done"#
    )
}

/// Returns the fault of a machine that lacks programs, and the remedy.
pub(super) fn missing_tools_fault(tools: &[&str]) -> Option<String> {
    let package = |tool: &&str| match *tool {
        "awk" => "gawk",
        "find" => "findutils",
        "grep" => "grep",
        "sed" => "sed",
        _ => "coreutils",
    };
    let mut packages: Vec<_> = tools.iter().map(package).collect();
    packages.sort_unstable();
    packages.dedup();
    let (tools, packages) = (tools.join(", "), packages.join(", "));
    (!tools.is_empty()).then(|| format!("it lacks {tools}; install {packages} there"))
}

/// The characters that a quoted word of a login shell may not contain, and their stand-ins. A C shell does not accept
/// line breaks and exclamation marks there, and `fish` reads a backslash before a quote or a backslash.
const QUOTE_STAND_INS: [(char, char); 4] =
    [('\'', '\u{1}'), ('\n', '\u{2}'), ('\\', '\u{3}'), ('!', '\u{4}')];

/// Returns the command that runs a script in a Bourne shell, whatever the login shell is. The first line of the output
/// is empty, because a login shell may print text without a line break first.
pub(super) fn bourne_command(script: &str) -> String {
    let mut encoded = format!("echo\n{script}");
    for (character, stand_in) in QUOTE_STAND_INS {
        encoded = encoded.replace(character, &stand_in.to_string());
    }
    let decode = r#"tr "\001\002\003\004" "\047\012\134\041""#;
    let look = format!("command -v tr >/dev/null || {{ echo; echo {LINE_MARK}lacks tr; exit; }}");
    let run = format!(r#"{look}; script=$1; shift; eval "$(printf %s "$script" | {decode})""#);
    format!("exec /bin/sh -c '{run}' /bin/sh '{encoded}'")
}

/// The file systems of local disks and memory, as `stat` of coreutils and `BusyBox` prints them. It prints `UNKNOWN`
/// for many that machines share.
const LOCAL_FILE_SYSTEMS: [&str; 16] = [
    "apfs",
    "bcachefs",
    "btrfs",
    "ext2",
    "ext2/ext3",
    "f2fs",
    "jfs",
    "nilfs",
    "overlayfs",
    "ramfs",
    "reiserfs",
    "rootfs",
    "tmpfs",
    "ufs",
    "xfs",
    "zfs",
];

/// Returns whether several machines may share a file system. An empty text means that `stat` is missing.
pub(super) fn may_be_shared(file_system: &str) -> bool {
    !file_system.is_empty() && !LOCAL_FILE_SYSTEMS.contains(&file_system)
}

/// Returns the shell lines that set `$at` to an experiment's folder below `$root`, and `$files` to its file system.
///
/// On a file system that machines may share, each machine has a folder of its own. Otherwise they would replace each
/// other's socket to the manager, which works only on the machine that created it. An experiment that began without
/// such folders keeps its folder.
pub(super) fn experiment_folder_script(experiment: &str) -> String {
    let local = LOCAL_FILE_SYSTEMS.join("|");
    format!(
        r#"at={experiment}; there=$root; while [ ! -d "$there" ]; do there=$(dirname "$there"); done
files=$(stat -f -c %T "$there" 2>/dev/null)
case $files in ''|{local}) ;; *) [ -e "$root/$at/manager.url" ] || at=$at/$(uname -n) ;; esac"#
    )
}

/// Returns the folders of agents and of experiments, as words of a shell.
pub(super) fn folders(machine: &MachineSpec) -> (String, String) {
    match &machine.directory {
        Some(folder) => (quote(&format!("{folder}/agent")), quote(folder)),
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

    #[test]
    fn machines_with_a_shared_file_system_have_their_own_folders() {
        use std::os::unix::fs::PermissionsExt as _;
        #[rustfmt::skip]
        let table = [
            // the file system  the experiment has a folder of an earlier version   the folder
            ("ext2/ext3",       false,                                              "e"),
            ("nfs",             false,                                              "e/gpu1"),
            ("UNKNOWN (0x47504653)", false,                                    "e/gpu1"),
            ("xfs",             false,                                              "e"),
            ("nfs",             true,                                               "e"),
            ("",                false,                                              "e"),
        ];
        for (kind, has_folder, expected) in table {
            let folder = tempfile::tempdir().unwrap();
            let programs = folder.path().join("programs");
            std::fs::create_dir(&programs).unwrap();
            for (name, text) in [("stat", kind), ("uname", "gpu1")] {
                let path = programs.join(name);
                std::fs::write(&path, format!("#!/bin/sh\necho '{text}'\n")).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            let root = folder.path().join("the user's files");
            if has_folder {
                std::fs::create_dir_all(root.join("e")).unwrap();
                std::fs::write(root.join("e/manager.url"), "").unwrap();
            }
            let (root, place) = (quote(root.to_str().unwrap()), experiment_folder_script("e"));
            let script = format!("root={root}\n{place}\nprintf '%s %s' \"$at\" \"$files\"");
            let mut shell = std::process::Command::new("/bin/sh");
            shell
                .args(["-c", &script])
                .env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
            let output = String::from_utf8(shell.output().unwrap().stdout).unwrap();
            assert_eq!(output, format!("{expected} {kind}"));
            assert_eq!(may_be_shared(kind), has_folder || expected != "e", "{kind}");
        }
    }

    #[test]
    fn missing_programs_are_named_with_their_packages() {
        let folder = tempfile::tempdir().unwrap();
        for tool in SESSION_TOOLS.iter().filter(|tool| **tool != "sha256sum") {
            std::os::unix::fs::symlink("/bin/true", folder.path().join(tool)).unwrap();
        }
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &missing_tools_script(&SESSION_TOOLS)]).env("PATH", folder.path());
        let output = String::from_utf8(shell.output().unwrap().stdout).unwrap();
        assert_eq!(output, format!("{LINE_MARK}lacks sha256sum\n"));
        #[rustfmt::skip]
        let table: [(&[&str], Option<&str>); 3] = [
            (&[],                               None),
            (&["sha256sum"],                    Some("it lacks sha256sum; install coreutils there")),
            (&["grep", "find", "mv", "rm"],     Some("it lacks grep, find, mv, rm; install coreutils, findutils, grep there")),
        ];
        for (tools, expected) in table {
            assert_eq!(missing_tools_fault(tools).as_deref(), expected);
        }
    }

    fn assert_script_runs_in(shell: &str) {
        use std::io::Write as _;
        let mut login = std::process::Command::new(shell);
        login.args(["-c", &bourne_command(SCRIPT)]).env("HOME", "/nonexistent");
        let pipe = std::process::Stdio::piped;
        let login = login.stdin(pipe()).stdout(pipe()).spawn();
        let mut login = login.unwrap_or_else(|error| panic!("{shell}: {error}"));
        login.stdin.take().unwrap().write_all(b"the input").unwrap();
        let output = login.wait_with_output().unwrap();
        let expected = "\na 'quoted' word\\\\\né!\nthe input\n1\n2\nlast \"word\"\n";
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{shell}");
        let mut failing = std::process::Command::new(shell);
        let output =
            failing.args(["-c", &bourne_command("\nexec no-such-program")]).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.starts_with("/bin/sh: "), "{shell}: {message}");
    }

    #[test]
    fn a_script_runs_whatever_the_login_shell_is() {
        assert_script_runs_in("sh");
        assert_script_runs_in("bash");
    }

    #[test]
    #[ignore = "needs zsh and fish"]
    fn a_script_runs_if_zsh_or_fish_is_the_login_shell() {
        assert_script_runs_in("zsh");
        assert_script_runs_in("fish");
    }

    #[test]
    #[ignore = "needs tcsh"]
    fn a_script_runs_if_a_c_shell_is_the_login_shell() {
        assert_script_runs_in("tcsh");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_shell_reads_back_what_was_quoted(text in "[^\0]*") {
            let line = format!("printf %s {}", quote(&text));
            let output = std::process::Command::new("/bin/sh").args(["-c", &line]).output().unwrap();
            prop_assert_eq!(output.stdout, text.into_bytes());
        }
    }
}
