//! The portal's charts in a real browser, over a search that is the same on any day: what they do when the
//! system turns dark.

use serde_json::json;
use trialkeeper_tests::{BOUND, Browser, Running, TestBed, seed, wait_for};

/// Serves the pages of a small search: who does, and where.
fn served(bed: &TestBed) -> (Running, String) {
    seed::make(&bed.data(), "small", 40, 20, 10).unwrap();
    let mut serve = bed.manager();
    serve.args(["serve", "--experiment", "small", "--port", "0", "--data-dir"]).arg(bed.data());
    let serving = bed.start(&mut serve);
    let url = wait_for("the pages to be served", BOUND, || {
        let url = std::fs::read_to_string(bed.data().join("small/view.url")).ok()?;
        Some(url.trim().to_owned())
    });
    (serving, url)
}

/// Whether a chart's canvas shows a colour and does not show another.
fn shows(chart: &str, colour: &str, instead_of: &str) -> String {
    format!(
        "const canvas = document.querySelector('[data-chart={chart}] canvas');
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
fn charts_turn_dark_with_the_system() {
    let Some(browser) = Browser::start() else { return };
    let bed = TestBed::new();
    let (_serving, url) = served(&bed);
    // The style sheet's --accent, --grid and --text: light, dark.
    let (accent, grid, text) =
        (["#0b5cad", "#7ab8ff"], ["#e3e8ee", "#2a3642"], ["#16202c", "#e6edf4"]);
    for (path, painted) in [
        ("/", &[("best", accent), ("best", grid), ("parallel", text)][..]),
        ("/trials/t00001", &[("metrics", grid)]),
    ] {
        browser.looks(1280, 900, false);
        browser.open(&format!("{url}{path}"));
        browser.script("window.same = true");
        for dark in [false, true, false] {
            browser.looks(1280, 900, dark);
            for (chart, [light_one, dark_one]) in painted {
                let (is, was) = if dark { (dark_one, light_one) } else { (light_one, dark_one) };
                let what = format!("{chart} on {path} to show {is} and not {was}");
                browser.wait(&what, BOUND, &shows(chart, is, was));
            }
        }
        if path == "/" {
            // What names the lines has their colours.
            let named = "return [...document.querySelectorAll('[data-chart=best] .u-marker')].map((one) => getComputedStyle(one).borderTopColor)";
            browser.looks(1280, 900, true);
            let colours = browser.script(named);
            assert_eq!(colours[2], "rgb(122, 184, 255)", "{colours}");
        }
        assert_eq!(browser.script("return window.same"), json!(true), "the page was loaded again");
    }
}
