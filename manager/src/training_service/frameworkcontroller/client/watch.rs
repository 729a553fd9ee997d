//! Watching: everything that a selector fits, listed first and then followed. After a gap (a cut
//! connection, `410 Gone`) it is listed again, so that what was missed is known.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as follow};
use serde_json::Value;

use super::{Cluster, Kind, error};
use crate::errors::chain;

/// After the first failure of a watch, and after many.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// After so many seconds the server ends a watch, and a connection that was silently cut is noticed 5 s
/// later.
const WATCH_S: u32 = 60;

/// An object as it is read.
#[derive(Debug, Clone, PartialEq)]
pub struct Thing {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Everything but its metadata.
    pub body: Value,
}

impl From<DynamicObject> for Thing {
    fn from(object: DynamicObject) -> Self {
        let name = object.name_any();
        let deleting = object.metadata.deletion_timestamp.is_some();
        let labels = object.metadata.labels.unwrap_or_default();
        Self { name, labels, deleting, body: object.data }
    }
}

/// What a watch sees.
#[derive(Debug)]
pub enum Seen {
    /// Everything is told again from here on.
    Begin,
    /// An object is as it is now.
    There(Thing),
    /// Everything has been told: what was not among it since [`Seen::Begin`] is gone.
    Complete,
    /// An object is gone.
    Gone(Thing),
    /// The watch was interrupted. It goes on by itself.
    Trouble(String),
}

/// Pauses after failures: short at first, a few seconds at most, and short again after a success. A watch
/// that is cut often must not fall behind for half a minute, as kube's own would.
#[derive(Debug, Default)]
struct Pauses(u32);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.0);
        self.0 = self.0.saturating_add(1);
        Some(pause.min(LONGEST_PAUSE))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0 = 0;
    }
}

impl Cluster {
    /// Watches objects for ever.
    pub fn watch(
        &self,
        kind: Kind,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> impl Stream<Item = Seen> + Send + Unpin + use<> {
        let config = watcher::Config {
            label_selector: labels.map(str::to_owned),
            field_selector: fields.map(str::to_owned),
            timeout: Some(WATCH_S),
            ..watcher::Config::default()
        };
        let server = self.server.clone();
        let stream = follow(self.api(kind), config).backoff(Pauses::default());
        Box::pin(stream.map(move |event| match event {
            Ok(Event::Init) => Seen::Begin,
            Ok(Event::InitApply(object) | Event::Apply(object)) => Seen::There(object.into()),
            Ok(Event::InitDone) => Seen::Complete,
            Ok(Event::Delete(object)) => Seen::Gone(object.into()),
            Err(
                watcher::Error::InitialListFailed(source)
                | watcher::Error::WatchStartFailed(source)
                | watcher::Error::WatchFailed(source),
            ) => Seen::Trouble(error::of(&server, source).to_string()),
            Err(error @ (watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion)) => {
                Seen::Trouble(chain(&error))
            }
        }))
    }
}
