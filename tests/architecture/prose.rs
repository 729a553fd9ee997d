//! Reads the prose of the repository: comments of source files and paragraphs of pages.

use std::fs;
use std::path::{Path, PathBuf};

use super::source::{read, workspace_root};

/// Folders with files that are not the project's own prose: built, fetched or recorded ones.
const SKIPPED_FOLDERS: [&str; 4] = ["target", "node_modules", "fixtures", "proptest-regressions"];

/// Beginnings of doc comments that do not describe their item. Source: CONTRIBUTING.md.
const VAGUE_BEGINNINGS: [&str; 6] = ["What ", "How ", "Who ", "Whether ", "Of ", "Likewise"];

/// Words that hide the subject of a sentence.
const VAGUE_SUBJECTS: [&str; 3] = ["somebody", "nobody", "whoever"];

/// The maximum number of words in a sentence.
const MAX_WORDS: usize = 30;

/// The prose of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Prose {
    /// Comments, or paragraphs of a page, each on one line.
    paragraphs: Vec<String>,
    /// The first lines of doc comments.
    doc_beginnings: Vec<String>,
}

impl Prose {
    /// Reads the prose of all files below the workspace.
    pub(crate) fn of_workspace() -> Vec<Self> {
        let mut paths = Vec::new();
        collect_paths(&workspace_root(), &mut paths);
        let prose = paths.iter().filter_map(|path| {
            let language = path.extension()?.to_str()?;
            Self::parse(language, || read(path))
        });
        prose.collect()
    }

    /// Returns the prose of a file with the extension `language`, if the language is known. Only such files are texts.
    fn parse(language: &str, read: impl FnOnce() -> String) -> Option<Self> {
        let (marker, doc_markers): (&str, &[&str]) = match language {
            "md" => return Some(Self { paragraphs: page_paragraphs(&read()), ..Self::default() }),
            "rs" => ("//", &["/// ", "//! "]),
            "js" => ("//", &[]),
            "py" => ("#", &["\"\"\""]),
            "sh" => ("#", &[]),
            "sql" => ("--", &[]),
            _ => return None,
        };
        let text = read();
        let beginnings = doc_markers.iter().flat_map(|marker| doc_beginnings(&text, marker));
        Some(Self {
            paragraphs: comments(&text, marker),
            doc_beginnings: beginnings.map(str::to_owned).collect(),
        })
    }

    /// Counts doc comments with a vague beginning.
    pub(crate) fn vague_beginnings(&self) -> usize {
        let is_vague = |line: &&String| VAGUE_BEGINNINGS.iter().any(|word| line.starts_with(word));
        self.doc_beginnings.iter().filter(is_vague).count()
    }

    /// Counts words that hide a subject.
    pub(crate) fn hidden_subjects(&self) -> usize {
        let text = self.paragraphs.join(" ").to_lowercase();
        let words = text.split(|c: char| !c.is_alphabetic());
        words.filter(|word| VAGUE_SUBJECTS.contains(word)).count()
    }

    /// Counts sentences with more than [`MAX_WORDS`] words.
    pub(crate) fn long_sentences(&self) -> usize {
        let sentences = self.paragraphs.iter().flat_map(|text| text.split(['.', ':', ';', '?']));
        let is_word = |word: &&str| word.contains(char::is_alphanumeric);
        let words = |sentence: &str| sentence.split_whitespace().filter(is_word).count();
        sentences.filter(|sentence| words(sentence) > MAX_WORDS).count()
    }
}

fn collect_paths(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if name.starts_with('.') || SKIPPED_FOLDERS.contains(&&*name) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect_paths(&path, paths);
        } else {
            paths.push(path);
        }
    }
}

/// Returns the first line of each block of lines that begin with `marker`.
fn doc_beginnings<'a>(text: &'a str, marker: &str) -> Vec<&'a str> {
    let mut beginnings = Vec::new();
    let mut is_inside = false;
    for line in text.lines().map(str::trim_start) {
        let content = line.strip_prefix(marker);
        beginnings.extend(content.filter(|_| !is_inside));
        is_inside = content.is_some() || line == marker.trim_end();
    }
    beginnings
}

/// Returns the blocks of comment lines. Lines of tables are not sentences.
fn comments(text: &str, marker: &str) -> Vec<String> {
    let mut comments = vec![String::new()];
    for line in text.lines().map(str::trim_start) {
        let content = line.strip_prefix(marker).map(|rest| rest.trim_start_matches(['/', '!']));
        match content.map(str::trim).filter(|content| !content.is_empty() && !content.contains('|'))
        {
            Some(content) => add_line(comments.last_mut().unwrap(), content),
            None => comments.push(String::new()),
        }
    }
    comments
}

/// Returns the paragraphs and list items of a page, without headings, tables and code.
fn page_paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_code = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.is_empty() || line.starts_with(['#', '|', '`']) {
            paragraphs.push(String::new());
            continue;
        }
        if line.starts_with(['*', '-']) || line.starts_with(|first: char| first.is_ascii_digit()) {
            paragraphs.push(String::new());
        }
        add_line(paragraphs.last_mut().unwrap(), line);
    }
    paragraphs
}

fn add_line(paragraph: &mut String, line: &str) {
    paragraph.push(' ');
    paragraph.push_str(line);
}

#[test]
fn each_fault_of_prose_is_found_in_each_language() {
    let words = "word ".repeat(MAX_WORDS + 1);
    #[rustfmt::skip]
    let table: [(&str, String, [usize; 3]); 8] = [
        ("rs",  "/// What it is.\n/// How not.\nfn a() {}\n\n    /// Whether so.\n".to_owned(), [2, 0, 0]),
        ("rs",  "//! Of a file.\n//!\n//! What else.\n".to_owned(), [1, 0, 0]),
        ("rs",  "// Nobody knows.\nlet nobody = 1;\n/// For whoever asks.\n".to_owned(), [0, 2, 0]),
        ("rs",  format!("// {words}.\nlet a;\n/// Short. {words}\n/// end.\n"), [0, 0, 2]),
        ("py",  format!("\"\"\"Whether it is.\"\"\"\n# somebody {words}\nx = 1\n"), [1, 1, 1]),
        ("sql", "-- For whoever.\nSELECT 1;\n".to_owned(), [0, 1, 0]),
        ("md",  format!("# Title\n\n{words}\n\n* item\n* nobody\n\n```sh\n{words}\n```\n"), [0, 1, 1]),
        ("md",  "| somebody |\n".to_owned(), [0, 0, 0]),
    ];
    for (language, text, expected) in table {
        let prose = Prose::parse(language, || text.clone()).unwrap();
        let counted = [prose.vague_beginnings(), prose.hidden_subjects(), prose.long_sentences()];
        assert_eq!(counted, expected, "{language}: {text}");
    }
    assert_eq!(Prose::parse("json", || unreachable!("no text")), None);
}
