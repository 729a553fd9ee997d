//! The manager's certificate: the user's own, or one that the manager makes on its first start.
//!
//! Without a certificate of the user, the manager has its own authority in its folder, `ca.pem` and `ca-key.pem`. At
//! each start, it signs a certificate for its present names. Agents receive `ca.pem` and trust nothing else, so the
//! names may change during their lifetime. The certificates do not expire: agents trust them because the manager
//! delivered them, and a trial's machine may have a wrong clock.

use std::fs;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::TlsAcceptor;

/// The time after which the manager checks the files of the user's certificate again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The manager's side of every encrypted connection; cheap to clone.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    ca_pem: Option<Arc<str>>,
}

/// The reason why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// The failed action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file does not contain the expected item.
    #[error("{} contains no {what} in PEM form", .path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// The expected item.
        what: &'static str,
    },
    /// A name is not valid in a certificate.
    #[error("cannot make a certificate for {names}")]
    Names {
        /// The requested names.
        names: String,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// The certificate and the key cannot be used together.
    #[error("the certificate and its key cannot be used together")]
    Unusable(#[source] rustls::Error),
}

impl Tls {
    /// Uses the user's certificate (followed by its chain) and its key, both in PEM form. The manager reads the files
    /// again when they change, so the certificate can be replaced while the manager runs.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let files = CertificateFiles::read(certificate, key)?;
        Ok(Self { acceptor: acceptor(Arc::new(files))?, ca_pem: None })
    }

    /// Uses the authority in `folder`, which is made on the first start. Signs a certificate for `names`: the host
    /// names and addresses under which agents reach the manager.
    pub fn load_or_create(folder: &Path, names: &[String]) -> Result<Self, Error> {
        let refused = |source| Error::Names { names: names.join(", "), source };
        let (ca_pem, ca_key) = load_or_create_authority(folder)?;
        let issuer = Issuer::new(authority_params(), ca_key);
        let key = KeyPair::generate().map_err(refused)?;
        let mut params = CertificateParams::new(names).map_err(refused)?;
        params.distinguished_name = distinguished_name("TrialKeeper manager");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer).map_err(refused)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let certified = certified_key(vec![certificate.der().clone()], key)?;
        let acceptor = acceptor(Arc::new(SingleCertAndKey::from(certified)))?;
        Ok(Self { acceptor, ca_pem: Some(ca_pem.into()) })
    }

    /// Returns the authority that agents must trust, in PEM form. `None` with a certificate of the user, which the
    /// user's own authority has signed.
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    pub(in crate::api) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }
}

/// The user's certificate, read from its files.
#[derive(Debug)]
struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    present: Mutex<LoadedCertificate>,
}

#[derive(Debug)]
struct LoadedCertificate {
    certified: Arc<CertifiedKey>,
    /// The stamp that distinguishes these files from later ones.
    stamp: CertificateStamp,
    checked_at: Instant,
}

/// The time of the last change and the inode of each of the two files.
type CertificateStamp = [Option<(i64, i64, u64)>; 2];

impl CertificateFiles {
    fn read(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let stamp = stamp(certificate, key);
        let certified = load_certificate(certificate, key)?;
        let present = LoadedCertificate { certified, stamp, checked_at: Instant::now() };
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            present: Mutex::new(present),
        })
    }

    /// Returns the certificate, read again if its files have changed. If the new files cannot be used, the old
    /// certificate stays: perhaps only one of the two files was replaced so far.
    fn current(&self, now: Instant) -> Arc<CertifiedKey> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(present.checked_at) >= RECHECK_INTERVAL {
            present.checked_at = now;
            let stamp = stamp(&self.certificate, &self.key);
            if stamp != present.stamp {
                present.stamp = stamp;
                match load_certificate(&self.certificate, &self.key) {
                    Ok(certified) => {
                        tracing::info!("the certificate was replaced");
                        present.certified = certified;
                    }
                    Err(error) => {
                        let error = crate::util::errors::error_chain(&error);
                        tracing::error!(
                            "cannot use the new certificate, so the old one stays in use: {error}"
                        );
                    }
                }
            }
        }
        Arc::clone(&present.certified)
    }
}

impl ResolvesServerCert for CertificateFiles {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current(Instant::now()))
    }
}

fn stamp(certificate: &Path, key: &Path) -> CertificateStamp {
    [certificate, key].map(|path| {
        let found = fs::metadata(path).ok()?;
        Some((found.mtime(), found.mtime_nsec(), found.ino()))
    })
}

fn load_certificate(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, Error> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(certificate)?)
        .collect::<Result<_, _>>()
        .ok()
        .filter(|chain: &Vec<_>| !chain.is_empty())
        .ok_or_else(|| not_pem(certificate, "certificate"))?;
    let key =
        PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| not_pem(key, "private key"))?;
    Ok(Arc::new(certified_key(chain, key)?))
}

fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, Error> {
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(Error::Unusable)
}

fn acceptor(certificates: Arc<dyn ResolvesServerCert>) -> Result<TlsAcceptor, Error> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth().with_cert_resolver(certificates))
        .map_err(Error::Unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Returns the authority's certificate and key, and makes them if they are missing.
fn load_or_create_authority(folder: &Path) -> Result<(String, KeyPair), Error> {
    let (certificate, key) = (folder.join("ca.pem"), folder.join("ca-key.pem"));
    if !certificate.exists() {
        let broken = |source| Error::Names { names: "the authority".to_owned(), source };
        let new_key = KeyPair::generate().map_err(broken)?;
        let new = authority_params().self_signed(&new_key).map_err(broken)?;
        // The certificate is written last, so a reader that finds it also finds its key.
        write(&key, &new_key.serialize_pem())?;
        write(&certificate, &new.pem())?;
    }
    let text = |path: &Path| String::from_utf8(read(path)?).map_err(|_| not_pem(path, "text"));
    let pair = KeyPair::from_pem(&text(&key)?).map_err(|_| not_pem(&key, "private key"))?;
    Ok((text(&certificate)?, pair))
}

/// Returns the parameters of the authority. They are the same at every start, because its certificates name it as the
/// issuer.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name("TrialKeeper manager's own authority");
    // The authority signs this manager's certificate, never another authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn distinguished_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::File { action: "read", path: path.to_owned(), source })
}

/// Writes a temporary file and renames it. Only the owner can read the file, as usual for temporary files.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::File { action: "write", path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file =
        tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map(drop).map_err(|refused| failed(refused.error))
}

fn not_pem(path: &Path, what: &'static str) -> Error {
    Error::NotPem { path: path.to_owned(), what }
}

/// Returns a client that trusts only the given authority or, without one, the public authorities.
pub(in crate::api) fn connector(
    ca_pem: Option<&str>,
) -> Result<tokio_rustls::TlsConnector, String> {
    let mut roots = rustls::RootCertStore::empty();
    if let Some(ca_pem) = ca_pem {
        let authority = CertificateDer::from_pem_slice(ca_pem.as_bytes());
        let authority =
            authority.map_err(|error| format!("its authority cannot be read: {error}"))?;
        roots.add(authority).map_err(|error| format!("its authority cannot be used: {error}"))?;
    } else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tokio_rustls::TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names() -> Vec<String> {
        vec!["manager.example".to_owned(), "10.0.0.1".to_owned()]
    }

    #[test]
    fn the_authority_is_made_once_and_only_the_owner_reads_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let first = Tls::load_or_create(folder.path(), &names()).unwrap();
        let again = Tls::load_or_create(folder.path(), &["elsewhere".to_owned()]).unwrap();
        assert_eq!(first.ca_pem(), again.ca_pem());
        let mode = fs::metadata(folder.path().join("ca-key.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_replaced_certificate_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let new = |name: &str| {
            let pair = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
            (pair.cert.pem(), pair.signing_key.serialize_pem(), pair.cert.der().clone())
        };
        // Renamed into place, as in the rotation of certificates.
        let put = |path: &Path, text: &str| {
            let aside = folder.path().join("aside");
            fs::write(&aside, text).unwrap();
            fs::rename(&aside, path).unwrap();
        };
        let (first, second) = (new("first.example"), new("second.example"));
        put(&certificate, &first.0);
        put(&key, &first.1);
        let files = CertificateFiles::read(&certificate, &key).unwrap();
        let now = std::cell::Cell::new(Instant::now());
        let used = || {
            now.set(now.get() + RECHECK_INTERVAL);
            files.current(now.get()).cert[0].clone()
        };
        assert_eq!(used(), first.2);
        put(&certificate, &second.0);
        assert_eq!(used(), first.2, "only one file is replaced");
        put(&key, &second.1);
        assert_eq!(used(), second.2);
        fs::remove_file(&key).unwrap();
        assert_eq!(used(), second.2, "the last usable certificate");
        put(&certificate, &first.0);
        put(&key, &first.1);
        assert_eq!(files.current(now.get()).cert[0], second.2, "not checked for every connection");
        assert_eq!(used(), first.2);
    }

    #[test]
    fn unusable_certificates_and_keys_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        Tls::load_or_create(folder.path(), &names()).unwrap();
        fs::write(path("text"), "no certificate").unwrap();
        let other = KeyPair::generate().unwrap();
        fs::write(path("other-key.pem"), other.serialize_pem()).unwrap();
        let refusal = |certificate: &str, key: &str| {
            Tls::from_files(&path(certificate), &path(key)).err().unwrap()
        };
        assert!(matches!(refusal("missing", "ca-key.pem"), Error::File { .. }));
        assert!(matches!(refusal("text", "ca-key.pem"), Error::NotPem { what: "certificate", .. }));
        assert!(matches!(refusal("ca.pem", "text"), Error::NotPem { what: "private key", .. }));
        assert!(matches!(refusal("ca.pem", "other-key.pem"), Error::Unusable(_)));
        assert!(Tls::from_files(&path("ca.pem"), &path("ca-key.pem")).is_ok());
        let nonsense = Tls::load_or_create(folder.path(), &["no name\u{e9}".to_owned()]);
        assert!(matches!(nonsense.err().unwrap(), Error::Names { .. }));
        fs::write(path("ca-key.pem"), "no key").unwrap();
        let broken = Tls::load_or_create(folder.path(), &names()).err().unwrap();
        assert!(matches!(broken, Error::NotPem { what: "private key", .. }));
    }
}
