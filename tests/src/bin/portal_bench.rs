//! How the pages bear a large search: 10,000 trials of 1,000 steps, as `seed` makes them, in headless Chromium. It
//! prints each figure beside its goal; no figure is ever asserted but what does not depend on the machine's load: the
//! bytes of the first view, in `e2e charts`.
//!
//! `cargo build --release --workspace && target/release/portal_bench [TRIALS [STEPS]]` makes the store in a folder of its
//! own (about 2 GB for the usual size), serves it, measures and removes it. It needs Debian's chromium and
//! chromium-driver.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people who measure")]

use std::fs;
use std::time::{Duration, Instant};

use trialkeeper_tests::{Browser, TestBed, seed, wait_for};

/// How often each page is opened; the middle figure counts.
const ROUNDS: usize = 5;
/// However slow the machine.
const BOUND: Duration = Duration::from_mins(10);

/// Looks for tasks that block the page, from now on.
const WATCH: &str = "window.longest = 0;
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration); })
  .observe({ type: 'longtask' });";

/// Scrolls through the page in steps, a frame each; `true` once it is at the end.
const SCROLL: &str = "if (!window.scrolling) { window.scrolling = true; window.longest = 0; const step = () => {
  scrollBy(0, 400); for (const one of document.querySelectorAll('.scroll')) one.scrollLeft += 40;
  if (scrollY + innerHeight < document.documentElement.scrollHeight - 2) requestAnimationFrame(step); else window.scrolled = true; };
  requestAnimationFrame(step); } return window.scrolled === true;";

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<i64>().unwrap());
    let (trials, steps) = (words.next().unwrap_or(10_000), words.next().unwrap_or(1000));
    let bed = TestBed::new();
    let began = Instant::now();
    seed::make(&bed.data(), "large", trials, steps, 1).unwrap();
    println!("{trials} trials of {steps} steps, made in {:.0} s", began.elapsed().as_secs_f64());
    let mut serve = bed.manager();
    serve.args(["serve", "--experiment", "large", "--port", "0", "--data-dir"]).arg(bed.data());
    let began = Instant::now();
    let serving = bed.start(&mut serve);
    let url = wait_for("the pages to be served", BOUND, || {
        let url = fs::read_to_string(bed.data().join("large/view.url")).ok()?;
        Some(url.trim().to_owned())
    });
    let browser = Browser::start().expect("chromium and chromium-driver are installed");
    browser.looks(1280, 900, false);

    let overview = "return document.querySelector('[data-chart=best] canvas') && document.querySelector('[data-chart=parallel] canvas') \
                    && performance.now()";
    let table =
        "return document.querySelectorAll('.trials tbody tr').length > 0 && performance.now()";
    let trial = "return document.querySelector('[data-chart=metrics] canvas') && document.querySelector('[data-chart=memory] canvas, [data-chart=memory] .hint') \
                 && performance.now()";
    browser.open(&url);
    browser.wait("the first overview", BOUND, overview);
    let first = began.elapsed().as_secs_f64() * 1000.0;
    figure("from the start of `serve` to the first overview, ms", first, "-");
    figure("first view, kB on the wire", browser.transferred() / 1000.0, "1500");
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
        let mut times: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                browser.open(&format!("{url}{path}"));
                browser.wait(what, BOUND, ready).as_f64().unwrap()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        figure(what, times[ROUNDS / 2], goal);
    }
    browser.open(&format!("{url}/trials?limit=1000"));
    browser.script(WATCH);
    browser.wait("the table to be scrolled", BOUND, SCROLL);
    let longest = browser.script("return window.longest").as_f64().unwrap_or(0.0);
    figure("longest task while 1,000 rows are scrolled, ms", longest, "100");
    let status = fs::read_to_string(format!("/proc/{}/status", serving.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: f64 = peak.trim().trim_end_matches("kB").trim().parse().unwrap();
    figure("memory of the manager at most, MB", peak * 1.024 / 1000.0, "300");
}

fn figure(what: &str, value: f64, goal: &str) {
    println!("{what:<60} {value:>10.1}   at most {goal}");
}
