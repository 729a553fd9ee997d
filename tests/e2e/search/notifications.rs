//! Notifications reach a server and a program, even if these misbehave or the manager is killed.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{
    Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, WebhookAnswer, WebhookServer, wait_for,
};

/// Reads the events in a file, one per line.
fn read_events(bed: &TestBed, file: &str) -> Vec<Value> {
    bed.read(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn event_kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

#[test]
fn the_end_is_notified_to_a_faulty_server_and_a_program() {
    let bed = TestBed::new();
    // The manager retries after 1 s, 2 s and 4 s, for at most 10 s. A third fault could thus be one too many.
    let server = WebhookServer::start(&[
        WebhookAnswer::NoAnswer,
        WebhookAnswer::NotHttp,
        WebhookAnswer::EndlessBody,
    ]);
    bed.write("url", &format!("{}/s3cret-path\n", server.url()));
    let search = Search::new("echo score=0.5", 2).with("experimentName", "told").with(
        "notifications",
        json!({
            "webhookUrlFile": "url",
            "webhookTokenVariable": "HOOK_TOKEN",
            "command": "cat >>../told; echo $TRIALKEEPER_EVENT_ID $TRIALKEEPER_EVENT >>../ids",
        }),
    );
    let mut command = search.command(&bed);
    command.env("HOOK_TOKEN", "s3cret-token");
    let outcome = Outcome::parse(bed.start(&mut command).finish(WAIT_TIMEOUT));
    outcome.expect_done(2, 0);

    let received = server.requests();
    assert_eq!(
        received.len(),
        3,
        "expected two failed deliveries and a successful one: {received:#?}"
    );
    for one in &received {
        assert_eq!(one.line, "POST /s3cret-path HTTP/1.1");
        assert_eq!(one.event, received[0].event, "the deliveries differ");
        let id = one.event["id"].as_str().unwrap();
        for header in
            [format!("idempotency-key: {id}"), "authorization: bearer s3cret-token".to_owned()]
        {
            assert!(one.headers.contains(&header), "{header} is not in {:?}", one.headers);
        }
    }
    let event = &received[0].event;
    assert_eq!(event["event"], "experiment_ended");
    assert_eq!(event["state"], "DONE");
    assert_eq!(event["experiment"], json!({"id": outcome.id, "name": "told"}));
    assert_eq!(event["trials"], json!({"SUCCEEDED": 2}));
    assert_eq!(event["best"]["result"], 0.5);
    assert_eq!(event["best"]["parameters"], json!(outcome.trial(0).parameters));
    assert_eq!(
        read_events(&bed, "told"),
        std::slice::from_ref(event),
        "the program must get the event once"
    );
    assert_eq!(bed.read("ids"), format!("{} experiment_ended\n", event["id"].as_str().unwrap()));
    assert!(!outcome.stderr.contains("s3cret"), "{}", outcome.stderr);
}

#[test]
fn a_variable_that_is_named_as_a_secret_reaches_no_trial_and_no_tuner() {
    let bed = TestBed::new();
    let server = WebhookServer::start(&[]);
    let tuner = "import json, os, sys
open('../tuner-environment', 'w').write(repr(dict(os.environ)))
for line in sys.stdin:
    asked = json.loads(line)
    if asked['type'] == 'hello':
        print(json.dumps({'type': 'ready'}), flush=True)
    elif asked['type'] == 'propose':
        print(json.dumps({'type': 'proposal', 'id': asked['id'], 'parameters': {'x': 0.5}}), flush=True)
";
    bed.write("code/tuner.py", tuner);
    let search = Search::new("env >../environment; echo score=1", 1)
        .with("tuner", json!({"command": ["python3", "tuner.py"]}))
        .with(
            "notifications",
            json!({"webhookUrlVariable": "TEST_SECRET_URL", "webhookTokenVariable": "TEST_SECRET_TOKEN"}),
        );
    let mut command = search.command(&bed);
    command
        .env("TEST_SECRET_URL", server.url())
        .env("TEST_SECRET_TOKEN", "s3cret")
        .env("ORDINARY", "one");
    let outcome = Outcome::parse(bed.start(&mut command).finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    assert_eq!(server.requests().len(), 1, "the manager must read the variables");
    for environment in ["environment", "tuner-environment"] {
        let environment = bed.read(environment);
        assert!(environment.contains("ORDINARY"), "{environment}");
        assert!(!environment.contains("TEST_SECRET"), "{environment}");
    }
}

#[test]
fn the_next_manager_sends_the_notifications_of_a_killed_one() {
    let bed = TestBed::new();
    let command = "if [ ! -e ../open ]; then echo >>../tried; exec sleep 1000; fi; cat >>../told";
    let search =
        Search::new("echo score=0.5", 1).with("notifications", json!({"command": command}));
    let running = search.start(&bed);
    wait_for("the first notification", WAIT_TIMEOUT, || {
        (!bed.read("tried").is_empty()).then_some(())
    });
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    bed.write("open", "");
    let id = bed.experiment_id();
    for _ in 0..2 {
        let outcome = Outcome::run_resume(&bed, &id);
        outcome.expect_done(1, 0);
        let received = read_events(&bed, "told");
        assert_eq!(
            event_kinds(&received),
            ["experiment_ended"],
            "a resume must not repeat the notification"
        );
        assert_eq!(received[0]["state"], "DONE");
    }
}

#[test]
fn a_hanging_program_delays_the_end_briefly_and_is_reported() {
    let bed = TestBed::new();
    let search = Search::new("echo score=0.5", 1).with(
        "notifications",
        json!({"command": "exec sleep 1000", "webhookUrl": "http://127.0.0.1:1/s3cret"}),
    );
    let outcome = search.run(&bed);
    outcome.expect_done(1, 0);
    let stderr = &outcome.stderr;
    assert!(stderr.contains("could not be delivered yet: 2"), "{stderr}");
    assert!(stderr.contains("resume"), "the remedy is missing: {stderr}");
    assert!(!stderr.contains("s3cret"), "{stderr}");
    bed.wait_until_empty();
}

#[test]
fn a_pause_by_failures_and_the_end_are_notified() {
    let bed = TestBed::new();
    let command = json!({"command": "cat >>../told"});
    let search = Search::new("exit 3", 9)
        .with("maxConsecutiveFailures", 2)
        .with("notifications", command)
        .run(&bed);
    assert_eq!(search.trials.len(), 2, "{search:#?}");
    let received = read_events(&bed, "told");
    assert_eq!(
        event_kinds(&received),
        ["failure_budget_reached", "experiment_ended"],
        "{received:#?}"
    );
    let text = received[0]["text"].as_str().unwrap();
    assert!(text.contains("2 trials in a row failed"), "{text}");
    assert_eq!(received[1]["trials"], json!({"FAILED": 2}));
}

#[test]
fn an_unwritable_store_and_its_recovery_are_notified() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let events_wanted = ["manager_degraded", "manager_recovered"];
    let search = Search::new(
        "echo score=1; echo >>../waits; read _ <../gate; echo score=2; read _ <../gate",
        1,
    )
    .with("notifications", json!({"command": "cat >>../told", "events": events_wanted}));
    let running = search.start(&bed);
    wait_for("the trial to wait", WAIT_TIMEOUT, || (!bed.read("waits").is_empty()).then_some(()));
    let folder = bed.experiment_folder();

    // Another process locks the database.
    let other = rusqlite::Connection::open(folder.join("trialkeeper.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    gate.release(1);
    wait_for("the notification of the degraded manager", WAIT_TIMEOUT, || {
        (event_kinds(&read_events(&bed, "told")) == ["manager_degraded"]).then_some(())
    });
    other.execute_batch("ROLLBACK").unwrap();
    wait_for("the notification of the recovery", WAIT_TIMEOUT, || {
        (event_kinds(&read_events(&bed, "told")) == events_wanted).then_some(())
    });
    let received = read_events(&bed, "told");
    let problem = received[0]["problem"].as_str().unwrap();
    assert!(problem.contains("another process has locked it"), "{problem}");
    gate.release(1);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    assert_eq!(read_events(&bed, "told").len(), 2, "the experiment's end must not be notified");
}

#[test]
fn the_next_manager_notifies_of_a_recovery_if_the_first_one_dies() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let events_wanted = ["manager_degraded", "manager_recovered"];
    let search = Search::new("echo score=1; echo >>../waits; read _ <../gate; echo score=2", 1)
        .with("notifications", json!({"command": "cat >>../told", "events": events_wanted}));
    let running = search.start(&bed);
    wait_for("the trial to wait", WAIT_TIMEOUT, || (!bed.read("waits").is_empty()).then_some(()));
    let folder = bed.experiment_folder();
    let other = rusqlite::Connection::open(folder.join("trialkeeper.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    wait_for("the notification of the degraded manager", WAIT_TIMEOUT, || {
        (event_kinds(&read_events(&bed, "told")) == ["manager_degraded"]).then_some(())
    });
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    other.execute_batch("ROLLBACK").unwrap();

    let id = folder.file_name().unwrap().to_str().unwrap();
    let mut resume = bed.manager_command();
    resume
        .args(["resume", id, "--port", "0", "--output", "json", "--data-dir"])
        .arg(bed.data_folder());
    let running = bed.start(&mut resume);
    wait_for("the notification of the recovery", WAIT_TIMEOUT, || {
        (event_kinds(&read_events(&bed, "told")) == events_wanted).then_some(())
    });
    gate.release(1);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    assert_eq!(read_events(&bed, "told").len(), 2, "the recovery must be notified once");
}

#[test]
fn a_lost_tuner_is_notified_and_shown_until_it_recovers() {
    let bed = TestBed::new();
    bed.write("code/tuner.py", "raise SystemExit('OddError: it never begins')");
    let search = Search::new("echo score=0.5", 1)
        .with("tuner", json!({"command": ["python3", "tuner.py"]}))
        .with("notifications", json!({"command": "cat >>../told"}));
    let outcome = search.run(&bed);
    assert_eq!((outcome.state.as_str(), outcome.code), ("STOPPED", 1), "{outcome:#?}");
    let trouble = || {
        let mut show = bed.manager_command();
        show.args(["experiment", "show", "-ojson", "--data-dir"]).arg(bed.data_folder());
        let shown = bed.start(&mut show).finish(WAIT_TIMEOUT);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown["trouble"].as_str().map(str::to_owned)
    };
    let shown = trouble().unwrap();
    assert!(shown.contains("the tuner is lost") && shown.contains("OddError"), "{shown}");

    let program = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "hello":
        print('{"type": "ready"}', flush=True)
    elif message["type"] == "propose":
        print(json.dumps({"type": "proposal", "id": message["id"], "parameters": {"x": 0.5}}), flush=True)
"#;
    bed.write("code/tuner.py", program);
    Outcome::run_resume(&bed, &outcome.id).expect_done(1, 0);
    assert_eq!(trouble(), None);
    let received = read_events(&bed, "told");
    let expected = ["tuner_trouble", "experiment_ended", "tuner_recovered", "experiment_ended"];
    assert_eq!(event_kinds(&received), expected, "{received:#?}");
    assert_eq!(received[0]["problem"], shown);
}
