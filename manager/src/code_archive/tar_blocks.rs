//! PURE: the blocks of a tar archive (POSIX.1-2001: ustar, with a pax record for a name that is too long).
//!
//! Supports only what a code directory needs: files, directories and symbolic links, but no owners and no devices.

/// The size of a block in bytes. All parts of an archive consist of blocks.
pub(super) const BLOCK_BYTES: usize = 512;

/// The maximum size of a name in ustar's field, in bytes.
const MAX_NAME_BYTES: usize = 100;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TarEntryKind<'a> {
    /// A file with its size in bytes. The content follows.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Link(&'a [u8]),
}

/// Returns the blocks before an entry's content. `name` is relative, without `.` and `..`. `mtime` is in seconds
/// since the epoch.
pub(super) fn header_blocks(name: &[u8], kind: TarEntryKind<'_>, mode: u32, mtime: u64) -> Vec<u8> {
    let (flag, size, link): (u8, u64, &[u8]) = match kind {
        TarEntryKind::File(size) => (b'0', size, b""),
        TarEntryKind::Directory => (b'5', 0, b""),
        TarEntryKind::Link(target) => (b'2', 0, target),
    };
    let mut records = Vec::new();
    for (key, value) in [("path", name), ("linkpath", link)] {
        if value.len() > MAX_NAME_BYTES {
            records.extend(pax_record(key, value));
        }
    }
    let mut blocks = Vec::new();
    if !records.is_empty() {
        let size = u64::try_from(records.len()).expect("a name is short");
        blocks.extend(header_block(b"pax", b'x', 0o644, size, mtime, b""));
        blocks.extend_from_slice(&records);
        blocks.resize(blocks.len() + padding(size), 0);
    }
    blocks.extend(header_block(name, flag, mode, size, mtime, link));
    blocks
}

/// Returns the number of zero bytes that follow a content of `size` bytes.
pub(super) fn padding(size: u64) -> usize {
    let block = u64::try_from(BLOCK_BYTES).expect("it is small");
    usize::try_from((block - size % block) % block).expect("it is less than a block")
}

/// Returns the end of an archive.
pub(super) fn end_blocks() -> Vec<u8> {
    vec![0; 2 * BLOCK_BYTES]
}

/// Returns the pax record `LENGTH key=value\n`. The length includes its own digits.
fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn header_block(
    name: &[u8],
    flag: u8,
    mode: u32,
    size: u64,
    mtime: u64,
    link: &[u8],
) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name[..name.len().min(MAX_NAME_BYTES)]);
    put(100, format!("{:07o}", mode & 0o7777).as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    // Eleven octal digits are enough until the year 2242.
    put(136, format!("{:011o}", mtime.min(0o777_7777_7777)).as_bytes());
    put(148, b"        ");
    put(156, &[flag]);
    put(157, &link[..link.len().min(MAX_NAME_BYTES)]);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pax_record_begins_with_its_own_length() {
        for length in [1, 87, 88, 89, 90, 986, 987, 988, 989, 990] {
            let record = pax_record("path", &vec![b'n'; length]);
            let digits = record.iter().position(|byte| *byte == b' ').unwrap();
            let stated: usize = std::str::from_utf8(&record[..digits]).unwrap().parse().unwrap();
            assert_eq!(stated, record.len(), "a name of {length} bytes");
        }
    }

    proptest! {
        #[test]
        fn headers_are_whole_blocks_with_a_correct_checksum(name in "[a-z/]{1,300}", size: u32, mode: u32) {
            let size = u64::from(size);
            let head = header_blocks(name.as_bytes(), TarEntryKind::File(size), mode, 7);
            prop_assert_eq!(head.len() % BLOCK_BYTES, 0);
            prop_assert_eq!((size + u64::try_from(padding(size)).unwrap()) % 512, 0);
            let last = &head[head.len() - BLOCK_BYTES..];
            let stated = u32::from_str_radix(std::str::from_utf8(&last[148..154]).unwrap(), 8).unwrap();
            let sum: u32 = last.iter().enumerate()
                .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum();
            prop_assert_eq!(stated, sum);
        }
    }
}
