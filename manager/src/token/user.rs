//! The user's token: one per experiment, in a file that only its owner can read. Its holder has all rights of the
//! experiment's owner.
//!
//! The file is read for each request with a token, so that replacing the file immediately invalidates the old token.
//! The digests of browser sessions are derived from the token, so a replacement also ends these sessions.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;

use super::{Error, SECRET_BYTES, file, random_bytes};

/// The first part of a user's token, which distinguishes it from a trial's token.
const USER_TOKEN_SCHEME: &str = "tku1";

/// The minimum number of characters in a token that the user chose.
const MIN_TOKEN_LENGTH: usize = 16;

/// The maximum number of characters.
const MAX_TOKEN_LENGTH: usize = 512;

/// The token of an experiment's user.
#[derive(Clone)]
pub struct UserToken {
    path: PathBuf,
    /// The key for comparing tokens in constant time.
    comparison_key: hmac::Key,
}

impl UserToken {
    /// Reads the token from this file. On the first start, it creates the token and the file, which only the owner
    /// can read.
    pub fn load_or_create(path: &Path) -> Result<Self, Error> {
        let new = || {
            let token = BASE64_URL_SAFE_NO_PAD.encode(random_bytes::<SECRET_BYTES>()?);
            Ok(format!("{USER_TOKEN_SCHEME}.{token}\n").into_bytes())
        };
        parse_token(&file::read_or_create(path, new)?, path)?;
        let comparison_key = hmac::Key::new(hmac::HMAC_SHA256, &random_bytes::<SECRET_BYTES>()?);
        Ok(Self { path: path.to_owned(), comparison_key })
    }

    /// Returns the path of the file with the token.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the token for its user. It must not be logged.
    pub fn reveal(&self) -> Result<String, Error> {
        parse_token(&file::read(&self.path)?, &self.path)
    }

    /// Returns whether `shown` is the token.
    pub fn is_equal_to(&self, shown: &str) -> bool {
        self.check_current(|token| self.is_same_token(token, shown))
    }

    /// Returns the digest of a browser's session, derived from its id and the present token. `None` if the file
    /// cannot be read.
    pub fn session_digest(&self, session: &str) -> Option<String> {
        self.reveal().map(|token| hash_session(&token, session)).ok()
    }

    /// Returns the token for programs that read a `.netrc` (NNI's client, curl) and do not support TrialKeeper's
    /// tokens.
    pub fn netrc(&self) -> Result<String, Error> {
        let token = self.reveal()?;
        let line = |host: &str| format!("machine {host} login user password {token}\n");
        Ok(["localhost", "127.0.0.1"].map(line).concat())
    }

    /// Checks the token. If the file cannot be read, the result is `false`.
    fn check_current(&self, check: impl FnOnce(&str) -> bool) -> bool {
        match self.reveal() {
            Ok(token) => check(&token),
            Err(error) => {
                let error = crate::util::errors::error_chain(&error);
                tracing::error!("the user's token cannot be checked: {error}");
                false
            }
        }
    }

    fn is_same_token(&self, wanted: &str, shown: &str) -> bool {
        let tag = hmac::sign(&self.comparison_key, shown.as_bytes());
        hmac::verify(&self.comparison_key, wanted.as_bytes(), tag.as_ref()).is_ok()
    }
}

impl fmt::Debug for UserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserToken").field("path", &self.path).finish_non_exhaustive()
    }
}

fn hash_session(token: &str, session: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let message = format!("trialkeeper portal session 2 {session}");
    BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&key, message.as_bytes()))
}

/// Returns the token in the file's first line, if it is valid in a header.
fn parse_token(bytes: &[u8], path: &Path) -> Result<String, Error> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let token = text.lines().next().unwrap_or_default().trim();
    let fits = (MIN_TOKEN_LENGTH..=MAX_TOKEN_LENGTH).contains(&token.len());
    if fits && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(token.to_owned())
    } else {
        Err(Error::NoToken { path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_token_is_created_once_for_the_owner_and_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.token");
        let user = UserToken::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let token = user.reveal().unwrap();
        assert!(token.starts_with("tku1."), "it differs from a trial's token");
        let again = UserToken::load_or_create(&path).unwrap();
        assert!(user.is_equal_to(&token) && again.is_equal_to(&token));
        let digest = user.session_digest("a").unwrap();
        assert_eq!(again.session_digest("a").as_ref(), Some(&digest));
        assert_ne!(user.session_digest("b").as_ref(), Some(&digest));
        for wrong in
            ["", "tku1.", &token[1..], &format!("{token} "), &token.to_uppercase(), &digest]
        {
            assert!(!user.is_equal_to(wrong), "{wrong:?}");
        }
        let other = UserToken::load_or_create(&folder.path().join("other")).unwrap();
        assert!(!other.is_equal_to(&token) && other.session_digest("a") != Some(digest));
        assert!(!format!("{user:?}").contains(&token));
    }

    #[test]
    fn replacing_the_token_invalidates_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.token");
        let user = UserToken::load_or_create(&path).unwrap();
        let (old, session) = (user.reveal().unwrap(), user.session_digest("a"));
        fs::write(&path, "a-token-of-the-user's-own\n").unwrap();
        assert!(user.is_equal_to("a-token-of-the-user's-own"));
        assert!(!user.is_equal_to(&old) && user.session_digest("a") != session);
        fs::remove_file(&path).unwrap();
        assert!(
            !user.is_equal_to("a-token-of-the-user's-own") && !user.is_equal_to(""),
            "without a file, every token is refused"
        );
        assert_eq!(user.session_digest("a"), None);
    }

    #[test]
    fn a_file_without_a_usable_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.token");
        let long = "x".repeat(MAX_TOKEN_LENGTH + 1);
        #[rustfmt::skip]
        let table: [(&str, &[u8]); 6] = [
            ("empty",           b""),
            ("an empty line",   b"\nlong-enough-to-be-a-token"),
            ("too short",       b"let-me-in"),
            ("too long",        long.as_bytes()),
            ("with spaces",     b"a token with spaces in it"),
            ("not UTF-8",       b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"),
        ];
        for (case, bytes) in table {
            fs::write(&path, bytes).unwrap();
            let refused = UserToken::load_or_create(&path).unwrap_err();
            assert!(matches!(refused, Error::NoToken { .. }), "{case}: {refused}");
        }
    }
}
