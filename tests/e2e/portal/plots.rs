//! The page of plots in a real browser: drawings, pointer, keyboard and downloads. Also its layout on a
//! phone, a laptop and a large screen.

use serde_json::json;
use trialkeeper_tests::{Browser, RunningProgram, TestBed, WAIT_TIMEOUT, seed};

/// The plots of the page that the script draws.
const PLOT_NAMES: [&str; 9] = [
    "history",
    "parallel",
    "importance-bars",
    "failures",
    "slice",
    "contour",
    "durations",
    "curves",
    "timeline",
];

/// Serves the pages of a search of `trials` trials.
fn serve_search(bed: &TestBed, trials: i64) -> (RunningProgram, String) {
    seed::create_store(&bed.data_folder(), "small", trials, 20, 10).unwrap();
    bed.serve("small")
}

/// Scrolls a plot into view and waits until it is drawn. Returns the number of its marks.
fn scroll_to_plot(browser: &Browser, plot: &str) -> u64 {
    let figure = format!("document.querySelector('[data-plot={plot}]')");
    browser.run_script(&format!("{figure}.scrollIntoView({{ block: 'center' }})"));
    // A plot without its data is drawn without marks.
    let marks =
        format!("const drawn = Number({figure}.dataset.drawn); return drawn > 0 ? drawn : null");
    browser.wait_for(plot, WAIT_TIMEOUT, &marks).as_u64().unwrap()
}

#[test]
#[ignore = "needs a browser"]
fn every_plot_is_drawn_and_nothing_is_wider_than_the_screen() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 60);
    for (width, dark) in
        [390, 1400, 2560].into_iter().flat_map(|width| [(width, false), (width, true)])
    {
        browser.set_viewport(width, 900, dark);
        browser.open(&format!("{url}/plots"));
        for plot in PLOT_NAMES {
            assert!(scroll_to_plot(&browser, plot) > 0, "{plot} at {width}");
        }
        let is_too_wide = "return document.documentElement.scrollWidth > innerWidth";
        assert_eq!(browser.run_script(is_too_wide), json!(false), "the page is wider than {width}");
    }
    let problems = browser.console_messages();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
#[ignore = "needs a browser"]
fn a_trial_is_selected_and_opened_by_keyboard() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 40);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/plots"));
    scroll_to_plot(&browser, "history");
    browser.run_script("document.querySelector('[data-plot=history] .plot-host').focus()");
    let tip = "return document.querySelector('[data-plot=history] .tip').textContent";
    // The machines come after the first plot.
    let machines = "const host = document.querySelector('[data-plot=history] .plot-host');
         for (const key of ['Home', 'End']) host.dispatchEvent(new KeyboardEvent('keydown', { key }));
         return document.querySelector('[data-plot=history] .tip').textContent.includes('on node-1')";
    browser.wait_for("the machines", WAIT_TIMEOUT, machines);
    browser.press_keys("\u{e010}");
    assert!(browser.run_script(tip).as_str().unwrap().starts_with("Trial 39 · "));
    browser.press_keys("\u{e012}\u{e012}");
    let tip_text = browser.run_script(tip);
    let tip_text = tip_text.as_str().unwrap();
    assert!(tip_text.starts_with("Trial 37 · succeeded"), "{tip_text}");
    for part in ["result: ", "lr: ", "units: ", "activation: ", "on node-1"] {
        assert!(tip_text.contains(part), "{part} is not in {tip_text}");
    }
    // A zoom shows fewer marks and can be reset.
    let zoomed = "return !document.querySelector('[data-plot=history] .files button').hidden";
    browser.press_keys("+");
    assert_eq!(browser.run_script(zoomed), json!(true));
    browser.press_keys("\u{e00c}");
    assert_eq!(browser.run_script(zoomed), json!(false));
    browser.press_keys("\u{e010}\u{e007}");
    let is_open = "return location.pathname === '/trials/t00040'";
    browser.wait_for("the trial's page", WAIT_TIMEOUT, is_open);
}

#[test]
#[ignore = "needs a browser"]
fn selected_ranges_are_in_the_address_and_filter_the_table() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 40);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/plots#activation=elu..tanh"));
    scroll_to_plot(&browser, "parallel");
    let ends = "return [...document.querySelectorAll('[role=slider][aria-label^=activation]')].map((end) => end.getAttribute('aria-valuenow'))";
    assert_eq!(browser.run_script(ends), json!(["50", "100"]));
    let link = "return new URL(document.querySelector('.brushed').href).searchParams.get('filter')";
    let expected = "(activation == \"elu\" or activation == \"tanh\")";
    assert_eq!(browser.run_script(link), json!(expected));
    browser.run_script("document.querySelector('[aria-label=\"momentum, at most\"]').focus()");
    browser.press_keys("\u{e00f}");
    assert_eq!(
        browser.run_script("return location.hash"),
        json!("#momentum=0..0.9&activation=elu..tanh")
    );
    assert_eq!(browser.run_script(link), json!(format!("momentum <= 0.9 and {expected}")));
}

/// Returns the place on the screen of a mark of the history: its position in pixels from the left and the top.
const FIND_MARK: &str = "const host = document.querySelector('[data-plot=history] .plot-host'), canvas = host.querySelector('canvas');
  const { left, top } = host.getBoundingClientRect(), { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const filled = (x, y) => data[4 * (y * canvas.width + x) + 3] > 150 && data[4 * (y * canvas.width + x) + 2] > 150;
  for (let x = 200; x < canvas.width - 200; x += 1) for (let y = 60; y < canvas.height - 80; y += 1)
    if ([0, 1, 2, 3].every((by) => filled(x, y + by) && filled(x + by, y))) return [left + x + 1, top + y + 1];
  return null;";

/// Asks for two numbers.
fn read_position(browser: &Browser, script: &str) -> (f64, f64) {
    let found = browser.run_script(script);
    (found[0].as_f64().unwrap(), found[1].as_f64().unwrap())
}

#[test]
#[ignore = "needs a browser"]
fn a_plot_is_explored_with_the_pointer() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 40);
    browser.set_viewport(1280, 900, false);
    // The overview and the page of plots share the plot.
    for path in ["/", "/plots"] {
        browser.open(&format!("{url}{path}"));
        scroll_to_plot(&browser, "history");
        let mark = read_position(&browser, FIND_MARK);
        browser.move_mouse_to(mark);
        let tip = "const tip = document.querySelector('[data-plot=history] .tip'); return tip.hidden ? '' : tip.textContent";
        let words = browser.run_script(tip);
        let words = words.as_str().unwrap();
        for part in ["Trial ", "result: ", "lr: ", "units: ", "activation: "] {
            assert!(words.contains(part), "{path}: {part} is not in {words:?}");
        }
        // A drag zooms in, and a double click shows all trials again.
        let zoomed = "return !document.querySelector('[data-plot=history] .files button').hidden";
        assert_eq!(browser.run_script(zoomed), json!(false));
        browser.drag((mark.0 - 60.0, mark.1 - 40.0), (mark.0 + 60.0, mark.1 + 40.0));
        assert_eq!(browser.run_script(zoomed), json!(true), "{path}: a drag must zoom");
        let empty = "const host = document.querySelector('[data-plot=history] .plot-host').getBoundingClientRect(); return [host.left + 8, host.top + 8]";
        let empty = read_position(&browser, empty);
        browser.double_click(empty);
        assert_eq!(browser.run_script(zoomed), json!(false), "{path}: a double click must reset");
        browser.click(mark);
        let is_open = "return location.pathname.startsWith('/trials/t000')";
        browser.wait_for("the trial's page", WAIT_TIMEOUT, is_open);
    }
}

#[test]
#[ignore = "needs a browser"]
fn a_line_of_parallel_coordinates_shows_and_opens_its_trial() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 40);
    browser.set_viewport(1280, 900, false);
    let tip = "const tip = document.querySelector('[data-plot=parallel] .tip'); return tip.hidden ? '' : tip.textContent";
    let lines = "document.querySelector('[data-plot=parallel] .lines')";
    for path in ["/", "/plots"] {
        browser.open(&format!("{url}{path}"));
        scroll_to_plot(&browser, "parallel");
        // By keyboard: the best line is the first, and Enter opens its trial.
        browser.run_script(&format!("{lines}.focus()"));
        browser.press_keys("\u{e014}");
        let best = browser.run_script(tip);
        let best = best.as_str().unwrap().to_owned();
        let known = "return fetch('/api/v1/experiment').then((response) => response.json()).then(({ best }) => [best.id, best.sequence])";
        let known = browser.run_script(known);
        assert!(best.starts_with(&format!("Trial {} · succeeded", known[1])), "{best}");
        browser.press_keys("\u{e012}");
        assert_eq!(browser.run_script(tip), json!(best), "there is no better line");
        browser.press_keys("\u{e014}");
        assert_ne!(browser.run_script(tip), json!(best), "the next line is another trial");
        browser.press_keys("\u{e00c}");
        assert_eq!(browser.run_script(tip), json!(""));
        // With the pointer: a line between the first two axes.
        let middle = format!(
            "document.activeElement.blur();
             const [first, , second] = [...document.querySelectorAll('[data-plot=parallel] [role=slider]')].map((end) => parseFloat(end.style.left));
             const box = {lines}.getBoundingClientRect(), canvas = {lines}.parentNode.querySelector('canvas'), x = Math.round((first + second) / 2);
             const {{ data }} = canvas.getContext('2d').getImageData(x, 0, 1, canvas.height);
             for (let y = 120; y < canvas.height - 40; y += 1) if (data[4 * y + 3] > 0) return [box.left + x, box.top + y];"
        );
        let line = read_position(&browser, &middle);
        browser.move_mouse_to(line);
        let words = browser.run_script(tip);
        let words = words.as_str().unwrap();
        for part in ["Trial ", "result: ", "lr: ", "units: ", "activation: "] {
            assert!(words.contains(part), "{path}: {part} is not in {words:?}");
        }
        let number = words.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
        browser.click(line);
        let is_open = format!("return location.pathname === '/trials/t{:05}'", number + 1);
        browser.wait_for("the trial's page", WAIT_TIMEOUT, &is_open);
    }
}

/// A script that draws parallel coordinates of a search space. Returns the texts of the downloaded SVG.
const DRAW_AXES: &str = r"
return Promise.all([import('/assets/parallel.js'), import('/assets/plots-surface.js')]).then(async ([{ drawParallel }]) => {
  const figure = document.createElement('figure');
  document.querySelector('main').append(figure);
  const points = { id: ['t', 'u'], final: [1, 2], parameters: { plain: [0.001, 0.9], kind: ['b', 'a'], lr: [0.01, 0.02], wide: ['option 1', 'option 2'] },
    space: [{ name: 'lr', log: true, low: 0.01, high: 0.1 }, { name: 'plain', log: false, low: 0, high: 1 }, { name: 'kind', log: false, options: ['b', 'c', 'a'] },
      { name: 'wide', log: false, options: [...Array(40).keys()].map((at) => `option ${at}`) }] };
  drawParallel(figure, points, new Map(), { direction: 'maximize', title: 'result' }, () => {});
  let svg = null;
  const made = URL.createObjectURL;
  URL.createObjectURL = (blob) => { svg = blob; return made.call(URL, blob); };
  figure.querySelector('[data-kind=svg]').click();
  URL.createObjectURL = made;
  const document_ = new DOMParser().parseFromString(await svg.text(), 'image/svg+xml');
  return [...document_.querySelectorAll('text')].map((one) => one.textContent);
});";

/// A script that selects ranges of parameters whose names a filter must quote. Returns the filter.
const FILTER_ODD_NAMES: &str = r"
return import('/assets/parallel.js').then(({ drawParallel }) => {
  const figure = document.createElement('figure');
  document.querySelector('main').append(figure);
  const parameters = { 'batch size': [1, 4], step: [0, 1], 'a`b': [1, 2], layers: [[64, 64], [32]] };
  const space = [{ name: 'layers', log: false, options: [[32], [64, 64]] }];
  const ranges = new Map([['batch size', [0, 0.5]], ['step', [0.5, 1]], ['a`b', [0.5, 1]], ['layers', [0.5, 1]]]);
  return drawParallel(figure, { id: ['t', 'u'], final: [1, 2], parameters, space }, ranges, { direction: 'maximize', title: 'result' }, () => {}).filter;
});";

#[test]
#[ignore = "needs a browser"]
fn a_range_of_a_parameter_with_any_name_is_a_filter() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 10);
    browser.set_viewport(1280, 900, false);
    browser.open(&url);
    let expected = r#"layers == "[64,64]" and `parameters.batch size` <= 2.5 and `parameters.step` >= 0.5 and `parameters.a\`b` >= 1.5"#;
    assert_eq!(browser.run_script(FILTER_ODD_NAMES), json!(expected));
}

#[test]
#[ignore = "needs a browser"]
fn the_search_space_determines_the_axes() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 10);
    browser.set_viewport(1280, 900, false);
    browser.open(&url);
    let texts = browser.run_script(DRAW_AXES);
    let texts: Vec<&str> =
        texts.as_array().unwrap().iter().filter_map(|one| one.as_str()).collect();
    let at = |word: &str| texts.iter().position(|text| *text == word);
    // The axes are in the order of the search space, a logarithmic axis is marked, and every option is
    // labelled, even one without a trial.
    assert!(at("lr (log)") < at("plain") && at("plain") < at("kind"), "{texts:?}");
    assert!(at("plain (log)").is_none() && at("lr (log)").is_some(), "{texts:?}");
    assert!(at("b") < at("c") && at("c") < at("a") && at("a").is_some(), "{texts:?}");
    let named = (0..40).filter(|option| at(&format!("option {option}")).is_some());
    assert_eq!(named.count(), 40, "every option is named: {texts:?}");
}

#[test]
#[ignore = "needs a browser"]
fn plots_are_downloaded_as_pictures() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 40);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/plots"));
    let kept = "window.files = []; const made = URL.createObjectURL; URL.createObjectURL = (blob) => {
           blob.slice(0, 5000).text().then((text) => window.files.push([blob.type, blob.size, text])); return made.call(URL, blob); };";
    browser.run_script(kept);
    for (count, plot) in PLOT_NAMES.iter().enumerate() {
        scroll_to_plot(&browser, plot);
        browser.run_script(&format!(
            "for (const one of document.querySelectorAll('[data-plot={plot}] .files button:not([hidden])')) one.click()"
        ));
        let are_saved = format!("return window.files.length >= {}", 2 * (count + 1));
        browser.wait_for("both files", WAIT_TIMEOUT, &are_saved);
    }
    let mut files = browser.run_script("return window.files");
    // Charts of other pages can be downloaded, too.
    browser.open(&format!("{url}/trials/t00001"));
    let buttons =
        "return document.querySelectorAll('[data-chart=metrics] .files button').length === 2";
    browser.wait_for("the chart", WAIT_TIMEOUT, buttons);
    browser.run_script(kept);
    browser.run_script("for (const one of document.querySelectorAll('[data-chart=metrics] .files button')) one.click()");
    let both = browser.wait_for(
        "both files",
        WAIT_TIMEOUT,
        "return window.files.length === 2 && window.files",
    );
    files.as_array_mut().unwrap().extend(both.as_array().unwrap().iter().cloned());
    // The trial's output can be searched, ignoring case.
    browser.run_script(
        "const field = document.querySelector('[aria-label=\"Find in standard output\"]');
         field.value = 'TRIAL 1'; field.dispatchEvent(new Event('input'));",
    );
    let count = "return document.querySelector('.log-bar output').textContent";
    assert_eq!(browser.run_script(count), "1 of 1");
    for file in files.as_array().unwrap() {
        let (kind, size) = (file[0].as_str().unwrap(), file[1].as_u64().unwrap());
        assert!(size > 2000, "{kind} of {size} bytes");
        let is_svg =
            file[2].as_str().unwrap().starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"");
        assert_eq!(kind == "image/svg+xml", is_svg);
    }
}

#[test]
#[ignore = "needs a browser"]
fn the_chosen_theme_is_kept() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 10);
    browser.set_viewport(1280, 900, false);
    browser.open(&url);
    let background = "return getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.run_script(background), "rgb(251, 252, 254)");
    let choose = |word: &str| {
        browser.run_script(&format!(
            "const choice = document.getElementById('theme'); choice.value = '{word}'; choice.dispatchEvent(new Event('change'))"
        ))
    };
    choose("dark");
    assert_eq!(browser.run_script(background), "rgb(16, 22, 29)");
    browser.open(&format!("{url}/configuration"));
    assert_eq!(browser.run_script(background), "rgb(16, 22, 29)");
    assert_eq!(browser.run_script("return document.getElementById('theme').value"), "dark");
    // The light theme remains while the system is dark. Without a choice, the system decides.
    choose("light");
    browser.set_viewport(1280, 900, true);
    assert_eq!(browser.run_script(background), "rgb(251, 252, 254)");
    choose("");
    assert_eq!(browser.run_script(background), "rgb(16, 22, 29)");
}

#[test]
#[ignore = "needs a browser"]
fn a_plot_can_be_read_as_a_table() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 40);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/plots"));
    for (plot, first) in [("history", "39"), ("parallel", ""), ("contour", ""), ("timeline", "39")]
    {
        scroll_to_plot(&browser, plot);
        browser.run_script(&format!(
            "document.querySelector('[data-plot={plot}] details').open = true"
        ));
        let cell = format!(
            "return document.querySelector('[data-plot={plot}] tbody td')?.textContent ?? false"
        );
        let cell = browser.wait_for("the table", WAIT_TIMEOUT, &cell);
        assert!(cell.as_str().unwrap().starts_with(first), "{plot}: {cell}");
    }
}

#[test]
#[ignore = "needs a browser"]
fn a_long_table_shows_more_rows_on_request() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 300);
    browser.set_viewport(1280, 900, false);
    browser.open(&url);
    scroll_to_plot(&browser, "history");
    let table = "document.querySelector('[data-plot=history] details')";
    browser.run_script(&format!("{table}.open = true"));
    let rows =
        |count: usize| format!("return {table}.querySelectorAll('tbody tr').length === {count}");
    browser.wait_for("the first rows", WAIT_TIMEOUT, &rows(200));
    browser.run_script(&format!("{table}.querySelector('button').click()"));
    browser.wait_for("all rows", WAIT_TIMEOUT, &rows(300));
    let more = format!("return {table}.querySelector('button')");
    assert_eq!(browser.run_script(&more), json!(null), "a complete table must have no button");
}

/// A script that counts the waiting attempts, and lists the rows of machines of a timeline of three attempts.
const READ_TIMELINE: &str = "return import('/assets/plots-timeline.js').then(({ createTimeline, countWaiting }) => {
  const answer = { now: 100, sequence: [0, 1, 2], attempt: [1, 1, 1], submitted: [0, 0, 10], began: [5, 20, null], ended: [30, 40, null],
    retried: [false, false, false], state: ['SUCCEEDED', 'SUCCEEDED', 'WAITING'], host: [0, 0, null], hosts: ['node-1'], waited_for: [null, null, 'a GPU'] };
  const points = { sequence: [0, 1, 2], id: ['a', 'b', 'c'] };
  const model = createTimeline(points, answer, { by: 'host' });
  return [countWaiting([[0, 5], [0, 20], [10, 100]]), model.panels[0].y.names, model.table(9).rows[0], model.legend[0].label];
});";

#[test]
#[ignore = "needs a browser"]
fn the_timeline_of_machines_shows_what_waits() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 10);
    browser.open(&format!("{url}/plots"));
    let steps = json!([[0, 2], [5, 1], [10, 2], [20, 1], [100, 0]]);
    let expected = json!([
        {"steps": steps, "maxCount": 2},
        ["node-1 2", "node-1 1", "waiting, at most 2"],
        [2, 1, "waiting", "", "90 ms", "a GPU", ""],
        "waiting",
    ]);
    assert_eq!(browser.run_script(READ_TIMELINE), expected);
}

#[test]
#[ignore = "needs a browser"]
fn parameters_metrics_and_trials_are_chosen() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 60);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/plots"));
    let panels = scroll_to_plot(&browser, "slice");
    let chosen = "const choice = document.querySelector('[data-plot=slice] .choice'), boxes = [...choice.querySelectorAll('input')];
         const all = [choice.querySelector('summary').textContent, boxes.length];
         boxes[0].click();
         return [...all, choice.querySelector('summary').textContent];";
    let expected = json!(["Parameters: 4 of 4", 4, "Parameters: 3 of 4"]);
    assert_eq!(browser.run_script(chosen), expected);
    assert_eq!(scroll_to_plot(&browser, "slice") * 4, panels * 3, "one panel less");
    // Without a parameter, the choice stays.
    let none = "const choice = document.querySelector('[data-plot=slice] .choice');
         for (const box of choice.querySelectorAll('input:checked')) box.click();
         return choice.closest('.plot-bar').hidden";
    assert_eq!(browser.run_script(none), json!(false));
    let all = scroll_to_plot(&browser, "curves");
    browser.run_script("const count = document.querySelector('[data-plot=curves] select'); count.value = '20'; count.dispatchEvent(new Event('change'))");
    let fewer = format!(
        "return Number(document.querySelector('[data-plot=curves]').dataset.drawn) * 3 === {all}"
    );
    browser.wait_for("a third of the curves", WAIT_TIMEOUT, &fewer);
    // The metric of NNI's SDK has the name of the result.
    let table = "const table = document.querySelector('[data-plot=curves] .plot-table'); table.open = true; return table.querySelector('tbody td')?.textContent ?? false";
    assert_eq!(browser.wait_for("the table", WAIT_TIMEOUT, table), json!("result"));
    // A bar of the failures opens the list of the failed trials.
    scroll_to_plot(&browser, "failures");
    browser.run_script("document.querySelector('[data-plot=failures] .plot-host').focus()");
    browser.press_keys("\u{e014}\u{e007}");
    let is_open = "return location.pathname === '/trials' && location.search.startsWith('?state=FAILED&cause=')";
    browser.wait_for("the failed trials", WAIT_TIMEOUT, is_open);
}

/// A script that computes the best values so far and a smoothed curve.
const COMPUTE_CURVES: &str = "return import('/assets/plots-curves.js').then(({ computeBestSoFar, smoothValues }) => [
  computeBestSoFar([1, null, 3, 2], (a, b) => a > b), computeBestSoFar([null, 2, 3, 1], (a, b) => a < b),
  smoothValues([1, 1, null, 1], 0.9), smoothValues([0, 1], 0.5).map((value) => Number(value.toFixed(4)))]);";

#[test]
#[ignore = "needs a browser"]
fn curves_show_the_best_so_far_or_are_smoothed() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 10);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/plots"));
    let expected = json!([[1, 1, 3, 3], [null, 2, 2, 1], [1, 1, null, 1], [0, 0.6667]]);
    assert_eq!(browser.run_script(COMPUTE_CURVES), expected);
    scroll_to_plot(&browser, "curves");
    let chosen = "const [best] = [...document.querySelectorAll('[data-plot=curves] label')].filter((one) => one.textContent.includes('best so far'));
         best.querySelector('input').click();
         const host = document.querySelector('[data-plot=curves] .plot-host');
         host.focus();
         return document.querySelector('[data-plot=curves] input[type=range]').disabled;";
    assert_eq!(browser.run_script(chosen), json!(true), "a best value is not smoothed");
    browser.press_keys("\u{e010}");
    let tip =
        browser.run_script("return document.querySelector('[data-plot=curves] .tip').textContent");
    assert!(tip.as_str().unwrap().contains(", best so far "), "{tip}");
}

#[test]
#[ignore = "needs a browser"]
fn the_plots_of_ten_thousand_trials_are_small() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 10_000);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/plots"));
    assert_eq!(scroll_to_plot(&browser, "history"), 10_000);
    let bytes = browser.transferred_bytes();
    assert!((50_000.0..1_500_000.0).contains(&bytes), "{bytes} bytes");
}

#[test]
#[ignore = "needs a browser"]
fn an_axis_of_whole_numbers_has_only_whole_ticks() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 20);
    browser.open(&format!("{url}/plots"));
    #[rustfmt::skip]
    let table = [
        ("createNumberScale(0, 3, { whole: true })",                    json!(["0", "1", "2", "3"])),
        ("createNumberScale(0, 3, { whole: true }).zoomTo(0.1, 0.6)",   json!(["1"])),
        ("createNumberScale(0.5, 20, { log: true, whole: true })",      json!(["1", "2", "5", "10", "20"])),
        ("createParameterScale([16, 17, 18], null)",                     json!(["16", "17", "18"])),
        ("createParameterScale([0.5, 1], null)",                         json!(["0.5", "0.6", "0.7", "0.8", "0.9", "1"])),
    ];
    for (scale, expected) in table {
        let ticks = format!(
            "return import('/assets/plots-scale.js').then(({{ createNumberScale, createParameterScale }}) => {scale}.ticks(8).map(([, text]) => text))"
        );
        assert_eq!(browser.run_script(&ticks), expected, "{scale}");
    }
}

#[test]
#[ignore = "needs a browser"]
fn a_plot_whose_data_has_not_arrived_says_that_it_loads() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url) = serve_search(&bed, 20);
    browser.open(&format!("{url}/plots"));
    for (module, model) in [
        ("curves", "createCurves({}, [], {}, null, {})"),
        ("timeline", "createTimeline({}, null, {})"),
    ] {
        let model = format!(
            "return import('/assets/plots-{module}.js').then(({{ createCurves, createTimeline }}) => {model}.loading)"
        );
        assert_eq!(browser.run_script(&model), json!(true), "{module}");
    }
}
