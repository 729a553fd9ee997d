//! The rendezvous of a trial's pods: each pod reports its address to the manager and receives the addresses of all.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::AttemptId;

/// A pod's report of its address. The pod repeats it until the reply is complete; the newest report counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousRequest {
    /// Incarnation of the trial. All its pods have the same id.
    pub attempt: AttemptId,
    /// All roles of the trial, in the order of its configuration. Every pod sends the same list.
    pub roles: Vec<RoleSize>,
    /// The pod's own role.
    pub role: String,
    /// The pod's number within its role, from 0.
    pub index: u32,
    /// Address at which the other pods reach this pod.
    pub address: IpAddr,
    /// The port on which the members of the pod's role listen, 1 to 65535.
    pub port: u16,
    /// The time that the manager may wait for the other pods before it answers, in milliseconds. Absence means that the
    /// manager answers at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// The pod's UID from its cluster. A pod that the cluster has removed no longer belongs to the trial, and another
    /// pod may take its place. Absence means that no other pod takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
}

/// A role of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleSize {
    /// The name of the role.
    pub role: String,
    /// The number of pods in the role, at least 1.
    pub number: u32,
}

/// The pods of a trial that the manager knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousReply {
    /// All pods, in the order of the roles and of the indexes. Empty as long as a pod is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// Pods that have not reported yet, as `role:index`; at most ten are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// The address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The pod's role.
    pub role: String,
    /// The pod's number within the role, from 0.
    pub index: u32,
    /// Address at which the other pods reach this pod.
    pub address: IpAddr,
    /// The port that the pod reported.
    pub port: u16,
}
