//! What of the batches is compressed. It changes nothing of what they say.
//!
//! The processor that compresses is the trial's, so it is done only where it saves something: for a large
//! batch that leaves the machine. Over loopback a byte costs less than its compression.

use std::net::IpAddr;

use reqwest::{StatusCode, Url};
use trial_protocol::capability;

use super::{Deliverer, Error};
use crate::util::gzip::gzip;

/// The least that is compressed, in bytes: what is less is a few packets anyway.
const LEAST: usize = 8 << 10;

/// A body as it is sent.
pub(super) struct EncodedBody {
    pub(super) bytes: Vec<u8>,
    /// `true` if it is compressed.
    pub(super) gzip: bool,
}

impl Deliverer {
    /// Compresses a body for the manager at `base`, if that is worth it and it can read that.
    pub(super) async fn encode_body(&self, base: &str, body: Vec<u8>) -> EncodedBody {
        let reads = || {
            let peer = self.peer.borrow();
            peer.as_ref().is_some_and(|offer| offer.capabilities.contains(capability::GZIP))
        };
        if body.len() < LEAST || self.lock().plain || !reads() || is_here(base) {
            return EncodedBody { bytes: body, gzip: false };
        }
        // A few milliseconds, in which the loop would forward no signal and see no output.
        let packed = tokio::task::spawn_blocking(move || {
            let bytes = gzip(&body);
            let gzip = bytes.len() < body.len();
            EncodedBody { bytes: if gzip { bytes } else { body }, gzip }
        });
        packed.await.expect("compressing does not panic, and nobody cancels it")
    }

    /// Returns whether a body that was refused may have been so because it is compressed: a server that offers gzip may
    /// be replaced by one that does not, or stand behind one that does not. Nothing is compressed from then on.
    pub(super) fn is_compression_refused(&self, error: &Error) -> bool {
        let refused = matches!(
            error,
            Error::Refused { .. }
                | Error::Failed {
                    status: StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    ..
                }
        );
        if refused {
            self.lock().plain = true;
        }
        refused
    }
}

/// Returns whether this is an address of the machine's own loopback interface.
fn is_here(base: &str) -> bool {
    let Some(host) = Url::parse(base).ok().and_then(|url| url.host_str().map(str::to_owned)) else {
        return false;
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    match address.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_on_the_machine_is_told_from_what_leaves_it() {
        #[rustfmt::skip]
        let table = [
            ("http://127.0.0.1:8080",        true),
            ("http://127.9.9.9",             true),
            ("https://[::1]:8080/prefix",    true),
            ("http://localhost:8080",        true),
            ("http://LOCALHOST",             true),
            ("http://manager.localhost",     true),
            ("http://10.0.0.1:8080",         false),
            ("https://[fd00::1]:8080",       false),
            ("http://manager.default.svc",   false),
            ("http://mylocalhost",           false),
            ("nonsense",                     false),
        ];
        for (base, here) in table {
            assert_eq!(is_here(base), here, "{base}");
        }
    }
}
