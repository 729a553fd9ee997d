//! Where the manager is and what it wants to see: read when needed, since both may change.

use std::path::{Path, PathBuf};

use tracing::warn;

use super::Error;

/// Where the manager is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerAddress {
    /// Base URL, such as `http://10.0.0.1:8080`.
    Url(String),
    /// A file whose first line is the base URL, read again whenever a delivery fails: a manager that was
    /// started again may listen elsewhere.
    File(PathBuf),
}

impl ManagerAddress {
    /// The base URL, as it is now.
    pub fn url(&self) -> Result<String, Error> {
        match self {
            Self::Url(url) => Ok(url.clone()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| Error::NoAddress { path: path.clone(), source })?;
                Ok(text.lines().next().unwrap_or_default().trim().to_owned())
            }
        }
    }
}

/// The token; without one the manager says what it thinks of that.
pub fn read_token(path: &Path) -> Option<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) => {
            warn!("cannot read the token file {}: {error}", path.display());
            None
        }
    }
}
