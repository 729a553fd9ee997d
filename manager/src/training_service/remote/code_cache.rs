//! PURE: the scripts by which the experiments on a machine share an archive of code. The cache holds the archive once,
//! under its SHA-256, and each experiment has a hard link to it. An archive is never modified, since agents unpack it
//! into each trial's own files.
//!
//! The number of links shows whether an experiment uses an archive. On a file system without hard links, each
//! experiment receives its own copy.

use super::shell::LINE_MARK;
use crate::util::shell::quote;

/// The folder of the archives, next to the experiments' folders. No experiment id contains a dot.
const CACHE_FOLDER: &str = ".code";
/// The name of the archive in an experiment's folder.
pub(super) const ARCHIVE_NAME: &str = "code.tar.gz";

/// Returns the shell lines that find an archive in the folder `$root/$at`, or link it there from the cache.
/// They print `code` if the archive exists and is complete. A power cut may have left an incomplete archive.
pub(super) fn find_script(sha256: &str) -> String {
    format!(
        r#"own=$root/$at/{ARCHIVE_NAME}; cached=$root/{CACHE_FOLDER}/{sha256}.tar.gz
whole() {{ [ -f "$1" ] && [ "$(sha256sum < "$1")" = "{sha256}  -" ]; }}
link() {{ (umask 077; mkdir -p "$root/$at" && ln "$cached" "$own.$$" && mv -f "$own.$$" "$own") 2>/dev/null; }}
if whole "$own" || {{ whole "$cached" && link; }}; then echo {LINE_MARK}code; fi"#
    )
}

/// Returns the script that reads an archive from its standard input. The script stores the archive atomically in the
/// experiment's folder `folder`, and then in the cache below `$root`.
pub(super) fn receive_script(folder: &str, sha256: &str) -> String {
    let folder = quote(folder);
    format!(
        r#"set -e; umask 077; mkdir -p {folder}; new={folder}/code.$$; trap 'rm -f "$new"' EXIT; cat > "$new"
[ "$(sha256sum < "$new")" = "{sha256}  -" ] || {{ echo "the code arrived damaged" >&2; exit 1; }}
mv -f "$new" {folder}/{ARCHIVE_NAME}
cache=$root/{CACHE_FOLDER}
{{ mkdir -p "$cache" && ln {folder}/{ARCHIVE_NAME} "$new" && mv -f "$new" "$cache/{sha256}.tar.gz"; }} 2>/dev/null || :"#
    )
}

/// Returns the shell line that removes the archives that no experiment below `$root` uses. If an experiment links an
/// archive at the same moment, the experiment's link remains.
pub(super) fn prune_script() -> String {
    format!(
        r#"(cd "$root/{CACHE_FOLDER}" 2>/dev/null && find . -type f -links 1 -exec rm -f {{}} + && rmdir "$root/{CACHE_FOLDER}" 2>/dev/null)"#
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use ring::digest::{SHA256, digest};

    use super::*;
    use crate::util::digest::hexadecimal;

    const CODE: &[u8] = b"an archive";

    fn sha256() -> String {
        hexadecimal(digest(&SHA256, CODE).as_ref())
    }

    /// Runs a script, and returns whether it succeeded, and its output.
    fn run(root: &Path, script: &str, input: &Path) -> (bool, String) {
        let root = quote(root.to_str().unwrap());
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("root={root}\n{script}")]);
        shell.stdin(Stdio::from(fs::File::open(input).unwrap()));
        let output = shell.output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            fs::write(machine.path("sent"), CODE).unwrap();
            fs::create_dir(machine.root()).unwrap();
            machine
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.0.path().join(name)
        }

        /// Returns a folder with a space and a quote in its name.
        fn root(&self) -> std::path::PathBuf {
            self.path("the user's files")
        }

        fn own_archive(&self, experiment: &str) -> std::path::PathBuf {
            self.root().join(experiment).join(ARCHIVE_NAME)
        }

        fn cached_archive(&self) -> std::path::PathBuf {
            self.root().join(CACHE_FOLDER).join(format!("{}.tar.gz", sha256()))
        }

        fn can_find_archive(&self, experiment: &str) -> bool {
            let script = format!("at={experiment}\n{}", find_script(&sha256()));
            let (_, output) = run(&self.root(), &script, Path::new("/dev/null"));
            output == format!("{LINE_MARK}code\n")
        }

        fn can_receive_archive(&self, experiment: &str) -> bool {
            let folder = self.root().join(experiment);
            let script = receive_script(folder.to_str().unwrap(), &sha256());
            run(&self.root(), &script, &self.path("sent")).0
        }

        fn prune(&self) {
            run(&self.root(), &prune_script(), Path::new("/dev/null"));
        }

        fn count_files(&self, folder: &str) -> usize {
            fs::read_dir(self.root().join(folder)).map_or(0, Iterator::count)
        }
    }

    fn inode(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn an_archive_is_sent_once_and_remains_while_an_experiment_uses_it() {
        let machine = Machine::new();
        assert!(!machine.can_find_archive("one"), "nothing was sent");
        assert!(machine.can_receive_archive("one") && machine.can_find_archive("one"));
        assert!(machine.can_find_archive("two"), "the second experiment links it");
        for experiment in ["one", "two"] {
            assert_eq!(inode(&machine.own_archive(experiment)), inode(&machine.cached_archive()));
            assert_eq!(machine.count_files(experiment), 1, "no temporary file is left");
        }
        fs::remove_dir_all(machine.root().join("one")).unwrap();
        machine.prune();
        assert!(machine.cached_archive().exists() && machine.can_find_archive("two"));
        fs::remove_dir_all(machine.root().join("two")).unwrap();
        machine.prune();
        assert_eq!(machine.count_files(""), 0, "no experiment uses it");
    }

    #[test]
    fn an_incomplete_transfer_leaves_no_archive() {
        let machine = Machine::new();
        fs::write(machine.path("sent"), &CODE[..CODE.len() - 1]).unwrap();
        assert!(!machine.can_receive_archive("one"));
        assert_eq!((machine.count_files("one"), machine.count_files(CACHE_FOLDER)), (0, 0));
        assert!(!machine.can_find_archive("one"));
    }

    type Damage = fn(&Machine);

    #[test]
    fn a_damaged_archive_is_replaced() {
        #[rustfmt::skip]
        let table: [(&str, Damage, bool); 3] = [
            // what is damaged          by                                                 the next session finds it
            ("the experiment's",        |machine| {
                fs::remove_file(machine.own_archive("one")).unwrap();
                fs::write(machine.own_archive("one"), "half").unwrap();
            },                                                                             true),
            ("the shared one",          |machine| fs::write(machine.cached_archive(), "half").unwrap(), false),
            ("the cache is no folder",  |machine| {
                fs::remove_dir_all(machine.root().join(CACHE_FOLDER)).unwrap();
                fs::write(machine.root().join(CACHE_FOLDER), "").unwrap();
                fs::write(machine.own_archive("one"), "half").unwrap();
            },                                                                             false),
        ];
        for (what, damage, found) in table {
            let machine = Machine::new();
            assert!(machine.can_receive_archive("one"));
            damage(&machine);
            assert_eq!(machine.can_find_archive("one"), found, "{what}");
            assert!(found || machine.can_receive_archive("one"), "{what}");
            assert!(machine.can_find_archive("one"), "{what}");
            assert_eq!(fs::read(machine.own_archive("one")).unwrap(), CODE, "{what}");
        }
    }
}
