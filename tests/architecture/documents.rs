//! Checks that the tests, files and items which documents name exist.

use std::fs;
use std::path::PathBuf;

use super::source::{crate_names, read, read_sources, workspace_root};

/// A test's name in a document: modules, and the test's name or, before `…`, its beginning.
struct TestName<'a> {
    modules: Vec<&'a str>,
    name: &'a str,
    is_whole: bool,
}

impl<'a> TestName<'a> {
    /// Reads a name such as "agent: `failure_modes::a_full_spool_`…". Returns `None` for other text.
    fn read(text: &'a str) -> Option<Self> {
        let path = text.rsplit(": ").next().unwrap_or(text);
        let (modules, name) = path.rsplit_once("::")?;
        // Unit tests are in the file that they test.
        let modules = modules.split("::").filter(|module| *module != "tests").collect();
        let begins = name.strip_suffix('…');
        Some(Self { modules, name: begins.unwrap_or(name), is_whole: begins.is_none() })
    }

    fn is_in(&self, path: &str, text: &str) -> bool {
        let mut folders = path.trim_end_matches(".rs").split('/');
        let end = if self.is_whole { "(" } else { "" };
        self.modules.iter().all(|module| folders.any(|folder| folder == *module))
            && (self.name.is_empty() || text.contains(&format!("fn {}{end}", self.name)))
    }
}

#[test]
fn tests_named_in_the_documentation_exist() {
    let files: Vec<(String, String)> = crate_names()
        .into_iter()
        .flat_map(read_sources)
        .map(|file| (read(&workspace_root().join(&file.path)), file.path))
        .map(|(text, path)| (path, text))
        .collect();
    let page = read(&workspace_root().join("docs/faults.md"));
    let names: Vec<&str> =
        page.split('`').skip(1).step_by(2).filter(|text| text.contains("::")).collect();
    assert!(names.len() > 50, "{names:?}");
    let is_missing = |text: &&&str| {
        let name = TestName::read(text).expect("the text contains `::`");
        !files.iter().any(|(path, text)| name.is_in(path, text))
    };
    let missing: Vec<_> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/faults.md names tests that do not exist: {missing:#?}");
}

#[test]
fn every_file_of_the_data_directory_is_documented() {
    let layout = read(&workspace_root().join("manager/src/util/layout.rs"));
    let code = layout.split("#[cfg(test)]").next().unwrap();
    let names: Vec<&str> = ["self.0.join(\"", "name_of_part(\""]
        .iter()
        .flat_map(|call| code.split(call).skip(1))
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(names.len() > 25, "{names:?}");
    let page = read(&workspace_root().join("docs/operations.md"));
    let section = page.split("\n## ").find(|part| part.starts_with("The data directory")).unwrap();
    let documented = quoted_words(section);
    let is_documented = |name: &&str| {
        documented.iter().any(|word| {
            let rest = word.strip_prefix(*name);
            rest.is_some_and(|rest| ["", "/", ".json"].contains(&rest))
        })
    };
    let missing: Vec<_> = names.iter().filter(|name| !is_documented(name)).collect();
    assert!(missing.is_empty(), "docs/operations.md lacks {missing:?}");
}

/// Returns the texts in backquotes.
fn quoted_words(page: &str) -> Vec<&str> {
    let prose: Vec<&str> = page.split("```").step_by(2).collect();
    prose.into_iter().flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// Returns the paths of all files in the folders of the workspace that have code, below the workspace.
fn code_files() -> Vec<String> {
    let root = workspace_root();
    let mut folders: Vec<PathBuf> =
        ["agent", "manager", "shared", "tests", "python", "examples", "deploy", "docs"]
            .map(|name| root.join(name))
            .into();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(&root).unwrap().display().to_string());
            }
        }
    }
    files
}

#[test]
fn files_and_items_named_in_the_architecture_exist() {
    let page = read(&workspace_root().join("ARCHITECTURE.md"));
    let words = quoted_words(&page);
    let files = code_files();
    // A pattern, such as `page-NAME.js`, stands for several files.
    let is_pattern = |word: &str| word.contains('*') || word.contains("NAME");
    let is_file = |word: &&str| {
        let ends = [".rs", ".py", ".sh", ".js", ".yaml"];
        ends.iter().any(|end| word.ends_with(end)) && !is_pattern(word)
    };
    let exists = |word: &str| {
        files.iter().any(|file| {
            file.strip_suffix(word).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        })
    };
    let mut missing: Vec<&str> =
        words.iter().copied().filter(is_file).filter(|word| !exists(word)).collect();
    assert!(words.iter().filter(|word| is_file(word)).count() > 80, "{words:?}");

    let sources: Vec<String> = crate_names()
        .into_iter()
        .flat_map(read_sources)
        .map(|file| read(&workspace_root().join(&file.path)))
        .collect();
    let is_defined = |(owner, item): (&str, &str)| {
        let defines = |text: &String, kinds: &[&str], name: &str| {
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            kinds.iter().any(|kind| {
                let start = format!("{kind}{name}");
                text.match_indices(&start).any(|(at, _)| ends(&text[at + start.len()..]))
            })
        };
        // A method may be in another file than its type.
        sources.iter().any(|text| defines(text, &["struct ", "enum ", "trait "], owner))
            && sources
                .iter()
                .any(|text| text.contains(owner) && defines(text, &["fn ", "    "], item))
    };
    let items: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| {
            word.split_once("::").is_some_and(|(owner, _)| owner.starts_with(char::is_uppercase))
        })
        .collect();
    assert!(items.len() > 15, "{items:?}");
    missing.extend(items.into_iter().filter(|word| !word.split_once("::").is_some_and(is_defined)));
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist: {missing:#?}");
}
