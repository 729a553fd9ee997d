//! A request body that becomes available after the request was opened.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::sync::oneshot;

/// Sends the body once it is available. If it is dropped, the request ends.
pub type BodySender = oneshot::Sender<Vec<u8>>;

/// The body, until it was sent.
struct DeferredBody(Option<oneshot::Receiver<Vec<u8>>>);

/// Returns a body that is sent when its sender is used.
pub fn deferred_body() -> (BodySender, reqwest::Body) {
    let (body_sender, body) = oneshot::channel();
    (body_sender, reqwest::Body::wrap(DeferredBody(Some(body))))
}

impl Body for DeferredBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let bytes = ready!(Pin::new(body).poll(context));
        self.0 = None;
        Poll::Ready(bytes.ok().map(|bytes| Ok(Frame::data(Bytes::from(bytes)))))
    }
}
