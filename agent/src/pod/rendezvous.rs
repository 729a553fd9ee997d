//! The rendezvous of the trial's pods at the manager: each reports its address, and waits until all have.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use reqwest::Url;
use trial_protocol::{AttemptId, Member, RendezvousRequest};

use crate::delivery::dialect;
use crate::pod::fetch::{Error, ManagerClient};
use crate::pod::peers::{self, Role, Task};

/// The maximum time by which the manager may delay one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The parameters of a pod's rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousSpec {
    /// The trial's attempt, the same for all its pods.
    pub attempt: AttemptId,
    /// The role and index of this pod.
    pub own: Task,
    /// All roles of the trial.
    pub roles: Vec<Role>,
    /// The pod's own id, if the cluster may replace this pod.
    pub incarnation: Option<String>,
    /// The address at which the other pods reach this one. `None`: the source address of its packets to the manager.
    pub address: Option<IpAddr>,
}

/// Waits until all pods have reported, and returns their addresses.
pub async fn wait_for_peers(
    manager: &ManagerClient,
    spec: &RendezvousSpec,
) -> Result<Vec<Member>, Error> {
    const REQUEST_ACTION: &str = "meet the other pods of the trial";
    let address = match spec.address {
        Some(address) => address,
        None => {
            manager
                .retry_request(REQUEST_ACTION, async |client| own_address(&client.base).await)
                .await?
        }
    };
    let Task { role, index } = spec.own.clone();
    let port = peers::role_port(&spec.roles, &role).unwrap_or_default();
    let wait_ms = u64::try_from(ANSWER_TIMEOUT.as_millis()).ok();
    let (attempt, roles) = (spec.attempt.clone(), peers::role_sizes(&spec.roles));
    let incarnation = spec.incarnation.clone();
    let pod =
        RendezvousRequest { attempt, roles, role, index, address, port, wait_ms, incarnation };
    loop {
        let reply = manager
            .retry_request(REQUEST_ACTION, async |client| client.report_address(&pod).await)
            .await?;
        if reply.missing.is_empty() {
            return Ok(reply.members);
        }
        let missing = reply.missing.join(", ");
        tracing::info!("waiting for the other pods of the trial; missing: {missing}");
        if manager.has_timed_out() {
            return Err(Error::Missing { tried: manager.elapsed(), missing });
        }
    }
}

/// Returns the source address of packets to the manager, without sending any.
async fn own_address(base: &str) -> Result<IpAddr, dialect::Error> {
    let find = async || -> io::Result<IpAddr> {
        let url = Url::parse(base).map_err(io::Error::other)?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = url.port_or_known_default().unwrap_or(80);
        let mut found = tokio::net::lookup_host((host, port)).await?;
        let manager = found.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let any: IpAddr = match manager.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(manager)?;
        Ok(socket.local_addr()?.ip())
    };
    let unanswered = |source| dialect::Error::NoAnswer { url: base.to_owned(), source };
    find().await.map_err(unanswered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pod_finds_its_own_address() {
        let own = own_address("http://127.0.0.1:9").await.unwrap();
        assert_eq!(own, IpAddr::from([127, 0, 0, 1]));
        for base in ["", "http://", "nowhere"] {
            assert!(own_address(base).await.is_err(), "{base:?}");
        }
    }
}
