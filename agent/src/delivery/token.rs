//! The token for the manager. It comes from a file that the user may replace, and the manager renews it before it
//! expires. It must never reach a log.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tracing::{debug, warn};

/// The token and its source.
#[derive(Debug, Default)]
pub(super) struct Token {
    file: Option<PathBuf>,
    /// The content of the file at the last read.
    from_file: Option<String>,
    /// The token with which the manager replaced it.
    renewed: Option<String>,
    /// `true` if that manager had proved its identity.
    proved: bool,
    /// `true` if the file must be read again.
    stale: bool,
}

impl Token {
    /// Creates the token of `file`. `known` is the content of the file, if it was read before; otherwise the first
    /// [`Token::get`] reads it.
    pub(super) fn new(file: Option<PathBuf>, known: Option<String>) -> Self {
        let stale = known.is_none();
        Self { file, from_file: known, renewed: None, proved: false, stale }
    }

    /// Has the file read again, because it may have been replaced.
    pub(super) fn refresh(&mut self) {
        self.stale = true;
    }

    /// Handles the manager's refusal of the current token. Drops a renewed token if the server that sent it had not
    /// proved its identity.
    pub(super) fn handle_refusal(&mut self) {
        if !self.proved && self.from_file.is_some() {
            self.renewed = None;
        }
        self.stale = true;
    }

    /// Returns the current token. Without one, the manager's answer names the problem.
    pub(super) fn get(&mut self) -> Option<&str> {
        if std::mem::take(&mut self.stale)
            && let Some(path) = &self.file
        {
            let read = read_token(path);
            if read.is_some() && read != self.from_file {
                // A user who replaced the token takes precedence over the manager that renewed it.
                self.renewed = None;
                self.from_file = read;
            }
        }
        self.renewed.as_deref().or(self.from_file.as_deref())
    }

    /// Accepts a new token from an ack, if it names the same trial. If the manager has `proved` its identity, the token
    /// replaces the one in the file, for the agent that delivers after this one. Otherwise it is kept in memory until
    /// the manager refuses it.
    pub(super) fn renew(&mut self, token: &str, proved: bool) {
        if self.renewed.as_deref() == Some(token) {
            return;
        }
        if self.get().is_some_and(|present| named_trial(present) != named_trial(token)) {
            warn!("the manager's answer has a token of another trial; it is ignored");
            return;
        }
        self.renewed = Some(token.to_owned());
        self.proved = proved;
        if !proved {
            return;
        }
        let Some(path) = &self.file else { return };
        match replace_file(path, token) {
            Ok(()) => {
                self.from_file = self.renewed.take();
            }
            Err(error) => debug!("cannot save the renewed token in {}: {error}", path.display()),
        }
    }
}

/// PURE: returns the experiment and the trial that a token names: everything before its expiry and its signature.
fn named_trial(token: &str) -> Option<&str> {
    token.rsplitn(3, '.').nth(2)
}

/// Returns the token in a file. Without one, the manager's answer names the problem.
pub fn read_token(path: &Path) -> Option<String> {
    match read_text(path) {
        Ok(token) => Some(token),
        Err(error) => {
            warn!("cannot read the token file {}: {error}", path.display());
            None
        }
    }
}

/// Returns the text of a file. A file without text is being written, or was a pipe that could be read once.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path)?.trim().to_owned();
    let content = Some(text).filter(|text| !text.is_empty());
    content.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is empty"))
}

/// Replaces the file atomically with one that only the owner can read. A reader sees the old token or the new one.
fn replace_file(path: &Path, token: &str) -> io::Result<()> {
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
        let mut token = Token::new(Some(path.clone()), None);
        assert_eq!(token.get(), Some("first"));
        token.renew("second", true);
        assert_eq!(token.get(), Some("second"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        token.refresh();
        assert_eq!(token.get(), Some("second"));
        fs::write(&path, "third").unwrap();
        assert_eq!(token.get(), Some("second"), "not read until it is refused");
        token.refresh();
        assert_eq!(token.get(), Some("third"));
    }

    #[test]
    fn a_token_that_was_read_before_outlives_its_file_and_is_replaced_by_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let mut token = Token::new(Some(path.clone()), Some("first".to_owned()));
        token.refresh();
        assert_eq!(token.get(), Some("first"));
        fs::write(&path, "\n").unwrap();
        token.refresh();
        assert_eq!(token.get(), Some("first"), "the new file is incomplete");
        fs::write(&path, "second").unwrap();
        token.refresh();
        assert_eq!(token.get(), Some("second"));
    }

    #[test]
    fn a_token_of_a_file_that_cannot_be_written_is_renewed_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone/token");
        let mut token = Token::new(Some(path.clone()), None);
        assert_eq!(token.get(), None);
        token.renew("second", true);
        token.refresh();
        assert_eq!(token.get(), Some("second"));
        fs::create_dir(folder.path().join("gone")).unwrap();
        fs::write(&path, "third").unwrap();
        token.refresh();
        assert_eq!(token.get(), Some("third"));
        let mut none = Token::new(None, None);
        none.renew("given", true);
        none.refresh();
        assert_eq!(none.get(), Some("given"));
    }

    #[test]
    fn a_token_from_a_server_without_proof_is_never_written_and_dropped_when_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let own = "tk2.e.t.1.mac";
        fs::write(&path, own).unwrap();
        #[rustfmt::skip]
        let table = [
            ("another trial's",             "tk2.e.other.2.mac", true,  own,             own),
            ("none at all",                 "hostile",           true,  own,             own),
            ("the same trial's, unproved",  "tk2.e.t.2.mac",     false, "tk2.e.t.2.mac", own),
            ("the same trial's, proved",    "tk2.e.t.3.mac",     true,  "tk2.e.t.3.mac", "tk2.e.t.3.mac"),
        ];
        for (case, given, proved, used, kept) in table {
            let mut token = Token::new(Some(path.clone()), None);
            token.get();
            token.renew(given, proved);
            assert_eq!(token.get(), Some(used), "{case}");
            assert_eq!(fs::read_to_string(&path).unwrap(), kept, "{case}");
            token.handle_refusal();
            assert_eq!(token.get(), Some(kept), "{case}");
        }
    }
}
