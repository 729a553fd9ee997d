//! `--listen`: serves `/healthz` and `/metrics`.
//!
//! The task that supervises the trial produces every answer, so `/healthz` reports the health of that task and not of
//! this server. Answers must not slow that task down. It produces one text at a time, and a slow client delays only
//! itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

use crate::http::prometheus::MEDIA_TYPE;
use crate::http::server::{Handler, Head, Limits, Method, Response, ResponseFuture, serve};

/// A request for the text of `/metrics`.
pub type StatusRequest = oneshot::Sender<String>;

/// The maximum time for an answer of the supervising task, and for a client to send a request or read the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client needs only a few connections, and no body.
const STATUS_LIMITS: Limits =
    Limits { connections: 16, body_bytes: 0, client_timeout: Some(CLIENT_TIMEOUT) };

struct StatusServer {
    requests: mpsc::Sender<StatusRequest>,
}

/// Serves on `address` until `ended`. If the address is not available, logs a warning, and the trial continues.
pub async fn listen(
    address: SocketAddr,
    requests: mpsc::Sender<StatusRequest>,
    ended: watch::Receiver<bool>,
) {
    let bound = TcpListener::bind(address).await;
    let listener = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    match listener {
        Ok((address, listener)) => {
            tracing::info!("listens on http://{address}");
            serve(listener, STATUS_LIMITS, Arc::new(StatusServer { requests }), ended).await;
        }
        Err(source) => {
            tracing::warn!(
                "cannot listen on {address} ({source}); the status page is off; choose another port with --listen"
            );
        }
    }
}

impl Handler for StatusServer {
    fn respond<'a>(&'a self, head: &'a Head, _: &'a [u8]) -> ResponseFuture<'a> {
        Box::pin(async move {
            let path = head.target.split('?').next().unwrap_or_default();
            match (head.method, path) {
                (Method::Get, "/metrics" | "/healthz") => {}
                (Method::Put | Method::Other, "/metrics" | "/healthz") => {
                    return Response::empty("405 Method Not Allowed");
                }
                (Method::Get | Method::Put | Method::Other, _) => {
                    return Response::empty("404 Not Found");
                }
            }
            let (sender, page) = oneshot::channel();
            let response = async {
                self.requests.send(sender).await.ok()?;
                page.await.ok()
            };
            match tokio::time::timeout(CLIENT_TIMEOUT, response).await {
                Ok(Some(page)) => {
                    let (media_type, body) = match path {
                        "/metrics" => (MEDIA_TYPE, page),
                        _ => ("text/plain", "ok\n".to_owned()),
                    };
                    Response { status: "200 OK", media_type, body }
                }
                // The trial has ended, or the supervising task hangs.
                Ok(None) | Err(_) => Response::empty("503 Service Unavailable"),
            }
        })
    }
}
