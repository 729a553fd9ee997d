//! The address of the manager. It is read when needed, because it may change.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use super::Error;

/// The address of the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerAddress {
    /// Base URL, such as `http://10.0.0.1:8080`.
    Url(String),
    /// A file whose first line is the base URL. It is read again whenever a delivery fails, because a restarted manager
    /// may listen at another address.
    File(PathBuf),
}

impl ManagerAddress {
    /// Returns the given address, if there is one. A URL takes precedence over a file.
    pub fn given(url: Option<String>, file: Option<PathBuf>) -> Option<Self> {
        url.map(Self::Url).or_else(|| file.map(Self::File))
    }

    /// Returns the socket of a manager on this machine: `manager.sock` beside the file with the address. If it exists,
    /// the agent uses no other address, because any user of the machine can take a TCP port after the manager has
    /// ended. `None`: the manager runs elsewhere, has an earlier version, or was named by its URL.
    pub fn socket(&self) -> Option<PathBuf> {
        let Self::File(file) = self else { return None };
        let path = file.with_file_name("manager.sock");
        let found = std::fs::symlink_metadata(&path).ok()?;
        found.file_type().is_socket().then_some(path)
    }

    /// Returns the current base URL.
    pub fn url(&self) -> Result<String, Error> {
        match self {
            Self::Url(url) => Ok(url.clone()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path);
                let first =
                    text.map(|text| text.lines().next().unwrap_or_default().trim().to_owned());
                let empty =
                    || io::Error::new(io::ErrorKind::InvalidData, "it begins with an empty line");
                let base =
                    first.and_then(|url| if url.is_empty() { Err(empty()) } else { Ok(url) });
                base.map_err(|source| Error::NoAddress { path: path.clone(), source })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_of_a_file_is_an_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manager.url");
        let address = ManagerAddress::given(None, Some(path.clone())).unwrap();
        for (text, url) in [
            ("http://m:1\n", Some("http://m:1")),
            (" http://m:1 \r\nmore", Some("http://m:1")),
            // Incomplete, as during a rewrite in place.
            ("", None),
            ("\nhttp://m:1", None),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(address.url().ok().as_deref(), url, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(address.url(), Err(Error::NoAddress { .. })));
    }
}
