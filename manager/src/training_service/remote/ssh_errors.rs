//! PURE: the reason for a failure in the messages of `ssh` or of a machine, with the remedy.
//!
//! Source of the messages: OpenSSH, `sshconnect.c` and `sshconnect2.c`; strerror(3).

/// Returns the reason in a process's messages, with the remedy for a reason that is known.
pub(super) fn explain(messages: &str) -> Option<String> {
    let reason = reason_line(messages)?;
    Some(match remedy(reason, messages) {
        Some(remedy) => format!("{}; {remedy}", reason.trim_end_matches('.')),
        None => reason.to_owned(),
    })
}

/// Returns the reason why `ssh` could not log in, like [`explain`]. With a password, `ssh` has tried it after the keys.
pub(super) fn explain_login(messages: &str, has_password: bool) -> Option<String> {
    let reason = reason_line(messages)?;
    if !has_password || !reason.contains("Permission denied (") {
        return explain(messages);
    }
    let reason = reason.trim_end_matches('.');
    Some(format!(
        "{reason}; the machine does not accept the password; correct `password` or the content of `passwordFile`, or set \
         `user`"
    ))
}

/// Returns the last line that is not empty, where ssh prints its reason. After the reason of a jump host, ssh only adds
/// that the connection was closed.
fn reason_line(text: &str) -> Option<&str> {
    const CONSEQUENCES: [&str; 2] = ["Connection closed by ", "kex_exchange_identification: "];
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_reason = |line: &&str| !CONSEQUENCES.iter().any(|start| line.starts_with(start));
    lines.clone().rfind(is_reason).or_else(|| lines.next_back())
}

/// The remedies for reasons that contain a text.
const SSH_REMEDIES: [(&str, &str); 10] = [
    (
        "Permission denied (",
        "the machine does not accept the key; add the public key there (`ssh-copy-id`), name a key that it accepts in \
         `sshKeyFile`, or set `user`",
    ),
    (
        "Too many authentication failures",
        "ssh offered too many keys; name the right one in `sshKeyFile`",
    ),
    ("Could not resolve hostname", "correct `host`, or define this alias in ~/.ssh/config"),
    ("Connection refused", "correct `port`, or start sshd there"),
    ("No route to host", "check the network, and that the machine is on"),
    ("timed out", "check the network, and that the machine is on"),
    (
        "Session open refused by peer",
        "the machine permits too few sessions in a connection; raise MaxSessions in its sshd_config to 10, the default",
    ),
    ("No space left on device", NO_SPACE_REMEDY),
    ("Disk quota exceeded", NO_SPACE_REMEDY),
    ("Read-only file system", NO_SPACE_REMEDY),
];

const NO_SPACE_REMEDY: &str =
    "free some space there, or set `remoteDirectory` to a folder on another disk";

fn remedy(reason: &str, messages: &str) -> Option<String> {
    if reason.starts_with("Host key verification failed") {
        return Some(host_key_remedy(messages));
    }
    let known = SSH_REMEDIES.iter().find(|(part, _)| reason.contains(part));
    known.map(|(_, remedy)| (*remedy).to_owned())
}

/// Explains the refusal of a host key. The details are in the lines before the reason, unless the configuration of a
/// jump host hides them (`LogLevel`).
fn host_key_remedy(messages: &str) -> String {
    let mut lines = messages.lines().map(str::trim);
    let after = |start: &str| lines.clone().find_map(|line| line.strip_prefix(start));
    if let Some(host) = after("Host key for ").and_then(|rest| rest.split(' ').next()) {
        let key = lines.clone().find(|line| line.starts_with("SHA256:"));
        let key = key.map(|key| format!(" to {}", key.trim_end_matches('.')));
        let place = after("Offending ").and_then(|rest| rest.split_once(" key in "));
        let place =
            place.map(|(_, place)| format!("{place} has another key; ")).unwrap_or_default();
        let command = lines.clone().find(|line| line.starts_with("ssh-keygen -f "));
        let command = command.map_or_else(|| format!("ssh-keygen -R '{host}'"), str::to_owned);
        return format!(
            "the key of {host} has changed{}; {place}if the machine was installed again, run `{command}`, or else another \
             machine pretends to be this one",
            key.unwrap_or_default()
        );
    }
    let unknown = lines.find_map(|line| {
        let (kind, rest) = line.strip_prefix("No ")?.split_once(" host key is known for ")?;
        Some((kind, rest.split(' ').next()?))
    });
    match unknown {
        Some((kind, host)) => format!(
            "no {kind} key of {host} is known; log in once with `ssh` and compare the fingerprint with the machine's, or \
             set `knownHosts: acceptNew`"
        ),
        None => "log in once with `ssh`, which shows the reason".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The output of Debian's OpenSSH 9.2. OpenSSH itself prints no command.
    const CHANGED_KEY_MESSAGES: &str = "\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r
Someone could be eavesdropping on you right now (man-in-the-middle attack)!\r
It is also possible that a host key has just been changed.\r
The fingerprint for the ED25519 key sent by the remote host is\r
SHA256:Kq/SW2/50K2ITR0FeZ5QtO2t0e2xwQLUuaxfFrNEiD0.\r
Please contact your system administrator.\r
Add correct host key in /home/me/.ssh/known_hosts to get rid of this message.\r
Offending ED25519 key in /home/me/.ssh/known_hosts:7\r
";
    const KEYGEN_COMMAND: &str =
        "  remove with:\r\n  ssh-keygen -f \"/home/me/.ssh/known_hosts\" -R \"[gpu1]:2222\"\r\n";
    const REFUSED_KEY_MESSAGES: &str = "Host key for [gpu1]:2222 has changed and you have requested strict checking.\r\nHost key verification failed.\r\n";

    #[test]
    fn a_known_reason_has_a_remedy() {
        let jump = format!(
            "{CHANGED_KEY_MESSAGES}{REFUSED_KEY_MESSAGES}kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n"
        );
        #[rustfmt::skip]
        let table: [(String, &[&str]); 14] = [
            // the messages     parts of the explanation
            (format!("{CHANGED_KEY_MESSAGES}{KEYGEN_COMMAND}{REFUSED_KEY_MESSAGES}"), &[
                "Host key verification failed; ", "[gpu1]:2222 has changed to SHA256:Kq/SW2/50K2ITR0FeZ5QtO2t0e2xwQLUuaxfFrNEiD0; ",
                "/home/me/.ssh/known_hosts:7 has another key", "`ssh-keygen -f \"/home/me/.ssh/known_hosts\" -R \"[gpu1]:2222\"`",
            ]),
            (format!("{CHANGED_KEY_MESSAGES}{REFUSED_KEY_MESSAGES}"), &["`ssh-keygen -R '[gpu1]:2222'`"]),
            (jump, &["known_hosts:7 has another key"]),
            ("No ED25519 host key is known for gpu1 and you have requested strict checking.\r\nHost key verification failed.\r\n".to_owned(),
                &["Host key verification failed; no ED25519 key of gpu1 is known; ", "`knownHosts: acceptNew`"]),
            ("Host key verification failed.\r\n".to_owned(), &["Host key verification failed; log in once with `ssh`"]),
            ("Warning: Permanently added 'gpu1' (ED25519) to the list of known hosts.\r\nme@gpu1: Permission denied (publickey).\r\n".to_owned(),
                &["me@gpu1: Permission denied (publickey); ", "`ssh-copy-id`", "`sshKeyFile`"]),
            ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\r\n".to_owned(), &["`sshKeyFile`"]),
            ("ssh: Could not resolve hostname gpu9: Name or service not known\r\n".to_owned(), &["gpu9", "~/.ssh/config"]),
            ("ssh: connect to host gpu1 port 2222: Connection refused\r\n".to_owned(), &["Connection refused; correct `port`"]),
            ("ssh: connect to host gpu1 port 22: Connection timed out\r\n".to_owned(), &["machine is on"]),
            ("mux_client_request_session: session request failed: Session open refused by peer\r\nkex_exchange_identification: Connection closed by remote host\r\n".to_owned(),
                &["MaxSessions"]),
            ("cat: write error: No space left on device\n".to_owned(), &["No space left on device; ", "`remoteDirectory`"]),
            ("mkdir: cannot create directory 'x': Disk quota exceeded\n".to_owned(), &["`remoteDirectory`"]),
            ("cannot create spool: Read-only file system (os error 30)".to_owned(), &["`remoteDirectory`"]),
        ];
        for (messages, parts) in table {
            let explained = explain(&messages).unwrap();
            for part in parts {
                assert!(explained.contains(part), "{part}: {explained}");
            }
            assert_eq!(explained.lines().count(), 1, "{explained}");
        }
    }

    #[test]
    fn a_refused_password_has_its_own_remedy() {
        #[rustfmt::skip]
        let table = [
            // the messages                                    password  a part of the explanation
            ("me@gpu1: Permission denied (publickey,password).", true,  "(publickey,password); the machine does not accept the password; correct `password`"),
            ("me@gpu1: Permission denied (publickey,password).", false, "`sshKeyFile`"),
            ("Connection refused",                               true,  "correct `port`"),
        ];
        for (messages, has_password, part) in table {
            let explained = explain_login(messages, has_password).unwrap();
            assert!(explained.contains(part), "{part}: {explained}");
        }
    }

    #[test]
    fn an_unknown_reason_is_the_last_line() {
        assert_eq!(explain("Warning: banner\nout of paper\r\n\n").as_deref(), Some("out of paper"));
        assert_eq!(explain("\n"), None);
        let closed = "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n";
        assert_eq!(explain(closed).as_deref(), Some("Connection closed by UNKNOWN port 65535"));
    }

    proptest! {
        #[test]
        fn random_messages_never_panic(text in ".*", line in "(Host key for|No|Offending|SHA256:|ssh-keygen -f) ?.{0,9}") {
            drop(explain(&format!("{text}\n{line}\nHost key verification failed.")));
            drop(explain(&text));
        }
    }
}
