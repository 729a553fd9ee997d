//! Runs trials as objects on Kubernetes, with the command of each pod under an agent. [`Workload`] abstracts from the
//! kind of object.
//!
//! Names are derived and creation is idempotent, so nothing is submitted twice. States come from watches, one for each
//! kind of object and experiment. The [`tracker`] makes the decisions about them, and the [`service`] carries them out.
//!
//! [`Workload`]: self::workload::Workload

use std::time::Duration;

pub mod admission_advice;
pub mod azure_key;
pub mod cleanup;
pub mod client;
pub mod disruption;
pub mod image;
pub mod kueue;
pub mod manifest;
pub mod outcome;
pub mod pending_reason;
pub mod platform;
pub mod pod_end;
pub mod preflight;
mod service;
pub mod shared_disk;
mod status_fields;
pub mod tracker;
pub mod workload;

pub use self::service::{KubernetesService, Settings};

/// The first and the longest pause between two tries of a request.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(250);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(15);
