//! Compares the whole output of programs with files, so that every change of the text is visible. To accept a
//! change, run the test with [`RENEW_VARIABLE`] set and review the difference.
//!
//! The caller replaces the parts of a text that vary between runs, before the comparison.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// The environment variable that makes a test write the files instead of comparing them. Any value is valid.
const RENEW_VARIABLE: &str = "TRIALKEEPER_TEST_RENEW";

/// A folder of files, one for each text.
#[derive(Debug)]
pub struct Snapshots {
    folder: PathBuf,
    renew: bool,
    seen: BTreeSet<String>,
    problems: Vec<String>,
}

impl Snapshots {
    /// Opens a folder of `tests/fixtures`.
    pub fn new(folder: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(folder);
        let renew = std::env::var_os(RENEW_VARIABLE).is_some();
        Self { folder, renew, seen: BTreeSet::new(), problems: Vec::new() }
    }

    /// Compares a text with the file `name`.txt.
    pub fn compare(&mut self, name: &str, text: &str) {
        let name = format!("{name}.txt");
        let path = self.folder.join(&name);
        assert!(self.seen.insert(name.clone()), "two texts have the name {name}");
        if self.renew {
            fs::create_dir_all(&self.folder).expect("the fixtures are writable");
            fs::write(&path, text).expect("the fixtures are writable");
            return;
        }
        match fs::read_to_string(&path) {
            Err(error) => self.problems.push(format!("{name}: {error}; the text is\n{text}")),
            Ok(known) if known != text => {
                self.problems.push(describe_difference(&name, &known, text));
            }
            Ok(_) => {}
        }
    }

    /// Panics if a text differs from its file, or if a file was not compared.
    pub fn finish(mut self) {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for name in files.filter_map(|file| file.file_name().into_string().ok()) {
            if self.seen.contains(&name) {
                continue;
            }
            if self.renew {
                fs::remove_file(self.folder.join(&name)).expect("the fixtures are writable");
            } else {
                self.problems.push(format!("{name}: no text was compared with this file"));
            }
        }
        assert!(
            self.problems.is_empty(),
            "{}\n\nto accept these changes, run the test with {RENEW_VARIABLE}=1 and review `git diff {}`",
            self.problems.join("\n\n"),
            self.folder.display(),
        );
    }
}

/// Describes the first differing line.
fn describe_difference(name: &str, known: &str, text: &str) -> String {
    let (mut old, mut new) = (known.lines(), text.lines());
    for line in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (was, is) if was == is => {}
            (was, is) => {
                let shown = |line: Option<&str>| line.unwrap_or("(end of text)").to_owned();
                return format!("{name}, line {line}:\n- {}\n+ {}", shown(was), shown(is));
            }
        }
    }
    format!("{name}: the line endings differ")
}
