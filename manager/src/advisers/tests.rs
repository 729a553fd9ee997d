//! The messages and their order, compared with recorded conversations of NNI 3.0, and with arbitrary input.

use proptest::prelude::*;
use serde_json::{Value, json};
use trial_protocol::{MetricValue, TrialJobId};

use super::ask_and_tell::AskAndTell;
use super::history::{Conversation, ConversationStep, History};
use super::nni::{DispatcherRoles, NniConversation, python_json};
use super::{AdviserEvent, AdviserRequest, Sample};
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::search::tuner::Proposal;

const BOTH_ROLES: DispatcherRoles = DispatcherRoles { tunes: true, assesses: true, advisor: false };

fn trial(name: &str) -> TrialJobId {
    TrialJobId::new(name).unwrap()
}

fn parameters(x: f64) -> Parameters {
    json!({ "x": x }).as_object().unwrap().clone()
}

/// Sends a request as the supervisor does.
fn send_request(
    dialogue: &mut dyn Conversation,
    history: &mut History,
    request: &AdviserRequest,
) -> ConversationStep {
    if history.record(request) {
        dialogue.handle_request(request, history)
    } else {
        ConversationStep::default()
    }
}

fn ended_request(name: &str, state: JobState, result: Option<f64>) -> AdviserRequest {
    AdviserRequest::Ended { trial: trial(name), state, result: result.map(MetricValue::from) }
}

fn launched_request(name: &str, id: u64, x: f64) -> AdviserRequest {
    AdviserRequest::Launched { trial: trial(name), proposal: Some(id), parameters: parameters(x) }
}

fn proposal_frame(id: u64, x: f64) -> String {
    let content = json!({"parameter_id": id, "parameter_source": "algorithm",
        "parameters": {"x": x}, "parameter_index": 0});
    json!({"type": "TR", "content": content.to_string()}).to_string()
}

fn kinds(texts: &[String]) -> Vec<String> {
    let kind = |text: &String| {
        let frame: Value = serde_json::from_str(text).unwrap();
        frame["type"].as_str().unwrap().to_owned()
    };
    texts.iter().map(kind).collect()
}

fn parse_recording(text: &str) -> Vec<(String, Value)> {
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let frame = line["frame"].as_str().and_then(|frame| serde_json::from_str(frame).ok())?;
        Some((line["dir"].as_str().unwrap().to_owned(), frame))
    };
    text.lines().filter_map(line).collect()
}

const RECORDED_DIALOGUES: [&str; 5] = [
    include_str!("../../fixtures/dispatcher/tpe.jsonl"),
    include_str!("../../fixtures/dispatcher/medianstop.jsonl"),
    include_str!("../../fixtures/dispatcher/exhausted.jsonl"),
    include_str!("../../fixtures/dispatcher/resume.jsonl"),
    include_str!("../../fixtures/dispatcher/error.jsonl"),
];

#[test]
fn proposals_outside_the_search_space_are_reported() {
    let table = [
        (
            r#"{"parameter_id": 0, "parameters": [1, 2]}"#,
            "parameters that are not an object: [1,2]",
        ),
        (r#"{"parameter_id": 0, "parameters": null}"#, "parameters that are not an object: null"),
        (r#"{"parameter_id": 0, "parameters": {"x": NaN}}"#, "parameters that cannot be read ("),
        (
            r#"{"parameters": {"x": 1}}"#,
            "parameters that cannot be read (missing field `parameter_id`",
        ),
    ];
    for (content, expected) in table {
        let mut history = History::new(json!({}));
        let mut dialogue = NniConversation::new(BOTH_ROLES);
        let text = json!({ "type": "TR", "content": content }).to_string();
        let broken =
            dialogue.handle_message(&text, &mut history).unwrap().unusable_proposal.unwrap();
        assert!(broken.starts_with(expected), "{content}: {broken}");
    }
}

#[test]
fn recorded_dispatchers_are_understood() {
    let mut received = 0;
    for text in RECORDED_DIALOGUES {
        let mut history = History::new(json!({}));
        let mut dialogue = NniConversation::new(BOTH_ROLES);
        let mut next = 0;
        for (from, frame) in parse_recording(text) {
            if from == "manager->dispatcher" {
                let wanted = if frame["type"] == "GE" { frame["content"].as_str() } else { None };
                for _ in 0..wanted.map_or(0, |number| number.parse::<u64>().unwrap()) {
                    send_request(
                        &mut dialogue,
                        &mut history,
                        &AdviserRequest::Propose { id: next },
                    );
                    next += 1;
                }
                continue;
            }
            let reply = dialogue.handle_message(&frame.to_string(), &mut history).unwrap();
            received += 1;
            let content = frame["content"].as_str().unwrap_or_default();
            match frame["type"].as_str().unwrap() {
                "TR" => {
                    let content: Value = serde_json::from_str(content).unwrap();
                    let [AdviserEvent::Proposed { proposal: Proposal::Parameters(proposed), .. }] =
                        reply.events.as_slice()
                    else {
                        panic!("{frame}: {reply:?}")
                    };
                    assert_eq!(proposed, content["parameters"].as_object().unwrap());
                }
                "NO" => assert!(!history.refused_requests.is_empty(), "{frame}"),
                "KI" => {
                    assert!(
                        matches!(reply.events[..], [AdviserEvent::StopTrial { .. }]),
                        "{frame}"
                    );
                }
                "ID" => assert!(reply.ready),
                "_bye_" => assert_eq!(reply, ConversationStep::default()),
                other => panic!("a recording contains {other}"),
            }
        }
    }
    assert!(received > 20, "{received}");
}

/// Returns the names of an object's members, sorted.
fn member_names(text: &str) -> Vec<String> {
    let object: Value = serde_json::from_str(text).unwrap();
    let mut names: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
    names.sort();
    names
}

#[test]
fn the_messages_equal_those_of_nnis_manager() {
    let mut history = History::new(json!({"x": {"_type": "uniform", "_value": [0, 1]}}));
    let mut dialogue = NniConversation::new(BOTH_ROLES);
    let mut sent = dialogue.first_messages(&mut history).messages;
    sent.extend(
        send_request(&mut dialogue, &mut history, &AdviserRequest::Propose { id: 0 }).messages,
    );
    sent.extend(
        dialogue.handle_message(r#"{"type": "ID", "content": ""}"#, &mut history).unwrap().messages,
    );
    dialogue.handle_message(&proposal_frame(0, 0.5), &mut history).unwrap();
    let space = AdviserRequest::Space(json!({"x": {"_type": "uniform", "_value": [0, 2]}}));
    let known = Sample { parameters: parameters(0.1), value: 0.9.into() };
    let step = AdviserRequest::Step { trial: trial("aaaaa"), sequence: 0, value: 0.5.into() };
    let requests = [
        launched_request("aaaaa", 0, 0.5),
        step,
        ended_request("aaaaa", JobState::Succeeded, Some(0.7)),
        space,
    ];
    for next in requests.into_iter().chain([AdviserRequest::Import(vec![known])]) {
        sent.extend(send_request(&mut dialogue, &mut history, &next).messages);
    }
    sent.extend(
        send_request(&mut dialogue, &mut history, &AdviserRequest::Propose { id: 1 }).messages,
    );
    sent.extend(dialogue.handle_message(&proposal_frame(1, 0.6), &mut history).unwrap().messages);
    sent.extend(dialogue.last_messages().messages);
    assert_eq!(kinds(&sent), ["IN", "GE", "ME", "ME", "SS", "FD", "GE", "EN", "TE", "_bye_"]);
    let recorded = parse_recording(RECORDED_DIALOGUES[0]);
    for text in &sent {
        let message: Value = serde_json::from_str(text).unwrap();
        let recorded_frame = recorded.iter().find(|(from, frame)| {
            from == "manager->dispatcher" && frame["type"] == message["type"]
        });
        let (_, expected) = recorded_frame.unwrap_or_else(|| panic!("NNI never sends {text}"));
        assert_eq!(member_names(text), member_names(&expected.to_string()), "{text}");
        if let (Some(message), Some(expected)) =
            (message["content"].as_str(), expected["content"].as_str())
            && message.starts_with('{')
            && !message.contains("_type")
        {
            assert_eq!(member_names(message), member_names(expected), "{text}");
        }
    }
}

#[test]
fn an_end_never_overtakes_its_result() {
    let mut history = History::new(json!({}));
    let mut dialogue = NniConversation::new(BOTH_ROLES);
    dialogue.handle_message(r#"{"type": "ID"}"#, &mut history).unwrap();
    for id in 0..2 {
        send_request(&mut dialogue, &mut history, &AdviserRequest::Propose { id });
        dialogue.handle_message(&proposal_frame(id, 0.5), &mut history).unwrap();
    }
    send_request(&mut dialogue, &mut history, &launched_request("aaaaa", 0, 0.5));
    send_request(&mut dialogue, &mut history, &launched_request("bbbbb", 1, 0.5));
    let good = ended_request("aaaaa", JobState::Succeeded, Some(1.0));
    assert_eq!(kinds(&send_request(&mut dialogue, &mut history, &good).messages), ["ME"]);
    assert_eq!(
        send_request(&mut dialogue, &mut history, &good),
        ConversationStep::default(),
        "a repeated request"
    );
    let bad = ended_request("bbbbb", JobState::Failed, None);
    assert_eq!(
        kinds(&send_request(&mut dialogue, &mut history, &bad).messages),
        ["EN"],
        "no result is outstanding"
    );
    // No parameters are needed. A request is sent anyway, to prove that the result was processed.
    assert_eq!(kinds(&dialogue.idle_messages().messages), ["GE"]);
    assert_eq!(dialogue.idle_messages(), ConversationStep::default(), "one request is enough");
    let reply = dialogue.handle_message(&proposal_frame(2, 0.25), &mut history).unwrap();
    assert_eq!(
        (kinds(&reply.messages), reply.events),
        (vec!["EN".to_owned()], vec![AdviserEvent::Ready])
    );
    // The received parameters are kept for the next request.
    let reply = send_request(&mut dialogue, &mut history, &AdviserRequest::Propose { id: 2 });
    let proposal = Proposal::Parameters(parameters(0.25));
    assert_eq!(
        (reply.messages, reply.events),
        (vec![], vec![AdviserEvent::Proposed { id: 2, proposal }])
    );
}

#[test]
fn results_that_an_assessor_has_not_judged_are_counted() {
    let mut history = History::new(json!({}));
    let mut dialogue = NniConversation::new(BOTH_ROLES);
    dialogue.handle_message(r#"{"type": "ID"}"#, &mut history).unwrap();
    send_request(&mut dialogue, &mut history, &launched_request("aaaaa", 0, 0.5));
    let step =
        |sequence| AdviserRequest::Step { trial: trial("aaaaa"), sequence, value: 0.5.into() };
    send_request(&mut dialogue, &mut history, &step(0));
    assert_eq!(dialogue.unprocessed(), 0, "NNI's own dispatcher does not report a count");
    let reply =
        dialogue.handle_message(r#"{"type": "_done_", "content": "0"}"#, &mut history).unwrap();
    assert_eq!((reply.is_from_assessor, dialogue.unprocessed()), (true, 1));
    send_request(&mut dialogue, &mut history, &step(1));
    send_request(&mut dialogue, &mut history, &ended_request("aaaaa", JobState::Failed, None));
    dialogue.handle_message(r#"{"type": "_done_", "content": "1"}"#, &mut history).unwrap();
    assert_eq!(dialogue.unprocessed(), 1, "the end of a trial that it did not propose is not sent");
    dialogue.handle_message(r#"{"type": "_done_", "content": "2"}"#, &mut history).unwrap();
    assert_eq!(dialogue.unprocessed(), 0);
    assert!(
        dialogue.handle_message(r#"{"type": "_done_", "content": "x"}"#, &mut history).is_err()
    );
}

#[test]
fn a_refused_proposal_may_still_be_answered() {
    let mut history = History::new(json!({}));
    let mut dialogue = NniConversation::new(BOTH_ROLES);
    dialogue.handle_message(r#"{"type": "ID"}"#, &mut history).unwrap();
    send_request(&mut dialogue, &mut history, &AdviserRequest::Propose { id: 7 });
    dialogue.handle_message(r#"{"type": "NO", "content": "{}"}"#, &mut history).unwrap();
    assert_eq!(history.refused_requests, [7]);
    let reply = dialogue.handle_message(&proposal_frame(0, 0.5), &mut history).unwrap();
    let proposal = Proposal::Parameters(parameters(0.5));
    assert_eq!(reply.events, [AdviserEvent::Proposed { id: 7, proposal }]);
    assert!(history.refused_requests.is_empty());
}

#[test]
fn a_restarted_dispatcher_receives_the_history() {
    let mut history = History::new(json!({}));
    let requests = [
        AdviserRequest::Import(vec![Sample { parameters: parameters(0.1), value: 0.2.into() }]),
        launched_request("aaaaa", 0, 0.5),
        AdviserRequest::Step { trial: trial("aaaaa"), sequence: 0, value: f64::NAN.into() },
        ended_request("aaaaa", JobState::Succeeded, Some(0.7)),
        launched_request("bbbbb", 1, 0.6),
        ended_request("bbbbb", JobState::Failed, None),
        launched_request("ccccc", 2, 0.4),
        AdviserRequest::Step { trial: trial("ccccc"), sequence: 0, value: 0.1.into() },
        AdviserRequest::Step { trial: trial("ccccc"), sequence: 1, value: 0.2.into() },
        AdviserRequest::Propose { id: 3 },
    ];
    let mut dialogue = NniConversation::new(BOTH_ROLES);
    for next in requests {
        assert_eq!(
            send_request(&mut dialogue, &mut history, &next),
            ConversationStep::default(),
            "not ready yet"
        );
    }
    let reply = dialogue.handle_message(r#"{"type": "ID"}"#, &mut history).unwrap();
    assert_eq!(
        kinds(&reply.messages),
        ["FD", "ME", "ME", "EN", "ME", "GE"],
        "{:#?}",
        reply.messages
    );
    assert!(
        reply.messages[0].contains("0.7") && reply.messages[0].contains("0.2"),
        "{}",
        reply.messages[0]
    );
    let of_c = |at: usize| reply.messages[at].contains("ccccc");
    assert!(
        of_c(1) && of_c(4),
        "the latest result of a running trial is last: {:#?}",
        reply.messages
    );
    assert!(reply.messages[2].contains(r#"\"value\":\"NaN\""#), "{}", reply.messages[2]);
    // The result of a trial that another dispatcher proposed is sent as an imported one.
    let reply = send_request(
        &mut dialogue,
        &mut history,
        &ended_request("ccccc", JobState::Succeeded, Some(0.9)),
    );
    assert_eq!(kinds(&reply.messages), ["FD"]);
}

#[test]
fn an_advisor_receives_only_its_own_trials() {
    let mut history = History::new(json!({}));
    for next in
        [launched_request("aaaaa", 0, 0.5), ended_request("aaaaa", JobState::Succeeded, Some(0.7))]
    {
        history.record(&next);
    }
    history.record(&launched_request("bbbbb", 1, 0.5));
    let mut dialogue = NniConversation::new(DispatcherRoles { advisor: true, ..BOTH_ROLES });
    let reply = dialogue.handle_message(r#"{"type": "ID"}"#, &mut history).unwrap();
    assert_eq!(kinds(&reply.messages), ["FD"]);
    let reply =
        send_request(&mut dialogue, &mut history, &ended_request("bbbbb", JobState::Failed, None));
    assert_eq!(reply, ConversationStep::default());
}

#[test]
fn ask_and_tell_messages_equal_the_documented_ones() {
    let greeting = json!({"experiment": "abc", "seed": 1}).as_object().unwrap().clone();
    let mut history = History::new(json!({"x": {"_type": "uniform", "_value": [0, 1]}}));
    let mut conversation = AskAndTell::new(greeting);
    let hello: Value =
        serde_json::from_str(&conversation.first_messages(&mut history).messages[0]).unwrap();
    assert_eq!(
        hello,
        json!({"type": "hello", "protocol": 1, "experiment": "abc", "seed": 1,
               "search_space": {"x": {"_type": "uniform", "_value": [0, 1]}}})
    );
    history.record(&launched_request("aaaaa", 0, 0.5));
    history.record(&AdviserRequest::Step { trial: trial("aaaaa"), sequence: 0, value: 0.5.into() });
    history.record(&ended_request("aaaaa", JobState::EarlyStopped, Some(f64::INFINITY)));
    history.record(&AdviserRequest::Propose { id: 1 });
    let reply = conversation.handle_message(r#"{"type": "ready"}"#, &mut history).unwrap();
    let messages: Vec<Value> =
        reply.messages.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        messages,
        [
            json!({"type": "launched", "trial": "aaaaa", "id": 0, "parameters": {"x": 0.5}}),
            json!({"type": "intermediate", "trial": "aaaaa", "id": 0, "sequence": 0, "value": 0.5}),
            json!({"type": "ended", "trial": "aaaaa", "id": 0, "parameters": {"x": 0.5},
                   "state": "EARLY_STOPPED", "value": "Infinity"}),
            json!({"type": "propose", "id": 1}),
        ]
    );
    #[rustfmt::skip]
    let table = [
        (r#"{"type": "proposal", "id": 9, "parameters": {}}"#, Err("an answer for proposal 9, which was not requested")),
        (r#"{"type": "proposal", "id": 1}"#,                   Err("missing field `parameters`")),
        (r#"{"type": "wat"}"#,                                 Err("unknown variant `wat`")),
        ("hello",                                              Err("expected value")),
        (r#"{"type": "wait", "id": 1}"#, Ok(AdviserEvent::Proposed { id: 1, proposal: Proposal::Wait })),
        (r#"{"type": "exhausted", "id": 1}"#,                  Err("which was not requested")),
        (r#"{"type": "stop", "trial": "aaaaa", "reason": "bad"}"#,
            Ok(AdviserEvent::StopTrial { trial: trial("aaaaa"), reason: Some("bad".to_owned()) })),
    ];
    for (line, expected) in table {
        match (conversation.handle_message(line, &mut history), expected) {
            (Ok(reply), Ok(event)) => assert_eq!(reply.events, [event], "{line}"),
            (Err(problem), Err(part)) => assert!(problem.contains(part), "{line}: {problem}"),
            (found, _) => panic!("{line}: {found:?}"),
        }
    }
}

#[test]
fn python_reads_numbers_that_json_cannot_represent() {
    let value = json!({"default": "NaN", "all": ["-Infinity", 1.5, "it's"], "none": null});
    assert_eq!(
        python_json(&value),
        r#"{"default": NaN, "all": [-Infinity, 1.5, "it's"], "none": null}"#
    );
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(texts in prop::collection::vec(foreign_text(), 0..20)) {
        let mut history = History::new(json!({}));
        history.record(&AdviserRequest::Propose { id: 0 });
        let conversations: [Box<dyn Conversation>; 2] =
            [Box::new(NniConversation::new(BOTH_ROLES)), Box::new(AskAndTell::new(serde_json::Map::new()))];
        for mut conversation in conversations {
            conversation.first_messages(&mut history);
            for text in &texts {
                drop(conversation.handle_message(text, &mut history));
                conversation.idle_messages();
            }
        }
    }

    #[test]
    fn each_end_follows_its_result_exactly_once(moves in prop::collection::vec(0_u8..4, 0..60)) {
        let mut history = History::new(json!({}));
        let mut dialogue = NniConversation::new(BOTH_ROLES);
        dialogue.handle_message(r#"{"type": "ID"}"#, &mut history).unwrap();
        let (mut proposals, mut answered, mut ended_trials) = (0, 0, 0);
        let mut requests = 0;
        let mut sent = Vec::new();
        for step in moves.into_iter().chain([3; 80]) {
            let reply = match step {
                0 => {
                    proposals += 1;
                    send_request(&mut dialogue, &mut history, &AdviserRequest::Propose { id: proposals - 1 })
                }
                1 if requests > answered => {
                    answered += 1;
                    dialogue.handle_message(&proposal_frame(answered, 0.5), &mut history).unwrap()
                }
                2 if ended_trials < answered.min(proposals) => {
                    ended_trials += 1;
                    let name = format!("t{ended_trials}");
                    send_request(&mut dialogue, &mut history, &launched_request(&name, ended_trials - 1, 0.5));
                    send_request(&mut dialogue, &mut history, &ended_request(&name, JobState::Succeeded, Some(1.0)))
                }
                3 if requests > answered => {
                    answered += 1;
                    dialogue.handle_message(&proposal_frame(answered, 0.5), &mut history).unwrap()
                }
                _ => dialogue.idle_messages(),
            };
            requests += u64::try_from(kinds(&reply.messages).iter().filter(|kind| *kind == "GE").count()).unwrap();
            sent.extend(reply.messages);
        }
        // The result of each trial is sent first and its end later, each exactly once.
        for number in 1..=ended_trials {
            let name = format!("t{number}\\\"");
            let of: Vec<String> = sent.iter().filter(|text| text.contains(&name)).cloned().collect();
            prop_assert_eq!(kinds(&of), ["ME", "EN"]);
        }
    }
}

/// Returns texts that look like frames and lines, and texts that do not.
fn foreign_text() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        "ID", "TR", "NO", "KI", "ER", "SP", "_bye_", "XX", "ready", "proposal", "wait", "stop",
        "log",
    ]);
    let content = prop::sample::select(vec![
        "",
        "{}",
        "[]",
        "\"abc\"",
        "1",
        r#"{"parameter_id": "0-1_2", "parameters": ""}"#,
        r#"{"parameter_id": 3, "parameters": {"x": 1}}"#,
        "\"\u{1F980} not an id\"",
    ]);
    let framed = (kind, content, any::<u64>()).prop_map(|(kind, content, id)| {
        json!({"type": kind, "content": content, "id": id % 3, "parameters": {}}).to_string()
    });
    prop_oneof![
        framed,
        ".*",
        any::<Vec<u8>>().prop_map(|b| String::from_utf8_lossy(&b).into_owned())
    ]
}

#[tokio::test]
async fn the_name_of_the_part_that_stops_trials_is_published() {
    use super::{Algorithm, ClassSource, ExternalAdviser, Program, ProgramSettings};
    let class = |name: &str| {
        let source = ClassSource::Class { class: name.to_owned(), code: "/".into() };
        Some(Algorithm { source, class_args: serde_json::Map::new() })
    };
    #[rustfmt::skip]
    let table = [
        (class("t.Tuner"),   class("a.Assessor"), false, "t.Tuner",    "a.Assessor"),
        (None,               class("a.Assessor"), false, "a.Assessor", "a.Assessor"),
        (class("t.Advisor"), None,                true,  "t.Advisor",  "t.Advisor"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (tuner, assessor, advisor, name, assessor_name) in table {
        let python = "no-such-python".to_owned();
        let outside = ExternalAdviser::start(ProgramSettings {
            secret_variables: Vec::new(),
            program: Program::Nni { python, tuner, assessor, advisor },
            experiment: "e".to_owned(),
            space: json!({}),
            dir: folder.path().to_owned(),
            code: folder.path().to_owned(),
            gpus: None,
            silence_timeout: std::time::Duration::from_mins(1),
        });
        assert_eq!((outside.name.as_str(), outside.assessor_name.as_str()), (name, assessor_name));
        outside.close().await;
    }
}
