//! Deletion as in Kubernetes. A finalizer keeps an object, and a pod on a node has a grace period. Depending
//! on the policy, owned objects are deleted after their owner, before it, or not at all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{ObjectKey, Objects, State, string_at};

/// The finalizer that keeps an object until the objects that it owns are gone.
pub(in super::super) const FOREGROUND_FINALIZER: &str = "foregroundDeletion";

/// The options of a deletion.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct Deletion {
    policy: Option<PropagationPolicy>,
    /// The grace period of a pod in seconds, instead of the pod's own.
    grace: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PropagationPolicy {
    Background,
    Foreground,
    Orphan,
}

impl Deletion {
    /// Reads the body of a request (`DeleteOptions`). Returns an error if it is invalid.
    pub(in super::super) fn from_options(options: &Value) -> Result<Self, String> {
        let policy = match options["propagationPolicy"].as_str() {
            None => None,
            Some("Background") => Some(PropagationPolicy::Background),
            Some("Foreground") => Some(PropagationPolicy::Foreground),
            Some("Orphan") => Some(PropagationPolicy::Orphan),
            Some(other) => {
                return Err(format!("propagationPolicy: Unsupported value: \"{other}\""));
            }
        };
        Ok(Self { policy, grace: options["gracePeriodSeconds"].as_u64() })
    }
}

impl Objects {
    /// Deletes an object, or marks it as being deleted. [`Self::collect_garbage`] handles the objects that it owns.
    pub(in super::super) fn delete(
        &self,
        plural: &str,
        name: &str,
        how: Deletion,
    ) -> Option<Arc<Value>> {
        let mut state = self.lock();
        let object = state.delete(&(plural.to_owned(), name.to_owned()), how)?;
        self.changed.notify_all();
        Some(object)
    }

    /// Removes a pod whose containers have ended.
    pub(in super::super) fn remove(&self, plural: &str, name: &str) {
        self.lock().remove(&(plural.to_owned(), name.to_owned()));
        self.changed.notify_all();
    }

    /// Runs the garbage collector once. Returns `true` if there may be more to do.
    pub(in super::super) fn collect_garbage(&self) -> bool {
        let mut state = self.lock();
        if !std::mem::take(&mut state.has_garbage) {
            return false;
        }
        let Garbage { ownerless, held, mut owned } = state.find_garbage();
        for key in ownerless {
            state.delete(&key, Deletion::default());
        }
        for (key, uid) in held {
            let owned = owned.remove(&uid).unwrap_or_default();
            if owned.is_empty() {
                state.remove_foreground_finalizer(&key);
            }
            for (key, _) in owned.iter().filter(|(_, is_terminating)| !is_terminating) {
                state.delete(key, Deletion::default());
            }
        }
        self.changed.notify_all();
        state.has_garbage
    }
}

/// The objects that the garbage collector must handle.
#[derive(Default)]
struct Garbage {
    /// Objects whose owners are all gone.
    ownerless: Vec<ObjectKey>,
    /// Objects that wait for the deletion of the objects that they own, with their uids.
    held: Vec<(ObjectKey, String)>,
    /// The objects of each owner, by its uid, and whether they are being deleted.
    owned: HashMap<String, Vec<(ObjectKey, bool)>>,
}

impl State {
    fn delete(&mut self, key: &ObjectKey, how: Deletion) -> Option<Arc<Value>> {
        let before = Arc::clone(self.objects.get(key)?);
        let mut object = Value::clone(&before);
        let mut holders: Vec<String> = finalizers(&object).map(str::to_owned).collect();
        match how.policy {
            // The object's own finalizers decide.
            None => {}
            Some(policy) => {
                holders.retain(|holder| holder != FOREGROUND_FINALIZER);
                if policy == PropagationPolicy::Foreground {
                    holders.push(FOREGROUND_FINALIZER.to_owned());
                }
            }
        }
        if how.policy == Some(PropagationPolicy::Orphan) {
            self.remove_owner(&string_at(&object, "/metadata/uid"));
        }
        let own = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_u64);
        let grace = how.grace.or(own).unwrap_or(30);
        let runs = key.0 == "pods" && object.pointer("/spec/nodeName").is_some() && grace > 0;
        if holders.is_empty() && !runs {
            return self.remove(key);
        }
        let metadata = &mut object["metadata"];
        metadata["finalizers"] = json!(holders);
        if metadata["deletionTimestamp"].is_null() {
            metadata["deletionTimestamp"] = Value::from("2026-11-21T00:00:00Z");
            if runs {
                metadata["deletionGracePeriodSeconds"] = Value::from(grace);
            }
        }
        self.has_garbage = true;
        if object == *before {
            return Some(before);
        }
        Some(self.store_object(key.clone(), object, "MODIFIED"))
    }

    /// Removes an object.
    fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Value>> {
        let object = self.objects.remove(key)?;
        self.has_garbage = true;
        Some(self.record_change(&key.0, Arc::unwrap_or_clone(object), "DELETED"))
    }

    /// Visits every object only once, because there may be thousands.
    fn find_garbage(&self) -> Garbage {
        let uid = |object: &Value| string_at(object, "/metadata/uid");
        let uids: HashSet<String> = self.objects.values().map(|object| uid(object)).collect();
        let mut garbage = Garbage::default();
        for (key, object) in &self.objects {
            let is_terminating = is_being_deleted(object);
            let owners: Vec<String> = owners(object).iter().map(|o| string_at(o, "/uid")).collect();
            if !is_terminating
                && !owners.is_empty()
                && !owners.iter().any(|owner| uids.contains(owner))
            {
                garbage.ownerless.push(key.clone());
            }
            for owner in owners {
                garbage.owned.entry(owner).or_default().push((key.clone(), is_terminating));
            }
            if is_terminating && finalizers(object).any(|holder| holder == FOREGROUND_FINALIZER) {
                garbage.held.push((key.clone(), uid(object)));
            }
        }
        garbage
    }

    /// Removes the foreground finalizer. Without other finalizers, the object is gone.
    fn remove_foreground_finalizer(&mut self, key: &ObjectKey) {
        let Some(object) = self.objects.get(key) else { return };
        let mut object = Value::clone(object);
        let mut holders: Vec<String> = finalizers(&object).map(str::to_owned).collect();
        holders.retain(|holder| holder != FOREGROUND_FINALIZER);
        if holders.is_empty() {
            self.remove(key);
        } else {
            object["metadata"]["finalizers"] = json!(holders);
            self.store_object(key.clone(), object, "MODIFIED");
        }
    }

    /// Removes an owner from the objects that it owns.
    fn remove_owner(&mut self, uid: &str) {
        for (key, _) in self.find_garbage().owned.remove(uid).unwrap_or_default() {
            let Some(object) = self.objects.get(&key) else { continue };
            let mut object = Value::clone(object);
            let mut owners = owners(&object).to_vec();
            owners.retain(|owner| owner["uid"] != uid);
            object["metadata"]["ownerReferences"] = json!(owners);
            self.store_object(key, object, "MODIFIED");
        }
    }
}

/// Returns `true` if an object is being deleted.
pub(in super::super) fn is_being_deleted(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string)
}

fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn owners(object: &Value) -> &[Value] {
    let list = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Framework that owns a config map, which owns two pods. One of the pods has a node.
    fn objects_with_owners(holders: &[&str]) -> Objects {
        let objects = Objects::new();
        let make = |plural: &str, name: &str, owner: Option<&Value>, more: Value| {
            let mut object = more;
            object["metadata"]["name"] = Value::from(name);
            if let Some(owner) = owner {
                object["metadata"]["ownerReferences"] =
                    json!([{"uid": owner["metadata"]["uid"], "name": owner["metadata"]["name"]}]);
            }
            let Ok(made) = objects.create(plural, object) else { panic!("{name} is taken") };
            Value::clone(&made)
        };
        let framework = make("frameworks", "f", None, json!({}));
        let map = json!({"metadata": {"finalizers": holders}});
        let map = make("configmaps", "f-attempt", Some(&framework), map);
        let spec = json!({"spec": {"nodeName": "node1"}});
        make("pods", "f-worker-0", Some(&map), spec);
        make("pods", "f-worker-1", Some(&map), json!({}));
        objects
    }

    fn collect_all_garbage(objects: &Objects) {
        while objects.collect_garbage() {}
    }

    fn remaining_objects(objects: &Objects) -> Vec<String> {
        let all = ["frameworks", "configmaps", "pods"].iter().flat_map(|kind| objects.list(kind));
        let all = all.map(|object| {
            let suffix = if is_being_deleted(&object) { " is terminating" } else { "" };
            format!("{}{suffix}", string_at(&object, "/metadata/name"))
        });
        all.collect()
    }

    #[test]
    fn owned_objects_are_deleted_as_the_policy_says() {
        let (map, pod) = ("f-attempt", "f-worker-0");
        let terminating = [format!("{map} is terminating"), format!("{pod} is terminating")];
        let held = ["f is terminating".to_owned(), terminating[0].clone(), terminating[1].clone()];
        let kept = [map, pod, "f-worker-1"].map(str::to_owned);
        #[rustfmt::skip]
        let table = [
            // policy                the map's own finalizer      at once         in the end
            (json!(null),            &[FOREGROUND_FINALIZER][..], &terminating[..], &[][..]),
            (json!("Background"),    &[FOREGROUND_FINALIZER],     &terminating,     &[]),
            (json!("Background"),    &[],                         &terminating[1..], &[]),
            (json!("Foreground"),    &[FOREGROUND_FINALIZER],     &held,          &[]),
            (json!("Orphan"),        &[FOREGROUND_FINALIZER],     &kept,          &kept),
        ];
        for (policy, holders, at_once, in_the_end) in table {
            let objects = objects_with_owners(holders);
            let how = Deletion::from_options(&json!({"propagationPolicy": policy})).unwrap();
            objects.delete("frameworks", "f", how);
            collect_all_garbage(&objects);
            assert_eq!(remaining_objects(&objects), at_once, "{policy}");
            if at_once != in_the_end {
                // The pod's containers have ended.
                objects.remove("pods", pod);
                collect_all_garbage(&objects);
            }
            assert_eq!(remaining_objects(&objects), in_the_end, "{policy}");
        }
    }

    #[test]
    fn a_pod_on_a_node_has_a_grace_period_unless_it_is_zero() {
        for (options, is_there) in [
            (json!(null), true),
            (json!({"gracePeriodSeconds": 5}), true),
            (json!({"gracePeriodSeconds": 0}), false),
        ] {
            let objects = objects_with_owners(&[]);
            objects.delete("pods", "f-worker-0", Deletion::from_options(&options).unwrap());
            assert_eq!(objects.get("pods", "f-worker-0").is_some(), is_there, "{options}");
        }
        assert!(Deletion::from_options(&json!({"propagationPolicy": "Sideways"})).is_err());
    }
}
