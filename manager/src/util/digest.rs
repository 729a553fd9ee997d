//! SHA-256 of files, in lower-case hexadecimal digits.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use ring::digest::{Context, SHA256};

/// The number of bytes that are hashed at a time.
const READ_CHUNK_BYTES: usize = 64 << 10;

/// Returns the SHA-256 of a file, which is read in pieces.
pub fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut context, mut piece) = (Context::new(&SHA256), vec![0; READ_CHUNK_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hexadecimal(context.finish().as_ref())),
            length => context.update(&piece[..length]),
        }
    }
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).expect("four bits are a digit");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_the_digests_of_the_standard() {
        // The examples of FIPS 180-4. The last one is longer than a piece.
        #[rustfmt::skip]
        let table = [
            (b"".to_vec(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc".to_vec(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (vec![b'a'; 1_000_000], "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ];
        let folder = tempfile::tempdir().unwrap();
        for (bytes, digest) in table {
            let path = folder.path().join("file");
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(sha256_of_file(&path).unwrap(), digest);
        }
        assert!(sha256_of_file(&folder.path().join("none")).is_err());
    }
}
