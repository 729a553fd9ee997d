//! Puts an archive's entries into a directory, and nothing anywhere else, whatever the archive says.
//!
//! A name is relative and has no `..`; nothing is written through a link; links come last, and none leads out of
//! the directory. What was there under an entry's name is replaced.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::tar::{Archive, Kind};

/// Why not everything is unpacked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive.
    #[error("the archive cannot be read")]
    Archive(#[source] io::Error),
    /// A name or a link that leads out.
    #[error("the archive's entry {name:?} leads out of the directory; it is not unpacked")]
    LeadsOut {
        /// Which.
        name: PathBuf,
    },
    /// The disk.
    #[error("cannot write {}", .path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Unpacks everything into the directory `into`, which is made if absent.
pub fn unpack(archive: impl Read, into: &Path) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Write { path, source }
    };
    fs::create_dir_all(into).map_err(failed(into))?;
    let mut archive = Archive::new(archive);
    let (mut links, mut folders) = (Vec::new(), Vec::new());
    while let Some(entry) = archive.next_entry().map_err(Error::Archive)? {
        let name = PathBuf::from(std::ffi::OsStr::from_bytes(&entry.name));
        let inside = inside(&name).ok_or_else(|| Error::LeadsOut { name: name.clone() })?;
        if inside.as_os_str().is_empty() {
            continue; // The directory itself.
        }
        let path = into.join(&inside);
        match entry.kind {
            Kind::Directory => {
                folder(into, &inside).map_err(failed(&path))?;
                // An earlier run may have left it as it is to be in the end.
                let open = fs::set_permissions(&path, Permissions::from_mode(0o700));
                open.map_err(failed(&path))?;
                folders.push((path, entry.mode));
            }
            Kind::File => {
                parent(into, &inside).map_err(failed(&path))?;
                let mut file = fresh(&path, entry.mode).map_err(failed(&path))?;
                copy(&mut archive, &mut file, &path)?;
                let changed = UNIX_EPOCH.checked_add(Duration::from_secs(entry.mtime));
                // What a file system cannot keep changes nothing.
                changed.map(|changed| file.set_modified(changed).ok());
            }
            Kind::Link(target) => {
                let target = PathBuf::from(std::ffi::OsStr::from_bytes(&target));
                if !stays(&inside, &target) {
                    return Err(Error::LeadsOut { name });
                }
                links.push((inside, target));
            }
        }
    }
    for (inside, target) in links {
        let path = into.join(&inside);
        let made = parent(into, &inside).and_then(|()| clear(&path));
        made.and_then(|()| symlink(&target, &path)).map_err(failed(&path))?;
    }
    // Last, for nothing can be put into a directory that must not be written to.
    for (path, mode) in folders.into_iter().rev() {
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed(&path))?;
    }
    Ok(())
}

/// PURE: a name without `.`; `None` if it is absolute or has a `..`.
fn inside(name: &Path) -> Option<PathBuf> {
    let parts = name.components().filter(|part| *part != Component::CurDir);
    parts.map(|part| matches!(part, Component::Normal(_)).then_some(part)).collect()
}

/// PURE: whether a link at `name` leads to something in the directory.
fn stays(name: &Path, target: &Path) -> bool {
    let mut depth = name.components().count() - 1;
    target.components().all(|part| match part {
        Component::Normal(_) => {
            depth += 1;
            true
        }
        Component::CurDir => true,
        Component::ParentDir => {
            let up = depth.checked_sub(1);
            depth = up.unwrap_or(0);
            up.is_some()
        }
        Component::Prefix(_) | Component::RootDir => false,
    })
}

/// Makes the directories above `inside`.
fn parent(into: &Path, inside: &Path) -> io::Result<()> {
    inside.parent().map_or(Ok(()), |above| folder(into, above))
}

/// Makes a directory and all above it, none of them through a link.
fn folder(into: &Path, inside: &Path) -> io::Result<()> {
    let mut path = into.to_owned();
    for part in inside.components() {
        path.push(part);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            clear(&path)?;
            DirBuilder::new().mode(0o755).create(&path)?;
        }
    }
    Ok(())
}

fn fresh(path: &Path, mode: u32) -> io::Result<File> {
    clear(path)?;
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path)?;
    // As it was where it came from, whatever our own mask.
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// Removes what is there, if it is no directory with something in it.
fn clear(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Copies an entry's content, and tells whose fault it is if it fails.
fn copy(archive: &mut impl Read, file: &mut File, path: &Path) -> Result<(), Error> {
    let mut portion = vec![0; 64 << 10];
    loop {
        let read = archive.read(&mut portion).map_err(Error::Archive)?;
        if read == 0 {
            return Ok(());
        }
        io::Write::write_all(file, &portion[..read])
            .map_err(|source| Error::Write { path: path.to_owned(), source })?;
    }
}

#[cfg(test)]
mod tests;
