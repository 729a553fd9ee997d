//! PURE: reads a tar archive (POSIX.1-2001: ustar and pax) from any reader, entry by entry.
//!
//! Only files, directories and symbolic links are supported. Anything else is refused, as is any block with a wrong
//! checksum. The caller decides on the location of an entry.

use std::io::{self, Read};

/// The size of a block. An archive consists of blocks.
const BLOCK_BYTES: usize = 512;

/// The maximum size of the records before an entry. On Linux, names have at most 4096 bytes.
const MAX_PAX_BYTES: u64 = 64 << 10;

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A file. Its content follows.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Link(Vec<u8>),
}

/// An entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name as in the archive.
    pub name: Vec<u8>,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The nine permission bits.
    pub mode: u32,
    /// The time of the last change, in seconds since the epoch.
    pub mtime: u64,
}

/// A reader of an archive. Its [`Read`] implementation returns the content of the current entry.
#[derive(Debug)]
pub struct Archive<R> {
    source: R,
    /// The number of unread bytes of the current entry's content.
    content_left: u64,
    /// The number of zeros after the content.
    padding: u64,
}

/// The pax records that describe the next entry.
#[derive(Debug, Default)]
struct PaxRecords {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

impl<R: Read> Archive<R> {
    /// Creates a reader of the archive in `source`.
    pub fn new(source: R) -> Self {
        Self { source, content_left: 0, padding: 0 }
    }

    /// Returns the number of unread bytes of the current entry's content. It is 0 for an entry without content.
    pub fn content_bytes(&self) -> u64 {
        self.content_left
    }

    /// Returns the next entry, after skipping the rest of the current one. Returns `None` at the end.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut records = PaxRecords::default();
        loop {
            let over = self.content_left + self.padding;
            if io::copy(&mut self.source.by_ref().take(over), &mut io::sink())? != over {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            (self.content_left, self.padding) = (0, 0);
            let mut block = [0; BLOCK_BYTES];
            self.source.read_exact(&mut block)?;
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            if parse_octal(&block[148..156])? != block_checksum(&block) {
                return Err(damaged_error("a block's sum is wrong"));
            }
            let size = parse_octal(&block[124..136])?;
            match block[156] {
                b'x' if size <= MAX_PAX_BYTES => {
                    let mut text = vec![0; usize::try_from(size).map_err(io::Error::other)?];
                    self.source.read_exact(&mut text)?;
                    records = parse_pax_records(&text)?;
                    self.padding = padding_after(size);
                }
                // Global records, of which none is needed here.
                b'g' if size <= MAX_PAX_BYTES => {
                    (self.content_left, self.padding) = (size, padding_after(size));
                }
                flag => return self.parse_entry(&block, flag, size, records).map(Some),
            }
        }
    }

    /// Skips the bytes after the last entry and returns their number. Stops after `most` + 1 bytes.
    pub fn skip_trailer(&mut self, most: u64) -> io::Result<u64> {
        io::copy(&mut self.source.by_ref().take(most.saturating_add(1)), &mut io::sink())
    }

    fn parse_entry(
        &mut self,
        block: &[u8; BLOCK_BYTES],
        flag: u8,
        size: u64,
        records: PaxRecords,
    ) -> io::Result<Entry> {
        let text = |from: usize, to: usize| {
            let field = &block[from..to];
            field.split(|byte| *byte == 0).next().unwrap_or(field).to_vec()
        };
        let prefix = if block[257..].starts_with(b"ustar\0") { text(345, 500) } else { Vec::new() };
        let short = match prefix.as_slice() {
            [] => text(0, 100),
            prefix => [prefix, b"/", &text(0, 100)].concat(),
        };
        let kind = match flag {
            b'0' | 0 => EntryKind::File,
            b'5' => EntryKind::Directory,
            b'2' => EntryKind::Link(records.link.unwrap_or_else(|| text(157, 257))),
            _ => {
                return Err(damaged_error("an entry is neither a file nor a directory nor a link"));
            }
        };
        if kind == EntryKind::File {
            self.content_left = records.size.unwrap_or(size);
            self.padding = padding_after(self.content_left);
        }
        let mode = u32::try_from(parse_octal(&block[100..108])? & 0o777).expect("nine bits");
        let (name, mtime) = (records.name.unwrap_or(short), parse_octal(&block[136..148])?);
        Ok(Entry { name, kind, mode, mtime })
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.by_ref().take(self.content_left).read(buffer)?;
        if read == 0 && self.content_left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.content_left -= u64::try_from(read).unwrap_or(self.content_left);
        Ok(read)
    }
}

fn damaged_error(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Returns the number of zeros that follow a content of `size` bytes.
fn padding_after(size: u64) -> u64 {
    size.wrapping_neg() % 512
}

/// Returns the checksum of a block, in which the checksum's own field counts as blanks.
fn block_checksum(block: &[u8; BLOCK_BYTES]) -> u64 {
    let all: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    let own: u64 = block[148..156].iter().map(|byte| u64::from(*byte)).sum();
    all - own + 8 * u64::from(b' ')
}

/// Parses an octal number that blanks and zeros may surround.
fn parse_octal(field: &[u8]) -> io::Result<u64> {
    let digits = field.iter().copied().skip_while(|byte| *byte == b' ');
    let mut number = 0_u64;
    for byte in digits.take_while(|byte| ![b' ', 0].contains(byte)) {
        // The field has at most eleven digits of three bits.
        match byte {
            b'0'..=b'7' => number = (number << 3) | u64::from(byte - b'0'),
            _ => return Err(damaged_error("a number is malformed")),
        }
    }
    Ok(number)
}

/// Parses `LENGTH key=value\n` records.
fn parse_pax_records(mut text: &[u8]) -> io::Result<PaxRecords> {
    let mut records = PaxRecords::default();
    while !text.is_empty() {
        let (key, value, rest) =
            split_pax_record(text).ok_or_else(|| damaged_error("a record is damaged"))?;
        match key {
            b"path" => records.name = Some(value.to_vec()),
            b"linkpath" => records.link = Some(value.to_vec()),
            b"size" => {
                let size = std::str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                // A size larger than any disk would overflow the sum with its padding.
                let size = size.filter(|size: &u64| *size < 1 << 60);
                records.size = Some(size.ok_or_else(|| damaged_error("a size is malformed"))?);
            }
            _ => {}
        }
        text = rest;
    }
    Ok(records)
}

fn split_pax_record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = text.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&text[..blank]).ok()?.parse().ok()?;
    let (line, rest) = text.split_at_checked(length)?;
    let (key, value) = {
        let pair = line.get(blank + 1..)?.strip_suffix(b"\n")?;
        pair.split_at(pair.iter().position(|byte| *byte == b'=')?)
    };
    Some((key, &value[1..], rest))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// Returns the archive that GNU's `tar` creates from a small directory.
    fn archive(format: &str) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("{}/{}", "d".repeat(90), "f".repeat(120));
        let script = format!(
            "mkdir -p {} && printf long > {long} && printf 0123456789 > short && chmod 755 short && \
             ln -s {long} link && touch -d @1700000000 short",
            "d".repeat(90)
        );
        let made = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).status();
        assert!(made.unwrap().success());
        let tar = Command::new("tar")
            .args(["--sort=name", "--format", format, "-cf", "-", "-C"])
            .arg(folder.path())
            .args(["short", "link", &"d".repeat(90)])
            .output()
            .unwrap();
        assert!(tar.status.success(), "{tar:?}");
        tar.stdout
    }

    fn entries(bytes: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
        let mut archive = Archive::new(bytes);
        let mut found = Vec::new();
        while let Some(entry) = archive.next_entry()? {
            let mut content = Vec::new();
            archive.read_to_end(&mut content)?;
            found.push((entry, content));
        }
        Ok(found)
    }

    #[test]
    fn archives_of_the_tar_program_are_read() {
        let found = entries(&archive("pax")).unwrap();
        let names: Vec<_> =
            found.iter().map(|(entry, _)| String::from_utf8_lossy(&entry.name)).collect();
        let folder = format!("{}/", "d".repeat(90));
        let long = format!("{folder}{}", "f".repeat(120));
        assert_eq!(names, ["short", "link", folder.as_str(), long.as_str()]);
        let (short, content) = &found[0];
        assert_eq!((short.mode, short.mtime), (0o755, 1_700_000_000));
        assert_eq!(content, b"0123456789");
        assert_eq!(found[1].0.kind, EntryKind::Link(long.into_bytes()));
        assert_eq!(found[2].0.kind, EntryKind::Directory);
        assert_eq!(found[3].1, b"long");
        // Entries are also found if their contents are not read.
        let bytes = archive("pax");
        let mut unread = Archive::new(bytes.as_slice());
        let mut count = 0;
        while unread.next_entry().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 4);
    }

    #[test]
    fn damaged_and_unsupported_archives_are_refused() {
        let good = archive("pax");
        let mut bent = good.clone();
        bent[3] ^= 1;
        #[rustfmt::skip]
        let table = [
            ("nothing at all",     Vec::new()),
            ("a bent name",        bent),
            ("cut in the content", good[..520].to_vec()),
            ("no end",             good[..1024].to_vec()),
            ("GNU's long names",   archive("gnu")),
            ("not an archive",     vec![b'x'; 2048]),
        ];
        for (case, bytes) in table {
            assert!(entries(&bytes).is_err(), "{case}");
        }
    }

    proptest! {
        #[test]
        fn archives_of_random_bytes_never_panic(bytes: Vec<u8>, at in 0..4096_usize, byte: u8) {
            drop(entries(&bytes));
            let mut bent = archive_once().to_vec();
            let at = at % bent.len();
            bent[at] = byte;
            // The checksum is corrected, so that the data after it is read.
            for block in bent.chunks_exact_mut(BLOCK_BYTES) {
                let block: &mut [u8; BLOCK_BYTES] = block.try_into().unwrap();
                let right = format!("{:06o}\0 ", block_checksum(block));
                if block[257..].starts_with(b"ustar") {
                    block[148..156].copy_from_slice(right.as_bytes());
                }
            }
            drop(entries(&bent));
        }

        #[test]
        fn pax_records_of_random_bytes_never_panic(bytes: Vec<u8>, text in "[0-9]{1,3} (path|size)=.{0,9}\n?") {
            drop(parse_pax_records(&bytes));
            drop(parse_pax_records(text.as_bytes()));
        }
    }

    fn archive_once() -> &'static [u8] {
        static ONCE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        ONCE.get_or_init(|| archive("pax"))
    }
}
