//! PURE: secrets of the experiment file, each with the file that will hold it.

use std::fmt;
use std::path::PathBuf;

/// A password or a passphrase. It is never stored or shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Creates an instance.
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text, for the file that `ssh` gets it from.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText")
    }
}

/// A secret of the experiment file, and the file that will hold it.
#[derive(Debug)]
pub struct SecretFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Its text.
    pub text: SecretText,
}
