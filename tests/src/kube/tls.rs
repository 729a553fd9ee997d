//! A TLS proxy in front of the server, as on clusters of kubeadm, kind or k3s. Its certificate for 127.0.0.1
//! is signed by the cluster's own authority. It accepts client certificates of the same authority.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use super::{Kube, write_kubeconfig};

/// The TLS proxy. Dropping it closes it.
pub struct TlsProxy {
    address: SocketAddr,
    token: String,
    /// The certificate of the authority, in PEM form.
    pub ca: String,
    /// A client certificate of the authority, and its key.
    pub client: (String, String),
    _runtime: Runtime,
}

impl TlsProxy {
    /// Starts a proxy in front of a server.
    pub fn start(kube: &Kube) -> Self {
        Self::start_with_expiry(kube, None, None)
    }

    /// Starts a proxy. The server's certificate and the client's are valid until the end of the given years.
    pub fn start_with_expiry(
        kube: &Kube,
        own_until: Option<i32>,
        client_until: Option<i32>,
    ) -> Self {
        let mut params =
            CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("the system has entropy");
        let authority = params.self_signed(&key).expect("the parameters are valid");
        let issuer = Issuer::new(params, key);
        let signed = |name: &str, usage, until: Option<i32>| {
            let mut params = CertificateParams::new([name.to_owned()]).expect("the name is valid");
            params.extended_key_usages = vec![usage];
            if let Some(until) = until {
                params.not_after = date_time_ymd(until, 12, 31);
            }
            let key = KeyPair::generate().expect("the system has entropy");
            (params.signed_by(&key, &issuer).expect("the parameters are valid"), key)
        };
        let (own, own_key) = signed("127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth, own_until);
        let (client, client_key) =
            signed("admin", ExtendedKeyUsagePurpose::ClientAuth, client_until);

        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).expect("the certificate is valid");
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let own_key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has protocol versions")
            .with_client_cert_verifier(verifier.build().expect("the store has a root certificate"))
            .with_single_cert(vec![own.der().clone()], own_key)
            .expect("the key belongs to the certificate");

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads can be started");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let server = kube.address();
        runtime.spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut client = acceptor.accept(stream).await.ok()?;
                    let mut server = TcpStream::connect(server).await.ok()?;
                    // Ignored: a client may disconnect.
                    copy_bidirectional(&mut client, &mut server).await.ok()
                });
            }
        });
        let client = (client.pem(), client_key.serialize_pem());
        let token = kube.shared.faults.token();
        Self { address, token, ca: authority.pem(), client, _runtime: runtime }
    }

    /// Writes a kubeconfig for this proxy. `cluster` and `user` are added to the address and the token.
    pub fn write_kubeconfig(&self, path: &Path, cluster: &str, user: &str) {
        let cluster = format!("{{server: 'https://{}', {cluster}}}", self.address);
        write_kubeconfig(path, &cluster, &format!("{{token: {}, {user}}}", self.token));
    }

    /// Writes a kubeconfig without a token.
    pub fn write_kubeconfig_without_token(&self, path: &Path, cluster: &str, user: &str) {
        let cluster = format!("{{server: 'https://{}', {cluster}}}", self.address);
        write_kubeconfig(path, &cluster, &format!("{{{user}}}"));
    }

    /// Encodes a PEM file for a kubeconfig.
    pub fn encode_pem(pem: &str) -> String {
        BASE64_STANDARD.encode(pem)
    }
}
