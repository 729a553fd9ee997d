//! Trials in pods: searches on the scripted API server, searches on a real cluster if one is configured, and
//! the deployment manifests.

mod cluster;
pub(crate) mod deploy;
mod pods;
mod scripted;
