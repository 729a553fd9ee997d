//! The errors of requests to a cluster, each with its remedy.

use kube::client::AuthError;

use crate::util::errors::error_chain;
use crate::util::excerpt::shortened;

/// The format of the time at which a certificate expired.
pub(super) const EXPIRY_FORMAT: &str = "%Y-%m-%d %H:%M:%S UTC";

/// A reason why the cluster did not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No kubeconfig was found.
    #[error(
        "there is no kubeconfig: set `kubeconfig` in the experiment file or KUBECONFIG, or put one at ~/.kube/config"
    )]
    NoKubeconfig,
    /// The kubeconfig does not describe a usable cluster.
    #[error("the kubeconfig {from} cannot be used: {message}")]
    Kubeconfig {
        /// The origin of the kubeconfig.
        from: String,
        /// The problem.
        message: String,
    },
    /// The client certificate has expired.
    #[error(
        "the client certificate in the kubeconfig {from} expired on {since}: log in again, or ask the cluster's administrator for a new kubeconfig (with kubeadm: `kubeadm certs renew admin.conf`); is this machine's clock right?"
    )]
    CertificateExpired {
        /// The origin of the kubeconfig.
        from: String,
        /// The time of expiry.
        since: String,
    },
    /// The cluster's certificate has expired.
    #[error(
        "the certificate of the cluster at {server} has expired{since}: ask the cluster's administrator to renew it (with kubeadm: `kubeadm certs renew apiserver`); is this machine's clock right?"
    )]
    ServerExpired {
        /// The API server.
        server: String,
        /// ` on` and the time of expiry, if known.
        since: String,
    },
    /// No connection could be opened, or it was cut.
    #[error("the cluster at {server} cannot be reached: {message}")]
    Unreachable {
        /// The API server.
        server: String,
        /// The system's message.
        message: String,
    },
    /// One side does not accept the other's certificate.
    #[error(
        "no trusted connection to the cluster at {server}: {message}; check the certificates in the kubeconfig (has one expired?)"
    )]
    Certificate {
        /// The API server.
        server: String,
        /// The problem.
        message: String,
    },
    /// This machine has no certificate authority to check the cluster's certificate.
    #[error(
        "no trusted connection to the cluster at {server}: this machine has no certificate authorities; install its ca-certificates, or name the cluster's authority in the kubeconfig (certificate-authority)"
    )]
    NoAuthorities {
        /// The API server.
        server: String,
    },
    /// The cluster rejected the credentials.
    #[error(
        "the cluster at {server} rejected the credentials ({message}): the certificate or token in the kubeconfig may have expired"
    )]
    Unauthorized {
        /// The API server.
        server: String,
        /// The message of the program.
        message: String,
    },
    /// The kubeconfig's source of credentials, a program or a file, does not provide them.
    #[error("cannot load credentials for the cluster at {server}: {message}")]
    Credentials {
        /// The API server.
        server: String,
        /// The problem, without secrets from the program's arguments or output.
        message: String,
    },
    /// The cluster knows the account and refuses the request: rights are missing, or a quota is exhausted.
    #[error("the cluster does not allow the request: {message}")]
    NotAllowed {
        /// The message.
        message: String,
    },
    /// The object, its namespace or its kind does not exist.
    #[error("{message}")]
    NotFound {
        /// The message.
        message: String,
    },
    /// An object of that name exists.
    #[error("{message}")]
    Conflict {
        /// The message.
        message: String,
    },
    /// The cluster is too busy, or has a temporary fault.
    #[error("the cluster at {server} is in trouble ({code}): {message}")]
    Trouble {
        /// The API server.
        server: String,
        /// The HTTP status code.
        code: u16,
        /// The message.
        message: String,
    },
    /// The cluster does not accept the object.
    #[error("the cluster at {server} refuses the object: {message}")]
    Refused {
        /// The API server.
        server: String,
        /// The message.
        message: String,
    },
}

impl Error {
    /// Returns whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Trouble { .. } => true,
            Self::NoKubeconfig
            | Self::Kubeconfig { .. }
            | Self::CertificateExpired { .. }
            | Self::ServerExpired { .. }
            | Self::Certificate { .. }
            | Self::NoAuthorities { .. }
            | Self::Credentials { .. }
            | Self::Unauthorized { .. }
            | Self::NotAllowed { .. }
            | Self::NotFound { .. }
            | Self::Conflict { .. }
            | Self::Refused { .. } => false,
        }
    }

    /// Returns whether a request that succeeded before may succeed again after a user has removed the cause. Examples
    /// are an exhausted quota, an expired token or certificate, an absent authenticator, or a removed kind.
    pub fn is_recoverable(&self) -> bool {
        let is_auth_error = matches!(
            self,
            Self::Unauthorized { .. }
                | Self::Certificate { .. }
                | Self::ServerExpired { .. }
                | Self::Credentials { .. }
        );
        is_auth_error
            || matches!(self, Self::NotAllowed { .. })
            || self.is_not_found()
            || self.is_temporary()
    }

    /// Returns whether the object, its namespace or its kind does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Returns whether a quota is exhausted. Only the API server's message shows this: `… is forbidden: exceeded quota:
    /// …`.
    pub fn is_quota_exhausted(&self) -> bool {
        matches!(self, Self::NotAllowed { message } if message.contains("exceeded quota"))
    }

    /// Returns whether a webhook that the cluster calls for every object of this kind does not answer.
    pub fn is_webhook_down(&self) -> bool {
        matches!(self, Self::Trouble { message, .. } if message.contains("failed calling webhook"))
    }

    /// Returns whether the cluster knows the object's kind but not all of its fields.
    pub fn is_unknown_field(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains("strict decoding error"))
    }

    /// Returns whether an object of that name exists.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

/// Converts an error of the client library.
pub(super) fn from_kube(server: &str, source: kube::Error) -> Error {
    let server = server.to_owned();
    let kube::Error::Api(status) = source else {
        if let Some(problem) = find_auth_error(&source) {
            return Error::Credentials { server, message: credentials_message(problem) };
        }
        let message = error_chain(&source);
        // The names of the library's layers would not help a user.
        let layers = ["ServiceError: ", "client error (Connect): "];
        let message = layers
            .iter()
            .fold(message.as_str(), |text, layer| text.strip_prefix(layer).unwrap_or(text));
        let message = message.to_owned();
        if message.contains("No CA certificates were loaded") {
            return Error::NoAuthorities { server };
        }
        return if let Some((_, detail)) =
            message.split_once("peer certificate: certificate expired")
        {
            Error::ServerExpired { server, since: expiry_phrase(detail).unwrap_or_default() }
        } else if is_about_certificates(&message) {
            Error::Certificate { server, message }
        } else {
            Error::Unreachable { server, message }
        };
    };
    let (code, message) = (status.code, status.message.clone());
    let message = if message.is_empty() { status.reason.clone() } else { message };
    // The library's message for an answer that is not a `Status`. (The real server sends such an answer for unknown
    // kinds: `404 page not found`.)
    let message = if status.reason == "Failed to parse error data" {
        let detail = shortened(message.lines().next().unwrap_or_default());
        format!("the answer of {server} is not that of a Kubernetes API server ({code}): {detail}")
    } else {
        message
    };
    match code {
        401 => Error::Unauthorized { server, message },
        // A denial does not depend on the account's rights.
        403 if is_denied(&message) => Error::Refused { server, message },
        403 => Error::NotAllowed { message },
        404 => Error::NotFound { message },
        409 if status.reason == "AlreadyExists" => Error::Conflict { message },
        // Any other 409 is temporary: two requests collided, for example while a quota was counted.
        408 | 409 | 410 | 429 | 500..=599 => Error::Trouble { server, code, message },
        _ => Error::Refused { server, message },
    }
}

/// Returns whether a webhook or a policy of the cluster denied the object.
fn is_denied(message: &str) -> bool {
    let webhook = message.contains("admission webhook") && message.contains("denied the request");
    webhook || message.contains("ValidatingAdmissionPolicy")
}

/// Returns the time at which a certificate expired, from the library's message, to the second.
fn expiry_phrase(words: &str) -> Option<String> {
    let (_, seconds) = words.split_once("not valid after ")?;
    let seconds = seconds.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let at = jiff::Timestamp::from_second(seconds).ok()?;
    Some(format!(" on {}", at.strftime(EXPIRY_FORMAT)))
}

/// Returns whether a request failed because one side rejects the other's credentials, or because the client's own were
/// unavailable.
pub(super) fn is_credentials_error(source: &kube::Error) -> bool {
    find_auth_error(source).is_some() || is_about_certificates(&error_chain(source))
}

/// Returns whether an error concerns certificates. The libraries distinguish certificates from connections only in
/// their messages.
fn is_about_certificates(message: &str) -> bool {
    let words = ["ertificate", "UnknownIssuer", "CaUsedAsEndEntity", "invalid peer"];
    words.iter().any(|word| message.contains(word))
}

/// Finds the problem with the credentials among the sources of an error.
fn find_auth_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a AuthError> {
    error.downcast_ref().or_else(|| find_auth_error(error.source()?))
}

/// Describes a credentials problem for the user. The library's own message would contain a program's variables and
/// arguments, which hold secrets, and its output, which may be the token.
fn credentials_message(problem: &AuthError) -> String {
    match problem {
        AuthError::AuthExecStart(source) => format!(
            "the program that the kubeconfig names for it (users: exec) cannot be started: {source}; is it installed, and in the PATH?"
        ),
        AuthError::AuthExecRun { out, .. } => {
            let detail = String::from_utf8_lossy(&out.stderr);
            let detail =
                detail.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
            let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
            format!(
                "the program that the kubeconfig names for it (users: exec) failed ({}){detail}; does `kubectl get pods` work here?",
                out.status
            )
        }
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            "the program that the kubeconfig names for it (users: exec) printed no ExecCredential"
                .to_owned()
        }
        AuthError::InvalidBearerToken(_) => {
            "the token in the kubeconfig has invalid characters, such as a line break".to_owned()
        }
        AuthError::InvalidBasicAuth(_)
        | AuthError::UnrefreshableTokenResponse
        | AuthError::MalformedTokenExpirationDate(_)
        | AuthError::AuthExecSerialize(_)
        | AuthError::AuthExec(_)
        | AuthError::ReadTokenFile(..)
        | AuthError::ParseTokenKey(_)
        | AuthError::MissingCommand
        | AuthError::ExecMissingClusterInfo
        | AuthError::NoValidNativeRootCA(_) => error_chain(problem),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{ExitStatus, Output};

    use kube::core::Status;

    use super::*;

    #[test]
    fn status_codes_are_distinguished() {
        #[rustfmt::skip]
        let table = [
            (401, false, true,  "rejected the credentials"),
            (403, false, true,  "does not allow the request: exceeded quota"),
            (404, false, true,  "exceeded quota"),
            (409, true,  true,  "is in trouble (409)"),
            (422, false, false, "refuses the object"),
            (429, true,  true,  "is in trouble (429)"),
            (500, true,  true,  "is in trouble (500)"),
            (503, true,  true,  "is in trouble (503)"),
        ];
        for (code, is_temporary, is_recoverable, text) in table {
            let status = Status { code, message: "exceeded quota".to_owned(), ..Status::default() };
            let error = from_kube("https://k", kube::Error::Api(Box::new(status)));
            assert_eq!(error.is_temporary(), is_temporary, "{code}");
            assert_eq!(error.is_recoverable(), is_recoverable, "{code}");
            assert_eq!(error.is_quota_exhausted(), code == 403, "{code}");
            assert!(error.to_string().contains(text), "{code}: {error}");
            assert!(!error.is_conflict(), "{code}: {error}");
        }
        let status = Status { code: 409, reason: "AlreadyExists".to_owned(), ..Status::default() };
        let there = from_kube("https://k", kube::Error::Api(Box::new(status)));
        assert!(there.is_conflict() && !there.is_temporary(), "{there}");
    }

    #[test]
    fn a_webhooks_denial_is_permanent_and_its_absence_temporary() {
        let kyverno =
            "admission webhook \"validate.kyverno.svc\" denied the request: no latest tag";
        let policy = "jobs.batch \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        let away = "Internal error occurred: failed calling webhook \"mjob.kb.io\": failed to call webhook: Post \"https://kueue\": connection refused";
        let field = "Job in version \"v1\" cannot be handled as a Job: strict decoding error: unknown field \"spec.template.spec.a\"";
        #[rustfmt::skip]
        let table = [
            (400, kyverno,                     false, false, false),
            (403, kyverno,                     false, false, false),
            (403, policy,                      false, false, false),
            (403, "jobs.batch is forbidden",   true,  false, false),
            (500, away,                        true,  true,  false),
            (400, field,                       false, false, true),
        ];
        for (code, message, is_recoverable, is_webhook_down, is_unknown_field) in table {
            let status = Status { code, message: message.to_owned(), ..Status::default() };
            let error = from_kube("https://k", kube::Error::Api(Box::new(status)));
            assert_eq!(error.is_recoverable(), is_recoverable, "{code} {message}");
            assert_eq!(error.is_webhook_down(), is_webhook_down, "{code} {message}");
            assert_eq!(error.is_unknown_field(), is_unknown_field, "{code} {message}");
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn an_error_of_the_credentials_program_contains_no_secret() {
        let out = Output {
            status: ExitStatus::from_raw(2 << 8),
            stdout: b"a-token".to_vec(),
            stderr: b"warning: x\nThe session has expired; run `aws sso login`\n\n".to_vec(),
        };
        let cmd = "KEY=\"secret\" \"aws\"".to_owned();
        let failed = AuthError::AuthExecRun { cmd, out: Box::new(out) };
        // The error as it arrives after a renewal of the credentials, and as it arrives at the start.
        let boxed = kube::Error::Service(Box::new(AuthError::ExecPluginFailed));
        for (source, text) in [
            (
                kube::Error::Auth(failed),
                "failed (exit status: 2): The session has expired; run `aws sso login`",
            ),
            (boxed, "printed no ExecCredential"),
        ] {
            let error = from_kube("https://k", source);
            assert!(error.to_string().contains(text), "{error}");
            assert!(
                !error.to_string().contains("secret") && !error.to_string().contains("a-token")
            );
            assert!(error.is_recoverable() && !error.is_temporary(), "{error}");
        }
    }
}
