//! The portal's buttons in a real browser, over a running search: limits, rerun, stop of a trial and of the search. Also the live
//! output of both streams of a trial.

use serde_json::{Value, json};
use trialkeeper_tests::{
    Browser, Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, http_get, wait_for,
};

/// A trial whose first run fails. Every other run records its start and waits at a gate.
const TRIAL_SCRIPT: &str = r#"#!/bin/sh
if mkdir "$BED/once" 2>/dev/null; then exit 3; fi
echo "$NNI_TRIAL_SEQ_ID" >>"$BED/begun"
if [ "$NNI_TRIAL_SEQ_ID" = 0 ]; then
  echo "printed early"; echo "warned early" >&2
  read _ <"$BED/own"
  echo "printed late"; echo "warned late" >&2
  read _ <"$BED/own"
  echo score=0.5
  exit 0
fi
read _ <"$BED/gate"
"#;

/// Presses the button of the form with this action, and answers its confirmation. Returns the question. Waits
/// until the button exists.
fn press_button(browser: &Browser, action: &str, answer: bool) -> Value {
    let pressed = format!(
        "window.confirm = (question) => {{ window.asked = question; return {answer}; }};
         const button = document.querySelector('form[action$=\"{action}\"] button');
         button?.click();
         return button && (window.asked ?? 'nothing');"
    );
    browser.wait_for(&format!("the button of {action}"), WAIT_TIMEOUT, &pressed)
}

#[test]
#[ignore = "needs a browser"]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn a_search_is_steered_from_its_pages() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (gate, own) = (Gate::new(&bed.path("gate")), Gate::new(&bed.path("own")));
    bed.write_script("code/trial.sh", TRIAL_SCRIPT);
    let command = format!("BED='{}' ./trial.sh", bed.folder().display());
    let running = Search::new(&command, 20).start(&bed);
    let wait_for_started = |count: usize| {
        let what = format!("{count} trials to have begun");
        wait_for(&what, WAIT_TIMEOUT, || {
            (bed.read("begun").lines().count() >= count).then_some(())
        });
    };
    wait_for_started(1);
    let url = bed.manager_url();
    let token = bed.user_token();
    let get_json =
        |path: &str| -> Value { serde_json::from_str(&http_get(&url, path).unwrap().1).unwrap() };
    browser.set_viewport(1280, 900, false);

    // Without a login, the pages have no buttons.
    browser.open(&url);
    let forms = "return document.querySelectorAll('main form').length";
    assert_eq!(browser.run_script(forms), json!(0));
    browser.open(&format!("{url}/login"));
    browser.run_script(&format!("document.getElementById('token').value = {}", json!(token)));
    press_button(&browser, "/login", true);
    browser.wait_for("the overview", WAIT_TIMEOUT, "return location.pathname === '/'");

    // Three at a time, four in total, two hours.
    browser.wait_for(
        "the form",
        WAIT_TIMEOUT,
        "return document.querySelector('[name=trial_concurrency]')",
    );
    browser.run_script(
        "for (const [name, value] of [['trial_concurrency', 3], ['max_trial_number', 4], ['max_experiment_duration', '2h']])
           document.querySelector(`[name=${name}]`).value = value;",
    );
    press_button(&browser, "/limits", true);
    wait_for_started(3);
    let limits = ["trial_concurrency", "max_trial_number", "max_experiment_duration_ms"];
    let now = get_json("/api/v1/experiment");
    let now: Vec<&Value> = limits.iter().map(|name| &now[name]).collect();
    assert_eq!(
        now,
        [&json!(3), &json!(4), &json!(7_200_000)],
        "{}",
        get_json("/api/v1/experiment")
    );
    let shown = "const text = document.querySelector('.tiles').textContent; return text.includes('of at most 3') && text.includes('of 2 h')";
    browser.wait_for("the new limits on the page", WAIT_TIMEOUT, shown);
    let placeholder =
        "return document.querySelector('[name=max_trial_number]').placeholder === '4'";
    browser.wait_for("the new limit in the form", WAIT_TIMEOUT, placeholder);

    // An invalid limit is reported and changes nothing.
    browser.run_script("document.querySelector('[name=max_experiment_duration]').value = 'soon'");
    press_button(&browser, "/limits", true);
    browser.wait_for(
        "the refusal",
        WAIT_TIMEOUT,
        "return document.querySelector('main').textContent.includes('Total time:')",
    );
    assert_eq!(get_json("/api/v1/experiment")["max_experiment_duration_ms"], json!(7_200_000));

    // Reruns the failed trial, which needs the slot of a stopped one.
    let trials = get_json("/api/v1/trials?sort=sequence");
    let page = |at: usize| format!("{url}/trials/{}", trials["trials"][at]["id"].as_str().unwrap());
    browser.open(&page(0));
    assert_eq!(press_button(&browser, "/rerun", true), "nothing", "a rerun needs no confirmation");
    let state =
        |state: &str| format!("return document.querySelector('[data-state={state}]') !== null");
    browser.wait_for("the trial to wait for a slot", WAIT_TIMEOUT, &state("WAITING"));
    browser.open(&page(1));
    assert_eq!(press_button(&browser, "/stop", false), "Stop this trial?");
    assert_eq!(get_json("/api/v1/trials?sort=sequence")["trials"][1]["state"], "RUNNING");
    press_button(&browser, "/stop", true);
    browser.wait_for("the end", WAIT_TIMEOUT, &state("USER_CANCELED"));
    wait_for_started(4);

    // Both streams appear without a reload.
    browser.open(&page(0));
    browser.run_script("window.same = true");
    let holds = |stream: &str, text: &str| {
        let script = format!(
            "return document.getElementById('log-{stream}').textContent.includes('{text}')"
        );
        browser.wait_for(&format!("{text} in {stream}"), WAIT_TIMEOUT, &script);
    };
    holds("stdout", "printed early");
    holds("stderr", "warned early");
    own.release(1);
    holds("stdout", "printed late");
    holds("stderr", "warned late");
    own.release(1);
    browser.wait_for("the success of the trial", WAIT_TIMEOUT, &state("SUCCEEDED"));
    assert_eq!(browser.run_script("return window.same"), json!(true), "the page was reloaded");
    let two = "return document.querySelector('[aria-label=Attempts] tbody').rows.length === 2";
    browser.wait_for("both attempts", WAIT_TIMEOUT, two);

    // Stops the whole search after a confirmation.
    browser.open(&url);
    let question = "Stop all trials? The experiment can be resumed.";
    assert_eq!(press_button(&browser, "/stop", false), question);
    assert_eq!(
        get_json("/api/v1/experiment")["state"],
        "NO_MORE_TRIAL",
        "the search must continue"
    );
    press_button(&browser, "/stop", true);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    assert_eq!(outcome.state, "STOPPED", "{outcome:#?}");
    let states = [0, 1, 2, 3].map(|at| outcome.trial(at).state.as_str());
    assert_eq!(states, ["SUCCEEDED", "USER_CANCELED", "SYS_CANCELED", "SYS_CANCELED"]);
    drop(gate);
}

#[test]
#[ignore = "needs a browser"]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn selected_trials_are_stopped_and_rerun_and_a_point_is_added() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command = format!("read _ <'{}'; echo score={{{{x}}}}", gate.path().display());
    let search = Search::new(&command, 4).with("trialConcurrency", 3);
    let running = search.start(&bed);
    let url = wait_for("the manager to listen", WAIT_TIMEOUT, || bed.find_manager_url());
    let token = bed.user_token();
    let states = |expected: &[&str]| {
        wait_for(&format!("the states {expected:?}"), WAIT_TIMEOUT, || {
            let (_, list) = http_get(&url, "/api/v1/trials?sort=sequence")?;
            let list: Value = serde_json::from_str(&list).ok()?;
            let states = list["trials"].as_array()?.iter().map(|trial| trial["state"].as_str());
            (states.collect::<Option<Vec<_>>>()? == expected).then_some(())
        });
    };
    states(&["RUNNING", "RUNNING", "RUNNING"]);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/login?next=%2Ftrials%3Fsort%3Dsequence"));
    browser.run_script(&format!(
        "document.getElementById('token').value = {}; document.querySelector('main form').submit()",
        json!(token)
    ));
    browser.wait_for("the list", WAIT_TIMEOUT, "return location.pathname === '/trials'");

    // The form of a trial's page runs another point.
    let (_, list) = http_get(&url, "/api/v1/trials?sort=sequence").unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let id = list["trials"][0]["id"].as_str().unwrap().to_owned();
    browser.open(&format!("{url}/trials/{id}"));
    let added = "const form = document.querySelector('form.point');
         form.closest('details').open = true;
         form.querySelector('[name=x]').value = '0.625';
         form.querySelector('button').click();";
    browser.run_script(added);
    let is_open = format!(
        "return location.pathname.startsWith('/trials/') && !location.pathname.endsWith('{id}') && document.querySelector('.parameters dd')?.textContent === '0.625'"
    );
    browser.wait_for("the page of the new trial", WAIT_TIMEOUT, &is_open);
    states(&["RUNNING", "RUNNING", "RUNNING", "WAITING"]);

    // Selected trials are stopped, and one of them runs again.
    browser.open(&format!("{url}/trials?sort=sequence"));
    let press = |rows: usize, words: &str| {
        let script = format!(
            "window.confirm = () => true;
             const boxes = [...document.querySelectorAll('#list [name=trial]')];
             const button = [...document.querySelectorAll('#compare button')].find((one) => one.textContent === '{words}');
             if (boxes.length < 4 || !button) return false;
             for (const box of boxes.slice(0, {rows})) box.click();
             window.old = true;
             button.click();
             return true;"
        );
        browser.wait_for(words, WAIT_TIMEOUT, &script);
    };
    press(2, "Stop");
    states(&["USER_CANCELED", "USER_CANCELED", "RUNNING", "RUNNING"]);
    browser.wait_for(
        "the list",
        WAIT_TIMEOUT,
        "return !window.old && location.search === '?sort=sequence'",
    );
    press(1, "Rerun");
    states(&["RUNNING", "USER_CANCELED", "RUNNING", "RUNNING"]);

    gate.release(3);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    let results: Vec<_> = outcome.trials.iter().map(|trial| trial.state.as_str()).collect();
    assert_eq!(results, ["SUCCEEDED", "USER_CANCELED", "SUCCEEDED", "SUCCEEDED"], "{outcome:#?}");
}
