//! Trials in pods: searches against the scripted API server, on a real cluster where one is named, and the manifests for it.

mod cluster;
pub(crate) mod deploy;
mod pods;
mod scripted;
