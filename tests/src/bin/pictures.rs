//! Creates the pictures of the portal for the documentation: `pictures [FOLDER]`, `docs` by default. The
//! searches are seeded, so the same program creates the same pictures. It needs Debian's chromium and
//! chromium-driver.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for authors of the documentation"
)]

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use trialkeeper_tests::{Browser, TestBed, WAIT_TIMEOUT, seed, wait_for};

/// The searches: id, name, tags, number of trials, and state.
const SEARCHES: [(&str, &str, &str, i64, &str); 5] = [
    ("k3v9qd2m", "digits, learning rate and width", r#"["digits"]"#, 120, "DONE"),
    ("p8x1ws4c", "digits, wider layers", r#"["digits"]"#, 240, "DONE"),
    ("a7m2hf6t", "segmentation baseline", r#"["vision", "baseline"]"#, 60, "STOPPED"),
    ("z5c8jn3r", "speech, small vocabulary", r#"["speech"]"#, 90, "DONE"),
    ("e2t6yb9g", "translation, warm-up", r#"["language"]"#, 150, "DONE"),
];

/// A picture of a page.
struct Picture {
    file: &'static str,
    page: &'static str,
    /// In pixels.
    size: (u32, u32),
    dark: bool,
    /// The script that returns `true` once the page is drawn.
    drawn_script: &'static str,
}

/// The usual width, in pixels.
const PAGE_WIDTH: u32 = 1280;

const TWO_PLOTS_DRAWN: &str =
    "return document.querySelectorAll('[data-plot][data-drawn]').length === 2";

#[rustfmt::skip]
const PICTURES: [Picture; 7] = [
    Picture { file: "home.png", page: "/", size: (PAGE_WIDTH, 600), dark: false, drawn_script: "return document.querySelectorAll('tbody tr').length === 5" },
    Picture { file: "portal.png", page: "/e/k3v9qd2m/", size: (PAGE_WIDTH, 1740), dark: false, drawn_script: TWO_PLOTS_DRAWN },
    Picture { file: "portal-dark.png", page: "/e/k3v9qd2m/", size: (PAGE_WIDTH, 720), dark: true, drawn_script: TWO_PLOTS_DRAWN },
    Picture { file: "portal-phone.png", page: "/e/k3v9qd2m/", size: (390, 844), dark: false, drawn_script: "return document.querySelector('[data-plot][data-drawn]') !== null" },
    Picture { file: "plots.png", page: "/e/p8x1ws4c/plots", size: (PAGE_WIDTH, 760), dark: false, drawn_script: "return document.querySelector('[data-plot][data-drawn]') !== null" },
    Picture { file: "compare.png", page: "/compare?experiment=k3v9qd2m&experiment=p8x1ws4c&experiment=z5c8jn3r", size: (PAGE_WIDTH, 1120), dark: false, drawn_script: TWO_PLOTS_DRAWN },
    Picture { file: "trial.png", page: "/e/k3v9qd2m/trials/t00113", size: (PAGE_WIDTH, 960), dark: false, drawn_script: "return document.querySelector('figure canvas') !== null" },
];

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "docs".to_owned()));
    let bed = TestBed::new();
    for (at, (id, name, tags, trials, state)) in (1..).zip(SEARCHES) {
        let path = seed::create_store(&bed.data_folder(), id, trials, 300, at).unwrap();
        set_metadata(&path, name, tags, state);
    }
    let mut serve = bed.manager_command();
    serve.args(["serve", "--port", "0", "--data-dir"]).arg(bed.data_folder());
    let _serving = bed.start(&mut serve);
    let url = wait_for("the home", WAIT_TIMEOUT, || {
        let url = fs::read_to_string(bed.data_folder().join(".home/home.url")).ok()?;
        Some(url.trim().to_owned())
    });
    let browser = Browser::start();
    browser.set_time_zone("UTC");
    for Picture { file, page, size: (width, height), dark, drawn_script } in PICTURES {
        browser.set_viewport(width, height, dark);
        browser.open(&format!("{url}{page}"));
        browser.wait_for(file, WAIT_TIMEOUT, drawn_script);
        let path = folder.join(file);
        browser.screenshot(&path);
        println!("{}", path.display());
    }
}

/// Sets a search's name, tags and state. Marks every seventh succeeded trial as stopped early by the
/// assessor.
fn set_metadata(store: &Path, name: &str, tags: &str, state: &str) {
    let store = Connection::open(store).unwrap();
    let named = "UPDATE experiment SET state = ?1,
                 canonical = json_set(canonical, '$.experimentName', ?2, '$.tags', json(?3))";
    store.execute(named, params![state, name, tags]).unwrap();
    store
        .execute_batch(
            "UPDATE trial SET state = 'EARLY_STOPPED' WHERE key % 7 = 4 AND state = 'SUCCEEDED';
             UPDATE trial_event SET state = 'EARLY_STOPPED' WHERE trial % 7 = 4 AND state = 'SUCCEEDED';
             DELETE FROM report WHERE kind = 'metric' AND body ->> 'type' = 'final' AND attempt IN
               (SELECT key FROM trial WHERE state = 'EARLY_STOPPED');",
        )
        .unwrap();
}
