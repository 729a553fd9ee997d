//! The size of the code that a trial fetches from its manager.

/// The most files, directories and links that an archive of code holds.
pub const CODE_ENTRIES: usize = 20_000;

/// The most bytes that the files of an archive of code hold together, before compression: 300 MiB.
pub const CODE_BYTES: u64 = 300 << 20;
