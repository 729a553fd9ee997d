//! The dependency rules of `ARCHITECTURE.md`, as tests over the source text: a rule that only stands in a
//! document is broken by the third change.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counts;
mod documents;
mod folders;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use source::{Source, crates, dependencies, root, sources};

#[test]
fn agent_and_manager_share_nothing_but_the_protocol() {
    let ours: BTreeSet<&str> =
        ["trial-protocol", "trialkeeper", "trial-manager", "trialkeeper-tests"].into();
    for (krate, may_know) in [
        ("shared", [].as_slice()),
        ("agent", &["trial-protocol"]),
        ("manager", &["trial-protocol"]),
        ("tests", &["trial-protocol"]),
    ] {
        let known: Vec<String> =
            dependencies(krate).into_iter().filter(|name| ours.contains(name.as_str())).collect();
        assert!(
            known.iter().all(|name| may_know.contains(&name.as_str())),
            "{krate} uses {known:?}"
        );
    }
}

#[test]
fn the_protocol_needs_serde_and_nothing_that_does_io() {
    let allowed: BTreeSet<String> =
        ["serde", "serde_json", "thiserror", "proptest"].map(str::to_owned).into();
    let needed: BTreeSet<String> = dependencies("shared").into_iter().collect();
    assert!(needed.is_subset(&allowed), "{needed:?}");
}

/// The groups at the head of a crate's `lib.rs`: "Bottom up: `a, b` -> `c`." as a and b, then c.
fn bottom_up(krate: &str) -> Vec<Vec<String>> {
    let text = source::read(&root().join(krate).join("src/lib.rs"));
    let head =
        text.lines().map_while(|line| line.strip_prefix("//!")).collect::<Vec<_>>().join(" ");
    let Some((_, list)) = head.split_once("Bottom up:") else {
        panic!("{krate}/src/lib.rs lists no modules, bottom up")
    };
    let list = list.split(". ").next().unwrap();
    // Names stand in backticks; every second part of the text does.
    let groups = list.split('`').skip(1).step_by(2);
    groups.map(|names| names.split(',').map(|name| name.trim().to_owned()).collect()).collect()
}

#[test]
fn a_module_imports_only_from_its_left() {
    // Beside the order: two that must not meet at all.
    let strangers = [("store", "training_service"), ("training_service", "store")];
    for krate in ["agent", "manager"] {
        let groups = bottom_up(krate);
        let place =
            |module: &str| groups.iter().position(|group| group.iter().any(|m| m == module));
        let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for Source { path, module, code, .. } in sources(krate) {
            // The crate's root composes, and tests look in from outside; they may know everything.
            if module == "lib" || module == "main" || code.is_empty() {
                continue;
            }
            let here = place(&module);
            let here = here
                .unwrap_or_else(|| panic!("{path}: `{module}` is missing in the head of lib.rs"));
            for target in source::imports(&code) {
                // What is not a module is an item that lib.rs exports, which is above everybody.
                let there = place(&target).unwrap_or_else(|| {
                    panic!("{path} imports `crate::{target}`, which is no module")
                });
                assert!(
                    there <= here,
                    "{path}: `{module}` imports `{target}`, which stands right of it"
                );
                assert!(
                    !strangers.contains(&(module.as_str(), target.as_str())),
                    "{path}: `{module}` must not know `{target}`"
                );
                if target != module {
                    arrows.entry(module.clone()).or_default().insert(target);
                }
            }
        }
        // Within a group, too, nobody may come back to where they started: modules whose imports are all
        // settled are settled, until none is left.
        while !arrows.is_empty() {
            let open: BTreeSet<String> = arrows.keys().cloned().collect();
            arrows.retain(|_, targets| targets.iter().any(|target| open.contains(target)));
            assert!(
                arrows.len() < open.len(),
                "{krate}: modules import one another in a circle: {arrows:?}"
            );
        }
    }
}

#[test]
fn each_power_lives_in_one_place() {
    // A word that betrays the power, the crate it is looked for in, and the modules that may say it, as the
    // beginnings of paths.
    #[rustfmt::skip]
    let powers: [(&str, &str, &[&str]); 12] = [
        ("rusqlite",         "manager", &["store"]),
        ("SELECT ",          "manager", &["store"]),
        ("INSERT ",          "manager", &["store"]),
        ("StatusCode",       "manager", &["api"]),
        ("axum::",           "manager", &["api", "app"]),
        ("waitpid(",         "agent",   &["trial/reap"]),
        ("waitid(",          "agent",   &["trial/reap"]),
        ("waitpid(",         "manager", &[]),
        ("NNISDK_ME",        "agent",   &["collect", "delivery/dialect"]),
        ("NNISDK_ME",        "manager", &["api"]),
        ("/api/v1",          "agent",   &["delivery/dialect"]),
        ("unsafe ",          "agent",   &["trial"]),
    ];
    for (word, krate, may) in powers {
        for Source { path, code, .. } in sources(krate) {
            let below = path.trim_start_matches(krate).trim_start_matches("/src/");
            assert!(
                may.iter().any(|beginning| below.starts_with(beginning)) || !code.contains(word),
                "{path} says {word:?}, which belongs to {may:?}"
            );
        }
    }
    for krate in crates() {
        for Source { path, code, .. } in sources(krate) {
            let wall_clock = code.contains("SystemTime::now()");
            assert!(
                path.ends_with("clock.rs") || !wall_clock,
                "{path} reads the wall clock itself"
            );
        }
    }
}

#[test]
fn only_the_client_talks_to_kubernetes() {
    for Source { path, code, .. } in sources("manager") {
        let client = path.contains("training_service/kubernetes/client");
        assert!(client || !code.contains("kube::"), "{path} talks to Kubernetes itself");
    }
}

#[test]
fn pure_files_are_pure() {
    // (An instant may be held; only asking for the present one is impure.)
    let impure = [
        "async ",
        ".await",
        "tokio::fs",
        "tokio::net",
        "tokio::spawn",
        "std::fs",
        "std::net",
        "std::process",
        "File::",
        "Instant::now",
        "SystemTime::now",
        "rand::rng",
        "thread_rng",
        "from_os_rng",
        "println!",
    ];
    let mut pure = BTreeSet::new();
    for krate in ["agent", "manager"] {
        for Source { path, code, head, .. } in sources(krate) {
            if head.contains("PURE") {
                let found = impure.iter().find(|word| code.contains(**word));
                assert_eq!(found, None, "{path} says that it is PURE");
                pure.insert(path);
            }
        }
    }
    let surely = [
        "agent/src/supervise/phase.rs",
        "manager/src/search/search_space.rs",
        "manager/src/search/tuner.rs",
    ];
    for path in surely {
        assert!(pure.contains(path), "the head of {path} says that it is PURE");
    }
}

/// The most lines of a source file. A file may be long if it is one thing, such as a task with all its transitions: split
/// over several files, every file sees its fields. A function may not, which `counts` holds.
const MAX_FILE_LINES: usize = 700;

#[test]
fn files_stay_short_enough_to_be_read() {
    for krate in crates() {
        for Source { path, lines, .. } in sources(krate) {
            assert!(
                lines <= MAX_FILE_LINES,
                "{path} has {lines} lines; give its tests or a part of it a file"
            );
            assert!(
                !path.ends_with("/mod.rs"),
                "{path}: name it after its folder, beside the folder"
            );
        }
    }
}

#[test]
fn every_module_says_what_it_is_for() {
    for krate in crates() {
        for Source { path, head, .. } in sources(krate) {
            assert!(
                !head.trim().is_empty() || path.ends_with("tests.rs"),
                "{path} begins without `//!`"
            );
        }
    }
}
