//! The manager's certificate: the user's own, or one made on the first start.
//!
//! Without one of the user's, the manager has an authority of its own in its folder, `ca.pem` and
//! `ca-key.pem`, and signs itself a certificate for its present names at each start. Agents are given
//! `ca.pem` and trust nothing else, so the names may change while they live. The certificates do not
//! expire: they are trusted because they were handed over, and a trial's machine may have a wrong clock.

use std::fs;
use std::io;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// The manager's side of every encrypted connection; cheap to clone.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    ca_pem: Option<Arc<str>>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} holds no {what} in PEM form", .path.display())]
    NotPem {
        /// Which file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// One of the names is none.
    #[error("a certificate cannot be made for {names}")]
    Names {
        /// The names asked for.
        names: String,
        /// What is wrong.
        #[source]
        source: rcgen::Error,
    },
    /// Certificate and key do not work.
    #[error("the certificate and its key cannot be used together")]
    Unusable(#[source] rustls::Error),
}

impl Tls {
    /// Uses the user's certificate (with the chain behind it) and its key, both in PEM form.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(certificate)?)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|chain: &Vec<_>| !chain.is_empty())
            .ok_or_else(|| not_pem(certificate, "certificate"))?;
        let key =
            PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| not_pem(key, "private key"))?;
        Ok(Self { acceptor: acceptor(chain, key)?, ca_pem: None })
    }

    /// Uses the authority in `folder`, made on the first start, and signs a certificate for `names`: host
    /// names and addresses under which agents reach the manager.
    pub fn load_or_create(folder: &Path, names: &[String]) -> Result<Self, Error> {
        let refused = |source| Error::Names { names: names.join(", "), source };
        let (ca_pem, ca_key) = authority(folder)?;
        let issuer = Issuer::new(authority_params(), ca_key);
        let key = KeyPair::generate().map_err(refused)?;
        let mut params = CertificateParams::new(names).map_err(refused)?;
        params.distinguished_name = named("TrialKeeper manager");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer).map_err(refused)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let acceptor = acceptor(vec![certificate.der().clone()], key)?;
        Ok(Self { acceptor, ca_pem: Some(ca_pem.into()) })
    }

    /// The authority that agents are to trust, in PEM form. `None` for a certificate of the user's, which
    /// the user's own authority vouches for.
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }
}

fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<TlsAcceptor, Error> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(Error::Unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The authority's certificate and key, made where they are missing.
fn authority(folder: &Path) -> Result<(String, KeyPair), Error> {
    let (certificate, key) = (folder.join("ca.pem"), folder.join("ca-key.pem"));
    if !certificate.exists() {
        let broken = |source| Error::Names { names: "the authority".to_owned(), source };
        let new_key = KeyPair::generate().map_err(broken)?;
        let new = authority_params().self_signed(&new_key).map_err(broken)?;
        // The certificate last: whoever sees it finds its key beside it.
        write(&key, &new_key.serialize_pem())?;
        write(&certificate, &new.pem())?;
    }
    let text = |path: &Path| String::from_utf8(read(path)?).map_err(|_| not_pem(path, "text"));
    let pair = KeyPair::from_pem(&text(&key)?).map_err(|_| not_pem(&key, "private key"))?;
    Ok((text(&certificate)?, pair))
}

/// The same at every start: what it issues names it as the issuer.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("TrialKeeper manager's own authority");
    // It vouches for this manager's certificate, never for another authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::File { action: "read", path: path.to_owned(), source })
}

/// Writes aside and renames; readable by the owner only, as temporary files are.
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

/// A client that trusts one authority and no other.
#[cfg(test)]
pub(super) fn connector(ca_pem: &str) -> tokio_rustls::TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names() -> Vec<String> {
        vec!["manager.example".to_owned(), "10.0.0.1".to_owned()]
    }

    #[test]
    fn the_authority_is_made_once_and_its_key_is_the_owner_s() {
        let folder = tempfile::tempdir().unwrap();
        let first = Tls::load_or_create(folder.path(), &names()).unwrap();
        let again = Tls::load_or_create(folder.path(), &["elsewhere".to_owned()]).unwrap();
        assert_eq!(first.ca_pem(), again.ca_pem());
        let mode = fs::metadata(folder.path().join("ca-key.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
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
