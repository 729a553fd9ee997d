//! PURE: the expiry of certificates. A cluster rejects an expired client certificate with the same message as an
//! unknown client.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

const SEQUENCE_TAG: u8 = 0x30;
const VERSION_TAG: u8 = 0xa0;
const UTC_TIME_TAG: u8 = 0x17;
const GENERALIZED_TIME_TAG: u8 = 0x18;

/// Returns the time at which the first certificate in a PEM text expires. `None`: the text cannot be read.
pub(super) fn expiry_time(pem: &[u8]) -> Option<Timestamp> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    // RFC 5280, section 4.1: the signed part comes first. It holds the optional version, the serial number, the
    // algorithm, the issuer and the two times.
    let signed = sequence_content(&certificate)?;
    let mut rest = sequence_content(signed)?;
    if rest.first() == Some(&VERSION_TAG) {
        rest = split_item(rest)?.2;
    }
    for _ in 0..3 {
        rest = split_item(rest)?.2;
    }
    let times = sequence_content(rest)?;
    let (kind, text, _) = split_item(split_item(times)?.2)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let at = match kind {
        // The year has two digits, and 50 means 1950.
        UTC_TIME_TAG => {
            let century = if text.get(..2)? < "50" { "20" } else { "19" };
            DateTime::strptime("%Y%m%d%H%M%S", format!("{century}{text}"))
        }
        GENERALIZED_TIME_TAG => DateTime::strptime("%Y%m%d%H%M%S", text),
        _ => return None,
    };
    Some(at.ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Returns the content of a sequence.
fn sequence_content(der: &[u8]) -> Option<&[u8]> {
    split_item(der).filter(|(kind, ..)| *kind == SEQUENCE_TAG).map(|(_, content, _)| content)
}

/// Returns the kind and the content of the first item, and the bytes after it.
fn split_item(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = der.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*length) {
        short @ 0..0x80 => (short, rest),
        long => {
            let (digits, rest) = rest.split_at_checked(long - 0x80)?;
            let length = digits.iter().try_fold(0_usize, |sum, digit| {
                sum.checked_mul(256)?.checked_add(usize::from(*digit))
            });
            (length?, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*kind, content, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_expiry_of_a_certificate_is_read() {
        for (year, text) in [
            (2019, "2019-03-04T00:00:00Z"),
            (2049, "2049-03-04T00:00:00Z"),
            (2050, "2050-03-04T00:00:00Z"),
        ] {
            let mut params = CertificateParams::new(["admin".to_owned()]).unwrap();
            params.not_before = date_time_ymd(2018, 1, 2);
            params.not_after = date_time_ymd(year, 3, 4);
            let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
            assert_eq!(expiry_time(pem.as_bytes()), Some(text.parse().unwrap()), "{year}");
        }
        let key = KeyPair::generate().unwrap().serialize_pem();
        for none in [
            "",
            "x",
            key.as_str(),
            "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        ] {
            assert_eq!(expiry_time(none.as_bytes()), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in any::<Vec<u8>>()) {
            split_item(&bytes);
        }
    }
}
