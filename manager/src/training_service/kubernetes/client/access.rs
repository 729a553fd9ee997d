//! Locates the cluster, without connecting to it: through a kubeconfig, or the pod that runs this program.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use hyper::Uri;
use kube::config::{Cluster, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::kubeconfig::{KubeconfigFiles, SelectedContext, kubeconfig_variable};
use super::proxy::proxy_for;
use super::{Access, Error};
use crate::util::errors::error_chain;

/// Returns the cluster's address and the credentials. Credentials that have expired are an error.
pub(super) fn load_config(access: &Access) -> Result<Config, Error> {
    let Some(files) = KubeconfigFiles::read(access)? else { return pod_config() };
    let selected = files.select(access.context.as_deref())?;
    let from = files.from;
    if let Some(since) = selected.expired_since() {
        return Err(Error::CertificateExpired { from, since });
    }
    to_config(selected).map_err(|message| Error::Kubeconfig { from, message })
}

/// Returns the context that the access data name, or else the current one. `None`: there is no kubeconfig, or it cannot
/// be used.
pub(super) fn chosen_context(access: &Access) -> Option<String> {
    let current = || KubeconfigFiles::read(access).ok()??.current_context().map(str::to_owned);
    access.context.clone().or_else(current)
}

/// Returns whether the token is the one in the kubeconfig, although `kubectl` could renew it.
pub(super) fn has_fixed_token(config: &Config) -> bool {
    config.auth_info.auth_provider.as_ref().is_some_and(|provider| provider.name == "oidc")
}

/// Returns the access of the pod that runs this program.
fn pod_config() -> Result<Config, Error> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        return Err(kubeconfig_variable().map_or(Error::NoKubeconfig, |(from, _)| {
            let message = "no file there has a context".to_owned();
            Error::Kubeconfig { from, message }
        }));
    }
    Config::incluster().map_err(|error| Error::Kubeconfig {
        from: "the pod's service account".to_owned(),
        message: error_chain(&error),
    })
}

/// Returns the library's configuration. Its own function also applies rules for proxies that differ from `kubectl`'s.
fn to_config(selected: SelectedContext) -> Result<Config, String> {
    let SelectedContext { namespace, cluster, mut user } = selected;
    let server = server_of(&cluster)?;
    let proxy = proxy_for(&server, cluster.proxy_url.as_deref(), |name| std::env::var(name).ok())?;
    if let Some(exec) = &mut user.exec
        && exec.provide_cluster_info
    {
        exec.cluster = Some((&cluster).try_into().map_err(|error| error_chain(&error))?);
    }
    let mut config = Config::new(server);
    config.root_cert = authorities_of(&cluster)?;
    config.proxy_url = proxy;
    config.auth_info = user;
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    config.disable_compression = cluster.disable_compression.unwrap_or(false);
    config.tls_server_name = cluster.tls_server_name.filter(|name| !name.is_empty());
    if let Some(namespace) = namespace {
        config.default_namespace = namespace;
    }
    Ok(config)
}

/// Returns the address of the API server. Without a scheme it uses TLS if the cluster has data for it, as in `kubectl`.
fn server_of(cluster: &Cluster) -> Result<Uri, String> {
    let text = cluster.server.as_deref().unwrap_or_default().trim();
    if text.is_empty() {
        return Err("its cluster has no `server`".to_owned());
    }
    let has_tls = cluster.insecure_skip_tls_verify == Some(true)
        || cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some();
    let text = match (text.contains("://"), has_tls) {
        (true, _) => text.to_owned(),
        (false, true) => format!("https://{text}"),
        (false, false) => format!("http://{text}"),
    };
    text.parse().map_err(|problem| format!("its cluster's `server` is not a URL: {problem}"))
}

/// Returns the certificates of the authorities that the cluster trusts. `None`: those of this machine.
fn authorities_of(cluster: &Cluster) -> Result<Option<Vec<Vec<u8>>>, String> {
    let pem = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) => STANDARD.decode(data).map_err(|problem| {
            format!("its cluster's `certificate-authority-data` is not base64: {problem}")
        })?,
        (None, Some(path)) => std::fs::read(path).map_err(|problem| {
            format!("its cluster's `certificate-authority` {path} cannot be read: {problem}")
        })?,
        (None, None) => return Ok(None),
    };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem).flatten().collect();
    if certificates.is_empty() {
        return Err("its cluster's certificate authority contains no certificate in PEM".to_owned());
    }
    Ok(Some(certificates.into_iter().map(|certificate| certificate.to_vec()).collect()))
}
