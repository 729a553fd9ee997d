//! Checks that the tests which documents name exist.

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
