//! Validates a Framework by its recorded definition (`crd.json`), as the real server does: refuses invalid
//! values and drops unknown fields.

use std::sync::OnceLock;

use serde_json::Value;

/// The definition that the real controller creates.
const FRAMEWORK_DEFINITION: &str = include_str!("../../fixtures/frameworkcontroller/crd.json");

/// Validates a Framework and removes unknown fields. Returns an error if a value is invalid.
pub(super) fn admit(framework: &mut Value) -> Result<(), String> {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| {
        let definition: Value =
            serde_json::from_str(FRAMEWORK_DEFINITION).expect("the recorded definition is JSON");
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
    });
    let name = framework.pointer("/metadata/name").cloned().unwrap_or(Value::Null);
    check_value(&schema["properties"]["metadata"]["properties"]["name"], &name, "metadata.name")?;
    for field in ["spec", "status"] {
        if let Some(value) = framework.get_mut(field) {
            drop_unknown_fields(&schema["properties"][field], value, field)?;
        }
    }
    Ok(())
}

fn drop_unknown_fields(schema: &Value, value: &mut Value, at: &str) -> Result<(), String> {
    check_value(schema, value, at)?;
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return Ok(());
    }
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !schema["properties"][name].is_null());
            members.iter_mut().try_for_each(|(name, member)| {
                drop_unknown_fields(&schema["properties"][name], member, &format!("{at}.{name}"))
            })
        }
        Value::Array(list) => {
            let mut list = list.iter_mut().enumerate();
            list.try_for_each(|(i, member)| {
                drop_unknown_fields(&schema["items"], member, &format!("{at}[{i}]"))
            })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn check_value(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wanted = schema["type"].as_str().unwrap_or_default();
    let has_type = match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => true,
    };
    if !(has_type || value.is_null() && schema["nullable"] == true) {
        return Err(format!("{at}: Invalid value: must be of type {wanted}"));
    }
    let number = value.as_i64();
    let bound = |name: &str| schema[name].as_i64();
    if number.is_some_and(|number| {
        bound("minimum").is_some_and(|least| number < least)
            || bound("maximum").is_some_and(|most| number > most)
    }) {
        return Err(format!("{at}: Invalid value: {value}"));
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        return Err(format!("{at}: Unsupported value: {value}"));
    }
    // The definition has only this pattern.
    let name = value.as_str().unwrap_or_default();
    let is_name = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if !schema["pattern"].is_null() && !is_name {
        return Err(format!("{at}: Invalid value: {value} should match {}", schema["pattern"]));
    }
    Ok(())
}
