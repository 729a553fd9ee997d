use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use super::*;

/// Returns the files that the system's own `tar` unpacks: their names, and their contents or link targets with
/// permissions.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let tar = Command::new("tar").arg("-xpzf").arg(archive).arg("-C").arg(folder.path()).output();
    let tar = tar.unwrap();
    assert!(tar.status.success() && tar.stderr.is_empty(), "{tar:?}");
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.path().to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let what = if metadata.is_dir() {
                folders.push(path.clone());
                "folder".to_owned()
            } else if metadata.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else {
                let mode = metadata.permissions().mode() & 0o777;
                format!("{mode:o} {}", fs::read_to_string(&path).unwrap())
            };
            found.insert(path.strip_prefix(folder.path()).unwrap().display().to_string(), what);
        }
    }
    found
}

#[tokio::test]
async fn the_archive_contains_the_code_as_it_was_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let code = folder.path().join("code");
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    fs::create_dir_all(code.join(&long).parent().unwrap()).unwrap();
    fs::write(code.join(&long), "long").unwrap();
    fs::write(code.join("run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(code.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(code.join("ü"), "x".repeat(512)).unwrap();
    fs::set_permissions(code.join("ü"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(code.join("empty")).unwrap();
    symlink(&long, code.join("link")).unwrap();
    fs::write(code.join(".nniignore"), "secret\n").unwrap();
    fs::write(code.join("secret"), "s").unwrap();
    fs::set_permissions(code.join(&long), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(code.join(".nniignore"), fs::Permissions::from_mode(0o644)).unwrap();

    let file = folder.path().join("code.tar.gz");
    let made = CodeArchive::new(code.clone(), file.clone()).get().await.unwrap();
    let contents = unpacked(&file);
    let row = |name: &str, what: &str| (name.to_owned(), what.to_owned());
    let expected = BTreeMap::from([
        row(&"d".repeat(120), "folder"),
        row(&long, "644 long"),
        row("run.sh", "755 #!/bin/sh\n"),
        row("ü", &format!("640 {}", "x".repeat(512))),
        row("empty", "folder"),
        row("link", &format!("-> {long}")),
        row(".nniignore", "644 secret\n"),
    ]);
    assert_eq!(contents, expected);
    assert_eq!(made.bytes, fs::metadata(&file).unwrap().len());
    let sum = Command::new("sha256sum").arg(&file).output().unwrap().stdout;
    assert_eq!(String::from_utf8(sum).unwrap().split(' ').next(), Some(made.sha256.as_str()));

    fs::write(code.join("run.sh"), "changed").unwrap();
    let again = CodeArchive::new(code, file.clone()).get().await.unwrap();
    assert_eq!(again, made, "a later edit changes nothing");
    assert_eq!(unpacked(&file), expected);
}

#[tokio::test]
async fn a_failed_packing_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let code = folder.path().join("code");
    fs::create_dir(&code).unwrap();
    symlink("/etc/passwd", code.join("out")).unwrap();
    let archive = CodeArchive::new(code.clone(), folder.path().join("code.tar.gz"));
    assert!(matches!(archive.get().await, Err(Error::LinkOut { .. })));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    fs::remove_file(code.join("out")).unwrap();
    assert!(archive.get().await.is_ok(), "packing can be repeated");
}
