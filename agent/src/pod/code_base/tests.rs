use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Command;
use std::thread;

use super::*;
use crate::pod::fetch::{place_code, remove_unchanged_code};

/// Returns a folder with an archive that `tar` created from the folder `code`.
fn packed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let code = folder.path().join("code");
    fs::create_dir_all(code.join("lib/empty")).unwrap();
    for (name, content, mode) in
        [("train.py", "print(1)\n", 0o755), ("lib/data", "1 2 3", 0o440), ("blank", "", 0o600)]
    {
        let mut file = File::create(code.join(name)).unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file.set_permissions(Permissions::from_mode(mode)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000)).unwrap();
    }
    symlink("lib/data", code.join("link")).unwrap();
    fs::set_permissions(code.join("lib"), Permissions::from_mode(0o750)).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--format=ustar", "-czf", "code.tar.gz", "-C", "code", "."]);
    assert!(tar.current_dir(folder.path()).status().unwrap().success());
    folder
}

fn archive(folder: &Path) -> File {
    File::open(folder.join("code.tar.gz")).unwrap()
}

/// Returns everything below a directory: its kind and content, its mode, and the time of a file's last change.
fn tree(root: &Path) -> BTreeMap<PathBuf, (String, u32, i64)> {
    let mut found = BTreeMap::new();
    visit_entries(root, |inside, path, it| {
        let content = match it {
            it if it.is_dir() => "a directory".to_owned(),
            it if it.is_symlink() => {
                format!("a link to {}", fs::read_link(path).unwrap().display())
            }
            _ => fs::read_to_string(path).unwrap(),
        };
        let changed = if it.is_file() { it.mtime() } else { 0 };
        found.insert(inside.to_owned(), (content, it.mode() & 0o7777, changed));
        Ok(())
    })
    .unwrap();
    found
}

#[test]
fn a_copy_equals_an_unpacked_archive() {
    let folder = packed();
    let at = |name: &str| folder.path().join(name);
    place_code(&archive(folder.path()), None, &at("unpacked")).unwrap();
    place_code(&archive(folder.path()), Some(&at("base")), &at("copied")).unwrap();
    let unpacked = tree(&at("unpacked"));
    assert_eq!(unpacked.len(), 6);
    assert_eq!(tree(&at("copied")), unpacked);
    // A trial's file must not be shared with another trial.
    fs::write(at("copied/train.py"), "print(2)\n").unwrap();
    place_code(&archive(folder.path()), Some(&at("base")), &at("second")).unwrap();
    assert_eq!(tree(&at("second")), unpacked);
    assert_eq!(fs::metadata(at("base")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_file_is_copied_where_blocks_cannot_be_shared() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("near"), "content").unwrap();
    // A file on another file system cannot be cloned, regardless of this file system's abilities.
    let far = Path::new("/proc/self/comm");
    let far_content = fs::read_to_string(far).unwrap();
    for (from, before, content) in [
        (at("near").as_path(), CloneSupport::Possible, "content"),
        (at("near").as_path(), CloneSupport::Impossible, "content"),
        (far, CloneSupport::Possible, far_content.as_str()),
    ] {
        let mut cloning = before;
        let to = File::create(at("to")).unwrap();
        cloning.copy_content(&File::open(from).unwrap(), &to).unwrap();
        assert_eq!(fs::read_to_string(at("to")).unwrap(), content, "{}", from.display());
        assert!(from != far || cloning == CloneSupport::Impossible);
    }
}

#[test]
fn concurrent_trials_share_one_base() {
    let folder = packed();
    let root = folder.path().join("base");
    let bases: Vec<_> = thread::scope(|scope| {
        let find = || find_or_create(&archive(folder.path()), &root).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(find)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(bases.iter().all(|base| *base == bases[0]), "{bases:?}");
    assert_eq!(tree(&bases[0]).len(), 6);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 2, "the base and the lock");
}

#[test]
fn an_incomplete_base_is_never_used() {
    let folder = packed();
    let root = folder.path().join("base");
    // The first is left by a killed agent, the second by an earlier boot.
    fs::create_dir_all(root.join(PARTIAL_DIR).join("lib")).unwrap();
    fs::write(root.join(PARTIAL_DIR).join("train.py"), "pri").unwrap();
    fs::create_dir_all(root.join("0-1-another-boot")).unwrap();
    assert!(find(&archive(folder.path()), &root).unwrap().is_none());
    let base = find_or_create(&archive(folder.path()), &root).unwrap();
    assert_eq!(fs::read_to_string(base.join("train.py")).unwrap(), "print(1)\n");
    assert!(!root.join(PARTIAL_DIR).exists() && !root.join("0-1-another-boot").exists());
    assert_eq!(find(&archive(folder.path()), &root).unwrap(), Some(base));
}

#[test]
fn a_copy_replaces_what_an_earlier_attempt_left() {
    let folder = packed();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("into")).unwrap();
    fs::create_dir_all(at("outside")).unwrap();
    fs::write(at("outside/data"), "kept").unwrap();
    symlink(at("outside"), at("into/lib")).unwrap();
    symlink(at("outside/data"), at("into/train.py")).unwrap();
    place_code(&archive(folder.path()), Some(&at("base")), &at("into")).unwrap();
    assert_eq!(fs::read_to_string(at("outside/data")).unwrap(), "kept");
    assert_eq!(fs::read_to_string(at("into/lib/data")).unwrap(), "1 2 3");
    assert!(fs::symlink_metadata(at("into/train.py")).unwrap().is_file());
}

#[test]
fn without_a_base_the_code_is_unpacked() {
    let folder = packed();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "").unwrap();
    place_code(&archive(folder.path()), Some(&at("file")), &at("into")).unwrap();
    assert_eq!(tree(&at("into")).len(), 6);
    remove_unchanged_code(&archive(folder.path()), Some(&at("file")), &at("into"));
    assert!(!at("into/train.py").exists());
    // A file that is no gzip stream is refused as before.
    fs::write(at("code.tar.gz"), "no archive at all").unwrap();
    let refused = place_code(&archive(folder.path()), Some(&at("base")), &at("other"));
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn an_unchanged_copy_is_removed_and_a_changed_file_stays() {
    let folder = packed();
    let at = |name: &str| folder.path().join(name);
    let place =
        |into: &str| place_code(&archive(folder.path()), Some(&at("base")), &at(into)).unwrap();
    let remove =
        |from: &str| remove_unchanged_code(&archive(folder.path()), Some(&at("base")), &at(from));
    place("same");
    remove("same");
    assert!(!at("same").exists());
    place("changed");
    fs::write(at("changed/model"), "m").unwrap();
    fs::write(at("changed/train.py"), "print(2)\n").unwrap();
    remove("changed");
    let left: Vec<_> = tree(&at("changed")).into_keys().collect();
    assert_eq!(left, [Path::new("model"), Path::new("train.py")]);
}
