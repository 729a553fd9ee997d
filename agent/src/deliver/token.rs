//! The token that is shown to the manager: from a file that somebody may replace, and renewed by the
//! manager before it expires. It must never reach a log.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tracing::{debug, warn};

/// The token, and where it comes from.
#[derive(Debug, Default)]
pub(super) struct Token {
    file: Option<PathBuf>,
    /// What was last read from the file.
    from_file: Option<String>,
    /// What the manager gave us instead.
    renewed: Option<String>,
    /// Whether the file is to be looked at.
    stale: bool,
}

impl Token {
    /// Reads from this file when it is first asked.
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Self { file, from_file: None, renewed: None, stale: true }
    }

    /// The file may have been replaced since.
    pub(super) fn refresh(&mut self) {
        self.stale = true;
    }

    /// The present token; without one the manager says what it thinks of that.
    pub(super) fn get(&mut self) -> Option<&str> {
        if std::mem::take(&mut self.stale)
            && let Some(path) = &self.file
        {
            let read = read(path);
            if read.is_some() && read != self.from_file {
                // Whoever replaced it knows better than the manager that renewed it.
                self.renewed = None;
                self.from_file = read;
            }
        }
        self.renewed.as_deref().or(self.from_file.as_deref())
    }

    /// The manager gave us another one. It is kept in the file too, for whoever delivers after us, if
    /// that can be written.
    pub(super) fn renew(&mut self, token: &str) {
        if self.renewed.as_deref() == Some(token) {
            return;
        }
        self.renewed = Some(token.to_owned());
        let Some(path) = &self.file else { return };
        match replace(path, token) {
            Ok(()) => {
                self.from_file = self.renewed.take();
            }
            Err(error) => debug!("the renewed token is not kept in {}: {error}", path.display()),
        }
    }
}

/// The token in a file; without one the manager says what it thinks of that.
pub fn read(path: &Path) -> Option<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) => {
            warn!("cannot read the token file {}: {error}", path.display());
            None
        }
    }
}

/// Writes aside, readable by the owner only, and moves into place: a reader sees one token or the other.
fn replace(path: &Path, token: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(token.as_bytes())?;
    file.persist(path).map(drop).map_err(|refused| refused.error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_renewed_token_is_kept_until_the_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "first\n").unwrap();
        let mut token = Token::new(Some(path.clone()));
        assert_eq!(token.get(), Some("first"));
        token.renew("second");
        assert_eq!(token.get(), Some("second"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        token.refresh();
        assert_eq!(token.get(), Some("second"));
        fs::write(&path, "third").unwrap();
        assert_eq!(token.get(), Some("second"), "not looked at until it is refused");
        token.refresh();
        assert_eq!(token.get(), Some("third"));
    }

    #[test]
    fn a_token_of_a_file_that_cannot_be_written_is_renewed_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone/token");
        let mut token = Token::new(Some(path.clone()));
        assert_eq!(token.get(), None);
        token.renew("second");
        token.refresh();
        assert_eq!(token.get(), Some("second"));
        fs::create_dir(folder.path().join("gone")).unwrap();
        fs::write(&path, "third").unwrap();
        token.refresh();
        assert_eq!(token.get(), Some("third"));
        let mut none = Token::new(None);
        none.renew("given");
        none.refresh();
        assert_eq!(none.get(), Some("given"));
    }
}
