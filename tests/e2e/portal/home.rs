//! The home page of a data directory: all experiments at one address, read from their stores, and changed by
//! their managers.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{
    Browser, Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, http_get, seed,
    send_request, wait_for,
};

/// Starts the home page of the bed's data directory. Returns the process, the URL and the token.
pub(super) fn start_home(bed: &TestBed) -> (RunningProgram, String, String) {
    let mut serve = bed.manager_command();
    serve.args(["serve", "--port", "0", "--data-dir"]).arg(bed.data_folder());
    let serving = bed.start(&mut serve);
    let folder = bed.data_folder().join(".home");
    let url = wait_for("the home", WAIT_TIMEOUT, || {
        Some(std::fs::read_to_string(folder.join("home.url")).ok()?.trim().to_owned())
    });
    let token = std::fs::read_to_string(folder.join("home.token")).unwrap().trim().to_owned();
    (serving, url, token)
}

fn listed_experiments(url: &str) -> Vec<Value> {
    let (status, body) = http_get(url, "/api/v1/experiments").unwrap();
    assert_eq!(status, 200, "{body}");
    let page: Value = serde_json::from_str(&body).unwrap();
    page["experiments"].as_array().unwrap().clone()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn a_home_shows_all_experiments_and_forwards_changes_to_their_managers() {
    let bed = TestBed::new();
    let ended = Search::new("echo score={{x}}", 2)
        .with("experimentName", "first try")
        .with("tags", json!(["vision"]))
        .run(&bed);
    ended.expect_done(2, 0);
    let (serving, url, token) = start_home(&bed);
    let one = &listed_experiments(&url)[0];
    assert_eq!((&one["id"], &one["standing"]), (&json!(ended.id), &json!("done")), "{one}");
    assert_eq!((&one["ended"], &one["tags"]), (&json!(2), &json!(["vision"])), "{one}");
    assert!(one["best"]["value"].is_number() && one["owner"].is_string(), "{one}");
    let (_, list) = http_get(&url, "/?q=FIRST").unwrap();
    assert!(list.contains("first try") && list.contains("tag=vision"), "{list}");
    let (_, none) = http_get(&url, "/?q=second").unwrap();
    assert!(none.contains("No experiments match."), "{none}");

    // The experiment's own pages are below its id.
    let below = format!("/e/{}", ended.id);
    let (status, page) = http_get(&url, &format!("{below}/")).unwrap();
    assert_eq!(status, 200, "{page}");
    assert!(page.contains(&format!("href=\"{below}/trials\"")), "{page}");
    assert!(page.contains(&format!("data-base=\"{below}\"")), "{page}");
    assert!(!page.contains("href=\"/trials"), "{page}");
    let (status, trials) = http_get(&url, &format!("{below}/api/v1/trials")).unwrap();
    assert_eq!(status, 200, "{trials}");

    // A running search prints its address on the home page, is shown live and accepts changes.
    let gate = Gate::new(&bed.path("gate"));
    let search = Search::new("read _ <\"$GATE\"; echo score={{x}}", 1);
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    let id = wait_for("the second experiment", WAIT_TIMEOUT, || {
        let other = |one: &&Value| one["standing"] == "running" && one["trials"] == 1;
        Some(listed_experiments(&url).iter().find(other)?["id"].as_str()?.to_owned())
    });
    let (_, trials) = http_get(&url, &format!("/e/{id}/api/v1/trials")).unwrap();
    let trials: Value = serde_json::from_str(&trials).unwrap();
    let trial = trials["trials"][0]["id"].as_str().unwrap();
    let stop = format!("POST /e/{id}/api/v1/trials/{trial}/stop");
    assert_eq!(send_request(&url, &stop, "not-the-token-of-the-home", "").unwrap().0, 401);
    assert_eq!(send_request(&url, &stop, &token, "").unwrap().0, 202);
    let finished = running.finish(WAIT_TIMEOUT);
    assert!(finished.stderr.contains(&format!("{url}/e/{id}/")), "{}", finished.stderr);
    // Without its manager, the same change is refused.
    let (status, answer) = send_request(&url, &stop, &token, "").unwrap();
    assert_eq!(status, 409, "{answer}");

    // The list can be downloaded, with its filters.
    let exported =
        |query: &str| http_get(&url, &format!("/api/v1/experiments/export?{query}")).unwrap();
    let (status, csv) = exported("format=csv&sort=created&order=asc");
    let lines: Vec<_> = csv.split("\r\n").collect();
    assert!(status == 200 && lines.len() == 4, "{csv}");
    assert!(lines[0].starts_with("id,name,state,metric,"), "{csv}");
    let first = format!("{},first try,done,score,maximize,", ended.id);
    assert!(lines[1].starts_with(&first) && lines[2].starts_with(&id), "{csv}");
    let (status, list) = exported("format=json&state=done");
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((status, list.as_array().unwrap().len()), (200, 2), "{list}");
    assert_eq!(exported("format=xml").0, 400);
    let (_, page) = http_get(&url, "/?q=first").unwrap();
    assert!(page.contains("/api/v1/experiments/export?q=first&amp;format=csv"), "{page}");

    let both = format!("/compare?experiment={}&experiment={id}", ended.id);
    let comparison = |format: &str| {
        let path =
            both.replace("/compare?", &format!("/api/v1/experiments/comparison?format={format}&"));
        http_get(&url, &path).unwrap()
    };
    let (status, csv) = comparison("csv");
    let has = |part: &str| csv.contains(part);
    assert!(status == 200 && has("part,name,first try,") && has("\r\nresult,state,done,"), "{csv}");
    assert!(has("\r\nparameter,x,0.") && has("\r\nsetting,maxTrialNumber,2,1\r\n"), "{csv}");
    let (status, answer) = comparison("json");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer[0]["name"]), (200, &json!("first try")), "{answer}");
    assert_eq!(answer[0]["settings"]["maxTrialNumber"], "2", "{answer}");
    assert_eq!(comparison("xml").0, 400);
    for path in ["/", &both, &format!("/about/{id}"), "/login", "/api"] {
        let (_, page) = http_get(&url, path).unwrap();
        for elsewhere in ["http://", "https://", "src=\"//", " style=", "onclick", "<script>"] {
            assert!(!page.contains(elsewhere), "{path} contains {elsewhere:?}");
        }
    }
    let (status, page) = http_get(&url, &format!("{both}&experiment=removed")).unwrap();
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("removed: "), "the missing experiment is not reported: {page}");
    assert!(page.contains(">first try</a>"), "an unambiguous name must have no id: {page}");
    assert!(page.contains("class=\"differs\"") && page.contains("<polyline"), "{page}");
    serving.signal(Signal::SIGTERM);
    assert_eq!(serving.finish(WAIT_TIMEOUT).code, Some(0));
}

#[test]
fn notes_are_kept_and_a_second_home_names_the_first() {
    let bed = TestBed::new();
    let id = Search::new("echo score={{x}}", 1).run(&bed).id;
    let store = std::fs::metadata(bed.data_folder().join(&id).join("trialkeeper.db")).unwrap();
    let (serving, url, token) = start_home(&bed);
    let mut second = bed.manager_command();
    second.args(["serve", "--port", "0", "--data-dir"]).arg(bed.data_folder());
    let refused = bed.start(&mut second).finish(WAIT_TIMEOUT);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains(&url), "{}", refused.stderr);

    // The maximum length of a note applies to characters of any script.
    let longest = format!("notes={}&tags=", "%E5%AD%97".repeat((12 << 10) / 3));
    let (status, answer) =
        send_request(&url, &format!("POST /about/{id}"), &token, &longest).unwrap();
    assert_eq!(status, 303, "{answer}");
    let note = "notes=%23+Plan%0D%0A**less**+%3Cscript%3E&tags=a%2C+b&archived=true";
    let (status, answer) = send_request(&url, &format!("POST /about/{id}"), &token, note).unwrap();
    assert_eq!(status, 303, "{answer}");
    serving.signal(Signal::SIGTERM);
    serving.finish(WAIT_TIMEOUT);
    let (serving, url, _) = start_home(&bed);
    let (_, page) = http_get(&url, &format!("/about/{id}")).unwrap();
    assert!(page.contains("<h3>Plan</h3>") && page.contains("<strong>less</strong>"), "{page}");
    assert!(!page.contains("<script>"), "{page}");
    assert_eq!(listed_experiments(&url).len(), 0, "an archived experiment must not be listed");
    let (_, archive) = http_get(&url, "/?archived=true").unwrap();
    assert!(archive.contains(&id) && archive.contains("tag=b"), "{archive}");
    let now = std::fs::metadata(bed.data_folder().join(&id).join("trialkeeper.db")).unwrap();
    assert_eq!((now.len(), now.modified().unwrap()), (store.len(), store.modified().unwrap()));
    serving.signal(Signal::SIGTERM);
    serving.finish(WAIT_TIMEOUT);
}

#[test]
#[ignore = "needs a browser"]
fn experiments_are_selected_compared_and_archived() {
    let browser = Browser::start();
    let bed = TestBed::new();
    for (id, seed) in [("first", 10), ("second", 11), ("third", 12)] {
        seed::create_store(&bed.data_folder(), id, 20, 10, seed).unwrap();
    }
    let (_serving, url, token) = start_home(&bed);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/login"));
    browser.run_script(&format!(
        "document.getElementById('token').value = {}; document.querySelector('main form').submit()",
        json!(token)
    ));
    let listed = |ids: &[&str]| {
        let boxes = "[...document.querySelectorAll('#list [name=experiment]')].map((one) => one.value).sort().join()";
        let script = format!("return location.pathname === '/' && {boxes} === '{}'", ids.join(","));
        browser.wait_for(&format!("the list {ids:?}"), WAIT_TIMEOUT, &script);
    };
    let select = |id: &str| {
        browser
            .run_script(&format!("document.querySelector('[name=experiment][value={id}]').click()"))
    };
    let press = |words: &str| {
        browser.run_script(&format!("[...document.querySelectorAll('#compare button')].find((one) => one.textContent === '{words}').click()"))
    };
    listed(&["first", "second", "third"]);
    let disabled = "return document.querySelector('#compare button').disabled";
    assert_eq!(browser.run_script(disabled), json!(true), "nothing is selected");
    select("first");
    select("third");
    press("Compare");
    let compared = "return location.search === '?experiment=first&experiment=third' && document.querySelectorAll('[data-plot][data-drawn]').length > 0";
    browser.wait_for("the comparison", WAIT_TIMEOUT, compared);
    // The selection is still there, until an action uses it.
    browser.open(&url);
    let selected = "return document.querySelector('.away').firstChild?.textContent.trim()";
    assert_eq!(browser.run_script(selected), json!("2 selected"));
    press("Archive");
    listed(&["second"]);
    browser.open(&format!("{url}/?archived=true"));
    listed(&["first", "third"]);
    select("third");
    press("Remove from archive");
    let rest = "return location.search === '?archived=true' && document.querySelectorAll('#list [name=experiment]').length === 1";
    browser.wait_for("the rest of the archive", WAIT_TIMEOUT, rest);
    browser.open(&url);
    listed(&["second", "third"]);
}

#[test]
#[ignore = "needs a browser"]
fn no_page_of_the_home_is_wider_than_the_screen() {
    let browser = Browser::start();
    let bed = TestBed::new();
    for (id, seed) in [("first", 10), ("second", 11)] {
        seed::create_store(&bed.data_folder(), id, 20, 10, seed).unwrap();
    }
    let (_serving, url, _) = start_home(&bed);
    for (width, dark) in
        [390, 1400, 2560].into_iter().flat_map(|width| [(width, false), (width, true)])
    {
        browser.set_viewport(width, 900, dark);
        for (path, ready) in [
            ("/", "document.querySelectorAll('tbody tr').length === 2"),
            (
                "/compare?experiment=first&experiment=second",
                "document.querySelector('[data-plot=histories][data-drawn]') !== null",
            ),
            ("/about/first", "document.querySelector('textarea, article, h1') !== null"),
        ] {
            browser.open(&format!("{url}{path}"));
            browser.wait_for(path, WAIT_TIMEOUT, &format!("return {ready}"));
            let is_too_wide = "return document.documentElement.scrollWidth > innerWidth";
            assert_eq!(
                browser.run_script(is_too_wide),
                json!(false),
                "{path} is wider than {width}"
            );
            let background =
                browser.run_script("return getComputedStyle(document.body).backgroundColor");
            assert_eq!(background == "rgb(16, 22, 29)", dark, "{path} at {width}: {background}");
        }
    }
    let problems = browser.console_messages();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn a_user_s_points_survive_a_killed_manager() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let held = "echo {{x}} >>\"$GATE.begun\"; read _ <\"$GATE\"; echo score={{x}}";
    let search = Search::new(held, 4).with("initialTrials", json!([{"x": 0.25}, {"x": 0.5}]));
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    let wait_for_started = |count: usize| {
        wait_for("a trial", WAIT_TIMEOUT, || {
            (bed.read("gate.begun").lines().count() >= count).then_some(())
        });
    };
    wait_for_started(1);
    let add = |words: &[&str]| {
        let mut command = bed.manager_command();
        command.args(["trial", "add"]).args(words).arg("--data-dir").arg(bed.data_folder());
        bed.start(&mut command).finish(WAIT_TIMEOUT)
    };
    let outside = add(&["--set", "x=7"]);
    assert_ne!(outside.code, Some(0));
    assert!(outside.stderr.contains("x: "), "{}", outside.stderr);
    let added = add(&["--set", "x=0.75"]);
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    let id = wait_for("the folder", WAIT_TIMEOUT, || bed.find_experiment_id());
    let running = bed.start(Outcome::resume_command(&bed, &id).env("GATE", gate.path()));
    gate.release(4);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(4, 0);
    let tried: Vec<_> =
        outcome.trials.iter().map(|trial| trial.parameters["x"].as_f64().unwrap()).collect();
    assert_eq!(
        tried[..3],
        [0.25, 0.5, 0.75],
        "the user's points must be first and in order: {tried:?}"
    );
    assert_eq!(bed.read("gate.begun").lines().count(), 4, "a trial ran twice");
}
