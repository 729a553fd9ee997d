//! PURE: the settings of an SSH configuration that disable the check of host keys. The manager refuses them, because it
//! would send trials' tokens and code to any server that answers.

/// Returns the reason to refuse the configuration that `ssh -G` prints for `host`.
pub(super) fn fault(host: &str, configuration: &str) -> Option<String> {
    let mut lines = configuration.lines().filter_map(|line| line.split_once(' '));
    let (setting, remedy) =
        lines.find_map(|(name, value)| unsafe_setting(host, name, value.trim()))?;
    Some(format!(
        "the SSH configuration of {host} does not check host keys ({setting}); remove that line, or write {remedy} before \
         it in ~/.ssh/config"
    ))
}

/// Returns the setting in the spelling of the configuration, and its replacement, if the setting disables the check.
fn unsafe_setting(host: &str, name: &str, value: &str) -> Option<(String, String)> {
    let instead = |setting: &str| format!("`Host {host}` with `{setting}`");
    match name {
        "stricthostkeychecking" if matches!(value, "no" | "off" | "false") => {
            let setting = "StrictHostKeyChecking no".to_owned();
            Some((setting, instead("StrictHostKeyChecking accept-new")))
        }
        "userknownhostsfile" if can_store_no_key(value) => {
            let setting = format!("UserKnownHostsFile {value}");
            Some((setting, instead("UserKnownHostsFile ~/.ssh/known_hosts")))
        }
        "knownhostscommand" if value != "none" => {
            Some((format!("KnownHostsCommand {value}"), instead("KnownHostsCommand none")))
        }
        "nohostauthenticationforlocalhost" if matches!(value, "yes" | "true") && is_local(host) => {
            let setting = "NoHostAuthenticationForLocalhost yes".to_owned();
            Some((setting, instead("NoHostAuthenticationForLocalhost no")))
        }
        _ => None,
    }
}

/// Returns whether no file in a list can store a key.
fn can_store_no_key(files: &str) -> bool {
    files.split_whitespace().all(|file| matches!(file, "/dev/null" | "none"))
}

fn is_local(host: &str) -> bool {
    host == "localhost" || host == "::1" || host.starts_with("127.")
}

/// Returns the machines that a connection passes through, as destinations and ports for `ssh -G`.
pub(super) fn jump_hosts(configuration: &str) -> Vec<(String, Option<String>)> {
    let line = configuration.lines().find_map(|line| line.strip_prefix("proxyjump "));
    let jumps = line.into_iter().flat_map(|line| line.split(','));
    jumps
        .map(str::trim)
        .filter(|jump| !jump.is_empty() && *jump != "none")
        .map(read_jump_host)
        .collect()
}

/// Reads `[user@]host[:port]` or `ssh://[user@]host[:port]`.
fn read_jump_host(text: &str) -> (String, Option<String>) {
    let text = text.strip_prefix("ssh://").unwrap_or(text);
    let (user, place) =
        text.rsplit_once('@').map_or((None, text), |(user, place)| (Some(user), place));
    let in_brackets = place.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, port) = match in_brackets {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => match place.split_once(':') {
            // An IPv6 address has more than one colon.
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (place, None),
        },
    };
    let host = user.map_or_else(|| host.to_owned(), |user| format!("{user}@{host}"));
    (host, port.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_configuration_that_does_not_check_host_keys_is_refused() {
        #[rustfmt::skip]
        let table = [
            // the host     its configuration                                       the refused setting
            ("gpu1",        "stricthostkeychecking ask",                            None),
            ("gpu1",        "stricthostkeychecking accept-new",                     None),
            ("gpu1",        "stricthostkeychecking false",                          Some("StrictHostKeyChecking no")),
            ("gpu1",        "stricthostkeychecking off",                            Some("StrictHostKeyChecking no")),
            ("gpu1",        "userknownhostsfile /home/me/.ssh/known_hosts",         None),
            ("gpu1",        "userknownhostsfile /dev/null /home/me/keys",           None),
            ("gpu1",        "userknownhostsfile /dev/null",                         Some("UserKnownHostsFile /dev/null")),
            ("gpu1",        "userknownhostsfile none",                              Some("UserKnownHostsFile none")),
            ("gpu1",        "knownhostscommand none",                               None),
            ("gpu1",        "knownhostscommand /bin/keys %H",                       Some("KnownHostsCommand /bin/keys %H")),
            ("gpu1",        "nohostauthenticationforlocalhost yes",                 None),
            ("localhost",   "nohostauthenticationforlocalhost no",                  None),
            ("localhost",   "nohostauthenticationforlocalhost yes",                 Some("NoHostAuthenticationForLocalhost yes")),
            ("127.0.0.1",   "nohostauthenticationforlocalhost true",                Some("NoHostAuthenticationForLocalhost yes")),
        ];
        for (host, configuration, refused) in table {
            let text = format!("host {host}\n{configuration}\nport 22\n");
            let found = fault(host, &text);
            let named = refused.map(|setting| format!("({setting})"));
            assert_eq!(found.is_some(), named.is_some(), "{configuration}: {found:?}");
            if let (Some(found), Some(named)) = (found, named) {
                assert!(found.contains(&named) && found.contains("~/.ssh/config"), "{found}");
            }
        }
    }

    #[test]
    fn jump_hosts_are_found() {
        let of = |text: &str| jump_hosts(&format!("user me\nproxyjump {text}\n"));
        let jump = |host: &str, port: Option<&str>| (host.to_owned(), port.map(str::to_owned));
        assert_eq!(of("none"), []);
        assert_eq!(jump_hosts("user me\n"), []);
        assert_eq!(of("me@a:2222,b"), [jump("me@a", Some("2222")), jump("b", None)]);
        assert_eq!(of("ssh://me@[::1]:7"), [jump("me@::1", Some("7"))]);
        assert_eq!(of("fe80::1"), [jump("fe80::1", None)]);
    }

    proptest! {
        #[test]
        fn random_configurations_never_panic(text in ".*") {
            drop((fault("h", &text), jump_hosts(&format!("proxyjump {text}"))));
        }
    }
}
