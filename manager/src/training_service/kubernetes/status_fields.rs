//! PURE: readers of the fields that the status of every kind of object has.

use serde_json::Value;

use crate::util::excerpt::shortened;

/// Returns the condition of this type in a status.
pub(super) fn find_condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status
        .get("conditions")?
        .as_array()?
        .iter()
        .find(|condition| has_field(condition, "type", kind))
}

/// Returns the condition of this type in a status, if it holds.
pub(super) fn true_condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    find_condition(status, kind).filter(|condition| has_field(condition, "status", "True"))
}

/// Returns whether a field has this text.
pub(super) fn has_field(value: &Value, field: &str, text: &str) -> bool {
    value.get(field).and_then(Value::as_str) == Some(text)
}

/// Returns the text of a field, shortened for the user. It is empty if the field is absent.
pub(super) fn shortened_field(value: &Value, field: &str) -> String {
    shortened(value.get(field).and_then(Value::as_str).unwrap_or_default().trim())
}
