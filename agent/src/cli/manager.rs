//! Options for the connection to the manager.

use std::path::PathBuf;

use super::flags::{flags, path, value};
use super::values;
use crate::delivery::ManagerAddress;

flags! {
    /// The manager and its credentials.
    pub struct ManagerArgs {
        /// Base URL of the manager.
        manager: Option<String> = value("URL", values::manager),
        /// A file whose first line is the manager's URL. Read again when the manager does not answer.
        manager_file: Option<PathBuf> = path("FILE"),
        /// A file with the token for the manager.
        token_file: Option<PathBuf> = path("FILE"),
        /// A PEM file with the authority that signed the manager's certificate [default: public authorities].
        ca_file: Option<PathBuf> = path("FILE"),
    }
}

impl ManagerArgs {
    /// Returns the address, if one was given.
    pub fn address(&self) -> Option<ManagerAddress> {
        ManagerAddress::given(self.manager.clone(), self.manager_file.clone())
    }
}
