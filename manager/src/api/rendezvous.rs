//! PURE: the addresses of the pods of each trial, until every pod has received them.
//!
//! # Invariants
//!
//! 1. A reply is complete when every index of every role has reported for the attempt. It contains the newest address
//!    of each: a restarted pod has a new one.
//! 2. A pod that has left its trial is not a member: its address belongs to a dead pod, and another pod takes its
//!    place.
//! 3. Nothing is kept permanently. Agents report again after a restart of the manager, and the least recently used
//!    attempt makes room.

use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap};

use trial_protocol::{AttemptId, Member, RendezvousReply, RendezvousRequest, RoleSize, TrialJobId};

/// The maximum number of attempts that are remembered.
const MAX_ATTEMPTS: usize = 10_000;

/// The maximum number of pods of one trial.
const MAX_PODS: u64 = 10_000;

/// The maximum number of missing pods that a reply names.
const MAX_NAMED_PODS: usize = 10;

/// The attempts whose pods exchange their addresses.
#[derive(Debug, Default)]
pub struct Rendezvous {
    groups: HashMap<(TrialJobId, AttemptId), Group>,
    turn: u64,
}

#[derive(Debug)]
struct Group {
    roles: Vec<RoleSize>,
    /// The known pods, by position of the role, and index.
    members: BTreeMap<(usize, u32), PodAddress>,
    last_used: u64,
}

/// The address of a pod.
#[derive(Debug)]
struct PodAddress {
    address: IpAddr,
    port: u16,
    /// The pod's own id, if the pod reported it.
    incarnation: Option<String>,
}

/// The reason why a pod is refused. Repeating the request does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousRefusal {
    /// The trial has no such pod.
    #[error("{role}:{index} is not a pod of the trial ({roles})")]
    UnknownPod {
        /// The role that the pod reported.
        role: String,
        /// The index that the pod reported.
        index: u32,
        /// The roles that the pod reported.
        roles: String,
    },
    /// Another pod of the same attempt reported other roles.
    #[error("another pod of this attempt reported the roles {earlier}, but this one {reported}")]
    OtherRoles {
        /// The roles that the other pod reported.
        earlier: String,
        /// The roles that this pod reported.
        reported: String,
    },
    /// The number of pods is above the maximum.
    #[error("a trial may have at most {MAX_PODS} pods, but this one has {found}")]
    TooMany {
        /// The number that the pod reported.
        found: u64,
    },
}

impl Rendezvous {
    /// Records the address of a pod, and returns `true` if all pods of its attempt are known. `departed` returns
    /// whether a pod has left.
    pub fn register(
        &mut self,
        trial: &TrialJobId,
        request: &RendezvousRequest,
        departed: impl Fn(&str) -> bool,
    ) -> Result<bool, RendezvousRefusal> {
        let RendezvousRequest { attempt, roles, role, index, address, port, incarnation, .. } =
            request;
        let found = roles.iter().map(|role| u64::from(role.number)).sum();
        if found > MAX_PODS {
            return Err(RendezvousRefusal::TooMany { found });
        }
        let place = roles.iter().position(|known| known.role == *role && *index < known.number);
        let Some(place) = place else {
            let (role, roles) = (role.clone(), format_roles(roles));
            return Err(RendezvousRefusal::UnknownPod { role, index: *index, roles });
        };
        let key = (trial.clone(), attempt.clone());
        if !self.groups.contains_key(&key) {
            self.remove_oldest();
        }
        let last_used = self.turn;
        self.turn += 1;
        let group = self.groups.entry(key).or_insert_with(|| Group {
            roles: roles.clone(),
            members: BTreeMap::new(),
            last_used,
        });
        if group.roles != *roles {
            let (earlier, reported) = (format_roles(&group.roles), format_roles(roles));
            return Err(RendezvousRefusal::OtherRoles { earlier, reported });
        }
        group.last_used = last_used;
        if !incarnation.as_deref().is_some_and(&departed) {
            let (address, port, incarnation) = (*address, *port, incarnation.clone());
            group.members.insert((place, *index), PodAddress { address, port, incarnation });
        }
        group.members.retain(|_, known| !known.incarnation.as_deref().is_some_and(&departed));
        Ok(group.missing().next().is_none())
    }

    /// Returns the pods of an attempt if all are known, otherwise the missing ones.
    pub fn reply_for(&self, trial: &TrialJobId, attempt: &AttemptId) -> RendezvousReply {
        let Some(group) = self.groups.get(&(trial.clone(), attempt.clone())) else {
            return RendezvousReply::default();
        };
        let missing: Vec<String> = group.missing().take(MAX_NAMED_PODS).collect();
        if !missing.is_empty() {
            return RendezvousReply { members: Vec::new(), missing };
        }
        let members = group.members.iter().map(|((place, index), known)| Member {
            role: group.roles[*place].role.clone(),
            index: *index,
            address: known.address,
            port: known.port,
        });
        RendezvousReply { members: members.collect(), missing }
    }

    fn remove_oldest(&mut self) {
        if self.groups.len() < MAX_ATTEMPTS {
            return;
        }
        let oldest = self.groups.iter().min_by_key(|(_, group)| group.last_used);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.groups.remove(&key);
        }
    }
}

impl Group {
    fn missing(&self) -> impl Iterator<Item = String> {
        let all = self.roles.iter().enumerate().flat_map(|(place, role)| {
            (0..role.number).map(move |index| (place, index, role.role.as_str()))
        });
        all.filter(|(place, index, _)| !self.members.contains_key(&(*place, *index)))
            .map(|(_, index, role)| format!("{role}:{index}"))
    }
}

fn format_roles(roles: &[RoleSize]) -> String {
    let shown =
        roles.iter().take(MAX_NAMED_PODS).map(|role| format!("{}:{}", role.role, role.number));
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(roles: &[(&str, u32)], role: &str, index: u32, last: u8) -> RendezvousRequest {
        let roles = roles
            .iter()
            .map(|(role, number)| RoleSize { role: (*role).to_owned(), number: *number });
        RendezvousRequest {
            attempt: AttemptId::new("t-1").unwrap(),
            roles: roles.collect(),
            role: role.to_owned(),
            index,
            address: IpAddr::from([10, 0, 0, last]),
            port: 4000,
            wait_ms: None,
            incarnation: None,
        }
    }

    /// No pod has left.
    fn none_departed(_: &str) -> bool {
        false
    }

    fn trial(id: &str) -> TrialJobId {
        TrialJobId::new(id).unwrap()
    }

    fn addresses_and_missing(reply: &RendezvousReply) -> (Vec<String>, Vec<String>) {
        let member = |m: &Member| format!("{}:{} {}:{}", m.role, m.index, m.address, m.port);
        (reply.members.iter().map(member).collect(), reply.missing.clone())
    }

    #[test]
    fn pods_exchange_addresses_and_a_restarted_pod_has_its_new_one() {
        let roles = [("worker", 2), ("ps", 1)];
        let (t, attempt) = (trial("t"), AttemptId::new("t-1").unwrap());
        let mut table = Rendezvous::default();
        let mut steps = |role, index, last| {
            let whole =
                table.register(&t, &request(&roles, role, index, last), none_departed).unwrap();
            let reply = table.reply_for(&t, &attempt);
            assert_eq!(whole, reply.missing.is_empty());
            addresses_and_missing(&reply)
        };
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(steps("ps", 0, 1), (vec![], own(&["worker:0", "worker:1"])));
        assert_eq!(steps("worker", 1, 2), (vec![], own(&["worker:0"])));
        assert_eq!(steps("worker", 1, 3), (vec![], own(&["worker:0"])), "with a new address");
        let all = own(&["worker:0 10.0.0.4:4000", "worker:1 10.0.0.3:4000", "ps:0 10.0.0.1:4000"]);
        assert_eq!(steps("worker", 0, 4), (all, vec![]));
        let all = own(&["worker:0 10.0.0.4:4000", "worker:1 10.0.0.3:4000", "ps:0 10.0.0.9:4000"]);
        assert_eq!(steps("ps", 0, 9), (all, vec![]), "after the others have continued");
        assert_eq!(table.reply_for(&trial("u"), &attempt), RendezvousReply::default());
    }

    #[test]
    fn departed_pods_are_not_members() {
        let roles = [("worker", 2)];
        let (t, attempt) = (trial("t"), AttemptId::new("t-1").unwrap());
        let mut table = Rendezvous::default();
        let mut enter = |index, last, pod: &str, departed: &[&str]| {
            let incarnation = Some(pod.to_owned());
            let request =
                RendezvousRequest { incarnation, ..request(&roles, "worker", index, last) };
            table.register(&t, &request, |pod| departed.contains(&pod)).unwrap();
            addresses_and_missing(&table.reply_for(&t, &attempt))
        };
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        enter(0, 1, "a", &[]);
        let whole = own(&["worker:0 10.0.0.1:4000", "worker:1 10.0.0.2:4000"]);
        assert_eq!(enter(1, 2, "b", &[]), (whole, vec![]));
        // The queue preempts the trial and runs it again: the first new pod waits for the second.
        let gone = ["a", "b"];
        assert_eq!(enter(1, 3, "d", &gone), (vec![], own(&["worker:0"])));
        // A delayed request of a dead pod.
        assert_eq!(enter(0, 1, "a", &gone), (vec![], own(&["worker:0"])));
        let whole = own(&["worker:0 10.0.0.4:4000", "worker:1 10.0.0.3:4000"]);
        assert_eq!(enter(0, 4, "c", &gone), (whole, vec![]));
    }

    #[test]
    fn unknown_pods_are_refused() {
        let mut table = Rendezvous::default();
        let roles = [("worker", 2)];
        table.register(&trial("t"), &request(&roles, "worker", 0, 1), none_departed).unwrap();
        #[rustfmt::skip]
        let table_of = [
            ("an index too high",   request(&roles, "worker", 2, 1),         "worker:2 is not a pod of the trial (worker:2)"),
            ("another role",        request(&roles, "ps", 0, 1),             "ps:0 is not a pod of the trial (worker:2)"),
            ("no roles",            request(&[], "worker", 0, 1),            "worker:0 is not a pod of the trial ()"),
            ("other roles",         request(&[("worker", 3)], "worker", 2, 1), "another pod of this attempt reported the roles worker:2, but this one worker:3"),
            ("too many pods",       request(&[("worker", u32::MAX), ("ps", 9)], "ps", 0, 1), "a trial may have at most 10000 pods, but this one has 4294967304"),
        ];
        for (case, request, refusal) in table_of {
            let refused =
                table.register(&trial("t"), &request, none_departed).unwrap_err().to_string();
            assert_eq!(refused, refusal, "{case}");
        }
    }

    #[test]
    fn the_least_recently_used_group_is_removed() {
        let mut table = Rendezvous::default();
        let pod = request(&[("worker", 2)], "worker", 0, 1);
        for number in 0..=MAX_ATTEMPTS {
            table.register(&trial(&format!("t{number}")), &pod, none_departed).unwrap();
            // The second group is used again and again.
            table.register(&trial("t1"), &pod, none_departed).unwrap();
        }
        let attempt = AttemptId::new("t-1").unwrap();
        let known = |id: &str| table.reply_for(&trial(id), &attempt) != RendezvousReply::default();
        assert!(!known("t0") && known("t1") && known("t3") && known(&format!("t{MAX_ATTEMPTS}")));
        assert_eq!(table.groups.len(), MAX_ATTEMPTS);
    }

    proptest! {
        #[test]
        fn the_last_pod_completes_the_group_in_any_order(order in Just((0..6_u32).collect::<Vec<_>>()).prop_shuffle()) {
            let mut table = Rendezvous::default();
            let roles = [("a", 2), ("b", 4)];
            for (count, pod) in order.iter().enumerate() {
                let (role, index) = if *pod < 2 { ("a", *pod) } else { ("b", pod - 2) };
                let request = request(&roles, role, index, 1);
                let whole = table.register(&trial("t"), &request, none_departed).unwrap();
                prop_assert_eq!(whole, count == 5);
            }
            let reply = table.reply_for(&trial("t"), &AttemptId::new("t-1").unwrap());
            let names: Vec<_> = reply.members.iter().map(|m| (m.role.as_str(), m.index)).collect();
            prop_assert_eq!(names, [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("b", 3)]);
        }
    }
}
