//! PURE: the cache of agent and code, as parts of a pod.

use serde_json::{Value, json};

use crate::config::kubernetes::CacheSpec;

/// The path of the cache in a pod.
pub(super) const CACHE_FOLDER: &str = "/trialkeeper-cache";
/// The name of the volume.
const VOLUME_NAME: &str = "trialkeeper-cache";

/// Shell functions for the script that fetches the agent. `$3` is the folder. `$4` and `$5` are the SHA-256 of agent
/// and code.
pub(super) const CACHE_SCRIPT: &str = include_str!("cache.sh");

/// The SHA-256 of each file that pods look for in the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedFiles {
    /// The agent program. `None`: the images of the pods contain it.
    pub agent: Option<String>,
    /// The code archive. `None`: the images of the pods contain the code.
    pub code: Option<String>,
}

/// Returns the volume of a cache and its mount in a container. If the pod's `volumes` already have the claim, no second
/// volume is added: two volumes of one claim keep a pod from starting.
pub(super) fn volume_parts(cache: &CacheSpec, volumes: &Value) -> (Option<Value>, Value) {
    let mut volume = cache.volume();
    volume["name"] = Value::from(VOLUME_NAME);
    let mut known = volumes.as_array().into_iter().flatten();
    let known = known.find(|known| is_same_claim(known, &volume));
    let name = known.unwrap_or(&volume)["name"].clone();
    let place = json!({"name": name, "mountPath": CACHE_FOLDER});
    (known.is_none().then_some(volume), place)
}

fn is_same_claim(known: &Value, volume: &Value) -> bool {
    let claim = |volume: &Value| volume.pointer("/persistentVolumeClaim/claimName").cloned();
    claim(volume).is_some_and(|name| claim(known) == Some(name))
}

#[cfg(test)]
mod tests;
