//! The golden documents of the wire protocol. Every version must understand each document, and a round trip must not
//! change it. A document is added when a message grows, and never edited.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use trial_protocol::{
    Cause, Class, Confidence, Direction, Directive, DirectiveBody, Lane, LogLevel, Offer,
    RendezvousReply, RendezvousRequest, Report, ReportAck, ReportBatch, ReportBody, StopReason,
    StopRule, StopWhen, Verdict,
};

/// Reads a document as one type and writes it again.
type RoundTrip = fn(Value) -> serde_json::Result<Value>;

fn round_trip<T: DeserializeOwned + Serialize>(document: Value) -> serde_json::Result<Value> {
    serde_json::to_value(serde_json::from_value::<T>(document)?)
}

/// Returns the type of the documents with this name, by the beginning of the name.
fn round_trip_of(name: &str) -> RoundTrip {
    let kinds: [(&str, RoundTrip); 7] = [
        ("offer", round_trip::<Offer>),
        ("body-", round_trip::<ReportBody>),
        ("directive-", round_trip::<Directive>),
        ("report-batch-", round_trip::<ReportBatch>),
        ("report-ack", round_trip::<ReportAck>),
        ("rendezvous-request", round_trip::<RendezvousRequest>),
        ("rendezvous-reply", round_trip::<RendezvousReply>),
    ];
    let kind = kinds.into_iter().find(|(beginning, _)| name.starts_with(beginning));
    kind.unwrap_or_else(|| panic!("{name}: add the type of the document to this table")).1
}

fn documents() -> Vec<(String, Value)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/v1");
    let mut documents = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        documents.push((name, serde_json::from_str(&text).unwrap()));
    }
    assert!(documents.len() >= 24, "documents are added, never removed");
    documents
}

fn document(name: &str) -> Value {
    documents().into_iter().find(|(found, _)| found == name).unwrap().1
}

#[test]
fn every_document_survives_a_round_trip() {
    for (name, document) in documents() {
        assert_eq!(round_trip_of(&name)(document.clone()).unwrap(), document, "{name}");
    }
}

#[test]
fn an_old_reader_ignores_the_members_of_a_new_writer() {
    for (name, document) in documents() {
        let mut newer = document.clone();
        grow(&mut newer);
        assert_ne!(newer, document, "{name}");
        let mut kept =
            round_trip_of(&name)(newer).unwrap_or_else(|error| panic!("{name}: {error}"));
        shrink(&mut kept);
        assert_eq!(kept, document, "{name}");
    }
}

/// Adds a member to every object, except to `exit`, in which the member's name is the value.
fn grow(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (_, member) in members.iter_mut().filter(|(name, _)| *name != "exit") {
                grow(member);
            }
            members.insert("of_a_later_version".to_owned(), json!({"deep": [1]}));
        }
        Value::Array(elements) => elements.iter_mut().for_each(grow),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Removes the member that [`grow`] added, wherever a reader kept it.
fn shrink(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("of_a_later_version");
            members.values_mut().for_each(shrink);
        }
        Value::Array(elements) => elements.iter_mut().for_each(shrink),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_kind_of_message_has_a_document() {
    let seen: BTreeSet<String> = documents()
        .into_iter()
        .filter_map(|(name, document)| {
            let body = document.get("body").unwrap_or(&document);
            Some(format!("{} {}", name.split('-').next()?, body.get("kind")?.as_str()?))
        })
        .collect();
    #[rustfmt::skip]
    let wanted = [
        "body ended", "body log", "body metric", "body note", "body sample", "body shed", "body started",
        "directive flush", "directive log_level", "directive stop", "directive stop_rules",
    ];
    assert_eq!(seen, wanted.into_iter().map(str::to_owned).collect());
}

#[test]
fn a_report_of_an_unknown_kind_leaves_its_batch_readable() {
    let mut batch = document("report-batch-facts");
    batch["reports"][1]["body"] = json!({"kind": "hologram", "name": {"deep": [1, 2]}});
    let batch: ReportBatch = serde_json::from_value(batch).unwrap();
    assert_eq!(batch.reports[1].body, ReportBody::Unknown);
    assert_eq!(batch.reports.iter().filter(|r| r.body == ReportBody::Unknown).count(), 1);
}

#[test]
fn an_unknown_directive_or_reason_is_kept_as_such() {
    let read = |body| serde_json::from_value::<Directive>(json!({"id": 1, "body": body})).unwrap();
    assert_eq!(read(json!({"kind": "pause", "for_ms": 5})).body, DirectiveBody::Unknown);
    assert_eq!(
        read(json!({"kind": "stop", "reason": "full-moon"})).body,
        DirectiveBody::Stop { reason: StopReason::Other, grace_ms: None }
    );
}

#[test]
fn an_unknown_level_or_condition_is_kept_as_such() {
    let read = |body| serde_json::from_value::<Directive>(json!({"id": 1, "body": body})).unwrap();
    assert_eq!(
        read(json!({"kind": "log_level", "level": "shout"})).body,
        DirectiveBody::LogLevel { level: LogLevel::Other }
    );
    let rule = json!({"reason": "user", "when": "full_moon", "of": 3});
    assert_eq!(
        read(json!({"kind": "stop_rules", "rules": [rule], "lease_ms": 5})).body,
        DirectiveBody::StopRules {
            rules: vec![StopRule {
                reason: StopReason::User,
                lease_ms: None,
                when: StopWhen::Unknown
            }],
            lease_ms: 5,
        }
    );
    for (better, expected) in [
        ("larger", Some(Direction::Maximize)),
        ("smaller", Some(Direction::Minimize)),
        ("prettier", None),
    ] {
        let best = json!({
            "when": "best", "name": "m", "better": better, "from_results": 1, "bounds": [1.0]
        });
        let rule: StopWhen = serde_json::from_value(best.clone()).unwrap();
        let StopWhen::Best { direction, .. } = &rule else { panic!("{rule:?}") };
        assert_eq!(*direction, expected, "{better}");
        let written = serde_json::to_value(&rule).unwrap();
        assert_eq!(written == best, expected.is_some(), "{written}");
    }
}

#[test]
fn an_unknown_cause_class_or_confidence_is_kept_as_such() {
    let verdict: Verdict = serde_json::from_value(json!({
        "cause": "cosmic-ray", "class": "weather", "confidence": "hunch", "message": "a flipped bit"
    }))
    .unwrap();
    assert_eq!(
        (verdict.cause, verdict.class, verdict.confidence),
        (Cause::Other, Class::Other, Confidence::Other)
    );
}

#[test]
fn every_body_travels_on_the_lane_of_its_batch() {
    for (name, lane) in [("report-batch-facts", Lane::Facts), ("report-batch-bulk", Lane::Bulk)] {
        let batch: ReportBatch = serde_json::from_value(document(name)).unwrap();
        assert_eq!(batch.lane, lane, "{name}");
        for Report { seq, body, .. } in &batch.reports {
            assert_eq!(body.lane(), lane, "{name}, {seq}");
        }
    }
}
