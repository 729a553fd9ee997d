//! The objects, their versions and the history of changes. Every change has a version, and versions only
//! grow.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub(super) use self::garbage::{Deletion, FOREGROUND_FINALIZER, is_being_deleted};

mod garbage;

/// The plural and the name.
type ObjectKey = (String, String);

#[derive(Default)]
struct State {
    version: u64,
    /// The first version after which the history is complete.
    oldest_version: u64,
    /// The number of cuts. A watch ends if the number has changed since its start.
    watch_cuts: u64,
    uid_count: u64,
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    /// Set if an object was deleted since the last run of the garbage collector.
    has_garbage: bool,
    created: Vec<(String, Arc<Value>)>,
    /// The changes by kind, so that a watch of an idle kind need not search the others.
    history: HashMap<String, Vec<Arc<ObjectChange>>>,
}

/// A change of an object.
pub(super) struct ObjectChange {
    pub(super) version: u64,
    pub(super) kind: &'static str,
    pub(super) object: Arc<Value>,
    at: Instant,
    line: OnceLock<String>,
}

impl ObjectChange {
    /// The change as a line of a watch, rendered once for all watches.
    pub(super) fn line(&self) -> &str {
        self.line
            .get_or_init(|| format!("{{\"type\":\"{}\",\"object\":{}}}\n", self.kind, self.object))
    }
}

/// All objects.
#[derive(Default)]
pub(super) struct Objects {
    state: Mutex<State>,
    changed: Condvar,
    /// The time at which a change, by its version, was first written to a watch.
    first_sent: Mutex<HashMap<u64, Instant>>,
}

/// The reason why a change was not made.
pub(super) enum Refusal {
    /// The object does not exist.
    NotFound,
    /// An object of this name exists.
    AlreadyExists,
}

impl Objects {
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn create(&self, plural: &str, mut object: Value) -> Result<Arc<Value>, Refusal> {
        let mut state = self.lock();
        let name = string_at(&object, "/metadata/name");
        let key = (plural.to_owned(), name);
        if state.objects.contains_key(&key) {
            return Err(Refusal::AlreadyExists);
        }
        state.uid_count += 1;
        object["metadata"]["uid"] =
            Value::from(format!("00000000-0000-4000-8000-{:012}", state.uid_count));
        object["metadata"]["creationTimestamp"] = Value::from("2026-11-21T00:00:00Z");
        let object = state.store_object(key, object, "ADDED");
        state.created.push((plural.to_owned(), Arc::clone(&object)));
        self.changed.notify_all();
        Ok(object)
    }

    pub(super) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        let object = self.lock().objects.get(&(plural.to_owned(), name.to_owned())).cloned();
        object.map(Arc::unwrap_or_clone)
    }

    /// Changes an object, if it exists.
    pub(super) fn change(
        &self,
        plural: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Value>, Refusal> {
        let mut state = self.lock();
        let key = (plural.to_owned(), name.to_owned());
        let Some(object) = state.objects.get(&key) else { return Err(Refusal::NotFound) };
        let mut object = Value::clone(object);
        change(&mut object);
        let object = state.store_object(key, object, "MODIFIED");
        self.changed.notify_all();
        Ok(object)
    }

    /// Calls `read` with an object, if it exists.
    pub(super) fn inspect<T>(
        &self,
        plural: &str,
        name: &str,
        read: impl FnOnce(&Value) -> T,
    ) -> Option<T> {
        let object = self.lock().objects.get(&(plural.to_owned(), name.to_owned())).cloned()?;
        Some(read(&object))
    }

    pub(super) fn list(&self, plural: &str) -> Vec<Value> {
        self.list_at(plural).0
    }

    /// Returns the objects of a kind, and the version of this list.
    pub(super) fn list_at(&self, plural: &str) -> (Vec<Value>, u64) {
        let state = self.lock();
        let first = (plural.to_owned(), String::new());
        let objects = state.objects.range(first..).take_while(|((known, _), _)| known == plural);
        (objects.map(|(_, object)| Value::clone(object)).collect(), state.version)
    }

    pub(super) fn created_objects(&self, plural: &str) -> Vec<Value> {
        let state = self.lock();
        let created = state.created.iter().filter(|(known, _)| known == plural);
        created.map(|(_, object)| Value::clone(object)).collect()
    }

    /// Returns the first time at which each object of a kind satisfied `fits`.
    pub(super) fn first_matches(
        &self,
        plural: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Vec<(Value, Instant)> {
        let state = self.lock();
        let mut seen = BTreeMap::new();
        for change in state.history.get(plural).into_iter().flatten() {
            let name = string_at(&change.object, "/metadata/name");
            if fits(&change.object) && !seen.contains_key(&name) {
                seen.insert(name, (Value::clone(&change.object), change.at));
            }
        }
        seen.into_values().collect()
    }

    /// Records that a change has been written to a watch.
    pub(super) fn record_sent(&self, version: u64) {
        let mut times = self.first_sent.lock().unwrap_or_else(PoisonError::into_inner);
        times.entry(version).or_insert_with(Instant::now);
    }

    /// Returns the time at which this version of an object was first sent to a watch.
    pub(super) fn first_sent_at(&self, object: &Value) -> Option<Instant> {
        let times = self.first_sent.lock().unwrap_or_else(PoisonError::into_inner);
        times.get(&string_at(object, "/metadata/resourceVersion").parse().ok()?).copied()
    }

    pub(super) fn watch_cuts(&self) -> u64 {
        self.lock().watch_cuts
    }

    pub(super) fn cut_watches(&self) {
        self.lock().watch_cuts += 1;
        self.changed.notify_all();
    }

    /// Returns the first version after which the history is complete.
    pub(super) fn oldest_version(&self) -> u64 {
        self.lock().oldest_version
    }

    pub(super) fn drop_history(&self) {
        let mut state = self.lock();
        state.oldest_version = state.version;
        state.history.clear();
    }

    pub(super) fn wake_watches(&self) {
        self.changed.notify_all();
    }

    /// Returns the next change of a kind after a version, and waits for it at most `timeout`. Returns `Err`
    /// if the history no longer contains the version. Returns `None` if nothing changed, or if the watches
    /// were cut.
    pub(super) fn next_change(
        &self,
        plural: &str,
        after: u64,
        watch_cuts: u64,
        timeout: Duration,
    ) -> Result<Option<Arc<ObjectChange>>, u64> {
        let mut state = self.lock();
        for waited in [false, true] {
            if after < state.oldest_version {
                return Err(state.version);
            }
            if state.watch_cuts != watch_cuts {
                return Ok(None);
            }
            let changes = state.history.get(plural).map(Vec::as_slice).unwrap_or_default();
            let found = changes.get(changes.partition_point(|change| change.version <= after));
            if let Some(change) = found {
                return Ok(Some(Arc::clone(change)));
            }
            if !waited {
                let wait = self.changed.wait_timeout(state, timeout);
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Ok(None)
    }
}

impl State {
    fn store_object(&mut self, key: ObjectKey, object: Value, kind: &'static str) -> Arc<Value> {
        let object = self.record_change(&key.0, object, kind);
        self.objects.insert(key, Arc::clone(&object));
        object
    }

    fn record_change(&mut self, plural: &str, mut object: Value, kind: &'static str) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = Value::from(self.version.to_string());
        let version = self.version;
        let at = Instant::now();
        let object = Arc::new(object);
        let shared = Arc::clone(&object);
        let change = ObjectChange { version, kind, object: shared, at, line: OnceLock::new() };
        self.history.entry(plural.to_owned()).or_default().push(Arc::new(change));
        object
    }
}

/// Returns a string in an object, or an empty string if it is missing.
pub(super) fn string_at(object: &Value, at: &str) -> String {
    object.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns a condition in the status of an object.
pub(super) fn find_condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

/// Returns whether a condition in the status of an object is true.
pub(super) fn is_condition_true(object: &Value, kind: &str) -> bool {
    find_condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Creates a condition for the status of an object.
pub(super) fn new_condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

/// Returns `true` if an object matches a label selector: `a=b` and `a in (b,c)`, joined by commas.
pub(super) fn matches_selector(object: &Value, selector: &str) -> bool {
    let labels = object.pointer("/metadata/labels");
    let label = |name: &str| labels?.get(name.trim())?.as_str();
    let mut depth = 0;
    let requirements = selector.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    requirements.filter(|requirement| !requirement.is_empty()).all(|requirement| {
        if let Some((name, list)) = requirement.split_once(" in (") {
            let list = list.trim_end_matches(')');
            label(name).is_some_and(|value| list.split(',').any(|one| one == value))
        } else {
            let (name, value) = requirement.split_once('=').unwrap_or((requirement, ""));
            label(name).is_some_and(|known| known == value.trim_start_matches('='))
        }
    })
}

/// Applies a JSON merge patch (RFC 7396).
pub(super) fn apply_merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(target) = target.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            apply_merge_patch(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}
