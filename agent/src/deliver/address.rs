//! Where the manager is: read when needed, since it may change.

use std::path::PathBuf;

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
