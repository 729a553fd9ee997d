//! The portal's charts in a real browser, over a reproducible search: the dark theme, the keyboard, touch,
//! and the size of pages.

use serde_json::json;
use trialkeeper_tests::{Browser, RunningProgram, Search, TestBed, WAIT_TIMEOUT, seed};

/// Serves the pages of a small search. Returns the server process and the URL.
fn serve_small_search(bed: &TestBed) -> (RunningProgram, String) {
    serve_search(bed, 40, 20)
}

/// Serves the pages of a search of `trials` trials with `steps` steps each.
fn serve_search(bed: &TestBed, trials: i64, steps: i64) -> (RunningProgram, String) {
    seed::create_store(&bed.data_folder(), "small", trials, steps, 10).unwrap();
    bed.serve("small")
}

/// A script that returns `true` if a chart's canvas contains one colour and not the other.
fn has_colour_script(chart: &str, colour: &str, instead_of: &str) -> String {
    format!(
        "const canvas = document.querySelector('[data-{chart}] canvas');
         if (!canvas || !canvas.width) return false;
         const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
         const holds = (text) => {{
           const wanted = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
           for (let at = 0; at < data.length; at += 4) {{
             if (data[at + 3] === 255 && wanted.every((part, of) => data[at + of] === part)) return true;
           }}
           return false;
         }};
         return holds('{colour}') && !holds('{instead_of}');"
    )
}

#[test]
#[ignore = "needs a browser"]
fn charts_follow_the_system_s_dark_theme() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_small_search(&bed);
    // The style sheet's --grid and --text: light, dark.
    let (grid, text) = (["#e3e8ee", "#2a3642"], ["#16202c", "#e6edf4"]);
    for (path, painted) in [
        ("/", &[("plot=history", text), ("plot=parallel", text)][..]),
        ("/trials/t00001", &[("chart=metrics", grid)]),
    ] {
        browser.set_viewport(1280, 900, false);
        browser.open(&format!("{url}{path}"));
        browser.run_script("window.same = true");
        for dark in [false, true, false] {
            browser.set_viewport(1280, 900, dark);
            for (chart, [light_one, dark_one]) in painted {
                let (is, was) = if dark { (dark_one, light_one) } else { (light_one, dark_one) };
                let what = format!("{chart} on {path} to show {is} and not {was}");
                browser.wait_for(&what, WAIT_TIMEOUT, &has_colour_script(chart, is, was));
            }
        }
        assert_eq!(browser.run_script("return window.same"), json!(true), "the page was reloaded");
    }
}

/// Keys with the codes of `WebDriver`.
const TAB_KEY: char = '\u{e004}';
const ESCAPE_KEY: char = '\u{e00c}';
const END_KEY: char = '\u{e010}';
const HOME_KEY: char = '\u{e011}';
const UP_KEY: char = '\u{e013}';
const DOWN_KEY: char = '\u{e015}';

#[test]
#[ignore = "needs a browser"]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn ranges_are_selected_by_keyboard() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_small_search(&bed);
    browser.set_viewport(1280, 900, false);
    browser.open(&url);
    let points = browser.run_script(
        "return fetch('/api/v1/experiment/points').then((response) => response.json())",
    );
    let column = |name: &str| points["parameters"][name].as_array().unwrap().clone();
    let ended: Vec<bool> =
        points["final"].as_array().unwrap().iter().map(|value| !value.is_null()).collect();
    let (kinds, units) = (column("activation"), column("units"));
    let count = |within: &dyn Fn(usize) -> bool| {
        (0..ended.len()).filter(|at| ended[*at] && within(*at)).count()
    };
    let all = count(&|_| true);
    let summary = |inside: usize| format!("{inside} of {all} trials");

    let ends = "document.querySelectorAll('[data-plot=parallel] [role=slider]').length";
    let ready = format!("return {ends} > 0 && {ends}");
    assert_eq!(browser.wait_for("the ends of five axes", WAIT_TIMEOUT, &ready), json!(10));
    let focused = |attribute: &str| {
        let script = format!("return document.activeElement.getAttribute('{attribute}')");
        browser.run_script(&script).as_str().unwrap_or_default().to_owned()
    };
    let shown = || {
        browser
            .run_script("return document.querySelector('[data-plot=parallel] .hint').textContent")
    };

    // Tab moves the focus to the next end of an axis and makes it visible.
    let focus = |label: &str| {
        let ends = "[...document.querySelectorAll('[role=slider]')]";
        browser.run_script(&format!(
            "{ends}.find((end) => end.getAttribute('aria-label') === '{label}').focus()"
        ))
    };
    focus("activation, at least");
    browser.press_keys(&TAB_KEY.to_string());
    assert_eq!(focused("aria-label"), "activation, at most");
    assert_eq!(focused("aria-describedby"), "parallel-keys");
    assert_eq!(browser.run_script("return getComputedStyle(document.activeElement).opacity"), "1");
    assert_eq!(focused("aria-valuetext"), format!("tanh; {}", summary(all)));

    // An arrow key moves to the next option, in the order of the search space. One end cannot pass the other.
    browser.press_keys(&DOWN_KEY.to_string());
    let inside = count(&|at| kinds[at] != "tanh");
    assert!(0 < inside && inside < all, "the seeded search has too few activations");
    assert_eq!(focused("aria-valuetext"), format!("elu; {}", summary(inside)));
    assert_eq!(shown(), format!("{} are within the ranges.", summary(inside)));
    browser.press_keys(&HOME_KEY.to_string());
    let relus = count(&|at| kinds[at] == "relu");
    assert_eq!(focused("aria-valuetext"), format!("relu; {}", summary(relus)));
    assert_eq!(focused("aria-valuenow"), "0");
    browser.press_keys(&format!("{UP_KEY}{UP_KEY}{UP_KEY}"));
    assert_eq!(focused("aria-valuetext"), format!("tanh; {}", summary(all)));

    // Two axes at once: numbers change in small steps, options one by one.
    browser.press_keys(&DOWN_KEY.to_string());
    focus("momentum, at least");
    browser.press_keys(&UP_KEY.to_string());
    assert_eq!(focused("aria-valuenow"), "2");
    browser.press_keys(&ESCAPE_KEY.to_string());
    focus("units, at least");
    browser.press_keys(&UP_KEY.to_string());
    let both = count(&|at| kinds[at] != "tanh" && units[at].as_f64().unwrap() > 32.0);
    assert_ne!(both, inside, "every trial has more than 32 units");
    assert_eq!(focused("aria-valuenow"), "33");
    assert_eq!(focused("aria-valuetext"), format!("64; {}", summary(both)));
    browser.press_keys(&END_KEY.to_string());
    assert_eq!(focused("aria-valuenow"), "100");
    browser.press_keys(&ESCAPE_KEY.to_string());
    assert_eq!(focused("aria-valuetext"), format!("32; {}", summary(inside)));
    assert_eq!(shown(), format!("{} are within the ranges.", summary(inside)));
    let problems = browser.console_messages();
    assert!(problems.iter().all(|message| !message.contains("Content Security")), "{problems:?}");
}

/// A script that draws trials of one parameter and then of two, while an end of the first axis has the focus.
const DRAW_ANOTHER_PARAMETER: &str = r"
return Promise.all([import('/assets/parallel.js'), import('/assets/charts.js')]).then(([{ drawParallel }]) => {
  const figure = document.createElement('figure');
  document.querySelector('main').append(figure);
  const points = { id: ['t', 'u'], final: [1, 2], parameters: { a: [1, 2] } };
  const drawn = () => drawParallel(figure, points, new Map(), { direction: 'maximize', title: 'result' }, drawn);
  const labels = () => [...figure.querySelectorAll('[role=slider]')].map((end) => end.getAttribute('aria-label'));
  drawn();
  const before = labels();
  figure.querySelectorAll('[role=slider]')[1].focus();
  points.parameters.b = ['x', 'y'];
  drawn();
  return [before, labels(), document.activeElement.getAttribute('aria-label')];
});";

#[test]
#[ignore = "needs a browser"]
fn a_new_parameter_keeps_the_focus() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_small_search(&bed);
    browser.set_viewport(1280, 900, false);
    browser.open(&url);
    let ends = |names: &[&str]| -> Vec<String> {
        let both = |name: &&str| ["at least", "at most"].map(|end| format!("{name}, {end}"));
        names.iter().flat_map(both).collect()
    };
    let expected = json!([ends(&["a", "result"]), ends(&["a", "b", "result"]), "a, at most"]);
    assert_eq!(browser.run_script(DRAW_ANOTHER_PARAMETER), expected);
}

/// A script that draws two trials, of which the worse one has no `b`. Returns the number of its painted
/// pixels between `a` and the result, on the lowest line, which has nothing else.
const DRAW_WITHOUT_PARAMETER: &str = r"
return Promise.all([import('/assets/parallel.js'), import('/assets/charts.js')]).then(([{ drawParallel }]) => {
  const figure = document.createElement('figure');
  document.querySelector('main').append(figure);
  const points = { id: ['t', 'u'], final: [1, 2], parameters: { a: [1, 2], b: [null, 5] } };
  drawParallel(figure, points, new Map(), { direction: 'maximize', title: 'result' }, () => {});
  const canvas = figure.querySelector('canvas');
  const from = 62, to = canvas.width / 2 - 2;
  const { data } = canvas.getContext('2d').getImageData(from, canvas.height - 31, to - from, 2);
  return [...data].filter((value, at) => at % 4 === 3 && value > 0).length;
});";

#[test]
#[ignore = "needs a browser"]
fn a_trial_without_a_parameter_is_drawn_to_its_result() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_small_search(&bed);
    browser.set_viewport(1280, 900, false);
    browser.open(&url);
    let painted = browser.run_script(DRAW_WITHOUT_PARAMETER).as_u64().unwrap();
    assert!(painted > 50, "{painted} points");
}

#[test]
#[ignore = "needs a browser"]
fn a_swipe_along_an_axis_selects_and_elsewhere_scrolls() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_small_search(&bed);
    browser.set_viewport(360, 780, false);
    browser.open(&url);
    let chart = "document.querySelector('[data-plot=parallel]')";
    // A plot is drawn when it comes near the window.
    let ready = format!(
        "{chart}.scrollIntoView(); return {chart}.querySelectorAll('[role=slider]').length === 10"
    );
    browser.wait_for("the axes", WAIT_TIMEOUT, &ready);
    // Centres the chart on the screen. Returns the x position of the second axis, and the y positions of its
    // ends.
    let place = || {
        let still = "const now = [scrollY, document.querySelector('.slide').scrollLeft].join(), was = window.was; window.was = now; return now === was";
        browser.wait_for("the page to stop scrolling", WAIT_TIMEOUT, still);
        browser.run_script(&format!("{chart}.scrollIntoView({{ block: 'center' }}); {chart}.querySelector('.slide').scrollLeft = 0; window.was = null;"));
        browser.wait_for("the page to stop scrolling", WAIT_TIMEOUT, still);
        let place = browser.run_script(&format!(
            "const {{ left, top }} = {chart}.querySelector('canvas').getBoundingClientRect();
             const ends = [...{chart}.querySelectorAll('[role=slider]')];
             return [left + parseFloat(ends[2].style.left), top + parseFloat(ends[2].style.top), top + parseFloat(ends[3].style.top)];"
        ));
        [0, 1, 2].map(|at| place[at].as_f64().unwrap())
    };
    let hint = format!("return {chart}.querySelector('.hint').textContent");
    let all = browser.run_script(&hint);

    // Between two axes, a swipe scrolls the page. Across the axes, it scrolls the chart. Neither selects a
    // range.
    let [x, _, high] = place();
    browser.run_script("window.from = scrollY;");
    browser.swipe((x + 46.0, high + 150.0), (0.0, -100.0));
    browser.wait_for("the page to move", WAIT_TIMEOUT, "return scrollY > window.from + 50");
    let [x, _, high] = place();
    browser.swipe((x, high + 150.0), (-60.0, 0.0));
    let aside = format!("return {chart}.querySelector('.slide').scrollLeft > 20");
    browser.wait_for("the chart to move", WAIT_TIMEOUT, &aside);
    let [x, low, high] = place();
    browser.swipe((x + 46.0, high + 150.0), (0.0, 30.0));
    assert_eq!(browser.run_script(&hint), all);
    // Along an axis, a swipe selects the range from its start to its end.
    let [x, ..] = place();
    let scrolled = browser.run_script("return scrollY");
    browser.swipe((x, low - 5.0), (0.0, (high - low) / 2.0));
    assert_ne!(browser.run_script(&hint), all, "the swipe selected no range");
    assert_eq!(browser.run_script("return scrollY"), scrolled, "the page scrolled");
    let chosen = format!(
        "return [...{chart}.querySelectorAll('[role=slider]')].slice(2, 4).map((end) => Number(end.getAttribute('aria-valuenow')))"
    );
    let chosen = browser.run_script(&chosen);
    assert!(chosen[0].as_u64() < Some(10) && chosen[1].as_u64() < Some(70), "{chosen}");
}

/// A script that draws two curves, of which the second is hidden. Returns the accessible names and states in
/// the legend.
const DRAW_TWO_CURVES: &str = r"
return import('/assets/charts.js').then(({ draw }) => {
  const figure = document.createElement('figure');
  document.querySelector('main').append(figure);
  draw(figure, [{ label: 'acc', stroke: 'red' }, { label: 'loss', stroke: 'blue', show: false }], [[0, 1], [1, 2], [3, 4]], { x: 'step' });
  window.names = [...figure.querySelectorAll('[role=switch]')];
  window.names[1].focus();
  return window.names.map((name) => `${name.textContent} ${name.getAttribute('aria-checked')}`);
});";

#[test]
#[ignore = "needs a browser"]
fn curves_are_shown_and_hidden_by_keyboard() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_small_search(&bed);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/trials/t00001"));
    assert_eq!(browser.run_script(DRAW_TWO_CURVES), json!(["acc true", "loss false"]));
    let checked = "return window.names.map((name) => name.getAttribute('aria-checked'))";
    browser.press_keys(" ");
    assert_eq!(browser.run_script(checked), json!(["true", "true"]));
    browser.press_keys("\u{e007}");
    assert_eq!(browser.run_script(checked), json!(["true", "false"]));
}

#[test]
#[ignore = "needs a browser"]
fn the_curve_of_the_objective_is_drawn_among_many_metrics() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let others = "a b c d e f g h i";
    let command =
        format!("for at in 1 2; do for m in {others}; do echo $m=$at; done; echo z=$at; done");
    let search = Search::new(&command, 1).with("objective", "z").run(&bed);
    let (_serving, url) = bed.serve(&search.id);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/trials/{}", search.trial(0).id));
    let drawn = "return document.querySelector('[data-chart=metrics] canvas') !== null";
    browser.wait_for("the curves", WAIT_TIMEOUT, drawn);
    let named = "return [...document.querySelectorAll('[data-chart=metrics] [role=switch]')].map((name) => name.textContent + ' ' + name.getAttribute('aria-checked'))";
    let others = others.split(' ').map(|name| format!("{name} false"));
    let expected: Vec<_> = std::iter::once("z true".to_owned()).chain(others).collect();
    assert_eq!(browser.run_script(named), json!(expected));
}

#[test]
#[ignore = "needs a browser"]
fn the_first_view_of_ten_thousand_trials_is_small() {
    let browser = Browser::start();
    let bed = TestBed::new();
    // The overview shows no steps, so their number does not matter.
    let (_serving, url) = serve_search(&bed, 10_000, 1);
    browser.set_viewport(1280, 900, false);
    browser.open(&url);
    let drawn = "return document.querySelector('[data-plot=parallel] canvas') !== null";
    browser.wait_for("the charts", WAIT_TIMEOUT, drawn);
    let bytes = browser.transferred_bytes();
    assert!((50_000.0..1_500_000.0).contains(&bytes), "{bytes} bytes");
}
