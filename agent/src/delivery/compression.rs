//! The compression of batches. It does not change their content.
//!
//! Compression uses the trial's processor. It is therefore limited to large batches that leave the machine. Over
//! loopback, sending a byte costs less than compressing it.

use std::net::IpAddr;

use reqwest::{StatusCode, Url};

use super::Error;
use crate::util::gzip::gzip;

/// The minimum size of a body to compress, in bytes. A smaller body needs only a few packets anyway.
const MIN_BODY_BYTES: usize = 8 << 10;

/// A body as sent.
pub(super) struct EncodedBody {
    pub(super) bytes: Vec<u8>,
    /// `true` if it is compressed.
    pub(super) gzip: bool,
}

/// Compresses a body if `compress` is set and the result is smaller.
pub(super) async fn encode(body: Vec<u8>, compress: bool) -> EncodedBody {
    if !compress {
        return EncodedBody { bytes: body, gzip: false };
    }
    // Compression takes a few milliseconds, in which the loop could not forward signals or read output.
    let encoded = tokio::task::spawn_blocking(move || {
        let bytes = gzip(&body);
        let gzip = bytes.len() < body.len();
        EncodedBody { bytes: if gzip { bytes } else { body }, gzip }
    });
    encoded.await.expect("compressing does not panic, and the task is not cancelled")
}

/// Returns whether a body of this size for the manager at `base` is worth compressing.
pub(super) fn is_worthwhile(base: &str, bytes: usize) -> bool {
    bytes >= MIN_BODY_BYTES && !is_loopback(base)
}

/// Returns whether the compression may be the reason for the refusal of a body. A server that offers gzip may be
/// replaced by a server without gzip, or have a proxy without gzip in front of it.
pub(super) fn can_cause_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused { .. }
            | Error::Failed {
                status: StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE,
                ..
            }
    )
}

/// Returns whether `base` is an address of the machine's loopback interface.
fn is_loopback(base: &str) -> bool {
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
    fn loopback_addresses_are_recognised() {
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
        for (base, loopback) in table {
            assert_eq!(is_loopback(base), loopback, "{base}");
        }
    }
}
