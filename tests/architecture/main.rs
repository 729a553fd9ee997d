//! Tests the dependency rules of `ARCHITECTURE.md` on the source text. Without tests, changes would soon
//! break the rules.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counts;
mod documents;
mod folders;
mod prose;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use source::{Source, crate_names, dependencies, read_sources, workspace_root};

#[test]
fn agent_and_manager_share_nothing_but_the_protocol() {
    let own_crates: BTreeSet<&str> =
        ["trial-protocol", "trialkeeper", "trial-manager", "trialkeeper-tests"].into();
    for (krate, permitted) in [
        ("shared", [].as_slice()),
        ("agent", &["trial-protocol"]),
        ("manager", &["trial-protocol"]),
        ("tests", &["trial-protocol"]),
    ] {
        let used: Vec<String> = dependencies(krate)
            .into_iter()
            .filter(|name| own_crates.contains(name.as_str()))
            .collect();
        assert!(
            used.iter().all(|name| permitted.contains(&name.as_str())),
            "{krate} uses {used:?}"
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

/// Reads the groups of modules at the head of a crate's `lib.rs`: "Bottom up: `a, b` -> `c`." is a and b,
/// then c.
fn module_groups(krate: &str) -> Vec<Vec<String>> {
    let text = source::read(&workspace_root().join(krate).join("src/lib.rs"));
    let head =
        text.lines().map_while(|line| line.strip_prefix("//!")).collect::<Vec<_>>().join(" ");
    let Some((_, list)) = head.split_once("Bottom up:") else {
        panic!("{krate}/src/lib.rs has no list after `Bottom up:`")
    };
    let list = list.split(". ").next().unwrap();
    // Names are in backticks, so every second part of the text is one.
    let groups = list.split('`').skip(1).step_by(2);
    groups.map(|names| names.split(',').map(|name| name.trim().to_owned()).collect()).collect()
}

#[test]
fn a_module_imports_only_from_earlier_groups() {
    // In addition to the order, these two must not import each other.
    let separate_modules = [("store", "training_service"), ("training_service", "store")];
    for krate in ["agent", "manager"] {
        let groups = module_groups(krate);
        let place =
            |module: &str| groups.iter().position(|group| group.iter().any(|m| m == module));
        let mut imports_of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for Source { path, module, code, .. } in read_sources(krate) {
            // The crate's root and the tests may import any module.
            if module == "lib" || module == "main" || code.is_empty() {
                continue;
            }
            let here = place(&module);
            let here = here
                .unwrap_or_else(|| panic!("{path}: `{module}` is missing in the head of lib.rs"));
            for target in source::imports(&code) {
                // An import that is not a module is an item of lib.rs, which is above all modules.
                let there = place(&target).unwrap_or_else(|| {
                    panic!("{path} imports `crate::{target}`, which is not a module")
                });
                assert!(
                    there <= here,
                    "{path}: `{module}` imports `{target}`, which is to its right"
                );
                assert!(
                    !separate_modules.contains(&(module.as_str(), target.as_str())),
                    "{path}: `{module}` must not import `{target}`"
                );
                if target != module {
                    imports_of.entry(module.clone()).or_default().insert(target);
                }
            }
        }
        // Within a group, imports must not form a circle. Modules without remaining imports are removed until
        // none is left.
        while !imports_of.is_empty() {
            let open: BTreeSet<String> = imports_of.keys().cloned().collect();
            imports_of.retain(|_, targets| targets.iter().any(|target| open.contains(target)));
            assert!(
                imports_of.len() < open.len(),
                "{krate}: modules import one another in a circle: {imports_of:?}"
            );
        }
    }
}

#[test]
fn each_capability_is_used_in_one_place() {
    // A text that marks a capability, the crate to search, and the modules that may contain it, as beginnings
    // of paths.
    #[rustfmt::skip]
    let capabilities: [(&str, &str, &[&str]); 12] = [
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
    for (word, krate, may) in capabilities {
        for Source { path, code, .. } in read_sources(krate) {
            let below = path.trim_start_matches(krate).trim_start_matches("/src/");
            assert!(
                may.iter().any(|beginning| below.starts_with(beginning)) || !code.contains(word),
                "{path} contains {word:?}, which only {may:?} may use"
            );
        }
    }
    for krate in crate_names() {
        for Source { path, code, .. } in read_sources(krate) {
            let wall_clock = code.contains("SystemTime::now()");
            assert!(
                path.ends_with("clock.rs") || !wall_clock,
                "{path} reads the wall clock; use `Clock`"
            );
        }
    }
}

#[test]
fn only_the_client_talks_to_kubernetes() {
    for Source { path, code, .. } in read_sources("manager") {
        let client = path.contains("training_service/kubernetes/client");
        assert!(client || !code.contains("kube::"), "{path} uses `kube`; use the client");
    }
}

#[test]
fn files_marked_pure_perform_no_io() {
    // (Code may hold an instant. Only reading the clock is impure.)
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
        for Source { path, code, head, .. } in read_sources(krate) {
            if head.contains("PURE") {
                let found = impure.iter().find(|word| code.contains(**word));
                assert_eq!(found, None, "{path} is marked PURE");
                pure.insert(path);
            }
        }
    }
    let known_paths = [
        "agent/src/supervise/phase.rs",
        "manager/src/search/search_space.rs",
        "manager/src/search/tuner.rs",
    ];
    for path in known_paths {
        assert!(pure.contains(path), "the head of {path} must be marked PURE");
    }
}

/// The maximum number of lines of a source file. A file may be long if it is one subject, such as a task with
/// all its transitions. Divided files would share its private fields. `counts` limits the length of
/// functions.
const MAX_FILE_LINES: usize = 700;

#[test]
fn files_have_a_maximum_length() {
    for krate in crate_names() {
        for Source { path, lines, .. } in read_sources(krate) {
            assert!(
                lines <= MAX_FILE_LINES,
                "{path} has {lines} lines; move its tests or a part of it to another file"
            );
            assert!(
                !path.ends_with("/mod.rs"),
                "{path}: name it after its folder, beside the folder"
            );
        }
    }
}

#[test]
fn every_module_has_a_head_comment() {
    for krate in crate_names() {
        for Source { path, head, .. } in read_sources(krate) {
            assert!(
                !head.trim().is_empty() || path.ends_with("tests.rs"),
                "{path} begins without `//!`"
            );
        }
    }
}
