use super::*;

/// Returns a ustar archive of entries `(flag, name, content or target)`.
fn archive(entries: &[(u8, &str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (flag, name, text) in entries {
        let mut block = [0; 512];
        let content = if *flag == b'0' { text.as_bytes() } else { b"" };
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, if *flag == b'5' { b"0000500" } else { b"0000640" });
        put(124, format!("{:011o}", content.len()).as_bytes());
        put(136, b"00000001750");
        put(148, b"        ");
        put(156, &[*flag]);
        if *flag == b'2' {
            put(157, text.as_bytes());
        }
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(block);
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend([0; 1024]);
    bytes
}

#[test]
fn everything_is_unpacked_as_it_was_packed_even_twice() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("made/code");
    let bytes = archive(&[
        (b'2', "early", "./deep/er/file"),
        (b'5', "closed/", ""),
        (b'0', "closed/file", "c"),
        (b'0', "./deep/er/file", "text"),
        (b'2', "deep/back", "../deep/er"),
        (b'0', "became", "a file"),
    ]);
    for round in 0..2 {
        if round == 1 {
            fs::remove_file(into.join("became")).unwrap();
            symlink("/etc", into.join("became")).unwrap();
        }
        unpack(bytes.as_slice(), &into).unwrap();
        assert_eq!(fs::read_to_string(into.join("early")).unwrap(), "text");
        assert_eq!(fs::read_to_string(into.join("deep/back/file")).unwrap(), "text");
        assert_eq!(fs::read_to_string(into.join("became")).unwrap(), "a file");
        let file = fs::metadata(into.join("closed/file")).unwrap();
        assert_eq!((file.mode() & 0o777, file.mtime()), (0o640, 1000));
        assert_eq!(fs::metadata(into.join("closed")).unwrap().mode() & 0o777, 0o500);
    }
    // Otherwise the owner could not remove the directory.
    fs::set_permissions(into.join("closed"), Permissions::from_mode(0o700)).unwrap();
}

/// The name of a case, and its entries.
type Row<'a> = (&'a str, &'a [(u8, &'a str, &'a str)]);

#[test]
fn nothing_leaves_the_directory() {
    #[rustfmt::skip]
    let table: [Row<'_>; 13] = [
        ("an absolute name",      &[(b'0', "/tmp/x", "x")]),
        ("a name that climbs",    &[(b'0', "a/../../x", "x")]),
        ("a directory outside",   &[(b'5', "../x", "")]),
        ("an absolute link",      &[(b'2', "l", "/etc")]),
        ("a link that climbs",    &[(b'2', "a/l", "../../x")]),
        ("and comes back",        &[(b'2', "l", "../into/x")]),
        ("through a link",        &[(b'2', "a", "."), (b'2', "x", "a/..")]),
        ("through a deep link",   &[(b'2', "d1/d2/l", "../.."), (b'2', "x", "d1/d2/l/../..")]),
        ("below a link",          &[(b'2', "d/l", "."), (b'2', "d/l/x", "..")]),
        ("round in a circle",     &[(b'2', "a", "b"), (b'2', "b", "a")]),
        ("a link's own name",     &[(b'2', "../l", "x")]),
        ("a device",              &[(b'3', "null", "")]),
        ("a hard link",           &[(b'1', "h", "/etc/passwd")]),
    ];
    for (case, entries) in table {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("into");
        let refused = unpack(archive(entries).as_slice(), &into);
        assert!(refused.is_err(), "{case}");
        let beside: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(beside.len(), 1, "{case}: {beside:?}");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "{case}");
    }
}

#[test]
fn nothing_is_written_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (into, outside) = (folder.path().join("into"), folder.path().join("outside"));
    fs::create_dir_all(&into).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    // An earlier run of the same trial may have left such links.
    symlink(&outside, into.join("folder")).unwrap();
    symlink(outside.join("kept"), into.join("file")).unwrap();
    let bytes = archive(&[(b'0', "folder/kept", "new"), (b'0', "file", "new")]);
    unpack(bytes.as_slice(), &into).unwrap();
    assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
    assert_eq!(fs::read_to_string(into.join("folder/kept")).unwrap(), "new");
}

#[test]
fn a_write_error_names_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let bytes = archive(&[(b'0', "x", "x")]);
    let refused = unpack(bytes.as_slice(), &file).unwrap_err();
    assert!(matches!(&refused, Error::Write { path, .. } if *path == file), "{refused}");
}

#[test]
fn no_more_is_unpacked_than_a_manager_packs() {
    let bytes = archive(&[(b'0', "a", "four"), (b'5', "b", ""), (b'0', "b/c", "more")]);
    #[rustfmt::skip]
    let table = [
        (3, 8, true), (2, 8, false), (3, 7, false), (0, 8, false), (3, 0, false),
    ];
    for (entries, content, fits) in table {
        let into = tempfile::tempdir().unwrap();
        let unpacked =
            unpack_bounded(bytes.as_slice(), into.path(), UnpackBudget { entries, bytes: content });
        match unpacked {
            Ok(()) => assert!(fits, "{entries} entries, {content} bytes"),
            Err(Error::TooLarge) => assert!(!fits, "{entries} entries, {content} bytes"),
            Err(error) => panic!("{error}"),
        }
        let kept: u64 = ["a", "b/c"]
            .iter()
            .filter_map(|name| Some(fs::metadata(into.path().join(name)).ok()?.len()))
            .sum();
        assert!(kept <= content, "{kept} of {content} bytes");
    }
}

#[test]
fn unchanged_code_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("code");
    let bytes = archive(&[
        (b'5', "lib/", ""),
        (b'0', "lib/same", "s"),
        (b'0', "deep/er/same", "s"),
        (b'0', "touched", "t"),
        (b'0', "longer", "l"),
        (b'0', "gone", "g"),
        (b'0', "outputs/in", "i"),
        (b'0', "moved/file", "m"),
        (b'2', "link", "touched"),
        (b'2', "turned", "touched"),
    ]);
    unpack(bytes.as_slice(), &into).unwrap();
    fs::write(into.join("touched"), "T").unwrap();
    let mut longer = OpenOptions::new().append(true).open(into.join("longer")).unwrap();
    io::Write::write_all(&mut longer, b"!").unwrap();
    longer.set_modified(UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
    fs::remove_file(into.join("gone")).unwrap();
    fs::write(into.join("outputs/model"), "").unwrap();
    // A folder that was replaced by a link: the removal must not touch the link's target.
    fs::rename(into.join("moved"), folder.path().join("elsewhere")).unwrap();
    symlink(folder.path().join("elsewhere"), into.join("moved")).unwrap();
    fs::remove_file(into.join("turned")).unwrap();
    symlink("longer", into.join("turned")).unwrap();

    remove_unchanged(bytes.as_slice(), &into);
    let exists = |name: &str| fs::symlink_metadata(into.join(name)).is_ok();
    for (name, resolves_inside) in [
        ("lib", false),
        ("deep/er/same", false),
        ("touched", true),
        ("longer", true),
        ("outputs/in", false),
        ("outputs/model", true),
        ("moved/file", true),
        ("link", false),
        ("turned", true),
    ] {
        assert_eq!(exists(name), resolves_inside, "{name}");
    }
    remove_unchanged(&bytes[..bytes.len() / 2], &into);
    remove_unchanged(&b"no archive"[..], &into);
}

#[test]
fn removal_of_unchanged_code_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("code");
    let bytes = archive(&[(b'5', "lib", ""), (b'5', "lib/empty", ""), (b'0', "lib/file", "f")]);
    unpack(bytes.as_slice(), &into).unwrap();
    let open = |name: &str| fs::set_permissions(into.join(name), Permissions::from_mode(0o700));
    open("lib").and_then(|()| open("lib/empty")).unwrap();
    remove_unchanged(bytes.as_slice(), &into);
    assert!(!into.exists());
}
