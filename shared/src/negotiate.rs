//! The negotiation of protocol version and capabilities between programs of different age.
//!
//! Versions are never compared for equality. Each side offers the range of protocol versions and the capabilities that
//! it supports. Both use the newest common version; a missing capability disables only that capability. The agent sends
//! its offer with every batch, so a manager that was replaced in the middle of a trial needs no second handshake.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The oldest protocol version that this build supports.
pub const VERSION_OLDEST: u32 = 1;
/// The newest protocol version that this build supports.
pub const VERSION_NEWEST: u32 = 1;

/// Names of optional abilities. A side ignores a name that it does not know.
pub mod capability {
    /// The manager accepts request bodies compressed with gzip.
    pub const GZIP: &str = "gzip";
    /// The agent obeys [`DirectiveBody::Stop`](crate::DirectiveBody::Stop).
    pub const STOP: &str = "stop";
    /// The manager may answer a request before its body has begun. The agent then ends that request, and can fetch a
    /// directive at once.
    pub const OPEN: &str = "open";
    /// The manager accepts the bulk lane: log chunks and samples.
    pub const BULK: &str = "bulk";
}

/// The capabilities of one side, sent by the agent with every batch and by the manager with every ack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Oldest protocol version that the sender supports.
    pub oldest: u32,
    /// Newest protocol version that the sender supports; at least `oldest`.
    pub newest: u32,
    /// Optional abilities of the sender, see [`capability`]. Absence means none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub capabilities: BTreeSet<String>,
}

/// The capabilities that both sides have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// The newest version that both sides support.
    pub version: u32,
    /// The capabilities that both sides have.
    pub capabilities: BTreeSet<String>,
}

/// The error if the two ranges of versions do not overlap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this side supports protocol versions {} to {}, the other {} to {}", .ours.0, .ours.1, .theirs.0, .theirs.1)]
pub struct NoCommonVersion {
    /// Oldest and newest version of this side.
    pub ours: (u32, u32),
    /// Oldest and newest version of the other side.
    pub theirs: (u32, u32),
}

impl Offer {
    /// Returns the offer of this build, with the capabilities that the caller has.
    pub fn new<'a>(capabilities: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            oldest: VERSION_OLDEST,
            newest: VERSION_NEWEST,
            capabilities: capabilities.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Returns the newest common version and the common capabilities.
    pub fn agree(&self, theirs: &Self) -> Result<Agreement, NoCommonVersion> {
        let version = self.newest.min(theirs.newest);
        if version < self.oldest.max(theirs.oldest) {
            return Err(NoCommonVersion {
                ours: (self.oldest, self.newest),
                theirs: (theirs.oldest, theirs.newest),
            });
        }
        let capabilities = self.capabilities.intersection(&theirs.capabilities).cloned().collect();
        Ok(Agreement { version, capabilities })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_used() {
        let offer = |oldest, newest| Offer { oldest, newest, capabilities: BTreeSet::new() };
        #[rustfmt::skip]
        let table = [
            ("the same",               offer(1, 1), offer(1, 1), Some(1)),
            ("a newer peer",           offer(1, 2), offer(1, 5), Some(2)),
            ("an older peer",          offer(2, 4), offer(1, 3), Some(3)),
            ("ranges that just meet",  offer(1, 2), offer(2, 3), Some(2)),
            ("ranges that do not",     offer(1, 2), offer(3, 4), None),
        ];
        for (case, ours, theirs, version) in table {
            assert_eq!(ours.agree(&theirs).ok().map(|agreed| agreed.version), version, "{case}");
        }
    }

    #[test]
    fn only_common_capabilities_are_used() {
        let agreed = Offer::new(["gzip", "stop"]).agree(&Offer::new(["stop", "later"])).unwrap();
        assert_eq!(agreed.capabilities, BTreeSet::from(["stop".to_owned()]));
    }
}
