//! Every page of the portal at the widths of a phone, a laptop and a large screen, in both themes: nothing is cut,
//! overlaps or leaves the screen. Only the long page of the API is left out, which `running_search` checks. The
//! pictures are in `target/pictures`, or in `$TRIALKEEPER_TEST_PICTURES`.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use serde_json::{Value, json};
use trialkeeper_tests::{Browser, Search, TestBed, WAIT_TIMEOUT, http_get, seed};

const PAGE_WIDTHS: [u32; 3] = [390, 1400, 2560];
/// A plot is drawn once it is near the viewport, so the viewport is higher than any page.
const PAGE_HEIGHT: u32 = 6500;

/// A script that returns `true` once everything in view is drawn.
pub(super) const IS_DRAWN: &str = "
  if (document.readyState !== 'complete') return false;
  const { responseStatus } = performance.getEntriesByType('navigation')[0];
  if (responseStatus !== (location.pathname === '/nowhere' ? 404 : 200)) throw new Error(`${location} answered ${responseStatus}`);
  const plots = [...document.querySelectorAll('[data-plot]')];
  if (plots.some((one) => one.dataset.drawn === undefined && !one.querySelector('.hint'))) return false;
  const summary = document.getElementById('summary');
  if (summary?.dataset.trial && !document.querySelector('[data-chart=metrics]').firstChild) return false;
  const wide = document.documentElement.clientWidth;
  return [...document.querySelectorAll('figure canvas')].every((one) => one.closest('.slide') || one.getBoundingClientRect().right <= wide);";

/// A script that returns what a designer would mark at first sight.
const FIND_LAYOUT_FAULTS: &str = r"
const faults = new Set();
const told = (one) => `${one.tagName.toLowerCase()} ${JSON.stringify((one.textContent || one.placeholder || '').trim().slice(0, 40))}`;
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > width) faults.add(`the page is ${document.documentElement.scrollWidth} px wide`);
const shown = (one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest('.hidden, .skip, [hidden]');
// A part that scrolls or is shortened on purpose is not a fault.
const within = (one) => { for (let at = one.parentElement; at; at = at.parentElement) if (getComputedStyle(at).overflowX !== 'visible') return at; return null; };
for (const one of document.querySelectorAll('body *')) {
  if (!shown(one) || within(one)) continue;
  const box = one.getBoundingClientRect();
  if (box.width && (box.right > width + 1 || box.left < -1)) faults.add(`outside of the screen: ${told(one)}`);
}
for (const one of document.querySelectorAll('button, select, summary, label, .tiles dd, .tiles dt, .state, h1, h2, header a')) {
  if (shown(one) && one.clientWidth && one.scrollWidth > one.clientWidth + 1) faults.add(`cut: ${told(one)}`);
}
const pen = document.createElement('canvas').getContext('2d');
for (const one of document.querySelectorAll('input[placeholder]')) {
  const style = getComputedStyle(one);
  pen.font = style.font;
  const room = one.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  if (shown(one) && pen.measureText(one.placeholder).width > room + 1) faults.add(`cut: ${told(one)}`);
}
const controls = [...document.querySelectorAll('a, button, input:not([type=hidden]), select, summary, .state')].filter(shown).slice(0, 400);
const boxes = controls.map((one) => [...one.getClientRects()]);
for (let a = 0; a < controls.length; a += 1) for (let b = a + 1; b < controls.length; b += 1) {
  if (controls[a].contains(controls[b]) || controls[b].contains(controls[a])) continue;
  const meet = boxes[a].some((one) => boxes[b].some((two) => Math.min(one.right, two.right) - Math.max(one.left, two.left) > 2 && Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top) > 4));
  if (meet) faults.add(`overlap: ${told(controls[a])} and ${told(controls[b])}`);
}
for (const one of document.querySelectorAll('figure :is(canvas, svg)')) {
  const box = one.getBoundingClientRect(), outer = one.closest('figure').getBoundingClientRect();
  if (!one.closest('.slide') && box.width && (box.left < outer.left - 1 || box.right > outer.right + 1 || box.bottom > outer.bottom + 1)) faults.add(`outside of its figure: ${one.closest('figure').getAttribute('aria-labelledby')}`);
}
return [...faults].slice(0, 20);
";

/// A name without a place to break it.
fn long_name() -> String {
    "a_name_that_a_program_generated_".repeat(4)
}

/// Creates experiments with usual and with unusual names, and one with several objectives. Returns the id of the last.
pub(super) fn create_experiments(bed: &TestBed) -> String {
    for (seed, (id, trials, name, owner)) in (1..).zip([
        ("usual", 40, "digits, learning rate and width".to_owned(), "ann".to_owned()),
        (
            "longer",
            12,
            long_name(),
            "maximilian.mustermann-with-a-long-surname@example.com".to_owned(),
        ),
    ]) {
        let path = seed::create_store(&bed.data_folder(), id, trials, 20, seed).unwrap();
        let named = "UPDATE experiment SET canonical = json_set(canonical, '$.experimentName', ?1, '$.owner', ?2,
             '$.tags', json_array('vision', ?2))";
        Connection::open(path).unwrap().execute(named, params![name, owner]).unwrap();
    }
    let objectives: Vec<_> = ["loss", "latency_ms", "memory_gb", "size_mb", "power_w"]
        .iter()
        .map(|metric| json!({"metric": metric, "direction": "minimize"}))
        .collect();
    let command =
        "echo loss={{x}} latency_ms=2 memory_gb={{y}} size_mb=4; echo power_w=0.5 heat={{x}}";
    let axis = json!({"_type": "uniform", "_value": [0, 1]});
    let search = Search::new(command, 9)
        .with("searchSpace", json!({"x": axis, "y": axis}))
        .with("tuner", json!({"name": "Random"}))
        .with("objectives", objectives);
    search.run(bed).id
}

/// Returns the pages by the name of their pictures, without the address.
pub(super) fn page_urls(url: &str, several: &str) -> Vec<(&'static str, String)> {
    let trials = http_get(url, &format!("/e/{several}/api/v1/trials")).unwrap().1;
    let trials: Value = serde_json::from_str(&trials).unwrap();
    let own = trials["trials"][0]["id"].as_str().unwrap();
    [
        ("home", "/".to_owned()),
        ("home-empty", "/?q=none".to_owned()),
        ("home-compare", "/compare?experiment=usual&experiment=longer".to_owned()),
        ("notes", "/about/longer".to_owned()),
        ("login", "/login".to_owned()),
        ("missing", "/nowhere".to_owned()),
        ("overview", "/e/usual/".to_owned()),
        ("overview-long-names", "/e/longer/".to_owned()),
        ("overview-objectives", format!("/e/{several}/")),
        ("trials", "/e/usual/trials".to_owned()),
        ("trials-objectives", format!("/e/{several}/trials")),
        ("trials-fault", "/e/usual/trials?filter=lr%20%3C".to_owned()),
        ("plots", "/e/usual/plots".to_owned()),
        ("plots-objectives", format!("/e/{several}/plots")),
        ("trial", "/e/usual/trials/t00001".to_owned()),
        ("trial-objectives", format!("/e/{several}/trials/{own}")),
        ("compare", "/e/usual/compare?trial=t00001&trial=t00003".to_owned()),
        ("configuration", format!("/e/{several}/configuration")),
    ]
    .into()
}

/// Returns the folder of the pictures.
fn picture_folder() -> PathBuf {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pictures");
    std::env::var_os("TRIALKEEPER_TEST_PICTURES").map_or(usual, PathBuf::from)
}

#[test]
#[ignore = "needs a browser"]
fn no_page_is_cut_at_any_width() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let several = create_experiments(&bed);
    let (_serving, url, _) = super::home::start_home(&bed);
    let folder = picture_folder();
    std::fs::create_dir_all(&folder).unwrap();
    let mut faults = Vec::new();
    for (name, path) in page_urls(&url, &several) {
        browser.set_viewport(PAGE_WIDTHS[0], PAGE_HEIGHT, false);
        browser.open(&format!("{url}{path}"));
        for width in PAGE_WIDTHS {
            for (dark, theme) in [(false, "light"), (true, "dark")] {
                browser.set_viewport(width, PAGE_HEIGHT, dark);
                browser.wait_for(&format!("{name} at {width}"), WAIT_TIMEOUT, IS_DRAWN);
                browser.screenshot_page(&folder.join(format!("{name}-{width}-{theme}.png")));
            }
            for fault in browser.run_script(FIND_LAYOUT_FAULTS).as_array().unwrap() {
                faults.push(format!("{name} at {width}: {fault}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
#[ignore = "needs a browser"]
fn a_layout_fault_of_a_page_is_found() {
    let browser = Browser::start();
    let bed = TestBed::new();
    seed::create_store(&bed.data_folder(), "small", 3, 3, 1).unwrap();
    let (_serving, url) = bed.serve("small");
    browser.set_viewport(390, 900, false);
    browser.open(&format!("{url}/configuration"));
    assert_eq!(browser.run_script(FIND_LAYOUT_FAULTS), json!([]));
    for (change, fault) in [
        (
            "main.append(Object.assign(document.createElement('p'), { textContent: 'x'.repeat(999) }))",
            "the page is ",
        ),
        (
            "main.innerHTML = '<button>some words</button>'; main.firstChild.style.cssText = 'width: 3rem; white-space: nowrap'",
            "cut: button",
        ),
        ("main.innerHTML = '<input placeholder=\"some long words\" size=3>'", "cut: input"),
        (
            "main.innerHTML = '<a href=x>one</a><a href=x>two</a>'; main.lastChild.style.marginLeft = '-1rem'",
            "overlap: a",
        ),
    ] {
        browser.run_script(&format!("const main = document.querySelector('main'); {change}"));
        let found = browser.run_script(FIND_LAYOUT_FAULTS).to_string();
        assert!(found.contains(fault), "{fault} in {found}");
    }
}
