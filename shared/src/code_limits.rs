//! Size limits of the code archive that a trial fetches from its manager.

/// The maximum number of files, directories and links in a code archive.
pub const MAX_CODE_ENTRIES: usize = 20_000;

/// The maximum total size of the files in a code archive before compression, in bytes: 300 MiB.
pub const MAX_CODE_BYTES: u64 = 300 << 20;
