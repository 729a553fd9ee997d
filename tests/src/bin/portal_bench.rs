//! Measures the pages of a large search in headless Chromium: 10,000 trials of 1,000 steps, which `seed`
//! creates. Also measures the delay of a printed result on the page. Each figure is printed with its goal and
//! not asserted. Only the bytes of the first view, which do not depend on load, are asserted, in `e2e
//! charts`.
//!
//! `cargo build --release --workspace && target/release/portal_bench [TRIALS [STEPS]]` creates the store in a
//! temporary folder (about 2 GB by default). It serves the store, measures, and removes it. It needs Debian's
//! chromium and chromium-driver.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark program")]

use std::fs;
use std::time::{Duration, Instant};

use trialkeeper_tests::{Browser, TestBed, http_get, seed, wait_for};

/// The number of times each page is opened. The median is printed.
const PAGE_ROUNDS: usize = 5;
/// The time limit, even on a slow machine.
const PAGE_TIMEOUT: Duration = Duration::from_mins(10);

/// Records the longest task that blocks the page from now on.
const WATCH_LONG_TASKS: &str = "window.longest = 0;
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration); })
  .observe({ type: 'longtask' });";

/// Scrolls through the page in steps, one per frame. Returns `true` at the end of the page.
const SCROLL_TO_END: &str = "if (!window.scrolling) { window.scrolling = true; window.longest = 0; const step = () => {
  scrollBy(0, 400); for (const one of document.querySelectorAll('.scroll')) one.scrollLeft += 40;
  if (scrollY + innerHeight < document.documentElement.scrollHeight - 2) requestAnimationFrame(step); else window.scrolled = true; };
  requestAnimationFrame(step); } return window.scrolled === true;";

/// The number of results that the watched trial prints. Its pauses are random, so that they do not follow the
/// page's updates.
const TRIAL_STEPS: usize = 40;
const TRIAL_SCRIPT: &str = "import random, sys, time
time.sleep(5)
for step in range(40):
    time.sleep(0.5 + random.random())
    with open(sys.argv[1], 'a') as file:
        print(step, time.time() * 1000, file=file)
    print(f'loss={1 / (step + 1)}', flush=True)
time.sleep(5)
";

/// Records the time at which each step first appears in a painted frame.
const WATCH_STEPS: &str = "window.seen = {}; const look = () => {
  for (const one of document.querySelectorAll('small')) {
    const step = /^\\s*@(\\d+)$/.exec(one.textContent);
    if (step && !(step[1] in window.seen)) window.seen[step[1]] = Date.now(); }
  requestAnimationFrame(look); };
  requestAnimationFrame(look);";

#[expect(clippy::too_many_lines, reason = "a benchmark is one sequence")]
fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<i64>().unwrap());
    let (trials, steps) = (words.next().unwrap_or(10_000), words.next().unwrap_or(1000));
    let bed = TestBed::new();
    let began = Instant::now();
    seed::create_store(&bed.data_folder(), "large", trials, steps, 1).unwrap();
    println!("{trials} trials of {steps} steps, created in {:.0} s", began.elapsed().as_secs_f64());
    let mut serve = bed.manager_command();
    serve
        .args(["serve", "--experiment", "large", "--port", "0", "--data-dir"])
        .arg(bed.data_folder());
    let began = Instant::now();
    let serving = bed.start(&mut serve);
    let url = wait_for("the pages to be served", PAGE_TIMEOUT, || {
        let url = fs::read_to_string(bed.data_folder().join("large/view.url")).ok()?;
        Some(url.trim().to_owned())
    });
    let browser = Browser::start();
    browser.set_viewport(1280, 900, false);

    let overview = "return document.querySelector('[data-plot=history][data-drawn]') && document.querySelector('[data-plot=parallel][data-drawn]') \
                    && performance.now()";
    let table =
        "return document.querySelectorAll('.trials tbody tr').length > 0 && performance.now()";
    let trial = "return document.querySelector('[data-chart=metrics] canvas') && document.querySelector('[data-chart=memory] canvas, [data-chart=memory] .hint') \
                 && performance.now()";
    browser.open(&url);
    browser.wait_for("the first overview", PAGE_TIMEOUT, overview);
    let first = began.elapsed().as_secs_f64() * 1000.0;
    print_figure("from the start of `serve` to the first overview, ms", first, "-");
    print_figure("first view, kB on the wire", browser.transferred_bytes() / 1000.0, "1500");
    for (what, path, ready, goal) in [
        ("overview complete, ms", "/".to_owned(), overview, "1000"),
        (
            "table of 1,000 rows, ms",
            "/trials?limit=1000&sort=final&order=desc".to_owned(),
            table,
            "-",
        ),
        ("trial page complete, ms", format!("/trials/t{:05}", trials / 2), trial, "500"),
    ] {
        let mut times: Vec<f64> = (0..PAGE_ROUNDS)
            .map(|_| {
                browser.open(&format!("{url}{path}"));
                browser.wait_for(what, PAGE_TIMEOUT, ready).as_f64().unwrap()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        print_figure(what, times[PAGE_ROUNDS / 2], goal);
    }
    browser.open(&format!("{url}/trials?limit=1000"));
    browser.run_script(WATCH_LONG_TASKS);
    browser.wait_for("the table to be scrolled", PAGE_TIMEOUT, SCROLL_TO_END);
    let longest = browser.run_script("return window.longest").as_f64().unwrap_or(0.0);
    print_figure("longest task while 1,000 rows are scrolled, ms", longest, "100");
    measure_plots(&browser, &url);
    let status = fs::read_to_string(format!("/proc/{}/status", serving.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: f64 = peak.trim().trim_end_matches("kB").trim().parse().unwrap();
    print_figure("maximum memory of the manager, MB", peak * 1.024 / 1000.0, "300");
    drop(serving);
    print_figure("list of 1,000 experiments, ms", measure_home(&browser), "500");
    for (what, path) in [("trial's page", "/trials/"), ("table of trials", "/trials")] {
        let (median, longest) = measure_display_delay(&browser, path);
        print_figure(
            &format!("result printed to visible on the {what}, median, ms"),
            median,
            "1000",
        );
        print_figure("the same, maximum", longest, "1000");
    }
}

/// Measures the time to draw each plot of the page of plots, including its requests. For the first plot, the
/// time begins with the navigation. For the others, it begins when they scroll into view.
fn measure_plots(browser: &Browser, url: &str) {
    let names = ["history", "parallel", "slice", "contour", "durations", "curves", "timeline"];
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
    for _ in 0..PAGE_ROUNDS {
        browser.open(&format!("{url}/plots"));
        for (name, times) in names.iter().zip(&mut times) {
            let figure = format!("document.querySelector('[data-plot={name}]')");
            let began = "window.began = performance.now()";
            if *name != "history" {
                browser.run_script(&format!(
                    "{began}; {figure}.scrollIntoView({{ block: 'center' }})"
                ));
            }
            // The frame after the drawing records its time.
            let ready = format!(
                "const {{ drawn }} = {figure}.dataset; if (!(Number(drawn) > 0)) return false;
                 const end = performance.getEntriesByName('plot {name}').map((one) => one.startTime + one.duration).at(-1);
                 return Math.max(0.1, end - (window.began ?? 0));"
            );
            times.push(browser.wait_for(name, PAGE_TIMEOUT, &ready).as_f64().unwrap());
        }
    }
    for (name, mut times) in names.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        print_figure(&format!("plot drawn: {name}, ms"), times[PAGE_ROUNDS / 2], "1000");
    }
}

/// Returns the median time until the list of a home with 1,000 experiments is complete, in milliseconds. The
/// experiments have been read before.
fn measure_home(browser: &Browser) -> f64 {
    let bed = TestBed::new();
    for number in 0..1000 {
        seed::create_store(&bed.data_folder(), &format!("e{number:03}"), 5, 2, number).unwrap();
    }
    let mut serve = bed.manager_command();
    serve.args(["serve", "--port", "0", "--data-dir"]).arg(bed.data_folder());
    let serving = bed.start(&mut serve);
    let url = wait_for("the home to be served", PAGE_TIMEOUT, || {
        Some(fs::read_to_string(bed.data_folder().join(".home/home.url")).ok()?.trim().to_owned())
    });
    let ready =
        "return document.querySelectorAll('.experiments tbody tr').length > 0 && performance.now()";
    browser.open(&url);
    browser.wait_for("the first list", PAGE_TIMEOUT, ready);
    let mut times: Vec<f64> = (0..PAGE_ROUNDS)
        .map(|_| {
            browser.open(&url);
            browser.wait_for("the list", PAGE_TIMEOUT, ready).as_f64().unwrap()
        })
        .collect();
    drop(serving);
    times.sort_by(f64::total_cmp);
    times[PAGE_ROUNDS / 2]
}

/// Measures the delay from the print of an intermediate result to the screen. Returns the median and the
/// maximum in milliseconds. If `path` ends with a slash, the trial's id is appended.
fn measure_display_delay(browser: &Browser, path: &str) -> (f64, f64) {
    let bed = TestBed::new();
    bed.write("code/trial.py", TRIAL_SCRIPT);
    let experiment = format!(
        "trialCommand: python3 trial.py {}\ntrialCodeDirectory: code\ntrialConcurrency: 1\nmaxTrialNumber: 1\n\
         searchSpace: {{x: {{_type: uniform, _value: [0, 1]}}}}\ntuner: {{name: Random}}\ntrainingService: {{platform: local}}\n",
        bed.path("printed").display()
    );
    let file = bed.write("experiment.yml", &experiment);
    let mut run = bed.manager_command();
    run.arg("run").arg(file).args(["--port", "0", "--data-dir"]).arg(bed.data_folder());
    let running = bed.start(&mut run);
    let (url, trial) = wait_for("the trial to run", PAGE_TIMEOUT, || {
        let folder = fs::read_dir(bed.data_folder()).ok()?.next()?.ok()?.path();
        let url = fs::read_to_string(folder.join("manager.url")).ok()?;
        let trials: serde_json::Value =
            serde_json::from_str(&http_get(url.trim(), "/api/v1/trials")?.1).ok()?;
        Some((url.trim().to_owned(), trials["trials"][0]["id"].as_str()?.to_owned()))
    });
    let trial = if path.ends_with('/') { trial } else { String::new() };
    browser.open(&format!("{url}{path}{trial}"));
    browser.run_script(WATCH_STEPS);
    browser.wait_for(
        "the last result to be seen",
        PAGE_TIMEOUT,
        &format!("return {} in window.seen", TRIAL_STEPS - 1),
    );
    let seen = browser.run_script("return window.seen");
    let printed = bed.read("printed");
    let mut times: Vec<f64> = printed
        .lines()
        .filter_map(|line| {
            let (step, at) = line.split_once(' ')?;
            // Results that the page never showed are left out: they came before the page, or a newer one
            // replaced them.
            Some(seen[step].as_f64()? - at.parse::<f64>().ok()?)
        })
        .collect();
    times.remove(0);
    times.sort_by(f64::total_cmp);
    drop(running);
    (times[times.len() / 2], times[times.len() - 1])
}

fn print_figure(what: &str, value: f64, goal: &str) {
    println!("{what:<60} {value:>10.1}   at most {goal}");
}
