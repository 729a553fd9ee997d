//! PURE: the cache of agent and code, as pieces of a pod.

use serde_json::{Value, json};

use crate::config::kubernetes::CacheSpec;

/// The place of the cache in a pod.
pub(super) const CACHE_FOLDER: &str = "/trialkeeper-cache";
/// The volume's name.
const VOLUME: &str = "trialkeeper-cache";

/// Functions for the script that fetches the agent. `$3` is the folder; `$4` and `$5` are the SHA-256 of agent and code.
pub(super) const CACHE_SCRIPT: &str = include_str!("cache.sh");

/// The SHA-256 of each file that pods look for in the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedFiles {
    /// The agent program. `None`: the pods' images have it.
    pub agent: Option<String>,
    /// The code archive. `None`: the code is in the pods' images.
    pub code: Option<String>,
}

/// Returns the volume of a cache and its place in a container. A claim that is among the `volumes` of the pod already is no
/// second volume: two volumes of one claim keep a pod from starting.
pub(super) fn pieces(cache: &CacheSpec, volumes: &Value) -> (Option<Value>, Value) {
    let mut volume = cache.volume();
    volume["name"] = Value::from(VOLUME);
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
