//! Counts problems in the code. A count may fall but never rise: a change that lowers a count writes the new
//! number here. `cargo test -p trialkeeper-tests --test architecture counts -- --nocapture` prints the
//! counts.

use std::collections::{BTreeMap, BTreeSet};

use super::folders::import_cycles_of_crate;
use super::prose::Prose;
use super::source::{self, Source, crate_names, read_sources};

/// Each count and its maximum.
const MAX_COUNTS: [(&str, usize); 9] = [
    ("doc comments that begin with What, How, Who, Whether, Of or Likewise", 0),
    ("words somebody, nobody and whoever in comments and pages", 0),
    ("sentences of comments and pages with more than 30 words", 0),
    ("public types whose name another public type of the crate has", 0),
    ("constants whose name does not include their subject", 0),
    ("functions of more than 60 lines", 14),
    ("folders with more than 20 source files", 0),
    ("types whose methods lie in more than one file", 0),
    ("folders whose modules import one another in a circle", 0),
];

/// Names of constants that do not include their subject.
const BARE_CONSTANTS: [&str; 12] = [
    "PATIENCE", "PAUSE", "LIMIT", "WAIT", "LOOK", "PACE", "ROOM", "GRACE", "BUFFER", "FOLDER",
    "LONGEST", "SHORTEST",
];

/// Type names that any module may use.
const COMMON_TYPES: [&str; 4] = ["Error", "Settings", "Spec", "Result"];

#[test]
fn counts_of_problems_never_rise() {
    let all: Vec<(&str, Vec<Source>)> =
        ["shared", "agent", "manager"].map(|krate| (krate, read_sources(krate))).into();
    let files: Vec<&Source> = all.iter().flat_map(|(_, sources)| sources).collect();
    let texts: Vec<String> =
        files.iter().map(|file| source::read(&source::workspace_root().join(&file.path))).collect();
    let sum = |count: fn(&str) -> usize| texts.iter().map(|text| count(text)).sum::<usize>();
    let prose = Prose::of_workspace();
    let cycles = crate_names().map(import_cycles_of_crate);
    println!("import circles, by folder: {cycles:#?}");
    let counted = [
        prose.iter().map(Prose::vague_beginnings).sum(),
        prose.iter().map(Prose::hidden_subjects).sum(),
        prose.iter().map(Prose::long_sentences).sum(),
        all.iter().map(|(_, sources)| shared_names(sources)).sum(),
        sum(bare_constants),
        sum(long_functions),
        full_folders(&files),
        all.iter().map(|(_, sources)| spread_types(sources)).sum(),
        cycles.iter().map(BTreeMap::len).sum(),
    ];
    let mut wrong = Vec::new();
    for ((what, allowed), count) in MAX_COUNTS.into_iter().zip(counted) {
        println!("{count:6}  {what}");
        if count > allowed {
            wrong.push(format!("{what}: {count}, at most {allowed}"));
        }
    }
    assert!(wrong.is_empty(), "a count may fall but never rise:\n{}", wrong.join("\n"));
}

fn shared_names(files: &[Source]) -> usize {
    let mut places: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for file in files {
        for line in file.code.lines().map(str::trim_start) {
            let item = ["pub struct ", "pub enum ", "pub trait "];
            let name = item.iter().find_map(|item| line.strip_prefix(item)).map(|rest| {
                rest.chars().take_while(char::is_ascii_alphanumeric).collect::<String>()
            });
            if let Some(name) = name.filter(|name| !COMMON_TYPES.contains(&name.as_str())) {
                places.entry(name).or_default().insert(&file.path);
            }
        }
    }
    places.values().filter(|files| files.len() > 1).count()
}

fn bare_constants(text: &str) -> usize {
    let is_bare = |line: &&str| {
        let line = line.trim_start().trim_start_matches("pub(super) ").trim_start_matches("pub ");
        let name = line.strip_prefix("const ").and_then(|rest| rest.split(':').next());
        name.is_some_and(|name| BARE_CONSTANTS.contains(&name))
    };
    text.lines().filter(is_bare).count()
}

/// Counts functions whose closing brace is more than 60 lines below their first line.
fn long_functions(text: &str) -> usize {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let lines: Vec<&str> = product.lines().collect();
    let is_function = |line: &str| {
        let words = line.trim_start();
        let is_item =
            words.starts_with("fn ") || words.starts_with("pub") || words.starts_with("async fn ");
        is_item && words.contains("fn ") && !words.trim_end().ends_with(';')
    };
    let starts = lines.iter().enumerate().filter(|(_, line)| is_function(line));
    let is_long = |(at, line): &(usize, &&str)| {
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        lines[*at..].iter().position(|line| **line == end).is_some_and(|length| length > 60)
    };
    starts.filter(is_long).count()
}

fn full_folders(files: &[&Source]) -> usize {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for file in files {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *folders.entry(folder).or_default() += 1;
    }
    folders.values().filter(|count| **count > 20).count()
}

/// Counts types with methods in a submodule of the file that defines them.
fn spread_types(files: &[Source]) -> usize {
    let names = |file: &Source, items: &[&str]| -> BTreeSet<String> {
        let lines = file.code.lines().filter(|line| line.ends_with(['{', ';']));
        let name = |line: &str| {
            let rest = items.iter().find_map(|item| line.strip_prefix(item))?;
            let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest };
            let is_trait = rest.contains(" for ");
            let name = rest.trim_start().chars().take_while(char::is_ascii_alphanumeric);
            (!is_trait).then(|| name.collect::<String>())
        };
        lines.filter_map(name).collect()
    };
    let defined = [
        "pub struct ",
        "pub(crate) struct ",
        "pub(super) struct ",
        "struct ",
        "pub enum ",
        "enum ",
    ];
    files
        .iter()
        .flat_map(|file| {
            let below = format!("{}/", file.path.trim_end_matches(".rs"));
            let others = move |other: &&Source| other.path.starts_with(&below);
            names(file, &defined).into_iter().filter(move |name| {
                files
                    .iter()
                    .filter(&others)
                    .any(|other| names(other, &["impl ", "impl"]).contains(name))
            })
        })
        .count()
}

#[test]
fn each_count_finds_its_problem() {
    assert_eq!(bare_constants("const PATIENCE: u8 = 1;\npub const CONNECT_PATIENCE: u8 = 1;\n"), 1);
    let file = |path: &str, code: &str| Source::for_test(path, code);
    let spread = [
        file("a.rs", "pub struct A;\nstruct B {\nimpl A {\n"),
        file("a/b.rs", "impl A {\nimpl<T> B<T> {\nimpl Drop for A {\n"),
        file("c.rs", "struct C;"),
        file("c/d.rs", "impl Drop for C {\n"),
    ];
    assert_eq!(spread_types(&spread), 2);
    let body = "    a();\n".repeat(61);
    assert_eq!(long_functions(&format!("fn a() {{\n{body}}}\nfn b() {{\n    c();\n}}\n")), 1);
}
