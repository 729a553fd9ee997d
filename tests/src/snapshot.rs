//! Texts that are compared with files: what a program says as a whole, so that no word of it changes
//! unseen. A change that is meant is taken over by a run with [`RENEW`] set, and read in the difference.
//!
//! It must not hide what varies by chance: whoever compares replaces that first, by name.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Set to anything: what is compared replaces the files instead.
const RENEW: &str = "TRIALKEEPER_TEST_RENEW";

/// A folder of files, one for each text.
#[derive(Debug)]
pub struct Snapshots {
    folder: PathBuf,
    renew: bool,
    seen: BTreeSet<String>,
    problems: Vec<String>,
}

impl Snapshots {
    /// Those in a folder of `tests/fixtures`.
    pub fn new(folder: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(folder);
        let renew = std::env::var_os(RENEW).is_some();
        Self { folder, renew, seen: BTreeSet::new(), problems: Vec::new() }
    }

    /// Compares a text with the file of a name.
    pub fn compare(&mut self, name: &str, text: &str) {
        let name = format!("{name}.txt");
        let path = self.folder.join(&name);
        assert!(self.seen.insert(name.clone()), "two texts are called {name}");
        if self.renew {
            fs::create_dir_all(&self.folder).expect("the fixtures can be written");
            fs::write(&path, text).expect("the fixtures can be written");
            return;
        }
        match fs::read_to_string(&path) {
            Err(error) => self.problems.push(format!("{name}: {error}; it would be\n{text}")),
            Ok(known) if known != text => self.problems.push(difference(&name, &known, text)),
            Ok(_) => {}
        }
    }

    /// Panics with every difference there was, and with every file that nothing was compared with.
    pub fn finish(mut self) {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for name in files.filter_map(|file| file.file_name().into_string().ok()) {
            if self.seen.contains(&name) {
                continue;
            }
            if self.renew {
                fs::remove_file(self.folder.join(&name)).expect("the fixtures can be written");
            } else {
                self.problems.push(format!("{name}: nothing says this any more"));
            }
        }
        assert!(
            self.problems.is_empty(),
            "{}\n\nif this is meant, run the test with {RENEW}=1 and read what `git diff {}` shows",
            self.problems.join("\n\n"),
            self.folder.display(),
        );
    }
}

/// The first lines that differ.
fn difference(name: &str, known: &str, text: &str) -> String {
    let (mut old, mut new) = (known.lines(), text.lines());
    for line in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (was, is) if was == is => {}
            (was, is) => {
                let shown = |line: Option<&str>| line.unwrap_or("(the end)").to_owned();
                return format!("{name}, line {line}:\n- {}\n+ {}", shown(was), shown(is));
            }
        }
    }
    format!("{name}: the ends of lines differ")
}
