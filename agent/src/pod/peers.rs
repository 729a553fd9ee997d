//! PURE: the pods of one trial: the syntax of roles, and the variables that describe a trial's peers.

use std::fmt;
use std::str::FromStr;

use core::net::IpAddr;

use trial_protocol::{Member, RoleSize};

/// The port of the first role if none is given, as in NNI. The second role has the next port.
const FIRST_PORT: u16 = 4000;

/// A role in its written form: `worker:2`, or `worker:2:4000` with its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// The name: lower-case letters and digits, at most 63.
    pub name: String,
    /// The number of the role's pods, at least 1.
    pub number: u32,
    /// The port on which the pods listen. `None`: 4000 plus the role's position.
    pub port: Option<u16>,
}

/// One pod of a trial: `worker:0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The role of the pod.
    pub role: String,
    /// The number of the pod within the role, from 0.
    pub index: u32,
}

/// The error of parsing a role or a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not of the form {form}")]
pub struct SyntaxError {
    text: String,
    form: &'static str,
}

impl FromStr for Role {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        let read = || {
            let mut parts = text.split(':');
            let name = parse_name(parts.next()?)?;
            let number = parts.next()?.parse().ok().filter(|number| (1..=10_000).contains(number));
            let port = match parts.next() {
                Some(port) => Some(port.parse().ok().filter(|port| *port > 0)?),
                None => None,
            };
            parts.next().is_none().then_some(Self { name, number: number?, port })
        };
        let form = "ROLE:NUMBER or ROLE:NUMBER:PORT, the role in lower-case letters and digits";
        read().ok_or_else(|| SyntaxError { text: text.to_owned(), form })
    }
}

impl FromStr for Task {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        let read = || {
            let (role, index) = text.split_once(':')?;
            Some(Self { role: parse_name(role)?, index: index.parse().ok()? })
        };
        let form = "ROLE:INDEX, the role in lower-case letters and digits, the index from 0";
        read().ok_or_else(|| SyntaxError { text: text.to_owned(), form })
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.role, self.index)
    }
}

fn parse_name(text: &str) -> Option<String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    ((1..=63).contains(&text.len()) && text.bytes().all(allowed)).then(|| text.to_owned())
}

/// Returns the roles in the form of the manager's protocol.
pub fn role_sizes(roles: &[Role]) -> Vec<RoleSize> {
    roles.iter().map(|role| RoleSize { role: role.name.clone(), number: role.number }).collect()
}

/// Returns the port of a role's pods.
pub fn role_port(roles: &[Role], role: &str) -> Option<u16> {
    let (place, role) = roles.iter().enumerate().find(|(_, known)| known.name == role)?;
    role.port.or_else(|| FIRST_PORT.checked_add(u16::try_from(place).ok()?))
}

/// Returns the variables that describe the trial and its peers: those of `frameworkbarrier` for each role, and the
/// pod's rank among all pods.
pub fn variables(own: &Task, roles: &[Role], members: &[Member]) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for role in roles {
        let of_role = members.iter().filter(|member| member.role == role.name);
        let ips: Vec<String> = of_role.clone().map(|member| member.address.to_string()).collect();
        let addresses: Vec<String> = of_role.map(format_address).collect();
        let name = role.name.to_ascii_uppercase();
        variables.push((format!("FB_{name}_IPS"), ips.join(",")));
        variables.push((format!("FB_{name}_ADDRESSES"), addresses.join(",")));
        if let Some(port) = role_port(roles, &role.name) {
            variables.push((format!("FB_{name}_PORT"), port.to_string()));
        }
    }
    let before = roles.iter().take_while(|role| role.name != own.role).map(|role| role.number);
    let rank = before.sum::<u32>() + own.index;
    let all: u32 = roles.iter().map(|role| role.number).sum();
    variables.push(("TRIALKEEPER_RANK".to_owned(), rank.to_string()));
    variables.push(("TRIALKEEPER_WORLD_SIZE".to_owned(), all.to_string()));
    variables
}

fn format_address(member: &Member) -> String {
    match member.address {
        IpAddr::V4(address) => format!("{address}:{}", member.port),
        IpAddr::V6(address) => format!("[{address}]:{}", member.port),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn roles_and_pods_are_read_or_refused() {
        let role = |name: &str, number, port| {
            let name = name.to_owned();
            Ok(Role { name, number, port })
        };
        assert_eq!("worker:2".parse::<Role>(), role("worker", 2, None));
        assert_eq!("ps1:1:80".parse::<Role>(), role("ps1", 1, Some(80)));
        let long = format!("{}:1", "a".repeat(64));
        for bad in [
            "",
            "w",
            "w:",
            "w:0",
            "w:x",
            ":1",
            "W:1",
            "w-1:1",
            "w:1:0",
            "w:1:70000",
            "w:1:1:1",
            &long,
        ] {
            assert!(bad.parse::<Role>().is_err(), "{bad:?}");
        }
        let task = Task { role: "ps".to_owned(), index: 3 };
        assert_eq!("ps:3".parse(), Ok(task.clone()));
        assert_eq!(task.to_string(), "ps:3");
        for bad in ["", "ps", "ps:", "ps:-1", "PS:1", "ps:1:2"] {
            assert!(bad.parse::<Task>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_trial_gets_the_variables_of_frameworkbarrier() {
        let roles: Vec<Role> =
            ["worker:2", "ps:1:5000", "aux:1"].iter().map(|role| role.parse().unwrap()).collect();
        let member = |role: &str, index, address: &str, port| Member {
            role: role.to_owned(),
            index,
            address: address.parse().unwrap(),
            port,
        };
        let members = [
            member("worker", 0, "10.0.0.1", 4000),
            member("worker", 1, "10.0.0.2", 4000),
            member("ps", 0, "fd00::3", 5000),
            member("aux", 0, "10.0.0.4", 4002),
        ];
        let own = Task { role: "ps".to_owned(), index: 0 };
        let found = variables(&own, &roles, &members);
        let found: Vec<_> =
            found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [
            ("FB_WORKER_IPS", "10.0.0.1,10.0.0.2"),
            ("FB_WORKER_ADDRESSES", "10.0.0.1:4000,10.0.0.2:4000"),
            ("FB_WORKER_PORT", "4000"),
            ("FB_PS_IPS", "fd00::3"),
            ("FB_PS_ADDRESSES", "[fd00::3]:5000"),
            ("FB_PS_PORT", "5000"),
            ("FB_AUX_IPS", "10.0.0.4"),
            ("FB_AUX_ADDRESSES", "10.0.0.4:4002"),
            ("FB_AUX_PORT", "4002"),
            ("TRIALKEEPER_RANK", "2"),
            ("TRIALKEEPER_WORLD_SIZE", "4"),
        ];
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn random_roles_and_tasks_never_panic(text in ".*|[a-z]{1,3}(:[0-9]{1,6}){0,3}") {
            drop(text.parse::<Role>());
            drop(text.parse::<Task>());
        }
    }
}
