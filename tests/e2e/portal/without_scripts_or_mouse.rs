//! Readers whose browser runs no scripts, and readers without a mouse, use every page.

use serde_json::{Value, json};
use trialkeeper_tests::{Browser, TestBed, WAIT_TIMEOUT};

use super::layout::{IS_DRAWN, create_experiments, page_urls};

/// A script that returns what a page without scripts lacks.
const FIND_MISSING_PARTS: &str = r"
const faults = new Set();
const shown = (one) => one.checkVisibility({ visibilityProperty: true });
const name = (one) => `${one.tagName.toLowerCase()} ${JSON.stringify((one.textContent || one.title || one.id).trim().slice(0, 60))}`;
if (!document.querySelector('h1')) faults.add('it has no heading');
if (document.querySelector('main').innerText.trim().length < 40) faults.add('it has no text');
// A button outside of a form does nothing without a script.
for (const one of document.querySelectorAll('button')) if (shown(one) && !one.form) faults.add(`without effect: ${name(one)}`);
for (const one of document.querySelectorAll('input, select, textarea')) if (shown(one) && !one.form) faults.add(`without effect: ${name(one)}`);
for (const one of document.querySelectorAll('[data-plot], [data-chart]')) if (shown(one) && !one.innerText.trim() && !getComputedStyle(one, '::before').content.includes('JavaScript')) faults.add(`an empty plot: ${one.dataset.plot ?? one.dataset.chart}`);
return [...faults];
";

#[test]
#[ignore = "needs a browser"]
fn every_page_is_read_without_javascript() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let several = create_experiments(&bed);
    let (_serving, url, _) = super::home::start_home(&bed);
    browser.set_scripts(false);
    let mut faults = Vec::new();
    for (name, path) in page_urls(&url, &several) {
        browser.open(&format!("{url}{path}"));
        for fault in browser.run_script(FIND_MISSING_PARTS).as_array().unwrap() {
            faults.push(format!("{name}: {fault}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A function of the page that returns the name of a control. Pages that follow a search replace their controls.
const CONTROL_NAME: &str = r"const name = (one) => `${one.tagName.toLowerCase()} ${JSON.stringify([one.id, one.name, one.value, one.getAttribute('href'), one.ariaLabel, (one.textContent || '').trim()].filter(Boolean).join(' ').slice(0, 80))}`;";

/// A script that returns the names of the controls of a page.
const LIST_CONTROLS: &str = r"
const controls = [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex=\'0\']')];
const open = controls.filter((one) => !one.disabled && one.tabIndex >= 0 && one.checkVisibility({ visibilityProperty: true }));
// Of a group of radio buttons, the Tab key only reaches the chosen one.
return open.filter((one) => one.type !== 'radio' || one.checked).map(name);
";

/// A script that returns the name of the focused control, and whether the focus is seen.
const READ_FOCUS: &str = r"
const one = document.activeElement;
if (!one || one === document.body) return null;
const style = getComputedStyle(one);
const marked = (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== 'none';
const box = one.getBoundingClientRect();
return [name(one), marked && box.width > 0 && box.height > 0];
";

/// The key Tab of `WebDriver`.
const TAB_KEY: &str = "\u{e004}";

/// Returns the faults that a reader meets who goes through a page with the Tab key.
fn walk_with_tab_key(browser: &Browser, page: &str) -> Vec<String> {
    let run = |script: &str| browser.run_script(&format!("{CONTROL_NAME}{script}"));
    let controls = run(LIST_CONTROLS);
    let controls = controls.as_array().unwrap();
    let (mut reached, mut faults) = (Vec::new(), Vec::new());
    let mut rounds = 0;
    // A page may begin in its middle, and parts that scroll are stops, too.
    for _ in 0..controls.len() * 2 + 20 {
        browser.press_keys(TAB_KEY);
        let focus = run(READ_FOCUS);
        if focus == Value::Null {
            rounds += 1;
            if rounds > 1 {
                break;
            }
            continue;
        }
        if focus[1] == json!(false) {
            faults.push(format!("{page}: the focus is not seen on {}", focus[0]));
        }
        reached.push(focus[0].clone());
    }
    let missed = controls.iter().filter(|control| !reached.contains(control));
    faults.extend(missed.map(|control| format!("{page}: the Tab key does not reach {control}")));
    faults
}

#[test]
#[ignore = "needs a browser"]
fn every_control_is_reached_and_seen_with_the_tab_key() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let several = create_experiments(&bed);
    let (_serving, url, _) = super::home::start_home(&bed);
    browser.set_viewport(1400, 6500, false);
    let mut faults = Vec::new();
    for (name, path) in page_urls(&url, &several) {
        browser.open(&format!("{url}{path}"));
        browser.wait_for(name, WAIT_TIMEOUT, IS_DRAWN);
        faults.extend(walk_with_tab_key(&browser, name));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
