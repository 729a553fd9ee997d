//! PURE: systemd-logind, which may end all processes of a login session together with the session
//! (`KillUserProcesses=yes`), including agents.
//!
//! It spares processes in a scope of the user's own service manager, which outlives the session if lingering is enabled
//! for the user. The helper and its agents therefore start in such a scope. Without lingering, `doctor` names the
//! remedy.

use super::shell::LINE_MARK;

/// The setting of `logind.conf`. The two settings below name the users that it spares and those to which it applies.
const KILL_SETTING: &str = "KillUserProcesses";
const EXCLUDED_USERS_SETTING: &str = "KillExcludeUsers";
const ONLY_USERS_SETTING: &str = "KillOnlyUsers";

/// Returns the shell lines that print logind's settings and the user. They read logind's files if logind itself cannot
/// be queried.
pub(super) fn questions_script() -> String {
    format!(
        r#"user=$(id -un)
{{
  loginctl show-session -p {KILL_SETTING} -p {EXCLUDED_USERS_SETTING} -p {ONLY_USERS_SETTING} ||
    for etc in /usr/lib/systemd /run/systemd /etc/systemd; do cat $etc/logind.conf $etc/logind.conf.d/*.conf; done
  loginctl show-user "$user" -p Linger || {{ [ ! -e "/var/lib/systemd/linger/$user" ] || echo Linger=yes; }}
  echo "User=$user"
}} </dev/null 2>/dev/null | sed -n -e 's/^ *Kill/{LINE_MARK}logind Kill/p' -e 's/^Linger=/{LINE_MARK}logind &/p' -e 's/^User=/{LINE_MARK}logind &/p'"#
    )
}

/// Returns the shell lines that set `$@` to the prefix of a command that must outlive its login session.
pub(super) fn launcher_script() -> String {
    format!(
        r#"set --
if loginctl show-session -p {KILL_SETTING} </dev/null 2>/dev/null | grep -q '=yes$' &&
  loginctl show-user "$(id -un)" -p Linger </dev/null 2>/dev/null | grep -q '=yes$' &&
  systemd-run --user --scope --quiet true </dev/null >/dev/null 2>&1
then set -- systemd-run --user --scope --quiet --; fi
"#
    )
}

/// The answers to the questions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Logind {
    kills: bool,
    excluded: Vec<String>,
    only: Vec<String>,
    lingers: bool,
    user: String,
}

impl Logind {
    /// Reads a line `NAME=VALUE`. A later line overrides an earlier one, and other names are skipped.
    pub(super) fn read_line(&mut self, line: &str) {
        let Some((name, value)) = line.split_once('=') else { return };
        let value = value.trim();
        let is_on =
            || ["1", "yes", "y", "true", "t", "on"].iter().any(|on| value.eq_ignore_ascii_case(on));
        let users = || value.split_whitespace().map(str::to_owned).collect();
        match name.trim() {
            KILL_SETTING => self.kills = is_on(),
            EXCLUDED_USERS_SETTING => self.excluded = users(),
            ONLY_USERS_SETTING => self.only = users(),
            "Linger" => self.lingers = is_on(),
            "User" => value.clone_into(&mut self.user),
            _ => {}
        }
    }

    /// Returns the reason why trials end with the connection, and the remedy.
    pub(super) fn fault(&self) -> Option<String> {
        let has = |users: &[String]| users.contains(&self.user);
        let spared = has(&self.excluded)
            || (self.excluded.is_empty() && self.user == "root")
            || !(self.only.is_empty() || has(&self.only));
        (self.kills && !spared && !self.lingers).then(|| {
            let user = &self.user;
            format!(
                "its systemd-logind ends all processes of {user} with the connection, trials too ({KILL_SETTING}=yes); run \
                 `loginctl enable-linger {user}` there"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn logind(lines: &[&str]) -> Logind {
        let mut logind = Logind::default();
        for line in lines {
            logind.read_line(line);
        }
        logind
    }

    #[test]
    fn only_a_login_whose_processes_are_killed_is_reported() {
        #[rustfmt::skip]
        let table: [(&[&str], bool); 13] = [
            // the lines of logind, and of its files                                            a fault
            (&["KillUserProcesses=no", "User=me"],                                              false),
            (&["KillUserProcesses=yes", "User=me"],                                             true),
            (&["KillUserProcesses=yes", "Linger=no", "User=me"],                                true),
            (&["KillUserProcesses=yes", "Linger=yes", "User=me"],                               false),
            (&["KillUserProcesses = True ", "User=me"],                                         true),
            (&["KillUserProcesses=yes", "KillUserProcesses=no", "User=me"],                     false),
            (&["KillUserProcesses=no", "KillUserProcesses=1", "User=me"],                       true),
            (&["KillUserProcesses=yes", "KillExcludeUsers=root me", "User=me"],                 false),
            (&["KillUserProcesses=yes", "KillExcludeUsers=root", "User=me"],                    true),
            (&["KillUserProcesses=yes", "User=root"],                                           false),
            (&["KillUserProcesses=yes", "KillOnlyUsers=you", "User=me"],                        false),
            (&["KillUserProcesses=yes", "KillOnlyUsers=you me", "User=me"],                     true),
            (&["Killed", "KillUserProcesses", "User=me"],                                       false),
        ];
        for (lines, is_fault) in table {
            let fault = logind(lines).fault();
            assert_eq!(fault.is_some(), is_fault, "{lines:?}");
            let advised = fault.is_none_or(|fault| fault.contains("`loginctl enable-linger me`"));
            assert!(advised, "{lines:?}");
        }
    }

    /// Runs shell lines with these programs first in `PATH`.
    fn run_script(programs: &[(&str, &str)], script: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in programs {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        let output = Command::new("/bin/sh").args(["-c", script]).env("PATH", path).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    /// A script that answers as logind's own program does.
    const LOGINCTL_SCRIPT: &str = r#"case $1 in
show-session) printf 'KillUserProcesses=yes\nKillExcludeUsers=root\nKillOnlyUsers=\n' ;;
show-user) [ "$2" = me ] && echo Linger=$LINGERS ;;
esac"#;

    #[test]
    fn the_shell_lines_print_loginds_settings() {
        for (lingers, is_fault) in [("no", true), ("yes", false)] {
            let loginctl = LOGINCTL_SCRIPT.replace("$LINGERS", lingers);
            let output =
                run_script(&[("loginctl", &loginctl), ("id", "echo me")], &questions_script());
            let lines: Vec<_> =
                output.lines().filter_map(|line| line.strip_prefix("tk:logind ")).collect();
            assert_eq!(lines.len(), 5, "{output}");
            assert_eq!(logind(&lines).fault().is_some(), is_fault, "{output}");
        }
    }

    #[test]
    fn the_helper_starts_in_a_scope_if_the_user_lingers() {
        let scope = ("systemd-run", r#"[ "$4" != -- ] || { shift 4; echo scope; exec "$@"; }"#);
        let no_scope = ("systemd-run", "exit 1");
        let id = ("id", "echo me");
        let (lingers, not) =
            (LOGINCTL_SCRIPT.replace("$LINGERS", "yes"), LOGINCTL_SCRIPT.replace("$LINGERS", "no"));
        let kills_nothing = "echo KillUserProcesses=no";
        #[rustfmt::skip]
        let table = [
            (vec![("loginctl", lingers.as_str()), id, scope],    "scope\nhelper a b\n"),
            (vec![("loginctl", lingers.as_str()), id, no_scope], "helper a b\n"),
            (vec![("loginctl", not.as_str()), id, scope],        "helper a b\n"),
            (vec![("loginctl", kills_nothing), id, scope],       "helper a b\n"),
            (vec![("loginctl", "exit 1"), id, scope],            "helper a b\n"),
        ];
        for (programs, expected) in table {
            let script = format!("{}exec \"$@\" echo helper 'a b'", launcher_script());
            assert_eq!(run_script(&programs, &script), expected, "{programs:?}");
        }
    }

    proptest! {
        #[test]
        fn random_lines_never_panic(line in ".*") {
            let fault = logind(&["KillUserProcesses=yes", &line, "User=me"]).fault();
            prop_assert!(fault.is_none_or(|fault| fault.contains("enable-linger")));
        }
    }
}
