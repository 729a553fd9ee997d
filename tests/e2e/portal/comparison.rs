//! The home's pages in a real browser: the list of experiments on narrow screens, and the comparison of experiments.

use serde_json::{Value, json};
use trialkeeper_tests::{Browser, RunningProgram, TestBed, WAIT_TIMEOUT, seed};

use super::home::start_home;

/// Serves the home of two searches.
fn serve_two_searches(bed: &TestBed) -> (RunningProgram, String) {
    for (id, trials, seed) in [("first", 40, 10), ("second", 60, 11)] {
        seed::create_store(&bed.data_folder(), id, trials, 20, seed).unwrap();
    }
    let (serving, url, _) = start_home(bed);
    (serving, url)
}

/// A script that returns the texts of a table's cells that are cut, or outside the window.
const FIND_CUT_CELLS: &str = "return [...document.querySelectorAll('tbody :is(td, th)')].filter((cell) => {
  const { left, right, width } = cell.getBoundingClientRect();
  return width > 1 && (left < 0 || right > innerWidth || cell.scrollWidth > cell.clientWidth + 1 && getComputedStyle(cell).display !== 'inline');
}).map((cell) => cell.textContent)";

/// A script that returns the texts of the SVG file of a plot.
fn plot_texts(browser: &Browser, plot: &str) -> Vec<String> {
    let script = format!(
        "let svg = null;
         const made = URL.createObjectURL;
         URL.createObjectURL = (blob) => {{ svg = blob; return made.call(URL, blob); }};
         document.querySelector('[data-plot={plot}] [aria-label$=SVG]').click();
         URL.createObjectURL = made;
         return svg.text().then((text) => [...new DOMParser().parseFromString(text, 'image/svg+xml').querySelectorAll('text')].map((one) => one.textContent));"
    );
    let found = browser.run_script(&script);
    found.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

/// Uses a control of a plot, which has this label.
fn set_plot_control(browser: &Browser, plot: &str, label: &str, value: &str) {
    let found = browser.run_script(&format!(
        "const label = [...document.querySelectorAll('[data-plot={plot}] .plot-bar label')].find((one) => one.textContent.trim().startsWith('{label}'));
         const input = label.querySelector('input, select');
         if (input.type === 'checkbox') input.click();
         else {{ input.value = '{value}'; input.dispatchEvent(new Event(input.type === 'range' ? 'input' : 'change')); }}
         return true;"
    ));
    assert_eq!(found, json!(true), "{label}");
}

fn count_marks(browser: &Browser, plot: &str) -> u64 {
    let figure = format!("document.querySelector('[data-plot={plot}]')");
    browser.run_script(&format!("{figure}.scrollIntoView({{ block: 'center' }})"));
    let drawn =
        format!("const drawn = Number({figure}.dataset.drawn); return drawn > 0 ? drawn : null");
    browser.wait_for(plot, WAIT_TIMEOUT, &drawn).as_u64().unwrap()
}

#[test]
#[ignore = "needs a browser"]
fn a_narrow_screen_shows_all_of_each_experiment_and_trial() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_two_searches(&bed);
    for width in [360, 390, 700] {
        browser.set_viewport(width, 900, false);
        for page in ["/", "/e/first/trials", "/e/first/"] {
            browser.open(&format!("{url}{page}"));
            let has_rows = "return document.querySelector('.cards tbody tr') !== null";
            browser.wait_for(page, WAIT_TIMEOUT, has_rows);
            assert_eq!(browser.run_script(FIND_CUT_CELLS), json!([]), "{page} at {width}");
            let is_too_wide = "return document.documentElement.scrollWidth > innerWidth";
            assert_eq!(
                browser.run_script(is_too_wide),
                json!(false),
                "{page} is wider than {width}"
            );
        }
    }
    browser.open(&url);
    let labels = "return [...document.querySelectorAll('.experiments tbody tr:first-child [data-label]:not(:empty)')].map((cell) => getComputedStyle(cell, '::before').content)";
    let expected = json!(["\"Best \"", "\"Trials \"", "\"Platform \"", "\"Started \""]);
    assert_eq!(browser.run_script(labels), expected);
}

#[test]
#[ignore = "needs a browser"]
fn experiments_are_compared_in_plots_with_logarithmic_axes_and_smoothing() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_two_searches(&bed);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/compare?experiment=first&experiment=second"));
    let improvements = count_marks(&browser, "histories");
    let plain = plot_texts(&browser, "histories");
    for text in [
        "a large search (first)",
        "a large search (second)",
        "trials",
        "time since the start",
        "result",
    ] {
        assert!(plain.iter().any(|one| one == text), "{text} is missing: {plain:?}");
    }
    for label in ["log x", "log y"] {
        set_plot_control(&browser, "histories", label, "");
    }
    set_plot_control(&browser, "histories", "Show", "both");
    set_plot_control(&browser, "histories", "Smoothing", "0.6");
    let all = count_marks(&browser, "histories");
    assert!(all > improvements, "{all} marks of all results, {improvements} of improvements");
    let logarithmic = plot_texts(&browser, "histories");
    for text in ["trials (log)", "time since the start (log)", "result (log)"] {
        assert!(logarithmic.iter().any(|one| one == text), "{text} is missing: {logarithmic:?}");
    }

    // The curves of the best trials have the same controls.
    let one = count_marks(&browser, "best-curves");
    set_plot_control(&browser, "best-curves", "Trials", "3");
    assert_eq!(count_marks(&browser, "best-curves"), 3 * one);
    set_plot_control(&browser, "best-curves", "best so far", "");
    set_plot_control(&browser, "best-curves", "log x", "");
    let curves = plot_texts(&browser, "best-curves");
    assert!(curves.iter().any(|one| one == "step (log)"), "{curves:?}");

    // A mark opens its trial in its own experiment.
    browser.run_script("document.querySelector('[data-plot=histories] .plot-host').focus()");
    browser.press_keys("\u{e010}");
    let tip = "return document.querySelector('[data-plot=histories] .tip').textContent";
    let tip = browser.run_script(tip);
    assert!(tip.as_str().unwrap().starts_with("a large search (second) · trial "), "{tip}");
    browser.press_keys("\u{e007}");
    let is_open = "return location.pathname.startsWith('/e/second/trials/')";
    browser.wait_for("the trial's page", WAIT_TIMEOUT, is_open);
    let problems = browser.console_messages();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
#[ignore = "needs a browser"]
fn the_comparison_fits_every_screen() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_two_searches(&bed);
    for (width, dark) in [(390, true), (390, false), (1400, true), (2560, false)] {
        browser.set_viewport(width, 900, dark);
        browser.open(&format!("{url}/compare?experiment=first&experiment=second"));
        for plot in ["histories", "best-curves"] {
            assert!(count_marks(&browser, plot) > 0, "{plot} at {width}");
        }
        let is_too_wide = "return document.documentElement.scrollWidth > innerWidth";
        assert_eq!(
            browser.run_script(is_too_wide),
            Value::Bool(false),
            "the page is wider than {width}"
        );
    }
}
