//! The list of trials: its download and its selection.

use serde_json::json;
use trialkeeper_tests::{Browser, Search, TestBed, WAIT_TIMEOUT, http_get, send_request};

/// Runs a search of three trials to its end. Two trials have x below 0.6. Returns the experiment's id.
fn run_three_trials(bed: &TestBed) -> String {
    let space = json!({"x": {"_type": "choice", "_value": [0.25, 0.5, 0.75]}});
    let search = Search::new("echo score={{x}}", 3).with("searchSpace", space);
    let done = search.with("tuner", json!({"name": "GridSearch"})).run(bed);
    done.expect_done(3, 0);
    done.id
}

#[test]
fn a_filtered_list_can_be_downloaded() {
    let bed = TestBed::new();
    let id = run_three_trials(&bed);
    let (_serving, url) = bed.serve(&id);
    let exported = |query: &str| {
        let path = format!("GET /api/v1/experiment/export?{query}");
        send_request(&url, &path, "", "").unwrap()
    };
    let (status, csv) = exported("format=csv&filter=x%20%3C%200.6&sort=final&order=desc");
    assert_eq!((status, csv.trim_end().lines().count()), (200, 3), "{csv}");
    let (better, worse) = (csv.find("0.5"), csv.find("0.25"));
    assert!(better.is_some() && better < worse, "{csv}");
    let (status, list) = exported("format=json&state=FAILED");
    assert!(status == 200 && list.contains("[]"), "{list}");
    let (status, answer) = exported("format=csv&filter=x%20%3C");
    assert!(status == 400 && answer.contains("filter: at character"), "{status} {answer}");
    let (status, answer) = exported("colour=red");
    assert!(status == 400 && answer.contains("colour"), "{status} {answer}");
}

#[test]
fn metrics_that_trials_print_are_columns_and_curves() {
    let bed = TestBed::new();
    let command = "for step in 1 2; do echo \"score={{x}} epoch=$step\"; done";
    let done = Search::new(command, 3).with("objective", "score").run(&bed);
    done.expect_done(3, 0);
    let (_serving, url) = bed.serve(&done.id);
    let page = |query: &str| http_get(&url, &format!("/trials?{query}")).unwrap().1;
    let plain = page("");
    assert!(plain.contains("value=\"metrics.epoch\""), "the column is not offered: {plain}");
    assert!(!plain.contains("data-label=\"epoch\""), "{plain}");
    let chosen =
        page("column=metrics.epoch&sort=metrics.epoch&order=desc&filter=epoch%20%3D%3D%202");
    assert_eq!(chosen.matches("data-label=\"epoch\">2</td>").count(), 3, "{chosen}");
    let (_, curves) = http_get(&url, "/api/v1/experiment/curves").unwrap();
    let curves: serde_json::Value = serde_json::from_str(&curves).unwrap();
    assert_eq!((&curves["shown"], &curves["of"]), (&json!(3), &json!(3)), "{curves}");
}

#[test]
#[ignore = "needs a browser"]
fn all_trials_of_a_page_can_be_selected() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let id = run_three_trials(&bed);
    let (_serving, url) = bed.serve(&id);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/trials?filter=x%20%3C%200.6"));
    let all = "const all = document.querySelector('[data-all=trial]'); if (!all || all.hidden) return false; all.click(); return true";
    browser.wait_for("the box of all trials", WAIT_TIMEOUT, all);
    let selected = "return document.querySelector('.away').firstChild?.textContent.trim()";
    assert_eq!(browser.run_script(selected), json!("2 selected"));
    let file = "return [...document.querySelectorAll('#list a[download]')].map((one) => new URL(one.href).search)[1]";
    assert_eq!(browser.run_script(file), json!("?format=json&filter=x%20%3C%200.6"));
    browser.run_script("document.querySelector('[data-all=trial]').click()");
    assert_eq!(browser.run_script(selected), json!(null), "a trial is still selected");
}
