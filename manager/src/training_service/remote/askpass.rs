//! PURE: the program that `ssh` calls for passwords and passphrases. It contains paths of files, and no secret.

use std::path::Path;

use crate::config::MachineSpec;
use crate::util::shell::quote;

/// Returns the script for a machine with this `configuration`, which `ssh -G` prints. `None`: the machine has no files
/// with secrets, and `ssh` must not ask any question.
///
/// Only the machine itself gets its password, although a jump host asks through the same program. Sources of the
/// prompts: OpenSSH, `sshconnect2.c`, `userauth_passwd` and `input_userauth_info_req`, and `load_identity_file`.
pub(super) fn script(machine: &MachineSpec, configuration: &str) -> Option<String> {
    let MachineSpec { password_file, passphrase_file, .. } = machine;
    let mut cases = String::new();
    if let Some(file) = password_file {
        let setting = |name| configuration.lines().find_map(|line| line.strip_prefix(name));
        let host = setting("hostkeyalias ").or_else(|| setting("hostname "));
        let host = host.unwrap_or(&machine.host);
        let plain = quote(&format!("@{host}'s password: "));
        let interactive = quote(&format!("@{host}) "));
        cases.push_str(&case_branch(&format!("*{plain}|'('*{interactive}*assword*"), file));
    }
    if let Some(file) = passphrase_file {
        cases.push_str(&case_branch("'Enter passphrase for key '*", file));
    }
    (!cases.is_empty()).then(|| format!("#!/bin/sh\ncase $1 in\n{cases}esac\nexit 1\n"))
}

fn case_branch(pattern: &str, file: &Path) -> String {
    format!("{pattern}) exec cat -- {} ;;\n", quote(&file.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn each_prompt_gets_its_own_secret_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("{text}\n")).unwrap();
            Some(path)
        };
        let machine = MachineSpec {
            password_file: file("it's", "pw"),
            passphrase_file: file("phrase", "pp"),
            ..MachineSpec::new("alias")
        };
        let script = script(&machine, "user me\nhostname gpu1.example.org\nport 22\n").unwrap();
        #[rustfmt::skip]
        let table = [
            // the prompt                                       the answer
            ("me@gpu1.example.org's password: ",                "pw\n"),
            ("(me@gpu1.example.org) Password: ",                "pw\n"),
            ("me@jump.example.org's password: ",                ""),
            ("(me@jump) Verification code: ",                   ""),
            ("(me@gpu1.example.org) Verification code: ",       ""),
            ("Enter passphrase for key '/home/me/.ssh/id': ",   "pp\n"),
            ("Are you sure you want to continue connecting? ",  ""),
        ];
        for (prompt, answer) in table {
            let output = Command::new("/bin/sh").args(["-c", &script, "askpass", prompt]).output();
            let stdout = output.unwrap().stdout;
            assert_eq!(String::from_utf8(stdout).unwrap(), answer, "{prompt}");
        }
        let aliased = "hostname 10.0.0.7\nhostkeyalias gpu1.example.org\n";
        assert_eq!(super::script(&machine, aliased), Some(script));
        let none = MachineSpec { password_file: None, ..MachineSpec::new("alias") };
        assert_eq!(super::script(&none, ""), None::<String>);
    }
}
