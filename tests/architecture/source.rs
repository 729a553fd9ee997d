//! Reads the workspace's source text for the architecture tests.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file of a crate.
#[derive(Debug)]
pub(crate) struct Source {
    /// The path below the workspace, for messages.
    pub(crate) path: String,
    /// The top-level module of the file, such as `store` for `src/store/write.rs`.
    pub(crate) module: String,
    /// The `//!` comment.
    pub(crate) head: String,
    /// The code of the product: without comments and tests.
    pub(crate) code: String,
    /// The number of all lines.
    pub(crate) lines: usize,
}

impl Source {
    /// Returns the path of the file's module: `["spool", "disk"]` for `src/spool/disk.rs`.
    pub(crate) fn module_path(&self) -> Vec<String> {
        let below = self.path.splitn(3, '/').nth(2).unwrap_or_default();
        let path = below.trim_end_matches(".rs").split('/').map(str::to_owned);
        path.filter(|name| name != "lib" && name != "main").collect()
    }

    /// Creates a file at `path` below a crate's `src`, for the tests of the rules.
    pub(crate) fn for_test(path: &str, code: &str) -> Self {
        let module = path.split(['/', '.']).next().unwrap_or_default().to_owned();
        let path = format!("krate/src/{path}");
        Self { path, module, head: String::new(), code: code.to_owned(), lines: 1 }
    }
}

pub(crate) fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

pub(crate) fn crate_names() -> [&'static str; 4] {
    ["shared", "agent", "manager", "tests"]
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names in all `dependencies` sections of a crate's `Cargo.toml`.
pub(crate) fn dependencies(krate: &str) -> Vec<String> {
    let manifest = read(&workspace_root().join(krate).join("Cargo.toml"));
    let mut in_dependencies = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_dependencies = line.trim_end().ends_with("dependencies]");
        } else if in_dependencies && let Some((name, _)) = line.split_once(['.', '=']) {
            names.push(name.trim().to_owned());
        }
    }
    assert!(!names.is_empty(), "{krate}/Cargo.toml has no dependency");
    names
}

/// Reads all source files and tests of a crate.
pub(crate) fn read_sources(krate: &str) -> Vec<Source> {
    let folder = workspace_root().join(krate);
    let mut paths = Vec::new();
    for part in ["src", "tests", "e2e", "architecture", "benches"] {
        collect_paths(&folder.join(part), &mut paths);
    }
    assert!(!paths.is_empty(), "{krate} has no source");
    paths.into_iter().map(|path| read_source(&path)).collect()
}

fn collect_paths(folder: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_paths(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

fn read_source(path: &Path) -> Source {
    let text = read(path);
    let below = path.strip_prefix(workspace_root()).unwrap();
    let inside: Vec<&str> = below.iter().map(|part| part.to_str().unwrap()).collect();
    // crate, src, module…
    let module = inside[2].trim_end_matches(".rs").to_owned();
    let is_test = inside[1] != "src" || path.ends_with("tests.rs") || inside.contains(&"tests");
    let heads = text.lines().map_while(|line| line.strip_prefix("//!"));
    let head = heads.collect::<Vec<_>>().join("\n");
    Source {
        path: below.display().to_string(),
        module,
        head,
        code: if is_test { String::new() } else { product_code(&text) },
        lines: text.lines().count(),
    }
}

/// Returns the text without comment lines and without an inline test module, which is always last in a file.
fn product_code(text: &str) -> String {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns every top-level module that a text imports through `crate::`.
pub(crate) fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (_, rest) in code.match_indices("crate::").map(|(at, word)| (at, &code[at + word.len()..]))
    {
        match rest.strip_prefix('{') {
            // `crate::{a::b, c}`: the first name of each element in the outer list.
            Some(list) => found.extend(first_names(list)),
            None => found.push(leading_identifier(rest)),
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

/// Returns every path that a text in the module `here` imports through `crate::` or `super::`, from the
/// crate's root.
pub(crate) fn import_paths(code: &str, here: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, word) in code.match_indices("crate::") {
        found.extend(expand_paths(&code[at + word.len()..], &[]));
    }
    // Only the first `super::` of `super::super::x` matches. The loop handles the others.
    for (at, word) in code.match_indices("super::").filter(|(at, _)| !code[..*at].ends_with("::")) {
        let mut rest = &code[at + word.len()..];
        let mut parent = here.len().saturating_sub(1);
        while let Some(further) = rest.strip_prefix("super::") {
            rest = further;
            parent = parent.saturating_sub(1);
        }
        found.extend(expand_paths(rest, &here[..parent]));
    }
    found
}

/// Returns the paths that begin at `text`, each appended to `base`: `a::{b, c::D}` as `a::b` and `a::c::D`.
fn expand_paths(text: &str, base: &[String]) -> Vec<Vec<String>> {
    if let Some(list) = text.strip_prefix('{') {
        return list_elements(list)
            .into_iter()
            .flat_map(|element| expand_paths(element, base))
            .collect();
    }
    let first = leading_identifier(text);
    let path = [base, std::slice::from_ref(&first)].concat();
    match text[first.len()..].strip_prefix("::") {
        Some(rest) if !first.is_empty() => expand_paths(rest, &path),
        _ => vec![path],
    }
}

/// Returns the elements of a list up to its closing brace.
fn list_elements(list: &str) -> Vec<&str> {
    let mut depth = 1;
    let mut begin = 0;
    let mut found = Vec::new();
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && character == ',') {
            found.push(list[begin..at].trim_start());
            begin = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn first_names(list: &str) -> Vec<String> {
    let mut depth = 1;
    let mut names = vec![leading_identifier(list.trim_start())];
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(leading_identifier(list[at + 1..].trim_start())),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

fn leading_identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

#[test]
fn imports_are_found_in_every_spelling() {
    #[rustfmt::skip]
    let table = [
        ("use crate::clock::Clock;",                       vec!["clock"]),
        ("use crate::{clock, store::{Row, write::W}, ids};", vec!["clock", "store", "ids"]),
        ("use crate::{\n    a::B,\n    c,\n};\nuse std::d;",  vec!["a", "c"]),
        ("let x: crate::api::Error = y;",                  vec!["api"]),
        ("use std::fs;",                                   vec![]),
    ];
    for (code, modules) in table {
        assert_eq!(imports(code), modules, "{code}");
    }
}

#[test]
fn comments_and_tests_are_removed() {
    let text = "//! Head.\nfn a() {}\n// waitpid(\n#[cfg(test)]\nmod tests {\n waitpid()\n}\n";
    assert_eq!(product_code(text), "fn a() {}");
}
