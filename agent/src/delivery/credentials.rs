//! What lets us in at the manager: its address, the token, the authority that signed its certificate.
//!
//! Where they are in files they are read before the trial starts, since that may remove its directory at once, with
//! them in it, and again whenever a delivery has failed.

use std::fmt;
use std::path::Path;

use reqwest::Client;

use super::local::{LOCAL_BASE, LocalClient};
use super::{Deliverer, Error, ManagerAddress, ManagerSession, token};

/// The content of the files. What could not be read is read, and told of, when it is needed.
#[derive(Clone, Default)]
pub struct Credentials {
    base: Option<String>,
    token: Option<String>,
    /// In PEM form.
    authority: Option<Vec<u8>>,
}

impl Credentials {
    /// Reads them.
    pub fn read(
        manager: &ManagerAddress,
        token_file: Option<&Path>,
        ca_file: Option<&Path>,
    ) -> Self {
        Self {
            base: manager.url().ok(),
            token: token_file.and_then(|path| token::text(path).ok()),
            authority: ca_file.and_then(|path| std::fs::read(path).ok()),
        }
    }

    pub(super) fn token(&self) -> Option<&String> {
        self.token.as_ref()
    }

    pub(super) fn authority(&self) -> Option<&Vec<u8>> {
        self.authority.as_ref()
    }
}

/// The token must not reach a log.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Deliverer {
    /// Returns the client, address and token of a request; all of it is read again after [`Deliverer::refresh`].
    pub(super) fn contact(&self) -> Result<(Client, String, Option<String>, Vec<u64>), Error> {
        let mut contact = self.lock();
        let (client, base) = match self.local(&mut contact)? {
            Some(client) => (client, LOCAL_BASE.to_owned()),
            None => (contact.caller.get()?, self.base(&mut contact)?),
        };
        let token = contact.token.get().map(str::to_owned);
        Ok((client, base, token, contact.obeyed.clone()))
    }

    /// The client of a manager on this machine, if its socket is there or ever was.
    fn local(&self, contact: &mut ManagerSession) -> Result<Option<Client>, Error> {
        if contact.local.is_none()
            && let Some(socket) = self.settings.manager.socket()
        {
            contact.local = Some(LocalClient::new(&socket)?);
        }
        Ok(contact.local.as_ref().map(|local| local.client().clone()))
    }

    pub(super) fn base(&self, contact: &mut ManagerSession) -> Result<String, Error> {
        if let Some(base) = &contact.base {
            return Ok(base.clone());
        }
        // A file that is gone does not say that the manager has moved.
        let known = contact.last_base.take().or_else(|| self.settings.credentials.base.clone());
        let base = self.settings.manager.url().or_else(|error| known.ok_or(error))?;
        contact.last_base = Some(base.clone());
        Ok(contact.base.insert(base).clone())
    }

    /// Has all of it read again: the manager may have moved, the rest been replaced.
    pub(super) fn refresh(&self) {
        let mut contact = self.lock();
        contact.base = None;
        contact.caller.refresh();
        contact.token.refresh();
    }
}

/// Returns whether the server at this base URL has proved who it is.
pub(super) fn is_encrypted(base: &str) -> bool {
    base.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}
