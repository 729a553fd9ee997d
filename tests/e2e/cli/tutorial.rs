//! Runs every command of the tutorial.

use std::fs;
use std::path::Path;

use serde_json::Value;
use trialkeeper_tests::{TestBed, WAIT_TIMEOUT, docs_folder};

/// A fenced block of a Markdown page.
struct FencedBlock {
    language: String,
    text: String,
}

fn fenced_blocks(page: &str) -> Vec<FencedBlock> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(FencedBlock { language: language.to_owned(), text: text.join("\n") });
        }
    }
    blocks
}

/// Writes a block that begins with `# NAME` to the file `NAME`.
fn write_file(folder: &Path, text: &str) {
    let name = text.lines().next().and_then(|line| line.strip_prefix("# "));
    let name = name.expect("a file of the tutorial begins with its name");
    fs::write(folder.join(name), text).expect("the folder is writable");
}

/// Returns the id of the newest experiment, or an empty string before the first one.
fn newest_experiment(bed: &TestBed) -> String {
    let mut show = bed.manager_command();
    show.args(["experiment", "show", "-o", "json", "--data-dir"]).arg(bed.data_folder());
    let shown = bed.start(&mut show).finish(WAIT_TIMEOUT);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
    shown["id"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn every_command_of_the_tutorial_succeeds() {
    let bed = TestBed::new();
    let folder = bed.path("tutorial");
    fs::create_dir(&folder).unwrap();
    let page = fs::read_to_string(docs_folder().join("tutorial.md")).unwrap();
    let mut printed = Vec::new();
    for FencedBlock { language, text } in fenced_blocks(&page) {
        match language.as_str() {
            "sh" => {}
            // An output, or a command for the reader's own machine.
            "text" => continue,
            _ => {
                write_file(&folder, &text);
                continue;
            }
        }
        let text = text.replace(" ID", &format!(" {}", newest_experiment(&bed)));
        let mut shell = bed.shell_command(&text);
        let finished = bed.start(shell.current_dir(&folder)).finish(WAIT_TIMEOUT);
        let output = String::from_utf8_lossy(&finished.stdout).into_owned() + &finished.stderr;
        assert_eq!(finished.code, Some(0), "{text}\n{output}");
        printed.push(output);
    }

    // The output that the tutorial promises.
    let [alone, _, search, results, fragile, mended, early] = &printed[..] else {
        panic!("{} blocks of commands", printed.len())
    };
    assert!(alone.contains("loss"), "{alone}");
    assert!(search.contains("20 trials, 20 succeeded"), "{search}");
    assert!(results.contains("layers"), "{results}");
    assert!(folder.join("results.csv").is_file());
    assert!(
        fragile.contains("2 failed") && fragile.contains("four layers do not fit"),
        "{fragile}"
    );
    assert!(mended.contains("8 trials, 8 succeeded, 0 failed"), "{mended}");
    assert!(early.contains("20 trials"), "{early}");
    assert!(early.contains("EARLY_STOPPED"), "the assessor stops no trial: {early}");
}
