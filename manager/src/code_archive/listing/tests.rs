use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;

const NO_LIMITS: CodeLimits = CodeLimits { entries: 1000, bytes: 1 << 30 };

struct Code {
    _folder: tempfile::TempDir,
    root: PathBuf,
}

impl Code {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("code");
        fs::create_dir(&root).unwrap();
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self { _folder: folder, root }
    }

    fn names(&self) -> Vec<String> {
        let entries = list_entries(&self.root, None, NO_LIMITS).unwrap();
        entries.iter().map(|entry| entry.name.to_str().unwrap().to_owned()).collect()
    }
}

/// A description, the ignore files, and the paths that they exclude.
type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn only_nniignore_files_exclude_paths() {
    let files = [
        ("train.py", ""),
        (".hidden", ""),
        ("data/big.bin", ""),
        ("data/keep.txt", ""),
        ("deep/data/big.bin", ""),
        ("deep/other.bin", ""),
        ("target/x", ""),
        ("deep/target/x", ""),
        ("a b/#odd", ""),
        (".git/config", ""),
        (".gitignore", "train.py\n"),
        (".ignore", "train.py\n"),
    ];
    #[rustfmt::skip]
    let table: [Row<'_>; 7] = [
        ("no ignore file",       &[], &[]),
        ("a name, at any depth", &[(".nniignore", "big.bin\n")], &["data/big.bin", "deep/data/big.bin"]),
        ("a directory",          &[(".nniignore", "target/\n")], &["deep/target", "deep/target/x", "target", "target/x"]),
        ("at the top only",      &[(".nniignore", "/target\n")], &["target", "target/x"]),
        ("with an exception",    &[(".nniignore", "data/*\n!data/keep.txt\n")], &["data/big.bin"]),
        ("in a subdirectory", &[("deep/.nniignore", "*.bin\n")], &["deep/data/big.bin", "deep/other.bin"]),
        ("comments and escapes", &[(".nniignore", "# none\n\\#odd\n.git\n")], &[".git", ".git/config", "a b/#odd"]),
    ];
    for (case, ignores, left_out) in table {
        let all = Code::new(&[&files, ignores].concat());
        let names = all.names();
        let ignored: Vec<&str> = left_out.to_vec();
        for name in files.iter().map(|(name, _)| *name) {
            assert_eq!(
                names.contains(&name.to_owned()),
                !ignored.contains(&name),
                "{case}: {name}"
            );
        }
        for name in ignored {
            assert!(!names.contains(&name.to_owned()), "{case}: {name}");
        }
        assert!(names.is_sorted_by_key(PathBuf::from), "{case}: {names:?}");
    }
}

#[test]
fn an_experiment_in_the_code_directory_is_excluded() {
    let code =
        Code::new(&[("train.py", ""), ("runs/abc/trialkeeper.db", ""), ("runs/abc/x/y", "")]);
    assert_eq!(code.names(), ["runs", "train.py"]);
}

#[test]
fn links_lead_inside_and_special_files_are_skipped() {
    let code = Code::new(&[("a/file", "x"), ("b/c/d", "")]);
    let root = &code.root;
    symlink("../a/file", root.join("b/relative")).unwrap();
    symlink(root.join("a/file"), root.join("b/c/absolute")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink("../a", root.join("b/folder")).unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    let links: Vec<_> = list_entries(root, None, NO_LIMITS)
        .unwrap()
        .into_iter()
        .filter_map(|entry| match entry.kind {
            EntryKind::Link(target) => Some((entry.name, target)),
            EntryKind::File(_) | EntryKind::Directory => None,
        })
        .collect();
    let link = |name: &str, target: &str| (PathBuf::from(name), PathBuf::from(target));
    assert_eq!(
        links,
        [
            link("b/c/absolute", "../../a/file"),
            link("b/folder", "../a"),
            link("b/relative", "../a/file"),
            link("dangling", "nowhere"),
        ]
    );
    assert!(!code.names().contains(&"socket".to_owned()));

    for target in ["/etc/passwd", "../../x", "..", "b/../../x"] {
        let bad = root.join("bad");
        symlink(target, &bad).unwrap();
        let refused = list_entries(root, None, NO_LIMITS).unwrap_err().to_string();
        assert!(refused.contains("bad is a link to") && refused.contains(target), "{refused}");
        fs::remove_file(bad).unwrap();
    }
}

#[test]
fn a_directory_that_is_too_large_is_refused_with_its_largest_files() {
    let large = "x".repeat(2 << 20);
    let code = Code::new(&[("data/large", &large), ("small", "x"), ("data/1", ""), ("data/2", "")]);
    let refused =
        list_entries(&code.root, None, CodeLimits { entries: 1000, bytes: 1 << 20 }).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("contains 2.1 MiB") && text.contains("fetch 1.0 MiB"), "{text}");
    assert!(text.contains("the largest files: data/large (2.0 MiB), small"), "{text}");
    let refused =
        list_entries(&code.root, None, CodeLimits { entries: 4, bytes: 1 << 30 }).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("5 entries") && text.contains("data (4 entries)"), "{text}");
}

#[test]
fn the_files_that_receive_the_managers_output_are_not_code() {
    let code = Code::new(&[("train.py", ""), ("logs/run.out", "")]);
    let id = id_of(&fs::metadata(code.root.join("logs/run.out")).unwrap());
    let names = |own: Vec<FileId>| {
        let walked = walk_without(&code.root, own).map(Result::unwrap);
        let files = walked.filter(|entry| entry.path().is_file());
        files.map(|entry| entry.file_name().to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(vec![]), ["run.out", "train.py"]);
    assert_eq!(names(vec![id]), ["train.py"]);
    // A directory is listed in any case.
    assert_eq!(names(vec![id_of(&fs::metadata(&code.root).unwrap())]), ["run.out", "train.py"]);
}
