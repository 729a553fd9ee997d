//! The end of a search in an open page and for a polling client.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{
    Browser, Gate, RunningProgram, Search, TestBed, WAIT_TIMEOUT, send_request, wait_for,
};

/// Starts a search with one trial that waits at the gate. Returns the gate, the process and the URL.
fn start_waiting_search(bed: &TestBed, options: &[&str]) -> (Gate, RunningProgram, String) {
    let gate = Gate::new(&bed.path("gate"));
    let search = Search::new(
        "echo >>../waits; read _ <../gate; echo score=0.25; read _ <../gate; echo score=0.5",
        1,
    );
    let running = bed.start(search.command(bed).args(options));
    wait_for("the trial to wait", WAIT_TIMEOUT, || (!bed.read("waits").is_empty()).then_some(()));
    let url = bed.manager_url();
    (gate, running, url)
}

/// A script that adds latency to all requests. A page pauses for five times as long as its last refresh took, here
/// longer than the manager waits for open pages at its end.
const ADD_LATENCY: &str = "
  const fast = window.fetch;
  window.fetch = async (...request) => {
    await new Promise((done) => setTimeout(done, 1100));
    return fast(...request);
  };";

/// Opens a page of a search with one trial, runs a script in it, and checks that it shows the trial's result and
/// the end of the search. The path `/trials/` stands for the trial's own page.
fn check_end_in_page(browser: &Browser, path: &str, script: &str) {
    let bed = TestBed::new();
    let (gate, running, url) = start_waiting_search(&bed, &[]);
    let trials = "return fetch('/api/v1/trials').then((answer) => answer.json()).then(({ trials }) => trials[0].id)";
    browser.open(&url);
    let mut page = format!("{url}{path}");
    if path == "/trials/" {
        page.push_str(browser.run_script(trials).as_str().unwrap());
    }
    browser.open(&page);
    browser.wait_for(
        "the trial to run",
        WAIT_TIMEOUT,
        "return document.querySelector('[data-state=RUNNING]') !== null",
    );
    browser.run_script(script);
    // The page gets live updates.
    gate.release(1);
    browser.wait_for(
        "the step",
        WAIT_TIMEOUT,
        "return document.querySelector('main').textContent.includes('0.25')",
    );
    gate.release(1);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    browser.wait_for("the trial's end", WAIT_TIMEOUT, "return document.querySelector('[data-state=SUCCEEDED]') !== null && document.querySelector('[data-state=RUNNING]') === null");
    let exited = "return document.getElementById('connection').textContent.startsWith('The manager has exited')";
    browser.wait_for("the message about the manager's end", WAIT_TIMEOUT, exited);
    if path == "/" {
        let heading = browser.run_script("return document.querySelector('h1').textContent");
        assert!(heading.as_str().unwrap().ends_with("done"), "{heading}");
    }
}

#[test]
#[ignore = "needs a browser"]
fn open_pages_show_the_end_of_the_search() {
    let browser = Browser::start();
    for path in ["/", "/trials", "/trials/"] {
        check_end_in_page(&browser, path, "");
    }
}

#[test]
#[ignore = "needs a browser"]
fn a_page_behind_a_slow_connection_shows_the_end_of_the_search() {
    check_end_in_page(&Browser::start(), "/trials", ADD_LATENCY);
}

/// Runs a search to its end with `--keep-serving`. Returns the process and the URL, once the results are
/// printed.
fn serve_ended(bed: &TestBed) -> (RunningProgram, String) {
    let (gate, running, url) = start_waiting_search(bed, &["--keep-serving"]);
    gate.release(2);
    let message = format!("still serving on {url}, until interrupted or stopped");
    wait_for("the message of the manager", WAIT_TIMEOUT, || {
        running.stderr().contains(&message).then_some(())
    });
    (running, url)
}

#[test]
fn keep_serving_serves_an_ended_search_until_an_interruption() {
    let bed = TestBed::new();
    let (running, url) = serve_ended(&bed);
    let shown = || {
        let mut show = bed.manager_command();
        show.args(["experiment", "show", "--output", "json", "--manager", &url]);
        let shown = bed.start(&mut show).finish(WAIT_TIMEOUT);
        assert_eq!(shown.code, Some(0), "{}", shown.stderr);
        serde_json::from_slice::<Value>(&shown.stdout).unwrap()
    };
    // Standard output was written first, but may be read later than standard error.
    let printed = || serde_json::from_slice(&running.stdout()).ok();
    let result: Value = wait_for("the results", WAIT_TIMEOUT, printed);
    assert_eq!(result["experiment"]["state"], "DONE", "{result}");
    assert_eq!(shown()["state"], "DONE");
    assert_eq!(shown()["counts"], json!({"SUCCEEDED": 1}));
    // With `--manager`, the command lists the manager's experiment and not those of this machine.
    let mut list = bed.manager_command();
    list.args(["experiment", "ls", "-o", "json", "--data-dir", "/nowhere", "--manager", &url]);
    let listed: Value =
        serde_json::from_slice(&bed.start(&mut list).finish(WAIT_TIMEOUT).stdout).unwrap();
    assert_eq!((&listed[0]["url"], &listed[0]["state"]), (&json!(url), &json!("DONE")), "{listed}");
    running.signal(Signal::SIGINT);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}

#[test]
fn keep_serving_serves_an_ended_search_until_a_stop() {
    for (stop, accepted) in
        [("POST /api/v1/experiment/stop", 202), ("DELETE /api/v1/nni/experiment", 200)]
    {
        let bed = TestBed::new();
        let (running, url) = serve_ended(&bed);
        let token = bed.user_token();
        let send = |what, body| send_request(&url, what, &token, body).unwrap();
        // Trials run again only with `resume`.
        let (_, trials) = send("GET /api/v1/trials", "");
        let trials: Value = serde_json::from_str(&trials).unwrap();
        let rerun =
            format!("POST /api/v1/trials/{}/rerun", trials["trials"][0]["id"].as_str().unwrap());
        let (status, answer) = send(&rerun, "");
        assert_eq!(status, 409, "{answer}");
        assert!(answer.contains("the experiment is DONE and starts no more trials"), "{answer}");
        assert_eq!(send(stop, "").0, accepted, "{stop}");
        let finished = running.finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(0), "{stop}: {}", finished.stderr);
    }
}

#[test]
fn a_refusal_of_one_trial_does_not_affect_the_others() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command =
        "[ $NNI_TRIAL_SEQ_ID = 0 ] || { echo >>../waits; read _ <../gate; }; echo score=1";
    let running = Search::new(command, 2).start(&bed);
    wait_for("the second trial to wait", WAIT_TIMEOUT, || {
        (!bed.read("waits").is_empty()).then_some(())
    });
    let mut stop = bed.manager_command();
    stop.args(["trial", "stop", "0", "1", "--data-dir"]).arg(bed.data_folder());
    let stopped = bed.start(&mut stop).finish(WAIT_TIMEOUT);
    assert_eq!(stopped.code, Some(1), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("has ended already"), "{}", stopped.stderr);
    // The gate stays closed, so the search can only end if the trial was stopped.
    let result: Value = serde_json::from_slice(&running.finish(WAIT_TIMEOUT).stdout).unwrap();
    assert_eq!(result["trials"][1]["state"], "USER_CANCELED", "{result}");
    drop(gate);
}
