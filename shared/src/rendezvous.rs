//! The rendezvous of the pods of one trial: each reports its address to the manager, and learns the addresses of all.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::AttemptId;

/// One pod's report of where it is. Sent again until the answer is complete; the newest counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousRequest {
    /// Incarnation of the trial: one id for all its pods.
    pub attempt: AttemptId,
    /// All roles of the trial, in the order of its configuration. Every pod says the same.
    pub roles: Vec<RoleSize>,
    /// The pod's own role.
    pub role: String,
    /// The pod's number within its role, from 0.
    pub index: u32,
    /// Address at which the other pods reach it.
    pub address: IpAddr,
    /// The port that its role's members listen on, 1 to 65535.
    pub port: u16,
    /// The time that the manager may wait for the others before it answers, in milliseconds. Absence means not at
    /// all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// The pod's own id, as its cluster gives it. A pod that the cluster has taken away is no longer one of the trial's.
    /// Absence means that no other pod takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
}

/// A role of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleSize {
    /// Its name.
    pub role: String,
    /// The number of its pods, at least 1.
    pub number: u32,
}

/// The pods of a trial as far as the manager knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousReply {
    /// All pods, in the order of the roles and of their numbers. Empty as long as one is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// Pods that have not reported yet, as `role:index`; at most ten are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// The address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its role.
    pub role: String,
    /// Its number within the role, from 0.
    pub index: u32,
    /// Address at which the other pods reach it.
    pub address: IpAddr,
    /// The port it said.
    pub port: u16,
}
