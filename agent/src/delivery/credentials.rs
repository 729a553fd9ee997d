//! The credentials for the manager: its address, the token, and the authority that signed its certificate.
//!
//! Their files are read before the trial starts, because the trial may remove its directory, including them. They are
//! read again whenever a delivery has failed.

use std::fmt;
use std::path::Path;

use super::{ManagerAddress, token};

/// The content of the files. If a file could not be read, it is read again when it is needed, and an error is reported
/// then.
#[derive(Clone, Default)]
pub struct Credentials {
    base: Option<String>,
    token: Option<String>,
    /// In PEM form.
    authority: Option<Vec<u8>>,
}

impl Credentials {
    /// Reads the files.
    pub fn read(
        manager: &ManagerAddress,
        token_file: Option<&Path>,
        ca_file: Option<&Path>,
    ) -> Self {
        Self {
            base: manager.url().ok(),
            token: token_file.and_then(|path| token::read_text(path).ok()),
            authority: ca_file.and_then(|path| std::fs::read(path).ok()),
        }
    }

    pub(super) fn base(&self) -> Option<&String> {
        self.base.as_ref()
    }

    pub(super) fn token(&self) -> Option<&String> {
        self.token.as_ref()
    }

    pub(super) fn authority(&self) -> Option<&Vec<u8>> {
        self.authority.as_ref()
    }
}

/// Omits the token, which must not reach a log.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("base", &self.base).finish_non_exhaustive()
    }
}
