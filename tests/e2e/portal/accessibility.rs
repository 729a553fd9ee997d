//! axe-core checks every page of the portal, in both themes, wide and narrow, with and without a login.

use serde_json::json;
use trialkeeper_tests::{Browser, TestBed, WAIT_TIMEOUT, axe_script, seed};

/// A script that returns the violations, one line for each kind.
const FIND_VIOLATIONS: &str = "return axe.run(document).then(({ violations }) =>
  violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map(({ html }) => html).join(' ')}`));";

/// Returns the violations of a page, narrow and dark, and wide and light. `ready` is a script that returns `true` once
/// the page is complete.
fn violations(browser: &Browser, axe: &str, (url, path): (&str, &str), ready: &str) -> Vec<String> {
    browser.open(&format!("{url}{path}"));
    browser.wait_for(path, WAIT_TIMEOUT, ready);
    browser.run_script(axe);
    let mut violations = Vec::new();
    for (width, dark) in [(360, true), (1280, false)] {
        browser.set_viewport(width, 900, dark);
        for found in browser.run_script(FIND_VIOLATIONS).as_array().unwrap() {
            violations.push(format!("{path} at {width}, dark: {dark}: {found}"));
        }
    }
    violations
}

#[test]
#[ignore = "needs a browser and npm"]
fn every_page_is_accessible() {
    let (browser, axe) = (Browser::start(), axe_script());
    let bed = TestBed::new();
    seed::create_store(&bed.data_folder(), "small", 40, 20, 10).unwrap();
    let (_serving, url) = bed.serve("small");
    let token = std::fs::read_to_string(bed.data_folder().join("small/user.token")).unwrap();
    let mut problems = Vec::new();
    let mut check = |path, ready| problems.extend(violations(&browser, &axe, (&url, path), ready));
    let drawn = "document.querySelector('[data-plot=parallel]')?.scrollIntoView(); return document.querySelectorAll('[data-plot][data-drawn]').length === 2";
    let has_heading = "return document.querySelector('h1') !== null";
    let curves = "return document.querySelector('figure canvas') !== null";
    let plots = "return document.querySelectorAll('[data-plot][data-drawn]').length >= 1";
    for (path, ready) in [
        ("/", drawn),
        ("/trials?sort=final&order=desc&limit=20", has_heading),
        ("/trials?column=final&column=machine&column=parameters.lr", has_heading),
        ("/trials?state=WAITING", has_heading),
        ("/plots", plots),
        ("/trials/t00001", curves),
        ("/trials/t00002", curves),
        ("/compare?trial=t00001&trial=t00003", curves),
        ("/configuration", has_heading),
        ("/api", has_heading),
        ("/login", has_heading),
        ("/nowhere", has_heading),
    ] {
        check(path, ready);
    }
    // After the login, the pages have buttons.
    browser.open(&format!("{url}/login?next=%2Ftrials"));
    browser.run_script(&format!(
        "document.getElementById('token').value = {}; document.querySelector('main form').submit()",
        json!(token.trim())
    ));
    browser.wait_for("the requested page", WAIT_TIMEOUT, "return location.pathname === '/trials'");
    check("/", drawn);
    check("/trials/t00001", curves);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
#[ignore = "needs a browser and npm"]
fn every_page_of_the_home_is_accessible() {
    let (browser, axe) = (Browser::start(), axe_script());
    let bed = TestBed::new();
    for (id, seed) in [("first", 10), ("second", 11)] {
        seed::create_store(&bed.data_folder(), id, 20, 10, seed).unwrap();
    }
    let (_serving, url, _) = super::home::start_home(&bed);
    let has_heading = "return document.querySelector('h1') !== null";
    let plots = "return document.querySelectorAll('[data-plot][data-drawn]').length === 2";
    let mut problems = Vec::new();
    for (path, ready) in [
        ("/", has_heading),
        ("/?q=none", has_heading),
        ("/compare?experiment=first&experiment=second", plots),
        ("/about/first", has_heading),
    ] {
        problems.extend(violations(&browser, &axe, (&url, path), ready));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
